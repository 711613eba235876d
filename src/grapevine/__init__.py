"""Federated learning when labels are scarce.

    import grapevine as gv
    split = gv.data.load("digits").split(clients=10, labels="clients:100")
    run = gv.train(gv.methods.FedAvg(), split, rounds=20)
    print(run.result["accuracy"])

Names are imported when they are asked for, so that `grapevine --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from grapevine.core.version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from grapevine.core import Method
    from grapevine.data.split import Split
    from grapevine.jobs.clean import CleanResult
    from grapevine.jobs.compare import Comparison
    from grapevine.jobs.label import LabelResult
    from grapevine.run.driver import Run
    from grapevine.run.model import Model

_MODULES = {
    "cleaning",
    "comparison",
    "core",
    "crypto",
    "data",
    "errors",
    "experiment",
    "graph",
    "labelling",
    "learn",
    "methods",
    "models",
    "runs",
    "simulate",
    "wire",
}


def train(method: Method, split: Split, **settings: Any) -> Run:
    """Run a method on a split: the settings are `grapevine.run.driver.Experiment`'s (rounds, per_round, out, …)."""
    from grapevine.run.experiment import Experiment

    resume, progress = settings.pop("resume", False), settings.pop("progress", None)
    return Experiment(method, split, **settings).run(resume, progress)


def label(parties: Any, **settings: Any) -> LabelResult:
    """One-shot labels for every party's own rows: parties are (X, y) with y = −1 where a row is not labelled.

    The settings are those of `grapevine label`: secure="mlwe", bits=4096, neighbours=10, alpha=0.99, …
    """
    from grapevine.jobs import label as labelling

    return labelling.label(parties, **settings)


def clean(parties: Any, server: Any, **settings: Any) -> CleanResult:
    """Wrong labels mended and irrelevant rows set aside at each party, by a classifier from the server's labelled rows.

    Parties and server are (X, y) with y = −1 where a row is not labelled; the settings are those of `grapevine clean`: tau=0.95,
    upsilon=0.5, …
    """
    from grapevine.jobs import clean as cleaning

    return cleaning.clean(parties, server, **settings)


def compare(methods: Sequence[str | Method], data: str | Path, out: str | Path, **settings: Any) -> Comparison:
    """Several methods on the same splits, over seeds, side by side: the settings are the flags of `grapevine compare`.

    gv.compare(["xclp", "protofssl"], "digits", "runs/c", labels="clients:100", seeds=3, rounds=20).table
    """
    from grapevine.jobs import compare as comparison

    return comparison.compare(methods, data, out, **settings)


def load(folder: str, method: str | None = None) -> Model:
    """The trained model of a finished run: `gv.load("runs/a").predict(X)`. A method of your own: method="file.py:Class"."""
    from grapevine.run.model import Model

    return Model.load(folder, method)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"grapevine.{name}")
    raise AttributeError(f"grapevine has no '{name}'")
