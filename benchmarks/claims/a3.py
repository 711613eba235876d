"""A3: FedAnchor needs its contrastive loss (FedAnchor, table 3)."""

from common import accuracies, arguments, beats, compared, sentence, some, spread, verdict, write
from settings import ANCHOR, ANCHOR_WORDS

CLAIM = "The label contrastive loss is needed: without it FedAnchor is lower."
PAPER = {"CIFAR-10, ResNet-18, 500 anchors, Dirichlet 0.1": {"semifl": 68.96, "without": 70.90, "fedanchor": 72.75}}
WITHOUT = "fedanchor:contrastive=false"


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ANCHOR, quick):
        runs = compared(setting, ("fedanchor", WITHOUT), quick)
        scores = {method: accuracies(runs[method]) for method in runs}
        found = beats(scores["fedanchor"], scores[WITHOUT])
        numbers[name] = dict({method: spread(values) for method, values in scores.items()}, difference=found)
        outcomes.append(found["outcome"])
        told.append(f"{name}: {sentence('fedanchor', 'itself without the loss', found)}")
    write(__file__, claim=CLAIM, setting=ANCHOR_WORDS, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why=". ".join(told) + ".", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
