"""The clean job: what is kept, corrected and excluded, how that is measured, and what travels."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from clean_job import CENTRES, QUICK, SERVER, rows, two_parties

import grapevine as gv
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.jobs import clean as cleaning
from grapevine.jobs import clean_result
from grapevine.jobs.reading import read as read_rows
from grapevine.jobs.settings import CleanSettings
from grapevine.learn import networks as models
from grapevine.methods import mp_ssfl
from grapevine.run.simulate import Simulation


@pytest.fixture(scope="module")
def one():
    return two_parties()


def test_flips_are_mended_unlabelled_rows_labelled_and_rows_between_classes_set_aside(one):
    result, (X, y, truth), (_, y2, truth2) = one
    first, second = result
    assert first.labels.dtype == np.int64 and result.classes == (0, 1, 2)
    assert (first.action[:9] == "corrected").all() and (first.labels[:9] == truth[:9]).all()
    assert first.relevant.mean() > 0.9 and (first.labels[first.relevant] == truth[first.relevant]).all()
    assert (second.action[:6] == "excluded").all() and (second.labels[:6] == -1).all()
    np.testing.assert_array_equal(first.given, y)
    np.testing.assert_array_equal(second.given, y2)
    assert first.counts["labelled"] == 1 and sum(first.counts[name] for name in mp_ssfl.ACTIONS) == 40


def test_a_result_shows_itself_in_a_few_lines(one):
    result = one[0]
    c = result[0].counts
    lines = repr(result).splitlines()
    assert lines[0] == "labels of 2 parties cleaned by mlp, 3 classes" and len(lines) == 4
    assert lines[1].split("  ")[0] == "party" and lines[1].endswith("kept  corrected  newly labelled  excluded")
    assert [int(n) for n in lines[2].split()[1:]] == [40, c["kept"], c["corrected"] - 1, 1, c["excluded"]]
    assert repr(result[1]).startswith("party-2: rows 30, kept ")


def test_loss_confidence_and_action_fit_together(one):
    """Table 1 of the paper, from the probabilities that are given back."""
    for party in one[0]:
        assert party.proba.shape == (len(party.ids), 3)
        np.testing.assert_allclose(party.proba.sum(1), 1, atol=1e-5)
        np.testing.assert_array_equal(party.confidence.astype(np.float32), party.proba.max(1))
        for p, y, loss, confidence, action in zip(party.proba, party.given, party.loss, party.confidence, party.action):
            assert math.isnan(loss) if y < 0 else loss == pytest.approx(-math.log(p[y]), rel=1e-4, abs=1e-6)
            expected = "excluded" if confidence < 0.95 else "kept" if y >= 0 and loss <= 0.5 else "corrected"
            assert action == expected


def test_rows_keep_their_order_whatever_the_workers(one):
    result, (X, y, truth), (X2, y2, _) = one
    order = np.random.default_rng(5).permutation(len(X))
    again = gv.clean([(X[order], y[order]), (X2, y2)], server=SERVER, workers=1, **QUICK)
    np.testing.assert_array_equal(again[0].action, result[0].action[order])
    np.testing.assert_allclose(again[0].confidence, result[0].confidence[order], atol=1e-6)
    np.testing.assert_array_equal(again[1].loss, result[1].loss)
    assert again[0].measured is None and again.measured is None


def test_measures_against_counts_by_hand():
    classes = ["a", "b"]
    given = ["a", "a", "a", None, "b", "c", None, "b"]
    truth = ["a", "b", "b", "b", "b", "c", None, "a"]
    labels = ["a", "b", "a", "b", None, "a", None, None]
    action = np.array(["kept", "corrected", "kept", "corrected", "excluded", "corrected", "excluded", "excluded"])
    measured = clean_result.measure(given, labels, action, truth, classes)
    counts = {name: tuple(line.values()) for name, line in measured.items()}
    assert counts == {
        "wrong labels found": (2, 1, 3),  # rows 2 and 6 were corrected; 2, 3 and 8 are wrong
        "wrong labels given the true class": (2, 1, 3),
        "unlabelled rows given the true class": (1, 1, 1),
        "irrelevant rows excluded": (3, 1, 2),  # of class c and of none
        "right labels kept": (2, 1, 2),
        "labels right before": (6, 3, 6),  # rows 1, 5 and 6: c is right, though the server does not know it
        "labels right after": (5, 3, 5),
    }
    none = clean_result.scores([dict(measured, **{"irrelevant rows excluded": dict(found=8, right=0, of=0)})])
    lines, said = clean_result.findings(none)  # once a line with the precision 0.0% of what was not there
    assert (
        "irrelevant rows excluded" not in lines
        and "Irrelevant rows excluded: 8, all of them by mistake, because by the truth there is nothing to find." in said
    )
    added = clean_result.scores([measured, measured])["irrelevant rows excluded"]
    assert added == dict(found=6, right=2, of=4, precision=1 / 3, recall=0.5)
    nothing = clean_result.scores([clean_result.measure(["a"], ["a"], np.array(["kept"]), ["a"], classes)])
    assert nothing["wrong labels found"]["precision"] is None and nothing["right labels kept"]["recall"] == 1


def test_a_class_that_the_server_does_not_know_has_an_infinite_loss_and_a_note():
    X, y = rows(30, 3)
    names = np.array(["fig", "pear", "plum"], object)
    server = ([*SERVER[0][SERVER[1] < 2]], [names[c] for c in SERVER[1] if c < 2])
    result = gv.clean([(X, [names[c] for c in y])], server=server, truth=[[names[c] for c in y]], **QUICK)
    assert result.measured["labels right before"]["precision"] == 1  # every label is right: nothing can be gained
    assert result.measured["irrelevant rows excluded"]["of"] == 10
    party = result[0]
    assert result.classes == ("fig", "pear") and any("does not know 'plum'" in note for note in result.warnings)
    strange = np.array(party.given) == "plum"
    assert np.isinf(party.loss[strange]).all() and np.isfinite(party.loss[~strange]).all()
    assert not (party.action[strange] == "kept").any() and "plum" not in party.labels


def test_a_known_class_has_a_finite_loss_however_far_the_row():
    X, y = rows(12, 3)
    X[0] *= 1e6
    y[0] = (y[0] + 1) % 3
    result = gv.clean([(X, y)], server=SERVER, **QUICK)
    assert np.isfinite(result[0].loss).all() and result[0].loss[0] > 50
    assert result[0].far.tolist() == [0] and "party-1 (1)" in "".join(result.warnings)
    assert result[0].examples["far"][0]["id"] == "1"


def test_a_label_that_the_classifier_agrees_with_is_kept_below_upsilon_too():
    """Υ below −ln τ: case 1 would replace the label by itself."""
    p, y = torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.tensor([0, 1])
    label, action, _, _ = mp_ssfl.decide(p, y, 0.5, 0.01)
    assert action.tolist() == [mp_ssfl.KEPT, mp_ssfl.CORRECTED] and label.tolist() == [0, 0]


def test_moments_are_the_servers_and_a_still_feature_says_nothing():
    x = torch.tensor([[1.0, 7.0, np.nan, 2e9], [3.0, 7.0, 4.0, 2e9 + 1]], dtype=torch.float64)
    mean, std = mp_ssfl.moments(x, "standard")
    assert mean.tolist() == [2.0, 7.0, 4.0, 2e9 + 0.5] and std.tolist() == [1.0, math.inf, math.inf, 0.5]
    theirs = Rows(torch.tensor([[4.0, 1e9, np.nan, 2e9 + 1]], dtype=torch.float64), torch.tensor([0]), torch.tensor([-1]))
    assert mp_ssfl.standardised(theirs, mp_ssfl.Clean(impute=True).fill(x), mean, std).x.tolist() == [[2.0, 0.0, 0.0, 1.0]]
    unscaled = mp_ssfl.standardised(theirs, mp_ssfl.Clean(impute=True).fill(x), *mp_ssfl.moments(x, "none"))
    assert unscaled.x[0, 2].item() == 4.0  # their mean
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    mean, std = mp_ssfl.moments(pixels, "standard")
    z = mp_ssfl.standardised(Rows(pixels, torch.arange(2), torch.arange(2)), torch.empty(0), mean, std).inputs()
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.ones(3))
    assert mp_ssfl.moments(pixels, "none")[1].shape == (3, 1, 1)


def test_missing_values_become_the_servers_mean():
    X, y = rows(20, 4)
    holes, filled = X.copy(), X.copy()
    holes[0, 1], filled[0, 1] = np.nan, SERVER[0][:, 1].mean()
    a, b = (gv.clean([(x, y)], server=SERVER, impute=True, **QUICK)[0] for x in (holes, filled))
    np.testing.assert_allclose(a.proba, b.proba, atol=1e-6)


def test_what_the_server_holds_out_says_how_far_to_trust(one):
    expected = one[0].expected
    assert expected["n"] == 12 and expected["sure_right"] <= min(expected["sure"], expected["right"]) <= 12  # a fifth of 60
    assert expected["right"] == 12
    noise = np.random.default_rng(0)
    lost = gv.clean([rows(5, 1)], server=(noise.standard_normal((40, 4)), noise.integers(0, 2, 40)), epochs=150)
    assert any("were wrong, so some corrected labels will be too" in note for note in lost.warnings)
    tiny = gv.clean([rows(5, 1)], server=(SERVER[0][:2], [0, 1]), epochs=1)
    assert tiny.expected["n"] == 0 and any("could not be checked" in note for note in tiny.warnings)
    assert any("fewer than 5 rows of '0', '1'" in note for note in tiny.warnings)


def test_what_is_said_and_does_not_stop_the_job():
    X, y = rows(20, 1)
    result = gv.clean([(np.tile(CENTRES.mean(0), (10, 1)), [0] * 10), SERVER], server=SERVER, names=["odd", "twin"], **QUICK)
    notes = " ".join(result.warnings)
    assert "odd has nothing relevant: all of its 10 rows were excluded" in notes
    assert "twin holds the server's rows" in notes and "odd holds" not in notes
    assert "1 of 4 features never change" not in notes
    still = np.hstack([SERVER[0], np.ones((60, 1))])
    assert "1 of 5 features never change" in " ".join(
        gv.clean([(np.hstack([X, X[:, :1]]), y)], server=(still, SERVER[1]), epochs=1).warnings
    )
    half = np.where(np.arange(60) < 30, SERVER[1], -1)
    assert "30 of the server's rows" in " ".join(gv.clean([(X, y)], server=(SERVER[0], half), epochs=1).warnings)


def test_every_row_has_its_place_in_the_plane():
    loss = np.array([np.nan, np.inf, 0.0, 1e-4, 0.5, 99.0, 1e9])
    confidence = np.array([0.5, 1.0, 1.0, 0.99995, 0.95, 0.0, 1.0])
    cells = clean_result.plane(loss, confidence)
    assert sum(n for *_, n in cells) == len(loss)
    rows_of = {i for i, _, _ in cells}
    assert {0, clean_result.BINS + 1, 1, clean_result.BINS} <= rows_of
    # Υ = 0.5 lies in its bin: between 10^(−4 + 6·(i−1)/24) and 10^(−4 + 6·i/24)
    i = next(i for i, j, _ in cells if j == int(-math.log10(0.05) / 4 * 24))
    assert 10 ** (-4 + 6 * (i - 1) / 24) <= 0.5 < 10 ** (-4 + 6 * i / 24)


def test_a_folder_that_cannot_be_finished_is_not_begun(one, tmp_path):
    broken = replace(one[0], messages=[{"not": {1, 2}}])  # JSON has no sets
    with pytest.raises(TypeError):
        clean_result.write(tmp_path / "out", broken)
    assert not list(tmp_path.iterdir())


def test_cleanlab_judges_a_partys_own_labels_beside_ours(tmp_path):
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(3)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 3)) + 6 * y[:, None]
    given = y.copy()
    wrong = np.arange(0, 80, 7)
    given[wrong] = 1 - y[wrong]  # far from the border
    given[80:] = -1
    few = (x[:20], np.r_[y[:4], np.full(16, -1)])
    server = (rng.normal(size=(60, 3)) + 6 * (np.arange(60) % 2)[:, None], np.arange(60) % 2)
    result = gv.clean([(x, given), few], server=server, truth=[y, y[:20]], epochs=30, out=tmp_path / "out")
    flagged = np.flatnonzero(result[0].flagged)
    assert set(flagged) <= set(wrong) and len(flagged) >= 6 and result[1].flagged is None
    assert result[0].measured["wrong labels found by cleanlab"] == dict(found=len(flagged), right=len(flagged), of=12)
    assert "wrong labels found by cleanlab" not in result.measured  # not of all parties
    summary = json.loads((tmp_path / "out" / "result.json").read_text())
    assert summary["per_client"][0]["cleanlab"] == dict(labels=80, corrected=12, flagged=len(flagged), both=len(flagged))
    assert summary["per_client"][1]["cleanlab"] is None
    assert len((tmp_path / "out" / "party-1" / "cleanlab.csv").read_text().splitlines()) == 1 + len(flagged)
    assert "Beside cleanlab" in (tmp_path / "out" / "report.html").read_text()


# ---------------------------------------------------------------- what travels


def test_nothing_leaves_a_party_but_counts_if_asked_for(one, tmp_path):
    told = one[0]
    assert told.counts["party-1"] == {name: told[0].counts[name] for name in mp_ssfl.ACTIONS}
    line = told[0].disclosure[0]
    assert line["field"] == "counts" and "kept, corrected and excluded" in line["reveals"]
    quiet = gv.clean([SERVER], server=SERVER, out=tmp_path / "out", **QUICK)
    assert quiet.counts == {} and quiet.bytes_up == len(wire.encode({}))
    lines = [json.loads(text) for text in (tmp_path / "out" / "party-1" / "disclosure.jsonl").read_text().splitlines()]
    assert [(line["field"], line["bytes"]) for line in lines] == [("", 0)] and lines[0]["reveals"].startswith("nothing")


def test_the_job_gives_the_same_bits_over_the_wire():
    """The strict mode encodes every message and makes a client anew for every step, as a network does."""
    s = CleanSettings(epochs=3)
    (own, *read), _ = read_rows(s, [rows(20, 1), rows(25, 2)], server=SERVER)
    method = cleaning.make_method(s, own)
    host, found = cleaning.make_host(s, own, method), {}
    for mode in ("fast", "strict"):
        simulation = Simulation(method, {p.name: p.data().tensors() for p in read}, host.models, mode=mode)
        server = Server(method, simulation.data, simulation, host.models, host.classes, data=host.rows)
        method.round(server, method.setup(server))
        found[mode] = simulation.manifests
    assert found["fast"] == found["strict"] and len(found["fast"]) == 2


def test_a_dry_run_says_the_bytes_that_a_run_sends(one):
    _, (X, y, _), (X2, y2, _) = one
    for counts in (True, False):
        plan = gv.clean([(X, y), (X2, y2)], server=SERVER, counts=counts, dry_run=True)
        result = gv.clean([(X, y), (X2, y2)], server=SERVER, counts=counts, epochs=1)
        frame = len(wire.encode({}))
        assert 2 * (frame + sum(line["bytes"] for line in plan["server"])) == result.bytes_down
        assert sum(frame + line["bytes"] for lines in plan["parties"].values() for line in lines) == result.bytes_up
        assert plan["parameters"] == models.parameter_count(models.build("mlp", (4,), 3)) and plan["epochs"] == 167
        assert ("nothing about any party's rows" in plan["learns"][1]) != counts


def test_randomised_labels_are_refused_since_no_label_leaves(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(Mistake, match="no label leaves it"):
        gv.clean([(x, y)], (x, y), dp_labels=3.0)
    with pytest.raises(Mistake, match="clean has no --dp: .* no sum is opened"):
        gv.clean([(x, y)], (x, y), dp=3.0)
