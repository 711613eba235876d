"""What training tells of single clients, their labels and their rows: to the server that sees their weights, to the server that
sees masked ones, and to another client. `benchmarks/attacks.py` has the figures for all methods.
"""

from __future__ import annotations

import attacking
import numpy as np
import pytest
import torch
from attacking import Training

from grapevine import methods
from grapevine.core import Server
from grapevine.jobs.clean import Clean
from grapevine.learn.averages import Means

MORE = 0.05  # an attack that must fail is at most 5 points above guessing
VICTIMS = 8


@pytest.fixture(scope="module")
def skewed(digits):
    """Eight clients with 12 labels each and skewed classes, and 40 that the attacker knows."""
    return digits.split(clients=48, labels="clients:576", partition="dirichlet:0.3", seed=1)


@pytest.fixture(scope="module")
def plain(skewed):
    return Training(methods.FedAvg(), skewed, VICTIMS, rounds=3)


@pytest.fixture(scope="module")
def masked(skewed):
    return Training(methods.FedAvg(), skewed, VICTIMS, rounds=3, secure=True)


def test_the_attack_by_hand():
    """One label, one step of plain gradient descent: the bias of its class alone goes up (Zhao et al. 2020, iDLG)."""
    w, b, x, y = torch.zeros(3, 4), torch.zeros(3, requires_grad=True), torch.ones(1, 4), torch.tensor([2])
    torch.nn.functional.cross_entropy(x @ w.T + b, y).backward()
    old, new = {"head.bias": b.detach(), "head.weight": w}, {"head.bias": b.detach() - 0.1 * b.grad, "head.weight": w}
    moved = attacking.last_layer(new, old)
    assert moved[:3].argmax() == 2 and (moved[:2] < 0).all()
    assert attacking.auc(np.array([3.0, 2.0]), np.array([1.0, 2.5])) == 0.75


def test_the_server_reads_the_classes_of_a_clients_labels_from_its_weights(plain):
    """By design of averaging models in the open: the figure stands in the threat model."""
    found = attacking.label_inference(plain)["client"]
    assert found["right"] > found["prior"] + 0.25


def test_masked_averages_tell_it_no_more_than_the_mean_does(masked):
    for found in attacking.label_inference(masked).values():
        assert found["right"] <= found["prior"] + MORE


def test_the_server_tells_a_clients_rows_from_others_by_its_weights(plain):
    found = attacking.membership(plain, 2)
    assert min(one["right"] for one in found.values()) > 0.75


def test_masks_leave_what_the_mean_tells_of_rows(plain, masked):
    """A model that was trained on rows knows them a little, whoever has it; the client's own answer told much more."""
    open_, closed = attacking.membership(plain, 2), attacking.membership(masked, 2, masked=True)
    for way in open_:
        assert closed[way]["right"] < open_[way]["right"] - 0.15
    assert max(one["right"] for one in attacking.curious_client(masked).values()) < 0.72


def test_sums_over_other_clients_in_every_round_would_tell_their_labels(skewed, monkeypatch):
    """Why a client is summed with the same others in every round."""
    how = dict(rounds=20, secure=True, per_round=5)
    found = attacking.elimination(Training(methods.FedAvg(epochs=2), skewed, 10, **how))
    assert found["right"] <= found["prior"] + MORE
    monkeypatch.setattr(Means, "sample", lambda means, round: Server.sample(means.server, round))
    found = attacking.elimination(Training(methods.FedAvg(epochs=2), skewed, 10, **how))
    assert found["right"] > found["prior"] + 0.15


def test_protofssl_tells_which_classes_a_client_has_and_the_server_a_single_row(skewed):
    """By design; `least=2` keeps prototypes of a single row back."""
    found = attacking.prototypes(methods.ProtoFSSL(helpers=3), skewed, VICTIMS)
    assert found["classes"]["right"] == 1 and found["rows"]["right"] > 0.9 and found["rows"]["tried"] > 4
    kept_back = attacking.prototypes(methods.ProtoFSSL(helpers=3, least=2), skewed, VICTIMS)
    assert kept_back["rows"]["tried"] == 0 and kept_back["classes"]["right"] < 1


def test_fedanchors_anchors_are_the_servers_rows_and_their_means_are_not(digits):
    split = digits.split(clients=6, labels="server:60", seed=1)
    assert attacking.anchors(methods.FedAnchor(epochs=1, pretrain=2), split)["right"] > 0.95
    assert attacking.anchors(methods.FedAnchor(epochs=1, pretrain=2, compact=True), split)["right"] < 0.65


def test_mp_ssfls_classifier_tells_a_party_a_little_of_the_servers_rows(digits):
    found = attacking.classifier(methods.MPSSFL(), digits.split(clients=6, labels="server:120", seed=1))
    assert 0.5 < found["right"] < 0.75


@pytest.fixture(scope="module")
def of_server(digits):
    """All labels are the server's; of the clients it wants the true classes of rows without labels."""
    return digits.split(clients=48, labels="server:120", partition="dirichlet:0.3", seed=1)


@pytest.mark.parametrize("name, settings, model", [("mp-ssfl", {}, "linear"), ("semifl", dict(threshold=0.5), "linear"),
                                                   ("fedanchor", {}, "mlp")])  # fmt: skip
def test_weights_tell_a_server_with_all_labels_of_a_clients_unlabelled_rows(of_server, name, settings, model):
    """By design: pseudo-labels leave traces as labels do. The figures stand in the threat model."""
    t = Training(methods.find(name)(**settings), of_server, VICTIMS, model, rounds=3, seed=1)
    last = len(t.seen) - 1
    classes = attacking.labels_of_round(t, last)["client"]
    assert classes["right"] > classes["prior"] + 0.05
    assert max(one["right"] for one in attacking.membership(t, last).values()) > 0.65


def test_fedcons_backbone_tells_it_no_more_than_guessing(of_server):
    t = Training(methods.find("fedcon")(), of_server, VICTIMS, "mlp", rounds=3, seed=1)
    for found in attacking.labels_of_round(t, len(t.seen) - 1).values():
        assert found["right"] <= found["prior"] + MORE


def test_clean_tells_the_server_nothing_of_a_partys_rows():
    """Its one reply is empty unless parties agreed on counts, and then holds three numbers."""
    assert set(Clean().steps()["decide"].reveals) == {"counts"}
