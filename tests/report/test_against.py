"""A run's page against another run: which clients gain and which lose."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pages import SUMMARY, Page, beside, change, check_structure, read, result_of

from grapevine import report
from grapevine.core.errors import Mistake


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
