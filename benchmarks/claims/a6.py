"""A6: SemiFL's pseudo-labels degenerate late in training, FedAnchor's do not (FedAnchor, figure 4)."""

from statistics import mean

from common import arguments, beats, compared, spread, verdict, write
from settings import ANCHOR

CLAIM = "SemiFL's pseudo-labels get worse late in training, FedAnchor's do not."
PAPER = "figure 4 (b), CIFAR-100, 2500 anchors: a curve without printed numbers"


def peak_and_last(run: dict) -> tuple[float, float]:
    """Per cent right at the best evaluation, and in the mean of the last two."""
    seen = [100 * line["pseudo_label_accuracy"] for line in run["history"] if line.get("pseudo_label_accuracy") is not None]
    return (max(seen), sum(seen[-2:]) / len(seen[-2:])) if seen else (0.0, 0.0)


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in ANCHOR.items():
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        lost = {m: [round(p - last, 2) for p, last in map(peak_and_last, runs[m])] for m in runs}
        worse = beats(lost["semifl"], lost["fedanchor"])
        numbers[name] = dict(points_lost_since_the_peak={m: spread(values) for m, values in lost.items()}, difference=worse)
        outcomes.append(worse["outcome"])
        told.append(f"{name}: since their best evaluation SemiFL's lost {mean(lost['semifl']):.1f} points, FedAnchor's "
                    f"{mean(lost['fedanchor']):.1f}")  # fmt: skip
    write(__file__, claim=CLAIM, setting=next(iter(ANCHOR.values())).words() + "; and with --partition dirichlet:0.1",
          numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes), why=". ".join(told) + ".", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
