"""ProxyFL: a client's round and the server's tuning against loops, and worked numbers of both losses."""

import math
from itertools import islice

import pytest
import torch
from federation import B, Federation, W, close, double, stream

from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.data.augment import Views
from grapevine.learn import streams
from grapevine.learn.networks import build
from grapevine.learn.pseudo import without_labels
from grapevine.methods.proxyfl import categories, indecisive, margin

SETTINGS = dict(
    lr=0.01, momentum=0.5, epochs=2, batch=3, ratio=2, threshold=0.15, weight=0.8, contrast=0.7, tuning_epochs=3, width=24
)
F_W, F_B, P_W = "feature_projection.weight", "feature_projection.bias", "proxy_projection.weight"


def direction(v):
    return v / v.norm()


def slow_loss(w, sent, m, prior, x, y, weak, strong):
    """Row by row, in double: the loss of a batch."""
    code = m.preset == "code"
    logits = lambda v, rows: rows.flatten(1).double() @ v[W].T + v[B]  # noqa: E731
    p, q = torch.softmax(logits(w, weak), 1).detach(), torch.softmax(logits(sent, weak), 1)
    of_x, taught = torch.softmax(logits(sent, x), 1), torch.log_softmax(logits(w, strong), 1)
    proxies = [direction(w[P_W] @ row) for row in w[W]]
    rows = [(row, {int(a)}) for row, a in zip(x, y)]
    if code:
        rows = [(row, {int(a.argmax())} if a.max() >= m.threshold else {c for c in range(10) if a[c] > prior[c]})
                for row, a in zip(x, of_x)]  # fmt: skip
    sure = [bool(max(a.max(), b.max()) >= m.threshold) if code else bool(b.max() > m.threshold) for a, b in zip(p, q)]
    positives = []
    for views in (weak, strong) if code else (weak,):
        for i, row in enumerate(views):
            top, weights = int(q[i].argmax()), q[i] if code else p[i]
            classes = {top} if sure[i] else {c for c in range(10) if q[i][c] > prior[c]}
            rows.append((row, classes))
            positives.append(sum(float(1 if sure[i] else weights[c]) * proxies[c] for c in classes))
    z = [direction(w[F_W] @ row.flatten().double() + w[F_B]) for row, _ in rows]
    each = []
    for i, positive in enumerate(positives, start=len(x)):
        pull = z[i] @ positive
        push = [z[i] @ z[j] for j in range(len(rows)) if not rows[i][1] & rows[j][1]]
        push = [s for s in push if s >= 1e-6] if code else push
        each.append(-torch.log(pull.exp() / (pull.exp() + sum(s.exp() for s in push))))
    mean = lambda values: sum(values) / max(len(values), 1)  # noqa: E731
    if code:
        contrast = mean(each)
    else:
        contrast = mean([e for e, s in zip(each, sure) if s]) + mean([e for e, s in zip(each, sure) if not s])
    taught = [-row[int(b.argmax())] if s else 0 * row[0] for row, b, s in zip(taught, q, sure)]
    unlabelled = mean(taught) if code else sum(taught) / max(sum(sure), 1)
    labelled = -sum(torch.log_softmax(logits(w, x), 1)[i, int(a)] for i, a in enumerate(y)) / len(y)
    return labelled + m.weight * unlabelled + m.contrast * contrast, q.argmax(1), torch.tensor(sure)


def slow(w, data, id, t, m, prior):
    sent, draw, rows = w, stream(id, "train", t), without_labels(data)
    L, U, velocity = len(data.labelled), len(rows), {name: 0 for name in w}
    labels, sure = torch.zeros(U, dtype=torch.int64), torch.zeros(U, dtype=torch.bool)
    for a, b in islice(streams.streams(L, U, m.batch, m.ratio, draw), m.epochs * -(-U // (m.batch * m.ratio))):
        x, y = Views(data.labelled).weak(a, draw), data.labelled.y[a]
        weak, strong = Views(rows).weak(b, draw), Views(rows).strong(b, draw)
        w = {name: v.detach().requires_grad_(True) for name, v in w.items()}
        loss, labels[b], sure[b] = slow_loss(w, sent, m, prior, x, y, weak, strong)
        for name, g in zip(w, torch.autograd.grad(loss, list(w.values()))):
            velocity[name] = m.momentum * velocity[name] + g + m.weight_decay * w[name]
        w = {name: (v - m.lr * velocity[name]).detach() for name, v in w.items()}
    counts = torch.bincount(torch.cat([data.labelled.y, labels[sure]]), minlength=10)
    return w, counts / counts.sum(), float(sure.float().mean())


def slow_tuning(mean, proxies, m, draw):
    """Equation 2's gradient by hand: of the distance to Ω_k it is (Ω_k − ω)/‖Ω_k − ω‖."""
    omega = mean.clone()
    rows = [(proxies[i][c].double(), c) for i in range(len(proxies)) for c in range(10)]
    nearest = [min((mean[a] - mean[b]).norm() for b in range(10) if b != a) for a in range(10)]
    further = float(max(nearest)) if m.preset == "code" else 0.0
    for _ in range(m.tuning_epochs):
        for at in torch.randperm(len(rows), generator=draw).split(m.tuning_batch):
            g = torch.zeros_like(omega)
            for row, c in (rows[i] for i in at):
                gap = omega - row
                far = gap.norm(dim=1)
                shown = torch.softmax(-far - further * torch.eye(10).double()[c], 0)
                g += ((torch.eye(10).double()[c] - shown) / far)[:, None] * gap / len(at)
            omega = omega - m.tuning_lr * g
    return omega


@pytest.mark.parametrize("preset", ["code", "paper"])
def test_rounds_against_loops(digits, preset):
    m = methods.ProxyFL(preset=preset, **SETTINGS)
    f = Federation(digits, m)
    w, prior, sure = double(f.state["weights"]), torch.full((10,), 0.1).double(), []
    for t in range(2):
        each = [slow(w, f.data[i], i, t, m, prior) for i in (0, 1)]
        w = {name: (14 * each[0][0][name] + 13 * each[1][0][name]) / 27 for name in w}
        w[W] = slow_tuning(w[W], [one[W] for one, _, _ in each], m, f.server.rng("tune", t))
        prior = 0.99 * prior + 0.01 * (each[0][1] + each[1][1]) / 2
        f.round()
        close(f.state["weights"], w)
        torch.testing.assert_close(f.state["prior"].double(), prior, rtol=1e-5, atol=1e-7)
        sure += [one[2] for one in each]
    assert any(0 < share < 1 for share in sure)  # rows of both kinds


def test_worked_numbers_of_the_indecisive_loss():
    """Three rows on a circle. The first is labelled with class 0; the second is surely of class 1; the third wavers between 0
    and 1, with 0.6 and 0.4, so it has no negatives, and its loss is 0. The second's only negative is the first."""
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    q = torch.tensor([[0.02, 0.98], [0.6, 0.4]])
    sets, mix = categories(q, q, torch.tensor([True, False]), torch.tensor([0.5, 0.3]))
    assert sets.tolist() == [[False, True], [True, True]]
    torch.testing.assert_close(mix, torch.tensor([[0.0, 1.0], [0.6, 0.4]]))
    losses = indecisive(z, proxies, torch.cat([torch.tensor([[True, False]]), sets]), mix, similar=True)
    torch.testing.assert_close(losses, torch.tensor([-math.log(math.exp(0.8) / (math.exp(0.8) + math.exp(0.6))), 0.0]))
    away = torch.cat([-z[:1], z[1:]])  # a negative that points the other way counts only in the paper
    of = [
        indecisive(away, proxies, torch.cat([torch.tensor([[True, False]]), sets]), mix, similar)[0] for similar in (True, False)
    ]
    torch.testing.assert_close(torch.stack(of), torch.tensor([0.0, math.log(1 + math.exp(-0.6 - 0.8))]), atol=1e-7, rtol=1e-6)


def test_worked_numbers_of_the_margin():
    """On a line at 0, 1 and 5: the nearest neighbours are 1, 1 and 4 away."""
    assert margin(torch.tensor([[0.0], [1.0], [5.0]])) == 4
    assert margin(torch.tensor([[0.0], [1e6]])) == 100


def test_tuning_leaves_outliers_behind(digits):
    """Four clients agree on a class's proxy, one is far away: the mean follows it, equation 2 hardly does."""
    m = methods.ProxyFL(tuning_epochs=400, tuning_lr=0.02)
    proxies = torch.zeros(5, 2, 2)
    proxies[:, 0, 0], proxies[:, 1, 1] = 1.0, 1.0
    proxies[4, 0] = torch.tensor([1.0, 9.0])
    proxies = proxies + 0.01 * torch.randn(proxies.shape, generator=torch.Generator().manual_seed(0))
    tuned = m.tuned(proxies.mean(0), proxies, torch.Generator().manual_seed(1))
    right = torch.tensor([1.0, 0.0])
    assert (tuned[0] - right).norm() < 0.5 * (proxies.mean(0)[0] - right).norm()


def test_without_tuning_the_classifier_is_the_mean(digits):
    f = Federation(digits, methods.ProxyFL(**SETTINGS | dict(tuning_epochs=0)))
    replies = f.server.ask(f.method.train, weights=f.state["weights"], prior=f.state["prior"], round=0)
    mean = (14 * replies[0]["weights"][W].double() + 13 * replies[1]["weights"][W].double()) / 27
    torch.testing.assert_close(f.round()["weights"][W].double(), mean, rtol=0, atol=1e-6)


def test_a_head_of_several_layers_is_refused(digits):
    network = build("mlp", tuple(digits.x.shape[1:]), 10)
    network.head = torch.nn.Sequential(network.head)
    with pytest.raises(Mistake, match="one linear layer"):
        Federation(digits, methods.ProxyFL(**SETTINGS), model=network)


def test_a_client_with_nothing_to_learn_from_is_left_out(digits):
    f = Federation(digits, methods.ProxyFL(**SETTINGS), labelled=(6, 0), unlabelled=(8, 0))
    assert f.round()["weights"].keys() == double(f.state["weights"]).keys()
    replies = f.server.ask(f.method.train, weights=f.state["weights"], prior=f.state["prior"], round=1)
    assert replies[1] == dict(n=0) and replies[0]["n"] == 14
