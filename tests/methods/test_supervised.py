"""FedAvg, FedProx, SCAFFOLD: two toy clients and numbers worked out by hand, and an independent slow version."""

from dataclasses import replace

import pytest
import torch

from grapevine import methods
from grapevine.core import Server, scores
from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation


def federation(digits, method, clients=2, rows=7):
    """Clients with `rows` and `rows + 3` labelled rows, and a server; full batches, so that the order does not matter."""
    split = digits.split(clients=clients, labels="all", seed=1)
    parts = [replace(p, labelled=p.labelled[: rows + 3 * i], labels=p.labels[: rows + 3 * i]) for i, p in enumerate(split.parts)]
    split = replace(split, parts=tuple(parts))
    source = Experiment(method, split, model="linear").models()
    data = {i: split.client(i) for i in range(clients)}
    return Server(method, range(clients), Simulation(method, data, source), source, digits.classes), data


def gradient(weights, rows):
    """Of the mean cross-entropy of softmax regression: Xᵀ(p − y)/n, in float64, from the formula."""
    X = rows.inputs().flatten(1).double()
    Y = torch.nn.functional.one_hot(rows.y, 10).double()
    p = torch.softmax(X @ weights["head.weight"].double().T + weights["head.bias"].double(), 1)
    return {"head.weight": (p - Y).T @ X / len(X), "head.bias": (p - Y).mean(0)}


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name].double(), b[name].double(), rtol=1e-4, atol=1e-6)


def local(weights, rows, lr, epochs, adjust=lambda w, g: g):
    """Full-batch gradient descent by the formula."""
    w = {name: value.double() for name, value in weights.items()}
    for _ in range(epochs):
        g = adjust(w, gradient(w, rows))
        w = {name: w[name] - lr * g[name] for name in w}
    return w


def test_fedavg_is_the_weighted_mean_of_local_descents(digits):
    method = methods.FedAvg(lr=0.3, epochs=3, batch=100)
    server, data = federation(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    each = [local(state["weights"], data[i].labelled, 0.3, 3) for i in (0, 1)]
    close(new["weights"], {name: (7 * each[0][name] + 10 * each[1][name]) / 17 for name in each[0]})
    assert new["round"] == 1


def test_fedavg_may_descend_by_rmsprop(digits):
    """Its first step from nothing is √10 η long in every weight with a gradient."""
    method = methods.FedAvg(lr=0.001, epochs=1, batch=100, optimiser="rmsprop")
    server, data = federation(digits, method)
    state = method.setup(server)
    signs = [gradient(state["weights"], data[i].labelled)["head.bias"].sign() for i in (0, 1)]
    moved = method.round(server, state)["weights"]["head.bias"] - state["weights"]["head.bias"]
    torch.testing.assert_close(moved.double(), -(0.001 * 10**0.5) * (7 * signs[0] + 10 * signs[1]) / 17, rtol=1e-3, atol=1e-7)


def test_fedprox_adds_mu_times_the_distance(digits):
    method = methods.FedProx(mu=0.7, lr=0.3, epochs=4, batch=100)
    server, data = federation(digits, method)
    state = method.setup(server)
    start = {name: w.double() for name, w in state["weights"].items()}
    pull = lambda w, g: {name: g[name] + 0.7 * (w[name] - start[name]) for name in w}  # noqa: E731
    each = [local(start, data[i].labelled, 0.3, 4, pull) for i in (0, 1)]
    close(method.round(server, state)["weights"], {name: (7 * each[0][name] + 10 * each[1][name]) / 17 for name in start})


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(digits):
    new = []
    for method in (methods.FedProx(mu=0.0), methods.FedAvg()):
        server, _ = federation(digits, method)
        new.append(method.round(server, method.setup(server))["weights"])
    assert all(torch.equal(new[0][name], new[1][name]) for name in new[0])
    with pytest.raises(Mistake, match="mu=-1 is out of range"):
        methods.FedProx(mu=-1.0)


def test_scaffold_follows_algorithm_1_for_two_rounds(digits):
    lr, K, eta_g = 0.2, 3, 0.5
    method = methods.Scaffold(lr=lr, global_lr=eta_g, epochs=K, batch=100)
    server, data = federation(digits, method)
    state = method.setup(server)
    x = {name: w.double() for name, w in state["weights"].items()}
    c = {name: torch.zeros_like(w) for name, w in x.items()}
    c_i = [dict(c), dict(c)]
    for _ in range(2):
        state = method.round(server, state)
        dx, dc = [], []
        for i in (0, 1):
            correct = lambda w, g, c_i=c_i[i], c=c: {name: g[name] - c_i[name] + c[name] for name in w}  # noqa: E731
            y = local(x, data[i].labelled, lr, K, correct)
            new = {name: c_i[i][name] - c[name] + (x[name] - y[name]) / (K * lr) for name in x}
            dx.append({name: y[name] - x[name] for name in x})
            dc.append({name: new[name] - c_i[i][name] for name in x})
            c_i[i] = new
        x = {name: x[name] + eta_g * (dx[0][name] + dx[1][name]) / 2 for name in x}
        c = {name: c[name] + (dc[0][name] + dc[1][name]) / 2 for name in c}  # |S|/N = 1
        close(state["weights"], x)
        close(state["c"], c)


def test_scaffold_averages_buffers_whatever_the_servers_learning_rate(digits):
    method = methods.Scaffold(global_lr=3.0, epochs=1)
    state = dict(
        weights=dict(w=torch.ones(1), mean=torch.ones(1)), c=dict(w=torch.zeros(1)), mean_over=0, idle={}, heard={}, round=0
    )
    server = federation(digits, method)[0]
    replies = {
        i: dict(dy=dict(w=torch.tensor([d]), mean=torch.tensor([d])), dc=dict(w=torch.zeros(1)), n=1)
        for i, d in ((0, 1.0), (1, 2.0))
    }
    server.ask = lambda *args, **told: replies
    after = method.round(server, state)["weights"]
    assert after["w"].item() == 1 + 3 * 1.5 and after["mean"].item() == 1 + 1.5


def test_accuracies_by_hand():
    truth, guess = torch.tensor([0, 0, 0, 1, -1, 2]), torch.tensor([0, 0, 1, 1, 0, 0])
    counts = scores.confusion(guess, truth, 4)
    assert counts.tolist() == [[2, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert scores.accuracy(counts) == pytest.approx(3 / 5)
    assert scores.balanced_accuracy(counts) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_guesses_of_no_rows_are_none(digits):
    empty = Rows(digits.x, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), digits.scale)
    data = ClientData(empty, empty, empty, digits.classes)
    assert scores.guesses(lambda x: x.flatten(1), data.test).shape == (0,)


def test_alone_shares_no_weights_and_each_client_keeps_its_own(digits):
    method = methods.Alone(epochs=2, batch=100, lr=0.3)
    server, data = federation(digits, method)
    state = method.round(server, method.setup(server))
    assert all(line["fields"].keys() <= {"n", "round"} for line in server.account.drain())
    start = server.model().state()
    simulation = server.transport
    for i in (0, 1):
        close(Memory(simulation.store, simulation.manifests[i])["weights"], local(start, data[i].labelled, 0.3, 2))
    assert state == dict(round=1)
