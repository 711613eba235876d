"""Label spreading over up to a million points: CPU-seconds, memory and recall of the approximate search, the exact one beside it.

    python benchmarks/large_graph.py [--quick] [--only N WAY]

Points are mixtures of two real images of one class: 64 leading components of CIFAR-10's features, t·a + (1 − t)·b with t
uniform. 50 labels a class are known. `approximate` is `LabelSpreading()` beyond 100,000 points, `exact` is recall=1, `scikit-
learn` its own with its default graph of 7 neighbours, up to the size at which one fit takes minutes. Each fit runs in a
process of its own, after a small one has loaded and compiled what there is to load. Memory is the peak during `fit` above
what the process held before it, beside the bound that was told before the work (Linux). Recall is measured here on 500 points
of their own, by comparing them with everybody. CPU-seconds compare on a busy machine, seconds do not (`load`).
Results: large_graph.json beside this file, a row for each case; `--only` measures one and keeps the other rows.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from label_spreading import draw, memory_mb
from machine import DATA, FILES, about, need, write

FEATURES, LABELS, CHECKED = 64, 50, 500
CASES = [
    (100_000, "scikit-learn"), (100_000, "exact"), (100_000, "approximate"),
    (300_000, "exact"), (300_000, "approximate"), (1_000_000, "approximate"),
]  # fmt: skip


def mixed(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n mixtures of two images of one class each, and their classes."""
    file = np.load(DATA / FILES["cifar10-lite0"])
    x, y = file["x_train"].astype(np.float64), file["y_train"].astype(np.int64)
    x -= x.mean(axis=0)
    leading = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :FEATURES]
    x = (x @ leading).astype(np.float32)
    rng = np.random.default_rng(0)
    order, counts = np.argsort(y, kind="stable"), np.bincount(y)
    starts = np.cumsum(counts) - counts
    a = rng.integers(0, len(x), n)
    b = order[starts[y[a]] + (rng.random(n) * counts[y[a]]).astype(np.int64)]
    t = rng.random((n, 1), dtype=np.float32)
    return t * x[a] + (1 - t) * x[b], y[a]


def make(way: str):
    if way == "scikit-learn":
        from sklearn.semi_supervised import LabelSpreading as Theirs

        return Theirs(kernel="knn")
    from grapevine.graph import LabelSpreading

    return LabelSpreading(recall=1 if way == "exact" else 0.95)


class Told(logging.Handler):
    """What `fit` says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measured_recall(model, X: np.ndarray) -> float:
    """The share of the k nearest points of some rows that are their neighbours in the graph, which has them both ways."""
    from grapevine.graph import nearest_cosine

    rows = np.random.default_rng(7).permutation(len(X))[:CHECKED]
    true, _ = nearest_cosine(X, model.n_neighbors + 1, X[rows])
    W, hits = model.graph_, []
    for row, near in zip(rows, true):
        there = set(W.indices[W.indptr[row] : W.indptr[row + 1]].tolist())
        hits.append(len(there & set(near[near != row][: model.n_neighbors].tolist())) / model.n_neighbors)
    return float(np.mean(hits))


def child(n: int, way: str) -> dict:
    warnings.simplefilter("ignore")
    told = Told()
    logging.getLogger("grapevine").setLevel(logging.INFO)
    X, y = mixed(n)
    partly = draw(y, LABELS, 0)
    few = min(n, 3000)
    make(way).fit(X[:few], np.where(np.arange(few) < 500, y[:few], -1))
    logging.getLogger("grapevine").addHandler(told)
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    wall, cpu = time.perf_counter(), time.process_time()
    model = make(way).fit(X, partly)
    row = dict(n=n, way=way, features=FEATURES, labels=10 * LABELS, cpu_seconds=round(time.process_time() - cpu, 1),
               seconds=round(time.perf_counter() - wall, 1), added_mb=round(memory_mb("VmHWM") - before))  # fmt: skip
    row["accuracy"] = round(100 * float((model.transduction_ == y)[partly < 0].mean()), 2)
    if way != "scikit-learn":
        row |= dict(recall_told=round(model.recall_, 4), recall=round(measured_recall(model, X), 4), told=told.lines,
                    iterations=int(model.n_iter_), residual=float(f"{model.residual_:.1e}"))  # fmt: skip
    return dict(row, load=round(os.getloadavg()[0], 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few thousand points, and nothing is kept")
    parser.add_argument("--only", nargs=2, metavar=("N", "WAY"), help="one case; the other rows of the JSON stay")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(child(int(flags.child[0]), flags.child[1])))
        return
    need("cifar10-lite0")
    cases = [(5000, way) for way in ("scikit-learn", "exact", "approximate")] if flags.quick else CASES
    cases = [(int(flags.only[0]), flags.only[1])] if flags.only else cases
    kept = Path(__file__).with_suffix(".json")
    before = json.loads(kept.read_text())["rows"] if flags.only and kept.exists() else []
    rows = {(row["n"], row["way"]): row for row in before}
    for n, way in cases:
        done = subprocess.run([sys.executable, __file__, "--child", str(n), way], stdout=subprocess.PIPE, text=True, check=True)
        rows[n, way] = json.loads(done.stdout)
        print(rows[n, way], flush=True)
        if not flags.quick:
            write(__file__, dict(machine=about(), rows=[rows[key] for key in sorted(rows)]))


if __name__ == "__main__":
    main()
