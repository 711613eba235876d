"""Counts, sums and second moments of labelled rows per class, and classifiers made from them: moments in, probabilities out.

Moments add up over parties. What is made from pooled moments equals what all labelled rows in one place would give, and the sum
can run under masks. One vector serves all: counts (C), sums (C × d), second moments of all classes together (upper triangle, or
above `MOST_FEATURES` the diagonal), or instead one triangle or diagonal per class.

A head is a dict of float64 arrays that `probabilities` reads: linear, score_c = w_c · x + b_c, or a Gaussian for every class with
its mean and whitening matrix. A class without a labelled row has probability 0.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from grapevine import graph

MOST_FEATURES = 1500  # the most with a full covariance
LEAST = 1e-9  # the least variance, as a share of the covariance's largest
ROUNDING = 1e-13  # a variance below this share of a second moment about 0 is float64's error
Head = dict[str, np.ndarray]
SUMS_TELL = (
    "how many labelled rows of each class this party has, and the sums of their features; of a single row, that row's features"
)

# ---------------------------------------------------------------- what a party adds


def numbers(d: int, C: int) -> int:
    """How many numbers a party adds, of d features and C classes."""
    return C + C * d + (d * (d + 1) // 2 if d <= MOST_FEATURES else d)


def class_moments(V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
    """What a party adds: counts (C), sums (C × d), then second moments, the upper triangle or the diagonal, as one vector."""
    second = (V.T @ V)[np.triu_indices(V.shape[1])] if V.shape[1] <= MOST_FEATURES else (V * V).sum(0)
    return np.concatenate([class_sums(V, y, C), second])


def class_sums(V: np.ndarray, y: np.ndarray, C: int) -> np.ndarray:
    """Counts (C) and sums (C × d) as one vector: enough for means."""
    Y = graph.label_matrix(y, C)
    return np.concatenate([Y.sum(0), (Y.T @ V).ravel()])


def own_moments(V: np.ndarray, y: np.ndarray, C: int, diagonal: bool) -> np.ndarray:
    """Counts, sums, then second moments for each class apart: C diagonals, or C upper triangles."""
    parts = [V[y == c] for c in range(C)]
    upper = np.triu_indices(V.shape[1])
    second = [(rows * rows).sum(0) if diagonal else (rows.T @ rows)[upper] for rows in parts]
    return np.concatenate([class_sums(V, y, C), *second])


# ---------------------------------------------------------------- statistics of pooled moments


def means_of(moments: np.ndarray, C: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts (C) and means (C × d), zeros for a class without rows."""
    n = moments[:C]
    return n, moments[C : C + C * d].reshape(C, d) / np.maximum(n, 1.0)[:, None]


def statistics(moments: np.ndarray, C: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (C), means (C × d), and the covariance within classes: a matrix, or the vector that is a diagonal one."""
    (n, means), second = means_of(moments, C, d), moments[C + C * d :]
    if d <= MOST_FEATURES:
        square = from_triangle(second, d)
        S, squares = (square - (means.T * n) @ means) / n.sum(), np.trace(square)
    else:
        S, squares = (second - n @ means**2) / n.sum(), second.sum()
    if _trace(S) <= ROUNDING * squares / n.sum():  # what is left of a spread when equal numbers are subtracted
        S = np.eye(d) if S.ndim == 2 else np.ones(d)
    return n, means, S


def from_triangle(values: np.ndarray, d: int) -> np.ndarray:
    """The symmetric matrix with this upper triangle."""
    square = np.zeros((d, d))
    i, j = np.triu_indices(d)
    square[i, j] = square[j, i] = values
    return square


def _trace(S: np.ndarray) -> float:
    return float(S.sum() if S.ndim == 1 else np.trace(S))


def shrunk(S: np.ndarray, shrinkage: float) -> np.ndarray:
    """(1 − γ)S + γ tr(S)/d · I, for a matrix, or for the vector that is a diagonal one."""
    return (1 - shrinkage) * S + shrinkage * _trace(S) / len(S) * (1.0 if S.ndim == 1 else np.eye(len(S)))


def whitening(S: np.ndarray) -> np.ndarray:
    """T with T Tᵀ = S⁻¹, after variances under `LEAST` of the largest are raised to that."""
    variances, Q = (S, 1.0) if S.ndim == 1 else np.linalg.eigh(S)
    return Q / np.sqrt(np.maximum(variances, LEAST * variances.max()))


# ---------------------------------------------------------------- heads


def nearest_mean(moments: np.ndarray, C: int, d: int, cosine: bool) -> Head:
    """FedNCM: w_c = μ_c / ‖μ_c‖; or the Euclidean one, −½‖x − μ_c‖² without what all classes share: w_c = μ_c, b_c = −½‖μ_c‖²."""
    n, means = means_of(moments, C, d)
    if cosine:
        return _linear(n, _unit_rows(means))
    return _linear(n, means, -0.5 * (means * means).sum(1))


def ridge(moments: np.ndarray, C: int, d: int, strength: float) -> Head:
    """Fed3R: (W; b) = (Σ (x; 1)(x; 1)ᵀ + λI)⁻¹ Σ (x; 1) yᵀ, then each class's weights and intercept by the weights' length.

    The products of a row with its 1 are the row, and that of the 1 with itself counts rows, so they are in the moments already.
    """
    n, means = means_of(moments, C, d)
    total = n @ means
    gram = np.block([[from_triangle(moments[C + C * d :], d), total[:, None]], [total, n.sum()]])
    solution = _solved(gram + strength * np.eye(d + 1), np.column_stack([means, np.ones(C)]) * n[:, None])
    length = _lengths(solution[:, :d])
    return _linear(n, solution[:, :d] / length, solution[:, d] / length[:, 0])


def total_gaussian(moments: np.ndarray, C: int, d: int, added: float) -> Head:
    """FedCGS: w_c = Σ⁻¹ μ_c, b_c = −½ μ_cᵀ Σ⁻¹ μ_c + log π_c, Σ being the covariance of all rows about their mean, + γI."""
    n, means = means_of(moments, C, d)
    N, mean = n.sum(), n @ means / n.sum()
    S = (from_triangle(moments[C + C * d :], d) - N * np.outer(mean, mean)) / max(N - 1, 1.0)
    weight = means @ np.linalg.pinv(S + added * np.eye(d), hermitian=True)
    return _linear(n, weight, -0.5 * (weight * means).sum(1) + _log(n / N))


def between_clients(sums: np.ndarray, C: int, d: int, added: float) -> Head:
    """FedCOF, from each client's counts and sums (clients × numbers): the spread of its means stands for that of its rows.

    Σ_c = 1/(K_c − 1) Σ_k n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ + γI over the K_c clients that have class c, then the ridge solution with
    the Gram matrix Σ_c (n_c − 1) Σ_c + N μ μᵀ, in which nothing is left of the spread between classes.
    """
    (n, means), N = means_of(sums.sum(0), C, d), sums[:, :C].sum()
    mean = n @ means / N
    gram = N * np.outer(mean, mean)
    for c in np.flatnonzero(n):
        held = sums[sums[:, c] > 0]
        own = held[:, C + c * d : C + (c + 1) * d] / held[:, [c]]
        apart = (own - means[c]) * np.sqrt(held[:, [c]])
        gram += (n[c] - 1) * (apart.T @ apart / max(len(held) - 1, 1) + added * np.eye(d))
    return _linear(n, _unit_rows(_solved(gram, means * n[:, None])))


def own_gaussians(moments: np.ndarray, C: int, d: int, diagonal: bool, shrinkage: float) -> Head:
    """GH-OFL's naive Bayes (diagonal) and quadratic discriminant: every class with its own covariance, shrunk.

    A class whose rows show no spread of their own takes the covariance within all classes.
    """
    n, means = means_of(moments, C, d)
    second = moments[C + C * d :].reshape(C, -1)
    square = second if diagonal else np.stack([from_triangle(row, d) for row in second])
    outer = means**2 if diagonal else means[:, :, None] * means[:, None, :]
    scatter = square - outer * n.reshape(-1, *(1,) * (outer.ndim - 1))
    common = shrunk(scatter.sum(0) / n.sum(), shrinkage)
    if _trace(common) <= ROUNDING * abs(square).sum() / n.sum():
        common = np.ones(d) if diagonal else np.eye(d)
    spread = [_trace(scatter[c]) > ROUNDING * max(_trace(square[c]), 1e-300) for c in range(C)]
    S = [shrunk(scatter[c] / n[c], shrinkage) if n[c] and spread[c] else common for c in range(C)]
    return dict(mean=means, whitening=np.stack([whitening(s) for s in S]), prior=_log(n))


def within_gaussian(moments: np.ndarray, C: int, d: int, shrinkage: float) -> Head:
    """Linear discriminant analysis, GH-OFL's and the label job's `gaussian`: one covariance within all classes, shrunk."""
    n, means, S = statistics(moments, C, d)
    return dict(mean=means, whitening=whitening(shrunk(S, shrinkage))[None], prior=_log(n))


def shared_gaussian(V: np.ndarray, moments: np.ndarray, C: int, shrinkage: float) -> np.ndarray:
    """P(class | row) by linear discriminant analysis from pooled moments."""
    return probabilities(V, within_gaussian(moments, C, V.shape[1], shrinkage))


def probabilities(V: np.ndarray, head: Head) -> np.ndarray:
    """P(class | row) for rows V (n × d)."""
    return softmax(scores(V, head), axis=1)


def scores(V: np.ndarray, head: Head) -> np.ndarray:
    """log P(class | row) up to what all classes share; −∞ for a class without labels."""
    if "weight" in head:
        return V @ head["weight"].T + head["bias"]
    mean, T, prior = head["mean"], head["whitening"], head["prior"]
    if len(T) == 1:  # one covariance: the row's own length drops out, and with it the rounding
        share = np.where(np.isfinite(prior), np.exp(prior - prior.max()), 0.0)
        centre = share @ mean / share.sum()
        X, M = (_whitened(rows - centre, T[0]) for rows in (V, mean))
        return X @ M.T - 0.5 * (M * M).sum(1) + prior
    squared = [(_whitened(V - mean[c], T[c]) ** 2).sum(1) for c in range(len(mean))]
    return np.stack([_log_det(T[c]) - 0.5 * squared[c] + prior[c] for c in range(len(mean))], 1)


def _whitened(rows: np.ndarray, T: np.ndarray) -> np.ndarray:
    return rows * T if T.ndim == 1 else rows @ T


def _log_det(T: np.ndarray) -> float:
    return float(np.log(np.abs(T)).sum() if T.ndim == 1 else np.linalg.slogdet(T)[1])


def _solved(gram: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The weights of a regression, a row for each class."""
    return (np.linalg.pinv(gram, hermitian=True) @ sums.T).T


def _linear(n: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> Head:
    return dict(weight=weight, bias=np.where(n > 0, 0.0 if bias is None else bias, -np.inf))


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    return rows / _lengths(rows)


def _lengths(rows: np.ndarray) -> np.ndarray:
    """Of each row, as a column; 1 for a row of zeros."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(length > 0, length, 1.0)


def _log(n: np.ndarray) -> np.ndarray:
    return np.log(n, out=np.full(len(n), -np.inf), where=n > 0)
