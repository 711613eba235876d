"""`train --dp`: plans, refusals, and what a run leaves."""

import json

import pytest

import grapevine as gv
from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.jobs import privacy

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")
FEW = dict(data="digits", clients=4, labels="clients:80", rounds=3, per_round=2, model="linear", set=dict(epochs=1, batch=10))


def test_a_run_says_what_each_client_spent_and_its_ledger_agrees(tmp_path, caplog):
    out = tmp_path / "run"
    run = gv.train("fedavg", out=out, dp=4.0, delta=1e-5, workers=2, **FEW)
    assert "each client spends at most ε = 4 at δ = 1e-05 for one labelled row" in caplog.text
    told = json.loads((out / "result.json").read_text())["privacy"]
    assert told["unit"] == "one labelled row of a client, there or blank" and told["outside"]
    assert 3.9 < told["epsilon"] <= 4.0 and told["delta"] == 1e-5 and told["budget"] == 4.0
    lines = [line for line in Ledger(out).lines() if line["kind"] == "release"]
    assert len(lines) == 6 == sum(client["rounds"] for client in told["per_client"])
    for client in told["per_client"]:
        mine = [line for line in lines if line["parties"] == [f"{client['id']:06d}"]]
        assert len(mine) == client["rounds"] == client["planned_rounds"] and client["rows"] == 20
        assert client["steps"] == sum(line["mechanism"]["count"] for line in mine) == 2 * client["rounds"]
        assert 3.9 < client["epsilon"] <= 4.0
    spent = [line["epsilon"] for line in run.history]
    assert spent[0] == 0 and spent == sorted(spent) and spent[-1] == pytest.approx(told["epsilon"], abs=0.01)
    settings = json.loads((out / "settings.json").read_text())
    assert (settings["dp"], settings["delta"], settings["clip"]) == (4.0, 1e-5, 1.0)
    report = (out / "report.html").read_text()
    assert "Differential privacy" in report and "how many labelled rows a client has" in report


def test_views_momentum_decay_and_a_schedule_go_with_it():
    """Each of them once broke what the others left whole."""
    fields = dict(FEW["set"], augment=True, momentum=0.5, weight_decay=1e-4, schedule="cosine")
    run = gv.train("fedavg", dp=4.0, **{**FEW, "set": fields, "model": "cnn", "rounds": 1})
    assert 3.9 < run.result["privacy"]["epsilon"] <= 4.0


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "supervised"])
def test_the_other_averaging_methods_take_it_too(method):
    run = gv.train(method, dp=4.0, **FEW)
    assert 0 < run.result["privacy"]["epsilon"] <= 4.0


def test_noisy_updates_can_be_summed_under_masks_whoever_is_chosen(tmp_path):
    """Their sums need no care of their own: what goes in has its noise, and its line in the ledger."""
    run = gv.train("fedavg", out=tmp_path / "run", dp=4.0, secure_average=True, **{**FEW, "per_round": 3})
    assert 0 < run.result["privacy"]["epsilon"] <= 4.0
    lines = [line for line in Ledger(tmp_path / "run").lines() if line["kind"] == "release"]
    kinds = [line["mechanism"]["kind"] for line in lines]
    assert sorted(set(kinds)) == ["covered", "gaussian"] and kinds.count("covered") == kinds.count("gaussian") == 12
    # Sums are over fixed groups, of three or more: here all four clients in each of three rounds. Plans know it.
    assert [(c["rounds"], c["planned_rounds"]) for c in run.result["privacy"]["per_client"]] == [(3, 3)] * 4
    assert all(party.spent["row"][0] <= 4.0 for party in privacy.read(tmp_path / "run"))


def test_no_other_method_says_that_it_is_covered():
    """A method that was made from a covered one, and does more with its rows, once inherited the word."""
    assert {name for name in methods.names() if methods.find(name).private == name} == {
        "fedavg",
        "fedprox",
        "scaffold",
        "supervised",
    }


@pytest.mark.parametrize("method", ["alone", "fixmatch", "sage", "fedlabel"])
def test_other_methods_refuse_it(method):
    with pytest.raises(Mistake, match="fedavg, fedprox, scaffold, supervised.*uses rows in other ways"):
        gv.train(method, data="digits", clients=4, labels="clients:80", rounds=2, dp=4.0)


def test_what_cannot_be_covered_is_refused(tmp_path):
    with pytest.raises(Mistake, match="mixes rows"):
        gv.train("fedavg", dp=4.0, norm="bn", **{**FEW, "model": "mlp"})
    with pytest.raises(Mistake, match="use --dp EPS too"):
        gv.train("fedavg", delta=1e-5, **FEW)
    with pytest.raises(Mistake, match="--runtime local"):
        gv.train("fedavg", dp=4.0, runtime="flower-sim", out=tmp_path / "a", **FEW)
    for wrong in (0, -1.0):
        with pytest.raises(Mistake, match="dp"):
            gv.train("fedavg", dp=wrong, **FEW)


def test_a_resumed_run_has_the_same_ledger_and_spends_no_more(tmp_path):
    out = tmp_path / "run"

    class Stop(Exception):
        pass

    def stop(done, rounds, line):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        gv.train("fedavg", out=out, dp=4.0, progress=stop, **FEW)
    run = gv.train("fedavg", out=out, dp=4.0, resume=True, **FEW)
    assert len([line for line in Ledger(out).lines() if line["kind"] == "release"]) == 6
    assert run.result["privacy"]["epsilon"] <= 4.0
