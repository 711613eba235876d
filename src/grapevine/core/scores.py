"""Predictions counted: confusion matrices, and the shares that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grapevine.core.rows import Rows
from grapevine.core.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


def guesses(predict: Callable[[Tensor], Tensor], rows: Rows, batch: int = 1000, map: Callable = map) -> Tensor:
    """The likeliest class of every row, in order. `map` may run batches side by side."""

    def guess(at: Tensor) -> Tensor:
        with torch.no_grad():  # gradients are switched per thread, so here and not outside
            return predict(rows.inputs(at)).argmax(1).cpu()

    return torch.cat([torch.empty(0, dtype=torch.int64), *map(guess, torch.arange(len(rows)).split(batch))])


def confusion(guess: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Counts, true class × predicted class, over the rows whose class is known."""
    known = truth >= 0
    return torch.bincount(truth[known] * classes + guess[known], minlength=classes * classes).reshape(classes, classes)


def accuracy(counts: Tensor) -> float:
    """The share on the diagonal; NaN of an empty matrix."""
    return float(counts.diagonal().sum() / counts.sum())


def recalls(counts: Tensor) -> Tensor:
    """Per true class, the share predicted right; NaN for a class without rows."""
    return counts.diagonal() / counts.sum(1)


def balanced_accuracy(counts: Tensor) -> float:
    """The mean recall over the classes that have rows."""
    return float(recalls(counts).nanmean())
