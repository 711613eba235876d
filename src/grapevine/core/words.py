"""Numbers and names as people read and write them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def size(n: float) -> str:
    """Bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError


def percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"


def hint(name: str, among: Iterable[str]) -> str:
    """The name that was probably meant, in brackets; empty if none is near."""
    known = {each.lower(): each for each in among}
    near = difflib.get_close_matches(name.lower(), known, 1)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""
