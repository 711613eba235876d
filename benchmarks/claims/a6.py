"""A6: SemiFL's pseudo-labels degenerate late in training, FedAnchor's do not (FedAnchor, figure 4)."""

from statistics import mean

from common import arguments, beats, compared, some, spread, verdict, write
from settings import ANCHOR, ANCHOR_WORDS

CLAIM = "SemiFL's pseudo-labels get worse late in training, FedAnchor's do not."
PAPER = "figure 4 (b), CIFAR-100, 2500 anchors: a curve without printed numbers"


def lost_late(run: dict) -> float:
    """Points between the middle third of the evaluations and the last third; below 0 if the labels got better."""
    seen = [100 * line["pseudo_label_accuracy"] for line in run["history"] if line.get("pseudo_label_accuracy") is not None]
    third = max(1, len(seen) // 3)
    return mean(seen[third : 2 * third] or seen) - mean(seen[-third:]) if seen else 0.0


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ANCHOR, quick):
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        lost = {m: [round(lost_late(run), 2) for run in runs[m]] for m in runs}
        worse = {m: beats(each, [0.0] * len(each)) for m, each in lost.items()}
        numbers[name] = dict(points_lost_late={m: spread(values) for m, values in lost.items()}, above_nothing=worse)
        outcomes += [worse["semifl"]["outcome"], "no" if worse["fedanchor"]["outcome"] == "yes" else "yes"]
        told.append(f"{name}: SemiFL's lost {mean(lost['semifl']):.1f} ± {worse['semifl']['standard_error']:.1f} points, "
                    f"FedAnchor's {mean(lost['fedanchor']):.1f} ± {worse['fedanchor']['standard_error']:.1f}")  # fmt: skip
    if "yes" not in outcomes[::2]:  # where SemiFL's do not degenerate either, FedAnchor avoids nothing
        outcomes = ["no"]
    why = "From the middle third of the evaluations to the last third, " + "; ".join(told)
    why += ". The paper's curve falls after some 300 rounds; here there are 20."
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes), why=why,
          quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
