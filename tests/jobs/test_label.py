"""The label job in one process: rows in order, labels kept, what is written and said beforehand, what it is compared with."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

import grapevine as gv
from grapevine import report
from grapevine.cli.terminal import show_labels
from grapevine.core.errors import Mistake
from grapevine.graph import layout
from grapevine.jobs import baselines, disclosure, expected, label_notes, label_result
from grapevine.jobs import label as labelling
from grapevine.jobs.label_party import threshold
from grapevine.jobs.label_result import PartyLabels
from grapevine.jobs.reading import Party, party_names
from grapevine.jobs.reading import read as read_rows
from grapevine.jobs.settings import LabelSettings
from grapevine.learn import moments

CENTRES = np.array([[5.0, 0, 0, 0, 0], [0, 5.0, 0, 0, 0], [0, 0, 5.0, 0, 0]])
QUICK = dict(method="xclp", secure="psm", bits=256, neighbours=5, alpha=0.99)


def blobs(sizes=(20, 24, 18), labelled=6, spread=0.7, seed=0):
    """Parties (X, y, truth) of three classes in no order; `labelled` rows of each keep their label, scattered over the rows."""
    draw, out = np.random.default_rng(seed), []
    for n in sizes:
        truth = draw.permutation(np.arange(n) % 3)
        X = CENTRES[truth] + spread * draw.standard_normal((n, 5))
        keep = np.concatenate([np.flatnonzero(truth == c)[: labelled // 3] for c in range(3)])
        y = np.full(n, -1)
        y[keep] = truth[keep]
        out.append((X, y, truth))
    return out


def pairs(parties):
    return [(X, y) for X, y, _ in parties]


def label(parties, **settings):
    return gv.label(pairs(parties), **{**QUICK, "truth": [t for *_, t in parties], **settings})


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- labels, confidences, rows


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


def test_a_result_shows_itself_in_a_few_lines():
    parties = blobs((20, 24, 18, *[4] * 8), labelled=6)
    result = label(parties, names=[*"abcdefghijk"])
    lines = repr(result).splitlines()
    assert lines[0].startswith("labels of 11 parties, 3 classes; expected accuracy ")
    assert lines[1].split() == ["party", "rows", "given", "new", "abstained", "right"]
    assert lines[2].split() == ["a", "20", "6", "14", "0", "100.0%"]
    assert lines[-1] == "… and 3 more" and len(lines) == 11
    assert repr(result[1]) == "b: rows 24, given 6, new 18, abstained 0"
    unknown = gv.label(pairs(parties[:3]), **QUICK)
    assert repr(unknown).splitlines()[1].split() == ["party", "rows", "given", "new", "abstained"]


def test_a_party_without_labels_and_a_party_with_nothing_else():
    parties = blobs()
    parties[1][1][:] = -1
    parties[2] = (parties[2][0], parties[2][2], parties[2][2])
    result = label(parties)
    assert result[1].accuracy == 1.0 and result[1].alone_accuracy is None
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


# ---------------------------------------------------------------- the estimate, neighbours auto, baselines


def test_expected_accuracy_is_from_hidden_labels_and_near_the_truth():
    parties = blobs((90, 90, 90), labelled=45, spread=2.5)
    result = label(parties, seed=1)
    e = result.expected
    assert e["n"] == 27  # a fifth of 135
    assert e["low"] < e["accuracy"] < e["high"] and e["low"] < result.accuracy < e["high"]
    assert sum(b["n"] for b in e["calibration"]) == 27
    assert sum(b["right"] for b in e["calibration"]) == round(e["accuracy"] * 27)
    # Wilson's interval in its printed form: the shares p with |p − p̂| = 1.96 √(p(1 − p)/n)
    for p in (e["low"], e["high"]):
        assert abs(p - e["accuracy"]) == pytest.approx(1.96 * np.sqrt(p * (1 - p) / 27))


def test_auto_takes_one_of_the_candidates_and_parties_alone_take_the_same():
    parties = blobs((40, 40, 40), labelled=15, spread=1.8)
    auto = label(parties, neighbours="auto", seed=4)
    fixed = label(parties, neighbours=auto.about["neighbours"], seed=4)
    assert auto.about["neighbours"] in (3, 5, 10, 20)
    for a, b in zip(auto, fixed):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.others["alone"], b.others["alone"])
    assert auto.expected["alone"] == fixed.expected["alone"]


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


# ---------------------------------------------------------------- files


def test_what_is_written(tmp_path):
    parties = blobs((80, 30, 30), spread=2.0)
    result = label(parties, out=tmp_path / "out", abstain=0.05, seed=1, names=["north", "south", "east"])
    folder = tmp_path / "out"
    assert {p.name for p in folder.iterdir()} == {
        "north",
        "south",
        "east",
        "result.json",
        "messages.jsonl",
        "report.html",
        "config.toml",
    }
    assert {p.name for p in (folder / "north").iterdir()} == {
        "labels.csv",
        "review.csv",
        "disclosure.jsonl",
        "privacy.jsonl",
        "privacy.key",
    }
    rows = read(folder / "north" / "labels.csv")
    assert list(rows[0]) == ["id", "label", "confidence", "abstained", "given", "proposed"]
    party = result[0]
    for i, row in enumerate(rows):
        assert row["id"] == str(i + 1) and row["abstained"] == str(int(party.abstained[i]))
        assert row["label"] == ("" if party.abstained[i] else str(party.labels[i])) and row["proposed"] == str(party.proposed[i])
        assert row["given"] == ("" if party.given[i] < 0 else str(party.given[i]))
        assert float(row["confidence"]) == pytest.approx(party.confidence[i], abs=1e-6)
    review = read(folder / "north" / "review.csv")
    unlabelled = sorted(float(row["confidence"]) for row in rows if not row["given"])
    assert [float(row["confidence"]) for row in review] == unlabelled[:50]
    assert len(read(folder / "south" / "review.csv")) == 24  # no more than there are


def test_the_disclosure_log_has_every_field_that_left(tmp_path):
    result = label(blobs(), out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "party-1" / "disclosure.jsonl").read_text().splitlines()]
    assert all(list(line) == ["time", "step", "peer", "field", "type", "shape", "bytes", "hash", "reveals"] for line in lines)
    fields = {(line["step"], line["field"]) for line in lines}
    told = {("keys", "offer"), ("share", "own"), ("share", "labelled"), ("share", "spread"), ("receive", "hits")}
    assert told <= fields
    sent = sum(line["bytes"] for party in result for line in party.disclosure)
    messages = sum(line["messages"] for line in result.messages if line["direction"] == "up")
    assert result.bytes_up == sent + 13 * messages  # frame and the dict around the fields: see docs/wire-format.md
    own = next(line for line in lines if line["field"] == "own")
    assert own["shape"] == [20, 20] and own["type"] == "uint16" and len(own["hash"]) == 64


@pytest.mark.parametrize(
    "secure", ["mlwe", "psm", "plain", *(pytest.param(p, marks=pytest.mark.slow) for p in ("ot", "paillier"))]
)
def test_everything_a_protocol_sends_has_a_word_on_what_it_reveals(secure):
    if secure == "paillier":
        pytest.importorskip("gmpy2")
    result = label(blobs((8, 9, 10), labelled=3), secure=secure, bits=16, neighbours=3)
    lines = [line for party in result for line in party.disclosure]
    assert all(line["reveals"] for line in lines)
    told = {line["field"]: line["reveals"] for line in lines if line["step"] in ("keys", "share", "meet")}
    assert told["prelude"].startswith("public values" if secure == "ot" else "nothing: empty")
    assert told["first"].startswith({"psm": "alone nothing", "plain": "EVERYTHING"}.get(secure, "nothing"))


def test_moments_reveal_what_is_summed():
    def told(**settings):
        lines = label(blobs(), **settings)[0].disclosure
        return next((line["reveals"] for line in lines if (line["step"], line["field"]) == ("pool", "share")), "")

    assert told(preset="paper").endswith("open the pooled counts, means and variances of the features")
    assert told(preset="paper", scale="none") == ""
    assert told(scale="none").endswith("open the number of labels of each class")


def test_a_result_is_reported_again_from_its_folder_alone(tmp_path):
    label(blobs(), out=tmp_path / "out", baselines=True)
    first = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    again = report.write(tmp_path / "moved").read_text(encoding="utf-8")
    assert again == first and "Graph of the rows" in first
    result = json.loads((tmp_path / "moved" / "result.json").read_text())
    assert result["job"] == "label" and result["accuracy"] == 1.0 and len(result["graph"]["x"]) == 62
    assert [row["id"] for row in result["per_client"]] == ["party-1", "party-2", "party-3"]


def test_a_folder_that_cannot_be_finished_is_not_begun(tmp_path):
    result = label(blobs())
    result[2].disclosure.append(dict(step="x", field="y", reveals={1, 2}))  # JSON has no sets
    with pytest.raises(TypeError):
        label_result.write(tmp_path / "out", result)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path):
    (tmp_path / "out").mkdir()
    label(blobs(), out=tmp_path / "out")
    assert (tmp_path / "out" / "result.json").exists() and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(Mistake, match="exists and is not empty"):
        label(blobs(), out=tmp_path / "out")
    with pytest.raises(Mistake, match=r"below cannot be a folder \(not a directory\): choose"):
        label(blobs(), out=tmp_path / "out" / "result.json" / "below")


def test_equal_stems_get_their_folder_in_front(tmp_path):
    for name in ("a/rows.csv", "b/rows.csv", "other.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert party_names([str(tmp_path / n) for n in ("a/rows.csv", "b/rows.csv", "other.csv")]) == ["a-rows", "b-rows", "other"]
    with pytest.raises(Mistake, match="given twice"):
        party_names([str(tmp_path / "other.csv"), str(tmp_path / "a" / ".." / "other.csv")])


# ---------------------------------------------------------------- beforehand


@pytest.mark.parametrize(("secure", "bits"), [("plain", 512), ("psm", 512), ("mlwe", 128)])
def test_a_dry_run_says_the_bytes_that_a_run_sends(secure, bits):
    parties = blobs((40, 30, 50))
    settings = dict(secure=secure, bits=bits, baselines=True)
    plan, result = label(parties, dry_run=True, **settings), label(parties, **settings)
    said = sum(line["bytes"] for lines in plan["parties"].values() for line in lines)
    assert list(plan["parties"]) == [p.name for p in result]
    assert said == pytest.approx(result.bytes_up, rel=0.05)
    assert plan["minutes"] < 1 and plan["advice"] is None and 100 < plan["memory_mb"] < 2000


def test_a_long_job_is_told_what_takes_less():
    X = np.broadcast_to(np.zeros(4), (20000, 4))
    parties = [Party(f"p{i}", X, ["a"] + [None] * 19999, []) for i in range(12)]

    def advice(secure, bits=4096, parties=parties, groups=1):
        method = labelling.make_method(LabelSettings(method="xclp", secure=secure, bits=bits, groups=groups, preset="paper"))
        return disclosure.plan(parties, method)

    long = advice("mlwe")
    groups, minutes = map(int, re.search(r"--groups (\d+), about (\d+) minutes", long["advice"]).groups())
    assert long["minutes"] > 60 and groups <= 12 // 3
    followed = advice("mlwe", groups=groups)
    assert followed["advice"] is None and round(followed["minutes"]) == minutes
    assert "--bits 1024" in long["advice"] and advice("mlwe", bits=1024)["minutes"] < 0.7 * long["minutes"]
    slow = advice("ot", parties=parties[:3])["advice"]
    assert "--secure psm" in slow and "--groups" not in slow  # three parties make one group


def test_what_is_learnt_is_said_by_the_settings():
    parties = blobs()
    said = " ".join(label(parties, dry_run=True)["learns"])
    assert "Hamming distances between all rows" in said and "pooled mean" in said
    assert "pooled mean" not in " ".join(label(parties, dry_run=True, scale="none")["learns"])
    assert "how many labels each class has" in said and "covariance" not in said
    both = " ".join(label(parties, dry_run=True, baselines=True)["learns"])
    assert "each class's mean and covariance" in both and "for fedcof the server learns each party's class sums" in both
    assert "how many labels each class has" not in " ".join(label(parties, dry_run=True, preset="paper")["learns"])
    assert "each thereby learns the other's" in " ".join(label(parties[:2], dry_run=True)["learns"])
    assert any("2 parties" in note for note in label(parties[:2], dry_run=True)["warnings"])


@pytest.mark.parametrize(
    ("parties", "settings", "sentence"),
    [
        (blobs()[:1], {}, "1 party was given"),
        ([], {}, "0 parties were given"),
        ([], dict(label="y"), "0 parties were given"),
        (blobs(labelled=0), {}, "no party has a labelled row"),
        ([*blobs()[:2], (np.ones((4, 6)), [0, 1, -1, -1], [0, 1, 0, 1])], {}, "party-3 has 6 features and party-1 has 5"),
        ([*blobs()[:2], (np.ones((4, 5)), [0, 1, -1], [0, 1, 0, 1])], {}, "party-3 has 4 rows and 3 labels"),
        ([*blobs()[:2], (np.full((4, 5), np.nan), [0, 1, -1, 1], [0, 1, 0, 1])], {}, "party-3, row 1, column 1 is nan"),
        ([*blobs()[:2], (np.full((4, 5), -np.inf), [0, 1, -1, 1], [0, 1, 0, 1])], {}, "row 1, column 1 is -inf"),
        ([*blobs()[:2], ([["x"] * 5] * 4, [0, 1, -1, 1], [0, 1, 0, 1])], {}, "party-3: X is not a table of numbers"),
        ([*blobs()[:2], (np.ones((0, 5)), [], [])], {}, "give at least one row"),
        (blobs(), dict(secure="rot13"), "secure is rot13, which is not a known value: use mlwe, psm, paillier, ot or plain"),
        (blobs(), dict(bits=0), "bits is 0"),
        (blobs(), dict(alpha=1), "alpha is 1"),
        (blobs(), dict(neighbours=0), "neighbours is 0"),
        (blobs(), dict(neighbours="many"), "neighbours is many, which is not a whole number or auto"),
        (blobs(), dict(abstain=2), "abstain is 2"),
        (blobs(), dict(groups=2), "groups is 2, but 3 parties can form 1 to 1"),
        (blobs(), dict(scale="log"), "scale is log, which is not a known value: use auto, standard, one or none"),
        (blobs(), dict(neighbors=5), "label has no setting 'neighbors' (did you mean 'neighbours'?)"),
        (blobs(), dict(bits=2.5), "bits is 2.5, which is not a whole number"),
        (blobs(), dict(names=["a", "b", "a"]), "two parties are called 'a'"),
        (blobs(), dict(names=["a", "b", "../c"]), "without slashes"),
        (blobs(), dict(names=["a", "b", "messages.jsonl"]), "but the job writes a file of that name: rename the party"),
        (blobs(), dict(names=["a"]), "names has 1 entries for 3 parties"),
        (blobs(), dict(id="patient"), "id is for files, but the parties are arrays: leave it out, or give them as files."),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(parties, settings, sentence):
    with pytest.raises(Mistake) as told:
        label(parties, **settings)
    assert sentence in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("who", ["party-1", "the parties"])
def test_an_id_or_a_measurement_is_no_label(who):
    """It ran to the end, and 360 notes said that no row gets a class."""
    draw, n = np.random.default_rng(0), 150 if who == "party-1" else 15
    X = draw.normal(size=(n, 3))
    for kind in (lambda i: np.arange(n) + n * i, lambda i: [f"case-{i}-{j}" for j in range(n)],
                 lambda i: np.round(draw.uniform(9, 10.2 if n < 99 else 16, n), 2)):  # fmt: skip
        with pytest.raises(Mistake, match=f"{who}: .* labelled rows have .* different labels, .* Is this the label"):
            gv.label([(X, kind(i)) for i in range(2)], dry_run=True)
    labels = np.repeat(np.arange(n // 3 + 1), 3)[:n]
    gv.label([(X, labels), (X + 1, labels)], dry_run=True)  # classes of which a party has three labels
    codes = 1000 * np.arange(20)  # a party of many classes has one label of each
    gv.label([(X[:1].repeat(20, 0), codes), (X[:1].repeat(20, 0), codes), (X[:1].repeat(20, 0), codes)], dry_run=True)


def test_parties_from_files_are_called_as_their_files(tmp_path):
    with pytest.raises(Mistake, match="names is for arrays, but the parties are files: leave it out"):
        gv.label([tmp_path / "a.csv", tmp_path / "b.csv"], label="y", names=["north", "south"])


def test_a_table_under_two_paths_is_refused(tmp_path):
    """Only the same path was, so a copy counted as another party."""
    table = "id,a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 3},{i % 2 or ''}\n" for i in range(30))
    for name, text in dict(a=table, copy=table, b=table.replace("29,1,", "29,2,")).items():
        (tmp_path / f"{name}.csv").write_text(text)
    a, copy, b = (tmp_path / f"{name}.csv" for name in ("a", "copy", "b"))
    with pytest.raises(Mistake, match="a.csv and .*copy.csv hold the same rows with the same ids: name each party once"):
        gv.label([a, b, copy], label="y", dry_run=True)
    gv.label([a, b], label="y", dry_run=True)


def test_new_labels_by_class_are_those_of_the_parties():
    """The sum over all rows also counted what was proposed for labelled rows, and rows that abstain."""
    made = label(blobs(spread=2.0), method="chorus", abstain=0.9, seed=3)
    new = [str(label) for party in made for label, known in zip(party.labels, party.known) if not known and label != -1]
    assert 0 < len(new) < sum((~party.known).sum() for party in made)
    assert {name: line["given"] for name, line in made.recall.items()} == {name: new.count(name) for name in "012"}


def test_warnings():
    parties = blobs()
    names = ["Melanoma", "melanoma", "nevus"]
    named = [(X, [None if c < 0 else names[c] for c in y]) for X, y, _ in parties]
    notes = gv.label(named, **QUICK).warnings
    assert any("'Melanoma' and 'melanoma' are treated as different" in note for note in notes)
    only = [(X, np.where(y >= 0, 0, -1), t) for X, y, t in parties]
    assert any("every label is '0'" in note for note in label(only).warnings)
    for method in ("chorus", "xclp"):  # it was "expected 100 %, alone 0 %"
        made = label(only, method=method)
        assert made.expected is None and made.recall == {} and all(party.verdict is None for party in made)
    assert any("all are neighbours" in note for note in label(parties, neighbours=100).warnings)


@pytest.mark.parametrize("method", ["chorus", "xclp"])
def test_a_group_without_labels_is_named(method):
    parties = [(X, y if i % 2 else np.full_like(y, -1), t) for i, (X, y, t) in enumerate(blobs((20, 24, 18, 20)))]
    with pytest.raises(Mistake, match="no party of the group party-1, party-3 has a labelled row: label a few rows there"):
        label(parties, method=method, groups=2)


def test_what_a_party_notices_of_its_rows_is_a_mistake():
    rows = [(np.ones((20, 2)), np.arange(20) % 2) for _ in range(3)]
    with pytest.raises(Mistake, match="^no column is usable"):
        gv.label(rows, secure="plain")


def test_where_all_rows_have_labels_no_class_is_missed():
    made = label([(X, t, t) for X, _, t in blobs()], method="chorus")
    assert not any("no row gets the class" in note for note in made.warnings)


def test_heads_label_the_jobs_own_arrays_where_values_are_missing():
    parties = blobs((40, 40, 40), labelled=15)
    for X, _, _ in parties:
        X[::4, 3] = np.nan
    made = label(parties, method="chorus", impute=True, secure="plain")
    proba = made.heads.predict_proba(parties[0][0])
    assert proba.shape == (40, 3) and np.isfinite(proba).all()
    encoded = np.c_[parties[0][0], np.isnan(parties[0][0][:, 3])]
    np.testing.assert_array_equal(made.heads.predict_proba(encoded), proba)


def test_why_no_row_gets_a_class(tmp_path):
    """It was "it has too few labels" where every row was labelled already, and where --abstain held them all back."""
    parties = blobs(labelled=12)
    full = gv.label([(X, t) for X, _, t in parties], secure="plain", out=tmp_path / "full")
    assert [note for note in full.warnings if "label" in note] == ["every row is labelled already, so there are no new labels."]
    page = (tmp_path / "full" / "report.html").read_text(encoding="utf-8")
    assert "There are no new labels: we hid 62 known labels" in page and "of the new labels are expected" not in page
    said = label(blobs(spread=4.0), method="chorus", secure="plain", seed=1, abstain=0.9999999).warnings
    assert "no row gets a label: none of 44 rows is as sure as --abstain 0.9999999 asks." in said
    assert not [note for note in said if "class" in note]


def test_columns_that_play_no_part_are_told():
    """A column in which a few rows differ is left out of every sum; nobody was told."""
    rows = [(np.c_[X, np.arange(len(X)) < 2, np.ones(len(X))], y) for X, y, _ in blobs((30, 30, 30), labelled=12)]
    why = "played no part: fewer than 10 rows differ there from the most common value."
    assert f"2 columns (x6, x7) {why}" in gv.label(rows, secure="plain", seed=0).warnings
    pandas = pytest.importorskip("pandas")
    tables = [pandas.DataFrame(X, columns=list("abcdefg")).assign(label=[None if c < 0 else f"k{c}" for c in y]) for X, y in rows]
    assert f"2 columns (f, g) {why}" in gv.label(tables, label="label", secure="plain", seed=0).warnings


def test_classes_that_no_row_gets_share_a_line():
    """An id column as label made 360 lines."""
    parties = [PartyLabels("a", ["1", "2"], ["x", None], np.ones(2), np.ones((2, 1)), [None, None], ["x", "y"],
                           np.array([False, True]))]  # fmt: skip
    recall = {name: dict(n=n, given=name == "x") for name, n in dict(x=9, y=9, **{f"c{i}": 2 for i in range(9)}, z=40).items()}
    assert label_notes.never(recall, parties, LabelSettings(abstain=0.5)) == [
        "no row gets the class 'y': no row that would get it is as sure as --abstain 0.5 asks.",
        "no row gets 9 of 12 classes ('c0', 'c1', 'c2', 'c3', 'c4' and 4 more): they have too few labels (at most 2 each).",
        "no row gets the class 'z': no row without a label is most like it.",
    ]


def test_a_target_counts_with_hidden_labels_that_were_oftener_wrong_than_told():
    """Of labels that were to be right 99 % of the time, 95 % were: the probabilities alone chose which."""
    sure = np.linspace(0.95, 0.9999, 100)
    rows = np.array([*np.zeros(19), 400.0])
    honest, proud = (dict(rows=rows, hits=rows * share, sure=rows * 0.98) for share in (0.98, 0.94))
    usual = threshold(sure, 0.98)
    assert threshold(sure, 0.98, honest) == usual == threshold(sure, 0.98, dict(rows=[], hits=[], n=3))
    assert threshold(sure, 0.98, dict(honest, hits=rows)) == usual  # luck is no reason to be surer
    kept = 1 - sure[sure >= threshold(sure, 0.98, proud)]
    assert 0 < len(kept) < (sure >= usual).sum() and kept.mean() * 25 / 9 <= 0.02 < np.mean(1 - sure) * 25 / 9


def test_what_is_expected_is_of_the_labels_that_are_given():
    """Beside "to be right 99 % of the time" stood what is expected if no row abstains."""
    table = [dict(n=n, right=right) for n, right in ((0, 0), (100, 50), (0, 0), (300, 294))]
    told = dict(accuracy=0.86, low=0.8, high=0.9, alone=0.5, n=400, calibration=table)
    confidence, out = np.array([0.3, 0.6, 0.9, 0.9, 0.9, 1.0]), np.array([True, True, False, False, False, False])
    none = [None] * 6
    party = PartyLabels("a", list("123456"), none, confidence, np.ones((6, 1)), none, ["x"] * 6, out)
    found = expected.of_given(told, [party])
    assert found["accuracy"] == 0.86 and found["given"]["accuracy"] == pytest.approx(0.98) and found["given"]["n"] == 300
    assert (found["given"]["low"], found["given"]["high"]) == pytest.approx(expected.wilson(294, 300))
    assert expected.of_given(told, [replace(party, abstained=out & False)]) == told
    both = expected.of_given(told, [replace(party, abstained=confidence < 0.5)])["given"]  # 0.6 counts with the bin below
    assert both["n"] == 400 and both["accuracy"] == pytest.approx(0.2 * 0.5 + 0.8 * 0.98)
    said = label_notes.aimed([party], 0.99, found)
    assert said == ["to be right 99% of the time, 4 of 6 rows get a label (66.7%); the others abstain."]
    said = label_notes.aimed([party], 0.998, found)[1:]
    assert said == ["of hidden labels about as sure as these, 98.0% (95.7% to 99.1%) were right: 99.8% is not reached."]
    few = dict(found, given=dict(found["given"], n=120))
    assert "only 120 hidden labels were about as sure as these" in label_notes.aimed([party], 0.99, few)[1]
    assert len(label_notes.aimed([party], 0.95, few)) == 1  # even the interval is above it
    all = label_notes.aimed([replace(party, abstained=out & False)], 0.85, told)  # it was "the others abstain"
    assert all == ["to be right 85% of the time, 6 of 6 rows get a label (100.0%)."]


# ---------------------------------------------------------------- the picture


def test_components_of_a_graph_lie_apart():
    blocks = [np.ones((20, 20)) - np.eye(20)] * 3
    W = sp.csr_array(sp.block_diag(blocks)) / 19
    smooth = layout.smooth(W)
    assert smooth["coordinates"].shape == (60, layout.DIMENSIONS) and (smooth["rows"] == np.arange(60)).all()
    Z = layout.plane(smooth["coordinates"])
    distance = np.linalg.norm(Z[:, None] - Z[None], axis=2)
    same = np.arange(60)[:, None] // 20 == np.arange(60)[None] // 20
    np.fill_diagonal(distance, np.inf)
    assert np.isfinite(Z).all() and (same[np.arange(60), distance.argmin(1)]).mean() == 1
    assert np.median(distance[~same]) > 2 * np.median(distance[same & np.isfinite(distance)])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_picture_of_very_few_rows(n):
    Z = layout.plane(layout.smooth(sp.csr_array(np.zeros((n, n))))["coordinates"])
    assert Z.shape == (n, 2) and np.isfinite(Z).all()


def test_the_picture_is_a_sample_with_owners_and_rows():
    parties = blobs((500, 400, 300))
    result = label(parties, neighbours=3)
    graph = result.graph
    assert len(graph["party"]) == layout.MOST
    of = [np.flatnonzero(graph["party"] == i) for i in range(3)]
    assert all(len(np.unique(graph["row"][rows])) == len(rows) for rows in of)
    assert all(graph["row"][rows].max() < len(X) for rows, (X, *_) in zip(of, parties))
    # Rows of one class lie together: the coordinates belong to the rows they are given for.
    truth = np.array([parties[p][2][r] for p, r in zip(graph["party"], graph["row"])])
    U = graph["coordinates"] / np.linalg.norm(graph["coordinates"], axis=1, keepdims=True)
    near = U @ U.T
    np.fill_diagonal(near, -1)
    assert (truth[near.argmax(1)] == truth).mean() > 0.95


def test_many_parties_with_the_same_verdict_share_a_sentence():
    """Ten parties had ten sentences that differed in three numbers; the table below them has those."""
    better = dict(n=15, right=15, own=4, apart=11, has_own=True, own_kept=False)
    level = dict(better, own=14, apart=1)
    parties = [(f"p{i}", better) for i in range(12)] + [("west", level), ("south", None)]
    assert expected.verdict_lines(parties) == [
        "1 of 14 parties: cannot be checked at the party, which has no labels of its own: rely on the accuracy over all (south).",
        "12 of 14 parties: better than the party's own model (p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 and 2 more).",
        "1 of 14 parties: not different from the party's own model beyond chance (west).",
    ]
    told = expected.verdict_lines([("west", level)])
    assert told == [
        "west: not different from the party's own model beyond chance. Of 15 labels that were hidden, 15 were "
        "recovered (100.0%; 79.6% to 100.0%), 14 by its own model."
    ]


def test_xclp_has_a_verdict_over_all_parties(tmp_path, capsys):
    """Terminal and page said 67.5 % together and 69.0 % alone, and nothing of what that means; nor of how many labels."""
    e = dict(n=40, accuracy=0.675, alone=0.69, low=0.52, high=0.799)
    (said,) = expected.verdict_of_all(e)
    assert said.startswith("All parties: together not different beyond chance from each party alone. Of 40 labels that were hid")
    assert "together better than" in expected.verdict_of_all(dict(e, accuracy=0.9, low=0.77, high=0.96))[0]
    assert "together worse than" in expected.verdict_of_all(dict(e, alone=0.9))[0] and expected.verdict_of_all(None) == []
    made = label(blobs(), out=tmp_path / "out", seed=1)
    show_labels(made, tmp_path / "out")
    told, (said,) = " ".join(capsys.readouterr().out.split()), expected.verdict_of_all(made.expected)
    assert said in told and f"we hid {made.expected['n']} of 18 known labels" in told
    assert said in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


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
