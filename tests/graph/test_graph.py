"""The graph engine against closed forms, brute force, numbers worked out by hand, and scikit-learn run to convergence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.semi_supervised import LabelSpreading as TheirLabelSpreading
from sklearn.utils.estimator_checks import parametrize_with_checks

from grapevine import graph as g
from grapevine.core.errors import Mistake

SECRET = bytes(range(32))


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def brute_nearest(H: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's k smallest by (distance, index), itself excluded, by sorting everything."""
    n = len(H)
    index, distance = np.full((n, k), -1), np.full((n, k), -1)
    for i in range(n):
        order = sorted((int(H[i, j]), j) for j in range(n) if j != i)[:k]
        for place, (h, j) in enumerate(order):
            index[i, place], distance[i, place] = j, h
    return index, distance


def random_bits(n: int, L: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, L), dtype=np.uint8)


# Hashing


def test_planes_are_those_of_the_stream_and_standard_normal():
    planes = g.hyperplanes(SECRET, 4096, 16, b"a")
    assert planes.dtype == np.float32 and planes.shape == (4096, 16)
    assert np.array_equal(planes, g.hyperplanes(SECRET, 4096, 16, b"a"))
    assert not np.array_equal(planes, g.hyperplanes(SECRET, 4096, 16, b"b"))
    assert abs(planes.mean()) < 5 / math.sqrt(planes.size)
    assert abs(planes.var() - 1) < 5 * math.sqrt(2 / planes.size)


@pytest.mark.parametrize("bits, d", [(64, 16), (16, 16), (8, 16)])
def test_tight_frame(bits, d):
    planes = g.hyperplanes(SECRET, bits, d, b"a", tight_frame=True).astype(np.float64)
    gram = planes.T @ planes if bits >= d else planes @ planes.T
    assert np.allclose(gram / max(bits, d), np.eye(min(bits, d)), atol=1e-5)


@pytest.mark.parametrize("L", [1, 7, 8, 13, 64, 65, 200])
def test_bits_are_the_signs(L):
    V, planes = points(50, 9), g.hyperplanes(SECRET, L, 9, b"a")
    packed = g.hash_bits(V, planes)
    assert packed.shape == (50, math.ceil(L / 8)) and packed.dtype == np.uint8
    assert np.array_equal(g.unpack(packed, L), V @ planes.T.astype(np.float64) >= 0)
    assert np.array_equal(np.packbits(g.unpack(packed, L), axis=1), packed)


def test_zero_and_a_point_on_a_plane_have_bit_one():
    planes = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    V = np.array([[0, 0], [0, -3], [2, 0]])
    assert g.unpack(g.hash_bits(V, planes), 3).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_bits_of_a_row_depend_on_that_row_alone():
    V, planes = points(1300, 40), g.hyperplanes(SECRET, 256, 40, b"a")
    whole = g.hash_bits(V, planes, threads=1)
    assert np.array_equal(whole, g.hash_bits(V, planes, threads=2))
    order = np.random.default_rng(1).permutation(1300)
    assert np.array_equal(whole[order], g.hash_bits(V[order], planes))
    assert np.array_equal(whole[7:8], g.hash_bits(V[7:8], planes))


@pytest.mark.parametrize("factor", [1e-300, 1e-30, 1e30, 1e300])
def test_bits_do_not_depend_on_length(factor):
    V, planes = points(20, 5), g.hyperplanes(SECRET, 128, 5, b"a")
    assert np.array_equal(g.hash_bits(V, planes), g.hash_bits(V * factor, planes))


def test_cosine_estimate_converges():
    V = points(30, 6)
    U = V / np.linalg.norm(V, axis=1, keepdims=True)
    error = []
    for L in (64, 1024, 16384):
        bits = g.hash_bits(V, g.hyperplanes(SECRET, L, 6, b"a"))
        error.append(np.abs(g.cosine(g.hamming(bits, bits), L) - U @ U.T).mean())
    # The standard error of H/L is at most 1/(2√L), and cos(π·) stretches it by at most π.
    assert error[0] > error[1] > error[2]
    for L, e in zip((64, 1024, 16384), error):
        assert e < math.pi / (2 * math.sqrt(L))


def test_bad_features_are_named():
    V = points(4, 3)
    V[2, 1] = np.nan
    with pytest.raises(Mistake, match="row 2, column 1"):
        g.hash_bits(V, g.hyperplanes(SECRET, 8, 3, b"a"))
    with pytest.raises(Mistake, match="4 features"):
        g.hash_bits(points(2, 4), g.hyperplanes(SECRET, 8, 3, b"a"))
    with pytest.raises(Mistake, match="at least 1"):
        g.hyperplanes(SECRET, 0, 3, b"a")


# Distances and neighbours


@pytest.mark.parametrize("L", [1, 8, 13, 64, 100, 256])
def test_hamming_by_counting(L):
    A, B = random_bits(7, L), random_bits(5, L, 1)
    H = g.hamming(np.packbits(A, axis=1), np.packbits(B, axis=1))
    assert np.array_equal(H, (A[:, None] != B[None]).sum(-1))
    assert g.hamming(np.packbits(A, axis=1), np.packbits(1 - A, axis=1)).diagonal().tolist() == [L] * 7


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
    assert g._blas_users == []


def test_progress_reaches_its_end():
    seen = []
    g.nearest(np.packbits(random_bits(1200, 16), axis=1), 3, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6) and [done for done, _ in seen] == list(range(7))  # 3 blocks of rows: 6 on and above the diagonal


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
    best = g.KBest(n, k, spare=0)
    for at in rng.permutation(len(blocks)):
        i, j = (parties[p] for p in blocks[at])
        if rng.random() < 0.5:
            i, j = j, i
        for _ in range(rng.integers(1, 3)):  # now and then the same block twice
            best.add(i, j, H[np.ix_(i, j)])
    index, distance = best.result()
    want_index, want_distance = brute_nearest(H, k)
    assert np.array_equal(index, want_index) and np.array_equal(distance, want_distance)
    assert best.short.size == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 40), st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_kbest_forgets_a_party_lost_on_the_way(n, k, spare, seed):
    rng = np.random.default_rng(seed)
    B = random_bits(n, 6, seed)
    H = (B[:, None] != B[None]).sum(-1)
    parties = cut(n, 4, rng)
    blocks = [(i, j) for i in range(4) for j in range(i, 4)]
    best = g.KBest(n, k, spare=spare)
    lost = rng.integers(0, len(blocks))
    for count, at in enumerate(rng.permutation(len(blocks))):
        if count == lost:
            best.remove(parties[0])
        i, j = (parties[p] for p in blocks[at])
        best.add(i, j, H[np.ix_(i, j)])  # blocks of the lost party that still come are ignored
    gone = np.isin(np.arange(n), parties[0])
    masked = np.where(gone[:, None] | gone[None], 10**6, H)
    want_index, want_distance = brute_nearest(masked, k)
    want_index[want_distance >= 10**6] = -1
    index, _ = best.result()
    sure = np.setdiff1d(np.arange(n), best.short)
    assert np.array_equal(index[sure], want_index[sure])
    if spare >= len(parties[0]):  # no more than these can be forgotten from a list
        assert best.short.size == 0


def test_kbest_says_when_too_much_was_forgotten():
    best = g.KBest(4, 1, spare=0)
    best.add([0], [1, 2, 3], [[5, 1, 9]])
    best.remove([2])
    assert best.short.tolist() == [0]  # 1 was dropped for 2
    enough = g.KBest(4, 1, spare=1)
    enough.add([0], [1, 2, 3], [[5, 1, 9]])
    enough.remove([2])
    assert enough.short.tolist() == [] and enough.result()[0][0].tolist() == [1]


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


# The graph


def test_graph_worked_by_hand():
    # 0–1 mutual at 0.8, 2→1 at 0.5, 3 has only a negative neighbour.
    index = np.array([[1], [0], [1], [2]])
    similarity = np.array([[0.8], [0.8], [0.5], [-0.3]])
    W = g.graph(index, similarity).toarray()
    # W = B + Bᵀ: W01 = 1.6, W12 = 0.5; d = (1.6, 2.1, 0.5, 0).
    want = np.zeros((4, 4))
    want[0, 1] = want[1, 0] = 1.6 / math.sqrt(1.6 * 2.1)
    want[1, 2] = want[2, 1] = 0.5 / math.sqrt(2.1 * 0.5)
    assert np.allclose(W, want, atol=1e-15)
    assert np.array_equal(W, W.T)
    # Kept: W23 = −0.3, d = (1.6, 2.1, 0.8, 0.3).
    kept = g.graph(index, similarity, negative="keep").toarray()
    assert np.isclose(kept[2, 3], -0.3 / math.sqrt(0.8 * 0.3)) and np.isclose(kept[1, 2], 0.5 / math.sqrt(2.1 * 0.8))
    # Cubed: W01 = 2·0.512, W12 = 0.125.
    cubed = g.graph(index, similarity, preset="code").toarray()
    assert np.isclose(cubed[1, 2], 0.125 / math.sqrt(1.149 * 0.125))


def test_graph_leaves_out_nobody_itself_and_points_without_a_list():
    W = g.graph(np.array([[0, 1], [-1, 0]]), np.array([[1.0, 0.5], [0.9, 0.5]]), n=3)
    assert np.allclose(W.toarray(), [[0, 1, 0], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("negative", ["clip", "keep"])
def test_spectrum_lets_the_system_be_solved(negative):
    index, similarity = g.nearest_cosine(points(80, 3), 60)
    eigenvalues = np.linalg.eigvalsh(g.graph(index, similarity, negative=negative).toarray())
    assert np.abs(eigenvalues).max() <= 1 + 1e-12


def test_graph_refuses_unknown_words():
    index, similarity = np.array([[1], [0]]), np.ones((2, 1))
    with pytest.raises(Mistake, match="'papper'"):
        g.graph(index, similarity, preset="papper")
    with pytest.raises(Mistake, match="'drop'"):
        g.graph(index, similarity, negative="drop")


# Propagation


def test_three_points_in_a_row_by_hand():
    # A path 0–1–2 of equal weights: W01 = W12 = 1/√2. (I − αW)z = e0 has z1 = (α/√2)/(1−α²),
    # z0 = 1 + αz1/√2, z2 = αz1/√2, by eliminating z0 and z2.
    W = g.normalise(sp.csr_array(np.array([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]])))
    alpha = 0.9
    z1 = alpha / math.sqrt(2) / (1 - alpha**2)
    want = np.array([1 + alpha * z1 / math.sqrt(2), z1, alpha * z1 / math.sqrt(2)])
    Y = np.array([[1.0], [0], [0]])
    assert np.allclose(g.solve(W, Y, alpha, tol=1e-12).Z[:, 0], want, rtol=1e-11)
    assert np.allclose(g.solve_dense(W, Y, alpha)[:, 0], want, rtol=1e-12)


def test_two_points_by_hand():
    # W = [[0,1],[1,0]]: S = 1/(1−α²)·[[1,α],[α,1]].
    alpha = Fraction(1, 2)
    W = g.graph(np.array([[1], [0]]), np.ones((2, 1)))
    S = np.hstack([part for _, part in g.influence_columns(W, [0, 1], float(alpha), tol=1e-12)])
    one, other = 1 / (1 - alpha**2), alpha / (1 - alpha**2)
    assert np.allclose(S, np.array([[one, other], [other, one]], float), rtol=1e-12)


@pytest.mark.parametrize(
    "n, k, C, alpha", [(1, 1, 1, 0.99), (5, 9, 2, 0.5), (200, 5, 3, 0.99), (400, 8, 19, 0.999), (60, 4, 2, 0.0)]
)
def test_conjugate_gradients_reach_the_closed_form(n, k, C, alpha):
    W = g.graph(*g.nearest_cosine(points(n, 6, n), k))
    rng = np.random.default_rng(n)
    Y = g.label_matrix(np.where(rng.random(n) < 0.3, rng.integers(0, C, n), -1), C)
    Y[0, :] = 1.0 / C
    Z, residual, iterations = g.solve(W, Y, alpha, tol=1e-10)
    want = g.solve_dense(W, Y, alpha)
    # ‖error‖ ≤ ‖residual‖ / (1 − α), as the least eigenvalue is at least 1 − α.
    assert np.linalg.norm(Z - want) <= 1.2e-10 * np.linalg.norm(Y) / (1 - alpha) + 1e-12
    assert residual <= 1.1e-10 and np.allclose(Y - Z + alpha * (W @ Z), 0, atol=1e-9)
    assert iterations >= 1


def test_dense_closed_form_is_the_inverse():
    W = g.graph(*g.nearest_cosine(points(50, 4), 5))
    assert np.allclose(g.solve_dense(W, np.eye(50), 0.9), np.linalg.inv(np.eye(50) - 0.9 * W.toarray()), atol=1e-12)


def test_solution_does_not_depend_on_threads():
    W = g.graph(*g.nearest_cosine(points(300, 4), 5))
    Y = np.eye(300)[:, :40]
    assert np.array_equal(g.solve(W, Y, 0.99, threads=1).Z, g.solve(W, Y, 0.99, threads=2).Z)


def test_not_converged_is_said():
    W = g.graph(*g.nearest_cosine(points(300, 4), 5))
    with pytest.raises(Mistake, match="after 3 iterations, above tol=1e-09"):
        g.solve(W, np.eye(300)[:, :2], 0.99, tol=1e-9, max_iter=3)


@pytest.mark.parametrize("alpha", [1.0, -0.1, 2.0, float("nan")])
def test_alpha_out_of_range(alpha):
    W = sp.csr_array(np.zeros((2, 2)))
    with pytest.raises(Mistake, match="alpha="):
        g.solve(W, np.eye(2), alpha)
    with pytest.raises(Mistake, match="alpha="):
        g.solve_dense(W, np.eye(2), alpha)


def test_influence_columns_are_those_of_the_inverse():
    n, alpha = 150, 0.95
    W = g.graph(*g.nearest_cosine(points(n, 5), 6))
    S = np.linalg.inv(np.eye(n) - alpha * W.toarray())
    columns = np.random.default_rng(0).permutation(n)[:37]
    seen = []
    for ids, part in g.influence_columns(W, columns, alpha, tol=1e-11, chunk=10):
        assert part.shape == (n, len(ids)) and len(ids) <= 10
        assert np.allclose(part, S[:, ids], atol=1e-9)
        seen.extend(ids)
    assert seen == columns.tolist()
    with pytest.raises(Mistake, match="Column 150"):
        next(g.influence_columns(W, [150], alpha))


def test_columns_times_labels_are_the_scores():
    n = 120
    W = g.graph(*g.nearest_cosine(points(n, 5), 6))
    y = np.where(np.arange(n) % 4 == 0, np.arange(n) % 3, -1)
    Y = g.label_matrix(y, 3)
    labelled = np.flatnonzero(y >= 0)
    Z = sum(part @ Y[ids] for ids, part in g.influence_columns(W, labelled, 0.99, tol=1e-10))
    assert np.allclose(Z, g.solve_dense(W, Y, 0.99), atol=1e-7)


# Labels


def test_labels_and_confidence_by_hand():
    Z = np.array([[3.0, 1.0], [2.0, 2.0], [0.0, 5.0], [0.0, 0.0], [-1e-18, -3.0]])
    labels, confidence = g.labels_and_confidence(Z)
    assert labels.tolist() == [0, 0, 1, -1, -1]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
    assert np.allclose(confidence, [1 - entropy, 0, 1, 0, 0], atol=1e-15)


@pytest.mark.parametrize("scale", [1e-290, 1.0, 1e290])
def test_confidence_does_not_depend_on_scale(scale):
    labels, confidence = g.labels_and_confidence(np.array([[3.0, 1.0], [1.0, 2.0]]) * scale)
    assert labels.tolist() == [0, 1] and np.allclose(confidence, g.labels_and_confidence(np.array([[3.0, 1], [1, 2]]))[1])


def test_a_row_below_the_floor_is_not_reached():
    Z = np.array([[1.0, 0.0], [0.0, 1e-12]])
    assert g.labels_and_confidence(Z)[0].tolist() == [0, -1]
    assert g.labels_and_confidence(Z, floor=0.0)[0].tolist() == [0, 1]


def test_one_class_no_class_no_row():
    labels, confidence = g.labels_and_confidence(np.array([[2.0], [0.0]]))
    assert labels.tolist() == [0, -1] and confidence.tolist() == [1, 0]
    assert [part.tolist() for part in g.labels_and_confidence(np.zeros((2, 0)))] == [[-1, -1], [0, 0]]
    assert [part.tolist() for part in g.labels_and_confidence(np.zeros((0, 3)))] == [[], []]


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(Mistake, match="not finite"):
        g.labels_and_confidence(np.array([[np.nan, 1.0]]))


def test_class_mass_gives_the_columns_the_priors_mass():
    Z = np.array([[3.0, 1, 0], [1, 1, 0], [2, 0, 0]])
    scaled = g.class_mass(Z, np.array([0.5, 0.3, 0.2]))
    assert np.allclose(scaled.sum(axis=0), [0.5, 0.3, 0])
    assert np.allclose(scaled[:, 0], [0.25, 0.5 / 6, 1 / 6])


def test_label_matrix():
    y = np.array([0, -1, 2, 0])
    assert g.label_matrix(y, 3).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert g.label_matrix(y, 3, "code").tolist() == [[0.5, 0, 0], [0, 0, 0], [0, 0, 1], [0.5, 0, 0]]


# LabelSpreading


@parametrize_with_checks([g.LabelSpreading(), g.LabelSpreading(affinity="hamming", bits=512, random_state=0, preset="code")])
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def test_agrees_with_scikit_learn_on_the_same_graph():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    partly = np.where(np.arange(400) % 10 == 0, y, -1)
    ours = g.LabelSpreading(7, alpha=0.9, tol=1e-11).fit(X, partly)
    # Their kernel may be any function; they normalise the matrix it gives in the same way.
    index, similarity = g.nearest_cosine(X, 7)
    B = np.zeros((400, 400))
    np.put_along_axis(B, index, similarity, axis=1)
    theirs = TheirLabelSpreading(kernel=lambda a, b: B + B.T, alpha=0.9, tol=1e-12, max_iter=10000).fit(X, partly)
    assert np.allclose(ours.label_distributions_, theirs.label_distributions_, atol=1e-7)
    assert np.array_equal(ours.transduction_, theirs.transduction_)
    given = g.LabelSpreading(alpha=0.9, affinity="precomputed", tol=1e-11).fit(sp.csr_array(B), partly)
    assert np.allclose(given.label_distributions_, ours.label_distributions_, atol=1e-9)


def test_a_component_without_labels_gets_none():
    X = np.repeat(np.eye(3), 4, axis=0) + np.tile(np.eye(4, 3) * 0.01, (3, 1))
    X[8:] = [0, 0, -1]  # opposite or orthogonal to all others
    y = np.full(12, -1)
    y[0], y[4] = 5, 7
    model = g.LabelSpreading(3).fit(X, y)
    assert model.transduction_.tolist() == [5] * 4 + [7] * 4 + [-1] * 4
    assert model.confidence_[8:].tolist() == [0] * 4 and (model.label_distributions_[8:] == 0).all()
    assert model.predict([[1, 0, 0], [0, 0, -2], [0, 0, 0], [0, 2, 0]]).tolist() == [5, -1, -1, 7]
    assert np.isfinite(model.label_distributions_).all() and np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("affinity", ["cosine", "hamming"])
def test_a_row_of_zeros_stays_alone(affinity):
    X = np.array([[1.0, 0.1], [0.0, 0.0], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]])
    model = g.LabelSpreading(2, affinity=affinity, bits=1024, random_state=0).fit(X, [0, -1, -1, 1, -1])
    assert model.transduction_.tolist() == [0, -1, 0, 1, 1]
    assert model.predict(X).tolist() == [0, -1, 0, 1, 1]
    alone = g.LabelSpreading(2, affinity=affinity, random_state=0).fit(np.zeros((2, 2)), [3, -1])
    assert alone.transduction_.tolist() == [3, -1] and alone.predict([[1.0, 0]]).tolist() == [-1]


def test_one_point():
    model = g.LabelSpreading().fit([[1.0, 2.0]], [4])
    assert (
        model.transduction_.tolist() == [4] and model.confidence_.tolist() == [1] and model.predict([[2.0, 4.0]]).tolist() == [4]
    )


@pytest.mark.parametrize(
    "y, unreached",
    [
        (np.array(["a", "", "b", "-1"]), False),
        (np.array(["a", -1, "b", -1], object), False),
        (np.array(["a", "-1", "-1", "-1"]), True),
        (np.array([True, -1, -1, -1], object), True),
    ],
)
def test_names_as_labels(y, unreached):
    X = np.array([[1.0, 0], [1, 0.1], [-0.1, 1], [0, 1]])
    model = g.LabelSpreading(1).fit(X, y)
    assert model.transduction_.tolist() == ([y[0], y[0], -1, -1] if unreached else ["a", "a", "b", "b"])


def test_no_label_at_all():
    with pytest.raises(Mistake, match="None of the 2 rows"):
        g.LabelSpreading().fit([[1.0], [2.0]], [-1, -1])


@pytest.mark.parametrize(
    "setting", [dict(affinity="rbf"), dict(preset="none"), dict(alpha=1.0), dict(n_neighbors=0), dict(tol=0)]
)
def test_bad_settings(setting):
    with pytest.raises(Mistake, match=next(iter(setting)).replace("n_neighbors", "neighbours")):
        g.LabelSpreading(**setting).fit([[1.0], [2.0]], [0, 1])


def test_memory_is_refused_before_it_is_taken(capsys):
    model = g.LabelSpreading(max_memory_mb=1, verbose=True)
    with pytest.raises(Mistake, match="above max_memory_mb=1"):
        model.fit(points(3000, 50), np.arange(3000) % 3)
    assert f"3000 points need up to {model.memory_mb(3000, 50, 3):.0f} MB" in capsys.readouterr().err
    assert not hasattr(model, "graph_")


def test_verbose_reports_progress(capsys):
    g.LabelSpreading(verbose=True).fit(points(1200, 3), np.arange(1200) % 3)
    said = capsys.readouterr().err
    assert "neighbours 100 %" in said and "solved to" in said


def test_digits_spread_well_and_presets_and_options_do_what_they_say():
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    labelled = rng.permutation(len(y))[:100]
    partly = np.full(len(y), -1)
    partly[labelled] = y[labelled]
    rest = partly < 0
    for settings_ in (dict(), dict(preset="code"), dict(affinity="hamming", random_state=1), dict(class_mass=True)):
        model = g.LabelSpreading(**settings_).fit(X, partly)
        assert (model.transduction_ == y)[rest].mean() > 0.9, settings_
    # Labels of every row known: new points of another draw are still recognised.
    model = clone(model).fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.9
    assert np.allclose(model.predict_proba(X[1000:]).sum(axis=1), 1)


def test_class_mass_option_uses_the_labels_shares():
    X, y = load_digits(return_X_y=True)
    partly = np.where(np.arange(len(y)) % 9 == 0, y, -1)
    plain = g.LabelSpreading(tol=1e-9).fit(X, partly)
    mass = g.LabelSpreading(tol=1e-9, class_mass=True).fit(X, partly)
    Z = g.solve(plain.graph_, g.label_matrix(partly, 10), 0.99, 1e-9).Z
    share = np.bincount(partly[partly >= 0]) / (partly >= 0).sum()
    want = Z * share / Z.sum(axis=0)
    assert np.allclose(mass.label_distributions_, want / want.sum(axis=1, keepdims=True), atol=1e-6)


def test_precomputed_takes_new_points_similarities():
    B = np.array([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]])
    model = g.LabelSpreading(affinity="precomputed").fit(B, ["a", "-1", "b"])
    assert model.transduction_.tolist() == ["a", "a", "b"]
    assert model.predict([[0, 0.1, 0.2], [0, 0, 0]]).tolist() == ["b", -1]
    assert np.allclose(model.predict_proba([[0.3, 0.3, 0.4]]), [[0.6, 0.4]])
    with pytest.raises(ValueError, match="square"):
        g.LabelSpreading(affinity="precomputed").fit(np.ones((2, 3)), [0, 1])


def test_hyperplanes_are_fresh_without_a_seed_and_repeat_with_one():
    X, y = points(60, 5), np.where(np.arange(60) < 6, np.arange(60) % 2, -1)
    seeded = [g.LabelSpreading(affinity="hamming", bits=64, random_state=3).fit(X, y).label_distributions_ for _ in range(2)]
    assert np.array_equal(*seeded)
    fresh = [g.LabelSpreading(affinity="hamming", bits=64).fit(X, y).label_distributions_ for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_importing_loads_neither_numba_nor_torch():
    code = "import sys, grapevine.graph; print([m for m in ('numba', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


PEAK = """
import json, resource, sys
import numpy as np
from grapevine.graph import LabelSpreading
n, d, affinity = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
centres = rng.normal(size=(10, d))
truth = np.arange(n) % 10
model = LabelSpreading(affinity=affinity, bits=1024, random_state=0)
small = model.fit(centres, np.arange(10))  # numba is loaded and its kernels are there
X = rng.normal(size=(n, d))
X += 0.7 * centres[truth]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
model.fit(X, np.where(np.arange(n) < 1000, truth, -1))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(dict(before=before, after=after, said=model.memory_mb(n, d), accuracy=(model.transduction_ == truth).mean())))
"""


def peak(n: int, d: int, affinity: str) -> dict:
    done = subprocess.run([sys.executable, "-c", PEAK, str(n), str(d), affinity], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("affinity", ["cosine", "hamming"])
def test_no_more_memory_than_announced(affinity):
    seen = peak(12000, 48, affinity)
    assert seen["after"] - seen["before"] <= seen["said"]
    assert seen["said"] < 400  # one float32 of every pair would be 550 MB
    assert seen["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_000_points_in_4_gb():
    seen = peak(200_000, 64, "cosine")
    print(seen)
    assert seen["after"] < 4096
    assert seen["after"] - seen["before"] <= seen["said"]
    assert seen["accuracy"] > 0.9
