"""Rules for pseudo-labels since FixMatch: which label a row is taught with, and whether it is used at all.

    softly_corrected    SAGE      the local label, moved towards the global one as far as the two models' confidences differ
    surer               FedLabel  the local or the global label, whichever model is surer
    debiased            FedDB     probabilities divided by their mean over the party's rows
    adaptive            (FL)²     a threshold for every class that follows how sure the model is of this party's rows
    class_thresholds    CBAFed    a threshold for every class that follows how many labels it has
    second_choices      CBAFed    the second-best class of an unsure row, if that class is rare

And the loss of methods in which the model as sent and the model in training label a row together (SAGE, FedLabel).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Network
from grapevine.core.rows import ClientData, Rows
from grapevine.data.augment import Views
from grapevine.learn.labels import one_hot
from grapevine.learn.losses import cross_entropy
from grapevine.learn.streams import epoch_steps, streams
from grapevine.learn.training import descent, train

LEAST = 1e-6  # the smallest difference between two confidences (SAGE's code)

# ---------------------------------------------------------------- the rules


def softly_corrected(own: Tensor, sent: Tensor, threshold: float, half: float) -> tuple[Tensor, Tensor]:
    """Targets (n, C) and which rows are used, from the probabilities of the model in training and of the one that was sent.

    λ = 2^(−|max own − max sent| / half). Where the own model reaches the threshold the target is λ · own label + (1 − λ) · sent
    label, elsewhere the sent label; a row is used if either model reaches the threshold.
    """
    (p, y), (q, z) = own.max(-1), sent.max(-1)
    apart = (p - q).abs().clamp(LEAST, 1.0)
    share = torch.exp(-math.log(2) / half * apart) * (p >= threshold)
    target = share[:, None] * one_hot(y, own.shape[1]) + (1 - share)[:, None] * one_hot(z, own.shape[1])
    return target, (p >= threshold) | (q >= threshold)


def surer(own: Tensor, sent: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """The label of whichever model is surer of the row, whether that model's probability reaches the threshold, and how sure the
    other is in comparison, 0 … 1. Sureness is the variance of the probabilities; a tie goes to the sent model."""
    v, w = own.var(-1), sent.var(-1)
    confidence, label = torch.where((v > w)[:, None], own, sent).max(-1)
    return label, confidence >= threshold, torch.minimum(v, w) / torch.maximum(v, w).clamp(min=torch.finfo(v.dtype).tiny)


def debiased(p: Tensor, prior: Tensor) -> Tensor:
    """p_c / prior_c, each row summing to 1 again: Bayes' rule with the prior that the model has taken from its data."""
    q = p / prior.clamp(min=torch.finfo(p.dtype).tiny)
    return q / q.sum(-1, keepdim=True)


def adaptive(p: Tensor) -> tuple[Tensor, float]:
    """Which rows are used, and g: the mean confidence. A row of class c must reach g · t_c / max t, t being the mean of p."""
    if not len(p):
        return torch.zeros(0, dtype=torch.bool), 1.0
    confidence, label = p.double().max(-1)  # a mean of equal float32 numbers may round to more than any of them
    t, g = p.double().mean(0), confidence.mean()
    return confidence >= g * (t / t.max())[label], g.item()


def class_thresholds(counts: Tensor, base: float, most: float) -> Tensor:
    """τ_c = q_c + base − std(q), at most `most`, q being the classes' shares of all labels, times C/10; base before any label."""
    q = shares(counts)
    return (q + base - q.std()).clamp(max=most) if counts.sum() else torch.full((len(counts),), base)


def second_choices(p: Tensor, used: Tensor, rare: Tensor) -> Tensor:
    """For every row that is not used its second-best class, if that is among the `rare` ones (a flag per class); −1 else."""
    second = p.topk(2, -1).indices[:, 1]
    return torch.where(~used & rare[second], second, -1)


def shares(counts: Tensor) -> Tensor:
    """The classes' shares of all labels, times C/10, so that a threshold made for ten classes suits any number."""
    return counts.float() / counts.sum().clamp(min=1) * (len(counts) / 10)


# ---------------------------------------------------------------- two models label together

Rule = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Logits of the weak views, by the model in training and by the one that was sent, and of the strong views, by the model in
training → the loss, the labels, and which are used. No gradient flows through the model that was sent."""


def without_labels(data: ClientData) -> Rows:
    """All rows of a party as unlabelled ones: the unlabelled first, then the labelled."""
    index = torch.cat([data.unlabelled.index, data.labelled.index])
    return replace(data.unlabelled, index=index, y=torch.full((len(index),), -1))


@dataclass
class Labelling(ABC):
    """A loss of labelled rows, and of strong views of others that get a label in every batch.

    `guessed` is the last label of every unlabelled row (−1: none), `used` whether it was used. Either kind of rows may be
    missing; where nothing is labelled and nothing used, there is no loss.
    """

    model: Network
    labelled: Rows
    unlabelled: Rows
    rng: torch.Generator

    def __post_init__(self) -> None:
        self.guessed = torch.full((len(self.unlabelled),), -1)
        self.used = torch.zeros(len(self.unlabelled), dtype=torch.bool)

    def batches(self, batch: int, ratio: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(streams(len(self.labelled), len(self.unlabelled), batch, ratio, self.rng), steps)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor | None:
        (a, b), own, others = batch, Views(self.labelled), Views(self.unlabelled)
        x, y = own.weak(a, self.rng), self.labelled.y[a].to(self.labelled.device)
        loss, labels, used = self.of(x, y, others.weak(b, self.rng), others.strong(b, self.rng))
        self.guessed[b], self.used[b] = labels.cpu(), used.cpu()
        return loss if len(a) or used.any() else None

    @abstractmethod
    def of(self, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of a batch, the labels of its unlabelled rows, and which are used."""


@dataclass
class TwoModels(Labelling):
    """mean H(y, p(x)) + the rule's loss on unlabelled rows, in one forward pass, so that batch normalisation sees all of them."""

    sent: Network
    rule: Rule

    def of(self, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, own, taught = self.model(torch.cat([x, weak, strong])).split([len(x), len(weak), len(strong)])
        with torch.no_grad():
            sent = self.sent(weak)
        loss, labels, used = self.rule(own, sent, taught)
        return cross_entropy(logits, y) + loss, labels, used


def fit_labelling(method: Any, client: Client, loss: Labelling) -> int:
    """Train with the method's fields lr, momentum, weight_decay, epochs, batch and ratio; the number of steps. The first of the
    loss's unlabelled rows are the client's own."""
    steps = method.epochs * epoch_steps(len(loss.labelled), len(loss.unlabelled), method.batch, method.ratio)
    optimiser = descent(loss.model.parameters(), method.lr, method.momentum, weight_decay=method.weight_decay)
    taken = train(loss.model, loss.batches(method.batch, method.ratio, steps), loss, optimiser, loss.rng)
    U = len(client.data.unlabelled)
    client.judge(loss.guessed[:U], loss.used[:U])
    return taken
