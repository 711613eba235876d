"""Label propagation in one place, for claims about the label job: what its server and parties compute together.

All protocols of the label job give the server the same distances, bit for bit (tests/crypto), so the bits go to the engine as
they are. Settings are the label job's own: 4096 bits, 10 neighbours, alpha 0.99, preset code.
"""

from __future__ import annotations

import functools

import numpy as np
from common import DATA
from scipy import sparse

from grapevine import data, graph
from grapevine.crypto.stream import context

NEIGHBOURS, ALPHA, BITS, PRESET = 10, 0.99, 4096, "code"


def bits_of(V: np.ndarray, bits: int = BITS, seed: int = 0) -> np.ndarray:
    """Hashes by hyperplanes that depend on the seed alone, so that a claim repeats."""
    return graph.hash_bits(V, hyperplanes(bits, V.shape[1], seed))


@functools.lru_cache(4)  # a tight frame of many features takes longer than hashing with it
def hyperplanes(bits: int, features: int, seed: int) -> np.ndarray:
    info = context("grapevine claims", bits=bits, features=features)
    return graph.hyperplanes(seed.to_bytes(32, "big"), bits, features, info, tight_frame=PRESET == "code")


def hamming_graph(bits: np.ndarray, length: int = BITS, preset: str = PRESET) -> sparse.csr_array:
    index, H = graph.nearest(bits, NEIGHBOURS)
    return graph.graph(index, graph.cosine(H, length), preset=preset)


def cosine_graph(V: np.ndarray) -> sparse.csr_array:
    return graph.graph(*graph.nearest_cosine(V, NEIGHBOURS), preset=PRESET)


def spread(W: sparse.csr_array, known: np.ndarray, classes: int, preset: str = PRESET) -> np.ndarray:
    """A class for every point from the known ones (−1: not known); −1 where no label comes."""
    Z = graph.solve(W, graph.label_matrix(known, classes, preset), ALPHA).Z
    return graph.labels_and_confidence(Z)[0]


def alone(bits: np.ndarray, party: np.ndarray, known: np.ndarray, classes: int) -> np.ndarray:
    """The same within each party's own points."""
    out = np.full(len(known), -1)
    for p in np.unique(party):
        own = np.flatnonzero(party == p)
        if (known[own] >= 0).any() and len(own) > NEIGHBOURS:
            out[own] = spread(hamming_graph(bits[own]), known[own], classes)
    return out


def right(labels: np.ndarray, y: np.ndarray, among: np.ndarray) -> float:
    """Per cent right among these points."""
    return round(100 * float((labels == y)[among].mean()), 2)


def balanced(labels: np.ndarray, y: np.ndarray) -> float:
    """Mean recall over classes, per cent."""
    return round(100 * float(np.mean([(labels == y)[y == c].mean() for c in np.unique(y)])), 2)


def cifar(rows: int, new: int, parties: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features of CIFAR-10: rows, classes, whose they are, and which of them are new (test images)."""
    found = data.load("cifar10-lite0", data_dir=DATA)
    rng = np.random.default_rng(seed)
    a, b = rng.permutation(len(found.x))[:rows], rng.permutation(len(found.x_test))[:new]
    V = np.concatenate([found.x[a].numpy(), found.x_test[b].numpy()]).astype(np.float64)
    y = np.concatenate([found.y[a].numpy(), found.y_test[b].numpy()])
    return V, y, rng.integers(0, parties, len(y)), np.arange(len(y)) >= rows


def draw(y: np.ndarray, among: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Labels of n points of these, equally many of each class; −1 elsewhere."""
    rng = np.random.default_rng(seed)
    classes = np.unique(y)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(among & (y == c)))[: n // len(classes)] for c in classes])
    known = np.full(len(y), -1)
    known[chosen] = y[chosen]
    return known
