"""What people see of a comparison in a terminal: one bar for all runs, and the table."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich import box
from rich.progress import BarColumn, Progress, TimeElapsedColumn
from rich.table import Table

from grapevine.cli.terminal import PLAIN_SECONDS, console, words
from grapevine.jobs.compare import Comparison, Standing
from grapevine.jobs.compare_table import COLUMNS, notes, rows_of, seconds, used_columns

# In the order in which they are worth a place; what does not fit is on the page and in table.md.
WANTED = ("method", "accuracy", "p", "bytes", "seconds", "rounds to target", "pseudo-labels right", "against best",
          "bytes to target", "balanced", "per client and round", "FLOPs")  # fmt: skip


class CompareBar:
    """All runs as one bar with an estimate of the time left; elsewhere a line for each run that ends, and one now and then."""

    def __init__(self, quiet: bool = False):
        self._quiet, self._spoke, self._ended = quiet, time.monotonic(), 0
        self._progress: Progress | None = None

    def __enter__(self) -> CompareBar:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def __call__(self, standing: Standing) -> None:
        if self._quiet:
            return
        ended = standing.finished + standing.failed
        left = "" if standing.seconds_left is None else f"about {seconds(standing.seconds_left)} left"
        failed = f", {standing.failed} failed" if standing.failed else ""
        if not sys.stdout.isatty():
            if ended != self._ended or time.monotonic() - self._spoke > PLAIN_SECONDS:
                self._spoke, self._ended = time.monotonic(), ended
                told = [f"{ended} of {standing.runs} runs{failed}", left if ended < standing.runs else "", standing.note]
                print("compare: " + "; ".join(filter(None, told)), flush=True)
            return
        if self._progress is None:
            columns = (words("{task.fields[runs]}"), BarColumn(), TimeElapsedColumn(), words("{task.fields[left]}"),
                       words("{task.fields[note]}"))  # fmt: skip
            self._progress = Progress(*columns, console=console)
            self._progress.start()
            self._task = self._progress.add_task("compare", total=standing.rounds_in_all, runs="", left="", note="")
        self._progress.update(self._task, completed=standing.rounds, runs=f"{ended}/{standing.runs} runs{failed}", left=left,
                              note=standing.note)  # fmt: skip


def show_comparison(made: Comparison) -> None:
    """The tables, what they mean, and where everything is."""
    for cell in made.data["cells"]:
        rows = rows_of(made.data, cell)
        names = _that_fit(rows, console.width)
        table = Table(title=cell["name"] or None, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == "method" else "right", min_width=_width(rows, name))
        for row in rows:
            style = "dim" if row["bound"] else "bold" if row["best"] else None
            table.add_row(*(_shown(row, name) for name in names), style=style)
        console.print(table)
        for note in notes(made.data, cell):
            console.print(note, soft_wrap=True)
    console.print(f"Everything is in {made.out} (open {made.out / 'report.html'}).", soft_wrap=True)


def _shown(row: dict[str, Any], name: str) -> str:
    return f"{row['method']} (bound)" if name == "method" and row["bound"] else COLUMNS[name](row)


def _width(rows: list[dict[str, Any]], name: str) -> int:
    """Heads may be broken between words; values are not broken."""
    return max(*(len(word) for word in name.split()), *(len(_shown(row, name)) for row in rows))


def _that_fit(rows: list[dict[str, Any]], width: int) -> list[str]:
    used = used_columns(rows)
    kept: list[str] = []
    for name in WANTED:
        if name in used and (len(kept) < 2 or sum(_width(rows, other) + 3 for other in [*kept, name]) <= width):
            kept.append(name)
    return [name for name in used if name in kept]
