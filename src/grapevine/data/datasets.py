"""A data set: all rows in one tensor, images kept as uint8, with how they are scaled and which of them are held out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.rows import Scale
from grapevine.core.tensors import torch
from grapevine.core.words import count, many
from grapevine.data.columns import Layout
from grapevine.data.dealing import split

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.data.split import Split

SEED = 20  # of the held-out part of a data set that comes without one; fixed, so that everybody tests on the same rows


@dataclass(frozen=True, repr=False)
class Dataset:
    """Training and test rows. `group` is the natural party of each row (writer, site); −1 in `y`: not labelled."""

    name: str
    kind: str  # 'image' or 'table'
    x: Tensor  # (n, channels, height, width) uint8, or (n, d) float32
    y: Tensor  # (n,) int64
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    scale: Scale
    group: Tensor | None = None
    group_test: Tensor | None = None
    group_names: tuple[str, ...] = ()
    x_val: Tensor | None = None
    y_val: Tensor | None = None
    mirror: bool = True  # whether a mirrored image is still of its class: not for digits and letters
    layout: Layout = Layout()  # what a table's columns are, if they have names
    ids: tuple[str, ...] = ()  # the names of the rows of `x`, if they have any

    def __repr__(self) -> str:
        row = "×".join(map(str, self.x.shape[1:]))
        parties = f", {many(len(self.group_names), 'party', 'parties')}" if self.group_names else ""
        return (f"{self.name}: {count(len(self.x))} rows of {row} to train on, {count(len(self.x_test))} to test on, "
                f"{many(len(self.classes), 'class', 'classes')}{parties}")  # fmt: skip

    def split(self, **flags: Any) -> Split:
        """Hand the rows out to clients; the flags are those of `grapevine.data.dealing.split`."""
        return split(self, **flags)


def image_scale(x: Tensor, factor: float = 1 / 255) -> Scale:
    """Mean and standard deviation per channel of uint8 images, from their histograms: no float copy is made."""
    channels = x.shape[1]
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for part in x.split(2000):
        for c in range(channels):
            counts[c] += torch.bincount(part[:, c].reshape(-1), minlength=256)
    value = torch.arange(256, dtype=torch.float64) * factor
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ value
    std = (share @ value**2 - mean**2).clamp(min=0).sqrt()
    std[std < 1e-6] = 1.0  # a channel that never changes stays zero after the mean is taken off
    return Scale(factor, mean.float()[:, None, None], std.float()[:, None, None])


def table_scale(x: Tensor) -> Scale:
    """Mean and standard deviation per feature; a feature that never changes is 0, whatever a new row has there."""
    wide = x.double()
    mean, std = wide.mean(0), wide.std(0, correction=0)
    std[std <= 1e-12 * wide.abs().amax(0)] = torch.inf  # no weight was learned for it
    return Scale(1.0, mean.float(), std.float())


def embedding_scale(x: Tensor) -> Scale:
    """One standard deviation for all features: in an embedding their relative sizes carry meaning."""
    wide = x.double()
    mean = wide.mean(0)
    return Scale(1.0, mean.float(), (wide - mean).square().mean().sqrt().float())


def hold_out(strata: np.ndarray, share: float = 0.2) -> np.ndarray:
    """A mask of held-out rows: `share` of each stratum (class or party), rounded, chosen by a fixed seed.

    A stratum of two rows or more gives at least one and keeps at least one.
    """
    rng = np.random.default_rng(SEED)
    held = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        if len(rows) > 1:
            held[rows[: max(1, int(share * len(rows) + 0.5))]] = True
    return held


def integers(y: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(y).astype(np.int64))


def divided(x: Tensor, y: Tensor, test: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test rows, from a mask of those to test on."""
    return x[~test], y[~test], x[test], y[test]
