"""The supervised methods and their bounds on scikit-learn's digits: 10 clients, 20 rounds, 100 labels in all, 5 seeds.

    python benchmarks/supervised.py [--quick]

Default fields, the small CNN, i.i.d. and Dirichlet 0.3. Writes supervised.json beside itself and the table of
docs/methods/supervised.md from it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev

from machine import ROOT, about, fill, write

import grapevine as gv

PARTITIONS = ("iid", "dirichlet:0.3")
SETTINGS = {"clients:100": ("fedavg", "fedprox", "scaffold", "supervised", "alone"), "server:100": ("server-only",)}


def measure(seeds: int, rounds: int) -> dict[str, dict]:
    """By method: accuracy in per cent by partition and seed, bytes of a run (the mean over its runs)."""
    out: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for labels, methods in SETTINGS.items():
            for partition in PARTITIONS:
                where = Path(folder) / f"{labels}-{partition}".replace(":", "-")
                made = gv.compare(methods, "digits", where, seeds=seeds, rounds=rounds, clients=10, partition=partition,
                                  labels=labels, model="cnn", bounds=False)  # fmt: skip
                if made.failed:
                    raise SystemExit(f"{made.failed[0]['folder']}: {made.failed[0]['error']}")
                for method in methods:
                    runs = [json.loads((where / one["folder"] / "result.json").read_text())
                            for one in made.runs if one["method"] == method]  # fmt: skip
                    each = out.setdefault(method, dict(accuracy={}, bytes_up=[], bytes_down=[]))
                    each["accuracy"][partition] = [round(100 * run["accuracy"], 2) for run in runs]
                    for name in ("bytes_up", "bytes_down"):
                        each[name] += [run[name] for run in runs]
    for each in out.values():
        each |= {name: mean(each[name]) for name in ("bytes_up", "bytes_down")}
    return out


def table(methods: dict[str, dict]) -> str:
    lines = ["| method | " + " | ".join(f"`{each}`" for each in PARTITIONS) + " | MB up | MB down |",
             "|---|" + "---|" * (len(PARTITIONS) + 2)]  # fmt: skip
    for name, each in methods.items():
        scores = [f"{mean(s):.1f} ± {stdev(s):.1f}" if len(s) > 1 else f"{s[0]:.1f}" for s in each["accuracy"].values()]
        costs = [f"{each['bytes_up'] / 1e6:.3g}", f"{each['bytes_down'] / 1e6:.3g}"]
        lines.append(f"| `{name}` | " + " | ".join(scores + costs) + " |")
    return "\n".join(lines)


def document(result: dict, root: Path = ROOT) -> None:
    fill(root / "docs" / "methods" / "supervised.md", "supervised.py", table(result["methods"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: one seed, two rounds; writes nothing")
    quick = parser.parse_args().quick
    result = dict(machine=about(), methods=measure(*((1, 2) if quick else (5, 20))))
    print(table(result["methods"]))
    if not quick:
        write(__file__, result)
        document(result)


if __name__ == "__main__":
    main()
