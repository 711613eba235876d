"""The picture of a graph: components lie apart, a sample of rows with their owners, and very few rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from label_job import blobs, label

from grapevine.graph import layout


def test_components_of_a_graph_lie_apart():
    blocks = [np.ones((20, 20)) - np.eye(20)] * 3
    W = sp.csr_array(sp.block_diag(blocks)) / 19
    smooth = layout.smooth(W)
    assert smooth["coordinates"].shape == (60, layout.DIMENSIONS) and (smooth["rows"] == np.arange(60)).all()
    Z = layout.plane(smooth["coordinates"])
    distance = np.linalg.norm(Z[:, None] - Z[None], axis=2)
    same = np.arange(60)[:, None] // 20 == np.arange(60)[None] // 20
    np.fill_diagonal(distance, np.inf)
    assert np.isfinite(Z).all() and (same[np.arange(60), distance.argmin(1)]).mean() == 1
    assert np.median(distance[~same]) > 2 * np.median(distance[same & np.isfinite(distance)])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_picture_of_very_few_rows(n):
    Z = layout.plane(layout.smooth(sp.csr_array(np.zeros((n, n))))["coordinates"])
    assert Z.shape == (n, 2) and np.isfinite(Z).all()


def test_the_picture_is_a_sample_with_owners_and_rows():
    parties = blobs((500, 400, 300))
    result = label(parties, neighbours=3)
    graph = result.graph
    assert len(graph["party"]) == layout.MOST
    of = [np.flatnonzero(graph["party"] == i) for i in range(3)]
    assert all(len(np.unique(graph["row"][rows])) == len(rows) for rows in of)
    assert all(graph["row"][rows].max() < len(X) for rows, (X, *_) in zip(of, parties))
    # Rows of one class lie together: the coordinates belong to the rows they are given for.
    truth = np.array([parties[p][2][r] for p, r in zip(graph["party"], graph["row"])])
    U = graph["coordinates"] / np.linalg.norm(graph["coordinates"], axis=1, keepdims=True)
    near = U @ U.T
    np.fill_diagonal(near, -1)
    assert (truth[near.argmax(1)] == truth).mean() > 0.95
