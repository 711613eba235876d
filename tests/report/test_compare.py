"""The page of a comparison: grids, runs that are missing, and charts and tables in a browser."""

from __future__ import annotations

import html
import re

import pytest
from chromium import Browser
from comparisons import LEVEL, headline, made_up, noisy, tabled

from grapevine.jobs import ranking
from grapevine.report import compare as compare_page
from grapevine.report import leaderboard


def test_a_page_never_names_more_clients_a_round_than_there_are(tmp_path):
    tabled(made_up(tmp_path / "c", ["fedsem"], noisy, clients=3, per_round=10))
    page = (tmp_path / "c" / "report.html").read_text()
    assert "4 rounds of 3 clients" in page and not re.search(r"per.round</\w+>\s*<\w+>10<", page)


def test_a_grid_has_a_cell_for_every_combination(grid):
    assert [cell["values"] for cell in grid.data["cells"]][:3] == [
        dict(labels="clients:20", partition="iid"), dict(labels="clients:20", partition="shards:2"),
        dict(labels="clients:40", partition="iid"),
    ]  # fmt: skip
    assert len(grid.runs) == 6 * 5 * 3 and len({run["folder"] for run in grid.runs}) == 90
    page = (grid.out / "report.html").read_text()
    assert headline(grid) == "2 methods and 3 bounds on digits, in 6 settings: best: fedprox in 3, fedsem in 3."
    panels = re.findall(r"<figcaption><h3>(partition [^<]*)</h3>", page)
    assert panels == ["partition iid", "partition shards:2"]
    assert "labels at the clients" in page


def test_a_grid_calls_nothing_best_that_a_lower_bound_beats_or_that_is_alone(tmp_path):
    """A method with 11.8 % was called best in cells where it was the only one that could run and plain averaging had 34.7 %."""

    def accuracy(label, values, seed):
        if values["labels"].startswith("server"):
            return {"semifl": 0.7, "fl2": 0.6, "server-only": 0.5, "supervised": 0.9}[label]
        return LEVEL[label] if values["partition"] == "iid" else dict(LEVEL, fedsem=0.118, fedavg=0.347)[label]

    vary = {"labels": ["clients:40", "server:40"], "partition": ["iid", "shards:2"]}
    made = tabled(made_up(tmp_path / "c", ["fl2", "semifl", "fedavg", "fedsem"], accuracy, vary, seeds=1))
    told = "best: semifl in 2; a lower bound is at least as good as every method in 1; only one method has a result in 1."
    assert headline(made) == f"3 methods and 4 bounds on digits, in 4 settings: {told}"
    assert [one["wins"] for one in ranking.ranking(ranking.places([made])) if one["method"] == "fedsem"] == [0]


def test_values_of_one_kind_have_places_on_a_line():
    assert compare_page.is_scale(["clients:20", "clients:40"]) and compare_page.is_scale([0.1, 0.2])
    assert not compare_page.is_scale(["iid", "dirichlet:0.1"]) and not compare_page.is_scale(["clients:20", "server:20"])
    assert compare_page.number("clients:1000/50") == 1000 and compare_page.number("iid") is None


def test_the_page_is_self_contained_and_works_while_runs_are_missing(tmp_path):
    plan = made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy, leave_out={("fedsem", s) for s in range(3)} | {("fedprox", 2)})
    tabled(plan)
    plan.write("going")
    page = (tmp_path / "c" / "report.html").read_text()
    assert '<meta http-equiv="refresh"' in page and "11 of 15 runs are finished" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "2 (waiting)" in page
    policy = re.search(r"script-src ([^;]*);", html.unescape(page))[1]
    assert policy.count("sha256-") == 1 == page.count("<script>")


def test_nothing_is_finished_yet(tmp_path):
    tabled(made_up(tmp_path / "c", ["fedprox"], noisy, leave_out={(label, s) for label in LEVEL for s in range(3)}))
    page = (tmp_path / "c" / "report.html").read_text()
    assert "No method has a result yet" in page and "No run is finished yet" in page


# ---------------------------------------------------------------- in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width, dark", [(1200, False), (375, True)])
def test_pages_load_without_complaint_and_fit(browser: Browser, grid, tmp_path, width, dark):
    one = tabled(made_up(tmp_path / "one", ["fedprox", "fedsem"], noisy))
    board = leaderboard.write([grid, one], tmp_path / "l.html")
    for path in (grid.out / "report.html", one.out / "report.html", board):
        browser.visit(path, width, dark)
        assert browser.complaints() == []
        assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []


@pytest.mark.browser
def test_sorting_and_choosing_by_mouse_and_keyboard(browser: Browser, tmp_path):
    made = tabled(made_up(tmp_path / "one", ["fedprox", "fedsem"], noisy))
    browser.visit(made.out / "report.html", 1200, False)
    names = "[...document.querySelector('.sorted').tBodies[0].rows].map(r => r.cells[0].firstChild.textContent)"
    head = "[...document.querySelectorAll('.sorted th button')].find(b => b.textContent == 'accuracy')"
    first = browser.ask(names)
    browser.ask(f"{head}.click()")
    best_first = [row["method"] for row in sorted(made.table, key=lambda row: -row["accuracy"])]
    assert browser.ask(names) == best_first != first
    assert browser.ask(f"{head}.closest('th').getAttribute('aria-sort')") == "descending"
    browser.ask(f"{head}.focus()")
    browser.press("Enter")
    assert browser.ask(names) == best_first[::-1]

    shown = "[...document.querySelectorAll('[data-of=\"0\"]')].map(m => getComputedStyle(m).display != 'none')"
    assert set(browser.ask(shown)) == {True}
    browser.ask("document.querySelector('[data-pick=\"0\"]').click()")
    assert set(browser.ask(shown)) == {False}
    browser.ask("document.querySelector('[data-pick=\"0\"]').click()")
    assert set(browser.ask(shown)) == {True}
    browser.ask("document.querySelector('figure svg[role=img]').focus({preventScroll: true})")
    browser.press("End")
    assert browser.ask("document.getElementById('tip').textContent").startswith("round: 4\n")
    assert browser.complaints() == []
