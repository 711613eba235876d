"""FedDB: a round against softmax regression by loops, and the clients' weights."""

import pytest
import torch
from federation import Federation, Momentum, close, double, gradient, hot, plus, proba, stream

from grapevine import methods
from grapevine.data.augment import Views
from grapevine.learn.pseudo import without_labels
from grapevine.methods.feddb import client_weights


def clipped(g, longest):
    length = sum(v.square().sum() for v in g.values()).sqrt()
    return {name: v * min(1.0, longest / length) for name, v in g.items()}


def slow(w, data, id, t, m, lr):
    """One step an epoch, on all labels and all sure rows."""
    draw, rows, optimiser = stream(id, "train", t), without_labels(data), Momentum(lr, m.momentum, m.weight_decay)
    p = proba(w, Views(rows).weak(torch.arange(len(rows)), draw))
    prior = p.mean(0)
    q = torch.stack([row / prior / sum(row / prior) for row in p])
    fix = torch.nonzero(q.amax(1) >= m.threshold).flatten()
    assert 0 < len(fix) < len(rows)
    for _ in range(m.epochs):
        order = torch.randperm(len(fix), generator=draw)
        a, b = torch.randperm(len(data.labelled), generator=draw), fix[order]
        g = [gradient(w, Views(data.labelled).weak(a, draw), hot(data.labelled.y[a]), torch.full((len(a),), 1 / len(a)).double())]
        prior = (prior + proba(w, Views(rows).weak(b, draw)).mean(0)) / 2
        g.append(gradient(w, Views(rows).strong(b, draw), hot(q[b].argmax(1)), torch.full((len(b),), 1 / len(b)).double()))
        w = optimiser.step(w, clipped(plus(*g), m.clip))
    return w, prior


@pytest.mark.parametrize("aggregate", ["code", "exact"])
def test_rounds_against_loops(digits, aggregate):
    m = methods.FedDB(threshold=0.18, lr=0.1, epochs=2, aggregate=aggregate)
    f = Federation(digits, m, rounds=10**6)  # the learning rate hardly falls
    w, v = double(f.state["weights"]), None
    for t in range(2):
        each = [slow(w, f.data[i], i, t, m, 0.1) for i in (0, 1)]
        share = client_weights(torch.stack([prior for _, prior in each]), aggregate)
        mean = {name: share[0] * each[0][0][name] + share[1] * each[1][0][name] for name in w}
        v = {name: w[name] - mean[name] + (0.5 * v[name] if v else 0) for name in w}
        w = {name: w[name] - v[name] for name in w}
        close(f.round()["weights"], w)


def test_exact_weights_balance_the_priors():
    """Priors (1, 0) and (0.25, 0.75): w = (1/3, 2/3) gives (0.5, 0.5)."""
    priors = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    torch.testing.assert_close(client_weights(priors, "exact"), torch.tensor([1 / 3, 2 / 3]).double(), rtol=0, atol=1e-6)
    assert client_weights(priors, "uniform").tolist() == [0.5, 0.5]


def test_weights_of_the_authors_code_by_an_optimiser():
    """A new optimiser for each of 100 steps, its decay on the weights, then a softmax."""
    priors = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    w = torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(100):
        w.requires_grad_(True)
        optimiser = torch.optim.SGD([w], lr=1.0, momentum=0.9, weight_decay=0.9, nesterov=True)
        torch.nn.functional.mse_loss(w @ priors, torch.full((3,), 1 / 3).double()).backward()
        optimiser.step()
        w = torch.softmax(w.detach(), 0)
    torch.testing.assert_close(client_weights(priors, "code"), w)
    assert (w - 1 / 3).abs().max() < 0.05  # never far from equal weights
