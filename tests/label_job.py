"""The label job on toy arrays, as tests call it: three classes that lie apart, settings that are quick."""

from __future__ import annotations

import csv

import numpy as np

import grapevine as gv

CENTRES = np.array([[5.0, 0, 0, 0, 0], [0, 5.0, 0, 0, 0], [0, 0, 5.0, 0, 0]])
QUICK = dict(method="xclp", secure="psm", bits=256, neighbours=5, alpha=0.99)


def blobs(sizes=(20, 24, 18), labelled=6, spread=0.7, seed=0):
    """Parties (X, y, truth) of three classes in no order; `labelled` rows of each keep their label, scattered over the rows."""
    draw, out = np.random.default_rng(seed), []
    for n in sizes:
        truth = draw.permutation(np.arange(n) % 3)
        X = CENTRES[truth] + spread * draw.standard_normal((n, 5))
        keep = np.concatenate([np.flatnonzero(truth == c)[: labelled // 3] for c in range(3)])
        y = np.full(n, -1)
        y[keep] = truth[keep]
        out.append((X, y, truth))
    return out


def pairs(parties):
    return [(X, y) for X, y, _ in parties]


def label(parties, **settings):
    return gv.label(pairs(parties), **{**QUICK, "truth": [t for *_, t in parties], **settings})


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
