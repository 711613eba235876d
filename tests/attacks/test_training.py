"""What training tells of single clients, their labels and their rows: to the server that sees their weights, to the server that
sees masked ones, and to another client. `benchmarks/attacks.py` has the figures for all methods.

Attacks are judged over several splits. One that must fail is at most 5 points above guessing in the mean; one that succeeds by
design is above guessing by Student's one-sided 95 % interval (`least`).
"""

from __future__ import annotations

import attacking
import numpy as np
import pytest
import torch
from attacking import Reader, Training, over_splits

from grapevine import methods
from grapevine.core import Server
from grapevine.crypto import sums
from grapevine.jobs.clean import Clean
from grapevine.learn.averages import Means

MORE = 0.05  # an attack that must fail is at most 5 points above guessing
VICTIMS, SPLITS, FEW = 8, range(6), range(4)  # few where a split takes seconds


def skewed(digits, seed):
    """Eight clients with 12 labels each and skewed classes, and 40 that the attacker knows."""
    return digits.split(clients=48, labels="clients:576", partition="dirichlet:0.3", seed=seed)


def by_way(found):
    """What was found on each split, by the way to attack."""
    return {way: over_splits([each[way] for each in found]) for way in found[0]}


@pytest.fixture(scope="module")
def plain(digits):
    return [Training(methods.FedAvg(), skewed(digits, seed), VICTIMS, rounds=3, seed=seed) for seed in SPLITS]


@pytest.fixture(scope="module")
def masked(digits):
    return [Training(methods.FedAvg(), skewed(digits, seed), VICTIMS, rounds=3, seed=seed, secure=True) for seed in SPLITS]


def test_the_attack_by_hand():
    """One label, one step of plain gradient descent: the bias of its class alone goes up (Zhao et al. 2020, iDLG)."""
    w, b, x, y = torch.zeros(3, 4), torch.zeros(3, requires_grad=True), torch.ones(1, 4), torch.tensor([2])
    torch.nn.functional.cross_entropy(x @ w.T + b, y).backward()
    old, new = {"head.bias": b.detach(), "head.weight": w}, {"head.bias": b.detach() - 0.1 * b.grad, "head.weight": w}
    moved = attacking.last_layer(new, old)["sums"]
    assert moved[:3].argmax() == 2 and (moved[:2] < 0).all()
    assert attacking.auc(np.array([3.0, 2.0]), np.array([1.0, 2.5])) == 0.75


def test_the_interval_by_hand():
    """Differences of 0.1, 0.2 and 0.3: the standard error of their mean is 0.1 / √3, and t with 2 degrees is 4.303 or 2.920."""
    found = over_splits([dict(right=right, prior=0.5) for right in (0.6, 0.7, 0.8)])
    assert found == pytest.approx(dict(right=0.7, prior=0.5, half=0.24841, least=0.03141), abs=1e-4)
    paired = over_splits([dict(right=prior + 0.1, prior=prior) for prior in (0.2, 0.4, 0.6)])
    assert paired["least"] == pytest.approx(0.1) and paired["half"] > 0.4


def examples(rng, signal):
    """Histograms of 30 clients, and how a layer moved: by their shares, or at random."""
    shares = rng.dirichlet(np.full(4, 0.5), 30)
    moved = signal * shares @ rng.normal(size=(4, 6)) + rng.normal(size=(30, 6)) * (0.05 if signal else 1)
    return [dict(all=row) for row in moved], list(shares)


def test_the_penalty_is_the_one_that_reads_each_example_best_from_the_others():
    """The closed form against fits that leave one example out."""
    moved, shares = examples(np.random.default_rng(1), 1.0)
    reader, X, Y = Reader(moved, shares), np.stack([each["all"] for each in moved]), np.stack(shares)
    scale, right = X.std(0), {}
    size = np.linalg.eigvalsh((X - X.mean(0)) / scale @ ((X - X.mean(0)) / scale).T).clip(0).mean()
    for penalty in size * np.logspace(3, -3, 25):
        right[penalty] = 0.0
        for i in range(len(X)):
            x, y = np.delete(X, i, 0) / scale, np.delete(Y, i, 0)
            slope = np.linalg.solve(
                (x - x.mean(0)).T @ (x - x.mean(0)) + penalty * np.eye(6), (x - x.mean(0)).T @ (y - y.mean(0))
            )
            guess = np.maximum((X[i] / scale - x.mean(0)) @ slope + y.mean(0), 0)
            right[penalty] += attacking.overlap(guess / guess.sum(), Y[i]) / len(X)
    assert reader.best == pytest.approx(max(right.values())) and reader.best > 0.8


def test_who_has_no_traces_to_read_guesses_the_shares_of_all():
    for seed in range(5):
        moved, shares = examples(np.random.default_rng(seed), 0.0)
        reader = Reader(moved, shares)
        guessed = [attacking.overlap(reader.guess(each, reader.middle, reader.shares), own) for each, own in zip(moved, shares)]
        assert np.mean(guessed) < np.mean([attacking.overlap(reader.shares, own) for own in shares]) + 0.1


def test_the_server_reads_the_classes_of_a_clients_labels_from_its_weights(plain):
    """By design of averaging models in the open: the figure stands in the threat model."""
    assert over_splits([attacking.labels_of_round(t, 0)["client"] for t in plain])["least"] > 0.25


def test_masked_averages_tell_it_no_more_than_the_mean_does(masked):
    for found in by_way([attacking.label_inference(t) for t in masked]).values():
        assert found["right"] <= found["prior"] + MORE


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsiam"])
def test_the_attack_on_masked_answers_would_read_them_without_their_masks(digits, monkeypatch, name):
    """SCAFFOLD's answers hold a control variate, too, and FedSiam's a second model. The attack once read that one."""
    method, split = methods.find(name)(epochs=1), skewed(digits, 0)
    open_ = Training(method, split, VICTIMS, rounds=1).answers(0)
    closed = Training(method, split, VICTIMS, rounds=1, secure=True).answers(0)
    monkeypatch.setattr(sums, "sum_share", lambda me, secrets, occasion, values, wide=False: values)
    bare = Training(method, split, VICTIMS, rounds=1, secure=True).answers(0)
    for i, model in open_.items():
        torch.testing.assert_close(bare[i], model, atol=1e-6, rtol=1e-6)
        assert torch.cat([(closed[i][key] - value).abs().ravel() for key, value in model.items()]).mean() > 0.25


def test_the_server_tells_a_clients_rows_from_others_by_its_weights_and_masks_leave_what_the_mean_tells(plain, masked):
    """A model that was trained on rows knows them a little, whoever has it; the client's own answer tells much more."""
    open_ = by_way([attacking.membership(t, 2) for t in plain])
    closed = by_way([attacking.membership(t, 2, masked=True) for t in masked])
    for way in open_:
        assert open_[way]["least"] > 0.25
        assert closed[way]["right"] < open_[way]["right"] - 0.15
    assert max(found["right"] for found in by_way([attacking.curious_client(t) for t in masked]).values()) < 0.7


def eliminated(digits):
    """Ten clients, five a round, by masked averages."""
    how = dict(rounds=20, secure=True, per_round=5)
    return over_splits([
        attacking.elimination(Training(methods.FedAvg(epochs=2), skewed(digits, seed), 10, seed=seed, **how)) for seed in SPLITS
    ])  # fmt: skip


def test_sums_over_other_clients_in_every_round_would_tell_their_labels(digits, monkeypatch):
    """Why a client is summed with the same others in every round."""
    found = eliminated(digits)
    assert found["right"] <= found["prior"] + MORE
    monkeypatch.setattr(Means, "sample", lambda means, round: Server.sample(means.server, round))
    assert eliminated(digits)["least"] > 0.1


def test_protofssl_tells_which_classes_a_client_has_and_the_server_a_single_row(digits):
    """By design; `least=2` keeps prototypes of a single row back."""
    found = attacking.prototypes(methods.ProtoFSSL(helpers=3), skewed(digits, 1), VICTIMS)
    assert found["classes"]["right"] == 1 and found["rows"]["right"] > 0.9 and found["rows"]["tried"] > 4
    kept_back = attacking.prototypes(methods.ProtoFSSL(helpers=3, least=2), skewed(digits, 1), VICTIMS)
    assert kept_back["rows"]["tried"] == 0 and kept_back["classes"]["right"] < 1


@pytest.mark.parametrize("compact", [False, True])
def test_fedanchors_anchors_are_the_servers_rows_and_their_means_are_not(digits, compact):
    method = methods.FedAnchor(epochs=1, pretrain=2, compact=compact)
    splits = [digits.split(clients=6, labels="server:120", seed=seed) for seed in FEW]
    found = over_splits([attacking.anchors(method, split, seed) for seed, split in enumerate(splits)])
    assert found["right"] < 0.65 if compact else found["least"] > 0.45


def test_mp_ssfls_classifier_tells_a_party_a_little_of_the_servers_rows(digits):
    splits = [digits.split(clients=6, labels="server:120", seed=seed) for seed in FEW]
    found = over_splits([attacking.classifier(methods.MPSSFL(), split, seed) for seed, split in enumerate(splits)])
    assert found["least"] > 0 and found["right"] < 0.7


def by_server(digits, name, model, **settings):
    """All labels are the server's; of the clients it wants the true classes of rows without labels."""
    for seed in SPLITS if model == "linear" else FEW:
        split = digits.split(clients=48, labels="server:120", partition="dirichlet:0.3", seed=seed)
        yield Training(methods.find(name)(**settings), split, VICTIMS, model, rounds=3, seed=seed)


@pytest.mark.parametrize("name, settings, model", [("mp-ssfl", {}, "linear"), ("semifl", dict(threshold=0.5), "linear"),
                                                   ("fedanchor", dict(epochs=2), "mlp")])  # fmt: skip
def test_weights_tell_a_server_with_all_labels_of_a_clients_unlabelled_rows(digits, name, settings, model):
    """By design: pseudo-labels leave traces as labels do. The figures stand in the threat model."""
    classes, rows = [], []
    for t in by_server(digits, name, model, **settings):
        classes.append(attacking.labels_of_round(t, 2)["client"])
        rows.append(attacking.membership(t, 2))
    assert over_splits(classes)["least"] > 0
    assert max(found["least"] for found in by_way(rows).values()) > 0


def test_fedcons_backbone_tells_it_no_more_than_guessing(digits):
    found = over_splits([attacking.labels_of_round(t, 2)["client"] for t in by_server(digits, "fedcon", "mlp")])
    assert found["right"] <= found["prior"] + MORE


def test_clean_tells_the_server_nothing_of_a_partys_rows():
    """Its one reply is empty unless parties agreed on counts, and then holds three numbers."""
    assert set(Clean().steps()["decide"].reveals) == {"counts"}
