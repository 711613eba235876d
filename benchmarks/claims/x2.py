"""X2: on FedAvg's features XCLP is above the model's own predictions (XCLP, tables 1 and 6)."""

import numpy as np
import torch
from common import DATA, SEEDS, TRIAL_SEED, arguments, beats, sentence, spread, verdict, write
from features import embedded, fedavg, predicted, propagated, rate
from propagation import right
from settings import RATES

from grapevine import data

CLAIM = "Labels of new rows that XCLP finds on the features of a network trained by FedAvg are better than the network's own."
PAPER = {
    "table 1, Fed-ISIC2019, n 954/1882/3744/18597": dict(FedAvg="43.78/46.83/52.87/63.78", XCLP="47.48/52.34/59.49/74.22"),
    "table 6, FEMNIST, labelled 0.1/0.2/0.5/1.0": dict(FedAvg="53.09/57.54/61.07/62.90", XCLP="52.39/58.57/63.46/66.18"),
}
SAME = "new rows of which both say the same"
WHY = "The features are those that the last layer divides by class, so propagation in them mostly repeats its decisions."
LABELS, CLIENTS, ROUNDS = (200, 1000, 5000), 10, 30


def nearest(V: np.ndarray, known: np.ndarray) -> float:
    """Per cent of labelled rows whose nearest other labelled row is of their class: how far the features separate those."""
    rows = np.flatnonzero(known >= 0)
    U = V[rows] / np.linalg.norm(V[rows], axis=1, keepdims=True).clip(1e-12)
    S = U @ U.T
    np.fill_diagonal(S, -np.inf)
    return round(100 * float((known[rows][S.argmax(1)] == known[rows]).mean()), 2)


def main() -> None:
    quick = arguments(CLAIM).quick
    rounds, seeds = (2, range(1)) if quick else (ROUNDS, range(SEEDS))
    found, numbers, outcomes, told = data.load("cifar10-lite0", data_dir=DATA), {}, [], []
    for n in LABELS[:1] if quick else LABELS:
        flags = dict(clients=CLIENTS, labels=f"clients:{n}")
        lr = RATES[1]["lr"] if quick else rate(found.split(**flags, seed=TRIAL_SEED), "mlp", rounds, RATES)
        scores = {"network": [], "XCLP": [], "labelled rows beside their class": [], SAME: []}
        for seed in seeds:
            split = found.split(**flags, seed=seed)
            rows, y = (torch.cat([getattr(part, name) for part in split.parts]) for name in ("labelled", "labels"))
            x, known = torch.cat([split.x[rows], found.x_test]), np.append(y.numpy(), np.full(len(found.x_test), -1))
            truth, new = np.append(y.numpy(), found.y_test.numpy()), known < 0
            run = fedavg(split, "mlp", rounds, seed, lr=lr)
            network, spreading = predicted(run, x), propagated(run, x, known, 10, seed)
            scores["network"].append(right(network, truth, new))
            scores["XCLP"].append(right(spreading, truth, new))
            scores[SAME].append(right(spreading, network, new))
            scores["labelled rows beside their class"].append(nearest(embedded(run, x), known))
        gain = beats(scores["XCLP"], scores["network"])
        numbers[f"{n} labels"] = dict({name: spread(each) for name, each in scores.items()}, gain=gain, lr=lr)
        outcomes.append(gain["outcome"])
        same, beside = (spread(scores[each])["mean"] for each in (SAME, "labelled rows beside their class"))
        told.append(f"{sentence(f'{n} labels: XCLP', 'the network', gain)}, both say the same of {same:.0f} % of the new rows, "
                    f"and {beside:.0f} % of the labelled rows lie nearest to one of their class")  # fmt: skip
    setting = f"CIFAR-10 as features of EfficientNet-lite0, MLP (128, 64) trained by FedAvg, {CLIENTS} clients, all in each of "
    setting += f"{ROUNDS} rounds; XCLP on its 64 features of the labelled and the 5000 test rows, 4096 bits, k 10, alpha 0.99"
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why="; ".join(told) + f". {WHY}", seeds=len(seeds), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
