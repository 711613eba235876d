import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.data import labels
from grapevine.data.labels import LabelSetting, parse_labels


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "text, meant",
    [
        ("all", LabelSetting(everything=True)),
        ("clients:all", LabelSetting(everything=True)),
        ("clients:1000", LabelSetting(n=1000)),
        ("clients:1000/50", LabelSetting(n=1000, on=50)),
        ("clients:1000~5", LabelSetting(n=1000, of_classes=5)),
        ("clients:1000/50~5", LabelSetting(n=1000, on=50, of_classes=5)),
        ("fraction:0.1", LabelSetting(fraction=0.1)),
        ("fraction:1", LabelSetting(fraction=1.0)),
        ("server:500", LabelSetting(server=500)),
        ("server:500,clients:all", LabelSetting(server=500, everything=True)),
        ("server:500,all", LabelSetting(server=500, everything=True)),
        ("server:500,clients:200/4~2", LabelSetting(server=500, n=200, on=4, of_classes=2)),
        ("server:500,fraction:0.2", LabelSetting(server=500, fraction=0.2)),
        ("server:500@0-7", LabelSetting(server=500, server_classes=tuple(range(8)))),
        ("server:500@0,2,5", LabelSetting(server=500, server_classes=(0, 2, 5))),
        ("server:500@0+2+5", LabelSetting(server=500, server_classes=(0, 2, 5))),
        ("server:9@5,0-2,clients:20", LabelSetting(server=9, server_classes=(0, 1, 2, 5), n=20)),
    ],
)
def test_grammar(text, meant):
    assert parse_labels(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "none", "clients", "clients:", "clients:x", "clients:10/", "clients:10~", "clients:1.5", "fraction:", "server:",
     "server:5@", "server:5,", "server:5@1,", "clients:5,server:5", "server:5,server:5", "clients:10~2/5", "all,clients:5"],
)  # fmt: skip
def test_unknown_words_get_the_grammar(text):
    with pytest.raises(Mistake, match=r"clients:1000/50.*fraction:0\.1.*server:500@0-7"):
        parse_labels(text)


@pytest.mark.parametrize(
    "text, says",
    [
        ("clients:0", "at least 1"),
        ("clients:-5", "at least 1"),
        ("clients:10/0", "at least 1"),
        ("clients:10~0", "at least 1"),
        ("clients:10/20", "10 labels cannot be spread over 20 clients"),
        ("server:0", "at least 1"),
        ("server:-3,clients:all", "at least 1"),
        ("fraction:0", "above 0"),
        ("fraction:1.5", "at most 1"),
        ("fraction:-0.1", "above 0"),
        ("server:5@7-0", "@0-7 or @0\\+2\\+5"),
        ("server:5@1--3", "@0-7 or @0\\+2\\+5"),
    ],
)
def test_numbers_out_of_range(text, says):
    with pytest.raises(Mistake, match=says):
        parse_labels(text)


def test_where_labels_are():
    assert (parse_labels("server:5").at_server, parse_labels("server:5").at_clients) == (True, False)
    assert (parse_labels("fraction:0.5").at_server, parse_labels("fraction:0.5").at_clients) == (False, True)
    both = parse_labels("server:5,clients:9")
    assert both.at_server and both.at_clients


@given(st.lists(st.integers(0, 12), min_size=1, max_size=10), st.data())
def test_fill_is_as_equal_as_the_room_allows(room, data):
    room = np.array(room)
    n = data.draw(st.integers(0, int(room.sum())))
    counts = labels.fill(n, room, rng(n))
    assert counts.sum() == n and (counts <= room).all() and (counts >= 0).all()
    not_full = counts[counts < room]
    if len(not_full):  # nobody has two more than somebody who still had room
        assert counts.max() <= not_full.min() + 1


def test_fill_prefers_who_has_least():
    assert labels.fill(5, np.full(4, 9), rng(), has=np.array([3, 0, 3, 3])).tolist() == [1, 2, 1, 1]


def test_fill_refuses_too_many():
    with pytest.raises(ValueError):
        labels.fill(4, np.array([1, 2]), rng())


def test_five_of_ten_classes_a_client_each_class_on_half_the_clients():
    mask = labels.choose_classes(np.ones((100, 10), dtype=bool), 5, rng(1))
    assert (mask.sum(1) == 5).all() and (mask.sum(0) == 50).all()
    pairs = np.array([(mask.T.astype(int) @ mask.astype(int))[a, b] for a in range(10) for b in range(a)])
    # Random sets of 5 of 10 hold a given pair with probability 2/9; ± 5 standard deviations of 100 draws.
    assert np.abs(pairs - 100 * 2 / 9).max() < 5 * np.sqrt(100 * 2 / 9 * 7 / 9)
    sets = {tuple(row) for row in mask.tolist()}
    assert len(sets) > 70  # 252 · (1 − (251/252)^100) ≈ 83 expected of independent draws


@given(st.integers(1, 15), st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_chosen_classes_are_held(m, classes, k, seed):
    holds = rng(seed).random((m, classes)) < 0.6
    mask = labels.choose_classes(holds, k, rng(seed + 1))
    assert not (mask & ~holds).any()
    assert (mask.sum(1) == np.minimum(k, holds.sum(1))).all()


def test_labels_divide_exactly_where_they_can():
    assert (labels.label_counts(1000, np.full((100, 10), 45), rng()) == 1).all()
    assert (labels.label_counts(5000, np.full((100, 10), 45), rng()) == 5).all()


@given(st.integers(1, 400), st.integers(0, 9))
@settings(max_examples=40)
def test_the_remainder_is_spread_too(n, seed):
    counts = labels.label_counts(n, np.full((10, 10), 45), rng(seed))
    for numbers in (counts.sum(1), counts.sum(0)):
        assert numbers.sum() == n and numbers.max() - numbers.min() <= 1
    assert counts.max() - counts.min() <= 1


def test_room_is_divided_over_those_who_may():
    mask = np.array([[True, False, True], [True, False, False]])
    room = labels.divided(np.array([5, 4, 3]), mask, rng())
    assert sorted(room[:, 0]) == [2, 3] and room[:, 1:].tolist() == [[0, 3], [0, 0]]


@given(st.integers(0, 120), st.integers(0, 99))
def test_systematic_is_proportional_in_every_stratum(n, seed):
    outer, inner = rng(seed).integers(0, 4, 120), rng(seed + 1).integers(0, 3, 120)
    mask = labels.systematic(n, outer, inner, rng=rng(seed))
    assert mask.sum() == n
    for i in range(4):
        assert abs(mask[outer == i].sum() - n * (outer == i).mean()) < 1
        for c in range(3):
            cell = (outer == i) & (inner == c)
            assert abs(mask[cell].sum() - n * cell.mean()) < 1


def test_systematic_gives_every_row_the_same_chance():
    outer = np.repeat([0, 1, 2], [3, 8, 1])
    generator, draws = rng(7), 4000
    hits = sum(labels.systematic(4, outer, rng=generator).astype(int) for _ in range(draws)) / draws
    assert np.abs(hits - 4 / 12).max() < 5 * np.sqrt(1 / 3 * 2 / 3 / draws)


def test_draw_takes_what_the_table_says():
    owner, y = np.array([0, 0, 0, 1, 1, -1, 1]), np.array([0, 0, 1, 0, 0, 0, -1])
    mask = labels.draw(np.array([[1, 1], [2, 0]]), owner, y, rng())
    assert mask[2:].tolist() == [True, True, True, False, False] and mask[:2].sum() == 1


@pytest.mark.parametrize("p, per_client", [(0.0, 0), (0.1, 20), (0.25, 50), (0.5, 100), (1.0, 200)])
def test_flips_are_exact_at_every_client(p, per_client):
    """The paper's 200:20, 200:50 and 200:100."""
    given_, owner = rng(1).integers(0, 10, 2000), np.repeat(np.arange(10), 200)
    changed = labels.flip(given_, owner, 10, labels.Flip(p), rng(2)) != given_
    assert np.bincount(owner[changed], minlength=10).tolist() == [per_client] * 10


def test_flips_go_to_every_other_class_alike():
    flipped = labels.flip(np.zeros(9000, dtype=int), np.zeros(9000, dtype=int), 10, labels.Flip(1.0), rng(3))
    counts = np.bincount(flipped, minlength=10)
    assert counts[0] == 0
    assert ((counts[1:] - 1000) ** 2 / 1000).sum() < 26.1  # χ² with 8 degrees of freedom: 0.999 quantile


def test_a_pairwise_flip_turns_each_class_into_the_next_one():
    given_, owner = np.tile(np.arange(10), 200), np.repeat(np.arange(10), 200)
    flipped = labels.flip(given_, owner, 10, labels.parse_flip("0.5:pair"), rng(2))
    changed = flipped != given_
    assert (flipped[changed] == (given_[changed] + 1) % 10).all()
    assert np.bincount(owner[changed], minlength=10).tolist() == [100] * 10


def test_flip_is_a_share_or_a_share_with_pair():
    assert labels.parse_flip(0.25) == labels.parse_flip("0.25") == labels.Flip(0.25)
    assert labels.parse_flip("0.5:pair") == labels.Flip(0.5, True) and labels.parse_flip("0.5:pair").said == "0.5:pair"
    for text in ("half", "0.5:", "0.5:pairs", "pair", ":pair", "nan"):
        with pytest.raises(Mistake, match="0.5:pair to turn each class into the next one"):
            labels.parse_flip(text)
    with pytest.raises(Mistake, match="between 0 and 1"):
        labels.parse_flip("1.5:pair")
