"""X4: unlabelled training points in the graph help (XCLP, table 3)."""

import numpy as np
from common import SEEDS, arguments, beats, sentence, spread, verdict, write
from propagation import bits_of, cifar, draw, hamming_graph, right
from propagation import spread as propagate

CLAIM = "Unlabelled training points in the graph help to label new points."
PAPER = {
    "labelled only": {"0.05": 47.48, "0.1": 52.34, "0.2": 59.49},
    "labelled and unlabelled": {"0.05": 49.50, "0.1": 53.78, "0.2": 61.09},
}
LABELS = (100, 500, 1000)


def main() -> None:
    quick = arguments(CLAIM).quick
    rows, new_rows = (500, 200) if quick else (10000, 2500)
    scores = {n: {"labelled only": [], "labelled and unlabelled": []} for n in (LABELS[:1] if quick else LABELS)}
    for seed in range(1 if quick else SEEDS):
        V, y, _, new = cifar(rows, new_rows, 10, seed)
        bits = bits_of(V, seed=seed)
        W = hamming_graph(bits)
        for n, both in scores.items():
            known = draw(y, ~new, n, seed)
            both["labelled and unlabelled"].append(right(propagate(W, known, 10), y, new))
            some = np.flatnonzero(new | (known >= 0))
            both["labelled only"].append(right(propagate(hamming_graph(bits[some]), known[some], 10), y[some], new[some]))
    found = {n: beats(both["labelled and unlabelled"], both["labelled only"]) for n, both in scores.items()}
    numbers = {f"{n} labels": {name: spread(values) for name, values in both.items()} for n, both in scores.items()}
    why = "; ".join(sentence(f"{n} labels: with unlabelled points it", "without", each) for n, each in found.items()) + "."
    setting = "10,000 training and 2,500 new images of CIFAR-10 as features of EfficientNet-lite0, 4096 bits, k 10, alpha 0.99, "
    setting += "preset code"
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=PAPER,
          verdict=verdict([each["outcome"] for each in found.values()]), why=why, quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
