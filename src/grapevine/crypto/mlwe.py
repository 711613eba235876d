"""Secure Hamming distances by lattice encryption: the arithmetic of both clients and the server, without any networking.

This is the paper's PHE protocol (XCLP, section 3.2) with module-LWE instead of Paillier. Client j holds the bits B_j
(n_j x L), client k the bits B_k (n_k x L); the server gets every Hamming distance between a row of j and a row of k.

    client j                                   client k                                  server
    --------                                   --------                                  ------
    s <- Gaussian, per 512 rows
    b_l = <a_l, s> + e_l + (q/t) B_j[:, l]     for every bit column l; the a_l come from a public seed
    p   = A_0 s + e_0                          the public key
             -- seed, b_1 .. b_L, p -->        (encrypt: once for all partners)
                                               per row b' of B_k, with x = 1 - 2 b' in {-1, 1}:
                                                 (u, v)  = sum_l x_l (a_l, b_l)
                                                 (u, v) += (A_0^T w + e_1, p^T w)        an encryption of zero
                                                 v      += flood, rounded, + r           r uniform, over all bits of v
             <-- u, v, rounded --              (evaluate: u is made and sent once for all j with the same seed)
                                               R = r - (q/t) |b'|   ------------------>
    T = v - <u, s> + y   ------------------------------------------------------------>   h = round((T - R) t / q)
    (decrypt; y Gaussian)                                                                (combine)

The identity is h(b, b') = |b'| + sum_l (1 - 2 b'_l) b_l, so that T - R = (q/t) h + noise. h lies in 0..L, and t is the least
power of two above L: h = 0 and h = L stay apart. Of T and R the top log2(t) + 3 bits travel.

Parameters (derived in docs/mlwe-parameters.md, hardness computed by benchmarks/mlwe_security.py): ring Z_q[x]/(x^512 + 1),
rank 7, q = 2^80, discrete Gaussian secrets s and errors of standard deviation 3.2, ternary w. Bits of up to 512 rows are the
coefficients of one plaintext; further rows use further secrets on the same a_l, so that u is returned only once. The arithmetic
is exact (`lattice`).

What each side learns:
- client k: nothing of B_j but its size. Assumption: module-LWE with these parameters; the a_l and A_0 are AES-CTR output of a
  seed that depends on everybody's keys.
- client j: nothing of B_k but its size, **even if its ciphertexts are not what they should be**: v is uniform because of r,
  whatever j sent, and u depends on the seed alone and is hidden by the encryption of zero (module-LWE with k's secret w).
- the server: H and nothing else. R is uniform and T = (q/t) H + R + noise, where y hides what the noise tells about s.
Collusion, of parties that follow the protocol: server and j together know r, and see the error sum_l x_l e_l + ...; the flood
hides it (statistical distance 2^-45.6 for 500 x 500 rows of 4096 bits). Server and k together know u and r, and see <d, s> + y
where d is what rounding took off u; y makes this a hint under which (s, e) stays as hard to find as without it, with a standard
deviation of 2.2 instead of 3.2 for 2,000 rows of partners. Both learn H, and H itself with a party's own rows tells much about
the other's: that is the price of the ideal H, see the threat model.
Not covered: an active k *together with the server* (a made-up u opens s; `tests/attacks` shows it), and timing (numpy is not
constant-time). A secret serves one `encrypt` call and is used up by `decrypt`: the mean of two T for one reply would show more.

Memory beside the messages themselves: about 60 MB to encrypt, 80 bytes x 512 x (3584 + n_j) to evaluate (130 MB for
n_j = 500), 60 MB to decrypt, and 4 to 8 bytes a distance in each of the last three. None of it grows with L.
Threads: whatever BLAS uses; the result is exact, so it does not depend on them. One thread costs the least CPU time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.checks import array, count
from grapevine.crypto.lattice import (
    EXACT,
    LIMB,
    LIMB_BYTES,
    TAIL,
    convolve,
    expand,
    from_bytes,
    gauss,
    limb_of,
    pieces,
    ternary,
    to_bytes,
    to_wire,
)
from grapevine.crypto.stream import SECRET_BYTES, Stream, context, fresh_secret

LOG_Q = 2 * LIMB
MASK = (1 << LIMB) - 1
MOST_BITS = 1 << 15  # up to here the flood is wide enough
GUARD = 3  # bits of T and R below those of a distance
VEIL = 8000.0  # standard deviation of y, in units of the last bit of v that travels
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
        return 32 if self.log_t <= 13 else 40

    @property
    def share_bits(self) -> int:
        """Bits of T and R that the server gets."""
        return self.log_t + GUARD

    def blocks(self, points: int) -> int:
        """The number of secrets: one for every `ring` rows."""
        return -(-points // self.ring)

    def public(self, seed: bytes, label: str, piece: int, limb: int, count: int) -> np.ndarray:
        """One limb of `count` vectors of public ring elements."""
        return expand(seed, label, piece, limb, (count, self.rank, self.ring))


@dataclass(frozen=True, eq=False)
class Secret:
    """Client j's key for one `encrypt` call: a vector of small numbers for every `ring` rows. It never leaves the party."""

    params: Params
    points: int
    s: np.ndarray = field(repr=False)  # int8 (blocks, rank, ring)

    def to_bytes(self) -> bytes:
        return self.points.to_bytes(4, "big") + (self.s + TAIL).astype(np.uint8).tobytes()

    @classmethod
    def from_bytes(cls, params: Params, data: bytes) -> Secret:
        points = int.from_bytes(data[:4], "big")
        shape = (params.blocks(points), params.rank, params.ring)
        values = np.frombuffer(data[4:], np.uint8)
        if len(data) < 4 or points < 1 or values.size != math.prod(shape) or values.max() > 2 * TAIL:
            raise Mistake(f"a stored mlwe secret of {len(data)} bytes does not fit {params}: start the exchange again.")
        return cls(params, points, values.astype(np.int8).reshape(shape) - np.int8(TAIL))


# ---- client j ----


def encrypt(params: Params, bits: np.ndarray, seed: bytes | None = None) -> tuple[Secret, dict]:
    """Client j: a fresh key, and the message for all partners: `seed`, `bodies` (L, n_j, 10) and `key`.

    The seed is public. Parties that take the same one spare their partners work.
    """
    return _encrypt(params, bits, seed or fresh_secret(), Stream(fresh_secret(), context("mlwe encrypt")))


def _encrypt(params: Params, bits: np.ndarray, seed: bytes, stream: Stream) -> tuple[Secret, dict]:
    bits = _check_bits(params, bits)
    points = len(bits)
    secret = Secret(params, points, gauss(stream, (params.blocks(points), params.rank, params.ring)).astype(np.int8))
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


def decrypt(secret: Secret, reply: dict, points_k: int) -> dict:
    """Client j: its share T for the server, out of client k's reply for its `points_k` rows. T is uniform to whoever lacks R."""
    return _decrypt(secret, reply, points_k, Stream(fresh_secret(), context("mlwe decrypt")))


def _decrypt(secret: Secret, reply: dict, points_k: int, stream: Stream) -> dict:
    params, points = secret.params, secret.points
    _check_reply(params, reply, points_k, points)
    T = np.empty((points_k, points), np.int64)
    for some in pieces(points_k, POINTS):
        u = from_bytes(reply["a"][some]).reshape(-1, params.rank, params.ring)
        v = from_bytes(reply["b"][some])
        for block, rows in enumerate(pieces(points, params.ring)):
            (inner,) = _inner(params, [u], secret.s[block], rows.stop - rows.start)
            T[some, rows] = v[:, rows] - inner
        T[some] += _veil(stream, v.shape)
    return _share(params, T.T)


def _veil(stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """y: what hides from server and k the low bits of <u, s>, which are linear in s with numbers that k knows."""
    return np.rint(stream.normal(shape) * VEIL).astype(np.int64)


# ---- client k ----


def evaluate(params: Params, message: dict, bits: np.ndarray) -> tuple[dict, dict]:
    """Client k: the reply for client j, and its own share R for the server."""
    replies, shares = evaluate_all(params, dict(j=message), bits)
    return replies["j"], shares["j"]


def evaluate_all(params: Params, messages: Mapping[str, dict], bits: np.ndarray) -> tuple[dict[str, dict], dict[str, dict]]:
    """Client k, for several clients j by name. What depends on the seed alone is computed once for those that share it."""
    replies, shares = {}, {}
    for message in messages.values():
        _check_message(params, message)
    for seed in {message["seed"] for message in messages.values()}:
        some = {name: message for name, message in messages.items() if message["seed"] == seed}
        made = _evaluate(params, list(some.values()), bits, Stream(fresh_secret(), context("mlwe evaluate")))
        for name, (reply, share) in zip(some, made):
            replies[name], shares[name] = reply, share
    return replies, shares


def _evaluate(params: Params, messages: Sequence[dict], bits: np.ndarray, stream: Stream) -> list[tuple[dict, dict]]:
    bits = _check_bits(params, bits)
    width, places = params.kept // 8, _places(params, messages)
    a = np.empty((len(bits), params.dimension, width), np.uint8)
    b = [np.empty((len(bits), place.stop - place.start, width), np.uint8) for place in places]
    shares = [np.empty(part.shape[:2], np.int64) for part in b]
    for rows in pieces(len(bits), POINTS):
        sums = np.zeros((2, rows.stop - rows.start, places[-1].stop), np.int64)
        _add_columns(params, messages, bits[rows], sums)
        _add_zero(params, messages, sums, stream)
        body = sums[:, :, params.dimension :]
        body += _flood(params, stream, body.shape[1:])
        rounded = _round(params, sums)
        a[rows] = to_bytes(rounded[:, : params.dimension], width)
        weight = bits[rows].sum(axis=1, dtype=np.int64)[:, None] << (params.kept - params.log_t)
        for part, share, place in zip(b, shares, places):
            mask = _mask(params, stream, part[rows].shape[:2])
            part[rows] = to_bytes(rounded[:, place] + mask, width)
            share[rows] = mask - weight
    return [(dict(a=a, b=part), _share(params, share.T)) for part, share in zip(b, shares)]


def _places(params: Params, messages: Sequence[dict]) -> list[slice]:
    """The places of each message's rows after u."""
    stops = params.dimension + np.cumsum([message["bodies"].shape[1] for message in messages])
    return [slice(stop - message["bodies"].shape[1], stop) for stop, message in zip(stops.tolist(), messages)]


def _add_columns(params: Params, messages: Sequence[dict], bits: np.ndarray, sums: np.ndarray) -> None:
    """Adds sum_l (1 - 2 b'_l) (a_l, b_l), limb by limb, one row per point."""
    from grapevine.crypto import kernels  # here, because numba takes half a second to load

    places = _places(params, messages)
    for piece, columns in enumerate(pieces(params.bits, COLUMNS)):
        negative = kernels.negatives(bits[:, columns])
        for limb in (0, 1):
            a = params.public(messages[0]["seed"], "columns", piece, limb, columns.stop - columns.start)
            kernels.add_signed(a.reshape(-1, params.dimension), negative, sums[limb], 0)
            for message, place in zip(messages, places):
                kernels.add_signed(limb_of(message["bodies"][columns], limb), negative, sums[limb], place.start)


def _add_zero(params: Params, messages: Sequence[dict], sums: np.ndarray, stream: Stream) -> None:
    """Adds an encryption of zero under every client j's public key, with one w: (A_0^T w + e_1, p^T w).

    Without it u is a public function of the point's bits, and j, who knows the a_l, solves for them. The body gets no error of
    its own: the flood is one.
    """
    points = sums.shape[1]
    w, factors = ternary(stream, (points, params.rank, params.ring)), []
    for limb in (0, 1):
        factors.append(params.public(messages[0]["seed"], "key", 0, limb, params.rank))  # a[i, m]
        factors += [limb_of(message["key"], limb).transpose(1, 0, 2) for message in messages]  # p[i, block]
    zero = convolve(w, np.concatenate(factors, axis=1)).reshape(points, 2, -1)
    for limb in (0, 1):
        sums[limb, :, : params.dimension] += zero[:, limb, : params.dimension]
        at = params.dimension
        for message, place in zip(messages, _places(params, messages)):
            sums[limb, :, place] += zero[:, limb, at : at + place.stop - place.start]
            at += len(message["key"]) * params.ring
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
    """r, uniform over all bits of v that travel: a key holder that encrypted something else than bits finds nothing between."""
    return (stream.array(shape) >> np.uint64(64 - params.kept)).astype(np.int64)


def _round(params: Params, sums: np.ndarray) -> np.ndarray:
    """The top `kept` bits of each value mod q, rounded to nearest, and more bits of the sum above them."""
    drop = LIMB - params.kept
    high = sums[1] + (sums[0] >> LIMB)
    return high + (1 << (drop - 1)) >> drop if drop else high + (sums[0] >> (LIMB - 1) & 1)


# ---- the server ----


def combine(params: Params, share_j: dict, share_k: dict) -> np.ndarray:
    """The server: Hamming distances (n_j, n_k), uint16, out of T from client j and R from client k."""
    T, R = open_share(params, share_j), open_share(params, share_k)
    if T.shape != R.shape:
        raise Mistake(f"the shares hold {T.shape} and {R.shape} distances, which do not match: start the exchange again.")
    T -= R  # wraps mod 2^32, and t divides that
    h = ((T + np.uint32(1 << (GUARD - 1))) >> np.uint32(GUARD) & np.uint32(params.t - 1)).astype(np.uint16)
    if h.max() > params.bits:
        raise Mistake(f"two shares give a distance of {h.max()} between {params.bits} bits: start the exchange again.")
    return h


def _share(params: Params, values: np.ndarray) -> dict:
    """The top bits of values mod 2^kept as a message, share_bits each."""
    rows, columns = values.shape
    flat = np.ascontiguousarray(values).reshape(-1)
    packed = np.empty(_share_bytes(params, rows * columns), np.uint8)
    for some in pieces(flat.size, VALUES):
        words = (flat[some] >> (params.kept - params.share_bits)).astype("<u4")[:, None].view(np.uint8)
        bits = np.unpackbits(words, axis=1, bitorder="little")[:, : params.share_bits]
        packed[_share_slice(params, some)] = np.packbits(bits, bitorder="little")
    return dict(rows=rows, columns=columns, values=packed)


def open_share(params: Params, share: dict[str, Any]) -> np.ndarray:
    """The (n_j, n_k) values of a share, uint32."""
    rows, columns = (
        count(share.get("rows"), "a share's number of rows"),
        count(share.get("columns"), "a share's number of columns"),
    )
    packed = array(share.get("values"), (_share_bytes(params, rows * columns),), "a share")
    flat = np.empty(rows * columns, np.uint32)
    for some in pieces(flat.size, VALUES):
        size = some.stop - some.start
        padded = np.zeros((size, 32), np.uint8)
        bits = np.unpackbits(packed[_share_slice(params, some)], count=size * params.share_bits, bitorder="little")
        padded[:, : params.share_bits] = bits.reshape(size, params.share_bits)
        flat[some] = np.packbits(padded, axis=1, bitorder="little").view("<u4")[:, 0]
    return flat.reshape(rows, columns)


def _share_bytes(params: Params, count: int) -> int:
    return (count * params.share_bits + 7) // 8


def _share_slice(params: Params, values: slice) -> slice:
    """The bytes that hold these values: a piece begins at a whole byte, because VALUES is a multiple of eight."""
    return slice(_share_bytes(params, values.start), _share_bytes(params, values.stop))


# ---- sizes ----


def sizes(params: Params, points_j: int, points_k: int) -> dict[str, int]:
    """Bytes of one pair: `up` of j and `common` of k (each once for all partners), `back`, and `server` (both shares)."""
    key = params.blocks(points_j) * params.dimension
    return dict(
        up=SECRET_BYTES + 2 * LIMB_BYTES * (params.bits * points_j + key),
        common=points_k * params.dimension * params.kept // 8,
        back=points_k * points_j * params.kept // 8,
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
        raise Mistake(f"the encrypted bits lack a seed of {SECRET_BYTES} bytes: ask the sender to start the exchange again.")
    points = bodies.shape[1] if isinstance(bodies, np.ndarray) and bodies.ndim == 3 else 0
    array(bodies, (params.bits, max(points, 1), 2 * LIMB_BYTES), "the encrypted bits")
    array(message.get("key"), (params.blocks(points), params.rank, params.ring, 2 * LIMB_BYTES), "the public key")
    return points


def _check_reply(params: Params, reply: dict[str, Any], points_k: int, points_j: int) -> None:
    """Require exactly the rows that are due: every further row would tell the server one more number about the key."""
    width = params.kept // 8
    array(reply.get("a"), (points_k, params.dimension, width), "the reply")
    array(reply.get("b"), (points_k, points_j, width), "the reply")
