"""Which nodes a party has in the graph: all its rows, or its labelled rows and some centres of the others.

Centres come from k-means. A row that is no node takes the scores of the nearest of its own party's nodes, weighted by the eighth
power of their cosine similarity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

SHARE_OF = 5000  # nodes of all parties together, unless asked otherwise: a minute of mlwe on one core
LEAST = 20  # centres of a party, however many labels it has
NEAREST, POWER, BLOCK = 5, 8, 4096


@dataclass(frozen=True)
class Nodes:
    """Nodes V, labelled rows first; how many rows each stands for; rows from nodes (None: rows are nodes); and labelled rows from
    the other nodes: a hidden label is judged as a row that is no node, or the graph would seem better than it is for them."""

    V: np.ndarray
    mass: np.ndarray
    to_rows: sparse.csr_array | None = None
    from_others: sparse.csr_array | None = None

    def means(self, Q: np.ndarray) -> np.ndarray:
        """The means at nodes of values of rows, (folds, rows, classes)."""
        if self.to_rows is None:
            return Q
        weight = np.maximum(np.asarray(self.to_rows.sum(0)).ravel(), 1e-12)[:, None]
        return np.stack([(self.to_rows.T @ q) / weight for q in Q])


def count(landmarks: int, rows: int, known: int, parties: int) -> int:
    """How many nodes a party has, from its rows, of which `known` are labelled. `landmarks` are centres; 0: auto, −1: all."""
    if landmarks < 0:
        return rows
    return min(rows, known + (landmarks or max(SHARE_OF // max(parties, 1) - known, LEAST)))


def centres(V: np.ndarray, known: int, nodes: int, seed: int) -> np.ndarray:
    """The centres beside the labelled rows; none where all rows are nodes."""
    if nodes >= len(V):
        return np.empty((0, V.shape[1]))
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(nodes - known, n_init=1, max_iter=30, batch_size=2048, random_state=seed)
    return means.fit(V[known:]).cluster_centers_.astype(np.float64)


def nodes(V: np.ndarray, known: int, centres: np.ndarray) -> Nodes:
    """The nodes of rows V, the first `known` of which are labelled."""
    if not len(centres):
        return Nodes(V, np.ones(len(V)))
    all = np.concatenate([V[:known], centres])
    unit = all / np.maximum(np.linalg.norm(all, axis=1, keepdims=True), 1e-12)
    k = max(1, min(NEAREST, len(all) - 1))
    index, weight = np.empty((len(V), k), np.int64), np.empty((len(V), k))
    for a in range(0, len(V), BLOCK):
        block = V[a : a + BLOCK]
        near = block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12) @ unit.T
        itself = np.arange(a, min(a + BLOCK, known))
        near[itself - a, itself] = -1.0
        index[a : a + BLOCK] = np.argpartition(-near, k - 1, axis=1)[:, :k]
        weight[a : a + BLOCK] = np.maximum(np.take_along_axis(near, index[a : a + BLOCK], 1), 1e-6) ** POWER
    weight /= weight.sum(1, keepdims=True)
    rows = np.repeat(np.arange(len(V)), k)
    from_others = sparse.csr_array((weight.ravel(), (rows, index.ravel())), (len(V), len(all)))
    themselves = sparse.eye_array(known, len(all))  # a labelled row is its own node
    to_rows = sparse.csr_array(sparse.vstack([themselves, from_others[known:]]))
    return Nodes(all, np.asarray(to_rows.sum(0)).ravel(), to_rows, from_others[:known])
