"""The page of a clean job: made from its folder alone, nothing in the data breaks out of it, and it fits in a browser."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from clean_job import stripes, two_parties
from hostile import HOSTILE

import grapevine as gv
from grapevine.jobs import clean_result
from grapevine.report import clean as clean_page


@pytest.fixture(scope="module")
def one():
    return two_parties()


def test_the_page_is_made_from_the_folder_alone(one, tmp_path):
    result = one[0]
    clean_result.write(tmp_path / "out", result, "grapevine clean a b", clean_page.write)
    first = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "out").rename(tmp_path / "moved")
    summary = json.loads((tmp_path / "moved" / "result.json").read_text())
    assert clean_page.write(tmp_path / "moved", summary).read_text(encoding="utf-8") == first
    for words in ("Given and new labels", "Given and true labels", "Labels most in doubt", "grapevine clean a b", "τ = 0.95"):
        assert words in first
    assert "Only counts come back" in first


def hostile(tmp_path):
    """A job whose names and classes would like to be more than words, with pictures."""
    x, y = stripes(20, 1)
    own, theirs = stripes(60, 2)
    names = np.array(HOSTILE[:2], object)
    y[:3] = 1 - y[:3]
    result = gv.clean([(x, names[y])], server=(own, names[theirs]), truth=[names[y]], epochs=20)
    evil = replace(result[0], ids=[f"{HOSTILE[1]}{i}" for i in range(20)])
    result = replace(result, parties=[evil], warnings=[HOSTILE[0]])
    clean_result.write(tmp_path / "evil", result, HOSTILE[0], clean_page.write)
    return tmp_path / "evil" / "report.html"


def test_nothing_in_the_data_breaks_out_of_the_page(tmp_path):
    html = hostile(tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 375])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_loads_without_complaint_shows_its_pictures_and_fits(browser, one, tmp_path, width, dark):
    clean_result.write(tmp_path / "tables", one[0], "", clean_page.write)
    for path in (tmp_path / "tables" / "report.html", hostile(tmp_path)):
        browser.visit(path, width, dark)
        assert browser.complaints() == []
        asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []
        assert browser.ask("[...document.images].every(i => i.naturalWidth > 0)")
    assert browser.ask("document.images.length") > 2
