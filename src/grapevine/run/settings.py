"""The settings of a training run, whatever carries its messages: each stands here once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from grapevine.core.param import check, param

WORKERS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class RunSettings:
    """What `train` can be told about a run besides its method and its data."""

    model: Any = param(None, "", "linear, mlp, cnn, cnn13, resnet9, resnet18, wrn28x2 [cnn; tables: mlp]", metavar="NAME")
    norm: str | None = param(None, "", "normalisation [the model's own]", choices=("none", "bn", "gn", "sbn"))
    rounds: int = param(100, "T", "rounds in all", least=1)
    per_round: int | None = param(10, "", "clients chosen in a round", least=1)
    workers: int = param(WORKERS, "", "clients side by side; never changes the result", least=1, local=True)
    device: str = param("auto", "", "auto, cpu, cuda or mps", local=True)
    seed: int = param(0, "", "everything random depends on it alone", least=-(2**63), most=2**63 - 1)
    mode: str = param("fast", "", "strict encodes all messages", choices=("fast", "strict"), local=True)
    evaluate_every: int = param(0, "", "rounds between evaluations [about 50 in all]", least=0, metavar="N")
    patience: int = param(0, "", "stop after N evaluations without a better one; 0: never", least=0, metavar="N")
    latent: int = param(
        1, "", "pictures of the latent space: of the end, and of N - 1 rounds before; 0: none", least=0, metavar="N", local=True
    )

    def __post_init__(self) -> None:
        check(self)
