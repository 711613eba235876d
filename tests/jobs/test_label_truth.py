"""What the truth says of a label job: values that are no class, parties that cannot train alone, rows that abstain."""

import numpy as np
import pytest

import grapevine as gv
from grapevine.cli.terminal import show_labels
from grapevine.core.errors import Mistake
from grapevine.jobs import label_notes
from grapevine.jobs.label_result import PartyLabels, summary_json
from grapevine.jobs.settings import LabelSettings

QUICK = dict(method="xclp", secure="plain", bits=256, neighbours=5, alpha=0.9, seed=1)


def blobs(n=30, labelled=6, parties=3, spread=0.5):
    draw, out = np.random.default_rng(0), []
    for _ in range(parties):
        truth = np.arange(n) % 3
        X = 5 * np.eye(5)[truth] + spread * draw.standard_normal((n, 5))
        out.append((X, np.where(np.arange(n) < labelled, truth, -1), truth))
    return out


def label(parties, **settings):
    return gv.label([(X, y) for X, y, _ in parties], **{**QUICK, "truth": [t for *_, t in parties], **settings})


def test_true_labels_that_are_no_class_are_named():
    """They counted as wrong, and nobody was told."""
    parties = blobs()
    assert not [note for note in label(parties).warnings if "count as wrong" in note]
    parties[0][2][10:14], parties[1][2][29] = 7, 8
    (said,) = [note for note in label(parties).warnings if "count as wrong" in note]
    assert said == "true labels that are not classes of this job count as wrong: '7' (4 rows), '8' (1 row)."


def test_a_party_with_one_class_is_right_on_that_class_alone():
    """Alone it had 0.0 % of its rows right, as if it knew no class."""
    parties = blobs()
    X, y, truth = parties[0]
    parties[0] = X, np.where(truth == 2, y, -1), truth
    party = label(parties, method="chorus")[0]
    assert set(party.others["alone"].tolist()) == {2} and party.alone_accuracy == pytest.approx(8 / 28)


def test_a_party_without_labels_cannot_train_alone():
    """It had 0.0 % right alone. Over all parties none of its rows are right, since the rows are the same for all."""
    parties = blobs()
    parties[1][1][:] = -1
    made = label(parties, method="chorus")
    assert made[1].alone_accuracy is None and made[1].accuracy is not None
    each = [(p.alone_accuracy or 0.0, p.measured) for p in made]
    assert made.alone_accuracy == pytest.approx(sum(a * n for a, n in each) / sum(n for _, n in each))


def test_the_histogram_is_of_new_labels_alone():
    """Rows that abstained counted, too."""
    made = label(blobs(spread=3.0), method="chorus", abstain=0.8)
    assert sum(p.counts["abstained"] for p in made)
    drawn = [sum(party["confidence_histogram"]) for party in summary_json(made)["parties"]]
    assert drawn == [p.counts["new"] for p in made]


def test_rows_on_which_job_and_baseline_differ_are_counted():
    made = label(blobs(spread=3.0), method="chorus", baselines=True)
    rows = [(np.asarray(p.labels), np.asarray(p.others["nearest"]), t, ~p.known) for p, (*_, t) in zip(made, blobs())]
    job, other = (np.concatenate([(each[i] == each[2])[each[3]] for each in rows]) for i in (0, 1))
    assert made.differ["nearest"] == ((job & ~other).sum(), (other & ~job).sum())
    assert job.mean() - other.mean() == pytest.approx(made.accuracy - made.other_accuracy["nearest"])


def test_a_job_without_a_new_label_says_why_baselines_are_not_compared(tmp_path, capsys):
    """The table was missing, and "0 rows got a label from the 18 that had one, without moving any row"."""
    made = label(blobs(spread=4.0), method="chorus", baselines=True, abstain=0.9999999, out=tmp_path / "out")
    assert (
        "no new label has a known truth, so the baselines cannot be compared; their labels are in baselines.csv." in made.warnings
    )
    show_labels(made, tmp_path / "out")
    assert "Expected accuracy, if no row abstained: " in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "No row got a new label: 72 rows stay without one." in page and "If no row abstained, about " in page
    assert "0 rows got a label" not in page


def test_a_class_that_was_never_recovered_is_told():
    """0 of 23 stood in a table alone."""
    none, out = [None] * 2, np.array([True, True])
    party = PartyLabels("a", ["1", "2"], none, np.ones(2), np.ones((2, 1)), none, ["x", "y"], out)
    recall = dict(A=dict(n=23, found=0.0, given=0), N=dict(n=97, found=80.0, given=0), B=dict(n=4, found=0.0, given=0))
    said = ["none of the 23 hidden labels of the class 'A' was recovered, so its rows are taken for other classes."]
    assert label_notes.unfound(recall, [party], LabelSettings()) == said
    labels = PartyLabels("a", ["1", "2"], ["N", "N"], np.ones(2), np.ones((2, 1)), none, ["N", "N"], ~out)
    assert label_notes.unfound(recall, [labels], LabelSettings()) == []  # of which `never` says that no row gets it
    recall["A"]["given"] = recall["B"]["given"] = 1
    assert label_notes.unfound(recall, [labels], LabelSettings()) == said
    recall["B"]["n"] = 9
    assert label_notes.unfound(recall, [labels], LabelSettings()) == [
        "no hidden label of 2 classes was recovered, so their rows are taken for others: 'A' (0 of 23), 'B' (0 of 9)."
    ]


def test_what_a_target_leaves_is_no_warning():
    """ "to be right 95% of the time, 312 of 312 rows get a label" stood in a box for warnings."""
    made = label(blobs(), method="chorus", target=0.5)
    assert made.remarks == ["to be right 50% of the time, 72 of 72 rows get a label (100.0%)."]
    assert not [note for note in made.warnings if note in made.remarks] and label(blobs()).remarks == []


def test_a_seed_is_not_negative():
    """It was taken, and any party's generator may refuse it."""
    for run in (lambda: label(blobs(), seed=-1), lambda: gv.train("fedavg", "digits", seed=-1)):
        with pytest.raises(Mistake, match="seed is -1, which is out of range: use 0 to "):
            run()
