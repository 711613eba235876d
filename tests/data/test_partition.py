import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grapevine.core.errors import Mistake
from grapevine.data import partition as p
from grapevine.data.partition import Partition, parse_partition


def rng(seed=0):
    return np.random.default_rng(seed)


def counts_of(owner, y, clients, classes):
    table = np.zeros((clients, classes), dtype=int)
    for i, c in zip(owner, y):
        table[i, c] += 1
    return table


@pytest.mark.parametrize(
    "text, meant",
    [
        ("iid", Partition("iid")),
        ("fedmatch", Partition("fedmatch")),
        ("natural", Partition("natural")),
        ("dirichlet:0.1", Partition("dirichlet", alpha=0.1)),
        ("dirichlet:1e3", Partition("dirichlet", alpha=1000.0)),
        ("dirichlet:.5:free", Partition("dirichlet", alpha=0.5, free=True)),
        ("shards:2", Partition("shards", shards=2)),
    ],
)
def test_grammar(text, meant):
    assert parse_partition(text) == meant


@pytest.mark.parametrize("text", ["", "IID", "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:1:fre", "shards", "shards:1.5"])
def test_unknown_words_get_the_grammar(text):
    with pytest.raises(Mistake, match=r"dirichlet:0\.1.*shards:2.*natural"):
        parse_partition(text)


@pytest.mark.parametrize("text", ["dirichlet:0", "dirichlet:-1", "dirichlet:1e999", "shards:0", "shards:-2"])
def test_numbers_out_of_range(text):
    with pytest.raises(Mistake, match="above 0|at least 1"):
        parse_partition(text)


def test_streams_are_apart_and_repeat():
    draws = {(seed, name): p.stream(seed, name).random() for seed in (0, 1) for name in ("partition", "labels")}
    assert len(set(draws.values())) == 4
    assert p.stream(1, "labels").random() == draws[1, "labels"]


@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 9))
def test_even(n, parts, seed):
    counts = p.even(n, parts, rng(seed))
    assert counts.sum() == n and counts.max() - counts.min() <= 1


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 99))
def test_cells_finds_a_table_whenever_there_is_one(m, k, density, seed):
    some = rng(seed).random((m, k)) < density  # its sums are those of a 0/1 table by construction
    table = p.cells(some.sum(1), some.sum(0), rng(seed + 1))
    assert set(np.unique(table)) <= {0, 1}
    assert (table.sum(1) == some.sum(1)).all() and (table.sum(0) == some.sum(0)).all()


def test_cells_refuses_sums_that_no_table_has():
    with pytest.raises(ValueError):
        p.cells(np.array([2, 2]), np.array([3, 1]), rng())


@given(st.integers(1, 15), st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(sum), st.integers(0, 9))
def test_proportional_is_within_one_and_keeps_the_sums(m, columns, seed):
    columns = np.array(columns)
    rows = p.even(int(columns.sum()), m, rng(seed))
    table = p.proportional(rows, columns, rng(seed))
    assert (table.sum(1) == rows).all() and (table.sum(0) == columns).all()
    assert (np.abs(table - np.outer(rows, columns) / columns.sum()) <= 1).all()


@pytest.mark.parametrize("clients", [10, 20])
def test_circulant_is_exact_with_balanced_classes_and_a_multiple_of_ten_clients(clients):
    table = p.circulant(np.full(clients, 100), np.full(10, 10 * clients), rng())
    row = [50, 15, 3, 3, 3, 2, 3, 3, 3, 15]
    assert table.tolist() == [[row[(c - i) % 10] for c in range(10)] for i in range(clients)]


@given(st.integers(1, 25), st.lists(st.integers(0, 80), min_size=10, max_size=10).filter(sum), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_circulant_wastes_no_row(clients, columns, seed):
    columns = np.array(columns)
    rows = p.even(int(columns.sum()), clients, rng(seed))
    table = p.circulant(rows, columns, rng(seed))
    assert (table >= 0).all() and (table.sum(1) == rows).all() and (table.sum(0) == columns).all()


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_balanced_dirichlet_has_the_mean_and_variance_of_the_closed_form(alpha):
    """Shares of n rows drawn by Dir(α·C·p) have mean p and variance p(1−p)(n+A)/(n(A+1)), A = α·C; no class runs out here."""
    clients, n, share = 3000, 200, np.array([0.5, 0.3, 0.2])
    columns = (share * 3 * clients * n).astype(int)
    table = p.dirichlet_balanced(np.full(clients, n), columns, alpha, rng(1))
    assert (table.sum(1) == n).all()
    total = alpha * 3
    variance = share * (1 - share) * (n + total) / (n * (total + 1))
    error = (table.mean(0) / n - share) / np.sqrt(variance / clients)
    assert np.abs(error).max() < 4
    assert (table / n).var(0) == pytest.approx(variance, rel=0.1)


def test_free_dirichlet_has_the_mean_and_variance_of_the_closed_form():
    clients, classes, n, alpha = 5, 4000, 10_000, 0.5
    share = p.dirichlet_free(clients, np.full(classes, n), alpha, rng(2)).T / n  # one draw of Dir(α, …, α) per class
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    assert np.abs((share.mean(0) - mean) / np.sqrt(variance / classes)).max() < 4
    assert share.var(0) == pytest.approx(np.full(clients, variance), rel=0.1)


def test_a_large_concentration_is_iid():
    columns = np.array([600, 300, 100])
    table = p.dirichlet_balanced(np.full(10, 100), columns, 1e6, rng(3))
    assert np.abs(table / 100 - columns / 1000).max() < 0.2


def test_free_dirichlet_that_cannot_fill_everybody():
    with pytest.raises(Mistake, match="50 clients.*fewer clients"):
        p.dirichlet_free(50, np.array([10, 10]), 0.1, rng())


def test_deal_gives_what_the_table_says():
    y = np.array([0, 1, 0, 1, 1, 0, 0])
    table = np.array([[1, 2], [2, 0]])
    owner = p.deal_rows(y, table, rng(4))
    assert counts_of(owner[owner >= 0], y[owner >= 0], 2, 2).tolist() == table.tolist()
    assert (owner == -1).sum() == 2


def test_shards_of_one_class_each():
    y = np.arange(80) % 8  # 8 shards of 10 rows: one class each
    table = counts_of(p.cut_shards(y, 4, 2, rng(5)), y, 4, 8)
    assert (table.sum(1) == 20).all() and ((table == 10) | (table == 0)).all()


def test_more_shards_than_rows():
    with pytest.raises(Mistake, match="needs 20 rows but there are only 19"):
        p.cut_shards(np.zeros(19, dtype=int), 10, 2, rng())


KINDS = ["iid", "dirichlet:0.1", "dirichlet:5", "dirichlet:1:free", "shards:2", "fedmatch"]


@given(st.sampled_from(KINDS), st.integers(1, 12), st.integers(60, 300), st.integers(0, 20), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_every_row_has_one_owner_and_sizes_are_equal(kind, clients, known, unknown, seed):
    y = np.concatenate([rng(seed).integers(0, 10, known), np.full(unknown, -1)])
    part = parse_partition(kind)
    owner = p.owners(part, y, 10, clients, rng(seed))
    assert owner.min() >= 0 and owner.max() < clients
    sizes = np.bincount(owner[y >= 0], minlength=clients)
    if part.kind == "shards":
        assert sizes.max() - sizes.min() <= part.shards
    elif not part.free:
        assert sizes.max() - sizes.min() <= 1
    without = np.bincount(owner[y < 0], minlength=clients)
    assert without.max() - without.min() <= 1


def test_fedmatch_is_for_ten_classes():
    with pytest.raises(Mistake, match="10 classes and this data set has 7"):
        p.owners(Partition("fedmatch"), np.arange(70) % 7, 7, 5, rng())
