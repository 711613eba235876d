"""What the label and clean jobs write: results that are lists of parties, and a folder with one sub-folder per party."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.places import require_folder, writing_name

FILES = ("result.json", "messages.jsonl", "report.html", "config.toml")  # beside the parties' folders
P = TypeVar("P")
Page = Callable[[Path, dict[str, Any]], Any]
"""Writes report.html into a folder, from what result.json holds."""


# ---------------------------------------------------------------- results


class Parties(Generic[P]):
    """A result is a list of its parties' results. In one process they are together; between real parties each has its own."""

    parties: list[P]

    def __getitem__(self, i: int) -> P:
        return self.parties[i]

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[P]:
        return iter(self.parties)


def no_label(label: Any) -> bool:
    return label is None or (isinstance(label, (int, np.integer)) and label == -1)


def cells(labels: Sequence) -> list:
    """Labels as a table shows them."""
    return ["" if no_label(label) else label for label in labels]


def whole_numbers(result: Any, *fields: str) -> Any:
    """Labels that came as integers are returned as integers: int64 arrays with −1 for none."""

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: numbers(labels) for name, labels in value.items()}
        return np.array([-1 if label is None else int(label) for label in value], np.int64)

    parties = [replace(p, **{name: numbers(getattr(p, name)) for name in fields}) for p in result.parties]
    return replace(result, parties=parties, classes=tuple(int(name) for name in result.classes))


def sent(messages: Sequence[dict]) -> dict[str, int]:
    """Bytes up and down."""
    totals = {way: sum(line["bytes"] for line in messages if line["direction"] == way) for way in ("up", "down")}
    return dict(bytes_up=totals["up"], bytes_down=totals["down"])


# ---------------------------------------------------------------- names and places


def check_names(names: Sequence[str]) -> None:
    """Every party gets a folder of its name next to the job's own files."""
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"two parties are called '{name}': give every party its own name.")
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise Mistake(f"a party is called '{name}', which is also the name of its folder: use a name without slashes.")
        if name.lower() in FILES:
            raise Mistake(f"a party is called '{name}', but the job writes a file of that name: "
                          "rename the party or its file.")  # fmt: skip


def require_new(out: str | Path) -> None:
    """Before anything is read or computed, check that the results have a free place that can be written."""
    folder = Path(out)
    if os.path.isfile(folder):
        raise Mistake(f"{out} is a file: choose a new folder for --out.")
    require_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise Mistake(f"{out} exists and is not empty: choose another --out.")


# ---------------------------------------------------------------- writing


def write_folder(folder: str | Path, summary: dict[str, Any], result: Any, write_party: Callable[[Path, Any], None],
                 page: Page | None = None) -> None:  # fmt: skip
    """Write a folder per party, result.json, messages.jsonl and the page.

    Everything is written elsewhere first and then moved into place, so there is never half a folder.
    """
    folder = Path(folder).absolute()
    beside = writing_name(folder)
    beside.mkdir(parents=True)
    try:
        write_lines(beside / "messages.jsonl", result.messages)
        (beside / "result.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
        for party in result:
            write_party(beside / party.name, party)
        if page:
            page(beside, summary)
        os.replace(beside, folder) if not folder.exists() else _fill(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _fill(beside: Path, folder: Path) -> None:
    """Into an empty folder that was there before."""
    for path in sorted(beside.iterdir(), key=lambda path: path.name == "result.json"):
        os.replace(path, folder / path.name)
    beside.rmdir()


def write_lines(path: Path, lines: Sequence[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
