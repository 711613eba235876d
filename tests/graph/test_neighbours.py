"""Neighbours against brute force, with ties; block by block in any order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine import graph as g
from grapevine.core.errors import Mistake
from grapevine.core.threads import one_blas_thread

SECRET = bytes(range(32))


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def random_bits(n: int, L: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, L), dtype=np.uint8)


def brute_nearest(H: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's k smallest by (distance, index), itself excluded, by sorting everything."""
    n = len(H)
    index, distance = np.full((n, k), -1), np.full((n, k), -1)
    for i in range(n):
        order = sorted((int(H[i, j]), j) for j in range(n) if j != i)[:k]
        for place, (h, j) in enumerate(order):
            index[i, place], distance[i, place] = j, h
    return index, distance


@pytest.mark.parametrize("n, L, k", [(1, 16, 3), (2, 16, 3), (4, 8, 3), (4, 8, 10), (60, 4, 5), (700, 13, 10), (600, 64, 3)])
def test_nearest_is_brute_force_with_ties(n, L, k):
    B = random_bits(n, L, n)  # few bits: most distances are tied
    index, distance = g.nearest(np.packbits(B, axis=1), k)
    H = (B[:, None].astype(np.int8) != B[None]).sum(-1)
    want_index, want_distance = brute_nearest(H, k)
    assert np.array_equal(index, want_index) and np.array_equal(distance, want_distance)


def test_nearest_of_queries():
    B, Q = random_bits(600, 20), random_bits(530, 20, 1)
    index, distance = g.nearest(np.packbits(B, axis=1), 4, np.packbits(Q, axis=1))
    H = (Q[:, None] != B[None]).sum(-1)
    order = np.argsort(H, axis=1, kind="stable")[:, :4]
    assert np.array_equal(index, order)
    assert np.array_equal(distance, np.take_along_axis(H, order, 1))


@pytest.mark.parametrize("n, k", [(1, 2), (3, 5), (40, 4), (1030, 6)])
def test_nearest_cosine_is_brute_force(n, k):
    rng = np.random.default_rng(n)
    base = np.vstack([points(8, 4), np.zeros((1, 4))])  # few directions and a zero row: most cosines are tied
    V = (base[rng.integers(0, 9, n)] * 2.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)
    index, similarity = g.nearest_cosine(V, k)
    length = np.linalg.norm(V.astype(np.float64), axis=1)
    U = V / np.where(length > 0, length, 1)[:, None]
    codes = -np.rint(U @ U.T * 1e6).astype(np.int64)  # different directions differ by more than 1e-6
    want_index, want_codes = brute_nearest(codes, k)
    assert np.array_equal(index, want_index)
    assert np.allclose(np.where(index < 0, 0, similarity), np.where(want_index < 0, 0, -want_codes / 1e6), atol=2e-6)


def test_nearest_cosine_of_queries_and_its_accuracy():
    V, Q = points(700, 30), points(20, 30, 1) * 1e200
    index, similarity = g.nearest_cosine(V, 5, Q)
    U, P = (A / np.abs(A).max() / np.linalg.norm(A / np.abs(A).max(), axis=1, keepdims=True) for A in (V, Q))
    A = P @ U.T
    assert np.array_equal(index, np.argsort(-A, axis=1)[:, :5])
    assert np.abs(similarity - -np.sort(-A, axis=1)[:, :5]).max() < 4e-8  # both factors rounded to 2⁻²⁶: σ = 6e-9


def test_neighbours_do_not_depend_on_threads():
    V = points(1500, 12)
    bits = g.hash_bits(V, g.hyperplanes(SECRET, 24, 12, b"a"))
    for search, rows in ((g.nearest, bits), (g.nearest_cosine, V)):
        one = search(rows, 7, threads=1)
        for threads in (2, 3):
            other = search(rows, 7, threads=threads)
            assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def test_searches_may_run_at_once():
    V = points(800, 8)
    want = g.nearest_cosine(V, 5)[0]
    got = [None] * 4
    workers = [threading.Thread(target=lambda t=t: got.__setitem__(t, g.nearest_cosine(V, 5)[0])) for t in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(want, index) for index in got)
    assert one_blas_thread.users == 0


def test_no_neighbours_asked_for():
    with pytest.raises(Mistake, match="neighbours is 0"):
        g.nearest(np.packbits(random_bits(3, 8), axis=1), 0)


# The k best, block by block


def cut(n: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(rng.permutation(n), parts)]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_kbest_whatever_the_order_of_blocks(n, parts, k, L, seed):
    rng = np.random.default_rng(seed)
    B = random_bits(n, L, seed)
    H = (B[:, None] != B[None]).sum(-1).astype(np.uint16)
    parties = cut(n, parts, rng)
    blocks = [(i, j) for i in range(parts) for j in range(i, parts)]
    best = g.KBest(n, k)
    for at in rng.permutation(len(blocks)):
        i, j = (parties[p] for p in blocks[at])
        if rng.random() < 0.5:
            i, j = j, i
        for _ in range(rng.integers(1, 3)):  # now and then the same block twice
            best.add(i, j, H[np.ix_(i, j)])
    index, distance = best.result()
    want_index, want_distance = brute_nearest(H, k)
    assert np.array_equal(index, want_index) and np.array_equal(distance, want_distance)


def test_kbest_without_a_pair_of_parties():
    H = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
    best = g.KBest(4, 3)
    best.add([0, 1], [0, 1], H[:2, :2])
    best.add([2, 3], [2, 3], H[2:, 2:])
    index, distance = best.result()
    assert index.tolist() == [[1, -1, -1], [0, -1, -1], [3, -1, -1], [2, -1, -1]]
    assert distance[:, 0].tolist() == [1] * 4 and (distance[:, 1:] == -1).all()


@pytest.mark.parametrize(
    "rows, cols, block, words",
    [
        ([0], [5], [[1]], "point 5"),
        ([0], [-1], [[1]], "point -1"),
        ([0, 1], [1], [[1]], "does not fit"),
        ([0], [1], [[-4]], "-4"),
    ],
)
def test_kbest_refuses_bad_blocks(rows, cols, block, words):
    with pytest.raises(Mistake, match=words):
        g.KBest(3, 1).add(rows, cols, block)
