"""The label job at the sizes it is meant for: what it takes, and what `--dry-run` said that it would take.

    python benchmarks/label_scale.py [--quick] [--only CASE ROWS SECURE] [--estimates]

`rows`: chorus with its default landmarks, 20 parties × 500 to 50,000 rows × 64 features, with mlwe and in the clear. What the
cryptography costs is the difference of the two in the steps that have any: its share, the exchanges of secure Hamming, and the
scores that come back. `groups`: 1,000 parties × 200 rows in 100 groups, psm. Points are those of large_graph.py, dealt at random;
a hundredth of the rows of `rows` is labelled, at most 50 a party, and a tenth of those of `groups`.

Each case runs in a process of its own, on two workers. CPU-seconds by step are of the whole process, between the last answer to
the step before and the last answer to this one: the server's work counts with the step that comes after it. Memory is the peak of
the process less what it held when the tables were ready; the estimate counts the libraries too, which `base_mb` has. Results:
label_scale.json beside this file, and docs/label-scale.svg by speed.py; `--only` measures one case and keeps the other rows,
`--estimates` measures nothing and asks `--dry-run` again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from label_spreading import memory_mb
from large_graph import mixed
from machine import about, need, write

import grapevine as gv

CASES = [("rows", n, way) for n in (500, 2000, 10_000, 50_000) for way in ("mlwe", "plain")] + [("groups", 200, "psm")]
PARTIES = dict(rows=20, groups=1000)
WORKERS = 2


def parties(case: str, rows: int, count: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
    """Everybody's table, with −1 where a row has no label, and the true classes."""
    X, y = mixed(rows * count)
    known = min(rows // 100, 50) if case == "rows" else rows // 10
    tables, truth = [], []
    for i in range(count):
        own = slice(i * rows, (i + 1) * rows)
        tables.append((X[own].astype(np.float64), np.where(np.arange(rows) < known, y[own], -1)))
        truth.append(y[own][known:])
    return tables, truth


class Steps:
    """CPU-seconds by step, from what the job tells of its progress."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.last = time.process_time()

    def __call__(self, step: str, done: int, of: int) -> None:
        now = time.process_time()
        self.spent[step] = self.spent.get(step, 0.0) + now - self.last
        self.last = now


def settings_of(case: str, secure: str, count: int) -> dict:
    return dict(secure=secure, seed=0, workers=WORKERS, groups=count // 10 if case == "groups" else 1)


def estimate(case: str, rows: int, secure: str, count: int) -> dict:
    """What `--dry-run` says."""
    plan = gv.label(parties(case, rows, count)[0], dry_run=True, **settings_of(case, secure, count))
    up = sum(line["bytes"] for lines in plan["parties"].values() for line in lines)
    return dict(seconds=round(60 * plan["minutes"], 1), mb=round(plan["memory_mb"]), bytes_up=int(up))


def child(case: str, rows: int, secure: str, count: int) -> dict:
    tables, truth = parties(case, rows, count)
    settings = settings_of(case, secure, count)
    few = [(x[:30], np.where(np.arange(30) < 10, np.arange(30) % 3, -1)) for x, _ in tables[:3]]
    gv.label(few, secure=secure, seed=0, workers=WORKERS)  # loads and compiles what there is to load
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    wall, cpu, steps = time.perf_counter(), time.process_time(), Steps()
    found = gv.label(tables, progress=steps, **settings)
    seconds, spent = time.perf_counter() - wall, time.process_time() - cpu
    right = np.concatenate([p.labels[np.asarray(t[1]) < 0] == true for p, t, true in zip(found, tables, truth)])
    return dict(
        case=case, parties=count, rows=rows, secure=secure, groups=settings["groups"], cpu_seconds=round(spent, 1),
        seconds=round(seconds, 1), added_mb=round(memory_mb("VmHWM") - before), base_mb=round(before), bytes_up=found.bytes_up,
        accuracy=round(100 * float(right.mean()), 2),
        steps={name: round(each, 2) for name, each in steps.spent.items()}, load=round(os.getloadavg()[0], 1),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, and nothing is kept")
    parser.add_argument("--only", nargs=3, metavar=("CASE", "ROWS", "SECURE"), help="one case; the other rows of the JSON stay")
    parser.add_argument("--estimates", action="store_true", help="only what --dry-run says of the cases that were measured")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        case, rows, secure, count = flags.child
        print(json.dumps(child(case, int(rows), secure, int(count))))
        return
    need("cifar10-lite0")
    cases = [("rows", 100, "psm"), ("groups", 40, "plain")] if flags.quick else CASES
    cases = [(flags.only[0], int(flags.only[1]), flags.only[2])] if flags.only else cases
    kept = Path(__file__).with_suffix(".json")
    old = json.loads(kept.read_text()) if (flags.only or flags.estimates) and kept.exists() else dict(rows=[])
    found = {(row["case"], row["rows"], row["secure"]): row for row in old["rows"]}
    if flags.estimates:
        for (case, rows, secure), row in found.items():
            row["estimate"] = estimate(case, rows, secure, row["parties"])
            print(case, rows, secure, row["estimate"], row["seconds"], row["cpu_seconds"], row["bytes_up"])
        write(__file__, dict(old, rows=list(found.values())))
        return
    for case, rows, secure in cases:
        count = dict(rows=3, groups=20)[case] if flags.quick else PARTIES[case]
        command = [sys.executable, __file__, "--child", case, str(rows), secure, str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[case, rows, secure] = row = dict(json.loads(done.stdout), estimate=estimate(case, rows, secure, count))
        print(row, flush=True)
        if not flags.quick:
            write(__file__, dict(machine=about(), rows=[found[key] for key in sorted(found)]))


if __name__ == "__main__":
    main()
