"""The page of a label job: with and without a truth, its baselines, its calibration, and its tiles in a browser."""

from __future__ import annotations

import json

import pytest
from pages import SUMMARY, Page, check_structure

from grapevine import report
from grapevine.report import label as label_page
from grapevine.report.charts import marks


def test_calibration_bars_have_their_counts_and_gaps_where_no_label_was():
    """Bars of bins without labels were left out, so that the others stood beside one another as if nothing were missing."""
    bins = [
        {"from": i / 20, "to": (i + 1) / 20, "n": n, "right": n, "sure": 0.9 * n}
        for i, n in enumerate([0] * 12 + [3, 2, 0, 0, 0, 0, 1, 40])
    ]
    (chart,) = label_page._calibration(dict(calibration=bins, calibration_error=0.1))
    bars = [mark for mark in chart.drawing.marks if isinstance(mark, marks.Group)]
    words = [[inside.words for inside in bar.marks if isinstance(inside, marks.Words)] for bar in bars]
    cuts = [[inside for inside in bar.marks if isinstance(inside, marks.Line) and inside.look == "cut"] for bar in bars]
    assert words == [["5"], [], [], ["41"]] and [len(inside) for inside in cuts] == [1, 0, 0, 1]
    assert [bar.tip.splitlines()[0] for bar in bars][1:3] == [
        f"probability {span} (no label)" for span in ("70% to 80%", "80% to 90%")
    ]
    full = [{"from": i / 20, "to": (i + 1) / 20, "n": 1, "right": 1, "sure": 0.9} for i in range(20)]
    (chart,) = label_page._calibration(dict(calibration=full, calibration_error=0.1))
    below = [mark.words for mark in chart.drawing.marks if isinstance(mark, marks.Words) and mark.y > 200]
    assert below == ["0%", "20%", "40%", "60%", "80%", "100%", "probability"]  # with 90% beside 100% they ran together
    (chart,) = label_page._calibration(dict(calibration=bins, calibration_error=0.1))
    assert [row[:2] for row in chart.numbers[0].rows] == [
        ["60% to 65%", 3],
        ["65% to 70%", 2],
        ["90% to 95%", 1],
        ["95% to 100%", 40],
    ]


def test_a_label_job_with_truth(tmp_path):
    seen = Page(label_page.write(tmp_path, SUMMARY).read_text(encoding="utf-8"))
    check_structure(seen)
    assert "365 rows got a label from the 30 that had one, without moving any row." in seen.words
    together, alone = (85 * 0.9 + 280 * 0.8) / 365, (85 * 0.7 + 280 * 0.6) / 365
    assert f"Of the new labels, {together:.1%} are right; each party alone would reach {alone:.1%}." in seen.words
    assert seen.tables[""][0][1:] == [
        ["a", "100", "10", "85", "5", "90.0%", "70.0%"],
        ["b", "300", "20", "280", "0", "80.0%", "60.0%"],
    ]
    assert seen.tables["Together and alone"][0][1:] == [["b", "80.0%", "60.0%"], ["a", "90.0%", "70.0%"]]
    assert [row[1:3] for row in seen.tables["Calibration"][0][1:]] == [["10", "60.0%"], ["30", "96.7%"]]
    assert [row[1] for row in seen.tables["Confidence of all new labels"][0][1:]] == ["14"] * 19 + ["99"]
    assert seen.tables["Rows per class"][0][1:] == [["cat", "160"], ["dog", "235"]]
    assert seen.tables["Classes per party"][0][1:] == [["a", "60", "35"], ["b", "100", "200"]]
    assert seen.tables["Graph of the rows"][0][1:] == [["cat", "1"], ["dog", "1"], ["no label", "1"]]
    assert seen.tables["What it reveals"][0][1:] == [["hash", "up", "nothing", "1.5 kB", "2"]]


def test_baselines_of_a_label_job_are_a_chart(tmp_path):
    others = [dict(alone=0.7, nearest=0.5, fed3r=None), dict(alone=0.6, nearest=None, fed3r=0.75)]
    parties = [dict(party, other_accuracy=other) for party, other in zip(SUMMARY["parties"], others)]
    summary = dict(SUMMARY, accuracy=0.82, other_accuracy=dict(alone=0.62, nearest=0.5, fed3r=0.75), parties=parties)
    seen = Page(label_page.write(tmp_path, summary).read_text(encoding="utf-8"))
    check_structure(seen)
    assert seen.tables["Baselines"][0] == [
        ["labelled by", "right", "worst party", "best party"], ["together", "82.0%", "80.0%", "90.0%"],
        ["each party alone", "62.0%", "60.0%", "70.0%"], ["nearest own labelled row", "50.0%", "50.0%", "50.0%"],
        ["fed3r", "75.0%", "75.0%", "75.0%"],
    ]  # fmt: skip
    assert seen.tables[""][0][0][5:] == ["right, together", "right, alone"]
    assert "Baselines" not in Page(label_page.write(tmp_path, SUMMARY).read_text(encoding="utf-8")).tables


def test_a_label_job_without_truth_tells_what_to_expect(tmp_path):
    parties = [dict(party, accuracy=None, alone_accuracy=None) for party in SUMMARY["parties"]]
    unknown = dict(SUMMARY, parties=parties, graph=None, warnings=["Melanoma and melanoma differ in spelling."])
    seen = Page(label_page.write(tmp_path, unknown).read_text(encoding="utf-8"))
    check_structure(seen)
    assert "About 87.5% of the new labels are expected to be right: we hid 40 known labels and recovered 35 of them" in seen.words
    assert seen.tables["Together and alone"][0][1:] == [["all parties", "87.5%", "62.5%"]]
    assert "Melanoma and melanoma differ in spelling." in seen.words and "Graph of the rows" not in seen.tables
    seen = Page(label_page.write(tmp_path, dict(unknown, expected=None)).read_text(encoding="utf-8"))
    assert "How many of them are right is not known" in seen.words and "Together and alone" not in seen.tables


def test_a_label_job_saved_as_its_result_is_reported_again(tmp_path):
    first = label_page.write(tmp_path, SUMMARY).read_bytes()
    (tmp_path / "result.json").write_text(json.dumps(dict(SUMMARY, job="label")))
    assert report.write(tmp_path).read_bytes() == first


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 900, 375])
def test_large_numbers_stay_inside_their_tiles(browser, tmp_path, width):
    large = dict(SUMMARY["bytes_by_step"][0], bytes=244_600_000)
    browser.visit(label_page.write(tmp_path, dict(SUMMARY, bytes_by_step=[large])), width, False)
    assert "244.6 MB" in browser.ask("document.querySelector('.tiles').textContent")
    room = "[...document.querySelectorAll('.tiles dd')].map(d => { const r = document.createRange(); r.selectNodeContents(d);"
    room += "return d.parentElement.getBoundingClientRect().right - r.getBoundingClientRect().right; })"
    assert min(browser.ask(room)) >= 8
