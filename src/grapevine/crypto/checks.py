"""Checks of what another party sent: every part of a message has the form that the protocol says, or a sentence names it."""

from __future__ import annotations

from typing import Any

import numpy as np

from grapevine.core.errors import Mistake

OTHER = "both must run the same version with the same settings (--secure, --bits)"


def fields(message: Any, *names: str) -> list[Any]:
    """The named parts of a message."""
    if not isinstance(message, dict) or any(name not in message for name in names):
        found = sorted(message) if isinstance(message, dict) else type(message).__name__
        raise Mistake(f"a message should hold {', '.join(names)} but holds {found}: {OTHER}.")
    return [message[name] for name in names]


def array(value: Any, shape: tuple[int, ...], what: str, dtype: Any = np.uint8) -> np.ndarray:
    """An array of this type and shape; what its values may be is the protocol's to say."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != shape:
        found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise Mistake(f"{what} should be {np.dtype(dtype)} {shape} but is {found}: {OTHER}.")
    return np.ascontiguousarray(value)


def count(value: Any, what: str) -> int:
    """A number of rows or points."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Mistake(f"{what} is given as {value!r} and should be 1 or more: the sender's message is broken.")
    return value


def bit_table(bits: np.ndarray, whose: str) -> np.ndarray:
    """A client's hashed points: uint8 of shape (points, L), zeros and ones."""
    bits = np.asarray(bits)
    if bits.ndim != 2 or 0 in bits.shape or bits.dtype.kind not in "bui" or bits.min() < 0 or bits.max() > 1:
        raise Mistake(f"{whose} bits must be a table of zeros and ones, not {bits.dtype} of shape {bits.shape}: hash them first.")
    return bits.astype(np.uint8)
