"""One page over all runs in a folder: what each was, how it ended, and a link to its own page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.core.words import count, duration, many, percent, size
from grapevine.jobs.compare_table import lead
from grapevine.report.files import is_run, job_of
from grapevine.report.page import REFRESH_SECONDS, Page
from grapevine.report.parts import Card, Cell, Table
from grapevine.run.folder import read_json, running

DEPTH = 4  # folders below the one that was named
HEADS = ("run", "job", "method", "data", "state", "right", "time", "sent", "finished")
WORDS = ("run", "job", "method", "data", "state", "finished")  # sorted as words; the others as numbers
FILTERS = ("job", "method", "data", "state")


def write(folder: str | Path) -> Path:
    """Make index.html of a folder of runs, and return where it is."""
    return make(folder).write(Path(folder) / "index.html")


def make(folder: str | Path) -> Page:
    """The index of all runs below a folder."""
    folder = Path(folder)
    runs = list(found(folder))
    if not runs:
        raise Mistake(
            f"{folder} holds no run of Grapevine: give the folder of a run, as its --out named it, or one with runs in it."
        )
    rows = [_row(path, path.relative_to(folder).as_posix()) for path in runs]
    states = [row["state"] for row in rows]
    told = ", ".join(f"{states.count(name)} {name}" for name in dict.fromkeys(states))
    table = Table(HEADS, [list(row.values()) for row in rows], sortable=True, words=WORDS, filters=FILTERS)
    note = (
        "Right is the share of test rows for train, of new labels for label (expected from hidden labels, unless the truth was "
        "given), of labels after cleaning for clean, and of the best method over n seeds for compare. Intervals are 95 %."
    )
    heading = f"{many(len(rows), 'run')} in {folder.resolve().name}: {told}."
    going = REFRESH_SECONDS if "running" in states else 0
    return Page(f"Runs in {folder.resolve().name}", "Index of runs", heading, [("Runs", [Card("", [table, note])])],
                f"Made by Grapevine {__version__}.", refresh=going)  # fmt: skip


def found(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Folders of runs, in order of their names. What lies inside a run belongs to it."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else ():
        if path.name.startswith(".") or not path.is_dir() or path.is_symlink() or not os.access(path, os.R_OK):
            continue
        if is_run(path):
            yield path
        elif depth > 1:
            yield from found(path, depth - 1)


def _row(path: Path, name: str) -> dict[str, Any]:
    """The line of a run. One whose files cannot be read is listed all the same, and says so."""
    page = path / "report.html"
    link = Cell("", links=[(name, f"{name}/report.html" if page.is_file() else "")])
    try:
        about = _compared(path) if job_of(path) == "compare" else _run(path)
    except (Mistake, KeyError, TypeError, AttributeError, ValueError):
        about = dict(job="—", method="—", data="—", state="damaged", right="—", time="—", sent="—", finished="—")
    return dict(run=link, **about)


def _run(path: Path) -> dict[str, Any]:
    result = read_json(path / "result.json")
    about = result or read_json(path / "settings.json") or {}
    data = about.get("data") or {}
    state = "finished" if result else "running" if running(path) else "stopped"
    sent = [about[key] for key in ("bytes_up", "bytes_down") if about.get(key) is not None]
    took = duration(about["seconds"]) if about.get("seconds") else "—"
    return dict(
        job=str(about.get("job", "train")), method=str(about.get("method", "—")), data=str(data.get("name", "own data")),
        state=state, right=_right(about), time=took, sent=size(sum(sent)) if sent else "—", finished=_when(path / "result.json"),
    )  # fmt: skip


def _right(about: dict[str, Any]) -> Any:
    """A share, with its interval or n in a line below."""
    expected = about.get("expected") or {}
    expected = expected.get("given", expected)
    if about.get("accuracy") is None and "low" in expected:
        spread = f"expected, {percent(expected['low'])} to {percent(expected['high'])}, n = {count(expected['n'])}"
        return Cell(percent(expected["accuracy"]), spread)
    matrix = about.get("confusion")
    n = f"n = {count(sum(map(sum, matrix)))}" if matrix else ""
    return "—" if about.get("accuracy") is None else Cell(percent(about["accuracy"]), n)


def _compared(path: Path) -> dict[str, Any]:
    data = read_json(path / "compare.json") or {}
    first = lead(data["table"]) if len(data["cells"]) == 1 else None
    seconds = sum(run["seconds"] or 0 for run in data["runs"])
    right = Cell(percent(first["accuracy"]), f"{first['method']}, n = {first['seeds']}") if first else "—"
    state = "running" if data["state"] == "going" and running(path) else "stopped" if data["state"] == "going" else data["state"]
    return dict(job="compare", method=", ".join(data["methods"]), data=_names(data), state=state, right=right,
                time=duration(seconds), sent="—", finished=_when(path / "compare.json"))  # fmt: skip


def _names(data: dict[str, Any]) -> str:
    """What was compared on, named as a training run names it: a file without its folder and ending."""
    return ", ".join(dict.fromkeys(Path(str(cell["data"])).stem for cell in data["cells"]))


def _when(path: Path) -> str:
    """When a file was written last, on this machine's clock."""
    return datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M") if path.is_file() else "—"
