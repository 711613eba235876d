"""Files and frames that hold a table: every format gives the same table, and odd files a sentence."""

import datetime
import gzip

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from data_files import sentence

from grapevine.core.errors import Mistake
from grapevine.data.tables import column_names, read_table

TEXT = "age,city,seen,smokes,y\n30,Köln,2024-02-01,true,k\n41,Bonn,2024-03-01,false,\n52,,2024-04-01,true,m\n"
COLUMNS = dict(
    age=[30, 41, 52], city=["Köln", "Bonn", None], seen=[datetime.date(2024, m, 1) for m in (2, 3, 4)],
    smokes=[True, False, True], y=["k", None, "m"],
)  # fmt: skip


def write(path, form):
    if form == "csv":
        path.write_text(TEXT, encoding="utf-8")
    elif form == "csv.gz":
        path.write_bytes(gzip.compress(TEXT.encode()))
    elif form == "parquet":
        pa.parquet.write_table(pa.table(COLUMNS), path)
    elif form == "feather":
        pa.feather.write_feather(pa.table(COLUMNS), path)
    else:
        pd.DataFrame(COLUMNS).to_excel(path, index=False)
    return path


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "feather", "xlsx"])
def test_every_file_gives_the_same_table(tmp_path, form):
    same(read_table(write(tmp_path / f"t.{form}", form), label="y"))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_so_does_every_frame(make):
    same(read_table(make(COLUMNS), label="y"))


def same(table):
    assert table.names == ("age", "city", "seen", "seen:month", "seen:weekday", "seen:hour", "smokes")
    assert table.labels == ["k", None, "m"] and table.columns[1].values == ("Bonn", "Köln")
    days = (datetime.date(2024, 2, 1) - datetime.date(1970, 1, 1)).days
    np.testing.assert_array_equal(table.x[:, [0, 1, 2, 3, 6]], [[30, 1, days, 2, 1], [41, 0, days + 29, 3, 0],
                                                                [52, np.nan, days + 60, 4, 1]])  # fmt: skip


@pytest.mark.parametrize("encoding, note", [("latin-1", "Windows-1252"), ("utf-16", "UTF-16"), ("utf-8-sig", "")])
def test_encodings_are_found_and_named(tmp_path, encoding, note):
    path = tmp_path / "t.csv"
    path.write_text(TEXT, encoding=encoding)
    table = read_table(path, label="y")
    same(table)
    assert note in " ".join(table.notes) and bool(note) == bool(table.notes)


def test_spaces_around_names_go_and_a_column_without_a_name_is_not_used(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(" ; age ;y\n0;3;k\n1;4;m\n")
    table = read_table(path, label="y")
    assert table.names == ("age",) and table.unused == ("(column 1)",)
    assert read_table(path, label="y", features=["(column 1)"]).x[:, 0].tolist() == [0, 1]


def test_a_german_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("größe;umsatz;y\n1,80;1.200,50;k\n1,75;980;m\n", encoding="cp1252")
    assert read_table(path, label="y").x.tolist() == [[1.8, 1200.5], [1.75, 980]]


def test_the_first_sheet_of_a_workbook_is_read_and_that_is_said(tmp_path):
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame(dict(a=[1, "x"], y=["k", "m"])).to_excel(book, sheet_name="one", index=False)
        pd.DataFrame(dict(b=[1])).to_excel(book, sheet_name="two", index=False)
    table = read_table(tmp_path / "t.xlsx", label="y", categories=["a"])
    assert table.columns[0].values == ("1", "x") and "only the first sheet (one) is read, not two" in table.notes[0]
    assert column_names(tmp_path / "t.xlsx") == ["a", "y"]


def test_a_workbook_without_the_extra_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(Mistake, match=r"needs the excel extra: pip install 'grapevine-fl\[excel\]'"):
        read_table(write_raw(tmp_path / "t.xlsx", b"PK"))


def write_raw(path, data):
    path.write_bytes(data)
    return path


BAD = {
    "t.csv": [
        (b"\xff\xfea\x00b", "is not a text file"),
        (b"a,a,y\n1,2,k\n", "two columns named 'a'"),
        (b"a ,a,y\n1,2,k\n", "two columns named 'a'"),
        (b"a,y\n1,k\n2\n", "line 3: 1 cells under a header of 2 columns"),
        ("a,y\n1,ö\n".encode() + "2,ö\n".encode("latin-1"), "mixes UTF-8 and Latin-1"),
    ],
    "t.xlsx": [(b"PK no workbook", "not a valid Excel file")],
    "t.xls": [(b"\xd0\xcf", "old Excel format: save it as .xlsx")],
    "t.feather": [(b"no", "not a valid Feather file")],
    "t.csv.gz": [(b"a,y\n1,k\n", "not a valid .gz file")],
    "t.sas7bdat": [(b"x", "not a table that Grapevine can read: give a .csv")],
}


@pytest.mark.parametrize("name, data, words", [(name, *case) for name, cases in BAD.items() for case in cases])
def test_what_cannot_be_read_gets_a_sentence(tmp_path, name, data, words):
    with pytest.raises(Mistake) as error:
        read_table(write_raw(tmp_path / name, data), label="y")
    assert words in sentence(error) and name in str(error.value)
