"""Budgets of a comparison: one for all methods that have the field, and what differs is said."""

from __future__ import annotations

import pytest
from comparisons import FLAGS, begun, flat, grapevine, tabled

import grapevine as gv
from grapevine.jobs import compare_table
from grapevine.jobs.settings import read_budget


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
        ("epochs=many", "--budget epochs=many is not a whole number"),  # it was said of alone, which nobody had named
        ("epochs=-2", "--budget epochs=-2 is out of range: use 1 or more."),
        ("schedule=cosin", "--budget schedule=cosin is not a known value (did you mean 'cosine'?): use constant or cosine"),
        ("epoch=2", "--budget epoch=2 (did you mean 'epochs'?): a budget can set"),
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
