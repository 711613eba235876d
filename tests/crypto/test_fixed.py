"""Fixed point: worked numbers, error bounds, and refusal instead of wrapping."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.crypto import fixed

reals = st.floats(-fixed.MOST, fixed.MOST, allow_nan=False)
wide_reals = st.floats(-fixed.WIDE_MOST, fixed.WIDE_MOST, allow_nan=False)


def test_worked_numbers():
    ring = fixed.encode(np.array([0, 1, -1, 0.5, 2.0**-32, -(2.0**-32), 2.0**-34]))
    assert ring.dtype == np.uint64
    assert ring.tolist() == [0, 2**32, 2**64 - 2**32, 2**31, 1, 2**64 - 1, 0]
    assert fixed.decode(ring).tolist() == [0, 1, -1, 0.5, 2.0**-32, -(2.0**-32), 0]


def test_the_largest_numbers_fit_and_the_next_do_not():
    edge = np.array([fixed.MOST, -fixed.MOST])
    assert fixed.decode(fixed.encode(edge)).tolist() == edge.tolist()
    for bad in (np.nextafter(fixed.MOST, np.inf), -(2.0**31), np.inf, -np.inf, np.nan):
        with pytest.raises(Mistake, match=re.escape(f"the moments hold {bad:g},")):
            fixed.encode(np.array([1.0, bad]), "the moments")


@given(st.lists(reals, min_size=1, max_size=20))
def test_encoding_is_off_by_half_a_step_at_most(values):
    ring = fixed.encode(np.array(values))
    for x, r in zip(values, ring.view(np.int64).tolist()):
        assert abs(Fraction(r, 2**32) - Fraction(x)) <= Fraction(1, 2**33)
        if abs(x) >= 2**20:
            assert Fraction(r, 2**32) == Fraction(x)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=100))
def test_a_sum_of_m_encodings_is_off_by_m_half_steps_at_most(values):
    total = fixed.encode(np.array(values)).sum(dtype=np.uint64)
    exact = sum(map(Fraction, values))
    error = abs(Fraction(float(fixed.decode(total.reshape(1))[0])) - exact)
    assert error <= Fraction(len(values), 2**33) + abs(exact) * Fraction(1, 2**52)


def test_headroom_is_checked_on_the_sum_not_on_the_parts():
    fixed.require_headroom(fixed.MOST, "the sum")
    for most in (2.0**31, np.inf, np.nan):
        with pytest.raises(Mistake, match="the sum could come to"):
            fixed.require_headroom(most, "the sum")
    # What would happen without it: two parts that fit, a sum that wraps.
    part = fixed.encode(np.array([2.0**30]))
    assert fixed.decode(part + part)[0] == -(2.0**31)


def test_label_headroom_is_labels_over_one_minus_alpha():
    fixed.label_headroom(21_000_000, 0.99)  # 2.1e9 < 2^31 − 1 = 2147483647
    with pytest.raises(Mistake, match="22000000 labels at alpha 0.99 could come to 2.2e"):
        fixed.label_headroom(22_000_000, 0.99)
    for alpha in (1.0, 1.5, -0.1, float("nan")):
        with pytest.raises(Mistake, match="alpha is"):
            fixed.label_headroom(10, alpha)


def test_decoding_takes_ring_elements_only():
    with pytest.raises(TypeError, match="float64"):
        fixed.decode(np.zeros(3))
    with pytest.raises(TypeError, match="words last"):
        fixed.decode_wide(np.zeros((2, 3), np.uint64))


# --- the wide ring ------------------------------------------------------------------------------------------------------------


def as_integers(ring):
    return [sum(int(word) << (64 * at) for at, word in enumerate(words)) for words in ring.reshape(-1, fixed.WIDE_WORDS)]


def as_words(integers):
    return np.array([[(x >> (64 * at)) % 2**64 for at in range(fixed.WIDE_WORDS)] for x in integers], np.uint64)


def test_worked_wide_numbers():
    ring = fixed.encode_wide(np.array([[1.0, -1.0], [2.0**-96, 2.0**127]]))
    assert ring.shape == (2, 2, 4) and ring.dtype == np.uint64
    assert as_integers(ring) == [2**96, 2**256 - 2**96, 1, 2**223]
    assert fixed.decode_wide(ring).tolist() == [[1.0, -1.0], [2.0**-96, 2.0**127]]


@given(st.lists(wide_reals, min_size=1, max_size=8))
def test_wide_encoding_is_off_by_half_a_step_at_most(values):
    ring = fixed.encode_wide(np.array(values))
    for x, r in zip(values, as_integers(ring)):
        signed = r - 2**256 if r >= 2**255 else r
        assert abs(Fraction(signed, 2**96) - Fraction(x)) <= Fraction(1, 2**97)


ring_integers = st.integers(0, 2**256 - 1) | st.sampled_from([0, 1, 2**64 - 1, 2**64, 2**128 - 1, 2**192 - 1, 2**256 - 1])


@given(ring_integers, ring_integers)
def test_wide_arithmetic_is_that_of_integers_modulo_two_to_the_256(x, y):
    left, right = as_words([x]), as_words([y])
    assert as_integers(fixed.add_wide(left, right)) == [(x + y) % 2**256]
    assert as_integers(fixed.subtract_wide(left, right)) == [(x - y) % 2**256]


def test_wide_sums_hold_salaries_squared_and_trifles_alike():
    salaries = np.array([250_000.0, 1e-9]) ** 2 * 1e4
    with pytest.raises(Mistake):
        fixed.encode(salaries)
    total = fixed.encode_wide(salaries)
    for _ in range(9):
        total = fixed.add_wide(total, fixed.encode_wide(salaries))
    np.testing.assert_allclose(fixed.decode_wide(total), 10 * salaries, rtol=1e-14)
    with pytest.raises(Mistake, match="hold nan"):
        fixed.encode_wide(np.array([np.nan]))
