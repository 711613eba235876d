"""The documentation site in headless Chromium, opened from the disk: it fits a phone, has no errors, and can be searched."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEARCH = """(() => {
  const field = document.querySelector(".md-search__input");
  field.focus();
  field.value = "landmarks";
  for (const kind of ["keyup", "input"]) field.dispatchEvent(new Event(kind, {bubbles: true}));
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--quiet", "--site-dir", str(out)]
    subprocess.run(command, cwd=ROOT, env=os.environ | dict(NO_MKDOCS_2_WARNING="1"), check=True, timeout=240)
    return out


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_and_complain_of_nothing(browser, site, width):
    for name in ("index.html", "clean.html", "settings.html", "reference.html", "methods/xclp.html"):
        browser.visit(site / name, width, dark=width == 390)
        wide, seen = browser.ask("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= seen and browser.complaints() == [], name
        commands = "[...document.querySelectorAll('.language-console code, .language-bash code')]"
        if name not in ("settings.html", "reference.html"):  # long commands were cut at the right
            assert browser.ask(f"{commands}.length") and not browser.ask(
                f"{commands}.some(c => c.scrollWidth > c.clientWidth)"
            ), name


@pytest.mark.browser
def test_search_works_without_a_server(browser, site):
    browser.visit(site / "methods" / "fedmatch.html", 1280, dark=False)
    browser.ask(SEARCH)
    for _ in range(100):
        found = browser.ask("[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))")
        if found:
            break
        time.sleep(0.2)
    assert any("label.html" in link for link in found), found
