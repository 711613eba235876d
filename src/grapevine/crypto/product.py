"""The server's matrix times the parties' labels, and every party gets its own rows: the arithmetic, without any networking.

The parties hold the rows of a label matrix Y (L labelled rows, c columns of whole numbers 0 to `most`; 0 and 1 unless it is
told), the server holds S (whole numbers, a row for every row of every party, a column for every labelled row). Party j gets
Z_j = S_j Y for its own rows, and nobody gets more.

    party i                                     server                                     party j
    -------                                     ------                                     -------
    s      ternary, from the seed that all parties share and the server lacks
    b_l  = <a_l, s> + e_l + (q/t) Y_l           for every labelled row l of i; the a_l come from a public seed
    p    = A_0 s + e_0                          the public key
             -- b_l, p -->                      for rows r_0, r_1, … of j that share a ciphertext, c coefficients each:
                                                  (u, v)  = sum_k x^(ck) sum_l S[r_k, l] (a_l, b_l)
                                                  (u, v) += (A_0^T w + e_1, p^T w)         an encryption of zero
                                                  v      += flood                          unused coefficients are drawn again
                                                             -- u, v, rounded -->          Z = round((v - <u, s>) t / q)

Parameters (derived in docs/mlwe-parameters.md): ring Z_q[x]/(x^512 + 1), rank 9, q = 2^96 in three limbs of 32 bits, ternary
secrets, errors of standard deviation 3.2, t = 2^16, or 2^22 where labels are larger than 1 (`Scale`). Every row of S is scaled so
that it sums to at most (t - 1) / most, which bounds Z: labels and normalised scores do not depend on a row's scale, and j learns
no magnitudes.

Security claim, for honest-but-curious parties:
- the server learns nothing of Y but its size. Assumption: module-LWE with these parameters; no party tells it the shared seed.
- party j learns Z_j, its own rows up to their scale, and nothing more of S or Y: u is hidden by the encryption of zero
  (module-LWE with the server's secret w), the error, which depends on S, by the flood (statistical distance 2^-49.8 for 500 rows
  and 60 columns of 0 and 1, 2^-46.8 of larger labels; `flood_distance`).
- party i learns nothing of others: their ciphertexts go to the server alone, over TLS.
Collusion: the server and any one party together know s and S, and read all labels. Z and S alone would be enough, by solving the
equations; label differential privacy covers both. Not covered: a server or a party that does not follow the protocol.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.lattice import EXACT, SIGMA, convolve, from_bytes, gauss, ternary, to_bytes
from grapevine.crypto.stream import Stream, context

RING, RANK = 512, 9
LIMB, LIMBS = 32, 3
LOG_Q = LIMB * LIMBS
FISHER = 2 * math.sqrt(3) * math.log(2 + math.sqrt(3))  # Fisher information of a sum of three uniforms on [0, 1]
BYTES = LOG_Q // 8  # of a value mod q
MASK = (1 << LIMB) - 1
LARGEST = 255  # entry of Y
AT_ONCE = 32  # ciphertexts of one matrix product


@dataclass(frozen=True)
class Scale:
    """The part of the scheme that depends on the largest entry of Y. Everybody takes it from the same setting.

    `room` is what a row of S may sum to: room · most < t = 2^t_bits, so that Z does not wrap. The flood is the sum of three
    uniform integers of `flood_bits` bits; it and the rounding to the top `kept` bits fit the margin q/2t.
    """

    most: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.most <= LARGEST:
            raise Mistake(f"labels up to {self.most} cannot be sealed: scale them to whole numbers of 0 to {LARGEST} at most.")

    @property
    def room(self) -> int:
        return (1 << 16) - 1 if self.most == 1 else min((1 << 15) - 1, ((1 << self.t_bits) - 1) // self.most)

    @property
    def t_bits(self) -> int:
        return 16 if self.most == 1 else 22

    @property
    def flood_bits(self) -> int:
        return 75 if self.most == 1 else 71

    @property
    def kept(self) -> int:
        return 24 if self.most == 1 else 32


MOST = Scale().room


def scaled(S: np.ndarray, most: int = 1) -> np.ndarray:
    """Rows of S as whole numbers that sum to at most `Scale(most).room`, each row by its own scale. A row of zeros stays."""
    S = np.maximum(S, 0.0)
    total = S.sum(1, keepdims=True)
    return np.floor(S * (Scale(most).room / np.where(total > 0, total, 1.0)))


def rows_per_ciphertext(columns: int) -> int:
    if not 1 <= columns <= RING:
        raise Mistake(f"{columns} columns of labels do not fit one ciphertext: at most {RING} do, so use fewer classes or folds.")
    return RING // columns


def secret_key(seed: bytes, info: bytes) -> np.ndarray:
    """s, the same at every party."""
    return ternary(Stream(seed, context("product key") + info), (RANK, RING))


# ---- a party ----


def public_key(public: bytes, s: np.ndarray, stream: Stream) -> np.ndarray:
    """p = A_0 s + e_0: (RANK, RING, BYTES)."""
    limbs = _inner(public, "key", RANK, s)
    limbs[0] += gauss(stream, limbs[0].shape)
    return to_wire(limbs)


def encrypt(public: bytes, whose: str, s: np.ndarray, Y: np.ndarray, stream: Stream, most: int = 1) -> np.ndarray:
    """b_l for a party's labelled rows: (L_i, RING, BYTES). `whose` names the party, and with it the a_l."""
    scale = Scale(most)
    if Y.size and not 0 <= Y.min() <= Y.max() <= most:
        raise Mistake(f"a label matrix has entries outside the agreed range of 0 to {most}: scale it first.")
    limbs = _inner(public, f"rows of {whose}", len(Y), s)
    limbs[0] += gauss(stream, limbs[0].shape)
    limbs[-1, :, : Y.shape[1]] += Y.astype(np.int64) << (LIMB - scale.t_bits)
    return to_wire(limbs)


def decrypt(s: np.ndarray, u: np.ndarray, v: np.ndarray, rows: int, columns: int, most: int = 1) -> np.ndarray:
    """A party's own rows of Z: int64 (rows, columns)."""
    scale = Scale(most)
    inner = convolve(from_bytes(u), s[:, None])[:, 0]
    step = scale.kept - scale.t_bits
    values = from_bytes(v) - inner + (1 << (step - 1)) >> step & ((1 << scale.t_bits) - 1)
    per = rows_per_ciphertext(columns)
    return values[:, : per * columns].reshape(-1, columns)[:rows]


def _inner(public: bytes, label: str, count: int, s: np.ndarray) -> np.ndarray:
    """<a, s> limb by limb: int64 (LIMBS, count, RING)."""
    return np.stack([convolve(_expand(public, label, limb, count), s[:, None])[:, 0] for limb in range(LIMBS)])


# ---- the server ----


def unpacked(public: bytes, bodies: dict[str, np.ndarray]) -> list[np.ndarray]:
    """All labelled rows, (a_l, b_l) side by side, limb by limb: uint32 (L, (RANK + 1) · RING). Once for everybody's rows of S."""
    out = []
    for limb in range(LIMBS):
        a = np.concatenate([_expand(public, f"rows of {name}", limb, len(body)) for name, body in bodies.items()])
        b = np.concatenate([from_wire(body)[limb] for body in bodies.values()])
        out.append(np.concatenate([a, b[:, None]], 1).astype(np.uint32).reshape(len(b), -1))
    return out


def evaluate(public: bytes, sealed: list[np.ndarray], key: np.ndarray, S: np.ndarray, columns: int,
             stream: Stream, most: int = 1) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(u, v) for one party's rows of S (whole numbers, `scaled`), whose columns are the parties' labelled rows in order, which
    are `unpacked`."""
    out = _rounded(hidden(public, sealed, key, S, columns, stream, most), Scale(most).kept)
    return out[:, :RANK], out[:, RANK]


def hidden(public: bytes, sealed: list[np.ndarray], key: np.ndarray, S: np.ndarray, columns: int,
           stream: Stream, most: int = 1) -> np.ndarray:  # fmt: skip
    """(u, v) before they are rounded: int64 (LIMBS, ciphertexts, RANK + 1, RING)."""
    scale, per = Scale(most), rows_per_ciphertext(columns)
    if S.size and (S.min() < 0 or S.sum(1).max() > scale.room):
        raise Mistake(f"a row of S sums to more than {scale.room}, and its scores would wrap: scale it first.")
    count = -(-len(S) // per)
    padded = np.zeros((count * per, S.shape[1]))
    padded[: len(S)] = S
    sums = np.zeros((LIMBS, count, RANK + 1, RING), np.int64)
    assert scale.room << LIMB <= EXACT  # a row's entries sum to at most `room`, so its products do to room · 2^LIMB
    for limb, both in enumerate(sealed):
        factors = both.astype(np.float64)
        for some in (slice(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)):
            parts = (padded[some.start * per : some.stop * per] @ factors).astype(np.int64).reshape(-1, per, RANK + 1, RING)
            for k in range(per):
                sums[limb, some] += _shift(parts[:, k], columns * k)
    _add_zero(public, key, sums, stream)
    _add_flood(sums[:, :, RANK], per * columns, stream, scale.flood_bits)
    return sums


def _add_zero(public: bytes, key: np.ndarray, sums: np.ndarray, stream: Stream) -> None:
    """An encryption of zero under p. Without it u is a public function of S, and j, who knows the a_l, solves for it."""
    w, p = ternary(stream, (sums.shape[1], RANK, RING)), from_wire(key)
    factors = [part for limb in range(LIMBS) for part in (_expand(public, "key", limb, RANK), p[limb][:, None])]
    zero = convolve(w, np.concatenate(factors, 1))
    sums += np.moveaxis(zero.reshape(len(w), LIMBS, RANK + 1, RING), 1, 0)
    sums[0, :, :RANK] += gauss(stream, sums[0, :, :RANK].shape)


def _add_flood(body: np.ndarray, used: int, stream: Stream, flood_bits: int) -> None:
    """Three uniform integers of `flood_bits` bits, less their mean, on every coefficient; what carries no score is drawn
    again."""
    for limb in range(LIMBS):
        bits = min(LIMB, flood_bits - LIMB * limb)
        body[limb] += (stream.array((3, *body[limb].shape), "uint32") >> np.uint32(32 - bits)).astype(np.int64).sum(0)
    body[-1] -= 3 << (flood_bits - 1 - LIMB * (LIMBS - 1))
    free = body[..., used:]
    free[...] = stream.array(free.shape, "uint32").astype(np.int64)


def _shift(values: np.ndarray, by: int) -> np.ndarray:
    """x^by times polynomials mod x^RING + 1."""
    return np.concatenate([-values[..., RING - by :], values[..., : RING - by]], -1) if by else values


def _rounded(sums: np.ndarray, kept: int) -> np.ndarray:
    """The top `kept` bits of each value mod q, rounded to nearest, as bytes."""
    limbs = _carried(sums)
    drop = LIMB - kept
    top = limbs[-1] + (1 << (drop - 1)) >> drop if drop else limbs[-1] + (limbs[-2] >> (LIMB - 1))
    return to_bytes(top, kept // 8)


# ---- values mod q ----


def _expand(public: bytes, label: str, limb: int, count: int) -> np.ndarray:
    """One limb of public uniform values out of the seed: int64 (count, RANK, RING)."""
    return Stream(public, context(f"product {label}", limb=limb)).array((count, RANK, RING), "uint32").astype(np.int64)


def _carried(limbs: np.ndarray) -> np.ndarray:
    """Limbs below 2^LIMB, of the same values mod q."""
    out, carry = np.empty_like(limbs), np.zeros_like(limbs[0])
    for i, limb in enumerate(limbs):
        value = limb + carry
        out[i], carry = value & MASK, value >> LIMB
    return out


def to_wire(limbs: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(np.moveaxis(_carried(limbs), 0, -1).astype("<u4"))
    return values.view(np.uint8)


def from_wire(data: np.ndarray) -> np.ndarray:
    """Limbs first, int64."""
    return np.moveaxis(np.ascontiguousarray(data).view("<u4"), -1, 0).astype(np.int64)


def sizes(labelled: int, rows: int, columns: int, most: int = 1) -> dict[str, int]:
    """Bytes of a party: `up` (its labels and the key), `down` (its own rows)."""
    ciphertexts = -(-rows // rows_per_ciphertext(columns))
    return dict(up=BYTES * RING * (labelled + RANK), down=ciphertexts * (RANK + 1) * RING * Scale(most).kept // 8)


def error_sigma(norm: float) -> float:
    """Standard deviation of a coefficient's error before the flood, for a row of S of this Euclidean norm."""
    return SIGMA * math.sqrt(norm**2 + 2 * RING * RANK * 2 / 3)


def flood_distance(rows: int, columns: int, most: int = 1) -> float:
    """log2 of the statistical distance between a party's view of the errors and one that ignores S, at the worst: every row of S
    rests on one label. See docs/mlwe-parameters.md."""
    scale = Scale(most)
    return math.log2(error_sigma(scale.room) * math.sqrt(rows * columns) * math.sqrt(FISHER) / 2) - scale.flood_bits
