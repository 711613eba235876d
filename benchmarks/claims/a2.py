"""A2: FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify (FedAnchor, figure 3)."""

from statistics import mean

from common import arguments, beats, compared, sentence, spread, verdict, write
from settings import ANCHOR, ANCHOR_IMAGES, ANCHOR_WORDS

CLAIM = "FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify."
PAPER = "figure 3 (c), (d): curves without printed numbers; SemiFL trains on fewer than 60 of a client's 500 samples (figure 2)"


def qualified(run: dict) -> float:
    """Samples a client and round, over the evaluations."""
    return mean([line["qualified"] for line in run["history"] if line.get("qualified") is not None] or [0.0])


def right(run: dict) -> float:
    """The share of right pseudo-labels among those that qualified, over the evaluations together."""
    seen = [line for line in run["history"] if line.get("pseudo_label_accuracy") is not None]
    used = sum(line["qualified"] for line in seen)
    return sum(line["qualified"] * line["pseudo_label_accuracy"] for line in seen) / used if used else 0.0


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in (ANCHOR | ANCHOR_IMAGES).items():
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        labels = {m: [round(100 * right(run), 2) for run in runs[m]] for m in runs}
        used = {m: [round(qualified(run), 2) for run in runs[m]] for m in runs}
        found = dict(accuracy=beats(labels["fedanchor"], labels["semifl"]), qualified=beats(used["fedanchor"], used["semifl"]))
        numbers[name] = dict(found, pseudo_labels_right={m: spread(v) for m, v in labels.items()},
                             samples={m: spread(v) for m, v in used.items()})  # fmt: skip
        outcomes += [each["outcome"] for each in found.values()]
        told.append(f"{name}: {sentence('accuracy of fedanchor', 'semifl', found['accuracy'])}; samples a client and round: "
                    f"FedAnchor {mean(used['fedanchor']):.0f}, SemiFL {mean(used['semifl']):.0f}")  # fmt: skip
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=". ".join(told) + ". A mean cosine of 0.6 lets in more rows than a softmax of 0.8 or 0.95, and more wrong ones.",
          quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
