"""The lattice under `mlwe`: small random values, and exact arithmetic in Z_q[x]/(x^n + 1) with q = 2^80.

q is a power of two and only sums with signs are needed, so nothing needs an NTT: values are two limbs of 40 bits and every
product is a float64 matrix product whose sums stay below 2^53, hence exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np

from grapevine.crypto.stream import Stream, context

LIMB = 40  # bits of a limb; q = 2^(2 * LIMB)
LIMB_BYTES = LIMB // 8
SIGMA = 3.2  # standard deviation of the errors
TAIL = 29  # errors lie in -TAIL..TAIL: nine standard deviations; what lies beyond is less than the 64-bit table resolves
EXACT = 1 << 53  # integers up to here are exact in float64
LEAF = 128  # matrices of this side are multiplied as they are; larger ones are halved first


# ---- sampling ----


def ternary(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform in {-1, 0, 1}: bytes below 255 = 3 x 85, the others drawn again."""
    count = math.prod(shape)
    kept = np.empty(0, np.uint8)
    while kept.size < count:
        draw = stream.array((count - kept.size) * 257 // 256 + 16, "uint8")
        kept = np.concatenate([kept, draw[draw < 255]])
    return (kept[:count] % 3).astype(np.int8).reshape(shape) - 1


def gauss(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Discrete Gaussian of standard deviation SIGMA, by inversion of 64-bit words."""
    return np.searchsorted(_gauss_table(), stream.array(shape), side="right") - TAIL


@lru_cache(maxsize=1)
def _gauss_table() -> np.ndarray:
    """Entry i is 2^64 P(error <= i - TAIL); float64 would lose the tail, so it is computed in decimals."""
    with localcontext() as decimals:
        decimals.prec = 50
        sigma = Decimal(str(SIGMA))
        weights = [(-Decimal(x * x) / (2 * sigma * sigma)).exp() for x in range(-TAIL, TAIL + 1)]
        total, below, table = sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            below += weight
            table.append(int(below / total * 2**64))
    return np.array(table, np.uint64)


# ---- ring arithmetic on limbs ----


def expand(seed: bytes, label: str, piece: int, limb: int, shape: tuple[int, ...]) -> np.ndarray:
    """One limb of public uniform values out of the seed, float64: each piece has a stream of its own."""
    words = Stream(seed, context(f"mlwe {label}", piece=piece, limb=limb)).array(shape)
    words >>= np.uint64(64 - LIMB)
    return words.view(np.int64).astype(np.float64)


def convolve(rows: np.ndarray, polynomials: np.ndarray) -> np.ndarray:
    """sum_i rows[:, i] * polynomials[i, o] mod x^ring + 1, for (m, count, ring) and (count, outs, ring): int64 (m, outs, ring).

    Exact when one side lies in {-1, 0, 1} and the other below 2^LIMB.
    """
    _, count, ring = rows.shape
    assert count * ring << LIMB <= EXACT
    f = polynomials.astype(np.float64)
    return _toeplitz(rows, np.concatenate([-f, f], axis=-1)).astype(np.int64)


def _toeplitz(rows: np.ndarray, f: np.ndarray) -> np.ndarray:
    """sum_i rows[:, i] @ M_io with M_io[d, c] = f[i, o, n + c - d].

    Three products of half the size in the place of four. Each halving doubles the entries of one side at most, so every sum
    keeps the bound count * n * 2^LIMB of the whole.
    """
    m, count, n = rows.shape
    if n <= LEAF or n % 2:
        outs = f.shape[1]
        windows = np.lib.stride_tricks.sliding_window_view(f, n, axis=2)[:, :, n:0:-1]  # (count, outs, d, c)
        matrix = windows.transpose(0, 2, 1, 3).reshape(count * n, outs * n)
        return (rows.reshape(m, count * n) @ matrix).reshape(m, outs, n)
    half = n // 2
    first, second = rows[..., :half], rows[..., half:]
    low, middle, high = f[..., :n], f[..., half : half + n], f[..., n:]
    both = _toeplitz(first + second, middle)
    return np.concatenate([both + _toeplitz(second, low - middle), both + _toeplitz(first, high - middle)], axis=-1)


def product(signs: np.ndarray, limbs: np.ndarray) -> np.ndarray:
    """An exact integer matrix product by float64: signs in {-1, 1}, limbs below 2^LIMB."""
    assert signs.shape[1] << LIMB <= EXACT
    return (signs @ limbs).astype(np.int64)


def to_wire(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Values low + 2^40 high mod q as 10 little-endian bytes each."""
    return np.concatenate([to_bytes(low, LIMB_BYTES), to_bytes(high + (low >> LIMB), LIMB_BYTES)], axis=-1)


def limb_of(wire: np.ndarray, limb: int) -> np.ndarray:
    return from_bytes(wire[..., limb * LIMB_BYTES : (limb + 1) * LIMB_BYTES]).astype(np.float64)


def to_bytes(values: np.ndarray, width: int) -> np.ndarray:
    """The low `width` bytes of each integer, little-endian, in a new last axis."""
    return np.ascontiguousarray(values, "<i8")[..., None].view(np.uint8)[..., :width]


def from_bytes(data: np.ndarray) -> np.ndarray:
    padded = np.zeros((*data.shape[:-1], 8), np.uint8)
    padded[..., : data.shape[-1]] = data
    return padded.view("<i8")[..., 0]


def pieces(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
