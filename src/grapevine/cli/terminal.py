"""What people see in a terminal: progress bars, tables, the closing lines of a run. Plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from grapevine.core.words import percent, size

console = Console(highlight=False, markup=False)  # names of parties and classes may hold square brackets
words = partial(TextColumn, markup=False)
PLAIN_SECONDS = 10.0  # between lines where there is no terminal


class Bar:
    """The progress of a run: a bar with an estimate of the time left, or a line now and then."""

    def __init__(self, title: str):
        self.title, self._spoke = title, 0.0
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if sys.stdout.isatty():
            columns = (words("{task.description}"), BarColumn(), words("{task.completed}/{task.total}"),
                       TimeElapsedColumn(), TimeRemainingColumn(), words("{task.fields[note]}"))  # fmt: skip
            self._progress = Progress(*columns, console=console)
            self._progress.start()
            self._task = self._progress.add_task(self.title, total=None, note="")
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, done: int, total: int, line: dict | None) -> None:
        note = f"accuracy {line['accuracy']:.1%}" if line and line.get("accuracy") is not None else ""
        if self._progress:
            self._progress.update(self._task, completed=done, total=total, note=note)
        elif done == total or time.monotonic() - self._spoke > PLAIN_SECONDS:
            self._spoke = time.monotonic()
            print(f"{self.title}: round {done} of {total} {note}".rstrip(), flush=True)


class StepBar:
    """The progress of a protocol: its steps, and how many parties have answered the one under way."""

    def __init__(self, title: str):
        self.title = title
        self._progress: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> StepBar:
        if sys.stdout.isatty():
            columns = (
                words("{task.description}"),
                BarColumn(),
                words("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=console)
            self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        if not self._progress:
            if done == total:
                print(f"{self.title}: {_words(step)}, {done} parties", flush=True)
            return
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(f"{self.title}: {_words(step)}", total=total)
        self._progress.update(self._tasks[step], completed=done, total=total)


STEPS = {
    "keys": "signed keys and counts",
    "meet": "a common seed, masked sums of the features",
    "share": "rows hashed, hashes protected",
    "xclp.hamming.evaluate": "distances on ciphertexts",
    "xclp.hamming.open": "masked distances opened",
    "xclp.hamming.transfer": "oblivious transfers",
    "xclp.hamming.receive": "oblivious transfers received",
    "xclp.spread.contribute": "labels spread, masked",
    "receive": "own rows unmasked",
    "choose": "number of neighbours chosen",
    "decide": "rows kept, mended or set aside",
}


def _words(step: str) -> str:
    """A step of the label job with a few words."""
    return f"{step.removeprefix('xclp.')} ({STEPS[step]})" if step in STEPS else step


@contextmanager
def download_bar(title: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress callback (bytes so far, bytes in all) for a download."""
    if not sys.stdout.isatty():
        yield None
        return
    with Progress(words("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_table(title: str, rows: list[dict]) -> None:
    """Dicts with the same keys as a table."""
    table = Table(title=title)
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)


def show_result(result: dict, folder: Path) -> None:
    table = Table(title=f"{result['method']} on {result['data']['name']}, seed {result['seed']}", show_header=False)
    table.add_row("test accuracy", f"{percent(result['accuracy'])} (best on validation, round {result['best_round']})")
    table.add_row("last round", percent(result["accuracy_last"]))
    table.add_row("balanced accuracy", percent(result["balanced_accuracy"]))
    own = [row["accuracy"] for row in result["per_client"] if row["accuracy"] is not None]
    if own:
        table.add_row("clients", f"worst {percent(min(own))}, best {percent(max(own))}")
    if result["pseudo_label_accuracy"] is not None:
        table.add_row("pseudo-labels right", percent(result["pseudo_label_accuracy"]))
    table.add_row("sent", f"{size(result['bytes_up'])} up, {size(result['bytes_down'])} down")
    table.add_row("time", f"{result['seconds']:.1f} s, {result['rounds']} rounds, {result['peak_memory_mb'] or '?'} MB")
    console.print(table)
    console.print(f"Everything is in {folder} (open {folder / 'report.html'}).", soft_wrap=True)


def show_methods(rows: list[dict]) -> None:
    table = Table(title="Methods")
    for name in ("name", "what", "labels at"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["name"], row["title"], ", ".join(row["labels"]))
    console.print(table)
    console.print("One method's fields: grapevine methods NAME")


def show_method(row: dict) -> None:
    console.print(f"{row['name']}: {row['title']}\n{row['text']}\nLabels at: {', '.join(row['labels'])}")
    table = Table()
    for name in ("field", "symbol", "default", "meaning"):
        table.add_column(name)
    for f in row["fields"]:
        table.add_row(f["name"], f["symbol"], str(f["default"]), f["text"])
    console.print(table)


def show_split(split: Any, most: int = 30) -> None:
    """The first clients of a split, what each holds, and the sums."""
    rows = split.table()
    classes = split.dataset.classes
    table = Table(title=f"{split.dataset.name}: {len(rows)} clients, split {split.hash[:12]}")
    for name in ("client", "rows", "labelled", "unlabelled"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    few = len(classes) <= 10 and sum(len(name) + 3 for name in classes) <= console.width - 45
    for name in classes if few else ("classes",):
        table.add_column(name, justify="right")
    for row in rows[:most]:
        counts = list(row["classes"])
        own = [str(n) for n in counts] if few else [str(sum(n > 0 for n in counts))]
        table.add_row(*(str(row[name]) for name in ("client", "rows", "labelled", "unlabelled")), *own)
    console.print(table)
    if len(rows) > most:
        console.print(f"… and {len(rows) - most} more clients.")
    sums = {name: sum(row[name] for row in rows) for name in ("rows", "labelled", "unlabelled", "flipped", "irrelevant")}
    server = len(split.server.labelled) if split.server else 0
    console.print(
        ", ".join(f"{name} {n}" for name, n in sums.items()) + f", server {server}, validation {len(split.validation)}."
    )


def show_plan(plan: dict, most: int = 4) -> None:
    """`grapevine label --dry-run`: what would leave each party, what it reveals, and what it costs."""
    parties = plan["parties"]
    kinds = dict.fromkeys((f"{e['step']}: {e['field']}", e["reveals"]) for entries in parties.values() for e in entries)
    sent = {name: {f"{e['step']}: {e['field']}": e["bytes"] for e in entries} for name, entries in parties.items()}
    table = Table(title="What would leave each party (nothing has been sent)")
    table.add_column("step: field", overflow="fold")
    for name in parties if len(parties) <= most else ("least", "most"):
        table.add_column(name, justify="right")
    rows = [(what, [lines.get(what, 0) for lines in sent.values()]) for what, _ in kinds]
    for what, counts in [*rows, ("in all", [sum(lines.values()) for lines in sent.values()])]:
        table.add_row(what, *map(size, counts if len(counts) <= most else (min(counts), max(counts))))
    console.print(table)
    console.print("What that reveals:")
    for what, told in kinds:
        console.print(f"  {what} — {told}", soft_wrap=True)
    for sentence in plan["learns"]:
        console.print(sentence, soft_wrap=True)
    console.print(f"If the server and one party collude, they learn {plan['collusion']}.", soft_wrap=True)
    minutes = "under a minute" if plan["minutes"] < 1 else f"about {plan['minutes']:.0f} minutes"
    console.print(f"With --secure {plan['protocol']}: {minutes} on this machine, about {plan['memory_mb']:.0f} MB of memory.")
    for note in [*plan["warnings"], *([plan["advice"]] if plan["advice"] else [])]:
        console.print(f"Note: {note}", soft_wrap=True)


OTHERS = dict(alone="each party alone", nearest="by the nearest own labelled row", gaussian="by Gaussian heads together",
              model="by the model itself")  # fmt: skip


def show_labels(result: Any, folder: Path, most: int = 30) -> None:
    """The closing table of a label job."""
    measured = result.accuracy is not None
    others = list(result.other_accuracy) if measured else []
    xclp = result.method.xclp
    auto = "" if xclp.neighbours else " (auto)"
    told = f"Labels by {xclp.hamming.name}, {xclp.bits} bits, {result.neighbours} neighbours{auto}"
    table = Table(title=told, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("party", *result[0].counts, *(("right", *others) if measured else ())):
        table.add_column(name, justify="left" if name == "party" else "right")
    for p in result.parties[:most]:
        right = [percent(p.accuracy), *(percent(p.other_accuracy.get(name)) for name in others)] if measured else []
        table.add_row(p.name, *map(str, p.counts.values()), *right)
    console.print(table)
    if len(result) > most:
        console.print(f"… and {len(result) - most} more parties.")
    for note in result.warnings:
        console.print(f"Note: {note}", soft_wrap=True)
    if measured:
        compared = [f"{OTHERS[name]}: {percent(right)}" for name, right in result.other_accuracy.items()]
        console.print("; ".join([f"Right together: {percent(result.accuracy)}", *compared]) + ".", soft_wrap=True)
    if result.expected:
        e = result.expected
        between = f"{percent(e['low'])} to {percent(e['high'])}"
        console.print(
            f"Expected accuracy: {percent(e['accuracy'])} ({between}), from {e['n']} known labels that were hidden; "
            f"each party alone: {percent(e['alone'])}.",
            soft_wrap=True,
        )
        rows = [dict(confidence=f"{b['from']:.1f} to {b['to']:.1f}", hidden_labels=b["n"], right=percent(b["right"] / b["n"]))
                for b in e["calibration"] if b["n"]]  # fmt: skip
        show_table("How far to trust a confidence", rows)
    else:
        console.print("Expected accuracy: not known, too few labels could be hidden.")
    console.print(f"{result.seconds:.1f} s, {size(result.bytes_up)} up, {size(result.bytes_down)} down.")
    console.print(f"Everything is in {folder} (open {folder / 'report.html'}).", soft_wrap=True)
