"""Chorus under `--dp`: few sums, each with noise, in the place of many exact ones (`methods.tune`, `methods.song`).

A row is divided by its own length, so it needs no pooled scale, and adds at most 1 to a sum. Opened, to the parties alone:

    rows         how many rows and labels there are: exact, since the unit, a row that is there or blank, does not hide it
    mean         Σ x, and then x is centred and cut off at length 1
    covariance   Σ x xᵀ (its triangle)
    counts       how many rows the graph puts into each class
    sums         Σ x of each class
    hits         hidden labels that were found, together and by each party alone

Voices are the graph and one linear discriminant analysis on the graph's hard labels; their weights and temperatures are fixed.
Left out, since their noise would cost more than they bring: label counts, the choice among graphs and scales, balancing, a head
on pooled labels, refits, weights by hidden labels, recall by class and the calibration table. Class means are drawn to the centre
by as much as their noise is expected to have moved them (James and Stein 1961), so noise that drowns them silences the voice.

The noise hides what a row itself adds to these sums. It does not hide what a row does to others through the graph: their labels,
and with them their places in these sums. This is no row-level privacy of the job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax, softmax

from grapevine.crypto import accountant
from grapevine.crypto.accountant import Noise, Sum
from grapevine.crypto.together import require_cell
from grapevine.data.columns import encode
from grapevine.learn.voices import FOLDS, LEAST, Head, lda_heads, symmetric, triangle
from grapevine.methods.song import DRAWN, Singer, Song, own_voice
from grapevine.methods.tune import Program, Scale, Table, Tuned

SUMS = dict(
    mean=Sum(10.0), covariance=Sum(3.0), counts=Sum(4.0), sums=Sum(1.2), hits=Sum(4.0, math.sqrt(2))
)  # chosen on CIFAR-10 features and digits: benchmarks/privacy.py
SHRINKAGE, GRAPH, LDA = 0.5, 2.0, 0.4
HOW_SURE = np.geomspace(0.05, 2.0, 60)  # temperatures of the mixture
UNIT = "one row of a party, there or blank"
OUTSIDE = (
    "how many rows and labels there are",
    "names of classes and of text values",
    "what the server sees of the graph",
    "what a row does to the labels of other rows through the graph: this is no row-level privacy of the job",
)


@dataclass(frozen=True)
class Noisy:
    """In place of a plain sum: one of `SUMS`, or "rows". `values` are sums of what single rows add, exact in steps of 2^-32."""

    values: np.ndarray
    what: str


def promise(epsilon: float, delta: float, parties: int, what: str = "all sums that the parties open") -> str:
    """What is promised of a job, to whom, and what is not."""
    honest = parties // 2 + 1
    return (f"Noise is in {what}: ε = {epsilon:g} at δ = {delta:g} for {UNIT}, if {honest} of {parties} parties are honest and "
            f"stay. Outside of it: {'; '.join(OUTSIDE)}.")  # fmt: skip


def tune(table: Table, y: np.ndarray) -> Program:
    """Rows as directions about their mean. All values of text columns are features; a missing number is 0."""
    X = encode(table.x, table.columns, table.values, table.gaps) if table.columns else table.x
    rows, labels = yield Noisy(np.array([len(X), len(y)], float), "rows")
    require_cell(round(rows))
    raw = Scale(np.zeros(X.shape[1]), np.ones(X.shape[1]), 0.0)
    mean = (yield Noisy(raw(X).sum(0), "mean")) / rows
    return Tuned(Scale(mean, raw.std, 0.0), "direction", rows, np.full((FOLDS - 1, 1), labels / (FOLDS - 1)), dict(table.values))


def sing(own: Singer, noise: dict[str, Noise], parties: int) -> Program:
    """The graph's voice and that of the discriminant analysis, mixed."""
    C, d, X = own.Z.shape[-1], own.X.shape[1], own.X.astype(np.float64)  # in which sums are exact
    shares = np.log(own.Z) - np.log(own.Z.sum(-1, keepdims=True))
    graph = log_softmax(np.log(np.maximum(own.rows(softmax(shares.mean(0), -1)), LEAST)), -1)
    sure = (yield Noisy(triangle(X.T @ X), "covariance")) / own.tuned.rows
    Y = np.eye(C)[graph[0].argmax(-1)]
    N = yield Noisy(Y.sum(0), "counts")
    N = np.where(N >= DRAWN, N, 0.0)
    M = ((yield Noisy((Y.T @ X).ravel(), "sums")).reshape(C, d)) * (N > 0)[:, None]
    centre, M = _drawn_in(N, M, noise["sums"].sigma * math.sqrt(parties))
    head = lda_heads(N, M, symmetric(sure, d) - np.outer(centre, centre), (SHRINKAGE,))[0]
    head = Head(LDA * head.W, LDA * head.b)
    voices = dict(graph=graph, lda=np.repeat(log_softmax(head(X), -1)[None], FOLDS, 0))
    mixture, alone = GRAPH * graph + voices["lda"], own_voice(own)
    hidden, own_hidden = own.hidden(mixture), None if alone is None else own.hidden(alone)
    found = [0.0 if guess is None else float((guess.argmax(1) == own.y).sum()) for guess in (hidden, own_hidden)]
    hits = own.told.unbiased((yield Noisy(np.array(found), "hits")), own.tuned.counts.sum())
    n = round(own.tuned.counts.sum())
    right, by_own = np.clip(hits, 0, n).tolist()
    t = _temperature(mixture[0, len(own.y) :], right / max(n, 1))
    P = softmax(t * mixture, -1)
    expected = dict(n=n, right=right, alone=by_own, rows=np.zeros(0), hits=np.zeros(0),
                    noise=noise["hits"].sigma * math.sqrt(parties) / (own.told.p - own.told.q))  # fmt: skip
    return Song(P[0], own.hidden(P), None if alone is None else alone[0], own_hidden, dict(graph=t * GRAPH, lda=t),
                dict(lda=head), dict(lda=1.0), expected, {name: voice[0] for name, voice in voices.items()})  # fmt: skip


def _drawn_in(N: np.ndarray, M: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """The centre of all classes, and class sums whose means are drawn towards it: by 1 − E‖noise‖² / ‖mean − centre‖²."""
    centre = M.sum(0) / max(N.sum(), 1.0)
    off = np.where(N[:, None] > 0, M / np.maximum(N, 1.0)[:, None] - centre, 0.0)
    moved = M.shape[1] * (sigma / np.maximum(N, 1.0)) ** 2
    keep = np.maximum(1 - moved / np.maximum((off**2).sum(1), LEAST), 0.0)
    return centre, (centre + off * keep[:, None]) * N[:, None]


def _temperature(mixture: np.ndarray, accuracy: float) -> float:
    """The temperature at which this party's rows are on average as sure as hidden labels were right."""
    if not len(mixture):
        return 1.0
    sure = np.array([softmax(t * mixture, -1).max(1).mean() for t in HOW_SURE])
    return float(HOW_SURE[np.abs(sure - accuracy).argmin()])


def plan(epsilon: float, delta: float, parties: int) -> dict[str, Noise]:
    return accountant.plan(epsilon, delta, parties, SUMS)
