"""The host's program over the parties in this process: what it leaves, who may be lost, and that it goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from net import Net, bits
from trials import NAMES, STEPS, TRAIN, blobs, clean_agreement, label_agreement, train_agreement, write_patients, write_table

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core import Client, wire
from grapevine.core.errors import Mistake
from grapevine.core.models import HEADS
from grapevine.core.store import FileStore, Memory
from grapevine.crypto import accountant
from grapevine.crypto import names as sealed_names
from grapevine.jobs import label_party
from grapevine.jobs.heads import heads_of
from grapevine.jobs.settings import LabelSettings
from grapevine.learn.private import fit_own, releases
from grapevine.parties import job
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import in_process, load_host
from grapevine.parties.propose import propose
from grapevine.parties.rows import read_rows
from grapevine.parties.settings import HostSettings, Source
from grapevine.run import driver
from grapevine.run.simulate import Fault

OWN = blobs("server", 9, 60, known=True)


def federation(folder: Path, agreed: Agreement, names: tuple[str, ...] = NAMES) -> Net:
    parties = [blobs(name, i) for i, name in enumerate(names)]
    return Net(folder, parties, replace(agreed, seed=11), OWN if agreed.server else None)


def run(net: Net, *faults: Fault) -> dict:
    return job.run(load_host(net.host), net.names, in_process(net.members(), faults=faults))


# ---------------------------------------------------------------- label and clean


def test_the_label_job_leaves_what_the_host_may_know(tmp_path):
    net = federation(tmp_path, label_agreement())
    result = run(net)
    assert result == json.loads((net.host / "results" / "result.json").read_text())
    assert result["labelled"] == ["east", "north", "south"] and result["lost"] == []
    assert result["expected"]["n"] > 0 and result["data"]["classes"] == ["0", "1", "2"]
    text = (net.host / "results" / "result.json").read_text()
    assert not any(name in text for name in ("r0", "r1"))  # no row of anybody


def test_tables_as_people_have_them_get_the_labels_of_one_process(tmp_path, monkeypatch):
    """Text, dates and missing values reach the job as they are, so a party's own file is what its heads take."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(NAMES):
        write_patients(tmp_path / f"{name}.csv", blobs(name, i, 60))
    (tmp_path / "example.csv").write_text("id,kind,ward,day,age,a,b,c,d\n1,0,x,2024-01-01,50,1,1,1,1\n")
    asked = dict(secure="plain", bits=256, neighbours=3, impute=True)
    said = HostSettings(parties=NAMES, schema="example.csv", label="kind", id="id", address="x", seed=3, reproducible=True)
    agreed = propose(tmp_path / "host", said, LabelSettings(**asked))[0].agreed
    rows = [read_rows(Source(f"{name}.csv", "kind", "id"), agreed, name) for name in NAMES]
    _, simulation = Net(tmp_path / "net", rows, agreed).strict(store=FileStore(tmp_path / "kept"))
    kept = [path.read_bytes() for path in (tmp_path / "kept").iterdir()]  # all that was in a party's memory at any time
    assert any(b"ward a" in data for data in kept) and not any(b"rare" in data for data in kept)
    here = gv.label([f"{name}.csv" for name in NAMES], label="kind", id="id", seed=3, out="labels", **asked)
    for place, party in enumerate(rows):
        client = Client(party.name, party.data(), Memory(simulation.store, simulation.manifests[party.name]), None, 3)
        there = label_party.party_labels(party, client, agreed.made, 0.0, None, [])
        assert there.labels == here[place].labels
        np.testing.assert_array_equal(there.confidence, here[place].confidence)
        heads = heads_of(client)
        names = heads.layout.names
        assert {"ward=ward a", "ward=other", "day:month", "age missing"} <= set(names) and not any("rare" in n for n in names)
        Path(party.name).mkdir()
        heads.save(tmp_path / party.name / HEADS)
        words = ["predict", party.name, f"{party.name}.csv", "--id", "id", "--impute", "--out", f"{party.name}-new.csv"]
        made = CliRunner().invoke(main, words)
        assert made.exit_code == 0, made.output
        found = gv.load(party.name).predict(pd.read_csv(f"{party.name}.csv"))
        new = pd.read_csv(f"{party.name}-new.csv", dtype=str)
        assert new["label"].tolist() == found.tolist() and np.mean(found == np.array([str(i % 3) for i in range(60)])) > 0.8


@pytest.mark.parametrize("parties", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_free_text_is_left_out_however_many_values_it_has(tmp_path, monkeypatch, parties):
    """It once stopped a job in its middle. Ten parties have to name even values of single rows, so there the list is cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sealed_names, "MOST", 20)
    names = tuple(f"p{i}" for i in range(parties))
    for i, name in enumerate(names):
        rows = pd.read_csv(write_patients(tmp_path / f"{name}.csv", blobs(name, i, 60)), dtype=str)
        rows.assign(note=[f"{name} saw row {j}" for j in range(60)]).to_csv(f"{name}.csv", index=False)
    (tmp_path / "example.csv").write_text("id,kind,ward,day,age,a,b,c,d,note\n1,0,x,2024-01-01,50,1,1,1,1,text\n")
    asked = dict(secure="plain", bits=256, neighbours=3, impute=True)
    said = HostSettings(parties=names, schema="example.csv", label="kind", id="id", address="x", seed=3, reproducible=True)
    agreed = propose(tmp_path / "host", said, LabelSettings(**asked))[0].agreed
    rows = [read_rows(Source(f"{name}.csv", "kind", "id"), agreed, name) for name in names]
    _, simulation = Net(tmp_path / "net", rows, agreed).strict(store=FileStore(tmp_path / "kept"))
    files = [f"{name}.csv" for name in names]
    words = dict(label="kind", id="id", seed=3, **asked)
    here = gv.label(files, **words)
    without = gv.label(files, features=["ward", "day", "age", "a", "b", "c", "d"], **words)
    for place, party in enumerate(rows):
        client = Client(party.name, party.data(), Memory(simulation.store, simulation.manifests[party.name]), None, 3)
        there = label_party.party_labels(party, client, agreed.made, 0.0, None, [])
        assert there.labels == here[place].labels == without[place].labels
    names = here.heads.layout.names
    assert "ward=ward a" in names and not any(name.startswith("note") for name in names)


def test_a_party_with_too_many_classes_is_told_so_before_anything_leaves_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed_names, "MOST", 2)
    paths = [str(write_table(tmp_path / f"{name}.csv", blobs(name, seed))) for seed, name in enumerate(("north", "south"))]
    for what in (lambda: read_rows(Source(paths[0], "kind"), label_agreement(), "north"),
                 lambda: gv.label(paths, label="kind", id="id")):  # fmt: skip
        with pytest.raises(Mistake, match="has 3 different labels, but at most 2 can be agreed on: check that --label names"):
            what()


def test_the_clean_job_tells_the_host_nothing_unless_counts_were_agreed(tmp_path):
    net = federation(tmp_path / "a", clean_agreement())
    result = run(net)
    assert result["cleaned"] == list(NAMES) and result["told"] == {} and result["expected"]["n"] == 12
    agreed = clean_agreement(settings=dict(clean_agreement().settings, counts=True))
    told = run(federation(tmp_path / "b", agreed))["told"]
    assert sorted(told) == list(NAMES) and all(sum(counts.values()) == 30 for counts in told.values())


@pytest.mark.parametrize("step", STEPS)
def test_a_party_lost_in_a_step_is_left_out_if_the_quorum_holds(tmp_path, step):
    net = federation(tmp_path, label_agreement(), (*NAMES, "west"))
    result = run(net, Fault("south", step, forever=True))
    assert result["labelled"] == ["east", "north", "west"] and result["lost"] == ["south"]


@pytest.mark.parametrize("step", STEPS)
def test_below_the_quorum_the_job_says_who_is_missing(tmp_path, step):
    net = federation(tmp_path, label_agreement(quorum=3))
    with pytest.raises(Mistake, match=f"2 of 3 parties still answer after step {step}.*quorum is 3: south must"):
        run(net, Fault("south", step, forever=True))
    told = json.loads((net.host / "failed.json").read_text())["sentence"]
    assert "south" in told and not (net.host / "results" / "result.json").exists()


def test_a_label_job_that_was_broken_off_begins_anew(tmp_path):
    net = federation(tmp_path, label_agreement(quorum=3))
    with pytest.raises(Mistake):
        run(net, Fault("south", "share", forever=True))
    assert run(net)["labelled"] == list(NAMES) and not (net.host / "failed.json").exists()


# ---------------------------------------------------------------- training


def learning(**changes) -> Agreement:
    return train_agreement(settings=dict(TRAIN, rounds=12, set=dict(lr="0.5", epochs="5")), **changes)


def test_training_learns_and_leaves_a_run_like_any_other(tmp_path):
    net = federation(tmp_path, learning())
    result = run(net)
    results = net.host / "results"
    assert result["accuracy"] > 0.9 and result["rounds"] == 12 and result["agreed"] == load_host(net.host).agreed.hash
    assert [row["id"] for row in result["per_client"]] == ["east", "north", "south"]
    history = [json.loads(line) for line in (results / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in history] == list(range(13))
    left = {path.name for path in results.iterdir()}
    assert left >= {
        "settings.json",
        "history.jsonl",
        "messages.jsonl",
        "times.jsonl",
        "result.json",
        "model.safetensors",
        "checkpoint",
    }
    assert run(net) == result  # a finished job is read, not run again


def test_predict_and_report_take_a_hosts_results(tmp_path):
    net = federation(tmp_path, learning(scale="none"))
    run(net)
    results, who = net.host / "results", blobs("new", 5, 90)
    path = write_table(tmp_path / "new.csv", who)
    done = CliRunner().invoke(
        main, ["predict", str(results), str(path), "--id", "id", "--features", "a,b,c,d", "--out", str(tmp_path / "l.csv")]
    )
    assert done.exit_code == 0, done.output
    guesses = [line.split(",")[1] for line in (tmp_path / "l.csv").read_text().splitlines()[1:]]
    assert np.mean([guess == str(i % 3) for i, guess in enumerate(guesses)]) > 0.9
    done = CliRunner().invoke(main, ["report", str(results)])
    assert done.exit_code == 0, done.output
    assert (results / "report.html").exists()


@pytest.mark.parametrize("agreed", [label_agreement(), clean_agreement()], ids=lambda agreed: agreed.job)
def test_report_takes_the_results_of_the_other_jobs(tmp_path, agreed):
    net = federation(tmp_path, agreed)
    run(net)
    done = CliRunner().invoke(main, ["report", str(net.host / "results")])
    assert done.exit_code == 0, done.output
    assert "east" in (net.host / "results" / "report.html").read_text()


def carry_by(simulation, exchange):
    """All that the host asks goes through `exchange`, and the replies that it gives are those that come."""

    def gather(step, requests, round, into):
        for id, reply in exchange(step, requests, round).items():
            into.take(id, reply)

    simulation.gather = gather


class Scripted:
    """Replaces parties' confusion matrices: of validation by script, of the test rows by another."""

    def __init__(self, simulation, validation: list[int], test: list[int], rows: int = 10):
        self.exchange, self.script, self.rows = simulation.exchange, list(zip(validation, test)), rows

    def __call__(self, step, requests, round):
        replies = self.exchange(step, requests, round)
        if step == "evaluate":
            chosen, told = self.script.pop(0)
            for reply in replies.values():
                for name, right in (("validation", chosen), ("confusion", told)):
                    counts = torch.zeros(3, 3, dtype=torch.int64)
                    counts[0, 0], counts[0, 1] = right, self.rows - right
                    reply[name] = counts
        return replies


@pytest.mark.parametrize(
    ("validation", "test", "best"),
    [([1, 5, 9, 7, 3], [2, 4, 6, 8, 10], 2), ([1, 7, 7, 7, 2], [1, 3, 5, 7, 9], 1), ([9, 2, 3, 4, 5], [10, 1, 2, 3, 4], 0)],
    ids=["in the middle", "the first of equals", "before training"],
)
def test_a_host_reports_the_test_accuracy_of_the_round_that_is_best_on_validation(tmp_path, validation, test, best):
    """Not its first, not its last, not its highest; of equally good rounds the first."""
    net = federation(tmp_path, train_agreement())
    simulation = in_process(net.members())
    carry_by(simulation, Scripted(simulation, validation, test))
    result = job.run(load_host(net.host), net.names, simulation)
    assert result["best_round"] == best
    assert result["accuracy"] == test[best] / 10 and result["accuracy_last"] == test[-1] / 10
    assert [row["accuracy"] for row in result["per_client"]] == [test[best] / 10] * 3


def test_without_held_out_labels_the_last_round_is_kept_and_nothing_is_claimed(tmp_path):
    parties = [replace(blobs(name, i), labels=[None] * 30) for i, name in enumerate(NAMES)]
    net = Net(
        tmp_path, parties, train_agreement(method="fedanchor", server=True, settings=dict(TRAIN, rounds=1, set={}), seed=1), OWN
    )
    result = run(net)
    assert (result["accuracy"], result["best_round"]) == (None, 1)
    guesses = gv.load(net.host / "results").predict(OWN.x.astype(np.float32))
    assert np.mean([guess == label for guess, label in zip(guesses, OWN.labels)]) > 0.5  # the host's own scaling is in the model


def test_a_training_job_that_was_broken_off_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "CHECKPOINT_SECONDS", -1.0)
    agreed = train_agreement(method="scaffold", settings=dict(TRAIN, rounds=5))
    whole = federation(tmp_path / "whole", agreed)
    run(whole)

    class Killed(Exception):
        pass

    net = federation(tmp_path / "broken", agreed)
    store = FileStore(tmp_path / "memories")  # which on Flower lie in the parties' folders
    simulation = in_process(net.members(), store=store)
    exchange, count = simulation.exchange, [0]

    def until(step, requests, round):
        count[0] += 1
        if count[0] == 7:  # in the middle of round 3
            raise Killed
        return exchange(step, requests, round)

    carry_by(simulation, until)
    with pytest.raises(Killed):
        job.run(load_host(net.host), net.names, simulation)
    assert "Killed at the host" in json.loads((net.host / "failed.json").read_text())["sentence"]
    job.run(load_host(net.host), net.names, in_process(net.members(), store=store))
    ours, theirs = bits(net.host / "results"), bits(whole.host / "results")
    assert ours == theirs and ours["result"]["rounds"] == 5


def test_other_settings_do_not_go_on_in_a_folder_that_was_begun(tmp_path):
    net = federation(tmp_path, train_agreement())
    run(net)
    (net.host / "results" / "result.json").unlink()
    host = load_host(net.host)
    changed = replace(host, agreed=replace(host.agreed, method="fedprox"))
    with pytest.raises(Mistake, match="was started with method fedavg, not fedprox"):
        job.run(changed, net.names, in_process(net.members()))


def test_a_party_that_sends_nonsense_as_its_result_is_left_out_of_the_accuracy(tmp_path):
    net = federation(tmp_path, train_agreement(settings=dict(TRAIN, rounds=1)))
    simulation = in_process(net.members())
    exchange = simulation.exchange

    def lie(step, requests, round):
        replies = exchange(step, requests, round)
        if step == "evaluate":
            replies["south"] = dict(confusion=wire.decode(wire.encode(dict(x=np.ones((9, 9)))))["x"])
        return replies

    carry_by(simulation, lie)
    result = job.run(load_host(net.host), net.names, simulation)
    assert [row["id"] for row in result["per_client"]] == ["east", "north"]


# ---------------------------------------------------------------- with noise


def test_parties_that_agreed_on_noise_keep_their_budget_whatever_the_host_asks(tmp_path):
    pytest.importorskip("opacus")
    net = federation(tmp_path, train_agreement(settings=dict(TRAIN, dp=3.0, delta=1e-5, clip=1.0)))
    run(net)
    for member in net.members():
        events = releases(member.ledger, member.agreed.hash, member.name)
        assert len(events) == TRAIN["rounds"] and 2.9 < accountant.epsilon(events, 1e-5) <= 3.0
        client = member.client(Memory(member.store, {}))
        model = client.model()
        before = model.state()
        assert fit_own(client, model, 0.1, 1, 99, 50) == 0  # a round more
        assert all(torch.equal(before[name], w) for name, w in model.state().items())


def test_an_agreement_on_noise_that_cannot_be_covered_is_refused(tmp_path):
    for changes, sentence in ((dict(method="fixmatch"), "uses rows in other ways"), (dict(), "mixes rows")):
        settings = dict(TRAIN, dp=3.0, model="mlp", norm="bn" if not changes else "none", set={})
        with pytest.raises(Mistake, match=sentence):
            federation(tmp_path / sentence[:4], train_agreement(settings=settings, **changes))
