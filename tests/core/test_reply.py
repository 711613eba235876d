"""A bad reply is a missing reply: what is checked before a method sees it."""

import numpy as np
import pytest
import torch

from grapevine.core import step
from grapevine.core.reply import COUNT, Array, problem


@step(reveals=dict(rows="how many rows", block="distances", letters="sealed", names="of classes", weights="a model"))
def asked():
    pass


FORM = dict(rows=range(0, 100), block=Array("uint16", (2, 3), most=8), letters=dict(a=bytes, b=bytes), names=[str])
GOOD = dict(rows=5, block=np.full((2, 3), 8, np.uint16), letters=dict(a=b"1", b=b"2"), names={0: "cat", 1: "dog"})


def test_a_reply_of_the_form_asked_for_is_good():
    assert problem(asked, {}, GOOD, FORM) is None
    assert problem(asked, {}, dict(GOOD, names={}), FORM) is None
    assert problem(asked, {}, dict(GOOD, block=torch.ones(2, 3)), dict(block=Array("float32", (2, 3), most=1))) is None
    assert problem(asked, {}, dict(block=np.empty((0, 3), np.uint16)), dict(block=Array("uint16", (0, 3), most=8))) is None


@pytest.mark.parametrize("change, wrong", [
    (dict(rows=-1), "'rows' must be a whole number, 0 to 99"),
    (dict(rows=100), "'rows' must be a whole number, 0 to 99"),
    (dict(rows=5.0), "'rows' must be a whole number"),
    (dict(rows=True), "'rows' must be a whole number"),
    (dict(rows="five"), "'rows' must be a whole number"),
    (dict(block=np.zeros((3, 2), np.uint16)), "'block' must be uint16, 2 × 3, at most 8"),
    (dict(block=np.zeros((2, 3))), "'block' must be uint16"),
    (dict(block=np.full((2, 3), 9, np.uint16)), "'block' must be uint16, 2 × 3, at most 8"),
    (dict(block="zeros"), "'block' must be uint16"),
    (dict(letters=dict(a=b"1")), "'letters' must have the fields a, b"),
    (dict(letters=dict(a=b"1", b=2)), "'letters', b must be bytes"),
    (dict(letters=b"12"), "'letters' must be a dict"),
    (dict(names={0: "cat", 1: 7}), "'names', 1 must be str"),
])  # fmt: skip
def test_a_reply_of_another_form_is_bad(change, wrong):
    assert problem(asked, {}, dict(GOOD, **change), FORM).startswith(wrong)


def test_a_missing_field_and_a_strange_one_are_bad():
    assert problem(asked, {}, {name: value for name, value in GOOD.items() if name != "rows"}, FORM) == "'rows' is missing"
    assert "a field 'more' that the step does not have" in problem(asked, {}, dict(GOOD, more=1), FORM)


class Trains:
    """A method of which a field of the reply depends on a setting."""

    def __init__(self, halves: bool):
        self.halves = halves

    @step(reveals=dict(weights="a model", n="rows"), like=dict(weights="weights", n=COUNT))
    def train(self):
        pass

    @step(
        reveals=dict(dy="a step", dc="another", n="rows"), like=lambda m: dict(dc="control.c") if m.halves else dict(dy="weights")
    )
    def either(self):
        pass

    @step(reveals=dict(even="numbers"), like=dict(even=lambda value: value % 2 == 0))
    def odd(self):
        pass


ASKED = dict(weights=dict(a=torch.zeros(2, 3), k=torch.tensor(4)), control=dict(c=dict(a=torch.zeros(2))))
TRAINED = dict(weights=dict(a=torch.ones(2, 3), k=torch.tensor(7)), n=5)


def test_what_is_like_a_field_of_the_request_has_its_names_types_and_shapes():
    train = Trains(False).train
    assert problem(train, ASKED, TRAINED) is None
    k = torch.tensor(7)
    others = (dict(a=torch.ones(2, 3)), dict(a=torch.ones(3, 2), k=k), dict(a=torch.ones(2, 3).double(), k=k), torch.ones(2, 3))
    for weights in (*others, dict(TRAINED["weights"], more=k)):
        assert "differs in form from the 'weights' that was sent" in problem(train, ASKED, dict(TRAINED, weights=weights))


@pytest.mark.parametrize("n", [-1, 2**62, 1.5, float("nan"), True, "5", torch.tensor(5)])
def test_a_count_is_a_whole_number_up_to_2_to_the_40(n):
    assert problem(Trains(False).train, ASKED, dict(TRAINED, n=n)).startswith("'n' must be a whole number, 0 to 1099511627776")
    assert problem(Trains(False).train, ASKED, dict(TRAINED, n=2**40)) is None


def test_only_a_client_that_has_nothing_may_leave_fields_out():
    train = Trains(False).train
    assert problem(train, ASKED, dict(n=0)) is None
    assert problem(train, ASKED, dict(n=1)) == "'weights' is missing"
    assert problem(train, ASKED, dict(n=False)) == "'weights' is missing"
    assert problem(train, ASKED, {}) == "'weights' is missing"
    assert problem(train, ASKED, dict(TRAINED, n=0, weights={})).startswith("'weights' differs in form")


def test_the_form_may_depend_on_the_method_and_lie_deeper_in_the_request():
    dy, dc = dict(a=torch.ones(2, 3), k=torch.tensor(7)), dict(a=torch.ones(2))
    assert problem(Trains(False).either, ASKED, dict(dy=dy, n=1)) is None
    assert problem(Trains(False).either, ASKED, dict(dc=dc, n=1)) == "'dy' is missing"
    assert problem(Trains(True).either, ASKED, dict(dc=dc, n=1)) is None
    assert "'control.c' that was sent" in problem(Trains(True).either, ASKED, dict(dc=dy, n=1))


def test_a_function_may_say_what_a_field_must_be():
    assert problem(Trains(True).odd, {}, dict(even=4)) is None
    assert problem(Trains(True).odd, {}, dict(even=5)) == "'even' does not have the form that it must have"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_must_be_finite_wherever_they_are(bad):
    weights = dict(a=torch.full((2, 3), bad), k=torch.tensor(7))
    assert "training diverged, try a smaller lr" in problem(Trains(False).train, ASKED, dict(TRAINED, weights=weights))
    assert "not finite" in problem(asked, {}, dict(block=np.array([1.0, bad])))
    assert "must be 0 to" in problem(asked, {}, dict(rows=bad))
