"""A5: FedAnchor reaches a target accuracy in fewer rounds than SemiFL (FedAnchor, figure 3)."""

from common import arguments, beats, compared, some, spread, verdict, write
from settings import ANCHOR, ANCHOR_WORDS

CLAIM = "FedAnchor needs fewer rounds to a target accuracy than SemiFL."
PAPER = "figure 3 (a), (b) and appendix E: curves without printed numbers"


SHARES = (0.9, 0.95, 0.98)  # of the way from chance to what both reach: the lower of the two last accuracies of a seed


def first_round(run: dict, target: float) -> int:
    """The round of the first evaluation from the target on."""
    return next((line["round"] for line in run["history"] if (line.get("accuracy") or 0.0) >= target), run["rounds"])


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ANCHOR, quick):
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        pairs = list(zip(runs["fedanchor"], runs["semifl"], strict=True))
        numbers[name] = {}
        for share in SHARES:
            targets = [0.1 + share * (min(a["accuracy_last"], s["accuracy_last"]) - 0.1) for a, s in pairs]
            rounds = {m: [first_round(run, target) for run, target in zip(runs[m], targets)] for m in runs}
            found = beats(rounds["semifl"], rounds["fedanchor"])
            numbers[name][f"{share:.0%} of the way"] = {m: spread(each) for m, each in rounds.items()} | {"rounds saved": found}
            outcomes.append(found["outcome"])
            told.append(f"{name}, {share:.0%}: FedAnchor {', '.join(map(str, rounds['fedanchor']))}, SemiFL "
                        f"{', '.join(map(str, rounds['semifl']))}")  # fmt: skip
    why = "Rounds by seed to a share of the way from chance to the lower of the two last accuracies: " + "; ".join(told)
    why += ". Rounds are those of evaluations, every second one."
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes), why=why,
          quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
