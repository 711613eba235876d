"""The settings of a training run, whatever carries its messages: each stands here once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from grapevine.core.param import Settings, param

WORKERS = min(2, os.cpu_count() or 1)
MODELS = "linear, mlp, cnn, cnn13, resnet9, resnet18, wrn28x2; cnn13:0.25 has a quarter of the channels [cnn; tables: mlp]."


@dataclass(frozen=True)
class RunSettings(Settings):
    """What `train` can be told about a run besides its method and its data."""

    job: ClassVar[str] = "train"

    model: Any = param(None, "", MODELS, metavar="NAME", objects=True, varies=True)
    norm: str | None = param(None, "", "Normalisation [the model's own].", choices=("none", "bn", "gn", "sbn"), varies=True)
    rounds: int = param(100, "T", "Rounds in all.", least=1, varies=True)
    per_round: int | None = param(10, "", "Clients chosen in a round.", least=1, empty=True, varies=True)
    workers: int = param(WORKERS, "", "Clients side by side; never changes the result.", least=1, local=True)
    device: str = param("auto", "", "auto, cpu, cuda or mps.", local=True)
    mode: str = param("fast", "", "strict encodes all messages.", choices=("fast", "strict"), local=True)
    secure_average: bool = param(False, "", "Clients' replies are summed under masks: the server learns their mean alone.")
    evaluate_every: int = param(0, "", "Rounds between evaluations [about 50 in all].", least=0, metavar="N")
    patience: int = param(0, "", "Stop after N evaluations without a better one; 0: never.", least=0, metavar="N")
    dp: float | None = param(
        None, "ε", "Train with noise: ε of differential privacy for each labelled row.", kind=float, above=0, metavar="EPS"
    )
    delta: float = param(1e-6, "δ", "δ of differential privacy, with --dp.", above=0, below=0.1)
    clip: float = param(1.0, "C", "Longest gradient of a row, with --dp.", above=0, most=1000)
    seed: int = param(0, "", "Everything random depends on it alone.", least=-(2**63), most=2**63 - 1, local=True)
    latent: int = param(
        1, "", "Pictures of the latent space: of the end, and of N - 1 rounds before; 0: none.", least=0, metavar="N", local=True
    )
