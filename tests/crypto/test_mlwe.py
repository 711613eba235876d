"""Lattice encryption for secure Hamming distances: exact results, work by hand, and an independent slow version."""

import numpy as np
import pytest
from mlwe_exchange import TOY, Q, centred, drop, exchange, integers, plain, public_integers, random_bits, wire_integers

from grapevine.crypto import lattice, mlwe
from grapevine.crypto.mlwe import Params
from grapevine.crypto.stream import Stream

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("n_j, n_k, L", [(1, 1, 1), (1, 1, 64), (1, 9, 13), (7, 1, 100), (40, 30, 257)])
def test_equals_plain(n_j, n_k, L):
    B_j, B_k = random_bits(n_j, L, 1), random_bits(n_k, L, 2)
    h = exchange(Params(L), B_j, B_k)
    assert h.dtype == np.uint16 and h.shape == (n_j, n_k)
    assert (h == plain(B_j, B_k)).all()


def test_more_points_than_the_ring_has_coefficients():
    B_j, B_k = random_bits(515, 20, 1), random_bits(3, 20, 2)
    assert (exchange(Params(20), B_j, B_k) == plain(B_j, B_k)).all()


@pytest.mark.parametrize("L", [1, 2, 3, 4, 1023, 1024, 4095, 4096, 4097, 8191, 8192, 16384, 32767, 32768])
def test_distance_zero_and_L_stay_apart(L):
    """Both ends of the range, at and beside every power of two, where a modulus of L or 2^k = L would wrap."""
    B_j = random_bits(2, L, 3)
    B_k = np.concatenate([B_j, 1 - B_j])
    h = exchange(Params(L, **TOY), B_j, B_k)
    assert h[0, 0] == h[1, 1] == 0 and h[0, 2] == h[1, 3] == L
    assert (h == plain(B_j, B_k)).all()


def test_all_ones_and_all_zeros():
    B = np.stack([np.zeros(4096, np.uint8), np.ones(4096, np.uint8)])
    assert exchange(Params(4096, **TOY), B, B).tolist() == [[0, 4096], [4096, 0]]


def test_pieces_do_not_change_the_result(monkeypatch):
    """Columns, points and rows cut into many pieces."""
    monkeypatch.setattr(mlwe, "COLUMNS", 5)
    monkeypatch.setattr(mlwe, "POINTS", 3)
    monkeypatch.setattr(lattice, "ROWS", 2)
    monkeypatch.setattr(mlwe, "VALUES", 8)
    B_j, B_k = random_bits(21, 23, 1), random_bits(10, 23, 2)
    assert (exchange(Params(23, **TOY), B_j, B_k) == plain(B_j, B_k)).all()


def test_one_message_serves_many_partners_and_nothing_repeats():
    params = Params(30, **TOY)
    B_j, B_k, B_m = random_bits(5, 30, 1), random_bits(4, 30, 2), random_bits(6, 30, 3)
    secret, message = mlwe.encrypt(params, B_j)
    for B in (B_k, B_k, B_m):
        reply, R = mlwe.evaluate(params, message, B)
        assert (mlwe.combine(params, mlwe.decrypt(secret, reply, len(B)), R) == plain(B_j, B)).all()
    again = mlwe.evaluate(params, message, B_m)
    assert (reply["a"] != again[0]["a"]).any() and (R["values"] != again[1]["values"]).any()
    other = mlwe.encrypt(params, B_j)[1]
    assert message["seed"] != other["seed"] and (message["bodies"] != other["bodies"]).mean() > 0.9


def test_partners_with_one_seed_are_answered_together():
    """u is the same for both, made once; with seeds of their own they have each their own. Results are those of one by one."""
    params, B = Params(30, **TOY), [random_bits(n, 30, n) for n in (5, 11, 4)]
    seeds = [b"common".ljust(32), b"common".ljust(32), b"own".ljust(32)]
    made = [mlwe.encrypt(params, rows, seed) for rows, seed in zip(B, seeds)]
    B_k = random_bits(7, 30, 9)
    replies, shares = mlwe.evaluate_all(params, {str(i): message for i, (_, message) in enumerate(made)}, B_k)
    for i, (secret, _) in enumerate(made):
        T = mlwe.decrypt(secret, replies[str(i)], 7)
        assert (mlwe.combine(params, T, shares[str(i)]) == plain(B[i], B_k)).all()
    assert (replies["0"]["a"] == replies["1"]["a"]).all() and (replies["0"]["a"] != replies["2"]["a"]).any()
    assert (replies["0"]["b"][:, :5] != replies["1"]["b"][:, :5]).any()


def test_the_key_does_not_come_from_the_public_seed():
    """Two keys for one seed are different, and so are their errors: nobody can draw them again from what is sent."""
    params, seed, B = Params(40, ring=64, rank=2), b"public".ljust(32), random_bits(64, 40)
    (first, one), (second, other) = (mlwe.encrypt(params, B, seed) for _ in range(2))
    assert (first.s != second.s).mean() > 0.8 and (one["bodies"] != other["bodies"]).mean() > 0.9
    for label in ("mlwe encrypt", "mlwe columns", "mlwe key"):
        guess = lattice.gauss(Stream(seed, mlwe.context(label)), first.s.shape)
        assert (guess == first.s).mean() < 0.5


def test_sums_stay_below_2_to_53():
    assert Params(4096).dimension << mlwe.LIMB <= 1 << 53
    with pytest.raises(ValueError, match="at most 8192"):
        Params(4096, ring=512, rank=17)


@pytest.mark.slow
def test_the_papers_setting_at_full_size():
    B_j, B_k = random_bits(500, 4096, 1), random_bits(500, 4096, 2)
    B_k[0], B_k[1] = B_j[0], 1 - B_j[1]
    h = exchange(Params(4096), B_j, B_k)
    x, y = 1 - 2.0 * B_j, 1 - 2.0 * B_k
    assert h[0, 0] == 0 and h[1, 1] == 4096
    assert (h == (4096 - x @ y.T) / 2).all()


# ---- against hand work and an independent slow version ----


def test_scalar_case_by_hand(monkeypatch):
    """Ring of degree 1, rank 1, no noise: every number of the exchange can be worked out.

    L = 3, t = 4, B_j = 101, b' = 110, h = 2. Secret s = 1, a = (10, 20, 30), so b_l = a_l + (q/4) (1, 0, 1).
    x = (-1, -1, 1): u = -10 - 20 + 30 = 0 and v = 0 + (q/4)(-1 + 0 + 1) = 0. With w = 1, A_0 = 7 (so p = 7): u = v = 7, which the
    rounding to 32 bits takes off. With r = 3 (2^30) + 5, in units of 2^48: v = r, T = r, R = r - 2 (2^30). Of 32 bits the top
    five travel: T = 24, R = 8, and h = round(16 / 8) = 2.
    """
    params = Params(3, ring=1, rank=1)
    public = {"columns": [10, 20, 30], "key": [7]}

    def expand(seed, label, piece, limb, shape):
        return np.array(public[label]).reshape(shape) * (limb == 0)

    monkeypatch.setattr(mlwe, "expand", expand)
    monkeypatch.setattr(mlwe, "ternary", lambda stream, shape: np.ones(shape, np.int8))
    draws = iter([np.ones((1, 1, 1), np.int8)])  # the key; all errors are nought
    monkeypatch.setattr(mlwe, "gauss", lambda stream, shape: next(draws, np.zeros(shape, np.int8)))
    monkeypatch.setattr(mlwe, "_mask", lambda params, stream, shape: np.full(shape, (3 << 30) + 5))
    drop(monkeypatch, "flood")
    drop(monkeypatch, "veil")
    secret, message = mlwe.encrypt(params, np.array([[1, 0, 1]], np.uint8))
    bodies = [int.from_bytes(bytes(x), "little") for x in message["bodies"][:, 0]]
    assert bodies == [10 + Q // 4, 20, 30 + Q // 4]
    reply, share_k = mlwe.evaluate(params, message, np.array([[1, 1, 0]], np.uint8))
    share_j = mlwe.decrypt(secret, reply, 1)
    assert int.from_bytes(bytes(reply["b"][0, 0]), "little") == (3 << 30) + 5
    assert mlwe.open_share(params, share_j).item() == 24 and mlwe.open_share(params, share_k).item() == 8
    assert mlwe.combine(params, share_j, share_k).item() == 2


def slow_multiply(f, g):
    """Product of two polynomials mod x^n + 1 and q, in Python's integers."""
    n = len(f)
    out = [0] * n
    for i, x in enumerate(f):
        for d, y in enumerate(g):
            out[(i + d) % n] += x * y if i + d < n else -x * y
    return out


def slow_inner(fs, gs):
    """sum_i f_i g_i."""
    return [sum(c) for c in zip(*(slow_multiply(f, g) for f, g in zip(fs, gs)))]


def test_every_message_against_big_integers(monkeypatch):
    """The same scheme in Python integers, coefficient by coefficient, with the drawn randomness written down on the way."""
    params = Params(12, ring=4, rank=3)
    B_j, B_k = random_bits(6, 12, 1), random_bits(3, 12, 2)
    secret, message = mlwe.encrypt(params, B_j)
    drawn = {}

    def recorded(name, real):
        def draw(*args):
            drawn[name] = real(*args)
            return drawn[name]

        return draw

    for name in ("ternary", "gauss", "_flood", "_mask", "_veil"):
        monkeypatch.setattr(mlwe, name, recorded(name, getattr(mlwe, name)))
    reply, share_k = mlwe.evaluate(params, message, B_k)

    s = secret.s.tolist()
    a, A_0 = public_integers(params, message, "columns", 12), public_integers(params, message, "key", 3)
    b, p = wire_integers(message["bodies"]), wire_integers(message["key"])
    step = Q // 16  # t = 16 > 12
    # the message: b_l = <a_l, s> + e_l + (q/t) bits, with the last block of rows cut short, and p = A_0 s + e_0
    for l in range(12):
        for row in range(6):
            inner = slow_inner(a[l].tolist(), s[row // 4])[row % 4]
            assert abs(centred(b[l, row] - inner - step * int(B_j[row, l]))) <= lattice.TAIL
    for block in range(2):
        for i in range(3):
            inner = integers(slow_inner(A_0[i].tolist(), s[block]))
            assert all(abs(centred(x)) <= lattice.TAIL for x in p[block, i] - inner)
    # the reply
    w, e_1, r = drawn["ternary"], drawn["gauss"].reshape(3, 3, 4), drawn["_mask"]
    flood = drawn["_flood"][0].astype(object) + drawn["_flood"][1].astype(object) * (1 << 40)
    for k in range(3):
        x = [1 - 2 * int(bit) for bit in B_k[k]]
        u = sum(sign * column for sign, column in zip(x, a)) + e_1[k].astype(object)
        for m in range(3):
            u[m] = u[m] + integers(slow_inner(A_0[:, m].tolist(), w[k].tolist()))
        v = sum(sign * column for sign, column in zip(x, b)) + flood[k]
        zero = [c for block in range(2) for c in slow_inner(p[block].tolist(), w[k].tolist())]
        v = v + integers(zero[:6])

        def rounded(value, mask=(0,) * 12):
            return [((int(c) + (1 << 47) >> 48) + int(m)) % (1 << 32) for c, m in zip(value, mask)]

        assert wire_integers(reply["a"][k]).tolist() == rounded(u.reshape(-1))
        assert wire_integers(reply["b"][k]).tolist() == rounded(v, r[k])
    # the shares: of 32 bits the top seven
    T = mlwe.open_share(params, mlwe.decrypt(secret, reply, 3)).astype(int)
    R = mlwe.open_share(params, share_k).astype(int)
    y = drawn["_veil"]
    assert (R == (r - (B_k.sum(axis=1, dtype=np.int64)[:, None] << 28) >> 25).T % 128).all()
    for k in range(3):
        a_k, b_k = wire_integers(reply["a"][k]).reshape(3, 4), wire_integers(reply["b"][k])
        inner = [c for block in range(2) for c in slow_inner(a_k.tolist(), s[block])][:6]
        assert T[:, k].tolist() == [(int(v) - i + int(n) >> 25) % 128 for v, i, n in zip(b_k, inner, y[k])]
