"""Files and objects that hold a table, each as a `Sheet`: names of columns, and the cells of those that are asked for.

CSV (also .tsv and .gz; UTF-8, UTF-16 or Windows-1252), Parquet, Feather, Excel (extra `excel`), and in Python pandas and polars
frames, Arrow tables and Hugging Face datasets. Cells are text or typed; what they mean is said in `cells`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.words import hint
from grapevine.data.arrow import pa
from grapevine.data.cells import Place, is_number, text

READABLE = ".csv, .csv.gz, .tsv, .parquet, .feather, .xlsx or .npz"
FRAMES = ("pandas", "polars", "pyarrow", "datasets")


@dataclass(frozen=True)
class Sheet:
    """A table that was opened. `load` gives the named columns; `notes` are sentences on how it was read."""

    path: Any  # a Path, or a name for people
    header: list[str]
    load: Callable[[Sequence[str]], pa.Table]
    place: Place
    notes: tuple[str, ...] = ()


def is_frame(thing: Any) -> bool:
    """Whether it is a table of a library that is known here."""
    return type(thing).__module__.split(".")[0] in FRAMES and (hasattr(thing, "columns") or hasattr(thing, "column_names"))


def open_sheet(source: Any, name: str = "the table") -> Sheet:
    """A file by its path, or a frame, which messages call `name`."""
    if is_frame(source):
        return frame_sheet(source, name)
    path = existing_file(source)
    openers = {".csv": csv_sheet, ".tsv": csv_sheet, ".parquet": parquet_sheet, ".feather": feather_sheet, ".xlsx": excel_sheet,
               ".xlsm": excel_sheet}  # fmt: skip
    if ending(path) == ".xls":
        raise Mistake(f"{path} is in the old Excel format: save it as .xlsx.")
    if ending(path) not in openers:
        raise Mistake(f"{path} is not a table that Grapevine can read: give a {READABLE} file.")
    return openers[ending(path)](path)


def ending(path: Path) -> str:
    """The ending; that of a compressed .csv.gz is .csv."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def existing_file(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.is_dir():
        raise Mistake(f"{path} is a folder: give a {READABLE} file in it.")
    if not path.exists():
        raise no_file(path)
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise Mistake(f"{path} cannot be read ({error.strerror}): check its permissions.") from None
    if empty:
        raise Mistake(f"{path} is empty: give a table with a header line and at least one row.")
    return path


def no_file(path: Path) -> Mistake:
    if not path.parent.is_dir():
        return Mistake(f"there is no folder {path.parent} and so no file {path}: check the path.")
    near = [each.name for each in path.parent.iterdir() if not path.suffix or each.is_file()]  # a file is no folder
    beside = sorted(near, key=lambda name: Path(name).suffix == path.suffix)  # such a one takes precedence
    return Mistake(f"there is no file {path}{hint(path.name, beside, lambda name: Path(name).stem)}: check the path.")


def row_number(row: int) -> str:
    return f"row {row + 1}"


def no_column(path: Any, name: str, header: Sequence[str], what: str = "column") -> Mistake:
    shown = ", ".join(header[:12]) + (f" and {len(header) - 12} more" if len(header) > 12 else "")
    return Mistake(f"{path} has no {what} {name!r}{hint(name, header)}: its columns are {shown}.")


def unnamed(j: int) -> str:
    """The name of a column that has none. It is read only if it is asked for: it is most often the index of a frame."""
    return f"(column {j + 1})"


def clean_header(path: Any, names: Iterable[Any]) -> list[str]:
    """Names without spaces around them; a column without one is called by its place."""
    header = [str(name).strip() if name is not None else "" for name in names]
    header = [name or unnamed(j) for j, name in enumerate(header)]
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise Mistake(f"{path} has two columns named {twice!r}: rename one.")
    return header


# ---------------------------------------------------------------- CSV

# What a spreadsheet runs as a formula: at the start of a cell, or after what some spreadsheet takes for the end of one.
FORMULA = re.compile(r"(^(?='*[\t\r\n])|(?:^|[,;|\t\r\n])(?='*[=+\-@＝＋－＠]))('*)")
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def quoted(cell: Any) -> Any:
    """A cell for a CSV file. Text that a spreadsheet would run gets an apostrophe, which marks text; numbers stay numbers."""
    return FORMULA.sub(r"\1'\2", cell) if isinstance(cell, str) and not PLAIN.fullmatch(cell) else cell


def unquoted(cell: str) -> str:
    """Undo `quoted`."""
    return FORMULA.sub(lambda found: found[1] + found[2][1:], cell) if "'" in cell else cell


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """The text of a CSV file: None is an empty cell, and nothing is left that a spreadsheet would run."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([quoted(cell) for cell in row] for row in (header, *rows))
    return out.getvalue()


@dataclass(frozen=True)
class Csv:
    """A CSV file: how it is encoded and what separates its cells."""

    path: Path
    encoding: str
    delimiter: str = ","

    def open(self) -> io.TextIOBase:
        return open_text(self.path, self.encoding)

    def records(self) -> Iterable[tuple[int, list[str]]]:
        """Its records with the line on which each starts. Blank lines are skipped, as the fast reader does."""
        with self.open() as file:
            reader, start = csv.reader(file, delimiter=self.delimiter), 1
            for cells in reader:
                if cells:
                    yield start, [unquoted(cell) for cell in cells]
                start = reader.line_num + 1

    def place(self, row: int) -> str:
        """Looked up only when something is wrong: records may hold blank lines and line breaks."""
        return f"line {next(line for at, (line, _) in enumerate(self.records()) if at == row + 1)}"


def csv_sheet(path: Path) -> Sheet:
    file, raw = read_header(path)
    header = clean_header(path, raw)
    known = {"utf-8-sig": (), "utf-16": (f"{path.name} was read as UTF-16.",)}
    notes = known.get(file.encoding, (f"{path.name} is not UTF-8: read as Windows-1252 (Latin-1).",))
    return Sheet(path, header, partial(load_csv, file, raw, header), file.place, notes)


def load_csv(file: Csv, raw: list[str], header: list[str], names: Sequence[str]) -> pa.Table:
    """The named columns as text."""
    convert = pa.csv.ConvertOptions(column_types={f"f{j}": pa.string() for j in range(len(header))},
                                    include_columns=[f"f{header.index(name)}" for name in names],
                                    strings_can_be_null=False)  # fmt: skip
    parse = pa.csv.ParseOptions(delimiter=file.delimiter, newlines_in_values=True)
    plain = file.encoding == "utf-8-sig" and file.path.suffix.lower() != ".gz"
    try:
        source: Any = file.path if plain else io.BytesIO(_bytes(file))
        # One thread: only then does the reader count rows in its messages.
        options = pa.csv.ReadOptions(use_threads=False, column_names=[f"f{j}" for j in range(len(header))])
        table = pa.csv.read_csv(source, options, parse, convert).slice(1)  # the header is the first record
    except pa.ArrowInvalid as error:
        raise csv_mistake(file, header, error) from None
    for j, column in enumerate(table.columns):
        if pa.compute.any(pa.compute.match_substring(column, "'")).as_py():
            table = table.set_column(j, table.column_names[j], pa.array(map(unquoted, column.to_pylist()), pa.string()))
    return table.rename_columns(list(names))


def _bytes(file: Csv) -> bytes:
    with file.open() as opened:
        return opened.read().encode()


def read_header(path: Path) -> tuple[Csv, list[str]]:
    """The names in the first line of a CSV file as they stand there; its encoding and delimiter."""
    encoding = find_encoding(path)
    with open_text(path, encoding) as file:
        first = next((line for line in file if line.strip()), "")
    if not first:
        raise Mistake(f"{path} is empty: give a table with a header line and at least one row.")
    outside = re.sub(r'"[^"]*"', "", first)
    delimiter = max(",;\t|", key=outside.count)
    header = [unquoted(name) for name in next(csv.reader([first.rstrip("\r\n")], delimiter=delimiter))]
    if all(is_number(name) for name in header):
        raise Mistake(f"{path} starts with numbers ({first.strip()[:40]}): add a header line with column names at the top.")
    return Csv(path, encoding, delimiter), header


def open_text(path: Path, encoding: str) -> io.TextIOBase:
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return opened(path, "rt", encoding=encoding, newline="")


def find_encoding(path: Path) -> str:
    """UTF-8 if it is that, UTF-16 if its mark or its zeros say so, else Windows-1252, the usual form of Latin-1."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    decoder, head = codecs.getincrementaldecoder("utf-8")(), b""
    try:
        with opened(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                head = head or block
                if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                    return checked(path, "utf-16")
                if head[:1000].count(0) > len(head[:1000]) / 10:  # every other byte of plain letters, digits and commas is 0
                    return checked(path, "utf-16-le" if head[1:2] == b"\0" else "utf-16-be")
                if b"\0" in head[:1000]:
                    raise no_text(path)
                decoder.decode(block)
            decoder.decode(b"", True)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise Mistake(f"{path} is not a valid .gz file: compress it again.") from None
    except UnicodeDecodeError as error:
        return latin(path, error.object)
    return "utf-8-sig"


def latin(path: Path, block: bytes) -> str:
    """Windows-1252 or Latin-1; a file with UTF-8 in some lines and Latin-1 in others is refused, and one that is no text."""
    if re.search(rb"[\x00-\x08\x0e-\x19\x1c-\x1f]", block[:1000]):
        raise no_text(path)
    if re.search(rb"[\xc3-\xc5][\x80-\xbf]", block):
        raise Mistake(f"{path} mixes UTF-8 and Latin-1: save the whole file as UTF-8.")
    try:
        return checked(path, "cp1252")
    except Mistake:
        return "latin-1"


def checked(path: Path, encoding: str) -> str:
    try:
        with open_text(path, encoding) as file:
            for _ in iter(lambda: file.read(1 << 20), ""):
                pass
    except (UnicodeError, EOFError):
        raise no_text(path) from None
    return encoding


def no_text(path: Path) -> Mistake:
    return Mistake(
        f"{path} is not a text file, so it is no CSV table: export it again as CSV in UTF-8, or give a {READABLE} file."
    )


def csv_mistake(file: Csv, header: list[str], error: Exception) -> Mistake:
    """Find the line that the reader stumbled over."""
    try:
        for row, (line, cells) in enumerate(file.records()):
            if row and len(cells) != len(header):
                return ragged(file.path, line, header, cells)
    except csv.Error:
        pass
    return Mistake(f"{file.path} is not a valid CSV file ({str(error).splitlines()[0]}): correct it.")


def ragged(path: Path, line: int, header: list[str], cells: list[str]) -> Mistake:
    return Mistake(f"{path}, line {line}: {len(cells)} cells under a header of {len(header)} columns: correct the line.")


def read_text_columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Some columns of a CSV file (by name, whatever its ending) as text."""
    path = existing_file(path)
    file, raw = read_header(path)
    header = clean_header(path, raw)
    for name in names:
        if name not in header:
            raise no_column(path, name, header)
    columns: dict[str, list[str]] = {name: [] for name in names}
    for line, cells in list(file.records())[1:]:
        if len(cells) != len(header):
            raise ragged(path, line, header, cells)
        for name in names:
            columns[name].append(cells[header.index(name)])
    return columns


# ---------------------------------------------------------------- typed files


@contextmanager
def whole(path: Path, kind: str) -> Any:
    try:
        yield
    except (pa.ArrowInvalid, OSError):
        raise Mistake(f"{path} is not a valid {kind} file: write it again.") from None


def parquet_sheet(path: Path) -> Sheet:
    with whole(path, "Parquet"):
        raw = pa.parquet.read_schema(path).names

    def load(names: Sequence[str]) -> pa.Table:
        with whole(path, "Parquet"):
            return pa.parquet.read_table(path, columns=[raw[header.index(name)] for name in names]).rename_columns(list(names))

    header = clean_header(path, raw)
    return Sheet(path, header, load, row_number)


def feather_sheet(path: Path) -> Sheet:
    with whole(path, "Feather"):
        return arrow_sheet(path, pa.feather.read_table(path))


def arrow_sheet(path: Any, table: pa.Table, notes: tuple[str, ...] = ()) -> Sheet:
    table = table.rename_columns(clean_header(path, table.column_names))
    return Sheet(path, table.column_names, lambda names: table.select(list(names)), row_number, notes)


def excel_sheet(path: Path) -> Sheet:
    """The first sheet of a workbook; formulas by their last values."""
    try:
        openpyxl = importlib.import_module("openpyxl")
    except ImportError:
        raise Mistake(f"{path} needs the excel extra: pip install 'grapevine-fl[excel]', or save it as .csv.") from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        first = book.worksheets[0]
        rows = [list(row) for row in first.iter_rows(values_only=True)]
        others = [each.title for each in book.worksheets[1:]]
        book.close()
    except Exception:  # openpyxl raises whatever the broken part of the archive makes it raise
        raise Mistake(f"{path} is not a valid Excel file: save it again as .xlsx.") from None
    rows = [row for row in rows if any(cell is not None for cell in row)]
    if not rows:
        raise Mistake(f"{path} is empty: give a table with a header line and at least one row.")
    width = max(j + 1 for row in rows for j, cell in enumerate(row) if cell is not None)
    cells = [row[:width] + [None] * (width - len(row)) for row in rows]
    if all(is_number(str(name)) for name in cells[0]):
        raise Mistake(f"{path} starts with numbers: add a header line with column names at the top.")
    header = clean_header(path, cells[0])
    notes = (f"{path.name}: only the first sheet ({first.title}) is read, not {', '.join(others)}.",) if others else ()
    columns = [one_type([row[j] for row in cells[1:]]) for j in range(width)]
    return arrow_sheet(path, pa.table(dict(zip(header, columns))), notes)


def one_type(values: list[Any]) -> pa.Array:
    """A column whose cells are all of one type keeps it; else all are text."""
    kinds = {type(value) for value in values if value is not None}
    try:
        if len(kinds) <= 1 or kinds == {int, float}:
            return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    return pa.array([text(value) for value in values], pa.string())


# ---------------------------------------------------------------- frames


def frame_sheet(frame: Any, name: str) -> Sheet:
    library = type(frame).__module__.split(".")[0]
    if library == "pandas":
        columns = [one_type_of(frame.iloc[:, j]) for j in range(frame.shape[1])]
        return arrow_sheet(name, pa.Table.from_arrays(columns, [str(column) for column in frame.columns]))
    if library == "polars":
        return arrow_sheet(name, frame.to_arrow())
    if library == "datasets":
        return arrow_sheet(name, named_classes(frame))
    return arrow_sheet(name, frame)


def named_classes(dataset: Any) -> pa.Table:
    """A Hugging Face dataset, with its classes by their names."""
    table = dataset.with_format("arrow")[:]
    for j, (name, kind) in enumerate(dataset.features.items()):
        if type(kind).__name__ == "ClassLabel":
            classes = [None if value is None or value < 0 else kind.names[value] for value in table.column(name).to_pylist()]
            table = table.set_column(j, name, pa.array(classes, pa.string()))
    return table


def one_type_of(column: Any) -> pa.Array:
    """A column of a pandas frame."""
    try:
        made = pa.Array.from_pandas(column)
        return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return one_type([None if value != value else value for value in column.tolist()])
