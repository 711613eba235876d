"""The lattice under mlwe: exact products against hand work and Python's integers, and the samplers' distributions."""

import numpy as np
import pytest
from scipy import stats

from grapevine.crypto import lattice
from grapevine.crypto.stream import Stream

SECRET = b"only for the tests".ljust(32)  # a stream that repeats, so that a statistical test gives the same p-value every time


def slow_multiply(f, g):
    """Product of two polynomials mod x^n + 1, in Python's integers."""
    n = len(f)
    out = [0] * n
    for i, x in enumerate(f):
        for d, y in enumerate(g):
            out[(i + d) % n] += x * y if i + d < n else -x * y
    return out


def test_ring_product_by_hand():
    """(1 + 2x)(3 + 4x) = 3 + 10x + 8x^2 = -5 + 10x mod x^2 + 1, plus (1 - x)(5) = 5 - 5x."""
    rows = np.array([[[1, 2], [1, -1]]], np.int8)
    polynomials = np.array([[[3, 4]], [[5, 0]]])
    assert lattice.convolve(rows, polynomials).tolist() == [[[0, 5]]]


@pytest.mark.parametrize("ring", [1, 2, 4, 32])
def test_ring_products_against_python_integers(ring, monkeypatch):
    """Either side may be the small one, and rows come in pieces."""
    monkeypatch.setattr(lattice, "ROWS", 2)
    rng = np.random.default_rng(ring)
    small = rng.integers(-lattice.TAIL, lattice.TAIL + 1, (5, 3, ring)).astype(np.int8)
    wide = rng.integers(0, 1 << 40, (3, 2, ring))
    out = lattice.convolve(small, wide)
    for m in range(5):
        for o in range(2):
            parts = [slow_multiply(small[m, i].tolist(), wide[i, o].tolist()) for i in range(3)]
            assert out[m, o].tolist() == np.sum(np.array(parts, object), axis=0).tolist()
    turned = lattice.convolve(wide.transpose(1, 0, 2), small.transpose(1, 0, 2))
    assert (turned.transpose(1, 0, 2) == out).all()


@pytest.mark.parametrize("rank", [7, 9])
def test_products_are_exact_in_the_worst_case(rank):
    """All coefficients at their largest: coefficient c of the product is c + 1 of them less 511 - c of them, `rank` times."""
    most = (1 << 40) - 1
    wide = np.full((1, rank, 512), most)
    for small in (lattice.TAIL, -1):
        out = lattice.convolve(wide, np.full((rank, 1, 512), small, np.int8))[0, 0]
        assert out.tolist() == [rank * small * (2 * c - 510) * most for c in range(512)]
    mixed = (np.arange(512) * 2654435761 % (1 << 40))[None]
    signs = np.where(np.arange(512) % 3 == 0, -lattice.TAIL, lattice.TAIL).astype(np.int8)[None]
    assert lattice.convolve(mixed[None], signs[:, None])[0, 0].tolist() == slow_multiply(mixed[0].tolist(), signs[0].tolist())


def test_the_transform_is_far_from_a_wrong_rounding():
    """The error before rounding, of random and of worst products: the bound says below 2^-8."""
    rng = np.random.default_rng(0)
    for wide in (np.full((7, 1, 512), (1 << 20) - 1), rng.integers(0, 1 << 20, (7, 1, 512))):
        small = rng.choice([-lattice.TAIL, lattice.TAIL], (4, 7, 512))
        spectrum = lattice._at_every_root(lattice._spectrum(small), lattice._spectrum(wide))
        folded = lattice.fft.ifft(spectrum) * lattice._twist(512).conj()
        assert max(np.abs(part - np.rint(part)).max() for part in (folded.real, folded.imag)) < 2**-8


def test_samplers():
    ternary = lattice.ternary(Stream(SECRET, b"ternary"), (300, 100))
    assert ternary.shape == (300, 100) and stats.chisquare(np.bincount(ternary.reshape(-1) + 1, minlength=3)).pvalue > 1e-4
    draws = lattice.gauss(Stream(SECRET, b"gauss"), (400, 500)).reshape(-1)
    x = np.arange(-12, 13)
    p = np.exp(-(x**2) / (2 * 3.2**2)) / np.exp(-(np.arange(-100, 101) ** 2) / (2 * 3.2**2)).sum()
    counts = np.array([(draws == value).sum() for value in x])
    rest = len(draws) - counts.sum()
    assert stats.chisquare([*counts, rest], [*(p * len(draws)), (1 - p.sum()) * len(draws)]).pvalue > 1e-4
    table = lattice._gauss_table()
    words = Stream(SECRET, b"gauss").array((400, 500)).reshape(-1)
    assert (draws == np.searchsorted(table, words, side="right") - lattice.TAIL).all()  # the lookup is the inversion
    assert len(table) == 2 * lattice.TAIL and (np.diff(table.astype(object)) > 0).all()
    assert table[lattice.TAIL].astype(float) / 2**64 == pytest.approx((1 + p[12]) / 2, rel=1e-12)
