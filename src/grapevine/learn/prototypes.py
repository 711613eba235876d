"""Prototypes: the mean feature of each class (Snell et al. 2017), and sets of them from several clients (ProtoFSSL)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grapevine.learn.labels import one_hot

Sets = tuple[Tensor, Tensor]
"""Prototypes (helpers, classes, d), and which of them are there (helpers, classes)."""


def prototypes(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class, (classes, d), and how many rows it comes from; 0 and 0 for a class without rows."""
    members = one_hot(y, classes).to(features.dtype)
    counts = members.sum(0)
    return members.T @ features / counts.clamp(min=1)[:, None], counts.long()


def prototype_logits(features: Tensor, prototypes: Tensor, mean: bool = False, present: Tensor | None = None) -> Tensor:
    """−‖f − c_k‖² of each row and class, or its mean over the d dimensions.

    `prototypes` is (classes, d), or (helpers, classes, d) for one (n, classes) table per helper. Where `present` is False
    there is no prototype: the logit is −∞.
    """
    centre = prototypes.detach().mean(tuple(range(prototypes.dim() - 1)))  # near the middle, the products cancel less
    f, c = features - centre, prototypes - centre
    distance = f.square().sum(-1)[:, None] - 2 * f @ c.mT + c.square().sum(-1)[..., None, :]
    if mean:
        distance = distance / features.shape[-1]
    return -distance if present is None else (-distance).masked_fill(~present[..., None, :], -math.inf)


def stack(sets: dict, device: torch.device | str) -> Sets | None:
    """The sets of several clients, in the order of their ids; None if there are none."""
    if not sets:
        return None
    means, present = (torch.stack([sets[j][key] for j in sorted(sets)]).to(device) for key in ("means", "present"))
    return means, present.bool()


def mean_over(theirs: Sets) -> tuple[Tensor, Tensor]:
    """Per class the mean over the helpers that have it, and whether any has."""
    means, present = theirs
    n = present.sum(0)
    return (means * present[..., None]).sum(0) / n.clamp(min=1)[:, None], n > 0


def votes(features: Tensor, theirs: Sets, mean: bool) -> Tensor:
    """Class probabilities by the distances to every helper's prototypes, averaged over the helpers. A class that a helper
    lacks is the mean over those that have it."""
    (means, present), (common, known) = theirs, mean_over(theirs)
    logits = prototype_logits(features, torch.where(present[..., None], means, common), mean)
    return torch.softmax(logits.masked_fill(~known.expand_as(present)[:, None, :], -1e9), -1).mean(0)
