"""Progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grapevine.core.words import duration, percent

if TYPE_CHECKING:
    from grapevine.jobs.compare import Standing

console = Console(highlight=False, markup=False)  # names of parties and classes may hold square brackets
words = partial(TextColumn, markup=False)
WHAT, COUNT, NOTE = words("{task.description}"), words("{task.completed}/{task.total}"), words("{task.fields[note]}")
PLAIN_SECONDS = 10.0  # between lines where there is no terminal


class Bars:
    """Named bars on a terminal. Elsewhere, lines: at once for what matters, and otherwise from time to time."""

    columns: tuple[ProgressColumn, ...] = (WHAT, BarColumn(), COUNT, TimeElapsedColumn())

    def __init__(self, title: str, quiet: bool = False):
        self.title, self._spoke = title, time.monotonic() - PLAIN_SECONDS
        self._tasks: dict[str, Any] = {}
        self._progress = Progress(*self.columns, console=console) if sys.stdout.isatty() and not quiet else None
        self._quiet = quiet

    def __enter__(self) -> Any:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, what: str, done: int, total: int, note: str = "", plain: str = "", matters: bool = False) -> None:
        """Move a bar, or print `plain` if it matters or nothing was printed for a while."""
        if self._progress:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=total, note="")
            self._progress.update(self._tasks[what], completed=done, total=total, note=note)
        elif plain and not self._quiet and (matters or time.monotonic() - self._spoke > PLAIN_SECONDS):
            self._spoke = time.monotonic()
            print(f"{self.title}: {plain}".rstrip(), flush=True)


class Bar(Bars):
    """The rounds of a run, with an estimate of the time left."""

    columns = (*Bars.columns, TimeRemainingColumn(), NOTE)

    def __call__(self, done: int, total: int, line: dict | None) -> None:
        note = f"accuracy {percent(line['accuracy'])}" if line and line.get("accuracy") is not None else ""
        self.show(self.title, done, total, note, f"round {done} of {total} {note}", done == total)


class StepBar(Bars):
    """The steps of a protocol, and how many parties have answered the current one. Elsewhere, one line for each new step: sums
    follow one another under one name."""

    last = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        if step == "classifier":  # which is no party's
            told = f"the classifier is {'trained' if done else 'being trained'}"
            self.show(f"{self.title}: classifier", done, total, plain=told, matters=True)
            return
        told = f"{step.removeprefix('xclp.')} ({STEPS[step]})" if step in STEPS else step
        new = done == total and step != self.last
        self.show(f"{self.title}: {told}", done, total, plain=f"{told}, {done} parties" if new else "", matters=True)
        self.last = step if done == total else self.last


STEPS = {
    "keys": "signed keys and counts",
    "meet": "a common seed, masked sums of the features",
    "share": "rows hashed, hashes protected",
    "xclp.hamming.evaluate": "distances on ciphertexts",
    "xclp.hamming.open": "masked distances opened",
    "xclp.hamming.transfer": "oblivious transfers",
    "xclp.hamming.receive": "oblivious transfers received",
    "xclp.spread.contribute": "labels spread as in the paper, masked",
    "receive": "own rows unmasked",
    "names": "classes and columns, by names that the server cannot read",
    "begin": "the first sum",
    "go_on": "sums that only the parties can open",
    "hear": "neighbours' labels",
    "choose": "number of neighbours chosen",
    "decide": "rows kept, corrected or excluded",
}


class CompareBar(Bars):
    """All runs of a comparison as one bar. Elsewhere, a line for each run that ends, and one from time to time."""

    columns = (WHAT, BarColumn(), TimeElapsedColumn(), NOTE)
    ended = 0

    def __call__(self, at: Standing) -> None:
        ended, before, self.ended = at.finished + at.failed, self.ended, at.finished + at.failed
        runs = f"{ended} of {at.runs} runs{f', {at.failed} failed' if at.failed else ''}"
        seconds = at.seconds_left or 0.0
        left = f"about {duration(seconds)} left" if seconds >= 1 and ended < at.runs else ""
        note = "; ".join(filter(None, [runs, left, at.note]))
        self.show(self.title, at.rounds, at.rounds_in_all, note, note, ended != before)


@contextmanager
def download_bar(title: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress callback (bytes so far, bytes in all) for a download."""
    if not sys.stdout.isatty():
        yield None
        return
    with Progress(WHAT, BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
