"""The compare job runs and goes on: equal splits, the bits of a lone run, and nothing lost when runs fail or are stopped."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from comparisons import FLAGS, flat, grapevine

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.jobs import compare as comparison
from grapevine.report import compare as compare_page

SMALL = dict(clients=4, per_round=2, labels="clients:40", rounds=2, model="linear", seeds=2)

OWN = '''
import os
from dataclasses import dataclass
from pathlib import Path
from grapevine.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Fails(FedAvg):
    """Fails in its second round while a file 'sick' lies here."""

    name = "fails"

    def round(self, server, state):
        if state["round"] == 1 and Path("sick").exists():
            raise ValueError("<b>the second round</b> went wrong")
        return super().round(server, state)


@dataclass(frozen=True)
class Dies(FedAvg):
    """Takes its process along while a file 'sick' lies here and the seed is 1; prints, which must not disturb anybody."""

    name = "dies"

    def round(self, server, state):
        print('{"state": "finished"}')
        if server.seed == 1 and Path("sick").exists():
            os._exit(3)
        return super().round(server, state)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the real comparison of this file is made: first with two methods that fail, then gone on with."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("compare"))
    Path("own.py").write_text(OWN)
    yield Path.cwd()
    os.chdir(before)


METHODS = ["fedprox:mu=0.1", "own.py:Fails", "own.py:Dies"]


@pytest.fixture(scope="module")
def broken(folder):
    """What the comparison left when some of its runs failed, and when each result was written."""
    Path("sick").touch()
    made = gv.compare(METHODS, "digits", "c", **SMALL, set={"lr": 0.2}, workers=2)
    Path("sick").unlink()
    written = {path.parent.name: path.stat().st_mtime_ns for path in Path("c/runs").glob("*/result.json")}
    return made, written, Path("c/report.html").read_text()


@pytest.fixture(scope="module")
def mended(broken):
    return gv.compare(METHODS, "digits", "c", **SMALL, set={"lr": 0.2}, workers=1, resume=True)


def test_a_run_that_fails_costs_nobody_else_anything(broken):
    made, written, page = broken
    failed = {(run["method"], run["seed"]): run["error"] for run in made.failed}
    assert set(failed) == {("fails", 0), ("fails", 1), ("dies", 1)}
    assert failed["fails", 0] == "ValueError: <b>the second round</b> went wrong"
    assert "ended with code 3" in failed["dies", 1]
    assert len(made.runs) == 12 and len(written) == 9
    rows = {row["method"]: row for row in made.table}
    assert rows["fails"]["accuracy"] is None and len(rows["fails"]["errors"]) == 2
    assert rows["dies"]["seeds"] == 1 and rows["fedprox:mu=0.1"]["seeds"] == 2
    assert "&lt;b&gt;the second round" in page and "<b>the second" not in page
    assert "9 of 12 runs are finished, 3 failed" in page
    assert "went wrong" in Path("c/log.txt").read_text()


def test_resume_runs_only_what_is_missing(broken, mended):
    assert mended.failed == [] and mended.data["state"] == "finished"
    for name, written in broken[1].items():
        assert Path("c/runs", name, "result.json").stat().st_mtime_ns == written
    assert {row["method"]: row["seeds"] for row in mended.table} == dict.fromkeys(
        ["alone", "fedavg", "fedprox:mu=0.1", "fails", "dies", "supervised"], 2
    )
    # A method that is FedAvg in all but name, stopped in the middle and gone on with, has FedAvg's numbers.
    history = {name: Path("c/runs", f"{name}-seed1", "history.jsonl").read_bytes() for name in ("fedavg", "fails", "dies")}
    assert history["fails"] == history["fedavg"] == history["dies"]


def test_a_comparison_shows_itself_in_a_few_lines(mended):
    lines = repr(mended).splitlines()
    assert lines[0] == "comparison in c, finished" and lines[1].split() == ["method", "seeds", "accuracy", "bytes"]
    assert [line.split()[0] for line in lines[2:]] == [row["method"] for row in mended.table]
    assert lines[2].split()[1] == "2"


def test_all_methods_of_a_seed_have_one_split_and_other_seeds_another(mended):
    def digest(name):
        return json.loads(Path("c/runs", name, "settings.json").read_text())["data"]["split"]

    for seed in (0, 1):
        assert len({digest(f"{name}-seed{seed}") for name in ("alone", "fedavg", "fedprox-mu=0.1", "dies")}) == 1
    assert digest("fedavg-seed0") != digest("fedavg-seed1")
    assert digest("fedavg-seed0") == mended.data["cells"][0]["split"]["0"]


def test_a_run_has_the_bits_of_a_lone_train(mended):
    alone = grapevine("train", "fedprox", "--data", "digits", *FLAGS, "--set", "mu=0.1", "--set", "lr=0.2", "--seed", 1,
                      "--workers", 2, "--out", "lone")  # fmt: skip
    assert alone.exit_code == 0, alone.output
    for name in ("history.jsonl", "messages.jsonl", "model.safetensors", "split.json"):
        assert Path("lone", name).read_bytes() == Path("c/runs/fedprox-mu=0.1-seed1", name).read_bytes(), name
    results = [json.loads(Path(where, "result.json").read_text()) for where in ("lone", "c/runs/fedprox-mu=0.1-seed1")]
    for result in results:
        del result["seconds"], result["peak_memory_mb"]
    assert results[0] == results[1]


def test_the_command_shows_a_finished_comparison_without_running_it(mended):
    words = ["compare", *METHODS, "--data", "digits", *FLAGS, "--seeds", 2, "--set", "lr=0.2", "--out", "c"]
    refused = grapevine(*words)
    assert refused.exit_code == 2 and "c exists and is not empty" in refused.output
    shown = grapevine(*words, "--resume", "--latex")
    assert shown.exit_code == 0, shown.output
    assert "fedprox:mu=0.1" in shown.output and "alone (bound)" in shown.output and "\x1b" not in shown.output
    assert "\\begin{tabular}" in Path("c/table.tex").read_text()
    table = json.loads(grapevine(*words, "--resume", "--json").output)
    assert table == json.loads(json.dumps(mended.table))
    other = grapevine(*words[:-4], "--set", "lr=0.3", "--out", "c", "--resume")
    assert other.exit_code == 2 and "was started with --set lr=0.2, not lr=0.3" in flat(other.output)
    other = grapevine(*words, "--budget", "epochs=3", "--resume")
    assert other.exit_code == 2 and "was started with --budget nothing, not epochs=3" in flat(other.output)
    other = grapevine(*words, "--rounds", 3, "--resume")
    assert other.exit_code == 2 and "was started with --rounds 2, not 3" in other.output


def test_a_run_made_with_another_default_is_not_taken_for_todays(mended):
    path = Path("c/runs/fedavg-seed0/result.json")
    text = path.read_text()
    words = ["compare", *METHODS, "--data", "digits", *FLAGS, "--seeds", 2, "--set", "lr=0.2", "--out", "c", "--resume"]

    def told(change):
        made = json.loads(text)
        change(made)
        path.write_text(json.dumps(made))
        return grapevine(*words)

    try:
        refused = told(lambda made: made["settings"].update(epochs=made["settings"]["epochs"] + 1))
        empty = told(lambda made: made.pop("settings"))
        taken = told(lambda made: made["settings"].pop("epochs"))  # as a version wrote it that did not have the field
    finally:
        path.write_text(text)
    assert refused.exit_code == 2 and "fedavg-seed0 was made with epochs 6, but the settings now say epochs 5" in flat(
        refused.output
    )
    assert empty.exit_code == 2 and "result.json is not a valid result: remove its folder" in flat(empty.output)
    assert taken.exit_code == 0, taken.output


def test_a_field_that_a_protocol_did_not_have_is_no_difference():
    was = dict(lr=0.1, hamming=dict(kind="mlwe", degree=4096))
    assert comparison.common(dict(was, hamming=dict(was["hamming"], new=1)), was) == was
    assert comparison.common(was, dict(was, hamming=dict(kind="psm"))) == dict(lr=0.1, hamming=dict(kind="mlwe"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send to one process")
def test_ctrl_c_leaves_a_folder_that_resume_continues(folder):
    words = [
        "compare",
        "fedprox:mu=0.1",
        "--data",
        "digits",
        *FLAGS,
        "--rounds",
        "400",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--out",
        "i",
    ]
    command = [sys.executable, "-m", "grapevine", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(Path("i").glob("runs/*/checkpoint/manifest.json")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    said = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in said[1], said
    held = comparison.load("i")
    assert held.data["state"] == "stopped" and not all(run["state"] == "finished" for run in held.runs)
    assert "runs are finished" in Path("i/report.html").read_text()


def test_a_process_ends_with_its_starter():
    process = subprocess.Popen(
        [sys.executable, "-m", "grapevine.jobs.compare_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.slow
def test_the_first_command_of_the_page(tmp_path, monkeypatch):
    """Six methods, three seeds, one command."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8").replace("\\\n", " ")
    line = re.findall(r"^\$ grapevine (compare .*)$", page, re.M)[0]
    done = grapevine(*shlex.split(line))
    assert done.exit_code == 0, done.output
    made = comparison.load(line.split()[-1])
    rows = {row["method"]: row for row in made.table}
    assert sum(not row["bound"] for row in rows.values()) == 6 and {row["seeds"] for row in rows.values()} == {3}
    assert rows["alone"]["accuracy"] < rows["fedavg"]["accuracy"] < rows["supervised"]["accuracy"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("!")
    done = grapevine("compare", "fedprox", "--data", "digits", *FLAGS, "--out", tmp_path, "--resume")
    assert done.exit_code == 2 and "holds no comparison" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    done = grapevine("leaderboard", tmp_path, "--out", tmp_path / "l.html")
    assert done.exit_code == 2 and "holds no comparison" in done.output


def test_a_damaged_compare_json_is_a_sentence(tmp_path):
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(Mistake, match="not valid JSON"):
        comparison.load(tmp_path)
    (tmp_path / "compare.json").write_text('{"job": "compare"}')
    with pytest.raises(Mistake, match="grapevine compare does not write"):
        compare_page.write(tmp_path)
