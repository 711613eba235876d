"""A setting stands once: its default, the paper's symbol, a few words, and the values it may have.

Methods' fields and jobs' settings are made with `param`. Flags, tables, help, the agreed hash and the checks read it from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from grapevine.core.errors import Mistake

_A = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def param(
    default: Any, symbol: str = "", text: str = "", *, least: float | None = None, most: float | None = None,
    above: float | None = None, below: float | None = None, choices: tuple[str, ...] = (), **more: Any,
) -> Any:  # fmt: skip
    """A dataclass field. Numbers: `least` ≤ value ≤ `most`, `above` < value < `below`; words: one of `choices`.

    `more` is for whoever shows the setting: a command's flag may have a `metavar`, say.
    """
    limits = dict(least=least, most=most, above=above, below=below, choices=choices)
    return field(default=default, metadata=dict(symbol=symbol, text=text, **limits, **more))


def check(values: Any, owner: str = "", flag: str = "{}") -> None:
    """Refuse the first field of a dataclass whose value is outside what its `param` says, in one sentence.

    `owner` stands in front; `flag` is how a user would name the field, "--{}" or "--set {}".
    """
    for f in fields(values):
        value = getattr(values, f.name)
        wrong = _wrong(f, value)
        if wrong:
            name = f.name.replace("_", "-") if flag.startswith("--{") else f.name
            shown = f"{value:g}" if isinstance(value, float) else value
            where = f"{owner}: " if owner else ""
            example = f", as in {flag.format(name)}={f.default:g}" if _is_number(f.default) else ""
            raise Mistake(f"{where}{name}={shown} {wrong}{example}.")


def _wrong(f: Field, value: Any) -> str:
    """What is wrong with a field's value; empty if nothing is."""
    limits = f.metadata
    if value is None or "least" not in limits:
        return ""
    if limits["choices"] and value not in limits["choices"]:
        return f"is not known: take {' or '.join(map(str, limits['choices']))}"
    if not _is_number(value):
        return ""
    good = math.isfinite(value) and all(
        limits[name] is None or fits
        for name, fits in (
            ("least", value >= (limits["least"] or 0)), ("most", value <= (limits["most"] or 0)),
            ("above", value > (limits["above"] or 0)), ("below", value < (limits["below"] or 0)),
        )
    )  # fmt: skip
    return "" if good else f"cannot work: take {_range(limits)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range(limits: Mapping[str, Any]) -> str:
    low, high = limits["least"], limits["most"]
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    words = [
        f"{low:g} or more" if low is not None else "",
        f"more than {limits['above']:g}" if limits["above"] is not None else "",
        f"at most {high:g}" if high is not None else "",
        f"less than {limits['below']:g}" if limits["below"] is not None else "",
    ]
    return " and ".join(filter(None, words)) or "a number"


def read(f: Field, text: str, owner: str) -> Any:
    """A field's value from a text, read as the type of its default."""
    kind = type(f.default) if f.default not in (MISSING, None) else str
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise Mistake(f"{owner}: {f.name}={text} is not {_A[kind]}, as in {f.name}={f.default}.") from None
