"""Gaussian heads from securely summed moments: the one-shot rival of XCLP for the label job (GH-OFL, ICLR 2026).

Every class is a Gaussian in feature space. Its share, mean and covariance follow from counts, sums and sums of products of the
labelled rows, and these add up over parties, so one masked sum gives the same classifier as all labelled rows in one place.

    exchange       what leaves a client
    1  keys        a signed public key; number of features; names of its classes
    2  meet        masked: labelled rows per class, their sums per class, their second moments
    +1 moments     the same under fresh masks, only after a party was lost
    3  predict     nothing: every party makes the head from the pooled moments and labels its own rows

`kind` says what a class's covariance is, and with it which second moments are summed, no more than it needs:
    lda    one for all classes (linear discriminant analysis)        d(d + 1)/2 numbers, over all classes together
    nb     a diagonal one for each class (Gaussian naive Bayes)      C · d

Security. Honest-but-curious server and clients; pairwise masks in Z_2^256 (`crypto.sums`, which states the assumption). The
server and all clients learn the classes' label counts and pooled moments and nothing else of the rows: no party's own. That is
more than XCLP's server learns of labels, and it is not little: the mean of a class with one labelled row is that row, and of a
class that only one party labels, that party's. With two parties, the sum less one's own part is the other's. Server and a set
of clients together learn the sum over the others.

Numbers. Covariances are shrunk, (1 − γ)S + γ tr(S)/d · I, as scikit-learn does it, which makes them invertible for d > n too. A
class with fewer than two labelled rows, or whose rows are all equal, takes the covariance within all classes; if no class has a
spread, all take the same multiple of I (the nearest mean wins). Variances under `LEAST` of a covariance's largest are raised to
that. A class without a labelled row has probability 0. Second moments are taken about 0, so a feature whose deviation is
1e-4 of its mean has its variance to about eight digits. The default of γ suits few labels: on one split of digits among 10
parties, 0.3 was near the best with 150 labels, 0.1 with 500, 0.6 or more with 50.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from grapevine import graph
from grapevine.core import Client, Method, Mistake, Server, param, party_name, step
from grapevine.core.reply import Array
from grapevine.crypto import session
from grapevine.methods import one_shot
from grapevine.methods.one_shot import features, labels

MOMENTS = "alone nothing: masked; all parties' together give each class's label count, mean and covariance, to everybody"
LEAST = 1e-9  # of a covariance's largest variance
ROUNDING = 1e-13  # of a second moment about 0: a variance below this is float64's error


@dataclass(frozen=True)
class Gaussian(Method):
    """Every party's rows labelled by a Gaussian head on all parties' labelled rows. Results stay at each party, as "result"."""

    name = "gaussian"
    title = "Gaussian heads from securely summed class counts and moments (baseline of the label job)"
    personal = True

    kind: str = param("lda", "", "lda: one covariance; nb: a diagonal one for each class", choices=("lda", "nb"))
    shrinkage: float = param(0.3, "γ", "share of a multiple of the identity in every covariance", least=0, most=1)

    # ------------------------------------------------------------ client

    @step(reveals=one_shot.REVEALS, like=one_shot.HELLO)
    def keys(self, client: Client, session_id: str) -> dict:
        """Exchange 1."""
        return one_shot.hello(client, session_id)

    @step(reveals=dict(moments=MOMENTS))
    def meet(self, client: Client, offers: dict, classes: dict) -> dict:
        """Exchange 2: check the keys, and mask this party's moments. (The clients' common seed is not needed.)"""
        session.meet(client, offers)
        client.memory["classes"] = classes
        return self.moments(client, 0, {name: 0 for name in offers})

    @step(reveals=dict(moments=MOMENTS))
    def moments(self, client: Client, attempt: int, parties: dict) -> dict:
        """Masked counts, sums and second moments of the labelled rows. Fresh masks in every attempt."""
        n = len(client.data.labelled)
        values = class_moments(features(client)[:n], labels(client)[:n], len(client.memory["classes"]), self.kind)
        return dict(moments=session.masked(client, "moments", 0, attempt, parties, values, wide=True))

    @step
    def predict(self, client: Client, moments: np.ndarray) -> dict:
        """Exchange 3: labels, confidences and probabilities of all rows, in the order labelled, unlabelled. Nothing goes back."""
        proba = self.probabilities(features(client), moments, len(client.memory["classes"]))
        found, confidence = graph.labels_and_confidence(proba, floor=0.0)
        client.memory["result"] = dict(label=found, confidence=confidence, proba=proba)
        return {}

    def probabilities(self, V: np.ndarray, moments: np.ndarray, C: int) -> np.ndarray:
        """P(class | row) for rows V, by Bayes' rule from the pooled moments."""
        n, means, S = statistics(moments, C, V.shape[1], self.kind)
        centre = n @ means / n.sum()
        V, means = V - centre, means - centre
        prior = np.log(n, out=np.full(C, -np.inf), where=n > 0)
        if self.kind == "lda":
            T, _ = whitening(shrunk(S[0], self.shrinkage))
            M = means @ T
            # Squared distances to the means, less |vT|², which is the same for all classes.
            return softmax(V @ T @ M.T - 0.5 * (M * M).sum(1) + prior, axis=1)
        score = np.full((len(V), C), -np.inf)
        for c in np.flatnonzero(n):
            T, log_det = whitening(shrunk(S[c], self.shrinkage))
            apart = (V - means[c]) * T
            score[:, c] = prior[c] - 0.5 * ((apart * apart).sum(1) + log_det)
        return softmax(score, axis=1)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(round=0)

    def shared(self, state: dict) -> dict:
        return {}

    def round(self, server: Server, state: dict) -> dict:
        """One shot. The state says what the server knows: who was there, and how many labels each class has."""
        ids = {party_name(id): id for id in server.clients}
        said = session.named(server.ask(self.keys, session_id=secrets.token_hex(16)), "a secure sum")
        told = one_shot.agreed(said)
        d, C = next(iter(said.values()))["features"], len(told["classes"])
        form = dict(moments=Array("uint64", (numbers(d, C, self.kind), 4)))
        met = session.named(server.ask(self.meet, to=[ids[name] for name in said], form=lambda id: form, **told), "a secure sum")
        moments = session.pooled(server, self.moments, ids, said, met, "a secure sum", lambda id: form)
        counts = np.rint(moments[:C]).astype(np.int64)
        if not counts.any():
            raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")
        done = server.ask(self.predict, to=[ids[name] for name in met], moments=moments)
        return dict(round=1, classes=told["classes"], labels=counts,
                    got_labels=dict(enumerate(sorted(party_name(id) for id in done))))  # fmt: skip


# ---------------------------------------------------------------- moments


def kind_for(d: int) -> str:
    """The head for d features: above 1500, the second moments of a full covariance are millions of numbers."""
    return "lda" if d <= 1500 else "nb"


def numbers(d: int, C: int, kind: str) -> int:
    """How many numbers a party adds, of d features and C classes."""
    return C + C * d + (C * d if kind == "nb" else d * (d + 1) // 2)


def class_moments(V: np.ndarray, y: np.ndarray, C: int, kind: str) -> np.ndarray:
    """What a party adds: counts (C), sums (C × d), then the second moments that `kind` needs, as one vector."""
    Y = graph.label_matrix(y, C)
    second = (Y.T @ (V * V)).ravel() if kind == "nb" else (V.T @ V)[np.triu_indices(V.shape[1])]
    return np.concatenate([Y.sum(0), (Y.T @ V).ravel(), second])


def statistics(moments: np.ndarray, C: int, d: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts (C), means (C × d), and covariances: one matrix for lda (1 × d × d), variances of each class for nb (C × d)."""
    n, total, second = moments[:C], moments[C : C + C * d].reshape(C, d), moments[C + C * d :]
    means = total / np.maximum(n, 1.0)[:, None]
    pooled: np.ndarray
    one: np.ndarray
    if kind == "nb":
        S = (second.reshape(C, d) - n[:, None] * means**2) / np.maximum(n, 1.0)[:, None]
        pooled, one, squares = n / n.sum() @ S, np.ones(d), second
    else:
        S = np.zeros((1, d, d))
        i, j = np.triu_indices(d)
        S[0, i, j] = S[0, j, i] = second
        squares = np.diagonal(S[0]).copy()
        S = (S - (means.T * n) @ means) / n.sum()
        pooled, one = S[0], np.eye(d)
    nothing = ROUNDING * squares.sum() / n.sum()  # what is left of a spread when equal numbers are subtracted
    if _trace(pooled) <= nothing:
        pooled = one
    return n, means, np.stack([pooled if _trace(s) <= nothing else s for s in S])  # one row only, or all alike


def _trace(S: np.ndarray) -> float:
    return float(S.sum() if S.ndim == 1 else np.trace(S))


# ---------------------------------------------------------------- covariances


def shrunk(S: np.ndarray, shrinkage: float) -> np.ndarray:
    """(1 − γ)S + γ tr(S)/d · I, for a matrix, or for the vector that is a diagonal one."""
    if S.ndim == 1:
        return (1 - shrinkage) * S + shrinkage * S.mean()
    return (1 - shrinkage) * S + shrinkage * np.trace(S) / len(S) * np.eye(len(S))


def whitening(S: np.ndarray) -> tuple[np.ndarray, float]:
    """T with T Tᵀ = S⁻¹ and log det S, after variances under `LEAST` of the largest are raised to that."""
    variances, Q = (S, 1.0) if S.ndim == 1 else np.linalg.eigh(S)
    variances = np.maximum(variances, LEAST * variances.max())
    return Q / np.sqrt(variances), float(np.log(variances).sum())
