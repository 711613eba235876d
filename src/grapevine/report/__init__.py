"""Pages and pictures of finished and running jobs: `write` makes report.html from the files in a folder alone."""

from __future__ import annotations

from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.report import clean, compare, label, train
from grapevine.report.files import job_of
from grapevine.report.page import Page
from grapevine.run.folder import read_json


def make(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Page:
    """The page of a folder that a training run, a label or clean job or a comparison has left.

    `against` is a training run on the same split whose clients are compared with this one's. `full` adds what takes seconds: the
    latent space, and without `against` a run of `alone` is looked for beside this one.
    """
    folder = Path(folder)
    job = job_of(folder)
    if job != "train" and against is not None:
        raise Mistake(f"{folder} is not a training run ({job}): leave --against out.")
    if job == "compare":
        return compare.make(folder)
    if job in ("label", "clean"):
        return (label if job == "label" else clean).make(folder, read_json(folder / "result.json") or {})
    return train.make(folder, against, full)


def write(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Path:
    """Make report.html of a folder, and return where it is."""
    return make(folder, against, full).write(Path(folder) / "report.html")
