"""The graph engine: hashing, nearest neighbours, the neighbour graph, label propagation over it, `LabelSpreading`.

The words are those of XCLP (Scott, Yeo and Lampert 2022, Algorithm 1), whose lines 3, 4, 6 to 10, 15 and 16 live here:
features V, hyperplanes Π, bits B, Hamming distances H, similarities A, graph W, influence S = (I − αW)⁻¹, scores Z = S·Y.

Two things hold throughout. Results do not depend on the number of threads, on the order of blocks, or on the BLAS: matrix
products are taken of values rounded to integers small enough for float64 to add them exactly. And nothing of size n × n is
ever held, except by `solve_dense`, the oracle for small n.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.special import entr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from grapevine.core.errors import Mistake
from grapevine.crypto.stream import Stream, context, fresh_secret

BLOCK = 512  # rows of a tile of H or of cosines: two float64 tiles of this size fit the caches
COLUMNS = 8  # right-hand sides that one conjugate-gradient run carries: 8 float64 are one cache line
FAR = np.iinfo(np.int64).max  # an empty place in a list of neighbours
STEP = 2.0**-29  # the unit in which cosines are compared, finer than the 1e-8 to which they are known
PRESETS = ("paper", "code")

Progress = Callable[[int, int], None]


def usable_threads(threads: int | None = None) -> int:
    """The number of threads to use: as asked, else the cores this process may use, at most 8."""
    if threads is not None:
        return max(1, int(threads))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


@cache
def _blas():
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


_blas_lock, _blas_users = threading.Lock(), []


@contextmanager
def _one_blas_thread():
    """BLAS on one thread while our own threads run, restored by the last to leave. For speed: results are exact anyway."""
    with _blas_lock:
        if not _blas_users:
            _blas_users.append(_blas().limit(limits=1))
        else:
            _blas_users.append(None)
    try:
        yield
    finally:
        with _blas_lock:
            if len(_blas_users) > 1:
                _blas_users.pop()
            else:
                _blas_users.pop().restore_original_limits()


def _in_threads(work: Callable[[int], None], threads: int) -> None:
    """Run work(0) … work(threads − 1) at once; the first exception is raised here."""
    with _one_blas_thread():
        if threads == 1:
            work(0)
            return
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, t) for t in range(threads)]:
                done.result()


def _finite(V: np.ndarray) -> np.ndarray:
    V = np.asarray(V)
    if V.ndim != 2:
        raise Mistake(f"Features must be a table of rows and columns, but have shape {V.shape}: give one row per point.")
    if V.size and not np.isfinite(V).all():
        row, column = np.argwhere(~np.isfinite(V))[0]
        raise Mistake(f"The feature in row {row}, column {column} is {V[row, column]}: give finite numbers only.")
    return V


# Hashing: lines 3 and 4.
def hyperplanes(secret: bytes, bits: int, d: int, info: bytes, tight_frame: bool = False) -> np.ndarray:
    """Π, `bits` × `d` float32, the same for all who hold the secret.

    Rows are i.i.d. standard normal (the paper). With `tight_frame` (the authors' code) columns are orthonormal if there
    are more bits than features, else rows are; its rows are then spread more evenly than independent ones.
    """
    if bits < 1 or d < 1:
        raise Mistake(f"Hashing to {bits} bits from {d} features is not possible: both must be at least 1.")
    normal = Stream(secret, info).normal((bits, d))
    if tight_frame:
        wide = bits < d
        Q, R = np.linalg.qr(normal.T if wide else normal)
        Q = Q * np.where(np.diag(R) < 0, -1.0, 1.0)  # the sign QR leaves open
        normal = (Q.T if wide else Q) * math.sqrt(max(bits, d))
    return normal.astype(np.float32)


class Grid(NamedTuple):
    """Hyperplanes ready for hashing many tables of rows."""

    U: np.ndarray  # features × bits, whole numbers
    room: int  # bits that a row's numbers may have


def on_grid(planes: np.ndarray) -> Grid:
    U = np.rint(planes.astype(np.float64) * 2.0**20)
    room = 52 - math.ceil(math.log2(max(2.0, np.abs(U).sum(axis=1).max())))
    return Grid(np.ascontiguousarray(U.T), room)


def hash_bits(V: np.ndarray, planes: np.ndarray | Grid, threads: int | None = None) -> np.ndarray:
    """Packed bits, uint8 of shape (n, ⌈L/8⌉): bit l of row i is 1 where ⟨v_i, u_l⟩ ≥ 0. Padding bits are 0.

    A row's bits depend on that row and the planes alone, not on other rows, threads or machine: both factors are rounded
    to integers (planes to 2⁻²⁰, rows by a power of two) whose products float64 adds without error. A row of zeros hashes
    to ones, as ⟨v, u⟩ = 0: callers set such rows apart, since they have no direction.
    """
    V = _finite(V)
    U, room = planes if isinstance(planes, Grid) else on_grid(planes)
    d, L = U.shape
    if V.shape[1] != d:
        raise Mistake(f"The rows have {V.shape[1]} features but the hyperplanes {d}: hash with planes of the same width.")
    out = np.empty((len(V), (L + 7) // 8), np.uint8)
    starts = iter(range(0, len(V), BLOCK))
    lock = threading.Lock()

    def work(_: int) -> None:
        while True:
            with lock:
                i = next(starts, None)
            if i is None:
                return
            rows = V[i : i + BLOCK].astype(np.float64)
            _, exponent = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
            rows = np.rint(np.ldexp(rows, room - exponent))
            out[i : i + BLOCK] = np.packbits(rows @ U >= 0, axis=1)

    _in_threads(work, min(usable_threads(threads), max(1, math.ceil(len(V) / BLOCK))))
    return out


def unpack(bits: np.ndarray, L: int) -> np.ndarray:
    """The L bits of each packed row, uint8 of shape (n, L)."""
    return np.unpackbits(bits, axis=1, count=L)


def _words(bits: np.ndarray) -> np.ndarray:
    """Packed rows as 64-bit words, with zeros behind."""
    if bits.dtype != np.uint8 or bits.ndim != 2:
        raise Mistake(f"Packed bits must be a uint8 table, not {bits.dtype} of shape {bits.shape}: use hash_bits.")
    out = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    out[:, : bits.shape[1]] = bits
    return out.view(np.uint64)


def hamming(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """H, int32: the number of bits in which each packed row of A differs from each packed row of B."""
    if A.shape[1] != B.shape[1]:
        raise Mistake(f"Rows of {A.shape[1]} and of {B.shape[1]} bytes cannot be compared: hash both with the same planes.")
    from grapevine.graph import kernels  # in functions, so that importing this module does not load numba

    out = np.empty((len(A), len(B)), np.int32)
    kernels.hamming(_words(A), _words(B), out)
    return out


def cosine(H: np.ndarray, L: int) -> np.ndarray:
    """Line 6: the cosine that a Hamming distance of L bits estimates, cos(πH/L)."""
    return np.cos(np.asarray(H, np.float64) * (math.pi / L))


# Nearest neighbours: line 7.
def _keys(rows: int, k: int) -> np.ndarray:
    if k < 1:
        raise Mistake(f"The number of neighbours is {k}: give 1 or more.")
    if rows >= 2**31:
        raise Mistake(f"{rows} points are too many: fewer than {2**31} can be numbered.")
    return np.full((rows, k), FAR, np.int64)


def _lists(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index and distance from sorted keys; −1 where there was nobody."""
    empty = keys == FAR
    index = np.where(empty, -1, keys & 0xFFFFFFFF).astype(np.int32)
    return index, np.where(empty, -1, keys >> 32).astype(np.int32)


def _search(
    block: Callable[[slice, slice], np.ndarray], rows: int, cols: int, k: int, square: bool, threads: int | None, progress
) -> np.ndarray:
    """The k best keys of each row over all blocks. If `square`, rows and columns are the same points: only blocks on and
    above the diagonal are computed, and each is offered both ways. Every thread has lists of its own, merged at the end:
    the k best by (distance, index) are unique, so who saw which block does not matter."""
    from grapevine.graph import kernels

    keys = _keys(rows, k)
    starts = range(0, rows, BLOCK), range(0, cols, BLOCK)
    tasks = [(i, j) for i, j in itertools.product(*starts) if j >= i or not square]
    queue, lock = iter(enumerate(tasks)), threading.Lock()
    threads = max(1, min(usable_threads(threads), len(tasks)))
    best = [keys] + [keys.copy() for _ in range(threads - 1)]

    def work(t: int) -> None:
        while True:
            with lock:
                number, task = next(queue, (0, None))
                if task and progress:
                    progress(number, len(tasks))
            if task is None:
                return
            i, j = (slice(s, min(s + BLOCK, n)) for s, n in zip(task, (rows, cols)))
            kernels.offer(block(i, j), np.arange(i.start, i.stop), np.arange(j.start, j.stop), square, best[t])

    _in_threads(work, threads)
    if progress:
        progress(len(tasks), len(tasks))
    for other in best[1:]:
        for i in range(0, rows, 1 << 16):
            both = np.concatenate([keys[i : i + (1 << 16)], other[i : i + (1 << 16)]], axis=1)
            keys[i : i + (1 << 16)] = np.sort(both, axis=1)[:, :k]
    return keys


def nearest(
    bits: np.ndarray, k: int, queries: np.ndarray | None = None, threads: int | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of packed `bits` at least Hamming distance from each row (itself excluded), or from each of `queries`.

    Exact. Returns index and distance, int32 of shape (rows, k), nearest first, ties by index; −1 where there are fewer.
    """
    from grapevine.graph import kernels

    B = _words(bits)
    A = B if queries is None else _words(queries)
    if A.shape[1] != B.shape[1]:
        raise Mistake("The queries have other bits than the points: hash both with the same planes.")

    def block(i: slice, j: slice) -> np.ndarray:
        out = np.empty((i.stop - i.start, j.stop - j.start), np.int32)
        kernels.hamming(A[i], B[j], out)
        return out

    return _lists(_search(block, len(A), len(B), k, queries is None, threads, progress))


def _directions(V: np.ndarray) -> np.ndarray:
    """Rows scaled to length 2²⁶ and rounded to integers: their products are at most 2⁵², and float64 adds them exactly."""
    V = _finite(V)
    out = np.empty(V.shape, np.float64)
    for i in range(0, len(V), 4096):
        rows = V[i : i + 4096].astype(np.float64)
        _, exponent = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
        rows = np.ldexp(rows, -exponent)  # so that squares neither overflow nor vanish
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        out[i : i + 4096] = np.rint(rows * (2.0**26 / np.where(length > 0, length, 1.0))[:, None])
    return out


def nearest_cosine(
    V: np.ndarray, k: int, queries: np.ndarray | None = None, threads: int | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of V of largest cosine with each row (itself excluded), or with each of `queries`.

    Over all pairs, to about 1e-8; equal rows are exact ties, broken by index. Returns index (int32) and cosine (float64),
    largest first; −1 and 0 where there are fewer. A row of zeros has cosine 0 with everybody.
    """
    from grapevine.graph import kernels

    B = _directions(V)
    A = B if queries is None else _directions(queries)
    if A.shape[1] != B.shape[1]:
        raise Mistake(f"The queries have {A.shape[1]} features but the points {B.shape[1]}: give the same columns.")

    def block(i: slice, j: slice) -> np.ndarray:
        out = np.empty((i.stop - i.start, j.stop - j.start), np.int32)
        kernels.cosine_codes(A[i] @ B[j].T, 2.0**-52 / STEP, out)
        return out

    index, code = _lists(_search(block, len(A), len(B), k, queries is None, threads, progress))
    return index, np.where(index < 0, 0.0, np.clip(code * -STEP, -1.0, 1.0))


class KBest:
    """The k nearest neighbours of each of n rows, from blocks of H that come one at a time, in any order.

    The server never holds all of H. A block that never comes (a pair of parties lost) leaves its pairs out; a block that
    comes twice counts once. Up to `spare` more than k are kept (k more by default), so that `remove` can forget rows that
    were already counted; `short` names the rows for which that was not enough.
    """

    def __init__(self, n: int, k: int, spare: int | None = None):
        self.n, self.k = n, k
        self._keys = _keys(n, k + (k if spare is None else spare))
        self._gone = np.zeros(n, bool)
        self._lost = np.full(n, FAR)  # above this key, neighbours of the row may have been forgotten

    def add(self, rows: np.ndarray, cols: np.ndarray, block: np.ndarray) -> None:
        """Distances `block[a, b]` between points rows[a] and cols[b]; counts for both. A point is not its own neighbour."""
        from grapevine.graph import kernels

        rows, cols = (np.asarray(ids, np.int64).reshape(-1) for ids in (rows, cols))
        block = np.asarray(block)
        if block.shape != (rows.size, cols.size):
            raise Mistake(f"A block of shape {block.shape} does not fit {rows.size} rows and {cols.size} columns.")
        ids = np.concatenate([rows, cols])
        if ids.size and (ids.min() < 0 or ids.max() >= self.n):
            raise Mistake(f"A block speaks of point {ids.max() if ids.min() >= 0 else ids.min()}, but there are {self.n}.")
        if block.size and (block.min() < 0 or block.max() >= 2**31):
            raise Mistake(f"A block holds the distance {block.min()}: distances are not negative and below 2**31.")
        block, rows = block[~self._gone[rows]], rows[~self._gone[rows]]
        block, cols = block[:, ~self._gone[cols]], cols[~self._gone[cols]]
        kernels.offer(np.ascontiguousarray(block, np.int32), rows, cols, True, self._keys)

    def remove(self, rows: np.ndarray) -> None:
        """Forget these points, as if they had never been there: they keep no neighbours and are nobody's."""
        self._gone[np.asarray(rows, np.int64)] = True
        lost = self._keys[:, -1]  # of a full list everything above its last may have been dropped
        self._lost = np.minimum(self._lost, lost)
        there = self._keys != FAR
        gone = there & self._gone[np.where(there, self._keys & 0xFFFFFFFF, 0)]
        self._keys[gone] = FAR
        self._keys[self._gone] = FAR
        self._keys.sort(axis=1)

    @property
    def short(self) -> np.ndarray:
        """Rows whose k nearest are no longer certain after `remove`: a forgotten point might belong there. They need their
        blocks again in a new KBest, or more `spare` from the start."""
        return np.flatnonzero((self._keys[:, self.k - 1] > self._lost) & ~self._gone)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Index and distance, as `nearest` gives them."""
        return _lists(self._keys[:, : self.k])


# The graph: lines 7 to 9.
def graph(
    index: np.ndarray, similarity: np.ndarray, n: int | None = None, preset: str = "paper", negative: str = "clip"
) -> sp.csr_array:
    """W = B + Bᵀ without diagonal, then D^−½ W D^−½, from each row's neighbours and its similarities with them.

    `index` −1 is nobody. Negative similarities are clipped at 0, or kept with `negative="keep"` and d_i = Σ|W_ij|.
    The `code` preset cubes similarities. Points without edges have rows of zeros; points from len(index) to n have no list.
    """
    _check("preset", preset, PRESETS)
    _check("negative", negative, ("clip", "keep"))
    rows, k = index.shape
    n = rows if n is None else n
    weight = np.asarray(similarity, np.float64)
    weight = weight**3 if preset == "code" else weight
    weight = np.maximum(weight, 0.0) if negative == "clip" else weight
    real = (index >= 0) & (weight != 0) & (index != np.arange(rows)[:, None])
    indptr = np.zeros(n + 1, np.int64)
    indptr[1 : rows + 1] = np.cumsum(real.sum(axis=1))
    indptr[rows + 1 :] = indptr[rows]
    return normalise(sp.csr_array((weight[real], index[real], indptr), shape=(n, n)))


def normalise(B: sp.csr_array) -> sp.csr_array:
    """Lines 8 and 9 for any sparse B of similarities: W = B + Bᵀ without diagonal, then D^−½ W D^−½ with d_i = Σ|W_ij|."""
    W = sp.csr_array(B + B.T)
    W.setdiag(0.0)
    W.eliminate_zeros()
    W.sort_indices()
    degree = np.asarray(abs(W).sum(axis=1)).reshape(-1)
    scale = np.zeros(len(degree))
    np.divide(1.0, np.sqrt(degree), out=scale, where=degree > 0)
    W.data *= np.repeat(scale, np.diff(W.indptr)) * scale[W.indices]
    return W


def _check(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise Mistake(f"{name}={value!r} is not known: choose {' or '.join(map(repr, allowed))}.")


# Propagation: line 10, and Z = S·Y.
class Solution(NamedTuple):
    """Z, the largest relative residual ‖y − (I − αW)z‖ / ‖y‖ of its columns, and the iterations it took."""

    Z: np.ndarray
    residual: float
    iterations: int


def _check_alpha(alpha: float) -> None:
    if not 0.0 <= alpha < 1.0:
        raise Mistake(f"alpha={alpha} is outside [0, 1): labels would spread without end or backwards; the paper takes 0.99.")


def solve(
    W: sp.csr_array, Y: np.ndarray, alpha: float, tol: float = 1e-6, max_iter: int | None = None, threads: int | None = None
) -> Solution:
    """Z with (I − αW) Z = Y by conjugate gradients, in blocks of columns, each column to a relative residual of `tol`.

    The default `max_iter` is twice what theory needs at worst: eigenvalues of I − αW lie in [1 − α, 1 + α]. If the
    residual, computed anew from Z at the end, is above `tol`, this raises and says what was reached.
    """
    from grapevine.graph import kernels

    _check_alpha(alpha)
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
    starts = list(range(0, C, COLUMNS))
    iterations = [0] * len(starts)
    lock, queue = threading.Lock(), iter(enumerate(starts))

    def work(_: int) -> None:
        while True:
            with lock:
                number, c = next(queue, (0, None))
            if c is None:
                return
            some = slice(c, min(c + COLUMNS, C))
            y, z = np.zeros((n, COLUMNS)), np.zeros((n, COLUMNS))
            y[:, : some.stop - c] = Y[:, some]
            iterations[number] = kernels.conjugate_gradients(*edges, alpha, y, tol, max_iter, z)
            Z[:, some] = z[:, : some.stop - c]

    _in_threads(work, max(1, min(usable_threads(threads), len(starts))))
    residual = _residual(W, Y, Z, alpha)
    # The recursion's residual, which stops the loop, and the true one may part by rounding: hence the little room.
    if not residual <= 1.1 * tol + 1e-15:
        raise Mistake(
            f"Propagation reached a relative residual of {residual:.1e} after {max(iterations)} iterations, "
            f"above tol={tol:g}: raise max_iter={max_iter} or tol."
        )
    return Solution(Z, residual, max(iterations, default=0))


def _residual(W: sp.csr_array, Y: np.ndarray, Z: np.ndarray, alpha: float) -> float:
    rest = np.linalg.norm(Y - Z + alpha * (W @ Z), axis=0)
    size = np.linalg.norm(Y, axis=0)
    return float(np.max(rest / np.where(size > 0, size, 1.0), initial=0.0))


def solve_dense(W: sp.csr_array, Y: np.ndarray, alpha: float) -> np.ndarray:
    """The same Z in closed form, by a dense Cholesky factor: the oracle for small n."""
    _check_alpha(alpha)
    A = np.eye(W.shape[0]) - alpha * W.toarray()
    return scipy.linalg.solve(A, np.asarray(Y, np.float64), assume_a="pos")


def influence_columns(
    W: sp.csr_array, columns: np.ndarray, alpha: float, tol: float = 1e-6, chunk: int = 64, threads: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Line 10 and the server's side of line 12: these columns of S = (I − αW)⁻¹, `chunk` at a time as (column ids, n × chunk).

    Each chunk is a `solve`: the inverse is never formed, memory is about 4·n·chunk float64, and at 2,500 points even a
    thousand columns take no longer than a dense Cholesky factor would.
    """
    _check_alpha(alpha)
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
    _check("preset", preset, PRESETS)
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
        raise Mistake("Z holds a value that is not finite: the sums or the graph it came from are broken, compute it anew.")
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
    max_memory_mb : refuse in advance what would need more than this; see `memory_mb`. None: no limit.
    verbose : say on stderr what is going on.
    random_state : for "hamming"; None draws the hyperplanes from the operating system's generator.
    threads : at most so many; None: the cores there are, at most 8. Results do not depend on it.

    Unlabelled in `y`: −1 in an array of numbers or objects; in an array of strings "-1", which is what numpy makes of −1
    there, or "". (scikit-learn takes −1 only.)

    Attributes
    ----------
    classes_, X_, transduction_ (label of each point by propagation, the given ones too), label_distributions_,
    confidence_ (1 − entropy/log C), graph_ (normalised W), n_iter_, residual_, n_features_in_.
    """

    def __init__(
        self,
        n_neighbors=10,
        *,
        alpha=0.99,
        affinity="cosine",
        bits=4096,
        class_mass=False,
        preset="paper",
        tol=1e-6,
        max_memory_mb=None,
        verbose=False,
        random_state=None,
        threads=None,
    ):
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.affinity = affinity
        self.bits = bits
        self.class_mass = class_mass
        self.preset = preset
        self.tol = tol
        self.max_memory_mb = max_memory_mb
        self.verbose = verbose
        self.random_state = random_state
        self.threads = threads

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == "precomputed"
        tags.input_tags.sparse = self.affinity == "precomputed"
        return tags

    def memory_mb(self, n: int, d: int, classes: int = 10) -> float:
        """Megabytes that `fit` adds at its peak for n points of d features: an upper estimate, known before it starts.

        For "precomputed" d is the number of similarities per row.
        """
        edges = 2 * n * (d if self.affinity == "precomputed" else self.n_neighbors)
        threads = usable_threads(self.threads)
        rows = 8 * d if self.affinity == "cosine" else 2 * self.bits / 8 + 8 if self.affinity == "hamming" else 0
        blocks = threads * 8 * BLOCK * (BLOCK + (3 * self.bits + 2 * d if self.affinity == "hamming" else 0))
        planes = 24 * self.bits * d if self.affinity == "hamming" else 0
        search = n * rows + n * self.n_neighbors * 8 * (threads + 3) + blocks + planes
        assembly = edges * 12 * 5
        propagation = edges * 12 + 8 * n * (5 * classes + 6 * COLUMNS * threads)
        return (n * d * 8 + max(search, assembly, propagation)) / 2**20

    def fit(self, X, y):
        """Spread the labels in `y` over all rows of X."""
        _check("affinity", self.affinity, ("cosine", "hamming", "precomputed"))
        _check("preset", self.preset, PRESETS)
        _check_alpha(self.alpha)
        X, y = validate_data(self, X, y, **self._accepted())
        known = _is_labelled(y)
        if not known.any():
            raise Mistake(f"None of the {len(y)} rows has a label (all of y is -1): label at least one.")
        labels = y[known] if y.dtype.kind != "O" else np.array(y[known].tolist())
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._announce(X)
        y_codes = np.full(len(y), -1)
        y_codes[known] = codes
        self.X_ = X
        self.graph_ = self._graph(X)
        self._say(f"propagating over {self.graph_.nnz} edges")
        Y = label_matrix(y_codes, len(self.classes_), self.preset)
        Z, self.residual_, self.n_iter_ = solve(self.graph_, Y, self.alpha, self.tol, threads=self.threads)
        if self.class_mass:
            Z = class_mass(Z, np.bincount(codes) / len(codes))
        self._say(f"solved to {self.residual_:.1e} in {self.n_iter_} iterations")
        self.label_distributions_ = distributions(Z)
        labels, self.confidence_ = labels_and_confidence(Z)
        self.transduction_ = self._named(labels)
        return self

    def predict_proba(self, X):
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

    def predict(self, X):
        """The class of largest probability; −1 for a point without a similar labelled neighbour."""
        P = self.predict_proba(X)
        return self._named(np.where(P.any(axis=1), P.argmax(axis=1), -1))

    def _accepted(self) -> dict:
        sparse = ("csr", "csc", "coo") if self.affinity == "precomputed" else False
        return dict(accept_sparse=sparse, dtype=(np.float64, np.float32))

    def _announce(self, X) -> None:
        n, d = X.shape
        d = X.nnz // max(n, 1) if sp.issparse(X) else d
        need = self.memory_mb(n, d, len(self.classes_))
        self._say(f"{n} points need up to {need:.0f} MB")
        if self.max_memory_mb is not None and need > self.max_memory_mb:
            raise Mistake(
                f"{n} points of {d} features need up to {need:.0f} MB, above max_memory_mb={self.max_memory_mb}: "
                "raise it or give fewer rows."
            )

    def _graph(self, X) -> sp.csr_array:
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
            near, H = nearest(self._points, self.n_neighbors, threads=self.threads, progress=self._progress())
            near_similarity = cosine(H, self.bits)
        else:
            near, near_similarity = nearest_cosine(points, self.n_neighbors, threads=self.threads, progress=self._progress())
        if len(self._live) == len(X):
            return graph(near, near_similarity, preset=self.preset)
        index = np.full((len(X), self.n_neighbors), -1, np.int32)
        similarity = np.zeros(index.shape)
        index[self._live] = np.where(near >= 0, self._live[near], -1)
        similarity[self._live] = near_similarity
        return graph(index, similarity, preset=self.preset)

    def _nearest(self, X) -> tuple[np.ndarray, np.ndarray]:
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

    def _say(self, line: str) -> None:
        if self.verbose:
            print(f"LabelSpreading: {line}", file=sys.stderr, flush=True)

    def _progress(self) -> Progress | None:
        tenths = set()

        def progress(done: int, total: int) -> None:
            tenth = 10 * done // total
            if tenth and tenth not in tenths:
                tenths.add(tenth)
                self._say(f"neighbours {10 * tenth} %")

        return progress if self.verbose else None


def _is_labelled(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind in "US":
        return ~np.isin(y, np.array(["-1", ""], y.dtype))
    if y.dtype.kind == "O":
        return np.array([not (label == -1 or label == "-1" or label == "") for label in y], bool)
    return y != -1
