"""The clean job on toy rows and images, as tests call it."""

from __future__ import annotations

import numpy as np

import grapevine as gv

CENTRES = np.array([[4.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 4.0, 0]])
QUICK = dict(epochs=20)


def rows(n, seed, classes=3, spread=0.5):
    draw = np.random.default_rng(seed)
    y = draw.permutation(np.arange(n) % classes)
    return CENTRES[y] + spread * draw.standard_normal((n, 4)), y


SERVER = rows(60, 99)


def two_parties():
    """Two parties: flips and an unlabelled row at the first; at the second rows between the classes, whose truth is none."""
    X, truth = rows(40, 1)
    y = truth.copy()
    y[:8] = (y[:8] + 1) % 3
    y[8] = -1
    X2, truth2 = rows(30, 2)
    y2 = truth2.copy()
    X2[:6] = CENTRES.mean(0)  # as far from each class
    truth2[:6] = -1
    result = gv.clean([(X, y), (X2, y2)], server=SERVER, truth=[truth, truth2], counts=True, **QUICK)
    return result, (X, y, truth), (X2, y2, truth2)


def stripes(n, seed, size=8):
    """Images with an upright or a lying stripe, of any brightness."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = draw.integers(0, 30, (n, size, size)).astype(np.uint8)
    for i, c in enumerate(y):
        at = draw.integers(1, size - 1)
        x[i][(slice(None), at) if c else (at, slice(None))] = draw.integers(150, 255)
    return x, y
