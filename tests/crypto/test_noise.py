"""Noise by its distribution: against the probabilities themselves, known moments, and an independent slow sampler."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from grapevine.core.errors import Mistake
from grapevine.crypto import fixed, noise
from grapevine.crypto.stream import Stream, context

LEVEL = 1e-6  # draws are from fixed secrets: how unlikely a sound sampler was to fail when this was written


def stream(n: int = 0) -> Stream:
    return Stream(bytes(range(32)), context("test of noise", n=n))


def pmf(sigma: float, reach: int) -> np.ndarray:
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


def fits(values: np.ndarray, sigma: float) -> float:
    """Chi-square of values against the discrete Gaussian; cells that expect fewer than 10 are pooled."""
    reach = math.ceil(12 * sigma) + 12
    expected = pmf(sigma, reach) * values.size
    seen = np.bincount(values + reach, minlength=2 * reach + 1)
    assert seen.size == 2 * reach + 1
    rare = expected < 10
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        seen, expected = np.append(seen[:-2], seen[-2:].sum()), np.append(expected[:-2], expected[-2:].sum())
    return stats.chisquare(seen, expected).pvalue


@pytest.mark.parametrize("sigma", [0.3, 0.9, 1.0, 2.5, 17.3])
def test_a_discrete_gaussian_has_the_probabilities_of_its_formula(sigma):
    assert fits(noise.discrete_gaussian(sigma, 60_000, stream()), sigma) > LEVEL


def test_the_test_notices_a_rounded_gaussian_and_another_width():
    draws = np.rint(stream().normal(60_000) * 0.9).astype(np.int64)
    assert fits(draws, 0.9) < LEVEL
    assert fits(noise.discrete_gaussian(2.6, 60_000, stream()), 2.5) < LEVEL


@pytest.mark.parametrize("sigma", [3.0, 2.0**33 * 1.7, 2.0**44])
def test_its_moments_are_those_of_a_gaussian_at_every_width(sigma):
    n = 40_000
    z = noise.discrete_gaussian(sigma, n, stream(1)) / sigma
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(np.square(z).mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert np.abs(z).max() < 7


def test_the_low_bits_of_wide_noise_are_uniform():
    low = noise.discrete_gaussian(2.0**36, 50_000, stream(2)) & 255
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > LEVEL


def slow_bernoulli(gamma: Fraction, draw) -> bool:
    """Canonne, Kamath, Steinke, Algorithm 1: uniform whole numbers alone, no exponential is computed."""
    if gamma > 1:
        return all(slow_bernoulli(Fraction(1), draw) for _ in range(math.floor(gamma))) and slow_bernoulli(gamma % 1, draw)
    k = 1
    while draw(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def slow_gaussian(variance: Fraction, draw) -> int:
    """Algorithm 3, one value at a time in whole numbers."""
    t = math.isqrt(math.floor(variance)) + 1
    while True:
        u = draw(t)
        if not slow_bernoulli(Fraction(u, t), draw):
            continue
        v = 0
        while slow_bernoulli(Fraction(1), draw):
            v += 1
        y, negative = u + t * v, draw(2)
        if negative and not y:
            continue
        if slow_bernoulli((y - variance / t) ** 2 / (2 * variance), draw):
            return -y if negative else y


def test_it_agrees_with_a_slow_sampler_of_whole_numbers():
    words = stream(3)

    def draw(bound: int) -> int:
        while True:
            word = int.from_bytes(words.bytes(16), "big")
            if word < 2**128 // bound * bound:
                return word % bound

    slow = np.array([slow_gaussian(Fraction(9, 4), draw) for _ in range(4000)])
    fast = noise.discrete_gaussian(1.5, 40_000, stream(4))
    table = np.array([np.bincount(np.clip(x, -5, 5) + 5, minlength=11) for x in (slow, fast)])
    assert stats.chi2_contingency(table).pvalue > LEVEL


def test_the_exact_way_decides_every_coin_as_the_fast_way_does(monkeypatch):
    """Floats decide only what is certain: with a margin of one, decimals decide whatever u < 2p, and nothing changes."""
    fast = [noise.discrete_gaussian(s, 300, stream(5)) for s in (0.7, 40.0, 2.0**35 * 1.3)]
    monkeypatch.setattr(noise, "MARGIN", 1.0)
    exact = [noise.discrete_gaussian(s, 300, stream(5)) for s in (0.7, 40.0, 2.0**35 * 1.3)]
    assert all(np.array_equal(a, b) for a, b in zip(fast, exact))


def test_a_coin_on_the_edge_draws_more_bits():
    """u begins with the very bits of p = 1/3: only later bits can tell, and they are fair."""
    third, drawn = (1 << 64) // 3, stream(6)
    heads = sum(noise._decide(third, lambda digits: 1 / noise._decimal(Fraction(3)), drawn) for _ in range(3000))
    assert abs(heads - 1000) < 6 * math.sqrt(3000 * 2 / 9)


def test_noise_comes_anew_from_the_operating_system():
    first, second = (noise.discrete_gaussian(1e6, 50) for _ in range(2))
    assert not np.array_equal(first, second)


def test_noise_is_added_in_real_units():
    ring = fixed.encode(np.full(20_000, 3.25))
    got = fixed.decode(noise.add_noise(ring, 0.5, stream(7)))
    assert abs(got.mean() - 3.25) < 5 * 0.5 / math.sqrt(got.size)
    assert abs(got.std() - 0.5) < 5 * 0.5 / math.sqrt(2 * got.size)
    with pytest.raises(TypeError, match="uint64"):
        noise.add_noise(np.zeros(3), 1.0)


def test_clipped_rows_are_never_longer_than_said_and_short_ones_stay():
    rows = np.random.default_rng(0).normal(size=(500, 40)) * np.geomspace(1e-6, 1e9, 500)[:, None]
    got = noise.clipped(rows, 1.5)
    most = Fraction(3, 2) * 2**32
    assert all(sum(int(v) ** 2 for v in row) <= most**2 for row in got)
    norms = np.linalg.norm(rows, axis=1)
    short = norms < 1.49
    assert short.sum() > 100 and np.abs(got[short] * fixed.STEP - rows[short]).max() <= fixed.STEP
    long = got[~short] * fixed.STEP
    assert np.allclose(np.linalg.norm(long, axis=1), 1.5) and np.allclose(long, rows[~short] * (1.5 / norms[~short, None]))
    for bad in (np.array([[math.nan]]), np.zeros(3)):
        with pytest.raises(Mistake, match="finite matrix"):
            noise.clipped(bad)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**45])
def test_a_width_that_cannot_be_drawn_is_refused(sigma):
    with pytest.raises(Mistake, match="cannot be drawn"):
        noise.discrete_gaussian(sigma, 3)


# ---------------------------------------------------------------- randomised response


@pytest.mark.parametrize("classes, epsilon", [(2, 0.5), (10, 3.0), (62, 1.0)])
def test_randomised_response_has_the_probabilities_of_its_formula(classes, epsilon):
    p, q = noise.response_rates(classes, epsilon)
    assert p == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + classes - 1))
    assert p + (classes - 1) * q == pytest.approx(1) and p / q == pytest.approx(math.exp(epsilon))
    for label in (0, classes // 2, classes - 1):
        got = noise.randomised_response(np.full(40_000, label), classes, epsilon, stream(8))
        expected = np.full(classes, q * got.size)
        expected[label] = p * got.size
        assert stats.chisquare(np.bincount(got, minlength=classes), expected).pvalue > LEVEL


def test_unlabelled_rows_stay_unlabelled_and_the_bias_is_undone():
    y = np.tile([-1, 0, 1, 2, 2, 2], 20_000)
    got = noise.randomised_response(y, 4, 1.0, stream(9))
    assert (got[y < 0] == -1).all() and (got[y >= 0] >= 0).all()
    onehot = (got[:, None] == np.arange(4)).astype(float)
    corrected = noise.unbiased(onehot, 1.0)
    assert not corrected[y < 0].any()
    p, q = noise.response_rates(4, 1.0)
    mean = corrected[y == 2].mean(0)
    assert np.abs(mean - [0, 0, 1, 0]).max() < 5 * 0.5 / (p - q) / math.sqrt((y == 2).sum())
    assert np.allclose(p * noise.unbiased(np.eye(4), 1.0)[0] + q * noise.unbiased(np.eye(4), 1.0)[1:].sum(0), np.eye(4)[0])


def test_what_cannot_be_randomised_is_refused():
    for y in ([0, 4], [-2, 0], [0.5]):
        with pytest.raises(Mistake, match="from -1 to 3"):
            noise.randomised_response(np.array(y), 4, 1.0)
    for epsilon in (0, -1, math.nan, 41):
        with pytest.raises(Mistake, match="dp-labels"):
            noise.randomised_response(np.array([0]), 4, epsilon)
    with pytest.raises(Mistake, match="two classes"):
        noise.randomised_response(np.array([0]), 1, 1.0)
