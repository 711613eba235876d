"""What methods with labels at the server refuse, and the upper bound with a server that trains."""

import math

import pytest
import torch
from federation import labels_at_server
from torch.nn import functional as F

from grapevine import methods
from grapevine.core.errors import Mistake

SERVER_SIDE = ("fedanchor", "semifl", "fedcon")


@pytest.mark.parametrize("name", SERVER_SIDE)
def test_a_server_that_lacks_a_class_is_refused(digits, name):
    method = methods.find(name)()
    with pytest.raises(Mistake, match="no labelled row of class '8' and 1 more"):
        method.check(labels_at_server(digits, method, "server:40@0-7")[0])
    with pytest.raises(Mistake, match="all of class '3'"):
        method.check(labels_at_server(digits, method, "server:20@3")[0])
    with pytest.raises(Mistake, match="needs labels at the server"):
        method.check(labels_at_server(digits, method, "clients:100")[0])
    method.check(labels_at_server(digits, method)[0])


@pytest.mark.parametrize(("name", "fields", "says"), [
    ("fedanchor", dict(threshold=1.2), "threshold=1.2 is out of range: use -1 to 1, as in --set threshold=0.6"),
    ("fedanchor", dict(temperature=0.0), "temperature=0 is out of range: use 0.003 or more"),
    ("fedanchor", dict(momentum=math.nan), "momentum=nan is out of range: use 0 to 1"),
    ("semifl", dict(threshold=-0.1), "threshold=-0.1 is out of range: use 0 to 1"),
    ("semifl", dict(global_momentum=2.0), "global_momentum=2 is out of range: use 0 to 1"),
    ("fedcon", dict(ema=1.5), "ema=1.5 is out of range: use 0 to 1"),
    ("fedcon", dict(epochs=0), "epochs=0 is out of range: use 1 or more"),
    ("mp-ssfl", dict(tau=0.4), "tau=0.4 is out of range: use 0.5 to 1"),
    ("mp-ssfl", dict(upsilon=0.7), "upsilon=0.7 is out of range: use more than 0 and at most 0.693147"),
    ("tuor", dict(benchmark=1.0), "benchmark=1 is out of range: use more than 0 and less than 1"),
    ("rds", dict(window=0), "window=0 is out of range: use 1 or more"),
    ("mp-ssfl", dict(server_epochs=0), "server_epochs=0 is out of range: use 1 or more"),
    ("mp-ssfl", dict(server_lr=math.nan), "server_lr=nan is out of range: use more than 0"),
    ("fedanchor", dict(clip=-1.0), "clip=-1 is out of range: use more than 0"),
    ("semifl", dict(lr=0.0), "lr=0 is out of range: use more than 0"),
    ("tuor", dict(server_lr=-1.0), "server_lr=-1 is out of range: use more than 0"),
    ("server-only", dict(lr=-1.0), "lr=-1 is out of range: use more than 0"),
    ("alone", dict(batch=0), "batch=0 is out of range: use 1 or more"),
])  # fmt: skip
def test_settings_out_of_range_are_refused(name, fields, says):
    with pytest.raises(Mistake, match=f"^{name}: {says}"):
        methods.find(name)(**fields)


def test_the_bound_with_server_training_needs_a_server(digits):
    method = methods.Supervised(server_epochs=1)
    with pytest.raises(Mistake, match="need labels at the server"):
        method.check(labels_at_server(digits, method, "clients:100")[0])


def test_the_bound_pretrains_and_trains_in_turns(digits):
    method = methods.Supervised(lr=0.3, epochs=2, batch=100, server_epochs=3, server_batch=100, pretrain=4)
    server, data = labels_at_server(digits, method, "server:40,clients:60", model="linear")
    state = method.setup(server)

    def descend(w, rows, epochs):  # full-batch softmax regression, by the formula
        X, Y = rows.inputs().flatten(1).double(), F.one_hot(rows.y, 10).double()
        W, b = (w[name].double() for name in ("head.weight", "head.bias"))
        for _ in range(epochs):
            error = (torch.softmax(X @ W.T + b, 1) - Y) / len(X)
            W, b = W - 0.3 * error.T @ X, b - 0.3 * error.sum(0)
        return {"head.weight": W, "head.bias": b}

    w = descend(state["weights"], server.data, 4)
    for _ in range(2):
        each, n = [descend(w, data[i].labelled, 2) for i in (0, 1)], [len(data[i].labelled) for i in (0, 1)]
        w = {name: (n[0] * each[0][name] + n[1] * each[1][name]) / sum(n) for name in w}
        w = descend(w, server.data, 3)
        state = method.round(server, state)
        for name in w:
            torch.testing.assert_close(state["weights"][name].double(), w[name], rtol=1e-4, atol=1e-5)
