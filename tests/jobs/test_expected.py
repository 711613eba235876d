"""How many new labels are expected to be right, from labels that were hidden, and the verdict on labelling together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from label_job import blobs, label

from grapevine.cli.terminal import show_labels
from grapevine.jobs import expected, label_notes
from grapevine.jobs.label_party import threshold
from grapevine.jobs.label_result import PartyLabels


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
