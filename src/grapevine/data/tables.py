"""A party's own tables, read with one sentence for each thing that is wrong. `sheets` opens them, `cells` reads their cells."""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.data.arrow import pa
from grapevine.data.cells import MISSING, CellMistake, Cells, Place, Reader, decimal_mark, is_text, text, trimmed
from grapevine.data.columns import CATEGORY, Column
from grapevine.data.sheets import Sheet, csv_text, ending, existing_file, is_frame, no_column, open_sheet, row_number, unnamed

LABEL_NAMES = ("label", "y", "target")
OPTIONAL = dict(truth=", or leave --truth out", id=", or leave --id out")


@dataclass(frozen=True)
class Columns:
    """What a table's columns are for. Every other column is a feature, unless `features` lists them.

    Without `id`, a column of that name holds the ids, else rows are numbered from 1. `other` are columns that are wanted as text.
    `categories` are taken as categories whatever they hold, and `kinds` says what a column must hold. `missing` are further words
    for a missing value; `decimal` is point, comma, or auto: as the numbers look.
    """

    label: str | None = None
    id: str | None = None
    features: Sequence[str] | None = None
    truth: str | None = None
    impute: bool = False
    other: Sequence[str] = ()
    categories: Sequence[str] = ()
    missing: tuple[str, ...] = ()
    decimal: str = "auto"
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A column has one role. Those of features are checked where it is known which columns there are."""
        roles = [("label", self.label), ("truth", self.truth), ("id", self.id)]
        taken: dict[str, str] = {}
        for role, name in [*roles, *(("party", name) for name in self.other if name != "split")]:
            if name and name in taken:
                raise Mistake(f"column {name!r} is named by --{taken[name]} and by --{role}, but a column has one role: name "
                              f"another column with one of them{OPTIONAL.get(role, '')}.")  # fmt: skip
            taken |= {name: role} if name else {}

    @property
    def texts(self) -> list[str]:
        """The columns that are read as text."""
        return [name for name in (self.label, self.id, self.truth, *self.other) if name]


@dataclass(frozen=True)
class Table:
    """Rows of features with ids and labels (None: not labelled); see `columns` for what `x` holds.

    `other` holds the columns asked for by name, as text. `missing` counts, per column of the file, the words that stood for a
    missing value; `unused` are columns that nobody asked for, `notes` sentences on how the file was read.
    """

    ids: list[str]
    columns: tuple[Column, ...]
    x: np.ndarray  # (n, d) float64
    labels: list[str | None]
    truth: list[str | None] | None
    path: Any  # a Path, or a frame's name for people
    other: dict[str, list[str | None]]
    missing: dict[str, dict[str, int]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def read_table(source: Any, **asked: Any) -> Table:
    """`read`, with the fields of `Columns` as keywords."""
    return read(source, Columns(**asked))


def read(source: Any, columns: Columns, name: str = "the table") -> Table:
    """Read a file (see `sheets` for the formats; NPZ: features `X`, labels `y` or the array named by `label`) or a frame.

    A missing or infinite number is refused; with `impute` both come back as NaN. A missing category is always NaN. A label is
    None where it is empty, −1 or a word for a missing value. `name` is how people know a frame.
    """
    if not is_frame(source):
        path = existing_file(source)
        if ending(path) == ".npz":
            return read_npz(path, columns)
    return from_sheet(open_sheet(source, name), columns)


def column_names(source: Any) -> list[str]:
    """The names of a table's columns (of an NPZ: its arrays)."""
    if not is_frame(source):
        path = existing_file(source)
        if ending(path) == ".npz":
            with open_npz(path) as arrays:
                return list(arrays.files)
    return open_sheet(source).header


def choose_columns(path: Any, header: Sequence[str], columns: Columns, implicit_id: bool = True) -> tuple[Columns, list[str]]:
    """The columns with the one that holds ids, and the features' names; every name must be there and serve one purpose."""
    given = (*columns.texts, *(columns.features or ()), *columns.categories)
    if implicit_id and columns.id is None and "id" in header and "id" not in given:
        columns = replace(columns, id="id")
    for name in given:
        if name not in header:
            raise no_column(path, name, header)
    taken = columns.texts
    unasked = {name for j, name in enumerate(header) if name == unnamed(j)} - set(columns.categories)
    wanted = list(columns.features or (name for name in header if name not in taken and name not in unasked))
    both = [name for name in (*wanted, *columns.categories) if name in taken]
    if both:
        flag = "--features" if both[0] in wanted else "--categories"
        raise Mistake(f"{path}: column {both[0]!r} already has another purpose: remove it from {flag}.")
    extra = [name for name in columns.categories if name not in wanted]
    if extra:
        raise Mistake(f"{path}: --categories names {extra[0]!r}, which is not among the --features: name it there too.")
    if not wanted:
        raise Mistake(f"{path} has no feature columns besides {', '.join(map(repr, sorted(taken)))}: add some.")
    return columns, wanted


def from_sheet(sheet: Sheet, columns: Columns) -> Table:
    """A table from an opened sheet."""
    columns, wanted = choose_columns(sheet.path, sheet.header, columns)
    table = sheet.load(list(dict.fromkeys([*wanted, *columns.texts])))
    if not len(table):
        raise Mistake(f"{sheet.path} has no rows: give a table with at least one row.")
    kinds = {**columns.kinds, **{name: CATEGORY for name in columns.categories}}
    decimal = columns.decimal
    if decimal == "auto":
        texts = [name for name in wanted if is_text(table.schema.field(name).type) and kinds.get(name) != CATEGORY]
        decimal = decimal_mark(sheet.path, {name: trimmed(table.column(name), columns.missing)[0] for name in texts})
    reader = Reader(sheet.path, sheet.place, columns.missing, decimal, kinds, said=columns.decimal != "auto")
    read = [reader.column(name, table.column(name)) for name in wanted]
    made = build_table(sheet.path, columns, read, {name: table.column(name).to_pylist() for name in columns.texts}, sheet.place)
    unused = tuple(name for name in sheet.header if name not in (*wanted, *columns.texts))
    return replace(made, unused=unused, notes=sheet.notes)


def build_table(path: Any, columns: Columns, read: Sequence[Cells], cells: Mapping[str, list], place: Place) -> Table:
    """A table from its features and the cells of its text columns, whatever the file."""
    made = tuple(column for each in read for column in each.columns)
    raw = np.concatenate([each.x for each in read], 1)
    x = finite(path, raw, made, columns.impute, place)
    names = {name: [label_name(value, columns.missing) for value in cells[name]] for name in columns.texts if name != columns.id}
    endless = {column.name: dict(infinite=int(n)) for column, n in zip(made, np.isinf(raw).sum(0)) if n}
    gaps = {each.columns[0].name: {**each.missing, **endless.get(each.columns[0].name, {})} for each in read}
    gaps = {name: found for name, found in gaps.items() if found}
    for name, found in names.items():
        empty = Counter((text(cell) or "").strip() for cell, label in zip(cells[name], found) if label is None)
        gaps |= {name: dict(empty)} if empty else {}
    return Table(
        row_ids(path, columns.id, cells, len(x), place), made, x, names[columns.label] if columns.label else [None] * len(x),
        names[columns.truth] if columns.truth else None, path, {name: names[name] for name in columns.other}, gaps,
    )  # fmt: skip


def row_ids(path: Any, name: str | None, cells: Mapping[str, list], n: int, place: Place) -> list[str]:
    if name is None:
        return [str(row) for row in range(1, n + 1)]
    first: dict[str, int] = {}
    for row, cell in enumerate(cells[name]):
        value = text(cell)
        if not value:
            raise Mistake(f"{path}, {place(row)}, column {name!r}: the id is empty: give every row its own id.")
        if value in first:
            raise Mistake(f"{path}, {place(row)}: id {value!r} is also on {place(first[value])}: give every row its own id.")
        first[value] = row
    return list(first)


def finite(path: Any, x: np.ndarray, columns: Sequence[Column], impute: bool, place: Place) -> np.ndarray:
    """Infinite numbers become NaN too; without `impute` a missing number or date is refused."""
    bad = ~np.isfinite(x)
    needed = bad & np.array([column.kind != CATEGORY for column in columns])
    if needed.any() and not impute:
        row, j = (int(v) for v in np.argwhere(needed)[0])
        name = columns[j].source
        what = "the value is missing" if np.isnan(x[row, j]) else "the value is infinite"
        way = f"put a {columns[j].kind} there or use --impute"
        raise CellMistake(name, f"{path}, {place(row)}, column {name!r}: {what}", way)
    return np.where(bad, np.nan, x) if bad.any() else x


# ---------------------------------------------------------------- NPZ


def open_npz(path: Path) -> np.lib.npyio.NpzFile:
    try:
        arrays = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise Mistake(f"{path} is not a valid NPZ file: write it with numpy.savez.") from None
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise Mistake(f"{path} holds a single array: save X and y in it with numpy.savez.")
    return arrays


def take_array(path: Path, arrays: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    if key not in arrays.files:
        raise no_column(path, key, arrays.files, "array")
    try:
        return arrays[key]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise Mistake(
            f"{path}: array {key!r} cannot be read (it is damaged or holds Python objects): store numbers or strings."
        ) from None


def read_npz(path: Path, columns: Columns) -> Table:
    with open_npz(path) as arrays:
        own_id = "id" if columns.id is None and "id" in arrays.files else columns.id
        x = take_array(path, arrays, "X")
        n = len(x) if x.ndim else 0
        # `y` is the format's own name for labels.
        label = "y" if columns.label and columns.label not in arrays.files and "y" in arrays.files else columns.label
        columns = replace(columns, id=own_id, label=label)
        cells = {name: take_array(path, arrays, name) for name in columns.texts}
        names = [str(name) for name in take_array(path, arrays, "columns")] if "columns" in arrays.files else None
    for name, values in cells.items():
        if values.shape != (n,):
            raise Mistake(f"{path}: array {name!r} has shape {values.shape} but 'X' has {n} rows: give one entry per row.")
    if x.dtype.kind not in "biuf":
        raise Mistake(f"{path}: array 'X' holds {x.dtype}: store numbers.")
    x = x.reshape(n, math.prod(x.shape[1:])).astype(np.float64)
    names = names or [f"x{j}" for j in range(x.shape[1])]
    if len(names) != x.shape[1]:
        raise Mistake(f"{path}: 'columns' has {len(names)} names for the {x.shape[1]} columns of 'X': give one name per column.")
    own = Columns(features=columns.features, categories=columns.categories)
    _, wanted = choose_columns(path, names, own, implicit_id=False)
    if not n:
        raise Mistake(f"{path} has no rows: give a table with at least one row.")
    kinds = {**columns.kinds, **{name: CATEGORY for name in columns.categories}}
    reader = Reader(path, row_number, columns.missing, kinds=kinds)
    read = [reader.column(name, pa.chunked_array([x[:, names.index(name)]])) for name in wanted]
    return build_table(path, columns, read, {name: values.tolist() for name, values in cells.items()}, row_number)


# ---------------------------------------------------------------- names


def label_name(value: Any, missing: Iterable[str] = ()) -> str | None:
    """A label's name, or None where there is none: a word for a missing value, NaN or −1."""
    name = text(value)
    if name is None or name.strip().lower() in (*MISSING, *(word.lower() for word in missing)):
        return None
    whole = re.fullmatch(r"\s*(-?\d+)\.0+\s*", name)  # integers that passed through a float column
    name = whole[1] if whole else name
    return None if name.strip() == "-1" else name


def sort_names(names: Iterable[str]) -> list[str]:
    """Sorted as numbers if all are whole numbers, else as text."""
    names = list(names)
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        return sorted(names, key=int)
    return sorted(names)


def spelling_warnings(names: Iterable[str]) -> list[str]:
    """A sentence for each pair of class names that differ only in case or spaces."""
    seen: dict[str, str] = {}
    sentences = []
    for name in names:
        folded = re.sub(r"[\s_-]+", " ", name.strip()).casefold()
        if folded in seen:
            sentences.append(
                f"classes {seen[folded]!r} and {name!r} are treated as different: if they are the same, spell them alike."
            )
        seen.setdefault(folded, name)
    return sentences


def write_csv(path: str | Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length as CSV; the file appears whole or not at all, and only its owner may read it."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of different lengths: {lengths}")
    write_atomically(Path(path), csv_text(columns, zip(*columns.values())).encode(), 0o600)
