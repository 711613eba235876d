"""Slips of the keyboard: a sentence that says what is wrong and, where something is near, what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.core import with_settings
from grapevine.core.errors import Mistake
from grapevine.jobs.settings import CleanSettings, LabelSettings, read_budget, read_fields, read_vary
from grapevine.learn.networks import build, names
from grapevine.methods import find
from grapevine.run.settings import RunSettings

DATA = ["--data", "digits", "--out", "x"]


def grapevine(*words: str):
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train"], "train needs METHOD: see `grapevine train --help`."),
        (["compare"], "compare needs METHOD: see `grapevine compare --help`."),
        (["clean", "a.csv", "--out", "x"], "clean needs --server FILE|FOLDER: see `grapevine clean --help`."),
        (["train", "fedavg", "--data", "digits"], "train needs --out DIR: see `grapevine train --help`."),
        (["train", "fedavg", "--truth", "x", *DATA], "train has no option --truth: see `grapevine train --help`."),
        (["train", "fedavg", "--roundz", "3", *DATA], "train has no option --roundz (did you mean '--rounds'?): see"),
        (["methods", "xclp", "fedavg"], "got unexpected extra argument (fedavg): see `grapevine methods --help`."),
        (["trian"], "there is no command 'trian' (did you mean 'train'?): see `grapevine --help`."),
        (["data", "shwo"], "there is no command 'data shwo' (did you mean 'show'?): see `grapevine data --help`."),
    ],
)
def test_what_cannot_be_parsed_is_one_sentence(words, sentence):
    """They were three lines with the usage, and `train --truth` once suggested --out."""
    said = grapevine(*words)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"grapevine: {sentence}") and said.stderr.count("\n") == 1


def test_a_group_without_a_command_still_shows_its_help():
    assert "Usage:" in grapevine("data").output


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("xclp:preset=paper", "xclp:preset=paper is not the name of a method: give the fields of xclp with --set preset=paper."),
        ("xclp:lr=1, bits=64", "give the fields of xclp with --set lr=1 --set bits=64."),
        ("own.py:Mine:lr=1", "give the fields of own.py:Mine with --set lr=1."),
        ("xclp:foo", "xclp:foo: foo is not field=value, as in xclp:lr=0.05."),
        ("xclp:", "xclp:: '' is not field=value"),
        ("own.py:Mine", "there is no Python file 'own.py': give your own method as path/to/file.py:Class."),
    ],
)
def test_a_method_with_fields_is_no_python_file(name, sentence):
    """`train xclp:preset=paper` and `compare xclp:foo` were answered with "there is no Python file 'xclp'"."""
    with pytest.raises(Mistake) as said:
        find(name)
    assert sentence in str(said.value)


@pytest.mark.parametrize(
    ("method", "texts", "sentence"),
    [
        ("fedavg", dict(optimizer="sgd"), "fedavg has no field 'optimizer' (did you mean 'optimiser'?): it has lr, epochs"),
        ("xclp", dict(preset="cod"), "preset=cod is not a known value (did you mean 'code'?): use default, paper or code"),
        ("xclp", dict(augment="maybe"), "augment=maybe is not true or false, as in augment=true."),
    ],
)
def test_fields_and_choices_have_near_names(method, texts, sentence):
    """There was no suggestion, and `augment=False` where all pages write `false`."""
    with pytest.raises(Mistake) as said:
        with_settings(find(method), texts)
    assert sentence in str(said.value)


def test_booleans_are_shown_as_they_are_typed():
    from grapevine.core.param import shown

    assert [shown(value) for value in (True, False, 0.25, 3, "auto")] == ["true", "false", "0.25", "3", "auto"]
    with pytest.raises(Mistake, match="impute is perhaps, which is not true or false, as in false."):
        LabelSettings(impute="perhaps")
    said = grapevine("methods", "xclp").output
    assert "│ true" in said and "True" not in said


def test_spaces_around_equals_and_commas_do_not_matter():
    """`--set "lr = 0.1"` was an unknown field 'lr '."""
    assert read_fields(["lr = 0.1", "epochs=2 "]) == dict(lr="0.1", epochs="2")
    assert read_budget(["epochs = 2 , batch= 5"]) == dict(epochs="2", batch="5")
    assert read_vary(["per-round = 2, 4", "labels = clients:10 , server:5,clients:10"]) == dict(
        per_round=["2", "4"], labels=["clients:10", "server:5,clients:10"]
    )
    with pytest.raises(Mistake, match="--set =3 is not field=value"):
        read_fields(["=3"])


def test_help_names_every_model_that_an_error_lists():
    """The error listed resnet8, resnet17 and resnet18-imagenet, and --help did not."""
    text = next(p.help for p in main.commands["train"].params if p.name == "model")
    assert f": {', '.join(names())};" in text and text == RunSettings.__dataclass_fields__["model"].metadata["text"]
    with pytest.raises(Mistake, match="no model is called 'mpl' .did you mean 'mlp'.*: choose one of linear"):
        build("mpl", (1, 8, 8), 10)


def test_a_missing_file_is_not_confused_with_a_folder(tmp_path, monkeypatch):
    """`missing.csv` was answered with (did you mean 'existing'?), a folder."""
    monkeypatch.chdir(tmp_path)
    Path("existing").mkdir()
    said = grapevine("train", "fedavg", "--data", "missing.csv", "--out", "x")
    assert "there is no file missing.csv: check the path." in said.stderr
    Path("missed.csv").write_text("a,label\n1,2\n")
    said = grapevine("train", "fedavg", "--data", "missing.csv", "--out", "x")
    assert "there is no file missing.csv (did you mean 'missed.csv'?)" in said.stderr


def test_digits_need_no_download():
    """The command printed nothing."""
    assert grapevine("data", "get", "digits").output == "There is nothing to download: digits comes with scikit-learn.\n"


def test_flags_that_are_only_refused_are_not_in_the_help():
    """`clean --help` offered two flags that were "Not available"."""
    said = grapevine("clean", "--help").output
    assert "--tau" in said and "--dp" not in said and "available" not in said
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert "| `dp` |" not in page.split("## clean")[1].split("\n## ")[0]
    with pytest.raises(Mistake, match="clean has no --dp: the classifier comes to the party"):
        CleanSettings(dp=1.0)
