"""Secure Hamming distances from oblivious transfer: XCLP's OT variant (section 3.2, after SHADE), batched over IKNP.

Naor and Pinkas 2001 for 128 base transfers (`naor_pinkas`), Ishai, Kilian, Nissim and Petrank 2003 to extend them, and one
*correlated* transfer for each (point of k, bit) with a vector over all rows of j, so points·L transfers rather than
rows·points·L. Pure arithmetic: a message is a dict of arrays, bytes and integers; what `Sender` and `Receiver` carry from chunk
to chunk is one too.

    client j (Sender): bits y                         client k (Receiver): bits x                              server
                       <------------------ C, g^r ---  naor_pinkas.offer
    naor_pinkas.choose --------- PK_0 of 128 pairs ->  naor_pinkas.both_keys
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

Numbers modulo t are held bit-sliced (`kernels`): pads need no unpacking then, and a wire vector is exactly bits(L) planes of rows
bits.

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

Cost is in bytes: 1.7 GB for 500 × 500 points of 4096 bits (`cost` says it beforehand). A chunk is at most CHUNK_BYTES of τ (or
64 transfers, where those take more); a side holds its sums (rows·points·bits(L)/8 bytes) and, for one chunk, at most about
three times CHUNK_BYTES. Rows are sent in eights, transfers go by the point, so the client with more points should be the
sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from grapevine.core.errors import Mistake
from grapevine.crypto.checks import array, bit_table, count, fields
from grapevine.crypto.naor_pinkas import ELEMENT, SECURITY
from grapevine.crypto.stream import Stream, context, fresh_secret, hkdf

CHUNK_BYTES = 32 << 20
PIECE_BYTES = 1 << 18  # of pads made and used at a time, so that they stay in the processor's cache


def _kernels() -> ModuleType:
    from grapevine.crypto import kernels  # here, because numba takes half a second to load

    return kernels


def fresh_delta() -> bytes:
    """Δ, whose bits are the sender's choices in the base transfers."""
    return fresh_secret()[: SECURITY // 8]


def delta_bits(delta: bytes) -> np.ndarray:
    return np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little")


def expand(keys: np.ndarray, chunk: int, size: int) -> np.ndarray:
    """G of the extension: `size` pseudorandom bytes for each of the base keys, new ones for every chunk."""
    out = np.empty((len(keys), size), np.uint8)
    for i, key in enumerate(keys):
        out[i] = np.frombuffer(Stream(key.tobytes(), context("iknp", chunk=chunk, index=i)).bytes(size), np.uint8)
    return out


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
        tweaked = np.empty((len(lines), self.blocks, 2), np.uint64)
        tweaked[:, :, 0] = inner[:, :1] ^ np.arange(self.blocks, dtype=np.uint64)
        tweaked[:, :, 1] = (inner[:, 1] ^ np.arange(first, first + len(lines), dtype=np.uint64))[:, None]
        out = self._permute(tweaked)
        out ^= inner[:, None]
        return out.reshape(len(lines), 2 * self.blocks)


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

    def sums(self, done: dict[str, Any] | None = None) -> tuple[np.ndarray, int]:
        """A side's sums so far and the number of the next chunk, which is all that it carries from one to the next."""
        if done is None:
            return np.zeros((self.points, self.width, self.words), np.uint64), 0
        return done["sums"].copy(), done["next"]

    def due(self, chunk: Any, expected: int) -> int:
        """The chunk's number, if its turn has come."""
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk != expected or chunk >= self.chunks:
            raise Mistake(
                f"chunk {chunk!r} arrived but chunk {expected} of {self.chunks} is due: run again, one chunk after another"
            )
        return chunk

    def share(self, sums: np.ndarray, done: int, less: np.ndarray | int = 0) -> dict[str, np.ndarray]:
        """A side's share for the server, modulo t, once all chunks are done."""
        if done != self.chunks:
            raise Mistake(f"a share was requested after {done} of {self.chunks} chunks: transfer the rest first")
        values = _kernels().unslice(sums, self.rows) - less
        return {"share": (values & ((1 << self.width) - 1)).astype(self.share_type)}

    @property
    def share_type(self) -> type[np.unsignedinteger]:
        return np.uint16 if self.width <= 16 else np.uint32


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
    """Client j. `rows` are its points; it is told how many points client k has. `delta` and `keys` are its part of the base
    transfers, `done` what an earlier `to_dict` gave."""

    def __init__(self, bits: np.ndarray, points: int, info: bytes, delta: bytes, keys: np.ndarray,
                 chunk_bytes: int = CHUNK_BYTES, done: dict[str, Any] | None = None):  # fmt: skip
        self.bits = bit_table(bits, "client j's")
        self.plan = Plan(len(self.bits), count(points, "client k's number of points"), self.bits.shape[1], chunk_bytes)
        self.info, self._delta, self._keys = info, delta, keys
        self.sums, self.next = self.plan.sums(done)

    def __repr__(self) -> str:
        return f"Sender({self.plan}, chunk {self.next}, secrets hidden)"

    def to_dict(self) -> dict[str, Any]:
        return dict(sums=self.sums, next=self.next)

    def lines(self, chunk: int, u: np.ndarray) -> np.ndarray:
        """q of a chunk: line r is k's line, xor Δ where k's choice is one."""
        size = self.plan.padded(chunk)
        u = array(u, (SECURITY, size), "client k's u")
        q = expand(self._keys, chunk, size) ^ (u * delta_bits(self._delta)[:, None])
        return _kernels().transpose(q.view(np.uint64))

    def transfer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One chunk: τ for client k, and j's own sums continue."""
        plan, (chunk, u) = self.plan, fields(request, "chunk", "u")
        lines = self.lines(plan.due(chunk, self.next), u)
        others = lines ^ np.frombuffer(self._delta, np.uint64)
        pads, first, y = Hash(self.info, chunk, plan.blocks), plan.span(chunk)[0], _kernels().slice_bits(self.bits, plan.words)
        wire = np.empty(plan.tau_shape(chunk), np.uint8)
        for at, to in plan.pieces(chunk):
            pair = (pads(some[at:to], first + at) for some in (lines, others))
            _kernels().send(*pair, y, first + at, self.sums, wire[at:to])
        self.next += 1
        return {"chunk": chunk, "tau": wire}

    def share(self) -> dict[str, np.ndarray]:
        """J = Σ s − Σ y, for the server."""
        return self.plan.share(self.sums, self.next, self.bits.sum(axis=1, dtype=np.int64))


class Receiver:
    """Client k. It is told how many rows client j has. `keys` are both keys of every pair of the base transfers."""

    def __init__(self, bits: np.ndarray, rows: int, info: bytes, keys: np.ndarray, chunk_bytes: int = CHUNK_BYTES,
                 done: dict[str, Any] | None = None):  # fmt: skip
        self.bits = bit_table(bits, "client k's")
        self.plan = Plan(count(rows, "client j's number of rows"), len(self.bits), self.bits.shape[1], chunk_bytes)
        self.info, self._keys = info, keys
        self.sums, self.next = self.plan.sums(done)

    def __repr__(self) -> str:
        return f"Receiver({self.plan}, chunk {self.next}, secrets hidden)"

    def to_dict(self) -> dict[str, Any]:
        return dict(sums=self.sums, next=self.next)

    def _choices(self, chunk: int) -> np.ndarray:
        first, stop = self.plan.span(chunk)
        return self.bits.reshape(-1)[first:stop]

    def request(self, chunk: int) -> dict[str, Any]:
        """u of a chunk: G(k_0) xor G(k_1) xor the choices, for each pair of base keys."""
        size = self.plan.padded(self.plan.due(chunk, self.next))
        choices = np.zeros(size, np.uint8)
        packed = np.packbits(self._choices(chunk), bitorder="little")
        choices[: len(packed)] = packed
        u = expand(self._keys[0], chunk, size) ^ expand(self._keys[1], chunk, size) ^ choices
        return {"chunk": chunk, "u": u}

    def lines(self, chunk: int) -> np.ndarray:
        """t of a chunk."""
        return _kernels().transpose(expand(self._keys[0], chunk, self.plan.padded(chunk)).view(np.uint64))

    def receive(self, message: dict[str, Any]) -> None:
        """One chunk of τ: k's sums continue."""
        plan, (chunk, tau) = self.plan, fields(message, "chunk", "tau")
        wire = array(tau, plan.tau_shape(plan.due(chunk, self.next)), "client j's tau")
        lines, choices = self.lines(chunk), self._choices(chunk)
        pads, first = Hash(self.info, chunk, plan.blocks), plan.span(chunk)[0]
        for at, to in plan.pieces(chunk):
            _kernels().receive(pads(lines[at:to], first + at), choices[at:to], first + at, plan.L, self.sums, wire[at:to])
        self.next += 1

    def share(self) -> dict[str, np.ndarray]:
        """K = Σ s + x(1 − 2y), for the server."""
        return self.plan.share(self.sums, self.next)


def distances(from_j: dict[str, Any], from_k: dict[str, Any], rows: int, points: int, L: int) -> np.ndarray:
    """The server: H of shape (rows of j, points of k), K − J modulo t."""
    plan = Plan(rows, points, L)
    shares = {"client j's share": fields(from_j, "share")[0], "client k's share": fields(from_k, "share")[0]}
    j, k = (array(sent, (points, rows), what, plan.share_type).astype(np.int64) for what, sent in shares.items())
    modulus = 1 << plan.width
    out = (k - j) % modulus
    if max(j.max(), k.max()) >= modulus or out.max() > L:
        raise Mistake(f"the shares give no distances among {L} bits: the two clients' messages do not match, so run again")
    return np.ascontiguousarray(out.T.astype(np.int32))
