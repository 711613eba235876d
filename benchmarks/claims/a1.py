"""A1: FedAnchor is above what it is compared with (FedAnchor, tables 1 and 2)."""

import json
from pathlib import Path

from common import accuracies, arguments, beats, compared, sentence, some, spread, verdict, write
from settings import ANCHOR, ANCHOR_WORDS

CLAIM = "FedAnchor beats SemiFL, FedAvg+FixMatch and FedCon, i.i.d. and not."
OTHERS = ("semifl", "fixmatch", "fedcon")
PAPER = {  # table 2, CIFAR-10, WRN28x2, 250 anchors
    "i.i.d.": dict(fixmatch=46.59, fedcon=39.43, semifl=71.83, fedanchor=79.52),
    "Dirichlet 0.1": dict(fixmatch=41.09, fedcon=41.11, semifl=49.97, fedanchor=52.93),
}
PARTS = Path(__file__).parent.parent / "anchor_parts.json"


def servers() -> str:
    """What anchor_parts.py found of the two methods' servers, if it has run."""
    if not PARTS.exists():
        return ""
    means = {name: one["accuracy"]["mean"] for name, one in json.loads(PARTS.read_text())["parts"].items()}
    told = "; ".join(f"{name}: {mean:.1f} %" for name, mean in means.items())
    return (" On Fashion-MNIST, i.i.d., the difference to SemiFL is the server's training: FedAnchor's makes one pass a round "
            "over strong views, SemiFL's five over weak ones. `python benchmarks/anchor_parts.py`, one by one: "
            f"{told}.")  # fmt: skip


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ANCHOR, quick):
        runs = compared(setting, ("fedanchor", *OTHERS, "server-only"), quick)
        scores = {method: accuracies(runs[method]) for method in runs}
        found = {method: beats(scores["fedanchor"], scores[method]) for method in OTHERS}
        numbers[name] = {method: spread(values) for method, values in scores.items()}
        numbers[name]["fedanchor against"] = found
        numbers[name]["settings chosen"] = {method: runs[method][0]["settings"] for method in runs}
        outcomes += [each["outcome"] for each in found.values()]
        told += [f"{name}: " + "; ".join(sentence("fedanchor", method, each) for method, each in found.items())]
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=". ".join(told) + "." + servers(), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
