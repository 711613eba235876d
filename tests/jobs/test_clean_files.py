"""The clean job from files to a folder, and what it refuses in a sentence with nothing written."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from clean_job import QUICK, SERVER, rows
from click.testing import CliRunner
from PIL import Image

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core.errors import Mistake


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, X, y, **more):
    header = ["name", *(f"f{j}" for j in range(X.shape[1])), "kind", *more]
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows([f"r{i}", *X[i], y[i], *(column[i] for column in more.values())] for i in range(len(X)))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two parties and a server, which has no truth column; the second party's rows 1 and 2 are of a class nobody else has."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("north", "south")):
        X, truth = rows(30, i)
        y = ["abc"[c] for c in truth]
        given = ["b" if i == 0 and k < 5 else "" if k == 5 else "q" if i and k < 2 else c for k, c in enumerate(y)]
        write(f"{name}.csv", X, given, truth=["" if i and k < 2 else c for k, c in enumerate(y)])
    write("experts.csv", SERVER[0], ["abc"[c] for c in SERVER[1]])
    return tmp_path


def grapevine(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


FOLDERS = ("images", "--server", "photos")
FLAGS = ("--server", "experts.csv", "--label", "kind", "--id", "name", "--truth", "truth", "--epochs", 20)


def test_files_in_and_a_folder_out(files):
    done = grapevine("clean", "north.csv", "south.csv", *FLAGS, "--out", "cleaned")
    assert done.exit_code == 0, done.output
    assert {path.name for path in Path("cleaned").iterdir()} == {
        "north", "south", "result.json", "messages.jsonl", "report.html", "config.toml"
    }  # fmt: skip
    left = {p.name for p in Path("cleaned/north").iterdir()} - {"cleanlab.csv"}  # which is there where cleanlab is installed
    assert left == {"cleaned.csv", "suspicious.json", "disclosure.jsonl"}
    table, source = read("cleaned/north/cleaned.csv"), read("north.csv")
    assert list(table[0]) == ["id", "given", "label", "action", "loss", "confidence"]
    assert [row["id"] for row in table] == [row["name"] for row in source]
    assert [row["given"] for row in table] == [row["kind"] for row in source]
    for row, before in zip(table, source):
        assert row["label"] == {"kept": row["given"], "excluded": ""}.get(row["action"], row["label"])
        assert (row["loss"] == "") == (row["given"] == "") and 1 / 3 < float(row["confidence"]) <= 1
        assert row["label"] in ("", before["truth"])
    assert {row["loss"] for row in read("cleaned/south/cleaned.csv")[:2]} == {"inf"}
    result = json.loads(Path("cleaned/result.json").read_text())
    assert result["job"] == "clean" and result["seed"] == 0 and result["told"] == {}
    assert [row["id"] for row in result["per_client"]] == ["north", "south"]
    north = result["per_client"][0]
    assert north["kept"] + north["corrected"] + north["excluded"] == north["n"] == 30
    assert sum(n for _, _, n in north["plane"]) == sum(n for *_, n in north["given_new"]) == 30
    assert sum(n for line in north["by_class"].values() for n in line.values()) == 30
    assert result["accuracy"] > result["accuracy_given"] and "wrong labels found" in done.output
    assert "does not know 'q'" in done.output


def test_the_same_words_from_python_parquet_and_npz(files):
    import pyarrow.csv
    import pyarrow.parquet

    for name in ("north", "south", "experts"):
        table = pyarrow.csv.read_csv(f"{name}.csv", convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=False))
        pyarrow.parquet.write_table(table, f"{name}.parquet")
        flat = {column: table.column(column).to_numpy(zero_copy_only=False).astype(str) for column in table.column_names
                if not column.startswith("f")}  # fmt: skip
        X = np.stack([table.column(f"f{j}").to_numpy() for j in range(4)], 1)
        np.savez(f"{name}.npz", X=X, **flat)
    words = dict(label="kind", id="name", truth="truth", **QUICK)
    found = [gv.clean([f"north.{end}", f"south.{end}"], server=f"experts.{end}", **words) for end in ("csv", "parquet", "npz")]
    for other in found[1:]:
        for a, b in zip(found[0], other):
            assert a.ids == b.ids and a.labels == b.labels and a.truth == b.truth
            np.testing.assert_array_equal(a.loss, b.loss)


def test_json_and_dry_run(files):
    done = grapevine("clean", "north.csv", *FLAGS, "--json", "--out", "cleaned")
    assert done.exit_code == 0 and json.loads(done.stdout)["job"] == "clean"
    assert json.loads(done.stdout)["per_client"] == json.loads(Path("cleaned/result.json").read_text())["per_client"]
    before = sorted(files.iterdir())
    dry = grapevine("clean", "north.csv", "south.csv", *FLAGS, "--dry-run", "--counts")
    assert dry.exit_code == 0 and "nothing has been sent" in dry.output and "under a minute" in dry.output
    assert set(json.loads(grapevine("clean", "north.csv", *FLAGS, "--dry-run", "--json").stdout)["parties"]) == {"north"}
    assert sorted(files.iterdir()) == before


def change(path, row, column, value):
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    table[row][table[0].index(column)] = value
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)


def bad(name):
    """What is done to the files before the command."""
    Path("full").mkdir()
    Path("full/file").touch()
    Path("empty.csv").touch()
    Path("images/a").mkdir(parents=True)
    Path("photos/a").mkdir(parents=True)
    for path in ("images/a/1.png", "photos/a/1.png"):
        Image.new("L", (8, 8)).save(path)
    if name == "a result's":
        Path("north.csv").rename("result.json.csv")
    if name == "nan":
        change("north.csv", 3, "f1", "")
    if name == "text":
        change("north.csv", 3, "f1", "many")
    if name == "column":
        change("north.csv", 0, "f1", "g1")
    if name == "one class":
        write("experts.csv", SERVER[0], ["a"] * 60)
    if name == "no labels":
        write("experts.csv", SERVER[0], [""] * 60)


@pytest.mark.parametrize(
    ("what", "words", "sentence"),
    [
        ("", ["north.csv", *FLAGS, "--tau", "0.3", "--out", "x"], "tau is 0.3, which is out of range: use 0.5 to 1, as in 0.95"),
        ("", ["north.csv", *FLAGS, "--tau", "nan", "--out", "x"], "tau is nan, which is out of range: use 0.5 to 1"),
        ("", ["north.csv", *FLAGS, "--upsilon", "0.8", "--out", "x"], "use more than 0 and at most 0.693147, as in 0.5"),
        ("", ["north.csv", *FLAGS, "--upsilon", "0", "--out", "x"], "upsilon is 0, which is out of range"),
        ("", ["north.csv", *FLAGS, "--epochs", "0", "--out", "x"], "epochs is 0"),
        ("", ["north.csv", *FLAGS, "--model", "cnn", "--out", "x"], "model cnn needs images"),
        ("", ["north.csv", *FLAGS, "--model", "gpt", "--out", "x"], "no model is called 'gpt'"),
        ("", ["north.csv", *FLAGS], "Name a new folder with --out DIR"),
        ("", ["north.csv", *FLAGS, "--out", "full"], "exists and is not empty"),
        ("", ["nort.csv", *FLAGS, "--out", "x"], "there is no file nort.csv (did you mean 'north.csv'?)"),
        ("", ["empty.csv", *FLAGS, "--out", "x"], "empty.csv is empty"),
        ("", ["north.csv", "--server", "empty.csv", *FLAGS[2:], "--out", "x"], "empty.csv is empty"),
        ("", ["north.csv", "--server", "experts.csv", "--out", "x"], "Name it with --label COL"),
        ("", ["north.csv", *FLAGS[:2], "--label", "class", "--out", "x"], "has no column 'class'"),
        ("", ["north.csv", "north.csv", *FLAGS, "--out", "x"], "north.csv is given twice"),
        ("", ["images", *FLAGS, "--out", "x"], "images is a folder but others are files"),
        ("", ["north.csv", *FLAGS, "--embed", "efficientnet-lite0", "--out", "x"], "efficientnet-lite0 takes images"),
        ("", ["north.csv", *FLAGS, "--embed", "norun", "--out", "x"], "norun holds no model.safetensors"),
        ("", [*FOLDERS, "--label", "nonsense", "--out", "x"], "--label nonsense names a column, but"),
        ("", [*FOLDERS, "--features", "a,b", "--out", "x"], "photos holds images, but --features is for tables: leave it out"),
        ("", [*FOLDERS, "--id", "q", "--impute", "--out", "x"], "--id and --impute are for tables: leave them out"),
        ("a result's", ["result.json.csv", *FLAGS, "--out", "x"], "the job writes a file of that name: rename the party"),
        ("nan", ["north.csv", *FLAGS, "--out", "x"], "north.csv, line 4, column 'f1': the value is missing"),
        ("text", ["north.csv", *FLAGS, "--out", "x"], "'many' is not a number"),
        ("column", ["north.csv", *FLAGS, "--out", "x"], "north.csv lacks column 'f1'"),
        ("one class", ["north.csv", *FLAGS, "--out", "x"], "every label of the server is 'a'"),
        ("no labels", ["north.csv", *FLAGS, "--out", "x"], "the server has no labelled row"),
        ("one class", ["north.csv", *FLAGS, "--dry-run"], "every label of the server is 'a'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_exit_code_2_and_nothing_written(files, what, words, sentence):
    bad(what)
    before = sorted(files.rglob("*"))
    done = grapevine("clean", *words)
    assert done.exit_code == 2 and sentence in done.output, done.output
    said = [line for line in done.output.splitlines() if line.startswith("grapevine: ")]
    assert len(said) == 1 and done.output.strip()[-1] in ".?"
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    ("parties", "settings", "sentence"),
    [
        ([], {}, "no party was given"),
        ([(np.ones((3, 5)), [0, 1, 2])], {}, "party-1 has 5 features and the server has 4"),
        ([(np.zeros((3, 8, 8), np.uint8), [0, 1, 2])], {}, "party-1 has images and the server has a table"),
        ([(np.ones((3, 4)), [0, 1])], {}, "party-1 has 3 rows and 2 labels"),
        ([(np.full((3, 4), np.nan), [0, 1, 1])], {}, "row 1, column 1 is nan"),
        ([np.ones((3, 4))], {}, "give every party as (X, y)"),
        ([SERVER], dict(scale="log"), "scale is log, which is not a known value"),
        ([SERVER], dict(names=["../up"]), "without slashes"),
        ([SERVER, SERVER], dict(names=["a", "a"]), "two parties are called 'a'"),
        (
            [SERVER],
            dict(names=["Report.html"]),
            "a party is called 'Report.html', but the job writes a",
        ),
        (["north.csv"], {}, "some of the server and the parties are files and others arrays"),
        ([SERVER], dict(label="y"), "label is for files, but the parties are arrays: leave it out, or give them as files."),
        ([SERVER], dict(embed="run"), "embed is for files, but the parties are arrays"),
    ],
)
def test_bad_arrays(parties, settings, sentence):
    with pytest.raises(Mistake) as told:
        gv.clean(parties, server=SERVER, **settings)
    assert sentence in str(told.value) and "\n" not in str(told.value)


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another thing there")
def test_ctrl_c_leaves_nothing(files):
    command = [sys.executable, "-m", "grapevine", "clean", "north.csv", *map(str, FLAGS[:-1]), "100000", "--out", "cleaned"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        first = running.stdout.readline()
        for _ in range(30):  # torch imports more at its first step, and an import may swallow the first Ctrl-C
            time.sleep(1)
            if running.poll() is not None:
                break
            running.send_signal(signal.SIGINT)
        running.kill()
        said = running.stderr.read()
    assert "being trained" in first, said
    assert running.returncode == 130 and "Stopped: nothing was written." in said
    assert not Path("cleaned").exists() and not list(files.glob(".writing*"))
