"""The neighbour graph and label propagation over it: lines 7 to 10, 15 and 16 of XCLP's Algorithm 1, in its words.

Similarities A, graph W, influence S = (I − αW)⁻¹, scores Z = S·Y. The inverse is never formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import entr

from grapevine.core.errors import Mistake
from grapevine.core.threads import in_threads, thread_count
from grapevine.graph.blocks import COLUMNS

PRESETS = ("paper", "code")


# The graph: lines 7 to 9.
def graph(index: np.ndarray, similarity: np.ndarray, n: int | None = None, preset: str = "paper") -> sp.csr_array:
    """W = B + Bᵀ without diagonal, then D^−½ W D^−½, from each row's neighbours and its similarities with them.

    `index` −1 is nobody. Negative similarities are clipped at 0; the `code` preset cubes similarities. Points without edges have
    rows of zeros; points from len(index) to n have no list.
    """
    one_of("preset", preset, PRESETS)
    rows = len(index)
    n = rows if n is None else n
    weight = np.maximum(np.asarray(similarity, np.float64), 0.0)
    weight = weight**3 if preset == "code" else weight
    real = (index >= 0) & (weight != 0) & (index != np.arange(rows)[:, None])
    indptr = np.zeros(n + 1, np.int64)
    indptr[1 : rows + 1] = np.cumsum(real.sum(axis=1))
    indptr[rows + 1 :] = indptr[rows]
    return normalise(sp.csr_array((weight[real], index[real], indptr), shape=(n, n)))


def normalise(B: sp.csr_array) -> sp.csr_array:
    """Lines 8 and 9 for any sparse B of similarities: W = B + Bᵀ without diagonal, then D^−½ W D^−½ with d_i = Σ_j W_ij."""
    W = sp.csr_array(B + B.T)
    W.setdiag(0.0)
    W.eliminate_zeros()
    W.sort_indices()
    degree = np.asarray(W.sum(axis=1)).reshape(-1)
    scale = np.zeros(len(degree))
    np.divide(1.0, np.sqrt(degree), out=scale, where=degree > 0)
    W.data *= np.repeat(scale, np.diff(W.indptr)) * scale[W.indices]
    return W


def one_of(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise Mistake(f"{name}={value!r} is not known: choose {' or '.join(map(repr, allowed))}.")


# Propagation: line 10, and Z = S·Y.
class Solution(NamedTuple):
    """Z, the largest relative residual ‖y − (I − αW)z‖ / ‖y‖ of its columns, and the iterations it took."""

    Z: np.ndarray
    residual: float
    iterations: int


def check_alpha(alpha: float) -> None:
    if not 0.0 <= alpha < 1.0:
        raise Mistake(f"alpha={alpha} is outside [0, 1): labels would spread without end or backwards; the paper uses 0.99.")


def solve(
    W: sp.csr_array, Y: np.ndarray, alpha: float, tol: float = 1e-6, max_iter: int | None = None, threads: int | None = None
) -> Solution:
    """Z with (I − αW) Z = Y by conjugate gradients, in blocks of columns, each column to a relative residual of `tol`.

    The default `max_iter` is twice what theory needs at worst: eigenvalues of I − αW lie in [1 − α, 1 + α]. If the
    residual, computed again from Z at the end, is above `tol`, this raises and says what was reached.
    """
    from grapevine.graph import kernels

    check_alpha(alpha)
    if not tol > 0:
        raise Mistake(f"tol={tol} cannot be reached: give a positive relative residual such as 1e-6.")
    Y = np.asarray(Y, np.float64)
    if max_iter is None:
        condition = math.sqrt((1 + alpha) / (1 - alpha))
        max_iter = math.ceil(condition * max(0.0, math.log(2 * condition / tol))) + 2
    n, C = Y.shape
    W = sp.csr_array(W)
    edges = W.indptr.astype(np.int64), W.indices.astype(np.int32), W.data.astype(np.float64)
    Z = np.zeros((n, C))
    starts = range(0, C, COLUMNS)
    iterations = dict.fromkeys(starts, 0)

    def work(_: int, c: int) -> None:
        some = slice(c, min(c + COLUMNS, C))
        y, z = np.zeros((n, COLUMNS)), np.zeros((n, COLUMNS))
        y[:, : some.stop - c] = Y[:, some]
        iterations[c] = kernels.conjugate_gradients(edges, alpha, y, tol, max_iter, z)
        Z[:, some] = z[:, : some.stop - c]

    in_threads(work, starts, thread_count(threads, len(starts)))
    most = max(iterations.values(), default=0)
    residual = _residual(W, Y, Z, alpha)
    # The recursion's residual, which stops the loop, and the true one may part by rounding: hence the little room.
    if not residual <= 1.1 * tol + 1e-15:
        raise Mistake(
            f"Propagation reached a relative residual of {residual:.1e} after {most} iterations, "
            f"above tol={tol:g}: raise max_iter={max_iter} or tol."
        )
    return Solution(Z, residual, most)


def _residual(W: sp.csr_array, Y: np.ndarray, Z: np.ndarray, alpha: float) -> float:
    rest = np.linalg.norm(Y - Z + alpha * (W @ Z), axis=0)
    size = np.linalg.norm(Y, axis=0)
    return float(np.max(rest / np.where(size > 0, size, 1.0), initial=0.0))


def influence_columns(
    W: sp.csr_array, columns: np.ndarray, alpha: float, tol: float = 1e-6, chunk: int = 64, threads: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Line 10 and the server's side of line 12: these columns of S = (I − αW)⁻¹, `chunk` at a time as (column ids, n × chunk).

    Each chunk is a `solve`: the inverse is never formed, memory is about 4·n·chunk float64, and at 2,500 points even a
    thousand columns take no longer than a dense Cholesky factor would.
    """
    check_alpha(alpha)
    columns = np.asarray(columns, np.int64).reshape(-1)
    n = W.shape[0]
    if columns.size and (columns.min() < 0 or columns.max() >= n):
        worst = columns.min() if columns.min() < 0 else columns.max()
        raise Mistake(f"Column {worst} was asked for, but the graph has {n} points, numbered from 0.")
    for start in range(0, columns.size, chunk):
        some = columns[start : start + chunk]
        Y = np.zeros((n, some.size))
        Y[some, np.arange(some.size)] = 1.0
        yield some, solve(W, Y, alpha, tol, threads=threads).Z


# Labels: lines 15 and 16.
def label_matrix(y: np.ndarray, classes: int, preset: str = "paper") -> np.ndarray:
    """Y: one-hot rows for labels 0 … classes − 1, rows of zeros for −1. The `code` preset divides columns by their counts."""
    one_of("preset", preset, PRESETS)
    y = np.asarray(y)
    Y = np.zeros((len(y), classes))
    known = np.flatnonzero(y >= 0)
    Y[known, y[known]] = 1.0
    return Y / np.maximum(Y.sum(axis=0), 1.0) if preset == "code" else Y


def class_mass(Z: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Class-mass normalisation (Zhu, Ghahramani and Lafferty 2003): columns of Z scaled so that their sums are as `prior`."""
    Z = np.maximum(Z, 0.0)
    mass = Z.sum(axis=0)
    return Z * np.divide(prior, mass, out=np.zeros(len(mass)), where=mass > 0)


def distributions(Z: np.ndarray, floor: float | None = None) -> np.ndarray:
    """Rows of Z, negatives set to 0, divided by their sums; zeros where no label reaches.

    That is: where no entry is above `floor`, by default 1e-9 of the largest of Z, which the solver's error would drown.
    """
    Z = np.asarray(Z, np.float64)
    if not np.isfinite(Z).all():
        raise Mistake("Z holds a value that is not finite: the sums or the graph behind it are wrong, so compute it again.")
    Z = np.maximum(Z, 0.0)
    top = Z.max(axis=1, initial=0.0)
    floor = 1e-9 * top.max(initial=0.0) if floor is None else floor
    # Divided by the row's largest first: the sum of tiny values could vanish, that of these is at least 1.
    scaled = np.divide(Z, top[:, None], out=np.zeros_like(Z), where=(top > floor)[:, None])
    return np.divide(scaled, scaled.sum(axis=1, keepdims=True), out=scaled, where=(top > floor)[:, None])


def labels_and_confidence(Z: np.ndarray, floor: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Lines 15 and 16: the class of the largest score, and 1 − entropy/log C of the normalised scores (1 if C is 1).

    A row that no label reaches (see `distributions`) has label −1 and confidence 0: it is never given a class.
    """
    P = distributions(Z, floor)
    reached = P.any(axis=1)
    if not P.shape[1]:
        return np.full(len(P), -1), np.zeros(len(P))
    labels = np.where(reached, P.argmax(axis=1), -1)
    spread = entr(P).sum(axis=1) / math.log(P.shape[1]) if P.shape[1] > 1 else np.zeros(len(P))
    return labels, np.where(reached, np.clip(1.0 - spread, 0.0, 1.0), 0.0)
