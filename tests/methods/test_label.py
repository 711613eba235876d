"""The label job's estimate of its accuracy, scaling, blank rows, and the sentences for what cannot work."""

import math
from dataclasses import replace

import numpy as np
import pytest
from labelling import (
    AGAIN,
    SPREAD,
    assert_same_as_slow,
    assert_same_results,
    blobs,
    clear_estimate,
    each_request,
    job,
    lost,
    slow,
    start,
    without_labels,
)
from sklearn.preprocessing import StandardScaler

from grapevine.core.errors import Mistake
from grapevine.crypto import fixed
from grapevine.methods.label import Label
from grapevine.methods.one_shot import scaling
from grapevine.run.simulate import StepError


def test_expected_accuracy_is_what_it_is_in_the_clear():
    parties = blobs((22, 18, 25), labelled=12, spread=2.5)
    run = start(job("psm"), parties)
    clear = clear_estimate(run, slow(parties, run.method))
    np.testing.assert_equal(run.about["expected"], clear)
    assert 0 < clear["right"] < clear["n"]  # a count that could be wrong either way


def test_hidden_labels_do_not_reach_the_second_solve():
    """The kept contributions: the second block of columns is S times the visible labels alone."""
    parties = blobs((14, 12), labelled=10)
    run = start(job("psm"), parties, stop="receive")
    oracle = slow(parties, run.method)
    C = len(oracle.classes)
    for name in parties:
        memory = run.memory(name)
        rows = np.flatnonzero((oracle.owner == name) & (oracle.y >= 0))
        assert memory["hidden"].any() and not memory["hidden"].all()
        seen = rows[~memory["hidden"]]
        Z = fixed.decode(np.concatenate([memory["spread"][owner] for owner in sorted(parties)]))
        np.testing.assert_allclose(Z[:, :C], oracle.S[:, rows] @ oracle.Y[rows], atol=1e-4)
        np.testing.assert_allclose(Z[:, C:], oracle.S[:, seen] @ oracle.Y[seen], atol=1e-4)


def test_a_fifth_of_every_class_is_hidden():
    parties = {name: (np.eye(60, 6), ["a"] * 40 + ["b"] * 15 + ["c"] * 5) for name in ("p0", "p1")}
    run = start(job("psm"), parties, stop="receive")
    for name in parties:
        hidden = run.memory(name)["hidden"]
        assert (hidden[:40].sum(), hidden[40:55].sum(), hidden[55:].sum()) == (8, 3, 1)


def test_labels_do_not_depend_on_the_estimate():
    parties = blobs((14, 12))
    with_, without = start(job("psm"), parties), start(job("psm", expected=False), parties)
    assert_same_results(with_, without, parties)
    assert "expected" not in without.about
    assert without.up("receive", "p0") == [{}]


def test_blank_rows_abstain_and_change_nothing():
    parties = blobs((12, 10))
    X, y = parties["p1"]
    blank = dict(parties, p1=(np.concatenate([X, np.zeros((3, 6))]), y + [None] * 3))
    run, clean = start(job("psm", scale="none"), blank), start(job("psm", scale="none"), parties)
    result = run.result("p1")
    np.testing.assert_array_equal(result["blank"], [False] * 10 + [True] * 3)
    np.testing.assert_array_equal(result["label"][10:], -1)
    np.testing.assert_array_equal(result["confidence"][10:], 0.0)
    np.testing.assert_array_equal(result["proba"][10:], 0.0)
    assert_same_results(run, clean, ("p0",))
    np.testing.assert_array_equal(result["label"][:10], clean.result("p1")["label"])


def test_a_component_without_labels_gets_none():
    """Two opposite bundles of directions: no similarity between them is above 0. Labels lie in one."""
    rng = np.random.default_rng(3)

    def near(n):
        return np.array([5.0, 0, 0]) + 0.1 * rng.normal(size=(n, 3))

    parties = dict(p0=(np.concatenate([near(4), -near(3)]), ["a", "b"] + [None] * 5),
                   p1=(np.concatenate([near(3), -near(5)]), [None] * 8))  # fmt: skip
    run = start(job("psm", scale="none", bits=128, neighbours=9), parties)
    for name, there in (("p0", 4), ("p1", 3)):
        result = run.result(name)
        assert (result["label"][:there] >= 0).all()
        np.testing.assert_array_equal(result["label"][there:], -1)
        np.testing.assert_array_equal(result["confidence"][there:], 0)
        np.testing.assert_array_equal(result["proba"][there:], 0)


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_missing_features_become_the_pooled_mean(scale):
    parties = blobs((12, 10, 9))
    X = {name: np.array(rows[0]) for name, rows in parties.items()}
    X["p0"][3, 2] = X["p0"][5, 0] = X["p2"][8, 2] = np.nan
    holes = {name: (X[name], parties[name][1]) for name in parties}
    mean = np.nanmean(np.concatenate(list(X.values())), 0)
    run = start(job("psm", scale=scale, impute=True), holes)
    filled = {name: (np.where(np.isnan(X[name]), mean, X[name]), parties[name][1]) for name in parties}
    if scale == "none":
        assert_same_as_slow(run, filled)
    client = run.client("p0")
    V = run.method.prepared(client)
    expected = mean if scale == "none" else np.zeros(6)
    np.testing.assert_allclose(V[[3, 5], [2, 0]], expected[[2, 0]], atol=1e-12)
    assert np.isfinite(V).all()


@pytest.mark.parametrize("known", [9, 10])
def test_a_feature_that_fewer_than_ten_rows_have_is_not_summed(known):
    """Its mean would say too much about each of them."""
    parties = blobs((12, 10, 9))
    X = {name: np.array(rows[0]) for name, rows in parties.items()}
    for rows, there in zip(X.values(), (known - 4, 2, 2)):
        rows[there:, 1] = np.nan
    run = start(job("psm", impute=True), {name: (X[name], parties[name][1]) for name in parties})
    moments = run.client("p0").memory["moments"].reshape(3, 6)
    assert bool(moments[1:, 1].any()) == (known == 10) and moments[1:, 0].all()
    assert bool(run.method.prepared(run.client("p0"))[:, 1].any()) == (known == 10)


def test_moments_of_fewer_than_ten_rows_are_refused():
    parties = blobs((3, 3, 3), labelled=2)
    with pytest.raises(StepError, match="all parties have 9 rows together, and sums are opened only over 10 or more"):
        start(job("psm"), parties)
    assert start(job("psm", scale="none"), parties).about["in_graph"]
    assert start(job("psm"), blobs((4, 3, 3), labelled=2)).about["in_graph"]


def test_a_missing_feature_is_refused_by_its_place():
    parties = blobs((12, 10))
    X = np.array(parties["p1"][0])
    X[4, 5] = np.nan
    with pytest.raises(StepError, match="client p1.*row 4, column 5 is nan"):
        start(job("psm"), dict(parties, p1=(X, parties["p1"][1])))


def test_scaling_is_sklearns_standard_scaler_of_the_pooled_rows():
    parties = blobs((30, 7, 1), labelled=1, d=5)
    factors = np.array([1e-4, 1.0, 1e5, 30.0, 1.0])
    shifts = np.array([0.0, 1e4, -3e5, 2000.0, 0.0])
    parties = {name: (X * factors + shifts, y) for name, (X, y) in parties.items()}
    for X, _ in parties.values():
        X[:, 4] = 3.25  # a feature that does not vary plays no part
    run = start(job("psm"), parties)
    scaled = StandardScaler().fit_transform(np.concatenate([parties[name][0] for name in sorted(parties)]))
    ours = np.concatenate([run.method.prepared(run.client(name)) for name in sorted(parties)])
    np.testing.assert_allclose(ours, scaled, atol=1e-6)
    np.testing.assert_array_equal(ours[:, 4], 0)


def test_scaling_by_hand():
    mean, std = scaling(np.array([4.0, 2.0, 8.0, 10.0, 24.0, 50.0]), 2)  # n, Σ, Σ² of two features
    np.testing.assert_allclose(mean, [2, 5])
    np.testing.assert_allclose(std, [math.sqrt(2), np.inf])


def test_label_headroom_is_checked_before_anything_is_sent():
    change = each_request(lambda id, payload: dict(payload, total=10**12))
    run = {}
    with pytest.raises(StepError, match="the label mass of 1000000000000 labels .* could come to"):
        start(job("psm"), blobs((9, 10)), change={SPREAD: change}, prepare=lambda sim: run.update(sim=sim))
    assert "spread" not in run["sim"].manifests["p0"]


def test_no_label_anywhere_is_said():
    with pytest.raises(Mistake, match="no party has a labelled row"):
        start(job("psm"), blobs((5, 5), labelled=0))


def test_labels_lost_with_their_party_are_said():
    parties = without_labels(without_labels(blobs((5, 6, 7)), "p0"), "p2")
    with pytest.raises(Mistake, match="no party has a labelled row"):
        start(job("psm"), parties, faults=[lost("share")])


def test_different_features_are_said():
    parties = blobs((5, 5)) | dict(p2=(np.ones((3, 4)), [None] * 3))
    with pytest.raises(Mistake, match="p2 has 4 features but p0 has 6"):
        start(job("psm"), parties)


@pytest.mark.parametrize(
    "settings,sentence",
    [
        (dict(alpha=1.0), "alpha=1 is out of range: use 0 or more and less than 1"),
        (dict(alpha=-0.1), "alpha=-0.1 is out of range"),
        (dict(neighbours=-1), "neighbours=-1 is out of range"),
        (dict(bits=0), "bits=0 is out of range"),
        (dict(bits=2**15), "bits=32768 is out of range: use 1 to 32767"),
        (dict(preset="best"), "preset=best is not a known value: use paper or code"),
        (dict(scale="robust"), "scale=robust is not a known value: use standard or none"),
        (dict(groups=2), "groups is 2"),
        (dict(groups=0), "groups=0 is out of range: use 1 or more"),
        (dict(neighbours=0, expected=False), "neighbours or alpha is auto"),
    ],
)
def test_settings_that_cannot_work_are_said(settings, sentence):
    with pytest.raises(Mistake, match=sentence):
        start(job("psm", **settings), blobs((5, 5, 5)))


def test_one_party_is_said():
    with pytest.raises(Mistake, match="only p0 is there"):
        start(job("psm"), blobs((5,)))


def test_settings_are_those_of_the_fields():
    method = replace(job("psm"), scale="none")
    assert method.settings()["xclp"]["hamming"] == dict(kind="psm")
    assert {"keys", "meet", "pool", "share", SPREAD, AGAIN, "receive", "choose"} <= set(method.steps())
    assert {step for step in Label().steps() if ".hamming." in step} == {"xclp.hamming.evaluate", "xclp.hamming.open"}
