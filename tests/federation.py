"""What tests of several methods need: a small federation on digits, softmax regression by formula, slow versions, dense graphs.

Where a method draws views or orders, the slow version draws the same from the same named stream, and does the rest by hand.
"""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from grapevine import core, methods
from grapevine.core import Server, wire
from grapevine.core.store import Memory
from grapevine.data.augment import Views
from grapevine.learn import alternate, streams, train
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

W, B = "head.weight", "head.bias"


class Federation:
    """Clients with a few rows each and a server, on digits."""

    def __init__(
        self, digits, method, labelled=(6, 4), unlabelled=(8, 9), model="linear", at_server=0, rounds=4, norm=None, tap=None,
        labels=60,
    ):  # fmt: skip
        labels = f"server:{at_server},clients:{labels}" if at_server else f"clients:{labels}"
        split = digits.split(clients=len(labelled), labels=labels, seed=1)
        parts = [
            replace(p, labelled=p.labelled[:n], labels=p.labels[:n], unlabelled=p.unlabelled[:m])
            for p, n, m in zip(split.parts, labelled, unlabelled)
        ]
        split = replace(split, parts=tuple(parts))
        self.method = method
        self.source = Experiment(method, split, model=model, norm=norm).models()
        self.data = {i: split.client(i) for i in range(len(labelled))}
        self.simulation = Simulation(method, self.data, self.source, mode="strict" if tap else "fast", tap=tap)
        self.server = Server(
            method, self.data, self.simulation, self.source, digits.classes, rounds=rounds, data=split.server_rows("cpu")
        )
        method.check(self.server)
        self.state = method.setup(self.server)

    def round(self):
        self.state = self.method.round(self.server, self.state)
        return self.state

    def memory(self, id):
        return Memory(self.simulation.store, self.simulation.manifests[id])

    def client(self, id):
        return self.simulation._client(id, Memory(self.simulation.store, self.simulation.manifests.get(id)))


def each_reply(server, step, to=None, each=None, **same):
    """Every client's own reply. The server's `ask` has only the sum of what a step says is averaged."""
    ids = sorted(to if to is not None else each if each is not None else server.clients)
    requests = {i: {**same, **(each[i] if each is not None else {})} for i in ids}
    return server.transport.exchange(step.__name__, requests, server.now)


def stream(id, *names):
    return core.rng(0, "client", id, *names)


def close(a, b, **how):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name].double(), b[name].double(), **dict(dict(rtol=1e-4, atol=1e-6), **how))


def double(weights):
    return {name: w.double() for name, w in weights.items()}


def scores(w, x):
    return x.flatten(1).double() @ w[W].T + w[B]


def proba(w, x):
    return torch.softmax(scores(w, x), 1)


def hot(y):
    return torch.nn.functional.one_hot(y, 10).double()


def gradient(w, x, target, weight):
    """Of Σ_i weight_i · cross-entropy(target_i, softmax(W x_i + b)): Xᵀ diag(weight) (p − t)."""
    delta = (proba(w, x) - target) * weight[:, None]
    return {W: delta.T @ x.flatten(1).double(), B: delta.sum(0)}


def plus(*gradients):
    return {name: sum(g[name] for g in gradients) for name in gradients[0]}


class Momentum:
    """SGD by hand: weight decay, momentum, Nesterov."""

    def __init__(self, lr, momentum, decay, nesterov=True):
        self.lr, self.momentum, self.decay, self.nesterov, self.v = lr, momentum, decay, nesterov, None

    def step(self, w, g):
        g = {name: g[name] + self.decay * w[name] for name in w}
        self.v = g if self.v is None else {name: self.momentum * self.v[name] + g[name] for name in g}
        move = {name: g[name] + self.momentum * self.v[name] for name in g} if self.nesterov else self.v
        return {name: w[name] - self.lr * move[name] for name in w}


def flat(w):
    return torch.cat([w[W].flatten(), w[B]])


def apart(v):
    return {W: v[:640].view(10, 64).double(), B: v[640:].double()}


def slow_fixmatch(w, data, id, t, m, lr, teacher=None, mu=0.0, steps=None):
    """FixMatch of softmax regression, with the views that the client draws."""
    start, draw, optimiser = w, stream(id, "train", t), Momentum(lr, m.momentum, m.weight_decay)
    L, U = len(data.labelled), len(data.unlabelled)
    ratio = getattr(m, "ratio", 1)
    steps = m.epochs * -(-U // (m.batch * ratio)) if steps is None else steps
    for a, b in islice(streams.streams(L, U, m.batch, ratio, draw), steps):
        x = Views(data.labelled).weak(a, draw)
        weak, strong = Views(data.unlabelled).weak(b, draw), Views(data.unlabelled).strong(b, draw)
        q = proba(teacher or w, weak)
        mask = (q.amax(1) >= m.threshold).double()
        g = [gradient(w, strong, hot(q.argmax(1)), m.weight * mask / len(b))]
        g.append({name: mu * (w[name] - start[name]) for name in w})
        if len(a):
            g.append(gradient(w, x, hot(data.labelled.y[a]), torch.full((len(a),), 1 / len(a)).double()))
        elif not mask.any():
            continue
        w = optimiser.step(w, plus(*g))
    return w


def dense(V, y, k, alpha, preset="paper", similarity=None, balance=False):
    """Propagation by the inverse of a dense matrix. Rows without neighbours' similarity above 0 have no edges."""
    n = len(V)
    A = (
        similarity
        if similarity is not None
        else (V / np.linalg.norm(V, axis=1, keepdims=True)) @ (V / np.linalg.norm(V, axis=1, keepdims=True)).T
    )
    B = np.zeros((n, n))
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: (-A[i, j], j))[:k]
        B[i, near] = np.maximum(A[i, near] ** (3 if preset == "code" else 1), 0)
    B = B + B.T
    d = B.sum(1)
    S = B / np.sqrt(np.outer(np.where(d > 0, d, 1), np.where(d > 0, d, 1)))
    Y = np.zeros((n, 10))
    for i in np.flatnonzero(y >= 0):
        Y[i, y[i]] = 1 / (np.sum(y == y[i]) if preset == "code" or balance else 1)
    Z = np.maximum(np.linalg.inv(np.eye(n) - alpha * S) @ Y, 0)
    P = Z / Z.sum(1, keepdims=True)
    H = -(P * np.log(np.where(P > 0, P, 1))).sum(1) / math.log(10)
    return P.argmax(1), 1 - H


def two_streams(model, labelled, unlabelled, labels, weight, lr, epochs, rng, batch=50, weight_decay=0.0, **how):
    loss = streams.TwoStreams(model, labelled, unlabelled, labels, weight, rng, **how)
    optimiser = torch.optim.SGD(model.parameters(), lr, weight_decay=weight_decay)
    return train(model, loss.batches(batch, epochs), loss, optimiser, rng)


# ---------------------------------------------------------------- labels at the server


def labels_at_server(digits, method, labels="server:40", rows=12, clients=2, model="mlp", norm=None, rounds=4):
    """A server with labels, and clients that hold the first `rows`, `rows + 5`, … of their rows."""
    split = digits.split(clients=clients, labels=labels, seed=1)
    parts = [
        replace(p, unlabelled=p.unlabelled[: rows + 5 * i], labelled=p.labelled[: rows + 5 * i], labels=p.labels[: rows + 5 * i])
        for i, p in enumerate(split.parts)
    ]
    split = replace(split, parts=tuple(parts))
    source = Experiment(method, split, model=model, norm=norm).models()
    data = {i: split.client(i) for i in range(clients)}
    simulation = Simulation(method, data, source, truth=lambda i: split.client_truth(i)[1])
    return Server(method, range(clients), simulation, source, digits.classes, rounds=rounds, data=split.server_rows()), data


def memory(server, i):
    return Memory(server.transport.store, server.transport.manifests[i])


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def messages(digits, method, labels="server:40", **settings):
    """Every message of two rounds, as (direction, step, decoded payload)."""
    seen = []
    split = digits.split(clients=3, labels=labels, seed=1)
    Experiment(method, split, rounds=2, per_round=2, model="mlp", mode="strict", **settings,
               tap=lambda way, step, client, data: seen.append((way, step, wire.decode(data)))).run()  # fmt: skip
    return seen


def spied(monkeypatch, server):
    """What trains in turns, as it is called, in place of the training: the loss, whose rows, lr, epochs, mix and kind of view."""
    calls = []
    whose = lambda rows: "server" if rows.x is server.data.x and torch.equal(rows.index, server.data.index) else "client"  # noqa: E731

    def descend(method, model, batches, loss, lr, rng, momentum=None):
        seen = torch.cat([fix for fix, _ in batches])
        epochs = len(seen) // len(seen.unique())
        calls.append(("L_s", whose(loss.rows), lr, epochs, loss.mix, "strong" if loss.strong else "weak"))

    def contrast(method, model, rows, lr, draw, batch):
        calls.append(("L_c", whose(rows), lr))

    monkeypatch.setattr(alternate, "descend", descend)
    monkeypatch.setattr(methods.FedAnchor, "_contrast", contrast)
    return calls


def halved(a, b):
    """The uniform mean of two clients' weights."""
    return {name: (a[name].double() + b[name].double()) / 2 for name in a}
