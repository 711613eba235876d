"""Numbers as people read them."""

from __future__ import annotations


def size(n: float) -> str:
    """Bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError


def percent(value: float | None) -> str:
    return "—" if value is None else f"{value:.1%}"
