"""Small federations for tests: agreements, and rows of parties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from grapevine.data import load
from grapevine.data.columns import numbers
from grapevine.data.tables import write_csv
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import CleanSettings, LabelSettings
from grapevine.parties.agreement import Agreement

NAMES = ("east", "north", "south")
STEPS = ["keys", "meet", "pool", "share", "receive"]  # of the label job
COLUMNS = ("a", "b", "c", "d")
LABEL = dict(LabelSettings(method="xclp", secure="psm", bits=64, neighbours=3).agreed())
TRAIN = dict(model="linear", rounds=4, per_round=10, evaluate_every=0, patience=0, set=dict(lr="0.05", epochs="1"))
CLEAN = dict(CleanSettings(model="linear", epochs=20, tau=0.6).agreed())


def label_agreement(**changes: object) -> Agreement:
    return replace(
        Agreement("trial", "label", 3, LABEL, (4,), features=COLUMNS, classes=("0", "1", "2"), parties=NAMES), **changes
    )


def train_agreement(**changes: object) -> Agreement:
    return replace(label_agreement(job="train", method="fedavg", settings=TRAIN, quorum=2), **changes)


def clean_agreement(**changes: object) -> Agreement:
    return replace(label_agreement(job="clean", settings=CLEAN, server=True, quorum=2), **changes)


def blobs(name: str, seed: int = 0, n: int = 30, known: bool = False) -> Party:
    """Three blobs, two thirds labelled, or all."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = draw.normal(size=(n, len(COLUMNS))) + 4 * np.eye(3, len(COLUMNS))[y]
    labels = [str(c) if known or i % 9 not in (0, 4, 8) else None for i, c in enumerate(y)]
    return Party(name, x, labels, [f"r{i}" for i in range(n)], columns=numbers(COLUMNS))


def digits(name: str, at: int, n: int, known: int = 3) -> Party:
    """A table of handwritten digits, every third row labelled; its truth is known."""
    data, own = load("digits"), np.arange(at, at + n)
    names: list[str | None] = [data.classes[c] for c in data.y[own].tolist()]
    labels = [label if i % known == 0 else None for i, label in enumerate(names)]
    x = data.x[own].flatten(1).numpy().astype(np.float64)
    return Party(name, x, labels, [f"row{r}" for r in own], names, columns=numbers(f"p{j}" for j in range(64)))


def digits_agreement(**changes: object) -> Agreement:
    """FedAvg on these tables, two rounds, a linear model, two parties a round."""
    settings = dict(model="linear", rounds=2, per_round=2, set=dict(epochs="1"))
    made = Agreement("test", "train", 2, settings, (64,), "fedavg", tuple(f"p{j}" for j in range(64)),
                     tuple(map(str, range(10))), seed=5, parties=("party-01", "party-02", "party-03"))  # fmt: skip
    return replace(made, **changes)


def write_table(path: Path, who: Party, columns: tuple[str, ...] | None = None, label: str = "kind") -> Path:
    own = [column.name for column in who.columns]
    write_csv(path, {"id": who.ids, label: who.labels, **{name: who.x[:, own.index(name)] for name in columns or own}})
    return path


def write_patients(path: Path, who: Party, label: str = "kind") -> Path:
    """A table as people have them, beside the numbers of `who`: text, of which some is its own and some rare; dates; and
    missing values of each kind."""
    draw, n = np.random.default_rng(len(who.name)), len(who.ids)
    kinds = [int(name) for name in who.truth if name] if who.truth else [i % 3 for i in range(n)]  # as `blobs` has them
    own = [f"only {who.name}", f"rare {who.name}"]
    ward = [f"ward {'abc'[k % 3]}" if i % 7 else own[0] if i % 49 else own[1] for i, k in enumerate(kinds)]
    days = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(n)]
    cells = {column.name: [f"{value:.4f}" for value in who.x[:, j]] for j, column in enumerate(who.columns)}
    gaps = dict(ward=ward, day=days, age=[str(int(age)) for age in draw.normal(50, 9, n)])
    for step, each in zip((6, 11, 13), gaps.values()):
        each[::step] = [""] * len(each[::step])
    write_csv(path, {"id": who.ids, label: who.labels, **gaps, **cells})
    return path
