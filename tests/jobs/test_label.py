"""The label job in one process: labels, confidences and probabilities of rows in order, given labels kept, seeds that repeat."""

from __future__ import annotations

import numpy as np
import pytest
from label_job import QUICK, blobs, label
from sklearn.datasets import load_wine

import grapevine as gv
from grapevine.jobs import label_result
from grapevine.jobs.reading import read as read_rows
from grapevine.jobs.settings import LabelSettings


@pytest.mark.parametrize("secure", ["psm", "mlwe", "plain"])
def test_well_separated_classes_are_labelled_right_and_rows_keep_their_order(secure):
    parties = blobs(spread=0.2)  # hyperplanes are drawn anew in every run: so far apart that none of them gets a label wrong
    result = label(parties, secure=secure, bits=256)
    for (X, y, truth), party in zip(parties, result):
        assert party.labels.dtype == np.int64 and party.confidence.shape == (len(X),) and party.proba.shape == (len(X), 3)
        np.testing.assert_array_equal(party.labels, truth)
        np.testing.assert_array_equal(party.given, y)
        np.testing.assert_array_equal(party.known, y >= 0)
        assert (party.confidence[y >= 0] == 1.0).all() and (party.confidence > 0).all()
        np.testing.assert_allclose(party.proba.sum(1), 1)
    assert result.accuracy == 1.0 and result.classes == (0, 1, 2) and len(result) == 3


def test_rows_in_another_order_get_the_same_labels():
    """Every row is a neighbour of every other, so that no tie between equal distances can depend on the order."""
    parties = blobs(spread=2.0)
    draw = np.random.default_rng(1)
    orders = [draw.permutation(len(X)) for X, *_ in parties]
    one = label(parties, neighbours=100, seed=5)
    two = label([tuple(a[order] for a in party) for party, order in zip(parties, orders)], neighbours=100, seed=5)
    for a, b, order in zip(one, two, orders):
        np.testing.assert_array_equal(a.labels[order], b.labels)
        np.testing.assert_allclose(a.proba[order], b.proba, atol=1e-6)


def test_a_given_label_is_kept_and_what_propagation_says_is_shown_beside():
    parties = blobs()
    X, y, truth = parties[0]
    wrong = int(np.flatnonzero(y == 0)[0])
    y[wrong] = 2
    party = label(parties, neighbours=8)[0]
    assert party.labels[wrong] == 2 and party.given[wrong] == 2 and party.confidence[wrong] == 1.0
    assert party.proposed[wrong] == 0 and not party.abstained[wrong]


def test_names_and_numbers_as_classes():
    parties = blobs()
    names = np.array(["fig", "apple", "pear"], object)
    named = [(X, [None if c < 0 else names[c] for c in y]) for X, y, _ in parties]
    by_name = gv.label(named, **QUICK, seed=1)
    assert by_name.classes == ("apple", "fig", "pear")
    by_number = label(parties, seed=1)
    for a, b in zip(by_name, by_number):
        assert a.labels == [names[c] for c in b.labels] and a.given.count(None) == int((b.given < 0).sum())
        order = [by_name.classes.index(name) for name in names]
        np.testing.assert_allclose(a.proba[:, order], b.proba, atol=1e-9)


def test_numbers_are_sorted_as_numbers_and_columns_of_proba_follow():
    parties = [(X, np.where(y >= 0, y * 5, -1), truth * 5) for X, y, truth in blobs()]  # 0, 5, 10
    result = label(parties)
    assert result.classes == (0, 5, 10)
    for party in result:
        np.testing.assert_array_equal(np.array(result.classes)[party.proba.argmax(1)], party.proposed)


def test_a_class_that_one_party_knows_reaches_the_others():
    parties = blobs(labelled=9)
    for _, y, _ in parties[1:]:
        y[y == 2] = -1
    result = label(parties)
    assert result.accuracy > 0.95
    assert all((party.labels[truth == 2] == 2).mean() > 0.9 for party, (*_, truth) in zip(result, parties))


def test_a_party_without_labels_and_a_party_with_nothing_else():
    parties = blobs()
    parties[1][1][:] = -1
    parties[2] = (parties[2][0], parties[2][2], parties[2][2])
    result = label(parties)
    assert result[1].accuracy == 1.0 and result[1].alone_accuracy == 0.0
    assert result[2].known.all() and result[2].measured == 0 and result[2].accuracy is None


def test_truth_is_measured_on_new_labels_alone():
    parties = blobs()
    X, y, truth = parties[0]
    told = truth.copy()
    told[y >= 0] = 99  # what came with a label is no merit
    new = np.flatnonzero(y < 0)
    told[new[:3]] = 98  # three new labels will be wrong
    told[new[3:5]] = -1  # of two nothing is known
    result = label([(X, y, told), *parties[1:]])
    assert result[0].measured == len(new) - 2
    assert result[0].accuracy == (len(new) - 5) / (len(new) - 2)
    n = [p.measured for p in result]
    assert result.accuracy == pytest.approx((result[0].accuracy * n[0] + n[1] + n[2]) / sum(n))
    # Three classes are found again whole, the fourth, 98, never.
    assert result.balanced_accuracy == label_result.summary_json(result)["balanced_accuracy"] == 3 / 4
    assert label([(x, known, np.full(len(known), -1)) for x, known, _ in parties]).balanced_accuracy is None


def test_abstain_leaves_uncertain_rows_without_a_label():
    parties = blobs(spread=2.5)
    sure = label(parties, seed=2)
    middle = float(np.median(sure[0].confidence[~sure[0].known]))
    careful = label(parties, seed=2, abstain=middle)
    for a, b in zip(sure, careful):
        low = (a.confidence < middle) & ~a.known
        np.testing.assert_array_equal(b.abstained, low)
        np.testing.assert_array_equal(b.labels, np.where(low, -1, a.labels))
        np.testing.assert_array_equal(b.proposed, a.proposed)
    kept = [(b.labels == a.labels)[~b.abstained].all() for a, b in zip(sure, careful)]
    assert careful[0].abstained.any() and not careful[0].abstained.all() and all(kept)


def test_seeds_repeat_whatever_the_workers_and_differ_without():
    parties = blobs(spread=2.0)
    one, two, other = label(parties, seed=7), label(parties, seed=7, workers=1), label(parties, seed=8)
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.confidence, b.confidence)
    assert one.expected == two.expected
    assert any((a.confidence != b.confidence).any() for a, b in zip(one, other))
    free = [label(parties) for _ in range(2)]
    assert any((a.confidence != b.confidence).any() for a, b in zip(*free))


def test_a_blank_row_abstains_and_is_counted():
    parties = blobs()
    X, y, _ = parties[0]
    blank = int(np.flatnonzero(y < 0)[0])
    X[blank] = 0.0
    result = label(parties, scale="none")
    party = result[0]
    assert party.abstained[blank] and party.labels[blank] == -1 and party.confidence[blank] == 0 and party.blank == 1
    assert not party.proba[blank].any()
    assert any("1 row is zero after scaling" in note for note in result.warnings)


def test_missing_features_become_the_pooled_mean(caplog):
    parties = blobs(spread=1.5)
    mean = np.concatenate([X for X, *_ in parties[1:]] + [parties[0][0][1:]])[:, 2].mean()
    holes, filled = ([(X.copy(), y, t) for X, y, t in parties] for _ in range(2))
    holes[0][0][0, 2], filled[0][0][0, 2] = np.inf, mean
    where = [np.zeros((len(X), 1)) for X, *_ in filled]
    where[0][0] = 1  # one more column says where a value was missing
    filled = [(np.hstack([X, own]), y, t) for (X, y, t), own in zip(filled, where)]
    a, b = label(holes, scale="none", impute=True, seed=3), label(filled, scale="none", seed=3)
    assert "party-1: missing values in column 3 (1 infinite, filled with the mean)." in caplog.messages
    for one, two in zip(a, b):
        np.testing.assert_allclose(one.proba, two.proba, atol=1e-6)


def test_groups_label_apart_and_speak_of_the_same_classes():
    parties = blobs((20, 20, 20, 20))
    for _, y, _ in parties[1::2]:  # the second group never hears of class 2
        y[y == 2] = -1
    result = label(parties, groups=2, names=list("abcd"))
    assert result.classes == (0, 1, 2) and all(p.proba.shape == (20, 3) for p in result)
    assert all((p.labels == truth).all() for p, (*_, truth) in list(zip(result, parties))[::2])
    assert all(not (p.labels == 2).any() and not p.proba[:, 2].any() for p in list(result)[1::2])


def test_auto_takes_one_of_the_candidates_and_parties_alone_take_the_same():
    parties = blobs((40, 40, 40), labelled=15, spread=1.8)
    auto = label(parties, neighbours="auto", seed=4)
    fixed = label(parties, neighbours=auto.about["neighbours"], seed=4)
    assert auto.about["neighbours"] in (3, 5, 10, 20)
    for a, b in zip(auto, fixed):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.others["alone"], b.others["alone"])
    assert auto.expected["alone"] == fixed.expected["alone"]


def test_features_of_a_trained_run_and_what_it_says_itself(tmp_path, digits):
    split = digits.split(clients=4, labels="clients:200")
    gv.train(gv.methods.FedAvg(), split, rounds=1, model="mlp", out=tmp_path / "run")
    model = gv.load(tmp_path / "run")
    X = digits.x[:80].flatten(1).numpy()
    names = [digits.classes[c] for c in digits.y[:80].tolist()]
    for part, name in ((slice(0, 40), "a"), (slice(40, 80), "b")):
        known = [c if i < 15 else "" for i, c in enumerate(names[part])]
        np.savez(tmp_path / f"{name}.npz", X=X[part], y=np.array(known), truth=np.array(names[part]))
    files = [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    read, _ = read_rows(LabelSettings(label="y", truth="truth", embed=str(tmp_path / "run")), files)
    assert read[0].x.shape == (40, model.network.features_dim)
    assert read[1].model == model.predict(digits.x[40:80])
    result = gv.label(files, label="y", truth="truth", embed=str(tmp_path / "run"), **QUICK)
    own = np.array(read[0].model)[15:] == np.array(names[15:40])
    assert result[0].other_accuracy["model"] == own.mean()


def test_heads_label_the_jobs_own_arrays_where_values_are_missing():
    parties = blobs((40, 40, 40), labelled=15)
    for X, _, _ in parties:
        X[::4, 3] = np.nan
    made = label(parties, method="chorus", impute=True, secure="plain")
    proba = made.heads.predict_proba(parties[0][0])
    assert proba.shape == (40, 3) and np.isfinite(proba).all()
    encoded = np.c_[parties[0][0], np.isnan(parties[0][0][:, 3])]
    np.testing.assert_array_equal(made.heads.predict_proba(encoded), proba)


def test_a_class_with_a_single_label_is_not_lost():
    """Labels 7, 10 and 1 of the three classes of wine: the one label judged every voice to be bad, and 69 % were right."""
    X, y = load_wine(return_X_y=True)
    draw = np.random.default_rng(66)
    parts, known = np.array_split(draw.permutation(len(X)), 5), np.zeros(len(X), bool)
    known[draw.permutation(len(X))[:18]] = True
    known = np.split(known, np.cumsum([len(p) for p in parts])[:-1])
    assert np.bincount(np.concatenate([y[p][k] for p, k in zip(parts, known)])).tolist() == [7, 10, 1]
    result = gv.label([(X[p], np.where(k, y[p], -1)) for p, k in zip(parts, known)], secure="plain", seed=66)
    right = np.concatenate([(np.asarray(party.labels) == y[p])[~k] for party, p, k in zip(result, parts, known)])
    assert right.mean() > 0.85
