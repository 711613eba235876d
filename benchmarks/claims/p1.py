"""P1: ProtoFSSL is above what it is compared with (ProtoFSSL, table 3)."""

from statistics import mean

from common import accuracies, arguments, beats, compared, sentence, spread, verdict, write
from settings import LABELLED_ONLY, PAPERS_RATE, PROTO

CLAIM = "ProtoFSSL beats labelled-only FedAvg, FixMatch-FedAvg and FedMatch."
WHY = (
    "In the paper labelled-only FedAvg takes two steps of RMSprop a round on all of a client's labels, and ProtoFSSL ten: both "
    "budgets are here, and FedAvg with its own, five passes of SGD in batches of 50. In the paper both have a learning rate of "
    "0.001. Normalisation: see P6."
)
WORDS = PROTO["i.i.d."].words() + "; also with --partition fedmatch"
OTHERS = ("fedavg", *LABELLED_ONLY, "fixmatch", "fedmatch")
PAPER = {  # table 3, CIFAR-10, 100 clients with 50 labelled and 490 unlabelled images
    "i.i.d.": dict(fedavg=62.2, fixmatch=62.4, fedmatch=57.7, protofssl=67.8),
    "non-i.i.d.": dict(fedavg=62.2, fixmatch=61.8, fedmatch=59.1, protofssl=66.5),
}


def largest_fall(runs: list[dict]) -> float:
    """Points lost between two evaluations of a run's second half, the most of each seed, their mean: how unsteady training is."""
    falls = []
    for one in runs:
        curve = [100 * line["accuracy"] for line in one["history"] if line["accuracy"] is not None]
        curve = curve[len(curve) // 2 :]
        falls.append(max([a - b for a, b in zip(curve, curve[1:])], default=0.0))
    return mean(falls)


def main() -> None:
    quick = arguments(CLAIM).quick
    numbers, outcomes, told = {}, [], []
    for name, setting in PROTO.items():
        runs = compared(setting, ("protofssl", *OTHERS), quick)
        scores = {method: accuracies(runs[method]) for method in runs}
        found = {method: beats(scores["protofssl"], scores[method]) for method in OTHERS}
        numbers[name] = {method: spread(values) for method, values in scores.items()}
        numbers[name]["protofssl against"] = found
        numbers[name]["settings chosen"] = {method: runs[method][0]["settings"] for method in runs}
        outcomes += [each["outcome"] for each in found.values()]
        falls = numbers[name]["largest fall between evaluations"] = {m: round(largest_fall(runs[m]), 1) for m in runs}
        told += [f"{name}: " + "; ".join(sentence("protofssl", method, each) for method, each in found.items()),
                 f"In the second half protofssl falls by {falls['protofssl']:.1f} points between two evaluations, fedavg by "
                 f"{falls['fedavg']:.1f}"]  # fmt: skip
    runs = compared(PROTO["i.i.d."], PAPERS_RATE, quick)
    theirs, rival = (accuracies(runs[method]) for method in PAPERS_RATE)
    found = beats(theirs, rival)
    numbers["i.i.d., the paper's rate"] = dict(zip(("protofssl", OTHERS[1]), (spread(theirs), spread(rival))), found=found)
    outcomes.append(found["outcome"])
    told.append(f"With the paper's rate for both: {sentence('protofssl', OTHERS[1], found)}")
    write(__file__, claim=CLAIM, setting=WORDS, numbers=numbers,
          paper_numbers=PAPER, verdict=verdict(outcomes), why=". ".join(told) + f". {WHY}", quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
