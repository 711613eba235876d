"""FedAnchor: its equations against loops, and what trains in turns."""

import pytest
import torch
from federation import each_reply, labels_at_server, same, spied
from torch.nn import functional as F

from grapevine import methods
from grapevine.data.augment import Views
from grapevine.learn.losses import label_contrastive
from grapevine.learn.schedules import cosine
from grapevine.methods import fedanchor


def test_mean_cosines_are_equation_3():
    draw = torch.Generator().manual_seed(3)
    z, anchors = torch.randn(5, 6, generator=draw), torch.randn(7, 6, generator=draw)
    labels = torch.tensor([0, 2, 2, 0, 1, 2, 1], dtype=torch.int16)
    s = fedanchor.mean_cosines(z, F.normalize(anchors, dim=1), labels, 4)
    for i in range(5):
        for c in range(3):
            members = [k for k in range(7) if labels[k] == c]
            cosines = [(z[i] @ anchors[k] / (z[i].norm() * anchors[k].norm())).item() for k in members]
            assert s[i, c].item() == pytest.approx(sum(cosines) / len(cosines), abs=1e-6)
    assert (s[:, 3] == -1).all()  # a class without anchors


def test_compact_anchors_give_the_same_similarities(digits):
    full, compact = methods.FedAnchor(), methods.FedAnchor(compact=True)
    server, data = labels_at_server(digits, full)
    weights, rows = server.model().state(), data[0].unlabelled
    a, b = full.anchors(server, weights, {}), compact.anchors(server, weights, {})
    assert a["anchors"].shape == (40, 128) and b["anchors"].shape == (10, 128)
    model, draw = server.model(weights).eval(), torch.Generator()
    torch.testing.assert_close(full.similarities(model, rows, **a, classes=10, draw=draw),
                               compact.similarities(model, rows, **b, classes=10, draw=draw))  # fmt: skip


def test_ensembles_average_similarities_of_weak_views(digits):
    method = methods.FedAnchor(ensembles=3)
    server, data = labels_at_server(digits, method)
    weights, rows = server.model().state(), data[0].unlabelled
    sent, model = method.anchors(server, weights, {}), server.model(weights).eval()
    found = method.similarities(model, rows, **sent, classes=10, draw=torch.Generator().manual_seed(1))
    draw, views = torch.Generator().manual_seed(1), Views(rows)
    with torch.no_grad():
        z = [model.latent(views.weak(torch.arange(len(rows)), draw)) for _ in range(3)]
    each = [fedanchor.mean_cosines(one, sent["anchors"], sent["labels"], 10) for one in z]
    torch.testing.assert_close(found, (each[0] + each[1] + each[2]) / 3)


def test_no_client_trains_on_an_empty_fix_set(digits):
    method = methods.FedAnchor(threshold=1.0, pretrain=0, server_epochs=0)
    server, _ = labels_at_server(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and server.notes["qualified"] == 0


def test_average_is_by_rows_and_the_anchor_head_stays(digits):
    method = methods.FedAnchor(threshold=-1.0, pretrain=0, server_epochs=0, epochs=1)
    server, data = labels_at_server(digits, method)
    state = method.setup(server)
    sent = dict(weights=state["weights"], statistics={}, lr=method.lr, round=0, **method.anchors(server, state["weights"], {}))
    replies = each_reply(server, method.train, **sent)
    assert [replies[i]["qualified"] for i in (0, 1)] == [12, 17] == [len(data[i].unlabelled) for i in (0, 1)]
    assert not any(name.startswith("anchor.") for name in replies[0]["weights"])
    new = method.round(server, state)["weights"]
    for name, w in new.items():
        if name.startswith("anchor."):
            assert torch.equal(w, state["weights"][name])
        else:
            mean = (12 * replies[0]["weights"][name].double() + 17 * replies[1]["weights"][name].double()) / 29
            torch.testing.assert_close(w.double(), mean, rtol=1e-6, atol=1e-7)


def test_the_contrastive_epoch_lowers_the_loss_and_can_be_kept_to_the_head(digits):
    for head_only in (False, True):
        method = methods.FedAnchor(head_only=head_only, temperature=0.5)
        server, _ = labels_at_server(digits, method)
        model, rows = server.model().train(), server.data
        loss = lambda model=model, rows=rows: label_contrastive(model.latent(rows.inputs()), rows.y, 0.5).item()  # noqa: E731
        before, start = model.state(), loss()
        for t in range(5):
            method._contrast(model, rows, 0.03, torch.Generator().manual_seed(t), 20)
        after = model.state()
        moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
        assert moved == ({"anchor"} if head_only else {"features", "anchor"})
        assert loss() < start


@pytest.mark.parametrize(
    "fields",
    [
        dict(client_mixup=True, server_mixup=False),  # the mixups of table 3
        dict(client_mixup=True, server_mixup=True),
        dict(client_mixup=False, server_mixup=False),
        dict(client_mixup=False, server_mixup=True),
        dict(server_strong=False),
        dict(contrastive=False),
    ],
    ids=str,
)
def test_fedanchor_trains_in_turns_by_its_switches(digits, monkeypatch, fields):
    method = methods.FedAnchor(threshold=-1.0, pretrain=3, pretrain_lr=0.2, lr=0.4, epochs=2, server_epochs=2, mix=0.7, **fields)
    server, _ = labels_at_server(digits, method, rounds=2)
    calls = spied(monkeypatch, server)
    method.round(server, method.round(server, method.setup(server)))

    def at_server(lr, epochs):  # an epoch of L_s, one of L_c, in turns
        mix, view = 0.7 if method.server_mixup else 0.0, "strong" if method.server_strong else "weak"
        return epochs * [("L_s", "server", lr, 1, mix, view), *([("L_c", "server", lr)] if method.contrastive else [])]

    at_clients = lambda lr: 2 * [("L_s", "client", lr, 2, 0.7 if method.client_mixup else 0.0, "strong")]  # noqa: E731
    half = cosine(0.4, 1, 2)
    expected = [*at_server(0.2, 3), *at_clients(0.4), *at_server(0.4, 2), *at_clients(half), *at_server(half, 2)]
    assert calls == expected


def test_overhead_of_250_anchors_on_resnet18_is_table_4s(digits):
    """250 anchors of 128 numbers beside 11.17 million: 0.29 %. Labels are sent too, two bytes each."""
    method = methods.FedAnchor(threshold=1.0, pretrain=0, server_epochs=0)
    server, _ = labels_at_server(digits, method, "server:250", rows=2, clients=1, model="resnet18")
    state = method.setup(server)
    method.round(server, state)
    floats = sum(w.numel() for name, w in state["weights"].items() if not name.startswith("anchor.") and w.is_floating_point())
    assert server.notes["anchor_overhead"] == pytest.approx(100 * 250 * (4 * 128 + 2) / (4 * floats), rel=1e-3)
    assert round(server.notes["anchor_overhead"], 2) == 0.29


def test_the_ablation_has_no_anchor_head_and_compares_features(digits):
    method = methods.FedAnchor(contrastive=False)
    server, _ = labels_at_server(digits, method)
    weights = method.setup(server)["weights"]
    assert not any(name.startswith("anchor.") for name in weights)
    z = server.model(weights).eval().features(server.data.inputs())
    torch.testing.assert_close(method.anchors(server, weights, {})["anchors"], F.normalize(z, dim=1).detach())


def test_fedanchor_too_keeps_the_statistics_of_a_static_model(digits):
    method = methods.FedAnchor(epochs=1, pretrain=1)
    server, data = labels_at_server(digits, method, model="cnn", norm="sbn")
    shared = method.shared(method.round(server, method.setup(server)))
    predict, rows = method.predictor(server.model(), shared), data[1].unlabelled.inputs()
    with torch.no_grad():
        torch.testing.assert_close(predict(rows)[:3], predict(rows[:3]), rtol=1e-4, atol=1e-5)
