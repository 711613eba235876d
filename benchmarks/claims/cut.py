"""MNIST and Fashion-MNIST with a set number of rows a client, for MP-SSFL's claims, and the small CNN's runs on them.

Runs are kept in `.runs/mp-ssfl`, and one that is there is not repeated. All methods of these claims train by FedAvg, so one
learning rate is chosen for each data set, on validation accuracy: 4 trials of FedAvg on true labels, with a seed that is not
used again and a third of the rounds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import DATA, RUNS, SHARE_OF_ROUNDS, TRIAL_SEED
from torch import Tensor

import grapevine as gv
from grapevine import data, methods
from grapevine.core import wire
from grapevine.core.store import FileStore, Memory
from grapevine.data.split import Part, Split
from grapevine.learn import networks as models
from grapevine.learn.networks import Network

SETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
MODEL = "cnn"
CLIENTS, ROUNDS, VALIDATION = 10, 10, 1000
FEDAVG = dict(epochs=1, batch=10)
RATES = (0.01, 0.03, 0.1, 0.3)
WORDS = f"small CNN, i.i.d., all clients in each of {ROUNDS} rounds, 1 epoch, batch 10; 10,000 test images"


@contextmanager
def kept(quick: bool) -> Iterator[Path]:
    """Where runs are: for good, or for as long as this lasts."""
    if quick:
        with TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield RUNS / "mp-ssfl"


load = functools.cache(lambda name: data.load(name, data_dir=DATA))


def cut(
    name: str, each: int, server: int, seed: int, given: str = "", foreign: str = "", clients: int = CLIENTS, **flags: Any
) -> Split:
    """Clients with so many rows each, beside them the server's labelled rows and those for validation.

    `given` are the clients' labels, as in "clients:all"; `foreign` what they hold besides, as in "mnist:0.5".
    """
    whole, n = load(name), clients * each + server + VALIDATION
    at = torch.randperm(len(whole.x), generator=torch.Generator().manual_seed(seed))[:n]
    small = replace(whole, x=whole.x[at], y=whole.y[at], group=None, group_test=None, group_names=())
    if foreign:
        flags = dict(flags, irrelevant=foreign, foreign=load(foreign.partition(":")[0]))
    labels = ",".join(filter(None, (f"server:{server}", given)))
    return small.split(clients=clients, labels=labels, validation=VALIDATION / n, seed=seed, **flags)


def with_server(split: Split, server: int) -> Split:
    """The same clients, and a server that holds only so many of its rows, equally many of each class."""
    rows, y = split.server.labelled, split.server.labels
    each = server // len(split.dataset.classes)
    at = torch.cat([torch.nonzero(y == c).flatten()[:each] for c in y.unique()])
    part = Part(rows[at], y[at], split.server.unlabelled)
    return replace(split, server=part, settings=dict(split.settings, labels=f"server:{server}"))


def train(out: Path, method: str, split: Split, seed: int, rounds: int = ROUNDS, **fields: Any) -> dict[str, Any]:
    """result.json with the history, of a run that is made or there; evaluated twice."""
    print(out.name, flush=True)
    run = gv.train(methods.find(method)(**fields), split, model=MODEL, rounds=rounds, per_round=len(split.parts), seed=seed,
                   evaluate_every=max(1, rounds // 2), latent=0, out=out, resume=True)  # fmt: skip
    return dict(run.result, history=run.history)


def rate(where: Path, name: str, quick: bool) -> float:
    """The learning rate of FedAvg on true labels that is best on validation."""
    if quick:
        return RATES[1]
    split, rounds = cut(name, 500, 1000, TRIAL_SEED), ROUNDS // SHARE_OF_ROUNDS

    def score(lr: float) -> float:
        run = train(where / f"{name}-trial-{lr:g}", "supervised", split, TRIAL_SEED, rounds, lr=lr, **FEDAVG)
        return max(line["validation_accuracy"] for line in run["history"])

    return max(RATES, key=score)


def checkpoint(out: Path) -> tuple[dict[str, Any], FileStore]:
    """The manifest of a run's checkpoint, and what it names."""
    return json.loads((out / "checkpoint" / "manifest.json").read_text()), FileStore(out / "checkpoint" / "objects")


def remembered(out: Path, split: Split, name: str) -> Iterator[tuple[Tensor, Any]]:
    """What each client of a run remembers under this name, with its rows: labelled ones, then the others."""
    manifest, store = checkpoint(out)
    for i, part in enumerate(split.parts):
        yield torch.cat([part.labelled, part.unlabelled]), Memory(store, manifest["transport"]["memory"][str(i)])[name]


def classifier(out: Path, split: Split) -> tuple[Network, Tensor]:
    """The server's classifier of a run of MP-SSFL, and which classes it has seen."""
    manifest, store = checkpoint(out)
    state = wire.decode(store.get(manifest["state"]))
    model = models.build(MODEL, tuple(split.dataset.x.shape[1:]), len(split.dataset.classes))
    return model.load(state["classifier"]), state["known"]
