"""The label job as tests run it: toy parties, a transport with a hand on it, and a slow version, dense and in the clear."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from grapevine import graph
from grapevine.core import Client, Server, Transport, run_step, wire
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.crypto import hamming, spread
from grapevine.crypto.stream import context, hkdf
from grapevine.methods.label import BINS, Label
from grapevine.methods.xclp import CrossClientPropagation
from grapevine.run.simulate import Fault, Simulation

SEED = 7
SPREAD, AGAIN = "xclp.spread.contribute", "xclp.spread.again"


# ---------------------------------------------------------------- parties and runs


def party(X, y):
    """A party's data. `y` holds class names, None where there is no label; labelled rows come first, as everywhere."""
    classes = tuple(sorted({name for name in y if name is not None}))
    known = [i for i, name in enumerate(y) if name is not None]
    rest = [i for i, name in enumerate(y) if name is None]
    x, none = torch.from_numpy(np.asarray(X, np.float64)), torch.empty(0, dtype=torch.int64)
    labels = torch.tensor([classes.index(y[i]) for i in known], dtype=torch.int64)
    unlabelled = torch.tensor(rest, dtype=torch.int64)
    rows = Rows(x, torch.tensor(known, dtype=torch.int64), labels)
    return ClientData(rows, Rows(x, unlabelled, torch.full_like(unlabelled, -1)), Rows(x, none, none), classes)


def blobs(sizes, classes="abc", labelled=4, d=6, seed=0, spread=0.8):
    """Parties p0, p1, … with rows around one centre per class; the first `labelled` rows of each are labelled."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(classes), d)) * 2
    out = {}
    for i, n in enumerate(sizes):
        c = rng.integers(len(classes), size=n)
        X = centres[c] + spread * rng.normal(size=(n, d))
        out[f"p{i}"] = (X, [classes[c[r]] if r < labelled else None for r in range(n)])
    return out


def without_labels(parties, name):
    X, y = parties[name]
    return dict(parties, **{name: (X, [None] * len(y))})


def job(protocol="plain", bits=96, neighbours=4, alpha=0.9, preset="paper", reproducible=True, way="paper", **settings):
    kind = hamming.protocol(protocol) if isinstance(protocol, str) else protocol
    how = dict(bits=bits, neighbours=neighbours, alpha=alpha, preset=preset, reproducible=reproducible,
               spread=spread.protocol(way))  # fmt: skip
    return Label(CrossClientPropagation(kind, **how), **settings)


@dataclass
class Wire(Transport):
    """The simulation's transport with a hand on it: counts exchanges, keeps messages, changes requests or a reply, or stops."""

    simulation: Simulation
    change: dict = field(default_factory=dict)  # step → function of the requests
    stop: str = ""
    spoil: dict = field(default_factory=dict)  # step → client, field, value: what is changed in a reply
    asked: list = field(default_factory=list)

    def exchange(self, step, requests, round):
        if step == self.stop:
            raise KeyboardInterrupt
        self.asked.append(step)
        if step in self.change:
            requests = self.change[step](requests)
        replies = self.simulation.exchange(step, requests, round)
        if step in self.spoil and self.spoil[step][0] in replies:
            client, name, value = self.spoil[step]
            replies[client] = dict(replies[client], **{name: value})
        return replies


@dataclass
class Run:
    method: Label
    simulation: Simulation
    wire: Wire
    server: Server
    sent: list  # (direction, step, client, message) in strict mode
    about: dict | None = None

    def memory(self, id):
        return Memory(self.simulation.store, self.simulation.manifests[id])

    def client(self, id):
        sim = self.simulation
        return Client(id, sim.data[id], self.memory(id), None, sim.seed, sim.identities[id], sim.pinned)

    def result(self, id):
        return self.memory(id)["result"]

    def up(self, step, id):
        return [message for direction, s, i, message in self.sent if (direction, s, i) == ("up", step, id)]

    def down(self, step, id):
        return [message for direction, s, i, message in self.sent if (direction, s, i) == ("down", step, id)]


def start(method, parties, mode="strict", seed=SEED, workers=1, faults=(), change=None, stop="", prepare=None, spoil=None):
    sent = []

    def tap(direction, step, id, data):
        sent.append((direction, step, id, wire.decode(data)))

    data = {id: party(*rows) for id, rows in parties.items()}
    simulation = Simulation(method, data, None, seed=seed, mode=mode, workers=workers, faults=faults, tap=tap)
    if prepare:
        prepare(simulation)
    transport = Wire(simulation, change or {}, stop, spoil or {})
    server = Server(method, list(data), transport, None, (), seed=seed)
    run = Run(method, simulation, transport, server, sent)
    try:
        method.check(server)
        run.about = method.round(server, method.setup(server))["groups"][0]
    except KeyboardInterrupt:
        assert stop
    finally:
        simulation.close()
    return run


# ---------------------------------------------------------------- the slow version: dense, in the clear, on pooled rows


def order(y):
    return sorted(range(len(y)), key=lambda i: (y[i] is None, i))


def pooled(parties):
    """All rows in the order of names, labelled first; whose they are; class numbers, −1 where there is none; class names."""
    names = sorted(parties)
    X = np.concatenate([np.asarray(parties[p][0], float)[order(parties[p][1])] for p in names])
    y = [label for p in names for label in (parties[p][1][i] for i in order(parties[p][1]))]
    owner = np.repeat(names, [len(parties[p][1]) for p in names])
    classes = sorted({label for label in y if label is not None})
    return X, owner, np.array([-1 if label is None else classes.index(label) for label in y]), classes


def standardised(X):
    std = X.std(0)
    return np.where(std > 0, (X - X.mean(0)) / np.where(std > 0, std, 1), 0.0)


def hash_of(V, bits, preset, seed=SEED):
    info = context("hyperplanes", session=f"seed {seed} group 0")
    secret = hkdf(seed.to_bytes(16, "big", signed=True), info)
    planes = graph.hyperplanes(secret, bits, V.shape[1], info, tight_frame=preset == "code")
    return (V @ planes.T.astype(np.float64) >= 0).astype(np.uint8)


def dense_graph(B, k, preset, blank):
    n, L = B.shape
    H = (B[:, None] ^ B[None]).sum(-1).astype(float)
    A = np.cos(np.pi * H / L)
    keep = np.zeros((n, n))
    for i in range(n):
        near = sorted((H[i, j], j) for j in range(n) if j != i and not blank[j] and not blank[i])[:k]
        for _, j in near:
            keep[i, j] = max(A[i, j] ** 3 if preset == "code" else A[i, j], 0.0)
    W = keep + keep.T
    d = W.sum(1)
    scale = np.divide(1, np.sqrt(d), out=np.zeros(n), where=d > 0)
    return H, scale[:, None] * W * scale[None]


def labels_of(Z):
    """Lines 15 and 16."""
    reached = Z.max(1) > 1e-8
    P = np.where(reached[:, None], Z / np.where(Z.sum(1, keepdims=True) > 0, Z.sum(1, keepdims=True), 1), 0.0)
    plogp = np.zeros_like(P)
    np.log(P, out=plogp, where=P > 0)
    spread = -(P * plogp).sum(1) / math.log(Z.shape[1]) if Z.shape[1] > 1 else np.zeros(len(Z))
    return np.where(reached, Z.argmax(1), -1), np.where(reached, 1 - spread, 0.0), P


@dataclass
class Slow:
    V: np.ndarray
    owner: np.ndarray
    y: np.ndarray
    classes: list
    H: np.ndarray
    S: np.ndarray
    Y: np.ndarray

    def of(self, name, Z=None):
        return tuple(part[self.owner == name] for part in labels_of(self.S @ self.Y if Z is None else Z))


def slow(parties, method, k=None):
    X, owner, y, classes = pooled(parties)
    V = standardised(X) if method.scale == "standard" else X
    B = hash_of(V, method.xclp.bits, method.xclp.preset)
    H, W = dense_graph(B, k or method.xclp.neighbours, method.xclp.preset, ~(V != 0).any(1))
    S = np.linalg.inv(np.eye(len(W)) - method.xclp.alpha * W)
    Y = np.array([[label == c for c in range(len(classes))] for label in y], float)
    if method.xclp.preset == "code":
        Y = Y / np.maximum(Y.sum(0), 1)
    return Slow(V, owner, y, classes, H, S, Y)


def assert_same_as_slow(run, parties, k=None):
    oracle = slow(parties, run.method, k)
    assert list(run.about["classes"].values()) == oracle.classes
    for name in parties:
        label, confidence, P = oracle.of(name)
        result = run.result(name)
        np.testing.assert_array_equal(result["label"], label)
        np.testing.assert_allclose(result["confidence"], confidence, atol=1e-5)
        np.testing.assert_allclose(result["proba"], P, atol=1e-5)
    return oracle


def assert_same_results(left, right, names, exact=True):
    for name in names:
        one, other = left.result(name), right.result(name)
        np.testing.assert_array_equal(one["label"], other["label"])
        for key in ("confidence", "proba"):
            if exact:
                np.testing.assert_array_equal(one[key], other[key])
            else:
                np.testing.assert_allclose(one[key], other[key], atol=1e-6)


def lost(step, when="before", client="p1"):
    return Fault(client, step, when=when, forever=True)


def four(labelled=4):
    return blobs((13, 8, 11, 9), labelled=labelled)


def each_request(change):
    return lambda requests: {id: change(id, dict(payload)) for id, payload in requests.items()}


def again(run, step, id, **changes):
    return run_step(run.method, step, run.client(id), dict(run.down(step, id)[0], **changes))


def clear_estimate(run, oracle):
    """What the secure sums should come to: hidden labels, hits together, hits alone, and the calibration table."""
    hidden = np.zeros(len(oracle.y), bool)
    for name in set(oracle.owner):
        rows = np.flatnonzero((oracle.owner == name) & (oracle.y >= 0))
        hidden[rows[run.memory(name)["hidden"]]] = True
    found, confidence, _ = labels_of(oracle.S @ (oracle.Y * ~hidden[:, None]))
    right = hidden & (found == oracle.y)
    alone = 0
    for name in set(oracle.owner):
        own = oracle.owner == name
        V, y = oracle.V[own], np.where(hidden, -1, oracle.y)[own]
        if (y >= 0).any():
            alone += int(((alone_labels(V, y, len(oracle.classes), run.method) == oracle.y[own]) & hidden[own]).sum())
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return dict(n=int(hidden.sum()), right=int(right.sum()), alone=alone, rows=np.bincount(bins[hidden], minlength=BINS),
                hits=np.bincount(bins[right], minlength=BINS))  # fmt: skip


def alone_labels(V, y, C, method):
    """Propagation among one party's rows with exact cosines, dense."""
    length = np.linalg.norm(V, axis=1, keepdims=True)
    A = (V / length) @ (V / length).T
    n, keep = len(V), np.zeros((len(V), len(V)))
    for i in range(n):
        for j in sorted((j for j in range(n) if j != i), key=lambda j: (-A[i, j], j))[: method.xclp.neighbours or 10]:
            keep[i, j] = max(A[i, j], 0)
    W = keep + keep.T
    d = W.sum(1)
    scale = np.divide(1, np.sqrt(d), out=np.zeros(n), where=d > 0)
    Y = np.array([[label == c for c in range(C)] for label in y], float)
    return labels_of(np.linalg.inv(np.eye(n) - method.xclp.alpha * scale[:, None] * W * scale) @ Y)[0]
