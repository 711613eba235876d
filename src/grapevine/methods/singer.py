"""What a party brings to chorus (`methods.song`) and what it has at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.special import log_softmax, softmax

from grapevine.learn.voices import LEAST, TEMPERATURES, Head, Told, tempered
from grapevine.methods.tune import Tuned


@dataclass(frozen=True)
class Soft:
    """In place of a sum: one step of the graph on soft labels of the nodes, (folds, nodes, classes). Its answer has that form."""

    Q: np.ndarray


@dataclass(frozen=True)
class Singer:
    """What a party brings to `sing`. Labelled rows come first, among its rows and among its nodes in the graph."""

    X: np.ndarray  # rows, scaled
    y: np.ndarray  # labels of the first of them, as told
    fold: np.ndarray  # the fold that has not heard a label, 1 … 5
    Z: np.ndarray  # (candidates, folds, nodes, classes): scores, each class divided by its labels
    mass: np.ndarray  # how many rows a node stands for
    to_rows: sparse.csr_array | None  # rows from nodes; None: they are the same
    tuned: Tuned
    draw: Callable[[str], np.random.Generator]
    told: Told = Told()
    smooth: bool = False
    keep: Callable[[str, Callable[[], np.ndarray]], np.ndarray] = lambda name, make: make()  # so as not to compute it again
    from_others: sparse.csr_array | None = None  # labelled rows from nodes other than themselves, where rows are no nodes

    def rows(self, Q: np.ndarray) -> np.ndarray:
        """From nodes to rows, fold by fold; where a fold has not heard a row's label, the row is one that is no node."""
        if self.to_rows is None:
            return Q
        out = np.stack([self.to_rows @ q for q in Q])
        out[self.fold, np.arange(len(self.y))] = self._from_others(Q)
        return out

    def _from_others(self, Q: np.ndarray) -> np.ndarray:
        return np.stack([self.from_others @ q for q in Q])[self.fold, np.arange(len(self.y))]

    def hidden_at_nodes(self, log_Q: np.ndarray, power: float = 1.0) -> np.ndarray:
        """For each label, log-probabilities by the nodes of the fold that has not heard it, sharpened: (labels, classes)."""
        if self.from_others is None:
            return log_softmax(power * self.hidden(log_Q), -1)
        return np.log(np.maximum(self._from_others(softmax(power * log_Q, -1)), LEAST))

    def hidden(self, voice: np.ndarray) -> np.ndarray:
        """For each label, what the fold that has not heard it says: (labels, classes)."""
        return voice[self.fold, np.arange(len(self.y))]

    @property
    def heard(self) -> np.ndarray:
        """Which classes each fold has heard a label of: (folds, classes)."""
        return self.tuned.heard > 0

    @property
    def judges(self) -> np.ndarray:
        """Which labels judge voices: not one that no voice can find, since its fold has heard no label of its class."""
        return np.flatnonzero(self.heard[self.fold, self.y])

    def losses(self, voice: np.ndarray) -> np.ndarray:
        """The hidden labels' loss at each of `TEMPERATURES`, summed over those that judge."""
        at = self.judges
        return tempered(voice[:, at], self.y[at], self.fold[at], self.told, TEMPERATURES)


@dataclass
class Song:
    """What a party has at the end."""

    P: np.ndarray  # rows × classes: probabilities
    hidden: np.ndarray  # labels × classes: the same by the fold that has not heard the label
    own: np.ndarray | None  # log-probabilities by the party's own model, (rows, classes)
    own_hidden: np.ndarray | None
    weights: dict[str, float]
    heads: dict[str, Head]  # what labels later rows, each tempered
    head_weights: dict[str, float]
    expected: dict[str, np.ndarray]  # what all parties know of hidden labels: see `_judged`
    voices: dict[str, np.ndarray]  # fold 0, for comparison
