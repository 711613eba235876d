"""psm: equal to popcount, worked numbers, and what the server sees, with every mask and with one taken out."""

import itertools
import tracemalloc
from collections import Counter, defaultdict

import numpy as np
import pytest
from uniformity import looks_uniform, same_distribution

from grapevine.core.errors import Mistake
from grapevine.crypto import psm
from grapevine.crypto.agreement import Occasion
from grapevine.crypto.stream import Stream

SEED = b"seed".ljust(32, b".")


def occasion(round=0, attempt=0, step="hamming", keys=b"keys"):
    return Occasion("session", b"roster", keys, step, round, attempt, ("j", "k", "m"))


def random_bits(n, length, seed=0):
    return np.random.default_rng([seed, n, length]).integers(0, 2, (n, length), dtype=np.uint8)


def pack(bits):
    return np.packbits(bits, axis=1)


def popcount(left, right):
    """The slow and plain version."""
    return (left[:, None, :] != right[None, :, :]).sum(axis=2)


def view(left, right, where=None, seed=SEED):
    """All that the server gets for one pair: U_j, U_k, a, b."""
    where, length = where or occasion(), left.shape[1]
    j, k = pack(left), pack(right)
    return (
        psm.share(seed, where, "j", j, length),
        psm.share(seed, where, "k", k, length),
        psm.pair_message_a(seed, where, "j", "k", j, len(right), length),
        psm.pair_message_b(seed, where, "k", "j", k, len(left), length),
    )


# --- exactness ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, m, length", [(1, 1, 1), (1, 5, 8), (3, 1, 13), (20, 30, 4096), (17, 23, 1001), (2, 3, 32767)])
def test_distances_are_exact(n, m, length):
    left, right = random_bits(n, length, 1), random_bits(m, length, 2)
    h = psm.combine(*view(left, right))
    assert h.dtype == np.uint16
    np.testing.assert_array_equal(h, popcount(left, right))


@pytest.mark.parametrize("length", [1, 7, 4096, psm.MOST_BITS])
def test_distance_zero_and_all(length):
    """The ends of the range: L − 2H is L and −L, which modulo L would be the same."""
    x = random_bits(1, length)
    both = np.concatenate([x, 1 - x])
    np.testing.assert_array_equal(psm.combine(*view(both, both)), [[0, length], [length, 0]])


def test_more_points_than_a_block():
    left, right = random_bits(1100, 24, 1), random_bits(2060, 24, 2)
    np.testing.assert_array_equal(psm.combine(*view(left, right)), (24 - (1 - 2.0 * left) @ (1 - 2.0 * right).T) / 2)


def test_no_rows_on_one_side():
    assert psm.combine(*view(random_bits(0, 16), random_bits(4, 16))).shape == (0, 4)
    assert psm.combine(*view(random_bits(4, 16), random_bits(0, 16))).shape == (4, 0)


def test_what_is_in_the_last_byte_beyond_the_length_is_ignored():
    bits, junk = random_bits(5, 11), pack(random_bits(5, 11))
    junk[:, -1] |= 0b00011111
    clean = psm.share(SEED, occasion(), "j", pack(bits), 11)
    np.testing.assert_array_equal(psm.share(SEED, occasion(), "j", junk, 11), clean)


def test_one_share_serves_all_partners():
    j, k, m = (random_bits(n, 40, n) for n in (3, 4, 5))
    where = occasion()
    shares = {name: psm.share(SEED, where, name, pack(bits), 40) for name, bits in zip("jkm", (j, k, m))}
    for first, second, x, y in (("j", "k", j, k), ("j", "m", j, m), ("k", "m", k, m)):
        a = psm.pair_message_a(SEED, where, first, second, pack(x), len(y), 40)
        b = psm.pair_message_b(SEED, where, second, first, pack(y), len(x), 40)
        np.testing.assert_array_equal(psm.combine(shares[first], shares[second], a, b), popcount(x, y))


def test_products_are_exact_at_the_largest_values():
    length = psm.MOST_BITS
    full = np.full((2, length), 65535, np.uint16)
    assert (psm.product(full, full) == length).all()  # (−1)·(−1)·L
    rows = Stream(SEED, b"product").array((2, length), "uint16")
    exact = sum(int(x) * int(y) for x, y in zip(rows[0].tolist(), rows[1].tolist())) % 2**16
    assert int(psm.product(rows[:1], rows[1:])[0, 0]) == exact


def test_a_pair_worked_by_hand(monkeypatch):
    """L = 2, bits 01 and 11: X_j = (1, −1), X_k = (−1, −1), distance 1. R_j = (3, 65535), R_k = (10, 0), W = 65530."""
    masks = dict(j=[[3, 65535]], k=[[10, 0]])
    monkeypatch.setattr(psm, "row_mask", lambda seed, where, party, rows, length: np.array(masks[party], np.uint16))
    monkeypatch.setattr(psm, "tile_mask", lambda *args: np.array([[65530]], np.uint16))
    u_j, u_k, a, b = view(np.array([[0, 1]], np.uint8), np.array([[1, 1]], np.uint8))
    assert u_j.tolist() == [[4, 65534]]  # 1 + 3; −1 + 65535 = 65534
    assert u_k.tolist() == [[9, 65535]]  # −1 + 10; −1 + 0 wraps
    assert a.tolist() == [[4]]  # 1·10 − 1·0 + 65530 = 65540
    assert b.tolist() == [[34]]  # 3·9 + (−1)·(−1) − 65530 = 28 + 6
    assert psm.combine(u_j, u_k, a, b).tolist() == [[1]]  # 4·9 + (−2)·(−1) − 4 − 34 = 0 = L − 2·1


def test_memory_is_the_message_and_a_few_blocks():
    packed, n, length = pack(random_bits(3000, 64)), 3000, 64
    tracemalloc.start()
    a = psm.pair_message_a(SEED, occasion(), "j", "k", packed, n, length)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tile = 8 * psm.BLOCK_ROWS * psm.BLOCK_ROWS
    assert peak < a.nbytes + 4 * tile < 8 * n * n  # a product in one piece would need the last


# --- refusals -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 2**15, 2**16])
def test_a_length_that_the_modulus_cannot_hold_is_refused(length):
    packed = np.zeros((1, -(-length // 8)), np.uint8)
    with pytest.raises(Mistake, match=f"1 to 32767 bits, not {length}"):
        psm.share(SEED, occasion(), "j", packed, length)
    for message, me, other in ((psm.pair_message_a, "j", "k"), (psm.pair_message_b, "k", "j")):
        with pytest.raises(Mistake, match="32767"):
            message(SEED, occasion(), me, other, packed, 1, length)


def test_the_order_of_a_pair_is_kept():
    with pytest.raises(ValueError, match="first in the order of names"):
        psm.pair_message_a(SEED, occasion(), "k", "j", pack(random_bits(2, 8)), 2, 8)
    with pytest.raises(ValueError, match="first in the order of names"):
        psm.pair_message_b(SEED, occasion(), "j", "k", pack(random_bits(2, 8)), 2, 8)


@pytest.mark.parametrize("other", [dict(seed=b"x" * 32), dict(where=occasion(attempt=1)), dict(where=occasion(keys=b"o"))])
def test_messages_that_do_not_belong_together_are_noticed_and_show_nothing(other):
    """Clients that the server gave different seeds: what it could compute is masked by two different W."""
    left, right = random_bits(60, 100, 1), random_bits(60, 100, 2)
    u_j, _, a, _ = view(left, right)
    _, u_k, _, b = view(left, right, **other)
    with pytest.raises(Mistake, match="different seeds or rows"):
        psm.combine(u_j, u_k, a, b)
    assert looks_uniform(psm.product(u_j, u_k) - a - b)


@pytest.mark.parametrize("change", [1, 6, -6])
def test_an_impossible_distance_is_noticed(change):
    """L = 3 and H = 1: L − 2H = 1. One more is even; six more or less lie outside −3 … 3."""
    u_j, u_k, a, b = view(np.array([[0, 0, 0]], np.uint8), np.array([[0, 1, 0]], np.uint8))
    assert psm.combine(u_j, u_k, a, b).tolist() == [[1]]
    with pytest.raises(Mistake, match="do not match"):
        psm.combine(u_j, u_k, a, b - np.uint16(change % 2**16))


# --- what the server sees: exactly, by going through all masks ----------------------------------------------------------------

BITS = [np.array([bits], np.uint8) for bits in itertools.product((0, 1), repeat=2)]


def distributions(monkeypatch, removed=()):
    """The protocol modulo 4 (a quotient of Z_2^16), one point each, two bits: by distance, the distributions of the views.

    Over all 4^5 values of R_j, R_k and W, for each of the 16 inputs. The view may depend on the distance alone, so there must be
    one distribution for each distance.
    """
    choice = {}
    monkeypatch.setattr(psm, "row_mask", lambda seed, where, party, rows, length: choice[party])
    monkeypatch.setattr(psm, "tile_mask", lambda *args: choice["w"])
    pairs = [np.array([pair], np.uint16) for pair in itertools.product(range(4), repeat=2)]
    ranges = dict(j=pairs, k=pairs, w=[np.array([[w]], np.uint16) for w in range(4)])
    for name in removed:
        ranges[name] = [np.zeros_like(ranges[name][0])]
    seen = defaultdict(set)
    for left, right in itertools.product(BITS, BITS):
        views = Counter()
        for r_j, r_k, w in itertools.product(ranges["j"], ranges["k"], ranges["w"]):
            choice.update(j=r_j, k=r_k, w=w)
            views[b"".join((part & 3).tobytes() for part in view(left, right))] += 1
        seen[int(popcount(left, right)[0, 0])].add(frozenset(views.items()))
    return seen


def test_the_view_depends_on_the_distance_alone(monkeypatch):
    seen = distributions(monkeypatch)
    assert sorted(seen) == [0, 1, 2] and all(len(kinds) == 1 for kinds in seen.values())
    # And it is the simulator's: U_j, U_k and a uniform, b fixed by them and the distance.
    for h, (kind,) in seen.items():
        assert len(kind) == 4**5 and {count for _, count in kind} == {1}
        for row, _ in kind:
            u = np.frombuffer(row, np.uint16).astype(int)
            assert (u[0] * u[2] + u[1] * u[3] - u[4] - u[5] - (2 - 2 * h)) % 4 == 0


@pytest.mark.parametrize("mask", ["j", "k", "w"])
def test_without_one_mask_the_view_depends_on_more(monkeypatch, mask):
    assert any(len(kinds) > 1 for kinds in distributions(monkeypatch, (mask,)).values())


# --- what the server sees: at full size ---------------------------------------------------------------------------------------


def statistics(left, right, messages):
    """The messages, and the combinations that are uniform only if all three masks are there.

    a − X_j U_kᵀ = W − X_j X_kᵀ and b − U_j X_kᵀ are for a server that guesses the bits right: without W it would see that it did.
    """
    u_j, u_k, a, b = messages
    x_j, x_k = psm.signs(pack(left), left.shape[1]), psm.signs(pack(right), right.shape[1])
    return dict(u_j=u_j, u_k=u_k, a=a, b=b, guess_a=a - psm.product(x_j, u_k), guess_b=b - psm.product(u_j, x_k))


FLAT = np.zeros((90, 200), np.uint8)


@pytest.mark.parametrize("left", [FLAT, random_bits(90, 200)], ids=["zero", "random"])
def test_every_message_is_uniform_whatever_the_bits(left):
    right = random_bits(80, 200, 5)
    assert all(looks_uniform(values) for values in statistics(left, right, view(left, right)).values())


def test_a_view_simulated_from_the_distances_is_not_told_apart():
    left, right = FLAT, random_bits(80, 200, 5)
    h = popcount(left, right)
    simulator = Stream(b"s" * 32, b"simulator")
    u_j, u_k, a = (simulator.array(shape, "uint16") for shape in ((90, 200), (80, 200), (90, 80)))
    b = psm.product(u_j, u_k) - a - (200 - 2 * h).astype(np.uint16)
    np.testing.assert_array_equal(psm.combine(u_j, u_k, a, b), h)
    real = statistics(left, right, view(left, right))
    fake = statistics(left, right, (u_j, u_k, a, b))
    assert all(same_distribution(real[name], fake[name]) for name in real)


@pytest.mark.parametrize("mask, shown", [("j", "u_j"), ("k", "u_k"), ("w", "guess_a")])
def test_the_full_size_check_fails_without_one_mask(monkeypatch, mask, shown):
    left, right = FLAT, random_bits(80, 200, 5)
    row_mask, tile_mask = psm.row_mask, psm.tile_mask
    if mask == "w":
        monkeypatch.setattr(psm, "tile_mask", lambda *args: np.zeros_like(tile_mask(*args)))
    else:
        monkeypatch.setattr(psm, "row_mask", lambda *args: row_mask(*args) * np.uint16(args[2] != mask))
    messages = view(left, right)
    np.testing.assert_array_equal(psm.combine(*messages), popcount(left, right))  # the result does not give it away
    assert not looks_uniform(statistics(left, right, messages)[shown])


def test_masks_of_different_uses_are_different():
    """R_j twice on different features would show X − X′: everything that makes a use different changes it."""
    block, longer = slice(0, 4), slice(0, 5)
    uses = [occasion(), occasion(round=1), occasion(attempt=1), occasion(step="again"), occasion(keys=b"other")]
    rows = [psm.row_mask(SEED, where, "j", block, 16) for where in uses]
    rows += [psm.row_mask(SEED, occasion(), party, cut, length) for party, cut, length in (("k", block, 16), ("j", longer, 16))]
    rows += [psm.row_mask(SEED, occasion(), "j", block, 17), psm.row_mask(SEED, occasion(), "j", slice(4, 8), 16)]
    tiles = [psm.tile_mask(SEED, where, "j", "k", block, block, 16) for where in uses]
    tiles += [
        psm.tile_mask(SEED, occasion(), "j", "m", block, block, 16),
        psm.tile_mask(SEED, occasion(), "j", "k", longer, block, 16),
    ]
    tiles += [psm.tile_mask(SEED, occasion(), "j", "k", block, longer, 16)]
    first = [tuple(mask.ravel()[:8].tolist()) for mask in rows + tiles]
    assert len(set(first)) == len(first)


def test_the_same_bits_in_two_rounds_share_nothing():
    left, right = FLAT, random_bits(80, 200, 5)
    one, two = (view(left, right, occasion(round=n)) for n in (1, 2))
    assert all(looks_uniform(x - y) for x, y in zip(one, two))
