"""Secure Hamming distances from Paillier's encryption: XCLP's PHE variant (section 3.2), packed.

Paillier 1999, with the fixed base of Damgård, Jurik and Nielsen 2010 for client j's own encryptions. In this order below: the
encoding (rows of bits to and from one plaintext), the cipher, the protocol. A message is a dict of arrays, bytes and integers.

    client j: bits y, key                    client k: bits x                       server
    encrypt_columns --- n, roots, columns --->
       (signed broadcast, once for all k)    answer
                    <------------- masked ---   |
    open_answer                                 +---------------- n, R ----------->
       |
       +------------------------------- n, T ------------------------------------>  distances: h = unpack((T - R) mod N)

One plaintext holds one bit column of up to `slots` rows of j, each in a slot of bits(L) bits (L = 4096: 13 bits, 157 rows in a
2048-bit key, 236 in a 3072-bit key). Per pack of rows and per own point, k needs h = Σx + Σ_{x=0} y − Σ_{x=1} y, which is
Σx + 2 Σ_{x=0} y − Σ y. In ciphertexts that is P² / A with P the product of the columns where x = 0 and A of all columns, so
one inverse a pack. k multiplies by (1 + rN) and by ρ^N, a fresh encryption of a mask r uniform in Z_N, and the server gets
R = r − Σx·(1 in every used slot). (T − R) mod N is then exactly the packed distances, all of them in [0, L]: nothing
negative, nothing carried from slot to slot. Subtraction comes before unpacking because r masks the whole plaintext, not a slot.
Unused slots of the last pack get no Σx: otherwise the server would read the weight of x there.

Threat model: honest-but-curious clients and server, and a client j that makes up key and columns. What each side learns:
- client k: nothing of y. It sees ciphertexts only.
- client j: nothing of x, **whatever key and columns it sent**. Times (1 + rN) with r uniform, an answer is uniform but for its
  residue modulo N; there it is multiplied by ρ^N, within 2^-56 of uniform in Z_N* (`Residues`) because ρ ↦ ρ^N is a permutation.
  j proves that by N-th roots of numbers it did not choose (`roots`; Goldberg, Reyzin, Sagga and Baldimtsi 2018): if it were none,
  each number would have a root with a chance of at most 2^-16, as N has no smaller factor.
- server: H (and the numbers of rows). T and R alone are uniform in Z_N; together they are R and H.
- server with j, or server with k: what H and the colluding client's own bits give, no more.
Without ρ^N, j, who knows the randomness of its columns, tests any guess of x. With powers of one base it still could: it would
choose p − 1 and q − 1 with many small common factors, and columns outside what the base generates.

Assumptions, for y against k and the server:
1. decisional composite residuosity;
2. **short exponents**: base^a with a uniform below 2^EXPONENT_BITS is not told from base^a with a uniform below the order, where
   base = (x²)^N mod N², x random; j keeps it to itself. With exponents of half of N's length this follows from factoring
   (Goldreich and Rosen 2003); 384 bits are fewer, and an assumption of their own. The best attack known is a square-root search.
x against j needs neither: it is hidden statistically. A client k that makes up answers, together with the server, reads what it
likes of y: an answer is decrypted whatever it holds. gmpy2's arithmetic is not constant-time. k's `Residues` take about 100 MB.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.checks import array, bit_table, count, fields
from grapevine.crypto.stream import Stream, context

KEY_BITS = (2048, 3072)
EXPONENT_BITS = 384  # of the random exponent of a column's ciphertext
CHALLENGES = 8  # N-th roots that prove a key
LEAST_FACTOR = 1 << 16  # N has no smaller factor: a false proof passes with a chance of LEAST_FACTOR^-CHALLENGES at most
POOL, POOL_BITS = 112, 32  # random residues to make more of, and the length of their exponents
APART = "the two clients' messages do not match, so run again"


def _gmpy2() -> Any:
    try:
        return import_module("gmpy2")
    except ImportError:
        way = 'pip install "grapevine-fl[paillier]"'
        raise Mistake(f"paillier needs gmpy2, which is not installed: run {way}, or choose another protocol") from None


# ---------------------------------------------------------------------------------------------------------- encoding


@dataclass(frozen=True)
class Packing:
    """How the rows of j lie in plaintexts: `slots` numbers of `width` bits in a plaintext, row 0 in the lowest."""

    rows: int
    L: int
    key_bits: int

    @property
    def width(self) -> int:
        """Bits that hold every distance 0..L."""
        return self.L.bit_length()

    @property
    def slots(self) -> int:
        # N has key_bits bits, so everything below 2^(key_bits - 1) is below N.
        return (self.key_bits - 1) // self.width

    @property
    def packs(self) -> int:
        if self.slots == 0:
            raise Mistake(f"a key of {self.key_bits} bits has no room for distances up to {self.L}: use a longer key")
        return -(-self.rows // self.slots)

    def used(self, pack: int) -> int:
        """How many slots of this pack hold a row."""
        return min(self.slots, self.rows - pack * self.slots)

    def pack(self, values: np.ndarray) -> list[int]:
        """Numbers (count, at most `slots` each, each below 2^width) to `count` plaintexts."""
        values = np.asarray(values, np.int64)
        if values.ndim != 2 or values.shape[1] > self.slots or (values >> self.width).any():
            raise ValueError(f"{values.shape} numbers do not fit into {self.slots} slots of {self.width} bits")
        digits = (values[:, :, None] >> np.arange(self.width)) & 1
        packed = np.packbits(digits.reshape(len(values), -1).astype(np.uint8), axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in packed]

    def unpack(self, plain: int, used: int) -> np.ndarray:
        """The first `used` slots of a plaintext; anything above them is not ours and raises."""
        if plain >> (used * self.width):
            raise Mistake(f"a sum overflows the {used} slots it should fill: {APART}")
        data = np.frombuffer(to_bytes(plain, -(-used * self.width // 8)), np.uint8)
        digits = np.unpackbits(data, bitorder="little")[: used * self.width].reshape(used, self.width)
        return digits.astype(np.int64) @ (1 << np.arange(self.width))


def to_array(numbers: Iterable[int], size: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers as little-endian bytes, `size` each: uint8 of shape `shape + (size,)`."""
    data = b"".join(to_bytes(number, size) for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(*shape, size)


def to_bytes(number: int, size: int) -> bytes:
    return int(number).to_bytes(size, "little")


def from_array(sent: Any, shape: tuple[int, ...], size: int, what: str) -> list[int]:
    """The inverse of `to_array`, for arrays that somebody sent."""
    mpz, data = _gmpy2().mpz, array(sent, (*shape, size), what).tobytes()
    return [mpz(int.from_bytes(data[at : at + size], "little")) for at in range(0, len(data), size)]


# ------------------------------------------------------------------------------------------------------------ cipher


class FixedBase:
    """base^e mod m for many e: a table of base^(d·256^i), so that a power costs one product for each byte of e."""

    def __init__(self, base: int, modulus: int, exponent_bits: int):
        self.modulus, self.size = modulus, -(-exponent_bits // 8)
        self.rows = []
        for _ in range(self.size):
            row: list[int] = [base**0]
            for _ in range(255):
                row.append(row[-1] * base % modulus)
            self.rows.append(row)
            base = row[-1] * base % modulus

    def __repr__(self) -> str:
        return f"FixedBase({8 * self.size} bits)"

    def power(self, exponent: int) -> int:
        out, m = 1, self.modulus
        for row, digit in zip(self.rows, int(exponent).to_bytes(self.size, "little")):
            out = out * row[digit] % m
        return out


@dataclass(frozen=True)
class PublicKey:
    """N. Ciphertexts are numbers modulo N²."""

    n: int

    @cached_property
    def n2(self) -> int:
        return self.n * self.n

    @property
    def bits(self) -> int:
        return int(self.n).bit_length()

    @property
    def size(self) -> int:
        """Bytes of a plaintext; a ciphertext takes twice as many."""
        return -(-self.bits // 8)

    def embed(self, plain: int) -> int:
        """(1 + N)^m = 1 + mN modulo N²."""
        return 1 + plain * self.n

    def check(self, roots: Any, toy: bool = False) -> PublicKey:
        """A key that somebody sent: long enough, odd, without small factors, and x ↦ x^N a permutation."""
        gmpy2 = _gmpy2()
        if not toy and self.bits not in KEY_BITS:
            raise Mistake(f"a Paillier key of {self.bits} bits is not allowed: use {' or '.join(map(str, KEY_BITS))}")
        if self.n < 15 or self.n % 2 == 0 or not toy and gmpy2.gcd(self.n, gmpy2.primorial(LEAST_FACTOR)) != 1:
            raise Mistake("a Paillier modulus has no factor below 2^16: the sender's key is broken, make a new one")
        sent = from_array(roots, (CHALLENGES,), self.size, "the roots that prove client j's key")
        if any(gmpy2.powmod(root, self.n, self.n) != challenge for root, challenge in zip(sent, self.challenges())):
            raise Mistake("the roots do not prove the Paillier key: the sender's key is broken, make a new one")
        return self

    def challenges(self) -> list[int]:
        """Numbers modulo N that depend on N and that nobody chose."""
        stream = Stream(to_bytes(self.n, max(self.size, 16)), context("paillier key", bits=self.bits))
        return [_gmpy2().mpz(int.from_bytes(stream.bytes(self.size + 16), "little")) % self.n for _ in range(CHALLENGES)]

    def check_ciphertexts(self, numbers: Sequence[int], what: str) -> Sequence[int]:
        """0 < c < N² and no factor in common with N, for all of them."""
        if any(not 0 < c < self.n2 for c in numbers):
            raise Mistake(f"{what}: a number outside 1..N²-1 is not a ciphertext: the sender's message is broken")
        product = 1
        for c in numbers:
            product = product * c % self.n
        if _gmpy2().gcd(product, self.n) != 1:
            raise Mistake(f"{what}: a number that shares a factor with N is not a ciphertext: the sender's message is broken")
        return numbers


@dataclass(frozen=True, repr=False)
class SecretKey:
    """The two primes and the base; everything else follows."""

    p: int
    q: int
    base: int

    def __repr__(self) -> str:
        return f"SecretKey({self.public.bits} bits, secret hidden)"

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.p * self.q)

    def to_dict(self) -> dict[str, bytes]:
        size = self.public.size
        return {"p": to_bytes(self.p, size), "q": to_bytes(self.q, size), "base": to_bytes(self.base, 2 * size)}

    @staticmethod
    def from_dict(state: dict[str, bytes]) -> SecretKey:
        mpz = _gmpy2().mpz
        return SecretKey(*(mpz(int.from_bytes(state[name], "little")) for name in ("p", "q", "base")))

    @cached_property
    def _p2_inverse(self) -> int:
        return _gmpy2().invert(self.p**2, self.q**2)

    def roots(self) -> np.ndarray:
        """The N-th roots of the key's challenges, modulo N: only whoever knows its factors has them, if they exist at all."""
        n, size = self.public.n, self.public.size
        exponent = _gmpy2().invert(n, (self.p - 1) * (self.q - 1))
        return to_array((_gmpy2().powmod(c, exponent, n) for c in self.public.challenges()), size, (CHALLENGES,))

    def encrypt(self, plains: Iterable[int]) -> list[int]:
        """c = (1 + mN)·base^a, a short and fresh, computed modulo p² and q² because their owner can."""
        p2, q2, public = self.p**2, self.q**2, self.public
        mod_p = FixedBase(self.base % p2, p2, EXPONENT_BITS)
        mod_q = FixedBase(self.base % q2, q2, EXPONENT_BITS)
        out = []
        for plain in plains:
            if not 0 <= plain < public.n:
                raise ValueError("a plaintext lies in 0..N-1")
            a = secrets.randbits(EXPONENT_BITS)
            u, v = mod_p.power(a), mod_q.power(a)
            noise = u + p2 * ((v - u) * self._p2_inverse % q2)
            out.append(noise * public.embed(plain) % public.n2)
        return out

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        """m modulo p and modulo q, one thread each (powmod_base_list gives up the interpreter's lock), then put together."""
        self.public.check_ciphertexts(ciphertexts, "the ciphertexts to decrypt")
        with ThreadPoolExecutor(2) as pool:
            plain_p = pool.submit(self._decrypt_modulo, ciphertexts, self.p, self.q)
            plain_q = pool.submit(self._decrypt_modulo, ciphertexts, self.q, self.p)
        p_inverse = _gmpy2().invert(self.p, self.q)
        return [u + self.p * ((v - u) * p_inverse % self.q) for u, v in zip(plain_p.result(), plain_q.result())]

    @staticmethod
    def _decrypt_modulo(ciphertexts: Sequence[int], p: int, q: int) -> list[int]:
        # c^(p-1) = (1 + mN)^(p-1) = 1 - mN modulo p²: the noise, an N-th power, has an order that divides p - 1 there.
        p2, scale = p * p, _gmpy2().invert(-q, p)
        powers = _gmpy2().powmod_base_list([c % p2 for c in ciphertexts], p - 1, p2)
        return [(u - 1) // p * scale % p for u in powers]


class Residues:
    """Random N-th residues modulo N²: ρ^N with ρ uniform. Such powers are expensive: if more than POOL residues are needed, they
    are products of random powers of POOL of them. Those are near to uniform by the leftover hash lemma: exponents have together
    at least 512 bits more than N, and the chance that two draws differ by even exponents only (or by multiples of a larger prime)
    is 2^-POOL: a distance of 2^-56 each.
    """

    def __init__(self, public: PublicKey, count: int):
        self.public = public
        size = max(POOL, -(-(public.bits + 512) // POOL_BITS))
        bases = [FixedBase(self._fresh(), public.n2, POOL_BITS) for _ in range(size)] if count > size else []
        self.rows = [row for base in bases for row in base.rows]

    def draw(self) -> int:
        if not self.rows:
            return self._fresh()
        out, m = 1, self.public.n2
        for row, digit in zip(self.rows, secrets.token_bytes(len(self.rows))):
            out = out * row[digit] % m
        return out

    def _fresh(self) -> int:
        gmpy2, n = _gmpy2(), self.public.n
        while True:
            x = gmpy2.mpz(secrets.randbits(self.public.bits + 128)) % n
            if gmpy2.gcd(x, n) == 1:
                return gmpy2.powmod(x, n, self.public.n2)


def make_key(bits: int = 3072, toy: bool = False) -> SecretKey:
    """Two random primes of half the length, both 3 modulo 4, and the N-th power of a random square."""
    if bits not in KEY_BITS and not (toy and bits >= 16 and bits % 2 == 0):
        raise Mistake(f"a Paillier key of {bits} bits is not allowed: use {' or '.join(map(str, KEY_BITS))}")
    p = q = _prime(bits // 2)
    while p == q:
        q = _prime(bits // 2)
    return SecretKey(p, q, _base(p * q))


def _prime(bits: int) -> int:
    gmpy2 = _gmpy2()
    while True:  # the two highest bits are set so that the product of two such primes has exactly twice as many
        candidate = gmpy2.mpz(secrets.randbits(bits) | 3 << (bits - 2) | 3)
        if gmpy2.is_prime(candidate, 40):
            return candidate


def _base(n: int) -> int:
    gmpy2 = _gmpy2()
    while True:
        x = gmpy2.mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(x, n) == 1 and x * x % n != 1:
            return gmpy2.powmod(x * x, n, n * n)


# ---------------------------------------------------------------------------------------------------------- protocol


def encrypt_columns(key: SecretKey, bits: np.ndarray) -> dict[str, Any]:
    """Client j, once: every bit column of every pack of its rows, encrypted. The same message goes to all partners."""
    bits, public = bit_table(bits, "client j's"), key.public
    packing = Packing(len(bits), bits.shape[1], public.bits)
    plains = []
    for pack in range(packing.packs):
        rows = bits[pack * packing.slots :][: packing.used(pack)]
        plains += packing.pack(rows.T)
    columns = to_array(key.encrypt(plains), 2 * public.size, (packing.packs, packing.L))
    return {"n": to_bytes(public.n, public.size), "roots": key.roots(), "rows": packing.rows, "columns": columns}


def answer(message: dict[str, Any], bits: np.ndarray, toy: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Client k, to client j's columns: what goes back to j (ciphertexts of T) and what goes to the server (R)."""
    bits = bit_table(bits, "client k's")
    n, roots, rows, columns = fields(message, "n", "roots", "rows", "columns")
    public = _read_key(n, roots, toy)
    packing = Packing(count(rows, "client j's number of rows"), bits.shape[1], public.bits)
    numbers = from_array(columns, (packing.packs, packing.L), 2 * public.size, "client j's columns")
    public.check_ciphertexts(numbers, "client j's columns")

    residues = Residues(public, len(bits) * packing.packs)
    weights = bits.sum(axis=1, dtype=np.int64)
    masked, masks = {}, {}
    for pack in range(packing.packs):
        columns = numbers[pack * packing.L : (pack + 1) * packing.L]
        ones = packing.pack(np.ones((1, packing.used(pack))))[0]
        for point, product in enumerate(signed_products(columns, bits, public)):
            r = secrets.randbelow(int(public.n))
            product = product * public.embed(r) % public.n2
            masked[point, pack] = product * residues.draw() % public.n2
            masks[point, pack] = (r - int(weights[point]) * ones) % public.n
    shape = (len(bits), packing.packs)
    back = {"masked": to_array((masked[at] for at in np.ndindex(shape)), 2 * public.size, shape)}
    return back, {"n": n, "r": to_array((masks[at] for at in np.ndindex(shape)), public.size, shape)}


def signed_products(columns: Sequence[int], bits: np.ndarray, public: PublicKey) -> list[int]:
    """For each point x of k an encryption of 2 Σ_{x=0} y − Σ y, neither masked nor re-randomised yet.

    The products of every subset of a few neighbouring columns are tabled, so that a point costs one product a table.
    Numbers modulo N² are kept as two digits to base N (`times`): products then take two thirds of the time.
    """
    n, n2 = public.n, public.n2
    width = min(range(1, 13), key=lambda w: (2**w + len(bits)) / w)
    products, everything = [(1, 0)] * len(bits), (1, 0)
    for at in range(0, len(columns), width):
        table = [(1, 0)]
        for column in columns[at : at + width]:
            high, low = divmod(column, n)
            table += [times(entry, (low, high), n) for entry in table]
        everything = times(everything, table[-1], n)
        zeros = 1 - bits[:, at : at + width].astype(np.int64)
        subsets = zeros @ (1 << np.arange(zeros.shape[1]))
        products = [times(product, table[subset], n) for product, subset in zip(products, subsets.tolist())]
    inverse = _gmpy2().invert(everything[0] + everything[1] * n, n2)
    return [(low + high * n) ** 2 % n2 * inverse % n2 for low, high in products]


def times(a: tuple[int, int], b: tuple[int, int], n: int) -> tuple[int, int]:
    """(a0 + a1·N)(b0 + b1·N) modulo N², digits to base N, the low one first. a1·b1 is a multiple of N²."""
    carry, low = divmod(a[0] * b[0], n)
    return low, (carry + a[0] * b[1] + a[1] * b[0]) % n


def open_answer(key: SecretKey, message: dict[str, Any], rows: int, L: int, points: int) -> dict[str, Any]:
    """Client j: decrypts k's answer to T, for the server. `rows` are j's own points, `points` are k's."""
    public = key.public
    shape = (points, Packing(rows, L, public.bits).packs)
    (masked,) = fields(message, "masked")
    plains = key.decrypt(from_array(masked, shape, 2 * public.size, "client k's answer"))
    return {"n": to_bytes(public.n, public.size), "t": to_array(plains, public.size, shape)}


def distances(from_j: dict[str, Any], from_k: dict[str, Any], rows: int, points: int, L: int) -> np.ndarray:
    """The server: H of shape (rows of j, points of k) from T and R. Subtracts modulo N, then unpacks."""
    (n_j, t), (n_k, r) = fields(from_j, "n", "t"), fields(from_k, "n", "r")
    if not isinstance(n_j, bytes) or n_j != n_k:
        raise Mistake("client j and client k used different Paillier keys: their messages do not match, so run again")
    n, size = int.from_bytes(n_j, "little"), len(n_j)
    packing = Packing(rows, L, n.bit_length())
    shape = (points, packing.packs)
    ts = from_array(t, shape, size, "client j's sums")
    rs = from_array(r, shape, size, "client k's masks")
    if any(v >= n for v in (*ts, *rs)):
        raise Mistake("a sum or mask is not below the Paillier modulus: the sender's message is broken, run again")
    out = np.empty((points, rows), np.int32)
    for (point, pack), t, r in zip(np.ndindex(shape), ts, rs):
        at = pack * packing.slots
        out[point, at : at + packing.used(pack)] = packing.unpack((t - r) % n, packing.used(pack))
    if out.max() > L:
        raise Mistake(f"a distance of {out.max()} among {L} bits: {APART}")
    return np.ascontiguousarray(out.T)


def cost(rows: int, points: int, L: int, key_bits: int = 3072) -> dict[str, int]:
    """Bytes of each message for one pair of clients, before anything is computed. Columns are sent once for all partners."""
    packing, size = Packing(rows, L, key_bits), -(-key_bits // 8)
    sums = points * packing.packs * size
    return {"columns": (packing.packs * L * 2 + CHALLENGES + 1) * size, "masked": 2 * sums, "server": 2 * (sums + size)}


def _read_key(n: Any, roots: Any, toy: bool) -> PublicKey:
    if not isinstance(n, bytes):
        raise Mistake("client j's key should be the bytes of N: the sender runs another version")
    key = PublicKey(_gmpy2().mpz(int.from_bytes(n, "little")))
    if key.size != len(n):
        raise Mistake(f"client j's N fills {key.size} of its {len(n)} bytes: the sender's key is broken")
    return key.check(roots, toy)
