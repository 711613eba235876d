"""Which scale chorus compares rows on, as a program of the parties (`methods.song` has the other one, and says what a program
is).

Opened to the parties: how many rows have each value of a text column, and how many in each column differ from its most common
value; counts, sums and sums of squares of every feature, labels of each class by fold, and the number of rows; where every class
has `CELL` labels, class sums of directions and the losses of the nearest mean. A column in which fewer than `CELL` rows differ
from the most common value is left out of everything.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto import noise
from grapevine.crypto.together import CELL
from grapevine.data.columns import Column, counts, encode, pool_rare
from grapevine.learn.voices import FOLDS, LEAST, Told, tempered

GRID = 16  # bits after the point of rows whose sums get noise: products have twice as many, and float64 adds them exactly
CLIP = dict(standard=6.0, one=30.0)
LEAD = 0.2  # in deviations of one nat a label: what the scale `standard` must be better by

Program = Generator[Any, Any, Any]
"""Asks for sums of arrays, is sent them, and returns what it found."""


@dataclass(frozen=True)
class Scale:
    """How features become rows: centred, missing ones at the mean, divided, cut off. With `clip` 0 a row is divided by its own
    length, then centred, and cut off at length 1: this bounds what one row can add, as noise needs it (`methods.noisy`)."""

    mean: np.ndarray
    std: np.ndarray
    clip: float

    def __call__(self, X: np.ndarray) -> np.ndarray:
        if not self.clip:
            return noise.clipped(directions(np.where(np.isfinite(X), X, 0.0)) - self.mean, 1.0, GRID) * 2.0**-GRID
        centred = np.where(np.isfinite(X), X - self.mean, 0.0)
        return np.clip(centred / self.std, -self.clip, self.clip)


@dataclass(frozen=True)
class Table:
    """A party's rows as they were read (NaN: missing), its columns, everybody's values of text columns, and the columns in which
    somebody lacks values. Without columns, rows are numbers."""

    x: np.ndarray
    columns: Sequence[Column] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """What `tune` found: the scale and its name, how many rows there are, labels of each class by fold, and the values of text
    columns that are features."""

    scale: Scale
    name: str
    rows: float
    counts: np.ndarray  # (5, C)
    agreed: Mapping[str, tuple[str, ...]]

    @property
    def heard(self) -> np.ndarray:
        """How many labels of each class each fold has heard, all of them first: (6, C)."""
        return np.concatenate([self.counts.sum(0)[None], self.counts.sum(0) - self.counts])


def tune(table: Table, y: np.ndarray, fold: np.ndarray, C: int, told: Told, scale: str) -> Program:
    """The scale to compare rows on. The first len(y) rows are labelled; `fold` is the one that will not hear a label.

    `auto`: each column by its own deviation where fewer than three columns carry the variance (their units differ); else all by
    one, unless the nearest class mean recovers labels better on the other scale.
    """
    agreed = yield from _agreed_values(table)
    X = encode(table.x, table.columns, agreed, table.gaps) if table.columns else table.x
    if not X.shape[1]:
        raise Mistake("no column is usable: all are text, and no value occurs in 10 rows over all parties.")
    there = np.isfinite(X)
    # A column that is the same in all rows but a few would give these rows away in its products with others: it is left out.
    speaks = np.rint((yield _off_mode(X, there))) >= CELL
    there, values = there & speaks, np.where(there & speaks, X, 0.0)
    labels = np.zeros((FOLDS - 1, C))
    np.add.at(labels, (fold - 1, y), 1.0)
    d = X.shape[1]
    # Bytes are no matter here: the sizes of raw features are unknown, so this sum is in the wide ring.
    total = yield Wide(np.concatenate([there.sum(0), values.sum(0), (values**2).sum(0), labels.ravel(), [len(X)]]))
    n, sums, squares = total[: 3 * d].reshape(3, d)
    by_fold = total[3 * d : -1].reshape(FOLDS - 1, C)
    mean = sums / np.maximum(n, 1.0)
    variance = np.maximum(squares / np.maximum(n, 1.0) - mean**2, 0.0)
    varies = np.sqrt(variance) > 1e-7 * np.abs(mean)  # float64 cannot tell less from rounding
    if not varies.any():
        raise Mistake(f"no column is usable: in none do {CELL} rows over all parties differ from their party's most common value "
                      "by more than rounding.")  # fmt: skip
    variance = np.where(varies, variance, 0.0)
    scales = dict(
        standard=Scale(mean, np.where(varies, np.sqrt(variance), np.inf), CLIP["standard"]),
        one=Scale(mean, np.where(varies, np.sqrt(variance.sum() / max(varies.sum(), 1)) or 1.0, np.inf), CLIP["one"]),
    )
    if scale == "auto":
        scale = "standard" if variance.sum() ** 2 < 3 * (variance**2).sum() else "one"
        if scale == "one" and by_fold.sum(0).min() >= CELL and C > 1:
            scale = yield from _by_nearest_mean(X[: len(y)], y, C, told, scales)
    if scale == "none":
        return Tuned(replace(scales["one"], mean=np.zeros(d)), scale, total[-1], by_fold, agreed)
    return Tuned(scales[scale], scale, total[-1], by_fold, agreed)


def _off_mode(X: np.ndarray, there: np.ndarray) -> np.ndarray:
    """For each column, how many rows here differ from the most common value here. The sum over parties is at most the number that
    differ from the most common value of all, so a column that passes has enough of them."""
    found = [np.unique(column[known], return_counts=True)[1] for column, known in zip(X.T, there.T)]
    return np.array([counts.sum() - counts.max(initial=0) for counts in found], np.float64)


def _agreed_values(table: Table) -> Program:
    """For each text column the values that at least RARE rows have, over all parties; the others are pooled."""
    if not any(table.values.values()):
        return {}
    own = counts(table.x, table.columns)
    totals = yield np.array([own[name].get(value, 0) for name, values in table.values.items() for value in values], float)
    found = iter(np.rint(totals).astype(int).tolist())
    return pool_rare({name: {value: next(found) for value in values} for name, values in table.values.items()})


def _by_nearest_mean(X: np.ndarray, y: np.ndarray, C: int, told: Told, scales: dict[str, Scale]) -> Program:
    """The scale on which the nearest class mean recovers labels best, each row left out of its own mean; `one` unless
    `standard` leads by more than chance would."""
    rows = {name: directions(scale(X)) for name, scale in scales.items()}
    Y = np.eye(C)[y]
    sums = yield np.concatenate([(Y.T @ V).ravel() for V in rows.values()] + [Y.sum(0)])
    n = sums[-C:]
    losses = {}
    for (name, V), M in zip(rows.items(), sums[:-C].reshape(len(rows), C, -1)):
        cosines = V @ directions(M / np.maximum(n, 1.0)[:, None]).T
        without = directions((M[y] - V) / np.maximum(n[y] - 1, 1.0)[:, None])
        cosines[np.arange(len(y)), y] = (V * without).sum(1)
        losses[name] = tempered(cosines[None], y, np.zeros(len(y), int), told, 2.0 ** np.arange(6))
    found = yield np.concatenate(list(losses.values()))
    standard, one = found.reshape(2, -1).min(1)
    return "standard" if standard < one - LEAD * np.sqrt(n.sum()) else "one"


def directions(V: np.ndarray) -> np.ndarray:
    return V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), LEAST)


class Wide(np.ndarray):
    """Values whose sum may be of any size: added in the wide ring."""

    def __new__(cls, values: np.ndarray) -> Wide:
        return np.asarray(values, np.float64).view(cls)
