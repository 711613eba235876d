"""Nearest neighbours, lines 6 and 7 of XCLP's Algorithm 1: by Hamming distance or by cosine, all at once or block by block.

Exact: every pair is compared, in tiles, and nothing of size n × n is ever held. For more points there is `approximate`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.threads import in_threads, thread_count
from grapevine.crypto import bits as packed
from grapevine.graph.blocks import BLOCK
from grapevine.graph.hashing import finite

FAR = np.iinfo(np.int64).max  # an empty place in a list of neighbours
STEP = 2.0**-29  # the unit in which cosines are compared, finer than the 1e-8 to which they are known
SCALE = 2.0**-52 / STEP  # from products of `directions` to codes of cosines


def cosine(H: np.ndarray, L: int) -> np.ndarray:
    """Line 6: the cosine that a Hamming distance of L bits estimates, cos(πH/L)."""
    return np.cos(np.asarray(H, np.float64) * (math.pi / L))


def nearest(
    bits: np.ndarray, k: int, queries: np.ndarray | None = None, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of packed `bits` at least Hamming distance from each row (itself excluded), or from each of `queries`.

    Exact. Returns index and distance, int32 of shape (rows, k), nearest first, ties by index; −1 where there are fewer.
    """
    B = packed.words(bits)
    A = B if queries is None else packed.words(queries)
    if A.shape[1] != B.shape[1]:
        raise Mistake("The queries and the points have different numbers of bits: hash both with the same planes.")
    keys = _search(lambda i, j: packed.differences(A[i], B[j]), (len(A), len(B)), k, queries is None, threads)
    return lists_of_keys(keys)


def nearest_cosine(
    V: np.ndarray, k: int, queries: np.ndarray | None = None, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of V of largest cosine with each row (itself excluded), or with each of `queries`.

    Over all pairs, to about 1e-8; equal rows are exact ties, broken by index. Returns index (int32) and cosine (float64),
    largest first; −1 and 0 where there are fewer. A row of zeros has cosine 0 with everybody.
    """
    from grapevine.graph import kernels  # in functions, so that importing this module does not load numba

    B = directions(V)
    A = B if queries is None else directions(queries)
    if A.shape[1] != B.shape[1]:
        raise Mistake(f"The queries have {A.shape[1]} features but the points {B.shape[1]}: give the same columns.")

    def block(i: slice, j: slice) -> np.ndarray:
        out = np.empty((i.stop - i.start, j.stop - j.start), np.int32)
        kernels.cosine_codes(A[i] @ B[j].T, SCALE, out)
        return out

    return cosines_of_keys(_search(block, (len(A), len(B)), k, queries is None, threads))


def cosines_of_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index and cosine from sorted keys of codes; −1 and 0 where there was nobody."""
    index, code = lists_of_keys(keys)
    return index, np.where(index < 0, 0.0, np.clip(code * -STEP, -1.0, 1.0))


class KBest:
    """The k nearest neighbours of each of n rows, from blocks of H that come one at a time, in any order.

    The server never holds all of H. A block that never comes (a pair of parties lost) leaves its pairs out; a block that
    comes twice counts once.
    """

    def __init__(self, n: int, k: int):
        self.n, self._keys = n, _keys(n, k)

    def add(self, rows: np.ndarray, cols: np.ndarray, block: np.ndarray) -> None:
        """Distances `block[a, b]` between points rows[a] and cols[b]; counts for both. A point is not its own neighbour."""
        from grapevine.graph import kernels

        rows, cols = (np.asarray(ids, np.int64).reshape(-1) for ids in (rows, cols))
        block = np.asarray(block)
        if block.shape != (rows.size, cols.size):
            raise Mistake(f"A block of shape {block.shape} does not fit {rows.size} rows and {cols.size} columns.")
        ids = np.concatenate([rows, cols])
        if ids.size and (ids.min() < 0 or ids.max() >= self.n):
            raise Mistake(f"A block names point {ids.max() if ids.min() >= 0 else ids.min()}, but there are {self.n}.")
        if block.size and (block.min() < 0 or block.max() >= 2**31):
            raise Mistake(f"A block holds the distance {block.min()}: distances are not negative and below 2**31.")
        kernels.offer(np.ascontiguousarray(block, np.int32), rows, cols, True, self._keys)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Index and distance, as `nearest` gives them."""
        return lists_of_keys(self._keys)


def _keys(rows: int, k: int) -> np.ndarray:
    if k < 1:
        raise Mistake(f"The number of neighbours is {k}: give 1 or more.")
    if rows >= 2**31:
        raise Mistake(f"{rows} points are too many: fewer than {2**31} can be numbered.")
    return np.full((rows, k), FAR, np.int64)


def lists_of_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index and distance from sorted keys; −1 where there was nobody."""
    empty = keys == FAR
    index = np.where(empty, -1, keys & 0xFFFFFFFF).astype(np.int32)
    return index, np.where(empty, -1, keys >> 32).astype(np.int32)


def _search(
    block: Callable[[slice, slice], np.ndarray], shape: tuple[int, int], k: int, square: bool, threads: int | None
) -> np.ndarray:
    """The k best keys of each row over all blocks. If `square`, rows and columns are the same points: only blocks on and
    above the diagonal are computed, and each is offered both ways. Every thread has lists of its own, merged at the end:
    the k best by (distance, index) are unique, so who saw which block does not matter."""
    from grapevine.graph import kernels

    keys = _keys(shape[0], k)
    starts = (range(0, n, BLOCK) for n in shape)
    tasks = [(i, j) for i, j in itertools.product(*starts) if j >= i or not square]
    threads = thread_count(threads, len(tasks))
    best = [keys] + [keys.copy() for _ in range(threads - 1)]

    def work(thread: int, task: tuple[int, int]) -> None:
        i, j = (slice(s, min(s + BLOCK, n)) for s, n in zip(task, shape))
        kernels.offer(block(i, j), np.arange(i.start, i.stop), np.arange(j.start, j.stop), square, best[thread])

    in_threads(work, tasks, threads)
    for other in best[1:]:
        for at in range(0, len(keys), 1 << 16):
            some = slice(at, at + (1 << 16))
            keys[some] = np.sort(np.concatenate([keys[some], other[some]], axis=1), axis=1)[:, :k]
    return keys


def directions(V: np.ndarray) -> np.ndarray:
    """Rows scaled to length 2²⁶ and rounded to integers: their products are at most 2⁵², and float64 adds them exactly."""
    V = finite(V)
    out = np.empty(V.shape, np.float64)
    for i in range(0, len(V), 4096):
        rows = V[i : i + 4096].astype(np.float64)
        _, exponent = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
        rows = np.ldexp(rows, -exponent)  # so that squares neither overflow nor vanish
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        out[i : i + 4096] = np.rint(rows * (2.0**26 / np.where(length > 0, length, 1.0))[:, None])
    return out
