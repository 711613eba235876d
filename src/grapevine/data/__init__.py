"""Data sets, tables, partitions, label settings. `load` a set by name or path; `Dataset.split` deals it to clients.

Names are imported when they are asked for: a label job reads tables, and needs neither data sets nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grapevine.core.rows import ClientData, Rows, Scale
    from grapevine.data.catalogue import load
    from grapevine.data.datasets import Dataset
    from grapevine.data.split import Split

__all__ = ["ClientData", "Dataset", "Rows", "Scale", "Split", "load"]
_HOMES = {"load": "data.catalogue", "Dataset": "data.datasets", "Split": "data.split"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"grapevine.data has no '{name}'")
    return getattr(importlib.import_module(f"grapevine.{_HOMES.get(name, 'core.rows')}"), name)
