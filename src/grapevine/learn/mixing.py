"""Mixup (Zhang et al. 2018), and draws from beta distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
