"""Exchanges of mlwe as tests have them: over small rings, from streams that repeat, and with a protection taken out."""

import numpy as np

from grapevine.crypto import mlwe
from grapevine.crypto.stream import Stream

Q = 1 << 80
TOY = dict(ring=8, rank=2)


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


def integers(array):
    return np.array(array, dtype=object)


def wire_integers(data):
    return integers([int.from_bytes(bytes(x), "little") for x in data.reshape(-1, data.shape[-1])]).reshape(data.shape[:-1])


def public_integers(params, message, label, count):
    low, high = (params.public(message["seed"], label, 0, limb, count).astype(object) for limb in (0, 1))
    return low + high * (1 << 40)


def centred(x):
    return (x + Q // 2) % Q - Q // 2


def negacyclic(s):
    """M[i, d, c]: the coefficient of x^c in x^d s_i."""
    rank, ring = s.shape
    out = np.zeros((rank, ring, ring))
    for d in range(ring):
        for e in range(ring):
            out[:, d, (d + e) % ring] += s[:, e] if d + e < ring else -s[:, e]
    return out


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
