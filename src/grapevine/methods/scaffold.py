"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1, with option II for the control variates. Lines 7 to 14 are `bases.client_update`, lines 16 and
17 `bases.server_update`: other methods stand on them too.

Departures: client models are averaged with equal weights as printed, over the sampled clients that hold labels, and N counts
clients with labels, as far as is known; buffers (normalisation statistics) are averaged and carry no control variate. A client
whose reply was lost goes back to the c_i that the server knows, so that c stays the mean of all c_i (`bases.own_control`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.learn import bases
from grapevine.learn.private import fit_own
from grapevine.learn.training import Adjust, steps_of


@dataclass(frozen=True)
class Scaffold(Method):
    """FedAvg whose local steps are corrected for the client's drift."""

    name = "scaffold"
    title = "SCAFFOLD on the labelled rows (Karimireddy et al. 2020)"
    base: ClassVar[str] = "scaffold"
    private = "scaffold"

    lr: float = param(0.1, "η_l", "learning rate of the clients", above=0)
    global_lr: float = param(1.0, "η_g", "learning rate of the server", above=0)
    epochs: int = param(5, "", "passes over the labelled rows per round; K is the number of steps in them", least=1)
    batch: int = param(50, "", "batch size of the clients", least=1)

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=dict(dy=bases.MOVE, dc=bases.GRADIENT, n=bases.USED), like=bases.like, averaged=bases.averaged("one"))
    def train(self, client: Client, weights: dict, control: dict, round: int) -> dict:
        rows = client.data.labelled

        def descend(model: Network, adjust: Adjust | None) -> int:
            return fit_own(client, model, self.lr, self.epochs, round, self.batch, adjust)

        told = dict(weights=weights, control=control, lr=self.lr, round=round)
        return bases.client_update(client, self, told, descend, len(rows))

    def setup(self, server: Server) -> dict:
        return dict(bases.first_state(server, self.base), round=0)

    def round(self, server: Server, state: dict) -> dict:
        x, round = state["weights"], state["round"]
        each = bases.control(state, self.base, server.sample(round))  # line 3
        replies = server.ask(self.train, each=each, weights=x, round=round)  # line 4
        bases.note_diversity(server, bases.moves(replies, x))
        return dict(bases.server_update(server, self.base, state, replies, by=None, global_lr=self.global_lr), round=round + 1)
