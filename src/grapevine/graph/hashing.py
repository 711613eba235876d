"""Hashing, lines 3 and 4 of XCLP (Scott, Yeo and Lampert 2022, Algorithm 1): features V, hyperplanes Π, bits B = sign(V Πᵀ)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.threads import in_threads, thread_count
from grapevine.crypto.stream import Stream
from grapevine.graph.blocks import BLOCK


def finite(V: np.ndarray) -> np.ndarray:
    """Features that can be compared: a table without NaN and infinities."""
    V = np.asarray(V)
    if V.ndim != 2:
        raise Mistake(f"Features must be a table of rows and columns, but have shape {V.shape}: give one row per point.")
    if V.size and not np.isfinite(V).all():
        row, column = np.argwhere(~np.isfinite(V))[0]
        raise Mistake(f"The feature in row {row}, column {column} is {V[row, column]}: give finite numbers only.")
    return V


def hyperplanes(secret: bytes, bits: int, d: int, info: bytes, tight_frame: bool = False) -> np.ndarray:
    """Π, `bits` × `d` float32, the same for all who hold the secret.

    Rows are i.i.d. standard normal (the paper). With `tight_frame` (the authors' code) columns are orthonormal if there
    are more bits than features, else rows are; its rows are then spread more evenly than independent ones.
    """
    if bits < 1 or d < 1:
        raise Mistake(f"Hashing to {bits} bits from {d} features is not possible: both must be at least 1.")
    normal = Stream(secret, info).normal((bits, d))
    if tight_frame:
        wide = bits < d
        Q, R = np.linalg.qr(normal.T if wide else normal)
        Q = Q * np.where(np.diag(R) < 0, -1.0, 1.0)  # the sign QR leaves open
        normal = (Q.T if wide else Q) * math.sqrt(max(bits, d))
    return normal.astype(np.float32)


class Grid(NamedTuple):
    """Hyperplanes ready for hashing many tables of rows."""

    U: np.ndarray  # features × bits, whole numbers
    room: int  # bits that a row's numbers may have


def on_grid(planes: np.ndarray) -> Grid:
    U = np.rint(planes.astype(np.float64) * 2.0**20)
    room = 52 - math.ceil(math.log2(max(2.0, np.abs(U).sum(axis=1).max())))
    return Grid(np.ascontiguousarray(U.T), room)


def hash_bits(V: np.ndarray, planes: np.ndarray | Grid, threads: int | None = None) -> np.ndarray:
    """Packed bits, uint8 of shape (n, ⌈L/8⌉): bit l of row i is 1 where ⟨v_i, u_l⟩ ≥ 0. Padding bits are 0.

    A row's bits depend on that row and the planes alone, not on other rows, threads or machine: both factors are rounded
    to integers (planes to 2⁻²⁰, rows by a power of two) whose products float64 adds without error. A row of zeros hashes
    to ones, as ⟨v, u⟩ = 0: callers set such rows apart, since they have no direction.
    """
    V = finite(V)
    U, room = planes if isinstance(planes, Grid) else on_grid(planes)
    d, L = U.shape
    if V.shape[1] != d:
        raise Mistake(f"The rows have {V.shape[1]} features but the hyperplanes {d}: hash with planes of the same width.")
    out = np.empty((len(V), (L + 7) // 8), np.uint8)

    def work(_: int, i: int) -> None:
        rows = V[i : i + BLOCK].astype(np.float64)
        _, exponent = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0.0))
        rows = np.rint(np.ldexp(rows, room - exponent))
        out[i : i + BLOCK] = np.packbits(rows @ U >= 0, axis=1)

    starts = range(0, len(V), BLOCK)
    in_threads(work, starts, thread_count(threads, len(starts)))
    return out
