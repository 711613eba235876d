"""A2: FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify (FedAnchor, figure 3)."""

from statistics import mean

from common import arguments, beats, compared, sentence, spread, verdict, write
from settings import ANCHOR, ANCHOR_IMAGES, ANCHOR_WORDS

CLAIM = "FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify."
PAPER = "figure 3 (c), (d): curves without printed numbers; SemiFL trains on fewer than 60 of a client's 500 samples (figure 2)"


def over_rounds(run: dict, key: str) -> float:
    """The mean over the evaluations that have it."""
    return mean([line[key] for line in run["history"] if line.get(key) is not None] or [0.0])


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in (ANCHOR | ANCHOR_IMAGES).items():
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        right = {m: [round(100 * over_rounds(run, "pseudo_label_accuracy"), 2) for run in runs[m]] for m in runs}
        used = {m: [round(over_rounds(run, "qualified"), 2) for run in runs[m]] for m in runs}
        found = dict(accuracy=beats(right["fedanchor"], right["semifl"]), qualified=beats(used["fedanchor"], used["semifl"]))
        numbers[name] = dict(found, pseudo_labels_right={m: spread(v) for m, v in right.items()},
                             samples={m: spread(v) for m, v in used.items()})  # fmt: skip
        outcomes += [each["outcome"] for each in found.values()]
        told.append(f"{name}: {sentence('accuracy of fedanchor', 'semifl', found['accuracy'])}; samples a client and round: "
                    f"FedAnchor {mean(used['fedanchor']):.0f}, SemiFL {mean(used['semifl']):.0f}")  # fmt: skip
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=". ".join(told) + ".", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
