"""A5: FedAnchor reaches a target accuracy in fewer rounds than SemiFL (FedAnchor, figure 3)."""

from statistics import mean

from common import arguments, compared, verdict, write
from settings import ANCHOR

CLAIM = "FedAnchor needs fewer rounds to a target accuracy than SemiFL."
PAPER = "figure 3 (a), (b) and appendix E: curves without printed numbers"


def first_round(run: dict, target: float) -> int | None:
    return next((line["round"] for line in run["history"] if (line.get("accuracy") or 0.0) >= target), None)


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes = {}, []
    for name, setting in ANCHOR.items():
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        # The target is what both reach: nine tenths of the way from chance to the lower of the two last accuracies.
        lower = min(mean(run["accuracy_last"] for run in runs[m]) for m in runs)
        target = 0.1 + 0.9 * (lower - 0.1)
        rounds = {m: [first_round(run, target) for run in runs[m]] for m in runs}
        pairs = [(a, s) for a, s in zip(rounds["fedanchor"], rounds["semifl"], strict=True) if a is not None and s is not None]
        fewer = len(pairs) == len(runs["semifl"]) and all(a < s for a, s in pairs)
        numbers[name] = dict(target=round(100 * target, 1), rounds=rounds)
        outcomes.append("yes" if fewer else "no")
    why = "; ".join(f"{name}: to {each['target']} %: {each['rounds']}" for name, each in numbers.items())
    write(__file__, claim=CLAIM, setting=next(iter(ANCHOR.values())).words() + "; and with --partition dirichlet:0.1",
          numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=why + ". Rounds by seed, evaluated every 4; fewer in every seed counts.", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
