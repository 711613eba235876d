"""What changes from round to round: stages, learning rates, weights of losses, moving averages."""

from __future__ import annotations

import math

import torch
from torch import nn

T_MAX = 4 / 3  # of a stage's rounds: where XCLP's cosine would reach 0 (2000 for 1500 rounds in the authors' runs)


def first_stage(rounds: int, warmup: float) -> int:
    """The rounds of stage 1: the share `warmup` of all."""
    return math.ceil(rounds * warmup)


def stage_of(rounds: int, first: int, round: int) -> tuple[int, int, int]:
    """(stage 1 or 2, round within it, its rounds), if stage 1 has the `first` rounds of all."""
    return (1, round, first) if round < first else (2, round - first, rounds - first)


def cosine(lr: float, round: int, rounds: float) -> float:
    """The learning rate of a round: half a cosine, which reaches 0 after that many rounds."""
    return lr * (1 + math.cos(math.pi * round / rounds)) / 2


SCHEDULES = ("constant", "cosine")


def scheduled(schedule: str, lr: float, round: int, rounds: int) -> float:
    """The learning rate of a round: always the same, or that of a stage of FedAvg+XCLP with this many rounds."""
    return cosine(lr, round, T_MAX * rounds) if schedule == "cosine" else lr


def sigmoid_rampup(step: float, length: float) -> float:
    """exp(−5 (1 − step/length)²), then 1 (Laine & Aila 2017)."""
    done = min(max(step / length, 0.0), 1.0) if length > 0 else 1.0
    return math.exp(-5 * (1 - done) ** 2)


def plateau(rate: dict, loss: float, patience: int) -> dict:
    """The learning rate, a third of it after `patience` losses that were no lower than the lowest."""
    if loss < rate["lowest"]:
        return dict(rate, lowest=loss, left=patience)
    if not patience or rate["left"] > 1:
        return dict(rate, left=rate["left"] - 1)
    return dict(rate, lr=rate["lr"] / 3, left=patience)


@torch.no_grad()
def ema_(target: nn.Module, source: nn.Module, decay: float) -> None:
    """target ← decay · target + (1 − decay) · source for the parameters, in place; buffers are copied."""
    theirs, trained = source.state_dict(), {name for name, _ in source.named_parameters()}
    for name, own in target.state_dict().items():
        new = theirs[name].to(own.device)
        own.lerp_(new, 1 - decay) if name in trained else own.copy_(new)
