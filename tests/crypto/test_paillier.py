"""paillier: worked numbers, the homomorphism, equality with plain distances, and what each side sees, also unprotected."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uniformity import LEVEL

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.crypto import paillier
from grapevine.crypto.paillier import FixedBase, PublicKey, SecretKey, make_key

gmpy2 = pytest.importorskip("gmpy2")
stats = pytest.importorskip("scipy.stats")


@pytest.fixture(scope="module")
def key():
    return make_key(64, toy=True)


def random_bits(n, length, seed=0):
    return np.random.default_rng([seed, n, length]).integers(0, 2, (n, length), dtype=np.uint8)


def plain_distances(y, x):
    return (y[:, None, :] != x[None, :, :]).sum(axis=2)


def send(message):
    return wire.decode(wire.encode(message))


def run(key, y, x, toy=True):
    """The whole protocol, every message and the key through the codec: H, and T and R as the server sees them."""
    (rows, length), points = y.shape, len(x)
    stored = SecretKey.from_dict(send(key.to_dict()))
    back, r = paillier.answer(send(paillier.encrypt_columns(key, y)), x, toy)
    t = paillier.open_answer(stored, send(back), rows, length, points)
    return paillier.distances(send(t), send(r), rows, points, length), t, r


def numbers(array):
    return [int.from_bytes(line.tobytes(), "little") for line in array.reshape(-1, array.shape[-1])]


# --------------------------------------------------------------------------------------------------------- worked numbers

# p = 7, q = 11, N = 77, N² = 5929. 2^77 is 18 modulo 49 (2 has order 21 there, 2^14 = 16384 = 334·49 + 18) and 40 modulo 121
# (2^7 = 7, 7^8 = -2, 7^11 = -2·49·7 = 40), so 3791 modulo 5929. The base is the 77th power of 4 = 2²: 30 modulo 49, 27
# modulo 121, 5714 modulo 5929. With exponent 1 the plaintext 5 is (1 + 5·77)·5714 = 386·5714 = 372·5929 + 16.
SEVEN_ELEVEN = SecretKey(gmpy2.mpz(7), gmpy2.mpz(11), gmpy2.mpz(5714))


def test_worked_example_of_seven_and_eleven(monkeypatch):
    assert pow(2, 77, 5929) == 3791 and pow(4, 77, 5929) == 5714
    monkeypatch.setattr(paillier.secrets, "randbits", lambda bits: 1)
    assert SEVEN_ELEVEN.encrypt([5]) == [16]
    # 16 · 16 = 256 hides 5 + 5; 16^15 hides 75; one more 5 wraps around to 3.
    assert SEVEN_ELEVEN.decrypt([16, 256, pow(16, 15, 5929), pow(16, 16, 5929)]) == [5, 10, 75, 3]


def test_decryption_is_the_textbook_s():
    key = make_key(128, toy=True)
    n, lam = int(key.p * key.q), math.lcm(int(key.p) - 1, int(key.q) - 1)
    plains = [0, 1, n - 1, n // 2, 123456789]
    ciphertexts = [int(c) for c in key.encrypt(plains)]
    textbook = [(pow(c, lam, n * n) - 1) // n * pow(lam, -1, n) % n for c in ciphertexts]
    assert textbook == plains == key.decrypt(ciphertexts)
    # Textbook encryption, with any r^N, is read as well.
    assert key.decrypt([(1 + 42 * n) * pow(987654321, n, n * n) % (n * n)]) == [42]


def test_homomorphism_and_wrap_around(key):
    n, n2 = key.public.n, key.public.n2
    a, b = key.encrypt([n - 3, 5])
    assert key.decrypt([a * b % n2, pow(b, 7, n2), gmpy2.invert(b, n2), a * key.public.embed(3) % n2]) == [2, 35, n - 5, 0]


def test_encryption_is_randomised(key):
    assert len(set(key.encrypt([1] * 50))) == 50


@pytest.mark.parametrize("exponent", [0, 1, 255, 256, 2**40 - 1, 123456789012])
def test_fixed_base_is_a_power(exponent):
    assert FixedBase(5, 10**9 + 7, 40).power(exponent) == pow(5, exponent, 10**9 + 7)


def test_two_digits_to_base_n_multiply_as_numbers_do():
    n = 10**20 + 39
    for a, b in [(0, 5), (n * n - 1, n * n - 1), (n + 7, 3 * n**2 // 5), (n - 1, n)]:
        low, high = paillier.times((a % n, a // n), (b % n, b // n), n)
        assert low + high * n == a * b % n**2 and 0 <= low < n and 0 <= high < n


# ---------------------------------------------------------------------------------------------------- equality with plain


@pytest.mark.parametrize(
    "rows, points, length",
    [(1, 1, 1), (1, 1, 13), (1, 5, 8), (5, 1, 100), (9, 3, 100), (10, 3, 100), (40, 20, 60), (3, 70, 33)],
)
def test_equals_plain(key, rows, points, length):
    # With 64-bit keys and L = 100 a plaintext has 9 slots: 9 rows are one full pack, 10 are two.
    y, x = random_bits(rows, length, 1), random_bits(points, length, 2)
    H, t, _ = run(key, y, x)
    assert (H == plain_distances(y, x)).all() and H.shape == (rows, points)
    assert t["t"].shape[1] == -(-rows // (63 // length.bit_length()))


@pytest.mark.parametrize("length", [1, 7, 8, 64])
def test_distances_of_nought_and_of_all(key, length):
    y = np.concatenate([random_bits(4, length), np.zeros((1, length), np.uint8), np.ones((1, length), np.uint8)])
    x = np.concatenate([y, 1 - y])
    H, _, _ = run(key, y, x)
    assert (H == plain_distances(y, x)).all() and H.max() == length and H.min() == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**31))
def test_equals_plain_for_any_sizes(rows, points, length, seed):
    y, x = random_bits(rows, length, seed), random_bits(points, length, seed + 1)
    assert (run(make_key(32, toy=True), y, x)[0] == plain_distances(y, x)).all()


@pytest.mark.parametrize("mask", [0, 1, -1])
def test_sums_that_wrap_around_at_n(key, mask, monkeypatch):
    # r = N - 1 makes T wrap; r = 0 makes R = -Σx wrap.
    monkeypatch.setattr(paillier.secrets, "randbelow", lambda n: mask % n)
    y, x = random_bits(12, 30, 3), random_bits(5, 30, 4)
    assert (run(key, y, x)[0] == plain_distances(y, x)).all()


def test_equals_plain_with_a_real_key():
    key = make_key(2048)
    y, x = random_bits(158, 40, 5), random_bits(2, 40, 6)
    H, t, r = run(key, y, x, toy=False)
    assert (H == plain_distances(y, x)).all()


def size(message):
    """Bytes of the arrays and byte strings of a message."""
    return sum(
        part.nbytes if isinstance(part, np.ndarray) else len(part) for part in message.values() if not isinstance(part, int)
    )


def test_cost_is_what_is_sent():
    key = make_key(2048)
    y, x = random_bits(400, 31, 5), random_bits(3, 31, 6)  # 409 slots
    columns = paillier.encrypt_columns(key, y)
    back, r = paillier.answer(columns, x)
    t = paillier.open_answer(key, back, 400, 31, 3)
    measured = {"columns": size(columns), "masked": size(back), "server": size(t) + size(r)}
    assert measured == paillier.cost(400, 3, 31, 2048)


def test_reference_size_has_the_stated_bytes():
    cost = paillier.cost(500, 500, 4096, 3072)
    for name, megabytes in {"columns": 9.4, "masked": 1.2, "server": 1.2}.items():
        assert abs(cost[name] / 1e6 / megabytes - 1) < 0.1


# ------------------------------------------------------------------------------------------------------- what each side sees


def uniform_below(values, n):
    """Chi-square of the 64 equal parts of 0..n-1."""
    assert len(values) >= 64 * 10
    return stats.chisquare(np.bincount([int(v) * 64 // int(n) for v in values], minlength=64)).pvalue > LEVEL


@pytest.mark.parametrize("weight", [0, 5, 8])
def test_sums_and_masks_are_uniform(key, weight):
    # The same point again and again, so that nothing but the mask can make T uniform.
    y, x = random_bits(3, 8), np.tile(np.arange(8) < weight, (2000, 1)).astype(np.uint8)
    H, t, r = run(key, y, x)
    assert uniform_below(numbers(t["t"]), key.public.n) and uniform_below(numbers(r["r"]), key.public.n)


def test_sums_are_not_uniform_without_the_mask(key, monkeypatch):
    monkeypatch.setattr(paillier.secrets, "randbelow", lambda n: 0)
    y, x = random_bits(3, 8), random_bits(2000, 8)
    _, t, _ = run(key, y, x)
    assert not uniform_below(numbers(t["t"]), key.public.n)


def test_a_mask_is_drawn_for_every_ciphertext_from_all_of_z_n(key, monkeypatch):
    limits = []
    monkeypatch.setattr(paillier.secrets, "randbelow", lambda n: limits.append(n) or 0)
    paillier.answer(paillier.encrypt_columns(key, random_bits(20, 100)), random_bits(4, 100), toy=True)
    assert limits == [key.public.n] * (4 * 3)


def test_unused_slots_do_not_show_the_weight_of_x(key):
    y, x = random_bits(2, 100), np.ones((1, 100), np.uint8)  # 9 slots, 2 used
    _, t, r = run(key, y, x)
    difference = (numbers(t["t"])[0] - numbers(r["r"])[0]) % int(key.public.n)
    assert difference >> (2 * 7) == 0


# The owner of the key, j, strips the plaintext from an answer and looks at the noise that is left.


def noise_of(key, back):
    public = key.public
    ciphertexts = [gmpy2.mpz(c) for c in numbers(back["masked"])]
    return [c * public.embed(public.n - t) % public.n2 for c, t in zip(ciphertexts, key.decrypt(ciphertexts))]


def all_points(length):
    return np.array([[n >> i & 1 for i in range(length)] for n in range(2**length)], np.uint8)


def guesses_that_fit(key, noises, column_noise, answers):
    """For each noise, which x fit: those for which it is Π column_noise^(1 - 2x) times one of `answers`."""
    n2, length = key.public.n2, len(column_noise)
    without = {}
    for guess in all_points(length):
        product = gmpy2.mpz(1)
        for bit, noise in zip(guess, column_noise):
            product = product * (gmpy2.invert(noise, n2) if bit else noise) % n2
        without[tuple(guess)] = gmpy2.invert(product, n2)
    return [[guess for guess, inverse in without.items() if noise * inverse % n2 in answers] for noise in noises]


def columns_with_known_noise(key, y, monkeypatch):
    exponents, draw = [], paillier.secrets.randbits
    with monkeypatch.context() as patch:
        patch.setattr(paillier.secrets, "randbits", lambda bits: exponents.append(draw(bits)) or exponents[-1])
        message = paillier.encrypt_columns(key, y)
    return message, [gmpy2.powmod(key.base, a, key.public.n2) for a in exponents]


def test_without_rerandomisation_the_key_holder_reads_the_bits(key, monkeypatch):
    y, x = random_bits(4, 8), random_bits(6, 8, 9)
    message, noise = columns_with_known_noise(key, y, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(paillier.Residues, "draw", lambda self: 1)
        unprotected, _ = paillier.answer(message, x, toy=True)
    fits = guesses_that_fit(key, noise_of(key, unprotected), noise, {1})
    assert fits == [[tuple(point)] for point in x]
    protected, _ = paillier.answer(message, x, toy=True)
    assert guesses_that_fit(key, noise_of(key, protected), noise, {1}) == [[]] * 6


@pytest.mark.parametrize("count", [1, 10**6])
def test_rerandomisers_are_uniform_residues(count):
    """Modulo 7 · 11 all 60 units come up alike, drawn one by one or out of a pool; modulo 77² they are 77th powers."""
    residues = paillier.Residues(SEVEN_ELEVEN.public, count)
    assert bool(residues.rows) == (count > 1)
    drawn = [residues.draw() for _ in range(3000)]
    units = [x for x in range(77) if math.gcd(x, 77) == 1]
    assert {int(x) for x in drawn} == {pow(x, 77, 5929) for x in units}
    counts = np.array([sum(x % 77 == unit for x in drawn) for unit in units])
    assert len(units) == 60 and stats.chisquare(counts).pvalue > LEVEL


def test_a_pool_has_exponents_enough_for_the_key():
    for bits in (2048, 3072, 4096):
        public = PublicKey(gmpy2.mpz(2) ** bits - 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paillier, "FixedBase", lambda base, modulus, bits: FixedBase(1, 2, bits))
            patch.setattr(paillier.Residues, "_fresh", lambda self: 1)
            rows = paillier.Residues(public, 10**6).rows
        assert 8 * len(rows) >= bits + 512 and len(rows) >= paillier.POOL * paillier.POOL_BITS // 8


# ------------------------------------------------------------------------------------------------------------- proof of the key


def test_roots_prove_the_key_and_no_other(key):
    public, roots = key.public, key.roots()
    assert public.check(roots, toy=True) is public
    for root, challenge in zip(numbers(roots), public.challenges()):
        assert pow(root, int(public.n), int(public.n)) == challenge
    assert len(set(public.challenges())) == paillier.CHALLENGES
    other = make_key(64, toy=True)
    for wrong in (other.roots(), np.zeros_like(roots), roots[:-1], roots[::-1].copy()):
        with pytest.raises(Mistake):
            public.check(wrong, toy=True)


def test_a_key_whose_powers_are_no_permutation_has_no_roots():
    """11 divides 23 − 1: 11 of 242 powers modulo 253 are missing for each that there is, so hardly any challenge has a root."""
    public = PublicKey(gmpy2.mpz(11 * 23))
    powers = {pow(x, 253, 253) for x in range(253)}
    assert len({x for x in powers if math.gcd(x, 253) == 1}) == 20
    assert not all(int(c) in powers for c in public.challenges())


def test_small_factors_are_refused():
    n = gmpy2.mpz(65521) * gmpy2.next_prime(gmpy2.mpz(2) ** 2047 // 65521)
    while n.bit_length() != 2048:
        n = gmpy2.mpz(65521) * gmpy2.next_prime(n // 65521)
    with pytest.raises(Mistake, match="no factor below"):
        PublicKey(n).check(np.zeros((paillier.CHALLENGES, 256), np.uint8))


# ----------------------------------------------------------------------------------------------------------- keys and secrets


@pytest.mark.parametrize("bits", [32, 64, 128, 2048])
def test_keys(bits):
    key = make_key(bits, toy=bits < 2048)
    assert key.public.bits == bits and key.p != key.q
    for prime in (key.p, key.q):
        assert prime % 4 == 3 and gmpy2.is_prime(prime) and prime.bit_length() == bits // 2
    # The base is an N-th power of a square: its order divides (p - 1)(q - 1)/4.
    assert gmpy2.powmod(key.base, (key.p - 1) * (key.q - 1) // 4, key.public.n2) == 1 and key.base != 1


@pytest.mark.parametrize("bits", [0, 15, 64, 1024, 2047, 4096])
def test_keys_of_other_lengths_are_refused(bits):
    with pytest.raises(Mistake, match=f"key of {bits} bits is not allowed: use 2048 or 3072"):
        make_key(bits)


def test_repr_shows_no_secret(key):
    for secret in (key.p, key.q):
        assert str(secret) not in repr(key) and "hidden" in repr(key)


def test_the_extra_is_named_when_gmpy2_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    with pytest.raises(Mistake, match=r'pip install "grapevine-fl\[paillier\]"'):
        make_key()


# --------------------------------------------------------------------------------------------------------------- bad messages


def changed(message, **parts):
    return {**message, **parts}


def column(message, number):
    columns = message["columns"].copy()
    columns[0, 3] = paillier.to_array([number], columns.shape[-1], ())
    return changed(message, columns=columns)


def test_broken_columns_are_refused(key):
    message, x = paillier.encrypt_columns(key, random_bits(3, 20)), random_bits(2, 20)
    n, n2 = int(key.public.n), int(key.public.n2)
    even = (n - 1).to_bytes(8, "little")
    broken = [
        {},
        {"n": message["n"]},
        column(message, 0),
        column(message, n2),
        column(message, int(key.p)),
        column(message, 5 * n),
        changed(message, rows=0),
        changed(message, rows=True),
        changed(message, rows=300),
        changed(message, n=even),
        changed(message, n=message["n"] + b"\0", roots=np.zeros((paillier.CHALLENGES, 9), np.uint8)),
        changed(message, n=n),
        changed(message, roots=message["roots"][:-1]),
        changed(message, roots=np.zeros_like(message["roots"])),
        changed(message, roots=message["roots"].tobytes()),
        changed(message, columns=message["columns"][:, 1:]),
        changed(message, columns=message["columns"].astype(np.int16)),
        changed(message, columns=message["columns"].tobytes()),
    ]
    paillier.answer(message, x, toy=True)
    for wrong in broken:
        with pytest.raises(Mistake):
            paillier.answer(wrong, x, toy=True)


def test_a_toy_key_is_refused_outside_tests(key):
    with pytest.raises(Mistake, match="key of 64 bits is not allowed"):
        paillier.answer(paillier.encrypt_columns(key, random_bits(3, 20)), random_bits(2, 20))


def test_a_key_too_short_for_the_distances_says_so():
    with pytest.raises(Mistake, match="no room for distances up to 70000"):
        paillier.encrypt_columns(make_key(16, toy=True), np.zeros((1, 70000), np.uint8))


@pytest.mark.parametrize(
    "bits", [np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8), np.full((1, 4), 2), np.full((1, 4), 0.5), -np.eye(2, dtype=int)]
)
def test_only_bits_are_taken(key, bits):
    with pytest.raises(Mistake, match="zeros and ones"):
        paillier.encrypt_columns(key, bits)


def test_broken_answers_and_sums_are_refused(key):
    y, x = random_bits(3, 20), random_bits(2, 20)
    back, r = paillier.answer(paillier.encrypt_columns(key, y), x, toy=True)
    nought = {"masked": np.zeros_like(back["masked"])}
    for wrong in ({}, nought, {"masked": back["masked"][:1]}, {"masked": back["masked"].astype(int)}):
        with pytest.raises(Mistake):
            paillier.open_answer(key, wrong, 3, 20, 2)
    t = paillier.open_answer(key, back, 3, 20, 2)
    other_key = changed(r, n=int(make_key(64, toy=True).public.n).to_bytes(8, "little"))
    too_large = changed(r, r=np.full_like(r["r"], 255))
    other_mask = paillier.answer(paillier.encrypt_columns(key, y), x, toy=True)[1]
    for wrong in ({}, other_key, too_large, other_mask, changed(r, r=r["r"][:1])):
        with pytest.raises(Mistake):
            paillier.distances(t, wrong, 3, 2, 20)


def test_a_public_key_that_is_even_or_tiny_is_refused():
    for n in (14, 9):
        with pytest.raises(Mistake, match="no factor below"):
            PublicKey(gmpy2.mpz(n)).check(np.zeros((paillier.CHALLENGES, 1), np.uint8), toy=True)


# ------------------------------------------------------------------------------------------------------------------ full size


@pytest.mark.slow
def test_reference_size():
    y, x = random_bits(500, 4096, 1), random_bits(500, 4096, 2)
    H, _, _ = run(make_key(), y, x, toy=False)
    sign_y, sign_x = 1.0 - 2.0 * y, 1.0 - 2.0 * x
    assert (H == (4096 - sign_y @ sign_x.T) / 2).all()
