"""FixMatch-FedAvg and FixMatch-FedProx. Sohn, Berthelot, Li, Zhang, Carlini, Cubuk, Kurakin, Zhang, Raffel: "FixMatch:
Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020, Algorithm 1, run by every client between
two averages: the baselines of ProtoFSSL's tables 1 to 3.

`pseudo_labels=global`: labels come from the model that the server sent, which does not move during the round. With labels at the
server it trains on them after every average, as "FedAvg+FixMatch" of FedAnchor's tables; clients then have the unlabelled loss
alone.

Departures: a round is `epochs` passes over a client's unlabelled rows; the learning rate falls with the rounds; no moving
average of the weights. A batch in which nothing is labelled and nothing is confident moves nothing (momentum and weight decay
would). Models are averaged by the clients' numbers of rows; a client that took no step is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.learn import bases, train
from grapevine.learn.labels import likeliest
from grapevine.learn.losses import cross_entropy
from grapevine.learn.pseudo import Labelling
from grapevine.learn.streams import NONE, epoch_steps
from grapevine.learn.training import Adjust, nesterov


@dataclass(frozen=True)
class FixMatch(Method):
    """FixMatch at the clients, FedAvg or FedProx between them."""

    name = "fixmatch"
    title = "FixMatch-FedAvg: confident labels of weak views teach strong views (Sohn et al. 2020)"
    extra = "cosine rate, weak and strong views of unlabelled rows"
    takes = frozenset({"clients", "server", "both"})

    threshold: float = param(0.95, "τ", "least probability of a pseudo-label", least=0, most=1)
    weight: float = param(1.0, "λ_u", "weight of the unlabelled loss", least=0)
    pseudo_labels: str = param("local", "", "from the model in training, or the global one as sent", choices=("local", "global"))
    base: str = param("fedavg", "", "fedavg, fedprox or scaffold", choices=bases.BASES)
    mu: float = param(0.01, "", "proximal term, for base=fedprox", least=0)
    lr: float = param(0.03, "η", "first learning rate; η cos(7πt/16T) in round t of T", above=0)
    momentum: float = param(0.9, "β", "Nesterov momentum, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    epochs: int = param(5, "E", "passes over the unlabelled rows per round", least=1)
    batch: int = param(10, "B", "labelled rows in a batch", least=1)
    ratio: int = param(7, "μ", "unlabelled rows in a batch for each labelled one", least=1)
    server_epochs: int = param(5, "", "passes over the server's labelled rows after every average, if it has any", least=1)

    def check(self, server: Server) -> None:
        if self.base == "scaffold" and self.momentum:
            raise Mistake(f"fixmatch: base=scaffold corrects plain steps, but momentum is {self.momentum:g}: set momentum=0.")

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.epochs * epoch_steps(labelled, unlabelled, self.batch, self.ratio)

    # ------------------------------------------------------------ client

    @step(reveals=dict(bases.UPDATE, n=bases.HELD), like=bases.like, averaged=bases.averaged("n"))
    def train(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        data, draw = client.data, client.rng("train", round)
        teacher = client.model(weights).eval() if self.pseudo_labels == "global" else None
        n, taken = len(data.labelled) + len(data.unlabelled), 0

        def descend(model: Network, adjust: Adjust | None) -> int:
            nonlocal taken
            steps = self.epochs * epoch_steps(len(data.labelled), len(data.unlabelled), self.batch, self.ratio)
            loss = FixMatchLoss(model, data.labelled, data.unlabelled, draw, self.threshold, self.weight, teacher)
            taken = self._fit(loss, lr, steps, adjust)
            client.judge(loss.guessed, loss.used)
            return taken

        reply = bases.client_update(client, self, dict(weights=weights, control=control, lr=lr, round=round), descend, n)
        return reply if taken else dict(n=0)

    def _fit(self, loss: FixMatchLoss, lr: float, steps: int, adjust: Adjust | None = None) -> int:
        optimiser = nesterov(loss.model, lr, self.momentum, self.weight_decay)
        return train(loss.model, loss.batches(self.batch, self.ratio, steps), loss, optimiser, loss.rng, adjust)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(bases.first_state(server, self.base), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights = state["round"], state["weights"]
        lr = cosine(self.lr, t, server.rounds)
        replies = server.ask(self.train, each=bases.control(state, self.base, server.sample(t)), weights=weights, lr=lr, round=t)
        bases.note_diversity(server, bases.moves(replies, weights))
        new = bases.server_update(server, self.base, state, replies)
        if bases.has_rows(server):
            new["weights"] = self._at_server(server, new["weights"], lr, t)
        return dict(state, **new, round=t + 1)

    def _at_server(self, server: Server, weights: dict, lr: float, t: int) -> dict:
        model, rows = server.model(weights), bases.own_rows(server)
        loss = FixMatchLoss(model, rows, rows.take(NONE), server.rng("train", t), self.threshold, self.weight)
        self._fit(loss, lr, self.server_epochs * epoch_steps(len(rows), 0, self.batch, self.ratio))
        return model.state()


# ---------------------------------------------------------------- FixMatch itself, for any method


@dataclass
class FixMatchLoss(Labelling):
    """Algorithm 1: mean H(y, p(x)) + λ_u · mean 1[max q ≥ τ] H(argmax q, p(strong)) with q = p(weak).

    The labels come from the model itself, or from a teacher; those that are confident are used.
    """

    threshold: float
    weight: float
    teacher: Network | None = None

    def of(self, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the labels, and which are confident.

        One forward pass, as the authors have it, so that batch normalisation sees labelled and unlabelled rows together.
        """
        if self.teacher is None:
            logits, q, taught = self.model(torch.cat([x, weak, strong])).split([len(x), len(weak), len(strong)])
        else:
            logits, taught = self.model(torch.cat([x, strong])).split([len(x), len(strong)])
            with torch.no_grad():
                q = self.teacher(weak)
        labels, sure, _ = likeliest(q, self.threshold)
        return cross_entropy(logits, y) + self.weight * cross_entropy(taught, labels, sure), labels, sure


def cosine(lr: float, t: int, rounds: int) -> float:
    """η cos(7πt / 16T)."""
    return lr * math.cos(7 * math.pi * t / (16 * rounds))
