"""`LabelSpreading`: label propagation with scikit-learn's contract."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from grapevine.core.errors import Mistake
from grapevine.core.threads import thread_count
from grapevine.crypto.stream import context, fresh_secret
from grapevine.graph import approximate
from grapevine.graph.blocks import COLUMNS
from grapevine.graph.hashing import hash_bits, hyperplanes
from grapevine.graph.neighbours import cosine, nearest, nearest_cosine
from grapevine.graph.propagation import (
    PRESETS,
    check_alpha,
    class_mass,
    distributions,
    graph,
    label_matrix,
    labels_and_confidence,
    normalise,
    one_of,
    solve,
)

LOG = logging.getLogger("grapevine")


class LabelSpreading(ClassifierMixin, BaseEstimator):
    """Label spreading (Zhou et al. 2004) over a sparse cosine-neighbour graph, with scikit-learn's contract.

    As `sklearn.semi_supervised.LabelSpreading`, but solved to a stated residual instead of a number of iterations, with
    memory that grows with n and not n², and without inventing labels: a point that no label reaches has label −1,
    confidence 0 and a distribution of zeros.

    Parameters
    ----------
    n_neighbors : neighbours of each point, itself not counted (k).
    alpha : how far labels spread, in [0, 1).
    affinity : "cosine" exact; "hamming" the estimate from `bits` random hyperplanes, as between parties;
        "precomputed" X is the matrix B of similarities (sparse or dense), and W = B + Bᵀ. `predict` then takes the
        similarities of new points with the fitted ones.
    bits : L, for "hamming".
    class_mass : scale scores so that the classes' shares are those of the given labels.
    preset : "paper" or "code" (similarities cubed, labels weighted by 1/class count, a tight frame of hyperplanes).
    tol : the relative residual to which (I − αW) Z = Y is solved.
    random_state : for "hamming"; None draws the hyperplanes from the operating system's generator.
    threads : the most threads; None: one per core, at most 8. Results do not depend on it.
    recall : the share of the true neighbours that must be found. 1 compares every pair of points; less is an approximate search
        in much less time, with the `ann` extra (faiss). "auto" is 1 up to 100,000 points, and 0.95 beyond where it is installed.

    Unlabelled in `y`: −1 in an array of numbers or objects; in an array of strings "-1", which is what numpy makes of −1
    there, or "". (scikit-learn takes −1 only.)

    Attributes
    ----------
    classes_, X_, transduction_ (label of each point by propagation, the given ones too), label_distributions_,
    confidence_ (1 − entropy/log C), graph_ (normalised W), n_iter_, residual_, n_features_in_, recall_ (the share of true
    neighbours in the graph, estimated on a sample of 1000 points; 1 of an exact search).

    The logger "grapevine" tells at level INFO how much memory `fit` will take at most, before it starts, and the recall.
    """

    def __init__(
        self,
        n_neighbors: int = 10,
        *,
        alpha: float = 0.99,
        affinity: str = "cosine",
        bits: int = 4096,
        class_mass: bool = False,
        preset: str = "paper",
        tol: float = 1e-6,
        random_state: Any = None,
        threads: int | None = None,
        recall: float | str = "auto",
    ):
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.affinity = affinity
        self.bits = bits
        self.class_mass = class_mass
        self.preset = preset
        self.tol = tol
        self.random_state = random_state
        self.threads = threads
        self.recall = recall

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == "precomputed"
        tags.input_tags.sparse = self.affinity == "precomputed"
        return tags

    def fit(self, X: Any, y: Any) -> LabelSpreading:
        """Spread the labels in `y` over all rows of X."""
        one_of("affinity", self.affinity, ("cosine", "hamming", "precomputed"))
        one_of("preset", self.preset, PRESETS)
        check_alpha(self.alpha)
        X, y = validate_data(self, X, y, **self._accepted())
        known = _is_labelled(y)
        if not known.any():
            raise Mistake(f"None of the {len(y)} rows has a label (all of y is -1): label at least one.")
        labels = y[known] if y.dtype.kind != "O" else np.array(y[known].tolist())
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        y_codes = np.full(len(y), -1)
        y_codes[known] = codes
        self.X_, self.recall_ = X, 1.0
        if self.affinity != "precomputed":
            LOG.info(f"{len(y):,} points × {X.shape[1]} features: fit takes at most {self._memory(*X.shape):.2f} GB besides them")
        self.graph_ = self._graph(X)
        Y = label_matrix(y_codes, len(self.classes_), self.preset)
        Z, self.residual_, self.n_iter_ = solve(self.graph_, Y, self.alpha, self.tol, threads=self.threads)
        if self.class_mass:
            Z = class_mass(Z, np.bincount(codes) / len(codes))
        self.label_distributions_ = distributions(Z)
        labels, self.confidence_ = labels_and_confidence(Z)
        self.transduction_ = self._named(labels)
        LOG.info(f"the graph has {self.recall_:.1%} of the true neighbours; residual {self.residual_:.1e}")
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Mean of the k nearest fitted points' distributions, weighted by similarity; zeros where none is similar."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, **self._accepted())
        if self.affinity == "precomputed":
            scores = sp.csr_array(X).maximum(0) @ self.label_distributions_
        else:
            index, similarity = self._nearest(X)
            weight = np.maximum(similarity, 0.0) ** (3 if self.preset == "code" else 1)
            weight[index < 0] = 0.0
            scores = np.zeros((len(X), len(self.classes_)))
            for place in range(self.n_neighbors):
                scores += weight[:, place, None] * self.label_distributions_[index[:, place]]
        return distributions(scores, floor=0.0)

    def predict(self, X: Any) -> np.ndarray:
        """The class of largest probability; −1 for a point without a similar labelled neighbour."""
        P = self.predict_proba(X)
        return self._named(np.where(P.any(axis=1), P.argmax(axis=1), -1))

    def _accepted(self) -> dict[str, Any]:
        sparse: tuple[str, ...] | bool = ("csr", "csc", "coo") if self.affinity == "precomputed" else False
        return dict(accept_sparse=sparse, dtype=(np.float64, np.float32))

    def _graph(self, X: Any) -> sp.csr_array:
        if self.affinity == "precomputed":
            if X.shape[0] != X.shape[1]:
                raise ValueError(f"A precomputed graph must be square, but has shape {X.shape}: one row and column per point.")
            B = sp.csr_array(X, dtype=np.float64).maximum(0)
            return normalise(B.power(3) if self.preset == "code" else B)
        # A row of zeros has no direction, and so no neighbours: it is left out and stays alone.
        self._live = np.flatnonzero(np.any(X != 0, axis=1))
        points = X if len(self._live) == len(X) else X[self._live]
        if self.affinity == "hamming":
            seed = fresh_secret() if self.random_state is None else check_random_state(self.random_state).bytes(32)
            info = context("grapevine label spreading", bits=self.bits, features=X.shape[1])
            self._planes = hyperplanes(seed, self.bits, X.shape[1], info, tight_frame=self.preset == "code")
            self._points = hash_bits(points, self._planes, self.threads)
        near, near_similarity = self._own_neighbours(points)
        if len(self._live) == len(X):
            return graph(near, near_similarity, preset=self.preset)
        index = np.full((len(X), self.n_neighbors), -1, np.int32)
        similarity = np.zeros(index.shape)
        index[self._live] = np.where(near >= 0, self._live[near], -1)
        similarity[self._live] = near_similarity
        return graph(index, similarity, preset=self.preset)

    def _own_neighbours(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Index and similarity of each fitted point's neighbours."""
        k, by_bits = self.n_neighbors, self.affinity == "hamming"
        share = approximate.wanted(self.recall, len(points))
        if share < 1:
            find = approximate.nearly_nearest if by_bits else approximate.nearly_nearest_cosine
            index, measure, self.recall_, _ = find(self._points if by_bits else points, k, share, self.threads)
        elif by_bits:
            index, measure = nearest(self._points, k, threads=self.threads)
        else:
            index, measure = nearest_cosine(points, k, threads=self.threads)
        return index, cosine(measure, self.bits) if by_bits else measure

    def _memory(self, n: int, d: int) -> float:
        """GB at most: the search, and then the graph and the solution, which hold the search's lists besides their own."""
        k, threads = self.n_neighbors, thread_count(self.threads, n)
        nearly = approximate.wanted(self.recall, n) < 1
        points = 8 * d if self.affinity == "cosine" else 0
        bits = approximate.BITS if self.affinity == "cosine" else self.bits
        held = bits // 8 * (1 if self.affinity == "hamming" else 0)
        search = points + (bits // 4 + 16 if nearly else bits // 8) + 8 * k * (1 if nearly else threads) + 20 * k
        spread = 140 * k + 8 * (4 * len(self.classes_) + 5 * COLUMNS * min(threads, -(-len(self.classes_) // COLUMNS)))
        return (n * (held + max(search, spread)) + approximate.QUERIES * threads * 8 * 20 * k + 2**27) / 1e9

    def _nearest(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Index into the fitted points and similarity of each new point's neighbours."""
        if not len(self._live):
            return np.full((len(X), self.n_neighbors), -1), np.zeros((len(X), self.n_neighbors))
        if self.affinity == "hamming":
            index, H = nearest(self._points, self.n_neighbors, hash_bits(X, self._planes, self.threads), self.threads)
            similarity = cosine(H, self.bits) * np.any(X != 0, axis=1)[:, None]
        else:
            index, similarity = nearest_cosine(self.X_[self._live], self.n_neighbors, X, self.threads)
        return np.where(index >= 0, self._live[index], -1), similarity

    def _named(self, labels: np.ndarray) -> np.ndarray:
        """Class names for class numbers; −1 stays −1, in an array of objects if the names' own type cannot hold it."""
        if (labels >= 0).all():
            return self.classes_[labels]
        names = self.classes_ if self.classes_.dtype.kind in "if" else self.classes_.astype(object)
        out = names[labels]
        out[labels < 0] = -1
        return out


def _is_labelled(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind in "US":
        return ~np.isin(y, np.array(["-1", ""], y.dtype))
    if y.dtype.kind == "O":
        return np.array([not (label == -1 or label == "-1" or label == "") for label in y], bool)
    return y != -1
