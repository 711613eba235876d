"""Federated learning when labels are scarce.

    import grapevine as gv
    split = gv.data.load("digits").split(clients=10, labels="clients:100")
    run = gv.train(gv.methods.FedAvg(), split, rounds=20)
    print(run.result["accuracy"])

The four jobs are functions here. Each takes its settings as keywords, with the words of its command (`grapevine label --help`):
they stand in `grapevine.jobs.settings`. Names are imported when they are asked for, so that `grapevine --help` does not wait for
torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__ as __version__
from grapevine.jobs.settings import CleanSettings, CompareSettings, DataSettings, LabelSettings, TrainSettings, keywords

if TYPE_CHECKING:
    from grapevine.core import Method
    from grapevine.data import Split
    from grapevine.jobs.clean_result import CleanResult
    from grapevine.jobs.compare import Comparison
    from grapevine.jobs.heads import Heads
    from grapevine.jobs.label_result import LabelResult
    from grapevine.run.driver import Run
    from grapevine.run.model import Model

_MODULES = {"core", "crypto", "data", "graph", "jobs", "learn", "methods", "parties", "report", "run"}


@keywords(LabelSettings)
def label(parties: Sequence[Any], *, names: Sequence[str] | None = None, out: str | Path | None = None, dry_run: bool = False,
          progress: Callable | None = None, command: str = "", **settings: Any) -> LabelResult | dict[str, Any]:  # fmt: skip
    """One-shot labels for every party's own rows (XCLP), with the cryptography really run.

    A party is (X, y) with y = −1 (or None, or NaN) where a row is not labelled, or the path of a file or a folder of images.
    `label`, `id`, `features` and `embed` are for files; `truth` is then a column, else one array a party; `names` are for arrays.
    With `out`, everything is also left in that folder, as the command does. With `dry_run`, nothing runs, and what would leave
    each party comes back as a dict.

    >>> result = gv.label([(X_a, y_a), (X_b, y_b), (X_c, y_c)], secure="mlwe")
    >>> result[0].labels, result[0].confidence, result[0].proba
    """
    s = LabelSettings.from_dict(settings)
    from grapevine.jobs import label as job
    from grapevine.jobs.config import write_config
    from grapevine.report.label import write

    made = job.label(parties, s, names, out, dry_run, progress, command, write)
    if out is not None and not dry_run:
        write_config(out, s, parties=list(parties))
    return made


@keywords(TrainSettings)
def train(method: str | Method, data: Split | str | Path | Any, *, out: str | Path | None = None, resume: bool = False,
          progress: Callable | None = None, **settings: Any) -> Run:  # fmt: skip
    """One model from everybody's labelled and unlabelled rows.

    The method is an object, or a name with its fields in `set`; the data a split, or a name or file that is split as the
    settings say, or what `gv.data.load` takes: (X, y), a frame, or a list of them, one a party. Without `out` everything stays in
    memory; `resume` goes on with a folder that the same settings began.

    >>> run = gv.train("fedavg", "digits", clients=10, labels="clients:100", rounds=20, set={"lr": 0.05}, out="runs/a")
    >>> run = gv.train("fedavg", [(X_a, y_a), (X_b, y_b)], rounds=20)
    >>> run.result["accuracy"], run.predict(X)
    """
    from grapevine.core import with_settings
    from grapevine.data import Split
    from grapevine.jobs.config import write_config
    from grapevine.jobs.splits import make_split
    from grapevine.methods import find
    from grapevine.report.train import Live, write
    from grapevine.run.experiment import Experiment

    made = isinstance(data, Split)
    s = TrainSettings.from_dict(settings if made else dict(settings, data=data))
    chosen = with_settings(find(method), s.set) if isinstance(method, str) else method
    _check_words(s, settings, isinstance(method, str), data, out)
    if s.runtime == "spmd":
        from grapevine.run import spmd

        if not spmd.leads():
            experiment = Experiment(chosen, data if isinstance(data, Split) else make_split(s, s.seed), out=out, **s.run())
            return spmd.run(experiment, resume)
    if out and not resume and Path(out).is_dir() and any(Path(out).iterdir()):  # before the data is read
        raise Mistake(f"{out} exists and is not empty: choose another --out, or continue it with --resume.")
    split = data if isinstance(data, Split) else make_split(s, s.seed)
    experiment = Experiment(chosen, split, out=out, **s.run())
    watch = progress or (lambda done, rounds, line: None)
    watch = Live(out, watch) if out else watch
    if s.runtime == "flower-sim":
        from grapevine.parties import virtual

        virtual.run(virtual.job(str(method), s, str(out), resume), len(split.parts), watch)
        resume = True  # what is finished is only read
    run = spmd.run(experiment, resume, watch) if s.runtime == "spmd" else experiment.run(resume, watch)
    if out:
        write(out, full=True)
        write_config(out, s, method=method if isinstance(method, str) else None)
    return run


def _check_words(s: TrainSettings, said: dict[str, Any], named: bool, data: Any, out: str | Path | None) -> None:
    """Settings that nobody would read are refused."""
    from grapevine.data import Split

    if "set" in said and not named:
        raise Mistake("set works with a method's name: set the fields of the object instead, or name the method.")
    of_data = [name for name in DataSettings.names() if name in said]
    if isinstance(data, Split) and of_data:
        raise Mistake(f"{of_data[0]} says how data is split, but a split is given: leave it out, or name the data.")
    if s.runtime != "local" and (not isinstance(data, (str, Path)) or not named or not out):
        raise Mistake(
            f"--runtime {s.runtime} needs --out, and a method and data given by name, because other processes must load them."
        )
    if s.runtime != "local" and s.dp is not None:
        raise Mistake(
            f"--dp keeps one ledger for all clients, which workers of --runtime {s.runtime} do not share: use --runtime local."
        )


@keywords(CleanSettings)
def clean(parties: Sequence[Any], server: Any, *, names: Sequence[str] | None = None, out: str | Path | None = None,
          dry_run: bool = False, progress: Callable | None = None, command: str = "",
          **settings: Any) -> CleanResult | dict[str, Any]:  # fmt: skip
    """Wrong labels corrected and irrelevant rows excluded at each party, by a classifier from the server's rows (MP-SSFL).

    A party is (X, y) with y = −1 (or None, or NaN) where a row is not labelled, or the path of a table or of a folder of images;
    so is the server. X may be images, uint8 (n, h, w[, c]). `label`, `id`, `features` and `embed` are for files; `truth` is then
    a column, else one array a party; `names` are for arrays. With `out`, everything is also left in that folder. With `dry_run`,
    nothing runs, and what would travel comes back as a dict.

    >>> result = gv.clean([(X_a, y_a), (X_b, y_b)], server=(X_s, y_s))
    >>> result[0].labels, result[0].action, result[0].loss, result[0].confidence
    """
    s = CleanSettings.from_dict(settings)
    from grapevine.jobs import clean as job
    from grapevine.jobs.config import write_config
    from grapevine.report.clean import write

    made = job.clean(parties, server, s, names, out, dry_run, progress, command, write)
    if out is not None and not dry_run:
        write_config(out, s, parties=list(parties), server=server)
    return made


@keywords(CompareSettings)
def compare(methods: Sequence[str | Method], data: str | Path, out: str | Path, *, resume: bool = False,
            progress: Callable | None = None, command: str = "", **settings: Any) -> Comparison:  # fmt: skip
    """Several methods on the same splits, over seeds (a number: 0, 1, …), side by side: a table, and a page in `out`.

    Methods are names, `"xclp:hamming=plain"` for a variant, or objects. `set` is {"lr": 0.05} for all that have the field, or
    {"xclp.alpha": 0.9}. `vary` is {"labels": ["clients:100", "clients:500"]}: one cell for every combination. The bounds
    (`alone`, labelled only, all labels) are added where they apply, unless `bounds` is false. A run that fails does not stop
    the others: see `failed`.

    >>> gv.compare(["xclp", "protofssl"], "digits", "runs/c", labels="clients:100", seeds=3, rounds=20).table
    """
    if not isinstance(data, (str, Path)):
        raise Mistake(f"data is a {type(data).__name__}: each run of a comparison is its own process, so give a name or a file.")
    s = CompareSettings.from_dict(dict(settings, data=data))
    from grapevine.jobs import compare as job
    from grapevine.jobs.config import write_config
    from grapevine.report.compare import write as write_comparison
    from grapevine.report.train import write as write_run

    made = job.compare(methods, s, out, resume, progress, command, job.Pages(write_comparison, write_run))
    write_config(out, s, methods=list(methods))
    return made


def load(folder: str, method: str | None = None) -> Model | Heads:
    """The trained model of a finished run, or the heads of a label job: `gv.load("runs/a").predict(X)`. A method of your own:
    method="file.py:Class"."""
    from grapevine.jobs import predict

    return predict.load(folder, method)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"grapevine.{name}")
    raise AttributeError(f"grapevine has no '{name}'")
