"""The inner loops of `bits`, `mlwe` and `ot`, compiled by numba at first use and cached on disk. A module of its own, because
numba takes half a second to load.

Numbers of `ot` are bit-sliced: plane b holds bit b of 64 rows in one word, so that additions are a ripple of and/xor over words.
Bit 0 of a word is its lowest, words are little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def popcount(typingctx: Any, word: Any) -> Any:
    return types.uint64(types.uint64), lambda ctx, builder, signature, args: builder.ctpop(args[0])


@njit(nogil=True, cache=True)
def hamming(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            h = np.uint64(0)
            for w in range(A.shape[1]):
                h += popcount(A[i, w] ^ B[j, w])  # type: ignore[call-arg]
            out[i, j] = np.int32(h)


@njit(cache=True)
def transpose(matrix: np.ndarray) -> np.ndarray:
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
def send(pads: np.ndarray, others: np.ndarray, y: np.ndarray, first: int, sums: np.ndarray, wire: np.ndarray) -> None:
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
def receive(pads: np.ndarray, choices: np.ndarray, first: int, L: int, sums: np.ndarray, wire: np.ndarray) -> None:
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


GROUP, TABLES, TILE = 5, 8, 256  # columns to a table, tables at a time, values at a time: they stay in the processor's cache


def negatives(bits: np.ndarray) -> np.ndarray:
    """For `add_signed`: which columns of each group are ones, (groups, points); whole groups of tables, the last ones empty."""
    points, columns = bits.shape
    groups = -(-columns // (GROUP * TABLES)) * TABLES
    padded = np.zeros((points, groups * GROUP), np.uint8)
    padded[:, :columns] = bits
    weights = (1 << np.arange(GROUP)).astype(np.uint8)
    return np.ascontiguousarray((padded.reshape(points, groups, GROUP) @ weights).T)


@njit(nogil=True, cache=True)
def add_signed(words: np.ndarray, index: np.ndarray, sums: np.ndarray, place: int) -> None:
    """sums[point, place:] += the columns words[l], less twice those in `index`: all 32 sums of five columns are made
    once, and a point adds one of them where a product would add five."""
    columns, values = words.shape
    table = np.empty((TABLES, 1 << GROUP, TILE), np.int64)
    for at in range(0, values, TILE):
        width = min(TILE, values - at)
        for first in range(0, len(index), TABLES):
            for g in range(TABLES):
                start = (first + g) * GROUP
                count = max(0, min(GROUP, columns - start))
                table[g, 0, :width] = 0
                for i in range(count):
                    for c in range(width):
                        table[g, 0, c] += words[start + i, at + c]
                for i in range(count):
                    for entry in range(1 << i):
                        for c in range(width):
                            table[g, (1 << i) + entry, c] = table[g, entry, c] - 2 * words[start + i, at + c]
            for point in range(len(sums)):
                out = sums[point, place + at : place + at + width]
                a, b = table[0, index[first, point]], table[1, index[first + 1, point]]
                d, e = table[2, index[first + 2, point]], table[3, index[first + 3, point]]
                f, q = table[4, index[first + 4, point]], table[5, index[first + 5, point]]
                h, k = table[6, index[first + 6, point]], table[7, index[first + 7, point]]
                for c in range(width):
                    out[c] += a[c] + b[c] + d[c] + e[c] + f[c] + q[c] + h[c] + k[c]
