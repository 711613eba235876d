"""Words on pages: none on top of what it describes, none broken where it is to be copied, none without an explanation."""

from __future__ import annotations

import json
from collections import Counter

from grapevine.report import clean, index, train
from grapevine.report.charts.marks import Box, Group, Words
from grapevine.report.page import Page
from grapevine.report.parts import Command

COMMAND = (
    "grapevine compare xclp protofssl --data a-table-with-a-long-name.csv --clients 10 --labels clients:50 --rounds 20 "
    "--budget epochs=2,batch=50 --per-round 10 --evaluate-every 5 --secure-average --out " + "a-long-folder/" * 9
)
BREAKS = """[...document.querySelectorAll("pre")].map(pre => {
  const inside = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT), broken = [];
  for (let text; text = inside.nextNode();) for (const found of text.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(text, found.index);
    range.setEnd(text, found.index + found[0].length);
    if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(found[0]);
  }
  return broken;
}).flat().join(" ")"""


def test_a_command_on_a_page_breaks_at_spaces_alone(browser, tmp_path):
    """ "--budget" was broken into "-" and "-budget", at 1280 px, too."""
    made = Page("Title", "kind", "Heading", [("Settings", [Command(COMMAND)])], "foot").write(tmp_path / "page.html")
    for width in (1280, 390):
        browser.visit(made, width, False)
        broken = browser.ask(BREAKS).split()
        assert all(len(word) > 40 for word in broken), (width, broken)  # only what is longer than a line
        assert browser.ask("document.querySelector('pre').textContent") == COMMAND
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth")


def test_words_are_beside_the_cells_of_loss_and_confidence():
    """ "Υ = 0.5" and "corrected" were printed over cells."""
    everywhere = Counter({(i, j): 1 for i in range(clean.BINS + 2) for j in range(clean.BINS)})
    marks = clean._plane("all", everywhere, dict(tau=0.95, upsilon=0.5)).drawing.marks
    cells = [box for group in marks if isinstance(group, Group) for box in group.marks if isinstance(box, Box)]
    right, top = max(box.x + box.width for box in cells), min(box.y for box in cells)
    words = {mark.words: mark for mark in marks if isinstance(mark, Words)}
    for name in ("τ = 0.95", "excluded", "corrected"):
        assert words[name].y < top
    for name in ("Υ = 0.5", "kept"):
        assert words[name].x >= right and words[name].dx > 0
    assert right < 90  # room for them on a phone


def test_gradient_diversity_is_explained():
    """The curve had a title and no explanation."""
    history = [dict(round=i, gradient_diversity=0.3) for i in range(3)]
    (chart,) = train._curve(history, "gradient_diversity")
    assert chart.note.startswith("How far the clients' updates differ: 1/n if all n are the same")


def test_the_index_names_data_in_one_way(tmp_path):
    """A run's table was "all", a comparison's "bc/all.csv"."""
    cells = [dict(data=name) for name in ("bc/all.csv", "bc/all.csv", "fashion-mnist")]
    made = dict(cells=cells, runs=[], table=[], methods=["fedavg"], state="finished", seeds=[0])
    (tmp_path / "compare.json").write_text(json.dumps(made))
    assert index._compared(tmp_path)["data"] == "all, fashion-mnist"
