"""Baselines of the label job: the nearest labelled row, and heads as they would be if all rows lay in one place."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from label_job import QUICK, blobs, label, pairs, read
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

import grapevine as gv
from grapevine.cli.terminal import show_labels
from grapevine.jobs import baselines
from grapevine.learn import moments


def test_nearest_labelled_row_against_a_loop():
    draw = np.random.default_rng(3)
    V, y = draw.standard_normal((30, 4)), np.where(draw.random(30) < 0.4, draw.integers(0, 3, 30), -1)
    V[7] = 0
    found = baselines.nearest(V, y, block=7)
    for i in range(30):
        cosines = {j: V[i] @ V[j] / np.linalg.norm(V[i]) / np.linalg.norm(V[j]) for j in np.flatnonzero(y >= 0) if i != 7 != j}
        assert found[i] == (y[max(cosines, key=cosines.get)] if i != 7 else -1)
    assert (baselines.nearest(V, np.full(30, -1)) == -1).all()


HEADS = ["fedncm", "fed3r", "fedcgs", "fedcof", "gh-ofl"]


def test_baselines_are_labels_in_the_order_of_rows_and_what_they_send_is_logged(tmp_path):
    parties = blobs()
    result = label(parties, baselines=True, out=tmp_path / "out")
    assert list(result.other_accuracy) == ["alone", "nearest", *HEADS]
    assert result.other_accuracy["gh-ofl"] == 1.0 and result.other_accuracy["fedcof"] == 1.0
    for party, (*_, truth) in zip(result, parties):
        np.testing.assert_array_equal(party.others["gh-ofl"], truth)
        sent = [(line["step"], line["field"]) for line in party.disclosure if line["step"].startswith("gaussian.")]
        assert sent[4:] == [
            ("gaussian.pool", "share"),
            ("gaussian.pool", "tag"),
            ("gaussian.means", "sums"),
            ("gaussian.predict", ""),
        ]
        told = {line["step"]: line["reveals"] for line in party.disclosure if line["field"] in ("share", "sums")}
        assert "class's label count" in told["gaussian.pool"] and "of a single row, that row's features" in told["gaussian.means"]
    rows = read(tmp_path / "out" / "party-1" / "baselines.csv")
    assert list(rows[0]) == ["id", "together", "alone", "nearest", *HEADS]
    assert [int(row["gh-ofl"]) for row in rows] == list(parties[0][2])


def test_every_head_is_the_classifier_of_all_labelled_rows_in_one_place():
    """Overlapping classes, of which one has no label at one party. Rows are standardised over all parties, as XCLP has them."""
    parties = blobs((40, 30, 50), labelled=14, spread=3.0)
    parties[1][1][parties[1][1] == 0] = -1
    result = label(parties, baselines=True, scale="standard")
    X, y = (np.concatenate([party[i] for party in parties]) for i in (0, 1))
    truth = np.concatenate([party[2] for party in parties])
    V = (X - X.mean(0)) / X.std(0)
    L, c, V_1 = V[y >= 0], y[y >= 0], np.column_stack([V, np.ones(len(V))])
    means = np.stack([L[c == k].mean(0) for k in range(3)])
    W = Ridge(alpha=0.01, fit_intercept=False, tol=1e-12).fit(V_1[y >= 0], np.eye(3)[c]).coef_
    densities = [multivariate_normal(means[k], np.cov(L.T)).logpdf(V) + np.log(np.mean(c == k)) for k in range(3)]
    central = {
        "fedncm": (V @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(1),
        "fed3r": (V_1 @ (W / np.linalg.norm(W[:, :-1], axis=1, keepdims=True)).T).argmax(1),
        "fedcgs": np.stack(densities, 1).argmax(1),
        "gh-ofl": LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(L, c).predict(V),
    }
    for name, labels in central.items():
        assert np.concatenate([party.others[name] for party in result]).tolist() == labels.tolist(), name
        assert result.other_accuracy[name] == pytest.approx(np.mean((labels == truth)[y < 0])), name
    assert len({tuple(labels) for labels in central.values()}) == 4 and 0.4 < min(result.other_accuracy[n] for n in HEADS) < 0.95
    # The methods of `grapevine train` with their defaults, fedcof too: a row of moments for each party.
    each = [(V[own], y[own]) for own in np.split(np.arange(len(V)), np.cumsum([len(party[0]) for party in parties])[:-1])]
    for name in HEADS:
        method = gv.methods.find(name)()
        sums = np.stack([method.moments(rows[known >= 0], known[known >= 0], 3) for rows, known in each])
        found = moments.scores(V, method.head(sums, 3, V.shape[1])).argmax(1)
        assert np.concatenate([party.others[name] for party in result]).tolist() == found.tolist(), name


def test_heads_that_need_all_products_are_left_out_of_baselines_with_many_features(monkeypatch):
    monkeypatch.setattr(moments, "MOST_FEATURES", 3)
    result = label(blobs(), baselines=True)
    assert list(result.other_accuracy) == ["alone", "nearest", "fedncm", "fedcof", "gh-ofl"]
    assert result.other_accuracy["gh-ofl"] == 1.0


def test_heads_get_the_rows_that_propagation_gets():
    """Missing values are filled in before: the heads alone would refuse them."""
    parties = blobs()
    parties[0][0][0, 0] = np.nan
    right = label(parties, baselines=True, impute=True).other_accuracy
    assert min(right[name] for name in HEADS) > 0.95


def test_baselines_are_in_the_terminal_and_on_the_page(tmp_path, capsys):
    made = label(blobs(), out=tmp_path / "out", baselines=True, seed=1)
    show_labels(made, tmp_path / "out")
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines() if line.split()[:1] in [[name] for name in HEADS]] == HEADS
    assert re.search(r"labelled by +right +worst party +best party", told) and "no truth was given" not in told
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(kept["other_accuracy"]) == ["alone", "nearest", *HEADS] == list(kept["per_client"][0]["other_accuracy"])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f">{name}<" in page for name in HEADS)


def test_baselines_without_a_truth_say_that_nothing_measures_them(tmp_path):
    made = gv.label(pairs(blobs()), **QUICK, out=tmp_path / "out", baselines=True)
    assert "no truth was given, so how good the baselines are is not known; their labels are in baselines.csv." in made.warnings
    assert list(read(tmp_path / "out" / "party-1" / "baselines.csv")[0])[3:] == ["nearest", *HEADS]
