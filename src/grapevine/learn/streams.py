"""Batches of labelled and of unlabelled rows, in two streams; and the client's update of FedAvg+XCLP and its baselines, which
train on true labels in one stream and on pseudo-labels in the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grapevine.core import Client, Id, Network, Server
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import bases
from grapevine.learn.training import Adjust, descent, passes, steps_of, train

NONE = torch.empty(0, dtype=torch.int64)
UPDATE: dict[str, Any] = dict(reveals=dict(bases.UPDATE, n=bases.USED), like=bases.like, averaged=bases.averaged("one"))
"""The words and forms of a step that answers with `update`."""


def endless(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """An endless stream of batches of positions below n, shuffled again after each pass, whose last may be smaller; empty if n is
    0."""
    while True:
        yield from torch.randperm(n, generator=rng).split(size) if n else (NONE,)


def streams(labelled: int, unlabelled: int, batch: int, ratio: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """An endless stream of positions of `batch` labelled and of `ratio` · `batch` unlabelled rows, each shuffled again after its
    own pass."""
    return zip(endless(labelled, batch, rng), endless(unlabelled, ratio * batch, rng))


def epoch_steps(labelled: int, unlabelled: int, batch: int, ratio: int) -> int:
    """Steps of an epoch in two streams: one pass over the unlabelled rows, or over the labelled ones if there are no others."""
    return -(-unlabelled // (ratio * batch)) if unlabelled else -(-labelled // batch)


@dataclass(frozen=True)
class TwoStreams:
    """Batches B = B_L ∪ B_U (XCLP, appendix A.2): |B_L| = min(batch, labels), |B_U| = |B_L|.

    An epoch is one pass over the pseudo-labelled rows (−1 among `labels`: left out), or over the labelled ones if there are no
    others; a client without labels takes batches of 2·batch. The loss is the mean of cross-entropy · weight · class weight, with
    weight 1 for a true label.
    """

    model: Network
    labelled: Rows
    unlabelled: Rows
    labels: Tensor
    weight: Tensor
    rng: torch.Generator
    class_weight: Tensor | None = None
    augment: bool = True

    def batches(self, batch: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        used, L = torch.nonzero((self.labels >= 0) & (self.weight > 0)).flatten(), len(self.labelled)
        size = min(batch, L) or 2 * batch
        for _ in range(epochs):
            truths = endless(L, size, self.rng)
            for at in passes(len(used), size, 1, self.rng) if len(used) else (NONE,) * -(-L // size):
                yield next(truths), used[at]

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = batch
        views = (Views(self.labelled), a), (Views(self.unlabelled), b)
        x = torch.cat([rows.weak(at, self.rng) if self.augment else rows.plain(at) for rows, at in views if len(at)])
        y = torch.cat([self.labelled.y[a], self.labels[b]]).to(x.device)
        w = torch.cat([torch.ones(len(a)), self.weight[b].float()]).to(x.device)
        w = w if self.class_weight is None else w * self.class_weight.to(x.device)[y]
        return (F.cross_entropy(self.model(x), y, reduction="none") * w).mean()


def most_steps(method: Any, labelled: int, unlabelled: int) -> int:
    """Steps in `TwoStreams` of a method with the fields epochs and batch: all unlabelled rows get a label, or none does."""
    size = min(method.batch, labelled) or 2 * method.batch
    return steps_of(max(labelled, unlabelled), size, method.epochs)


def update(
    method: Any, client: Client, told: Mapping[str, Any], labels: Tensor, weight: Tensor, class_weight: Tensor | None = None
) -> dict:
    """ClientUpdate(X, ŷ, ω; θ) of a method with the fields base, mu, epochs, batch, weight_decay and augment."""
    data, rng = client.data, client.rng("train", told["round"])
    n = len(data.labelled) + int(((labels >= 0) & (weight > 0)).sum())

    def descend(model: Network, adjust: Adjust | None) -> int:
        loss = TwoStreams(model, data.labelled, data.unlabelled, labels, weight, rng, class_weight, method.augment)
        optimiser = descent(model.parameters(), told["lr"], weight_decay=method.weight_decay)
        return train(model, loss.batches(method.batch, method.epochs), loss, optimiser, rng, adjust)

    return bases.client_update(client, method, told, descend, n)


def nothing(rows: int) -> tuple[Tensor, Tensor]:
    """No labels for this many rows, and no confidence in them."""
    return torch.full((rows,), -1), torch.zeros(rows)


def sample_by_labels(server: Server, round: int, clients: Iterable[Id], labelled: set[Id]) -> list[Id]:
    """Some of these clients, with and without labels in the ratio they have among all: ⌈τ·m_L⌉ with, the rest without."""
    clients = list(clients)
    count = min(server.per_round, len(clients))
    without = [id for id in clients if id not in labelled]
    n = min(math.ceil(count * len(labelled) / max(len(clients), 1)), len(labelled))
    n = max(n, count - len(without))
    return sorted(server.sample(round, labelled, n, "labelled") + server.sample(round, without, count - n, "unlabelled"))
