"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1. And its upper bound here: the same on all true labels, with `server_epochs` and
`pretrain` as the bound of FedAnchor's tables (Qiu et al. 2024): the server trains on its own rows before the first round and
in turns.

`schedule=cosine`, `augment` and `weight_decay` make it the first stage of FedAvg+XCLP, so that training on labelled rows alone is
as strong as the methods that it is compared with. With `optimiser=rmsprop` it is trained as by ProtoFSSL's authors
(Kim et al. 2022, appendix A.1).

Departures: clients are sampled by number (`--per-round`) rather than by fraction C; the average is over the sampled clients
that hold labels, weighted by their number of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT
from grapevine.learn import average, bases, fit
from grapevine.learn.private import fit_own
from grapevine.learn.schedules import SCHEDULES, scheduled
from grapevine.learn.training import OPTIMISERS, steps_of


@dataclass(frozen=True)
class FedAvg(Method):
    """Average of models trained on each client's labelled rows."""

    name = "fedavg"
    title = "FedAvg on the labelled rows (McMahan et al. 2017)"
    private = "fedavg"

    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes over the labelled rows per round", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)
    optimiser: str = param("sgd", "", "sgd, or rmsprop, which begins anew in every round", choices=OPTIMISERS)
    momentum: float = param(0.0, "", "momentum of the clients, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(0.0, "", "L2 penalty of the clients", least=0)
    schedule: str = param("constant", "", "learning rate over the rounds: constant, or cosine as in xclp", choices=SCHEDULES)
    augment: bool = param(False, "", "weak views (translation, flip) in training")

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=dict(weights=bases.MODEL, n=bases.USED), like=dict(weights="weights", n=COUNT),
          averaged=dict(weights="n"))  # fmt: skip
    def train(self, client: Client, weights: dict, round: int, lr: float | None = None) -> dict:
        """ClientUpdate(k, w)."""
        model, rows = client.model(weights), client.data.labelled
        fit_own(client, model, self._agreed(lr), self.epochs, round, self.batch, **self._how())
        return dict(weights=model.state(), n=len(rows))

    def _how(self) -> dict[str, Any]:
        return dict(optimiser=self.optimiser, momentum=self.momentum, weight_decay=self.weight_decay, augment=self.augment)

    def _agreed(self, lr: float | None) -> float:
        """At a client: the learning rate that the server says, if the settings allow it."""
        if lr is None:
            return self.lr
        if self.schedule == "constant" or not 0 <= lr <= self.lr:
            raise Mistake(
                f"a learning rate of {lr} does not follow from the settings (lr {self.lr:g}, schedule {self.schedule})."
            )
        return lr

    def _lr(self, server: Server, round: int) -> float:
        return scheduled(self.schedule, self.lr, round, server.rounds)

    def round(self, server: Server, state: dict) -> dict:
        chosen, told = server.sample(state["round"]), dict(weights=state["weights"], round=state["round"])  # S_t
        if self.schedule != "constant":
            told["lr"] = self._lr(server, state["round"])
        replies = server.ask(self.train, to=chosen, **told)
        weights = average(replies, otherwise=state["weights"])
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(weights=weights, round=state["round"] + 1)


@dataclass(frozen=True)
class Supervised(FedAvg):
    """The upper bound: FedAvg where every row of every client has its true label; the server may train on its own in turns."""

    name = "supervised"
    title = "FedAvg on all true labels (upper bound)"
    private = "supervised"
    takes = frozenset({"clients", "server", "both"})
    reveal = True

    server_epochs: int = param(0, "", "passes over the server's rows after every average", least=0)
    server_batch: int = param(10, "", "batch size at the server", least=1)
    pretrain: int = param(0, "", "passes over the server's rows before the first round", least=0)

    def check(self, server: Server) -> None:
        if (self.server_epochs or self.pretrain) and not bases.has_rows(server):
            raise Mistake("supervised: server_epochs and pretrain need labels at the server: use --labels server:500.")

    def round(self, server: Server, state: dict) -> dict:
        t = state["round"]
        if t == 0 and self.pretrain:
            state = dict(state, weights=self._at_server(server, state["weights"], self.pretrain, "pretrain", t))
        state = super().round(server, state)
        if self.server_epochs:
            state = dict(state, weights=self._at_server(server, state["weights"], self.server_epochs, f"train {t}", t))
        return state

    def _at_server(self, server: Server, weights: dict, epochs: int, name: str, t: int) -> dict:
        model = server.model(weights)
        fit(model, bases.own_rows(server), self._lr(server, t), epochs, server.rng(name), self.server_batch, **self._how())
        return model.state()
