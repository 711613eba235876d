"""FedRGD: averages in groups, by hand."""

import math
from itertools import islice

import pytest
import torch
from federation import Federation, Momentum, close, double, gradient, hot, slow_fixmatch

from grapevine import core, methods
from grapevine.core.errors import Mistake
from grapevine.data.augment import Views
from grapevine.learn import streams
from grapevine.learn.networks import build
from grapevine.methods import fedrgd


@pytest.mark.parametrize("at_server", [0, 20])
def test_fedrgd_averages_in_groups(digits, at_server):
    m = methods.FedRGD(groups=2, period=3, batch=5, threshold=0.11, lr=0.1)
    f = Federation(digits, m, labelled=(6, 4, 7), unlabelled=(8, 9, 5), at_server=at_server)
    groups, w = {g: double(f.state["weights"]) for g in (0, 1)}, double(f.state["weights"])
    for t in range(2):
        of = m.divide(f.server, t)
        assert sorted(of) == [0, 1, 2] and sorted(list(of.values()).count(g) for g in (0, 1)) == [1, 2]
        lr = 0.1 * math.cos(7 * math.pi * t / 64)
        members = {g: [slow_fixmatch(groups[g], f.data[i], i, t, m, lr, steps=3) for i in of if of[i] == g] for g in (0, 1)}
        if at_server:
            draw, optimiser, rows, own = core.rng(0, "server", "train", t), Momentum(lr, 0.9, 1e-4), f.server.data, w
            for a, _ in islice(streams.streams(20, 0, 5, 1, draw), 3):
                x = Views(rows).weak(a, draw)
                own = optimiser.step(own, gradient(own, x, hot(rows.y[a]), torch.full((5,), 0.2).double()))
            members = {g: [*each, own] for g, each in members.items()}
        groups = {g: {name: sum(c[name] for c in each) / len(each) for name in w} for g, each in members.items()}
        w = {name: (groups[0][name] + groups[1][name]) / 2 for name in w}
        state = f.round()
        close(state["weights"], w)
        for g in (0, 1):
            close(state["groups"][g], groups[g])


def test_fedrgd_normalises_by_groups(digits):
    for norm in ("bn", "sbn", "gn"):
        f = Federation(digits, methods.FedRGD(), model="cnn", norm=norm)
        kinds = [type(layer).__name__ for layer in f.server.model().modules()]
        assert kinds.count("GroupNorm") == 2 and not any("BatchNorm" in kind for kind in kinds)
    kept = fedrgd.FedRGD(group_norm=False).network(build("cnn", (1, 8, 8), 10, "bn"))
    assert any("BatchNorm" in type(layer).__name__ for layer in kept.modules())
    with pytest.raises(Mistake, match="groups=3 is more than the 2 clients"):
        Federation(digits, methods.FedRGD(groups=3))
