"""How far a reader walks: our functions that a job runs, in the order of their first calls, and how often the file changes.

    python benchmarks/walk.py          prints both walks and writes walk.json
    python benchmarks/walk.py --show   also every function, file by file

Calls are traced in one thread; a function counts once, when it is first entered; module bodies (imports) do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

import grapevine as gv

FILE = Path(__file__).with_suffix(".json")
OURS = str(Path(gv.__file__).parent)
TARGETS = {"grapevine label on two tables": 110, "gv.train(FedAvg())": 70}


def walk(job: Callable[[], object]) -> list[tuple[str, str]]:
    """(file, function) of ours in the order of first calls."""
    seen: dict[object, tuple[str, str]] = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code not in seen and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            seen[code] = (code.co_filename.removeprefix(OURS + "/"), code.co_name)

    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
    return list(seen.values())


def changes(steps: list[tuple[str, str]]) -> int:
    return sum(a[0] != b[0] for a, b in zip(steps, steps[1:]))


def label() -> None:
    """The command on two CSV files of scikit-learn's wines, a fifth of them labelled."""
    from grapevine.cli import main

    X, y = load_wine(return_X_y=True)
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            rows = draw.permutation(len(X))[:40]
            lines = [",".join([*(f"{v:g}" for v in X[i]), f"kind-{y[i]}" if draw.random() < 0.2 else ""]) for i in rows]
            header = ",".join([*(f"f{j}" for j in range(X.shape[1])), "kind"])
            (Path(folder) / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        files = [str(Path(folder) / f"{name}.csv") for name in ("a", "b")]
        main(["label", *files, "--label", "kind", "--workers", "1", "--out", str(Path(folder) / "out")], standalone_mode=False)


def train() -> None:
    split = gv.data.load("digits").split(clients=4, labels="clients:40")
    gv.train(gv.methods.FedAvg(), split, rounds=2, workers=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print every function")
    parser.add_argument("--quick", action="store_true", help="the training walk alone, and nothing written")
    options = parser.parse_args()
    found = {}
    walks = list(zip(TARGETS.items(), (label, train)))
    for (name, most), job in walks[1:] if options.quick else walks:
        job()  # once before, so that what is loaded or compiled late is not part of the walk
        steps = walk(job)
        found[name] = dict(functions=len(steps), files=len({file for file, _ in steps}), changes=changes(steps), target=most)
        print(name)
        for what, count in found[name].items():
            print(f"  {what}: {count}")
        for file, function in steps if options.show else ():
            print(f"  {file:32} {function}")
    if not options.quick:
        FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
