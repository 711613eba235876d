"""Lattice encryption for secure Hamming distances: exact results, an independent slow version, and what each side sees."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from threadpoolctl import threadpool_limits

from grapevine.core.errors import Mistake
from grapevine.crypto import lattice, mlwe
from grapevine.crypto.mlwe import Params
from grapevine.crypto.stream import Stream

Q = 1 << 80
TOY = dict(ring=8, rank=2)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The matrices here are small: a second thread only waits."""
    with threadpool_limits(1):
        yield


def random_bits(n, L, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, L), dtype=np.uint8)


def plain(B_j, B_k):
    return (B_j[:, None, :] != B_k[None, :, :]).sum(axis=2)


def exchange(params, B_j, B_k):
    secret, message = mlwe.encrypt(params, B_j)
    reply, share_k = mlwe.evaluate(params, message, B_k)
    return mlwe.combine(params, mlwe.decrypt(secret, reply, len(B_k)), share_k)


def stream(name):
    """A stream that repeats, so that a statistical test gives the same p-value every time."""
    return Stream(b"only for the tests".ljust(32), name.encode())


def fixed(params, B_j, B_k):
    secret, message = mlwe._encrypt(params, B_j, b"public seed for tests".ljust(32), stream("encrypt"))
    ((reply, share_k),) = mlwe._evaluate(params, [message], B_k, stream("evaluate"))
    return secret, message, reply, share_k


def drop(monkeypatch, what):
    """Takes one protection out."""
    if what == "flood":
        monkeypatch.setattr(mlwe, "_flood", lambda params, stream, shape: np.zeros((2, *shape), np.int64))
    if what == "zero":
        monkeypatch.setattr(mlwe, "_add_zero", lambda params, messages, sums, stream: None)
    if what == "veil":
        monkeypatch.setattr(mlwe, "_veil", lambda stream, shape: np.zeros(shape, np.int64))
    if what == "mask":
        monkeypatch.setattr(mlwe, "_mask", lambda params, stream, shape: np.zeros(shape, np.int64))


# ---- the result ----


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


def integers(array):
    return np.array(array, dtype=object)


def wire_integers(data):
    return integers([int.from_bytes(bytes(x), "little") for x in data.reshape(-1, data.shape[-1])]).reshape(data.shape[:-1])


def public_integers(params, message, label, count):
    low, high = (params.public(message["seed"], label, 0, limb, count).astype(object) for limb in (0, 1))
    return low + high * (1 << 40)


def centred(x):
    return (x + Q // 2) % Q - Q // 2


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


# ---- exactness ----


def test_sums_stay_below_2_to_53():
    assert Params(4096).dimension << mlwe.LIMB <= 1 << 53
    with pytest.raises(ValueError, match="at most 8192"):
        Params(4096, ring=512, rank=17)


@pytest.fixture(scope="module")
def security():
    path = Path(__file__).parents[2] / "benchmarks" / "mlwe_security.py"
    spec = importlib.util.spec_from_file_location("mlwe_security", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up there
        spec.loader.exec_module(module)
    return module


# ---- noise, flood and failure ----


def residual(params, secret, reply):
    """v - <u, s> as client j computes it, (n_k, n_j), in units of 2^(80 - kept)."""
    u, v = mlwe.from_bytes(reply["a"]), mlwe.from_bytes(reply["b"])
    u = u.reshape(-1, params.rank, params.ring)
    inner = [mlwe.convolve(u, s[:, None])[:, 0] for s in secret.s]
    return (v - np.concatenate(inner, axis=1)[:, : secret.points]) % (1 << params.kept)


def error_after(params, secret, reply):
    """The distance of that to the next multiple of q/t, centred."""
    step = 1 << (params.kept - params.log_t)
    return (residual(params, secret, reply) + step // 2) % step - step // 2


def test_error_before_the_flood_is_as_derived(security):
    """sum x_l e_l + w e_0 - e_1 s, measured on unrounded sums, against sigma sqrt(L + dimension (2/3 + sigma^2))."""
    params = Params(200, ring=64, rank=7)
    B_j, B_k = random_bits(64, 200, 1), random_bits(60, 200, 2)
    secret, message, _, _ = fixed(params, B_j, B_k)
    sums = np.zeros((2, 60, params.dimension + 64), np.int64)
    mlwe._add_columns(params, [message], B_k, sums)
    mlwe._add_zero(params, [message], sums, stream("zero"))
    u = [sums[limb, :, : params.dimension] for limb in (0, 1)]
    carry = u[1] + (u[0] >> 40) & mlwe.MASK, u[0] & mlwe.MASK
    parts = [mlwe.convolve(x.reshape(60, 7, 64), secret.s[0][:, None])[:, 0].astype(object) for x in carry]
    v = sums[0, :, params.dimension :].astype(object) + sums[1, :, params.dimension :].astype(object) * (1 << 40)
    wanted = ((1 - 2.0 * B_k) @ B_j.T).astype(int).astype(object) * (Q // params.t)
    error = centred(v - parts[1] - parts[0] * (1 << 40) - wanted).astype(float)
    assert abs(error.mean()) < 15
    assert error.std() == pytest.approx(security.error_sigma(params), rel=0.1)


def test_noise_after_flood_veil_and_rounding_stays_inside_its_bound(monkeypatch):
    """Flood of 2^63 and the rounding of u, sqrt(sigma^2 dimension / 12) units, add in squares; the margin is 2^18 units."""
    drop(monkeypatch, "mask")
    params = Params(4096, ring=64, rank=7)
    secret, _, reply, _ = fixed(params, random_bits(64, 4096, 1), random_bits(60, 4096, 2))
    error = error_after(params, secret, reply)
    assert error.std() == pytest.approx(math.hypot(2**15, math.sqrt((params.dimension * 3.2**2 + 1) / 12)), rel=0.03)
    assert np.abs(error).max() < 1.5 * 2**16 + 500
    veil = mlwe._veil(stream("veil"), (400, 500)).reshape(-1)
    assert stats.kstest(veil / mlwe.VEIL, "norm").pvalue > 1e-4 and np.abs(veil).max() < 8.7 * mlwe.VEIL
    for L in (1, 1023, 4096, 8191, 8192, 32768):  # the worst flood and the worst veil at once, and both shares cut
        p = Params(L)
        worst = 1.5 * 2.0 ** (p.flood_bits - 80 + p.kept) + 8.7 * mlwe.VEIL + 20 * math.sqrt(3584 * 3.2**2 / 12)
        assert worst < (2 ** (mlwe.GUARD - 1) - 1) * 2.0 ** (p.kept - p.share_bits)


def test_flood_distance_by_hand(security):
    """Worked out in docs/mlwe-parameters.md."""
    params = Params(4096)
    sigma_e = 3.2 * math.sqrt(4096 + 3584 * (2 / 3 + 3.2**2))
    assert security.error_sigma(params) == pytest.approx(sigma_e) == pytest.approx(665.0, abs=0.1)
    # ||E|| sqrt(4.562) / (2 * 2^64)
    by_hand = math.log2(sigma_e * 500 * math.sqrt(4.5621) / 2) - 64
    assert security.flood_distance(params, 500, 500) == pytest.approx(by_hand, abs=1e-3) == pytest.approx(-45.6, abs=0.06)
    for L in (1, 1024, 4096, 8192, 32768):
        assert security.flood_distance(Params(L), 500, 500) < -42


def three_uniforms(width):
    one = np.full(width, 1 / width)
    return np.convolve(np.convolve(one, one), one)


def test_the_distance_bound_holds_for_integer_floods(security):
    """TV(F, F + E) <= E sqrt(I) / (2 W): exact sums for small W, where integers are farthest from the continuous case."""
    integral = 2 * math.sqrt(3) * math.log(2 + math.sqrt(3))
    x = (np.arange(200_000) + 0.5) / 200_000 / 2
    middle = 2 * np.mean(4 * x**2 / (0.75 - x**2)) * 0.5
    assert 4 + middle == pytest.approx(integral, rel=1e-6) == pytest.approx(security.FISHER)
    for width in (64, 256, 1024):
        p = three_uniforms(width)
        roots = np.sqrt(np.concatenate([[0], p, [0]]))
        discrete = 4 * (np.diff(roots) ** 2).sum() * width**2
        assert integral < discrete < integral * (1 + 2 / width)
        for shift in (1, 3, 10):
            moved = np.concatenate([np.zeros(shift), p])
            distance = np.abs(moved - np.concatenate([p, np.zeros(shift)])).sum() / 2
            assert distance <= shift * math.sqrt(discrete) / (2 * width)


def test_flood_is_an_integer_of_the_right_size_with_random_low_bits():
    for L in (4096, 32768):
        params = Params(L)
        low, high = mlwe._flood(params, stream("flood"), (200, 200))
        value = low.astype(object) + high.astype(object) * (1 << 40)
        width = params.flood_bits
        scaled = (value.reshape(-1) / 2**width).astype(float)
        assert np.abs(scaled).max() <= 1.5
        assert stats.kstest(scaled, cubic).pvalue > 1e-4
        assert scaled.std() == pytest.approx(0.5, rel=0.02)
        for byte in range(5):
            counts = np.bincount((low.reshape(-1) >> 8 * byte) & 255, minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4


def cubic(x):
    """Distribution function of the sum of three uniforms, centred."""
    y = np.asarray(x) + 1.5
    return sum(sign * np.clip(y - k, 0, None) ** 3 for k, sign in enumerate([1, -3, 3, -1])) / 6


# ---- what each side sees, and that each protection is needed ----

SMALL = Params(12, ring=8, rank=2)


def view_of_j():
    """p-values of what the key holder sees of a partner whose points are all alike: v, uniform; u, uniform; and with the server,
    which tells it r, the error, against that of a simulator that knows only the sizes: flood, and the rounding of u and v."""
    B_j, B_k = random_bits(64, 12, 1), np.repeat(random_bits(1, 12, 2), 64, axis=0)
    masks, draw = [], mlwe._mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlwe, "_mask", lambda *told: masks.append(draw(*told)) or masks[-1])
        secret, _, reply, _ = fixed(SMALL, B_j, B_k)
    seen, step = residual(SMALL, secret, reply), 1 << 28
    error = (seen - masks[0] + step // 2) % step - step // 2
    rng = np.random.default_rng(5)
    flood = (rng.random((3, 64, 64)).sum(axis=0) - 1.5) * 2.0**16
    rounding = rng.uniform(-0.5, 0.5, (64, 2, 8))  # of u, before <u, s> is taken
    noise = np.concatenate([np.einsum("kif,ifc->kc", rounding, negacyclic(s)) for s in secret.s], axis=1)
    top = mlwe.from_bytes(reply["a"]).reshape(-1) >> 28
    digits = [np.bincount((seen.reshape(-1) >> shift) & 15, minlength=16) for shift in range(0, 32, 4)]
    return dict(
        mask=min(stats.chisquare(counts).pvalue for counts in digits),
        flood=stats.ks_2samp(error.reshape(-1), np.rint(flood + noise).reshape(-1), method="asymp").pvalue,
        zero=stats.chisquare(np.bincount(top, minlength=16)).pvalue,
    )


def negacyclic(s):
    """M[i, d, c]: the coefficient of x^c in x^d s_i."""
    rank, ring = s.shape
    out = np.zeros((rank, ring, ring))
    for d in range(ring):
        for e in range(ring):
            out[:, d, (d + e) % ring] += s[:, e] if d + e < ring else -s[:, e]
    return out


def test_view_of_the_key_holder_is_the_simulators():
    assert min(view_of_j().values()) > 1e-4


@pytest.mark.parametrize("protection", ["mask", "flood", "zero"])
def test_view_of_the_key_holder_tells_when_a_protection_is_missing(monkeypatch, protection):
    """Equal points give equal u without the encryption of zero, so that too shows in the distribution of u."""
    drop(monkeypatch, protection)
    p_values = view_of_j()
    assert p_values.pop(protection) < 1e-12
    assert min(p_values.values()) > 1e-4


def recover_bits(message, reply):
    """The key holder's attack: which sum of the public a_l, with signs, has the u that came back? Needs no key at all."""
    candidates = (np.arange(1 << 12)[:, None] >> np.arange(12) & 1).astype(np.uint8)
    sums = np.zeros((2, 1 << 12, SMALL.dimension + message["bodies"].shape[1]), np.int64)
    mlwe._add_columns(SMALL, [message], candidates, sums)
    guesses = mlwe.to_bytes(mlwe._round(SMALL, sums)[:, : SMALL.dimension], 4)
    return [candidates[(guesses == u).all(axis=(1, 2))] for u in reply["a"]]


@pytest.mark.parametrize("protection", ["none", "mask", "flood"])
def test_without_the_encryption_of_zero_the_key_holder_recovers_every_bit(monkeypatch, protection):
    """Trap 5. Mask and flood do not help against it: they only touch the body."""
    B_j, B_k = random_bits(4, 12, 1), random_bits(20, 12, 2)
    drop(monkeypatch, protection)
    _, message, reply, _ = fixed(SMALL, B_j, B_k)
    assert [len(found) for found in recover_bits(message, reply)] == [0] * 20
    drop(monkeypatch, "zero")
    _, message, reply, _ = fixed(SMALL, B_j, B_k)
    assert [found.tolist() for found in recover_bits(message, reply)] == [[row.tolist()] for row in B_k]


def test_without_the_flood_the_error_correlates_with_the_bits(monkeypatch):
    """j knows its e_l: in the exact error, before rounding, sum x_l e_l stands out unless the flood drowns it."""

    def correlation():
        params = Params(100, **TOY)
        B_j, B_k = random_bits(8, 100, 1), random_bits(300, 100, 2)
        secret, message, _, _ = fixed(params, B_j, B_k)
        sums = np.zeros((2, 300, params.dimension + 8), np.int64)
        mlwe._add_columns(params, [message], B_k, sums)
        mlwe._add_zero(params, [message], sums, stream("zero"))
        sums[:, :, params.dimension :] += mlwe._flood(params, stream("flood"), (300, 8))
        value = (sums[0].astype(object) + sums[1].astype(object) * (1 << 40)) % Q
        s = negacyclic(secret.s[0]).reshape(16, 8).astype(int).astype(object)
        x = 1 - 2 * B_k.astype(int)
        error = centred(value[:, 16:] - value[:, :16] @ s - (x @ B_j.T).astype(object) * (Q // params.t)).astype(float)
        a = public_integers(params, message, "columns", 100).reshape(100, 16)
        e = centred(wire_integers(message["bodies"]) - a @ s - B_j.T.astype(object) * (Q // params.t)).astype(int)
        return abs(np.corrcoef((x @ e).reshape(-1), error.reshape(-1))[0, 1])

    assert correlation() < 0.1
    drop(monkeypatch, "flood")
    assert correlation() > 0.5


def test_server_sees_uniform_shares():
    B_j, B_k = random_bits(64, 12, 1), np.zeros((64, 12), np.uint8)
    secret, _, reply, share_k = fixed(SMALL, B_j, B_k)
    for share in (share_k, mlwe.decrypt(secret, reply, 64)):
        assert stats.chisquare(np.bincount(mlwe.open_share(SMALL, share).reshape(-1), minlength=128)).pvalue > 1e-4


@pytest.mark.parametrize("keyed", [True, False])
def test_bodies_and_public_key_look_uniform(monkeypatch, keyed):
    """For rows that are all alike, every byte of what is sent is uniform; with a key of zero it would not be."""
    params = Params(64, ring=32, rank=7)
    if not keyed:
        monkeypatch.setattr(mlwe, "gauss", lambda stream, shape: np.zeros(shape, np.int8))
    _, message = mlwe._encrypt(params, np.ones((32, 64), np.uint8), b"seed".ljust(32), stream("encrypt"))
    for part in (message["bodies"], message["key"]):
        counts = [np.bincount(part[..., byte].reshape(-1) >> 4, minlength=16) for byte in range(10)]
        assert (min(stats.chisquare(count).pvalue for count in counts) > 1e-5) == keyed


# ---- wire, storage and bad input ----


@pytest.mark.parametrize("n_j, n_k, L", [(5, 3, 12), (11, 4, 100), (2, 2, 9000)])
def test_sizes_are_what_is_sent(n_j, n_k, L):
    params = Params(L, **TOY)
    secret, message = mlwe.encrypt(params, random_bits(n_j, L, 1))
    reply, R = mlwe.evaluate(params, message, random_bits(n_k, L, 2))
    T = mlwe.decrypt(secret, reply, n_k)
    sent = dict(
        up=len(message["seed"]) + message["bodies"].nbytes + message["key"].nbytes,
        common=reply["a"].nbytes,
        back=reply["b"].nbytes,
        server=T["values"].nbytes + R["values"].nbytes,
    )
    assert sent == mlwe.sizes(params, n_j, n_k)


def test_sizes_of_the_papers_setting():
    sizes = mlwe.sizes(Params(4096), 500, 500)
    assert sizes == dict(up=32 + 10 * (4096 * 500 + 3584), common=4 * 500 * 3584, back=4 * 500 * 500, server=2 * 500_000)


def test_shares_keep_every_value(monkeypatch):
    monkeypatch.setattr(mlwe, "VALUES", 40)
    for L in (1, 12, 900, 4096):
        params = Params(L, **TOY)
        values = np.arange(8 * params.t).repeat(3).reshape(3, -1)
        share = mlwe._share(params, values << (params.kept - params.share_bits))
        assert (mlwe.open_share(params, share) == values).all()


def test_secret_survives_storage_and_does_not_show():
    params = Params(9, **TOY)
    B_j, B_k = random_bits(11, 9, 1), random_bits(2, 9, 2)
    secret, message = mlwe.encrypt(params, B_j)
    reply, R = mlwe.evaluate(params, message, B_k)
    back = mlwe.Secret.from_bytes(params, secret.to_bytes())
    assert (mlwe.combine(params, mlwe.decrypt(back, reply, 2), R) == plain(B_j, B_k)).all()
    assert repr(secret) == f"Secret(params={params!r}, points=11)"
    for bad in (b"", secret.to_bytes()[:-1], bytes(4), secret.to_bytes()[:-1] + b"\x3b"):
        with pytest.raises(Mistake, match="start the exchange again"):
            mlwe.Secret.from_bytes(params, bad)


def test_bad_bits_are_refused():
    params = Params(9, **TOY)
    good = random_bits(3, 9)
    message = mlwe.encrypt(params, good)[1]
    for bad in (good[:, :8], good[:0], good + 2, good.astype(float), good[0]):
        with pytest.raises(Mistake, match="cannot be compared"):
            mlwe.encrypt(params, bad)
        with pytest.raises(Mistake, match="cannot be compared"):
            mlwe.evaluate(params, message, bad)
    for bits in (0, 32769):
        with pytest.raises(Mistake, match="--bits"):
            Params(bits)


def test_bad_messages_are_refused():
    params = Params(9, **TOY)
    secret, message = mlwe.encrypt(params, random_bits(3, 9))
    B_k = random_bits(2, 9)
    reply, share = mlwe.evaluate(params, message, B_k)

    def without(message, key, value=None):
        return {**message, key: value}

    bodies, key = message["bodies"], message["key"]
    for bad in (
        *(without(message, name) for name in message),
        without(message, "seed", b"short"),
        without(message, "bodies", bodies[:-1]),
        without(message, "bodies", bodies[:, :0]),
        without(message, "bodies", bodies[..., :9]),
        without(message, "bodies", bodies.astype(np.int64)),
        without(message, "key", key[:, :1]),
        without(message, "key", np.concatenate([key, key])),
    ):
        with pytest.raises(Mistake):
            mlwe.evaluate(params, bad, B_k)
    for bad in (
        {},
        without(reply, "a", reply["a"][:1]),
        without(reply, "b", reply["b"][:, :2]),
        without(reply, "a", reply["a"][:, :3]),
        {name: part[:1] for name, part in reply.items()},
        {name: np.concatenate([part, part]) for name, part in reply.items()},
        {name: part[:0] for name, part in reply.items()},
    ):
        with pytest.raises(Mistake):
            mlwe.decrypt(secret, bad, 2)
    T = mlwe.decrypt(secret, reply, 2)
    for bad in (
        {},
        without(T, "rows", 0),
        without(T, "rows", 4),
        without(T, "values", T["values"][:-1]),
        without(T, "columns", True),
    ):
        with pytest.raises(Mistake):
            mlwe.combine(params, bad, share)
    with pytest.raises(Mistake, match="do not match"):
        mlwe.combine(params, without(without(T, "rows", 2), "columns", 3), share)
    with pytest.raises(Mistake, match="a distance of 15 between 9 bits"):
        mlwe.combine(params, mlwe._share(params, np.full((2, 2), 15 << 28)), mlwe._share(params, np.zeros((2, 2), np.int64)))


# ---- hardness ----


def test_hardness_estimate_agrees_with_the_lattice_estimators_published_figures(security):
    for lwe, beta, d, core, gates in security.KNOWN.values():
        ours = security.primal(lwe)
        assert ours[0] == beta and ours[1] == pytest.approx(d, abs=1)
        assert security.core_svp(ours[0]) == pytest.approx(core, abs=0.1)
        assert security.matzov(*ours) == pytest.approx(gates, abs=0.1)


def test_our_parameters_are_hard_enough(security):
    """Harder than Kyber512 (NIST level 1) in core-SVP bits, and above 145 bits of gates, for both secrets in use; the key with
    what 2,000 rows of partners that collude with the server tell about it."""
    params = Params(4096)
    kyber = security.core_svp(security.primal(security.KNOWN["Kyber512"][0])[0])
    for lwe in (security.key(params, 2000), security.zero(params)):
        beta, d = security.primal(lwe)
        assert security.core_svp(beta) > kyber and security.matzov(beta, d) > 145
        assert security.dual(lwe)[2] > kyber


def test_the_hints_weigh_as_little_as_derived(security):
    """The largest eigenvalue of the hints' Gram matrix, root by root, for 200 rows of random rounding errors: below the bound."""
    params, rows = Params(4096), 200
    rounding = np.random.default_rng(0).uniform(-0.5, 0.5, (rows, params.rank, params.ring))
    spectrum = lattice._spectrum(rounding).transpose(2, 0, 1)
    largest = np.linalg.norm(spectrum, 2, axis=(1, 2)).max() ** 2
    assert 0.5 * security.hints(params, rows) < largest < security.hints(params, rows)
    assert security.key(params, 2000).secret == pytest.approx(2.23, abs=0.01)


# ---- full size ----


@pytest.mark.slow
def test_the_papers_setting_at_full_size():
    B_j, B_k = random_bits(500, 4096, 1), random_bits(500, 4096, 2)
    B_k[0], B_k[1] = B_j[0], 1 - B_j[1]
    h = exchange(Params(4096), B_j, B_k)
    x, y = 1 - 2.0 * B_j, 1 - 2.0 * B_k
    assert h[0, 0] == 0 and h[1, 1] == 4096
    assert (h == (4096 - x @ y.T) / 2).all()
