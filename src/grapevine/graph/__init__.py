"""Similarity graphs and label propagation: hashing, neighbours, propagation, and scikit-learn's estimator.

The estimator is imported when it is asked for: scikit-learn takes 100 MB, and only one of the label job's voices needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grapevine.crypto.bits import hamming
from grapevine.graph.hashing import Grid, hash_bits, hyperplanes, on_grid
from grapevine.graph.neighbours import KBest, cosine, nearest, nearest_cosine
from grapevine.graph.propagation import (
    class_mass,
    distributions,
    graph,
    influence_columns,
    label_matrix,
    labels_and_confidence,
    normalise,
    solve,
)

if TYPE_CHECKING:
    from grapevine.graph.spreading import LabelSpreading

__all__ = [
    "Grid", "KBest", "LabelSpreading", "class_mass", "cosine", "distributions", "graph", "hamming", "hash_bits", "hyperplanes",
    "influence_columns", "label_matrix", "labels_and_confidence", "nearest", "nearest_cosine", "normalise", "on_grid", "solve",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "LabelSpreading":
        raise AttributeError(f"grapevine.graph has no '{name}'")
    from grapevine.graph.spreading import LabelSpreading

    return LabelSpreading
