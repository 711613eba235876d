"""Hyperplanes and bits: against signs of exact products, frames, and the cosine that the distances estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grapevine import graph as g
from grapevine.core.errors import Mistake

SECRET = bytes(range(32))


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def unpack(bits: np.ndarray, L: int) -> np.ndarray:
    return np.unpackbits(bits, axis=1, count=L)


def test_planes_are_those_of_the_stream_and_standard_normal():
    planes = g.hyperplanes(SECRET, 4096, 16, b"a")
    assert planes.dtype == np.float32 and planes.shape == (4096, 16)
    assert np.array_equal(planes, g.hyperplanes(SECRET, 4096, 16, b"a"))
    assert not np.array_equal(planes, g.hyperplanes(SECRET, 4096, 16, b"b"))
    assert abs(planes.mean()) < 5 / math.sqrt(planes.size)
    assert abs(planes.var() - 1) < 5 * math.sqrt(2 / planes.size)


@pytest.mark.parametrize("bits, d", [(64, 16), (16, 16), (8, 16)])
def test_tight_frame(bits, d):
    planes = g.hyperplanes(SECRET, bits, d, b"a", tight_frame=True).astype(np.float64)
    gram = planes.T @ planes if bits >= d else planes @ planes.T
    assert np.allclose(gram / max(bits, d), np.eye(min(bits, d)), atol=1e-5)


@pytest.mark.parametrize("L", [1, 7, 8, 13, 64, 65, 200])
def test_bits_are_the_signs(L):
    V, planes = points(50, 9), g.hyperplanes(SECRET, L, 9, b"a")
    packed = g.hash_bits(V, planes)
    assert packed.shape == (50, math.ceil(L / 8)) and packed.dtype == np.uint8
    assert np.array_equal(unpack(packed, L), V @ planes.T.astype(np.float64) >= 0)
    assert np.array_equal(np.packbits(unpack(packed, L), axis=1), packed)


def test_zero_and_a_point_on_a_plane_have_bit_one():
    planes = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    V = np.array([[0, 0], [0, -3], [2, 0]])
    assert unpack(g.hash_bits(V, planes), 3).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_bits_of_a_row_depend_on_that_row_alone():
    V, planes = points(1300, 40), g.hyperplanes(SECRET, 256, 40, b"a")
    whole = g.hash_bits(V, planes, threads=1)
    assert np.array_equal(whole, g.hash_bits(V, planes, threads=2))
    order = np.random.default_rng(1).permutation(1300)
    assert np.array_equal(whole[order], g.hash_bits(V[order], planes))
    assert np.array_equal(whole[7:8], g.hash_bits(V[7:8], planes))


@pytest.mark.parametrize("factor", [1e-300, 1e-30, 1e30, 1e300])
def test_bits_do_not_depend_on_length(factor):
    V, planes = points(20, 5), g.hyperplanes(SECRET, 128, 5, b"a")
    assert np.array_equal(g.hash_bits(V, planes), g.hash_bits(V * factor, planes))


def test_cosine_estimate_converges():
    V = points(30, 6)
    U = V / np.linalg.norm(V, axis=1, keepdims=True)
    error = []
    for L in (64, 1024, 16384):
        bits = g.hash_bits(V, g.hyperplanes(SECRET, L, 6, b"a"))
        error.append(np.abs(g.cosine(g.hamming(bits, bits), L) - U @ U.T).mean())
    # The standard error of H/L is at most 1/(2√L), and cos(π·) stretches it by at most π.
    assert error[0] > error[1] > error[2]
    for L, e in zip((64, 1024, 16384), error):
        assert e < math.pi / (2 * math.sqrt(L))


def test_bad_features_are_named():
    V = points(4, 3)
    V[2, 1] = np.nan
    with pytest.raises(Mistake, match="row 2, column 1"):
        g.hash_bits(V, g.hyperplanes(SECRET, 8, 3, b"a"))
    with pytest.raises(Mistake, match="4 features"):
        g.hash_bits(points(2, 4), g.hyperplanes(SECRET, 8, 3, b"a"))
    with pytest.raises(Mistake, match="at least 1"):
        g.hyperplanes(SECRET, 0, 3, b"a")
