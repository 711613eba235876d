"""Which parts of FedAvg+XCLP matter: the small CNN on Fashion-MNIST, 100 clients, 1000 labels, 3 seeds.

    python benchmarks/xclp_parts.py [--quick]

From the fields that claim X5's trials chose, one part is changed at a time: clients in the graph, the preset (class weights,
cubed similarities, labels divided by their class's count), augmentation, two streams of batches. Runs are shared with claim X5.
Writes xclp_parts.json beside itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "claims"))

from common import SEEDS, accuracies, beats, run, spread, tuned  # noqa: E402
from machine import about, table, write  # noqa: E402
from settings import FASHION  # noqa: E402


def variants(chosen: str) -> dict[str, str]:
    """What is changed, and the METHOD of compare that has it."""
    fields = chosen.partition(":")[2]
    other = "code" if "preset=paper" in fields else "paper"
    return {
        "as chosen": chosen,
        "20 clients in the graph": f"{chosen},graph_clients=20",
        f"preset {other}": f"{chosen},preset={other}",
        "no augmentation": f"{chosen},augment=false",
        "one stream of batches": f"{HERE / 'one_stream.py'}:OneStream:{fields}",
    }


def measure(name: str, quick: bool) -> dict[str, Any]:
    setting = FASHION[name]
    specs = variants(tuned(setting, ["xclp"], quick)["xclp"][0])
    if quick:
        specs = dict(list(specs.items())[-1:])
    seeds, flags = ([0], dict(rounds=2)) if quick else (list(range(SEEDS)), {})
    runs = run(setting, list(specs.values()), f"{setting.name}-parts-quick" if quick else setting.name, seeds, flags)
    scores = {what: accuracies(runs[spec]) for what, spec in specs.items()}
    first = next(iter(scores.values()))
    return {
        what: dict(
            accuracy=spread(values),
            against_as_chosen=beats(values, first) if values is not first else None,
            pseudo_labels_right=spread(accuracies(runs[specs[what]], "pseudo_label_accuracy")),
        )
        for what, values in scores.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, two rounds, one variant; writes nothing")
    quick = parser.parse_args().quick
    parts = {name: measure(name, quick) for name in (list(FASHION)[:1] if quick else FASHION)}
    for name, each in parts.items():
        rows = [(what, one["accuracy"]["mean"], one["accuracy"]["std"], one["pseudo_labels_right"]["mean"])
                for what, one in each.items()]  # fmt: skip
        print(name, table(("", "accuracy", "±", "pseudo-labels right"), rows), sep="\n")
    if not quick:
        setting = next(iter(FASHION.values())).words()
        write(__file__, dict(about=about(), setting=setting, seeds=SEEDS, parts=parts))


if __name__ == "__main__":
    main()
