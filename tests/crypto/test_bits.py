"""Hamming distances of packed rows, by counting."""

from __future__ import annotations

import numpy as np
import pytest

from grapevine.core.errors import Mistake
from grapevine.crypto import bits


def random_bits(n: int, L: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (n, L), dtype=np.uint8)


@pytest.mark.parametrize("L", [1, 8, 13, 64, 100, 256])
def test_hamming_by_counting(L):
    A, B = random_bits(7, L), random_bits(5, L, 1)
    H = bits.hamming(np.packbits(A, axis=1), np.packbits(B, axis=1))
    assert np.array_equal(H, (A[:, None] != B[None]).sum(-1))
    assert bits.hamming(np.packbits(A, axis=1), np.packbits(1 - A, axis=1)).diagonal().tolist() == [L] * 7


def test_rows_that_cannot_be_compared():
    with pytest.raises(Mistake, match="8 and of 16 bytes"):
        bits.hamming(np.zeros((1, 5), np.uint8), np.zeros((1, 9), np.uint8))
    with pytest.raises(Mistake, match="uint8 table"):
        bits.words(np.zeros((2, 8)))
