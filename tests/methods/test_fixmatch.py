"""FixMatch against softmax regression by formula and loops."""

import math
from itertools import islice

import pytest
import torch
from federation import Federation, Momentum, close, double, each_reply, gradient, hot, slow_fixmatch, stream

from grapevine import core, methods
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import streams
from grapevine.learn.networks import build
from grapevine.methods import fixmatch


def test_fixmatch_loss_against_loops():
    model = build("mlp", (5,), 3)
    x, weak, strong = (torch.randn(n, 5, generator=core.rng(7, name)) for n, name in ((4, "x"), (6, "weak"), (6, "strong")))
    y = torch.tensor([0, 2, 1, 1])
    q = torch.softmax(model(weak), 1)
    threshold = q.amax(1).sort().values[2].item()
    nobody = Rows(x, torch.arange(0), torch.arange(0))
    loss, labels, sure = fixmatch.FixMatchLoss(model, nobody, nobody, stream(0), threshold, 0.7).of(x, y, weak, strong)
    p, s = torch.log_softmax(model(x), 1), torch.log_softmax(model(strong), 1)
    expected = -sum(p[i, y[i]] for i in range(4)) / 4
    for i in range(6):
        if q[i].max() >= threshold:
            expected = expected - 0.7 * s[i, q[i].argmax()] / 6
    assert sure.sum() == 4 and labels.tolist() == q.argmax(1).tolist()
    torch.testing.assert_close(loss, expected)
    teacher = build("mlp", (5,), 3, seed=1)
    _, labels, _ = fixmatch.FixMatchLoss(model, nobody, nobody, stream(0), 0.0, 0.7, teacher).of(x, y, weak, strong)
    assert labels.tolist() == teacher(weak).argmax(1).tolist() != q.argmax(1).tolist()


@pytest.mark.parametrize("settings", [dict(), dict(pseudo_labels="global"), dict(base="fedprox", mu=0.5)])
def test_fixmatch_round(digits, settings):
    m = methods.FixMatch(threshold=0.11, weight=0.8, lr=0.1, epochs=2, batch=2, ratio=2, **settings)
    f = Federation(digits, m)
    w = double(f.state["weights"])
    for t in range(2):
        lr = 0.1 * math.cos(7 * math.pi * t / 64)
        teacher = w if m.pseudo_labels == "global" else None
        each = [slow_fixmatch(w, f.data[i], i, t, m, lr, teacher, m.mu if m.base == "fedprox" else 0.0) for i in (0, 1)]
        w = {name: (14 * each[0][name] + 13 * each[1][name]) / 27 for name in w}
        close(f.round()["weights"], w)


def test_fixmatch_with_labels_at_the_server_trains_there_after_the_average(digits):
    m = methods.FixMatch(threshold=0.11, lr=0.1, epochs=1, batch=5, ratio=1, server_epochs=2)
    f = Federation(digits, m, labelled=(0, 0), unlabelled=(8, 9), at_server=20)
    w = double(f.state["weights"])
    each = [slow_fixmatch(w, f.data[i], i, 0, m, 0.1) for i in (0, 1)]
    w = {name: (8 * each[0][name] + 9 * each[1][name]) / 17 for name in w}
    draw, optimiser, rows = core.rng(0, "server", "train", 0), Momentum(0.1, 0.9, 5e-4), f.server.data
    for a, _ in islice(streams.streams(20, 0, 5, 1, draw), 8):
        x = Views(rows).weak(a, draw)
        w = optimiser.step(w, gradient(w, x, hot(rows.y[a]), torch.full((5,), 0.2).double()))
    close(f.round()["weights"], w)


def test_fixmatch_leaves_out_who_took_no_step(digits):
    m = methods.FixMatch(threshold=1.0, lr=0.1, epochs=1)
    f = Federation(digits, m, labelled=(6, 0), unlabelled=(8, 9))
    replies = each_reply(f.server, m.train, weights=f.state["weights"], control={}, lr=0.1, round=0)
    assert replies[1] == dict(n=0)  # nothing labelled, nothing confident
    after = f.round()["weights"]
    assert all(torch.equal(after[name], value) for name, value in replies[0]["weights"].items())


@pytest.mark.parametrize(
    ("settings", "says"),
    [(dict(pseudo_labels="both"), "local or global"), (dict(base="fedsgd"), "fedavg"), (dict(base="scaffold"), "momentum=0"),
     (dict(ratio=0), "ratio=0 is out of range: use 1 or more")],
)  # fmt: skip
def test_fixmatch_refuses(digits, settings, says):
    with pytest.raises(Mistake, match=says):
        Federation(digits, methods.FixMatch(**settings))
