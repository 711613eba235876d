"""Every page is whole and asks nobody for anything, nothing in the files breaks out of it, and it works in a browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hostile import HOSTILE
from pages import SUMMARY, Page, change, check_structure, read

from grapevine import report
from grapevine.core.words import printable
from grapevine.report import label as label_page
from grapevine.report.charts import marks


def test_a_page_is_whole_and_asks_nobody_for_anything(finished, run):
    seen = read(run)
    check_structure(seen)
    titles = [heading for heading, _ in seen.charts]
    assert titles == ["Accuracy by round", "Accuracy by bytes sent", "Accuracy by seconds", "Gradient diversity",
                      "Accuracy per client", "Confusion matrix", "Bytes by step and direction", "Seconds per round",
                      "Rows per client and class", "Labels per client and class", "Rows per client"]  # fmt: skip
    assert not any(a.get("http-equiv") == "refresh" for _, a in seen.tags)


def test_the_same_files_make_the_same_page_in_any_folder(finished, run, tmp_path):
    here = report.write(run, full=True).read_bytes()
    there = Path(shutil.move(run, tmp_path / "elsewhere" / "run"))
    assert report.write(there, full=True).read_bytes() == here
    for path in there.rglob("*"):  # nothing in the folder remembers where it was
        assert path.is_dir() or str(finished.parent).encode() not in path.read_bytes(), path


def test_hostile_class_names_stay_words(run):
    plain = read(run)
    names = [*HOSTILE, "9", "0"]
    for file in ("settings.json", "result.json"):
        data = json.loads((run / file).read_text())["data"]
        change(run / file, data=dict(data, classes=names, name=HOSTILE[0]))
    change(run / "settings.json", command=HOSTILE[1], model=HOSTILE[2])
    seen = read(run)
    check_structure(seen)
    assert {tag for tag, _ in seen.tags} <= {tag for tag, _ in plain.tags}
    assert seen.tables["Confusion matrix"][0][0][1:] == [printable(name) for name in names]
    assert HOSTILE[1] in seen.words and f"Model {HOSTILE[2]}." in seen.words


def test_hostile_parties_stay_words(tmp_path):
    parties = [dict(party, name=name) for party, name in zip(SUMMARY["parties"], HOSTILE)]
    parties[0]["classes"] = {HOSTILE[0]: 90, HOSTILE[1]: 5}
    steps = [dict(SUMMARY["bytes_by_step"][0], step=HOSTILE[0], direction=HOSTILE[4], reveals=HOSTILE[1])]
    changed = dict(SUMMARY, parties=parties, classes=list(HOSTILE[:2]), bytes_by_step=steps, warnings=list(HOSTILE),
                   protocol=HOSTILE[4],
                   seed_note=HOSTILE[0], command=HOSTILE[0], settings={HOSTILE[0]: HOSTILE[1]}, version=HOSTILE[4])  # fmt: skip
    plain = Page(label_page.write(tmp_path, SUMMARY).read_text(encoding="utf-8"))
    seen = Page(label_page.write(tmp_path, changed).read_text(encoding="utf-8"))
    check_structure(seen)
    assert {tag for tag, _ in seen.tags} <= {tag for tag, _ in plain.tags}
    assert all(printable(word) in seen.words for word in HOSTILE) and "\x1b" not in seen.words


# In a browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 375])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_load_without_complaint_and_fit(browser, run, tmp_path, width, dark):
    (tmp_path / "label").mkdir()
    for path in (report.write(run), label_page.write(tmp_path / "label", SUMMARY)):
        browser.visit(path, width, dark)
        assert browser.complaints() == []
        asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
        assert asked == [path.as_uri()]
        assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []
        ground = browser.ask("getComputedStyle(document.body).backgroundColor")
        wanted = tuple(bytes.fromhex((marks.DARK if dark else marks.LIGHT)["page"][1:]))
        assert ground == "rgb({}, {}, {})".format(*wanted)


@pytest.mark.browser
def test_controls_work_by_mouse_and_keyboard(browser, run, tmp_path):
    browser.visit(report.write(run), 1200, False)
    tip = "(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.textContent; })()"
    box = browser.ask("(b => [b.x + b.width / 2, b.y + 50])(document.querySelectorAll('.hit')[1].getBoundingClientRect())")
    assert browser.ask(tip) is None
    browser.move(*box)
    assert browser.ask(tip).startswith("round: 1\nvalidation: ")
    browser.move(2, 2)
    assert browser.ask(tip) is None

    browser.ask("document.querySelector('figure svg[role=img]').focus({preventScroll: true})")
    browser.press("ArrowRight")
    assert browser.ask(tip).startswith("round: 0\n")
    browser.press("End")
    assert browser.ask(tip).startswith("round: 3\n")
    browser.press("ArrowLeft")
    assert browser.ask(tip).startswith("round: 2\n")
    browser.press("Escape")
    assert browser.ask(tip) is None

    line = "getComputedStyle(document.querySelector('figure svg[role=img] [data-of=\"1\"]')).display"
    assert browser.ask(line) != "none"
    browser.ask("document.querySelector('[data-series=\"1\"]').focus()")
    browser.press("Enter")
    assert browser.ask(line) == "none"
    assert browser.ask("document.activeElement.getAttribute('aria-pressed')") == "false"
    browser.press("Enter")
    assert browser.ask(line) != "none"

    shown = "[...document.querySelectorAll('[data-view]')].map(v => getComputedStyle(v).display)"
    assert browser.ask(shown) == ["block", "none", "none"]
    browser.ask("document.getElementById('over1').click()")
    assert browser.ask(shown) == ["none", "block", "none"]
    assert browser.complaints() == []

    (tmp_path / "label").mkdir()
    browser.visit(label_page.write(tmp_path / "label", SUMMARY), 1200, False)
    browser.ask("(m => { m.value = 'dog'; m.dispatchEvent(new Event('change')); })(document.querySelector('[data-choose=kind]'))")
    assert browser.ask("[...document.querySelectorAll('[data-kind]')].map(p => p.classList.contains('dim'))") == [
        True,
        False,
        True,
    ]
    assert browser.complaints() == []


@pytest.mark.browser
def test_hostile_words_run_nothing(browser, run):
    for file in ("settings.json", "result.json"):
        data = json.loads((run / file).read_text())["data"]
        change(run / file, data=dict(data, classes=[*HOSTILE, "9", "0"]))
    browser.visit(report.write(run), 1200, False)
    assert browser.complaints() == [] and not any(e["method"] == "Page.javascriptDialogOpening" for e in browser.events)
    assert browser.ask("document.querySelectorAll('img').length") == 0
