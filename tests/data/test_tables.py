"""Tables and image folders: what is read, and the one sentence for each thing that can be wrong."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from data_files import sentence
from hypothesis import given
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.data.tables import (
    column_names,
    label_name,
    read_table,
    sort_names,
    spelling_warnings,
    write_csv,
)
from grapevine.data.together import check_same_columns


def file(tmp_path, text, name="clinic.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


GOOD = "patient,age,weight,finding\np1,61,80.5,benign\np2,47,70,\np3,55,1e2,malign\n"


def test_csv(tmp_path):
    table = read_table(file(tmp_path, GOOD), label="finding", id="patient")
    assert (table.path.stem, table.ids, table.names) == ("clinic", ["p1", "p2", "p3"], ("age", "weight"))
    assert table.labels == ["benign", None, "malign"] and table.truth is None and len(table) == 3
    np.testing.assert_array_equal(table.x, [[61, 80.5], [47, 70], [55, 100]])


def test_features_truth_and_other_columns(tmp_path):
    path = file(tmp_path, "a,b,c,y,real,site\n1,2,3,x,x,A\n4,5,6,,z,B\n")
    table = read_table(path, label="y", truth="real", features=["c", "a"], other=["site"])
    np.testing.assert_array_equal(table.x, [[3, 1], [6, 4]])
    assert table.names == ("c", "a") and table.labels == ["x", None] and table.truth == ["x", "z"]
    assert table.other == {"site": ["A", "B"]} and table.ids == ["1", "2"]


def test_a_column_named_id_holds_ids_not_features(tmp_path):
    table = read_table(file(tmp_path, "id,a\n007,1\n8,2\n"))
    assert table.ids == ["007", "8"] and table.names == ("a",) and table.labels == [None, None]
    assert read_table(file(tmp_path, "id,a\n7,1\n"), features=["id", "a"]).names == ("id", "a")


def test_semicolons_tabs_byte_order_mark_and_quoted_cells(tmp_path):
    for text in ("a;b;y\n1;2;k\n", "\ufeffa\tb\ty\n1\t2\tk\n", 'a,b,"y"\n"1",2,k\n'):
        table = read_table(file(tmp_path, text), label="y")
        assert table.names == ("a", "b") and table.labels == ["k"] and table.x.tolist() == [[1, 2]]


def test_integers_and_later_fractions_in_a_long_column(tmp_path):
    """A reader that guesses types from the first block fails here: whole numbers for megabytes, then a fraction."""
    path = tmp_path / "long.csv"
    n = 300_000
    path.write_text("a,y\n" + "12,3\n" * n + "0.5,3\n")
    table = read_table(path, label="y")
    assert table.x[-1, 0] == 0.5 and len(table) == n + 1 and set(table.labels) == {"3"}


@pytest.mark.parametrize(
    "cell", [None, float("nan"), "", "  ", "nan", "NaN", -1, -1.0, "-1", "-1.0", "NA", "n/a", "null", "None", "?", "-"]
)
def test_not_labelled(cell):
    assert label_name(cell) is None


@pytest.mark.parametrize(
    "cell, name", [(3, "3"), (3.0, "3"), ("3.0", "3"), ("3", "3"), ("1.5", "1.5"), (0, "0"), ("NAN-1", "NAN-1")]
)
def test_label_names(cell, name):
    assert label_name(cell) == name


def parquet(path, **columns):
    pa.parquet.write_table(pa.table(columns), path)
    return path


def test_parquet(tmp_path):
    path = parquet(tmp_path / "a.parquet", id=[10, 11], a=[1, 2], b=pa.array([0.5, 1.5], pa.float32()), y=[3.0, None])
    table = read_table(path, label="y")
    assert table.ids == ["10", "11"] and table.labels == ["3", None] and table.names == ("a", "b")
    np.testing.assert_array_equal(table.x, [[1, 0.5], [2, 1.5]])


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.array([0, -1, 2]))
    table = read_table(tmp_path / "a.npz", label="anything")
    assert table.labels == ["0", None, "2"] and table.names == ("x0", "x1") and table.ids == ["1", "2", "3"]
    np.testing.assert_array_equal(table.x, [[0, 1], [2, 3], [4, 5]])
    np.savez(tmp_path / "b.npz", X=np.ones((2, 2, 2)), y=np.array(["cat", ""]), id=np.array(["u", "v"]), columns=list("pqrs"))
    table = read_table(tmp_path / "b.npz", label="y", features=["s", "p"])
    assert table.labels == ["cat", None] and table.ids == ["u", "v"] and table.names == ("s", "p")
    assert column_names(tmp_path / "b.npz") == ["X", "y", "id", "columns"]


def test_impute_leaves_nan_for_missing_and_infinite(tmp_path):
    path = file(tmp_path, "a,b,y\n1,,k\ninf,2,k\nNA,3,k\n")
    table = read_table(path, label="y", impute=True)
    np.testing.assert_array_equal(table.x, [[1, np.nan], [np.nan, 2], [np.nan, 3]])
    assert table.missing == dict(a={"NA": 1, "infinite": 1}, b={"": 1})  # what is filled is said


BAD = {
    "empty": ("", {}, ["is empty"]),
    "only a header": ("a,y\n", {}, ["no rows"]),
    "label column missing": ("age,Finding\n1,k\n", dict(label="finding"), ["no column 'finding'", "'Finding'?", "age, Finding"]),
    "id column missing": ("age,y\n1,k\n", dict(label="y", id="patient"), ["no column 'patient'"]),
    "text in a feature": ("a,b,y\n1,2,k\n\n3,tall,k\n", {}, ["line 4", "column 'b'", "'tall'"]),
    "missing feature": ("a,b,y\n1,2,k\n3,,k\n", {}, ["line 3", "column 'b'", "missing", "--impute"]),
    "infinite feature": ("a,b,y\n1,2,k\n-inf,1,k\n", {}, ["line 3", "column 'a'", "infinite"]),
    "quoted line break before": ('a,b,y\n1,2,"k\nk"\n3,,k\n', {}, ["line 4", "column 'b'"]),
    "duplicate ids": ("id,a,y\np,1,k\nq,1,k\np,1,k\n", {}, ["line 4", "'p'", "line 2"]),
    "empty id": ("id,a,y\np,1,k\n,1,k\n", {}, ["line 3", "id is empty"]),
    "no feature columns": ("id,y\np,k\n", {}, ["no feature columns", "'id', 'y'"]),
    "label as feature": ("a,y\n1,2\n", dict(label="y", features=["a", "y"]), ["'y'", "--features"]),
    "ragged": ("a,b,y\n1,2,k\n1,2\n", {}, ["line 3", "2 cells", "3 columns"]),
    "same name twice": ("a,a,y\n1,2,k\n", {}, ["two columns named 'a'"]),
    "no header": ("1,2,3\n4,5,6\n", {}, ["header line"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_csv(tmp_path, case):
    text, options, words = BAD[case]
    path = file(tmp_path, text)
    with pytest.raises(Mistake) as error:
        read_table(path, **(options or dict(label="y")))
    assert all(word in sentence(error) for word in [str(path), *words])


def test_bad_files(tmp_path):
    cases = [
        (tmp_path / "clinik.csv", ["no file", "did you mean 'clinic.csv'?"]),
        (tmp_path, ["is a folder"]),
        (file(tmp_path, "not parquet", "a.parquet"), ["not a valid Parquet"]),
        (file(tmp_path, "not a zip", "a.npz"), ["not a valid NPZ"]),
        (file(tmp_path, "a,y\n1,k\n", "a.xlsx"), ["not a valid Excel"]),
        (file(tmp_path, "a,y\n1,k\n", "a.xls"), ["old Excel format", ".xlsx"]),
        (file(tmp_path, "a,y\n1,k\n", "a.json"), ["not a table that Grapevine can read"]),
        (file(tmp_path, "a,y\n1,k\n", "a.feather"), ["not a valid Feather"]),
        (file(tmp_path, "a,y\n1,k\n", "a.csv.gz"), ["not a valid .gz"]),
    ]
    file(tmp_path, GOOD)
    (tmp_path / "mixed.csv").write_bytes("größe,y\n1,k\n".encode() + "2,grün\n".encode("latin-1"))
    for path, words in [*cases, (tmp_path / "mixed.csv", ["mixes UTF-8 and Latin-1"])]:
        with pytest.raises(Mistake) as error:
            read_table(path, label="y")
        assert all(word in sentence(error) for word in [str(path), *words])


def test_bad_parquet(tmp_path):
    path = parquet(tmp_path / "a.parquet", a=["1", "low"], y=["k", "k"])
    with pytest.raises(Mistake, match="row 2, column 'a': 'low' is not a number"):
        read_table(path, label="y")
    path = parquet(tmp_path / "b.parquet", a=[1.0, None], y=["k", "k"])
    with pytest.raises(Mistake, match="row 2, column 'a': the value is missing"):
        read_table(path, label="y")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Mistake, match="not a valid Parquet"):
        read_table(path, label="y")


def test_bad_npz(tmp_path):
    path = tmp_path / "a.npz"
    cases = [
        (dict(y=[1]), "no array 'X'"),
        (dict(X=np.ones((2, 2)), y=np.array([1])), r"'y' has shape \(1,\) but 'X' has 2 rows"),
        (dict(X=np.ones((0, 2)), y=np.ones(0)), "no rows"),
        (dict(X=np.ones((2, 2))), "no array 'y'"),
        (dict(X=np.array([["a"]]), y=[1]), "'X' holds"),
        (dict(X=np.ones((1, 2)), y=[1], columns=["a"]), "1 names for the 2 columns"),
        (dict(X=np.array([[1, np.nan]]), y=[1]), "row 1, column 'x1': the value is missing"),
        (dict(X=np.array([[1, object()]]), y=[1]), "'X' cannot be read"),
    ]
    for arrays, words in cases:
        np.savez(path, **arrays)
        with pytest.raises(Mistake, match=words) as error:
            read_table(path, label="y")
        sentence(error)
    np.save(tmp_path / "single", np.ones(3))
    (tmp_path / "single.npy").rename(path)
    with pytest.raises(Mistake, match="single array"):
        read_table(path, label="y")


def party(tmp_path, name, text):
    return read_table(file(tmp_path, text, name), label="y")


def test_same_columns_are_brought_into_one_order(tmp_path):
    a, b = party(tmp_path, "a.csv", "p,q,y\n1,2,k\n"), party(tmp_path, "b.csv", "q,p,y\n3,4,k\n")
    a, b = check_same_columns([a, b])
    assert b.names == a.names == ("p", "q") and b.x.tolist() == [[4, 3]]


@pytest.mark.parametrize("text, words", [("p,y\n1,k\n", "lacks column 'q'"), ("p,q,r,y\n1,2,3,k\n", "has column 'r'")])
def test_different_columns(tmp_path, text, words):
    with pytest.raises(Mistake) as error:
        check_same_columns([party(tmp_path, "a.csv", "p,q,y\n1,2,k\n"), party(tmp_path, "b.csv", text)])
    assert words in sentence(error) and "a.csv" in str(error.value) and "b.csv" in str(error.value)


def test_names_are_sorted_as_numbers_if_they_are_numbers():
    assert sort_names({"10", "9", "100"}) == ["9", "10", "100"] and sort_names(["b", "10", "9"]) == ["10", "9", "b"]


def test_class_names_in_two_spellings_are_warned_about():
    (sentence,) = spelling_warnings(["Melanoma", "melanoma ", "nevus"])
    assert "'Melanoma' and 'melanoma '" in sentence
    assert spelling_warnings(["basal cell", "basal-cells"]) == []


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=8)


@given(rows=st.lists(st.tuples(CELLS, st.floats(-1e15, 1e15)), min_size=1, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    notes, values = [note for note, _ in rows], [value for _, value in rows]
    write_csv(path, {"note": notes, "value": values})
    table = read_table(path, label="note")
    assert table.x[:, 0].tolist() == values and table.labels == [label_name(note) for note in notes]


def test_write_csv_leaves_nothing_half_written(tmp_path):
    path = tmp_path / "labels.csv"
    write_csv(path, {"id": ["a"], "label": [None]})
    assert list(csv.reader(path.read_text().splitlines())) == [["id", "label"], ["a", ""]]

    class Broken:
        def __str__(self):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError):
        write_csv(path, {"id": ["b", Broken()]})
    with pytest.raises(ValueError):
        write_csv(path, {"id": ["b"], "label": []})
    assert path.read_text() == "id,label\na,\n" and list(tmp_path.iterdir()) == [path]


def test_no_code_runs_from_a_file(tmp_path):
    """An NPZ whose array is a pickle is refused, not loaded."""
    np.savez(tmp_path / "a.npz", X=np.ones((1, 1)), y=np.array([{"a": 1}], dtype=object))
    with pytest.raises(Mistake, match="Python objects"):
        read_table(tmp_path / "a.npz", label="y")
