"""X2: on FedAvg's features XCLP is above the model's own predictions (XCLP, tables 1 and 6)."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from common import DATA, RUNS, SEEDS, TRIAL_SEED, arguments, beats, sentence, spread, verdict, write
from features import fedavg, predicted, propagated, rate
from machine import kept
from propagation import right
from torch import nn

from grapevine import data
from grapevine.core.errors import Mistake
from grapevine.core.network import Network
from grapevine.data import Split

CLAIM = "Labels of new rows that XCLP finds on the features of a network trained by FedAvg are better than the network's own."
PAPER = {
    "table 1, Fed-ISIC2019, n 954/1882/3744/18597": dict(FedAvg="43.78/46.83/52.87/63.78", XCLP="47.48/52.34/59.49/74.22"),
    "table 6, FEMNIST, labelled 0.1/0.2/0.5/1.0": dict(FedAvg="53.09/57.54/61.07/62.90", XCLP="52.39/58.57/63.46/66.18"),
}
SAME = "new rows of which both say the same"
FRACTIONS, WRITERS, ROUNDS = (0.2, 0.5, 1.0), 50, 30  # a tenth of 50 writers' rows leaves rare letters without a label
RATES = [dict(lr=lr) for lr in (0.005, 0.01, 0.02, 0.05)]  # with 0.1 some seeds diverge
DIVIDED = "XCLP, labels divided by class size"


def two_layers(seed: int) -> Network:
    """Table 6's network: two linear layers, nothing between them."""
    torch.manual_seed(seed)
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(784, 128)), nn.Linear(128, 62), 128)


def new_rows(found: data.Dataset, split: Split) -> torch.Tensor:
    """Positions of the test rows of the writers in a split."""
    return torch.nonzero(torch.isin(found.group_test, torch.tensor(split.groups))).flatten()


def whole_splits(found: data.Dataset, flags: dict, start: int = 0) -> Iterator[tuple[int, Split]]:
    """Splits by seed in which every class has a label somewhere; seeds that leave one without are passed over."""
    for seed in range(start, start + 50):
        with suppress(Mistake):
            yield seed, found.split(**flags, seed=seed)


def measured(found: data.Dataset, split: Split, seed: int, lr: float, rounds: int) -> dict[str, float]:
    """What the network says of the new rows, what XCLP on its features says, and how often they agree."""
    at = new_rows(found, split)
    rows, y = (torch.cat([getattr(part, name) for part in split.parts]) for name in ("labelled", "labels"))
    x, known = torch.cat([split.x[rows], found.x_test[at]]), np.append(y.numpy(), np.full(len(at), -1))
    truth, new = np.append(y.numpy(), found.y_test[at].numpy()), known < 0
    run = fedavg(split, two_layers(seed), rounds, seed, lr=lr)
    network = predicted(run, x)
    paper, code = (propagated(run, x, known, 62, seed, preset) for preset in ("paper", "code"))
    scores = {"network": network, "XCLP": paper, DIVIDED: code}
    return {name: right(each, truth, new) for name, each in scores.items()} | {SAME: right(paper, network, new)}


def main() -> None:
    quick = arguments(CLAIM).quick
    rounds, seeds, writers = (2, range(1), 5) if quick else (ROUNDS, range(SEEDS), WRITERS)
    found, numbers, outcomes, told = data.load("femnist", data_dir=DATA), {}, [], []
    for fraction in FRACTIONS[-1:] if quick else FRACTIONS:
        flags = dict(clients=writers, partition="natural", labels="all" if fraction == 1 else f"fraction:{fraction}")
        with TemporaryDirectory() as scratch:
            folder = (Path(scratch) if quick else RUNS / "x2-3") / f"{fraction:g}"
            trial = next(whole_splits(found, flags, TRIAL_SEED))[1]
            lr = RATES[2]["lr"]
            if not quick:
                lr = kept(folder / "rate.json", lambda trial=trial: dict(lr=rate(trial, two_layers(TRIAL_SEED), rounds, RATES)))[
                    "lr"
                ]
            runs = [
                kept(folder / f"{seed}.json", partial(measured, found, split, seed, lr, rounds))
                for _, (seed, split) in zip(seeds, whole_splits(found, flags))
            ]
        scores = {name: [one[name] for one in runs] for name in ("network", "XCLP", DIVIDED, SAME)}
        gain = beats(scores["XCLP"], scores["network"])
        numbers[f"{fraction:g} labelled"] = dict({name: spread(each) for name, each in scores.items()}, gain=gain, lr=lr)
        outcomes.append(gain["outcome"])
        told.append(f"{sentence(f'{fraction:.0%} labelled: XCLP', 'the network', gain)}, both say the same of "
                    f"{spread(scores[SAME])['mean']:.0f} % of the new rows")  # fmt: skip
    setting = (
        f"FEMNIST, {WRITERS} writers, two linear layers of 128 and 62 units as in table 6, trained by FedAvg, all writers in "
    )
    setting += f"each of {ROUNDS} rounds; XCLP on the 128 features of the labelled rows and of the same writers' test rows, "
    setting += "4096 bits, k 10, alpha 0.99, preset paper; preset code divides every label by the size of its class"
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=PAPER, verdict=verdict(outcomes),
          why="; ".join(told) + ".", seeds=len(seeds), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
