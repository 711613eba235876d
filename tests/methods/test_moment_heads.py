"""One-shot heads in a federation: the same head as all labelled rows in one place, each client asked once."""

import numpy as np
import pytest
import torch
from federation import Federation
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

import grapevine as gv
from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.learn import moments
from grapevine.learn.averages import secured

NAMES = ["fedncm", "fed3r", "fedcgs", "fedcof", "gh-ofl"]


def pooled(split):
    """All clients' labelled rows as a linear network sees them, and their labels."""
    rows = [split.client(i).labelled for i in range(len(split))]
    return np.concatenate([r.inputs().flatten(1).double().numpy() for r in rows]), np.concatenate([r.y.numpy() for r in rows])


def test_as_central_classifiers(digits):
    split = digits.split(clients=4, labels="clients:300", partition="dirichlet:0.5", seed=2)
    X, y = pooled(split)
    test = split.test_rows().inputs().flatten(1).double().numpy()
    found = {m.name: gv.train(m, split, model="linear", rounds=1, per_round=4).predict(digits.x_test)
             for m in (methods.Fed3R(ridge=5.0), methods.GHOFL(shrinkage=0.3))}  # fmt: skip
    X_1, test_1 = (np.column_stack([rows, np.ones(len(rows))]) for rows in (X, test))
    W = Ridge(alpha=5.0, fit_intercept=False).fit(X_1, np.eye(10)[y]).coef_
    central = dict(zip(("fed3r", "gh-ofl"), (
        (test_1 @ (W / np.linalg.norm(W[:, :-1], axis=1)[:, None]).T).argmax(1),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(X, y).predict(test),
    )))  # fmt: skip
    for name, labels in central.items():
        assert np.mean(np.array(found[name], int) == labels) > 0.995  # float32 rows: a tie may fall otherwise


@pytest.mark.parametrize("name", NAMES)
def test_every_client_is_asked_once_and_then_nobody(digits, name):
    who = dict(labelled=(6, 4, 9, 0, 12), unlabelled=(8, 9, 5, 5, 5))
    at_once, slow = (Federation(digits, methods.find(name)(), **who) for _ in range(2))
    slow.server.per_round, asked, gather = 2, [], slow.simulation.gather

    def watched(step, requests, round, inbox):
        asked.append(sorted(requests))
        return gather(step, requests, round, inbox)

    slow.simulation.gather = watched
    for _ in range(4):
        slow.round()
    assert [len(ids) for ids in asked] == [2, 2, 1, 0] and sorted(sum(asked, [])) == [0, 1, 2, 3, 4]
    for key, value in at_once.round()["head"].items():
        np.testing.assert_array_equal(value, slow.state["head"][key])


def test_a_server_with_labels_adds_its_own(digits):
    alone = gv.train("fed3r", digits.split(clients=3, labels="server:100", seed=1), model="linear", rounds=1)
    both = gv.train("fed3r", digits.split(clients=3, labels="server:100,clients:200", seed=1), model="linear", rounds=1)
    assert 0.5 < alone.result["accuracy"] < both.result["accuracy"]


def test_too_many_features_are_refused_with_a_way_out(digits, monkeypatch):
    monkeypatch.setattr(moments, "MOST_FEATURES", 10)
    split = digits.split(clients=3, labels="clients:60", seed=1)
    with pytest.raises(Mistake, match="needs a matrix of 64 × 64 features, but 10 is the limit: use fedncm"):
        gv.train("fedcgs", split, model="linear", rounds=1)


@pytest.mark.parametrize("name", ["fedncm", "fed3r", "fedcgs", "gh-ofl"])
def test_masked_sums_give_the_same_head(digits, name):
    """One client has no labels: its part is zeros, and it counts as having sent the mean like the others."""
    who = dict(labelled=(60, 40, 55, 0, 50), unlabelled=(8, 9, 5, 5, 5), labels=300)
    plain, masked = Federation(digits, methods.find(name)(), **who), Federation(digits, secured(methods.find(name)()), **who)
    total = sum(plain.round()["sums"].values())
    np.testing.assert_allclose(sum(masked.round()["method"]["sums"].values()), total, rtol=0, atol=5 * 2.0**-33 + 1e-9)


@pytest.mark.parametrize("name", ["fedncm", "fed3r", "fedcgs", "gh-ofl"])
def test_a_class_with_fewer_than_ten_labels_is_in_no_masked_sum(digits, name):
    """The server once got the one labelled row of a class from the sum over all clients."""
    who = dict(labelled=(30, 20, 25), unlabelled=(8, 9, 5), labels=180)
    method = methods.find(name)()
    masked = Federation(digits, secured(method), **who)
    rows = [masked.data[i].labelled for i in range(3)]
    y = torch.cat([r.y for r in rows]).numpy()
    counts = np.bincount(y, minlength=10)
    assert 0 < (counts < 10).sum() < 10 and counts.min() > 0  # some of both
    X = torch.cat([r.inputs().flatten(1) for r in rows]).double().numpy()
    kept = counts[y] >= 10
    total = sum(masked.round()["method"]["sums"].values())
    np.testing.assert_allclose(total, method.moments(X[kept], y[kept], 10), rtol=0, atol=1e-6)


def test_clients_without_ten_labels_of_a_class_open_nothing(digits, caplog):
    masked = Federation(digits, secured(methods.FedNCM()), labelled=(6, 4, 9), unlabelled=(8, 9, 5))
    state = masked.round()["method"]
    assert state["sums"] == {} and set(state["heard"]) == {0, 1, 2}
    assert "no class has 10 labels among the clients of round 0: their masked sums are not opened." in caplog.text


def test_fedcof_cannot_do_with_totals():
    with pytest.raises(Mistake, match="fedcof cannot use --secure-average: the server compares the means of each client"):
        secured(methods.FedCOF())
