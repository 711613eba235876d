"""The lattice under mlwe: exact products against hand work and Python's integers, and the samplers' distributions."""

import numpy as np
import pytest
from scipy import stats

from grapevine.crypto import lattice
from grapevine.crypto.mlwe import COLUMNS
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
    rows = np.array([[[1.0, 2.0], [1.0, -1.0]]])
    polynomials = np.array([[[3.0, 4.0]], [[5.0, 0.0]]])
    assert lattice.convolve(rows, polynomials).tolist() == [[[0, 5]]]


def test_products_are_exact_in_the_worst_case():
    most = (1 << 40) - 1
    signs = np.ones((1, COLUMNS))
    assert lattice.product(signs, np.full((COLUMNS, 1), float(most))).item() == COLUMNS * most
    # all coefficients at their largest: coefficient c of the product is c + 1 of them less 511 - c of them, seven times
    out = lattice.convolve(np.full((1, 7, 512), float(most)), np.ones((7, 1, 512)))[0, 0]
    assert out[511] == 3584 * most and out[0] == -3570 * most
    assert out.tolist() == [7 * (2 * c - 510) * most for c in range(512)]
    mixed = (np.arange(7 * 512) * 2654435761 % (1 << 40)).reshape(7, 512)
    signs = np.where(np.arange(7 * 512) % 3 == 0, -1, 1).reshape(7, 512)
    slow = sum(np.array(slow_multiply(f, g), dtype=object) for f, g in zip(mixed[:1].tolist(), signs[:1].tolist()))
    assert lattice.convolve(mixed[None, :1].astype(float), signs[:1, None])[0, 0].tolist() == slow.tolist()


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
    assert len(table) == 2 * lattice.TAIL and (np.diff(table.astype(object)) > 0).all()
    assert table[lattice.TAIL].astype(float) / 2**64 == pytest.approx((1 + p[12]) / 2, rel=1e-12)
