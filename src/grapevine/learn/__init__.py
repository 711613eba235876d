"""One training loop, losses, pseudo-labels, networks: what the methods share.

Names are imported when they are asked for: the label job's voices need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grapevine.learn.training import (
        Weights,
        add,
        average,
        clip,
        descent,
        fit,
        parameter_names,
        passes,
        pull,
        push,
        subtract,
        train,
    )

__all__ = [
    "Weights",
    "add",
    "average",
    "clip",
    "descent",
    "fit",
    "parameter_names",
    "passes",
    "pull",
    "push",
    "subtract",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"grapevine.learn has no '{name}'")
    from grapevine.learn import training

    return getattr(training, name)
