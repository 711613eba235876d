"""Neighbours among so many points that not every pair can be compared: an inverted file of bits (faiss, the `ann` extra).

Points are hashed to bits and sorted into lists, each around a centre; a query looks into the lists of its nearest centres. The
number of lists is found by trial: the true neighbours of a sample are found by comparing it with all points, and the number grows
until enough of these neighbours are found. A second sample then says what share is found, and that is the recall that users are
told.

By cosine, the bits only propose: several times as many candidates as neighbours are asked for, and their cosines are compared as
the exact search compares them. Whatever is found therefore has the same similarity as there. The lists, the distances and the
order of equals are whole numbers, and the few random choices have a fixed seed: the result depends on the points alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.threads import in_threads, thread_count
from grapevine.graph.hashing import hash_bits, hyperplanes
from grapevine.graph.neighbours import (
    FAR,
    SCALE,
    STEP,
    cosines_of_keys,
    directions,
    lists_of_keys,
    nearest,
    nearest_cosine,
)

EXACT = 100_000  # points up to which "auto" compares every pair
RECALL = 0.95  # what "auto" asks for beyond that
SAMPLE = 1000  # points by which the number of lists is chosen, and as many to estimate the recall
BITS = 512  # of the hashes that propose neighbours by cosine
CANDIDATES = 10  # proposed for each neighbour by cosine
SWEEPS = 4  # passes of the clustering
PER_CENTRE = 32  # points for each centre that the clustering looks at
QUERIES = 1024  # searched at a time

Search = Callable[[np.ndarray, int], np.ndarray]
"""Keys of some points' neighbours, looking into this many lists."""


class Found(NamedTuple):
    """Neighbours as `nearest` and `nearest_cosine` give them, what share of the true ones they are, and lists looked into."""

    near: np.ndarray
    measure: np.ndarray  # distances, or cosines
    recall: float
    probes: int


def wanted(recall: float | str, n: int) -> float:
    """The share of the true neighbours to look for among n points: 1 compares every pair, as is done with few points anyway."""
    if recall != "auto" and not (isinstance(recall, (int, float)) and 0 < recall <= 1):
        raise Mistake(f"recall={recall!r} cannot be searched for: give 'auto' or a share above 0, up to 1.")
    if isinstance(recall, str):
        many = n > EXACT
        if many and find_spec("faiss") is None:
            slow = f"{n:,} points are compared pair by pair, which takes long: install the `ann` extra for a faster search."
            logging.getLogger("grapevine").warning(slow)
        return RECALL if many and find_spec("faiss") else 1.0
    return float(recall) if n > 2 * SAMPLE else 1.0


def nearly_nearest(bits: np.ndarray, k: int, recall: float = RECALL, threads: int | None = None) -> Found:
    """As `nearest`, but only about `recall` of the neighbours need be the true ones."""
    lists = _Lists(np.ascontiguousarray(bits), threads)

    def search(rows: np.ndarray, probes: int) -> np.ndarray:
        return lists.keys(rows, k, probes)

    def truth(rows: np.ndarray) -> np.ndarray:
        return nearest(bits, k + 1, bits[rows], threads)[1][:, -1]  # itself is the nearest, at distance 0

    keys, share, probes = _tuned(search, truth, lists, recall)
    return Found(*lists_of_keys(keys), share, probes)


def nearly_nearest_cosine(V: np.ndarray, k: int, recall: float = RECALL, threads: int | None = None) -> Found:
    """As `nearest_cosine`, but only about `recall` of the neighbours need be the true ones."""
    planes = hyperplanes(bytes(32), BITS, V.shape[1], b"grapevine approximate neighbours", tight_frame=True)
    lists, B = _Lists(hash_bits(V, planes, threads), threads), directions(V)

    def search(rows: np.ndarray, probes: int) -> np.ndarray:
        return lists.keys(rows, k, probes, B)

    def truth(rows: np.ndarray) -> np.ndarray:
        return np.rint(nearest_cosine(V, k + 1, V[rows], threads)[1][:, -1] / -STEP)

    keys, share, probes = _tuned(search, truth, lists, recall)
    return Found(*cosines_of_keys(keys), share, probes)


def _tuned(
    search: Search, truth: Callable[[np.ndarray], np.ndarray], lists: _Lists, recall: float
) -> tuple[np.ndarray, float, int]:
    """The keys of all points, with as few lists a query as give this recall on a sample; the recall on a second sample."""
    order = np.random.default_rng(0).permutation(lists.n)
    tried, judged = (np.sort(some) for some in (order[:SAMPLE], order[-SAMPLE:]))
    bar, probes = truth(tried), 1
    while probes < lists.count and _share(search(tried, probes), bar) < recall:
        probes = min(lists.count, max(probes + 1, probes * 4 // 3))
    keys = search(np.arange(lists.n), probes)
    share = _share(keys[judged], truth(judged))
    if share < recall - 0.01:
        logging.getLogger("grapevine").warning(f"About {share:.1%} of the true neighbours were found, not {recall:.0%}.")
    return keys, share, probes


def _share(keys: np.ndarray, bar: np.ndarray) -> float:
    """The share of places with a neighbour as near as the true k-th one: among equals, any is right."""
    return float(((keys != FAR) & (keys >> 32 <= bar[:, None])).mean())


class _Lists:
    """Points in lists around centres."""

    def __init__(self, bits: np.ndarray, threads: int | None):
        try:
            self._faiss: Any = import_module("faiss")
        except ImportError:
            raise Mistake("an approximate search needs the `ann` extra (faiss-cpu): install it, or use recall=1.") from None
        self.bits, self.n, self.threads, faiss = bits, len(bits), threads, self._faiss
        self.count = max(1, 2 ** round(math.log2(4 * math.sqrt(max(self.n, 1)))))
        self.count = max(1, min(self.count, self.n // PER_CENTRE))
        width = 8 * bits.shape[1]
        centres = self._centres()
        quantiser = faiss.IndexBinaryFlat(width)
        quantiser.add(centres)
        self._index = faiss.IndexBinaryIVF(quantiser, width, self.count)
        self._index.is_trained, self._quantiser = True, quantiser
        own = self._nearest_centre(bits, centres)
        self._index.add_core(self.n, faiss.swig_ptr(bits), None, faiss.swig_ptr(own))

    def _centres(self) -> np.ndarray:
        """Clustering by majority: a centre's bit is what most of its points have. Whole numbers only."""
        from grapevine.graph import kernels

        some = self.bits[np.random.default_rng(1).permutation(self.n)[: self.count * PER_CENTRE]]
        centres = some[: self.count].copy()
        for _ in range(SWEEPS):
            kernels.majority(some, self._nearest_centre(some, centres), centres)
        return centres

    def _nearest_centre(self, bits: np.ndarray, centres: np.ndarray) -> np.ndarray:
        flat = self._faiss.IndexBinaryFlat(8 * bits.shape[1])
        flat.add(centres)
        out = np.empty((len(bits), 1), np.int64)

        def work(_: int, at: int) -> None:
            self._faiss.omp_set_num_threads(1)  # of this thread: ours are enough, and faiss's wait by spinning
            out[at : at + QUERIES] = flat.search(bits[at : at + QUERIES], 1)[1]

        self._in_threads(work, len(bits))
        return out[:, 0]

    def _in_threads(self, work: Callable[[int, int], None], rows: int) -> None:
        starts = range(0, rows, QUERIES)
        in_threads(work, starts, thread_count(self.threads, len(starts)))

    def keys(self, rows: np.ndarray, k: int, probes: int, B: np.ndarray | None = None) -> np.ndarray:
        """The k best keys of each of these points, itself excluded: by distance of bits, or with B by cosine."""
        from grapevine.graph import kernels

        out = np.full((len(rows), k), FAR, np.int64)
        wanted = min(self.n, (k if B is None else CANDIDATES * k) + 1)
        self._index.nprobe = probes

        def work(_: int, at: int) -> None:
            self._faiss.omp_set_num_threads(1)
            some = rows[at : at + QUERIES]
            H, found = self._index.search(self.bits[some], wanted)
            if B is None:
                kernels.keep_nearest(H, found, some, out[at : at + QUERIES])
            else:
                kernels.keep_cosines(B, found, some, SCALE, out[at : at + QUERIES])

        self._in_threads(work, len(rows))
        return out
