"""What the cells of a column mean, with every value worked out by hand."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from grapevine.core.errors import Mistake
from grapevine.data.cells import Reader, decimal_mark

NAN = np.nan


def column(values, **asked):
    return Reader("t.csv", lambda row: f"line {row + 2}", **asked).column("c", pa.chunked_array([pa.array(values)]))


def test_missing_words_are_counted_as_they_were_written():
    read = column(["1", " NA", "na", "N/A", "?", "-", "", "None", "null", "2.5 "])
    np.testing.assert_array_equal(read.x[:, 0], [1, *[NAN] * 8, 2.5])
    assert read.missing == {"NA": 1, "na": 1, "N/A": 1, "?": 1, "-": 1, "": 1, "None": 1, "null": 1}


def test_words_of_ones_own():
    read = column(["1", "unknown", "-999"], missing=("unknown", "-999"))
    np.testing.assert_array_equal(read.x[:, 0], [1, NAN, NAN])
    np.testing.assert_array_equal(column([1.0, -999.0], missing=("-999",)).x[:, 0], [1, NAN])


@pytest.mark.parametrize(
    "values, decimal, numbers",
    [
        (["1,5", "-0,25", "2"], "comma", [1.5, -0.25, 2]),
        (["1.234,5", "1.234", "12"], "comma", [1234.5, 1234, 12]),
        (["1,234.5", "1,234,567", "12"], "point", [1234.5, 1234567, 12]),
        (["1 234,5", "1\u00a0234", "1'234"], "comma", [1234.5, 1234, 1234]),
        (["+3", "1e3", ".5"], "point", [3, 1000, 0.5]),
        (["true", "FALSE", "True"], "point", [1, 0, 1]),
    ],
)
def test_numbers_as_people_write_them(values, decimal, numbers):
    read = column(values, decimal=decimal)
    assert read.columns[0].kind == "number" and read.x[:, 0].tolist() == numbers


@pytest.mark.parametrize(
    "values, decimal, cell",
    [
        (["38.4", "37", "36.9"], "comma", "38.4"),
        (["12", "14", "0.5", "low"], "comma", "0.5"),
        (["37", "38,4"], "point", "38,4"),
    ],
)
def test_numbers_with_the_other_mark_than_was_said_are_refused(values, decimal, cell):
    """They silently became text."""
    other = "comma" if decimal == "point" else "point"
    with pytest.raises(Mistake, match=f"'{cell}' is not a number with a decimal {decimal}, use --decimal {other}"):
        column(values, decimal=decimal, said=True)


@pytest.mark.parametrize(
    "values, asked",
    [
        (["a 1.5", "b", "c"], dict(decimal="comma", said=True)),
        (["1.5", "unclear", "pending", "see 2"], dict(decimal="comma", said=True)),
        (["1.2.3", "1.2", "1.10.0"], dict(decimal="comma", said=True)),
        (["38.4", "37.1"], dict(decimal="comma", said=True, kinds=dict(c="category"))),
        (["1,3", "2,4"], dict(decimal="point")),  # lists of answers, where nobody named a mark
    ],
)
def test_text_with_some_numbers_in_it_is_still_text(values, asked):
    assert column(values, **asked).columns[0].kind == "category"


@pytest.mark.parametrize(
    "columns, mark",
    [
        (dict(a=["1,5"], b=["1.234"]), "comma"),  # so 1.234 is a thousand and more
        (dict(a=["0,123"]), "comma"),
        (dict(a=["1,234", "1,234,567"]), "point"),
        (dict(a=["1,234", "9,5"]), "comma"),
        (dict(a=["Rome, Italy"], b=["1.5"]), "point"),
    ],
)
def test_the_decimal_mark_of_a_file(columns, mark):
    assert decimal_mark("t.csv", {name: pa.array(values) for name, values in columns.items()}) == mark


@pytest.mark.parametrize(
    "columns, words",
    [
        (dict(a=["1,234"]), "'1,234' could have .* use --decimal"),
        (dict(a=["1,5"], b=["12.5"]), "comma in '1,5' .column 'a'. and a decimal point in '12.5' .column 'b'"),
        (dict(a=["1,5", "1,234.5"]), "'1,5' .* '1,234.5'"),
    ],
)
def test_an_unclear_decimal_mark_is_asked_about(columns, words):
    with pytest.raises(Mistake, match=words):
        decimal_mark("t.csv", {name: pa.array(values) for name, values in columns.items()})


def test_categories():
    read = column(["b", "a", " b", "", "a b"])
    assert read.columns[0].kind == "category" and read.columns[0].values == ("a", "a b", "b")
    np.testing.assert_array_equal(read.x[:, 0], [2, 0, 2, NAN, 1])
    codes = column([3.0, 1.0, None], kinds={"c": "category"})
    assert codes.columns[0].values == ("1", "3") and codes.missing == {"": 1}
    assert column(["True", "FALSE", "maybe"]).columns[0].values == ("false", "maybe", "true")


DAY = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days


@pytest.mark.parametrize(
    "value, hours",
    [("2024-02-29", 0), ("2024-02-29T06:00", 6), ("29.02.2024", 0), ("29/02/2024", 0), ("02/29/2024", 0), ("2024/2/29", 0)],
)
def test_dates(value, hours):
    read = column([value, "NA"])
    assert [c.name for c in read.columns] == ["c", "c:month", "c:weekday", "c:hour"] and {c.kind for c in read.columns} == {
        "date"
    }
    np.testing.assert_array_equal(read.x, [[DAY + hours / 24, 2, 3, hours], [NAN] * 4])  # a Thursday


def test_typed_dates_are_the_same():
    np.testing.assert_array_equal(column([datetime.date(2024, 2, 29), None]).x, column(["2024-02-29", ""]).x)
    assert column([None, ""], kinds={"c": "date"}).x.shape == (2, 4)


@pytest.mark.parametrize(
    "values, words",
    [
        (["1", "2", "tall"], "line 4, column 'c': 'tall' is not a number"),
        (["2024-01-01", "2024-01-02", "soon"], "line 4, column 'c': 'soon' is not a date"),
        (["2023-02-29"], "'2023-02-29' is no day of the calendar"),
        (["03/04/2024"], "'03/04/2024' can be read day first or month first"),
        ([[1], [2]], "holds list"),
    ],
)
def test_cells_that_cannot_be_used(values, words):
    with pytest.raises(Mistake, match=words):
        column(values)


@pytest.mark.parametrize(
    "values, kind", [(["x", "y"], "number"), (["x", "y"], "date"), ([1.0], "date"), (["2024-01-01"], "number")]
)
def test_a_column_that_is_not_what_was_agreed(values, kind):
    with pytest.raises(Mistake, match=f"is not a {kind}"):
        column(values, kinds={"c": kind})
