"""Attackers on labels that spread over a graph, in the label job and in FedAvg+XCLP: a party, the server, and both together.

S = (I − αW)⁻¹ is symmetric. Who knows rows of S at rows whose scores it knows has linear equations in everybody's labels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
from attacking import Found, Watched
from scipy.optimize import linear_sum_assignment, nnls
from sklearn.cluster import SpectralClustering

from grapevine.core import Method, Server, party_name
from grapevine.core.rows import ClientData
from grapevine.crypto.hamming import protocol
from grapevine.crypto.spread import protocol as spread
from grapevine.data.datasets import Dataset
from grapevine.data.split import Split
from grapevine.jobs.reading import Party
from grapevine.methods import XCLP
from grapevine.methods.label import Label
from grapevine.methods.xclp import CrossClientPropagation
from grapevine.run.experiment import Experiment

LABELS, ROWS, CLASSES = 20, 60, 10
NAMES = "abc"


def parties(digits: Dataset, seed: int = 3) -> dict[str, Party]:
    """Three parties with 60 digits each, the first 20 of them labelled; all ten digits are among the labels."""
    draw, order = np.random.default_rng(seed), np.zeros((3, ROWS), np.int64)
    while len(np.unique(digits.y[order[:, :LABELS]])) < CLASSES:
        order = draw.permutation(len(digits.x))[: 3 * ROWS].reshape(3, ROWS)
    made = {}
    for name, rows in zip(NAMES, order):
        y = digits.y[rows].numpy()
        labels = [str(c) if i < LABELS else None for i, c in enumerate(y)]
        made[name] = Party(name, digits.x[rows].flatten(1).double().numpy(), labels, [str(i) for i in range(ROWS)])
    return made


def truth(who: dict[str, Party], name: str) -> np.ndarray:
    return np.array([int(label) for label in who[name].labels[:LABELS] if label is not None])


def xclp(way: str) -> Method:
    """The label job by XCLP, with labels that spread the private or the paper's way."""
    return Label(CrossClientPropagation(protocol("psm"), 1024, 10, 0.99, "paper", True, spread(way)), "none", expected=False)


@contextmanager
def noted(scores: dict[str, np.ndarray]) -> Any:
    """Every party's scores, as it alone has them."""
    receive = CrossClientPropagation.receive

    def note(self: Any, client: Any, *told: Any) -> Any:
        scores[client.name] = receive(self, client, *told)
        return scores[client.name]

    CrossClientPropagation.receive = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        CrossClientPropagation.receive = receive  # type: ignore[method-assign]


class Job:
    """A label job that was run: what each party was sent, by step, and its scores."""

    def __init__(self, who: dict[str, Party], method: Method):
        self.who, self.scores = who, dict[str, np.ndarray]()
        data: dict[Any, ClientData] = {name: party.data() for name, party in who.items()}
        watched = Watched(method, data, None, seed=1)
        with noted(self.scores):
            method.round(Server(method, list(data), watched, None, (), 1), method.setup(None))  # type: ignore[arg-type]
        watched.close()
        self.seen = watched.seen
        self.sent = {name: {e.step: e.requests[name] for e in watched.seen if name in e.requests} for name in who}

    def columns(self, name: str) -> np.ndarray:
        """S[:, L_name], which spread=paper sends to that party, and which the server has whatever the spread is."""
        (found,) = self.sent[name]["xclp.spread.contribute"]["columns"].values()
        return found.astype(np.float64)


def solved(A: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Classes of the unknown labels Y ≥ 0 in A Y = rest, by non-negative least squares."""
    return np.stack([nnls(A, column)[0] for column in rest.T], 1).argmax(1)


def _found(who: dict[str, Party], guess: np.ndarray) -> Found:
    """Of b's and c's labels: how many are right, and of how many it is right to guess the largest class."""
    labels = [truth(who, name) for name in NAMES[1:]]
    prior = np.mean([np.bincount(y).max() / len(y) for y in labels])
    return dict(right=float(np.mean(guess == np.concatenate(labels))), prior=float(prior))


OTHERS = np.concatenate([np.arange(i * ROWS, i * ROWS + LABELS) for i in (1, 2)])  # where b's and c's labelled rows are


def party_with_columns(job: Job) -> Found:
    """spread=paper: a's columns are rows of S at its labelled rows, whose scores it has."""
    columns, own = job.columns("a"), np.eye(CLASSES)[truth(job.who, "a")]
    return _found(job.who, solved(columns[OTHERS].T, job.scores["a"][:LABELS] - columns[:LABELS].T @ own))


def party_without(job: Job) -> Found:
    """spread=private: no row of S reaches a. It takes similarities among its own rows in place of those to the others'."""
    x = job.who["a"].x / np.linalg.norm(job.who["a"].x, axis=1, keepdims=True)
    near = (x @ x[:LABELS].T) ** 8
    own = np.eye(CLASSES)[truth(job.who, "a")]
    A = np.tile(near[:LABELS], (2, 1)).T
    return _found(job.who, solved(A, job.scores["a"][:LABELS] - near[:LABELS].T @ own))


def server_alone(job: Job, all_columns: Callable[[str], np.ndarray]) -> Found:
    """The server has S and no label. It parts the labelled rows into as many groups as there are classes, and names the groups by
    how many labels each class has in all, if it were told that much."""
    at = np.concatenate([np.arange(i * ROWS, i * ROWS + LABELS) for i in range(3)])
    S = np.concatenate([all_columns(name)[at] for name in NAMES], 1)
    groups = SpectralClustering(CLASSES, affinity="precomputed", random_state=0).fit_predict((S + S.T) / 2)
    counts = np.bincount(np.concatenate([truth(job.who, name) for name in NAMES]), minlength=CLASSES)
    sizes = np.bincount(groups, minlength=CLASSES)
    _, named = linear_sum_assignment(np.abs(sizes[:, None] - counts[None]))
    return _found(job.who, named[groups][LABELS:])


def server_and_party(job: Job, all_columns: Callable[[str], np.ndarray]) -> Found:
    """Together they have S and the scores of all of a's rows: more equations than unknowns, whatever the spread is."""
    columns = np.concatenate([all_columns(name)[:ROWS] for name in NAMES[1:]], 1)
    mine, own = all_columns("a")[:ROWS], np.eye(CLASSES)[truth(job.who, "a")]
    z = job.scores["a"] / job.scores["a"].sum(1, keepdims=True)  # the private spread gives each row a scale of its own
    total = columns.sum(1) + mine.sum(1)
    return _found(job.who, solved(columns, z * total[:, None] - mine @ own))


# ---------------------------------------------------------------- FedAvg+XCLP


def training_party(split: Split, way: str, rounds: int = 2) -> Found:
    """A client of FedAvg+XCLP with what a round sends it. With spread=paper it has columns of S; with the private spread none,
    and then takes ones for all of S, so that its own scores name its guess."""
    made: list[Watched] = []

    def watched(*args: Any, **settings: Any) -> Watched:
        made.append(Watched(*args, **settings))
        return made[0]

    scores: dict[str, np.ndarray] = {}
    method = XCLP(warmup=0.5, epochs=1, bits=1024, preset="paper", alpha=0.9, spread=spread(way))
    with noted(scores):
        Experiment(method, split, simulation=watched, model="linear", rounds=rounds, per_round=None, workers=1).run()
    sizes = [len(split.client(i).labelled) + len(split.client(i).unlabelled) for i in range(len(split.parts))]
    labels = [split.client(i).labelled.y.numpy() for i in range(len(split.parts))]
    starts = np.cumsum([0, *sizes[:-1]])
    unknown = np.concatenate([start + np.arange(len(y)) for start, y in zip(starts[1:], labels[1:])])
    own, mine, z = np.eye(CLASSES)[labels[0]], np.arange(len(labels[0])), scores[party_name(0)]
    found = [e.requests[0]["columns"] for e in made[0].seen if e.step == "spread.contribute" and 0 in e.requests]
    if found:
        (columns,) = [block.astype(np.float64) for block in found[-1].values()]
    else:
        columns = np.ones((sum(sizes), len(mine)))
    guess = solved(columns[unknown].T, z[mine] - columns[mine].T @ own)
    others = np.concatenate(labels[1:])
    prior = np.mean([np.bincount(y).max() / len(y) for y in labels[1:]])
    return dict(right=float(np.mean(guess == others)), prior=float(prior))
