"""What chorus mixes: voices, each log-probabilities of classes for rows, and what is needed to judge, balance and weigh them.

A voice is an array (folds, rows, classes): fold 0 has heard all labels, folds 1 … 5 each have not heard a fifth of every party's
labels. A hidden label is judged by the fold that has not heard it. Nothing here talks to anybody: sums over the parties are the
business of `methods.song`, which hands them in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import gammaln, log_softmax, softmax

from grapevine.core.threads import no_warnings

FOLDS = 6  # all labels, and five times four fifths of them
TEMPERATURES = 0.05 * 2.0 ** (np.arange(19) / 2)  # 0.05 … 25.6: what log-probabilities are multiplied by
LEAST = 1e-12
PSEUDO = 2.0 ** np.arange(12)  # pseudo-labels of a prior of class shares: from any shares at all to equal ones
STRENGTH = 20.0  # the fewest rows that the shares of all count for beside a party's own


@dataclass(frozen=True)
class Told:
    """Labels as they were told: the truth, or a randomised response that keeps a label with probability p and else says each
    of the other classes with probability q. With the truth p is 1 and q is 0."""

    p: float = 1.0
    q: float = 0.0

    def loss(self, log_p: np.ndarray) -> np.ndarray:
        """−log of the probability of the label as told, where the class has log-probability `log_p` (forward correction)."""
        return -log_p if self.q == 0 else -np.log(self.q + (self.p - self.q) * np.exp(log_p))

    def pull(self, log_p: np.ndarray) -> np.ndarray:
        """How much of the gradient of −log_p is left in that of `loss`: 1 where labels are told as they are."""
        if self.q == 0:
            return np.ones_like(log_p)
        kept = (self.p - self.q) * np.exp(log_p)
        return kept / (self.q + kept)

    def unbiased(self, told: np.ndarray, all: np.ndarray) -> np.ndarray:
        """What the truth would have given, in expectation: from a linear function of the one-hot labels that were told, and the
        same function of ones."""
        return (told - self.q * all) / (self.p - self.q)

    def posterior(self, P: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The true classes of labels that were told as y, by Bayes' rule from class probabilities P of their rows."""
        told = np.full_like(P, self.q)
        told[np.arange(len(y)), y] = self.p
        return P * told / np.maximum((P * told).sum(-1, keepdims=True), LEAST)


def folds(y: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Which of the five folds leaves each label out: a fifth of every class, beginning at any fold."""
    out = np.zeros(len(y), np.int64)
    for c in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == c))
        out[rows] = (np.arange(len(rows)) + draw.integers(FOLDS - 1)) % (FOLDS - 1) + 1
    return out


def class_shares(counts: np.ndarray) -> np.ndarray:
    """π: the classes' shares by their label counts, drawn towards equal shares as far as the counts allow.

    Bayes: shares are Dirichlet with τ pseudo-labels, τ a power of two; the mean over all τ, by how likely each makes the counts.
    """
    C, n = len(counts), counts.sum()
    if C < 2 or n <= 0:
        return np.full(C, 1 / max(C, 1))
    each = PSEUDO[:, None] / C
    likely = gammaln(PSEUDO) - gammaln(PSEUDO + n) + (gammaln(each + counts) - gammaln(each)).sum(1)
    return softmax(likely) @ ((counts + each) / (n + PSEUDO)[:, None])


def balanced(Q: np.ndarray, mean: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """One step towards these class shares: rows of Q, whose mean over all parties' rows is `mean`."""
    Q = Q * (shares / np.maximum(mean, LEAST)).astype(Q.dtype)
    return Q / np.maximum(Q.sum(-1, keepdims=True), LEAST)


def tempered(voice: np.ndarray, y: np.ndarray, fold: np.ndarray, told: Told, temperatures: np.ndarray) -> np.ndarray:
    """The hidden labels' loss at each temperature, summed over labels; `fold` is the one that has not heard a label."""
    at = np.arange(len(y))
    hidden = voice[fold, at]
    return np.array([told.loss(log_softmax(t * hidden, -1)[at, y]).sum() for t in temperatures])


# ---------------------------------------------------------------- linear heads


@dataclass(frozen=True)
class Head:
    """Scores X·W + b, for one fold."""

    W: np.ndarray
    b: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return X @ self.W + self.b


def triangle(M: np.ndarray) -> np.ndarray:
    """A symmetric matrix as the numbers on and above its diagonal."""
    return M[np.triu_indices(len(M))]


def symmetric(numbers: np.ndarray, d: int) -> np.ndarray:
    M = np.zeros((d, d))
    i, j = np.triu_indices(d)
    M[i, j] = M[j, i] = numbers
    return M


def lda_heads(N: np.ndarray, M: np.ndarray, total: np.ndarray, shrinkages: tuple[float, ...]) -> list[Head]:
    """Linear discriminant analysis from class counts N (C), class sums M (C × d) and the covariance of all rows.

    The covariance within classes is the total one less that between the means. It is shrunk, (1 − γ)S + γ tr(S)/d · I, once for
    each γ. A class without a row gets the centre for its mean.
    """
    return _lda_heads(N.tobytes(), M.tobytes(), total.tobytes(), len(N), M.shape[1], shrinkages)


@lru_cache(maxsize=2 * FOLDS)  # all parties make the same heads from the same sums: in one process once
def _lda_heads(N_: bytes, M_: bytes, total_: bytes, C: int, d: int, shrinkages: tuple[float, ...]) -> list[Head]:
    N, M, total = np.frombuffer(N_), np.frombuffer(M_).reshape(C, d), np.frombuffer(total_).reshape(d, d)
    shares = N / max(N.sum(), 1.0)
    centre = M.sum(0) / max(N.sum(), 1.0)
    means = np.where(N[:, None] > 0, M / np.maximum(N, 1.0)[:, None], centre)
    away = (means - centre) * np.sqrt(shares)[:, None]
    variances, Q = np.linalg.eigh(total - away.T @ away)
    variances = np.maximum(variances, 0.0)
    rotated, prior = means @ Q, np.log(np.maximum(shares, 0.5 / max(N.sum(), 1.0)))
    heads = []
    for shrinkage in shrinkages:
        inverse = 1 / np.maximum((1 - shrinkage) * variances + shrinkage * variances.mean(), LEAST)
        W = (rotated * inverse) @ Q.T
        heads.append(Head(W.T, prior - 0.5 * (rotated**2 * inverse).sum(1)))
    return heads


Leverage = Callable[[np.ndarray], np.ndarray]
"""The leverage of rows [x 1]: how much each pulls its own fitted value."""


def ridge_heads(A: np.ndarray, B: np.ndarray, n: float, penalties: tuple[float, ...]) -> list[tuple[Head, Leverage]]:
    """Ridge regression of one-hot labels: (A + λ n I)⁻¹ B, with A = Σ [x 1]ᵀ[x 1] and B = Σ [x 1]ᵀ y, once for each λ."""
    return _ridge_heads(A.tobytes(), B.tobytes(), len(A), B.shape[1], n, penalties)


@lru_cache(maxsize=2)
def _ridge_heads(A_: bytes, B_: bytes, d: int, C: int, n: float, penalties: tuple[float, ...]) -> list[tuple[Head, Leverage]]:
    A, B = np.frombuffer(A_).reshape(d, d), np.frombuffer(B_).reshape(d, C)
    sizes, Q = np.linalg.eigh(A)
    rotated = Q.T @ B
    out: list[tuple[Head, Leverage]] = []
    for penalty in penalties:
        inverse = 1 / (np.maximum(sizes, 0.0) + penalty * max(n, 1.0))
        W = Q @ (rotated * inverse[:, None])
        out.append((Head(W[:-1], W[-1]), partial(_leverage, Q * np.sqrt(inverse))))
    return out


def _leverage(root: np.ndarray, X: np.ndarray) -> np.ndarray:
    return ((X @ root) ** 2).sum(1)


def own_head(X: np.ndarray, y: np.ndarray, C: int) -> Head | None:
    """A party's own logistic regression; none if all its labels are of one class."""
    from sklearn.linear_model import LogisticRegression

    found = np.unique(y)
    if len(found) < 2:
        return None
    with no_warnings():  # a fit that is not quite at its end is good enough for one voice
        model = LogisticRegression(max_iter=200).fit(X, y)
    W, b = np.zeros((X.shape[1], C)), np.full(C, -np.inf)
    if len(found) == 2:  # one row of coefficients, for the second class against the first
        W[:, found[1]], b[found] = model.coef_[0], [0.0, model.intercept_[0]]
    else:
        W[:, found], b[found] = model.coef_.T, model.intercept_
    return Head(W, b)


def cautious(logits: np.ndarray, n: int) -> np.ndarray:
    """Log-probabilities of a head that n labels made: (n·p + 1)/(n + C), so that no class is ruled out by few labels."""
    return np.log((n * softmax(logits, -1) + 1) / (n + logits.shape[-1]))


# ---------------------------------------------------------------- the mixture


def home_shares(P: np.ndarray, shares: np.ndarray, strength: float, steps: int = 5) -> np.ndarray:
    """A party's own class shares from a mixture's probabilities P of its rows, where all rows' shares are `shares` (Saerens et
    al. 2002, by expectation maximisation), drawn towards the latter as if by `strength` rows."""
    own = shares
    for _ in range(steps):
        Q = P * (own / shares)
        own = (Q / Q.sum(1, keepdims=True)).mean(0)
    return shares + (own - shares) * len(P) / (len(P) + strength)


def home_strength(apart: float, shares: np.ndarray, rows: float, parties: float) -> float:
    """How many rows the shares of all count for where a party's own are estimated: the more, the more alike parties are.

    Empirical Bayes: if a party's shares are Dirichlet with τ pseudo-rows, its n rows are on average (1 − Σs²)(1 + n/(τ + 1))/n
    from `shares` in squared distance; `apart` is the sum of n times that over the parties.
    """
    more = apart / max(1 - (shares**2).sum(), LEAST) - parties
    return max(rows / more - 1, STRENGTH) if more > 0 else np.inf


def newton_sums(voices: np.ndarray, y: np.ndarray, theta: np.ndarray, told: Told) -> np.ndarray:
    """Gradient and Gauss–Newton matrix (its triangle) of the hidden labels' loss at weights exp(θ): V + V(V + 1)/2 numbers, to be
    summed over parties. `voices` are (V, labels, C): log-probabilities by the fold that has not heard the label."""
    V, m, _ = voices.shape
    scaled = np.exp(theta)[:, None, None] * voices
    log_p = log_softmax(scaled.sum(0), -1)
    P = np.exp(log_p)
    pull = told.pull(log_p[np.arange(m), y])
    mean = np.einsum("vmc,mc->vm", scaled, P)
    gradient = ((mean - scaled[:, np.arange(m), y]) * pull).sum(1)
    second = np.einsum("vmc,umc,mc,m->vu", scaled, scaled, P, pull, optimize=True) - (mean * pull) @ mean.T
    return np.concatenate([gradient, triangle(second)])


def newton_step(sums: np.ndarray, theta: np.ndarray, medians: np.ndarray, deviation: float = 0.7) -> np.ndarray:
    """θ after one step, under a log-normal prior of the weights; at most a factor e at a time."""
    V = len(theta)
    gradient = sums[:V] + (theta - np.log(medians)) / deviation**2
    H = symmetric(sums[V:], V) + np.eye(V) / deviation**2
    return theta - np.clip(np.linalg.solve(H, gradient), -1, 1)
