"""What the label job gives back and writes: a result in a few lines, files for each party, a page that can be made again."""

from __future__ import annotations

import json

import pytest
from label_job import QUICK, blobs, label, pairs, read

import grapevine as gv
from grapevine import report
from grapevine.core.errors import Mistake
from grapevine.jobs import label_result


def test_a_result_shows_itself_in_a_few_lines():
    parties = blobs((20, 24, 18, *[4] * 8), labelled=6)
    result = label(parties, names=[*"abcdefghijk"])
    lines = repr(result).splitlines()
    assert lines[0].startswith("labels of 11 parties, 3 classes; expected accuracy ")
    assert lines[1].split() == ["party", "rows", "given", "new", "abstained", "right"]
    assert lines[2].split() == ["a", "20", "6", "14", "0", "100.0%"]
    assert lines[-1] == "… and 3 more" and len(lines) == 11
    assert repr(result[1]) == "b: rows 24, given 6, new 18, abstained 0"
    unknown = gv.label(pairs(parties[:3]), **QUICK)
    assert repr(unknown).splitlines()[1].split() == ["party", "rows", "given", "new", "abstained"]


def test_what_is_written(tmp_path):
    parties = blobs((80, 30, 30), spread=2.0)
    result = label(parties, out=tmp_path / "out", abstain=0.05, seed=1, names=["north", "south", "east"])
    folder = tmp_path / "out"
    assert {p.name for p in folder.iterdir()} == {
        "north",
        "south",
        "east",
        "result.json",
        "messages.jsonl",
        "report.html",
        "config.toml",
    }
    assert {p.name for p in (folder / "north").iterdir()} == {
        "labels.csv",
        "review.csv",
        "disclosure.jsonl",
        "privacy.jsonl",
        "privacy.key",
    }
    rows = read(folder / "north" / "labels.csv")
    assert list(rows[0]) == ["id", "label", "confidence", "abstained", "given", "proposed"]
    party = result[0]
    for i, row in enumerate(rows):
        assert row["id"] == str(i + 1) and row["abstained"] == str(int(party.abstained[i]))
        assert row["label"] == ("" if party.abstained[i] else str(party.labels[i])) and row["proposed"] == str(party.proposed[i])
        assert row["given"] == ("" if party.given[i] < 0 else str(party.given[i]))
        assert float(row["confidence"]) == pytest.approx(party.confidence[i], abs=1e-6)
    review = read(folder / "north" / "review.csv")
    unlabelled = sorted(float(row["confidence"]) for row in rows if not row["given"])
    assert [float(row["confidence"]) for row in review] == unlabelled[:50]
    assert len(read(folder / "south" / "review.csv")) == 24  # no more than there are


def test_a_result_is_reported_again_from_its_folder_alone(tmp_path):
    label(blobs(), out=tmp_path / "out", baselines=True)
    first = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    again = report.write(tmp_path / "moved").read_text(encoding="utf-8")
    assert again == first and "Graph of the rows" in first
    result = json.loads((tmp_path / "moved" / "result.json").read_text())
    assert result["job"] == "label" and result["accuracy"] == 1.0 and len(result["graph"]["x"]) == 62
    assert [row["id"] for row in result["per_client"]] == ["party-1", "party-2", "party-3"]


def test_a_folder_that_cannot_be_finished_is_not_begun(tmp_path):
    result = label(blobs())
    result[2].disclosure.append(dict(step="x", field="y", reveals={1, 2}))  # JSON has no sets
    with pytest.raises(TypeError):
        label_result.write(tmp_path / "out", result)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path):
    (tmp_path / "out").mkdir()
    label(blobs(), out=tmp_path / "out")
    assert (tmp_path / "out" / "result.json").exists() and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(Mistake, match="exists and is not empty"):
        label(blobs(), out=tmp_path / "out")
    with pytest.raises(Mistake, match=r"below cannot be a folder \(not a directory\): choose"):
        label(blobs(), out=tmp_path / "out" / "result.json" / "below")


def test_new_labels_by_class_are_those_of_the_parties():
    """The sum over all rows also counted what was proposed for labelled rows, and rows that abstain."""
    made = label(blobs(spread=2.0), method="chorus", abstain=0.9, seed=3)
    new = [str(label) for party in made for label, known in zip(party.labels, party.known) if not known and label != -1]
    assert 0 < len(new) < sum((~party.known).sum() for party in made)
    assert {name: line["given"] for name, line in made.recall.items()} == {name: new.count(name) for name in "012"}
