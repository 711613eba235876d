"""The data of `grapevine demo`: scikit-learn's digits, dealt out to parties."""

from __future__ import annotations

import numpy as np

from grapevine.data import load
from grapevine.jobs.reading import Party

LABELLED = 0.1
PARTIES, CENTRES = 5, "150"  # centres of each party in the graph: half the rows, a quarter of the pairs


def digits_parties(count: int, seed: int = 0) -> list[Party]:
    """The 1,438 training digits over `count` parties, a tenth of each party's labelled."""
    digits = load("digits")
    X = digits.x.flatten(1).numpy().astype(np.float64)
    names = [digits.classes[c] for c in digits.y.tolist()]
    parties = []
    for i, rows in enumerate(np.array_split(np.random.default_rng(seed).permutation(len(X)), count)):
        truth = [names[r] for r in rows]
        labels = [name if n < LABELLED * len(rows) else None for n, name in enumerate(truth)]
        parties.append(Party(f"party-{i + 1:02d}", X[rows], labels, [str(r) for r in rows], truth))
    return parties
