"""ot: the group, both layers of transfers, the hash and the sliced sums each against a slow version, and what each side sees."""

import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from uniformity import LEVEL, looks_uniform

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.crypto import naor_pinkas, ot
from grapevine.crypto.ot import Hash, Plan, Receiver, Sender
from grapevine.crypto.stream import context, hkdf

INFO = b"session, round, roster, ids"


def random_bits(n, length, seed=0):
    return np.random.default_rng([seed, n, length]).integers(0, 2, (n, length), dtype=np.uint8)


def plain_distances(y, x):
    return (y[:, None, :] != x[None, :, :]).sum(axis=2)


def send(message):
    return wire.decode(wire.encode(message))


@pytest.fixture(scope="module")
def base():
    """One real run of the base transfers, every message through the codec: what the two sides have of them."""
    delta, (r, offer) = ot.fresh_delta(), naor_pinkas.offer()
    known, reply = naor_pinkas.choose(send(offer), ot.delta_bits(delta), INFO)
    return dict(delta=delta, keys=known), dict(keys=naor_pinkas.both_keys(r, offer, send(reply), INFO), offer=offer)


def sides(base, y, x, chunk_bytes=ot.CHUNK_BYTES):
    """A sender and a receiver that have the base transfers behind them. Tests share one run of these; parties never do."""
    j, k = base
    return Sender(y, len(x), INFO, **j, chunk_bytes=chunk_bytes), Receiver(x, len(y), INFO, k["keys"], chunk_bytes)


def run(base, y, x, chunk_bytes=ot.CHUNK_BYTES):
    """All chunks, a fresh object for every message: H, the two shares, and the messages."""
    j, k = sides(base, y, x, chunk_bytes)
    seen = []
    for chunk in range(j.plan.chunks):
        request = send(k.request(chunk))
        j = Sender(y, len(x), INFO, **base[0], chunk_bytes=chunk_bytes, done=send(j.to_dict()))
        reply = send(j.transfer(request))
        k = Receiver(x, len(y), INFO, base[1]["keys"], chunk_bytes, send(k.to_dict()))
        k.receive(reply)
        seen.append((request, reply))
    J, K = send(j.share()), send(k.share())
    return ot.distances(J, K, len(y), len(x), y.shape[1]), J["share"], K["share"], seen


# ------------------------------------------------------------------------------------------------------------- extension


@pytest.mark.parametrize("points, length", [(1, 1), (3, 43), (2, 64), (5, 100)])
def test_sender_s_line_is_the_receiver_s_xor_choice_times_delta(base, points, length):
    x = random_bits(points, length)
    j, k = sides(base, random_bits(2, length), x)
    q, t = j.lines(0, k.request(0)["u"]), k.lines(0)
    delta = np.frombuffer(base[0]["delta"], np.uint64)
    count = points * length
    assert (q[:count] == (t[:count] ^ x.reshape(-1, 1).astype(np.uint64) * delta)).all()
    assert len({line.tobytes() for line in t[:count]}) == count


def test_chunks_use_new_randomness(base):
    j, k = sides(base, random_bits(1, 64), random_bits(2, 64), chunk_bytes=1)
    assert (k.lines(0) != k.lines(1)).any(axis=1).all()


def test_u_is_uniform_and_is_the_choices_when_both_seeds_agree(base):
    x = np.ones((8, 2048), np.uint8)
    _, k = sides(base, random_bits(1, 2048), x)
    assert looks_uniform(k.request(0)["u"].reshape(-1))
    k._keys = np.stack([k._keys[0], k._keys[0]])
    assert (k.request(0)["u"] == 255).all()


# ------------------------------------------------------------------------------------------------------------------ hash


def test_hash_is_tmmo_block_by_block():
    lines = np.random.default_rng(3).integers(0, 2**64, (5, 2), dtype=np.uint64)
    key = hkdf(INFO, context("tmmo", chunk=4), 16)

    def permute(block):
        cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        return int.from_bytes(cipher.update(block.to_bytes(16, "little")) + cipher.finalize(), "little")

    out = Hash(INFO, 4, 3)(lines, 1000)
    assert out.shape == (5, 6)
    for number, line in enumerate(lines):
        inner = permute(int.from_bytes(line.tobytes(), "little"))
        for block in range(3):
            tweak = block + ((1000 + number) << 64)
            slow = permute(inner ^ tweak) ^ inner
            assert out[number, 2 * block : 2 * block + 2].tobytes() == slow.to_bytes(16, "little")


def test_equal_lines_hash_apart_by_number_block_chunk_and_session():
    line = np.ones((2, 2), np.uint64)
    out = Hash(INFO, 0, 2)(line, 0)
    others = [Hash(INFO, 1, 2)(line, 0), Hash(b"other", 0, 2)(line, 0)]
    blocks = [block.tobytes() for one in (out, *others) for block in one.reshape(-1, 2)]
    assert len(set(blocks)) == 12


# ---------------------------------------------------------------------------------------------------- equality with plain


@pytest.mark.parametrize(
    "rows, points, length, chunk_bytes",
    [
        (1, 1, 1, 1),
        (1, 1, 13, ot.CHUNK_BYTES),
        (1, 7, 100, 1),
        (70, 3, 100, 10_000),
        (9, 20, 33, 1),
        (130, 5, 257, 50_000),
        (64, 2, 4096, 1 << 20),
        (600, 3, 64, ot.CHUNK_BYTES),
    ],
)
def test_equals_plain(base, rows, points, length, chunk_bytes):
    y, x = random_bits(rows, length, 1), random_bits(points, length, 2)
    H, J, K, seen = run(base, y, x, chunk_bytes)
    assert (H == plain_distances(y, x)).all() and H.shape == (rows, points)
    assert len(seen) == ot.cost(rows, points, length, chunk_bytes)["chunks"]


@pytest.mark.parametrize("length", [1, 7, 8, 64])
def test_distances_of_nought_and_of_all(base, length):
    # 8 and 64 are their own trap: modulo L, a distance of L would be one of nought.
    y = np.concatenate([random_bits(4, length), np.zeros((1, length), np.uint8), np.ones((1, length), np.uint8)])
    x = np.concatenate([y, 1 - y])
    H = run(base, y, x)[0]
    assert (H == plain_distances(y, x)).all() and H.max() == length and H.min() == 0


def test_more_than_sixteen_bits(base):
    y, x = random_bits(2, 70_000, 1), random_bits(1, 70_000, 2)
    H, J, _, _ = run(base, y, x)
    assert (H == plain_distances(y, x)).all() and J.dtype == np.uint32


def test_cost_is_what_is_sent(base):
    y, x = random_bits(70, 100, 1), random_bits(9, 100, 2)
    _, J, K, seen = run(base, y, x, 20_000)
    cost = ot.cost(70, 9, 100, 20_000)
    assert cost["u"] == sum(request["u"].nbytes for request, _ in seen)
    assert cost["tau"] == sum(reply["tau"].nbytes for _, reply in seen) and len(seen) == cost["chunks"] > 1
    assert cost["server"] == J.nbytes + K.nbytes
    assert cost["base"] == sum(len(part) for part in base[1]["offer"].values()) + 128 * naor_pinkas.ELEMENT


def test_reference_size_has_the_stated_bytes():
    cost = ot.cost(500, 500, 4096)
    assert abs(cost["tau"] / 1.66e9 - 1) < 0.1 and abs(cost["u"] / 33e6 - 1) < 0.1
    # A chunk is what it says, however many rows: never more than the bound or 64 transfers.
    for rows in (1, 500, 10**6):
        plan = Plan(rows, 3, 4096)
        assert np.prod(plan.tau_shape(0)) <= max(ot.CHUNK_BYTES, 64 * plan.width * plan.plane_bytes)


@pytest.mark.parametrize("rows, points", [(1, 300), (400, 5)])
def test_memory_stays_below_its_bound(base, rows, points):
    y, x = random_bits(rows, 1000, 1), random_bits(points, 1000, 2)
    chunk_bytes = 1 << 20
    j, k = sides(base, y, x, chunk_bytes)
    assert j.plan.chunks >= 2
    request = k.request(0)
    tracemalloc.start()
    try:
        reply = j.transfer(request)
        sender = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        k.receive(reply)
        receiver = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    bound = ot.cost(rows, points, 1000, chunk_bytes)["memory"]
    assert max(sender, receiver) < bound


# ------------------------------------------------------------------------------------------------------ what each side sees


def uniform_bits(values, width):
    """Chi-square over all 2^width values."""
    assert values.size >= 10 * 2**width
    return stats.chisquare(np.bincount(values.reshape(-1), minlength=2**width)).pvalue > LEVEL


def test_shares_are_uniform_and_their_difference_is_the_distance(base):
    # All rows alike and all points alike: only the pads can spread the shares over Z_256.
    y, x = np.ones((64, 128), np.uint8), np.zeros((64, 128), np.uint8)
    H, J, K, _ = run(base, y, x)
    assert (H == 128).all() and uniform_bits(J, 8) and uniform_bits(K, 8)


def test_shares_are_not_uniform_without_pads(base, monkeypatch):
    monkeypatch.setattr(Hash, "__call__", lambda self, lines, first: np.zeros((len(lines), 2 * self.blocks), np.uint64))
    y, x = random_bits(64, 128), random_bits(64, 128)
    H, J, K, _ = run(base, y, x)
    assert (H == plain_distances(y, x)).all()  # still right, and still wrong to send
    assert not uniform_bits(J, 8) and not uniform_bits(K, 8)
    assert (J == -y.sum(axis=1, dtype=int) % 256).all()  # the weights of j's rows, in the clear


def test_tau_is_uniform_for_either_choice(base):
    for x in (np.zeros((20, 40), np.uint8), np.ones((20, 40), np.uint8)):
        seen = run(base, np.ones((64, 40), np.uint8), x)[3]
        assert looks_uniform(np.concatenate([reply["tau"].reshape(-1) for _, reply in seen]))


def test_tau_shows_the_bits_when_delta_is_nought(base):
    """Then both pads are one, and τ is 1 − 2y: its bits above the lowest are y."""
    j, k = base
    no_delta = j | {"delta": bytes(16), "keys": k["keys"][0]}
    y, x = random_bits(64, 40, 3), random_bits(2, 40, 4)
    H, _, _, seen = run((no_delta, k), y, x)
    tau = np.unpackbits(seen[0][1]["tau"], axis=2, bitorder="little")
    assert (H == plain_distances(y, x)).all()
    assert (tau[:, 0] == 1).all() and (tau[:40, 1:] == y.T[:, None, :]).all()
    # With a Δ they are not.
    tau = np.unpackbits(run(base, y, x)[3][0][1]["tau"], axis=2, bitorder="little")
    assert 0.4 < (tau[:40, 1] == y.T).mean() < 0.6


def test_what_k_computes_from_tau_is_uniform_for_either_choice(base):
    """s and s + (1 − 2y), with y all ones: k's sums over one bit."""
    for choice in (0, 1):
        y, x = np.ones((64, 1), np.uint8), np.full((200, 1), choice, np.uint8)
        K = run(base, y, x)[2]
        assert uniform_bits(K, 1)


def test_repr_shows_no_secret(base):
    j, k = sides(base, random_bits(2, 8), random_bits(3, 8))
    for side, secret in ((j, base[0]["delta"]), (k, base[1]["keys"][0, 0].tobytes())):
        assert "hidden" in repr(side) and secret.hex() not in repr(side) and str(secret) not in repr(side)


# ------------------------------------------------------------------------------------------------------------- bad messages


def test_broken_requests_are_refused(base):
    j, k = sides(base, random_bits(3, 20), random_bits(4, 20))
    request = k.request(0)
    u = request["u"]
    for wrong in (
        {},
        {"chunk": 0},
        request | {"chunk": 1},
        request | {"chunk": -1},
        request | {"chunk": "0"},
        request | {"chunk": False},
        request | {"u": u[:127]},
        request | {"u": u[:, :-1]},
        request | {"u": u.astype(np.uint16)},
        request | {"u": u.tobytes()},
    ):
        with pytest.raises(Mistake):
            j.transfer(wrong)
    reply = j.transfer(request)
    with pytest.raises(Mistake, match="chunk 0 arrived but chunk 1 of 1 is due"):
        j.transfer(request)
    tau = reply["tau"]
    for wrong in ({}, reply | {"chunk": 1}, reply | {"tau": tau[1:]}, reply | {"tau": tau.astype(np.int8)}, reply | {"tau": b""}):
        with pytest.raises(Mistake):
            k.receive(wrong)
    with pytest.raises(Mistake, match="after 0 of 1 chunks"):
        k.share()
    k.receive(reply)
    J, K = j.share(), k.share()
    for wrong in ({}, {"share": K["share"][:1]}, {"share": K["share"].astype(int)}, {"share": K["share"] | 1 << 5}):
        with pytest.raises(Mistake):
            ot.distances(J, wrong, 3, 4, 20)
    with pytest.raises(Mistake, match="no distances among 20 bits"):
        ot.distances(J, {"share": (J["share"] + 21) % 32}, 3, 4, 20)


@pytest.mark.parametrize("points", [0, -1, True, 2.0])
def test_numbers_of_points_are_checked(points):
    with pytest.raises(Mistake, match="should be 1 or more"):
        Sender(random_bits(2, 8), points, INFO, bytes(16), np.zeros((128, 32), np.uint8))
    with pytest.raises(Mistake, match="should be 1 or more"):
        Receiver(random_bits(2, 8), points, INFO, np.zeros((2, 128, 32), np.uint8))


# ------------------------------------------------------------------------------------------------------------------ full size


@pytest.mark.slow
def test_reference_size(base):
    y, x = random_bits(500, 4096, 1), random_bits(500, 4096, 2)
    j, k = sides(base, y, x)
    for chunk in range(j.plan.chunks):
        k.receive(j.transfer(k.request(chunk)))
    H = ot.distances(j.share(), k.share(), 500, 500, 4096)
    sign_y, sign_x = 1.0 - 2.0 * y, 1.0 - 2.0 * x
    assert (H == (4096 - sign_y @ sign_x.T) / 2).all()
