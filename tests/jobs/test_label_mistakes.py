"""What the label job refuses, in a sentence: settings, names, and rows or labels that cannot be meant."""

from __future__ import annotations

import numpy as np
import pytest
from label_job import blobs, label

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.jobs.reading import party_names


def test_equal_stems_get_their_folder_in_front(tmp_path):
    for name in ("a/rows.csv", "b/rows.csv", "other.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert party_names([str(tmp_path / n) for n in ("a/rows.csv", "b/rows.csv", "other.csv")]) == ["a-rows", "b-rows", "other"]
    with pytest.raises(Mistake, match="given twice"):
        party_names([str(tmp_path / "other.csv"), str(tmp_path / "a" / ".." / "other.csv")])


@pytest.mark.parametrize(
    ("parties", "settings", "sentence"),
    [
        (blobs()[:1], {}, "1 party was given"),
        ([], {}, "0 parties were given"),
        ([], dict(label="y"), "0 parties were given"),
        (blobs(labelled=0), {}, "no party has a labelled row"),
        ([*blobs()[:2], (np.ones((4, 6)), [0, 1, -1, -1], [0, 1, 0, 1])], {}, "party-3 has 6 features and party-1 has 5"),
        ([*blobs()[:2], (np.ones((4, 5)), [0, 1, -1], [0, 1, 0, 1])], {}, "party-3 has 4 rows and 3 labels"),
        ([*blobs()[:2], (np.full((4, 5), np.nan), [0, 1, -1, 1], [0, 1, 0, 1])], {}, "party-3, row 1, column 1 is nan"),
        ([*blobs()[:2], (np.full((4, 5), -np.inf), [0, 1, -1, 1], [0, 1, 0, 1])], {}, "row 1, column 1 is -inf"),
        ([*blobs()[:2], ([["x"] * 5] * 4, [0, 1, -1, 1], [0, 1, 0, 1])], {}, "party-3: X is not a table of numbers"),
        ([*blobs()[:2], (np.ones((0, 5)), [], [])], {}, "give at least one row"),
        (blobs(), dict(secure="rot13"), "secure is rot13, which is not a known value: use mlwe, psm, paillier, ot or plain"),
        (blobs(), dict(bits=0), "bits is 0"),
        (blobs(), dict(alpha=1), "alpha is 1"),
        (blobs(), dict(neighbours=0), "neighbours is 0"),
        (blobs(), dict(neighbours="many"), "neighbours is many, which is not a whole number or auto"),
        (blobs(), dict(abstain=2), "abstain is 2"),
        (blobs(), dict(groups=2), "groups is 2, but 3 parties can form 1 to 1"),
        (blobs(), dict(scale="log"), "scale is log, which is not a known value: use auto, standard, one or none"),
        (blobs(), dict(neighbors=5), "label has no setting 'neighbors' (did you mean 'neighbours'?)"),
        (blobs(), dict(bits=2.5), "bits is 2.5, which is not a whole number"),
        (blobs(), dict(names=["a", "b", "a"]), "two parties are called 'a'"),
        (blobs(), dict(names=["a", "b", "../c"]), "without slashes"),
        (blobs(), dict(names=["a", "b", "messages.jsonl"]), "but the job writes a file of that name: rename the party"),
        (blobs(), dict(names=["a"]), "names has 1 entries for 3 parties"),
        (blobs(), dict(id="patient"), "id is for files, but the parties are arrays: leave it out, or give them as files."),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(parties, settings, sentence):
    with pytest.raises(Mistake) as told:
        label(parties, **settings)
    assert sentence in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("who", ["party-1", "the parties"])
def test_an_id_or_a_measurement_is_no_label(who):
    """It ran to the end, and 360 notes said that no row gets a class."""
    draw, n = np.random.default_rng(0), 150 if who == "party-1" else 15
    X = draw.normal(size=(n, 3))
    for kind in (lambda i: np.arange(n) + n * i, lambda i: [f"case-{i}-{j}" for j in range(n)],
                 lambda i: np.round(draw.uniform(9, 10.2 if n < 99 else 16, n), 2)):  # fmt: skip
        with pytest.raises(Mistake, match=f"{who}: .* labelled rows have .* different labels, .* Is this the label"):
            gv.label([(X, kind(i)) for i in range(2)], dry_run=True)
    labels = np.repeat(np.arange(n // 3 + 1), 3)[:n]
    gv.label([(X, labels), (X + 1, labels)], dry_run=True)  # classes of which a party has three labels
    codes = 1000 * np.arange(20)  # a party of many classes has one label of each
    gv.label([(X[:1].repeat(20, 0), codes), (X[:1].repeat(20, 0), codes), (X[:1].repeat(20, 0), codes)], dry_run=True)


def test_parties_from_files_are_called_as_their_files(tmp_path):
    with pytest.raises(Mistake, match="names is for arrays, but the parties are files: leave it out"):
        gv.label([tmp_path / "a.csv", tmp_path / "b.csv"], label="y", names=["north", "south"])


def test_a_table_under_two_paths_is_refused(tmp_path):
    """Only the same path was, so a copy counted as another party."""
    table = "id,a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 3},{i % 2 or ''}\n" for i in range(30))
    for name, text in dict(a=table, copy=table, b=table.replace("29,1,", "29,2,")).items():
        (tmp_path / f"{name}.csv").write_text(text)
    a, copy, b = (tmp_path / f"{name}.csv" for name in ("a", "copy", "b"))
    with pytest.raises(Mistake, match="a.csv and .*copy.csv hold the same rows with the same ids: name each party once"):
        gv.label([a, b, copy], label="y", dry_run=True)
    gv.label([a, b], label="y", dry_run=True)


@pytest.mark.parametrize("method", ["chorus", "xclp"])
def test_a_group_without_labels_is_named(method):
    parties = [(X, y if i % 2 else np.full_like(y, -1), t) for i, (X, y, t) in enumerate(blobs((20, 24, 18, 20)))]
    with pytest.raises(Mistake, match="no party of the group party-1, party-3 has a labelled row: label a few rows there"):
        label(parties, method=method, groups=2)


def test_what_a_party_notices_of_its_rows_is_a_mistake():
    rows = [(np.ones((20, 2)), np.arange(20) % 2) for _ in range(3)]
    with pytest.raises(Mistake, match="^no column is usable"):
        gv.label(rows, secure="plain")
