"""Data sets, tables, partitions, label settings. `load` a set by name or path, `split` it over clients."""

from __future__ import annotations

from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.data.catalogue import load
from grapevine.data.datasets import Dataset
from grapevine.data.dealing import split
from grapevine.data.split import Split

__all__ = ["ClientData", "Dataset", "Rows", "Scale", "Split", "load", "split"]
