"""Rows: a view of some rows of one large tensor. Clients hold indices, never copies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.tensors import is_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scale:
    """How stored values become a network's input: (value · factor − mean) / std, per channel or per feature."""

    factor: float
    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 4 and x.shape[1] > 1 and x.is_contiguous(memory_format=torch.channels_last):
            return self._channels_last(x)
        return (x.float() * self.factor - self.mean) / self.std

    def _channels_last(self, x: Tensor) -> Tensor:
        """The same bits several times faster: a whole line of pixels at a time, instead of three channels."""
        n, c, h, w = x.shape
        lines = x.permute(0, 2, 3, 1).reshape(n * h, w * c).float().mul_(self.factor)
        mean, std = (value.expand(c, 1, 1).flatten().repeat(w) for value in (self.mean, self.std))
        return lines.sub_(mean).div_(std).reshape(n, h, w, c).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Rows:
    """Rows `index` of `x`, with labels `y` (one per entry of `index`; −1: none known). `x` is shared, not copied.

    A label job's rows are numpy arrays, for methods that read nothing else of them; `tensors` makes them a network's.
    """

    x: Tensor
    index: Tensor
    y: Tensor
    scale: Scale | None = None
    device: str = "cpu"
    mirror: bool = True  # whether a mirrored image is still of its class: not for digits and letters

    @classmethod
    def of_arrays(cls, x: Any, index: Any, y: Any) -> Rows:
        return cls(*map(np.ascontiguousarray, (x, index, y)))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.index)

    def flat(self) -> np.ndarray:
        """The rows as they are stored, a line of numbers each."""
        x = self.x[self.index]
        return np.asarray(x.cpu() if is_tensor(x) else x).reshape(len(x), math.prod(x.shape[1:]))

    def tensors(self) -> Rows:
        """The same rows as tensors."""
        return replace(self, x=torch.as_tensor(self.x), index=torch.as_tensor(self.index), y=torch.as_tensor(self.y))

    def inputs(self, at: Tensor | slice = slice(None)) -> Tensor:
        """The rows at these positions, ready for a network. Images (n, channels, height, width) are channels-last."""
        x = self.x[self.index[at]]
        if self.device != "cpu":
            x = x.to(self.device)
        x = self.scale(x) if self.scale else x.float()
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    def batch(self, at: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.inputs(at), self.y[at].to(self.device)

    def batches(self, size: int, rng: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the rows, shuffled by `rng` or in order without it."""
        order = torch.arange(len(self)) if rng is None else torch.randperm(len(self), generator=rng)
        for at in order.split(size) if len(self) else ():
            yield self.batch(at)

    def take(self, at: Tensor, y: Tensor | None = None) -> Rows:
        """Some of these rows, with other labels if given."""
        return replace(self, index=self.index[at], y=self.y[at] if y is None else y)


@dataclass(frozen=True)
class ClientData:
    """What one party holds. `unlabelled.y` is always −1, so that no step can see the truth. `columns` describe a raw table
    (`data.columns.Column`) whose categories are not encoded yet."""

    labelled: Rows
    unlabelled: Rows
    test: Rows
    classes: tuple[str, ...]
    validation: Rows | None = None
    columns: tuple = ()

    def tensors(self) -> ClientData:
        """The same with rows that a network can take."""
        parts = (self.labelled.tensors(), self.unlabelled.tensors(), self.test.tensors())
        return ClientData(*parts, self.classes, self.validation and self.validation.tensors(), self.columns)
