"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1, with option II for the control variates.

Departures: client models are averaged with equal weights as printed, over the sampled clients that hold labels, and N counts
clients with labels, as far as is known; buffers (normalisation statistics) are averaged and carry no control variate. A client
whose reply was lost goes back to the c_i that the server knows, so that c stays the mean of all c_i (`bases.own_control`).
"""

from __future__ import annotations

from dataclasses import dataclass

from grapevine.core import Client, Method, Server, param, step
from grapevine.learn import add, average, bases, fit, push, subtract


@dataclass(frozen=True)
class Scaffold(Method):
    """FedAvg whose local steps are corrected for the client's drift."""

    name = "scaffold"
    title = "SCAFFOLD on the labelled rows (Karimireddy et al. 2020)"

    lr: float = param(0.1, "η_l", "learning rate of the clients", above=0)
    global_lr: float = param(1.0, "η_g", "learning rate of the server", above=0)
    epochs: int = param(5, "", "passes over the labelled rows per round; K is the number of steps in them", least=1)
    batch: int = param(50, "", "batch size of the clients", least=1)

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    @step
    def train(self, client: Client, weights: dict, control: dict, round: int) -> dict:
        rows = client.data.labelled
        if not len(rows):
            return dict(n=0)
        model = client.model(weights)  # line 7: y_i ← x
        c, c_i = control["c"], bases.own_control(client, control)
        K = fit(model, rows, self.lr, self.epochs, client.rng("train", round), self.batch,
                adjust=push(subtract(c, c_i)))  # lines 9–10: y_i ← y_i − η_l (g_i(y_i) − c_i + c)  # fmt: skip
        y_i = model.state()
        moved = subtract(weights, {name: y_i[name] for name in c})
        c_new = add(subtract(c_i, c), moved, 1 / (K * self.lr))  # line 12 (ii): c_i − c + (x − y_i)/(K η_l)
        client.memory["newest"] = dict(round=round, c=c_new)  # line 14, once the server has heard of it
        return dict(dy=subtract(y_i, weights), dc=subtract(c_new, c_i), n=len(rows))  # line 13: (Δy_i, Δc_i)

    def setup(self, server: Server) -> dict:
        return dict(bases.first_state(server, "scaffold"), round=0)

    def round(self, server: Server, state: dict) -> dict:
        x, round = state["weights"], state["round"]
        S = server.sample(round)  # line 3
        replies = server.ask(self.train, each=bases.control(state, "scaffold", S), weights=x, round=round)  # line 4
        used = {id: reply for id, reply in replies.items() if reply["n"]}
        if used:
            dx = average(used, "dy", by=None)  # line 16
            x = add(x, {name: d * self.global_lr if name in state["c"] else d for name, d in dx.items()})  # line 17
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(bases.server_control(state, replies, server.clients), weights=x, round=round + 1)
