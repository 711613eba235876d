"""The graph engine's inner loops, compiled by numba at first use and cached on disk; `neighbours` and `propagation` call them.

They release the interpreter's lock and run in threads of our own: numba's thread pool may not be entered by two threads at
once, and clients are run in threads. A module of its own, because numba takes half a second to load.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from grapevine.graph.blocks import COLUMNS


@njit(nogil=True, cache=True)
def cosine_codes(product, scale, out):
    for i in range(product.shape[0]):
        for j in range(product.shape[1]):
            out[i, j] = -np.int32(math.floor(product[i, j] * scale + 0.5))


@njit(nogil=True, cache=True)
def insert(keys, i, key):
    at = keys.shape[1] - 1
    while at > 0 and keys[i, at - 1] > key:
        at -= 1
    if at > 0 and keys[i, at - 1] == key:
        return  # a block that came twice
    for p in range(keys.shape[1] - 1, at, -1):
        keys[i, p] = keys[i, p - 1]
    keys[i, at] = key


@njit(nogil=True, cache=True)
def offer(block, rows, cols, square, keys):
    """Offer each column to each row's list and, if `square`, each row to each column's list; nobody to itself.

    A key is the distance in the upper 32 bits and the index below: one comparison orders by distance, then by index.
    """
    last = keys.shape[1] - 1
    bar = np.empty(cols.size, np.int64)  # the distance that an offer to this column must not exceed
    for b in range(cols.size):
        bar[b] = keys[cols[b], last] >> 32 if square else np.int64(-(2**62))
    for a in range(rows.size):
        i = np.int64(rows[a])
        row_bar = keys[i, last] >> 32
        for b in range(cols.size):
            distance = np.int64(block[a, b])
            if distance > row_bar and distance > bar[b]:
                continue
            j = np.int64(cols[b])
            if square and i == j:
                continue
            key = distance << 32 | j
            if key < keys[i, last]:
                insert(keys, i, key)
                row_bar = keys[i, last] >> 32
            key = distance << 32 | i
            if square and key < keys[j, last]:
                insert(keys, j, key)
                bar[b] = keys[j, last] >> 32


@njit(nogil=True, cache=True)
def keep_nearest(H, found, rows, keys):
    """Found points into their rows' lists by distance H; −1 is nobody, and nobody is near to itself."""
    for a in range(rows.size):
        for b in range(found.shape[1]):
            j = found[a, b]
            key = np.int64(H[a, b]) << 32 | j
            if j >= 0 and j != rows[a] and key < keys[a, -1]:
                insert(keys, a, key)


@njit(nogil=True, cache=True)
def keep_cosines(B, found, rows, scale, keys):
    """The same by cosine, from directions B of whole numbers, in the codes of `cosine_codes`."""
    for a in range(rows.size):
        i = rows[a]
        for b in range(found.shape[1]):
            j = found[a, b]
            if j < 0 or j == i:
                continue
            product = 0.0
            for c in range(B.shape[1]):
                product += B[i, c] * B[j, c]
            key = -np.int64(math.floor(product * scale + 0.5)) << 32 | j
            if key < keys[a, -1]:
                insert(keys, a, key)


@njit(nogil=True, cache=True)
def majority(bits, of, centres):
    """Each centre's packed bits from those of its points: 1 where at least half have it. One without points stays."""
    ones, points = np.zeros((len(centres), 8 * bits.shape[1]), np.int32), np.zeros(len(centres), np.int32)
    for i in range(len(bits)):
        points[of[i]] += 1
        for b in range(bits.shape[1]):
            for bit in range(8):
                ones[of[i], 8 * b + bit] += bits[i, b] >> (7 - bit) & 1
    for c in range(len(centres)):
        if points[c] == 0:
            continue
        for b in range(bits.shape[1]):
            byte = 0
            for bit in range(8):
                byte = byte << 1 | (2 * ones[c, 8 * b + bit] >= points[c])
            centres[c, b] = byte


@njit(nogil=True, cache=True)
def conjugate_gradients(edges, alpha, Y, tol, max_iter, Z):
    """Solve (I − αW) Z = Y, each of the COLUMNS columns on its own, all in step; returns the number of iterations.

    `edges` are indptr, indices and data of W.
    """
    (indptr, indices, data), n = edges, Y.shape[0]
    R, P, Q = Y.copy(), Y.copy(), np.zeros_like(Y)
    rr, pq, new, step = np.zeros(COLUMNS), np.zeros(COLUMNS), np.zeros(COLUMNS), np.zeros(COLUMNS)
    for i in range(n):
        for c in range(COLUMNS):
            rr[c] += Y[i, c] * Y[i, c]
    goal = tol * tol * rr
    iterations = 0
    while iterations < max_iter and np.any(rr > goal):
        iterations += 1
        pq[:] = 0.0
        for i in range(n):
            for c in range(COLUMNS):
                Q[i, c] = 0.0
            for e in range(indptr[i], indptr[i + 1]):
                j, w = indices[e], data[e]
                for c in range(COLUMNS):
                    Q[i, c] += w * P[j, c]
            for c in range(COLUMNS):
                Q[i, c] = P[i, c] - alpha * Q[i, c]
                pq[c] += P[i, c] * Q[i, c]
        for c in range(COLUMNS):
            step[c] = rr[c] / pq[c] if rr[c] > goal[c] and pq[c] > 0.0 else 0.0
        new[:] = 0.0
        for i in range(n):
            for c in range(COLUMNS):
                Z[i, c] += step[c] * P[i, c]
                R[i, c] -= step[c] * Q[i, c]
                new[c] += R[i, c] * R[i, c]
        for c in range(COLUMNS):
            step[c] = new[c] / rr[c] if rr[c] > 0.0 else 0.0
            rr[c] = new[c]
        for i in range(n):
            for c in range(COLUMNS):
                P[i, c] = R[i, c] + step[c] * P[i, c]
    return iterations
