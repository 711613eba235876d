"""A population too large to be split client by client: each client's rows lie one after the other in one array.

The array may be memory-mapped, so that a million clients cost little more than their offsets until they are asked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows, Scale


class Population:
    """Client i holds rows offsets[i] to offsets[i + 1] of x, all of them labelled by y (−1: not).

    `client(i)` is made when it is asked for: give it to a simulation as `run.simulate.Each(population.ids, population.client)`.
    """

    def __init__(self, x: Tensor, y: Tensor, offsets: np.ndarray, classes: tuple[str, ...], scale: Scale | None = None):
        rows = len(offsets) and (offsets[0], offsets[-1])
        if not rows or rows != (0, len(x)) or len(x) != len(y) or (np.diff(offsets) < 0).any():
            raise Mistake(
                f"offsets must rise from 0 to the number of rows of x ({len(x)}), and y must have one entry per row: check "
                "both files."
            )
        self.x, self.y, self.offsets, self.classes, self.scale = x, y, offsets, classes, scale

    @staticmethod
    def load(
        x: str | Path, y: str | Path, offsets: str | Path, classes: tuple[str, ...], scale: Scale | None = None
    ) -> Population:
        """From three .npy files, none of which is read before it is needed."""
        rows, labels = (torch.from_numpy(np.load(path, mmap_mode="c")) for path in (x, y))  # "c": nothing is ever written
        return Population(rows, labels, np.load(offsets, mmap_mode="r"), classes, scale)

    @property
    def ids(self) -> range:
        return range(len(self.offsets) - 1)

    def client(self, i: int) -> ClientData:
        at = torch.arange(int(self.offsets[i]), int(self.offsets[i + 1]))
        y = self.y[at].long()
        rows = Rows(self.x, at, y, self.scale)
        nothing = rows.take(at[:0])
        known = y >= 0
        return ClientData(rows.take(known), rows.take(~known), nothing, self.classes)
