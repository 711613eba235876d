"""Noise for differential privacy: discrete, exact, and out of the operating system's generator.

Discrete Gaussian: Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithm 3 on top of
its Algorithm 2. Randomised response over C classes: Kairouz, Oh, Viswanath, NeurIPS 2014.

Claim: every value has exactly the stated distribution, given uniform words. No probability is rounded to a float. All
randomness is coins of probability p = e^-γ with γ rational. A coin compares a uniform u in [0, 1), of which the first 64 bits
are drawn, with p. Floats decide only where u is further from p than MARGIN · p. That is safe: where γ ≤ 46, |y| is at most 12
standard deviations, so the roundings of y, σ²/t, the square and the quotient move γ by less than 2^-44, and exp adds a few
units in the last place; where γ > 46, p is below 2^-66 and only a word of zero could fall under it. The others, one in 2^34 and
every word of zero, are decided by decimals with proven bounds, and u gets further bits until the decision is certain. A
floating-point Gaussian has no such claim: its low bits give the summands away (Mironov, CCS 2012). Constant time is not
claimed: how long a draw takes depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.fixed import FRACTION_BITS
from grapevine.crypto.stream import Stream, context, fresh_secret

MARGIN = 2.0**-34
WIDEST = 2.0**44  # the widest discrete Gaussian: up to here every value is a whole float64
BITS = 64  # bits of a uniform number that are drawn at a time

Bounded = Callable[[int], Decimal]
"""A probability, to within 10^-digits."""


def noise_stream() -> Stream:
    """A stream of its own for one draw of noise, keyed by the operating system."""
    return Stream(fresh_secret(), context("privacy noise"))


# ---------------------------------------------------------------- sums


def discrete_gaussian(sigma: float, shape: int | tuple[int, ...], stream: Stream | None = None) -> np.ndarray:
    """Whole numbers (int64) with P(x) ∝ exp(−x² / 2σ²). The variance is at most σ², and close to it for σ ≥ 1."""
    if not 0 < sigma <= WIDEST:
        raise Mistake(f"noise of width {sigma:g} cannot be drawn: it must be above 0 and at most {WIDEST:g}.")
    stream = stream or noise_stream()
    count, t, variance = math.prod(np.atleast_1d(shape).tolist()), math.floor(sigma) + 1, Fraction(sigma) ** 2
    centre, out = variance / t, np.empty(0, np.int64)
    while out.size < count:
        y = _laplace(stream, t, (count - out.size) * 3 // 2 + 16)
        gamma = (np.abs(y) - float(centre)) ** 2 / (2 * float(variance))
        kept = _coins(stream, gamma, lambda i, y=y: (abs(int(y[i])) - centre) ** 2 / (2 * variance))  # type: ignore[misc]
        out = np.concatenate([out, y[kept]])
    return out[:count].reshape(shape)


def clipped(rows: np.ndarray, length: float = 1.0, bits: int = FRACTION_BITS) -> np.ndarray:
    """Rows no longer than `length`, in steps of 2^-bits (int64), by default those of `fixed`: a row adds at most
    length · 2^bits to a sum, in L2.

    Longer rows are shortened, every value is cut off towards zero, and sums of whole numbers are exact: so the bound holds for
    the numbers that are really summed.
    """
    rows = np.asarray(rows, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all() or not 0 < length <= 2.0**16:
        raise Mistake("rows to clip must be a finite matrix, and the length above 0 and at most 65536.")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    shrink = np.minimum(1.0, length * (1 - 1e-9) / np.maximum(norms, 1e-300))  # 1e-9: more than the norm's own rounding
    return np.trunc(np.ldexp(rows * shrink, bits)).astype(np.int64)


def add_noise(ring: np.ndarray, sigma: float, stream: Stream | None = None) -> np.ndarray:
    """Ring elements of `fixed` (uint64) with discrete Gaussian noise of standard deviation sigma, given in real units."""
    if ring.dtype != np.uint64:
        raise TypeError(f"ring elements are uint64, not {ring.dtype}")
    return ring + discrete_gaussian(math.ldexp(sigma, FRACTION_BITS), ring.shape, stream).view(np.uint64)


# ---------------------------------------------------------------- labels


def response_rates(classes: int, epsilon: float) -> tuple[float, float]:
    """p = e^ε / (e^ε + C − 1), how often a label stays, and q = 1 / (e^ε + C − 1), how often it becomes a given other one."""
    _check_response(classes, epsilon)
    q = math.exp(-epsilon) / (1 + (classes - 1) * math.exp(-epsilon))
    return 1 / (1 + (classes - 1) * math.exp(-epsilon)), q


def randomised_response(y: np.ndarray, classes: int, epsilon: float, stream: Stream | None = None) -> np.ndarray:
    """Labels 0 … C − 1 that are ε-differentially private each; −1, no label, stays: which rows are labelled is not hidden."""
    _check_response(classes, epsilon)
    y = np.asarray(y)
    if y.dtype.kind not in "iu" or y.ndim != 1 or (y.size and not (-1 <= y.min() and y.max() < classes)):
        raise Mistake(f"labels to randomise must be whole numbers from -1 to {classes - 1}.")
    stream, y = stream or noise_stream(), y.astype(np.int64)

    def stays(digits: int) -> Decimal:
        with localcontext() as decimals:
            decimals.prec = digits + 10
            return 1 / (1 + (classes - 1) * (-_decimal(Fraction(epsilon))).exp())

    words, at = stream.array(y.shape), int(stays(40) * 2**BITS)
    kept = words < np.uint64(at)
    for i in np.flatnonzero((words >= np.uint64(at - 1)) & (words <= np.uint64(at + 1))):  # too near to tell
        kept[i] = _decide(int(words[i]), stays, stream)
    other = below(stream, classes - 1, y.size)
    return np.where(kept | (y < 0), y, other + (other >= y))


def unbiased(onehot: np.ndarray, epsilon: float) -> np.ndarray:
    """(onehot − q) / (p − q): its mean over randomised responses is the one-hot row of the true label. Rows of zeros stay."""
    onehot = np.asarray(onehot, np.float64)
    p, q = response_rates(onehot.shape[-1], epsilon)
    return (onehot - q * onehot.sum(-1, keepdims=True)) / (p - q)


def _check_response(classes: int, epsilon: float) -> None:
    if classes < 2:
        raise Mistake(f"labels of {classes} class cannot be randomised: at least two classes are needed.")
    if not 0 < epsilon <= 40:
        raise Mistake(f"dp-labels is {epsilon:g}, which must be above 0 and at most 40, as in 3.")


# ---------------------------------------------------------------- exact coins


def _laplace(stream: Stream, t: int, count: int) -> np.ndarray:
    """Whole numbers with P(x) ∝ exp(−|x| / t): CKS, Algorithm 2. About `count` of them, since some draws are thrown away."""
    u = below(stream, t, 2 * count)
    u = u[_coins(stream, u / t, lambda i, u=u: Fraction(int(u[i]), t))]  # type: ignore[misc]
    x = u + t * _geometric(stream, u.size)
    negative = (stream.array(x.size, "uint8") & 1).astype(bool)
    return np.where(negative, -x, x)[~(negative & (x == 0))]  # otherwise zero would count twice


def _geometric(stream: Stream, count: int) -> np.ndarray:
    """How many coins of probability e^-1 come up before one does not."""
    out, alive = np.zeros(count, np.int64), np.arange(count)
    while alive.size:
        alive = alive[_coins(stream, np.ones(alive.size), lambda i: Fraction(1))]
        out[alive] += 1
    return out


def below(stream: Stream, bound: int, count: int) -> np.ndarray:
    """Uniform whole numbers from 0 to bound − 1: words beyond the last whole multiple of the bound are drawn again."""
    most, out = (1 << BITS) // bound * bound, np.empty(0, np.uint64)
    while out.size < count:
        words = stream.array(count - out.size)
        out = np.concatenate([out, words[words <= np.uint64(most - 1)]])
    return (out % np.uint64(bound)).astype(np.int64)


def _coins(stream: Stream, gamma: np.ndarray, exactly: Callable[[int], Fraction]) -> np.ndarray:
    """Coins of probability e^-γ; `exactly(i)` is the γ of coin i as a fraction."""
    words, p = stream.array(gamma.shape), np.ldexp(np.exp(-gamma), BITS)
    low = words.astype(np.float64)  # u · 2^64 lies in [low, low + 1)
    heads = low + 1 <= p * (1 - MARGIN)
    for i in np.flatnonzero(~heads & ((low < p * (1 + MARGIN)) | (words == 0))):
        exact = exactly(int(i))
        heads[i] = _decide(int(words[i]), lambda digits, exact=exact: _exp(exact, digits), stream)  # type: ignore[misc]
    return heads


def _exp(gamma: Fraction, digits: int) -> Decimal:
    """e^-γ to within 10^-digits: γ is off by less than 10^-(digits + 2) and decimals' exp is correctly rounded."""
    with localcontext() as decimals:
        decimals.prec = digits + 4 + len(str(int(gamma)))
        return (-_decimal(gamma)).exp()


def _decimal(value: Fraction) -> Decimal:
    """A fraction in the precision of the context."""
    return Decimal(value.numerator) / Decimal(value.denominator)


def _decide(word: int, probability: Bounded, stream: Stream) -> bool:
    """Whether u < p, for a u that begins with the bits of `word`; draws more of them until it is certain."""
    u, bits = word, BITS
    while True:
        digits = math.ceil(bits * math.log10(2)) + 10
        with localcontext() as decimals:
            decimals.prec = 2 * digits
            p, error = probability(digits) * 2**bits, Decimal(10) ** -digits * 2**bits
            if u + 1 <= p - error:
                return True
            if u >= p + error:
                return False
        u, bits = (u << BITS) | int(stream.array(1)[0]), bits + BITS
