"""MixMatch against loops."""

import pytest
import torch
from federation import Federation, W, each_reply, stream

from grapevine import core, methods
from grapevine.core.errors import Mistake
from grapevine.learn.labels import one_hot
from grapevine.learn.mixing import draw_beta
from grapevine.learn.networks import build


def test_mixmatch_loss_against_loops():
    m = methods.MixMatch(temperature=0.4, alpha=5.0)
    model = build("mlp", (5,), 3)
    x, u1, u2 = (torch.randn(n, 5, generator=core.rng(7, name)) for n, name in ((4, "x"), (6, "a"), (6, "b")))
    y = one_hot(torch.tensor([0, 2, 1, 1]), 3)
    loss, q = m.loss(model, x, y, [u1, u2], 3.0, stream(0, "mix"))
    draw = stream(0, "mix")
    share = draw_beta(5.0, 5.0, draw)
    share = max(share, 1 - share)
    order = torch.randperm(16, generator=draw).tolist()
    guess = ((torch.softmax(model(u1), 1) + torch.softmax(model(u2), 1)) / 2) ** (1 / 0.4)
    guess = guess / guess.sum(1, keepdim=True)
    torch.testing.assert_close(q, guess)
    rows, targets = [*x, *u1, *u2], [*y, *guess, *guess]
    labelled = unlabelled = 0.0
    for i in range(16):
        j = order[i]
        p = torch.softmax(model((share * rows[i] + (1 - share) * rows[j])[None])[0], 0)
        t = share * targets[i] + (1 - share) * targets[j]
        if i < 4:
            labelled = labelled - (t * p.log()).sum() / 4
        else:
            unlabelled = unlabelled + (t - p).square().sum() / 3 / 12
    torch.testing.assert_close(loss, labelled + 3.0 * unlabelled)


def test_mixmatch_weight_rises_and_a_client_with_one_kind_of_rows_learns(digits):
    m = methods.MixMatch(weight=75.0, ramp=0.5)
    assert [m.ramped(t, 8) for t in (0, 1, 3, 4, 7)] == [0.0, 18.75, 56.25, 75.0, 75.0]
    assert methods.MixMatch(ramp=0.0).ramped(0, 8) == 75.0
    f = Federation(digits, methods.MixMatch(epochs=1, ramp=0.0), labelled=(6, 0), unlabelled=(0, 9))
    replies = each_reply(f.server, f.method.train, weights=f.state["weights"], weight=1.0, round=0)
    assert [replies[i]["n"] for i in (0, 1)] == [6, 9]
    assert all((replies[i]["weights"][W] != f.state["weights"][W]).any() for i in (0, 1))


@pytest.mark.parametrize(
    "settings", [dict(temperature=0.0), dict(alpha=0.0), dict(ramp=2.0), dict(base="scaffold"), dict(views=0)]
)
def test_mixmatch_refuses(digits, settings):
    with pytest.raises(Mistake, match=f"mixmatch.*{next(iter(settings))}"):
        Federation(digits, methods.MixMatch(**settings))
