"""Columns and their encoding, against matrices written out by hand."""

import numpy as np

from grapevine.data.columns import CATEGORY, DATE, Column, Layout, agree, counts, encode, names, pool_rare, worth_naming

NAN = np.nan
COLUMNS = (Column("age"), Column("city", CATEGORY, ("Bonn", "Köln", "Ulm")), Column("visit", DATE))
X = np.array([[30, 0, 5], [NAN, 2, 6], [50, NAN, 7], [60, 1, NAN]])


def test_one_hot_over_agreed_values_with_the_rest_pooled():
    made = encode(X, COLUMNS, {"city": ("Köln", "Rom")})
    np.testing.assert_array_equal(made, [[30, 0, 0, 1, 5], [NAN, 0, 0, 1, 6], [50, 0, 0, 0, 7], [60, 1, 0, 0, NAN]])
    assert names(COLUMNS, {"city": ("Köln", "Rom")}) == ("age", "city=Köln", "city=Rom", "city=other", "visit")


def test_indicators_say_where_a_number_is_missing():
    made = encode(X, COLUMNS, {"city": ()}, ("age", "visit"))
    np.testing.assert_array_equal(made[:, 2:], [[0, 0], [1, 0], [0, 0], [0, 1]])
    assert names(COLUMNS, {}, ("age", "visit")) == ("age", "visit", "age missing", "visit missing")


def test_two_parties_with_other_lists_of_values_encode_the_same_way():
    """The same city is number 1 for one party and number 0 for the other."""
    other = (COLUMNS[0], Column("city", CATEGORY, ("Köln",)), COLUMNS[2])
    agreed = {"city": ("Bonn", "Köln")}
    np.testing.assert_array_equal(encode(X[3:], COLUMNS, agreed)[:, 1:4], [[0, 1, 0]])
    np.testing.assert_array_equal(encode(np.array([[1.0, 0, 1]]), other, agreed)[:, 1:4], [[0, 1, 0]])


def test_rare_values_are_not_named():
    assert counts(X, COLUMNS) == {"city": {"Bonn": 1, "Köln": 1, "Ulm": 1}}
    assert pool_rare({"city": {"b": 10, "a": 9, "c": 11}}) == {"city": ("b", "c")}
    assert pool_rare({"city": {"b": 1, "a": 2}}, least=1) == {"city": ("a", "b")}


def test_a_value_that_is_not_rare_over_all_parties_is_named_by_one_of_them():
    """By counting alone: ten rows among three parties are at least four at one of them."""
    assert worth_naming({"a": 3, "b": 4, "c": 40}, 3, 9) == ["c", "b"]
    assert worth_naming({"a": 3, "b": 4, "c": 40}, 3, 1) == ["c"] and worth_naming({"b": 1, "a": 1}, 10, 1) == ["a"]
    draw, values = np.random.default_rng(0), [f"value {i}" for i in range(200)]
    for parties in (2, 3, 7, 12):
        own = [dict(zip(values, draw.integers(0, 20 // parties + 2, len(values)).tolist())) for _ in range(parties)]
        total = {value: sum(found[value] for found in own) for value in values}
        named = {value for found in own for value in worth_naming(found, parties, len(values))}
        assert set(pool_rare({"x": total})["x"]) <= named
        assert any(n < 10 for n in total.values()) and any(n >= 10 for n in total.values())


def test_a_layout_over_two_tables():
    """Each has a value five times, together ten times; age is missing in one of them only."""
    tables = [(np.tile([[1.0, 0, 3]], (5, 1)), COLUMNS), (np.tile([[NAN, 0, 3]], (5, 1)), COLUMNS)]
    layout = agree(tables, impute=True)
    assert layout.agreed == {"city": ("Bonn",)} and layout.indicators == ("age",)
    assert layout.names == ("age", "city=Bonn", "city=other", "visit", "age missing")
    np.testing.assert_array_equal(layout.encode(*tables[1])[0], [NAN, 1, 0, 3, 1])
    assert agree(tables, impute=False).indicators == ()
    assert Layout.from_dict(layout.to_dict()) == layout


def test_a_date_is_one_column_of_the_file():
    parts = (Column("when", DATE), Column("when:month", DATE, of="when"), Column("b"))
    layout = agree([(np.array([[NAN, NAN, 1.0]]), parts)], impute=True)
    assert layout.sources == ("when", "b") and layout.kinds == {"when": DATE, "b": "number"} and layout.indicators == ("when",)
