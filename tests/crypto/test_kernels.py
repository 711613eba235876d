"""Bit-sliced numbers, against the same sums of plain integers."""

import numpy as np
import pytest

from grapevine.crypto import kernels
from grapevine.crypto.ot import Plan


def random_bits(n, length, seed=0):
    return np.random.default_rng([seed, n, length]).integers(0, 2, (n, length), dtype=np.uint8)


@pytest.mark.parametrize("words", [1, 3])
def test_transpose(words):
    matrix = np.random.default_rng(words).integers(0, 2**64, (128, words), dtype=np.uint64)
    bits = np.unpackbits(matrix.view(np.uint8), axis=1, bitorder="little")
    out = kernels.transpose(matrix)
    assert (np.unpackbits(out.view(np.uint8), axis=1, bitorder="little") == bits.T).all()


def to_planes(values, width, words):
    """Numbers (count, rows) to bit-sliced words (count, width·words), bit by bit."""
    out = np.zeros((len(values), width, words), np.uint64)
    for (line, row), value in np.ndenumerate(values):
        for bit in range(width):
            out[line, bit, row // 64] |= np.uint64((int(value) >> bit & 1) << (row % 64))
    return out.reshape(len(values), width * words)


def test_slices():
    bits = random_bits(70, 5)
    assert (kernels.slice_bits(bits, 2) == to_planes(bits.T, 1, 2)).all()
    values = np.random.default_rng(1).integers(0, 2**13, (3, 70))
    assert (kernels.unslice(to_planes(values, 13, 2).reshape(3, 13, 2), 70) == values).all()


@pytest.mark.parametrize("rows, length", [(1, 1), (3, 4), (70, 4), (130, 5000)])
@pytest.mark.parametrize("pads", ["random", "nought", "full"])
def test_sums_and_wire_are_right_modulo_t(rows, length, pads):
    """Nought and full pads make every addition wrap around or borrow through all bits."""
    plan = Plan(rows, 2, length)
    count, t = min(2 * length, 40), 2**plan.width
    rng = np.random.default_rng(5)
    draw = {"random": lambda: rng.integers(0, t, (count, rows)), "nought": lambda: np.zeros((count, rows), int)}
    draw["full"] = lambda: np.full((count, rows), t - 1)
    s, others = draw[pads](), rng.integers(0, t, (count, rows))
    y, x = random_bits(rows, length), random_bits(1, count)[0]
    first = 2 * length - count
    sums, tau = plan.sums()[0], np.zeros((count, plan.width, plan.plane_bytes), np.uint8)
    in_planes = [to_planes(v, plan.width, plan.words) for v in (s, others)]
    kernels.send(*in_planes, kernels.slice_bits(y, plan.words), first, sums, tau)

    point, column = np.divmod(first + np.arange(count), length)
    delta = 1 - 2 * y.T[column].astype(int)
    expected = (s + delta - others) % t
    sent = np.zeros((count, plan.width, 8 * plan.words), np.uint8)
    sent[:, :, : plan.plane_bytes] = tau
    assert (kernels.unslice(sent.view(np.uint64), rows) == expected).all()
    assert all((kernels.unslice(sums, rows)[p] == s[point == p].sum(axis=0) % t).all() for p in (0, 1))

    # k's pad is s where its choice is 0 and the other where it is 1; it ends with s + x(1 − 2y).
    sums = plan.sums()[0]
    mine = to_planes(np.where(x[:, None], others, s), plan.width, plan.words)
    kernels.receive(mine, x, first, length, sums, tau)
    got = (s + x[:, None] * delta) % t
    assert all((kernels.unslice(sums, rows)[p] == got[point == p].sum(axis=0) % t).all() for p in (0, 1))


@pytest.mark.parametrize("columns, values, points", [(1, 1, 1), (39, 255, 3), (40, 257, 4), (41, 300, 2), (203, 20, 9)])
def test_signed_sums_are_those_of_a_product(columns, values, points):
    """Below, at and above whole tables and tiles; behind a place that stays as it is."""
    rng = np.random.default_rng(columns)
    words, bits = rng.integers(0, 1 << 40, (columns, values)), rng.integers(0, 2, (points, columns), dtype=np.uint8)
    sums = rng.integers(0, 100, (points, values + 6))
    wanted = sums.copy()
    wanted[:, 4 : 4 + values] += (1 - 2 * bits.astype(np.int64)) @ words
    kernels.add_signed(words, kernels.negatives(bits), sums, 4)
    assert (sums == wanted).all()
