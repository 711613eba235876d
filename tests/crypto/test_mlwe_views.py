"""What each side of mlwe sees, and what it could read if a protection were missing."""

import numpy as np
import pytest
from mlwe_exchange import TOY, Q, centred, drop, fixed, negacyclic, public_integers, random_bits, residual, stream, wire_integers
from scipy import stats

from grapevine.crypto import mlwe
from grapevine.crypto.mlwe import Params

pytestmark = pytest.mark.usefixtures("one_thread")

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
