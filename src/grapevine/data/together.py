"""Tables of several parties: brought to the same columns, described in a few lines, and looked over for likely mistakes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.data.cells import LARGEST
from grapevine.data.columns import CATEGORY, DATE, NUMBER, RARE, Column, Layout, counts
from grapevine.data.tables import Columns, Table, label_name, read

LOG = logging.getLogger("grapevine.reading")
MANY = 20  # rows from which a column without two equal values looks like an id, or one that goes with the label like its truth
TRUTH = re.compile(r"(^|[_\W])(truth|true|actual|gold|target|class|label)s?($|[_\W])", re.IGNORECASE)
PLAIN = {*"yes no y n true false t f high medium low positive negative normal abnormal other none m male female".split(),
         *map(str, range(-1, 100))}  # fmt: skip  # names of classes that other columns have, too
IF_TRUTH = ("if it is the truth, it belongs in --truth (label and clean); if new rows would not have it, leave it out of "
            "--features.")  # fmt: skip
FAR, HUGE = 100, 1e9  # times the others' size: another scale; an absolute value that is hardly a measurement


def read_together(sources: Sequence[Any], asked: Sequence[Columns], names: Sequence[str]) -> list[Table]:
    """All tables, with the same columns in the same order, each of one kind everywhere."""
    # Missing values are refused only when it is known which columns hold numbers.
    tables = [read(source, replace(columns, impute=True), name) for source, columns, name in zip(sources, asked, names)]
    kinds = common_kinds(tables)
    for i, table in enumerate(tables):
        other = any(kinds.get(column.source, column.kind) != column.kind for column in table.columns)
        if other or not asked[i].impute and np.isnan(table.x).any():
            own = {name: kind for name, kind in kinds.items() if name in {column.source for column in table.columns}}
            tables[i] = read(sources[i], replace(asked[i], kinds={**own, **asked[i].kinds}), names[i])
    return check_same_columns(tables)


def common_kinds(tables: Sequence[Table]) -> dict[str, str]:
    """What each column holds in all tables together. Whole numbers in one and text in another are categories in both."""
    found: dict[str, dict[str, Table]] = {}
    for table in tables:
        for j, column in enumerate(table.columns):
            if not np.isnan(table.x[:, j]).all():  # an empty column is whatever the others' is
                found.setdefault(column.source, {}).setdefault(column.kind, table)
                if column.kind == NUMBER and (table.x[:, j] % 1 > 0).any():
                    found[column.source].setdefault("fraction", table)
    for name, kinds in found.items():
        fraction = kinds.pop("fraction", None)
        if DATE in kinds and len(kinds) > 1 or CATEGORY in kinds and fraction is not None:
            one = DATE if DATE in kinds else NUMBER
            other = next(kind for kind in (CATEGORY, NUMBER) if kind in kinds and kind != one)
            words = {DATE: "dates", NUMBER: "numbers", CATEGORY: "text"}
            here, there = (fraction if one == NUMBER and fraction else kinds[one]), kinds[other]
            raise Mistake(f"column {name!r} holds {words[one]} in {here.path} and {words[other]} in {there.path}: write it "
                          "the same way everywhere, or leave it out of --features.")  # fmt: skip
    return {name: CATEGORY if CATEGORY in kinds else next(iter(kinds)) for name, kinds in found.items()}


def check_same_columns(tables: Sequence[Table]) -> list[Table]:
    """The tables with their feature columns in the order of the first; a Mistake if one lacks a column or has one more."""
    first = tables[0]
    same = [first]
    for table in tables[1:]:
        lacks = [column.source for column in first.columns if column.name not in table.names]
        more = [column.source for column in table.columns if column.name not in first.names]
        if lacks or more:
            what = f"lacks column {lacks[0]!r}" if lacks else f"has column {more[0]!r}"
            both = list(dict.fromkeys(column.source for column in first.columns if column.name in table.names))
            way = (
                f"or use only those that both have: --features {','.join(both)}"
                if both
                else "since they have no column in common"
            )
            raise Mistake(f"{table.path} {what}, which {first.path} {'has' if lacks else 'does not'}: make the columns the same, "
                          f"{way}.")  # fmt: skip
        if table.names != first.names:
            order = [table.names.index(name) for name in first.names]
            table = replace(table, columns=tuple(table.columns[j] for j in order), x=table.x[:, order])
        same.append(table)
    return same


# ---------------------------------------------------------------- what was read, in words


def tell(read: Sequence[Table], layout: Layout, names: Sequence[str], asked: Columns, judge: bool = True,
         server: bool = False) -> None:  # fmt: skip
    """What was read, in words, and what may be wrong with it; the command prints it. Where a `server` comes first, the others'
    labels may be wrong."""
    for line in described(read, layout, names, asked.label, asked.impute):
        LOG.info(line)
    for line in [*doubts(read, names), *same_as_label(read[:1] if server else read)] if judge else ():
        LOG.warning(line)


def described(tables: Sequence[Table], layout: Layout, names: Sequence[str], label: str | None, impute: bool) -> list[str]:
    """Which columns are used, as what, and what is left out; then for every table its rows and what is missing in them."""
    by_kind: dict[str, list[str]] = {NUMBER: [], CATEGORY: [], DATE: []}
    here = counts(tables[0].x, tables[0].columns) if layout.raw else {}
    left = [f"{name} (not asked for)" for name in dict.fromkeys(name for table in tables for name in table.unused)]
    for column in layout.columns:
        if column.kind == CATEGORY and not column.values:
            left.append(f"{column.name} (text, and no value occurs in {RARE} rows)")
        elif column.name == column.source:
            told = plural(len(column.values), "value") if column.values else ""
            if here.get(column.name) and max(here[column.name].values()) < RARE:  # free text, as far as this party can tell
                told += f", none in {RARE} rows: left out unless other parties have the same"
            by_kind[column.kind].append(f"{column.name} ({told})" if told else column.name)
    words = {NUMBER: "number", CATEGORY: "category", DATE: "date"}
    parts = [f"{plural(len(found), words[kind])}: {some(found)}" for kind, found in by_kind.items() if found]
    lines = [f"Columns: {'; '.join(parts)}." + (f" Left out: {some(left)}." if left else "")]
    for table, name in zip(tables, names):
        lines += [f"{name}: {line}" for line in about_rows(table, label, impute)]
        lines += list(table.notes)
    return lines


def about_rows(table: Table, label: str | None, impute: bool) -> Iterator[str]:
    """How many rows have no label and what stood there; what is missing in the features, and what becomes of it."""
    unlabelled = sum(each is None for each in table.labels)
    if label:
        why = f" ({counted(table.missing[label])})" if label in table.missing else ""
        yield f"{plural(len(table), 'row')}, {unlabelled} without a label{why}."
    gaps = []
    for column in table.columns:
        found = table.missing.get(column.name, {}) if column.name == column.source else {}
        if found:
            filled = ", filled with the mean" if impute and column.kind != CATEGORY else ""
            gaps.append(f"{column.name} ({counted(found)}{filled})")
    if gaps:
        yield f"missing values in {some(gaps, 20)}."


def unnamed(x: np.ndarray, columns: Sequence[Column], layout: Layout) -> Iterator[str]:
    """Sentences on values of a category that the layout does not name: rare ones when it was made, new ones, or misspelt ones."""
    for column, found in counts(x, columns).items():
        named = layout.agreed.get(column, ())
        new = {value: n for value, n in found.items() if value not in named}
        if named and new:
            told = some([f"{value!r} ({plural(n, 'row')})" for value, n in new.items()], 4)
            yield f"column {column!r} has values that were rare or absent when the model was made: {told}. They count as one."


def check_size(where: str, x: np.ndarray) -> None:
    """Refuse a number of an array that is too large, and say which columns have infinite ones, which are filled like missing
    ones."""
    far = (np.abs(x) > LARGEST) & np.isfinite(x)
    if far.any():
        row, column = np.argwhere(far)[0]
        raise Mistake(f"{where}, row {row + 1}, column {column + 1} is {x[row, column]:g}, larger than {LARGEST:g}: correct it.")
    found = [f"column {j + 1} ({n} infinite, filled with the mean)" for j, n in enumerate(np.isinf(x).sum(0)) if n]
    if found:
        LOG.warning(f"{where}: missing values in {some(found, 20)}.")


def counted(found: dict[str, int]) -> str:
    return ", ".join(f"{n} {word or 'empty'}" for word, n in sorted(found.items(), key=lambda each: -each[1]))


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word[:-1]}ies" if word.endswith("y") else f"{n} {word}s"


def some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# ---------------------------------------------------------------- warnings


def doubts(tables: Sequence[Table], names: Sequence[str]) -> list[str]:
    """Sentences on columns that are likely a mistake: ids, constants, another scale in one party, huge values."""
    notes = []
    for j, column in enumerate(tables[0].columns):
        if column.name != column.source:
            continue
        values = [table.x[~np.isnan(table.x[:, j]), j] for table in tables]
        if column.kind == CATEGORY:
            distinct = {value for table in tables for value in table.columns[j].values}
            notes += (
                [f"column {column.name!r} is {min(distinct)!r} in every row, so it carries no information."]
                if len(distinct) == 1
                else []
            )
            continue
        every = np.concatenate(values)
        if not len(every):
            notes.append(f"column {column.name!r} is empty in every row: leave it out.")
        elif (every == every[0]).all() and len(every) > 1:
            notes.append(f"column {column.name!r} is {every[0]:g} in every row, so it carries no information.")
        elif column.kind == NUMBER:
            notes += number_doubts(column, values, names)
    return notes


def same_as_label(tables: Sequence[Table]) -> Iterator[str]:
    """Sentences on columns that alone say which label each labelled row has, by few values: the truth, or the label in other
    words."""
    known = [np.array([label is not None for label in table.labels], bool) for table in tables]
    names, y = np.unique([label for table in tables for label in table.labels if label is not None], return_inverse=True)
    if len(y) < MANY:
        yield from named_as_label(tables)
        return
    for j, column in enumerate(tables[0].columns if len(names) > 1 else ()):
        values = np.concatenate([_shared(tables, table, j)[here] for table, here in zip(tables, known)])
        if column.kind == DATE or not (values % 1 == 0).all() or len(np.unique(values[:1000])) > 2 * len(names):
            continue
        found, value = np.unique(values, return_inverse=True)
        if len(found) <= 2 * len(names) and len(np.unique(value * len(names) + y)) == len(found):
            yield f"column {column.name!r} alone says the label of all {many(len(y), 'labelled row')}: {IF_TRUTH}"


def named_as_label(tables: Sequence[Table]) -> Iterator[str]:
    """The same where labelled rows are so few that a column may well say their labels by chance: only of a column that is called
    like a truth, or a text column whose values are the names of the classes, unless these are words such as yes and no."""
    labels = [label for table in tables for label in table.labels if label is not None]
    plain = {label.strip().casefold() for label in labels} <= PLAIN
    for j, column in enumerate(tables[0].columns if len(set(labels)) > 1 else ()):
        if not TRUTH.search(column.name) and (plain or column.kind != CATEGORY):
            continue
        cells = [cell for table in tables for cell, label in zip(_words(table, j), table.labels) if label is not None]
        both = [(cell, label) for cell, label in zip(cells, labels) if cell is not None]
        if len({label for _, label in both}) > 1 and all(cell == label for cell, label in both):
            yield f"column {column.name!r} is the same as the label in all {len(both)} rows that have both: {IF_TRUTH}"


def _words(table: Table, j: int) -> list[str | None]:
    """The cells of a column, by the names that they would have as labels."""
    values = table.columns[j].values
    cells = [None if np.isnan(x) else values[int(x)] if table.columns[j].kind == CATEGORY else float(x) for x in table.x[:, j]]
    return [label_name(cell) for cell in cells]


def _shared(tables: Sequence[Table], table: Table, j: int) -> np.ndarray:
    """A column of a table; the values of a category by their place among all tables'. NaN where one is missing."""
    if table.columns[j].kind != CATEGORY:
        return table.x[:, j]
    every = sorted({value for each in tables for value in each.columns[j].values})
    to = np.array([*np.searchsorted(every, table.columns[j].values), np.nan] if every else [np.nan], float)
    return to[np.nan_to_num(table.x[:, j], nan=-1).astype(np.int64)]


def number_doubts(column: Column, values: Sequence[np.ndarray], names: Sequence[str]) -> Iterator[str]:
    for own, name in zip(values, names):
        if looks_like_id(column.name, own):
            yield (f"column {column.name!r} looks like an id in {name} ({many(len(own), 'row')}, no two alike): if it is one, "
                   f"use --id {column.name}.")  # fmt: skip
            break
    middle = [np.median(size) if len(size := np.abs(own[own != 0])) >= 5 else np.nan for own in values]
    for i, name in enumerate(names):
        others = [m for k, m in enumerate(middle) if k != i and not np.isnan(m)]
        ratio = middle[i] / np.median(others) if others else np.nan
        if ratio >= FAR or ratio <= 1 / FAR:
            way = f"{ratio:.0f} times larger" if ratio > 1 else f"{1 / ratio:.0f} times smaller"
            yield f"column {column.name!r} is about {way} in {name} than in the others: check that the units are the same."
    for own, name, usual in zip(values, names, middle):
        huge = np.flatnonzero((np.abs(own) >= HUGE) & (np.abs(own) >= 1e6 * usual))
        if len(huge):
            yield (f"column {column.name!r} of {name} holds {own[huge[0]]:g}, where most values are near {usual:.3g}: if that "
                   "means missing, name it in --missing.")  # fmt: skip


def looks_like_id(name: str, values: np.ndarray) -> bool:
    """Whole numbers, no two alike: one after the other, or under a name that says so."""
    if len(values) < MANY or (values % 1 != 0).any() or len(np.unique(values)) < len(values):
        return False
    named = re.search(r"(^|[_\s-])(id|nr|no|number|key|index|uuid)$|Id$|ID$", name)
    return bool(named) or values.max() - values.min() == len(values) - 1
