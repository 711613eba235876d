"""FedAvg+network, FedAvg+perclientLP and FedSem+ against dense graphs and formulas."""

import math

import numpy as np
import pytest
import torch
from federation import Federation, Momentum, close, dense, double, gradient, hot, proba

from grapevine import methods
from grapevine.crypto.hamming import Plain
from grapevine.run.experiment import Experiment


def test_network_labels_are_the_models_own(digits):
    f = Federation(digits, methods.NetworkLabels(warmup=0.0, augment=False, epochs=1))
    w, x = f.state["weights"], f.data[0].unlabelled.inputs()
    labels, confidence = f.method.pseudo_labels(f.client(0), w)
    p = proba(double(w), x)
    assert labels.tolist() == p.argmax(1).tolist()
    expected = [1 - sum(-v * math.log(v) for v in row) / math.log(10) for row in p.tolist()]
    assert confidence.tolist() == pytest.approx(expected, abs=1e-5)


def test_per_client_propagation_is_the_dense_version(digits):
    f = Federation(digits, methods.PerClientLP(neighbours=4, alpha=0.9), labelled=(8, 0), unlabelled=(14, 9))
    data = f.data[0]
    labels, confidence = f.method.pseudo_labels(f.client(0), f.state["weights"])
    V = torch.cat([data.labelled.inputs(), data.unlabelled.inputs()]).flatten(1).double().numpy()
    expected, sure = dense(V, np.concatenate([data.labelled.y.numpy(), np.full(14, -1)]), 4, 0.9)
    assert labels.tolist() == expected[8:].tolist()
    np.testing.assert_allclose(confidence, sure[8:], atol=1e-6)
    labels, confidence = f.method.pseudo_labels(f.client(1), f.state["weights"])  # nothing to spread
    assert set(labels.tolist()) == {-1} and not confidence.any()
    f.round()
    assert f.state["round"] == 1


def test_fedsem_labels_once(digits):
    m = methods.FedSem(warmup=0.5, epochs=1, augment=False)
    f = Federation(digits, m, rounds=4)
    for _ in range(2):
        f.round()
    stage_1 = f.state["weights"]
    for _ in range(2):
        f.round()
        for i in (0, 1):
            kept = f.memory(i)["labels"]
            assert kept["labels"].tolist() == proba(double(stage_1), f.data[i].unlabelled.inputs()).argmax(1).tolist()
    steps = [line["step"] for line in f.server.account.drain()]
    assert steps.count("label_once") == 2  # down and up, once


def test_stage_1_is_for_labelled_clients_and_averages_are_uniform(digits):
    m = methods.NetworkLabels(warmup=0.5, epochs=2, batch=50, augment=False, weight_decay=0.0, lr=0.2)
    f = Federation(digits, m, labelled=(6, 4, 0), unlabelled=(8, 9, 5), rounds=4)
    w, each = double(f.state["weights"]), []
    for i in (0, 1):
        mine, rows = w, f.data[i].labelled
        for _ in range(2):
            g = gradient(mine, rows.inputs(), hot(rows.y), torch.full((len(rows),), 1 / len(rows)).double())
            mine = Momentum(0.2, 0.0, 0.0).step(mine, g)
        each.append(mine)
    close(f.round()["weights"], {name: (each[0][name] + each[1][name]) / 2 for name in w})


STAGED = ["xclp", "network", "perclient-lp", "fedsem"]


@pytest.mark.parametrize("name", STAGED)
def test_the_last_model_of_stage_1_is_always_evaluated(digits, name):
    """Six rounds, of which every second was evaluated: stage 1 ends after the third, whose model could not be the best."""
    method = methods.find(name)(epochs=1, **(dict(bits=64, hamming=Plain()) if name == "xclp" else {}))
    split = digits.split(clients=3, labels="clients:60", seed=1)
    history = Experiment(method, split, model="linear", rounds=6, per_round=3, evaluate_every=2).run().history
    assert [line["round"] for line in history] == [0, 2, 3, 4, 6]


def test_without_a_stage_1_no_round_is_added():
    assert methods.XCLP(init="random").candidates(6) == (0,) and methods.FedAvg().candidates(6) == ()
