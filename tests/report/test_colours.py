"""Colours of pages: every word can be read, in light and dark, by the figures and in a browser."""

from __future__ import annotations

import re

import pytest
from pages import SUMMARY, beside

from grapevine import report
from grapevine.report import label as label_page
from grapevine.report.charts import kinds, marks


def luminance(colour: tuple[float, ...]) -> float:
    """WCAG 2.2, relative luminance of sRGB."""
    parts = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a: tuple, b: tuple) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def blend(under: tuple, over: tuple, share: float) -> tuple:
    return tuple(u * (1 - share) + o * share for u, o in zip(under, over))


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_contrast_is_sufficient(theme):
    colours = {name: tuple(bytes.fromhex(value[1:])) for name, value in getattr(marks, theme).items()}
    pairs = [("ink", "panel"), ("ink", "page"), ("soft", "panel"), ("soft", "page"), ("accent", "panel"), ("accent", "page"),
             ("warn", "warned"), ("warn", "panel")]  # fmt: skip
    assert all(contrast(colours[a], colours[b]) >= 4.5 for a, b in pairs)
    assert all(contrast(colours[f"s{i}"], colours["panel"]) >= 3 for i in range(marks.SERIES))
    empty = blend(colours["panel"], colours["edge"], 0.4)
    for share in (i / 200 for i in range(1, 201)):
        dark = kinds.shade(share)
        letters = colours["over" if dark >= 0.7 else "ink"]
        assert contrast(blend(empty, colours["heat"], dark), letters) >= 4.5, share


SEEN = """[...document.querySelectorAll('body *')].flatMap(e => {
  const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (!words || !box.width || style.visibility === 'hidden' || e.closest('script, style, .unseen, .cell')) return [];
  const grounds = [];
  for (let up = e; up; up = up.parentElement) grounds.push(getComputedStyle(up).backgroundColor);
  return [[words, e instanceof SVGElement ? style.fill : style.color, grounds]];
})"""


def colour(words: str) -> tuple[tuple[float, ...], float]:
    """rgb(…) or rgba(…) as a browser computes it."""
    *rgb, alpha = [*map(float, re.findall(r"[\d.]+", words)), 1.0][:4]
    return tuple(rgb), alpha


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_all_words_on_the_pages_can_be_read(browser, run, pictured, tmp_path, dark):
    """WCAG 2.2, level AA: 4.5 to 1 for all text as it is drawn, on the ground that is behind it."""
    other = beside(run, "other", "alone", dict.fromkeys(range(4), 0.1))
    (tmp_path / "label").mkdir()
    warned = dict(SUMMARY, warnings=["Melanoma and melanoma differ in spelling."])
    for path in (report.write(run, other), report.write(pictured, full=True), label_page.write(tmp_path / "label", warned)):
        browser.visit(path, 1200, dark)
        browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        browser.ask("document.querySelectorAll('[data-series]').forEach((b, i) => i % 2 && b.click())")
        browser.ask("document.querySelector('figure svg[role=img]').focus({preventScroll: true})")
        browser.press("ArrowRight")
        read_words = browser.ask(SEEN)
        assert len(read_words) > 100
        for words, ink, grounds in read_words:
            behind = (255.0, 255.0, 255.0)
            for ground in reversed(grounds):
                behind = blend(behind, *colour(ground))
            letters, alpha = colour(ink)
            assert contrast(blend(behind, letters, alpha), behind) >= 4.5, (path.parent.name, words, ink, grounds)
