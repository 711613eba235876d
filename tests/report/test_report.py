"""The report: what it shows is what the files hold, nothing in them can break out of the page, and it works in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile import HOSTILE
from safetensors.torch import load_file

import grapevine as gv
from grapevine import report
from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.core.words import printable
from grapevine.jobs.expected import wilson
from grapevine.report import clean as clean_page
from grapevine.report import label as label_page
from grapevine.report import latent
from grapevine.report import train as train_page
from grapevine.report.charts import kinds, marks
from grapevine.report.page import REFRESH_SECONDS
from grapevine.report.parts import MOST_LINES
from grapevine.run import driver as experiment
from grapevine.run.folder import lock

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


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits) -> Path:
    """A run of three rounds."""
    out = tmp_path_factory.mktemp("report") / "run"
    split = digits.split(clients=4, partition="dirichlet:0.5", labels="clients:80", seed=5)
    words = dict(rounds=3, per_round=2, model="linear", seed=5, device="cpu", latent=0)
    gv.train(gv.methods.FedAvg(epochs=1), split, out=out, **words)
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(dict(json.loads(path.read_text()), **values)))


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


# The page


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


def test_numbers_are_those_of_the_files(run):
    seen, result = read(run), result_of(run)
    told = seen.settings("Result")
    for name in (
        "rounds",
        "best_round",
        "accuracy",
        "accuracy_last",
        "balanced_accuracy",
        "bytes_up",
        "bytes_down",
        "flops",
        "seconds",
    ):
        assert json.loads(told[name]) == result[name], name
    n = sum(map(sum, result["confusion"]))
    low, high = wilson(result["accuracy"] * n, n)
    right = f"{result['accuracy']:.1%} of the {n} test rows are classified right by fedavg on digits"
    assert f"{right} (95 % interval: {low:.1%} to {high:.1%})." in seen.words and n == result["test_rows"]
    assert f"test accuracy ({low:.0%} to {high:.0%}, n = {n})" in seen.words
    chosen = f"round {result['best_round']} was kept, the best on {result['validation_rows']} validation rows."
    assert chosen in seen.words and "by chance" not in seen.words
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    shown = seen.tables["Accuracy by round"][0]
    assert shown[0] == ["round", "validation", "test"]
    assert shown[1:] == [[str(h["round"]), f"{h['validation_accuracy']:.1%}", f"{h['accuracy']:.1%}"] for h in history]
    clients = seen.tables["Accuracy per client"][0][1:]
    worst_first = sorted(result["per_client"], key=lambda row: row["accuracy"])
    assert clients == [[f"client {row['id']}", str(row["n"]), f"{row['accuracy']:.1%}"] for row in worst_first]
    matrix = seen.tables["Confusion matrix"][0]
    assert matrix[0][1:] == [row[0] for row in matrix[1:]] == result["data"]["classes"]
    assert [[int(n) for n in row[1:]] for row in matrix[1:]] == result["confusion"]
    steps, fields = seen.tables["Bytes by step and direction"]
    for direction in ("up", "down"):
        assert sum(int(row[3].replace(",", "")) for row in steps[1:] if row[1] == direction) == result[f"bytes_{direction}"]
        assert sum(int(row[5].replace(",", "")) for row in fields[1:] if row[1] == direction) < result[f"bytes_{direction}"]
    assert {row[2] for row in fields[1:]} == {"weights", "n", "round"}
    settings = json.loads((run / "settings.json").read_text())
    assert seen.settings("Data")["split"] == settings["data"]["split"]
    assert seen.settings("Run")["seed"] == "5" and seen.settings("Run")["version"] == settings["version"]
    assert seen.settings("Fields of fedavg")["epochs"] == "1"


def test_a_page_warns_of_a_round_that_few_rows_chose(run):
    change(run / "result.json", validation_rows=2)
    assert "Only 2 validation rows chose the round that was kept, so it may be the best by chance" in read(run).words


def test_the_split_is_that_of_the_file(run):
    seen, split = read(run), json.loads((run / "split.json").read_text())
    labels = [[int(n) for n in row[1:]] for row in seen.tables["Labels per client and class"][0][1:]]
    assert labels == [[part["labels"].count(c) for c in range(10)] for part in split["clients"]]
    assert sum(map(sum, labels)) == 80
    rows = [[int(n) for n in row[1:]] for row in seen.tables["Rows per client and class"][0][1:]]
    assert rows == [line["classes"] for line in split["table"]]
    assert [sum(row) for row in rows] == [len(part["labelled"]) + len(part["unlabelled"]) for part in split["clients"]]
    assert [row[1:] for row in seen.tables["Rows per client"][0][1:]] == [
        [str(len(part["labelled"])), str(len(part["unlabelled"]))] for part in split["clients"]
    ]


def test_irrelevant_rows_and_the_server_are_told_apart(run):
    parts = [
        dict(labelled=[1, 2, 100], labels=[0, 1, 5], unlabelled=[3, 101]),
        dict(labelled=[4], labels=[9], unlabelled=[102, 103]),
    ]
    server = dict(labelled=[7, 8], labels=[2, 2], unlabelled=[])
    change(run / "split.json", clients=parts, server=server, foreign=[40, 41, 42, 43])
    rows = read(run).tables["Rows per client"][0]
    assert rows == [["client", "labelled", "unlabelled", "irrelevant"], ["client 0", "2", "1", "2"], ["client 1", "1", "0", "2"],
                    ["server", "2", "0", "0"]]  # fmt: skip


def test_given_labels_are_set_against_true_ones_where_some_are_wrong(run):
    assert "Given and true labels" not in read(run).words  # all are right
    change(run / "split.json", given_true=[[0, 0, 8], [0, 1, 2], [3, 3, 5], [9, -2, 1]])
    seen = read(run)
    check_structure(seen)
    table = seen.tables["Given and true labels"][0]
    assert table[0][-1] == "irrelevant" and table[1] == ["0", "8", "2", *["0"] * 9] and table[10][-1] == "1"
    assert "81.2% are the true ones" in seen.words  # 13 of 16


def test_labels_on_rows_of_unknown_class_are_neither_irrelevant_nor_wrong(run):
    """Bug: all labels of a label job stood in the column "irrelevant" of a table that knew no truth for them."""
    change(run / "split.json", given_true=[[0, -1, 90], [0, 0, 8], [1, -1, 64], [3, 3, 5]])
    assert "Given and true labels" not in read(run).words  # all are right, as far as anybody knows
    change(run / "split.json", given_true=[[0, -1, 90], [0, 0, 9], [1, -1, 64], [3, 4, 3]])
    seen = read(run)
    table = seen.tables["Given and true labels"][0]
    assert table[0][-1] == "9" and table[1] == ["0", "9", *["0"] * 9]
    assert "75.0% are the true ones" in seen.words  # 9 of 12
    assert "Left out: 154 labels of rows whose true class is unknown." in seen.words


def test_many_clients_stay_a_small_page(run):
    n = 2000
    change(run / "result.json", per_client=[dict(id=i, n=5, accuracy=(i % 100) / 100 if i % 10 else None) for i in range(n)])
    table = [dict(client=str(i), classes=[int(c == i % 7) for c in range(10)]) for i in range(n)]
    change(run / "split.json", clients=[dict(labelled=[i], labels=[i % 10], unlabelled=[]) for i in range(n)], table=table)
    seen = read(run)
    check_structure(seen)
    assert (run / "report.html").stat().st_size < 300_000
    assert len(seen.tables["Labels per client and class"][0]) == len(seen.tables["Rows per client and class"][0]) == 51
    assert seen.tables["Rows per client and class"][0][2] == ["client 40", *(str(int(c == 40 % 7)) for c in range(10))]
    told = seen.tables["Accuracy per client"][0][1:]
    assert len(told) == MOST_LINES and [row[2] for row in told] == sorted([row[2] for row in told], key=lambda p: float(p[:-1]))
    assert "1,300 more lines, in result.json" in seen.words and told[0][2] == "1.0%"
    assert "200 clients without test rows left out. 300 of the clients are drawn, at even intervals." in seen.words
    assert sum("accuracy: " in a.get("data-tip", "") for _, a in seen.tags) == 300


def test_long_histories_are_thinned(run):
    lines = [dict(round=i, accuracy=i / 1000, validation_accuracy=None, bytes_up=i, bytes_down=i) for i in range(1000)]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(run / "result.json", best_round=7)
    shown = [int(row[0].replace(",", "")) for row in read(run).tables["Accuracy by round"][0][1:]]
    assert len(shown) <= 302 and shown[0] == 0 and shown[-1] == 999 and 7 in shown


def test_pseudo_labels_and_what_a_method_notes_are_drawn(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines[1:], 1):
        line.update(pseudo_label_accuracy=0.5 + i / 10, pseudo_labels_used=10 * i, pseudo_labels_of=40, graph_edges=1.5 * i)
    lines[2]["graph_edges"] = float("nan")
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(run / "result.json", pseudo_label_accuracy=0.8)
    seen = read(run)
    check_structure(seen)
    assert seen.tables["Pseudo-labels right"][0][1:] == [
        ["1", "60.0%", "25.0%"],
        ["2", "70.0%", "50.0%"],
        ["3", "80.0%", "75.0%"],
    ]
    assert seen.tables["Pseudo-labels used since the evaluation before"][0][1:] == [["1", "10"], ["2", "20"], ["3", "30"]]
    assert seen.tables["Graph edges"][0][1:] == [["1", "1.5"], ["3", "4.5"]]


def test_another_heads_pseudo_labels_are_drawn_beside(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines[1:], 1):
        line.update(pseudo_label_accuracy=0.5 + i / 10, pseudo_labels_used=10, pseudo_labels_of=40, qualified=2.5 * i)
        line.update({f"{name}_classification": value for name, value in
                     dict(pseudo_label_accuracy=0.3, pseudo_labels_used=10, pseudo_labels_of=40).items()})  # fmt: skip
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = read(run)
    check_structure(seen)
    heads, *rows = seen.tables["Pseudo-labels right"][0]
    assert heads[1:] == ["right, of those used", "the classification head on the same rows", "used, of those guessed"]
    assert rows == [[str(i), f"{0.5 + i / 10:.1%}", "30.0%", "25.0%"] for i in (1, 2, 3)]
    assert seen.tables["Qualified rows per client"][0][1:] == [["1", "2.5"], ["2", "5"], ["3", "7.5"]]
    assert "Pseudo label accuracy classification" not in seen.tables


# Against another run


def beside(run: Path, name: str, method: str, gains: dict[int, float | None], **settings) -> Path:
    """A run on the same split, whose clients are `gains` worse than those of `run`."""
    other = Path(shutil.copytree(run, run.parent / name))
    rows = result_of(run)["per_client"]
    rows = [dict(row, accuracy=None if gains[row["id"]] is None else row["accuracy"] - gains[row["id"]]) for row in rows]
    change(other / "result.json", method=method, per_client=rows)
    change(other / "settings.json", method=method, **settings)
    return other


def test_who_gains_and_who_loses_against_being_alone(run):
    beside(run, "bounds", "alone", {0: 0.2, 1: -0.05, 2: 0.0, 3: None})
    beside(run, "another", "alone", dict.fromkeys(range(4), 0.5), rounds=99)  # less like this run
    change(run.parent / "bounds" / "settings.json", rounds=3)
    seen = Page(report.write(run, full=True).read_text(encoding="utf-8"))
    check_structure(seen)
    told = "1 of 3 clients gain against being alone, 1 lose: from −5.0 to +20.0 points, +5.0 on average."
    assert told in seen.words
    own = {row["id"]: row for row in result_of(run)["per_client"]}
    wanted = [(1, -0.05, "−5.0"), (2, 0.0, "+0.0"), (0, 0.2, "+20.0")]
    assert seen.tables["Gain against being alone"][0][1:] == [
        [f"client {i}", str(own[i]["n"]), f"{own[i]['accuracy']:.1%}", f"{own[i]['accuracy'] - gain:.1%}", points]
        for i, gain, points in wanted
    ]
    assert "Gain against being alone" not in read(run).tables  # only a full page looks around
    (run.parent / "bounds" / "settings.json").write_text("{")  # not ours to complain about
    (run.parent / "another" / "result.json").unlink()
    assert "Gain against" not in report.write(run, full=True).read_text(encoding="utf-8")


def test_against_a_named_run(run):
    other = beside(run, "other", "fedprox", dict.fromkeys(range(4), 0.1))
    seen = Page(report.write(run, other).read_text(encoding="utf-8"))
    assert "4 of 4 clients gain against fedprox, 0 lose: from +10.0 to +10.0 points" in seen.words
    settings = json.loads((other / "settings.json").read_text())
    change(other / "settings.json", data=dict(settings["data"], split="0" * 64))
    with pytest.raises(Mistake, match=r"other was made on another split than .*: make it with --split .*split.json\.$"):
        report.write(run, other)
    with pytest.raises(Mistake, match=r"nowhere holds no finished training run: name one on the same split"):
        report.write(run, run.parent / "nowhere")
    (run.parent / "label").mkdir()
    (run.parent / "label" / "result.json").write_text(json.dumps(dict(SUMMARY, job="label")))
    with pytest.raises(Mistake, match=r"label is not a training run \(label\): leave --against out"):
        report.write(run.parent / "label", other)


def test_gains_of_many_clients_are_a_histogram(run):
    n = 1000
    rows = [dict(id=i, n=5, accuracy=0.5) for i in range(n)]
    change(run / "result.json", per_client=rows)
    other = Path(shutil.copytree(run, run.parent / "other"))
    change(other / "result.json", method="alone", per_client=[dict(row, accuracy=0.5 - (row["id"] % 10) / 100) for row in rows])
    (run / "split.json").unlink()
    seen = Page(report.write(run, other).read_text(encoding="utf-8"))
    check_structure(seen)
    assert "900 of 1,000 clients gain against being alone, 0 lose: from +0.0 to +9.0 points, +4.5 on average." in seen.words


# The latent space


@pytest.fixture(scope="module")
def pictured(tmp_path_factory, digits) -> Path:
    """A run of FedAnchor whose latent space was kept twice."""
    out = tmp_path_factory.mktemp("latent") / "run"
    split = digits.split(clients=2, labels="server:60", seed=5)
    method = gv.methods.FedAnchor(epochs=1, pretrain=1, batch=200, server_batch=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "LATENT_ROWS", 120)
        gv.train(method, split, rounds=2, per_round=1, model="mlp", seed=5, device="cpu", latent=2, out=out)
    return out


def test_the_latent_space_is_drawn_with_its_centroids(pictured, tmp_path):
    full = report.write(pictured, full=True).read_bytes()
    seen = Page(full.decode())
    check_structure(seen)
    kept = result_of(pictured)["best_round"]
    titles = [heading for heading, _ in seen.charts if heading.startswith("Latent")]
    assert titles == ["Latent space, round 1", f"Latent space, round {kept} (kept)"]
    rows = seen.tables[titles[-1]][0][1:]
    true = load_file(pictured / "latent" / "kept.safetensors")["y"].tolist()
    assert [[name, int(n)] for name, n in rows] == [[str(c), true.count(c)] for c in range(10)]
    pairs = zip(seen.tags, seen.tags[1:])  # a group with its data, and the dot in it
    dots = [(group["data-kind"], dot) for (_, group), (tag, dot) in pairs if "data-kind" in group and tag == "circle"]
    centres = [(kind, dot) for kind, dot in dots if "centre" in dot["class"].split()]
    points = [(kind, dot) for kind, dot in dots if "point" in dot["class"].split()]
    assert len(centres) == 20 and len(points) == 2 * len(true) == 240
    across = [float(dot["cx"].rstrip("%")) for kind, dot in points[len(true) :] if kind == "7"]
    centre = next(float(dot["cx"].rstrip("%")) for kind, dot in centres[10:] if kind == "7")
    assert centre == pytest.approx(sum(across) / len(across), abs=0.02)
    moved = Path(shutil.copytree(pictured, tmp_path / "run"))
    assert report.write(moved, full=True).read_bytes() == full  # repeats, and needs nothing but the folder
    assert "Latent space" not in report.write(pictured).read_text(encoding="utf-8")


def test_rows_of_a_class_lie_together_and_what_cannot_be_drawn_is_left_out(tmp_path, run):
    import numpy as np
    import torch
    from safetensors.torch import save_file

    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 30)
    z = (8 * np.eye(3)[y] + draw.standard_normal((90, 3))).astype("float32")
    flat = latent.plane(z, None)
    again = latent.plane(z, flat)
    for place in (flat, again):
        near = np.linalg.norm(place[:, None] - place[None], axis=2) + 1e9 * np.eye(90)
        assert (y[near.argmin(1)] == y).mean() > 0.95
    shutil.rmtree(run / "latent", ignore_errors=True)
    (run / "latent").mkdir()
    broken = dict(z=torch.full((20, 3), float("nan")), y=torch.zeros(20).long(), guess=torch.zeros(20).long())
    save_file(broken, run / "latent" / "kept.safetensors", dict(round="3"))
    assert "Latent space" not in report.write(run, full=True).read_text(encoding="utf-8")
    (run / "latent" / "kept.safetensors").write_bytes(b"nonsense")
    with pytest.raises(Mistake, match=r"kept.safetensors is not readable"):
        report.write(run, full=True)


# Between parties


@pytest.fixture
def hosted(run) -> Path:
    """The run as a host leaves it: no split, parties by their names."""
    names = ["north", "south", "east", "<west>"]
    (run / "split.json").unlink()
    for file in ("settings.json", "result.json"):
        data = json.loads((run / file).read_text())["data"]
        change(run / file, data=dict(name="trial", kind="table", classes=data["classes"], clients=4, labels="the parties' own"))
    rows = result_of(run)["per_client"]
    change(run / "result.json", per_client=[dict(row, id=name) for row, name in zip(rows, names)])
    return run


def test_a_hosts_run_has_a_page_with_the_names_of_the_parties(hosted):
    seen = read(hosted)
    check_structure(seen)
    result = result_of(hosted)
    held_out = f"{result['accuracy']:.1%} of the {result['test_rows']} rows that the parties held out are classified right"
    assert f"{held_out} by fedavg on trial" in seen.words
    worst_first = sorted(result["per_client"], key=lambda row: row["accuracy"])
    assert [row[0] for row in seen.tables["Accuracy per client"][0][1:]] == [row["id"] for row in worst_first]
    assert "split.json" not in seen.words and "grapevine train" not in seen.words  # there is no command that repeats it
    assert [name for name in seen.tables if "per client and class" in name] == []


def test_clients_left_out_for_bad_replies_are_named(hosted, finished, tmp_path):
    change(hosted / "result.json", left_out={"<west>": "weights are not finite"})
    assert "Left out for bad replies: <west> (weights are not finite)." in read(hosted).words
    simulated = Path(shutil.copytree(finished, tmp_path / "simulated"))
    change(simulated / "result.json", left_out={"2": "n is negative", "3": "no reply"})
    assert "Left out for bad replies: client 2 (n is negative); client 3 (no reply)." in read(simulated).words


def test_a_hosts_label_job_tells_what_the_host_may_know(tmp_path):
    known = {name: SUMMARY[name] for name in ("expected", "settings", "seconds", "version")}
    lines = [dict(round=0, step="hash", direction="up", messages=2, bytes=1500, fields={})]
    (tmp_path / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = Page(label_page.write(tmp_path, dict(known, labelled=["a", "b"], lost=["<c>"], seed=3)).read_text(encoding="utf-8"))
    check_structure(seen)
    assert "a, b have labels for their rows, and only they know them." in seen.words and "Without labels: <c>." in seen.words
    assert seen.tables["Together and alone"][0][1:] == [["all parties", "87.5%", "62.5%"]]
    assert seen.tables["Bytes by step and direction"][0][1:] == [["hash", "up", "2", "1,500", "750 B"]]


def test_a_hosts_clean_job_shows_counts_if_it_was_told_any(tmp_path):
    summary = dict(settings=dict(tau=0.9, upsilon=0.5, model="mlp"), data=dict(classes=["a", "b"]), seed=1, version="0.1.0",
                   expected=dict(n=10, sure=8, sure_right=6), told={}, cleaned=["north", "south"], lost=[], per_client=[],
                   measured=None, accuracy=None, accuracy_given=None, warnings=[], command="", seconds=1.0)  # fmt: skip
    seen = Page(clean_page.write(tmp_path, summary).read_text(encoding="utf-8"))
    assert "north, south have cleaned their labels, and only they know them." in seen.words and not seen.charts
    assert "it was sure (confidence 0.9 or more) of 8, and right about 75.0% of these." in seen.words
    told = dict(north={"kept": 20, "corrected": 3, "excluded": 1}, south={"kept": 10, "corrected": 0, "excluded": 2})
    seen = Page(clean_page.write(tmp_path, dict(summary, told=told, lost=["east"])).read_text(encoding="utf-8"))
    check_structure(seen)
    assert "Of 36 rows 30 kept their label, 3 labels were corrected and 3 rows were excluded." in seen.words
    assert seen.tables[""][0][1:] == [["north", "24", "20", "3", "1"], ["south", "12", "10", "0", "2"]]
    assert "Not cleaned: east." in seen.words


# Runs that are not whole


def test_train_keeps_its_page_up_to_date(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 0.0)
    monkeypatch.setattr(train_page, "LIVE_COST", 0)
    pages = []

    def progress(done: int, total: int, line: dict | None) -> None:
        pages.append((tmp_path / "run" / "report.html").read_text() if done > 1 else "")

    split = digits.split(clients=2, labels="clients:40", seed=1)
    words = dict(rounds=3, per_round=1, model="linear", seed=1, device="cpu", latent=0)
    gv.train(gv.methods.FedAvg(epochs=1), split, out=tmp_path / "run", progress=progress, **words)
    assert [f"has done {n} of 3 rounds" in page for n, page in enumerate(pages)] == [False, True, True]
    assert all("The run is in progress." in page and 'http-equiv="refresh"' in page for page in pages[1:])
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 1000.0)
    slow, there = tmp_path / "slow" / "report.html", []
    gv.train(gv.methods.FedAvg(epochs=1), split, out=slow.parent, progress=lambda *_: there.append(slow.exists()), **words)
    assert there == [False] * 3 and slow.exists()  # only at the end


def test_a_page_that_cannot_be_written_does_not_stop_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 0.0)
    told = []
    live = train_page.Live(tmp_path / "nowhere", lambda *words: told.append(words))
    live(1, 3, None)
    live(2, 3, None)
    assert told == [(1, 3, None), (2, 3, None)]


def test_a_running_run_says_so_and_loads_again(run):
    (run / "result.json").unlink()
    for name, keep in (("history", 2), ("messages", 2), ("times", 1)):
        lines = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (run / f"{name}.jsonl").write_text("".join(lines[:keep]) + lines[keep][:9])  # the writer is in the middle of a line
    with lock(run / "lock"):
        seen = read(run)
    check_structure(seen)
    assert "Not finished: fedavg has done 1 of 3 rounds." in seen.words and "The run is in progress." in seen.words
    assert len(seen.tables["Accuracy by round"][0]) == 3
    assert [a["content"] for _, a in seen.tags if a.get("http-equiv") == "refresh"] == [str(REFRESH_SECONDS)]
    stopped = read(run)
    assert "The run was stopped before its end" in stopped.words
    assert not any(a.get("http-equiv") == "refresh" for _, a in stopped.tags)
    assert "Confusion matrix" not in seen.tables and "Result" not in seen.tables


@pytest.mark.parametrize("names", ["history.jsonl", "messages.jsonl", "times.jsonl", "split.json",
                                   "result.json history.jsonl messages.jsonl times.jsonl split.json"])  # fmt: skip
def test_missing_files_leave_their_part_out(run, names):
    for name in names.split():
        (run / name).unlink()
    seen = read(run)
    assert "fedavg" in seen.words and seen.settings("Run")["rounds"] == "3"
    if "split.json" in names:
        assert "There is no split.json in this folder." in seen.words


def test_mistakes_are_sentences(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, tmp_path / "nowhere"):
        with pytest.raises(Mistake, match=r"holds no run of Grapevine: give the folder .*\.$"):
            report.write(folder)
    (run / "report.html").unlink()
    (run / "history.jsonl").write_text("{nonsense\n")
    with pytest.raises(Mistake, match=r"history.jsonl has a line that is not JSON"):
        report.write(run)
    (run / "history.jsonl").write_text('{"accuracy": 0.5}\n')
    with pytest.raises(Mistake, match=r"files that a run of Grapevine does not write \(KeyError: 'round'\)"):
        report.write(run)
    for text, told in (("{", "is not valid JSON"), ("[1]", "should hold settings or results but holds a list")):
        (run / "result.json").write_text(text)
        with pytest.raises(Mistake, match=told):
            report.write(run)
    assert not (run / "report.html").exists()


# Hostile words


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


# The command that repeats a run


def test_the_command_to_repeat_a_run_started_from_python_repeats_it(run, tmp_path):
    command = next(text for text in read(run).texts if text.startswith("grapevine train"))
    *words, flag, out = shlex.split(command)[1:]
    assert (flag, out) == ("--out", "again")
    told = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "again")], standalone_mode=False)
    assert told.exception is None, told.output
    for name in ("history.jsonl", "messages.jsonl", "split.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes(), name


def test_a_run_from_the_command_line_shows_its_own_words(run):
    change(run / "settings.json", command="grapevine train fedavg --data 'my digits' --out x")
    assert "grapevine train fedavg --data 'my digits' --out x" in read(run).texts


# The label job


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


# Colours


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


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 900, 375])
def test_large_numbers_stay_inside_their_tiles(browser, tmp_path, width):
    large = dict(SUMMARY["bytes_by_step"][0], bytes=244_600_000)
    browser.visit(label_page.write(tmp_path, dict(SUMMARY, bytes_by_step=[large])), width, False)
    assert "244.6 MB" in browser.ask("document.querySelector('.tiles').textContent")
    room = "[...document.querySelectorAll('.tiles dd')].map(d => { const r = document.createRange(); r.selectNodeContents(d);"
    room += "return d.parentElement.getBoundingClientRect().right - r.getBoundingClientRect().right; })"
    assert min(browser.ask(room)) >= 8


@pytest.mark.browser
def test_a_latent_space_is_read_by_mouse_and_keyboard(browser, pictured):
    browser.visit(report.write(pictured, full=True), 1200, False)
    tip = "(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.textContent; })()"
    browser.ask("document.querySelector('[data-choose=kind]').scrollIntoView()")
    browser.ask("document.querySelector('[data-choose=kind]').focus()")
    browser.press("ArrowDown")  # the first class
    last = "[...document.querySelector('[data-choose=kind]').closest('figure').querySelectorAll('[data-kind]')]"
    shown = browser.ask(f"{last}.filter(p => !p.classList.contains('dim')).map(p => p.dataset.kind)")
    assert set(shown) == {"0"}
    centre = "document.querySelector('[data-choose=kind]').closest('figure').querySelector('.centre')"
    box = browser.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({centre}.getBoundingClientRect())")
    browser.move(*box)
    assert re.fullmatch(r"0\ncentre of \d+ rows|0\n\d", browser.ask(tip))
    chosen = "document.getElementById('over0')"
    browser.ask(f"{chosen}.focus()")
    browser.press("ArrowRight")
    assert browser.ask("document.getElementById('over1').checked")
    assert browser.complaints() == []


@pytest.mark.browser
def test_hostile_words_run_nothing(browser, run):
    for file in ("settings.json", "result.json"):
        data = json.loads((run / file).read_text())["data"]
        change(run / file, data=dict(data, classes=[*HOSTILE, "9", "0"]))
    browser.visit(report.write(run), 1200, False)
    assert browser.complaints() == [] and not any(e["method"] == "Page.javascriptDialogOpening" for e in browser.events)
    assert browser.ask("document.querySelectorAll('img').length") == 0
