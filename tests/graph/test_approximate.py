"""Approximate neighbours against the exact ones: what is found is right, enough is found, and nothing depends on threads."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from grapevine import graph as g
from grapevine.core.errors import Mistake
from grapevine.graph import approximate

pytest.importorskip("faiss")


def clouds(n: int, d: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 40, n)
    return rng.normal(size=(40, d))[y] + 0.4 * rng.normal(size=(n, d)), y % 4


def recall(index: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(index.tolist(), true.tolist())]))


def test_by_cosine_what_is_found_is_as_the_exact_search_has_it():
    V, _ = clouds(6000)
    found = approximate.nearly_nearest_cosine(V, 5, 0.9)
    true, cosines = g.nearest_cosine(V, 5)
    assert recall(found.near, true) >= 0.88
    assert abs(recall(found.near, true) - found.recall) < 0.03  # the estimate is of a sixth of the points
    same = (found.near == true).all(axis=1)
    assert same.mean() > 0.5 and np.array_equal(found.measure[same], cosines[same])
    assert (found.near != np.arange(len(V))[:, None]).all() and (np.diff(found.measure, axis=1) <= 0).all()
    assert (found.measure[:, -1] <= cosines[:, -1]).all()  # nothing can be nearer than the nearest


def test_by_distance_enough_lists_are_the_exact_search(monkeypatch):
    monkeypatch.setattr(approximate, "SAMPLE", 3000)  # all of them: lists are added until everybody's neighbours are found
    V, _ = clouds(3000)
    bits = g.hash_bits(V, g.hyperplanes(bytes(32), 200, V.shape[1], b"test"))
    found = approximate.nearly_nearest(bits, 4, 1 - 1e-9)
    index, distance = g.nearest(bits, 4)
    assert found.recall == 1.0 and np.array_equal(found.measure, distance)
    inner = distance < distance[:, -1:]  # of equals at the end of a list, any may be there
    assert np.array_equal(found.near[inner], index[inner])


def test_more_recall_looks_into_more_lists():
    V, _ = clouds(5000)
    low, high = (approximate.nearly_nearest_cosine(V, 5, share) for share in (0.5, 0.97))
    assert low.probes < high.probes and low.recall < high.recall and high.recall > 0.94


def test_threads_change_nothing():
    V, _ = clouds(5000)
    one, two = (approximate.nearly_nearest_cosine(V, 5, 0.9, threads=threads) for threads in (1, 2))
    assert np.array_equal(one.near, two.near) and np.array_equal(one.measure, two.measure) and one[2:] == two[2:]


def test_the_estimator_tells_its_recall_and_its_memory(caplog):
    caplog.set_level("INFO", "grapevine")
    V, y = clouds(4000)
    partly = np.where(np.arange(4000) % 10 == 0, y, -1)
    exact = g.LabelSpreading(recall=1).fit(V, partly)
    model = g.LabelSpreading(recall=0.9).fit(V, partly)
    said = caplog.messages[-2:]
    assert exact.recall_ == 1.0 and 0.87 < model.recall_ < 1.0
    right, as_exact = ((labels == y).mean() for labels in (model.transduction_, exact.transduction_))
    assert right > as_exact - 0.02 > 0.9
    assert "at most 0." in said[0] and f"{model.recall_:.1%}" in said[1]


def test_what_auto_does(monkeypatch, caplog):
    assert approximate.wanted("auto", approximate.EXACT) == 1 and approximate.wanted("auto", approximate.EXACT + 1) == 0.95
    assert approximate.wanted(0.9, 2000) == 1 and approximate.wanted(0.9, 2001) == 0.9 and approximate.wanted(1, 10**7) == 1
    monkeypatch.setattr(approximate, "find_spec", lambda name: None)
    assert approximate.wanted("auto", approximate.EXACT + 1) == 1 and "`ann` extra" in caplog.text


@pytest.mark.parametrize("recall", [0, 1.5, "some"])
def test_a_recall_that_cannot_be_had(recall):
    V, y = clouds(300)
    with pytest.raises(Mistake, match=f"recall={recall!r}"):
        g.LabelSpreading(recall=recall).fit(V, y)


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(Mistake, match="`ann` extra"):
        approximate.nearly_nearest_cosine(clouds(3000)[0], 5)


def test_majority_of_bits():
    from grapevine.graph import kernels

    rows = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 1, 1]], np.uint8)
    packed = np.packbits(np.pad(rows, ((0, 0), (0, 4))), axis=1)
    centres = np.full((3, 1), 255, np.uint8)
    kernels.majority(packed, np.array([0, 0, 0, 2]), centres)
    assert np.unpackbits(centres, axis=1)[:, :4].tolist() == [[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    assert np.unpackbits(centres, axis=1)[0, 4:].tolist() == [0, 0, 0, 0]
