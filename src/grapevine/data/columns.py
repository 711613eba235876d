"""The columns of a table: what each holds, and the numbers that a table with categories becomes once its values are agreed on.

A raw table is a float64 matrix, NaN where a value is missing. A number stands as it is. A date becomes four numbers when the file
is read. A category is the position of its value in the party's own list of values; parties agree on a common list by name, and
`encode` turns the column into one column of zeros and ones per agreed value and one for all others. True and false are the
numbers 1 and 0: one column is enough, and there are no names to agree on.

A missing category is a row of zeros, unlike any value, so it needs no filling in and no indicator. A missing number stays NaN:
each job has its own way to fill it. `indicators` names the number columns that get one more column, 1 where the value is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

NUMBER, CATEGORY, DATE = "number", "category", "date"
RARE = 10  # a value with fewer rows than this over all parties is not named: its rows are pooled as "other"
OTHER = "other"


@dataclass(frozen=True)
class Column:
    """A column of a raw table. `values` are a category's, in the order of their numbers; a part of a date is `of` another."""

    name: str
    kind: str = NUMBER
    values: tuple[str, ...] = ()
    of: str = ""

    @property
    def source(self) -> str:
        """The name of the column in the file."""
        return self.of or self.name


def encode(
    x: np.ndarray, columns: Sequence[Column], agreed: Mapping[str, Sequence[str]], indicators: Iterable[str] = ()
) -> np.ndarray:
    """The raw table `x` as numbers alone; `names` are the columns of the result.

    A category becomes one column per agreed value and a last one for every other value. A category without an agreed value
    (every one of its values is rare) is left out. `indicators` are names of number columns.
    """
    parts = []
    for j, column in enumerate(columns):
        if column.kind != CATEGORY:
            parts.append(x[:, j : j + 1])
        elif agreed.get(column.name):
            parts.append(_one_hot(x[:, j], column.values, agreed[column.name]))
    place = {column.name: j for j, column in enumerate(columns)}
    parts += [np.isnan(x[:, place[name], None]).astype(np.float64) for name in indicators]
    return np.concatenate(parts, 1) if parts else np.empty((len(x), 0))


def _one_hot(codes: np.ndarray, own: Sequence[str], agreed: Sequence[str]) -> np.ndarray:
    number = {value: i for i, value in enumerate(agreed)}
    to = np.array([number.get(value, len(agreed)) for value in own], np.int64)
    there = ~np.isnan(codes)
    made = np.zeros((len(codes), len(agreed) + 1))
    made[np.flatnonzero(there), to[codes[there].astype(np.int64)]] = 1.0
    return made


def names(columns: Sequence[Column], agreed: Mapping[str, Sequence[str]], indicators: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of the columns that `encode` makes, in its order."""
    made: list[str] = []
    for column in columns:
        if column.kind != CATEGORY:
            made.append(column.name)
        elif agreed.get(column.name):
            made += [f"{column.name}={value}" for value in (*agreed[column.name], OTHER)]
    return (*made, *(f"{name} missing" for name in indicators))


def counts(x: np.ndarray, columns: Sequence[Column]) -> dict[str, dict[str, int]]:
    """How many rows have each value of each category."""
    found = {}
    for j, column in enumerate(columns):
        if column.kind == CATEGORY:
            codes = x[~np.isnan(x[:, j]), j].astype(np.int64)
            n = np.bincount(codes, minlength=len(column.values))
            found[column.name] = {value: int(k) for value, k in zip(column.values, n)}
    return found


def pool_rare(counts: Mapping[str, Mapping[str, int]], least: int = RARE) -> dict[str, tuple[str, ...]]:
    """The values to agree on for each category: those with at least `least` rows, sorted by name."""
    return {name: tuple(sorted(value for value, n in found.items() if n >= least)) for name, found in counts.items()}


def worth_naming(found: Mapping[str, int], parties: int, most: int) -> list[str]:
    """Of a party's values of a category, with their rows, those that can have RARE rows over all parties: one that fewer than
    RARE / parties rows have here is named by another party, or it is rare. Of more than `most`, the most frequent."""
    can = [value for value, n in found.items() if n * parties >= RARE]
    return sorted(can, key=lambda value: (-found[value], value))[:most]


def missing(x: np.ndarray, columns: Sequence[Column]) -> tuple[str, ...]:
    """The number columns that lack a value somewhere; of a date, its first part alone."""
    gaps = np.isnan(x).any(0)
    return tuple(c.name for c, gap in zip(columns, gaps) if gap and c.kind != CATEGORY and c.name == c.source)


@dataclass(frozen=True)
class Layout:
    """What the tables of all parties become: their columns, with the agreed values of each category, and the indicators.

    A `raw` one says only which columns there are and what they hold: the parties agree on the rest themselves, during the job.
    """

    columns: tuple[Column, ...] = ()
    indicators: tuple[str, ...] = ()
    raw: bool = False

    @property
    def agreed(self) -> dict[str, tuple[str, ...]]:
        return {column.name: column.values for column in self.columns if column.kind == CATEGORY}

    @property
    def names(self) -> tuple[str, ...]:
        return names(self.columns, self.agreed, self.indicators)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of a file that it is made from."""
        return tuple(dict.fromkeys(column.source for column in self.columns))

    @property
    def kinds(self) -> dict[str, str]:
        """What each of these columns must hold."""
        return {column.source: column.kind for column in self.columns}

    def encode(self, x: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
        """A raw table with these columns (its categories have values of its own) as numbers."""
        return encode(x, columns, self.agreed, self.indicators)

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = dict(columns=[_short(column) for column in self.columns], indicators=list(self.indicators))
        return made | (dict(raw=True) if self.raw else {})

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Layout:
        columns = (Column(**dict(each, values=tuple(each.get("values", ())))) for each in table["columns"])
        return cls(tuple(columns), tuple(table.get("indicators", ())), table.get("raw", False))


def _short(column: Column) -> dict[str, Any]:
    """A column as JSON and TOML have it, without what is empty."""
    plain = dict(asdict(column), values=list(column.values))
    return {name: value for name, value in plain.items() if value}


def numbers(names: Iterable[str]) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(name) for name in names)


def agree(tables: Sequence[tuple[np.ndarray, tuple[Column, ...]]], impute: bool, least: int = RARE) -> Layout:
    """A common layout for raw tables with the same columns: values that are not rare in all of them together, and with `impute`
    an indicator for every number column that lacks a value somewhere."""
    total: dict[str, Counter[str]] = {}
    for x, columns in tables:
        for name, found in counts(x, columns).items():
            total.setdefault(name, Counter()).update(found)
    agreed = pool_rare(total, least)
    first = tables[0][1]
    gaps = {name for x, columns in tables for name in missing(x, columns)} if impute else set()
    return Layout(
        tuple(replace(column, values=agreed.get(column.name, ())) for column in first),
        tuple(column.name for column in first if column.name in gaps),
    )
