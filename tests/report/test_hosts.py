"""Pages of a host tell only what it may know: a training run, a label job and a clean job between parties."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pages import SUMMARY, Page, change, check_structure, read, result_of

from grapevine.report import clean as clean_page
from grapevine.report import label as label_page


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
