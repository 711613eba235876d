"""A party's own tables (CSV, Parquet, NPZ), read with one sentence for each thing that is wrong."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.words import hint

LABEL_NAMES = ("label", "y", "target")

Place = Callable[[int], str]  # where row i of a file stands, for people


@dataclass(frozen=True)
class Columns:
    """What a table's columns are for. Every other column is a feature, unless `features` lists them."""

    label: str | None = None
    id: str | None = None
    features: Sequence[str] | None = None
    truth: str | None = None
    impute: bool = False
    other: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """Those that are read as text."""
        return [name for name in (self.label, self.id, self.truth, *self.other) if name]


@dataclass(frozen=True)
class Table:
    """Rows of features with ids and labels (None: not labelled). `other` holds the columns asked for by name, as text."""

    ids: list[str]
    columns: tuple[str, ...]
    x: np.ndarray  # (n, d) float64
    labels: list[str | None]
    truth: list[str | None] | None
    path: Path
    other: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.ids)


def read_table(
    path: str | Path,
    label: str | None = None,
    id: str | None = None,
    features: Sequence[str] | None = None,
    truth: str | None = None,
    impute: bool = False,
    other: Sequence[str] = (),
) -> Table:
    """Read a CSV, Parquet or NPZ file.

    Every column that is not `label`, `id`, `truth` or in `other` is a feature, unless `features` lists them. Without `id`, a
    column of that name holds the ids, else rows are numbered from 1. Missing and infinite features are refused; with `impute`
    both come back as NaN. An empty label, NaN or −1 is None. NPZ: features `X`, labels `y` (or the array named by `label`).
    """
    path = existing_file(path)
    readers = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet, ".npz": read_npz}
    if path.suffix.lower() not in readers:
        raise Mistake(f"{path} is not a table this can read: give a .csv, .parquet or .npz file.")
    return readers[path.suffix.lower()](path, Columns(label, id, features, truth, impute, tuple(other)))


def column_names(path: str | Path) -> list[str]:
    """The names of a table's columns (of an NPZ: its arrays)."""
    path = existing_file(path)
    if path.suffix.lower() == ".npz":
        with open_npz(path) as arrays:
            return list(arrays.files)
    if path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            return file.schema_arrow.names
    return read_header(path)[0]


def choose_columns(path: Path, header: Sequence[str], columns: Columns, implicit_id: bool = True) -> tuple[Columns, list[str]]:
    """The columns with the one that holds ids, and the features' names; every name must be there and serve one purpose."""
    given = (*columns.texts, *(columns.features or ()))
    if implicit_id and columns.id is None and "id" in header and "id" not in given:
        columns = replace(columns, id="id")
    for name in given:
        if name not in header:
            raise no_column(path, name, header)
    taken = columns.texts
    wanted = list(columns.features or (name for name in header if name not in taken))
    both = [name for name in wanted if name in taken]
    if both:
        raise Mistake(f"{path}: column {both[0]!r} has another purpose already, take it out of --features.")
    if not wanted:
        raise Mistake(f"{path} has no feature columns beside {', '.join(map(repr, sorted(taken)))}, add some.")
    return columns, wanted


def build_table(
    path: Path, columns: Columns, wanted: Sequence[str], x: np.ndarray, cells: Mapping[str, list], place: Place
) -> Table:
    """A table from its features and the cells of its text columns, whatever the file."""
    if not len(x):
        raise Mistake(f"{path} has no rows, give a table with at least one row.")
    x = finite(path, x, wanted, columns.impute, place)
    names = {name: [label_name(value) for value in cells[name]] for name in columns.texts if name != columns.id}
    return Table(
        row_ids(path, columns.id, cells, len(x), place), tuple(wanted), x,
        names[columns.label] if columns.label else [None] * len(x), names[columns.truth] if columns.truth else None, path,
        {name: names[name] for name in columns.other},
    )  # fmt: skip


def row_ids(path: Path, name: str | None, cells: Mapping[str, list], n: int, place: Place) -> list[str]:
    if name is None:
        return [str(row) for row in range(1, n + 1)]
    first: dict[str, int] = {}
    for row, cell in enumerate(cells[name]):
        value = text(cell)
        if not value:
            raise Mistake(f"{path}, {place(row)}, column {name!r}: the id is empty, give every row an id of its own.")
        if value in first:
            raise Mistake(f"{path}, {place(row)}: id {value!r} is also on {place(first[value])}, give every row its own.")
        first[value] = row
    return list(first)


def finite(path: Path, x: np.ndarray, names: Sequence[str], impute: bool, place: Place) -> np.ndarray:
    bad = ~np.isfinite(x)
    if not bad.any():
        return x
    if impute:
        return np.where(bad, np.nan, x)
    row, j = (int(v) for v in np.argwhere(bad)[0])
    what = "the value is missing" if np.isnan(x[row, j]) else "the value is infinite"
    raise CellMistake(names[j], f"{path}, {place(row)}, column {names[j]!r}: {what}", IMPUTE)


class CellMistake(Mistake):
    """A cell that is no feature. A command without the flag that `way` names says another way out."""

    def __init__(self, column: str, what: str, way: str):
        super().__init__(f"{what}, {way}.")
        self.column, self.what, self.way = column, what, way


NAME_THEM, IMPUTE = "take the column out or name the --features", "put a number there or use --impute"


def text_mistake(path: Path, place: str, name: str, cell: Any) -> CellMistake:
    return CellMistake(name, f"{path}, {place}, column {name!r}: {cell!r} is not a number", NAME_THEM)


# CSV


def read_csv(path: Path, columns: Columns) -> Table:
    header, delimiter = read_header(path)
    columns, wanted = choose_columns(path, header, columns)
    types = {name: pa.float64() for name in wanted} | {name: pa.string() for name in columns.texts}
    keep = [name for name in header if name in types]  # the rest is never converted
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=keep, strings_can_be_null=False)
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        # One thread: only then does the reader count rows in its messages.
        table = pa.csv.read_csv(path, pa.csv.ReadOptions(use_threads=False), parse, convert)
    except pa.ArrowInvalid as error:
        raise csv_mistake(path, header, delimiter, wanted, error) from None

    def place(row: int) -> str:
        # Looked up only when something is wrong: records may hold blank lines and line breaks.
        return f"line {next(line for at, (line, _) in enumerate(csv_records(path, delimiter)) if at == row + 1)}"

    return from_arrow(path, columns, wanted, table, place)


def read_header(path: Path) -> tuple[list[str], str]:
    """The names in the first line of a CSV file, and its delimiter: a comma, unless there is none but a semicolon or tab."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
    except UnicodeDecodeError:
        raise Mistake(f"{path} is not a valid CSV file: it is not UTF-8 text, save it as UTF-8.") from None
    if not first:
        raise Mistake(f"{path} is empty, give a table with a header line and at least one row.")
    delimiter = next((d for d in ",;\t" if d in first), ",")
    header = next(csv.reader([first.rstrip("\r\n")], delimiter=delimiter))
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise Mistake(f"{path} has two columns named {twice[0]!r}, rename one.")
    if all(is_number(name) for name in header):
        raise Mistake(f"{path} starts with numbers ({first.strip()[:40]}), put a header line with column names on top.")
    return header, delimiter


def csv_mistake(path: Path, header: list[str], delimiter: str, wanted: Sequence[str], error: Exception) -> Mistake:
    """Find the cell or the line that the reader stumbled over."""
    try:
        for row, (line, cells) in enumerate(csv_records(path, delimiter)):
            if row and len(cells) != len(header):
                return ragged(path, line, header, cells)
            for name, cell in zip(header, cells) if row else ():
                if name in wanted and not is_number(cell) and cell.strip() and cell not in pa.csv.ConvertOptions().null_values:
                    return text_mistake(path, f"line {line}", name, cell)
    except (csv.Error, UnicodeDecodeError):
        pass
    return Mistake(f"{path} is not a valid CSV file ({str(error).splitlines()[0]}), mend it.")


def ragged(path: Path, line: int, header: list[str], cells: list[str]) -> Mistake:
    return Mistake(f"{path}, line {line}: {len(cells)} cells under a header of {len(header)} columns, mend the line.")


def csv_records(path: Path, delimiter: str) -> Iterable[tuple[int, list[str]]]:
    """The records of a CSV file with the line on which each starts. Blank lines are skipped, as the fast reader does."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader, start = csv.reader(file, delimiter=delimiter), 1
        for cells in reader:
            if cells:
                yield start, cells
            start = reader.line_num + 1


def read_text_columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Some columns of a CSV file (by name, whatever its ending) as text."""
    path = existing_file(path)
    header, delimiter = read_header(path)
    for name in names:
        if name not in header:
            raise no_column(path, name, header)
    columns: dict[str, list[str]] = {name: [] for name in names}
    for line, cells in list(csv_records(path, delimiter))[1:]:
        if len(cells) != len(header):
            raise ragged(path, line, header, cells)
        for name in names:
            columns[name].append(cells[header.index(name)])
    return columns


# Parquet


@contextmanager
def open_parquet(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowInvalid, OSError):
        raise Mistake(f"{path} is not a valid Parquet file, write it again.") from None


def read_parquet(path: Path, columns: Columns) -> Table:
    with open_parquet(path) as file:
        columns, wanted = choose_columns(path, file.schema_arrow.names, columns)
        table = file.read(columns=list(dict.fromkeys([*wanted, *columns.texts])))
    return from_arrow(path, columns, wanted, table, row_number)


def row_number(row: int) -> str:
    return f"row {row + 1}"


def from_arrow(path: Path, columns: Columns, wanted: Sequence[str], table: pa.Table, place: Place) -> Table:
    x = np.empty((len(table), len(wanted)))
    for j, name in enumerate(wanted):
        x[:, j] = numbers(path, name, table.column(name), place)
    return build_table(path, columns, wanted, x, {name: table.column(name).to_pylist() for name in columns.texts}, place)


def numbers(path: Path, name: str, column: pa.ChunkedArray, place: Place) -> np.ndarray:
    """One feature column as floats; nulls are NaN."""
    is_ = pa.types
    if any(kind(column.type) for kind in (is_.is_integer, is_.is_floating, is_.is_boolean, is_.is_null, is_.is_decimal)):
        return column.cast(pa.float64()).to_numpy()
    row = next((row for row, value in enumerate(column.to_pylist()) if value is not None), 0)
    raise text_mistake(path, place(row), name, column[row].as_py())


# NPZ


def open_npz(path: Path) -> np.lib.npyio.NpzFile:
    try:
        arrays = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise Mistake(f"{path} is not a valid NPZ file, write it with numpy.savez.") from None
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise Mistake(f"{path} holds a single array, write X and y into it with numpy.savez.")
    return arrays


def take_array(path: Path, arrays: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    if key not in arrays.files:
        raise no_column(path, key, arrays.files, "array")
    try:
        return arrays[key]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise Mistake(f"{path}: array {key!r} cannot be read (damaged, or Python objects), store numbers or strings.") from None


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
            raise Mistake(f"{path}: array {name!r} has shape {values.shape} for {n} rows in 'X', give one entry per row.")
    if x.dtype.kind not in "biuf":
        raise Mistake(f"{path}: array 'X' holds {x.dtype}, store numbers.")
    x = x.reshape(n, math.prod(x.shape[1:])).astype(np.float64)
    names = names or [f"x{j}" for j in range(x.shape[1])]
    if len(names) != x.shape[1]:
        raise Mistake(f"{path}: 'columns' has {len(names)} names for the {x.shape[1]} columns of 'X', give one for each.")
    _, wanted = choose_columns(path, names, Columns(features=columns.features), implicit_id=False)
    x = x[:, [names.index(name) for name in wanted]]
    return build_table(path, columns, wanted, x, {name: values.tolist() for name, values in cells.items()}, row_number)


# Cells and names


def existing_file(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.is_dir():
        raise Mistake(f"{path} is a folder, give a .csv, .parquet or .npz file in it.")
    if not path.exists():
        near = hint(path.name, os.listdir(path.parent) if path.parent.is_dir() else [])
        raise Mistake(f"there is no file {path}{near}, check the path.")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise Mistake(f"{path} cannot be read ({error.strerror}), check its permissions.") from None
    if empty:
        raise Mistake(f"{path} is empty, give a table with a header line and at least one row.")
    return path


def no_column(path: Path, name: str, header: Sequence[str], what: str = "column") -> Mistake:
    shown = ", ".join(header[:12]) + (f" and {len(header) - 12} more" if len(header) > 12 else "")
    return Mistake(f"{path} has no {what} {name!r}{hint(name, header)}, there are: {shown}.")


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def text(value: Any) -> str | None:
    """A cell as text: whole numbers without a fraction ('3', not '3.0')."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def label_name(value: Any) -> str | None:
    """A label's name, or None where there is none: an empty cell, NaN or −1."""
    name = text(value)
    if name is None or not name.strip() or name.strip().lower() == "nan":
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
            sentences.append(f"classes {seen[folded]!r} and {name!r} are taken as two: if they are one, spell them alike.")
        seen.setdefault(folded, name)
    return sentences


def check_same_columns(tables: Sequence[Table]) -> list[Table]:
    """The tables with their feature columns in the order of the first; a Mistake if one lacks a column or has one more."""
    first = tables[0]
    same = [first]
    for table in tables[1:]:
        lacks = [name for name in first.columns if name not in table.columns]
        more = [name for name in table.columns if name not in first.columns]
        if lacks or more:
            what = f"lacks column {lacks[0]!r}" if lacks else f"has column {more[0]!r}"
            of = "has" if lacks else "does not"
            raise Mistake(f"{table.path} {what}, which {first.path} {of}: give the same --features to all parties.")
        if table.columns != first.columns:
            order = [table.columns.index(name) for name in first.columns]
            table = replace(table, columns=first.columns, x=table.x[:, order])
        same.append(table)
    return same


def write_csv(path: str | Path, columns: dict[str, Sequence[Any]]) -> None:
    """Write columns of equal length as CSV, None as an empty cell; the file appears whole or not at all."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of different lengths: {lengths}")
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values()))
    write_atomically(Path(path), out.getvalue().encode())
