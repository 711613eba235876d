"""A curious party that follows the protocol, and wants the others' labels: with what it is sent, and its own rows and scores.

As the paper spreads labels it succeeds (H1 of the threat model); as we do it has nothing to begin with.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from grapevine.core import Server, party_name
from grapevine.crypto.hamming import protocol
from grapevine.crypto.spread import protocol as spread
from grapevine.jobs.reading import Party
from grapevine.methods.label import Label
from grapevine.methods.xclp import CrossClientPropagation
from grapevine.run.simulate import Simulation

LABELS, ROWS, CLASSES = 20, 60, 10


@pytest.fixture(scope="module")
def parties(digits):
    """Three parties with 60 digits each, the first 20 of them labelled."""
    order = np.random.default_rng(3).permutation(len(digits.x))[: 3 * ROWS].reshape(3, ROWS)
    made = {}
    for name, rows in zip("abc", order):
        y = digits.y[rows].numpy()
        labels = [str(c) if i < LABELS else None for i, c in enumerate(y)]
        made[name] = Party(name, digits.x[rows].flatten(1).double().numpy(), labels, [str(i) for i in range(ROWS)])
    return made


class Watched(Simulation):
    """Keeps what one party is sent."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.seen: list[tuple[str, dict]] = []

    def exchange(self, step, requests, round):
        if "a" in requests:
            self.seen.append((step, requests["a"]))
        return super().exchange(step, requests, round)


def run(parties, way: str):
    """The label job; what party a was sent, and its scores."""
    method = Label(CrossClientPropagation(protocol("psm"), 1024, 10, 0.99, "paper", True, spread(way)), "none", expected=False)
    data = {name: party.data() for name, party in parties.items()}
    watched = Watched(method, data, None, seed=1)
    scores = {}
    receive = CrossClientPropagation.receive

    def noted(self, client, *told):
        scores[client.name] = receive(self, client, *told)
        return scores[client.name]

    CrossClientPropagation.receive = noted
    try:
        method.round(Server(method, list(data), watched, None, (), 1), method.setup(None))
    finally:
        CrossClientPropagation.receive = receive
        watched.close()
    return dict(watched.seen), scores["a"]


def truth(parties, name: str) -> np.ndarray:
    return np.array([int(label) for label in parties[name].labels[:LABELS]])


def solved(columns: np.ndarray, scores: np.ndarray, own: np.ndarray) -> dict[str, np.ndarray]:
    """Non-negative least squares: S is symmetric, so a's columns are rows of S at its labelled rows, and its scores there are the
    sums of these rows over everybody's labels. Who is labelled comes first, so the unknowns are known by place."""
    places = dict(b=np.arange(ROWS, ROWS + LABELS), c=np.arange(2 * ROWS, 2 * ROWS + LABELS))
    unknown = np.concatenate(list(places.values()))
    A = columns[unknown].T  # S[r, l] for a's labelled rows r and the others' labelled rows l
    rest = scores[:LABELS] - columns[:LABELS].T @ np.eye(CLASSES)[own]
    Y = np.stack([nnls(A, column)[0] for column in rest.T], 1)
    found = Y.argmax(1)
    return dict(b=found[:LABELS], c=found[LABELS:])


def test_the_papers_spread_shows_a_party_the_others_labels(parties):
    sent, scores = run(parties, "paper")
    (columns,) = sent["xclp.spread.contribute"]["columns"].values()
    found = solved(columns.astype(np.float64), scores, truth(parties, "a"))
    right = np.mean([np.mean(found[name] == truth(parties, name)) for name in "bc"])
    assert right > 0.9


def test_the_private_spread_shows_it_nothing(parties):
    """Nothing that reaches the party has an entry for its labelled rows and the others' rows, or is anything but bytes; and the
    same attack with what it can make itself, the similarities among its own rows, guesses no better than the largest class."""
    sent, scores = run(parties, "private")
    assert "xclp.spread.contribute" not in sent
    rows = sent["receive"]["rows"]
    arrays = [part for graph in rows.values() for block in graph.values() for part in block.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.uint8)}
    x = parties["a"].x / np.linalg.norm(parties["a"].x, axis=1, keepdims=True)
    guessed = np.zeros((3 * ROWS, LABELS))
    for other in range(1, 3):  # it does not know the others' rows: its own must stand for them
        guessed[other * ROWS : (other + 1) * ROWS] = (x @ x[:LABELS].T) ** 8
    guessed[:ROWS] = (x @ x[:LABELS].T) ** 8
    found = solved(guessed, scores, truth(parties, "a"))
    right = np.mean([np.mean(found[name] == truth(parties, name)) for name in "bc"])
    prior = np.mean([np.bincount(truth(parties, name)).max() / LABELS for name in "bc"])
    assert right <= prior + 0.05


def test_scores_are_known_up_to_their_scale_only(parties):
    """A row's sum says how near labels are, which is the server's to know: here every row that is reached sums to nearly 2^16."""
    _, private = run(parties, "private")
    _, paper = run(parties, "paper")
    assert party_name("a") == "a" and private.sum(1).min() > 2**16 - LABELS * 3 - 2
    assert paper.sum(1).max() > 1.2 * paper.sum(1).min()
    p, q = private / private.sum(1, keepdims=True), paper / paper.sum(1, keepdims=True)
    assert np.abs(p - q).max() < 2e-3
