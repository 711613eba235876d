"""X6: label skew breaks propagation within clients, and not across them (XCLP, table 4)."""

from common import accuracies, arguments, beats, compared, sentence, spread, verdict, write
from settings import XCLP

CLAIM = "When a client's labels are of 5 of the 10 classes, per-client LP falls to labelled-only FedAvg or below; XCLP does not."
PAPER = {  # table 4, CIFAR-10, 100 clients, all with labels, 1000 labels in all
    "i.i.d.": {"fedavg": 55.46, "perclient-lp": 61.75, "xclp": 70.91},
    "label skew": {"fedavg": 50.94, "perclient-lp": 50.94, "xclp": 73.76},
}
METHODS = ("xclp", "fedavg", "perclient-lp")


def main() -> None:
    quick = arguments(CLAIM).quick
    found = {name: compared(setting, METHODS, quick) for name, setting in XCLP.items()}
    numbers = {}
    for name, runs in found.items():
        numbers[name] = {method: spread(accuracies(runs[method])) for method in METHODS}
        numbers[name]["accuracy of the last round"] = {m: spread(accuracies(runs[m], "accuracy_last")) for m in METHODS}
        numbers[name]["pseudo-labels right"] = {m: accuracies(runs[m], "pseudo_label_accuracy") for m in ("xclp", "perclient-lp")}
    skew = {method: accuracies(runs) for method, runs in found["label skew, 1000 labels"].items()}
    right = numbers["label skew, 1000 labels"]["pseudo-labels right"]
    parts = {
        "xclp against per-client LP under skew": beats(skew["xclp"], skew["perclient-lp"]),
        "xclp against labelled-only under skew": beats(skew["xclp"], skew["fedavg"]),
        "pseudo-labels, xclp against per-client LP under skew": beats(right["xclp"], right["perclient-lp"]),
    }
    no_gain = beats(skew["perclient-lp"], skew["fedavg"])["outcome"] != "yes"
    outcomes = [*(each["outcome"] for each in parts.values()), "yes" if no_gain else "no"]
    why = "; ".join(sentence(*name.split(" against "), each) for name, each in parts.items())
    why += f"; per-client LP {'gains nothing' if no_gain else 'still gains'} over labelled-only under skew."
    last = {method: ", ".join(f"{x:.1f}" for x in each["seeds"]) for method, each in
            numbers["label skew, 1000 labels"]["accuracy of the last round"].items()}  # fmt: skip
    why += (
        " That is the round that is best on validation, where the first stage, on labels alone, competes. In the last round"
        f" under skew, by seed: per-client LP {last['perclient-lp']} %, xclp {last['xclp']} %, labelled-only {last['fedavg']} %."
    )
    write(__file__, claim=CLAIM, setting=XCLP["label skew, 1000 labels"].words(), numbers=dict(numbers, **parts),
          paper_numbers=PAPER, verdict=verdict(outcomes), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
