"""Which settings of FedAvg+XCLP do best on validation, over several data sets: how its defaults were chosen.

    python benchmarks/xclp_default.py [--seeds 2] [--quick]

Every candidate trains on the same splits: four data sets, 20 clients (digits: 10), five a round, about ten labels a client, two
seeds. On digits and Fashion-MNIST all classes are alike and a client has labels of five of them; on MNIST and on CIFAR-10's
features each class has three quarters of the rows of the one before it, and labels are random. What counts is the accuracy on
validation rows of the best round, never on test rows. A run that is in the JSON already is not repeated, so the script may be
stopped and started again. Results: xclp_default.json beside this file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from machine import DATA, about, need, table

import grapevine as gv
from grapevine.crypto.hamming import protocol
from grapevine.crypto.spread import protocol as spread_protocol

FILE = Path(__file__).with_suffix(".json")
CANDIDATES: dict[str, dict[str, Any]] = {
    "paper, alpha 0.99": dict(preset="paper", alpha=0.99),
    "paper, alpha 0.9": dict(preset="paper", alpha=0.9),
    "balanced, alpha 0.99": dict(alpha=0.99),
    "balanced, alpha 0.9": dict(alpha=0.9),
    "code, alpha 0.99": dict(preset="code", alpha=0.99),
    "balanced, alpha 0.99, whole guests": dict(alpha=0.99, guests="all"),
    "balanced, alpha 0.99, no guests": dict(alpha=0.99, graph_clients=5),
    "balanced, alpha 0.9, whole guests": dict(alpha=0.9, guests="all"),
    "balanced, alpha 0.9, no guests": dict(alpha=0.9, graph_clients=5),
}
SETS = {"digits": (10, 1797), "mnist": (20, 2000), "fashion-mnist": (20, 2000), "cifar10-lite0": (20, 2000)}  # clients, rows
SKEWED, RATIO = ("mnist", "cifar10-lite0"), 0.75
SEEDS, ROUNDS, PER_ROUND, LABELS = 2, 30, 5, 10  # labels of a client
HOW: dict[str, Any] = dict(hamming=protocol("plain"), spread=spread_protocol("paper"), bits=1024, epochs=2)  # the cheapest


def split_of(name: str, seed: int) -> Any:
    """A part of the data set, the same for all candidates."""
    clients, rows = SETS[name]
    whole = gv.data.load(name, data_dir=DATA)
    share = RATIO ** whole.y.clamp(min=0).double() if name in SKEWED else torch.ones(len(whole.y), dtype=torch.float64)
    share[whole.y < 0] = 0.0
    at = torch.multinomial(share, min(rows, len(share)), generator=torch.Generator().manual_seed(seed))
    part = replace(whole, x=whole.x[at], y=whole.y[at], group=None, group_test=None, group_names=())
    labels = f"fraction:{LABELS * clients / rows:.4f}" if name in SKEWED else f"clients:{LABELS * clients}~5"
    return part.split(clients=clients, labels=labels, seed=seed)


def one(name: str, fields: dict[str, Any], seed: int, rounds: int) -> dict[str, float]:
    """The best round's accuracy on validation, and how many of the last pseudo-labels were right."""
    run = gv.train(gv.methods.XCLP(**{**HOW, **fields}), split_of(name, seed), model="mlp", rounds=rounds, per_round=PER_ROUND,
                   seed=seed, evaluate_every=3)  # fmt: skip
    history = [line for line in run.history if line.get("validation_accuracy") is not None]
    right = [line["pseudo_label_accuracy"] for line in run.history if line.get("pseudo_label_accuracy") is not None]
    return dict(validation=round(max(line["validation_accuracy"] for line in history), 4), pseudo=round(right[-1], 4))


def chosen(runs: dict[str, dict[str, float]], sets: list[str], seeds: int) -> dict[str, dict[str, float]]:
    """The mean over seeds by candidate and data set, and over the data sets."""
    found = {}
    for words in CANDIDATES:
        each = {name: fmean(100 * runs[f"{name}, {words}, seed {seed}"]["validation"] for seed in range(seeds)) for name in sets}
        found[words] = {name: round(mean, 2) for name, mean in (each | {"mean": fmean(each.values())}).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits, one seed, a few rounds; nothing is kept")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many [{SEEDS}]")
    options = parser.parse_args()
    quick = options.quick
    sets, seeds, rounds = (["digits"], 1, 4) if quick else (list(SETS), options.seeds, ROUNDS)
    need(*[name for name in sets if name != "digits"])
    kept = json.loads(FILE.read_text()) if FILE.exists() and not quick else {}
    runs: dict[str, dict[str, float]] = kept.get("runs", {})
    for seed in range(seeds):
        for name in sets:
            for words, fields in CANDIDATES.items():
                key = f"{name}, {words}, seed {seed}"
                if key not in runs:
                    runs[key] = one(name, fields, seed, rounds)
                    print(key, runs[key], flush=True)
                    if not quick:
                        FILE.write_text(json.dumps(dict(kept, machine=about(), runs=runs), indent=1) + "\n")
    means = chosen(runs, sets, seeds)
    best = max(means, key=lambda words: means[words]["mean"])
    print(table(("validation accuracy", *sets, "mean"), [(words, *each.values()) for words, each in means.items()]))
    print(f"Best in the mean: {best}.")
    if not quick:
        FILE.write_text(
            json.dumps(dict(machine=about(), rounds=rounds, seeds=seeds, runs=runs, means=means, best=best), indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
