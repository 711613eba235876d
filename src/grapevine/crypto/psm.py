"""psm: Hamming distances by private simultaneous messages. Clients send one message each; the server gets H and nothing else.

All clients share a seed that the server lacks (`agreement`). Bits are written as X ∈ {±1}, 0 ↦ 1 and 1 ↦ −1, so that X_j X_kᵀ =
L − 2H_jk. All arithmetic is in Z_2^16. From the seed every client draws R_j (n_j × L) for each j and W_jk (n_j × n_k) for each
pair j < k. For a pair:

    client j → server    U_j  = X_j + R_j                 once, for all its partners
                         a_jk = X_j R_kᵀ + W_jk
    client k → server    U_k  = X_k + R_k                 once
                         b_jk = R_j U_kᵀ − W_jk            = R_j X_kᵀ + R_j R_kᵀ − W_jk
    server               U_j U_kᵀ − a_jk − b_jk = X_j X_kᵀ = L − 2H_jk

Claim: the server learns H (and n_j, L), no more. U_j and a_jk are uniform and independent, because each has a one-time mask of
its own, R_j and W_jk; b_jk is then fixed by U_j, U_k, a_jk and H_jk. So the whole view is made from H alone: draw U and a, and
compute b. A client receives nothing from the others and learns nothing. No bulk goes from client to client, and a client that
drops out takes only its own blocks of H with it.

Assumptions: AES-256-CTR under HKDF-SHA256 keys is a pseudorandom stream; the seed stays among the clients; each mask is used
once. R_j on two sets of features would show X − X′, so HKDF's info holds session, roster, hash of keys, step, round, attempt,
parties, ids, places and shapes, and `sums.Attempts` refuses a repeated attempt.

Under collusion: the server and one client together hold the seed, hence R_j, hence every client's bits. The same goes for a
client that taps another's link to the server, so that link must be TLS. Where this is not acceptable, use `mlwe`, which holds.
Even H alone says much to someone who knows points of its own: with n ≥ d own points and H, directions can be trilaterated.

Sizes: L − 2H lies in −L … L and must be read off modulo 2^16, so L < 2^15. Matrix products run in float64 and are exact:
entries are below 2^16, so a sum of L products is below 2^47 < 2^53. (Float32 is exact below 2^24 only: three products of 8-bit
limbs, slower.) Rows are cut into blocks of `BLOCK_ROWS`, each with its own key, so that memory is the message and a few blocks.

Bits are packed rows as `numpy.packbits(bits, axis=1)` makes them; what is in the last byte beyond L is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import Occasion
from grapevine.crypto.stream import Stream

MODULUS_BITS = 16
MOST_BITS = (1 << (MODULUS_BITS - 1)) - 1
BLOCK_ROWS = 1024


def require_length(length: int) -> None:
    """L < 2^15, or L − 2H could not be told from its neighbours modulo 2^16."""
    if not 1 <= length <= MOST_BITS:
        raise Mistake(f"psm takes hashes of 1 to {MOST_BITS} bits, not {length}: choose fewer bits or another protocol")


def row_blocks(count: int) -> Iterator[slice]:
    """How a party's rows are cut."""
    return (slice(at, min(count, at + BLOCK_ROWS)) for at in range(0, count, BLOCK_ROWS))


# --- masks --------------------------------------------------------------------------------------------------------------------


def row_mask(seed: bytes, occasion: Occasion, party: str, rows: slice, length: int) -> np.ndarray:
    """R_party on a block of its rows (uint16)."""
    info = occasion.context("psm rows", party=party, start=rows.start, stop=rows.stop, length=length)
    return Stream(seed, info).array((rows.stop - rows.start, length), "uint16")


def tile_mask(seed: bytes, occasion: Occasion, first: str, second: str, rows: slice, columns: slice, length: int) -> np.ndarray:
    """W_jk on a tile (uint16)."""
    places = dict(row_start=rows.start, row_stop=rows.stop, column_start=columns.start, column_stop=columns.stop)
    info = occasion.context("psm tile", first=first, second=second, length=length, **places)
    return Stream(seed, info).array((rows.stop - rows.start, columns.stop - columns.start), "uint16")


# --- arithmetic modulo 2^16 ---------------------------------------------------------------------------------------------------


def signs(packed: np.ndarray, length: int) -> np.ndarray:
    """X = 1 − 2·bits, as uint16: −1 is 65535."""
    bits = np.unpackbits(packed, axis=1, count=length)
    return np.uint16(1) - (bits.astype(np.uint16) << np.uint16(1))


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left · rightᵀ modulo 2^16, exact: float64 holds every partial sum (below 2^47) without rounding."""
    exact = left.astype(np.float64) @ right.astype(np.float64).T
    return exact.astype(np.int64).astype(np.uint16)


# --- the clients --------------------------------------------------------------------------------------------------------------


def share(seed: bytes, occasion: Occasion, me: str, packed: np.ndarray, length: int) -> np.ndarray:
    """U_me = X_me + R_me (n × L, uint16): uniform to whoever lacks the seed."""
    require_length(length)
    out = np.empty((len(packed), length), np.uint16)
    for rows in row_blocks(len(packed)):
        np.add(signs(packed[rows], length), row_mask(seed, occasion, me, rows, length), out=out[rows])
    return out


def pair_message_a(
    seed: bytes, occasion: Occasion, me: str, other: str, packed: np.ndarray, other_count: int, length: int
) -> np.ndarray:
    """a_jk = X_j R_kᵀ + W_jk (uint16), from the first of the pair in the order of names."""
    _require(me, other, length)
    out = np.empty((len(packed), other_count), np.uint16)
    for columns in row_blocks(other_count):
        mask = row_mask(seed, occasion, other, columns, length)
        for rows in row_blocks(len(packed)):
            tile = product(signs(packed[rows], length).view(np.int16), mask)
            out[rows, columns] = tile + tile_mask(seed, occasion, me, other, rows, columns, length)
    return out


def pair_message_b(
    seed: bytes, occasion: Occasion, me: str, other: str, packed: np.ndarray, other_count: int, length: int
) -> np.ndarray:
    """b_jk = R_j U_kᵀ − W_jk (uint16), from the second of the pair."""
    _require(other, me, length)
    out = np.empty((other_count, len(packed)), np.uint16)
    for columns in row_blocks(len(packed)):
        masked = signs(packed[columns], length) + row_mask(seed, occasion, me, columns, length)
        for rows in row_blocks(other_count):
            tile = product(row_mask(seed, occasion, other, rows, length), masked)
            out[rows, columns] = tile - tile_mask(seed, occasion, other, me, rows, columns, length)
    return out


def _require(first: str, second: str, length: int) -> None:
    require_length(length)
    if not first < second:
        raise ValueError(f"the first in the order of names sends a and the second b, not so for {first!r} and {second!r}")


# --- the server ---------------------------------------------------------------------------------------------------------------


def combine(first_share: np.ndarray, second_share: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """H_jk (n_j × n_k, uint16) from U_j, U_k, a_jk and b_jk. Any matching blocks of them will do."""
    length = first_share.shape[1]
    require_length(length)
    out = np.empty((len(first_share), len(second_share)), np.uint16)
    for rows in row_blocks(len(first_share)):
        for columns in row_blocks(len(second_share)):
            tile = product(first_share[rows], second_share[columns]) - a[rows, columns] - b[rows, columns]
            out[rows, columns] = _distances(tile, length)
    return out


def _distances(tile: np.ndarray, length: int) -> np.ndarray:
    """H from X_j X_kᵀ = L − 2H modulo 2^16."""
    double = np.int32(length) - tile.view(np.int16)
    # Parties with different seeds would give uniform values here: say so rather than hand on a wrong H.
    if tile.size and (double.min() < 0 or double.max() > 2 * length or (double & 1).any()):
        raise Mistake("the psm messages do not match: the parties hold different seeds or rows, so start a new session")
    return (double >> 1).astype(np.uint16)
