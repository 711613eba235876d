"""A setting stands once: flags, keywords, the agreed table and the page of settings say what the dataclass says."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import grapevine as gv
from grapevine.cli.main import main
from grapevine.cli.parties import settings_of
from grapevine.core.errors import Mistake
from grapevine.core.param import Settings, kind
from grapevine.jobs.settings import JOBS, CleanSettings, CompareSettings, DataSettings, LabelSettings, TrainSettings
from grapevine.methods.chorus import Chorus
from grapevine.methods.mp_ssfl import Clean
from grapevine.parties.propose import propose

# What a command takes beside settings: its arguments, and how it is to go about it.
ABOUT = {
    "label": {"parties", "config", "dry_run", "out"},
    "train": {"method", "config", "resume", "out"},
    "clean": {"parties", "server", "config", "dry_run", "as_json", "out"},
    "compare": {"methods", "config", "resume", "as_json", "out"},
}
FUNCTIONS = dict(label=gv.label, train=gv.train, clean=gv.clean, compare=gv.compare)


def flagged(job: str) -> dict:
    return {f.name: f for f in fields(JOBS[job]) if f.metadata.get("flag", True)}


@pytest.mark.parametrize("job", JOBS)
def test_a_command_has_the_flags_of_its_settings_and_no_others(job):
    command = main.commands[job]
    params, context = {p.name: p for p in command.params}, click.Context(command)
    settings = flagged(job)
    assert set(params) - ABOUT[job] == set(settings)
    for name, f in settings.items():
        option = params[name]
        assert option.opts == [f"--{name.replace('_', '-')}"] and option.help == f.metadata["text"]
        assert option.multiple == (kind(f) is dict) and option.is_flag == (kind(f) is bool)
        if kind(f) is not dict:  # flags that may be given several times have none
            assert option.get_default(context) == f.default
        if f.metadata["choices"]:
            assert tuple(option.type.choices) == f.metadata["choices"]


def test_a_flag_with_nothing_behind_it_is_one_that_was_not_given():
    """As a service gives it whose table has no such column; it once ended in a traceback."""
    assert LabelSettings(label="kind", id="") == LabelSettings(label="kind") == LabelSettings(label="kind", id=None)


@pytest.mark.parametrize("job", JOBS)
def test_a_command_without_flags_gives_the_defaults_of_python(job, monkeypatch):
    """What reaches the public function is what it would have taken by itself."""
    seen: dict = {}

    def instead(*args, **settings):
        seen.update(settings)
        raise Mistake("enough")

    monkeypatch.setattr(gv, job, instead)
    words = dict(label=["a.csv"], train=["fedavg"], clean=["a.csv", "--server", "s.csv"], compare=["fedavg"])[job]
    words += [] if job in ("label", "clean") else ["--data", "digits"]
    done = CliRunner().invoke(main, [job, *words, "--out", "x"])
    assert done.exit_code == 2 and done.stderr == "grapevine: enough\n"
    told = {name: value for name, value in seen.items() if name in JOBS[job].names()}
    assert set(told) == set(flagged(job)) - {"data"}
    data = {} if job in ("label", "clean") else dict(data="digits")
    assert JOBS[job].from_dict({**told, **data}) == JOBS[job](**data)


@pytest.mark.parametrize("job", JOBS)
def test_a_public_function_shows_its_settings(job):
    shown = inspect.signature(FUNCTIONS[job]).parameters
    for f in fields(JOBS[job]):
        assert f.name in shown and (shown[f.name].default == f.default or f.name in ("data",)), f.name


@pytest.mark.parametrize("job", JOBS)
def test_to_dict_and_back(job):
    given = dict(data="digits") if issubclass(JOBS[job], DataSettings) else dict(features="a, b", impute=True)
    settings = JOBS[job].from_dict(given)
    again = JOBS[job].from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings and again != JOBS[job].from_dict({**given, "workers": 7})


def test_parties_agree_on_what_is_not_their_own_business():
    agreed = LabelSettings(label="kind", abstain=0.5, seed=3, workers=1, bits=512, neighbours="auto").agreed()
    assert agreed == dict(method="chorus", scale="auto", impute=False, secure="mlwe", bits=512, neighbours="auto", smooth=False,
                          groups=1, preset="code", spread="private", delta=1e-6)  # fmt: skip
    assert LabelSettings.from_dict(agreed).agreed() == agreed
    assert "epochs" not in CleanSettings().agreed() and CleanSettings(epochs=3).agreed()["epochs"] == 3
    trained = TrainSettings(data="digits", clients=4, labels="clients:40", device="cpu", set={"lr": 0.1}).agreed()
    assert trained == dict(
        rounds=100, per_round=10, evaluate_every=0, patience=0, delta=1e-6, clip=1.0, secure_average=False, set={"lr": "0.1"}
    )


@pytest.mark.parametrize("job", ["label", "train", "clean"])
def test_a_federation_has_the_flags_and_the_defaults_of_its_job(job, tmp_path):
    """What a host says nothing about is agreed on as Python and the command have it; clean's rows give its model and epochs."""
    flags, context = {p.name: p for p in main.commands["host"].params}, click.Context(main.commands["host"])
    for f in fields(JOBS[job]):
        if not f.metadata.get("local"):
            assert f.name in flags
            if f.name not in ("scale", "method") and kind(f) is not dict:  # which have another default for each job
                assert flags[f.name].get_default(context) == f.default
    (tmp_path / "server.csv").write_text("a,b,kind\n" + "".join(f"{i},{i % 3},{'xy'[i % 2]}\n" for i in range(8)))
    said = dict(job=job, parties="north,south", features="a,b", classes="x,y", label="kind", address="here")
    said |= dict(server=str(tmp_path / "server.csv")) if job == "clean" else {}
    agreed = propose(tmp_path / "trial", *settings_of(said))[0].agreed.settings
    filled = dict(label=(), train=("model",), clean=("model", "epochs"))[job]
    assert {name: value for name, value in agreed.items() if name not in filled} == JOBS[job]().agreed()
    assert set(filled) <= set(agreed)


@pytest.mark.parametrize("own, theirs", [(LabelSettings, Chorus), (CleanSettings, Clean)])
def test_a_job_and_its_method_have_the_same_defaults_and_ranges(own, theirs):
    """The label job's preset is the one exception: see docs/decisions.md. Clean's epochs follow from the rows if not said."""
    of_method = {f.name: f for f in fields(theirs)}
    shared = [f for f in fields(own) if f.name in of_method]
    assert len(shared) > 2
    for f in shared:
        if f.name == "preset":
            assert (f.default, of_method[f.name].default) == ("code", "paper")
            continue
        if own is LabelSettings and f.default is None:  # what is not said is as the method has it: tests/jobs/test_chorus.py
            continue
        if f.name != "epochs":
            assert f.default == getattr(of_method[f.name].default, "name", of_method[f.name].default), f.name
        for limit in ("least", "most", "above", "below"):
            if f.name not in ("neighbours", "alpha"):  # 0 stands for auto in the method
                assert f.metadata[limit] == of_method[f.name].metadata[limit], (f.name, limit)


# ---------------------------------------------------------------- values


def numbers(settings: type[Settings]):
    for f in fields(settings):
        for limit, inside, outside in (("least", 0, -1), ("most", 0, 1), ("above", 1, 0), ("below", -1, 0)):
            if f.metadata[limit] is not None and f.name != "seeds":
                step = 1 if kind(f) is int else 1e-3
                yield f.name, f.metadata[limit] + inside * step, f.metadata[limit] + outside * step


@pytest.mark.parametrize("job", JOBS)
def test_a_range_ends_where_it_says(job):
    data = dict(data="digits") if issubclass(JOBS[job], DataSettings) else {}
    cases = list(numbers(JOBS[job]))
    assert len(cases) > 5
    for name, good, bad in cases:
        assert getattr(JOBS[job](**data, **{name: good}), name) == good
        with pytest.raises(Mistake, match=rf"^{name.replace('_', '-')} is .*, which is out of range: use "):
            JOBS[job](**data, **{name: bad})


def test_values_are_read_as_what_they_are():
    s = LabelSettings(bits="256", alpha="0.5", neighbours="7", features=["a", "b"], impute="yes", embed=Path("runs/a"))
    assert (s.bits, s.alpha, s.neighbours, s.features, s.impute, s.embed) == (256, 0.5, 7, ("a", "b"), True, "runs/a")
    assert CleanSettings(tau=1).tau == 1.0 and isinstance(CleanSettings(tau=1).tau, float)
    assert LabelSettings(bits=torch.tensor(64)).bits == 64
    assert LabelSettings(features="a, b,").features == ("a", "b")
    compared = CompareSettings(data="digits", set=["lr=0.1", "xclp.alpha=0.9"], vary=["per-round=2,4"], seeds=[3, 1, 3])
    assert compared.set == {"lr": "0.1", "xclp.alpha": "0.9"} and compared.vary == {"per_round": ["2", "4"]}
    assert compared.all_seeds == [3, 1] and CompareSettings(data="digits").all_seeds == [0, 1, 2]
    one = compared.train(1, {"lr": "0.1"})
    assert (one.seed, one.workers, one.set, one.data, one.rounds) == (1, 1, {"lr": "0.1"}, "digits", 100)


@pytest.mark.parametrize(
    "given, sentence",
    [
        (
            dict(bit=64),
            "label has no setting 'bit' (did you mean 'bits'?): it has label, id, features, categories, missing",
        ),
        (dict(whatever=1), "label has no setting 'whatever': it has label"),
        (dict(bits=True), "bits is true, which is not a whole number: use one, or leave it out."),
        (dict(bits=2.5), "bits is 2.5, which is not a whole number: use one, or leave it out."),
        (dict(groups=None), "groups is None, which is not a whole number, as in 1."),
        (dict(impute=1), "impute is 1, which is not true or false, as in false."),
        (dict(alpha="much"), "alpha is much, which is not a number or auto: use one of these, or leave it out."),
        (dict(alpha=float("nan")), "alpha is nan, which is out of range: use auto or a number that is more than 0 and"),
        (dict(neighbours="some"), "neighbours is some, which is not a whole number or auto: use one of these, or leave it out."),
        (dict(landmarks="x"), "landmarks is x, which is not a whole number, auto or all: use one of these, or leave it out."),
        (dict(abstain=2), "abstain is 2, which is out of range: use 0 to 1."),
        (dict(groups=0), "groups is 0, which is out of range: use 1 or more."),
        (dict(secure="rot13"), "secure is rot13, which is not a known value: use mlwe, psm, paillier, ot or plain."),
        (
            dict(seed=2**63),
            "seed is 9223372036854775808, which is out of range: use 0 to 9223372036854775807.",
        ),
        (dict(embed=3), "embed is 3, which is not a text: use one, or leave it out."),
    ],
)
def test_a_bad_word_or_value_is_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        LabelSettings.from_dict(given)


def test_words_that_nobody_would_read_are_refused(digits, tmp_path):
    split = digits.split(clients=4, labels="clients:40")
    for words, sentence in (
        (dict(labels="all"), "labels says how data is split, but a split is given"),
        (dict(set={"lr": 0.1}), "set works with a method's name"),
        (dict(runtime="flower-sim", out=tmp_path / "r"), "--runtime flower-sim needs --out, and a method and data given by name"),
        (dict(round=3), "train has no setting 'round' (did you mean 'rounds'?)"),
    ):
        with pytest.raises(Mistake, match=re.escape(sentence)):
            gv.train(gv.methods.FedAvg(), split, **words)
    with pytest.raises(Mistake, match="fedavg has no field 'mu'"):
        gv.train("fedavg", "digits", set={"mu": 1})


# ---------------------------------------------------------------- from Python, and pages


def test_train_by_names_is_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = dict(clients=4, labels="clients:40", rounds=2, per_round=2, model="linear")
    run = gv.train("fedprox", "digits", **words, set={"mu": 0.5}, out="python")
    flags = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = CliRunner().invoke(main, ["train", "fedprox", "--data", "digits", *flags, "--set", "mu=0.5", "--out", "command"])
    assert done.exit_code == 0, done.output
    for name in ("history.jsonl", "messages.jsonl", "model.safetensors", "split.json"):
        assert Path("python", name).read_bytes() == Path("command", name).read_bytes()
    assert run.result["settings"]["mu"] == 0.5 and Path("python/report.html").exists() and Path("command/report.html").exists()
    # The network of a loaded model is the trained one: FedAvg's and FedProx's scores are its output.
    loaded = gv.load("python")
    x = loaded.scale(torch.randint(0, 255, (5, *loaded.shape), dtype=torch.uint8))
    trained = run.shared["weights"]
    assert all(torch.equal(value, trained[name]) for name, value in loaded.network.state().items())
    with torch.no_grad():
        torch.testing.assert_close(torch.softmax(loaded.network(x), 1), loaded.method.predictor(loaded.network, run.shared)(x))
    assert repr(run).splitlines()[0] == "fedprox, 2 rounds, seed 0, in python" and len(repr(run).splitlines()) == 3


def test_the_page_of_settings_is_current():
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("settings_page", root / "benchmarks" / "settings_page.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run python benchmarks/settings_page.py"
    assert all(f"| `{name}` |" in made.page() for job in JOBS.values() for name in job.names())


def test_images_of_several_sizes_are_trained_on_with_a_size(tmp_path):
    for i in range(12):
        place = tmp_path / "own" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8 + i, 10), 20 * i).save(place / f"{i}.png")
    run = ["train", "fedavg", "--data", str(tmp_path / "own"), "--clients", "2", "--rounds", "1", "--model", "mlp", "--out"]
    refused = CliRunner().invoke(main, [*run, str(tmp_path / "x")])
    assert refused.exit_code == 2 and "to train or compare, --size 8 does it." in " ".join(refused.output.split())
    done = CliRunner().invoke(main, [*run, str(tmp_path / "run"), "--size", "6"])
    assert done.exit_code == 0, done.output
    assert gv.load(str(tmp_path / "run")).shape == (1, 6, 6)
    wrong = CliRunner().invoke(main, ["data", "show", "--data", "digits", "--size", "6"])
    assert wrong.exit_code == 2 and "digits does not take size, which is for folders of images" in " ".join(wrong.output.split())
