"""MP-SSFL: the four cases of its table, and what leaves a client."""

import math
from dataclasses import replace

import pytest
import torch
from federation import close, each_reply, halved, labels_at_server, memory, messages, same

from grapevine import methods, report
from grapevine.core import Server
from grapevine.learn import networks as models
from grapevine.methods import mp_ssfl
from grapevine.run.experiment import Experiment


def test_decisions_are_table_1(digits):
    p = torch.tensor([
        [0.97, 0.02, 0.01, 0.0],  # case 1: loss high, confidence high
        [0.50, 0.40, 0.10, 0.0],  # case 2: loss high, confidence low
        [0.97, 0.02, 0.01, 0.0],  # case 3: loss low, confidence high
        [0.75, 0.20, 0.05, 0.0],  # case 4: loss low, confidence low
        [0.01, 0.98, 0.01, 0.0],  # unlabelled and sure
        [0.40, 0.30, 0.30, 0.0],  # unlabelled and not
        [0.02, 0.02, 0.96, 0.0],  # a class that the server does not know (equation 2)
        [0.40, 0.30, 0.30, 0.0],  # the same, not sure
        [0.05, 0.95, 0.00, 0.0],  # exactly τ is sure (equation 7)
    ])  # fmt: skip
    y = torch.tensor([1, 1, 0, 0, -1, -1, 3, 3, 0])
    label, action, loss, confidence = mp_ssfl.decide(p, y, 0.95, 0.5)
    kept, corrected, aside = mp_ssfl.KEPT, mp_ssfl.CORRECTED, mp_ssfl.EXCLUDED
    assert action.tolist() == [corrected, aside, kept, aside, corrected, aside, corrected, aside, corrected]
    assert label.tolist() == [0, 1, 0, 0, 1, -1, 2, 3, 1]
    assert loss[:4].tolist() == pytest.approx([-math.log(q) for q in (0.02, 0.4, 0.97, 0.75)])
    assert loss[4:6].isnan().all() and (loss[6:8] == math.inf).all()
    torch.testing.assert_close(confidence, p.max(1).values)


def test_a_loss_equal_to_upsilon_is_low():
    p = torch.tensor([[0.96, 0.04]])
    y, exactly = torch.tensor([0]), (-p[0, 0].log()).item()  # equations 7 and 9: high is above Υ
    assert mp_ssfl.decide(p, y, 0.95, exactly)[1].item() == mp_ssfl.KEPT


def test_the_servers_unknown_classes_are_never_predicted(digits):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    known = torch.arange(10) < 8
    p = mp_ssfl.probabilities(models.build("mlp", (1, 8, 8), 10), rows, known)
    assert (p[:, 8:] == 0).all()
    torch.testing.assert_close(p.sum(1), torch.ones(len(rows)))


def test_decisions_stay_at_the_client_unless_counts_are_asked_for(digits):
    labels = "server:40,clients:60"
    quiet = messages(digits, methods.MPSSFL(server_epochs=2, epochs=1), labels)
    assert [payload for way, step, payload in quiet if (way, step) == ("up", "decide")] == [{}] * 3
    told = messages(digits, methods.MPSSFL(server_epochs=2, epochs=1, counts=True), labels)
    counts = [payload["counts"] for way, step, payload in told if (way, step) == ("up", "decide")]
    assert len(counts) == 3 and all(set(c) == {"kept", "corrected", "excluded"} for c in counts)


def test_a_client_with_nothing_relevant_is_left_out_and_counted(digits):
    method = methods.MPSSFL(tau=1.0, server_epochs=1, epochs=1, server_weight=0)
    server, _ = labels_at_server(digits, method)
    state = method.setup(server)
    new = method.round(server, state)
    assert same(state["weights"], new["weights"]) and server.notes["nothing_relevant"] == 2


def test_clients_with_nothing_relevant_are_remembered_and_named_in_the_report(digits, tmp_path, monkeypatch):
    """They were forgotten when a later round of the same evaluation chose others."""
    monkeypatch.setattr(Server, "sample", lambda server, round: [2 * round])
    split = digits.split(clients=3, labels="server:40,clients:60", seed=1)
    method = methods.MPSSFL(tau=1.0, server_epochs=1, epochs=1)
    run = Experiment(method, split, rounds=2, evaluate_every=2, model="linear", out=tmp_path / "run").run()
    assert run.history[-1]["nothing_relevant"] == 2 and run.history[-1]["nothing_relevant_at"] == [0, 2]
    html = report.write(tmp_path / "run").read_text(encoding="utf-8")
    assert "Nothing relevant at client 0, client 2: every row was excluded, and the run continues without them." in html


def test_what_n_tells_is_said_by_each_method(digits):
    told = lambda method: method.reveals("train", "n")  # noqa: E731
    for method in (methods.MPSSFL(), methods.SemiFL(), methods.FedCon()):  # 1 or 0, never how many rows
        assert told(method).startswith("1, or 0 if")
    assert told(methods.FedAnchor()).startswith("how many unlabelled rows this party has, used or not")
    assert told(methods.Tuor()) == "how many of this party's rows were used"
    assert "this party has, labelled and not" in told(methods.find("fedmatch")())
    assert methods.find("xclp")().reveals("contrast", "n").startswith("1, or 0 if")


def test_mp_ssfl_averages_clients_of_unlike_numbers_of_relevant_rows_uniformly(digits):
    method = methods.MPSSFL(tau=0.5, server_epochs=20, epochs=1, server_weight=0)
    server, _ = labels_at_server(digits, method, "server:100,clients:200")
    state = method.setup(server)
    relevant = [int((memory(server, i)["decided"]["action"] != mp_ssfl.EXCLUDED).sum()) for i in (0, 1)]
    assert 0 < relevant[0] < relevant[1]
    replies = each_reply(server, method.train, weights=state["weights"], round=0)
    close(method.round(server, state)["weights"], halved(replies[0]["weights"], replies[1]["weights"]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_the_server_is_as_many_clients_as_it_is_told_of_equation_4(digits, weight):
    """Two clients with something relevant: (w_0 + w_1 + weight · w_S) / (2 + weight), w_S trained as a client is."""
    method = methods.MPSSFL(tau=0.5, server_epochs=20, epochs=2, batch=7, server_weight=weight)
    server, _ = labels_at_server(digits, method, "server:100,clients:200")
    state = method.setup(server)
    replies = each_reply(server, method.train, weights=state["weights"], round=0)
    own, draw = server.model(state["weights"]).train(), server.rng("task", 0)
    for _ in range(2):
        for at in torch.randperm(len(server.data), generator=draw).split(7):
            loss = torch.nn.functional.cross_entropy(own(server.data.inputs(at)), server.data.y[at])
            for p, g in zip(own.parameters(), torch.autograd.grad(loss, list(own.parameters()))):
                p.data -= 0.1 * g
    mine = {k: (replies[0]["weights"][k] + replies[1]["weights"][k] + weight * w) / (2 + weight) for k, w in own.state().items()}
    close(method.round(server, state)["weights"], mine, rtol=1e-4, atol=1e-5)


def test_with_nothing_relevant_the_server_still_learns_from_its_rows(digits):
    method = methods.MPSSFL(tau=1.0, server_epochs=1, epochs=1)
    server, _ = labels_at_server(digits, method)
    state = method.setup(server)
    assert not same(state["weights"], method.round(server, state)["weights"])


def test_the_task_starts_from_the_classifier_when_told(digits):
    both = [methods.MPSSFL(server_epochs=1, start=start) for start in ("fresh", "classifier")]
    servers = [labels_at_server(digits, method)[0] for method in both]
    fresh, told = (method.setup(server) for method, server in zip(both, servers))
    assert same(fresh["weights"], servers[0].model().state()) and not same(fresh["weights"], fresh["classifier"])
    assert same(told["weights"], told["classifier"]) and same(told["classifier"], fresh["classifier"])


def test_mend_false_sets_wrong_labels_aside_and_still_labels_the_unlabelled(digits):
    found = {}
    for mend in (True, False):
        method = methods.MPSSFL(mend=mend, tau=0.5, server_epochs=20)
        server, data = labels_at_server(digits, method, "server:200,clients:200", rows=40)
        data[0] = replace(data[0], labelled=replace(data[0].labelled, y=(data[0].labelled.y + 1) % 10))  # every label is wrong
        method.setup(server)
        found[mend] = memory(server, 0)["decided"]["action"]
    n = len(data[0].labelled)
    wrong = found[True][:n] == mp_ssfl.CORRECTED
    assert wrong.sum() > n / 2 and (found[False][:n][wrong] == mp_ssfl.EXCLUDED).all()
    assert torch.equal(found[True][n:], found[False][n:]) and (found[False][n:] == mp_ssfl.CORRECTED).any()
