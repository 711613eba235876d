"""What the label job warns of: classes that no row gets, columns that play no part, labels that are all the same."""

from __future__ import annotations

import numpy as np
import pytest
from label_job import QUICK, blobs, label

import grapevine as gv
from grapevine.jobs import label_notes
from grapevine.jobs.label_result import PartyLabels
from grapevine.jobs.settings import LabelSettings


def test_warnings():
    parties = blobs()
    names = ["Melanoma", "melanoma", "nevus"]
    named = [(X, [None if c < 0 else names[c] for c in y]) for X, y, _ in parties]
    notes = gv.label(named, **QUICK).warnings
    assert any("'Melanoma' and 'melanoma' are treated as different" in note for note in notes)
    only = [(X, np.where(y >= 0, 0, -1), t) for X, y, t in parties]
    assert any("every label is '0'" in note for note in label(only).warnings)
    for method in ("chorus", "xclp"):  # it was "expected 100 %, alone 0 %"
        made = label(only, method=method)
        assert made.expected is None and made.recall == {} and all(party.verdict is None for party in made)
    assert any("all are neighbours" in note for note in label(parties, neighbours=100).warnings)


def test_where_all_rows_have_labels_no_class_is_missed():
    made = label([(X, t, t) for X, _, t in blobs()], method="chorus")
    assert not any("no row gets the class" in note for note in made.warnings)


def test_why_no_row_gets_a_class(tmp_path):
    """It was "it has too few labels" where every row was labelled already, and where --abstain held them all back."""
    parties = blobs(labelled=12)
    full = gv.label([(X, t) for X, _, t in parties], secure="plain", out=tmp_path / "full")
    assert [note for note in full.warnings if "label" in note] == ["every row is labelled already, so there are no new labels."]
    page = (tmp_path / "full" / "report.html").read_text(encoding="utf-8")
    assert "There are no new labels: we hid 62 known labels" in page and "of the new labels are expected" not in page
    said = label(blobs(spread=4.0), method="chorus", secure="plain", seed=1, abstain=0.9999999).warnings
    assert "no row gets a label: none of 44 rows is as sure as --abstain 0.9999999 asks." in said
    assert not [note for note in said if "class" in note]


def test_columns_that_play_no_part_are_told():
    """A column in which a few rows differ is left out of every sum; nobody was told."""
    rows = [(np.c_[X, np.arange(len(X)) < 2, np.ones(len(X))], y) for X, y, _ in blobs((30, 30, 30), labelled=12)]
    why = "played no part: fewer than 10 rows differ there from the most common value."
    assert f"2 columns (x6, x7) {why}" in gv.label(rows, secure="plain", seed=0).warnings
    pandas = pytest.importorskip("pandas")
    tables = [pandas.DataFrame(X, columns=list("abcdefg")).assign(label=[None if c < 0 else f"k{c}" for c in y]) for X, y in rows]
    assert f"2 columns (f, g) {why}" in gv.label(tables, label="label", secure="plain", seed=0).warnings


def test_classes_that_no_row_gets_share_a_line():
    """An id column as label made 360 lines."""
    parties = [PartyLabels("a", ["1", "2"], ["x", None], np.ones(2), np.ones((2, 1)), [None, None], ["x", "y"],
                           np.array([False, True]))]  # fmt: skip
    recall = {name: dict(n=n, given=name == "x") for name, n in dict(x=9, y=9, **{f"c{i}": 2 for i in range(9)}, z=40).items()}
    assert label_notes.never(recall, parties, LabelSettings(abstain=0.5)) == [
        "no row gets the class 'y': no row that would get it is as sure as --abstain 0.5 asks.",
        "no row gets 9 of 12 classes ('c0', 'c1', 'c2', 'c3', 'c4' and 4 more): they have too few labels (at most 2 each).",
        "no row gets the class 'z': no row without a label is most like it.",
    ]
