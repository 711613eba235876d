"""Secure Hamming distances from oblivious transfer: XCLP's OT variant (section 3.2, after SHADE), batched over IKNP.

Naor and Pinkas 2001 for 128 base transfers, Ishai, Kilian, Nissim and Petrank 2003 to extend them, and one *correlated*
transfer for each (point of k, bit) with a vector over all rows of j, so points·L transfers rather than rows·points·L. Pure
arithmetic: a message is a dict of arrays, bytes and integers; `Sender` and `Receiver` go to and from plain dicts between
messages.

    client j (Sender): bits y                         client k (Receiver): bits x                              server
                       <------------------ C, g^r ---  offer
    choose: Δ          --------- PK_0 of 128 pairs ->  learn_keys
                       <---------- u of chunk 0 -----  request(0)
    transfer           --------- τ of chunk 0 ------>  receive
                       ...  chunk after chunk  ...
    share              ---------------------------------------- J -------------------------------------------> distances
                                                       share --------------------- K ----------------------->  h = K - J mod t

The arithmetic, modulo t = the least power of two above L: with bits x and y, x xor y = y + x(1 − 2y). Per transfer (p, l) and
row i of j, the sender has a pad s, and k, whose choice is x_pl, gets s or s + (1 − 2y_il), not knowing which row says what. k's
sums over l are K = Σ s + x(1 − 2y), j's are J = Σ s − Σ y, so K − J = h. s is H(q), the value for the other choice is masked
with H(q xor Δ), and τ = s + (1 − 2y) − H(q xor Δ) is all that is sent: rows · bits(L) bits a transfer. IKNP gives k the row H(q
xor x·Δ).

Numbers modulo t are held *bit-sliced*: plane b holds bit b of 64 rows in one word. Pads need no unpacking then, a wire vector
is exactly bits(L) planes of rows bits, and additions are a ripple of and/xor over words. Bit 0 of a word is its lowest, words
are little-endian.

The hash H expands one 128-bit row to as many blocks as the vector takes. It is TMMO of Guo, Katz, Wang and Yu 2020 ("Efficient
and secure multiparty computation from fixed-key block ciphers"): H(x, i) = π(π(x) xor i) xor π(x) with π = AES-128 under a
public key, tweak i = (block, number of the transfer). The key is a new one for every session and chunk, so that tables made
beforehand or for another chunk do not help.

Threat model: honest-but-curious clients and server. **A malicious receiver is not covered**: plain IKNP has no consistency
check. What each side learns:
- client k: nothing of y. Of each pair of pads it can compute one.
- client j: nothing of x. It sees u, masked with the seed it did not choose.
- server: H (and the numbers of rows). J is uniform modulo t, K is J + H.
- server with j, or server with k: what H and the colluding client's own bits give, no more.
Assumptions. x against j: computational Diffie–Hellman in RFC 3526's 3072-bit group with HKDF-SHA256 as a random oracle (j cannot
know both seeds of a pair), AES-256-CTR and HKDF as pseudorandom generators. y against k: Δ is hidden unconditionally in the base
transfers (PK_0 is uniform either way), and H is tweakable correlation-robust, which holds for AES-128 as an ideal cipher up to
about (blocks hashed in a chunk)·(AES calls of the attacker)/2^128.

Exponents are full-length and computed with gmpy2 where it is installed, else with Python's own integers: the same numbers, but
about 10 s rather than 1.4 s of processor time on either side for the base transfers. Neither is constant-time.

Cost is in bytes: 1.7 GB for 500 × 500 points of 4096 bits (`cost` says it beforehand). A chunk is at most CHUNK_BYTES of τ (or
64 transfers, where those take more); a side holds its sums (rows·points·bits(L)/8 bytes) and, for one chunk, at most about
three times CHUNK_BYTES. Rows are sent in eights, transfers go by the point, so the client with more points should be the
sender.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numba import njit

from grapevine.core.errors import Mistake
from grapevine.crypto.paillier import FixedBase, check_bits, count, fields
from grapevine.crypto.stream import Stream, context, fresh_secret, hkdf

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
SECURITY = 128  # base transfers, and bits of Δ
CHUNK_BYTES = 32 << 20
PIECE_BYTES = 1 << 18  # of pads made and used at a time, so that they stay in the processor's cache


# ---------------------------------------------------------------------------------------- base transfers: Naor–Pinkas


def _element(data: Any, what: str) -> int:
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


def base_offer() -> tuple[bytes, dict[str, bytes]]:
    """The base sender: its secret r, and the message C, g^r. Nobody but it knows the logarithm of C."""
    r = _exponent()
    c = powmod(mpz(GENERATOR), _exponent(), PRIME)
    return _element_bytes(r), {"c": _element_bytes(c), "gr": _element_bytes(powmod(mpz(GENERATOR), r, PRIME))}


def base_choose(offer: dict[str, bytes], choices: np.ndarray, info: bytes) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The base receiver: for each choice bit the one key it can know, and the message PK_0 of each pair.

    It knows the logarithm of PK_choice only; the other of the pair is C / PK_choice.
    """
    c, gr = (_element(data, "C or g^r of the base transfers") for data in fields(offer, "c", "gr"))
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


def base_keys(r: bytes, offer: dict[str, bytes], reply: dict[str, np.ndarray], info: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The base sender: both keys of every pair, from PK_0^r and C^r / PK_0^r."""
    sent = _array(*fields(reply, "pk"), np.uint8, (SECURITY, ELEMENT), "the keys of the base transfers")
    exponent = int.from_bytes(r, "big")
    c_r = powmod(mpz(int.from_bytes(offer["c"], "big")), exponent, PRIME)
    keys: tuple[list[bytes], list[bytes]] = ([], [])
    for index, data in enumerate(sent):
        pk_0 = data.tobytes()
        power = powmod(_element(pk_0, "a key of the base transfers"), exponent, PRIME)
        keys[0].append(_base_key(power, index, 0, offer, pk_0, info))
        keys[1].append(_base_key(c_r * invert(power, PRIME) % PRIME, index, 1, offer, pk_0, info))
    return _key_array(keys[0]), _key_array(keys[1])


def _base_key(power: int, index: int, choice: int, offer: dict[str, bytes], pk_0: bytes, info: bytes) -> bytes:
    what = context("naor-pinkas", index=index, choice=choice, c=offer["c"], gr=offer["gr"], pk=pk_0, info=info)
    return hkdf(_element_bytes(power), what)


def _key_array(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)


def _array(array: Any, dtype: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """An array that somebody sent."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise Mistake(f"{what} should be {np.dtype(dtype)} {shape} but is {found}: the sender runs another protocol or version")
    return np.ascontiguousarray(array)


# ----------------------------------------------------------------------------------------------- extension: IKNP


def expand(keys: np.ndarray, chunk: int, size: int) -> np.ndarray:
    """G of the extension: `size` pseudorandom bytes for each of the base keys, new ones for every chunk."""
    out = np.empty((len(keys), size), np.uint8)
    for i, key in enumerate(keys):
        out[i] = np.frombuffer(Stream(key.tobytes(), context("iknp", chunk=chunk, index=i)).bytes(size), np.uint8)
    return out


@njit(cache=True)
def transpose(matrix):
    """Bits of 128 rows of 64-bit words (128, n) to (64 n, 2): word h of line r has at bit i the bit r of row 64 h + i."""
    words = matrix.shape[1]
    out = np.empty((64 * words, 2), np.uint64)
    block = np.empty(64, np.uint64)
    for word in range(words):
        for half in range(2):
            for i in range(64):
                block[i] = matrix[64 * half + i, word]
            # Swap ever smaller squares off the diagonal: 32 × 32, 16 × 16, ... 1 × 1.
            step = 32
            mask = np.uint64(0x00000000FFFFFFFF)
            while step:
                shift = np.uint64(step)
                for i in range(64):
                    if i & step == 0:
                        t = ((block[i] >> shift) ^ block[i + step]) & mask
                        block[i] ^= t << shift
                        block[i + step] ^= t
                step >>= 1
                mask ^= mask << np.uint64(step)
            for i in range(64):
                out[64 * word + i, half] = block[i]
    return out


# ------------------------------------------------------------------------------------------- hash: TMMO over AES-128


class Hash:
    """H(x, i) = π(π(x) xor i) xor π(x), for lines x of two 64-bit words; i = (block, number of the line)."""

    def __init__(self, info: bytes, chunk: int, blocks: int):
        # Not a secret: the key only has to be another one for every session and chunk. ECB is π applied to each block.
        key = hkdf(info, context("tmmo", chunk=chunk), 16)
        self._aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        self.blocks = blocks

    def _permute(self, words: np.ndarray) -> np.ndarray:
        size = words.nbytes
        out = np.empty(size + 16, np.uint8)
        self._aes.update_into(words.reshape(-1).view(np.uint8).data, out.data)
        return out[:size].view(np.uint64).reshape(words.shape)

    def __call__(self, lines: np.ndarray, first: int) -> np.ndarray:
        """`blocks` blocks for each line, numbered from `first`: uint64 of shape (lines, 2·blocks)."""
        inner = self._permute(np.ascontiguousarray(lines))
        out = self._permute(_tweak(inner, np.uint64(first), self.blocks))
        _whiten(out, inner)
        return out.reshape(len(lines), 2 * self.blocks)


@njit(cache=True)
def _tweak(inner, first, blocks):
    out = np.empty((len(inner), blocks, 2), np.uint64)
    for line in range(len(inner)):
        number = first + np.uint64(line)
        for block in range(blocks):
            out[line, block, 0] = inner[line, 0] ^ np.uint64(block)
            out[line, block, 1] = inner[line, 1] ^ number
    return out


@njit(cache=True)
def _whiten(out, inner):
    for line in range(out.shape[0]):
        for block in range(out.shape[1]):
            out[line, block, 0] ^= inner[line, 0]
            out[line, block, 1] ^= inner[line, 1]


# ------------------------------------------------------------------------------------------ bit-sliced sums modulo t


def slice_bits(bits: np.ndarray, words: int) -> np.ndarray:
    """Bits of shape (rows, L) to (L, words): bit i of the words of column l is row i's."""
    packed = np.packbits(bits.T, axis=1, bitorder="little")
    out = np.zeros((packed.shape[0], 8 * words), np.uint8)
    out[:, : packed.shape[1]] = packed
    return out.view(np.uint64)


def unslice(sums: np.ndarray, rows: int) -> np.ndarray:
    """Bit-sliced numbers (points, width, words) to int64 of shape (points, rows)."""
    out = np.zeros((len(sums), rows), np.int64)
    for bit in range(sums.shape[1]):
        plane = np.unpackbits(np.ascontiguousarray(sums[:, bit]).view(np.uint8), axis=1, bitorder="little")
        out += plane[:, :rows].astype(np.int64) << bit
    return out


@njit(cache=True)
def _send(pads, others, y, first, sums, wire):
    """For each transfer: sums[point] += s, and onto the wire s + (1 − 2y) − other, both modulo 2^width."""
    width, words = sums.shape[1:]
    ones = ~np.uint64(0)
    tau = np.empty((width, words), np.uint64)
    tau_bytes = tau.view(np.uint8)
    carry_sum, carry_plus, carry_minus = np.empty(words, np.uint64), np.empty(words, np.uint64), np.empty(words, np.uint64)
    for line in range(len(wire)):
        point, column = divmod(first + line, len(y))
        carry_sum[:] = np.uint64(0)
        carry_plus[:] = np.uint64(0)
        carry_minus[:] = ones  # − v = not v + 1
        for bit in range(width):
            for w in range(words):
                s = pads[line, bit * words + w]
                total = sums[point, bit, w]
                half = total ^ s
                sums[point, bit, w] = half ^ carry_sum[w]
                carry_sum[w] = (total & s) | (half & carry_sum[w])
                # 1 − 2y: bit 0 is one; every other bit is one where y is, for −1
                d = ones if bit == 0 else y[column, w]
                half = s ^ d
                plus = half ^ carry_plus[w]
                carry_plus[w] = (s & d) | (half & carry_plus[w])
                other = ~others[line, bit * words + w]
                half = plus ^ other
                tau[bit, w] = half ^ carry_minus[w]
                carry_minus[w] = (plus & other) | (half & carry_minus[w])
        for bit in range(width):
            for at in range(wire.shape[2]):
                wire[line, bit, at] = tau_bytes[bit, at]


@njit(cache=True)
def _receive(pads, choices, first, L, sums, wire):
    """For each transfer: sums[point] += pad + choice·wire, modulo 2^width."""
    width, words = sums.shape[1:]
    tau = np.zeros((width, words), np.uint64)
    tau_bytes = tau.view(np.uint8)
    carry_pad, carry_wire = np.empty(words, np.uint64), np.empty(words, np.uint64)
    for line in range(len(wire)):
        point = (first + line) // L
        chosen = ~np.uint64(0) if choices[line] else np.uint64(0)
        for bit in range(width):
            for at in range(wire.shape[2]):
                tau_bytes[bit, at] = wire[line, bit, at]
        carry_pad[:] = np.uint64(0)
        carry_wire[:] = np.uint64(0)
        for bit in range(width):
            for w in range(words):
                pad = pads[line, bit * words + w]
                total = sums[point, bit, w]
                half = total ^ pad
                plus = half ^ carry_pad[w]
                carry_pad[w] = (total & pad) | (half & carry_pad[w])
                t = tau[bit, w] & chosen
                half = plus ^ t
                sums[point, bit, w] = half ^ carry_wire[w]
                carry_wire[w] = (plus & t) | (half & carry_wire[w])


# ---------------------------------------------------------------------------------------------------------- protocol


@dataclass(frozen=True)
class Plan:
    """Sizes that both clients work out for themselves: `rows` are j's, `points` are k's."""

    rows: int
    points: int
    L: int
    chunk_bytes: int = CHUNK_BYTES

    @property
    def width(self) -> int:
        """Bits of a number modulo t: enough for every distance 0..L."""
        return self.L.bit_length()

    @property
    def words(self) -> int:
        return -(-self.rows // 64)

    @property
    def blocks(self) -> int:
        """AES blocks for one pad."""
        return -(-self.width * self.words // 2)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one plane on the wire."""
        return -(-self.rows // 8)

    @property
    def transfers(self) -> int:
        return self.points * self.L

    @cached_property
    def chunk(self) -> int:
        """Transfers in a chunk. Beside τ a transfer takes some 100 bytes of lines, which count when rows are few."""
        return max(64, self.chunk_bytes // max(self.width * self.plane_bytes, 100) // 64 * 64)

    @property
    def chunks(self) -> int:
        return -(-self.transfers // self.chunk)

    def span(self, chunk: int) -> tuple[int, int]:
        return chunk * self.chunk, min((chunk + 1) * self.chunk, self.transfers)

    def padded(self, chunk: int) -> int:
        """Bytes of one of the 128 rows of u, a whole number of words."""
        first, stop = self.span(chunk)
        return -(-(stop - first) // 64) * 8

    def tau_shape(self, chunk: int) -> tuple[int, int, int]:
        first, stop = self.span(chunk)
        return stop - first, self.width, self.plane_bytes

    def pieces(self, chunk: int) -> list[tuple[int, int]]:
        """Transfers of a chunk, numbered in the chunk, in pieces whose pads fit into the cache."""
        count = self.tau_shape(chunk)[0]
        step = max(1, PIECE_BYTES // (16 * self.blocks))
        return [(at, min(at + step, count)) for at in range(0, count, step)]

    def no_sums(self) -> np.ndarray:
        return np.zeros((self.points, self.width, self.words), np.uint64)

    def share(self, values: np.ndarray) -> dict[str, np.ndarray]:
        kind = np.uint16 if self.width <= 16 else np.uint32
        return {"share": (values & ((1 << self.width) - 1)).astype(kind)}


def cost(rows: int, points: int, L: int, chunk_bytes: int = CHUNK_BYTES) -> dict[str, int]:
    """Bytes of each kind of message for one pair of clients, how many chunks, and a bound for the memory of a side."""
    plan = Plan(rows, points, L, chunk_bytes)
    tau = plan.transfers * plan.width * plan.plane_bytes
    chunk = max(chunk_bytes, 64 * plan.width * plan.plane_bytes)
    return {
        "base": (SECURITY + 2) * ELEMENT,
        "u": sum(SECURITY * plan.padded(c) for c in range(plan.chunks)),
        "tau": tau,
        "server": 2 * points * rows * (2 if plan.width <= 16 else 4),
        "chunks": plan.chunks,
        "memory": 3 * chunk + 16 * points * rows + 2 * (rows + points) * L + (4 << 20),
    }


class Sender:
    """Client j. `rows` are its points; it is told how many points client k has."""

    def __init__(self, bits: np.ndarray, points: int, info: bytes, chunk_bytes: int = CHUNK_BYTES):
        self.bits = check_bits(bits, "client j's")
        self.plan = Plan(self.bits.shape[0], count(points, "client k's number of points"), self.bits.shape[1], chunk_bytes)
        self.info = info
        self.sums = self.plan.no_sums()
        self.next = 0
        self._delta, self._keys = b"", np.empty((0, 32), np.uint8)

    def __repr__(self) -> str:
        return f"Sender({self.plan}, chunk {self.next}, secrets hidden)"

    def choose(self, offer: dict[str, bytes]) -> dict[str, np.ndarray]:
        """Draws Δ and uses its bits as choices in the base transfers."""
        self._delta = fresh_secret()[: SECURITY // 8]
        self._keys, reply = base_choose(offer, self._delta_bits(), self.info)
        return reply

    def take_keys(self, delta: bytes, keys: np.ndarray) -> None:
        """The outcome of base transfers that were run earlier by `base_choose` with the bits of Δ as choices."""
        self._delta, self._keys = delta, keys

    def _delta_bits(self) -> np.ndarray:
        return np.unpackbits(np.frombuffer(self._delta, np.uint8), bitorder="little")

    def lines(self, chunk: int, u: np.ndarray) -> np.ndarray:
        """q of a chunk: line r is k's line, xor Δ where k's choice is one."""
        size = self.plan.padded(chunk)
        u = _array(u, np.uint8, (SECURITY, size), "client k's u")
        q = expand(self._keys, chunk, size) ^ (u * self._delta_bits()[:, None])
        return transpose(q.view(np.uint64))

    def transfer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One chunk: τ for client k, and j's own sums go on."""
        plan, (chunk, u) = self.plan, fields(request, "chunk", "u")
        if not len(self._keys):
            raise Mistake("client k asks for a chunk before the base transfers: start with its offer")
        lines = self.lines(_expect(chunk, self.next, plan.chunks), u)
        others = lines ^ np.frombuffer(self._delta, np.uint64)
        pads, first, y = Hash(self.info, chunk, plan.blocks), plan.span(chunk)[0], slice_bits(self.bits, plan.words)
        wire = np.empty(plan.tau_shape(chunk), np.uint8)
        for at, to in plan.pieces(chunk):
            _send(pads(lines[at:to], first + at), pads(others[at:to], first + at), y, first + at, self.sums, wire[at:to])
        self.next += 1
        return {"chunk": chunk, "tau": wire}

    def share(self) -> dict[str, np.ndarray]:
        """J = Σ s − Σ y, for the server."""
        _finished(self.next, self.plan)
        return self.plan.share(unslice(self.sums, self.plan.rows) - self.bits.sum(axis=1, dtype=np.int64))

    def to_dict(self) -> dict[str, Any]:
        state = {"points": self.plan.points, "delta": self._delta, "keys": self._keys}
        return _state(self) | state

    @staticmethod
    def from_dict(state: dict[str, Any]) -> Sender:
        self = Sender(_bits_of(state), state["points"], state["info"], state["chunk_bytes"])
        self.sums, self.next = state["sums"].copy(), state["next"]
        self._delta, self._keys = state["delta"], state["keys"]
        return self


class Receiver:
    """Client k. It is told how many rows client j has."""

    def __init__(self, bits: np.ndarray, rows: int, info: bytes, chunk_bytes: int = CHUNK_BYTES):
        self.bits = check_bits(bits, "client k's")
        self.plan = Plan(count(rows, "client j's number of rows"), *self.bits.shape, chunk_bytes)
        self.info = info
        self.sums = self.plan.no_sums()
        self.next = 0
        self._secret, self._offer = b"", {"c": b"", "gr": b""}
        self._keys = np.empty((2, 0, 32), np.uint8)

    def __repr__(self) -> str:
        return f"Receiver({self.plan}, chunk {self.next}, secrets hidden)"

    def offer(self) -> dict[str, bytes]:
        self._secret, self._offer = base_offer()
        return self._offer

    def take_offer(self, secret: bytes, offer: dict[str, bytes]) -> None:
        """An offer made earlier by `base_offer`, before bits and partners were known."""
        self._secret, self._offer = secret, offer

    def learn_keys(self, reply: dict[str, np.ndarray]) -> None:
        if not self._secret:
            raise Mistake("client j answers base transfers that client k did not offer: start with the offer")
        self._keys = np.stack(base_keys(self._secret, self._offer, reply, self.info))
        self._secret = b""

    def _choices(self, chunk: int) -> np.ndarray:
        first, stop = self.plan.span(chunk)
        return self.bits.reshape(-1)[first:stop]

    def request(self, chunk: int) -> dict[str, Any]:
        """u of a chunk: G(k_0) xor G(k_1) xor the choices, for each pair of base keys."""
        if not self._keys.size:
            raise Mistake("client k asks for a chunk before the base transfers: start with its offer")
        size = self.plan.padded(_expect(chunk, self.next, self.plan.chunks))
        choices = np.zeros(size, np.uint8)
        packed = np.packbits(self._choices(chunk), bitorder="little")
        choices[: len(packed)] = packed
        u = expand(self._keys[0], chunk, size) ^ expand(self._keys[1], chunk, size) ^ choices
        return {"chunk": chunk, "u": u}

    def lines(self, chunk: int) -> np.ndarray:
        """t of a chunk."""
        return transpose(expand(self._keys[0], chunk, self.plan.padded(chunk)).view(np.uint64))

    def receive(self, message: dict[str, Any]) -> None:
        """One chunk of τ: k's sums go on."""
        plan, (chunk, tau) = self.plan, fields(message, "chunk", "tau")
        wire = _array(tau, np.uint8, plan.tau_shape(_expect(chunk, self.next, plan.chunks)), "client j's tau")
        lines, choices = self.lines(chunk), self._choices(chunk)
        pads, first = Hash(self.info, chunk, plan.blocks), plan.span(chunk)[0]
        for at, to in plan.pieces(chunk):
            _receive(pads(lines[at:to], first + at), choices[at:to], first + at, plan.L, self.sums, wire[at:to])
        self.next += 1

    def share(self) -> dict[str, np.ndarray]:
        """K = Σ s + x(1 − 2y), for the server."""
        _finished(self.next, self.plan)
        return self.plan.share(unslice(self.sums, self.plan.rows))

    def to_dict(self) -> dict[str, Any]:
        state = {"rows": self.plan.rows, "secret": self._secret, "offer": self._offer, "keys": self._keys}
        return _state(self) | state

    @staticmethod
    def from_dict(state: dict[str, Any]) -> Receiver:
        self = Receiver(_bits_of(state), state["rows"], state["info"], state["chunk_bytes"])
        self.sums, self.next = state["sums"].copy(), state["next"]
        self._secret, self._offer, self._keys = state["secret"], state["offer"], state["keys"]
        return self


def distances(from_j: dict[str, Any], from_k: dict[str, Any], rows: int, points: int, L: int) -> np.ndarray:
    """The server: H of shape (rows of j, points of k), K − J modulo t."""
    plan = Plan(rows, points, L)
    kind = np.uint16 if plan.width <= 16 else np.uint32
    j = _array(*fields(from_j, "share"), kind, (points, rows), "client j's share").astype(np.int64)
    k = _array(*fields(from_k, "share"), kind, (points, rows), "client k's share").astype(np.int64)
    modulus = 1 << plan.width
    out = (k - j) % modulus
    if max(j.max(), k.max()) >= modulus or out.max() > L:
        raise Mistake(f"the shares give no distances among {L} bits: the two clients' messages do not belong together, run again")
    return np.ascontiguousarray(out.T.astype(np.int32))


def _state(side: Sender | Receiver) -> dict[str, Any]:
    packed = np.packbits(side.bits, axis=1)
    common = {"bits": packed, "L": side.plan.L, "info": side.info, "chunk_bytes": side.plan.chunk_bytes}
    return common | {"sums": side.sums, "next": side.next}


def _bits_of(state: dict[str, Any]) -> np.ndarray:
    return np.unpackbits(state["bits"], axis=1, count=state["L"])


def _expect(chunk: Any, expected: int, chunks: int) -> int:
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk != expected or chunk >= chunks:
        raise Mistake(f"chunk {chunk!r} where chunk {expected} of {chunks} is due: chunks go one after another, run again")
    return chunk


def _finished(done: int, plan: Plan) -> None:
    if done != plan.chunks:
        raise Mistake(f"a share is asked for after {done} of {plan.chunks} chunks: transfer the rest first")
