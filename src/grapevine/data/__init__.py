"""Data sets, tables, partitions, label settings. `load` a set by name or path, `split` it over clients."""

from __future__ import annotations

from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.data.datasets import Dataset, load
from grapevine.data.split import Split, split

__all__ = ["ClientData", "Dataset", "Rows", "Scale", "Split", "load", "split"]
