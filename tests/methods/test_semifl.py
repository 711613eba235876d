"""SemiFL: global momentum by hand, static statistics, and what trains in turns."""

import numpy as np
import pytest
import torch
from federation import close, each_reply, halved, labels_at_server, memory, messages, same, spied

import grapevine as gv
from grapevine import methods
from grapevine.data.augment import Views
from grapevine.learn import alternate
from grapevine.learn.normalisation import StaticBatchNorm2d
from grapevine.learn.schedules import cosine
from grapevine.run.experiment import Experiment


def test_global_momentum_by_hand(digits):
    method = methods.SemiFL()
    server, _ = labels_at_server(digits, method, model="linear")
    w = {name: torch.full_like(v, 10.0) for name, v in server.model().state().items()}
    mean = lambda value: {name: torch.full_like(v, value) for name, v in w.items()}  # noqa: E731
    w, v = alternate.with_momentum(server, w, {}, mean(8.0), 0.5)  # v = 10 − 8 = 2, w = 8
    assert all((x == 8).all() for x in w.values()) and all((x == 2).all() for x in v.values())
    w, v = alternate.with_momentum(server, w, v, mean(7.0), 0.5)  # v = 0.5 · 2 + (8 − 7) = 2, w = 6
    assert all((x == 6).all() for x in w.values()) and all((x == 2).all() for x in v.values())


def test_semifl_trains_on_what_reaches_the_threshold(digits):
    method = methods.SemiFL(threshold=1.0, server_epochs=0)
    server, _ = labels_at_server(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and new["velocity"] == {} and server.notes["qualified"] == 0
    method = methods.SemiFL(threshold=0.0, server_epochs=0, epochs=1)
    server, _ = labels_at_server(digits, method)
    new = method.round(server, state)
    assert server.notes["qualified"] == (12 + 17) / 2 and not same(state["weights"], new["weights"])


@pytest.mark.parametrize(("client_mixup", "server_mixup"), [(True, False), (True, True), (False, False), (False, True)])
def test_semifl_trains_in_turns_by_its_switches(digits, monkeypatch, client_mixup, server_mixup):
    method = methods.SemiFL(threshold=0.0, pretrain=3, lr=0.4, epochs=2, server_epochs=4, mix=0.7, client_mixup=client_mixup,
                            server_mixup=server_mixup)  # fmt: skip
    server, _ = labels_at_server(digits, method, rounds=2)
    calls = spied(monkeypatch, server)
    method.round(server, method.round(server, method.setup(server)))
    at_server = lambda lr, epochs: [("L_s", "server", lr, epochs, 0.7 if server_mixup else 0.0, "weak")]  # noqa: E731
    at_clients = lambda lr: 2 * [("L_s", "client", lr, 2, 0.7 if client_mixup else 0.0, "strong")]  # noqa: E731
    half = cosine(0.4, 1, 2)
    assert calls == [*at_server(0.4, 3), *at_clients(0.4), *at_server(0.4, 4), *at_clients(half), *at_server(half, 4)]


@pytest.mark.parametrize("keep", [True, False])
def test_momentum_goes_on_between_rounds_when_it_is_kept(digits, keep):
    """The server alone, for two rounds: one optimiser of torch's that lasts, or a new one in each."""
    method = methods.SemiFL(threshold=1.0, server_epochs=2, keep_momentum=keep)
    server, _ = labels_at_server(digits, method, rounds=3)
    state, rows = method.setup(server), server.data
    model = server.model(state["weights"]).train()
    optimiser = None
    for t in range(2):
        state = method.round(server, state)
        lr = cosine(method.lr, t, 3)
        if optimiser is None or not keep:
            optimiser = torch.optim.SGD(model.parameters(), lr, 0.9, weight_decay=5e-4, nesterov=True)
        optimiser.param_groups[0]["lr"] = lr
        loss = alternate.FixMix(model, rows, rows.y, server.rng("train", t), 0.0, strong=False)
        for batch in loss.batches(torch.arange(len(rows)), 10, 2):
            optimiser.zero_grad()
            loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        close(state["weights"], model.state(), rtol=1e-6, atol=1e-7)


def test_clients_keep_their_own_momentum(digits):
    method = methods.SemiFL(threshold=0.0, epochs=1, keep_momentum=True)
    server, _ = labels_at_server(digits, method)
    method.round(server, method.setup(server))
    held = [memory(server, i)["momentum"] for i in (0, 1)]
    assert all(set(each["head.weight"]) == {"momentum_buffer"} for each in held)
    assert not torch.equal(held[0]["head.weight"]["momentum_buffer"], held[1]["head.weight"]["momentum_buffer"])


def test_views_of_semifl_are_taken_when_asked_for(digits, monkeypatch):
    calls = []
    for name in ("strong", "semifl"):
        plain = getattr(Views, name)
        monkeypatch.setattr(Views, name, lambda self, at, rng, name=name, plain=plain: calls.append(name) or plain(self, at, rng))
    for views in ("fixmatch", "semifl"):
        method = methods.SemiFL(threshold=0.0, epochs=1, server_epochs=1, views=views)
        server, _ = labels_at_server(digits, method)
        method.round(server, method.setup(server))
        assert set(calls) == {"semifl" if views == "semifl" else "strong"}
        calls.clear()


def test_semifl_averages_clients_of_12_and_17_rows_uniformly(digits):
    method = methods.SemiFL(threshold=0.0, epochs=1, server_epochs=0, global_momentum=0.0)
    server, _ = labels_at_server(digits, method)
    state = method.setup(server)
    replies = each_reply(server, method.train, weights=state["weights"], statistics={}, lr=method.lr, round=0)
    assert [replies[i]["qualified"] for i in (0, 1)] == [12, 17]
    close(method.round(server, state)["weights"], halved(replies[0]["weights"], replies[1]["weights"]), rtol=1e-6, atol=1e-7)


def test_statistics_are_those_of_all_rows_and_make_predictions_independent_of_the_batch(digits):
    method = methods.SemiFL(threshold=0.0, epochs=1, server_epochs=1)
    server, data = labels_at_server(digits, method, model="cnn", norm="bn")
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


def test_only_a_model_with_static_layers_asks_for_statistics(digits):
    steps = {step for _, step, _ in messages(digits, methods.SemiFL(epochs=1, server_epochs=1))}
    assert steps == {"train"}


@pytest.mark.parametrize(("model", "norm"), [("mlp", None), ("cnn", "sbn")])
@pytest.mark.parametrize("method", [methods.SemiFL(epochs=1, server_epochs=1), methods.FedAnchor(epochs=1, pretrain=1)])
def test_a_saved_model_predicts_the_same(digits, tmp_path, method, model, norm):
    split = digits.split(clients=3, labels="server:40", seed=1)
    run = Experiment(method, split, model=model, norm=norm, rounds=1, per_round=1, out=tmp_path / "run").run()
    X = digits.x[:30].numpy()
    np.testing.assert_array_equal(run.model.predict_proba(X), gv.load(tmp_path / "run").predict_proba(X))
