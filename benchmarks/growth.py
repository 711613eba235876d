"""How the label job's cost grows: processor time against the number of clients, points, bits and classes, one varied at a time.

    python benchmarks/growth.py [--quick]

Around 8 clients, 1024 points in all, 1024 bits and 10 classes, a tenth of the points labelled, 128 features: the whole job
(`gv.label`, all parties and the server in this process) with `mlwe`, the default, at fewer sizes, with `psm` and with `plain`;
and the propagation alone, on rows in one place (`LabelSpreading` on hashed cosines), which knows no clients. The number of points
stays when clients are varied, so that a client more means smaller clients: one who asks what a client more with as many rows
costs adds the two exponents. Seconds are processor time of this process, all its threads, matrix products on one; the least of up
to three runs counts. Results: growth.json beside this file; speed.py draws them.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np
from machine import about, one_blas_thread, table, write

import grapevine as gv
from grapevine.graph import LabelSpreading

BASE = dict(clients=8, points=1024, bits=1024, classes=10)
SIZES = dict(
    clients=(2, 4, 8, 16, 32),
    points=(256, 512, 1024, 2048, 4096, 8192),
    bits=(256, 512, 1024, 2048, 4096, 8192),
    classes=(2, 4, 8, 16, 32, 64),
)
DEAR = dict(clients=(2, 4, 8, 16), points=(256, 512, 1024, 2048), bits=(256, 512, 1024, 2048), classes=(2, 8, 32))
JOBS = ("mlwe", "psm", "plain")
ALONE = "propagation alone"
ENOUGH = 2.0  # CPU-seconds after which a measurement is not repeated


def rows(points: int, classes: int, features: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds, and the tenth of their labels that is known (-1: not)."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, points)
    V = rng.normal(size=(classes, features))[y] + 0.22 * features**0.5 * rng.normal(size=(points, features))
    return V, np.where(np.arange(points) % 10 == 0, y, -1)


def run(way: str, clients: int, points: int, bits: int, classes: int) -> Callable[[], object]:
    """What is measured, ready to start."""
    V, known = rows(points, classes)
    if way == ALONE:
        return lambda: LabelSpreading(affinity="hamming", bits=bits, preset="code", random_state=0).fit(V, known)
    parties = list(zip(np.array_split(V, clients), np.array_split(known, clients)))
    return lambda: gv.label(parties, secure=way, bits=bits, seed=0, workers=1)


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    spent: list[float] = []
    while len(spent) < repeats and sum(spent) < ENOUGH:
        gc.collect()
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def measure(varied: str, sizes: tuple[int, ...], way: str, base: dict[str, int], repeats: int) -> list[dict]:
    out = []
    for size in sizes:
        setting = dict(base, **{varied: size})
        out.append(dict(way=way, varied=varied, **setting, cpu_seconds=round(cpu_seconds(run(way, **setting), repeats), 4)))
    print(f"{way} against {varied}: " + ", ".join(f"{each[varied]} {each['cpu_seconds']:.3g}" for each in out), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it runs; nothing is written")
    quick = parser.parse_args().quick
    base = dict(clients=2, points=80, bits=64, classes=2) if quick else BASE
    machine = about()
    measured = []
    with one_blas_thread():
        for way in (*JOBS, ALONE):
            run(way, clients=2, points=80, bits=64, classes=2)()  # compiles and loads what there is to load
            for varied, sizes in (DEAR if way == "mlwe" else SIZES).items():
                if way != ALONE or varied != "clients":
                    sizes = (base[varied], 2 * base[varied]) if quick else sizes
                    measured += measure(varied, sizes, way, base, repeats=1 if quick else 3)
    print(table(("", *base, "CPU-s"), [(each["way"], *(each[name] for name in base), each["cpu_seconds"]) for each in measured]))
    if not quick:
        write(__file__, dict(machine=machine, base=base, measured=measured))


if __name__ == "__main__":
    main()
