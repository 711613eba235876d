"""Tables of several parties: one kind for a column everywhere, and sentences on what looks wrong."""

import numpy as np
import pandas as pd
import pytest

from grapevine.core.errors import Mistake
from grapevine.data.columns import Layout, agree
from grapevine.data.tables import Columns, read_table
from grapevine.data.together import described, doubts, read_together, same_as_label


def together(*frames, **asked):
    names = [f"p{i + 1}" for i in range(len(frames))]
    return read_together(frames, [Columns(**asked)] * len(frames), names)


def test_codes_in_one_table_and_text_in_another_are_categories_in_both():
    a, b = together(pd.DataFrame(dict(c=[1, 2, 1])), pd.DataFrame(dict(c=["1", "x", "y"])))
    assert a.columns[0].values == ("1", "2") and b.columns[0].values == ("1", "x", "y") and a.x[:, 0].tolist() == [0, 1, 0]


def test_an_empty_column_is_what_it_is_elsewhere():
    dates = pd.DataFrame(dict(c=["2024-01-01", "2024-01-02"]))
    a, b = together(pd.DataFrame(dict(c=[None, "NA"])), dates, impute=True)
    assert a.names == b.names == ("c", "c:month", "c:weekday", "c:hour") and np.isnan(a.x).all()
    a, b = together(pd.DataFrame(dict(c=["", "NA"])), pd.DataFrame(dict(c=["x", "y"])))
    assert a.columns[0].kind == "category" and a.columns[0].values == ()


@pytest.mark.parametrize(
    "one, other, words",
    [
        ([1.5, 2], ["low", "high"], "column 'c' holds numbers in p1 and text in p2"),
        (["2024-01-01"], ["soon"], "column 'c' holds dates in p1 and text in p2"),
        (["2024-01-01"], [3], "column 'c' holds dates in p1 and numbers in p2"),
    ],
)
def test_columns_that_do_not_go_together(one, other, words):
    with pytest.raises(Mistake, match=words):
        together(pd.DataFrame(dict(c=one)), pd.DataFrame(dict(c=other)))


def warned(**columns):
    """Of two parties; a column is one list for both, or a list for each."""
    pairs = [{name: values[i] if isinstance(values, tuple) else values for name, values in columns.items()} for i in (0, 1)]
    return doubts(together(*(pd.DataFrame(pair) for pair in pairs)), ["p1", "p2"])


def test_warnings():
    ages = [30.0, 41, 52, 44, 39, 61]
    assert warned(a=ages) == []
    assert "column 'a' is 3 in every row" in warned(a=[3, 3], b=[1, 2])[0]
    assert "column 'a' is 'x' in every row" in warned(a=["x", "x"], b=[1, 2])[0]
    (said,) = warned(a=(ages, [1000 * age for age in ages]))[1:]
    assert "1000 times larger in p2" in said
    (said,) = warned(a=([*ages, 1e9], ages))
    assert "column 'a' of p1 holds 1e+09, where most values are near 44" in said and "--missing" in said
    (said,) = warned(a=list(range(100, 130)))
    assert "looks like an id in p1 (30 rows, no two alike)" in said and "--id a" in said
    assert warned(a=list(range(100, 400, 10))) == []  # no two alike, yet neither in sequence nor called so
    assert "looks like an id" in warned(case_id=list(range(100, 400, 10)))[0]


def test_what_was_read_is_said():
    frame = pd.DataFrame(
        dict(a=["1", "NA", "?"] * 5, c=["x", "y", "-"] * 5, note=list("abcdefghijklmno"), y=["k", "NA", ""] * 5, u=1)
    )
    tables = [read_table(frame, label="y", features=["a", "c", "note"], impute=True)] * 2
    lines = described(tables, agree([(t.x, t.columns) for t in tables], True), ["north", "south"], "y", True)
    used, left = (
        "Columns: 1 number: a; 1 category: c (2 values).",
        "u (not asked for), note (text, and no value occurs in 10 rows)",
    )
    assert lines[0] == f"{used} Left out: {left}."
    hosted = described(tables[:1], Layout(tables[0].columns, raw=True), ["north"], "y", True)[0]
    assert "c (2 values, none in 10 rows: left out unless other parties have the same)" in hosted  # each in five
    assert lines[1] == "north: 15 rows, 10 without a label (5 NA, 5 empty)."
    assert lines[2] == "north: missing values in a (5 NA, 5 ?, filled with the mean), c (5 -)."


def test_a_column_that_alone_says_the_label_is_told():
    """Without --truth the true labels became a feature, and nothing was said."""
    y = ["k", "m", "n", None] * 8

    def told(n=32, **columns):
        frames = [pd.DataFrame({name: values[part] for name, values in dict(columns, y=y).items()})
                  for part in (slice(0, n // 2), slice(n // 2, n))]  # fmt: skip
        return list(same_as_label(together(*frames, label="y", impute=True)))

    truth, other = ["k", "m", "n", "k"] * 8, [float(i % 7) + 0.5 for i in range(32)]
    (said,) = told(truth=truth, other=other)
    assert said.startswith(
        "column 'truth' alone says the label of all 24 labelled rows: if it is the truth, it belongs in --truth"
    )
    assert len(told(code=[1, 2, 3, 9] * 8, other=other)) == 1  # whole numbers, and four values where no row has a label
    assert told(case=list(range(32)), other=other) == []  # an id
    assert told(truth=["k", "k", "n", "k"] * 8, other=other) == []  # one value, two labels
    assert told(truth=[*truth[:30], None, "k"], other=other) == []  # a labelled row without a value
    assert told(code=["a", "b", "c", "a"] * 4 + ["b", "c", "d", "b"] * 4, other=other) == []  # "b" is m, then k
    assert told(n=24, code=[1, 2, 3, 9] * 8, other=other) == []  # 18 labelled rows
