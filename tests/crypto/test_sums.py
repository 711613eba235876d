"""Masked sums: worked numbers, exact sums, and what each side sees, with every mask and with one taken out."""

import itertools
import tracemalloc
from collections import Counter, defaultdict

import numpy as np
import pytest
from uniformity import looks_uniform, same_distribution

from grapevine.core.errors import Mistake
from grapevine.core.wire import decode, encode
from grapevine.crypto import fixed, sums
from grapevine.crypto.agreement import AgreementError, Occasion
from grapevine.crypto.stream import Stream
from grapevine.crypto.sums import Attempts

NAMES = ("a", "b", "c")
PAIRS = tuple(itertools.combinations(NAMES, 2))


def occasion(parties=NAMES, step="rows", round=0, attempt=0, keys=b"keys"):
    return Occasion("session", b"roster", keys, step, round, attempt, tuple(sorted(parties)))


def secrets_of(me, parties=NAMES):
    """A fixed secret for each pair, so that the tests repeat."""
    return {other: "".join(sorted((me, other))).encode().ljust(32, b".") for other in parties if other != me}


def zeros(columns):
    return lambda owner, rows: np.zeros((rows.stop - rows.start, columns), np.uint64)


def rows_of(parts, me):
    return lambda owner, rows: parts[me][owner][rows]


def secure_row_sums(parts, sizes, columns, where):
    """All clients and the server. Returns what the server saw and what each owner got."""
    shares = {me: sums.row_shares(me, secrets_of(me, sizes), where, sizes, columns, rows_of(parts, me)) for me in where.parties}
    totals = sums.row_totals(shares, where)
    results = {me: sums.own_rows(me, secrets_of(me, sizes), where, totals[me], rows_of(parts, me)) for me in where.parties}
    return shares, totals, results


def random_parts(sizes, columns, seed=0):
    rng = np.random.default_rng(seed)
    return {me: {owner: fixed.encode(rng.normal(size=(n, columns)) * 50) for owner, n in sizes.items()} for me in sizes}


def fix_masks(monkeypatch, table):
    """Put given numbers in place of the masks P_ab, P_ac, P_bc; `table` may be changed afterwards."""
    keys = {"".join(pair).encode().ljust(32, b"."): pair for pair in PAIRS}
    monkeypatch.setattr(sums, "pair_mask", lambda secret, info, shape: np.full(shape, table[keys[secret]], np.uint64))


# --- worked by hand -----------------------------------------------------------------------------------------------------------


def test_three_clients_worked_by_hand(monkeypatch):
    """P_ab = 10, P_ac = 200, P_bc = 3000, so M_a = 210, M_b = 2990, M_c = −3200. One row each; parts 1, 2, 3 for a's row."""
    fix_masks(monkeypatch, {("a", "b"): 10, ("a", "c"): 200, ("b", "c"): 3000})
    parts = {
        me: {o: np.array([[v]], np.uint64) for o, v in zip(NAMES, row)}
        for me, row in zip(NAMES, [[1, 4, 7], [2, 5, 8], [3, 6, 9]])
    }
    sizes = dict.fromkeys(NAMES, 1)
    shares, totals, results = secure_row_sums(parts, sizes, 1, occasion())
    flat = {me: {owner: int(matrix[0, 0]) for owner, matrix in message.items()} for me, message in shares.items()}
    assert flat == {
        "a": {"b": 214, "c": 217},  # 4 + 210, 7 + 210; its own row is not sent
        "b": {"a": 2992, "c": 2998},  # 2 + 2990, 8 + 2990
        "c": {"a": 2**64 - 3197, "b": 2**64 - 3194},  # 3 − 3200, 6 − 3200: below zero, so it wraps
    }
    assert {owner: int(t[0, 0]) for owner, t in totals.items()} == {"a": 2**64 - 205, "b": 2**64 - 2980, "c": 3215}
    assert {owner: int(r[0, 0]) for owner, r in results.items()} == {"a": 6, "b": 15, "c": 24}


def test_a_plain_sum_worked_by_hand(monkeypatch):
    fix_masks(monkeypatch, {("a", "b"): 10, ("a", "c"): 200, ("b", "c"): 3000})
    where = occasion()
    shares = {me: sums.sum_share(me, secrets_of(me), where, np.array([v], np.uint64)) for me, v in zip(NAMES, (1, 2, 3))}
    assert {me: int(s[0]) for me, s in shares.items()} == {"a": 211, "b": 2992, "c": 2**64 - 3197}
    assert sums.sum_open(shares, where).tolist() == [6]


# --- exactness ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes, columns",
    [
        (dict(a=1, b=1), 1),
        (dict(a=5, b=0, c=2), 3),
        (dict(a=300, b=7, c=1, d=64), 10),
        (dict(a=3, b=2, c=1), 0),
    ],
)
def test_every_owner_gets_the_sum_of_its_rows_exactly(sizes, columns):
    parts = random_parts(sizes, columns)
    shares, _, results = secure_row_sums(parts, sizes, columns, occasion(sizes))
    for owner in sizes:
        assert owner not in shares[owner]  # own rows are withheld
        expected = np.sum([parts[me][owner] for me in sizes], axis=0, dtype=np.uint64)
        np.testing.assert_array_equal(results[owner], expected)


def test_ten_clients_of_five_hundred_points_to_within_the_stated_error():
    names = [f"party{n}" for n in range(10)]
    sizes, columns, rng = dict.fromkeys(names, 500), 10, np.random.default_rng(1)
    real = {me: {owner: rng.exponential(20, (500, columns)) for owner in names} for me in names}
    parts = {me: {owner: fixed.encode(m) for owner, m in real[me].items()} for me in names}
    _, _, results = secure_row_sums(parts, sizes, columns, occasion(names))
    for owner in names:
        exact = sum(real[me][owner] for me in names)
        assert np.abs(fixed.decode(results[owner]) - exact).max() <= 10 * 2.0**-33 + 1e-12


def test_sums_that_pass_the_modulus_come_back(monkeypatch):
    sizes = dict.fromkeys(NAMES, 1)
    values = dict(a=2**64 - 1, b=2**63, c=2**63 + 5)
    parts = {me: {owner: np.array([[values[me]]], np.uint64) for owner in NAMES} for me in NAMES}
    _, _, results = secure_row_sums(parts, sizes, 1, occasion())
    assert {int(r[0, 0]) for r in results.values()} == {4}  # (2^64 − 1) + 2^63 + 2^63 + 5 = 2·2^64 + 4


@pytest.mark.parametrize("shape", [(), (7,), (3, 4)])
def test_plain_sums_are_exact_in_both_rings(shape):
    rng, where = np.random.default_rng(2), occasion(step="moments")
    real = {me: rng.normal(size=shape) * 1e3 for me in NAMES}
    for encode_, decode_, wide in ((fixed.encode, fixed.decode, False), (fixed.encode_wide, fixed.decode_wide, True)):
        shares = {me: sums.sum_share(me, secrets_of(me), where, encode_(real[me]), wide) for me in NAMES}
        total = decode_(sums.sum_open(shares, where, wide))
        assert total.shape == shape
        np.testing.assert_allclose(total, sum(real.values()), atol=3 * 2.0**-33)


def test_blocks_and_one_piece_are_the_same_message(monkeypatch):
    monkeypatch.setattr(sums, "BLOCK_VALUES", 40)
    sizes, columns = dict(a=23, b=11, c=10), 4  # ten rows a block: 3, 2 and 1 of them
    parts = random_parts(sizes, columns)
    asked = []
    own = rows_of(parts, "a")
    sums.row_shares("a", secrets_of("a"), occasion(), sizes, columns, lambda o, rows: (asked.append((o, rows)), own(o, rows))[1])
    assert asked == [("b", slice(0, 10)), ("b", slice(10, 11)), ("c", slice(0, 10))]
    _, _, results = secure_row_sums(parts, sizes, columns, occasion())
    np.testing.assert_array_equal(results["a"], sum(parts[me]["a"] for me in NAMES))


def test_memory_is_the_message_and_a_few_blocks():
    sizes, columns = dict(a=0, b=100_000, c=0), 10
    tracemalloc.start()
    message = sums.row_shares("a", secrets_of("a"), occasion(), sizes, columns, zeros(columns))
    peak = tracemalloc.get_traced_memory()[1] - message["b"].nbytes
    tracemalloc.stop()
    assert peak < 7 * 8 * sums.BLOCK_VALUES < 8 * 100_000 * columns  # beside the message; one mask of all rows would be more


# --- what the server sees: exactly, by going through all masks ----------------------------------------------------------------

QUARTER = 2**62  # 0, 2^62, 2·2^62, 3·2^62 are a subgroup of Z_2^64 with four elements: the protocol runs in it unchanged


def row_view(owner, data):
    """What reaches the server when only `owner` has a row."""
    sizes = {name: int(name == owner) for name in NAMES}
    view = []
    for me in NAMES:
        part = np.array([[data[me] * QUARTER]], np.uint64)
        message = sums.row_shares(me, secrets_of(me), occasion(), sizes, 1, lambda o, rows, part=part: part)
        view += [int(block[0, 0]) for name, block in message.items() if name == owner]
    return tuple(view)


def sum_view(owner, data):
    return tuple(
        int(sums.sum_share(me, secrets_of(me), occasion(), np.array([data[me] * QUARTER], np.uint64))[0]) for me in NAMES
    )


def leaks(monkeypatch, view, owner, traitors, server_may_know_sum, removed=()):
    """Does the server, with what the traitors know, see more than it may? Compared over all masks, exactly.

    For each choice of data: the distribution of the view over all masks. It may depend on the traitors' own data, and on the sum
    of the others where the protocol grants that; on nothing else.
    """
    table = {}
    fix_masks(monkeypatch, table)
    seen = defaultdict(set)
    for values in itertools.product((0, 1), repeat=3):
        data = dict(zip(NAMES, values))
        views = Counter()
        for masks in itertools.product(range(4), repeat=3):
            table.update({pair: 0 if pair in removed else m * QUARTER for pair, m in zip(PAIRS, masks)})
            known = tuple(table[pair] for pair in PAIRS if set(pair) & set(traitors))
            views[known + view(owner, data)] += 1
        allowed = [data[name] for name in traitors]
        if server_may_know_sum or owner in traitors:
            allowed.append(sum(data[name] for name in NAMES if name not in traitors))
        seen[tuple(allowed)].add(frozenset(views.items()))
    return any(len(distributions) > 1 for distributions in seen.values())


@pytest.mark.parametrize("owner", NAMES)
@pytest.mark.parametrize("traitors", [(), ("a",), ("b",), ("c",)])
def test_row_sums_show_the_server_nothing_and_a_coalition_only_its_own_result(monkeypatch, owner, traitors):
    assert not leaks(monkeypatch, row_view, owner, traitors, server_may_know_sum=False)


@pytest.mark.parametrize("traitors", [(), ("a",), ("b",), ("c",)])
def test_a_plain_sum_shows_the_sum_and_nothing_else(monkeypatch, traitors):
    assert not leaks(monkeypatch, sum_view, None, traitors, server_may_know_sum=True)


def test_a_plain_sum_would_show_the_sum_so_the_check_can_tell(monkeypatch):
    assert leaks(monkeypatch, sum_view, None, (), server_may_know_sum=False)


@pytest.mark.parametrize("pair", PAIRS)
def test_without_one_pair_mask_somebody_learns_more(monkeypatch, pair):
    """The other two masks still hide all from the server alone; with the third client it would see the pair's parts."""
    (third,) = set(NAMES) - set(pair)
    assert leaks(monkeypatch, row_view, pair[0], (third,), server_may_know_sum=False, removed=(pair,))
    assert leaks(monkeypatch, row_view, third, (third,), server_may_know_sum=False, removed=(pair,))
    assert leaks(monkeypatch, sum_view, None, (third,), server_may_know_sum=True, removed=(pair,))


@pytest.mark.parametrize("pairs", [pairs for pairs in itertools.combinations(PAIRS, 2)])
def test_without_two_pair_masks_the_server_alone_learns_more(monkeypatch, pairs):
    (shared,) = set(pairs[0]) & set(pairs[1])  # this client is left without any mask
    others = [name for name in NAMES if name != shared]
    assert all(leaks(monkeypatch, row_view, owner, (), server_may_know_sum=False, removed=pairs) for owner in others)
    assert leaks(monkeypatch, sum_view, None, (), server_may_know_sum=True, removed=pairs)


def test_if_own_rows_were_sent_the_server_would_learn_the_sum(monkeypatch):
    """The withheld rows are what hides the sum: with them the pieces add up to it."""
    sizes, columns = dict.fromkeys(NAMES, 40), 3
    parts = random_parts(sizes, columns)
    _, totals, _ = secure_row_sums(parts, sizes, columns, occasion())
    own = parts["a"]["a"] + sums.mask("a", secrets_of("a"), occasion(), (40, columns), "a", 0)
    true = np.sum([parts[me]["a"] for me in NAMES], axis=0, dtype=np.uint64)
    np.testing.assert_array_equal(totals["a"] + own, true)
    assert not (totals["a"] == true).any()


# --- what the server sees: at full size ---------------------------------------------------------------------------------------

SIZES, COLUMNS = dict.fromkeys(NAMES, 2000), 5


def server_view(parts):
    """The six messages, and what can be made of them: totals and differences."""
    shares, totals, _ = secure_row_sums(parts, SIZES, COLUMNS, occasion())
    pieces = [shares[me][owner] for owner in NAMES for me in NAMES if me != owner]
    differences = [pieces[at] - pieces[at + 1] for at in (0, 2, 4)]
    return pieces + differences + list(totals.values())


def all_zero():
    return {me: {owner: np.zeros((n, COLUMNS), np.uint64) for owner, n in SIZES.items()} for me in SIZES}


@pytest.mark.parametrize("parts", [all_zero(), random_parts(SIZES, COLUMNS)], ids=["zero", "normal"])
def test_all_that_reaches_the_server_is_uniform_whatever_the_data(parts):
    assert all(looks_uniform(piece) for piece in server_view(parts))


def test_the_view_is_that_of_a_simulator_that_knows_no_data():
    simulator = Stream(b"s" * 32, b"simulator")
    simulated = [simulator.array((2000, COLUMNS)) for _ in range(6)]
    simulated += [simulated[at] - simulated[at + 1] for at in (0, 2, 4)]
    simulated += [simulated[at] + simulated[at + 1] for at in (0, 2, 4)]
    for real, fake in zip(server_view(random_parts(SIZES, COLUMNS)), simulated, strict=True):
        assert same_distribution(real, fake)


def test_without_masks_the_full_size_check_fails(monkeypatch):
    monkeypatch.setattr(sums, "pair_mask", lambda secret, info, shape: np.zeros(shape, np.uint64))
    view = server_view(random_parts(SIZES, COLUMNS))
    assert not any(looks_uniform(piece) for piece in view)
    assert not same_distribution(view[0], Stream(b"s" * 32, b"simulator").array((2000, COLUMNS)))


def test_wide_shares_are_uniform_too():
    values = fixed.encode_wide(np.zeros(4000))
    shares = {me: sums.sum_share(me, secrets_of(me), occasion(), values, wide=True) for me in NAMES}
    assert all(looks_uniform(share) for share in shares.values())
    assert looks_uniform(fixed.add_wide(shares["a"], shares["b"]))  # two of three do not add up to anything


# --- masks are used once ------------------------------------------------------------------------------------------------------


def test_masks_of_different_uses_are_different():
    uses = [
        occasion(),
        occasion(step="moments"),
        occasion(round=1),
        occasion(attempt=1),
        occasion(keys=b"other"),
    ]
    masks = [sums.mask("a", secrets_of("a"), where, (2, 3)) for where in uses]
    masks += [
        sums.mask("a", secrets_of("a"), occasion(), (2, 3), owner="b"),
        sums.mask("a", secrets_of("a"), occasion(), (2, 3), owner="c"),
        sums.mask("a", secrets_of("a"), occasion(), (2, 3), owner="b", start=2),
        sums.mask("a", secrets_of("a"), occasion(), (3, 2)),
        sums.mask("b", secrets_of("b"), occasion(), (2, 3)),
        sums.mask("a", secrets_of("a", "ab"), occasion("ab"), (2, 3)),
    ]
    assert len({int(mask.flat[0]) for mask in masks}) == len(masks)


def test_a_restart_without_a_lost_client_uses_fresh_masks_and_comes_out():
    """Section 3.3: c is lost during the sums; the second attempt is between a and b."""
    sizes, columns = dict(a=400, b=400, c=400), 7
    parts = random_parts(sizes, columns)
    first = {me: sums.row_shares(me, secrets_of(me), occasion(), sizes, columns, rows_of(parts, me)) for me in "ab"}
    with pytest.raises(Mistake, match="attempt 0 of 'rows' in round 0 has no share of c: start a new attempt"):
        sums.row_totals(first, occasion())
    again, left = occasion("ab", attempt=1), dict(a=400, b=400)
    shares, _, results = secure_row_sums(parts, left, columns, again)
    np.testing.assert_array_equal(results["a"], parts["a"]["a"] + parts["b"]["a"])
    # The same data, masked twice: the difference of the two messages is a difference of fresh masks.
    assert looks_uniform(shares["a"]["b"] - first["a"]["b"])


def test_attempts_are_taken_once_and_in_order():
    attempts = Attempts()
    attempts.begin(occasion())
    with pytest.raises(AgreementError, match="attempt 0 of 'rows' in round 0 is closed"):
        attempts.begin(occasion())  # repeated
    attempts.begin(occasion("ab", attempt=2))
    with pytest.raises(AgreementError, match="closed"):
        attempts.begin(occasion(attempt=1))  # older than the latest
    with pytest.raises(AgreementError, match="attempt 0 .* not open"):
        attempts.finish(occasion())  # the old one was closed by the new
    attempts.finish(occasion("ab", attempt=2))
    with pytest.raises(AgreementError, match="not open"):
        attempts.finish(occasion("ab", attempt=2))
    with pytest.raises(AgreementError, match="finished"):
        attempts.begin(occasion(attempt=3))  # a result is out: no further attempt in this round
    attempts.begin(occasion(round=1))
    with pytest.raises(AgreementError, match="closed"):
        attempts.begin(occasion(round=0, attempt=9))
    attempts.begin(occasion(step="moments"))  # another step counts by itself


def test_parties_are_lost_from_attempt_to_attempt_and_none_comes_or_returns():
    """{a, b}, then {a, c}, was accepted: with {b, c} the server had three sums and all three parts."""
    attempts = Attempts()
    attempts.begin(occasion())
    attempts.begin(occasion("ab", attempt=1))
    attempts.begin(occasion("ab", attempt=2))  # the same once more
    for parties in ("ac", "bc", "abc", "cd"):
        with pytest.raises(AgreementError, match="parties can leave, but not join"):
            attempts.begin(occasion(parties, attempt=3))
    Attempts.from_dict(decode(encode(attempts.to_dict()))).begin(occasion("ab", attempt=3))
    attempts.begin(occasion("ac", round=1))  # another round is another sum


def test_attempts_outlive_the_process():
    attempts = Attempts()
    attempts.begin(occasion())
    again = Attempts.from_dict(decode(encode(attempts.to_dict())))
    with pytest.raises(AgreementError):
        again.begin(occasion())
    again.finish(occasion())
    with pytest.raises(AgreementError, match="not open"):
        Attempts.from_dict(again.to_dict()).finish(occasion())
    with pytest.raises(AgreementError, match="not open"):
        Attempts().finish(occasion())


# --- refusals -----------------------------------------------------------------------------------------------------------------


def test_two_parties_are_warned_and_one_is_refused():
    assert "2 parties" in sums.few(2) and "at least 3" in sums.few(2)
    assert sums.few(3) is None
    with pytest.raises(Mistake, match="at least two"):
        sums.few(1)
    with pytest.raises(Mistake, match="at least two"):
        sums.sum_share("a", {}, occasion("a"), np.zeros(3, np.uint64))
    with pytest.raises(Mistake, match="at least two"):
        sums.sum_open(dict(a=np.zeros(3, np.uint64)), occasion("a"))


def test_what_does_not_fit_together_is_refused():
    where, ring = occasion(), np.zeros(3, np.uint64)
    with pytest.raises(TypeError, match="float64"):
        sums.sum_share("a", secrets_of("a"), where, np.zeros(3))
    with pytest.raises(AgreementError, match="secrets with b, and attempt"):
        sums.sum_share("a", secrets_of("a", "ab"), where, ring)
    with pytest.raises(Mistake, match="no share of c"):
        sums.sum_open(dict(a=ring, b=ring), where)
    with pytest.raises(Mistake, match="share of d, who is not in it"):
        sums.sum_open(dict(a=ring, b=ring, c=ring, d=ring), where)
    with pytest.raises(Mistake, match="different shapes"):
        sums.sum_open(dict(a=ring, b=ring, c=ring[:2]), where)
    with pytest.raises(Mistake, match="row counts are given for a, b"):
        sums.row_shares("a", secrets_of("a"), where, dict(a=1, b=1), 2, zeros(2))
    with pytest.raises(ValueError, match=r"is \(1, 3\), not \(1, 2\)"):
        sums.row_shares("a", secrets_of("a"), where, dict(a=1, b=1, c=1), 2, zeros(3))
