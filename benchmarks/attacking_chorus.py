"""Attackers on chorus, each with what it lawfully holds: a party, which opens every sum, the server, which carries all messages
and makes the graph, and both together."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import numpy as np
from attacking import Found, Watched
from attacking_labels import solved
from scipy.optimize import linear_sum_assignment

from grapevine.core import Server
from grapevine.core.store import Memory
from grapevine.crypto import fixed, together
from grapevine.crypto.hamming import protocol
from grapevine.crypto.spread import protocol as spread
from grapevine.data.datasets import Dataset
from grapevine.jobs.reading import Party
from grapevine.learn.voices import FOLDS
from grapevine.methods import song
from grapevine.methods.chorus import Chorus
from grapevine.methods.xclp import CrossClientPropagation

LABELS, ROWS, ALPHA, NAMES = 20, 60, 0.9, "abc"
PICKED = {1: 30, 8: 18, 9: 12}  # digits, and how many of each a party has: unlike, so that counts would name the classes


def parties(digits: Dataset, seed: int = 3) -> dict[str, Party]:
    """Three parties with 60 digits each, the first 20 of them labelled."""
    draw, made = np.random.default_rng(seed), {name: list[int]() for name in NAMES}
    for digit, count in PICKED.items():
        rows = draw.permutation(np.flatnonzero(digits.y.numpy() == digit))[: len(NAMES) * count].reshape(len(NAMES), -1)
        for name, own in zip(NAMES, rows):
            made[name] += own.tolist()
    out = {}
    for name, own in made.items():
        rows = draw.permutation(own)
        labels = [str(c) if i < LABELS else None for i, c in enumerate(digits.y[rows].tolist())]
        out[name] = Party(name, digits.x[rows].flatten(1).double().numpy(), labels, [str(i) for i in range(ROWS)])
    return out


class Job:
    """Chorus as it was run: what passed the server, its graph, and what each party opened, gave and got."""

    def __init__(self, who: dict[str, Party]):
        self.who = who
        self.opened: dict[str, list[np.ndarray]] = {name: [] for name in who}
        self.given: dict[str, list[np.ndarray]] = {name: [] for name in who}
        self.scores: dict[str, np.ndarray] = {}
        self.graph = np.zeros(())
        xclp = CrossClientPropagation(protocol("plain"), 1024, 5, ALPHA, "code", True, spread("private"))
        method, data = Chorus(xclp), {name: party.data() for name, party in who.items()}
        watched = Watched(method, dict(data), None, seed=1)
        before, alongside = (together.opened, CrossClientPropagation.receive, CrossClientPropagation.run), song.alongside
        self._note(*before)
        song.alongside = _in_turn  # a party can take sums that travel together apart
        try:
            method.round(Server(method, list(data), watched, None, (), 1), method.setup(None))  # type: ignore[arg-type]
        finally:
            together.opened, CrossClientPropagation.receive, CrossClientPropagation.run = before  # type: ignore[method-assign]
            song.alongside = alongside
            watched.close()
        self.seen = watched.seen
        memories = {name: Memory(watched.store, watched.manifests[name]) for name in who}
        self.rows = {name: method.prepared(_Client(memories[name], data[name])) for name in who}  # type: ignore[arg-type]
        self.places = {name: memory["result"]["places"] for name, memory in memories.items()}
        self.classes = list(memories["a"]["classes"].values())

    def _note(self, opened: Any, receive: Any, run: Any) -> None:
        def note_sum(client: Any, *told: Any) -> np.ndarray:
            own = client.memory["pending"]["values"]
            self.opened[client.name].append(opened(client, *told))
            self.given[client.name].append(own)
            return self.opened[client.name][-1]

        def note_scores(method: Any, client: Any, *told: Any) -> np.ndarray:
            self.scores[client.name] = receive(method, client, *told)
            return self.scores[client.name]

        def note_graph(*told: Any, **more: Any) -> Any:
            found = run(*told, **more)
            self.graph = found.graphs[max(found.graphs)].toarray()
            return found

        together.opened, CrossClientPropagation.receive = note_sum, note_scores  # type: ignore[method-assign]
        CrossClientPropagation.run = note_graph  # type: ignore[method-assign]

    # ------------------------------------------------------------ what the truth is, and where it stands in the graph

    def truth(self, name: str) -> np.ndarray:
        """Of a party's labelled nodes, in the graph's order: their classes."""
        labels = np.array([self.classes.index(label) for label in self.who[name].labels[:LABELS]])
        return labels[self.places[name][self.places[name] < LABELS]]

    def at(self, name: str) -> np.ndarray:
        """Where a party's labelled nodes are in the graph, which the server knows."""
        return NAMES.index(name) * ROWS + np.flatnonzero(self.places[name] < LABELS)

    def z(self, name: str) -> np.ndarray:
        """A party's own scores by all labels, each row by its own scale."""
        Z = self.scores[name].reshape(ROWS, FOLDS, -1)[:, 0]
        return Z / Z.sum(1, keepdims=True)

    def found(self, guess: np.ndarray, names: str = NAMES[1:]) -> Found:
        labels = [self.truth(name) for name in names]
        prior = np.mean([np.bincount(y).max() / len(y) for y in labels])
        return dict(right=float(np.mean(guess == np.concatenate(labels))), prior=float(prior))


def _in_turn(*programs: Any) -> Any:
    done = []
    for program in programs:
        done.append((yield from program))
    return done


class _Client:
    def __init__(self, memory: Memory, data: Any):
        self.memory, self.data = memory, data


# ---------------------------------------------------------------- a party


def party_by_scores(job: Job) -> Found:
    """No row of S reaches a party. It takes similarities among its own rows in place of those to the others'."""
    x = job.rows["a"] / np.linalg.norm(job.rows["a"], axis=1, keepdims=True)
    x = x[job.places["a"]]
    mine = np.flatnonzero(job.places["a"] < LABELS)
    near = np.maximum(x[mine] @ x[mine].T, 0.0) ** 8
    own = np.eye(len(job.classes))[job.truth("a")]
    z = job.z("a")[mine] * 3 * near.sum(1, keepdims=True)
    return job.found(solved(np.tile(near, 2), z - near @ own))


def party_by_counts(job: Job) -> Found:
    """It opens how many labels each class has, and takes its own off: the others' largest class is its guess."""
    d, C = job.who["a"].x.shape[1], len(job.classes)
    counts = (job.opened["a"][0] - job.given["a"][0])[3 * d : -1].reshape(-1, C).sum(0)
    return job.found(np.full(2 * LABELS, counts.argmax()))


def rows_by_differences(job: Job) -> int:
    """How many rows of others a party finds in class sums: of two sums of a class whose counts differ by one, less its own parts,
    the difference is a row if all else is the same; a labelled row as often as such rows count."""
    C, d = len(job.classes), job.rows["a"].shape[1]
    others = [total - own for total, own in zip(job.opened["a"], job.given["a"])]
    at = [i for i, total in enumerate(others) if total.size == FOLDS * C * d]
    M = np.concatenate([others[i].reshape(FOLDS, C, d) for i in at])
    N, known = np.concatenate([np.rint(others[i - 1]).reshape(2, FOLDS, C) for i in at], 1)
    worth = float(np.clip(song.TRUTH * len(NAMES) * ROWS / (len(NAMES) * LABELS), 1.0, song.MOST_WORTH))
    rows = np.concatenate([job.rows[name] for name in NAMES[1:]])
    found = set()
    for i, j in combinations(range(len(M)), 2):
        for c in np.flatnonzero(np.abs(N[i] - N[j]) == 1):
            more = N[i, c] - N[j, c]
            row = (M[i, c] - M[j, c]) * more / (worth if known[i, c] - known[j, c] == more else 1.0)
            away = np.abs(rows - row).max(1)
            if away.min() < 1e-3:
                found.add(int(away.argmin()))
    return len(found)


# ---------------------------------------------------------------- the server, and both


def server_alone(job: Job, carried: np.ndarray | None = None) -> Found:
    """Say that the graph parts the labelled nodes without a mistake: then the server lacks the parts' names. It reads the
    moments that it carries as the parties do (`carried`: as it would be in the clear), and names the parts by how many labels
    each class has; where these are no counts, any naming is as good as another, and the share is their average."""
    d, C = job.who["a"].x.shape[1], len(job.classes)
    if carried is None:
        sums = (e.requests["a"]["total"] for e in job.seen if e.step == "go_on")
        carried = fixed.decode_wide(next(total for total in sums if total.ndim == 2))  # moments, in the wide ring
    counts = carried[3 * d : -1].reshape(-1, C).sum(0)
    parts = np.concatenate([job.truth(name) for name in NAMES])
    there = 0 <= counts.min() and counts.max() <= len(parts)
    _, named = linear_sum_assignment(np.abs(np.bincount(parts, minlength=C)[:, None] - counts[None]))
    namings = [named] if there else list(permutations(range(C)))
    found = [job.found(np.array(naming)[parts], NAMES) for naming in namings]
    return dict(found[0], right=float(np.mean([each["right"] for each in found])))


def server_and_party(job: Job) -> Found:
    """Together they have S and the scores of all of a's rows: more equations than unknowns."""
    S = _influence(job)[:ROWS]
    others, mine = S[:, np.concatenate([job.at(name) for name in NAMES[1:]])], S[:, job.at("a")]
    total = others.sum(1) + mine.sum(1)
    return job.found(solved(others, job.z("a") * total[:, None] - mine @ np.eye(len(job.classes))[job.truth("a")]))


def _influence(job: Job) -> np.ndarray:
    return np.linalg.inv(np.eye(len(job.graph)) - ALPHA * job.graph)


def with_subset(who: dict[str, Party], share: float) -> Job:
    """Chorus where class sums are over another share of a party's rows."""
    before, song.SUBSET = song.SUBSET, share
    try:
        return Job(who)
    finally:
        song.SUBSET = before
