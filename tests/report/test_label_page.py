"""The page of a label job: what is expected beside what is measured, settings that act, notes, the graph."""

import html
import re

import pages
import pytest

from grapevine.core.words import sentence
from grapevine.report import label as label_page
from grapevine.report.charts.kinds import scatter

SUMMARY = pages.SUMMARY | dict(
    expected=dict(accuracy=0.875, low=0.739, high=0.945, alone=0.625, n=40,
                  calibration=[{"from": 0.0, "to": 1.0, "n": 40, "right": 35}]),
)  # fmt: skip


def write(folder, **changes):
    return label_page.write(folder, dict(SUMMARY, **changes)).read_text(encoding="utf-8")


def words(folder, **changes):
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", write(folder, **changes))).split())


def test_what_is_expected_stands_beside_what_is_measured(tmp_path):
    """With --truth the page dropped it, which the documentation promises."""
    seen = words(tmp_path)
    assert (
        "Without the truth, about 87.5% of the new labels are expected to be right: we hid 40 known labels and recovered 35"
        in (seen)
    )
    assert "95 % interval: 73.9% to 94.5%" in seen
    given = dict(accuracy=0.9, low=0.6, high=0.98, n=12, worth=5.2)
    seen = words(tmp_path, expected=dict(SUMMARY["expected"], given=given))
    assert "by 12 hidden labels about as sure, which count as 5 because few of them are as sure" in seen


def test_settings_are_those_that_act_each_once(tmp_path):
    """A chorus job without --dp showed preset and delta, the protocol twice, and a sentence on hyperplanes twice."""
    settings = dict(method="chorus", secure="psm", preset="code", delta=1e-6, groups=1, smooth=False)
    changes = dict(method="chorus", protocol="psm", seed=None, seed_note="Hyperplanes are secret.")

    def shown(**more):
        text = write(tmp_path, **changes | more)
        assert text.count("Hyperplanes are secret.") == 1
        return [line.split("</th>")[0] for line in text.replace("<wbr>", "").split('<tr><th scope="row">')[1:]]

    assert shown(settings=settings) == ["method", "secure", "groups", "smooth", "version"]
    noisy = ["method", "secure", "delta", "groups", "smooth", "dp", "seed", "version"]
    assert shown(settings=dict(settings, dp=3.0), seed=4) == noisy
    xclp = dict(settings, method="xclp")
    assert shown(settings=xclp, method="xclp") == ["method", "secure", "preset", "groups", "version"]


def test_notes_are_sentences_and_remarks_are_no_notes(tmp_path):
    """Notes began in lower case, and what a target leaves stood among the warnings."""
    text = write(tmp_path, warnings=["no row gets the class 'a'."], remarks=["to be right 95% of the time, 3 of 4 rows."])
    assert '<p class="notice" role="status">No row gets the class' in text and "To be right 95% of the time" in text
    assert text.count('class="notice"') == 1


@pytest.mark.parametrize(
    "given, said",
    [("a column", "A column"), ("north has none", "north has none"), ("--spread is", "--spread is"), ("22 rows", "22 rows"),
     ("gh-ofl labels", "gh-ofl labels"), ("", "")],
)  # fmt: skip
def test_a_sentence_begins_with_a_capital_but_names_stay(given, said):
    assert sentence(given, ["north"]) == said


def test_rows_without_a_label_are_quiet_in_the_graph():
    """They were the loudest: in the colour after the classes', above them all."""
    chart = scatter("Graph", [(0, 0, "no label", "p"), (1, 1, "cat", "p")], ["cat", "no label"], quiet="no label")
    looks = [(mark.data["kind"], mark.marks[0].look, mark.marks[0].colour) for mark in chart.drawing.marks]
    assert looks == [("no label", "quiet", None), ("cat", "point", 0)]
    assert [key.mark.look for key in chart.key] == ["point", "quiet"]


def test_xclp_asks_in_english(tmp_path):
    """ "Are the labels better than each party's alone?\""""
    seen = words(tmp_path, method="xclp")
    assert "Are the labels better than those each party finds alone?" in seen


def test_baselines_that_did_better_are_told_on_the_page(tmp_path):
    parties = [dict(party, other_accuracy=dict(alone=0.7, fed3r=0.9)) for party in SUMMARY["parties"]]
    changes = dict(parties=parties, accuracy=0.82, other_accuracy=dict(alone=0.65, fed3r=0.9), differ=dict(fed3r=[3, 33]))
    seen = words(tmp_path, **changes)
    assert "fed3r (90.0%) labels more of these rows right than the job (82.0%), by more than chance explains." in seen
