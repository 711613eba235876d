"""Federated learning when labels are scarce.

    import grapevine as gv
    split = gv.data.load("digits").split(clients=10, labels="clients:100")
    run = gv.train(gv.methods.FedAvg(), split, rounds=20)
    print(run.result["accuracy"])

The four jobs are functions here. Their keywords have the names of the command's flags (`grapevine label --help`) and are defined
in `grapevine.jobs.settings`. Modules are imported on first use, so that `grapevine --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.places import require_folder
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
    """Label every party's unlabelled rows in one job, with the cryptography really run.

    A party is (X, y) with y = −1 (or None, or NaN) where a row is unlabelled, a frame, or the path of a table or of a folder of
    images. `label`, `id`, `features` and `embed` are for files; `names` is for arrays. `truth` names a column of the files, or
    has one array per party. With `out`, the results are also written to that folder. With `dry_run`, nothing runs, and a dict
    says what would leave each party.

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
    """Train one model on everybody's labelled and unlabelled rows.

    The method is an object, or a name with its fields in `set`. The data is a split; a name or a file, which is then split as the
    settings say; or what `gv.data.load` takes: (X, y), a frame, or a list of one per party. Without `out`, everything stays in
    memory. `resume` continues in a folder that the same settings started.

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
    if out and not resume:  # before the data is read
        require_folder(Path(out))
        if Path(out).is_dir() and any(Path(out).iterdir()):
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
    """Refuse settings that would have no effect."""
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
    """Correct wrong labels and exclude irrelevant rows at each party, with a classifier trained on the server's rows (MP-SSFL).

    A party, and the server, is (X, y) with y = −1 (or None, or NaN) where a row is unlabelled, a frame, or the path of a table or
    of a folder of images. X may be images, uint8 (n, h, w[, c]). `label`, `id`, `features` and `embed` are for files; `names` is
    for arrays. `truth` names a column of the files, or has one array per party. With `out`, the results are also written to that
    folder. With `dry_run`, nothing runs, and a dict says what would be sent.

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
    """Run several methods on the same splits and seeds, and write a table and a page to `out`.

    Methods are names, names with fields such as `"xclp:hamming=plain"`, or objects. `set` is {"lr": 0.05} for every method that
    has the field, or {"xclp.alpha": 0.9} for one. `vary` is {"labels": ["clients:100", "clients:500"]} and makes a cell for every
    combination. Bounds (`alone`, labelled rows only, all true labels) are added where they apply, unless `bounds` is false. A run
    that fails does not stop the others: see `failed`.

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
    """Load the model of a finished run, or the models of a label job: `gv.load("runs/a").predict(X)`. For your own method, add
    method="file.py:Class"."""
    from grapevine.jobs import predict

    return predict.load(folder, method)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"grapevine.{name}")
    raise AttributeError(f"grapevine has no '{name}'")
