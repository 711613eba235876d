"""What the documentation's hook tells the pages' HTML."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("readable", Path(__file__).parents[2] / "docs" / "hooks" / "readable.py")
readable = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(readable)


def test_flags_stay_whole_in_code_and_nowhere_else():
    """`--out` was broken after its first hyphen."""
    page = '<p title="--a">with --dp <code class="--x">run --secure-average a--b <span>--out</span></code></p>'
    flags = ("--secure-average", "--out")
    expected = page
    for flag in flags:
        expected = expected.replace(flag, f'<span class="flag">{flag}</span>')
    assert readable.on_page_content(page) == expected


def test_tables_of_sentences_know_the_heads_of_their_cells():
    """On a phone the claims' table showed two of its five columns."""
    head = "<table>\n<thead><tr>\n<th></th>\n<th>a &amp; b</th>\n</tr></thead>\n"
    table = head + '<tr>\n<td>1</td>\n<td align="right">{}</td>\n</tr></table>'
    assert readable.on_page_content(table.format("short")) == table.format("short")
    found = readable.on_page_content(table.format("a long sentence " * 5))
    assert found.startswith("<table data-stacked>") and '<td data-head="">1</td>' in found
    assert '<td align="right" data-head="a &amp; b">a long' in found
