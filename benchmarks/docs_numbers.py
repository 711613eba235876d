"""The small measurements that pages quote: the label job, the clean job and `grapevine demo`, most on scikit-learn's data sets.

    python benchmarks/docs_numbers.py [--quick]

Label: wine, breast cancer and iris in three parties with 8 labels each, 4096 bits, and the digits of `grapevine demo` in ten
parties with 15 labels each, 1024 bits; four splits and sets of hyperplanes. `plain` gives the labels that the protocols give.
Clean: a server and two parties whose labels are flipped to another class, uniformly; three splits, one of the skin lesions
(images and the small CNN, a minute of processor time). Both give means over splits. Demo: one run of the command.
Writes docs_numbers.json beside itself, and from it tables of docs/methods/xclp.md and docs/clean.md and a line of README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from machine import DATA, ROOT, about, fill, markdown, need, write
from sklearn import datasets

import grapevine as gv
from grapevine.cli.demo import digits_parties
from grapevine.data.labels import Flip, flip
from grapevine.jobs.clean_result import AFTER, BEFORE

TABLES = {"wine": datasets.load_wine, "breast cancer": datasets.load_breast_cancer, "iris": datasets.load_iris}
WAYS: dict[str, dict[str, Any]] = {  # as flags of `grapevine label`: as words of `gv.label`
    "default (`--neighbours 10`)": {},
    "`--neighbours auto`": dict(neighbours="auto"),
    "`--preset paper`": dict(preset="paper"),
    "`--preset paper --alpha 0.9`": dict(preset="paper", alpha=0.9),
    "`--scale none`": dict(scale="none"),
}
BESIDE = {"nearest": "nearest own labelled row", "gh-ofl": "Gaussian heads"}  # labelled with the default settings
FLIPS = (0.05, 0.2, 0.4)
SERVERS = {  # rows of the server, shares of flips, splits
    "wine": (60, FLIPS, 3),
    "breast cancer": (100, FLIPS, 3),
    "digits": (200, FLIPS, 3),
    "derma": (2000, (0.2,), 1),
}
ROWS = 2000  # of both parties, at most


# ---------------------------------------------------------------- label


def label(seeds: int) -> dict[str, dict[str, float]]:
    """By data set and way: accuracy on the rows without a label."""
    out = {}
    for data in (*TABLES, "digits"):
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            parties, truth, bits = deal(data, seed)
            for way, words in WAYS.items():
                result = gv.label(
                    parties, truth=truth, method="xclp", secure="plain", bits=bits, seed=seed, baselines=not words, **words
                )
                found.setdefault(way, []).append(result.accuracy)
                for name in BESIDE if not words else ():
                    found.setdefault(BESIDE[name], []).append(result.other_accuracy[name])
        out[data] = {way: round(mean(found[way]), 4) for way in (*WAYS, *BESIDE.values())}
        print(f"label, {data}: {out[data]}", flush=True)
    return out


def deal(data: str, seed: int) -> tuple[list, list, int]:
    """Parties, the truth, and the number of bits."""
    if data == "digits":
        parties = digits_parties(10, seed)
        return [(party.x, party.labels) for party in parties], [party.truth for party in parties], 1024
    x, y = TABLES[data](return_X_y=True)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(x)), 3)
    return [(x[rows], np.where(np.arange(len(rows)) < 8, y[rows], -1)) for rows in parts], [y[rows] for rows in parts], 4096


# ---------------------------------------------------------------- clean


def clean(names: Iterable[str]) -> list[dict[str, Any]]:
    out = []
    for data in names:
        x, y = rows_of(data)
        server, flips, splits = SERVERS[data]
        for share in flips:
            runs = [mended(x, y, server, share, seed) for seed in range(splits)]
            means = {name: round(mean(run[name] for run in runs), 4) for name in runs[0]}
            out.append(dict(data=data, server=server, flipped=share, splits=splits, **means))
            print(f"clean: {out[-1]}", flush=True)
    return out


def rows_of(data: str) -> tuple[np.ndarray, np.ndarray]:
    if data == "derma":
        images = gv.data.load(data, data_dir=DATA)
        return images.x.permute(0, 2, 3, 1).numpy(), images.y.numpy()
    return (TABLES | {"digits": datasets.load_digits})[data](return_X_y=True)


def mended(x: np.ndarray, y: np.ndarray, server: int, share: float, seed: int) -> dict[str, float]:
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(x))
    parts, own = np.array_split(order[server : server + ROWS], 2), order[:server]
    parties = [(x[rows], flip(y[rows], np.zeros(len(rows), np.int64), int(y.max()) + 1, Flip(share), draw)) for rows in parts]
    measured = gv.clean(parties, server=(x[own], y[own]), truth=[y[rows] for rows in parts], seed=seed).measured
    found = measured["wrong labels found"]
    return dict(precision=found["precision"], recall=found["recall"], before=measured[BEFORE]["precision"],
                after=measured[AFTER]["precision"])  # fmt: skip


# ---------------------------------------------------------------- demo


def demo() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grapevine", "demo", "--out", f"{folder}/labels"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(Path(folder, "labels", "result.json").read_text(encoding="utf-8"))
    return {name: result[name] for name in ("accuracy", "alone_accuracy", "bytes_up", "bytes_down")}


# ---------------------------------------------------------------- the pages


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    found = result["label"]
    ways = [(way, *(f"{found[data][way]:.3f}" for data in found)) for way in found["wine"]]
    fill(root / "docs" / "methods" / "xclp.md", "docs_numbers.py", markdown(("", *found), ways))
    head = ("", "flipped", "wrong labels found: precision", "recall", "right before", "right after")
    numbers = ("precision", "recall", "before", "after")
    rows = []
    for one in result["clean"]:
        what = (f"{one['data']}, {one['server']} server rows", f"{100 * one['flipped']:.0f} %")
        rows.append((*what, *(f"{one[name]:.2f}" for name in numbers)))
    fill(root / "docs" / "clean.md", "docs_numbers.py", markdown(head, rows))
    one = result["demo"]
    right, alone, up, down = 100 * one["accuracy"], 100 * one["alone_accuracy"], one["bytes_up"] / 1e6, one["bytes_down"] / 1e6
    text = f"In one run {right:.1f} % of the new labels were right, against {alone:.1f} % for each party alone"
    fill(root / "README.md", "docs_numbers.py", f"{text}, with {up:.0f} MB up and {down:.0f} MB down.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one split, without the demo; nothing is written")
    quick = parser.parse_args().quick
    if not quick:
        need("derma")
    result = dict(machine=about(), label=label(1 if quick else 4), clean=clean(["wine"] if quick else SERVERS))
    if not quick:
        result["demo"] = demo()
        write(__file__, result)
        document(result)


if __name__ == "__main__":
    main()
