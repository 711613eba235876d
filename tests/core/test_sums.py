"""Sums in whole numbers: against Python's own fractions, in any order, and as means of replies."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.core.sums import Exact, Field, Replies

floats = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x == 0 or abs(x) > 2.0**-60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(floats, st.integers(0, 2**20)), min_size=1, max_size=12))
def test_a_sum_is_the_fraction_rounded(terms):
    exact = Exact()
    for w, n in terms:
        exact.add(torch.tensor([w], dtype=torch.float32).double() * n)
    true = sum(Fraction(w) * n for w, n in terms)
    assert math.isclose(exact.value().item(), float(true), rel_tol=2.0**-50, abs_tol=len(terms) * 2.0**-97)


def test_order_and_grouping_change_no_bit():
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(7, generator=draw).double() * 10.0**e for e in (-9, -3, -1, 0, 1, 3)]
    found = set()
    for order in itertools.islice(itertools.permutations(parts), 0, 720, 37):
        whole = Exact()
        for part in order:
            whole.add(part)
        found.add(tuple(whole.value().tolist()))
    assert len(found) == 1
    floats_differ = {tuple(sum(order).tolist()) for order in itertools.permutations(parts)}
    assert len(floats_differ) > 1  # what the limbs are for


def test_terms_that_cancel_leave_nothing():
    exact = Exact()
    for value in (1e30, 3e-7, -1e30, -3e-7):
        exact.add(torch.tensor([value], dtype=torch.float32).double())
    assert exact.value().item() == 0.0


def test_what_is_too_large_is_a_sentence():
    with pytest.raises(Mistake, match="too large to average"):
        Exact().add(torch.tensor([1e60], dtype=torch.float64))


def test_means_and_diversity_by_hand():
    field, start = Field(), {"w": torch.tensor([1.0, 1.0])}
    field.add({"w": torch.tensor([2.0, 1.0]), "steps": torch.tensor(3)}, 3, start)  # moved by (1, 0)
    field.add({"w": torch.tensor([1.0, 4.0]), "steps": torch.tensor(4)}, 1, start)  # moved by (0, 3)
    assert field.mean("n")["w"].tolist() == [1.75, 1.75] and field.mean("n")["steps"].item() == 3
    assert field.mean(None)["w"].tolist() == [1.5, 2.5] and field.mean(None)["steps"].item() == 4  # 3.5, to even
    assert field.diversity(()) == 1.0  # at right angles
    assert math.isnan(field.diversity(("w",)))


def test_diversity_of_those_who_stay_and_of_those_who_cancel():
    start = {"w": torch.tensor([0.1, 0.7])}
    still, apart = Field(), Field()
    for _ in range(3):
        still.add({"w": start["w"].clone()}, 5, start)
    for sign in (1.0, -1.0):
        apart.add({"w": torch.tensor([sign, 2 * sign])}, 5, {})
    assert math.isnan(still.diversity(())) and apart.diversity(()) == math.inf


def test_replies_keep_what_is_not_summed_and_leave_idle_clients_out():
    replies = Replies()
    replies.take(2, {}, dict(weights={"w": torch.tensor([4.0])}, n=1, extra=7), {"weights"})
    replies.take(0, {}, dict(n=0), {"weights"})
    replies.take(1, {}, dict(weights={"w": torch.tensor([1.0])}, n=2), {"weights"})
    ordered = replies.in_order()
    assert list(ordered.items()) == [(0, dict(n=0)), (1, dict(n=2)), (2, dict(n=1, extra=7))]
    assert ordered.sums["weights"].mean("n")["w"].item() == 2.0 and ordered.sums["weights"].count == 2
