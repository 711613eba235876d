"""Pages and pictures of finished and running jobs: `write` makes report.html from the files in a folder alone."""

from __future__ import annotations

import importlib
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.report import index
from grapevine.report.files import is_run, job_of
from grapevine.report.page import Page
from grapevine.run.folder import read_json


def make(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Page:
    """The page of a folder that a training run, a label or clean job or a comparison has left, or the index of a folder of them.

    `against` is a training run on the same split whose clients are compared with this one's. `full` adds what takes seconds: the
    latent space, and without `against` a run of `alone` is looked for beside this one.
    """
    folder = Path(folder)
    if not is_run(folder):
        if against is not None:
            raise Mistake(f"{folder} is not a training run: leave --against out.")
        return index.make(folder)
    job = job_of(folder)
    if job != "train" and against is not None:
        raise Mistake(f"{folder} is not a training run ({job}): leave --against out.")
    pages = importlib.import_module(f"grapevine.report.{job}")  # only what the job needs
    if job == "compare":
        return pages.make(folder)
    if job in ("label", "clean"):
        return pages.make(folder, read_json(folder / "result.json") or {})
    return pages.make(folder, against, full)


def write(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Path:
    """Make report.html of a run's folder, or index.html of one with runs in it, and return where it is."""
    return make(folder, against, full).write(Path(folder) / file_name(Path(folder)))


def file_name(folder: Path) -> str:
    return "report.html" if is_run(folder) else "index.html"
