"""The command as people type it: label, demo, predict. Bad input is one sentence and exit code 2, and nothing is written."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from sklearn.datasets import load_wine

from grapevine.cli.main import main

NAMES = ("north", "south", "east")
QUICK = ["--label", "cultivar", "--secure", "psm", "--bits", "256"]


@pytest.fixture
def wine(tmp_path, monkeypatch):
    """Three files with scikit-learn's wine data; eight rows of each are labelled."""
    monkeypatch.chdir(tmp_path)
    data = load_wine()
    order = np.random.default_rng(0).permutation(len(data.data))
    for name, rows in zip(NAMES, np.array_split(order, 3)):
        table = [
            [f"w{row}", *data.data[row], f"class_{data.target[row]}" if i < 8 else "", f"class_{data.target[row]}"]
            for i, row in enumerate(rows)
        ]
        write(f"{name}.csv", [["bottle", *data.feature_names, "cultivar", "truth"], *table])
    return tmp_path


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def change(path, row, column, value):
    rows = read(path)
    rows[row][rows[0].index(column)] = value
    write(path, rows)


def grapevine(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


FILES = [f"{name}.csv" for name in NAMES]


# ---------------------------------------------------------------- label


def test_three_files_to_labels(wine):
    done = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--seed", 1, "--out", "labels")
    assert done.exit_code == 0, done.output
    for name in NAMES:
        rows, given = read(f"labels/{name}/labels.csv"), read(f"{name}.csv")
        assert rows[0] == ["id", "label", "confidence", "abstained", "given", "proposed"]
        assert [row[0] for row in rows[1:]] == [row[0] for row in given[1:]]
        assert [row[4] for row in rows[1:]] == [row[-2] for row in given[1:]]
    result = json.loads(Path("labels/result.json").read_text())
    assert result["accuracy"] > 0.8 and f"the truth, together: {result['accuracy']:.1%}" in done.output
    assert "Expected accuracy" in done.output and "not secret" in done.output
    assert [path.name for path in wine.iterdir() if path.is_dir()] == ["labels"]
    again = grapevine("report", "labels")
    assert again.exit_code == 0 and "report.html" in again.output


def test_parquet_and_npz_give_what_csv_gives(wine):
    import pyarrow.csv
    import pyarrow.parquet

    for name in NAMES:
        table = pyarrow.csv.read_csv(f"{name}.csv")
        pyarrow.parquet.write_table(table, f"{name}.parquet")
        columns = [c for c in table.column_names if c not in ("bottle", "cultivar", "truth")]
        X = np.column_stack([table[c].to_numpy() for c in columns])
        np.savez(f"{name}.npz", X=X, y=table["cultivar"].to_numpy().astype(str), bottle=table["bottle"].to_numpy().astype(str))
    for kind in ("csv", "parquet", "npz"):
        more = ["--features", ",".join(columns)] if kind != "npz" else []
        done = grapevine("label", *(f"{n}.{kind}" for n in NAMES), *QUICK, "--id", "bottle", *more, "--seed", 2, "--out", kind)
        assert done.exit_code == 0, done.output
    for name in NAMES:
        files = [Path(kind, name, "labels.csv").read_bytes() for kind in ("csv", "parquet", "npz")]
        assert files[0] == files[1] == files[2]


def test_the_columns_of_a_party_may_stand_in_another_order(wine):
    done = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--seed", 1, "--out", "a")
    rows = read("south.csv")
    write("south.csv", [row[::-1] for row in rows])
    again = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--seed", 1, "--out", "b")
    assert done.exit_code == again.exit_code == 0
    assert all(Path("a", n, "labels.csv").read_bytes() == Path("b", n, "labels.csv").read_bytes() for n in NAMES)


def test_dry_run_writes_nothing_and_says_what_would_leave(wine):
    before = sorted(wine.rglob("*"))
    done = grapevine("label", *FILES, "--label", "cultivar", "--id", "bottle", "--truth", "truth", "--dry-run")
    assert done.exit_code == 0 and sorted(wine.rglob("*")) == before
    for words in ("nothing has been sent", "lattice ciphertexts", "The server learns", "A party learns", "MB of memory",
                  "under a minute", "If the server and one party collude, they learn all labels"):  # fmt: skip
        assert words in done.output


def test_images_with_a_trained_run(tmp_path, monkeypatch, digits):
    """Folders of images, classes as sub-folders, embedded by a model that was trained on such images."""
    monkeypatch.chdir(tmp_path)
    words = ["--data", "digits", "--clients", 4, "--labels", "clients:100", "--rounds", 1, "--model", "cnn", "--out", "run"]
    assert grapevine("train", "fedavg", *words).exit_code == 0
    for i, (x, y) in enumerate(zip(digits.x[:90], digits.y[:90].tolist())):
        folder = Path(NAMES[i % 3], digits.classes[y] if i < 60 else "unlabelled")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[0].numpy()).save(folder / f"{i}.png")
    quick = ["--secure", "psm", "--bits", "128"]
    bare = grapevine("label", *NAMES, *quick, "--out", "labels")
    assert bare.exit_code == 2 and "north is a folder of images: use --embed" in bare.output
    columns = grapevine("label", *NAMES, *quick, "--embed", "run", "--features", "a,b", "--impute", "--out", "labels")
    assert columns.exit_code == 2 and "north holds images, but --features and --impute are for tables" in columns.output
    done = grapevine("label", *NAMES, *quick, "--embed", "run", "--out", "labels")
    assert done.exit_code == 0, done.output
    rows = read("labels/north/labels.csv")
    assert len(rows) == 31 and rows[-1][0] == "unlabelled/87.png" and rows[-1][4] == ""
    assert read("labels/north/baselines.csv")[0] == ["id", "together", "alone", "model"]
    new = grapevine("predict", "run", "north", "--out", "new.csv")
    assert new.exit_code == 0 and "Wrote 30 labels" in new.output and read("new.csv")[0] == ["id", "label", "probability"]
    np.savez("narrow.npz", X=np.zeros((3, 5)))
    write("gap.csv", [["id", "a", "b"], [1, "", 2], [2, "x", 3]])  # which gaps and words must not hide
    for words, sentence in (
        (["run", "north", "--out", "new.csv"], "new.csv exists"),
        (["run", "north", "--out", "no/new.csv"], "there is no folder no"),
        (["run", "nobody.csv", "--out", "other.csv"], "there is no file nobody.csv"),
        (
            ["run", "narrow.npz", "--out", "other.csv"],
            "narrow.npz has 5 columns (x0, x1, x2, x3, x4), but the model was made from images of 1×8×8",
        ),
        (["run", "gap.csv", "--out", "other.csv"], "gap.csv has 2 columns (a, b), but the model was made from images of 1×8×8"),
        (["north", "north", "--out", "other.csv"], "north holds no model.safetensors"),
    ):
        bad = grapevine("predict", *words)
        assert bad.exit_code == 2 and sentence in bad.stderr and bad.stderr.splitlines()[-1].startswith("grapevine: ")
    assert not Path("other.csv").exists()


def test_predict_takes_columns_by_name(wine):
    header, *rows = read("north.csv")
    header = [*header[1:-2], "kind", "site"]
    rows = [[*row[1:-2], row[-1], "ab"[i % 2]] for i, row in enumerate(rows)]
    write("all.csv", [header, *rows])
    done = grapevine("train", "fedavg", "--data", "all.csv", "--label", "kind", "--party", "site", "--rounds", 5, "--out", "run")
    assert done.exit_code == 0, done.output
    write("turned.csv", [list(reversed(row)) for row in (header, *rows)])
    for name in ("all", "turned"):
        done = grapevine("predict", "run", f"{name}.csv", "--out", f"{name}-labels.csv")
        assert done.exit_code == 0, done.output
    assert read("all-labels.csv") == read("turned-labels.csv")
    write("renamed.csv", [["zz", *header[1:]], *rows])
    bad = grapevine("predict", "run", "renamed.csv", "--out", "no.csv")
    assert bad.exit_code == 2 and f"renamed.csv has no column {header[0]!r}" in bad.stderr
    done = grapevine("predict", "run", "renamed.csv", "--features", ",".join(["zz", *header[1:-2]]), "--out", "new-labels.csv")
    assert done.exit_code == 0 and read("new-labels.csv") == read("all-labels.csv"), done.output
    done = grapevine("predict", "run", "all.csv", "--features", ",".join(header[-3::-1]), "--out", "named-labels.csv")
    assert done.exit_code == 0 and read("named-labels.csv") == read("all-labels.csv"), done.output
    bad = grapevine("predict", "run", "all.csv", "--features", ",".join(header[:-4]), "--out", "no.csv")
    assert bad.exit_code == 2 and f"leave --features out, or name {', '.join(header[-4:-2])} too." in bad.stderr
    change("all.csv", 1, header[0], "low")
    bad = grapevine("predict", "run", "all.csv", "--out", "no.csv")
    assert bad.exit_code == 2 and bad.stderr.endswith("'low' is not a number, correct it, or name it in --missing.\n")


BAD_WORDS = [
    (["train", "fedavg", "--out", "o"], "which data? Name the data with --data, as in --data digits."),
    (["compare", "fedavg", "--out", "o"], "which data? Name the data with --data, as in --data digits."),
    (["data", "show"], "which data? Name the data with --data, as in --data digits."),
    (["train", "fedavg", "--data", "digits", "--clients", "0", "--out", "o"], "--clients 0: there must be at least 1 client"),
    (["data", "show", "--data", "digits", "--clients", "0"], "--clients 0: there must be at least 1 client"),
    (["train", "fedavg", "--data", "digits", "--rounds", "1", "--out", "north.csv"], "north.csv cannot be a folder"),
    (
        ["compare", "fedavg", "--data", "digits", "--rounds", "1", "--seeds", "1", "--out", "north.csv"],
        "north.csv cannot be a folder",
    ),
    (
        ["compare", "fedavg", "--data", "digits", "--target", "80", "--out", "o"],
        "target is 80, which is out of range: use 0 to 1",
    ),
    (["data", "show", "--data", "digits", "--picture", "a.xyz"], "a.xyz is not the name of a picture"),
    (["data", "show", "--data", "digits", "--picture", "nodir/a.png"], "there is no folder nodir for a.png"),
    (
        ["train", "fedavg", "--data", "digits", "--seed", "9" * 23, "--out", "o"],
        "use 0 to 9223372036854775807",
    ),
    (
        ["train", "fedavg", "--data", "digits", "--workers", "0", "--out", "o"],
        "workers is 0, which is out of range: use 1 or more",
    ),
    (["train", "north.csv:Foo", "--data", "digits", "--out", "o"], "there is no Python file 'north.csv'"),
    (
        ["train", "fedavg", "--data", "north.csv", "--label", "cultivar", "--features", "bottle", "--out", "o"],
        "no column is usable: all are text, and no value occurs in 10 rows",
    ),
    (
        ["label", "north.csv", "south.csv", "--label", "cultivar", "--out", "east.csv"],
        "east.csv is a file: choose a new folder for --out",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), BAD_WORDS, ids=lambda each: " ".join(each[:2]) if isinstance(each, list) else "")
def test_bad_words_are_answered_with_a_sentence(wine, words, sentence):
    bad = grapevine(*words)
    assert bad.exit_code == 2 and sentence in bad.stderr and "Traceback" not in bad.stderr
    assert not Path("o").exists()


UNWRITABLE = ["label NORTH --out PLACE", "clean NORTH --server east.csv --out PLACE", "predict run NORTH --out PLACE.csv",
              "compare fedavg --data digits --out PLACE", "train fedavg --data digits --out PLACE",
              "leaderboard c --out PLACE.html", "data show --data digits --picture PLACE.png"]  # fmt: skip


@pytest.mark.parametrize("place", ["/proc/x", "x" * 300, "north.csv/x"])
@pytest.mark.parametrize("words", UNWRITABLE, ids=lambda each: each.split()[0])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(wine, monkeypatch, words, place):
    def work(*args, **words):
        raise AssertionError("the work began")

    for name in ("label.read", "clean.read", "predict.load", "splits.load_data", "compare.Plan.make", "compare.load"):
        monkeypatch.setattr(f"grapevine.jobs.{name}", (lambda folder: None) if name == "compare.load" else work)
    bad = grapevine(
        *words.replace("NORTH", "north.csv south.csv" if words[0] != "p" else "north.csv").replace("PLACE", place).split()
    )
    assert bad.exit_code == 2 and "Traceback" not in bad.stderr, bad.exception
    assert re.search(r"(cannot be a folder|cannot be written) \(.*\): choose|there is no folder north.csv for", bad.stderr)
    assert sorted(path.name for path in wine.iterdir()) == sorted(FILES)


def test_what_is_odd_is_said_and_does_not_stop(wine):
    change("north.csv", 1, "cultivar", "Class 0")  # class_0 elsewhere
    rows = read("east.csv")
    write("east.csv", [*rows, ["blank", *["0"] * 13, "", ""]])
    done = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--scale", "none", "--method", "xclp",
                     "--out", "labels")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "'Class 0' and 'class_0' are treated as different" in " ".join(done.output.split())
    assert "1 row is zero after scaling" in done.output
    last = read("labels/east/labels.csv")[-1]
    assert last == ["blank", "", "0.000000", "1", "", ""] and last in read("labels/east/review.csv")


def test_impute_mends_missing_values(wine):
    change("south.csv", 3, "ash", "")
    change("south.csv", 4, "ash", "inf")
    bad = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--out", "labels")
    assert bad.exit_code == 2 and "south.csv, line 4, column 'ash': the value is missing" in bad.output
    good = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--impute", "--out", "labels")
    assert good.exit_code == 0, good.output


# ---------------------------------------------------------------- bad input


def spoil_text(folder):
    change("east.csv", 5, "alcohol", "strong")


def spoil_infinite(folder):
    change("east.csv", 5, "alcohol", "-inf")


def spoil_ids(folder):
    change("east.csv", 5, "bottle", read("east.csv")[2][0])


def spoil_columns(folder):
    rows = read("south.csv")
    at = rows[0].index("hue")
    write("south.csv", [row[:at] + row[at + 1 :] for row in rows])


def spoil_labels(folder):
    for name in FILES:
        rows = read(name)
        at = rows[0].index("cultivar")
        write(name, [rows[0], *([*row[:at], "", *row[at + 1 :]] for row in rows[1:])])


def spoil_empty(folder):
    Path("east.csv").write_text("")


def spoil_header_only(folder):
    write("east.csv", read("east.csv")[:1])


def spoil_binary(folder):
    Path("east.csv").write_bytes(bytes(range(256)) * 4)


def spoil_ragged(folder):
    with open("east.csv", "a") as file:
        file.write("w1,2,3\n")


def spoil_out(folder):
    Path("labels").mkdir()
    Path("labels/notes.txt").write_text("mine")


def spoil_folder(folder):
    Path("east.csv").unlink()
    Path("east.csv").mkdir()


@pytest.mark.parametrize(
    ("spoil", "words", "sentence"),
    [
        (None, FILES[:1], "1 party was given"),
        (None, [*FILES[:2], FILES[0]], "north.csv is given twice"),
        (None, [*FILES[:2], "west.csv"], "there is no file west.csv (did you mean 'east.csv'?)"),
        (None, [*FILES, "--label", "colour"], "has no column 'colour'"),
        (None, [*FILES, "--features", "alcohol,smell"], "has no column 'smell'"),
        (None, [*FILES, "--secure", "rot13"], "secure is rot13, which is not a known value: use mlwe, psm, paillier, ot"),
        (None, [*FILES, "--bits", "0"], "bits is 0"),
        (None, [*FILES, "--bits", "40000"], "bits is 40000"),
        (None, [*FILES, "--alpha", "1"], "alpha is 1"),
        (None, [*FILES, "--neighbours", "few"], "neighbours is few, which is not a whole number or auto"),
        (None, [*FILES, "--abstain", "1.5"], "abstain is 1.5"),
        (None, [*FILES, "--groups", "2"], "groups is 2, but 3 parties can form 1 to 1"),
        (None, [*FILES, "--embed", "nowhere"], "nowhere holds no model.safetensors"),
        (None, [*FILES, "--embed", "efficientnet-lite0"], "efficientnet-lite0 takes images"),
        (spoil_text, FILES, "east.csv, line 6, column 'alcohol': 'strong' is not a number"),
        (spoil_infinite, FILES, "east.csv, line 6, column 'alcohol': the value is infinite"),
        (spoil_ids, FILES, "is also on line 3"),
        (spoil_columns, FILES, "south.csv lacks column 'hue', which north.csv has"),
        (spoil_labels, FILES, "no party has a labelled row"),
        (spoil_empty, FILES, "east.csv is empty"),
        (spoil_header_only, FILES, "east.csv has no rows"),
        (spoil_binary, FILES, "east.csv is not a text file, so it is no CSV table"),
        (spoil_ragged, FILES, "3 cells under a header of 16 columns"),
        (spoil_out, FILES, "labels exists and is not empty"),
        (spoil_folder, FILES, "east.csv is a folder but others are files"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence_and_leaves_nothing(wine, spoil, words, sentence):
    if spoil:
        spoil(wine)
    before = {path: path.read_bytes() for path in wine.rglob("*") if path.is_file()}
    parties = [word for word in words if not word.startswith("--")]
    base = ["--id", "bottle", "--truth", "truth", "--out", "labels"]
    label = [] if "--label" in words else ["--label", "cultivar"]
    done = grapevine("label", *words, *label, *base)
    assert done.exit_code == 2, (parties, done.output)
    said = done.stderr.strip().splitlines()[-1]  # what was read comes before
    assert sentence in said and said.startswith("grapevine: ") and "Traceback" not in done.output
    assert {path: path.read_bytes() for path in wine.rglob("*") if path.is_file()} == before
    if "--embed" not in words and spoil is not spoil_out:  # a dry run finds the same
        dry = grapevine("label", *words, *label, *base[:4], "--dry-run")
        assert dry.exit_code == 2 and sentence in dry.stderr


def test_without_a_label_column_or_a_place_for_results(wine):
    done = grapevine("label", *FILES, "--out", "labels")
    assert done.exit_code == 2 and "Name it with --label COL" in done.stderr
    done = grapevine("label", *FILES, "--label", "cultivar")
    assert done.exit_code == 2 and "Name a new folder with --out DIR" in done.stderr
    assert grapevine("label").exit_code == 2


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_a_file_that_may_not_be_read(wine):
    Path("east.csv").chmod(0)
    done = grapevine("label", *FILES, *QUICK, "--out", "labels")
    assert done.exit_code == 2 and "east.csv cannot be read" in done.stderr


def test_plain_is_taken_by_name_alone_and_says_so(wine):
    """No flag, default or fallback leads to `plain`."""
    help = grapevine("label", "--help").output
    assert re.search(r"--secure PROTOCOL .*\[default: mlwe\]", " ".join(help.split()))
    done = grapevine("label", *FILES, *QUICK, "--id", "bottle", "--truth", "truth", "--secure", "plain", "--out", "labels")
    assert done.exit_code == 0 and "plain gives no protection" in done.output
    left = [json.loads(line) for line in Path("labels/north/disclosure.jsonl").read_text().splitlines()]
    assert any("EVERYTHING" in line["reveals"] for line in left)


# ---------------------------------------------------------------- Ctrl-C, help, demo


def test_ctrl_c_leaves_nothing(wine):
    words = [sys.executable, "-m", "grapevine", "label", *FILES, "--label", "cultivar", "--id", "bottle", "--truth", "truth",
             "--bits", "16384", "--out", "labels"]  # fmt: skip
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in running.stdout:
        if "meet" in line:
            break
    time.sleep(0.3)  # the parties are encrypting
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and said.strip().splitlines()[-1] == "Stopped: nothing was written."
    assert time.monotonic() - began < 10
    assert sorted(path.name for path in wine.iterdir()) == sorted(FILES)


def test_every_command_has_an_example_in_its_help():
    def check(command, path):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                check(inner, [*path, name])
            return
        said = grapevine(*path, "--help")
        assert said.exit_code == 0 and f"grapevine {' '.join(path)}" in said.output.split("Usage:")[1].split("\n", 1)[1], path

    for name, command in main.commands.items():
        check(command, [name])


@pytest.mark.slow
def test_the_demo(tmp_path):
    done = grapevine("demo", "--out", tmp_path / "demo")
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    assert result["accuracy"] > 0.93 and result["bytes_up"] < 30e6
    assert result["protocol"] == "mlwe" and len(result["per_client"]) == 5
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000
