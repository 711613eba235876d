"""The settings of a training run, whatever carries its messages: each stands here once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from grapevine.core.param import Settings, param

WORKERS = min(2, os.cpu_count() or 1)
MODELS = (
    "The network: linear, mlp, cnn, cnn13, resnet8, resnet9, resnet17, resnet18, resnet18-imagenet, wrn28x2; cnn13:0.25 is a "
    "thin cnn13 [cnn; tables: mlp]."
)


@dataclass(frozen=True)
class RunSettings(Settings):
    """What `train` can be told about a run besides its method and its data."""

    job: ClassVar[str] = "train"

    model: Any = param(None, "", MODELS, metavar="NAME", objects=True, varies=True)
    norm: str | None = param(
        None, "", "The network's normalisation [the model's own].", choices=("none", "bn", "gn", "sbn"), varies=True
    )
    rounds: int = param(100, "T", "Total number of rounds.", least=1, varies=True)
    per_round: int | None = param(10, "", "Clients chosen in each round.", least=1, empty=True, varies=True)
    workers: int = param(WORKERS, "", "Clients computed in parallel. It never changes the result.", least=1, local=True)
    device: str = param("auto", "", "Where to compute: auto, cpu, cuda or mps.", local=True)
    mode: str = param(
        "fast", "", "strict encodes and decodes every message, as between machines.", choices=("fast", "strict"), local=True
    )
    secure_average: bool = param(False, "", "Sum the clients' replies under masks, so that the server learns only their mean.")
    evaluate_every: int = param(0, "", "Rounds between evaluations [chosen for about 50 evaluations].", least=0, metavar="N")
    patience: int = param(0, "", "Stop after N evaluations without improvement; 0 never stops.", least=0, metavar="N")
    dp: float | None = param(
        None, "ε", "Train with noise, for this ε of differential privacy per labelled row.", kind=float, above=0, metavar="EPS"
    )
    delta: float = param(1e-6, "δ", "The δ of differential privacy, with --dp.", above=0, below=0.1)
    clip: float = param(1.0, "C", "The gradient of a row is clipped to this length, with --dp.", above=0, most=1000)
    seed: int = param(0, "", "The seed of everything random.", least=0, most=2**63 - 1, local=True)
    latent: int = param(
        1,
        "",
        "Pictures of the latent space: one of the end and N - 1 of earlier rounds; 0 for none.",
        least=0,
        metavar="N",
        local=True,
    )
