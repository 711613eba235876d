"""Secure Hamming distances by lattice encryption: the arithmetic of both clients and the server, without any networking.

This is the paper's PHE protocol (XCLP, section 3.2) with module-LWE in the place of Paillier. Client j holds the bits B_j
(n_j x L), client k the bits B_k (n_k x L); the server gets every Hamming distance between a row of j and a row of k.

    client j                                   client k                                  server
    --------                                   --------                                  ------
    s <- ternary, per 512 rows
    b_l = <a_l, s> + e_l + (q/t) B_j[:, l]     for every bit column l; the a_l come from a public seed
    p   = A_0 s + e_0                          the public key
             -- seed, b_1 .. b_L, p -->        (encrypt: once for all partners)
                                               per row b' of B_k, with x = 1 - 2 b' in {-1, 1}:
                                                 (u, v)  = sum_l x_l (a_l, b_l)
                                                 (u, v) += (A_0^T w + e_1, p^T w)        an encryption of zero
                                                 v      += flood + (q/t) r               r uniform mod t
             <-- u, v, rounded --              (evaluate)
                                               R = r - |b'| mod t   ------------------>
    T = round((v - <u, s>) t / q) mod t   ------------------------------------------->   h = T - R mod t
    (decrypt)                                                                            (combine)

The identity is h(b, b') = |b'| + sum_l (1 - 2 b'_l) b_l, so that T = h - |b'| + r. h lies in 0..L, and t is the least power
of two above L: h = 0 and h = L stay apart.

Parameters (derived in docs/mlwe-parameters.md, hardness computed by benchmarks/mlwe_security.py): ring Z_q[x]/(x^512 + 1),
rank 7, q = 2^80, ternary secrets, discrete Gaussian errors of standard deviation 3.2. Bits of up to 512 rows are the
coefficients of one plaintext; further rows use further secrets on the same a_l, so that u is returned only once. The arithmetic
is exact (`lattice`).

Security claim, for honest-but-curious parties:
- client k learns nothing of B_j but its size. Assumption: module-LWE with these parameters; the a_l and A_0 are AES-CTR
  output of a seed that j draws honestly.
- client j learns nothing of B_k but its size. It sees T, uniform because of r, and an error and a vector u that must not
  depend on B_k: u is hidden by the encryption of zero (module-LWE with k's secret w), the error by the flood (statistical
  distance at most 2^-46.7 for 500 x 500 rows of 4096 bits; benchmarks/mlwe_security.py).
- the server learns H and nothing else: R is uniform, T = H + R.
Collusion: server and j together learn H and nothing more of B_k (they can simulate the reply from T); server and k learn H
and nothing more of B_j. H itself with one's own rows tells much about the other's: that is the price of the ideal H, see the
threat model. Not covered: active cheating (a wrong key, a forged ciphertext) and timing (numpy is not constant-time).
A secret serves one `encrypt` call: a new key and seed are drawn each time, so no mask is ever used twice.

Memory beside the messages themselves: about 150 MB to encrypt, 80 bytes x 512 x (3584 + n_j) to evaluate (130 MB for
n_j = 500), 60 MB to decrypt, and 2 to 6 bytes a distance in each of the last three. None of it grows with L.
Threads: whatever BLAS uses; the result is exact, so it does not depend on them. One thread costs the least CPU time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.checks import array, count
from grapevine.crypto.lattice import (
    EXACT,
    LIMB,
    LIMB_BYTES,
    convolve,
    expand,
    from_bytes,
    gauss,
    limb_of,
    pieces,
    product,
    ternary,
    to_bytes,
    to_wire,
)
from grapevine.crypto.stream import SECRET_BYTES, Stream, context, fresh_secret

LOG_Q = 2 * LIMB
MASK = (1 << LIMB) - 1
MOST_BITS = 1 << 15  # T and R then fit 16 bits
COLUMNS = 1024  # bit columns expanded from the seed at a time; part of the wire format, as each piece has its own stream
POINTS = 512  # points of client k evaluated at a time
VALUES = 1 << 18  # distances packed at a time


@dataclass(frozen=True)
class Params:
    """The scheme for L = `bits`. `ring` and `rank` other than the defaults are for toy cases: only 512 and 7 are secure."""

    bits: int
    ring: int = 512
    rank: int = 7

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise Mistake(f"bits={self.bits} is out of range for the mlwe protocol: choose 1 to {MOST_BITS}, as in --bits 4096.")
        if self.ring < 1 or self.ring & (self.ring - 1) or self.rank < 1 or self.dimension << LIMB > EXACT:
            raise ValueError(f"ring {self.ring} must be a power of two and ring x rank {self.dimension} at most {EXACT >> LIMB}")

    @classmethod
    def for_bits(cls, bits: int) -> Params:
        """The secure parameters for L bits."""
        return cls(bits)

    @property
    def dimension(self) -> int:
        return self.ring * self.rank

    @property
    def log_t(self) -> int:
        """t = 2^log_t is the least power of two above L."""
        return int(self.bits).bit_length()

    @property
    def t(self) -> int:
        return 1 << self.log_t

    @property
    def flood_bits(self) -> int:
        """The flood is the sum of three uniform integers of this many bits: at most 3/8 of the rounding margin q/2t."""
        return min(64, LOG_Q - 3 - self.log_t)

    @property
    def kept(self) -> int:
        """Top bits of a returned coefficient that travel; the rest is rounded away."""
        return 24 if self.log_t <= 13 else 32

    def blocks(self, points: int) -> int:
        """Rows go by the ring: so many secrets."""
        return -(-points // self.ring)

    def public(self, seed: bytes, label: str, piece: int, limb: int, count: int) -> np.ndarray:
        """One limb of `count` vectors of public ring elements."""
        return expand(seed, label, piece, limb, (count, self.rank, self.ring))


@dataclass(frozen=True, eq=False)
class Secret:
    """Client j's key for one `encrypt` call: a ternary vector for every `ring` rows. It never leaves the party."""

    params: Params
    points: int
    s: np.ndarray = field(repr=False)  # int8 (blocks, rank, ring)

    def to_bytes(self) -> bytes:
        return self.points.to_bytes(4, "big") + (self.s + 1).astype(np.uint8).tobytes()

    @classmethod
    def from_bytes(cls, params: Params, data: bytes) -> Secret:
        points = int.from_bytes(data[:4], "big")
        shape = (params.blocks(points), params.rank, params.ring)
        values = np.frombuffer(data[4:], np.uint8)
        if len(data) < 4 or points < 1 or values.size != math.prod(shape) or values.max() > 2:
            raise Mistake(f"a stored mlwe secret of {len(data)} bytes does not fit {params}: start the exchange again.")
        return cls(params, points, values.astype(np.int8).reshape(shape) - 1)


# ---- client j ----


def encrypt(params: Params, bits: np.ndarray) -> tuple[Secret, dict]:
    """Client j: a fresh key, and the message for all partners: `seed`, `bodies` (L, n_j, 10) and `key`."""
    return _encrypt(params, bits, fresh_secret(), Stream(fresh_secret(), context("mlwe encrypt")))


def _encrypt(params: Params, bits: np.ndarray, seed: bytes, stream: Stream) -> tuple[Secret, dict]:
    bits = _check_bits(params, bits)
    points = len(bits)
    secret = Secret(params, points, ternary(stream, (params.blocks(points), params.rank, params.ring)))
    bodies = np.empty((params.bits, points, 2 * LIMB_BYTES), np.uint8)
    for piece, columns in enumerate(pieces(params.bits, COLUMNS)):
        a = [params.public(seed, "columns", piece, limb, columns.stop - columns.start) for limb in (0, 1)]
        for block, rows in enumerate(pieces(points, params.ring)):
            low, high = _inner(params, a, secret.s[block], rows.stop - rows.start)
            low += gauss(stream, low.shape)
            high += bits[rows, columns].T.astype(np.int64) << (LIMB - params.log_t)
            bodies[columns, rows] = to_wire(low, high)
    key = np.empty((len(secret.s), params.rank, params.ring, 2 * LIMB_BYTES), np.uint8)
    a = [params.public(seed, "key", 0, limb, params.rank) for limb in (0, 1)]
    for block, s in enumerate(secret.s):
        low, high = _inner(params, a, s, params.ring)
        key[block] = to_wire(low + gauss(stream, low.shape), high)
    return secret, dict(seed=seed, bodies=bodies, key=key)


def _inner(params: Params, a: list[np.ndarray], s: np.ndarray, wanted: int) -> list[np.ndarray]:
    """<a, s> limb by limb, the first coefficients only."""
    return [convolve(one, s[:, None])[:, 0, :wanted] for one in a]


def decrypt(secret: Secret, reply: dict) -> dict:
    """Client j: its share T for the server, out of client k's reply. T is uniform mod t to whoever lacks R."""
    params, points = secret.params, secret.points
    _check_reply(params, reply, points)
    step = params.kept - params.log_t
    T = np.empty((len(reply["a"]), points), np.uint16)
    for some in pieces(len(T), POINTS):
        u = from_bytes(reply["a"][some]).astype(np.float64).reshape(-1, params.rank, params.ring)
        v = from_bytes(reply["b"][some])
        for block, rows in enumerate(pieces(points, params.ring)):
            (inner,) = _inner(params, [u], secret.s[block], rows.stop - rows.start)
            T[some, rows] = v[:, rows] - inner + (1 << (step - 1)) >> step & (params.t - 1)
    return _share(params, T.T)


# ---- client k ----


def evaluate(params: Params, message: dict, bits: np.ndarray) -> tuple[dict, dict]:
    """Client k: the reply for client j, and its own share R for the server."""
    return _evaluate(params, message, bits, Stream(fresh_secret(), context("mlwe evaluate")))


def _evaluate(params: Params, message: dict, bits: np.ndarray, stream: Stream) -> tuple[dict, dict]:
    points_j = _check_message(params, message)
    bits = _check_bits(params, bits)
    width = params.kept // 8
    a = np.empty((len(bits), params.dimension, width), np.uint8)
    b = np.empty((len(bits), points_j, width), np.uint8)
    shares = np.empty((len(bits), points_j), np.uint16)
    for rows in pieces(len(bits), POINTS):
        sums = np.zeros((2, rows.stop - rows.start, params.dimension + points_j), np.int64)
        _add_columns(params, message, bits[rows], sums)
        _add_zero(params, message, sums, stream)
        body = sums[:, :, params.dimension :]
        body += _flood(params, stream, body.shape[1:])
        mask = _mask(params, stream, body.shape[1:])
        body[1] += mask << (LIMB - params.log_t)
        rounded = _round(params, sums)
        a[rows], b[rows] = rounded[:, : params.dimension], rounded[:, params.dimension :]
        shares[rows] = mask - bits[rows].sum(axis=1, dtype=np.int64)[:, None] & (params.t - 1)
    return dict(a=a, b=b), _share(params, shares.T)


def _add_columns(params: Params, message: dict, bits: np.ndarray, sums: np.ndarray) -> None:
    """Adds sum_l (1 - 2 b'_l) (a_l, b_l), limb by limb, one row per point."""
    for piece, columns in enumerate(pieces(params.bits, COLUMNS)):
        signs = 1.0 - 2.0 * bits[:, columns]
        count = signs.shape[1]
        for limb in (0, 1):
            a = params.public(message["seed"], "columns", piece, limb, count).reshape(count, params.dimension)
            sums[limb, :, : params.dimension] += product(signs, a)
            sums[limb, :, params.dimension :] += product(signs, limb_of(message["bodies"][columns], limb))


def _add_zero(params: Params, message: dict, sums: np.ndarray, stream: Stream) -> None:
    """Adds an encryption of zero under client j's public key: w ternary, (A_0^T w + e_1, p^T w).

    Without it u is a public function of the point's bits, and j, who knows the a_l, solves for them. The body gets no error of
    its own: the flood is one.
    """
    _, points, width = sums.shape
    w = ternary(stream, (points, params.rank, params.ring)).astype(np.float64)
    for limb in (0, 1):
        a = params.public(message["seed"], "key", 0, limb, params.rank)  # a[i, m]
        p = limb_of(message["key"], limb).transpose(1, 0, 2)  # p[i, block]
        zero = convolve(w, np.concatenate([a, p], axis=1))
        sums[limb] += zero.reshape(points, -1)[:, :width]
    sums[0, :, : params.dimension] += gauss(stream, (points, params.dimension))


def _flood(params: Params, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Sum of three uniform integers below 2^flood_bits, less its mean: (2, *shape), as limbs.

    Made of whole integers, so every low bit is random (a float Gaussian of this size has empty low bits), and smooth at the
    scale of the error it hides, which a Gaussian high limb over a uniform low limb is not: the errors of many coefficients
    then add up as squares, not one by one (docs/mlwe-parameters.md).
    """
    words = stream.array((3, *shape)) >> np.uint64(64 - params.flood_bits)
    low = (words & np.uint64(MASK)).astype(np.int64).sum(axis=0)
    high = (words >> np.uint64(LIMB)).astype(np.int64).sum(axis=0)
    return np.stack([low, high - (3 << (params.flood_bits - 1 - LIMB))])


def _mask(params: Params, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """r, uniform mod t."""
    return (stream.array(shape, "uint32") & np.uint32(params.t - 1)).astype(np.int64)


def _round(params: Params, sums: np.ndarray) -> np.ndarray:
    """The top `kept` bits of each value mod q, rounded to nearest, as bytes."""
    drop = LIMB - params.kept
    high = sums[1] + (sums[0] >> LIMB) + (1 << (drop - 1)) >> drop
    return to_bytes(high, params.kept // 8)


# ---- the server ----


def combine(params: Params, share_j: dict, share_k: dict) -> np.ndarray:
    """The server: Hamming distances (n_j, n_k), uint16, out of T from client j and R from client k."""
    T, R = open_share(params, share_j), open_share(params, share_k)
    if T.shape != R.shape:
        raise Mistake(f"shares of {T.shape} and {R.shape} distances do not belong together: start the exchange again.")
    h = T
    h -= R  # wraps mod 2^16, and t divides that
    h &= np.uint16(params.t - 1)
    if h.max() > params.bits:
        raise Mistake(f"two shares give a distance of {h.max()} between {params.bits} bits: start the exchange again.")
    return h


def _share(params: Params, values: np.ndarray) -> dict:
    """Values mod t as a message, log_t bits each."""
    rows, columns = values.shape
    flat = np.ascontiguousarray(values).reshape(-1)
    packed = np.empty(_share_bytes(params, rows * columns), np.uint8)
    for some in pieces(flat.size, VALUES):
        words = (flat[some] & (params.t - 1)).astype("<u2")[:, None].view(np.uint8)
        bits = np.unpackbits(words, axis=1, bitorder="little")[:, : params.log_t]
        packed[_share_slice(params, some)] = np.packbits(bits, bitorder="little")
    return dict(rows=rows, columns=columns, values=packed)


def open_share(params: Params, share: dict[str, Any]) -> np.ndarray:
    """The (n_j, n_k) values of a share, uint16."""
    rows, columns = (
        count(share.get("rows"), "a share's number of rows"),
        count(share.get("columns"), "a share's number of columns"),
    )
    packed = array(share.get("values"), (_share_bytes(params, rows * columns),), "a share")
    flat = np.empty(rows * columns, np.uint16)
    for some in pieces(flat.size, VALUES):
        size = some.stop - some.start
        padded = np.zeros((size, 16), np.uint8)
        bits = np.unpackbits(packed[_share_slice(params, some)], count=size * params.log_t, bitorder="little")
        padded[:, : params.log_t] = bits.reshape(size, params.log_t)
        flat[some] = np.packbits(padded, axis=1, bitorder="little").view("<u2")[:, 0]
    return flat.reshape(rows, columns)


def _share_bytes(params: Params, count: int) -> int:
    return (count * params.log_t + 7) // 8


def _share_slice(params: Params, values: slice) -> slice:
    """The bytes that hold these values: a piece begins at a whole byte, because VALUES is a multiple of eight."""
    return slice(_share_bytes(params, values.start), _share_bytes(params, values.stop))


# ---- sizes ----


def sizes(params: Params, points_j: int, points_k: int) -> dict[str, int]:
    """Bytes of one pair: `up` (once for all partners), `back`, and `server` (both shares)."""
    key = params.blocks(points_j) * params.dimension
    return dict(
        up=SECRET_BYTES + 2 * LIMB_BYTES * (params.bits * points_j + key),
        back=points_k * (params.dimension + points_j) * params.kept // 8,
        server=2 * _share_bytes(params, points_j * points_k),
    )


# ---- checks of whatever comes from outside ----


def _check_bits(params: Params, bits: np.ndarray) -> np.ndarray:
    if bits.ndim != 2 or bits.shape[1] != params.bits or len(bits) == 0 or bits.dtype != np.uint8 or bits.max() > 1:
        raise Mistake(
            f"{bits.dtype} bits of shape {bits.shape} cannot be compared: give uint8 rows of {params.bits} zeros and ones."
        )
    return bits


def _check_message(params: Params, message: dict[str, Any]) -> int:
    """The number of client j's points, once every part has the right form."""
    seed, bodies = message.get("seed"), message.get("bodies")
    if not isinstance(seed, bytes) or len(seed) != SECRET_BYTES:
        raise Mistake(f"the encrypted bits carry no seed of {SECRET_BYTES} bytes: ask the sender to start the exchange again.")
    points = bodies.shape[1] if isinstance(bodies, np.ndarray) and bodies.ndim == 3 else 0
    array(bodies, (params.bits, max(points, 1), 2 * LIMB_BYTES), "the encrypted bits")
    array(message.get("key"), (params.blocks(points), params.rank, params.ring, 2 * LIMB_BYTES), "the public key")
    return points


def _check_reply(params: Params, reply: dict[str, Any], points_j: int) -> None:
    a = reply.get("a")
    points_k = len(a) if isinstance(a, np.ndarray) and a.ndim == 3 else 0
    width = params.kept // 8
    array(a, (max(points_k, 1), params.dimension, width), "the reply")
    array(reply.get("b"), (points_k, points_j, width), "the reply")
