"""Naor and Pinkas 2001: 128 oblivious transfers of keys, from which `ot` extends as many as it takes.

    base sender: r                              base receiver: a choice bit for each pair
    offer        ------------- C, g^r ------->  choose
    both_keys    <------ PK_0 of each pair ---  (the receiver knows the logarithm of PK_choice; PK_0 · PK_1 = C)

Exponents are full-length and computed with gmpy2 where it is installed, else with Python's own integers: the same numbers, but
about 10 s rather than 1.4 s of processor time on either side. Neither is constant-time.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.checks import array, fields
from grapevine.crypto.paillier import FixedBase
from grapevine.crypto.stream import context, hkdf

try:
    from gmpy2 import invert, jacobi, mpz, powmod
except ImportError:  # the same numbers, slower

    def invert(a: int, m: int) -> int:
        return pow(a, -1, m)

    def jacobi(a: int, m: int) -> int:
        """The Jacobi symbol by quadratic reciprocity, for odd m: far cheaper than Euler's power."""
        sign = 1
        while a := a % m:
            twos = (a & -a).bit_length() - 1
            if twos % 2 and m % 8 in (3, 5):
                sign = -sign
            a >>= twos
            if a % 4 == m % 4 == 3:
                sign = -sign
            a, m = m, a
        return sign if m == 1 else 0

    mpz, powmod = int, pow


SECURITY = 128  # transfers
Offer = dict[str, bytes]

# RFC 3526, group 15: a safe prime, 7 modulo 8, so 2 is a square and generates the subgroup of prime order (P - 1)/2.
PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AAAC42DAD33170D04507A33A85521ABDF1CBA64ECFB850458DBEF0A8AEA71575D060C7DB3970F85A6E1E4C7"
    "ABF5AE8CDB0933D71E8C94E04A25619DCEE3D2261AD2EE6BF12FFA06D98A0864D87602733EC86A64521F2B18177B200C"
    "BBE117577A615D6C770988C0BAD946E208E24FA074E5AB3143DB5BFCE0FD108E4B82D120A93AD2CAFFFFFFFFFFFFFFFF",
    16,
)
ORDER = (PRIME - 1) // 2
GENERATOR = 2
ELEMENT = 384  # bytes of a group element


def element(data: Any, what: str) -> int:
    """A group element that somebody sent."""
    if not isinstance(data, bytes) or len(data) != ELEMENT:
        raise Mistake(f"{what} should be {ELEMENT} bytes: the sender runs another protocol or version")
    value = mpz(int.from_bytes(data, "big"))
    if not 1 < value < PRIME - 1 or jacobi(value, PRIME) != 1:
        raise Mistake(f"{what} is not in the group of RFC 3526: the sender's message is broken")
    return value


def _element_bytes(value: int) -> bytes:
    return int(value).to_bytes(ELEMENT, "big")


def _exponent() -> int:
    return 1 + secrets.randbelow(ORDER - 1)


def offer() -> tuple[bytes, Offer]:
    """The base sender: its secret r, and the message C, g^r. Nobody but it knows the logarithm of C."""
    r = _exponent()
    c = powmod(mpz(GENERATOR), _exponent(), PRIME)
    return _element_bytes(r), {"c": _element_bytes(c), "gr": _element_bytes(powmod(mpz(GENERATOR), r, PRIME))}


def choose(offer: Offer, choices: np.ndarray, info: bytes) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The base receiver: for each choice bit the one key it can know, and the message PK_0 of each pair.

    It knows the logarithm of PK_choice only; the other of the pair is C / PK_choice.
    """
    c, gr = (element(data, "C or g^r of the base transfers") for data in fields(offer, "c", "gr"))
    known = FixedBase(mpz(GENERATOR), mpz(PRIME), PRIME.bit_length())
    shared = FixedBase(gr, mpz(PRIME), PRIME.bit_length())
    keys, sent = [], []
    for index, choice in enumerate(choices.tolist()):
        exponent = _exponent()
        pk = known.power(exponent)
        pk_0 = _element_bytes(c * invert(pk, PRIME) % PRIME if choice else pk)
        keys.append(_base_key(shared.power(exponent), index, choice, offer, pk_0, info))
        sent.append(pk_0)
    return _key_array(keys), {"pk": np.frombuffer(b"".join(sent), np.uint8).reshape(-1, ELEMENT)}


def both_keys(r: bytes, offer: Offer, reply: dict[str, np.ndarray], info: bytes) -> np.ndarray:
    """The base sender: both keys of every pair, from PK_0^r and C^r / PK_0^r, as an array (2, pairs, bytes)."""
    (pk,) = fields(reply, "pk")
    sent = array(pk, (SECURITY, ELEMENT), "the keys of the base transfers")
    exponent = int.from_bytes(r, "big")
    c_r = powmod(mpz(int.from_bytes(offer["c"], "big")), exponent, PRIME)
    keys: tuple[list[bytes], list[bytes]] = ([], [])
    for index, data in enumerate(sent):
        pk_0 = data.tobytes()
        power = powmod(element(pk_0, "a key of the base transfers"), exponent, PRIME)
        keys[0].append(_base_key(power, index, 0, offer, pk_0, info))
        keys[1].append(_base_key(c_r * invert(power, PRIME) % PRIME, index, 1, offer, pk_0, info))
    return np.stack([_key_array(keys[0]), _key_array(keys[1])])


def _base_key(power: int, index: int, choice: int, offer: Offer, pk_0: bytes, info: bytes) -> bytes:
    what = context("naor-pinkas", index=index, choice=choice, c=offer["c"], gr=offer["gr"], pk=pk_0, info=info)
    return hkdf(_element_bytes(power), what)


def _key_array(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
