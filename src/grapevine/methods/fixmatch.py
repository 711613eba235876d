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
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import bases, pseudo
from grapevine.learn.losses import cross_entropy
from grapevine.learn.losses import pseudo_labels as likeliest
from grapevine.learn.networks import Network


@dataclass(frozen=True)
class FixMatch(Method):
    """FixMatch at the clients, FedAvg or FedProx between them."""

    name = "fixmatch"
    title = "FixMatch-FedAvg: confident labels of weak views teach strong views (Sohn et al. 2020)"
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
            raise Mistake(f"fixmatch: base=scaffold corrects plain steps, and momentum is {self.momentum:g}: set momentum=0.")

    # ------------------------------------------------------------ client

    @step
    def train(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        data = client.data
        teacher = client.model(weights).eval() if self.pseudo_labels == "global" else None
        taken = {}

        def train(model: Network, adjust: Callable | None) -> int:
            steps = self.epochs * pseudo.epoch_steps(len(data.labelled), len(data.unlabelled), self.batch, self.ratio)
            done = self._fit(model, data.labelled, data.unlabelled, lr, steps, client.rng("train", round), teacher, adjust)
            client.judge(done.labels, done.used)
            taken["steps"] = done.steps
            return done.steps

        n = len(data.labelled) + len(data.unlabelled)
        reply = bases.client_update(client, self.base, weights, control, round, lr, self.mu, train, n)
        return reply if taken["steps"] else dict(n=0)

    def _fit(self, model: Network, labelled: Rows, unlabelled: Rows, lr: float, steps: int, draw: torch.Generator,
             teacher: Network | None = None, adjust: Callable | None = None) -> Outcome:  # fmt: skip
        return fit_fixmatch(model, labelled, unlabelled, lr, steps, draw, self.batch, self.ratio, self.threshold, self.weight,
                            self.momentum, self.weight_decay, teacher, adjust)  # fmt: skip

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
        model, rows = server.model(weights), server.data
        steps = self.server_epochs * pseudo.epoch_steps(len(rows), 0, self.batch, self.ratio)
        self._fit(model, rows, none_of(rows), lr, steps, server.rng("train", t))
        return model.state()


# ---------------------------------------------------------------- FixMatch itself, for any method


class Outcome(NamedTuple):
    """The steps taken; the last label that every unlabelled row was given (−1: none), and whether it was confident."""

    steps: int
    labels: Tensor
    used: Tensor


def fit_fixmatch(
    model: Network, labelled: Rows, unlabelled: Rows, lr: float, steps: int, draw: torch.Generator, batch: int, ratio: int,
    threshold: float, weight: float, momentum: float, weight_decay: float, teacher: Network | None = None,
    adjust: Callable[[Network], None] | None = None,
) -> Outcome:  # fmt: skip
    """SGD on Algorithm 1's loss. Either kind of rows may be missing."""
    model.train()
    model.use_rng(draw)
    own, others = Views(labelled), Views(unlabelled)
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=momentum > 0)
    labels, used = torch.full((len(unlabelled),), -1), torch.zeros(len(unlabelled), dtype=torch.bool)
    taken = 0
    for a, b in islice(pseudo.streams(len(labelled), len(unlabelled), batch, ratio, draw), steps):
        x, y = own.weak(a, draw), labelled.y[a].to(labelled.device)
        loss, labels_b, sure = fixmatch_loss(
            model, x, y, others.weak(b, draw), others.strong(b, draw), threshold, weight, teacher
        )
        labels[b], used[b] = labels_b.cpu(), sure.cpu()
        if not len(a) and not sure.any():
            continue
        optimiser.zero_grad()
        loss.backward()
        if adjust:
            adjust(model)
        optimiser.step()
        taken += 1
    return Outcome(taken, labels, used)


def fixmatch_loss(
    model: Network, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor, threshold: float, weight: float,
    teacher: Network | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """mean H(y, p(x)) + λ_u · mean 1[max q ≥ τ] H(argmax q, p(strong)) with q = p(weak); the labels; which are confident.

    One forward pass, as the authors have it, so that batch normalisation sees labelled and unlabelled rows together.
    """
    if teacher is None:
        logits, q, taught = model(torch.cat([x, weak, strong])).split([len(x), len(weak), len(strong)])
    else:
        logits, taught = model(torch.cat([x, strong])).split([len(x), len(strong)])
        with torch.no_grad():
            q = teacher(weak)
    labels, sure, _ = likeliest(q, threshold, logits=True)
    return cross_entropy(logits, y) + weight * cross_entropy(taught, labels, sure), labels, sure


def cosine(lr: float, t: int, rounds: int) -> float:
    """η cos(7πt / 16T)."""
    return lr * math.cos(7 * math.pi * t / (16 * rounds))


def none_of(rows: Rows) -> Rows:
    return rows.take(torch.empty(0, dtype=torch.int64))
