"""Active parties against the encrypted distances: a key holder that encrypts something else than bits, an evaluator that works
with the server. Every attack is run twice: against the protocol with one protection taken out, where it must succeed, and as it
is."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from grapevine.core.errors import Mistake
from grapevine.crypto import mlwe, paillier
from grapevine.crypto.mlwe import Params


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


def random_bits(n, L, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, L), dtype=np.uint8)


# ---------------------------------------------------------------- mlwe: the key holder alone

WIDE = Params(64, ring=64, rank=2)


def residual(params, secret, reply):
    """v − ⟨u, s⟩ modulo 2^kept, (n_k, n_j): all that the key holder gets."""
    u = mlwe.from_bytes(reply["a"]).reshape(-1, params.rank, params.ring)
    inner = mlwe.convolve(u, secret.s[0][:, None])[:, 0, : secret.points]
    return (mlwe.from_bytes(reply["b"]) - inner) % (1 << params.kept)


def forged(params, height):
    """Ciphertexts whose row l holds 2^height at column l and nothing elsewhere: no bits, but what lies between them. The sum that
    comes back at row l is then ± 2^height, with the sign of the other's bit l."""
    secret, message = mlwe.encrypt(params, np.zeros((64, 64), np.uint8))
    for l in range(64):
        value = int.from_bytes(message["bodies"][l, l].tobytes(), "little") + (1 << height)
        message["bodies"][l, l] = np.frombuffer((value % (1 << mlwe.LOG_Q)).to_bytes(10, "little"), np.uint8)
    return secret, message


@pytest.mark.parametrize("height", [71, 67])  # q/4t, and the least that the flood, below 2^66, does not hide
@pytest.mark.parametrize("weakened", [True, False])
def test_a_key_holder_that_encrypts_no_bits_reads_nothing_unless_the_mask_has_gaps(monkeypatch, weakened, height):
    """With a mask of multiples of 2^(height + 2), what lies between these and the flood is read: every bit. With one over all
    bits, none."""
    step = 1 << (height + 2 - mlwe.LOG_Q + WIDE.kept)
    if weakened:
        mask = mlwe._mask
        monkeypatch.setattr(mlwe, "_mask", lambda params, stream, shape: mask(params, stream, shape) // step * step)
    secret, message = forged(WIDE, height)
    B_k = random_bits(30, 64, 5)
    reply, _ = mlwe.evaluate(WIDE, message, B_k)
    found = residual(WIDE, secret, reply) % step > step // 2  # −2^height is 3 · 2^height: a bit of one
    right = (found == B_k).mean()
    assert right == 1 if weakened else abs(right - 0.5) < 0.06  # 1920 bits: five standard deviations


# ---------------------------------------------------------------- mlwe: the evaluator together with the server

SMALL = Params(31, ring=32, rank=2)


def rows_of_s(rounding):
    """What rounding took off u, as rows of a matrix over the 64 unknowns of s: one row for each coefficient of each point."""
    points, rank, ring = rounding.shape
    c, e = np.meshgrid(np.arange(ring), np.arange(ring), indexing="ij")
    sign = np.where(c >= e, 1.0, -1.0)
    return (rounding[:, :, (c - e) % ring] * sign).transpose(0, 2, 1, 3).reshape(points * ring, rank * ring)


@pytest.mark.parametrize("weakened", [True, False])
def test_an_evaluator_with_the_server_does_not_find_the_key_at_the_edge_of_rounding(monkeypatch, weakened):
    """k takes mask and flood as nought: T is then at the edge between two values, and which of them the server gets is the sign
    of ⟨d, s⟩, with d known to k. Signs of 6400 products give s, unless j's veil covers them."""
    if weakened:
        monkeypatch.setattr(mlwe, "_veil", lambda stream, shape: np.zeros(shape, np.int64))
    exact, round_ = [], mlwe._round
    monkeypatch.setattr(mlwe, "_round", lambda params, sums: exact.append(sums.copy()) or round_(params, sums))
    monkeypatch.setattr(mlwe, "_mask", lambda params, stream, shape: np.zeros(shape, np.int64))
    monkeypatch.setattr(mlwe, "_flood", lambda params, stream, shape: np.zeros((2, *shape), np.int64))
    secret, message = mlwe.encrypt(SMALL, random_bits(32, 31, 1))
    reply, _ = mlwe.evaluate(SMALL, message, random_bits(200, 31, 2))
    T = mlwe.open_share(SMALL, mlwe.decrypt(secret, reply, 200)).T  # to the server
    low, high = exact[0][:, :, : SMALL.dimension]
    high = (high + (low >> mlwe.LIMB)) % (1 << 8)  # u modulo 2^48, in units of 2^48
    rounding = ((high * 2.0**40 + low % (1 << 40)) / 2.0**48 + 0.5) % 1 - 0.5
    sign = np.where(T % 8 < 4, 1.0, -1.0).reshape(-1)
    guess = np.linalg.lstsq(rows_of_s(rounding.reshape(200, 2, 32)), sign, rcond=None)[0]
    alike = np.corrcoef(guess, secret.s[0].reshape(-1))[0, 1]
    assert alike > 0.95 if weakened else abs(alike) < 0.6


def test_answers_of_odd_shape_are_refused():
    """One row more than the partner has is one more linear function of the key for the server."""
    secret, message = mlwe.encrypt(SMALL, random_bits(5, 31, 1))
    reply, _ = mlwe.evaluate(SMALL, message, random_bits(2, 31, 2))
    for due in (1, 3):
        with pytest.raises(Mistake, match="the reply should be"):
            mlwe.decrypt(secret, reply, due)
    wide = dict(a=reply["a"], b=np.concatenate([reply["b"]] * 2, axis=1))
    with pytest.raises(Mistake, match="the reply should be"):
        mlwe.decrypt(secret, wide, 2)


def test_a_made_up_answer_and_the_server_find_the_key():
    """By design, and said in the threat model: who makes up u chooses which linear function of s the server gets. A row for every
    ring element of the key is enough."""
    secret, _ = mlwe.encrypt(SMALL, random_bits(32, 31, 1))
    a = np.zeros((2, 2, 32), np.int64)
    a[0, 0, 0] = a[1, 1, 0] = 1 << 26
    reply = dict(a=mlwe.to_bytes(a.reshape(2, 64), 4).copy(), b=np.zeros((2, 32, 4), np.uint8))
    T = mlwe.open_share(SMALL, mlwe.decrypt(secret, reply, 2)).T.astype(np.int64)
    step = 1 << (SMALL.kept - SMALL.share_bits)
    found = -np.rint(((T * step + step // 2 + 2**31) % 2**32 - 2**31) / 2.0**26)
    assert (found == secret.s[0]).all()


# ---------------------------------------------------------------- paillier: the key holder alone

LENGTH, THREES = 64, 60


class Smooth:
    """A key whose p − 1 is 2 · 3^60, so that logarithms modulo p are easy, and columns of powers of one number modulo p."""

    def __init__(self):
        gmpy2 = pytest.importorskip("gmpy2")
        self.p = gmpy2.mpz(2 * 3**THREES + 1)
        q = gmpy2.next_prime(gmpy2.mpz(2) ** 95 + 12345)
        while gmpy2.gcd((self.p - 1) * (q - 1), self.p * q) != 1 or (self.p * q).bit_length() % 8:
            q = gmpy2.next_prime(q)
        self.key = paillier.SecretKey(self.p, q, gmpy2.mpz(1))
        n, n2 = self.key.public.n, self.key.public.n2
        generator = next(g for g in range(2, 50) if all(pow(g, int(self.p - 1) // f, int(self.p)) != 1 for f in (2, 3)))
        self.h = pow(generator, 2 * int(n), int(self.p))  # of order 3^60
        powers = [gmpy2.powmod(gmpy2.powmod(generator, 2 << l, n), n, n2) for l in range(LENGTH)]
        columns = paillier.to_array(powers, 2 * self.key.public.size, (1, LENGTH))
        size = self.key.public.size
        self.message = {"n": paillier.to_bytes(n, size), "roots": self.key.roots(), "rows": 1, "columns": columns}

    def logarithm(self, number):
        """Pohlig and Hellman: digit by digit to base 3."""
        p, found = int(self.p), 0
        third = pow(self.h, 3 ** (THREES - 1), p)
        for i in range(THREES):
            left = pow(number * pow(self.h, -found, p), 3 ** (THREES - 1 - i), p)
            found += next(d for d in range(3) if pow(third, d, p) == left) * 3**i
        return found

    def bits(self, answer):
        """Of Π h^(± 2^l), the signs. What is left of 2 after squaring is 1."""
        p = int(self.p)
        half = pow(2, -1, 3**THREES)
        exponent = self.logarithm(pow(answer % p, 2, p)) * half % 3**THREES
        positive = (exponent + 2**LENGTH - 1) * half % 3**THREES  # Σ 2^l over bits of nought
        return [1 - (positive >> l & 1) for l in range(LENGTH)]


@pytest.mark.parametrize("weakened", [True, False])
def test_a_key_holder_with_smooth_primes_reads_nothing_unless_its_base_randomises(monkeypatch, weakened):
    """The base was the key holder's to choose, and 1 passed every check: all bits by logarithms. Now the residues are k's own."""
    smooth = Smooth()
    if weakened:
        monkeypatch.setattr(paillier.Residues, "draw", lambda self: int(smooth.key.base))
    x = random_bits(20, LENGTH, 3)
    back, _ = paillier.answer(smooth.message, x, toy=True)
    answers = [int.from_bytes(line.tobytes(), "little") for line in back["masked"][:, 0]]
    right = np.mean([smooth.bits(answer) == point for answer, point in zip(answers, x)])
    assert right == 1 if weakened else abs(right - 0.5) < 0.08  # 1280 bits: five standard deviations
