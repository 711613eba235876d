"""A bad reply is a missing reply: what is checked before a method sees it."""

import numpy as np
import pytest
import torch

from grapevine.core import step
from grapevine.core.reply import Array, problem


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
