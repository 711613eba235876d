"""Config files: what a run leaves is taken back and gives the same settings."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core.errors import Mistake
from grapevine.jobs.config import read_config, write_config
from grapevine.jobs.settings import JOBS, CompareSettings, LabelSettings, TrainSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ODD = 'a "quoted" \\ name, with = and \n and \x7f and ö 😀'


@pytest.mark.parametrize(
    "settings, arguments",
    [
        (LabelSettings(label=ODD, features=["a", ODD], missing="x, y", alpha=0.5), dict(parties=["a.csv", Path("b.csv")])),
        (TrainSettings(data="digits", set={"lr": "0.05", ODD: "x"}, clients=3), dict(method="fedavg")),
        (CompareSettings(data="digits", vary={"labels": ["clients:10", "clients:20"]}), dict(methods=["fedavg", "xclp"])),
    ],
)
def test_what_is_written_is_read_back(tmp_path, settings, arguments):
    write_config(tmp_path, settings, **arguments)
    said = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert said.pop("job") == settings.job
    back = {name: said.pop(name) for name in arguments}
    assert back == {name: [str(v) for v in value] if isinstance(value, list) else value for name, value in arguments.items()}
    assert JOBS[settings.job].from_dict(said) == settings


def test_objects_are_left_out(tmp_path):
    write_config(tmp_path, TrainSettings(data=(np.ones((2, 2)), [0, 1])), method=None)
    said = tomllib.loads((tmp_path / "config.toml").read_text())
    assert "data" not in said and "method" not in said and said["rounds"] == 100


@pytest.mark.parametrize(
    "text, words",
    [
        ("rounds = ", "not valid TOML"),
        ("round = 3", "no setting 'round' (did you mean 'rounds'?)"),
        ('job = "label"', "is for `grapevine label`, not for `grapevine train`"),
        (None, "there is no file"),
    ],
)
def test_a_bad_file_is_a_sentence(tmp_path, text, words):
    path = tmp_path / "run.toml"
    if text:
        path.write_text(text)
    with pytest.raises(Mistake) as error:
        read_config(path, "train", ["method", "rounds"])
    assert words in str(error.value) and str(path) in str(error.value)
    done = CliRunner().invoke(main, ["train", "--config", str(path), "--out", str(tmp_path / "o")])
    assert done.exit_code == 2 and done.stderr.startswith("grapevine: ") and words in done.stderr


def test_a_run_from_the_config_of_another_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = dict(data="digits", model="linear", rounds=2, clients=3, set={"lr": 0.05})
    gv.train("fedavg", **said, out="one")
    done = CliRunner().invoke(main, ["train", "--config", "one/config.toml", "--out", "two"])
    assert done.exit_code == 0, done.output
    one, two = (json.loads(Path(run, "result.json").read_text()) for run in ("one", "two"))
    assert one["settings"]["lr"] == 0.05 and [one[k] for k in ("settings", "data", "accuracy")] == [
        two[k] for k in ("settings", "data", "accuracy")
    ]
    done = CliRunner().invoke(
        main, ["train", "--config", "one/config.toml", "--rounds", "1", "--set", "lr=0.1", "--out", "three"]
    )
    three = json.loads(Path("three/result.json").read_text())
    assert three["rounds"] == 1 and three["settings"]["lr"] == 0.1  # a flag comes before the file


@pytest.mark.parametrize("job", ["label", "clean", "compare"])
def test_every_job_takes_its_config(job, tmp_path, monkeypatch):
    """What the public function is called with, from the file that it would leave itself."""
    seen: dict = {}

    def instead(*args, **settings):
        seen.update(settings, args=args)
        raise Mistake("enough")

    monkeypatch.setattr(gv, job, instead)
    given = dict(
        label=dict(parties=["a.csv", "b.csv"]), clean=dict(parties=["a.csv"], server="s.csv"), compare=dict(methods=["x", "y"])
    )
    said = {} if job != "compare" else dict(data="digits", vary={"labels": ["clients:10", "clients:20"]}, seeds=2)
    said |= dict(label="kind", features=["a", "b"]) | ({} if job == "compare" else dict(impute=True))
    settings = JOBS[job].from_dict(said)
    write_config(tmp_path, settings, **given[job])
    done = CliRunner().invoke(main, [job, "--config", str(tmp_path / "config.toml"), "--out", "o"])
    assert done.stderr == "grapevine: enough\n"
    told = {name: value for name, value in seen.items() if name in JOBS[job].names()}
    told |= dict(data="digits") if job == "compare" else {}
    assert JOBS[job].from_dict(told) == settings and list(seen["args"][0]) == next(iter(given[job].values()))
