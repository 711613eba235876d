"""The graph, its solution and the labels against closed forms and numbers worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from grapevine import graph as g
from grapevine.core.errors import Mistake


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def solve_dense(W: sp.csr_array, Y: np.ndarray, alpha: float) -> np.ndarray:
    """The closed form Z = (I − αW)⁻¹ Y, by a dense solver."""
    return np.linalg.solve(np.eye(W.shape[0]) - alpha * W.toarray(), Y)


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
    # Cubed: W01 = 2·0.512, W12 = 0.125.
    cubed = g.graph(index, similarity, preset="code").toarray()
    assert np.isclose(cubed[1, 2], 0.125 / math.sqrt(1.149 * 0.125))


def test_graph_leaves_out_nobody_itself_and_points_without_a_list():
    W = g.graph(np.array([[0, 1], [-1, 0]]), np.array([[1.0, 0.5], [0.9, 0.5]]), n=3)
    assert np.allclose(W.toarray(), [[0, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_spectrum_lets_the_system_be_solved():
    index, similarity = g.nearest_cosine(points(80, 3), 60)
    eigenvalues = np.linalg.eigvalsh(g.graph(index, similarity).toarray())
    assert np.abs(eigenvalues).max() <= 1 + 1e-12


def test_graph_refuses_unknown_words():
    index, similarity = np.array([[1], [0]]), np.ones((2, 1))
    with pytest.raises(Mistake, match="'papper'"):
        g.graph(index, similarity, preset="papper")


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
    assert np.allclose(solve_dense(W, Y, alpha)[:, 0], want, rtol=1e-12)


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
    want = solve_dense(W, Y, alpha)
    # ‖error‖ ≤ ‖residual‖ / (1 − α), as the least eigenvalue is at least 1 − α.
    assert np.linalg.norm(Z - want) <= 1.2e-10 * np.linalg.norm(Y) / (1 - alpha) + 1e-12
    assert residual <= 1.1e-10 and np.allclose(Y - Z + alpha * (W @ Z), 0, atol=1e-9)
    assert iterations >= 1


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
    assert np.allclose(Z, solve_dense(W, Y, 0.99), atol=1e-7)


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


def plabels(V: np.ndarray, y: np.ndarray, k: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """What `compute_plabels` of the XCLP authors' code computes, one number at a time: labels, and weights divided by the largest
    over all rows, labelled ones too."""
    n, alpha = len(V), 0.99
    A = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in V] for a in V]
    W = np.zeros((n, n))
    for i in range(n):
        for j in sorted((j for j in range(n) if j != i), key=lambda j: -A[i][j])[:k]:
            W[i, j] += A[i][j] ** 3
            W[j, i] += A[i][j] ** 3
    d = W.sum(1)
    Y = np.zeros((n, classes))
    for c in range(classes):
        Y[y == c, c] = 1 / max((y == c).sum(), 1)
    Z = np.linalg.inv(np.eye(n) - alpha * W / np.sqrt(np.outer(d, d))) @ Y
    P = Z / Z.sum(1, keepdims=True)
    weights = np.array([1 + sum(p * math.log(p) for p in row if p > 0) / math.log(classes) for row in P])
    return P.argmax(1), weights / weights.max()


def test_propagation_is_that_of_the_authors():
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 4, 120)
    V = rng.normal(size=(4, 6))[truth] * 1.5 + rng.normal(size=(120, 6)) + 2.5  # similarities above 0, as after a ReLU
    y = np.where(np.arange(120) < 18, truth, -1)
    labels, weights = plabels(V, y, 7, 4)
    index, similarity = g.nearest_cosine(V, 7)
    W = g.graph(index, similarity, preset="code")
    Z = g.solve(W, g.label_matrix(y, 4, preset="code"), 0.99, tol=1e-10).Z
    found, confidence = g.labels_and_confidence(Z)
    assert np.array_equal(found, labels) and len(set(labels)) == 4
    assert np.allclose(confidence / confidence.max(), weights, atol=1e-6)
