"""A party's own files: tables (CSV, Parquet, NPZ) and folders of images, read with one sentence for each thing that is wrong."""

from __future__ import annotations

import csv
import difflib
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from PIL import Image, ImageOps
from torch import Tensor

from grapevine.core.errors import Mistake

LABEL_NAMES = ("label", "y", "target")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


@dataclass(frozen=True)
class Table:
    """Rows of features with ids and labels (None: not labelled). `other` holds the columns asked for by name, as text."""

    name: str  # the file's stem
    ids: list[str]
    columns: tuple[str, ...]
    x: np.ndarray  # (n, d) float64
    labels: list[str | None]
    truth: list[str | None] | None
    path: Path
    other: dict[str, list[str | None]]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Images:
    """Images of one size, with their paths inside the folder as ids. `other` as in `Table`."""

    name: str
    ids: list[str]
    x: Tensor  # (n, c, h, w) uint8
    labels: list[str | None]
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
    return readers[path.suffix.lower()](path, label, id, features, truth, impute, tuple(other))


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


def read_csv(path, label, id, features, truth, impute, other) -> Table:
    header, delimiter = read_header(path)
    id, wanted = choose_columns(path, header, label, id, features, truth, other)
    texts = [name for name in (label, id, truth, *other) if name]
    types = {name: pa.float64() for name in wanted} | {name: pa.string() for name in texts}
    keep = [name for name in header if name in types]  # the rest is never converted
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=keep, strings_can_be_null=False)
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        # One thread: only then does the reader count rows in its messages.
        table = pa.csv.read_csv(path, pa.csv.ReadOptions(use_threads=False), parse, convert)
    except pa.ArrowInvalid as error:
        raise csv_mistake(path, header, delimiter, wanted, error) from None
    if not len(table):
        raise Mistake(f"{path} has a header but no rows, give a table with at least one row.")
    return build_table(path, table, wanted, label, id, truth, other, impute, lambda row: f"line {csv_line(path, delimiter, row)}")


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


def csv_line(path: Path, delimiter: str, row: int) -> int:
    """The line of a CSV file that data row `row` (from 0) starts on; only looked up when something is wrong."""
    return next(line for at, (line, _) in enumerate(csv_records(path, delimiter)) if at == row + 1)


def open_parquet(path: Path) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowInvalid, OSError):
        raise Mistake(f"{path} is not a valid Parquet file, write it again.") from None


def read_parquet(path, label, id, features, truth, impute, other) -> Table:
    with open_parquet(path) as file:
        id, wanted = choose_columns(path, file.schema_arrow.names, label, id, features, truth, other)
        names = [*wanted, *(name for name in (label, id, truth, *other) if name)]
        try:
            table = file.read(columns=list(dict.fromkeys(names)))
        except (pa.ArrowInvalid, OSError):
            raise Mistake(f"{path} is not a valid Parquet file, write it again.") from None
    if not len(table):
        raise Mistake(f"{path} has no rows, give a table with at least one row.")
    return build_table(path, table, wanted, label, id, truth, other, impute, lambda row: f"row {row + 1}")


def build_table(path, table: pa.Table, wanted, label, id, truth, other, impute, place) -> Table:
    x = np.empty((len(table), len(wanted)))
    for j, name in enumerate(wanted):
        x[:, j] = numbers(path, name, table.column(name), place)
    x = finite(path, x, wanted, impute, place)
    ids = [text(value) for value in table.column(id).to_pylist()] if id else None
    ids = check_ids(path, ids, id, len(table), place)
    labels = [label_name(v) for v in table.column(label).to_pylist()] if label else [None] * len(table)
    known = [label_name(v) for v in table.column(truth).to_pylist()] if truth else None
    more = {name: [label_name(v) for v in table.column(name).to_pylist()] for name in other}
    return Table(path.stem, ids, tuple(wanted), x, labels, known, path, more)


def numbers(path: Path, name: str, column: pa.ChunkedArray, place) -> np.ndarray:
    """One feature column as floats; nulls are NaN."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy()
    row = next((row for row, value in enumerate(column.to_pylist()) if value is not None), 0)
    raise text_mistake(path, place(row), name, column[row].as_py())


class CellMistake(Mistake):
    """A cell that is no feature. A command without the flag that `way` names says another way out."""

    def __init__(self, column: str, what: str, way: str):
        super().__init__(f"{what}, {way}.")
        self.column, self.what, self.way = column, what, way


NAME_THEM, IMPUTE = "take the column out or name the --features", "put a number there or use --impute"


def text_mistake(path: Path, place: str, name: str, cell: Any) -> CellMistake:
    return CellMistake(name, f"{path}, {place}, column {name!r}: {cell!r} is not a number", NAME_THEM)


def finite(path: Path, x: np.ndarray, names: Sequence[str], impute: bool, place) -> np.ndarray:
    bad = ~np.isfinite(x)
    if not bad.any():
        return x
    if impute:
        return np.where(bad, np.nan, x)
    row, j = (int(v) for v in np.argwhere(bad)[0])
    what = "the value is missing" if np.isnan(x[row, j]) else "the value is infinite"
    raise CellMistake(names[j], f"{path}, {place(row)}, column {names[j]!r}: {what}", IMPUTE)


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


def read_npz(path, label, id, features, truth, impute, other) -> Table:
    with open_npz(path) as arrays:
        id = "id" if id is None and "id" in arrays.files else id
        x = take_array(path, arrays, "X")
        n = len(x) if x.ndim else 0
        if label and label not in arrays.files and "y" in arrays.files:
            label = "y"  # the format's own name for labels
        flat = {name: take_array(path, arrays, name) for name in (label, id, truth, *other) if name}
        names = [str(name) for name in take_array(path, arrays, "columns")] if "columns" in arrays.files else None
    for name, values in flat.items():
        if values.shape != (n,):
            raise Mistake(f"{path}: array {name!r} has shape {values.shape} for {n} rows in 'X', give one entry per row.")
    if not n:
        raise Mistake(f"{path} has no rows, give a table with at least one row.")
    if x.dtype.kind not in "biuf":
        raise Mistake(f"{path}: array 'X' holds {x.dtype}, store numbers.")
    x = x.reshape(n, -1).astype(np.float64)
    names = names or [f"x{j}" for j in range(x.shape[1])]
    if len(names) != x.shape[1]:
        raise Mistake(f"{path}: 'columns' has {len(names)} names for the {x.shape[1]} columns of 'X', give one for each.")
    _, wanted = choose_columns(path, names, None, None, features, None, (), implicit_id=False)
    x = x[:, [names.index(name) for name in wanted]]

    def place(row: int) -> str:
        return f"row {row + 1}"

    ids = check_ids(path, [text(v) for v in flat[id].tolist()] if id else None, id, n, place)
    labels = [label_name(v) for v in flat[label].tolist()] if label else [None] * n
    known = [label_name(v) for v in flat[truth].tolist()] if truth else None
    more = {name: [label_name(v) for v in flat[name].tolist()] for name in other}
    return Table(path.stem, ids, tuple(wanted), finite(path, x, wanted, impute, place), labels, known, path, more)


def existing_file(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.is_dir():
        raise Mistake(f"{path} is a folder, give a .csv, .parquet or .npz file in it.")
    if not path.exists():
        near = difflib.get_close_matches(path.name, os.listdir(path.parent) if path.parent.is_dir() else [], 1)
        raise Mistake(f"there is no file {path}{hint(near)}, check the path.")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise Mistake(f"{path} cannot be read ({error.strerror}), check its permissions.") from None
    if empty:
        raise Mistake(f"{path} is empty, give a table with a header line and at least one row.")
    return path


def choose_columns(path, header, label, id, features, truth, other, implicit_id=True) -> tuple[str | None, list[str]]:
    """The id column and the feature columns; every name must be there and serve one purpose."""
    if implicit_id and id is None and "id" in header and "id" not in (label, truth, *other, *(features or ())):
        id = "id"
    for name in (label, id, truth, *other, *(features or ())):
        if name is not None and name not in header:
            raise no_column(path, name, header)
    taken = {name for name in (label, id, truth, *other) if name}
    wanted = list(features) if features else [name for name in header if name not in taken]
    both = [name for name in wanted if name in taken]
    if both:
        raise Mistake(f"{path}: column {both[0]!r} has another purpose already, take it out of --features.")
    if not wanted:
        raise Mistake(f"{path} has no feature columns beside {', '.join(map(repr, sorted(taken)))}, add some.")
    return id, wanted


def no_column(path: Path, name: str, header: Sequence[str], what: str = "column") -> Mistake:
    near = difflib.get_close_matches(name.lower(), [h.lower() for h in header], 1)
    near = [h for h in header if near and h.lower() == near[0]]
    shown = ", ".join(header[:12]) + (f" and {len(header) - 12} more" if len(header) > 12 else "")
    return Mistake(f"{path} has no {what} {name!r}{hint(near)}, there are: {shown}.")


def hint(near: Sequence[str]) -> str:
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_ids(path: Path, ids: list[str | None] | None, name: str | None, n: int, place) -> list[str]:
    if ids is None:
        return [str(row) for row in range(1, n + 1)]
    first: dict[str, int] = {}
    for row, value in enumerate(ids):
        if not value:
            raise Mistake(f"{path}, {place(row)}, column {name!r}: the id is empty, give every row an id of its own.")
        if value in first:
            raise Mistake(f"{path}, {place(row)}: id {value!r} is also on {place(first[value])}, give every row its own.")
        first[value] = row
    return ids


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


def class_names(tables: Iterable[Table | Images]) -> tuple[str, ...]:
    """The classes of all tables by name, sorted; warns about two names that differ only in case or spaces."""
    names = sort_names({name for table in tables for name in table.labels if name is not None})
    for sentence in spelling_warnings(names):
        warnings.warn(sentence, stacklevel=2)
    return tuple(names)


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
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values()))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_images(folder: str | Path, size: int | None = None, other: Sequence[str] = ()) -> Images:
    """Read a folder of images: one sub-folder per class, or a `labels.csv` with the columns `file` and `label`.

    Images beside the sub-folders, or in one named `unlabelled`, have no label. Ids are paths inside the folder. With `size` the
    shorter side is brought to it and a centred square cut out; without it all images must be of one size. `other` names more
    columns of `labels.csv`.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise Mistake(f"there is no folder {folder}, check the path.")
    inside = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    paths = sorted((p.relative_to(folder) for p in inside if p.suffix.lower() in PICTURES), key=lambda p: p.as_posix())
    if not paths:
        raise Mistake(f"there are no images in {folder}, it takes {', '.join(PICTURES)}.")
    ids = [p.as_posix() for p in paths]
    if (folder / "labels.csv").exists():
        labels, more = read_image_labels(folder / "labels.csv", ids, other)
    elif other:
        raise Mistake(f"{folder} has no labels.csv for the column {other[0]!r}, add one with columns file, label, {other[0]}.")
    else:
        labels = [None if len(p.parts) == 1 or p.parts[0] == "unlabelled" else label_name(p.parts[0]) for p in paths]
        more = {}
    x = stack_images([(str(folder / p), folder / p) for p in paths], size)
    return Images(folder.resolve().name, ids, x, labels, folder, more)


def read_image_labels(path: Path, ids: list[str], other: Sequence[str]) -> tuple[list[str | None], dict[str, list[str | None]]]:
    rows = read_text_columns(path, ("file", "label", *other))
    at = {name: row for row, name in enumerate(rows["file"])}
    if len(at) < len(rows["file"]):
        twice = next(name for name in at if rows["file"].count(name) > 1)
        raise Mistake(f"{path} has two lines for file {twice!r}, take one out.")
    extra = set(at) - set(ids)
    if extra:
        raise Mistake(f"{path} names {min(extra)!r}, which is no image in {path.parent}, give its path inside the folder.")
    pick = [at.get(name) for name in ids]
    column = {name: [None if row is None else label_name(rows[name][row]) for row in pick] for name in ("label", *other)}
    return column["label"], {name: column[name] for name in other}


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


def stack_images(sources: Sequence[tuple[str, Any]], size: int | None = None) -> Tensor:
    """Decode (name, path or open file) pairs into one uint8 tensor (n, c, h, w), grey if all are grey, else RGB."""
    x: Tensor | None = None
    for i, (name, source) in enumerate(sources):
        picture = decode(name, source, size)
        pixels = np.asarray(picture)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if x is None:  # laid out (n, h, w, c): the order in which networks read colour images fastest
            x, first = torch.empty(len(sources), *pixels.shape, dtype=torch.uint8), name
        if pixels.shape[:2] != tuple(x.shape[1:3]):
            h, w = x.shape[1:3]
            raise Mistake(
                f"{name} is {pixels.shape[1]}×{pixels.shape[0]} pixels and {first} is {w}×{h}, bring all images to one size."
            )
        if pixels.shape[2] > x.shape[3]:  # the first colour image after grey ones
            x = x.repeat(1, 1, 1, 3)
        x[i] = torch.from_numpy(pixels.copy()).expand(-1, -1, x.shape[3])
    if x is None:
        raise ValueError("no images")
    return x.permute(0, 3, 1, 2)


def decode(name: str, source: Any, size: int | None) -> Image.Image:
    try:
        with Image.open(source) as picture:
            if picture.mode.startswith(("I", "F")):
                raise Mistake(f"{name} has more than 8 bits a channel, convert it to 8 bits.")
            if size:
                picture.draft("RGB", (size, size))  # a JPEG then decodes straight to a smaller image
            picture = ImageOps.exif_transpose(picture)
            picture = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
            return ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR) if size else picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Mistake(f"{name} is not an image that can be read ({error}), mend it or take it out.") from None
