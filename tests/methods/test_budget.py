"""What methods say of their budget: fields that act, and how many gradient steps a round has at most."""

import pytest
import torch

import grapevine as gv
from grapevine import methods
from grapevine.core import parameters
from grapevine.crypto.hamming import protocol
from grapevine.run import simulate
from grapevine.run.experiment import Experiment

LABELS = dict(clients="clients:240", server="server:100", both="server:100,clients:240")
CLIENTS, ROUNDS = 12, 2
# No threshold leaves rows out, so that the most is what happens.
FIELDS = {
    "fedanchor": dict(threshold=-1.0), "semifl": dict(threshold=0.0), "sage": dict(threshold=0.0),
    "fixmatch": dict(threshold=0.0), "fedrgd": dict(period=7, threshold=0.0), "feddb": dict(threshold=0.0, batch=9),
    "xclp": dict(hamming=protocol("plain"), bits=64), "protofssl": dict(steps_per_round=3, helpers=1),
}  # fmt: skip
LESS = {"mp-ssfl", "rds", "tuor", "fl2", "cbafed"}  # still leave rows out


def worked_out(name, **fields):
    """With 10 labelled and 45 unlabelled rows at the client, and no labels at the server."""
    return methods.find(name)(**fields).gradient_steps(10, 45, 0)


def test_gradient_steps_are_worked_out_from_the_rows():
    assert worked_out("fedavg") == worked_out("alone") == worked_out("scaffold") == 5  # a batch of 10
    assert worked_out("fedprox", batch=4, epochs=2) == 2 * 3
    assert worked_out("fixmatch", batch=2) == 5 * 4  # ⌈45 / 14⌉ batches of unlabelled rows
    assert worked_out("mixmatch") == 5 and worked_out("fedsiam") == 5 * 2
    assert worked_out("sage", batch=10) == worked_out("proxyfl", batch=10) == 5 * 3  # ⌈55 / 20⌉
    assert worked_out("xclp") == worked_out("fedsem") == 5 * 5  # batches as small as the labels are few
    assert worked_out("cbafed") == 11 * 5  # its clients take eleven epochs
    assert worked_out("semifl") == worked_out("fedanchor") == 5 * 5 and worked_out("fl2") == 5 * 2
    assert worked_out("mp-ssfl") == 5 * 2 and worked_out("fedcon") == worked_out("tuor") == 5
    assert worked_out("feddb") == 5 and worked_out("feddb", batch=20) == 5 * 3
    assert worked_out("fedmatch") == 2 and methods.find("fedmatch")().gradient_steps(0, 150, 50) == 2  # batches of 10, of 100
    assert worked_out("protofssl") == 10 and worked_out("fedrgd") == 16
    assert worked_out("server-only") is worked_out("fedncm") is None  # the clients of these take none


@pytest.mark.parametrize("name", [n for n in methods.names() if methods.find(n)().gradient_steps(1, 1, 1) is not None])
def test_no_client_takes_more_gradient_steps_than_the_method_says(name, digits, monkeypatch):
    known = {f.name for f in parameters(methods.find(name))}
    fields = {field: n for field, n in dict(epochs=2, batch=6).items() if field in known}
    method = methods.find(name)(**(fields | FIELDS.get(name, {})))
    split = digits.split(clients=CLIENTS, labels=next(LABELS[place] for place in LABELS if place in method.takes), seed=3)
    split = split.reveal() if method.reveal else split
    at_server = len(split.server) if split.server else 0
    rows = [(len(part.labelled), len(part.unlabelled)) for part in split.parts]
    taken = count_steps(monkeypatch)
    Experiment(method, split, rounds=ROUNDS, model="mlp", per_round=2, seed=5, evaluate_every=2, workers=1).run()
    most = {id: method.gradient_steps(*rows[id], at_server) for id, _, _ in taken}
    assert taken and all(n <= most[id] for (id, _, _), n in taken.items())
    if name not in LESS:
        assert any(n == most[id] for (id, _, _), n in taken.items())


def count_steps(monkeypatch):
    """Steps of gradients of each client in each round: how often a loss goes backwards while one of its steps runs."""
    taken, now = {}, []
    run_step, backward = simulate.run_step, torch.Tensor.backward

    def running(method, step, client, payload):
        now.append((client.id, payload.get("round"), step))
        try:
            return run_step(method, step, client, payload)
        finally:
            now.pop()

    def counted(*words, **named):
        if now:
            taken[now[-1]] = taken.get(now[-1], 0) + 1
        return backward(*words, **named)

    monkeypatch.setattr(simulate, "run_step", running)
    monkeypatch.setattr(torch.Tensor, "backward", counted)
    return taken


def test_a_method_says_which_values_act():
    assert gv.methods.ProtoFSSL().spent(0)["weight_decay"] == 1e-4
    assert gv.methods.ProtoFSSL(preset="code", weight_decay=0.01).spent(0)["weight_decay"] == 0
    assert [gv.methods.FedMatch().spent(at_server)["batch"] for at_server in (0, 50)] == [10, 100]
    assert gv.methods.FedMatch(batch=7).spent(50)["batch"] == 7
    assert [methods.find("semifl")().spent(at_server)["server_batch"] for at_server in (50, 1001)] == [10, 250]
    assert methods.find("feddb")().spent(0)["batch"] == "of all rows" and methods.find("feddb")(batch=5).spent(0)["batch"] == 5
