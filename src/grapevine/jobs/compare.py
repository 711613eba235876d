"""The compare job: several methods on the same splits and seeds, in separate processes.

The folder has `runs/` with one folder per run, as `grapevine train` writes it, `splits/`, `compare.json` with everything,
`table.csv`, `table.md` and the pages. A grid (`vary`) has a cell for each combination of values. The number of processes has no
effect on the results.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grapevine.core import Method, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.places import make_folder, require_folder
from grapevine.core.store import write_atomically
from grapevine.core.version import __version__
from grapevine.core.words import short_table
from grapevine.jobs import compare_table
from grapevine.jobs.compare_plan import Plan, check_entries, make_splits
from grapevine.jobs.compare_processes import Job, workers
from grapevine.jobs.settings import CompareSettings, TrainSettings
from grapevine.methods import find
from grapevine.run.folder import first_difference, lock

WRITE_SECONDS = 2.0  # between two versions of the table and the page while runs are going on
FREE = ("workers", "data_dir")  # settings that may differ when a comparison is continued


@dataclass(frozen=True)
class Standing:
    """The progress of a comparison, for a bar."""

    finished: int
    failed: int
    runs: int
    rounds: int
    rounds_in_all: int
    seconds_left: float | None
    note: str


Progress = Callable[[Standing], None]


@dataclass(frozen=True)
class Pages:
    """Functions that write the page of the comparison and of a run, given the folder."""

    comparison: Callable[[Path], Any] = lambda folder: None
    run: Callable[[Path], Any] = lambda folder: None


NO_PAGES = Pages()


@dataclass(frozen=True, repr=False)
class Comparison:
    """The contents of compare.json: `table` has a row per cell and method, and `runs` one per run."""

    out: Path
    data: dict[str, Any]

    @property
    def table(self) -> list[dict[str, Any]]:
        return self.data["table"]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.data["runs"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [run for run in self.runs if run["state"] == "failed"]

    def __repr__(self) -> str:
        shown = {name: compare_table.COLUMNS[name] for name in ("method", "seeds", "accuracy", "bytes")}
        rows = [dict(cell=row["cell"], **{name: show(row) for name, show in shown.items()}) for row in self.table]
        if len(self.data["cells"]) == 1:
            rows = [{name: row[name] for name in shown} for row in rows]
        return short_table(f"comparison in {self.out}, {self.data['state']}", rows, most=12)


def compare(methods: Sequence[str | Method], s: CompareSettings, out: str | Path, resume: bool = False,
            progress: Progress | None = None, command: str = "", pages: Pages = NO_PAGES) -> Comparison:  # fmt: skip
    """Run methods on the same splits, over seeds, and leave a table and a page in `out`. See `gv.compare`."""
    require_folder(Path(out))
    plan = Plan.make(methods, s, Path(out))
    _check_folder(plan, resume)
    check_entries(plan.entries, s.set)
    new = not plan.out.exists()
    make_folder(plan.out)
    with lock(plan.out / "lock"):
        try:
            going = Going(plan, command, pages)
        except Mistake:
            if new:  # the same --out can be named again
                shutil.rmtree(plan.out, ignore_errors=True)
            raise
        going.run(progress or (lambda standing: None))
    return Comparison(plan.out, going.data)


def load(folder: str | Path) -> Comparison:
    """Load a comparison from its folder, finished or still running."""
    path = Path(folder) / "compare.json"
    if not path.is_file():
        raise Mistake(f"{folder} holds no comparison: give the folder that you passed to `grapevine compare` as --out.")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Mistake(f"{path} is not valid JSON ({error}); run the comparison again with --resume to rewrite it.") from None
    if not isinstance(held, dict) or held.get("job") != "compare":
        raise Mistake(f"{path} was not written by grapevine compare: name another folder.")
    return Comparison(Path(folder), held)


# ---------------------------------------------------------------- a folder that is gone on with


def flags(s: CompareSettings) -> dict[str, Any]:
    """What all runs have in common, as compare.json holds it."""
    own = {name: value for name, value in s.to_dict().items() if name in TrainSettings.names()}
    return own | dict(budget=s.budget)


def _check_folder(plan: Plan, resume: bool) -> None:
    """The folder must be new or, with `resume`, differ only in what adds runs."""
    out = plan.out
    if not out.is_dir() or not any(path.name != "lock" for path in out.iterdir()):
        return
    if not resume:
        raise Mistake(f"{out} exists and is not empty: choose another --out, or continue it with --resume.")
    if not (out / "compare.json").exists():
        if not (out / "splits").exists():
            raise Mistake(f"{out} holds no comparison: choose another --out.")
        return
    before = load(out).data
    for name, now in json.loads(json.dumps(flags(plan.settings))).items():
        was = before["flags"].get(name, {} if name == "budget" else None)
        if name not in FREE and name not in plan.settings.vary and name not in before["vary"] and was != now:
            flag = f"--{name.replace('_', '-')}"
            raise Mistake(
                f"{out} was started with {flag} {_said(was)}, not {_said(now)}: repeat its flags or choose another --out."
            )


def _said(value: Any) -> Any:
    """A setting as one would say it on the command line."""
    return ",".join(f"{name}={each}" for name, each in value.items()) or "nothing" if isinstance(value, dict) else value


def _as_they_would_be(out: Path, made: Sequence[Job]) -> None:
    """A folder names only the fields that were said: a default that another version had must not pass for today's."""
    others = []
    for job in made:
        path = out / job.folder / "result.json"
        try:
            was = json.loads(path.read_text(encoding="utf-8"))["settings"]
        except (ValueError, KeyError, TypeError):
            raise Mistake(f"{path} is not a valid result: remove its folder, and the run will be repeated.") from None
        now = json.loads(json.dumps(with_settings(find(job.work["method"]), job.work["settings"]["set"]).settings()))
        was, now = common(was, now), common(now, was)
        if was != now:
            others.append((job.folder, *first_difference(was, now)))
    if others:
        folder, was, now = others[0]
        more = f", as {len(others) - 1} more here" if others[1:] else ""
        raise Mistake(f"{out / folder} was made with {was}, but the settings now say {now}{more}: remove that folder to "
                      "run it again, or choose another --out.")  # fmt: skip


def common(a: Any, b: Any) -> Any:
    """The fields of a that b has, too: one that a version did not have is a choice that nobody had."""
    both = isinstance(a, dict) and isinstance(b, dict)
    return {name: common(a[name], b[name]) for name in a if name in b} if both else a


# ---------------------------------------------------------------- a comparison under way


class Going:
    """A comparison under way: its runs, how they stand, and what compare.json holds."""

    def __init__(self, plan: Plan, command: str = "", pages: Pages = NO_PAGES):
        self.out, self.settings, self.pages = plan.out, plan.settings, pages
        s = plan.settings
        cells, self.jobs = plan.runs(make_splits(plan.out / "splits", plan.cells, s.all_seeds))
        versions = dict(python=platform.python_version(), torch=torch.__version__, grapevine=__version__)
        self.data: dict[str, Any] = dict(
            job="compare", version=__version__, versions=versions, command=command, state="going",
            methods=[e.label for e in plan.entries], seeds=s.all_seeds, vary=s.vary, target=s.target, flags=flags(s), cells=cells,
        )  # fmt: skip
        made = [job for job in self.jobs if (self.out / job.folder / "result.json").exists()]
        _as_they_would_be(self.out, made)
        for job in made:
            job.state, job.round = "finished", job.rounds
        self._waiting = [job for job in self.jobs if job.state != "finished"]
        self._before, self._began = sum(job.round for job in made), time.monotonic()

    def run(self, progress: Progress) -> None:
        self.write("going")
        progress(self.standing())
        try:
            with workers(min(self.settings.workers, len(self._waiting)), self._waiting, self.out / "log.txt") as told:
                for job, said in told:
                    self._hear(job, said)
                    if "state" in said and time.monotonic() > self._next_write:
                        self.write("going")
                    progress(self.standing())
        except BaseException:
            for job in self.jobs:
                job.state = "waiting" if job.state == "going" else job.state
            self.write("stopped")
            raise
        self.write("finished" if all(job.state == "finished" for job in self.jobs) else "failed")

    def _hear(self, job: Job, said: dict[str, Any]) -> None:
        job.state, job.error, job.round = said.get("state", "going"), said.get("error", ""), said.get("round", job.round)
        if job.state == "finished":
            job.round = job.rounds
            try:
                self.pages.run(self.out / job.folder)
            except Exception:  # a page that cannot be made does not cost the run: the log has why
                with open(self.out / "log.txt", "a", encoding="utf-8") as log:
                    traceback.print_exc(file=log)

    def standing(self) -> Standing:
        going = [job for job in self.jobs if job.state == "going"]
        note = ", ".join(f"{job.label} seed {job.seed}" for job in going[:3])
        states = [job.state for job in self.jobs]
        return Standing(states.count("finished"), states.count("failed"), len(states), sum(job.round for job in self.jobs),
                        sum(job.rounds for job in self.jobs), self._seconds_left(), note)  # fmt: skip

    def _seconds_left(self) -> float | None:
        """What is left to do at the pace so far; not before a run has ended, since a process begins with its imports."""
        done = sum(job.round for job in self.jobs) - self._before
        if not done or not any(job.state == "finished" for job in self._waiting):
            return None
        left = sum(job.rounds - job.round for job in self.jobs if job.state in ("waiting", "going"))
        return left * (time.monotonic() - self._began) / done

    def write(self, state: str) -> None:
        """compare.json, the tables and the page, as things stand."""
        began = time.monotonic()
        self.data["state"] = state
        self.data["runs"] = [compare_table.run_line(self.out, job, self.data["cells"][job.cell]) for job in self.jobs]
        compare_table.fill(self.out, self.data)
        write_atomically(self.out / "compare.json", json.dumps(self.data, indent=1).encode())
        compare_table.write(self.out, self.data, self.settings.latex)
        self.pages.comparison(self.out)
        # A comparison of hundreds of runs has files that take a while: never more than a twentieth of the time.
        self._next_write = time.monotonic() + max(WRITE_SECONDS, 20 * (time.monotonic() - began))
