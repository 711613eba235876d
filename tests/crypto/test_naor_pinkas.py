"""The base transfers: the group of RFC 3526, who ends up with which key, and what is refused."""

import importlib.util
import sys

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.crypto import naor_pinkas, ot
from grapevine.crypto.stream import context, hkdf

INFO = b"a session"


@pytest.fixture(scope="module")
def transfers():
    """One real run: choices, offer, reply, the chosen keys, both keys."""
    choices, (r, offer) = ot.delta_bits(ot.fresh_delta()), naor_pinkas.offer()
    known, reply = naor_pinkas.choose(offer, choices, INFO)
    return choices, offer, reply, known, naor_pinkas.both_keys(r, offer, reply, INFO)


def floor_of_pi_times_two_to_the(bits):
    """Machin's formula in integers: π = 16 arctan(1/5) − 4 arctan(1/239), with 64 bits to spare."""

    def arctan_of_inverse(n):
        total, term, k = 0, (1 << (bits + 64)) // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term //= n * n
            k += 1
        return total

    return (16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) >> 64


def test_prime_of_rfc_3526():
    # "The prime is: 2^3072 - 2^3008 - 1 + 2^64 * { [2^2942 pi] + 1690314 }. The generator is: 2."
    assert naor_pinkas.PRIME == 2**3072 - 2**3008 - 1 + 2**64 * (floor_of_pi_times_two_to_the(2942) + 1690314)
    assert naor_pinkas.GENERATOR == 2


def test_prime_is_safe_and_two_generates_the_squares():
    gmpy2 = pytest.importorskip("gmpy2")
    assert (
        gmpy2.is_prime(naor_pinkas.PRIME) and gmpy2.is_prime(naor_pinkas.ORDER) and naor_pinkas.PRIME == 2 * naor_pinkas.ORDER + 1
    )
    assert pow(naor_pinkas.GENERATOR, naor_pinkas.ORDER, naor_pinkas.PRIME) == 1  # the order is prime and 2 is not 1


def test_elements_outside_the_group_are_refused():
    size = naor_pinkas.ELEMENT
    minus_four = naor_pinkas.PRIME - 4  # -1 is no square modulo a prime that is 3 modulo 4
    bad = [v.to_bytes(size, "big") for v in (0, 1, naor_pinkas.PRIME - 1, naor_pinkas.PRIME, naor_pinkas.PRIME + 4, minus_four)]
    for data in [*bad, b"", bytes(size - 1), 4, (4).to_bytes(size + 1, "big")]:
        with pytest.raises(Mistake):
            naor_pinkas.element(data, "an element")
    assert naor_pinkas.element((4).to_bytes(size, "big"), "an element") == 4


def without_gmpy2(monkeypatch):
    """A second copy of the module, as it is where gmpy2 is not installed."""
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    spec = importlib.util.spec_from_file_location("grapevine.crypto.naor_pinkas_without_gmpy2", naor_pinkas.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_python_integers_do_the_same(monkeypatch):
    slow = without_gmpy2(monkeypatch)
    assert slow.mpz is int
    # Euler's criterion for primes, and a composite: (a/15) = (a/3)(a/5).
    for a in range(13):
        assert slow.jacobi(a, 13) == {0: 0, 1: 1, 12: -1}[pow(a, 6, 13)]
        assert slow.jacobi(a, 15) == slow.jacobi(a, 3) * slow.jacobi(a, 5)
    for a in (2, 3, 5, 12345678901234567890, naor_pinkas.PRIME - 1, naor_pinkas.PRIME - 4):
        assert slow.jacobi(a, naor_pinkas.PRIME) == (1 if pow(a, naor_pinkas.ORDER, naor_pinkas.PRIME) == 1 else -1)
    assert slow.invert(7, naor_pinkas.PRIME) * 7 % naor_pinkas.PRIME == 1 and slow.powmod(3, 4, 80) == 1


# ------------------------------------------------------------------------------------------------------- base transfers


def test_the_receiver_has_the_chosen_key_and_not_the_other(transfers):
    choices, _, _, known, (zero, one) = transfers
    assert (known == np.where(choices[:, None], one, zero)).all()
    assert (known != np.where(choices[:, None], zero, one)).any(axis=1).all()
    assert len({key.tobytes() for key in (*zero, *one)}) == 256 and known.shape == (128, 32)


def test_the_other_key_needs_a_power_that_the_receiver_lacks(monkeypatch):
    """By hand in the group: PK_0·PK_1 = C, and the keys come from PK_0^r and PK_1^r."""
    monkeypatch.setattr(naor_pinkas, "SECURITY", 2)
    r, offer = naor_pinkas.offer()
    keys, reply = naor_pinkas.choose(offer, np.array([0, 1]), INFO)
    exponent, c = int.from_bytes(r, "big"), int.from_bytes(offer["c"], "big")
    assert int.from_bytes(offer["gr"], "big") == pow(2, exponent, naor_pinkas.PRIME)
    for index in (0, 1):
        pk_0 = int.from_bytes(reply["pk"][index].tobytes(), "big")
        pair = pk_0, c * pow(pk_0, -1, naor_pinkas.PRIME) % naor_pinkas.PRIME
        what = context(
            "naor-pinkas", index=index, choice=index, c=offer["c"], gr=offer["gr"], pk=reply["pk"][index].tobytes(), info=INFO
        )
        mine = pow(pair[index], exponent, naor_pinkas.PRIME).to_bytes(naor_pinkas.ELEMENT, "big")
        assert hkdf(mine, what) == keys[index].tobytes()
    # Another session's context gives other keys from the same numbers.
    same, _ = naor_pinkas.both_keys(r, offer, reply, INFO)
    other, _ = naor_pinkas.both_keys(r, offer, reply, b"another session")
    assert (same[0] == keys[0]).all() and (other[0] != keys[0]).any()


def test_delta_and_keys_are_new_every_time(transfers):
    choices, offer, reply, known, _ = transfers
    again = ot.delta_bits(ot.fresh_delta())
    assert 20 < choices.sum() < 108 and (again != choices).any()  # 7.8 standard deviations either way
    keys, other = naor_pinkas.choose(offer, choices, INFO)
    assert (keys != known).any(axis=1).all() and len({key.tobytes() for key in (*reply["pk"], *other["pk"])}) == 256


def test_broken_base_transfers_are_refused(transfers):
    offer = transfers[1]
    for wrong in ({}, {"c": offer["c"]}, offer | {"c": bytes(384)}, offer | {"gr": offer["gr"][:-1]}):
        with pytest.raises(Mistake):
            naor_pinkas.choose(wrong, transfers[0], INFO)
    for wrong in ({}, {"pk": np.zeros((128, 384), np.uint8)}, {"pk": np.zeros((127, 384), np.uint8)}, {"pk": b""}):
        with pytest.raises(Mistake):
            naor_pinkas.both_keys(bytes(384), offer, wrong, INFO)


@pytest.mark.slow
def test_base_transfers_without_gmpy2(monkeypatch):
    slow = without_gmpy2(monkeypatch)
    r, offer = slow.offer()
    choices = np.random.default_rng(0).integers(0, 2, naor_pinkas.SECURITY)
    known, reply = slow.choose(offer, choices, INFO)
    zero, one = slow.both_keys(r, offer, reply, INFO)
    assert (known == np.where(choices[:, None], one, zero)).all()
    # The same numbers with gmpy2.
    fast = naor_pinkas.both_keys(r, offer, reply, INFO)
    assert (fast[0] == zero).all() and (fast[1] == one).all()
