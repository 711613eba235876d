"""Packed rows of bits, as `numpy.packbits(bits, axis=1)` makes them, and in how many bits two rows differ."""

from __future__ import annotations

import numpy as np

from grapevine.core.errors import Mistake


def hamming(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """H, int32: the number of bits in which each packed row of A differs from each packed row of B."""
    return differences(words(A), words(B))


def words(bits: np.ndarray) -> np.ndarray:
    """Packed rows as 64-bit words, padded with zeros."""
    if bits.dtype != np.uint8 or bits.ndim != 2:
        raise Mistake(f"Packed bits must be a uint8 table, not {bits.dtype} of shape {bits.shape}: use hash_bits.")
    out = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    out[:, : bits.shape[1]] = bits
    return out.view(np.uint64)


def differences(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """H of rows that are words already: for a search, which compares the same rows again and again."""
    if A.shape[1] != B.shape[1]:
        sizes = f"{8 * A.shape[1]} and of {8 * B.shape[1]} bytes"
        raise Mistake(f"Rows of {sizes} cannot be compared: hash both with the same planes.")
    from grapevine.crypto import kernels  # here, because numba takes half a second to load

    out = np.empty((len(A), len(B)), np.int32)
    kernels.hamming(A, B, out)
    return out
