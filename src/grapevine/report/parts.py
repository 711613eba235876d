"""What a page is put together from: charts, tables and cards, as values. The templates make HTML of them.

A part that is only words is a sentence beside the rest; a list of parts stands side by side, as many as there is room for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grapevine.report.charts.marks import Drawing, Mark

MOST_LINES = 500  # of a table
MOST_CLIENTS = 50  # drawn one by one
MOST_CLASSES = 100
MEASURED = re.compile(r"-?[\d.,]+ ?(%|s|B|kB|MB|GB)")


@dataclass(frozen=True)
class Cell:
    """A cell of a table that holds more than words."""

    words: str
    small: str = ""  # in a line below
    share: float | None = None  # as a bar below
    links: Sequence[tuple[str, str]] = ()  # words and address, or "" without one
    png: str = ""  # a picture in base64


@dataclass(frozen=True)
class Table:
    """Columns of numbers to the right, the rest to the left; `more` says where the lines are that a long table leaves out.

    The heads of a `sortable` table sort it: as numbers, except in the first column and those of `words`. Columns of `filters` get
    a menu each, above the table, and a box finds words in its rows. `looks` are styles of its rows. On a phone, a table of more
    than three columns has its rows below one another, each value with its head.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: str = ""
    sortable: bool = False
    looks: Sequence[str] = ()
    words: Sequence[str] = ()
    filters: Sequence[str] = ()

    @property
    def look(self) -> str:
        if any(isinstance(value, Cell) and value.png for row in self.rows for value in row):
            return "pictures"
        looks = dict(sorted=self.sortable, listed=self.filters, stacked=len(self.heads) > 3)
        return " ".join(look for look, wanted in looks.items() if wanted)

    @property
    def numeric(self) -> list[bool]:
        if self.sortable or not self.rows:
            return [self.sortable and i > 0 and head not in self.words for i, head in enumerate(self.heads)]
        return [any(map(_is_number, column)) for column in zip(*self.rows)]

    def choices(self, head: str) -> list[str]:
        """What stands in a column, each once, in order."""
        at = list(self.heads).index(head)
        return sorted({str(row[at]) for row in self.rows})


def _is_number(value: Any) -> bool:
    """A number, or one with its unit. Class names that look like numbers are words."""
    return isinstance(value, (int, float)) or isinstance(value, str) and MEASURED.fullmatch(value) is not None


@dataclass(frozen=True)
class Key:
    """A series in a legend: its name, the number by which it is hidden, and a mark around (0, 0)."""

    name: str
    number: int
    mark: Mark


@dataclass(frozen=True)
class Pick:
    """A check box for each series, which hides it in all charts of the page."""

    head: str
    key: Sequence[Key]


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, a sentence about it, its legend and the numbers behind it.

    `legend` on the page: "buttons" that hide a series, the "key" alone, or "" where other controls do it. `menus` choose what is
    shown by the marks' data: {name in the data: (head, choices)}.
    """

    title: str
    drawing: Drawing
    numbers: Sequence[Table]
    note: str = ""
    wide: bool = False
    key: Sequence[Key] = ()
    legend: str = "buttons"
    menus: Mapping[str, tuple[str, Sequence[str]]] | None = None


@dataclass(frozen=True)
class Card:
    title: str
    parts: Sequence[Part]
    wide: bool = False


@dataclass(frozen=True)
class Command:
    """The command that makes the same thing again."""

    words: str
    note: str = ""


@dataclass(frozen=True)
class Settings:
    """Groups of nested settings, each as a list of `name.inner` and value."""

    groups: Mapping[str, Mapping[str, Any]]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str | None]]:
    out: list[tuple[str, str | None]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            out += flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            out.append((prefix + name, ", ".join(map(str, value)) or None))
        else:
            out.append((prefix + name, value if value is None or isinstance(value, str) else json.dumps(value)))
    return out


@dataclass(frozen=True)
class Views:
    """The same thing seen in several ways: radio buttons choose which is shown, without a script."""

    name: str
    choices: Mapping[str, Sequence[Part]]


Part = str | list | Chart | Table | Pick | Card | Command | Settings | Views


def charts(parts: Iterable[Part]) -> Iterator[Chart]:
    """All charts among the parts, in order."""
    for part in parts:
        if isinstance(part, Chart):
            yield part
        elif isinstance(part, Views):
            for choice in part.choices.values():
                yield from charts(choice)
        elif isinstance(part, (list, Card)):
            yield from charts(part if isinstance(part, list) else part.parts)
