"""A2: FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify (FedAnchor, figure 3)."""

from statistics import mean

from common import arguments, beats, compared, sentence, some, spread, verdict, write
from settings import ANCHOR, ANCHOR_WORDS

CLAIM = "FedAnchor's pseudo-labels are more accurate than SemiFL's, and more samples qualify."
PAPER = "figure 3 (c), (d): curves without printed numbers; SemiFL trains on fewer than 60 of a client's 500 samples (figure 2)"


def qualified(run: dict) -> float:
    """Samples a client and round, over the evaluations."""
    return mean([line["qualified"] for line in run["history"] if line.get("qualified") is not None] or [0.0])


def right_of_all(run: dict) -> float:
    """The share of right guesses among all rows, qualified or not, over the evaluations together."""
    seen = [line["pseudo_labels_right_of_all"] for line in run["history"] if "pseudo_labels_right_of_all" in line]
    return mean(seen) if seen else 0.0


def right(run: dict) -> float:
    """The share of right pseudo-labels among those that qualified, over the evaluations together."""
    seen = [line for line in run["history"] if line.get("pseudo_label_accuracy") is not None]
    used = sum(line["qualified"] for line in seen)
    return sum(line["qualified"] * line["pseudo_label_accuracy"] for line in seen) / used if used else 0.0


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ANCHOR, quick):
        runs = compared(setting, ("fedanchor", "semifl"), quick)
        ways = dict(right_of_those_used=lambda run: 100 * right(run), right_of_all=lambda run: 100 * right_of_all(run),
                    samples_a_client_and_round=qualified)  # fmt: skip
        values = {way: {m: [round(of(run), 2) for run in runs[m]] for m in runs} for way, of in ways.items()}
        found = {way: beats(each["fedanchor"], each["semifl"]) for way, each in values.items()}
        numbers[name] = {way: {m: spread(each[m]) for m in each} | {"fedanchor against semifl": found[way]}
                         for way, each in values.items()}  # fmt: skip
        outcomes += [each["outcome"] for each in found.values()]
        more = {m: mean(each) for m, each in values["samples_a_client_and_round"].items()}
        told.append(f"{name}: {sentence('FedAnchor, of the pseudo-labels used,', 'SemiFL', found['right_of_those_used'])}; "
                    f"{sentence('of all it', 'SemiFL', found['right_of_all'])}; samples a client and round: FedAnchor "
                    f"{more['fedanchor']:.0f}, SemiFL {more['semifl']:.0f}")  # fmt: skip
    why = ". ".join(told) + ". Of those used the two are judged on different rows: a mean cosine of 0.6 lets in more than a "
    why += "softmax of 0.8 or 0.95, hard ones among them; of all rows they are judged on the same."
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes), why=why,
          quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
