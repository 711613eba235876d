"""Two things that Markdown cannot say, told to the pages' HTML for extra.css: a flag such as --out is never broken after its
first hyphen, and a table with sentences in its cells has its rows below one another on a phone, each cell with its column's head.
"""

import html
import re
from typing import Any

LONG = 60  # letters of a cell from which a table is one of sentences
CODE, FLAG = re.compile(r"<code\b.*?</code>", re.S), re.compile(r"(?<![\w-])(--[a-z][\w-]*)(?![^<]*>)")
TABLE, HEAD = re.compile(r"<table>.*?</table>", re.S), re.compile(r"<th\b[^>]*>(.*?)</th>", re.S)
ROW, CELL = re.compile(r"<tr>.*?</tr>", re.S), re.compile(r"<td\b([^>]*)>(.*?)</td>", re.S)


def on_page_content(content: str, **_: Any) -> str:
    content = CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\1</span>', code[0]), content)
    return TABLE.sub(lambda table: stacked(table[0]), content)


def words(inside: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", inside)).strip()


def stacked(table: str) -> str:
    heads = [words(head) for head in HEAD.findall(table)]
    if not any(len(words(inside)) > LONG for _, inside in CELL.findall(table)):
        return table
    return ROW.sub(lambda row: told(row[0], heads), table).replace("<table>", "<table data-stacked>", 1)


def told(row: str, heads: list[str]) -> str:
    names = iter(heads)
    return CELL.sub(lambda cell: f'<td{cell[1]} data-head="{html.escape(next(names, ""))}">{cell[2]}</td>', row)
