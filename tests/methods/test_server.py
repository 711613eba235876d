"""Methods with labels at the server: equations against loops, numbers worked by hand, what is sent, and what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.nn import functional as F

import grapevine as gv
from grapevine import methods, report
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import Memory
from grapevine.data.augment import Views
from grapevine.learn import alternate, heads
from grapevine.learn import networks as models
from grapevine.learn.losses import draw_beta, label_contrastive
from grapevine.learn.normalisation import StaticBatchNorm2d
from grapevine.methods import fedanchor, fedcon, mp_ssfl, relevance
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault, Simulation

SERVER_SIDE = ("fedanchor", "semifl", "fedcon")


def federation(digits, method, labels="server:40", rows=12, clients=2, model="mlp", norm=None, rounds=4):
    """A server with labels, and clients that hold the first `rows`, `rows + 5`, … of their rows."""
    split = digits.split(clients=clients, labels=labels, seed=1)
    parts = [
        replace(p, unlabelled=p.unlabelled[: rows + 5 * i], labelled=p.labelled[: rows + 5 * i], labels=p.labels[: rows + 5 * i])
        for i, p in enumerate(split.parts)
    ]
    split = replace(split, parts=tuple(parts))
    source = Experiment(method, split, model=model, norm=norm).models()
    data = {i: split.client(i) for i in range(clients)}
    simulation = Simulation(method, data, source, truth=lambda i: split.client_truth(i)[1])
    return Server(method, range(clients), simulation, source, digits.classes, rounds=rounds, data=split.server_rows()), data


def memory(server, i):
    return Memory(server.transport.store, server.transport.manifests[i])


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def messages(digits, method, labels="server:40", **settings):
    """Every message of two rounds, as (direction, step, decoded payload)."""
    seen = []
    split = digits.split(clients=3, labels=labels, seed=1)
    Experiment(method, split, rounds=2, per_round=2, model="mlp", mode="strict", **settings,
               tap=lambda way, step, client, data: seen.append((way, step, wire.decode(data)))).run()  # fmt: skip
    return seen


def spied(monkeypatch, server):
    """What trains in turns, as it is called, in place of the training: the loss, whose rows, lr, epochs, mix and kind of view."""
    calls = []
    whose = lambda rows: "server" if rows.x is server.data.x and torch.equal(rows.index, server.data.index) else "client"  # noqa: E731

    def descend(method, model, batches, loss, lr, rng):
        seen = torch.cat([fix for fix, _ in batches])
        epochs = len(seen) // len(seen.unique())
        calls.append(("L_s", whose(loss.rows), lr, epochs, loss.mix, "strong" if loss.strong else "weak"))

    def contrast(method, model, rows, lr, draw, batch):
        calls.append(("L_c", whose(rows), lr))

    monkeypatch.setattr(alternate, "descend", descend)
    monkeypatch.setattr(methods.FedAnchor, "_contrast", contrast)
    return calls


def halved(a, b):
    """The uniform mean of two clients' weights."""
    return {name: (a[name].double() + b[name].double()) / 2 for name in a}


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name].double(), b[name].double(), rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", SERVER_SIDE)
def test_a_server_that_lacks_a_class_is_refused(digits, name):
    method = methods.find(name)()
    with pytest.raises(Mistake, match="no labelled row of class '8' and 1 more"):
        method.check(federation(digits, method, "server:40@0-7")[0])
    with pytest.raises(Mistake, match="all of class '3'"):
        method.check(federation(digits, method, "server:20@3")[0])
    with pytest.raises(Mistake, match="needs labels at the server"):
        method.check(federation(digits, method, "clients:100")[0])
    method.check(federation(digits, method)[0])


@pytest.mark.parametrize(("name", "fields", "says"), [
    ("fedanchor", dict(threshold=1.2), "threshold=1.2 cannot work: take -1 to 1, as in --set threshold=0.6"),
    ("fedanchor", dict(temperature=0.0), "temperature=0 cannot work: take 0.003 or more"),
    ("fedanchor", dict(momentum=math.nan), "momentum=nan cannot work: take 0 to 1"),
    ("semifl", dict(threshold=-0.1), "threshold=-0.1 cannot work: take 0 to 1"),
    ("semifl", dict(global_momentum=2.0), "global_momentum=2 cannot work: take 0 to 1"),
    ("fedcon", dict(ema=1.5), "ema=1.5 cannot work: take 0 to 1"),
    ("fedcon", dict(epochs=0), "epochs=0 cannot work: take 1 or more"),
    ("mp-ssfl", dict(tau=0.4), "tau=0.4 cannot work: take 0.5 to 1"),
    ("mp-ssfl", dict(upsilon=0.7), "upsilon=0.7 cannot work: take more than 0 and at most 0.693147"),
    ("tuor", dict(benchmark=1.0), "benchmark=1 cannot work: take more than 0 and less than 1"),
    ("rds", dict(window=0), "window=0 cannot work: take 1 or more"),
    ("mp-ssfl", dict(server_epochs=0), "server_epochs=0 cannot work: take 1 or more"),
    ("mp-ssfl", dict(server_lr=math.nan), "server_lr=nan cannot work: take more than 0"),
    ("fedanchor", dict(clip=-1.0), "clip=-1 cannot work: take more than 0"),
    ("semifl", dict(lr=0.0), "lr=0 cannot work: take more than 0"),
    ("tuor", dict(server_lr=-1.0), "server_lr=-1 cannot work: take more than 0"),
    ("server-only", dict(lr=-1.0), "lr=-1 cannot work: take more than 0"),
    ("alone", dict(batch=0), "batch=0 cannot work: take 1 or more"),
])  # fmt: skip
def test_settings_out_of_range_are_refused(name, fields, says):
    with pytest.raises(Mistake, match=f"^{name}: {says}"):
        methods.find(name)(**fields)


def test_the_bound_with_server_training_needs_a_server(digits):
    method = methods.Supervised(server_epochs=1)
    with pytest.raises(Mistake, match="need labels at the server"):
        method.check(federation(digits, method, "clients:100")[0])


@pytest.mark.parametrize("method", [methods.MPSSFL(server_lr=1e12), methods.Tuor(server_lr=1e12)], ids=lambda m: m.name)
def test_a_classifier_of_the_server_that_diverged_is_noticed(digits, method):
    with pytest.raises(Mistake, match="the server's model diverged"):
        method.setup(federation(digits, method, "server:40,clients:60")[0])


@pytest.mark.parametrize(
    ("method", "name"), [(methods.MPSSFL(), "decide"), (methods.Tuor(), "measure"), (methods.Tuor(), "select")]
)
def test_a_client_that_missed_the_decision_makes_it_when_it_is_chosen(digits, method, name, tmp_path):
    split = digits.split(clients=3, labels="server:100,clients:90", seed=2)
    lost = (Fault(1, name, round=0),)
    Experiment(method, split, model="linear", rounds=2, per_round=3, seed=1, faults=lost, out=tmp_path / "r").run()
    lines = [json.loads(line) for line in (tmp_path / "r" / "messages.jsonl").read_text().splitlines()]
    answers = {(line["step"], line["round"]): line["messages"] for line in lines if line["direction"] == "up"}
    assert answers[name, 0] == 2 and answers[name, 1] == 1
    assert answers["train", 0] == 2 and answers["train", 1] == 3


# ---------------------------------------------------------------- fix and mix


@pytest.mark.parametrize("strong", [True, False])
def test_fix_mix_loss_is_equations_7_to_10(digits, strong):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    model = models.build("mlp", (1, 8, 8), 10, seed=2)
    labels = torch.arange(len(rows)) % 10
    fix, other = torch.tensor([3, 1, 4]), torch.tensor([9, 9, 2])
    views, draw = Views(rows), torch.Generator().manual_seed(7)
    loss = alternate.FixMix(model, rows, labels, draw, 0.5, 0.75, strong)((fix, other))

    draw = torch.Generator().manual_seed(7)
    x = (views.strong if strong else views.weak)(fix, draw)
    b, a = views.weak(other, draw), views.weak(fix, draw)
    share = draw_beta(0.75, 0.75, draw)
    expected = 0.0
    for i in range(3):
        log_p = lambda row: model(row[None])[0].double().log_softmax(0)  # noqa: E731
        expected -= log_p(x[i])[labels[fix[i]]] / 3
        mixed = log_p(share * a[i] + (1 - share) * b[i])
        expected -= 0.5 * (share * mixed[labels[fix[i]]] + (1 - share) * mixed[labels[other[i]]]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_fix_mix_takes_a_step_per_batch_of_the_fix_set(digits):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    model, method = models.build("mlp", (1, 8, 8), 10), methods.SemiFL()
    labels, fix, draw = torch.zeros(len(rows), dtype=torch.int64), torch.arange(23), torch.Generator().manual_seed(0)
    loss = alternate.FixMix(model, rows, labels, draw)
    pairs = list(loss.batches(fix, 10, 2))
    assert [(len(a), len(b)) for a, b in pairs] == 2 * [(10, 10), (10, 10), (3, 3)]
    assert sorted(torch.cat([a for a, _ in pairs[:3]]).tolist()) == list(range(23))
    assert alternate.descend(method, model, pairs, loss, 0.1, draw) == 6
    before = model.state()
    assert alternate.descend(method, model, loss.batches(fix[:0], 10, 2), loss, 0.1, draw) == 0
    assert same(before, model.state())


def test_schedule_and_batch_size_at_the_server():
    assert [alternate.annealed(0.3, t, 4) for t in (0, 2, 4)] == pytest.approx([0.3, 0.15, 0.0])
    assert [alternate.server_batch(*it) for it in ((0, 1000), (0, 1001), (7, 5000))] == [10, 250, 7]


# ---------------------------------------------------------------- FedAnchor


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
    server, data = federation(digits, full)
    weights, rows = server.model().state(), data[0].unlabelled
    a, b = full.anchors(server, weights, {}), compact.anchors(server, weights, {})
    assert a["anchors"].shape == (40, 128) and b["anchors"].shape == (10, 128)
    model, draw = server.model(weights).eval(), torch.Generator()
    torch.testing.assert_close(full.similarities(model, rows, **a, classes=10, draw=draw),
                               compact.similarities(model, rows, **b, classes=10, draw=draw))  # fmt: skip


def test_ensembles_average_similarities_of_weak_views(digits):
    method = methods.FedAnchor(ensembles=3)
    server, data = federation(digits, method)
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
    server, _ = federation(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and server.notes["qualified"] == 0


def test_average_is_by_rows_and_the_anchor_head_stays(digits):
    method = methods.FedAnchor(threshold=-1.0, pretrain=0, server_epochs=0, epochs=1)
    server, data = federation(digits, method)
    state = method.setup(server)
    sent = dict(weights=state["weights"], statistics={}, lr=method.lr, round=0, **method.anchors(server, state["weights"], {}))
    replies = server.ask(method.train, **sent)
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
        server, _ = federation(digits, method)
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
    server, _ = federation(digits, method, rounds=2)
    calls = spied(monkeypatch, server)
    method.round(server, method.round(server, method.setup(server)))

    def at_server(lr, epochs):  # an epoch of L_s, one of L_c, in turns
        mix, view = 0.7 if method.server_mixup else 0.0, "strong" if method.server_strong else "weak"
        return epochs * [("L_s", "server", lr, 1, mix, view), *([("L_c", "server", lr)] if method.contrastive else [])]

    at_clients = lambda lr: 2 * [("L_s", "client", lr, 2, 0.7 if method.client_mixup else 0.0, "strong")]  # noqa: E731
    half = alternate.annealed(0.4, 1, 2)
    expected = [*at_server(0.2, 3), *at_clients(0.4), *at_server(0.4, 2), *at_clients(half), *at_server(half, 2)]
    assert calls == expected


def test_overhead_of_250_anchors_on_resnet18_is_table_4s(digits):
    """250 anchors of 128 numbers beside 11.17 million: 0.29 %. Labels are sent too, two bytes each."""
    method = methods.FedAnchor(threshold=1.0, pretrain=0, server_epochs=0)
    server, _ = federation(digits, method, "server:250", rows=2, clients=1, model="resnet18")
    state = method.setup(server)
    method.round(server, state)
    floats = sum(w.numel() for name, w in state["weights"].items() if not name.startswith("anchor.") and w.is_floating_point())
    assert server.notes["anchor_overhead"] == pytest.approx(100 * 250 * (4 * 128 + 2) / (4 * floats), rel=1e-3)
    assert round(server.notes["anchor_overhead"], 2) == 0.29


def test_the_ablation_has_no_anchor_head_and_compares_features(digits):
    method = methods.FedAnchor(contrastive=False)
    server, _ = federation(digits, method)
    weights = method.setup(server)["weights"]
    assert not any(name.startswith("anchor.") for name in weights)
    z = server.model(weights).eval().features(server.data.inputs())
    torch.testing.assert_close(method.anchors(server, weights, {})["anchors"], F.normalize(z, dim=1).detach())


def test_second_heads_repeat_and_depend_on_the_seed():
    build = lambda seed: heads.TwoHeads(models.build("mlp", (1, 8, 8), 10, seed=seed), 128).anchor.weight  # noqa: E731
    assert torch.equal(build(1), build(1)) and not torch.equal(build(1), build(2))
    assert build(1).shape == (128, 64) and build(1).abs().max() <= 1 / 8


# ---------------------------------------------------------------- SemiFL


def test_global_momentum_by_hand(digits):
    method = methods.SemiFL(global_momentum=0.5)
    server, _ = federation(digits, method, model="linear")
    w = {name: torch.full_like(v, 10.0) for name, v in server.model().state().items()}
    mean = lambda value: {name: torch.full_like(v, value) for name, v in w.items()}  # noqa: E731
    w, v = method._aggregate(server, w, {}, mean(8.0))  # v = 10 − 8 = 2, w = 8
    assert all((x == 8).all() for x in w.values()) and all((x == 2).all() for x in v.values())
    w, v = method._aggregate(server, w, v, mean(7.0))  # v = 0.5 · 2 + (8 − 7) = 2, w = 6
    assert all((x == 6).all() for x in w.values()) and all((x == 2).all() for x in v.values())


def test_semifl_trains_on_what_reaches_the_threshold(digits):
    method = methods.SemiFL(threshold=1.0, server_epochs=0)
    server, _ = federation(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and new["velocity"] == {} and server.notes["qualified"] == 0
    method = methods.SemiFL(threshold=0.0, server_epochs=0, epochs=1)
    server, _ = federation(digits, method)
    new = method.round(server, state)
    assert server.notes["qualified"] == (12 + 17) / 2 and not same(state["weights"], new["weights"])


@pytest.mark.parametrize(("client_mixup", "server_mixup"), [(True, False), (True, True), (False, False), (False, True)])
def test_semifl_trains_in_turns_by_its_switches(digits, monkeypatch, client_mixup, server_mixup):
    method = methods.SemiFL(threshold=0.0, pretrain=3, lr=0.4, epochs=2, server_epochs=4, mix=0.7, client_mixup=client_mixup,
                            server_mixup=server_mixup)  # fmt: skip
    server, _ = federation(digits, method, rounds=2)
    calls = spied(monkeypatch, server)
    method.round(server, method.round(server, method.setup(server)))
    at_server = lambda lr, epochs: [("L_s", "server", lr, epochs, 0.7 if server_mixup else 0.0, "weak")]  # noqa: E731
    at_clients = lambda lr: 2 * [("L_s", "client", lr, 2, 0.7 if client_mixup else 0.0, "strong")]  # noqa: E731
    half = alternate.annealed(0.4, 1, 2)
    assert calls == [*at_server(0.4, 3), *at_clients(0.4), *at_server(0.4, 4), *at_clients(half), *at_server(half, 4)]


def test_semifl_averages_clients_of_12_and_17_rows_uniformly(digits):
    method = methods.SemiFL(threshold=0.0, epochs=1, server_epochs=0, global_momentum=0.0)
    server, _ = federation(digits, method)
    state = method.setup(server)
    replies = server.ask(method.train, weights=state["weights"], statistics={}, lr=method.lr, round=0)
    assert [replies[i]["qualified"] for i in (0, 1)] == [12, 17]
    close(method.round(server, state)["weights"], halved(replies[0]["weights"], replies[1]["weights"]))


def test_statistics_are_those_of_all_rows_and_make_predictions_independent_of_the_batch(digits):
    method = methods.SemiFL(threshold=0.0, epochs=1, server_epochs=1)
    server, data = federation(digits, method, model="cnn", norm="bn")
    new = method.round(server, method.setup(server))
    shared = method.shared(new)
    first = next(name for name in shared["statistics"] if name.endswith(".mean")).removesuffix(".mean")
    model = server.model(shared["weights"])
    assert isinstance(model.get_submodule(first), StaticBatchNorm2d)  # `bn` was replaced
    inputs = []
    model.get_submodule(first).register_forward_pre_hook(lambda layer, x: inputs.append(x[0]))
    with torch.no_grad():
        for rows in (server.data, data[0].unlabelled, data[1].unlabelled):
            model(rows.inputs())
    x = torch.cat(inputs).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(shared["statistics"][f"{first}.mean"].double(), x.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shared["statistics"][f"{first}.var"].double(), x.var(1), rtol=1e-4, atol=1e-5)
    predict = method.predictor(server.model(), shared)
    rows = data[1].unlabelled.inputs()
    with torch.no_grad():
        torch.testing.assert_close(predict(rows)[:3], predict(rows[:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "norm"), [("mlp", None), ("cnn", "sbn")])
@pytest.mark.parametrize("method", [methods.SemiFL(epochs=1, server_epochs=1), methods.FedAnchor(epochs=1, pretrain=1)])
def test_a_saved_model_predicts_the_same(digits, tmp_path, method, model, norm):
    split = digits.split(clients=3, labels="server:40", seed=1)
    run = Experiment(method, split, model=model, norm=norm, rounds=1, per_round=1, out=tmp_path / "run").run()
    X = digits.x[:30].numpy()
    np.testing.assert_array_equal(run.model.predict_proba(X), gv.load(tmp_path / "run").predict_proba(X))


def test_only_a_model_with_static_layers_asks_for_statistics(digits):
    steps = {step for _, step, _ in messages(digits, methods.SemiFL(epochs=1, server_epochs=1))}
    assert steps == {"train"}


def test_fedanchor_too_keeps_the_statistics_of_a_static_model(digits):
    method = methods.FedAnchor(epochs=1, pretrain=1)
    server, data = federation(digits, method, model="cnn", norm="sbn")
    shared = method.shared(method.round(server, method.setup(server)))
    predict, rows = method.predictor(server.model(), shared), data[1].unlabelled.inputs()
    with torch.no_grad():
        torch.testing.assert_close(predict(rows)[:3], predict(rows[:3]), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- FedCon


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
    server, _ = federation(digits, method)
    backbone = fedcon.part(method.setup(server)["weights"], "features.")
    target = backbone
    for t in range(2):  # one step a round: target ← 0.9 target + 0.1 backbone, and the backbone starts again
        reply = server.ask(method.train, to=[1], backbone=backbone, round=t)[1]
        target = {name: 0.9 * target[name] + 0.1 * reply["weights"][name] for name in target}
        kept = memory(server, 1)["byol"]
        for name in target:
            torch.testing.assert_close(kept["target"][name], target[name])
        assert kept["projector"].keys() == fedcon.part(server.model().state(), "projector.").keys()


def test_fedcons_server_trains_first_and_after_a_uniform_average(digits, monkeypatch):
    method = methods.FedCon(epochs=1, hidden=16)
    server, data = federation(digits, method)
    trained = []

    def at_server(self, server, weights, t, name):  # in place of the training
        trained.append((t, name))
        return {name: w + 0.25 for name, w in weights.items()}

    monkeypatch.setattr(methods.FedCon, "_at_server", at_server)
    state = method.setup(server)
    first = at_server(method, server, state["weights"], 0, "by hand")
    replies = server.ask(method.train, backbone=fedcon.part(first, "features."), round=0)
    assert [len(data[i].unlabelled) for i in replies] == [12, 17]
    server.transport.manifests.clear()  # projector and target from the beginning again
    trained.clear()
    new = method.round(server, state)
    mean = {**first, **halved(replies[0]["weights"], replies[1]["weights"])}
    close(new["weights"], {name: w + 0.25 for name, w in mean.items()})
    method.round(server, new)
    assert trained == [(0, "first"), (0, "train"), (1, "train")]


# ---------------------------------------------------------------- MP-SSFL


def test_decisions_are_table_1(digits):
    p = torch.tensor([
        [0.97, 0.02, 0.01, 0.0],  # case 1: loss high, confidence high
        [0.50, 0.40, 0.10, 0.0],  # case 2: loss high, confidence low
        [0.97, 0.02, 0.01, 0.0],  # case 3: loss low, confidence high
        [0.75, 0.20, 0.05, 0.0],  # case 4: loss low, confidence low
        [0.01, 0.98, 0.01, 0.0],  # unlabelled and sure
        [0.40, 0.30, 0.30, 0.0],  # unlabelled and not
        [0.02, 0.02, 0.96, 0.0],  # a class that the server does not know (equation 2)
        [0.40, 0.30, 0.30, 0.0],  # the same, not sure
        [0.05, 0.95, 0.00, 0.0],  # exactly τ is sure (equation 7)
    ])  # fmt: skip
    y = torch.tensor([1, 1, 0, 0, -1, -1, 3, 3, 0])
    label, action, loss, confidence = mp_ssfl.decide(p, y, 0.95, 0.5)
    kept, mended, aside = mp_ssfl.KEPT, mp_ssfl.MENDED, mp_ssfl.ASIDE
    assert action.tolist() == [mended, aside, kept, aside, mended, aside, mended, aside, mended]
    assert label.tolist() == [0, 1, 0, 0, 1, -1, 2, 3, 1]
    assert loss[:4].tolist() == pytest.approx([-math.log(q) for q in (0.02, 0.4, 0.97, 0.75)])
    assert loss[4:6].isnan().all() and (loss[6:8] == math.inf).all()
    torch.testing.assert_close(confidence, p.max(1).values)


def test_a_loss_equal_to_upsilon_is_low():
    p = torch.tensor([[0.96, 0.04]])
    y, exactly = torch.tensor([0]), (-p[0, 0].log()).item()  # equations 7 and 9: high is above Υ
    assert mp_ssfl.decide(p, y, 0.95, exactly)[1].item() == mp_ssfl.KEPT


def test_the_servers_unknown_classes_are_never_predicted(digits):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    known = torch.arange(10) < 8
    p = mp_ssfl.probabilities(models.build("mlp", (1, 8, 8), 10), rows, known)
    assert (p[:, 8:] == 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(len(rows)))


def test_decisions_stay_at_the_client_unless_counts_are_asked_for(digits):
    labels = "server:40,clients:60"
    quiet = messages(digits, methods.MPSSFL(server_epochs=2, epochs=1), labels)
    assert [payload for way, step, payload in quiet if (way, step) == ("up", "decide")] == [{}] * 3
    told = messages(digits, methods.MPSSFL(server_epochs=2, epochs=1, counts=True), labels)
    counts = [payload["counts"] for way, step, payload in told if (way, step) == ("up", "decide")]
    assert len(counts) == 3 and all(set(c) == {"kept", "mended", "set aside"} for c in counts)


def test_a_client_with_nothing_relevant_is_left_out_and_counted(digits):
    method = methods.MPSSFL(tau=1.0, server_epochs=1, epochs=1)
    server, _ = federation(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and server.notes["nothing_relevant"] == 2


def test_clients_with_nothing_relevant_are_remembered_and_named_in_the_report(digits, tmp_path, monkeypatch):
    """They were forgotten when a later round of the same evaluation chose others."""
    monkeypatch.setattr(Server, "sample", lambda server, round: [2 * round])
    split = digits.split(clients=3, labels="server:40,clients:60", seed=1)
    method = methods.MPSSFL(tau=1.0, server_epochs=1, epochs=1)
    run = Experiment(method, split, rounds=2, evaluate_every=2, model="linear", out=tmp_path / "run").run()
    assert run.history[-1]["nothing_relevant"] == 2 and run.history[-1]["nothing_relevant_at"] == [0, 2]
    html = report.write(tmp_path / "run").read_text(encoding="utf-8")
    assert "Nothing relevant at client 0, client 2: every row was set aside, and the run goes on without them." in html


def test_what_n_tells_is_said_by_each_method(digits):
    told = lambda method: method.reveals("train", "n")  # noqa: E731
    for method in (methods.MPSSFL(), methods.SemiFL(), methods.FedCon()):  # 1 or 0, never how many rows
        assert told(method).startswith("1, or 0 if")
    assert told(methods.FedAnchor()).startswith("how many unlabelled rows this party has, used or not")
    assert told(methods.Tuor()) == "how many of this party's rows were used"
    assert "this party has, labelled and not" in told(methods.find("fedmatch")())
    assert methods.find("xclp")().reveals("contrast", "n").startswith("1, or 0 if")


def test_mp_ssfl_averages_clients_of_unlike_numbers_of_relevant_rows_uniformly(digits):
    method = methods.MPSSFL(tau=0.5, server_epochs=20, epochs=1)
    server, _ = federation(digits, method, "server:100,clients:200")
    state = method.setup(server)
    relevant = [int((memory(server, i)["decided"]["action"] != mp_ssfl.ASIDE).sum()) for i in (0, 1)]
    assert 0 < relevant[0] < relevant[1]
    replies = server.ask(method.train, weights=state["weights"], round=0)
    close(method.round(server, state)["weights"], halved(replies[0]["weights"], replies[1]["weights"]))


def test_mend_false_sets_wrong_labels_aside_and_still_labels_the_unlabelled(digits):
    found = {}
    for mend in (True, False):
        method = methods.MPSSFL(mend=mend, tau=0.5, server_epochs=20)
        server, data = federation(digits, method, "server:200,clients:200", rows=40)
        data[0] = replace(data[0], labelled=replace(data[0].labelled, y=(data[0].labelled.y + 1) % 10))  # every label is wrong
        method.setup(server)
        found[mend] = memory(server, 0)["decided"]["action"]
    n = len(data[0].labelled)
    wrong = found[True][:n] == mp_ssfl.MENDED
    assert wrong.sum() > n / 2 and (found[False][:n][wrong] == mp_ssfl.ASIDE).all()
    assert torch.equal(found[True][n:], found[False][n:]) and (found[False][n:] == mp_ssfl.MENDED).any()


# ---------------------------------------------------------------- Tuor


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_is_where_the_ks_distance_is_least(seed):
    draw = np.random.default_rng(seed)
    V = draw.exponential(1.0, 40).round(2)  # rounded: ties
    P = np.concatenate([draw.exponential(1.0, 60), draw.normal(8, 1, 40)]).round(2)
    distance = {value: ks_2samp(V, P[P <= value]).statistic for value in np.unique(P)}
    found = relevance.loss_threshold(V, P)
    assert distance[found] == pytest.approx(min(distance.values()), abs=1e-12)
    assert relevance.loss_threshold(V, P, candidates=5) in distance


def test_the_threshold_parts_near_losses_from_far_ones():
    """Letting in a share f of the far losses costs about f/(1 + f) of distance: no more than the two samples' own noise."""
    draw = np.random.default_rng(0)
    near, far = draw.exponential(1.0, 3000), draw.normal(20, 1, 3000)
    threshold = relevance.loss_threshold(draw.exponential(1.0, 2000), np.concatenate([near, far]))
    noise = 2 * 1.36 * math.sqrt(1 / 2000 + 1 / 3000)  # twice the 5 % point of the KS distance
    assert (near <= threshold).mean() > 1 - noise and (far <= threshold).mean() < noise


def test_tuor_reveals_losses_and_keeps_rows_up_to_the_threshold(digits):
    method = methods.Tuor(server_epochs=3)
    server, data = federation(digits, method, "server:40,clients:60")
    benchmark = server.model().state()
    reply = server.ask(method.measure, to=[0], benchmark=benchmark)[0]["losses"]
    rows = data[0].labelled
    with torch.no_grad():
        own = F.cross_entropy(server.model(benchmark).eval()(rows.inputs()), rows.y, reduction="none")
    torch.testing.assert_close(reply, own.sort().values)
    middle = reply.median().item()
    server.ask(method.select, to=[0], threshold=middle)
    assert memory(server, 0)["relevant"].tolist() == [loss <= middle for loss in memory(server, 0)["losses"].tolist()]
    assert server.ask(method.train, to=[0], weights=benchmark, round=0)[0]["n"] == (len(rows) + 1) // 2
    assert "loss" in method.title


def test_tuor_refuses_a_server_too_small_to_divide(digits):
    method = methods.Tuor(benchmark=0.99)
    with pytest.raises(Mistake, match="40 rows cannot be divided"):
        method.check(federation(digits, method, "server:40,clients:60")[0])


# ---------------------------------------------------------------- RDS


def test_a_reward_moves_the_selector_along_the_score(digits):
    method = methods.RDS(selector_lr=0.2, epochs=1)
    server, data = federation(digits, method, "server:40,clients:60")
    n = server.ask(method.train, to=[0], weights=server.model().state(), round=0)[0]["n"]
    N = len(data[0].labelled)
    before = memory(server, 0)["selector"]
    assert 0 < n < N and (memory(server, 0)["relevant"]).all()  # relevance begins at one half
    server.ask(method.reward, each={0: dict(advantage=-1.5)})
    after = memory(server, 0)["selector"]
    # ∂ log π / ∂ bias = Σ (picked − g) = n − N/2; the first layer has no gradient while the second is zero.
    assert after["2.bias"].item() == pytest.approx(0.2 * -1.5 * (n - N / 2), rel=1e-5)
    assert torch.equal(before["0.weight"], after["0.weight"]) and not torch.equal(before["2.weight"], after["2.weight"])


def test_rewards_are_falls_of_the_servers_loss_less_their_moving_average(digits):
    method = methods.RDS(epochs=1, window=4)
    server, data = federation(digits, method, "server:40,clients:60")
    state = method.setup(server)
    replies = server.ask(method.train, weights=state["weights"], round=0)
    X, y = server.data.inputs(), server.data.y

    def loss(weights):
        with torch.no_grad():
            return F.cross_entropy(server.model(weights).eval()(X), y).item()

    rewards = [loss(state["weights"]) - loss(reply["weights"]) for reply in replies.values()]
    server.transport.manifests.clear()  # the same draw again, from the beginning
    new = method.round(server, state)
    assert server.notes["reward"] == pytest.approx(sum(rewards) / 2, rel=1e-4)
    assert new["baseline"] == pytest.approx(sum(rewards) / 2 / 4, rel=1e-4)
    for i, reward in enumerate(rewards):  # the first baseline is 0
        moved = method.selector_lr * reward * (replies[i]["n"] - len(data[i].labelled) / 2)
        assert memory(server, i)["selector"]["2.bias"].item() == pytest.approx(moved, rel=1e-3)


# ---------------------------------------------------------------- the upper bound with a server that trains


def test_the_bound_pretrains_and_trains_in_turns(digits):
    method = methods.Supervised(lr=0.3, epochs=2, batch=100, server_epochs=3, server_batch=100, pretrain=4)
    server, data = federation(digits, method, "server:40,clients:60", model="linear")
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
