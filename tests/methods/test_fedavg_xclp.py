"""FedAvg+XCLP: its bases, dense propagation, what it begins with."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import Federation, close, dense, double, stream, two_streams

from grapevine import core, graph, methods
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.crypto.hamming import Plain
from grapevine.crypto.stream import context, hkdf
from grapevine.data.augment import Views
from grapevine.learn import initial, passes, schedules, train
from grapevine.learn import losses as semi
from grapevine.learn.networks import build
from grapevine.methods import fedavg_xclp
from grapevine.run import driver as experiment
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault


@pytest.mark.parametrize("base", [methods.FedAvg, methods.FedProx, methods.Scaffold], ids=lambda m: m.name)
def test_xclp_stage_1_is_its_base_bit_for_bit(digits, base, monkeypatch):
    monkeypatch.setattr(fedavg_xclp, "cosine", lambda lr, t, T: lr)  # the bases have no schedule
    how = dict(lr=0.2, epochs=2, batch=4) | (dict(mu=0.5) if base is methods.FedProx else {})
    m = methods.XCLP(base=base.name, warmup=0.75, augment=False, weight_decay=0.0, bits=64, hamming=Plain(), **how)
    rows = dict(labelled=(6, 6, 6), unlabelled=(8, 9, 5), model="mlp")  # as many labels each: XCLP averages uniformly
    ours, theirs = Federation(digits, m, **rows), Federation(digits, base(**how), **rows)
    for _ in range(3):
        a, b = ours.round(), theirs.round()
        assert wire.encode(a["weights"]) == wire.encode(b["weights"])
        if base is methods.Scaffold:
            assert wire.encode(a["c"]) == wire.encode(b["c"]) and any(w.any() for w in a["c"].values())


def test_labelled_only_can_be_trained_as_stage_1_bit_for_bit(digits):
    """Weight decay, cosine and augmentation: with them, FedAvg is what XCLP's first stage is."""
    how = dict(lr=0.2, epochs=2, batch=4, weight_decay=0.01, augment=True)
    m = methods.XCLP(warmup=0.75, bits=64, hamming=Plain(), **how)
    rows = dict(labelled=(6, 6, 6), unlabelled=(8, 9, 5), model="mlp")
    ours = Federation(digits, m, **rows)  # four rounds, three of them in stage 1
    theirs = Federation(digits, methods.FedAvg(schedule="cosine", **how), rounds=3, **rows)
    for _ in range(3):
        assert wire.encode(ours.round()["weights"]) == wire.encode(theirs.round()["weights"])


@pytest.mark.parametrize("preset, alpha", [("default", 0.9), ("paper", 0.99), ("code", 0.99)])
def test_xclp_labels_and_class_weights_are_those_of_the_dense_version(digits, preset, alpha):
    """With `preset=paper` α is the paper's, and all labels weigh the same. The default, which does neither, was named so."""
    bits, sent, divided = 512, [], preset != "paper"
    m = methods.XCLP(bits=bits, neighbours=4, warmup=0.0, epochs=1, preset=preset, hamming=Plain())
    assert m.xclp.alpha == alpha and replace(m, alpha=0.5).xclp.alpha == 0.5
    tap = lambda direction, step, id, data: sent.append((direction, step, id, wire.decode(data)))  # noqa: E731
    f = Federation(digits, m, labelled=(6, 0, 5), unlabelled=(8, 9, 5), tap=tap)
    weights, C = f.state["weights"], 10
    V = np.concatenate([m.features(f.client(i), weights, 0) for i in range(3)])
    info = context("hyperplanes", session="seed 0")
    planes = graph.hyperplanes(hkdf((0).to_bytes(16, "big", signed=True), info), bits, 64, info, tight_frame=preset == "code")
    b = V @ planes.astype(np.float64).T >= 0
    A = np.cos(np.pi * (b[:, None] != b[None]).sum(2) / bits)
    y = np.concatenate([np.concatenate([d.labelled.y.numpy(), np.full(len(d.unlabelled), -1)]) for d in f.data.values()])
    labels, confidence = dense(V, y, 4, alpha, preset, A, balance=divided)
    f.round()
    at, count = 0, np.zeros(C)
    for i, d in f.data.items():
        rows = slice(at + len(d.labelled), at + len(d.labelled) + len(d.unlabelled))
        at = rows.stop
        every = slice(rows.start - len(d.labelled), rows.stop)  # the maximum is over labelled rows, too, as the authors'
        sure = confidence[rows] / (confidence[every].max() if preset == "code" and len(d.labelled) else 1)
        found = f.memory(i)["pseudo"]
        assert found["labels"].tolist() == labels[rows].tolist()
        np.testing.assert_allclose(found["confidence"], sure, atol=2e-3)
        count += np.bincount(d.labelled.y.numpy(), minlength=C)
    for i in f.data:
        assert np.array_equal(f.memory(i)["label_counts"], count) if divided else "label_counts" not in f.memory(i)
    if preset == "code":
        expected = count.sum() / C / np.maximum(count, 1)
        np.testing.assert_allclose(m.class_weight(f.client(0)), expected, rtol=1e-6)


@pytest.mark.parametrize("augment", [False, True])
def test_preset_code_hashes_weak_views_only_where_training_has_them(digits, augment):
    """With augment=false it hashed weak views all the same."""
    m = methods.XCLP(preset="code", augment=augment, warmup=0.0)
    f = Federation(digits, m, labelled=(6, 5), unlabelled=(8, 9))
    V = m.features(f.client(0), f.state["weights"], 0)
    plain = torch.cat([f.data[0].labelled.inputs(), f.data[0].unlabelled.inputs()]).flatten(1)
    assert np.array_equal(V, plain.double().numpy()) is not augment


def in_the_graph(digits, clients, per_round, **how):
    """Who is in the graph of the first round with how many rows, and who trains."""
    m = methods.XCLP(bits=64, warmup=0.0, hamming=Plain())
    f = Federation(digits, m, labelled=(4,) * clients, unlabelled=(8,) * clients)
    f.server.per_round = per_round
    P = f.server.sample(0)
    return replace(m, **how).present(f.server, f.state, P), P


def test_guests_bring_their_labels_and_as_many_come_as_are_affordable(digits):
    there, P = in_the_graph(digits, 6, 2)
    assert len(there) == 6 and all(n == (12 if id in P else 4) for id, n in there.items())  # all labels; 16 of 24 rows more
    there, P = in_the_graph(digits, 12, 2)
    assert len(there) == 8  # four times those that train
    there, P = in_the_graph(digits, 12, 2, guests="all")
    assert len(there) == 4 and sum(there.values()) == 2 * 24  # twice the rows of those that train
    there, P = in_the_graph(digits, 6, 2, graph_clients=2)
    assert sorted(there) == P
    there, P = in_the_graph(digits, 6, 2, graph_clients=5, guests="all")
    assert len(there) == 5 and set(there.values()) == {12}


@pytest.mark.parametrize("guests", ["labels", "all"])
def test_with_guests_labels_are_those_of_the_graph_they_join(digits, guests):
    bits = 512
    m = methods.XCLP(bits=bits, neighbours=4, alpha=0.9, warmup=0.0, epochs=1, hamming=Plain(), guests=guests, graph_clients=3)
    f = Federation(digits, m, labelled=(6, 4, 5), unlabelled=(8, 9, 5))
    f.server.per_round = 2
    (guest,) = set(f.data) - set(f.server.sample(0, f.data, 2, "labelled"))
    rows = {i: len(d.labelled) if i == guest and guests == "labels" else len(d.labelled) + len(d.unlabelled)
            for i, d in f.data.items()}  # fmt: skip
    V = np.concatenate([m.features(f.client(i), f.state["weights"], 0)[:n] for i, n in rows.items()])
    info = context("hyperplanes", session="seed 0")
    planes = graph.hyperplanes(hkdf((0).to_bytes(16, "big", signed=True), info), bits, 64, info)
    b = V @ planes.astype(np.float64).T >= 0
    y = np.concatenate([np.concatenate([d.labelled.y.numpy(), np.full(len(d.unlabelled), -1)])[: rows[i]]
                        for i, d in f.data.items()])  # fmt: skip
    labels, _ = dense(V, y, 4, 0.9, "paper", np.cos(np.pi * (b[:, None] != b[None]).sum(2) / bits), balance=True)
    f.round()
    at = 0
    for i, d in f.data.items():
        mine = labels[at : at + rows[i]]
        at += rows[i]
        if i == guest:
            assert "pseudo" not in f.memory(i)  # it neither trains nor hears of its rows
        else:
            assert f.memory(i)["pseudo"]["labels"].tolist() == mine[len(d.labelled) :].tolist()


def test_xclp_averages_uniformly_what_two_streams_learn(digits):
    m = methods.XCLP(
        bits=256, neighbours=4, alpha=0.9, warmup=0.0, epochs=2, hamming=Plain(), augment=False, lr=0.2, weight_decay=0.0
    )
    f = Federation(digits, m, labelled=(6, 0, 5), unlabelled=(8, 9, 5))
    start = f.state["weights"]
    after = f.round()["weights"]
    each = []
    for i, d in f.data.items():
        model, found = f.server.model(start), f.memory(i)["pseudo"]
        two_streams(
            model, d.labelled, d.unlabelled, found["labels"], found["confidence"], 0.2, 2, stream(i, "train", 0), augment=False
        )
        each.append(double(model.state()))
    close(after, {name: sum(w[name] for w in each) / 3 for name in after})


@pytest.mark.parametrize("lost", [[Fault(1, "embed", round=1)], [Fault(1, "keys", forever=True), Fault(2, "keys", forever=True)]])
def test_xclp_goes_on_after_a_round_with_too_few_clients(digits, lost):
    split = digits.split(clients=4, labels="clients:80", seed=1)
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain())
    history = Experiment(m, split, model="linear", rounds=4, per_round=2, seed=0, faults=lost).run().history
    assert history[-1]["round"] == 4 and history[-1]["accuracy"] > history[0]["accuracy"] + 0.1


def test_a_round_of_xclp_with_one_client_changes_nothing(digits, caplog):
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain())
    f = Federation(digits, m)
    f.simulation._faults = (Fault(1, "embed", round=f.server.now),)
    before = f.state
    assert f.round() == dict(before, round=1) and "round 1 changes nothing, since only 000000" in caplog.text


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_one_client_trains_on_a_graph_of_three(digits, preset):
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain(), graph_clients=3, preset=preset)
    split = digits.split(clients=4, labels="clients:80", seed=1)
    history = Experiment(m, split, model="linear", rounds=4, per_round=1, seed=0).run().history
    assert history[-1]["accuracy"] > history[0]["accuracy"] + 0.1


XCLP_SMALL = dict(bits=128, neighbours=4, alpha=0.9, epochs=1, hamming=Plain())


def contrast(model, head, rows, lr, epochs, rng, batch, weight_decay=0.0):
    optimiser = torch.optim.SGD([*model.features.parameters(), *head.parameters()], lr, 0.9, weight_decay=weight_decay)
    return train(model, passes(len(rows), batch, epochs, rng), initial.simclr(model, head, rows, rng, 0.5), optimiser, rng)


def test_contrastive_first_stage_averages_features_and_leaves_head_and_labels_alone(digits):
    m = methods.XCLP(init="contrastive", warmup=0.5, lr=0.05, batch=2, **XCLP_SMALL)
    f = Federation(digits, m, labelled=(6, 4), unlabelled=(8, 9), model="mlp")
    start, projector = f.state["weights"], f.state["projector"]
    state = f.round()
    lr, each, heads = schedules.cosine(0.05, 0, 2), [], []
    for i, d in f.data.items():
        model, head = f.server.model(start), initial.projector(64, torch.Generator())
        head.load_state_dict(projector)
        contrast(model, head, d.unlabelled, lr, 1, stream(i, "contrast", 0), 4, m.weight_decay)
        each.append(double(model.state()))
        heads.append(double(head.state_dict()))
    for name, value in state["weights"].items():
        if name.startswith("head."):
            assert torch.equal(value, start[name])
        else:
            assert not torch.equal(value, start[name])
            torch.testing.assert_close(value.double(), (each[0][name] + each[1][name]) / 2)
    close(state["projector"], {name: (heads[0][name] + heads[1][name]) / 2 for name in heads[0]})
    f.round()
    f.server.account.drain()
    f.round()
    steps = {line["step"] for line in f.server.account.drain()}
    assert steps == {"embed", "train"}  # the first stage is over


def test_contrast_brings_views_together(digits):
    rows = digits.split(clients=2, labels="clients:60", seed=1).client(0).unlabelled.take(torch.arange(300))
    model = build("cnn", tuple(rows.inputs(slice(0, 1)).shape[1:]), 10)
    head = initial.projector(model.features_dim, torch.Generator())
    views = [Views(rows).strong(torch.arange(100), torch.Generator().manual_seed(i)) for i in (1, 2)]
    loss = lambda: semi.nt_xent(*(head(model.features(x)) for x in views), 0.5).item()  # noqa: E731
    before = loss()
    assert contrast(model, head, rows, 0.05, 20, torch.Generator(), 100) == 60
    assert loss() < before - 0.05
    few = rows.take(torch.arange(11))
    assert contrast(model, head, few, 0.05, 3, torch.Generator(), 5) == 6  # of 5 + 5 + 1 the last has no other


def test_random_init_is_no_first_stage(digits):
    split = digits.split(clients=3, labels="clients:60", seed=1)
    runs = [
        Experiment(methods.XCLP(**XCLP_SMALL, **how), split, model="mlp", rounds=2, per_round=3).run()
        for how in (dict(init="random"), dict(warmup=0.0))
    ]
    assert wire.encode(runs[0].shared) == wire.encode(runs[1].shared)


def test_pretrained_init_takes_the_weights_of_a_run(digits, tmp_path):
    split = digits.split(clients=3, labels="clients:60", seed=1)
    first = Experiment(methods.FedAvg(epochs=1), split, model="mlp", rounds=1, out=tmp_path / "a").run()
    m = methods.XCLP(init="pretrained", init_run=str(tmp_path / "a"), **XCLP_SMALL)
    source = Experiment(m, split, model="mlp").models()
    server = Server(m, range(3), None, source, digits.classes)
    assert all(torch.equal(w, first.shared["weights"][name]) for name, w in m.first_weights(server).items())
    own = source.new(None, core.Meter()).state()
    server = Server(m, range(3), None, source, tuple("abcdefghij"))  # other classes: their head says nothing here
    taken = m.first_weights(server)
    for name in own:
        assert torch.equal(taken[name], own[name] if name.startswith("head.") else first.shared["weights"][name])
    with pytest.raises(Mistake, match="fedavg with model mlp"):
        Experiment(m, split, model="cnn", rounds=1).run()
    with pytest.raises(Mistake, match="no model.safetensors"):
        Experiment(replace(m, init_run=str(tmp_path)), split, model="mlp", rounds=1).run()


@pytest.mark.parametrize("init", ["contrastive", "pretrained"])
def test_init_repeats_in_strict_mode_and_after_a_break(digits, tmp_path, monkeypatch, init):
    monkeypatch.setattr(experiment, "CHECKPOINT_SECONDS", -1.0)
    split = digits.split(clients=3, labels="clients:60", seed=1)
    how = dict(init=init)
    if init == "pretrained":
        Experiment(methods.FedAvg(epochs=1), split, model="mlp", rounds=1, out=tmp_path / "a").run()
        how["init_run"] = str(tmp_path / "a")
    m = methods.XCLP(**XCLP_SMALL, **how)
    settings = dict(model="mlp", rounds=3, per_round=3)
    whole = Experiment(m, split, **settings).run()
    assert wire.encode(Experiment(m, split, mode="strict", **settings).run().shared) == wire.encode(whole.shared)

    def stop(done, rounds, line):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Experiment(m, split, out=tmp_path / "cut", **settings).run(progress=stop)
    after = Experiment(m, split, out=tmp_path / "cut", **settings).run(resume=True)
    assert wire.encode(after.shared) == wire.encode(whole.shared) and after.history == whole.history
