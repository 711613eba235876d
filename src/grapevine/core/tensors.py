"""torch, loaded when something of it is first used.

A label job on tables computes with numpy alone, and torch would take most of a party's memory: what such a job passes through
imports torch from here. Everything else imports it as usual.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("torch"), name)

    torch = _Torch()

__all__ = ["is_tensor", "one_thread", "torch"]


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; without torch there is none."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def one_thread() -> None:
    """A client's arithmetic is on one torch thread in every runtime, so that sums repeat bit for bit."""
    if sys.modules.get("torch"):
        torch.set_num_threads(1)
