"""Pages as tests read them: a strict reader, what holds for every page, and what pages are made of."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

from grapevine import report

VOID = {"meta", "input", "wbr", "br", "img"}


class Page(HTMLParser):
    """A strict reader: every element is closed by its own end tag, in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[list[list[str]]]] = {}  # under the nearest heading
        self.charts: list[tuple[str, str]] = []  # heading, aria-label
        self.raw: dict[str, str] = dict(script="", style="")
        self._heading = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "h3":
            self._heading = ""
        if tag == "table":
            self.tables.setdefault(self._heading, []).append([])
        if tag == "tr":
            self.tables[self._heading][-1].append([])
        if tag in ("td", "th"):
            self.tables[self._heading][-1][-1].append("")
        if tag == "svg" and dict(attributes).get("role") == "img":
            assert "figure" in self.open
            self.charts.append((self._heading, dict(attributes)["aria-label"]))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]] += data
            return
        self.texts.append(data)
        if self.open and self.open[-1] == "h3":
            self._heading += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[self._heading][-1][-1][-1] += data

    @property
    def words(self) -> str:
        return " ".join(self.texts)

    def settings(self, heading: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self.tables[heading][0]}


def read(folder: Path) -> Page:
    return Page(report.write(folder).read_text(encoding="utf-8"))


def check_structure(seen: Page) -> None:
    assert seen.charts
    for heading, label in seen.charts:
        assert heading and label.startswith(heading)
        assert seen.tables[heading], f"no table behind {heading}"
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in seen.tags:
        for name in ("href", "src", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        if attributes.get("href"):
            assert attributes["href"][1:] in ids
    assert [tag for tag, _ in seen.tags].count("script") == 1
    assert (
        "http" not in seen.raw["style"] + seen.raw["script"]
        and "url(" not in seen.raw["style"]
        and "@import" not in seen.raw["style"]
    )
    policy = next(a["content"] for _, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(seen.raw["script"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(dict(json.loads(path.read_text()), **values)))


def beside(run: Path, name: str, method: str, gains: dict[int, float | None], **settings) -> Path:
    """A run on the same split, whose clients are `gains` worse than those of `run`."""
    other = Path(shutil.copytree(run, run.parent / name))
    rows = result_of(run)["per_client"]
    rows = [dict(row, accuracy=None if gains[row["id"]] is None else row["accuracy"] - gains[row["id"]]) for row in rows]
    change(other / "result.json", method=method, per_client=rows)
    change(other / "settings.json", method=method, **settings)
    return other


SUMMARY = dict(
    parties=[
        dict(name="a", rows=100, labelled=10, abstained=5, classes={"cat": 60, "dog": 35}, confidence_histogram=[0] * 19 + [85],
             accuracy=0.9, alone_accuracy=0.7),
        dict(name="b", rows=300, labelled=20, abstained=0, classes={"cat": 100, "dog": 200}, confidence_histogram=[14] * 20,
             accuracy=0.8, alone_accuracy=0.6),
    ],
    classes=["cat", "dog"],
    expected=dict(accuracy=0.875, low=0.739, high=0.945, alone=0.625, n=40,
                  calibration=[{"from": 0.0, "to": 0.5, "n": 10, "right": 6},
                                                                  {"from": 0.5, "to": 1.0, "n": 30, "right": 29}]),
    settings=dict(bits=1024, neighbours=10), seconds=12.5, protocol="mlwe", seed_note="no seed was given", warnings=[],
    bytes_by_step=[dict(step="hash", direction="up", bytes=1500, messages=2, reveals="nothing")],
    graph=dict(x=[0.0, 1.0, 2.0], y=[1.0, 0.0, 5.0], cls=[0, 1, -1], party=[0, 1, 1]),
    version="0.1.0", command="grapevine label a.csv b.csv --label y --out labels",
)  # fmt: skip
