"""Foreign rows among a client's own."""

from dataclasses import replace

import pytest
import torch
from data_files import images, toy

from grapevine.core.errors import Mistake
from grapevine.data.dealing import split
from grapevine.data.foreign import IRRELEVANT, parse_irrelevant


def test_irrelevant_rows_come_beside_own_ones():
    data, other = toy(600), toy(500, name="other")
    s = split(data, 5, labels="clients:100", irrelevant="other:0.5", foreign=other, validation=0)
    for part in s.parts:
        assert int((part.labelled >= 600).sum()) == 10 and int((part.unlabelled >= 600).sum()) == 50
    assert (s.truth[600:] == IRRELEVANT).all() and len(s.x) == 900
    assert torch.equal(s.x[600:], other.x[s.foreign])
    assert sum(line["irrelevant"] for line in s.table()) == 300


def test_foreign_rows_keep_the_number_of_their_own_class():
    """MP-SSFL's "label overlapping"; a number that the data set does not have begins again at 0."""
    data, other = toy(600, classes=4), toy(500, classes=7, name="other")
    s = split(data, 5, labels="clients:100", irrelevant="other:0.5", foreign=other, validation=0)
    for part in s.parts:
        at = part.labelled >= 600
        assert torch.equal(part.labels[at], other.y[s.foreign[part.labelled[at] - 600]] % 4)
    assert len({int(y) for part in s.parts for y in part.labels[part.labelled >= 600]}) == 4
    unknown = replace(other, y=torch.full_like(other.y, -1))
    s = split(data, 5, labels="clients:100", irrelevant="other:0.5", foreign=unknown, validation=0)
    assert all(((part.labels >= 0) & (part.labels < 4)).all() for part in s.parts)


def test_foreign_pictures_are_fitted():
    grey, colour = images(40, (1, 6, 6), "grey"), images(80, (3, 9, 9), "colour", value=100)
    s = split(grey, 2, irrelevant="colour:1", foreign=colour)
    assert s.x.shape[1:] == (1, 6, 6) and s.x.dtype == torch.uint8 and (s.x[40:] == 100).all()
    s = split(colour, 2, irrelevant="grey:0.1", foreign=grey)
    assert s.x.shape[1:] == (3, 9, 9)
    assert torch.equal(s.x[80:, 0], s.x[80:, 2])
    dim = images(40, (1, 9, 9), "dim", factor=1 / 16)  # values 0 to 16, as in digits
    assert (split(dim, 2, irrelevant="colour:1", foreign=colour).x[40:] == round(100 / 255 * 16)).all()


def test_parse_irrelevant():
    assert parse_irrelevant("mnist:0.5") == ("mnist", 0.5) and parse_irrelevant("C:/my:2") == ("C:/my", 2.0)
    for text in ("mnist", "mnist:", "mnist:x", ":0.5", "mnist:0", "mnist:-1", "mnist:inf", "mnist:nan"):
        with pytest.raises(Mistake, match="NAME:0.5"):
            parse_irrelevant(text)
