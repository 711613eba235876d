"""The compare job: equal splits, the bits of a lone run, nothing lost when runs fail, and numbers that follow from the runs'."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chromium import Browser
from click.testing import CliRunner
from rich.console import Console
from scipy.stats import sem, ttest_rel
from scipy.stats import t as t_distribution

import grapevine as gv
from grapevine.cli import compare_terminal, terminal
from grapevine.cli.bars import CompareBar
from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.jobs import compare as comparison
from grapevine.jobs import compare_plan, compare_table, ranking
from grapevine.jobs.settings import CompareSettings, read_budget, read_vary
from grapevine.report import compare as compare_page
from grapevine.report import leaderboard

SMALL = dict(clients=4, per_round=2, labels="clients:40", rounds=2, model="linear", seeds=2)
FLAGS = "--clients 4 --per-round 2 --labels clients:40 --rounds 2 --model linear".split()

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


def grapevine(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


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


# ---------------------------------------------------------------- runs


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


def flat(text):
    return " ".join(text.split())


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
def test_the_command_of_the_readme(tmp_path, monkeypatch):
    """Six methods, three seeds, one command."""
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^\$ grapevine (compare .*)$", readme, re.M)
    done = grapevine(*shlex.split(line))
    assert done.exit_code == 0, done.output
    made = comparison.load(line.split()[-1])
    rows = {row["method"]: row for row in made.table}
    assert sum(not row["bound"] for row in rows.values()) == 6 and {row["seeds"] for row in rows.values()} == {3}
    assert rows["alone"]["accuracy"] < rows["fedavg"]["accuracy"] < rows["supervised"]["accuracy"]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["fedprox", "--set", "nothing=1"], "none of the methods has a field 'nothing'"),
        (["fedprox", "--set", "fedprox.nothing=1"], "fedprox has no field 'nothing'"),
        (["fedprox", "--set", "xclp.alpha=1"], "xclp is not among the methods compared"),
        (["fedprox:mu=high"], "mu=high is not a number"),
        (["fedprox:nothing=1"], "has no field 'nothing'"),
        (["fedprox", "fedprox"], "fedprox is given twice"),
        (["fedproxx"], "did you mean 'fedprox'"),
        (["semifl"], "semifl cannot use labels at the clients"),
        (["fedprox", "--seeds", "0"], "seeds is 0, which is out of range: use 1 or more"),
        (["fedprox", "--workers", "0"], "workers is 0, which is out of range: use 1 or more"),
        (["fedprox", "--vary", "seed=1,2"], "--vary seed=… cannot be varied"),
        (["fedprox", "--vary", "clients"], "is not flag=a,b,c"),
        (["fedprox", "--vary", "clients=4,many"], "clients is many, which is not a whole number"),
        (["fedprox", "--vary", "clients=4,4"], "names a value twice"),
        (["fedprox", "--vary", "labels=clients:40,clients:x"], "is not valid"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(tmp_path, words, sentence):
    done = grapevine("compare", *words, "--data", "digits", *FLAGS, "--out", tmp_path / "c")
    assert done.exit_code == 2 and sentence in done.output, done.output
    assert not (tmp_path / "c").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("!")
    done = grapevine("compare", "fedprox", "--data", "digits", *FLAGS, "--out", tmp_path, "--resume")
    assert done.exit_code == 2 and "holds no comparison" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    done = grapevine("leaderboard", tmp_path, "--out", tmp_path / "l.html")
    assert done.exit_code == 2 and "holds no comparison" in done.output


# ---------------------------------------------------------------- what is asked for


def test_methods_with_fields_and_objects_are_read():
    assert compare_plan.entry("xclp").settings == {}
    plain = compare_plan.entry("xclp:hamming=plain,alpha=0.9")
    assert (plain.spec, plain.settings, plain.folder) == (
        "xclp",
        {"hamming": "plain", "alpha": "0.9"},
        "xclp-hamming=plain,alpha=0.9",
    )
    assert compare_plan.entry(gv.methods.FedProx(mu=0.5)) == compare_plan.entry("fedprox:mu=0.5")
    assert compare_plan.entry(gv.methods.FedAvg()) == compare_plan.entry("fedavg")


def test_commas_in_vary_belong_to_values_where_they_do():
    assert read_vary(["labels=clients:100,clients:500"]) == {"labels": ["clients:100", "clients:500"]}
    assert read_vary(["labels=server:5,clients:all"]) == {"labels": ["server:5,clients:all"]}
    assert read_vary(["labels=server:5@0,2,5,server:9,clients:7,fraction:0.1"]) == {
        "labels": ["server:5@0,2,5", "server:9,clients:7", "fraction:0.1"]
    }
    assert read_vary(["partition=iid,dirichlet:0.1", "partition=shards:2", "per-round=2,4"]) == {
        "partition": ["iid", "dirichlet:0.1", "shards:2"], "per_round": ["2", "4"],
    }  # fmt: skip


# ---------------------------------------------------------------- numbers, from runs that are made up


def made_up(out: Path, methods, accuracy, vary=None, seeds=3, leave_out=(), **flags):
    """A comparison whose runs are written here instead of run: `accuracy(label, cell values, seed)`."""
    going = begun(out, methods, vary=vary, seeds=seeds, **flags)
    for job in going.jobs:
        if (job.label, job.seed) in leave_out:
            continue
        run, final = out / job.folder, accuracy(job.label, going.data["cells"][job.cell]["values"], job.seed)
        run.mkdir(parents=True)
        lines = [dict(round=r, accuracy=final * r / 4, bytes_up=100 * r, bytes_down=300 * r) for r in range(5)]
        (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = dict(
            rounds=4, accuracy=final, accuracy_last=final, balanced_accuracy=final / 2, best_round=4, bytes_up=400,
            bytes_down=1200, flops=10**9, seconds=2.0, pseudo_label_accuracy=None, peak_memory_mb=1,
            test_rows=359, validation_rows=0 if job.label == "alone" else 144,
        )  # fmt: skip
        (run / "result.json").write_text(json.dumps(result))
    return going


def begun(out, methods, **settings):
    """A comparison before its first run."""
    s = CompareSettings(**dict(data="digits", clients=4, labels="clients:40", rounds=4, per_round=2, workers=1) | settings)
    out.mkdir()
    pages = comparison.Pages(compare_page.write)
    return comparison.Going(compare_plan.Plan.make(methods, s, out), "grapevine compare …", pages)


def tabled(going):
    """Its table, without a run."""
    for job in going.jobs:
        job.state = "finished" if (going.out / job.folder / "result.json").exists() else "waiting"
    going.write("finished")
    return comparison.load(going.out)


LEVEL = {"alone": 0.4, "fedavg": 0.6, "fedprox": 0.7, "fedsem": 0.8, "supervised": 0.9}


def noisy(label, values, seed):
    return LEVEL[label] + random.Random(f"{label}{seed}").uniform(-0.05, 0.05)


def test_means_spread_and_paired_test(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy))
    assert [row["method"] for row in made.table] == ["alone", "fedavg", "fedprox", "fedsem", "supervised"]
    rows = {row["method"]: row for row in made.table}
    assert [row["method"] for row in made.table if row["best"]] == ["fedsem"]  # supervised is better, and a bound
    assert {name for name, row in rows.items() if row["bound"]} == {"alone", "fedavg", "supervised"}
    these, best = ([noisy(name, {}, seed) for seed in range(3)] for name in ("fedprox", "fedsem"))
    mean = sum(these) / 3
    assert rows["fedprox"]["accuracy"] == pytest.approx(mean)
    assert rows["fedprox"]["accuracy_std"] == pytest.approx(math.sqrt(sum((a - mean) ** 2 for a in these) / 2))
    assert rows["fedprox"]["p"] == pytest.approx(ttest_rel(these, best).pvalue)
    assert rows["fedprox"]["difference"] == pytest.approx(mean - sum(best) / 3)
    assert rows["fedsem"]["p"] is None
    # 1600 bytes over 4 rounds of 2 clients.
    assert rows["fedprox"]["bytes_per_client_round"] == 200


def test_the_interval_of_a_mean_is_students(tmp_path):
    rows = {row["method"]: row for row in tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy)).table}
    these = [noisy("fedsem", {}, seed) for seed in range(3)]
    low, high = t_distribution.interval(0.95, 2, sum(these) / 3, sem(these))
    assert compare_table.interval(rows["fedsem"]) == f"{100 * low:.1f} to {100 * high:.1f}%, 3 seeds"
    assert compare_table.interval(dict(accuracy=0.5, accuracy_half=None, seeds=1)) == "1 seed"


def resting_on(out, rows):
    """A comparison whose runs are tested and chosen on so few rows: {seed: (test, validation)}."""
    going = made_up(out, ["fedsem"], noisy, seeds=len(rows))
    for job in going.jobs:
        path, (test, validation) = out / job.folder / "result.json", rows[job.seed]
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(test_rows=test, validation_rows=validation)))
    return tabled(going)


def test_a_comparison_says_on_how_few_rows_its_figures_rest(tmp_path, capsys):
    """100 % on 5 test rows, of a round that 2 rows chose, stood there as if it were sure."""
    made = resting_on(tmp_path / "c", {0: (5, 2), 1: (7, 3)})
    said = "Each accuracy is measured on 5 to 7 test rows, of the round that was best on 2 to 3 validation rows."
    warning = "Only 2 validation rows chose the round that was kept, so it may be the best by chance"
    compare_terminal.show_comparison(made)
    for told in (capsys.readouterr().out, (made.out / "table.md").read_text(), (made.out / "report.html").read_text()):
        assert said in told and warning in told
    assert " of the 5 to 7 test rows of digits right" in headline(made)


def test_methods_of_which_no_round_is_chosen_are_named(tmp_path):
    made = resting_on(tmp_path / "c", {0: (359, 144)})
    cell, runs = made.data["cells"][0], [dict(run) for run in made.data["runs"]]
    alone = next(run for run in runs if run["method"] == "alone")
    alone["validation_rows"] = 0
    (told,) = compare_table.rests_on(dict(made.data, runs=runs), cell)
    assert told.endswith("of the round that was best on 144 validation rows (alone: of the last round).")


def test_rounds_that_enough_rows_chose_are_not_warned_of(tmp_path):
    resting_on(tmp_path / "c", {0: (359, 144)})
    told = (tmp_path / "c" / "table.md").read_text()
    assert "Each accuracy is measured on 359 test rows, of the round that was best on 144 validation rows." in told
    assert "by chance" not in told
    older = resting_on(tmp_path / "d", {0: (None, None)})
    assert "Each accuracy" not in (tmp_path / "d" / "table.md").read_text()
    assert " of the test rows of digits right" in headline(older)


def headline(made):
    return re.search(r"<h1[^>]*>(.*?)</h1>", (made.out / "report.html").read_text(), re.S)[1]


def test_a_bound_that_beats_every_method_is_said_first(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], lambda label, values, seed: dict(LEVEL, fedavg=0.85)[label]))
    warning = "The bound labelled rows only (fedavg) is at least as good as every method: this setting says nothing about them."
    assert compare_table.notes(made.data, made.data["cells"][0])[0] == warning
    none = (
        "None of 2 methods is better than the bound fedavg on digits: fedsem comes nearest, with 80.0% of the 359 test rows right"
    )
    assert headline(made).startswith(none) and not any(row["best"] for row in made.table)
    said = (tmp_path / "c" / "table.md").read_text()
    assert warning in said and "**" not in said and " best |" not in said and "points against fedsem" in said
    assert "best: fedsem" not in (tmp_path / "c" / "report.html").read_text()


def test_a_single_method_is_not_called_best(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedsem"], noisy))
    assert not any(row["best"] for row in made.table) and "best" not in headline(made)
    assert compare_table.lead(made.table)["method"] == "fedsem"


def test_two_bounds_that_beat_every_method_share_a_sentence(tmp_path):
    """Each had the same sentence."""
    made = tabled(made_up(tmp_path / "c", ["fedsem"], lambda label, values, seed: dict(LEVEL, alone=0.9, fedavg=0.85)[label]))
    told = compare_table.notes(made.data, made.data["cells"][0])[0]
    assert told.startswith("The bounds ") and told.count("says nothing") == 1 and "(alone)" in told and "(fedavg)" in told


def test_a_tie_with_a_bound_is_in_the_headline(tmp_path):
    level = dict(LEVEL, fedsem=0.65)
    made = tabled(
        made_up(tmp_path / "c", ["fedsem"], lambda label, values, seed: level[label] + 0.1 * (-1) ** seed * (label == "fedavg"))
    )
    assert headline(made).endswith("3 seeds); it is not distinguishable from the bound fedavg.")
    clear = tabled(made_up(tmp_path / "d", ["fedsem"], lambda label, values, seed: LEVEL[label] + seed / 1000))
    assert "bound" not in headline(clear) and "3 seeds" in headline(clear)
    top = tabled(made_up(tmp_path / "e", ["fedsem"], lambda label, values, seed: dict(LEVEL, supervised=0.7)[label]))
    assert headline(top).endswith("it is no worse than the bound supervised.")


def test_a_missing_bound_is_explained(tmp_path):
    def told(labels, asked, **flags):
        going = begun(tmp_path / f"{labels[:3]}{len(flags)}", asked, labels=labels, seeds=1, **flags)
        return going.data["cells"][0]["no_bounds"]

    assert told("clients:40", ["fedsem"]) == []
    assert told("clients:40", ["fedsem"], bounds=False) == ["no bound was asked for"]
    assert told("server:50", ["semifl"])[0].startswith("no client has labels")
    assert [words.split(",")[0] for words in told("all", ["fedprox"])] == ["every row is labelled", "all labels are true"]


def test_partly_labelled_data_of_ones_own_has_the_bounds_that_can_be_run(tmp_path):
    """A table with 40 of 100 labels was called fully labelled, and fedavg and supervised were left out."""
    lines = [f"{i % 7 - 3},{'ab'[i % 7 > 3] if i < 40 else ''}" for i in range(100)]
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["height,label", *lines]))

    def cell(labels, asked="fedsem"):
        return begun(tmp_path / labels[:3], [asked], data=str(own), labels=labels, seeds=1, validation=0).data["cells"][0]

    every, some = cell("all"), cell("clients:16")
    assert every["labelled"] == 32 and every["unlabelled"] == 60 and some["labelled"] == 16
    assert {line["label"]: line["bound"] for line in every["lines"]} == dict(
        alone="each client alone", fedavg="labelled rows only", fedsem=None
    )
    assert every["no_bounds"] == ["the true class of 60 rows is unknown, so the upper bound (supervised) cannot be run: "
                                  "it would see no more labels than fedavg"]  # fmt: skip
    assert some["lines"][-1]["bound"] == "all known labels" and some["no_bounds"] == [
        "the true class of 60 rows is unknown, so the upper bound (supervised) trains only on the rows whose class is known"
    ]


def test_one_budget_is_for_all_that_have_the_field_and_what_differs_is_said(tmp_path):
    going = begun(tmp_path / "c", ["fedsem", "xclp:epochs=2"], budget=dict(epochs=3, schedule="cosine", weight_decay=0.01))
    lines = {line["label"]: line for line in going.data["cells"][0]["lines"]}
    assert {label: line["spent"]["epochs"] for label, line in lines.items()} == dict(
        {"xclp:epochs=2": 2}, alone=3, fedavg=3, fedsem=3, supervised=3
    )  # a method's own fields come last
    assert lines["fedavg"]["budget"] == "3 epochs, batch 50, decay 0.01, cosine rate"
    assert lines["fedsem"]["budget"].endswith("; also cosine rate in each of two stages, pseudo-labels in the second")
    settings = {job.label: job.work["settings"]["set"] for job in going.jobs}
    assert settings["fedavg"] == dict(epochs="3", schedule="cosine", weight_decay="0.01")
    assert settings["fedsem"] == dict(epochs="3", weight_decay="0.01")
    notes = compare_table.notes(tabled(going).data, going.data["cells"][0])
    (told,) = (note for note in notes if note.startswith("Budgets differ"))
    assert "epochs 3 (alone, fedavg, fedsem, supervised), 2 (xclp:epochs=2)" in told
    assert "augment False (alone, fedavg, supervised), True (fedsem, xclp:epochs=2)" in told and "weight_decay" not in told


@pytest.mark.parametrize(
    "budget, sentence",
    [
        ("mu=1", "--budget mu=1: a budget can set epochs, steps_per_round, period, batch"),
        ("steps_per_round=3", "--budget steps_per_round=3: none of the methods has a field 'steps_per_round'; there are"),
        ("epochs=many", "epochs=many is not a whole number"),
        ("schedule=cosin", "schedule=cosin is not a known value: use constant or cosine"),
        ("epochs", "--budget epochs is not field=value, as in --budget epochs=5,batch=50"),
        ("epochs=5,", "--budget '' is not field=value, as in --budget epochs=5,batch=50"),
        ("pretrain=1", "--budget pretrain=1: the server has no labels here, so nothing is trained there; leave pretrain out"),
    ],
)  # fmt: skip
def test_a_budget_is_refused_by_a_sentence(tmp_path, budget, sentence):
    done = grapevine("compare", "fedprox", "--data", "digits", *FLAGS, "--budget", budget, "--out", tmp_path / "c")
    assert done.exit_code == 2 and sentence in flat(done.output), done.output
    assert not (tmp_path / "c").exists()


def test_a_budget_is_read_from_the_command():
    assert read_budget(["epochs=5, batch=50", "augment=true"]) == dict(epochs="5", batch="50", augment="true")


BOTH = {"labels": ["clients:40", "server:50"]}


def test_a_budgets_server_fields_stay_away_from_a_server_without_labels(tmp_path):
    """The upper bound failed: server_epochs and pretrain need labels at the server."""
    budget = dict(server_epochs=1, pretrain=2, epochs=3)
    going = begun(tmp_path / "c", ["fixmatch"], vary=BOTH, budget=budget, seeds=1)
    clients, server = going.data["cells"]
    assert {line["label"]: line["settings"] for line in clients["lines"]} == dict.fromkeys(
        ("alone", "fedavg", "fixmatch", "supervised"), dict(epochs="3")
    )
    assert {line["label"]: line["settings"] for line in server["lines"]} == {
        "server-only": dict(epochs="3"),
        "fixmatch": dict(epochs="3", server_epochs="1"),
        "supervised": dict(epochs="3", server_epochs="1", pretrain="2"),
    }
    for job in going.jobs:
        (line,) = (line for line in going.data["cells"][job.cell]["lines"] if line["label"] == job.label)
        assert job.work["settings"]["set"] == line["settings"]
    notes = [compare_table.notes(tabled(going).data, cell) for cell in (clients, server)]
    unused = "No method here uses the budget's server_epochs, pretrain."
    assert unused in notes[0] and not any("uses the budget's" in note for note in notes[1])


def test_the_budget_column_says_what_acts(tmp_path):
    """It had a decay of 0.01 for protofssl:preset=code, where none acts, passes and batches of a server without labels, no batch
    for feddb, whose 0 means all rows, and 1 epochs."""
    asked = ["protofssl:preset=code,weight_decay=0.01,helpers=2", "fixmatch:epochs=1", "feddb", "fedmatch", "fedrgd"]
    clients, server = begun(tmp_path / "c", asked, vary=BOTH, seeds=1).data["cells"]
    budgets = {line["label"].partition(":")[0]: line["budget"].partition(";")[0] for line in clients["lines"]}
    assert budgets == dict(
        alone="5 epochs, batch 50, constant rate", fedavg="5 epochs, batch 50, constant rate", protofssl="10 steps",
        fixmatch="1 epoch, batch 10, momentum 0.9, decay 0.0005", fedmatch="1 epoch, batch 10",
        feddb="5 epochs, batch of all rows, momentum 0.9, decay 0.0005", fedrgd="16 steps, batch 64, momentum 0.9, decay 0.0001",
        supervised="5 epochs, batch 50, constant rate",
    )  # fmt: skip
    budgets = {line["label"].partition(":")[0]: line["budget"].partition(";")[0] for line in server["lines"]}
    assert budgets["fixmatch"] == "1 epoch, batch 10, 5 at the server, momentum 0.9, decay 0.0005"
    assert budgets["fedmatch"] == "1 epoch, batch 100" and budgets["supervised"] == "5 epochs, batch 50, constant rate"
    none = begun(tmp_path / "e", ["fedncm"], seeds=1, bounds=False).data["cells"][0]["lines"]
    assert none[0]["budget"] == "one message a client, nothing trained"
    trained = begun(tmp_path / "d", ["supervised:pretrain=1"], labels="server:50", seeds=1, bounds=False).data["cells"][0][
        "lines"
    ]
    assert trained[0]["budget"] == "5 epochs, batch 50, 1 epoch at the server before, its batch 10, constant rate"


def told_of_budgets(out, asked, **flags):
    """The notes on a comparison's budgets."""
    going = begun(out, asked, seeds=1, **flags)
    notes = compare_table.notes(tabled(going).data, going.data["cells"][0])
    return [note for note in notes if "udget" in note or "gradient steps" in note]


def test_steps_and_passes_are_compared_in_gradient_steps(tmp_path):
    """ProtoFSSL's steps were not compared with the passes of the others, which is where their rounds differ most."""
    methods = ["protofssl:steps_per_round=3,helpers=2", "fixmatch:batch=5"]
    parts = gv.data.load("digits").split(clients=4, labels="clients:40").parts
    assert [(len(part.labelled), len(part.unlabelled)) for part in parts] == [(10, 313), (10, 314)] * 2
    notes = told_of_budgets(tmp_path / "c", methods)
    assert len(notes) == 2 and "server" not in notes[0]
    # Five passes: over 10 rows in one batch, over 323 in 7 of up to 50, over 313 in 9 of up to 7 · 5.
    assert notes[1] == (
        "protofssl:steps_per_round=3,helpers=2 counts gradient steps, other methods passes over their rows: the most steps that "
        "a client takes in a round are, on average over the clients, 3 (protofssl:steps_per_round=3,helpers=2), "
        "5 (alone, fedavg), 35 (supervised), 45 (fixmatch:batch=5)."
    )
    two = told_of_budgets(tmp_path / "d", ["protofssl:helpers=2", "fedrgd"], labels="clients:40/2")
    assert "protofssl:helpers=2 and fedrgd count gradient steps" in two[1]
    assert "2.5 (alone, fedavg), 10 (protofssl:helpers=2), 16 (fedrgd), 35 (supervised)" in two[1]  # 2 of 4 clients have labels
    assert not any("gradient steps" in note for note in told_of_budgets(tmp_path / "e", ["fixmatch"]))


def test_the_way_out_of_a_difference_is_one_that_was_not_taken(tmp_path):
    (told,) = told_of_budgets(tmp_path / "c", ["fixmatch"])
    assert told.endswith("0.0005 (fixmatch). --budget batch=… sets it for every method that has it.")
    (told,) = told_of_budgets(tmp_path / "d", ["fixmatch:batch=7"], budget=dict(batch=20), set=dict(momentum=0.5))
    assert (
        "batch 20 (alone, fedavg, supervised), 7 (fixmatch:batch=7); weight_decay" in told and "--budget weight_decay=…" in told
    )
    (told,) = told_of_budgets(tmp_path / "e", ["fedprox:batch=7"], budget=dict(batch=20))
    assert told == "Budgets differ: batch 20 (alone, fedavg, supervised), 7 (fedprox:batch=7)."


def test_a_narrow_terminal_says_which_columns_it_leaves_out(tmp_path, monkeypatch):
    long = "fedsem:epochs=3,lr=0.05,batch=25,weight_decay=0.0005"
    made = tabled(made_up(tmp_path / "c", ["fedprox", long], lambda label, values, seed: 0.5 + seed / 100))
    words = io.StringIO()
    narrow = Console(width=80, file=words, highlight=False, markup=False)
    for module in (compare_terminal, terminal):
        monkeypatch.setattr(module, "console", narrow)
    compare_terminal.show_comparison(made)
    table, told = words.getvalue().split("There is no room here for ")
    assert max(map(len, table.splitlines())) <= 80 and "…" not in table and "batch=25" in table.replace("\n", "")
    heads = " ".join(table.split("─")[0].split())
    assert heads.endswith("seconds") and all(line.rstrip().endswith(" s") for line in table.splitlines() if "(bound)" in line)
    assert "balanced" in told.splitlines()[0] and "see table.md" in told.splitlines()[0]


def test_the_bar_never_says_that_no_time_is_left(capsys):
    for seconds, said in ((0.0, "3 of 4 runs; fedavg"), (0.4, "3 of 4 runs; fedavg"), (61.2, "about 61.2 s left")):
        CompareBar("compare")(comparison.Standing(3, 0, 4, 9, 10, seconds, "fedavg"))
        told = capsys.readouterr().out
        assert said in told and "about 0" not in told


def test_a_page_never_names_more_clients_a_round_than_there_are(tmp_path):
    tabled(made_up(tmp_path / "c", ["fedsem"], noisy, clients=3, per_round=10))
    page = (tmp_path / "c" / "report.html").read_text()
    assert "4 rounds of 3 clients" in page and not re.search(r"per.round</\w+>\s*<\w+>10<", page)


def test_a_paired_test_needs_two_seeds_and_a_difference():
    assert compare_table.paired({0: 0.5}, {0: 0.4})[1:] == (None, 1)
    assert compare_table.paired({0: 0.5}, {1: 0.4}) == (None, None, 0)
    assert compare_table.paired({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6})[1] == 1.0
    difference, p, pairs = compare_table.paired({0: 0.5, 1: 0.6, 7: 0.1}, {0: 0.25, 1: 0.35, 8: 0.2})
    assert (difference, p, pairs) == (pytest.approx(0.25), 0.0, 2)
    assert compare_table.mean_and_std([0.5, None]) == (0.5, None)
    assert compare_table.mean_and_std([]) == (None, None)


def test_rounds_and_bytes_to_the_target(tmp_path):
    plan = made_up(tmp_path / "c", ["fedprox", "fedsem"], lambda label, values, seed: LEVEL[label])
    rows = {row["method"]: row for row in tabled(plan).table}
    # Curves rise by a quarter of the last accuracy a round; fedavg's 0.6 is reached by 0.8 in round 3, by 0.7 in round 4.
    assert rows["fedsem"]["target"] == pytest.approx(0.6)
    assert (rows["fedsem"]["target_rounds"], rows["fedsem"]["target_bytes"]) == (3, 1200)
    assert (rows["fedprox"]["target_rounds"], rows["fedprox"]["target_bytes"]) == (4, 1600)
    assert rows["alone"]["target_rounds"] is None
    markdown = (tmp_path / "c" / "table.md").read_text()
    assert "not reached" in next(line for line in markdown.splitlines() if line.startswith("| alone"))
    plan.data["target"] = 0.2
    rows = {row["method"]: row for row in tabled(plan).table}
    assert (rows["alone"]["target_rounds"], rows["fedsem"]["target_rounds"]) == (2, 1)


def test_the_tables_on_disk_say_the_same(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy, leave_out={("fedprox", 1)}))
    with open(tmp_path / "c" / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [row["method"] for row in made.table]
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in made.table]
    markdown = (tmp_path / "c" / "table.md").read_text()
    assert "| fedprox |  | 2 of 3 |" in markdown and "| **fedsem** |" in markdown
    assert "Not finished yet: 1 runs" in markdown
    tex = compare_table.as_latex(made.data)
    assert tex.count(r"\\") == 6 and r"$\pm$" in tex and r"\textbf{fedsem}" in tex
    assert compare_table.tex("50 % of {a_b} & c") == r"50 \% of \{a\_b\} \& c"


def test_bounds_follow_the_labels(tmp_path):
    def methods(labels, asked, **flags):
        going = begun(tmp_path / labels[:3], asked, labels=labels, seeds=1, **flags)
        return [(line["label"], bool(line["bound"])) for line in going.data["cells"][0]["lines"]]

    assert methods("server:50", ["semifl"]) == [("server-only", True), ("semifl", False), ("supervised", True)]
    assert methods("clients:40", ["supervised", "fedsem"])[-2:] == [("fedsem", False), ("supervised", True)]
    # With all labels, plain averaging is one of the methods, and there is nothing above it.
    assert methods("all", ["fedavg", "fedprox"]) == [("alone", True), ("fedavg", False), ("fedprox", False)]


# ---------------------------------------------------------------- pages


GRID = {"labels": ["clients:20", "clients:40", "clients:80"], "partition": ["iid", "shards:2"]}


@pytest.fixture
def grid(tmp_path):
    def accuracy(label, values, seed):
        return noisy(label, values, seed) - (0.2 if label == "fedsem" and values["partition"] == "iid" else 0)

    return tabled(
        made_up(tmp_path / "grid", ["fedprox", "fedsem"], accuracy, GRID, leave_out={("alone", 0), ("alone", 1), ("alone", 2)})
    )


def test_a_grid_has_a_cell_for_every_combination(grid):
    assert [cell["values"] for cell in grid.data["cells"]][:3] == [
        dict(labels="clients:20", partition="iid"), dict(labels="clients:20", partition="shards:2"),
        dict(labels="clients:40", partition="iid"),
    ]  # fmt: skip
    assert len(grid.runs) == 6 * 5 * 3 and len({run["folder"] for run in grid.runs}) == 90
    page = (grid.out / "report.html").read_text()
    assert headline(grid) == "2 methods and 3 bounds on digits, in 6 settings: best: fedprox in 3, fedsem in 3."
    panels = re.findall(r"<figcaption><h3>(partition [^<]*)</h3>", page)
    assert panels == ["partition iid", "partition shards:2"]
    assert "labels at the clients" in page


def test_a_grid_calls_nothing_best_that_a_lower_bound_beats_or_that_is_alone(tmp_path):
    """A method with 11.8 % was called best in cells where it was the only one that could run and plain averaging had 34.7 %."""

    def accuracy(label, values, seed):
        if values["labels"].startswith("server"):
            return {"semifl": 0.7, "fl2": 0.6, "server-only": 0.5, "supervised": 0.9}[label]
        return LEVEL[label] if values["partition"] == "iid" else dict(LEVEL, fedsem=0.118, fedavg=0.347)[label]

    vary = {"labels": ["clients:40", "server:40"], "partition": ["iid", "shards:2"]}
    made = tabled(made_up(tmp_path / "c", ["fl2", "semifl", "fedavg", "fedsem"], accuracy, vary, seeds=1))
    told = "best: semifl in 2; a lower bound is at least as good as every method in 1; only one method has a result in 1."
    assert headline(made) == f"3 methods and 4 bounds on digits, in 4 settings: {told}"
    assert [one["wins"] for one in ranking.ranking(ranking.places([made])) if one["method"] == "fedsem"] == [0]


def test_values_of_one_kind_have_places_on_a_line():
    assert compare_page.is_scale(["clients:20", "clients:40"]) and compare_page.is_scale([0.1, 0.2])
    assert not compare_page.is_scale(["iid", "dirichlet:0.1"]) and not compare_page.is_scale(["clients:20", "server:20"])
    assert compare_page.number("clients:1000/50") == 1000 and compare_page.number("iid") is None


def test_the_page_is_self_contained_and_works_while_runs_are_missing(tmp_path):
    plan = made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy, leave_out={("fedsem", s) for s in range(3)} | {("fedprox", 2)})
    tabled(plan)
    plan.write("going")
    page = (tmp_path / "c" / "report.html").read_text()
    assert '<meta http-equiv="refresh"' in page and "11 of 15 runs are finished" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "2 (waiting)" in page
    policy = re.search(r"script-src ([^;]*);", html.unescape(page))[1]
    assert policy.count("sha256-") == 1 == page.count("<script>")


def test_nothing_is_finished_yet(tmp_path):
    tabled(made_up(tmp_path / "c", ["fedprox"], noisy, leave_out={(label, s) for label in LEVEL for s in range(3)}))
    page = (tmp_path / "c" / "report.html").read_text()
    assert "No method has a result yet" in page and "No run is finished yet" in page


def test_the_leaderboard_ranks_over_all_settings(tmp_path, grid):
    other = tabled(made_up(tmp_path / "other", ["fedsem", "fedprox"], lambda label, values, seed: LEVEL[label], clients=5))
    ranks = {one["method"]: one for one in ranking.ranking(ranking.places([grid, other]))}
    # fedsem is first in 3 of 6 cells of the grid and in the other one, fedprox in the 3 that are left.
    assert ranks["fedsem"]["mean_rank"] == pytest.approx((4 * 1 + 3 * 2) / 7) and ranks["fedsem"]["wins"] == 4
    assert ranks["fedprox"]["mean_rank"] == pytest.approx((3 * 1 + 4 * 2) / 7)
    assert ranks["supervised"]["mean_rank"] is None and ranks["alone"]["settings"] == 1
    done = grapevine("leaderboard", tmp_path / "grid", tmp_path / "other", "--out", tmp_path / "l.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "l.html").read_text()
    assert 'href="grid/report.html"' in page and "fedsem has the best mean rank, 1.43, over 7 of 7 settings" in page
    listed = grapevine("leaderboard", tmp_path / "grid", "--out", tmp_path / "l.html", "--json")
    assert json.loads(listed.stdout)[0]["method"] in ("fedsem", "fedprox")
    assert grapevine("leaderboard", tmp_path / "grid", "--out", tmp_path).exit_code == 2


def test_a_leaderboard_names_all_that_share_the_best_mean_rank(tmp_path):
    """Only the first in the alphabet was named."""
    pairs = [["fedprox", "fedsem"], ["fedprox", "fixmatch"], ["fedsem", "fixmatch"]]
    level = dict(LEVEL, fixmatch=0.75)
    loaded = [
        tabled(made_up(tmp_path / "-".join(pair), pair, lambda label, values, seed: level[label], seeds=1)) for pair in pairs
    ]
    leaderboard.write([loaded[0], loaded[1]], tmp_path / "l.html")
    assert "fedsem and fixmatch have the best mean rank, 1.00, over 1 of 2 settings." in (tmp_path / "l.html").read_text()
    leaderboard.write(loaded, tmp_path / "l.html")
    assert "fedsem has the best mean rank, 1.00, over 2 of 3 settings." in (tmp_path / "l.html").read_text()
    single = tabled(made_up(tmp_path / "single", ["fedsem"], noisy))
    leaderboard.write([single], tmp_path / "l.html")
    assert "No setting has two methods, one of them better than every lower bound." in (tmp_path / "l.html").read_text()


def test_a_damaged_compare_json_is_a_sentence(tmp_path):
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(Mistake, match="not valid JSON"):
        comparison.load(tmp_path)
    (tmp_path / "compare.json").write_text('{"job": "compare"}')
    with pytest.raises(Mistake, match="grapevine compare does not write"):
        compare_page.write(tmp_path)


# ---------------------------------------------------------------- in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width, dark", [(1200, False), (375, True)])
def test_pages_load_without_complaint_and_fit(browser: Browser, grid, tmp_path, width, dark):
    one = tabled(made_up(tmp_path / "one", ["fedprox", "fedsem"], noisy))
    board = leaderboard.write([grid, one], tmp_path / "l.html")
    for path in (grid.out / "report.html", one.out / "report.html", board):
        browser.visit(path, width, dark)
        assert browser.complaints() == []
        assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []


@pytest.mark.browser
def test_sorting_and_choosing_by_mouse_and_keyboard(browser: Browser, tmp_path):
    made = tabled(made_up(tmp_path / "one", ["fedprox", "fedsem"], noisy))
    browser.visit(made.out / "report.html", 1200, False)
    names = "[...document.querySelector('.sorted').tBodies[0].rows].map(r => r.cells[0].firstChild.textContent)"
    head = "[...document.querySelectorAll('.sorted th button')].find(b => b.textContent == 'accuracy')"
    first = browser.ask(names)
    browser.ask(f"{head}.click()")
    best_first = [row["method"] for row in sorted(made.table, key=lambda row: -row["accuracy"])]
    assert browser.ask(names) == best_first != first
    assert browser.ask(f"{head}.closest('th').getAttribute('aria-sort')") == "descending"
    browser.ask(f"{head}.focus()")
    browser.press("Enter")
    assert browser.ask(names) == best_first[::-1]

    shown = "[...document.querySelectorAll('[data-of=\"0\"]')].map(m => getComputedStyle(m).display != 'none')"
    assert set(browser.ask(shown)) == {True}
    browser.ask("document.querySelector('[data-pick=\"0\"]').click()")
    assert set(browser.ask(shown)) == {False}
    browser.ask("document.querySelector('[data-pick=\"0\"]').click()")
    assert set(browser.ask(shown)) == {True}
    browser.ask("document.querySelector('figure svg[role=img]').focus({preventScroll: true})")
    browser.press("End")
    assert browser.ask("document.getElementById('tip').textContent").startswith("round: 4\n")
    assert browser.complaints() == []
