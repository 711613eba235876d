"""Changes of a vector, packed and unpacked."""

import math

import torch

from grapevine.core import wire
from grapevine.learn import vectors


def test_changes_of_a_vector():
    before = torch.arange(100.0)
    few, many = torch.zeros(100), torch.zeros(100)
    few[[3, 77]] = torch.tensor([0.5, -2.0])
    many[::2] = 1.0
    for change, form in ((few, "index"), (many, "bits")):
        packed = vectors.differences(change, 0.4)
        assert form in packed and torch.equal(vectors.unpack(packed, before), before + change)
    assert wire.size(vectors.differences(few, 0.4)["index"]) == 11 + 2 * 4
    assert wire.size(vectors.differences(many, 0.4)["bits"]) == 11 + 13
    assert torch.equal(vectors.unpack(vectors.differences(few, 1.0), before), before + few * (few.abs() > 1))  # 0.5 is cut
    changed = torch.zeros(100, dtype=torch.int32)
    changed = vectors.stamp(few != 0, 5, changed)
    packed = vectors.since(before + few, changed, 4)
    assert len(packed["values"]) == 2 and torch.equal(vectors.unpack(packed, before), before + few)
    assert not len(vectors.since(before + few, changed, 5)["values"])
    assert vectors.is_whole(vectors.since(before, changed, None)) and not vectors.is_whole(packed)


def test_a_change_that_is_no_number_is_sent():
    sent = vectors.differences(torch.tensor([0.0, math.nan, -math.inf, 2.0]), 1.0)["values"]
    assert sent[0].isnan() and sent[1:].tolist() == [-math.inf, 2.0]


def test_changes_that_do_not_fit_a_vector_are_known():
    change = torch.zeros(100)
    change[[3, 77]] = 1.0
    few, many = vectors.differences(change), vectors.differences(torch.ones(100))
    assert vectors.fits(few, 100) and vectors.fits(many, 100) and vectors.fits(vectors.differences(torch.zeros(100)), 100)
    assert not vectors.fits(few, 77) and not vectors.fits(many, 99)
    for wrong in (
        few["values"], dict(few, add=False), dict(few, more=1), dict(few, values=few["values"][:1]), dict(few, bits=many["bits"]),
        dict(few, index=-few["index"]), dict(few, index=few["index"].long()), dict(few, values=few["values"][None]),
        dict(few, values=few["values"].double()), dict(many, bits=many["bits"] * 0), dict(many, bits=many["bits"][:-1]),
        dict(values=few["values"], add=True), vectors.since(change, change.int(), None),
    ):  # fmt: skip
        assert not vectors.fits(wrong, 100)
