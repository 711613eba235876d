"""Numbers, names and results as people read and write them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def size(n: float) -> str:
    """Bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError


def percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"


def hint(name: str, among: Iterable[str], part: Callable[[str], str] = str) -> str:
    """The name that was probably meant, in brackets; empty if none is near. Names are near by a `part` of them."""
    known = {part(each).lower(): each for each in among}
    near = difflib.get_close_matches(part(name).lower(), known, 1)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""


def short_table(title: str, rows: Sequence[Mapping[str, Any]], most: int = 8) -> str:
    """A title and a few lines with columns, as results show themselves in Python."""
    shown = [[str(name) for name in rows[0]], *([str(value) for value in row.values()] for row in rows[:most])] if rows else []
    widths = [max(map(len, column)) for column in zip(*shown)]
    lines = ["  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths)))
             for row in shown]  # fmt: skip
    more = [f"… and {len(rows) - most} more"] if len(rows) > most else []
    return "\n".join([title, *(line.rstrip() for line in lines), *more])


def count(n: float) -> str:
    """1,234, or three digits of what is no whole number."""
    return f"{n:,.0f}" if float(n).is_integer() else f"{n:,.3g}"


def many(n: int, what: str, more: str = "") -> str:
    """1 client, 2 clients; `more` is the word for several where it is not the one with an s."""
    return f"{count(n)} {what if n == 1 else more or what + 's'}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {count(len(names) - most)} more" if len(names) > most else "")


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    return " and ".join(", ".join(names).rsplit(", ", 1))


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def points(share: float) -> str:
    """A difference of two shares in percentage points: +1.5."""
    return f"{100 * share:+.1f}".replace("-", "−")


JOINERS = "\xa0\u200c\u200d"  # which names in many languages have


def printable(text: str, most: int = 600) -> str:
    """What somebody else wrote, for a screen, a log or a page: no control characters, and not a whole page."""
    text = text[:most]
    return text if text.isprintable() else "".join(c if c.isprintable() or c in JOINERS else "?" for c in text)


def short(name: object, most: int) -> str:
    words = str(name)
    return words if len(words) <= most else words[: most - 1] + "…"
