"""Messages of mlwe: their sizes, secrets in storage, and bad input that is refused."""

import numpy as np
import pytest
from mlwe_exchange import TOY, plain, random_bits

from grapevine.core.errors import Mistake
from grapevine.crypto import mlwe
from grapevine.crypto.mlwe import Params

pytestmark = pytest.mark.usefixtures("one_thread")


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
