"""Pseudo-labels: which class a network gives a row, how sure it is, and what several networks say together."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def one_hot(y: Tensor, classes: int) -> Tensor:
    """float32 (n, classes); a row of zeros where y is −1."""
    return (y[:, None] == torch.arange(classes, device=y.device)).float()


def sharpen(p: Tensor, T: float) -> Tensor:
    """p_k^(1/T) / Σ_j p_j^(1/T): MixMatch's sharpening, ProtoFSSL's equation 5. Rows of zeros stay."""
    power = (p / p.amax(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)) ** (1 / T)  # the largest is 1: no underflow
    return power / power.sum(-1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)


def likeliest(logits: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest class, whether its probability reaches the threshold, and that probability."""
    confidence, labels = logits.detach().softmax(-1).max(-1)
    return labels, confidence >= threshold, confidence


def entropy_confidence(p: Tensor) -> Tensor:
    """1 − H(p) / log C of each row of class weights (XCLP, Algorithm 1, line 16), normalised first; a row of zeros has 0.

    Of a network, give it softmax probabilities, not logits.
    """
    total = p.sum(-1)
    q = p / total.clamp(min=torch.finfo(p.dtype).tiny)[..., None]
    most = math.log(p.shape[-1]) or 1.0  # one class: no doubt
    return ((1 - torch.special.entr(q).sum(-1) / most) * (total > 0)).clamp(0, 1)


def vote(own: Tensor, answers: list[Tensor], preset: str = "paper") -> Tensor:
    """The class that most name, of a model's own probabilities and its helpers'. A tie goes to the model's own class, with
    preset=code to the smallest number."""
    C = own.shape[1]
    votes = one_hot(own.argmax(1), C) * (1.0 if preset == "code" else 1.5)
    return sum((one_hot(answer.argmax(1), C) for answer in answers), votes).argmax(1)
