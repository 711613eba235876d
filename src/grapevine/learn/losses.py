"""Losses of semi-supervised methods.

Every loss is a mean over the batch, differentiable in its first argument; what is called a target gets no gradient. An empty
batch, or a mask that is zero throughout, gives a loss of 0 with zero gradient. The views themselves are in `data.augment`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from grapevine.learn.labels import one_hot


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the batch of weight · cross-entropy. `target`: classes (−1: no loss, still counted) or rows of probabilities."""
    if target.is_floating_point():
        loss = F.cross_entropy(logits, target, reduction="none")
    else:
        loss = F.cross_entropy(logits, target, reduction="none", ignore_index=-1)
    return _mean(loss, weight)


def consistency_kl(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the batch of weight · KL(target ‖ softmax(logits)); `target` are probabilities."""
    target = target.detach()
    return _mean(-(target * logits.log_softmax(-1)).sum(-1) - torch.special.entr(target).sum(-1), weight)


def consistency_mse(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of the mean over classes of (softmax(logits) − target)²; `target` are probabilities."""
    return _mean((logits.softmax(-1) - target.detach()).square().mean(-1))


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of ‖p̄ − z̄‖² = 2 − 2 cos(p, z), the vectors' lengths aside (Grill et al. 2020, equation 2)."""
    return _mean(2 - 2 * F.cosine_similarity(prediction, target.detach(), dim=-1))


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss over the projections of two views of every row (Chen et al. 2020, equation 1 and Algorithm 1).

    The mean over all 2N projections of −log(exp(s_ij/τ) / Σ_{k≠i} exp(s_ik/τ)), s being cosines and j the other view of i.
    """
    if not len(a):
        return (a.sum() + b.sum()) * 0
    z = F.normalize(torch.cat([a, b]), dim=1)
    s = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -math.inf)
    return F.cross_entropy(s, torch.arange(len(z), device=z.device).roll(len(a)))


def _mean(loss: Tensor, weight: Tensor | None = None) -> Tensor:
    if weight is not None:
        loss = loss * weight.to(loss.dtype)
    return loss.sum() / max(len(loss), 1)


def label_contrastive(z: Tensor, y: Tensor, temperature: float, per_class: bool = False) -> Tensor:
    """FedAnchor's label contrastive loss, equations 1 and 2, over the cosines s of a batch.

    l(c) = −log(Σ_{y(i)=y(j)=c, i≠j} exp(s_ij/τ) / Σ_{y(i)≠y(j)} exp(s_ij/τ)), averaged over the classes with two members or
    more. The denominator holds all pairs across classes, as printed, or with `per_class` those in which one member is of class
    c. Pairs are ordered in both sums. Rows with y = −1 take no part. With a single class there is nothing to keep apart: 0.
    exp(±1/τ) must fit float64: τ is at least 0.003.
    """
    z, y = z[y >= 0], y[y >= 0]
    present, y = y.unique(return_inverse=True)
    members = one_hot(y, len(present)).double()
    z = F.normalize(z.double(), dim=1)
    similar = ((z @ z.T) / temperature).exp() * (1 - torch.eye(len(z), dtype=z.dtype, device=z.device))
    pairs = members.T @ similar @ members  # sums over pairs of classes
    same = pairs.diagonal()
    across = 2 * (pairs.sum(1) - same) if per_class else (pairs.sum() - same.sum()).expand_as(same)
    counted = members.sum(0) >= 2
    if len(present) < 2 or not counted.any():
        return z.sum().float() * 0
    return (across[counted].log() - same[counted].log()).mean().float()
