"""FEMNIST's 279 larger writers, 47,859 images, as one graph at 4096 bits: time, memory, and accuracy alone and together.

    python benchmarks/femnist_graph.py [--quick]

Every writer's pixels are hashed with the same hyperplanes and the bits go to the engine as they are (no cryptography).
A fifth of each writer's images are new points; of the rest a tenth, or all, have labels. Accuracy is over the new points:
propagation over all writers ("together") and over each writer's own images ("alone"), 10 neighbours, alpha 0.99.
The seconds and the memory are of one process that hashes, finds the neighbours, builds the graph and propagates.
Results: femnist_graph.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
from machine import DATA, FILES, about, need, write

from grapevine import graph as g
from grapevine.crypto.stream import fresh_secret

BITS, NEIGHBOURS, ALPHA, CLASSES = 4096, 10, 0.99, 62


def load(writers: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    file = np.load(DATA / FILES["femnist"])
    writer = file["writer"]
    large = np.flatnonzero(np.bincount(writer) >= 80)[:writers]
    keep = np.isin(writer, large)
    return file["x"][keep].reshape(keep.sum(), -1), file["y"][keep].astype(np.int64), writer[keep]


def settings(y: np.ndarray, writer: np.ndarray, labelled: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels known (−1: none) and which points are new, writer by writer."""
    rng = np.random.default_rng(seed)
    known, new = np.full(len(y), -1), np.zeros(len(y), bool)
    for w in np.unique(writer):
        own = rng.permutation(np.flatnonzero(writer == w))
        cut = round(0.2 * len(own))
        new[own[:cut]] = True
        rest = own[cut:]
        rest = rest[: round(labelled * len(rest))]
        known[rest] = y[rest]
    return known, new


def propagate(bits: np.ndarray, known: np.ndarray) -> np.ndarray:
    index, H = g.nearest(bits, NEIGHBOURS)
    W = g.graph(index, g.cosine(H, BITS))
    return g.labels_and_confidence(g.solve(W, g.label_matrix(known, CLASSES), ALPHA).Z)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three writers, and nothing is kept")
    quick = parser.parse_args().quick
    need("femnist")
    machine = about()
    V, y, writer = load(3 if quick else None)
    start, cpu = time.perf_counter(), time.process_time()
    planes = g.hyperplanes(fresh_secret(), BITS, V.shape[1], b"benchmark")
    bits = g.hash_bits(V, planes)
    hashed = time.perf_counter() - start
    index, H = g.nearest(bits, NEIGHBOURS)
    searched = time.perf_counter() - start
    W = g.graph(index, g.cosine(H, BITS))
    known, new = settings(y, writer, 0.1)
    solution = g.solve(W, g.label_matrix(known, CLASSES), ALPHA)
    labels, _ = g.labels_and_confidence(solution.Z)
    result = dict(
        images=len(V),
        writers=len(np.unique(writer)),
        bits=BITS,
        seconds=round(time.perf_counter() - start, 1),
        cpu_seconds=round(time.process_time() - cpu, 1),
        seconds_hashing=round(hashed, 1),
        seconds_neighbours=round(searched - hashed, 1),
        seconds_graph_and_propagation=round(time.perf_counter() - start - searched, 1),
        iterations=solution.iterations,
        residual=float(f"{solution.residual:.1e}"),
        peak_memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        accuracy={},
        machine=machine,
    )
    for labelled in (0.1, 1.0):
        known, new = settings(y, writer, labelled)
        if labelled != 0.1:
            labels, _ = g.labels_and_confidence(g.solve(W, g.label_matrix(known, CLASSES), ALPHA).Z)
        alone = np.full(len(y), -1)
        for w in np.unique(writer):
            own = np.flatnonzero(writer == w)
            alone[own] = propagate(bits[own], known[own])
        result["accuracy"][f"labels on {labelled:.0%} of the rest"] = dict(
            together=round(100 * float((labels == y)[new].mean()), 1), alone=round(100 * float((alone == y)[new].mean()), 1)
        )
    print(json.dumps(result, indent=1))
    if not quick:
        write(__file__, result)


if __name__ == "__main__":
    main()
