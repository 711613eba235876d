"""What the cells of a column mean: missing values, numbers as people write them, true and false, dates, and categories.

A column of text is taken as numbers if all its cells are numbers, as dates if all are dates, and as categories otherwise. If half
of the cells or more are numbers (or dates) and some are not, the table is refused, and the message names the cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.data.arrow import pa, pc
from grapevine.data.columns import CATEGORY, DATE, NUMBER, Column

MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", "-")  # in upper or lower case
LARGEST = 1e15  # of a number: float64 is whole up to there, and the squares of 10^8 rows fit into a secure sum
PARTS = ("month", "weekday", "hour")  # of a date, besides the days since 1970

Place = Callable[[int], str]  # where row i of a file stands, for people


class CellMistake(Mistake):
    """A cell that cannot be used as it is. `settled` is the way out where a model or an agreement says what a column holds."""

    def __init__(self, column: str, what: str, way: str, settled: str = ""):
        super().__init__(f"{what}, {way}.")
        self.column, self.what, self.way, self.settled = column, what, way, settled or way


@dataclass(frozen=True)
class Cells:
    """A column as numbers; `missing` counts the words (and empty cells) that stood for a missing value."""

    columns: tuple[Column, ...]
    x: np.ndarray  # (n, columns)
    missing: dict[str, int]


@dataclass(frozen=True)
class Reader:
    """How the columns of one file are read. `decimal` is point or comma, which somebody `said` or the numbers showed; `missing`
    are further words for a missing value."""

    path: Any
    place: Place
    missing: tuple[str, ...] = ()
    decimal: str = "point"
    kinds: Mapping[str, str] = field(default_factory=dict)
    said: bool = False

    def column(self, name: str, cells: pa.ChunkedArray) -> Cells:
        """One feature column, as the kind that was asked for or as what it holds."""
        kind, of = self.kinds.get(name), pa.types
        if is_text(cells.type):
            return self.from_text(name, *trimmed(cells, self.missing), kind)
        if of.is_timestamp(cells.type) or of.is_date(cells.type):
            return self.from_times(name, cells, kind)
        numeric = (of.is_integer, of.is_floating, of.is_boolean, of.is_null, of.is_decimal)
        if not any(test(cells.type) for test in numeric):
            raise CellMistake(
                name, f"{self.path}, column {name!r} holds {cells.type}, which is no number, text or date", NAME_THEM, CORRECT
            )
        values, found = self.without_words(cells.cast(pa.float64()).to_numpy())
        if kind == CATEGORY:
            texts = pa.array([text(value) for value in cells.to_pylist()], pa.string())
            return Cells(*categories(name, pc.if_else(pa.array(np.isnan(values)), None, texts)), found)
        if kind == DATE and not np.isnan(values).all():
            row = int(np.flatnonzero(~np.isnan(values))[0])
            raise self.wrong(name, row, text(values[row]), "a date")
        return blank_dates(name, len(values), found) if kind == DATE else self.from_numbers(name, values, found)

    def from_numbers(self, name: str, values: np.ndarray, found: dict[str, int]) -> Cells:
        far = np.flatnonzero((np.abs(values) > LARGEST) & np.isfinite(values))
        if len(far):
            raise self.wrong(name, int(far[0]), f"{values[far[0]]:g}", f"a number up to {LARGEST:g}")
        return Cells((Column(name),), values[:, None], found)

    def without_words(self, values: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
        """Numbers of a typed column, in which a number may have been named as missing."""
        found = {"": n} if (n := int(np.isnan(values).sum())) else {}
        for word in self.missing:
            hit = values == float(word) if is_number(word) else np.zeros(len(values), bool)
            if hit.any():
                found[word] = int(hit.sum())
                values = np.where(hit, np.nan, values)
        return values, found

    def from_times(self, name: str, cells: pa.ChunkedArray, kind: str | None) -> Cells:
        if kind == NUMBER:
            raise self.wrong(name, 0, cells[0].as_py(), "a number")
        found = {"": cells.null_count} if cells.null_count else {}
        if kind == CATEGORY:
            return Cells(*categories(name, cells.cast(pa.string()).combine_chunks()), found)
        return Cells(*date_parts(name, cells.cast(pa.timestamp("us")).to_numpy()), found)

    def from_text(self, name: str, values: pa.Array, found: dict[str, int], kind: str | None) -> Cells:
        """A column of trimmed text, null where a value is missing."""
        if kind == CATEGORY:
            return Cells(*categories(name, values), found)
        if kind == DATE and values.null_count == len(values):
            return blank_dates(name, len(values), found)
        if kind != DATE:
            numbers = as_numbers(values, self.decimal)
            if numbers is not None:
                return self.from_numbers(name, numbers, found)
        if kind != NUMBER:
            times = self.dates(name, values)
            if times is not None:
                return Cells(*date_parts(name, times), found)
        self.refuse_other_mark(name, values, kind)
        self.refuse_mixed(name, values, kind)
        return Cells(*categories(name, values), found)

    def refuse_other_mark(self, name: str, values: pa.Array, kind: str | None) -> None:
        """Refuse a column that should hold, or mostly holds, numbers of which some have the other decimal mark than was said."""
        other = "point" if self.decimal == "comma" else "comma"
        good, turned = looks_numeric(values, self.decimal), looks_numeric(values, other)
        wrong, there = turned & ~good, valid(values)
        mostly = kind is None and self.said and 2 * (good | turned).sum() > there.sum()
        if wrong.any() and (mostly or kind == NUMBER):
            row = int(np.flatnonzero(wrong)[0])
            raise self.wrong(name, row, values[row].as_py(), f"a number with a decimal {self.decimal}",
                             f"use --decimal {other}, or take the column as --categories", f"use --decimal {other}")  # fmt: skip

    def refuse_mixed(self, name: str, values: pa.Array, kind: str | None) -> None:
        """Refuse a column that should hold, or mostly holds, numbers or dates if a cell is neither."""
        for what, good in (("a number", looks_numeric(values, self.decimal)), ("a date", looks_dated(values))):
            bad = ~good & valid(values)
            mostly = good.sum() >= bad.sum() and kind is None
            if bad.any() and (mostly or what.endswith(kind or "?")):
                row = int(np.flatnonzero(bad)[0])
                raise self.wrong(name, row, values[row].as_py(), what)

    def wrong(self, name: str, row: int, cell: Any, what: str, way: str = "", settled: str = "") -> CellMistake:
        found = f"{self.path}, {self.place(row)}, column {name!r}: {cell!r} is not {what}"
        return CellMistake(name, found, way or NAME_THEM, settled or CORRECT)

    def dates(self, name: str, values: pa.Array) -> np.ndarray | None:
        """Dates, if all cells are; refused if 03/04/2024 could be in March or in April."""
        parts = split_dates(values)
        if parts is None:
            return None
        if parts.order == "either":
            cell = values[parts.first].as_py()
            raise CellMistake(name, f"{self.path}, {self.place(parts.first)}, column {name!r}: {cell!r} can be read day first or "
                              "month first", f"{DATES}, or name the column in --categories", DATES)  # fmt: skip
        made = parts.times()
        if np.isnat(made[valid(values)]).any():
            row = int(np.flatnonzero(np.isnat(made) & valid(values))[0])
            raise CellMistake(name, f"{self.path}, {self.place(row)}, column {name!r}: {values[row].as_py()!r} is no day of the "
                              "calendar", "correct it, or leave it empty")  # fmt: skip
        return made


CORRECT = "correct it, or name it in --missing"
DATES = "write dates as 2024-12-31"
NAME_THEM = "correct it, name it in --missing, take the column as --categories, or leave it out of --features"


# ---------------------------------------------------------------- text and missing values


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def trimmed(cells: pa.ChunkedArray, words: Iterable[str] = ()) -> tuple[pa.Array, dict[str, int]]:
    """Text without spaces around it and null where a value is missing; how often each word stood for a missing value."""
    values = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    hit = pc.is_in(pc.utf8_lower(values), value_set=pa.array([*MISSING, *(word.strip().lower() for word in words)]))
    found = {each["values"] or "": each["counts"] for each in pc.value_counts(values.filter(hit)).to_pylist()}
    nulls = values.null_count
    if nulls:
        found[""] = found.get("", 0) + nulls
    return pc.if_else(hit, pa.scalar(None, pa.string()), values), found


def valid(values: pa.Array) -> np.ndarray:
    """Which cells are not missing."""
    return values.is_valid().to_numpy(zero_copy_only=False)


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
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- numbers

SPACES = r" \x{a0}\x{202f}'’"  # between thousands
POINT = rf"^[+-]?([1-9]\d{{0,2}}([,{SPACES}]\d{{3}})+|\d+)?(\.\d*)?([eE][+-]?\d+)?$"
COMMA = rf"^[+-]?([1-9]\d{{0,2}}([.{SPACES}]\d{{3}})+|\d+)?(,\d*)?([eE][+-]?\d+)?$"
EITHER = r"^[+-]?[1-9]\d{0,2},\d{3}$"  # 1,234: a thousand and more, or a little more than one


def matches(values: pa.Array, pattern: str) -> np.ndarray:
    """Which cells match; a null does not."""
    return pc.match_substring_regex(values, pattern).fill_null(False).to_numpy(zero_copy_only=False)


def looks_numeric(values: pa.Array, decimal: str) -> np.ndarray:
    return matches(values, COMMA if decimal == "comma" else POINT) | matches(values, r"^[+-]?(inf|Inf|INF|infinity|Infinity)$")


def as_numbers(values: pa.Array, decimal: str) -> np.ndarray | None:
    """Numbers, if all cells are; true and false are 1 and 0."""
    try:
        if decimal == "point":
            return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        pass
    there = valid(values)
    if (looks_numeric(values, decimal) | ~there).all():
        plain = pc.replace_substring_regex(values, rf"^\+|[{SPACES}{'.' if decimal == 'comma' else ','}]", "")
        plain = pc.replace_substring(plain, ",", ".")
        return plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
    lower = pc.utf8_lower(values)
    if there.any() and (pc.is_in(lower, value_set=pa.array(["true", "false"])).to_numpy(zero_copy_only=False) | ~there).all():
        return pc.equal(lower, "true").cast(pa.float64()).to_numpy(zero_copy_only=False)
    return None


def decimal_mark(path: Any, columns: Mapping[str, pa.Array]) -> str:
    """Whether the numbers of a file have a decimal point or a comma; refused where both are used or either could be meant."""
    seen: dict[str, tuple[str, str]] = {}  # a cell, with its column, that shows a decimal comma, a decimal point, or either
    for name, values in columns.items():
        if not pc.any(pc.match_substring(values, ",")).as_py():
            continue
        with_comma, as_comma, as_point, unclear = (matches(values, pattern) for pattern in (",", COMMA, POINT, EITHER))
        if not (as_comma | as_point | ~valid(values)).all():
            continue  # text with commas in it
        for mark, rows in (("comma", as_comma & ~unclear), ("point", as_point & ~unclear), ("either", unclear)):
            if mark not in seen and (rows & with_comma).any():
                seen[mark] = name, values[int(np.flatnonzero(rows & with_comma)[0])].as_py()
    if "comma" in seen and "point" not in seen:
        odd = next(((name, v) for name, values in columns.items() if (v := _only_point(values)) is not None), None)
        seen |= {"point": odd} if odd else {}
    if "comma" in seen and "point" in seen:
        (a, comma), (b, point) = seen["comma"], seen["point"]
        raise Mistake(f"{path} has a decimal comma in {comma!r} (column {a!r}) and a decimal point in {point!r} (column {b!r}), "
                      "write all numbers in one way, or use --decimal point or --decimal comma.")  # fmt: skip
    if list(seen) == ["either"]:
        name, cell = seen["either"]
        raise Mistake(f"{path}, column {name!r}: {cell!r} could have a thousands separator or three decimals: "
                      "use --decimal point or --decimal comma.")  # fmt: skip
    return "comma" if "comma" in seen else "point"


def _only_point(values: pa.Array) -> str | None:
    """The first number of a column of numbers that can only have a decimal point, as 12.5."""
    as_point, as_comma = matches(values, POINT), matches(values, COMMA)
    here = as_point & ~as_comma
    if not here.any() or not (as_point | as_comma | ~valid(values)).all():
        return None
    return values[int(np.flatnonzero(here)[0])].as_py()


# ---------------------------------------------------------------- categories and dates


def categories(name: str, values: pa.Array) -> tuple[tuple[Column, ...], np.ndarray]:
    """The column with its values in order, and their positions; NaN where there is none."""
    values = pc.replace_substring_regex(values, r"^(-?\d+)\.0+$", r"\1")  # integers that passed through a float column
    lower = pc.utf8_lower(values)
    values = pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"])), lower, values)  # TRUE and True are one
    own = sorted(value for value in pc.unique(values).to_pylist() if value is not None)
    codes = pc.index_in(values, value_set=pa.array(own, pa.string())).to_numpy(zero_copy_only=False).astype(np.float64)
    return (Column(name, CATEGORY, tuple(own)),), codes[:, None]


TIME = r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?$"
YEAR_FIRST = r"^(?P<year>\d{4})(?P<mark>[-/.])(?P<a>\d{1,2})[-/.](?P<b>\d{1,2})" + TIME
YEAR_LAST = r"^(?P<a>\d{1,2})(?P<mark>[-/.])(?P<b>\d{1,2})[-/.](?P<year>\d{4})" + TIME


def looks_dated(values: pa.Array) -> np.ndarray:
    return matches(values, YEAR_FIRST) | matches(values, YEAR_LAST)


@dataclass(frozen=True)
class Dates:
    """A column of dates in their parts. With points between the numbers the day comes first; otherwise the numbers must tell."""

    parts: dict[str, np.ndarray]  # NaN where there is none
    order: str  # year, day, month or either: what stands first
    first: int  # the first row with a date

    def times(self) -> np.ndarray:
        """As datetime64; NaT where there is none, or no such day."""
        p = {name: np.nan_to_num(values).astype(np.int64) for name, values in self.parts.items()}
        month, day = (p["b"], p["a"]) if self.order == "day" else (p["a"], p["b"])
        months = (p["year"] - 1970) * 12 + month - 1
        made = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
        good = (month >= 1) & (month <= 12) & (day >= 1) & (made.astype("datetime64[M]").astype(np.int64) == months)
        good &= (p["hour"] < 24) & (p["minute"] < 60) & (p["second"] < 61) & ~np.isnan(self.parts["year"])
        seconds = (p["hour"] * 60 + p["minute"]) * 60 + p["second"]
        return np.where(good, made.astype("datetime64[us]") + seconds * 1_000_000, np.datetime64("NaT"))


def split_dates(values: pa.Array) -> Dates | None:
    """The parts of a column of dates; None if some cell is not a date."""
    there = valid(values)
    if not there.any():
        return None
    for pattern in (YEAR_FIRST, YEAR_LAST):
        if not (matches(values, pattern) | ~there).all():
            continue
        found = pc.extract_regex(values, pattern)
        marks = set(pc.struct_field(found, "mark").to_pylist()) - {None}
        parts = {name: _whole(pc.struct_field(found, name)) for name in ("year", "a", "b", "hour", "minute", "second")}
        order = "year" if pattern is YEAR_FIRST else "day" if marks == {"."} or np.nanmax(parts["a"]) > 12 else \
            "month" if np.nanmax(parts["b"]) > 12 else "either"  # fmt: skip
        return Dates(parts, order, int(np.flatnonzero(there)[0]))
    return None


def _whole(values: pa.Array) -> np.ndarray:
    """Digits as numbers; what is empty or null is NaN."""
    return pc.if_else(pc.equal(values, ""), None, values).cast(pa.float64()).to_numpy(zero_copy_only=False)


def date_parts(name: str, times: np.ndarray) -> tuple[tuple[Column, ...], np.ndarray]:
    """Days since 1970 with the time of day as a fraction, then month, weekday (Monday: 0) and hour."""
    gone = np.isnat(times)
    micro = times.astype("datetime64[us]")
    days = micro.astype("datetime64[D]")
    since = np.where(gone, 0, days.astype(np.int64))
    of_day = np.where(gone, 0, (micro - days).astype(np.int64))
    month = np.where(gone, 0, micro.astype("datetime64[M]").astype(np.int64) % 12 + 1)
    x = np.stack([since + of_day / 86_400e6, month, (since + 3) % 7, of_day // 3_600_000_000], 1).astype(np.float64)
    x[gone] = np.nan
    return (Column(name, DATE), *(Column(f"{name}:{part}", DATE, of=name) for part in PARTS)), x


def blank_dates(name: str, n: int, found: dict[str, int]) -> Cells:
    """A column of dates without a date."""
    return Cells(*date_parts(name, np.full(n, np.datetime64("NaT"), "datetime64[us]")), found)
