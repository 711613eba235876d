"""What every method must pass, by being in the table of names. Six clients, an mlp, digits; seconds a method."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import grapevine as gv
from grapevine import methods
from grapevine.core import run_step, step, wire, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.method import parameters
from grapevine.data.split import Part
from grapevine.run import driver as experiment
from grapevine.run import simulate
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault

pytestmark = pytest.mark.conformance
CLIENTS = 6
LABELS = dict(clients="clients:180", server="server:120", both="server:120,clients:60")


# What keeps a method within its ten seconds here, and changes nothing in how it works.
SMALL = {
    "protofssl": dict(helpers=3), "xclp": dict(bits=256, epochs=2), "fixmatch": dict(epochs=2),
    "mixmatch": dict(epochs=2, weight=10.0), "fedmatch": dict(lr=0.02, interval=1), "fedsiam": dict(epochs=2),
    "fedrgd": dict(period=8),
    "fedanchor": dict(epochs=1, batch=50, pretrain=1), "semifl": dict(server_epochs=2), "tuor": dict(server_epochs=10),
    "fedcon": dict(epochs=1, hidden=32, server_epochs=2, server_lr=0.05),
    "sage": dict(epochs=2, batch=16), "fedlabel": dict(epochs=2, batch=16), "cbafed": dict(epochs=3, batch=10),
    "feddb": dict(batch=16, epochs=2), "fl2": dict(epochs=1, server_epochs=2, pretrain=2),
    "proxyfl": dict(epochs=2, batch=16, tuning_epochs=5),
}  # fmt: skip


@pytest.fixture(params=methods.names())
def method(request):
    return methods.find(request.param)(**SMALL.get(request.param, {}))


@pytest.fixture
def split(digits, method):
    where = next(place for place in LABELS if place in method.takes)
    return digits.split(clients=CLIENTS, labels=LABELS[where], seed=3)


def run(method, split, rounds=2, **settings):
    settings = dict(model="mlp", per_round=4, seed=5) | settings
    return Experiment(method, split, rounds=rounds, **settings).run(resume=settings.pop("resume", False))


def same_bits(a, b) -> bool:
    return wire.encode(a.shared) == wire.encode(b.shared) and a.history == b.history


def test_beats_round_0(method, split):
    history = run(method, split, rounds=6, evaluate_every=6).history
    assert history[-1]["accuracy"] > history[0]["accuracy"] + 0.1


def test_fast_strict_and_parallel_give_the_same_bits(method, split):
    fast = run(method, split)
    assert same_bits(fast, run(method, split, mode="strict"))
    assert same_bits(fast, run(method, split, workers=2))


def test_resumes_identically(method, split, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "CHECKPOINT_SECONDS", -1.0)
    whole = run(method, split, rounds=3, out=tmp_path / "whole")

    def stop(done, rounds, line):
        if done == 2:
            raise KeyboardInterrupt

    settings = dict(model="mlp", per_round=4, seed=5, rounds=3, out=tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        Experiment(method, split, **settings).run(progress=stop)
    with open(tmp_path / "cut" / "history.jsonl", "a") as file:
        file.write('{"round": 3, "half')  # a line under way when the machine died
    assert same_bits(whole, Experiment(method, split, **settings).run(resume=True))
    for name in ("history.jsonl", "messages.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()


def fields_sent(folder) -> set[tuple[str, str]]:
    lines = [json.loads(line) for line in (folder / "messages.jsonl").read_text().splitlines()]
    return {(line["step"], name) for line in lines if line["direction"] == "up" for name in line["fields"]}


def unexplained(method, sent) -> set[tuple[str, str]]:
    return {pair for pair in sent if method.reveals(*pair) is None}


def test_its_folder_says_what_left_and_its_model_predicts(method, split, tmp_path):
    """Every field that leaves a client has a sentence on what it reveals; the model is loaded back as it was."""
    made = run(method, split, out=tmp_path / "run")
    sent = fields_sent(tmp_path / "run")
    assert sent or method.name == "server-only"
    assert unexplained(method, sent | {("evaluate", "confusion")}) == set()
    if method.name != "alone":  # every client has its own, and none is kept
        assert gv.load(tmp_path / "run").predict(split.dataset.x_test) == made.predict(split.dataset.x_test)


MORE_FIELDS = [
    ("xclp", "preset=code", ("learn_seed", "share")),
    ("xclp", "spread=paper", ("spread.contribute", "rows")),
    ("xclp", "hamming=mlwe", ("hamming.open", "shares")),
    ("xclp", "hamming=ot", ("hamming.receive", "requests")),
    ("xclp", "init=contrastive", ("contrast", "projector")),
    ("xclp", "base=scaffold", ("train", "dc")),
    ("mp-ssfl", "counts=true", ("decide", "counts")),
    ("fedsiam", "upload=layers", ("train", "apart")),
]


@pytest.mark.parametrize("name, setting, among", MORE_FIELDS)
def test_says_what_the_fields_of_a_variant_reveal(digits, tmp_path, name, setting, among):
    texts = {key: str(value) for key, value in SMALL.get(name, {}).items()} | dict([setting.split("=")])
    method = with_settings(methods.find(name), texts)
    where = next(place for place in LABELS if place in method.takes)
    run(method, digits.split(clients=CLIENTS, labels=LABELS[where], seed=3), out=tmp_path / "run")
    sent = fields_sent(tmp_path / "run")
    assert among in sent and unexplained(method, sent) == set()


def choices():
    """Every value that a field lists, or that a flag can have, besides its default."""
    for name in methods.names():
        for f in parameters(methods.find(name)):
            values = f.metadata["choices"] or ((True, False) if isinstance(f.default, bool) else ())
            yield from ((name, f.name, str(value)) for value in values if value != f.default)


@pytest.mark.parametrize("name, field, value", list(choices()))
def test_runs_with_every_choice_of_its_fields_or_says_before_the_run_why_not(digits, name, field, value):
    """`schedule=cosine` once stopped sage in its first step."""
    texts = {key: str(default) for key, default in SMALL.get(name, {}).items()} | {field: value}
    method = with_settings(methods.find(name), texts)
    where = next(place for place in LABELS if place in method.takes)
    try:
        result = run(method, digits.split(clients=CLIENTS, labels=LABELS[where], seed=3)).result
    except Mistake as mistake:
        assert str(mistake).startswith(f"{name}: ") and field in str(mistake)
    else:
        assert 0 <= result["accuracy"] <= 1


def test_a_step_without_words_is_not_explained(tmp_path, digits):
    split = digits.split(clients=CLIENTS, labels="clients:180", seed=3)
    run(Leaky(), split, out=tmp_path / "run")
    assert unexplained(Leaky(), fields_sent(tmp_path / "run")) == {("train", "leak"), ("train", "weights"), ("train", "n")}


def test_survives_odd_clients(method, split):
    """One without labels, one with one class, one with one example, one with nothing at all."""
    parts = list(split.parts)
    none = torch.empty(0, dtype=torch.int64)
    parts[0] = Part(none, none, torch.cat([parts[0].labelled, parts[0].unlabelled]))
    one_class = parts[1].labels == (parts[1].labels[0] if len(parts[1].labels) else -1)
    parts[1] = Part(parts[1].labelled[one_class], parts[1].labels[one_class], parts[1].unlabelled)
    parts[2] = Part(parts[2].labelled[:1], parts[2].labels[:1], parts[2].unlabelled[:1] if not len(parts[2].labelled) else none)
    parts[3] = Part(none, none, none)
    result = run(method, replace(split, parts=tuple(parts)), per_round=CLIENTS).result
    assert 0 <= result["accuracy"] <= 1


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_survives_a_lost_client_at_each_step_or_says_so(method, split, when):
    for name in method.steps():
        if name == "evaluate":
            continue
        try:
            result = run(method, split, per_round=CLIENTS, faults=(Fault(1, name, when=when, forever=True),)).result
        except Mistake as mistake:
            assert "client 1" in str(mistake)
        else:
            assert 0 <= result["accuracy"] <= 1


LIES = {1: "not finite", 2: "different shape", 3: "negative", 4: "absurd"}  # by client; 0 and 5 are honest


def lie(value, kind: str):
    """A reply in which every value of a sort is nonsense."""
    if isinstance(value, dict):
        return {name: lie(inner, kind) for name, inner in value.items()}
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(lie(value.numpy(), kind))
    if isinstance(value, np.ndarray):
        if kind == "not finite" and value.dtype.kind == "f":
            return np.full_like(value, np.nan)
        return value[None] if kind == "different shape" else value
    if type(value) in (int, float):
        return dict(negative=-1, absurd=2**62).get(kind, value)
    return value


def test_clients_that_answer_nonsense_are_left_out_and_named(method, split, monkeypatch, caplog):
    lied = set()

    def dishonest(method, name, client, payload):
        reply = run_step(method, name, client, payload)
        if name == "evaluate" or client.id not in LIES:
            return reply
        other = lie(reply, LIES[client.id])
        if wire.encode(other) != wire.encode(reply):
            lied.add((client.id, name))
        return other

    monkeypatch.setattr(simulate, "run_step", dishonest)
    result = run(method, split, per_round=CLIENTS).result
    assert 0 <= result["accuracy"] <= 1
    named = re.findall(r"client (\d+) is left out of step (\S+) in round", caplog.text)
    assert {(int(client), step) for client, step in named} == lied
    assert lied or method.name == "server-only"


def raw_data_in_messages(method, split) -> list[str]:
    """Run with marked rows, and search every byte that is sent for a client's pixels, inputs and labels."""
    sent: list[bytes] = []
    generator = np.random.default_rng(1)
    marked = torch.from_numpy(generator.integers(1, 17, tuple(split.x.shape), dtype=np.uint8))
    split = replace(split, x=marked)
    run(method, split, mode="strict", per_round=CLIENTS, tap=lambda direction, step, client, data: sent.append(data))
    traffic = b"".join(sent)
    found = []
    for i in range(CLIENTS):
        data = split.client(i)
        for rows in (data.labelled, data.unlabelled):
            if not len(rows):
                continue
            row = rows.inputs(torch.tensor([0])).numpy()
            pixels = rows.x[rows.index[0]].numpy()
            for raw in (pixels, pixels.astype("<f4"), pixels.astype("<f8"), row, row.astype("<f8")):
                if raw.tobytes()[: 16 * raw.itemsize] in traffic:
                    found.append(f"client {i}: a row as {raw.dtype}")
        if len(data.labelled) >= 10:
            for kind in ("<i8", "<i4", "u1"):
                if data.labelled.y.numpy().astype(kind).tobytes() in traffic:
                    found.append(f"client {i}: labels as {kind}")
    return found


def test_messages_hold_no_raw_data(method, split):
    assert raw_data_in_messages(method, split) == []


@dataclass(frozen=True)
class Leaky(methods.FedAvg):
    """What the search above is there for."""

    what: str = "pixels"

    @step
    def train(self, client, weights, round):
        rows = client.data.labelled
        leak = dict(pixels=rows.x[rows.index], inputs=rows.inputs(), labels=rows.y)[self.what]
        return dict(super().train(client, weights, round), leak=leak)


@pytest.mark.parametrize("what", ["pixels", "inputs", "labels"])
def test_the_search_finds_a_leak(digits, what):
    split = digits.split(clients=CLIENTS, labels="clients:180", seed=3)
    assert len(raw_data_in_messages(Leaky(what=what), split)) >= CLIENTS
