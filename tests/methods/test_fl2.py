"""(FL)²: the client's step against softmax regression by formula, and the weights of the average."""

import pytest
import torch
from federation import B, Federation, W, close, double, gradient, hot, labels_at_server, plus, proba, stream

from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.data.augment import Views
from grapevine.methods.fl2 import SharpnessLoss, perturbation


def test_perturbation_by_hand():
    """T = (3.5, 4.5) for the weights (3, −4) with η = ½, 1 for the bias; g = (1, 0, 1): ‖Tg‖ = √(3.5² + 1)."""
    w = {"head.weight": torch.tensor([3.0, -4.0]), "head.bias": torch.tensor([7.0])}
    g = {"head.weight": torch.tensor([1.0, 0.0]), "head.bias": torch.tensor([1.0])}
    e, length = perturbation(w, g, rho=0.1, eta=0.5), (3.5**2 + 1) ** 0.5
    torch.testing.assert_close(e["head.weight"], torch.tensor([0.1 * 3.5**2 / length, 0.0]))
    torch.testing.assert_close(e["head.bias"], torch.tensor([0.1 / length]))


def slow(w, data, id, m, lr):
    """One step a batch, plain SGD."""
    draw, rows = stream(id, "train", 0), data.unlabelled
    p = proba(w, Views(rows).weak(torch.arange(len(rows)), draw))
    t, g = p.mean(0), p.amax(1).mean()
    labels = p.argmax(1)
    kept = torch.tensor([i for i in range(len(p)) if p[i].max() >= g * t[labels[i]] / t.max()])
    fix = p.amax(1) >= m.fix
    for _ in range(m.epochs):
        for at in torch.randperm(len(kept), generator=draw).split(m.batch):
            at = kept[at]
            strong = Views(rows).strong(at, draw)
            compared = Views(rows).weak(at, draw) if m.target == "weak" else strong
            n, sure = len(at), fix[at].double()
            steps = [gradient(w, strong, hot(labels[at]), torch.full((n,), 1 / n).double())]
            if sure.any():
                up = gradient(w, strong, hot(labels[at]), sure / sure.sum())
                T = {W: w[W].abs() + m.eta, B: torch.ones(10).double()}
                length = sum((T[name] * up[name]).square().sum() for name in up).sqrt()
                high = {name: w[name] + m.rho * T[name] ** 2 * up[name] / length for name in w}
                steps.append(gradient(high, strong, proba(w, compared), sure / n))
            w = {name: w[name] - lr * step for name, step in plus(*steps).items()}
    return w, g.item(), int(fix[kept].sum()), len(kept)


@pytest.mark.parametrize("target", ["strong", "weak"])
def test_a_round_against_formulas(digits, target):
    m = methods.FL2(fix=0.19, rho=2.0, target=target, epochs=2, batch=4, momentum=0.0, weight_decay=0.0, clip=1e9, lr=0.1,
                    pretrain=0, server_epochs=0, global_momentum=0.0)  # fmt: skip
    f = Federation(digits, m, labelled=(0, 0), unlabelled=(8, 11), at_server=20)
    w = double(f.state["weights"])
    (a, g_a, fix_a, n_a), (b, g_b, fix_b, n_b) = (slow(w, f.data[i], i, m, 0.1) for i in (0, 1))
    assert 0 < fix_a + fix_b < n_a + n_b < 19
    total = (1 - g_a) + (1 - g_b)
    close(f.round()["weights"], {name: ((1 - g_a) * a[name] + (1 - g_b) * b[name]) / total for name in w})
    assert f.server.notes["qualified"] == (n_a + n_b) / 2


@pytest.mark.parametrize("rho, passes", [(0.1, [4, 3]), (0.0, [1, 1])])
def test_a_step_has_as_many_passes_as_it_says(digits, rho, passes):
    """Forward: target, ascent, divergence, loss. Backward: all but the target."""
    m, seen = methods.FL2(rho=rho), [0, 0]
    f = Federation(digits, m, labelled=(0, 0), unlabelled=(8, 11), at_server=20)
    model, rows = f.client(0).model(f.state["weights"]), f.data[0].unlabelled

    def count(which):
        seen[which] += 1

    model.register_forward_hook(lambda *_: count(0))
    model.head.weight.register_hook(lambda _: count(1))
    labels, fix = torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.bool)
    loss = SharpnessLoss(model, rows, labels, fix, m, stream(0, "train", 0))
    loss(torch.arange(8)).backward()
    assert seen == passes and "four forward and three backward passes" in m.extra


def test_the_server_trains_first_and_after(digits):
    quiet = dict(epochs=1, batch=50)
    trained = {}
    for name, settings in dict(none=dict(pretrain=0, server_epochs=0), first=dict(pretrain=1, server_epochs=0),
                               after=dict(pretrain=0, server_epochs=1)).items():  # fmt: skip
        m = methods.FL2(**quiet, **settings)
        server, _ = labels_at_server(digits, m)
        trained[name] = m.round(server, m.setup(server))["weights"]["head.weight"]
    assert not any(torch.equal(trained[a], trained[b]) for a, b in [("none", "first"), ("none", "after"), ("first", "after")])


def test_labels_at_clients_alone_are_refused(digits):
    with pytest.raises(Mistake, match="needs labels at the server"):
        Federation(digits, methods.FL2())
