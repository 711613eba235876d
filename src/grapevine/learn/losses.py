"""What semi-supervised methods share: pseudo-labels, mixup, moving averages, consistency, contrast and prototypes.

Every loss is a mean over the batch, differentiable in its first argument; what is called a target gets no gradient. An empty
batch, or a mask that is zero throughout, gives a loss of 0 with zero gradient. The views themselves are in `data.augment`.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grapevine.core.errors import Mistake
from grapevine.learn.training import Weights

# ---------------------------------------------------------------- pseudo-labels


def sharpen(p: Tensor, T: float) -> Tensor:
    """p_k^(1/T) / Σ_j p_j^(1/T): MixMatch's sharpening, ProtoFSSL's equation 5. Rows of zeros stay."""
    if not T > 0:
        raise Mistake(f"T={T} cannot sharpen: choose a temperature above 0 (0.5 in MixMatch and ProtoFSSL).")
    power = (p / p.amax(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)) ** (1 / T)  # the largest is 1: no underflow
    return power / power.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


def pseudo_labels(scores: Tensor, threshold: float = 0.0, logits: bool | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest class, whether its probability reaches the threshold, and that probability.

    `scores` are probabilities or logits; unless told, probabilities are known by rows that are not negative and sum to 1.
    """
    scores = scores.detach()
    if logits is None:
        logits = not _are_probabilities(scores)
    confidence, labels = (scores.softmax(-1) if logits else scores).max(-1)
    return labels, confidence >= threshold, confidence


def _are_probabilities(scores: Tensor) -> bool:
    return bool((scores >= 0).all() and ((scores.sum(-1) - 1).abs() < 1e-4).all())


def entropy_confidence(p: Tensor) -> Tensor:
    """1 − H(p) / log C of each row of class weights (XCLP, Algorithm 1, line 16), normalised first; a row of zeros has 0.

    Of a network, give it softmax probabilities, not logits.
    """
    total = p.sum(-1)
    q = p / total.clamp(min=torch.finfo(p.dtype).tiny)[..., None]
    most = math.log(p.shape[-1]) or 1.0  # one class: no doubt
    return ((1 - torch.special.entr(q).sum(-1) / most) * (total > 0)).clamp(0, 1)


def one_hot(y: Tensor, classes: int) -> Tensor:
    """float32 (n, classes); a row of zeros where y is −1."""
    return (y[:, None] == torch.arange(classes, device=y.device)).float()


# ---------------------------------------------------------------- moving averages and schedules


@torch.no_grad()
def ema_(
    target: nn.Module | Weights, source: nn.Module | Weights, decay: float, parameters: Collection[str] | None = None
) -> None:
    """target ← decay · target + (1 − decay) · source for the parameters, in place; buffers are copied.

    Between two state dicts `parameters` names what is averaged; without it, all that is floating point.
    """
    for side in (target, source):
        if isinstance(side, nn.Module):
            parameters = {name for name, _ in side.named_parameters()}
    own, other = (side.state_dict() if isinstance(side, nn.Module) else side for side in (target, source))
    if own.keys() != other.keys():
        odd = sorted(own.keys() ^ other.keys())[0]
        raise Mistake(f"no moving average of two models that differ: {odd!r} is in one of them only, build both alike.")
    for name, t in own.items():
        new = other[name].to(t.device)
        if name in parameters if parameters is not None else t.is_floating_point():
            t.lerp_(new, 1 - decay)
        else:
            t.copy_(new)


def sigmoid_rampup(step: float, length: float) -> float:
    """exp(−5 (1 − step/length)²), then 1 (Laine & Aila 2017)."""
    done = min(max(step / length, 0.0), 1.0) if length > 0 else 1.0
    return math.exp(-5 * (1 - done) ** 2)


# ---------------------------------------------------------------- mixup


def mixup(
    x: Tensor, y: Tensor, rng: torch.Generator, beta: float, other: tuple[Tensor, Tensor] | None = None, nearer: bool = False
) -> tuple[Tensor, tuple[Tensor, Tensor], float]:
    """λ x + (1 − λ) x', both targets (y, y') and λ ~ Beta(beta, beta), one for the batch (Zhang et al. 2018).

    x' is the batch in another order, or `other` (SemiFL's mix set). `nearer` takes max(λ, 1 − λ), so that the mixture is
    nearer to x (MixMatch). The loss is λ · l(f(mixed), y) + (1 − λ) · l(f(mixed), y').
    """
    share = draw_beta(beta, beta, rng)
    if nearer:
        share = max(share, 1 - share)
    if other is None:
        order = torch.randperm(len(x), generator=rng, device=rng.device).to(x.device)
        other = x[order], y[order]
    return share * x + (1 - share) * other[0], (y, other[1]), share


def draw_beta(a: float, b: float, rng: torch.Generator) -> float:
    """One draw from Beta(a, b): X / (X + Y) of two gamma variables, through their logarithms, which never underflow."""
    if not (a > 0 and b > 0):
        raise Mistake(f"there is no Beta({a}, {b}) to draw from: give it parameters above 0 (0.75 in MixMatch and SemiFL).")
    difference = _log_gamma_draw(b, rng) - _log_gamma_draw(a, rng)
    return 1 / (1 + math.exp(difference)) if difference < 700 else 0.0


def _log_gamma_draw(shape: float, rng: torch.Generator) -> float:
    """Marsaglia & Tsang 2000: a normal variable's transform, accepted or drawn again. Below shape 1: G(a) = G(a + 1) U^(1/a)."""
    boost = 0.0
    if shape < 1:
        boost, shape = math.log(_uniform(rng)) / shape, shape + 1
    d = shape - 1 / 3
    while True:
        z = torch.randn((), generator=rng, dtype=torch.float64, device=rng.device).item()
        v = (1 + z / math.sqrt(9 * d)) ** 3
        u = _uniform(rng)
        if v > 0 and math.log(u) < z * z / 2 + d - d * v + d * math.log(v):
            return math.log(d * v) + boost


def _uniform(rng: torch.Generator) -> float:
    """In (0, 1]."""
    return 1 - torch.rand((), generator=rng, dtype=torch.float64, device=rng.device).item()


# ---------------------------------------------------------------- losses


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
    loss = -(target * logits.log_softmax(-1)).sum(-1) - torch.special.entr(target).sum(-1)
    return _mean(loss, weight)


def consistency_mse(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the batch of weight · the mean over classes of (softmax(logits) − target)²; `target` are probabilities."""
    return _mean((logits.softmax(-1) - target.detach()).square().mean(-1), weight)


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of ‖p̄ − z̄‖² = 2 − 2 cos(p, z), the vectors' lengths aside (Grill et al. 2020, equation 2)."""
    return _mean(2 - 2 * F.cosine_similarity(prediction, target.detach(), dim=-1), None)


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss over the projections of two views of every row (Chen et al. 2020, equation 1 and Algorithm 1).

    The mean over all 2N projections of −log(exp(s_ij/τ) / Σ_{k≠i} exp(s_ik/τ)), s being cosines and j the other view of i.
    """
    if not temperature > 0:
        raise Mistake(f"temperature={temperature} cannot divide cosines: choose more than 0 (0.5 in SimCLR).")
    if not len(a):
        return (a.sum() + b.sum()) * 0
    z = F.normalize(torch.cat([a, b]), dim=1)
    s = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -math.inf)
    return F.cross_entropy(s, torch.arange(len(z), device=z.device).roll(len(a)))


def _mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    if weight is not None:
        loss = loss * weight.to(loss.dtype)
    return loss.sum() / max(len(loss), 1)


def label_contrastive(z: Tensor, y: Tensor, temperature: float, per_class: bool = False) -> Tensor:
    """FedAnchor's label contrastive loss, equations 1 and 2, over the cosines s of a batch.

    l(c) = −log(Σ_{y(i)=y(j)=c, i≠j} exp(s_ij/τ) / Σ_{y(i)≠y(j)} exp(s_ij/τ)), averaged over the classes with two members or
    more. The denominator holds all pairs across classes, as printed, or with `per_class` those in which one member is of class
    c. Pairs are ordered in both sums. Rows with y = −1 take no part. With a single class there is nothing to keep apart: 0.
    """
    if not temperature >= 0.003:  # exp(±1/τ) must fit float64
        raise Mistake(f"temperature={temperature} is too small for the contrastive loss: choose at least 0.003.")
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


# ---------------------------------------------------------------- prototypes


def prototypes(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class, (classes, d), and how many rows it comes from; 0 and 0 for a class without rows."""
    members = one_hot(y, classes).to(features.dtype)
    counts = members.sum(0)
    return members.T @ features / counts.clamp(min=1)[:, None], counts.long()


def prototype_logits(features: Tensor, prototypes: Tensor, squared: bool | str = True, present: Tensor | None = None) -> Tensor:
    """−‖f − c_k‖² of each row and class (Snell et al. 2017), or its mean over the d dimensions with squared='mean'.

    `prototypes` is (classes, d), or (helpers, classes, d) for one (n, classes) table per helper. Where `present` is False
    there is no prototype: the logit is −∞.
    """
    if squared not in (True, "mean"):
        raise Mistake(f"squared={squared!r} is no distance to a prototype: choose True or 'mean'.")
    centre = prototypes.detach().mean(tuple(range(prototypes.dim() - 1)))  # near the middle, the products cancel less
    f, c = features - centre, prototypes - centre
    distance = f.square().sum(-1)[:, None] - 2 * f @ c.mT + c.square().sum(-1)[..., None, :]
    if squared == "mean":
        distance = distance / features.shape[-1]
    return -distance if present is None else (-distance).masked_fill(~present[..., None, :], -math.inf)
