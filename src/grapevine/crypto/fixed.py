"""Fixed point: real numbers as elements of Z_2^64, so that masks can be added to them and sums come out exact.

A real x becomes round(x · 2^32) mod 2^64, two's complement. Encoding is off by at most 2^-33 (half a step, about 1.2e-10), less
than that where float64 itself has fewer than 32 bits after the point (|x| ≥ 2^20: no error at all). Addition in the ring is
exact, so a sum of m encodings decodes to within m · 2^-33 of the true sum, plus float64's own rounding of the result, 2^-53 of
its size.

The ring holds sums of absolute value up to `MOST` = 2^31 − 1. A sum outside would wrap to a wrong number that nobody can see is
wrong, since it is masked. So the bound is checked before anything is sent: `require_headroom` on what the sum could come to.

Sums whose size nobody knows beforehand (a column of salaries, squared) use the wide ring Z_2^256 instead, with 96 bits after
the point: any |x| ≤ 2^127 from up to 2^32 parties fits, each encoding is off by at most 2^-97, and no bound has to be agreed. A
wide element is four uint64 words, the least significant first, on a last axis of their own. It takes four times the bytes: for
moments, not for rows.
"""

from __future__ import annotations

import numpy as np

from grapevine.core.errors import Mistake

FRACTION_BITS = 32
STEP = 2.0**-FRACTION_BITS
# One below 2^31: the roundings of up to 2^32 parties then cannot carry a sum over the edge.
MOST = 2.0**31 - 1

WIDE_WORDS = 4
WIDE_BITS = 64 * WIDE_WORDS
WIDE_FRACTION_BITS = 96
WIDE_MOST = 2.0**127


def encode(values: np.ndarray, what: str = "the values") -> np.ndarray:
    """Ring elements (uint64) of real numbers. Refuses what does not fit instead of wrapping."""
    values = np.asarray(values, np.float64)
    _require_within(values, MOST, what)
    return np.rint(values / STEP).astype(np.int64).view(np.uint64)


def _require_within(values: np.ndarray, most: float, what: str) -> None:
    # Written so that NaN is refused too: every comparison with it is false.
    fits = np.abs(values) <= most
    if not fits.all():
        worst = values[~fits].flat[0]
        raise Mistake(f"{what} hold {worst:g}, but a secure sum takes finite numbers up to {most:g}: scale them down")


def decode(ring: np.ndarray) -> np.ndarray:
    """The real numbers (float64) that ring elements stand for."""
    if ring.dtype != np.uint64:
        raise TypeError(f"ring elements are uint64, not {ring.dtype}")
    return ring.view(np.int64).astype(np.float64) * STEP


def require_headroom(most: float, what: str) -> None:
    """Refuse before sending: `most` bounds the absolute value of every entry of the sum over all parties."""
    if not most <= MOST:
        raise Mistake(
            f"{what} could come to {most:g}, but a secure sum holds up to {MOST:.0f}: scale the values down or form groups"
        )


def label_headroom(labels: int, alpha: float) -> None:
    """XCLP's sum: every entry of (I − αW)^-1 is at most 1/(1 − α), so a row's label mass is at most labels/(1 − α)."""
    if not 0 <= alpha < 1:
        raise Mistake(f"alpha is {alpha:g}: it must be at least 0 and below 1")
    require_headroom(labels / (1 - alpha), f"the label mass of {labels} labels at alpha {alpha:g}")


# --- the wide ring ------------------------------------------------------------------------------------------------------------


def encode_wide(values: np.ndarray, what: str = "the values") -> np.ndarray:
    """Elements of Z_2^256, shape (…, 4), of real numbers of almost any size."""
    values = np.asarray(values, np.float64)
    _require_within(values, WIDE_MOST, what)
    # Scaling by a power of two is exact, and so is Python's integer of a whole float.
    whole = np.rint(np.ldexp(values, WIDE_FRACTION_BITS)).ravel().tolist()
    data = b"".join((int(x) % (1 << WIDE_BITS)).to_bytes(WIDE_BITS // 8, "little") for x in whole)
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(*values.shape, WIDE_WORDS)


def decode_wide(ring: np.ndarray) -> np.ndarray:
    """The real numbers (float64, correctly rounded) that wide elements stand for."""
    if ring.dtype != np.uint64 or ring.shape[-1:] != (WIDE_WORDS,):
        raise TypeError(f"wide ring elements are uint64 with {WIDE_WORDS} words last, not {ring.dtype} of shape {ring.shape}")
    data, size = np.ascontiguousarray(ring, "<u8").tobytes(), WIDE_BITS // 8
    whole = [int.from_bytes(data[at : at + size], "little", signed=True) for at in range(0, len(data), size)]
    return np.array([x / (1 << WIDE_FRACTION_BITS) for x in whole], np.float64).reshape(ring.shape[:-1])


def add_wide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Addition in Z_2^256: word by word, with the carry."""
    out = np.empty_like(left)
    carry = np.zeros(left.shape[:-1], np.uint64)
    for word in range(WIDE_WORDS):
        partial = left[..., word] + right[..., word]
        out[..., word] = partial + carry
        # A sum that wrapped is smaller than its summand. Both steps cannot wrap at once.
        carry = ((partial < left[..., word]) | (out[..., word] < partial)).astype(np.uint64)
    return out


def subtract_wide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left − right = left + (not right) + 1, two's complement."""
    one = np.zeros_like(left)
    one[..., 0] = 1
    return add_wide(add_wide(left, ~right), one)
