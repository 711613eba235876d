"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1. And its upper bound here: the same on all true labels.

Departures: clients are sampled by number (`--per-round`) rather than by fraction C; the average is over the sampled
clients that hold labels, weighted by their number of labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from grapevine.core import Client, Method, Server, param, step
from grapevine.learn import average, fit


@dataclass(frozen=True)
class FedAvg(Method):
    """Average of models trained on each client's labelled rows."""

    name = "fedavg"
    title = "FedAvg on the labelled rows (McMahan et al. 2017)"

    lr: float = param(0.1, "η", "learning rate of the clients")
    epochs: int = param(5, "E", "passes over the labelled rows per round")
    batch: int = param(50, "B", "batch size of the clients")
    momentum: float = param(0.0, "", "momentum of the clients' SGD, forgotten between rounds")
    weight_decay: float = param(0.0, "", "L2 penalty of the clients' SGD")

    @step
    def train(self, client: Client, weights: dict, round: int) -> dict:
        """ClientUpdate(k, w)."""
        model = client.model(weights)
        rows = client.data.labelled
        fit(model, rows, self.lr, self.epochs, client.rng("train", round), self.batch, self.momentum, self.weight_decay)
        return dict(weights=model.state(), n=len(rows))

    def round(self, server: Server, state: dict) -> dict:
        chosen = server.sample(state["round"])  # S_t
        replies = server.ask(self.train, to=chosen, weights=state["weights"], round=state["round"])
        return dict(weights=average(replies, otherwise=state["weights"]), round=state["round"] + 1)


@dataclass(frozen=True)
class Supervised(FedAvg):
    """The upper bound: FedAvg where every row of every client has its true label."""

    name = "supervised"
    title = "FedAvg on all true labels (upper bound)"
    takes = frozenset({"clients", "server", "both"})
    reveal = True
