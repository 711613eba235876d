"""A bad reply is a missing reply: what is checked of every reply before a method sees it.

Every number is finite and every count is between 0 and 2⁴⁰; a step that says which fields it answers with answers with no others;
a field that has the form of a field of the request (`like`) has its names, types and shapes; and a step, or a server, that knows
what a field must be says so (`like` again, and `ask(…, form=…)`). Fields that are said to have a form must be there, except in
the reply of a client that says with n = 0 that it has nothing to send, or with a question mark behind their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grapevine.core.tensors import is_tensor, torch

MOST = 2**40  # rows, or whatever a plain number counts
COUNT = range(MOST + 1)


@dataclass(frozen=True)
class Array:
    """The form of an array: its type, its shape, and the largest value that it may hold."""

    dtype: str
    shape: tuple[int | None, ...]  # None: any length
    most: int | None = None

    def __str__(self) -> str:
        size = f"{self.dtype}, {' × '.join('any' if side is None else str(side) for side in self.shape)}"
        return size if self.most is None else f"{size}, at most {self.most}"


Form = Array | range | type | dict | list | Callable[[Any], bool]
"""What a field must be: an array; a whole number in a range; a value of a type; a dict of these fields; as [form], a dict of any
names whose values all have that form; or what a function says yes to."""


def problem(step: Callable, request: Mapping[str, Any], reply: Any, form: Mapping[str, Form] | None = None) -> str | None:
    """Why a reply cannot be used, in a few words; None if it can. `form` says of some fields what they must be."""
    if not isinstance(reply, dict):
        return f"it is a {type(reply).__name__}, not a dict"
    known = getattr(step, "reveals", None)
    strange = [name for name in reply if known and name not in known]
    if strange:
        return f"it has a field {strange[0]!r} that the step does not have"
    idle = type(reply.get("n")) is int and reply["n"] == 0
    said = {**_like(step), **(form or {})}
    for asked, wanted in forms(step, request, form).items():
        name = asked.removesuffix("?")
        if name in reply:
            wrong = _misfit(f"'{name}'", reply[name], wanted)
            if wrong and isinstance(said[asked], str):
                wrong = f"'{name}' differs in form from the '{said[asked]}' that was sent: both sides must run the same model"
        else:
            wrong = None if idle or asked.endswith("?") else f"'{name}' is missing"
        if wrong:
            return wrong
    for name, value in reply.items():
        wrong = _value(name, value)
        if wrong:
            return wrong
    return None


def forms(step: Callable, request: Mapping[str, Any], form: Mapping[str, Form] | None = None) -> dict[str, Form]:
    """What the fields of a reply to this request must be, as far as step and server say it."""
    said = {**_like(step), **(form or {})}
    return {name: form_of(_at(request, wanted)) if isinstance(wanted, str) else wanted for name, wanted in said.items()}


def _like(step: Callable) -> Mapping[str, Any]:
    like = getattr(step, "like", {})
    return like(step.__self__) if callable(like) else like  # type: ignore[attr-defined]


def _at(request: Mapping[str, Any], path: str) -> Any:
    """A field of the request, `control.c` being the field c of its field control."""
    value: Any = request
    for name in path.split("."):
        value = value[name]
    return value


def _value(name: str, value: Any) -> str | None:
    if isinstance(value, dict):
        return next(filter(None, (_value(f"{name}.{key}", inner) for key, inner in value.items())), None)
    if isinstance(value, bool) or isinstance(value, (str, bytes, bytearray)):
        return None
    if isinstance(value, (int, float)):
        good = math.isfinite(value) and 0 <= value <= MOST
        return None if good else f"'{name}' is {value:g}, and must be 0 to {MOST}"
    return None if _finite(value) else f"'{name}' has values that are not finite: training diverged, try a smaller lr"


def _misfit(name: str, value: Any, form: Form) -> str | None:
    """Where a value is not of a form, in a few words."""
    if isinstance(form, Array):
        fits = (is_tensor(value) or isinstance(value, np.ndarray)) and str(value.dtype).removeprefix("torch.") == form.dtype
        fits = fits and len(value.shape) == len(form.shape) and all(a in (None, b) for a, b in zip(form.shape, value.shape))
        fits = fits and (form.most is None or 0 in value.shape or value.max() <= form.most)
        return None if fits else f"{name} must be {form}"
    if isinstance(form, range):
        fits = isinstance(value, int) and not isinstance(value, bool) and value in form
        return None if fits else f"{name} must be a whole number, {form.start} to {form.stop - 1}"
    if isinstance(form, type):
        return None if isinstance(value, form) else f"{name} must be {form.__name__}"
    if callable(form):
        return None if form(value) else f"{name} does not have the form that it must have"
    if not isinstance(value, dict):
        return f"{name} must be a dict"
    inner = dict.fromkeys(value, form[0]) if isinstance(form, list) else form
    if set(inner) != set(value):
        return f"{name} must have the fields {', '.join(map(str, inner)) or 'of an empty dict'}"
    return next(filter(None, (_misfit(f"{name}, {key}", value[key], inner[key]) for key in inner)), None)


def _finite(array: Any) -> bool:
    if is_tensor(array):
        return not array.is_floating_point() or bool(torch.isfinite(array).all())
    return not isinstance(array, np.ndarray) or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def form_of(value: Any) -> Form:
    """Names, types and shapes of a value of the codec."""
    if isinstance(value, dict):
        return {name: form_of(inner) for name, inner in value.items()}
    if is_tensor(value) or isinstance(value, np.ndarray):
        return Array(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return type(value)
