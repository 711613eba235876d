"""FedCon: its losses against loops, and what stays where."""

import pytest
import torch
from federation import close, each_reply, halved, labels_at_server, memory, messages

from grapevine import methods
from grapevine.learn import heads
from grapevine.learn import networks as models
from grapevine.methods import fedcon


def test_fedcon_losses_by_loops():
    draw = torch.Generator().manual_seed(5)
    net = heads.Projected(models.build("mlp", (1, 8, 8), 10, seed=3), 16).eval()
    target = heads.Projected(models.build("mlp", (1, 8, 8), 10, seed=4), 16).eval()
    a, b = torch.randn(4, 1, 8, 8, generator=draw), torch.randn(4, 1, 8, 8, generator=draw)
    cosine = lambda u, v: (u @ v / (u.norm() * v.norm())).item()  # noqa: E731
    p, z = (lambda x: net.projector(net.features(x))), target.features
    expected = sum(2 - cosine(p(a)[i], z(b)[i]) - cosine(p(b)[i], z(a)[i]) for i in range(4)) / 4
    assert fedcon.contrast(net, target, a, b).item() == pytest.approx(expected, rel=1e-5)

    y = torch.tensor([1, 0, 9, 4])
    pa, pb = net(a).double().softmax(1), net(b).double().softmax(1)
    expected = 0.0
    for i in range(4):
        expected -= (pa[i, y[i]].log() + pb[i, y[i]].log()).item() / 2
        expected += 0.3 * ((pb[i] * (pb[i] / pa[i]).log()).sum() + (pa[i] * (pa[i] / pb[i]).log()).sum()).item() / 2
    assert fedcon.consistent(net, a, b, y, 0.3).item() == pytest.approx(expected / 4, rel=1e-5)


def test_fedcon_sends_the_backbone_alone(digits):
    seen = messages(digits, methods.FedCon(epochs=1, hidden=16))
    down = [payload["backbone"] for way, _, payload in seen if way == "down"]
    up = [payload["weights"] for way, _, payload in seen if way == "up"]
    assert len(down) == len(up) == 4
    assert all(name.startswith("features.") for weights in down + up for name in weights)


def test_fedcons_target_is_a_moving_average_that_lasts(digits):
    method = methods.FedCon(epochs=1, batch=100, ema=0.9, hidden=16)
    server, _ = labels_at_server(digits, method)
    backbone = fedcon.part(method.setup(server)["weights"], "features.")
    target = backbone
    for t in range(2):  # one step a round: target ← 0.9 target + 0.1 backbone, and the backbone starts again
        reply = each_reply(server, method.train, to=[1], backbone=backbone, round=t)[1]
        target = {name: 0.9 * target[name] + 0.1 * reply["weights"][name] for name in target}
        kept = memory(server, 1)["byol"]
        for name in target:
            torch.testing.assert_close(kept["target"][name], target[name])
        assert kept["projector"].keys() == fedcon.part(server.model().state(), "projector.").keys()


def test_fedcons_server_trains_first_and_after_a_uniform_average(digits, monkeypatch):
    method = methods.FedCon(epochs=1, hidden=16)
    server, data = labels_at_server(digits, method)
    trained = []

    def at_server(self, server, weights, t, name):  # in place of the training
        trained.append((t, name))
        return {name: w + 0.25 for name, w in weights.items()}

    monkeypatch.setattr(methods.FedCon, "_at_server", at_server)
    state = method.setup(server)
    first = at_server(method, server, state["weights"], 0, "by hand")
    replies = each_reply(server, method.train, backbone=fedcon.part(first, "features."), round=0)
    assert [len(data[i].unlabelled) for i in replies] == [12, 17]
    server.transport.manifests.clear()  # projector and target from the beginning again
    trained.clear()
    new = method.round(server, state)
    mean = {**first, **halved(replies[0]["weights"], replies[1]["weights"])}
    close(new["weights"], {name: w + 0.25 for name, w in mean.items()}, rtol=1e-6, atol=1e-7)
    method.round(server, new)
    assert trained == [(0, "first"), (0, "train"), (1, "train")]
