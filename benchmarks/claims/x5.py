"""X5: FedAvg+XCLP is above what it is compared with (XCLP, table 4)."""

from statistics import mean

from common import accuracies, arguments, beats, compared, sentence, some, spread, verdict, write
from settings import XCLP, make_mnist_part

CLAIM = "FedAvg+XCLP beats labelled-only FedAvg, per-client LP, network pseudo-labels, FedMatch, FedSiam and FedSem+."
OTHERS = ("fedavg", "perclient-lp", "network", "fedmatch", "fedsiam", "fedsem")
ORDERED = {name: one for name, one in XCLP.items() if name.startswith("MNIST") or "skew" not in name}
PAPER = {  # table 4, CIFAR-10, 100 clients, all with labels, 1000 labels in all
    "i.i.d.": {
        "fedavg": 55.46,
        "perclient-lp": 61.75,
        "network": 60.12,
        "fedmatch": 50.93,
        "fedsiam": 67.02,
        "fedsem": 59.98,
        "xclp": 70.91,
    },
    "non-i.i.d.": {
        "fedavg": 50.94,
        "perclient-lp": 50.94,
        "network": 60.60,
        "fedmatch": 50.71,
        "fedsiam": 67.85,
        "fedsem": 60.93,
        "xclp": 73.76,
    },
}


def remark(runs: dict[str, list[dict]]) -> str:
    """What bounds the gain: how good the pseudo-labels are, and how often stage 2 beat the model of stage 1 on validation."""
    right = mean(accuracies(runs["xclp"], "pseudo_label_accuracy") or [0.0])
    alone = mean(accuracies(runs["fedavg"]))
    first = sum(2 * one["best_round"] <= one["rounds"] for one in runs["xclp"])
    text = f"XCLP's last pseudo-labels are right for {right:.1f} %, labelled-only FedAvg is for {alone:.1f} %"
    if right <= alone:
        text += ", so that they tell it little that it does not know"
    text += f"; in {first} of {len(runs['xclp'])} runs the model of stage 1 was the best on validation"
    passed = runs["xclp"][0].get("passed_over")
    return text + (f"; {' and '.join(passed)} ended at chance with one of the seeds and was passed over" if passed else "")


def main() -> None:
    quick = arguments(CLAIM).quick
    if not quick:
        make_mnist_part()
    numbers, outcomes, told = {}, [], []
    for name, setting in some(ORDERED, quick):
        others = [method for method in OTHERS if method in setting.trials]
        runs = compared(setting, ("xclp", *others), quick)
        scores = {method: accuracies(runs[method]) for method in runs}
        numbers[name] = {method: spread(values) for method, values in scores.items()}
        found = {method: beats(scores["xclp"], scores[method]) for method in others}
        numbers[name]["xclp against"] = found
        numbers[name]["pseudo-labels right"] = {
            method: accuracies(runs[method], "pseudo_label_accuracy") for method in ("xclp", "perclient-lp", "network", "fedsem")
        }
        numbers[name]["settings chosen"] = {method: runs[method][0]["settings"] for method in runs}
        numbers[name]["accuracy of the last round"] = {
            method: spread(accuracies(runs[method], "accuracy_last")) for method in runs
        }
        outcomes += [each["outcome"] for each in found.values()]
        told += [f"{name}: " + "; ".join(sentence("xclp", method, each) for method, each in found.items()), remark(runs)]
        settings = "; ".join(f"{done}: {ORDERED[done].words()}" for done in numbers)  # each takes long, and what is done counts
        write(__file__, claim=CLAIM, setting=settings, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
              why=". ".join(told) + ".", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
