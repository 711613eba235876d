"""Cells that a spreadsheet would run: text in every CSV file that is written, and themselves again when it is read."""

import csv
import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.data.sheets import csv_text, quoted, read_text_columns, unquoted
from grapevine.data.tables import read_table, write_csv
from grapevine.jobs.compare_table import as_csv

ATTACKS = [
    '=HYPERLINK("http://a.example","x")',
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1+1",
    "-",
    "=",
    "+ve",
    "-inf",
    "-0x1",
]
RUN = tuple("=+-@\t\r＝＋－＠")


@pytest.mark.parametrize("cell", ATTACKS)
def test_what_a_spreadsheet_would_run_is_text(cell):
    assert quoted(cell).startswith("'") and unquoted(quoted(cell)) == cell


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("before", ["", "a", "'", "a;", "a\t", "a|", "a\n", 'a";', ";'"])
@pytest.mark.parametrize("attack", ["=1+1", "@a", "+1-1"])
def test_nor_is_it_run_by_a_spreadsheet_that_expects_another_separator(before, attack, delimiter):
    """In half of Europe a CSV file is split at semicolons, and quotation marks count only at the start of a cell."""
    text = csv_text(["id", "label"], [["1", f"{before}{attack}"]])
    cells = [cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) for cell in row]
    assert not any(cell.startswith(RUN) for cell in cells)


@pytest.mark.parametrize(
    "cell", ["-1", "+2", "-0.25", "-1e-05", "-.5", -3, -0.5, 7, None, "plain", "a-b", "it's", "'s", "2020-01-01"]
)
def test_numbers_and_plain_words_stay_as_they_are(cell):
    assert quoted(cell) == cell and (not isinstance(cell, str) or unquoted(cell) == cell)


@settings(deadline=None)
@given(st.text(st.sampled_from("=+-@'\t\r\n,;|＝1a.\""), max_size=12))
def test_reading_undoes_it(cell):
    assert unquoted(quoted(cell)) == cell


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("=+-@',;|1a\""), min_size=1, max_size=6), min_size=1, max_size=4, unique=True))
def test_both_readers_of_files_undo_it(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("csv") / "labels.csv"
    write_csv(path, {"=id": cells, "x": list(range(len(cells)))})
    assert read_text_columns(path, ["=id"])["=id"] == cells
    assert list(read_table(path, id="=id", label=None).ids) == cells


def test_nobody_else_reads_what_rows_are(tmp_path):
    before = os.umask(0)
    try:
        write_csv(tmp_path / "labels.csv", {"id": ["1"]})
    finally:
        os.umask(before)
    assert (tmp_path / "labels.csv").stat().st_mode & 0o777 == 0o600


def test_a_comparison_quotes_too():
    text = as_csv([dict(method="=m", accuracy=-0.5, best=True, errors=["@x", "-y"])])
    assert list(csv.reader(io.StringIO(text)))[1] == ["'=m", "-0.5", "1", "'@x; -y"]
