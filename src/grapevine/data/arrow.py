"""pyarrow, loaded when a table is first read or written with it.

It takes some 40 MB, and as much again where pandas is installed, which it then loads. A party's processes that live as long as a
job read no table and are spared that (`parties.rows.read_apart`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    PARTS = ("compute", "csv", "feather", "parquet")

    class _Arrow:
        def __init__(self, name: str):
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name in PARTS:
                return importlib.import_module(f"pyarrow.{name}")
            return getattr(importlib.import_module(self._name), name)

    pa, pc = _Arrow("pyarrow"), _Arrow("pyarrow.compute")

__all__ = ["pa", "pc"]
