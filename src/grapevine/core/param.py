"""A setting is defined once: its default, the paper's symbol, a description, and the values it may have.

Methods' fields and jobs' settings are made with `param`. Flags, tables, help, the agreed hash and the checks are all derived from
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from os import PathLike
from typing import Any, ClassVar, TypeVar

from grapevine.core.errors import Mistake
from grapevine.core.words import hint, listed

_A = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list of names", dict: "a table"}
S = TypeVar("S", bound="Settings")


def param(
    default: Any, symbol: str = "", text: str = "", *, least: float | None = None, most: float | None = None,
    above: float | None = None, below: float | None = None, choices: tuple[str, ...] = (), **more: Any,
) -> Any:  # fmt: skip
    """A dataclass field. For numbers `least` ≤ value ≤ `most` and `above` < value < `below`; for words one of `choices`.

    `more`, for settings of a job: `kind` is the type where the default is None. `words` such as ("auto",) may stand for a number.
    `empty=True` allows None in Python, and `objects=True` an object that no flag can name. `read` converts what was given.
    `local=True` means that each party decides for itself. `varies=True` allows one cell per value in a comparison. `metavar`,
    `needed` (an example of a value that must be given), `flag=False` and `hidden=True` (a flag that is only there to be refused
    with a sentence) are for the command.
    """
    limits = dict(least=least, most=most, above=above, below=below, choices=choices)
    return field(default=default, metadata=dict(symbol=symbol, text=text, **limits, **more))


def same(settings: type, name: str, **changes: Any) -> Any:
    """The field of another dataclass again, with changes to its default, text or range."""
    f = next(f for f in fields(settings) if f.name == name)
    return field(default=changes.pop("default", f.default), metadata={**f.metadata, **changes})


def kind(f: Field) -> type:
    """The type of a setting: the one it names, or that of its default."""
    return f.metadata.get("kind") or (str if f.default in (MISSING, None) else type(f.default))


# ---------------------------------------------------------------- checks


def shown(value: Any) -> str:
    """A value as one would type it after a flag, or in a file: true, not True."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def check(values: Any, method: str = "") -> None:
    """Raise a `Mistake` for the first field whose value is outside what its `param` allows.

    `method` is the owner of the fields; without it they are settings of a job, which flags and keywords share.
    """
    for f in fields(values):
        value = getattr(values, f.name)
        wrong = _wrong(f, value)
        if wrong:
            usual = f"{f.default:g}" if _is_number(f.default) else ""
            if method:
                raise Mistake(f"{method}: {f.name}={shown(value)} {wrong}{usual and f', as in --set {f.name}={usual}'}.")
            if f.default in (f.metadata["least"], f.metadata["most"]):  # which the sentence has named
                usual = ""
            name = f.name.replace("_", "-")
            raise Mistake(f"{name} is {shown(value)}, which {wrong}{usual and f', as in {usual}'}.")


def values(f: Field) -> str:
    """The allowed values of a setting, in words."""
    choices = f.metadata["choices"]
    if choices:
        return listed(choices, "or")
    words = f.metadata.get("words", ())
    return listed([*words, f"a number that is {_range(f)}"], "or") if words else _range(f)


def _range(f: Field) -> str:
    low, high, above, below = (
        value if value is None or isinstance(value, int) else f"{value:g}"
        for value in (f.metadata[name] for name in ("least", "most", "above", "below"))
    )
    if low is not None and high is not None:
        return f"{low} to {high}"
    words = [
        f"{low} or more" if low is not None else "",
        f"more than {above}" if above is not None else "",
        f"at most {high}" if high is not None else "",
        f"less than {below}" if below is not None else "",
    ]
    return " and ".join(filter(None, words)) or _A[kind(f)]


def _wrong(f: Field, value: Any) -> str:
    """What is wrong with a field's value; empty if nothing is."""
    limits = f.metadata
    if value is None or "least" not in limits or value in limits.get("words", ()):
        return ""
    if limits["choices"]:
        return "" if value in limits["choices"] else f"is not a known value{hint(str(value), limits['choices'])}: use {values(f)}"
    if not _is_number(value):
        return ""
    good = math.isfinite(value) and all(
        limits[name] is None or fits
        for name, fits in (
            ("least", value >= (limits["least"] or 0)), ("most", value <= (limits["most"] or 0)),
            ("above", value > (limits["above"] or 0)), ("below", value < (limits["below"] or 0)),
        )
    )  # fmt: skip
    return "" if good else f"is out of range: use {values(f)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read(f: Field, text: str, method: str = "") -> Any:
    """Read a field's value from text, as the field's type."""
    wanted = kind(f)
    try:
        if wanted is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return wanted(text)
    except (ValueError, KeyError):
        raise _of_another_kind(f, text, method) from None


def refusal(f: Field, text: str) -> str:
    """What a field may be, in words, if a text is none of that; empty if it is."""
    try:
        value = read(f, text)
    except Mistake as error:
        return str(error).partition(", which ")[2] or str(error)
    return _wrong(f, value)


def _of_another_kind(f: Field, value: Any, method: str = "") -> Mistake:
    words = f.metadata.get("words", ())
    wanted = listed([_A[kind(f)], *words], "or")
    usual = "" if f.default in (MISSING, None) else shown(f.default)
    value = shown(value)
    if method:
        return Mistake(f"{method}: {f.name}={value} is not {wanted}{usual and f', as in {f.name}={usual}'}.")
    way = f", as in {usual}" if usual else f": use {'one of these' if words else 'one'}, or leave it out"
    return Mistake(f"{f.name.replace('_', '-')} is {value}, which is not {wanted}{way}.")


# ---------------------------------------------------------------- the settings of a job


@dataclass(frozen=True)
class Settings:
    """The settings of a job: a frozen dataclass of `param` fields. Bad values are refused, wherever they come from."""

    job: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _plain(f, getattr(self, f.name)))
        check(self)

    @classmethod
    def names(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON and TOML values."""
        return {f.name: _listed(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
        """Settings from keywords or a table. An unknown name is refused with a suggestion."""
        known = cls.names()
        for name in values:
            if name not in known:
                raise Mistake(f"{cls.job} has no setting '{name}'{hint(name, known)}: it has {', '.join(known)}.")
        return cls(**values)

    def agreed(self) -> dict[str, Any]:
        """The settings that all parties of a federation agree on: without local ones and without None."""
        kept = {f.name: _listed(getattr(self, f.name)) for f in fields(self) if not f.metadata.get("local")}
        return {name: value for name, value in kept.items() if value is not None}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _plain(f: Field, value: Any) -> Any:
    """A setting's value as the type it has, from what a flag, a keyword or a table may hold."""
    wanted, about = kind(f), f.metadata
    if wanted is dict and value is None:
        return {}
    if wanted is not dict and "read" in about:
        return about["read"](value)
    if isinstance(value, str) and not value and f.default is None:
        return None  # as `--id "$ID"` gives it where there is no id
    if value is None and (f.default is None or about.get("empty")) or value in about.get("words", ()):
        return value
    if wanted is tuple and isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    if wanted is tuple and isinstance(value, Sequence):
        return tuple(map(str, value))
    if wanted is dict and isinstance(value, (Mapping, tuple, list)):
        return about["read"](value)
    if wanted is str and isinstance(value, PathLike):
        return str(value)
    if wanted in (int, float, bool) and isinstance(value, str):
        return read(f, value)
    if wanted in (int, float, bool) and hasattr(value, "item"):  # numpy's and torch's numbers
        value = value.item()
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool) or about.get("objects"):
        return value
    raise _of_another_kind(f, value)
