"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1, with option II for the control variates.

Departures: client models are averaged with equal weights as printed, over the sampled clients that hold labels; buffers
(normalisation statistics) are averaged and carry no control variate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grapevine.core import Client, Method, Server, param, step
from grapevine.learn import Weights, add, average, fit, parameter_names, push, subtract


@dataclass(frozen=True)
class Scaffold(Method):
    """FedAvg whose local steps are corrected for the client's drift."""

    name = "scaffold"
    title = "SCAFFOLD on the labelled rows (Karimireddy et al. 2020)"

    lr: float = param(0.1, "η_l", "learning rate of the clients")
    global_lr: float = param(1.0, "η_g", "learning rate of the server")
    epochs: int = param(5, "", "passes over the labelled rows per round; K is the number of steps in them")
    batch: int = param(50, "", "batch size of the clients")

    @step
    def train(self, client: Client, weights: dict, c: dict, round: int) -> dict:
        rows = client.data.labelled
        if not len(rows):
            return dict(n=0)
        model = client.model(weights)  # line 7: y_i ← x
        c_i = client.memory.get("c", zeros(c))
        K = fit(model, rows, self.lr, self.epochs, client.rng("train", round), self.batch,
                adjust=push(subtract(c, c_i)))  # lines 9–10: y_i ← y_i − η_l (g_i(y_i) − c_i + c)  # fmt: skip
        y_i = model.state()
        moved = subtract(weights, {name: y_i[name] for name in c})
        c_new = add(subtract(c_i, c), moved, 1 / (K * self.lr))  # line 12 (ii): c_i − c + (x − y_i)/(K η_l)
        client.memory["c"] = c_new  # line 14
        return dict(dy=subtract(y_i, weights), dc=subtract(c_new, c_i), n=len(rows))  # line 13: (Δy_i, Δc_i)

    def setup(self, server: Server) -> dict:
        model = server.model()
        weights = model.state()
        return dict(weights=weights, c=zeros({name: weights[name] for name in parameter_names(model)}), round=0)

    def round(self, server: Server, state: dict) -> dict:
        x, c, round = state["weights"], state["c"], state["round"]
        S = server.sample(round)  # line 3
        replies = server.ask(self.train, to=S, weights=x, c=c, round=round)  # line 4
        replies = {id: reply for id, reply in replies.items() if reply["n"]}
        if replies:
            dx = average(replies, "dy", by=None)  # line 16
            dc = average(replies, "dc", by=None)
            x = add(x, dx, self.global_lr)  # line 17
            c = add(c, dc, len(replies) / len(server.clients))
        return dict(weights=x, c=c, round=round + 1)


def zeros(like: Weights) -> Weights:
    return {name: torch.zeros_like(w) for name, w in like.items()}
