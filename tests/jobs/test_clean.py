"""The clean job: what is kept, corrected and excluded, what is written and said beforehand, and what is refused in a sentence."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hostile import HOSTILE
from PIL import Image

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.jobs import clean as cleaning
from grapevine.jobs import clean_result
from grapevine.jobs.reading import read as read_rows
from grapevine.jobs.settings import CleanSettings
from grapevine.learn import networks as models
from grapevine.methods import mp_ssfl
from grapevine.report import clean as clean_page
from grapevine.run.simulate import Simulation

CENTRES = np.array([[4.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 4.0, 0]])
QUICK = dict(epochs=20)


def rows(n, seed, classes=3, spread=0.5):
    draw = np.random.default_rng(seed)
    y = draw.permutation(np.arange(n) % classes)
    return CENTRES[y] + spread * draw.standard_normal((n, 4)), y


SERVER = rows(60, 99)


@pytest.fixture(scope="module")
def one():
    """Two parties: flips and an unlabelled row at the first; at the second rows between the classes, whose truth is none."""
    X, truth = rows(40, 1)
    y = truth.copy()
    y[:8] = (y[:8] + 1) % 3
    y[8] = -1
    X2, truth2 = rows(30, 2)
    y2 = truth2.copy()
    X2[:6] = CENTRES.mean(0)  # as far from each class
    truth2[:6] = -1
    result = gv.clean([(X, y), (X2, y2)], server=SERVER, truth=[truth, truth2], counts=True, **QUICK)
    return result, (X, y, truth), (X2, y2, truth2)


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---------------------------------------------------------------- decisions


def test_flips_are_mended_unlabelled_rows_labelled_and_rows_between_classes_set_aside(one):
    result, (X, y, truth), (_, y2, truth2) = one
    first, second = result
    assert first.labels.dtype == np.int64 and result.classes == (0, 1, 2)
    assert (first.action[:9] == "corrected").all() and (first.labels[:9] == truth[:9]).all()
    assert first.relevant.mean() > 0.9 and (first.labels[first.relevant] == truth[first.relevant]).all()
    assert (second.action[:6] == "excluded").all() and (second.labels[:6] == -1).all()
    np.testing.assert_array_equal(first.given, y)
    np.testing.assert_array_equal(second.given, y2)
    assert first.counts["labelled"] == 1 and sum(first.counts[name] for name in mp_ssfl.ACTIONS) == 40


def test_a_result_shows_itself_in_a_few_lines(one):
    result = one[0]
    c = result[0].counts
    lines = repr(result).splitlines()
    assert lines[0] == "labels of 2 parties cleaned by mlp, 3 classes" and len(lines) == 4
    assert lines[1].split("  ")[0] == "party" and lines[1].endswith("kept  corrected  newly labelled  excluded")
    assert [int(n) for n in lines[2].split()[1:]] == [40, c["kept"], c["corrected"] - 1, 1, c["excluded"]]
    assert repr(result[1]).startswith("party-2: rows 30, kept ")


def test_loss_confidence_and_action_fit_together(one):
    """Table 1 of the paper, from the probabilities that are given back."""
    for party in one[0]:
        assert party.proba.shape == (len(party.ids), 3)
        np.testing.assert_allclose(party.proba.sum(1), 1, atol=1e-5)
        np.testing.assert_array_equal(party.confidence.astype(np.float32), party.proba.max(1))
        for p, y, loss, confidence, action in zip(party.proba, party.given, party.loss, party.confidence, party.action):
            assert math.isnan(loss) if y < 0 else loss == pytest.approx(-math.log(p[y]), rel=1e-4, abs=1e-6)
            expected = "excluded" if confidence < 0.95 else "kept" if y >= 0 and loss <= 0.5 else "corrected"
            assert action == expected


def test_rows_keep_their_order_whatever_the_workers(one):
    result, (X, y, truth), (X2, y2, _) = one
    order = np.random.default_rng(5).permutation(len(X))
    again = gv.clean([(X[order], y[order]), (X2, y2)], server=SERVER, workers=1, **QUICK)
    np.testing.assert_array_equal(again[0].action, result[0].action[order])
    np.testing.assert_allclose(again[0].confidence, result[0].confidence[order], atol=1e-6)
    np.testing.assert_array_equal(again[1].loss, result[1].loss)
    assert again[0].measured is None and again.measured is None


def test_measures_against_counts_by_hand():
    classes = ["a", "b"]
    given = ["a", "a", "a", None, "b", "c", None, "b"]
    truth = ["a", "b", "b", "b", "b", "c", None, "a"]
    labels = ["a", "b", "a", "b", None, "a", None, None]
    action = np.array(["kept", "corrected", "kept", "corrected", "excluded", "corrected", "excluded", "excluded"])
    measured = clean_result.measure(given, labels, action, truth, classes)
    counts = {name: tuple(line.values()) for name, line in measured.items()}
    assert counts == {
        "wrong labels found": (2, 1, 3),  # rows 2 and 6 were corrected; 2, 3 and 8 are wrong
        "wrong labels given the true class": (2, 1, 3),
        "unlabelled rows given the true class": (1, 1, 1),
        "irrelevant rows excluded": (3, 1, 2),  # of class c and of none
        "right labels kept": (2, 1, 2),
        "labels right before": (6, 3, 6),  # rows 1, 5 and 6: c is right, though the server does not know it
        "labels right after": (5, 3, 5),
    }
    none = clean_result.scores([dict(measured, **{"irrelevant rows excluded": dict(found=8, right=0, of=0)})])
    lines, said = clean_result.findings(none)  # once a line with the precision 0.0% of what was not there
    assert "irrelevant rows excluded" not in lines and "Irrelevant rows excluded: 8, but there were none." in said
    added = clean_result.scores([measured, measured])["irrelevant rows excluded"]
    assert added == dict(found=6, right=2, of=4, precision=1 / 3, recall=0.5)
    nothing = clean_result.scores([clean_result.measure(["a"], ["a"], np.array(["kept"]), ["a"], classes)])
    assert nothing["wrong labels found"]["precision"] is None and nothing["right labels kept"]["recall"] == 1


def test_a_class_that_the_server_does_not_know_has_an_infinite_loss_and_a_note():
    X, y = rows(30, 3)
    names = np.array(["fig", "pear", "plum"], object)
    server = ([*SERVER[0][SERVER[1] < 2]], [names[c] for c in SERVER[1] if c < 2])
    result = gv.clean([(X, [names[c] for c in y])], server=server, truth=[[names[c] for c in y]], **QUICK)
    assert result.measured["labels right before"]["precision"] == 1  # every label is right: nothing can be gained
    assert result.measured["irrelevant rows excluded"]["of"] == 10
    party = result[0]
    assert result.classes == ("fig", "pear") and any("does not know 'plum'" in note for note in result.warnings)
    strange = np.array(party.given) == "plum"
    assert np.isinf(party.loss[strange]).all() and np.isfinite(party.loss[~strange]).all()
    assert not (party.action[strange] == "kept").any() and "plum" not in party.labels


def test_a_known_class_has_a_finite_loss_however_far_the_row():
    X, y = rows(12, 3)
    X[0] *= 1e6
    y[0] = (y[0] + 1) % 3
    result = gv.clean([(X, y)], server=SERVER, **QUICK)
    assert np.isfinite(result[0].loss).all() and result[0].loss[0] > 50
    assert result[0].far.tolist() == [0] and "party-1 (1)" in "".join(result.warnings)
    assert result[0].examples["far"][0]["id"] == "1"


def test_a_label_that_the_classifier_agrees_with_is_kept_below_upsilon_too():
    """Υ below −ln τ: case 1 would replace the label by itself."""
    p, y = torch.tensor([[0.6, 0.4], [0.6, 0.4]]), torch.tensor([0, 1])
    label, action, _, _ = mp_ssfl.decide(p, y, 0.5, 0.01)
    assert action.tolist() == [mp_ssfl.KEPT, mp_ssfl.CORRECTED] and label.tolist() == [0, 0]


def test_moments_are_the_servers_and_a_still_feature_says_nothing():
    x = torch.tensor([[1.0, 7.0, np.nan, 2e9], [3.0, 7.0, 4.0, 2e9 + 1]], dtype=torch.float64)
    mean, std = mp_ssfl.moments(x, "standard")
    assert mean.tolist() == [2.0, 7.0, 4.0, 2e9 + 0.5] and std.tolist() == [1.0, math.inf, math.inf, 0.5]
    theirs = Rows(torch.tensor([[4.0, 1e9, np.nan, 2e9 + 1]], dtype=torch.float64), torch.tensor([0]), torch.tensor([-1]))
    assert mp_ssfl.standardised(theirs, mp_ssfl.Clean(impute=True).fill(x), mean, std).x.tolist() == [[2.0, 0.0, 0.0, 1.0]]
    unscaled = mp_ssfl.standardised(theirs, mp_ssfl.Clean(impute=True).fill(x), *mp_ssfl.moments(x, "none"))
    assert unscaled.x[0, 2].item() == 4.0  # their mean
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    mean, std = mp_ssfl.moments(pixels, "standard")
    z = mp_ssfl.standardised(Rows(pixels, torch.arange(2), torch.arange(2)), torch.empty(0), mean, std).inputs()
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.ones(3))
    assert mp_ssfl.moments(pixels, "none")[1].shape == (3, 1, 1)


def test_missing_values_become_the_servers_mean():
    X, y = rows(20, 4)
    holes, filled = X.copy(), X.copy()
    holes[0, 1], filled[0, 1] = np.nan, SERVER[0][:, 1].mean()
    a, b = (gv.clean([(x, y)], server=SERVER, impute=True, **QUICK)[0] for x in (holes, filled))
    np.testing.assert_allclose(a.proba, b.proba, atol=1e-6)


def test_what_the_server_holds_out_says_how_far_to_trust(one):
    expected = one[0].expected
    assert expected["n"] == 12 and expected["sure_right"] <= min(expected["sure"], expected["right"]) <= 12  # a fifth of 60
    assert expected["right"] == 12
    noise = np.random.default_rng(0)
    lost = gv.clean([rows(5, 1)], server=(noise.standard_normal((40, 4)), noise.integers(0, 2, 40)), epochs=150)
    assert any("were wrong, so some corrected labels will be too" in note for note in lost.warnings)
    tiny = gv.clean([rows(5, 1)], server=(SERVER[0][:2], [0, 1]), epochs=1)
    assert tiny.expected["n"] == 0 and any("could not be checked" in note for note in tiny.warnings)
    assert any("fewer than 5 rows of '0', '1'" in note for note in tiny.warnings)


# ---------------------------------------------------------------- what travels


def test_nothing_leaves_a_party_but_counts_if_asked_for(one, tmp_path):
    told = one[0]
    assert told.counts["party-1"] == {name: told[0].counts[name] for name in mp_ssfl.ACTIONS}
    line = told[0].disclosure[0]
    assert line["field"] == "counts" and "kept, corrected and excluded" in line["reveals"]
    quiet = gv.clean([SERVER], server=SERVER, out=tmp_path / "out", **QUICK)
    assert quiet.counts == {} and quiet.bytes_up == len(wire.encode({}))
    lines = [json.loads(text) for text in (tmp_path / "out" / "party-1" / "disclosure.jsonl").read_text().splitlines()]
    assert [(line["field"], line["bytes"]) for line in lines] == [("", 0)] and lines[0]["reveals"].startswith("nothing")


def test_the_job_gives_the_same_bits_over_the_wire():
    """The strict mode encodes every message and makes a client anew for every step, as a network does."""
    s = CleanSettings(epochs=3)
    (own, *read), _ = read_rows(s, [rows(20, 1), rows(25, 2)], server=SERVER)
    method = cleaning.make_method(s, own)
    host, found = cleaning.make_host(s, own, method), {}
    for mode in ("fast", "strict"):
        simulation = Simulation(method, {p.name: p.data().tensors() for p in read}, host.models, mode=mode)
        server = Server(method, simulation.data, simulation, host.models, host.classes, data=host.rows)
        method.round(server, method.setup(server))
        found[mode] = simulation.manifests
    assert found["fast"] == found["strict"] and len(found["fast"]) == 2


def test_a_dry_run_says_the_bytes_that_a_run_sends(one):
    _, (X, y, _), (X2, y2, _) = one
    for counts in (True, False):
        plan = gv.clean([(X, y), (X2, y2)], server=SERVER, counts=counts, dry_run=True)
        result = gv.clean([(X, y), (X2, y2)], server=SERVER, counts=counts, epochs=1)
        frame = len(wire.encode({}))
        assert 2 * (frame + sum(line["bytes"] for line in plan["server"])) == result.bytes_down
        assert sum(frame + line["bytes"] for lines in plan["parties"].values() for line in lines) == result.bytes_up
        assert plan["parameters"] == models.parameter_count(models.build("mlp", (4,), 3)) and plan["epochs"] == 167
        assert ("nothing about any party's rows" in plan["learns"][1]) != counts


# ---------------------------------------------------------------- files


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


def test_what_is_said_and_does_not_stop_the_job():
    X, y = rows(20, 1)
    result = gv.clean([(np.tile(CENTRES.mean(0), (10, 1)), [0] * 10), SERVER], server=SERVER, names=["odd", "twin"], **QUICK)
    notes = " ".join(result.warnings)
    assert "odd has nothing relevant: all of its 10 rows were excluded" in notes
    assert "twin holds the server's rows" in notes and "odd holds" not in notes
    assert "1 of 4 features never change" not in notes
    still = np.hstack([SERVER[0], np.ones((60, 1))])
    assert "1 of 5 features never change" in " ".join(
        gv.clean([(np.hstack([X, X[:, :1]]), y)], server=(still, SERVER[1]), epochs=1).warnings
    )
    half = np.where(np.arange(60) < 30, SERVER[1], -1)
    assert "30 of the server's rows" in " ".join(gv.clean([(X, y)], server=(SERVER[0], half), epochs=1).warnings)


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


# ---------------------------------------------------------------- images


def stripes(n, seed, size=8):
    """Images with an upright or a lying stripe, of any brightness."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = draw.integers(0, 30, (n, size, size)).astype(np.uint8)
    for i, c in enumerate(y):
        at = draw.integers(1, size - 1)
        x[i][(slice(None), at) if c else (at, slice(None))] = draw.integers(150, 255)
    return x, y


def save(folder, x, y, names=("lying", "upright")):
    for i, (pixels, c) in enumerate(zip(x, y)):
        place = folder / (names[c] if c >= 0 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:03}.png")


def test_folders_of_images_with_their_pictures_in_the_report(tmp_path):
    x, truth = stripes(24, 1)
    y = truth.copy()
    y[:4] = 1 - y[:4]
    y[4] = -1
    save(tmp_path / "clinic", x, y)
    save(tmp_path / "experts", *stripes(80, 2))
    colour = np.repeat(x[:, :, :, None], 3, 3)
    save(tmp_path / "colour", colour, y)
    out = tmp_path / "out"
    result = gv.clean([tmp_path / "clinic", tmp_path / "colour"], server=tmp_path / "experts", epochs=30, out=out)
    assert result.model == "cnn" and result[0].ids == result[1].ids
    wrong = {f"{('lying', 'upright')[y[i]]}/{i:03}.png" for i in range(4)}
    corrected = {
        name for name, action, given in zip(result[0].ids, result[0].action, result[0].given) if action == "corrected" and given
    }
    assert corrected == wrong
    np.testing.assert_allclose(result[0].proba, result[1].proba, atol=1e-4)  # grey as colour is the same picture
    examples = json.loads((out / "clinic" / "suspicious.json").read_text())["doubted"]
    assert {one["id"] for one in examples} == wrong
    html = (out / "report.html").read_text(encoding="utf-8")
    assert all(f"data:image/png;base64,{one['picture']}" in html for one in examples)
    assert "default-src 'none'; img-src data:;" in html


def test_arrays_and_npz_of_images_are_images(tmp_path):
    x, y = stripes(20, 1)
    own = stripes(60, 2)
    by_array = gv.clean([(x, y)], server=own, epochs=5)
    assert by_array.model == "cnn"
    np.savez(tmp_path / "a.npz", X=x, y=y)
    np.savez(tmp_path / "s.npz", X=own[0], y=own[1])
    by_file = gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", epochs=5)
    np.testing.assert_array_equal(by_file[0].loss, by_array[0].loss)
    channels_first = np.repeat(x[:, None], 3, 1)
    assert read_rows(CleanSettings(), [(channels_first, y)], server=own)[0][1].x.shape == (20, 3, 8, 8)
    np.savez(tmp_path / "flat.npz", X=x.reshape(20, -1), y=y)
    with pytest.raises(Mistake, match="s.npz holds images, but --impute is for tables"):
        gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", impute=True)
    with pytest.raises(Mistake, match="flat.npz is a table but others hold images"):
        gv.clean([tmp_path / "flat.npz"], server=tmp_path / "s.npz", label="y")


def test_images_of_different_sizes(tmp_path):
    save(tmp_path / "experts", *stripes(8, 2))
    save(tmp_path / "large", *stripes(8, 2, size=12))
    with pytest.raises(Mistake, match="large has images of 12×12 pixels and the server has 8×8"):
        gv.clean([tmp_path / "large"], server=tmp_path / "experts")
    save(tmp_path / "mixed", *stripes(8, 2))
    Image.new("L", (9, 8)).save(tmp_path / "mixed" / "lying" / "odd.png")
    with pytest.raises(Mistake, match="resize all images to one size"):
        gv.clean([tmp_path / "mixed"], server=tmp_path / "experts")


def test_truth_of_images_is_a_column_of_labels_csv(tmp_path):
    x, truth = stripes(12, 1)
    save(tmp_path / "clinic", x, np.full(12, -1))
    names = ["lying", "upright"]
    with open(tmp_path / "clinic" / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "label", "truth"])
        table.writerows([f"unlabelled/{i:03}.png", names[1 - c] if i < 3 else names[c], names[c]] for i, c in enumerate(truth))
    save(tmp_path / "experts", *stripes(80, 2))
    result = gv.clean([tmp_path / "clinic"], server=tmp_path / "experts", truth="truth", epochs=30)
    assert result.measured["wrong labels found"]["of"] == 3


def test_features_of_a_trained_run(tmp_path, digits):
    split = digits.split(clients=4, labels="all")
    gv.train(gv.methods.FedAvg(), split, rounds=2, model="mlp", out=tmp_path / "run")
    X, y = digits.x.flatten(1).numpy(), digits.y.numpy()
    for name, part in (("a", slice(0, 60)), ("s", slice(60, 260))):
        np.savez(tmp_path / f"{name}.npz", X=X[part].astype(np.float64), y=y[part])
    result = gv.clean([tmp_path / "a.npz"], server=tmp_path / "s.npz", label="y", embed=str(tmp_path / "run"), epochs=5)
    assert result.model == "linear" and result[0].examples["doubted"] is not None
    assert (np.array(result[0].proposed) == np.array([str(c) for c in y[:60]])).mean() > 0.7


# ---------------------------------------------------------------- the picture and the page


def test_every_row_has_its_place_in_the_plane():
    loss = np.array([np.nan, np.inf, 0.0, 1e-4, 0.5, 99.0, 1e9])
    confidence = np.array([0.5, 1.0, 1.0, 0.99995, 0.95, 0.0, 1.0])
    cells = clean_result.plane(loss, confidence)
    assert sum(n for *_, n in cells) == len(loss)
    rows_of = {i for i, _, _ in cells}
    assert {0, clean_result.BINS + 1, 1, clean_result.BINS} <= rows_of
    # Υ = 0.5 lies in its bin: between 10^(−4 + 6·(i−1)/24) and 10^(−4 + 6·i/24)
    i = next(i for i, j, _ in cells if j == int(-math.log10(0.05) / 4 * 24))
    assert 10 ** (-4 + 6 * (i - 1) / 24) <= 0.5 < 10 ** (-4 + 6 * i / 24)


def test_the_page_is_made_from_the_folder_alone(one, tmp_path):
    result = one[0]
    clean_result.write(tmp_path / "out", result, "grapevine clean a b", clean_page.write)
    first = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "out").rename(tmp_path / "moved")
    summary = json.loads((tmp_path / "moved" / "result.json").read_text())
    assert clean_page.write(tmp_path / "moved", summary).read_text(encoding="utf-8") == first
    for words in ("Given and new labels", "Given and true labels", "Labels most in doubt", "grapevine clean a b", "τ = 0.95"):
        assert words in first
    assert "Only counts come back" in first


def test_a_folder_that_cannot_be_finished_is_not_begun(one, tmp_path):
    broken = replace(one[0], messages=[{"not": {1, 2}}])  # JSON has no sets
    with pytest.raises(TypeError):
        clean_result.write(tmp_path / "out", broken)
    assert not list(tmp_path.iterdir())


def hostile(tmp_path):
    """A job whose names and classes would like to be more than words, with pictures."""
    x, y = stripes(20, 1)
    own, theirs = stripes(60, 2)
    names = np.array(HOSTILE[:2], object)
    y[:3] = 1 - y[:3]
    result = gv.clean([(x, names[y])], server=(own, names[theirs]), truth=[names[y]], epochs=20)
    evil = replace(result[0], ids=[f"{HOSTILE[1]}{i}" for i in range(20)])
    result = replace(result, parties=[evil], warnings=[HOSTILE[0]])
    clean_result.write(tmp_path / "evil", result, HOSTILE[0], clean_page.write)
    return tmp_path / "evil" / "report.html"


def test_nothing_in_the_data_breaks_out_of_the_page(tmp_path):
    html = hostile(tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 375])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_loads_without_complaint_shows_its_pictures_and_fits(browser, one, tmp_path, width, dark):
    clean_result.write(tmp_path / "tables", one[0], "", clean_page.write)
    for path in (tmp_path / "tables" / "report.html", hostile(tmp_path)):
        browser.visit(path, width, dark)
        assert browser.complaints() == []
        asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert browser.ask("document.documentElement.scrollWidth") <= width and browser.cut() == []
        assert browser.ask("[...document.images].every(i => i.naturalWidth > 0)")
    assert browser.ask("document.images.length") > 2


def test_randomised_labels_are_refused_since_no_label_leaves(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(Mistake, match="no label leaves it"):
        gv.clean([(x, y)], (x, y), dp_labels=3.0)
    with pytest.raises(Mistake, match="clean has no --dp: .* no sum is opened"):
        gv.clean([(x, y)], (x, y), dp=3.0)


def test_cleanlab_judges_a_partys_own_labels_beside_ours(tmp_path):
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(3)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 3)) + 6 * y[:, None]
    given = y.copy()
    wrong = np.arange(0, 80, 7)
    given[wrong] = 1 - y[wrong]  # far from the border
    given[80:] = -1
    few = (x[:20], np.r_[y[:4], np.full(16, -1)])
    server = (rng.normal(size=(60, 3)) + 6 * (np.arange(60) % 2)[:, None], np.arange(60) % 2)
    result = gv.clean([(x, given), few], server=server, truth=[y, y[:20]], epochs=30, out=tmp_path / "out")
    flagged = np.flatnonzero(result[0].flagged)
    assert set(flagged) <= set(wrong) and len(flagged) >= 6 and result[1].flagged is None
    assert result[0].measured["wrong labels found by cleanlab"] == dict(found=len(flagged), right=len(flagged), of=12)
    assert "wrong labels found by cleanlab" not in result.measured  # not of all parties
    summary = json.loads((tmp_path / "out" / "result.json").read_text())
    assert summary["per_client"][0]["cleanlab"] == dict(labels=80, corrected=12, flagged=len(flagged), both=len(flagged))
    assert summary["per_client"][1]["cleanlab"] is None
    assert len((tmp_path / "out" / "party-1" / "cleanlab.csv").read_text().splitlines()) == 1 + len(flagged)
    assert "Beside cleanlab" in (tmp_path / "out" / "report.html").read_text()
