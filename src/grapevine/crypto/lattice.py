"""The lattice under `mlwe` and `product`: small random values, and exact arithmetic in Z_q[x]/(x^n + 1), q a power of two.

Values are limbs of at most 40 bits. A sum of many values with signs is one of 64-bit integers (`kernels.add_signed`). A
product of ring elements goes by the fast Fourier transform, on halves of limbs: short enough that the error of the transform is
far below one half, so that rounding makes it exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from scipy import fft

from grapevine.crypto.stream import Stream, context

LIMB = 40  # bits of a limb; q = 2^(2 * LIMB)
LIMB_BYTES = LIMB // 8
SIGMA = 3.2  # standard deviation of the errors
TAIL = 29  # errors lie in -TAIL..TAIL: nine standard deviations; what lies beyond is less than the 64-bit table resolves
EXACT = 1 << 53  # integers up to here are exact in float64
HALF = LIMB // 2  # bits of a limb that are transformed at a time
ROWS = 16  # transformed at a time, so that they stay in the processor's cache


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
    """Discrete Gaussian of standard deviation SIGMA, int8, by inversion of 64-bit words.

    Most words' top 16 bits say which value it is; for the others all bits are looked at.
    """
    words = stream.array(shape)
    values, several = _gauss_lookup()
    top = words >> np.uint64(48)
    out = values[top]
    undecided = several[top]
    out[undecided] = np.searchsorted(_gauss_table(), words[undecided], side="right") - TAIL
    return out


@lru_cache(maxsize=1)
def _gauss_lookup() -> tuple[np.ndarray, np.ndarray]:
    """By the top 16 bits of a word: the value, and whether words with these bits have different ones."""
    first = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    least, most = (np.searchsorted(_gauss_table(), ends, side="right") for ends in (first, first + np.uint64((1 << 48) - 1)))
    return (least - TAIL).astype(np.int8), least != most


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
    """One limb of public uniform values out of the seed, int64: each piece has a stream of its own."""
    words = Stream(seed, context(f"mlwe {label}", piece=piece, limb=limb)).array(shape)
    words >>= np.uint64(64 - LIMB)
    return words.view(np.int64)


def convolve(rows: np.ndarray, polynomials: np.ndarray) -> np.ndarray:
    """sum_i rows[:, i] * polynomials[i, o] mod x^ring + 1, for (m, count, ring) and (count, outs, ring): int64 (m, outs, ring).

    One side is int8, at most TAIL in size; the other is int64, 0 to 2^LIMB - 1.

    Exact: the error of a transformed product is at most 2^-53 · 8 log2(ring) · ‖f‖ ‖g‖ (the constant is generous). A half of a
    limb has ‖f‖ <= 2^HALF √ring, the small side ‖g‖ <= TAIL √ring: with ring 512 and the sum over nine of them, below 2^-8.
    """
    _, count, ring = rows.shape
    assert count * ring << LIMB <= EXACT and (rows.dtype == np.int8) != (polynomials.dtype == np.int8)
    if ring == 1:
        return np.einsum("mix,iox->mox", rows.astype(np.int64), polynomials.astype(np.int64))
    out = np.empty((len(rows), polynomials.shape[1], ring), np.int64)
    factors = [_spectrum(part) for part in _halves(polynomials)]
    for some in pieces(len(rows), ROWS):
        parts = [_spectrum(part) for part in _halves(rows[some])]
        out[some] = _whole(_at_every_root(parts[0], factors[0]))
        if len(parts) + len(factors) == 3:
            out[some] += _whole(_at_every_root(parts[-1], factors[-1])) << HALF
    return out


def _halves(values: np.ndarray) -> list[np.ndarray]:
    """The small side as it is, a limb as its two halves."""
    if values.dtype == np.int8:
        return [values]
    return [values & ((1 << HALF) - 1), values >> HALF]


@lru_cache
def _twist(ring: int) -> np.ndarray:
    """Roots of x^ring = -1, which make a cyclic transform of half the length one of Z[x]/(x^ring + 1)."""
    return np.exp(1j * np.pi * np.arange(ring // 2) / ring)


def _spectrum(values: np.ndarray) -> np.ndarray:
    """Values at every other root of x^ring + 1, whose conjugates are the rest: complex, half as long."""
    half = values.shape[-1] // 2
    folded = np.empty((*values.shape[:-1], half), np.complex128)
    folded.real, folded.imag = values[..., :half], values[..., half:]
    folded *= _twist(2 * half)
    return fft.fft(folded, overwrite_x=True)


def _at_every_root(rows: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """sum_i rows[:, i] * factors[i, o], root by root."""
    if factors.shape[1] == 1:
        return np.einsum("mif,if->mf", rows, factors[:, 0])[:, None]
    return np.moveaxis(np.moveaxis(rows, -1, 0) @ np.moveaxis(factors, -1, 0), 0, -1)


def _whole(spectrum: np.ndarray) -> np.ndarray:
    """Back to coefficients, whole numbers."""
    half = spectrum.shape[-1]
    folded = fft.ifft(spectrum, overwrite_x=True)
    folded *= _twist(2 * half).conj()
    out = np.empty((*folded.shape[:-1], 2 * half), np.int64)
    np.rint(folded.real, out=out[..., :half], casting="unsafe")
    np.rint(folded.imag, out=out[..., half:], casting="unsafe")
    return out


def to_wire(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Values low + 2^40 high mod q as 10 little-endian bytes each."""
    return np.concatenate([to_bytes(low, LIMB_BYTES), to_bytes(high + (low >> LIMB), LIMB_BYTES)], axis=-1)


def limb_of(wire: np.ndarray, limb: int) -> np.ndarray:
    return from_bytes(wire[..., limb * LIMB_BYTES : (limb + 1) * LIMB_BYTES])


def to_bytes(values: np.ndarray, width: int) -> np.ndarray:
    """The low `width` bytes of each integer, little-endian, in a new last axis."""
    return np.ascontiguousarray(values, "<i8")[..., None].view(np.uint8)[..., :width]


def from_bytes(data: np.ndarray) -> np.ndarray:
    padded = np.zeros((*data.shape[:-1], 8), np.uint8)
    padded[..., : data.shape[-1]] = data
    return padded.view("<i8")[..., 0]


def pieces(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
