"""A training run's curves and numbers for TensorBoard and for MLflow: two extras, from the files in a run's folder alone.

Written after the run or during it, as often as you like: it replaces what was written before under the folder's name.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.core.places import make_folder
from grapevine.report.files import Files, job_of, read
from grapevine.report.parts import flat


def find(name: str) -> Callable[[Path, Path], Path]:
    """The writer of this name, if its package is installed."""
    if importlib.util.find_spec(name) is None:
        raise Mistake(f"--{name} needs a package that is not installed: pip install 'grapevine-fl[{name}]'.")
    return dict(tensorboard=write_tensorboard, mlflow=write_mlflow)[name]


def write_tensorboard(folder: Path, into: Path) -> Path:
    """The run as TensorBoard's events in a folder of its own name below `into`."""
    files, settings = _read(folder)
    from torch.utils.tensorboard import SummaryWriter

    place = into / folder.resolve().name
    make_folder(place, "choose another --tensorboard")
    for old in place.glob("events.out.tfevents.*.grapevine"):
        old.unlink()
    with SummaryWriter(place, filename_suffix=".grapevine") as writer:
        for step, name, value in scalars(files):
            writer.add_scalar(name, value, step)
        lines = "\n".join(f"| {name} | {value} |" for name, value in settings)
        writer.add_text("settings", f"| name | value |\n|---|---|\n{lines}")
    return place


def write_mlflow(folder: Path, into: Path) -> Path:
    """The run in the file mlflow.db of `into`, in an experiment named after the data set. No server is asked."""
    files, settings = _read(folder)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of every run
    import mlflow
    from mlflow.entities import Metric, Param

    make_folder(into, "choose another --mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{(into / 'mlflow.db').resolve().as_posix()}")
    name, own = files.settings["data"]["name"], folder.resolve().name
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name, (into / "artifacts").resolve().as_uri())
    for old in client.search_runs([experiment]):
        if old.info.run_name == own:
            client.delete_run(old.info.run_id)
    run = client.create_run(experiment, run_name=own)
    metrics = [Metric(key, value, 0, step) for step, key, value in scalars(files)]
    params = [Param(key, str(value)[:500]) for key, value in settings]
    for i in range(0, max(len(metrics), len(params)), 100):  # MLflow takes so many at a time
        client.log_batch(run.info.run_id, metrics[i : i + 100], params[i : i + 100])
    client.set_terminated(run.info.run_id, "FINISHED" if files.result else "RUNNING")
    return into / "mlflow.db"


def _read(folder: Path) -> tuple[Files, list[tuple[str, str | None]]]:
    """A training run's files, and its settings as names and values."""
    job = job_of(folder)
    if job != "train":
        raise Mistake(f"{folder} is not a training run ({job}) and has no curves: leave --tensorboard and --mlflow out.")
    files = read(folder)
    return files, flat({name: value for name, value in files.settings.items() if name not in ("versions", "job")})


def scalars(files: Files) -> Iterator[tuple[int, str, float]]:
    """(round, name, value) of the history and of the clock, and of the result at its round."""
    for line in files.history:
        for name, value in line.items():
            if name != "round" and isinstance(value, (int, float)) and math.isfinite(value):
                yield line["round"], name, float(value)
    for line in files.times:
        yield line["round"], "seconds", float(line["seconds"])
    result = files.result or {}
    for name in ("accuracy", "balanced_accuracy"):
        if result.get(name) is not None:
            yield result["best_round"], f"result/{name}", float(result[name])
