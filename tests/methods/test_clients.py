"""What methods with labels at the clients have in common: diversity, SCAFFOLD with lost replies, bad input, memory."""

import math

import pytest
from federation import Federation, close, double, each_reply, flat
from torch import Tensor

from grapevine import core, methods
from grapevine.core.errors import Mistake
from grapevine.crypto.hamming import Plain
from grapevine.learn import bases
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault

QUICK = {
    "xclp": dict(bits=64, hamming=Plain(), epochs=1), "protofssl": dict(helpers=2, steps_per_round=2), "fixmatch": dict(epochs=1),
    "mixmatch": dict(epochs=1), "fedmatch": dict(lr=0.02), "fedsiam": dict(epochs=1), "fedrgd": dict(period=2),
    "tuor": dict(server_epochs=2),
}  # fmt: skip
AVERAGING = ["fedavg", "fedprox", "scaffold", "supervised", "xclp", "network", "perclient-lp", "fedsem", "protofssl", "fixmatch",
             "mixmatch", "fedmatch", "fedsiam", "fedrgd", "rds", "tuor"]  # fmt: skip


@pytest.mark.parametrize("name", AVERAGING)
def test_the_history_has_the_gradient_diversity(digits, name):
    method = methods.find(name)(**QUICK.get(name, {}))
    split = digits.split(clients=3, labels="clients:90" if "clients" in method.takes else "server:60,clients:90", seed=1)
    history = Experiment(method, split, model="mlp", rounds=2, per_round=3).run().history
    assert [line["round"] for line in history] == [0, 1, 2]
    assert all(line["gradient_diversity"] > 1 / 3 - 1e-9 for line in history[1:])  # 1/3 if all three agree


@pytest.mark.parametrize("method", [methods.FedAvg(epochs=1), methods.Scaffold(epochs=1)], ids=lambda m: m.name)
def test_gradient_diversity_of_a_round(digits, method):
    f = Federation(digits, method, labelled=(6, 0, 5), unlabelled=(8, 9, 5))
    each = bases.control(f.state, "scaffold", range(3)) if method.name == "scaffold" else {i: {} for i in range(3)}
    replies = each_reply(f.server, method.train, each=each, weights=f.state["weights"], round=0)
    start = flat(f.state["weights"])
    g = [(flat(replies[i]["dy"]) if "dy" in replies[i] else flat(replies[i]["weights"]) - start).double() for i in (0, 2)]
    f.round()
    assert f.server.notes["gradient_diversity"] == pytest.approx(sum((v @ v).item() for v in g) / (sum(g) @ sum(g)).item())


def test_gradient_diversity_of_the_contrastive_stage(digits):
    method = methods.XCLP(init="contrastive", bits=64, hamming=Plain(), epochs=1)
    split = digits.split(clients=3, labels="clients:90", seed=1)
    history = Experiment(method, split, model="mlp", rounds=2, per_round=3).run().history
    assert all(line["gradient_diversity"] > 1 / 3 - 1e-9 for line in history[1:])


@pytest.mark.parametrize("when", ["before", "in", "after"])
@pytest.mark.parametrize(
    "method", [methods.Scaffold(epochs=1), methods.NetworkLabels(base="scaffold", warmup=0.0, epochs=1)], ids=lambda m: m.name
)
def test_control_variate_of_the_server_stays_the_mean_of_the_clients(digits, method, when):
    """c = Σ c_i / N is what the correction rests on: a client must not count a step that the server never heard of."""
    f = Federation(digits, method, labelled=(6, 4, 5), unlabelled=(8, 9, 5), rounds=6)
    f.simulation._faults = [Fault(1, "train", when=when, round=1), Fault(0, "train", when=when, round=2)]
    for t in range(4):
        f.server.now = t
        f.round()
    told = bases.control(f.state, "scaffold", range(3))
    own = [bases.own_control(f.client(i), told[i]["control"]) for i in range(3)]
    close(f.state["c"], {name: sum(double(c)[name] for c in own) / 3 for name in own[0]})
    assert any(value.abs().max() > 1e-3 for value in f.state["c"].values())


IDLE = [
    methods.Scaffold(epochs=1),
    methods.NetworkLabels(base="scaffold", warmup=1.0, epochs=1),
    methods.PerClientLP(base="scaffold", warmup=0.0, epochs=1, neighbours=3),
]


@pytest.mark.parametrize("method", IDLE, ids=lambda m: m.name)
def test_clients_without_labels_do_not_count_in_the_control_variate(digits, method):
    """Then c is the mean over those who train, and their corrections c − c_i cancel."""
    f = Federation(digits, method, labelled=(6, 0, 5, 0), unlabelled=(8, 9, 5, 6), rounds=6)
    for t in range(3):
        f.server.now = t
        f.round()
    told = bases.control(f.state, "scaffold", range(4))
    own = {i: bases.own_control(f.client(i), told[i]["control"]) for i in (0, 2)}
    close(f.state["c"], {name: (double(own[0])[name] + double(own[2])[name]) / 2 for name in own[0]})
    assert any(value.abs().max() > 1e-3 for value in f.state["c"].values())


NEGATIVE = [("weight", -1.0), ("weight_decay", -1.0), ("mu", -0.1), ("supervised", -1.0), ("l2", -1.0), ("noise", -1.0)]
ZERO = [("lr", 0.0), ("temperature", 0.0), ("lr", float("nan")), ("epochs", 0), ("batch", -1), ("steps_per_round", 0)]
SHARES = [("threshold", 1.5), ("threshold", -0.1), ("warmup", 2.0), ("momentum", -0.5), ("ema", 1.1), ("students", 2.0)]
CLIENT_METHODS = ["fedavg", "fedprox", "scaffold", "xclp", "protofssl", "perclient-lp", "network", "fedsem", "fixmatch",
                  "mixmatch", "fedmatch", "fedsiam", "fedrgd"]  # fmt: skip


@pytest.mark.parametrize("name", CLIENT_METHODS)
def test_numbers_that_cannot_work_are_refused(name):
    kind = methods.find(name)
    known = {f.name for f in core.parameters(kind)}
    tried = [(field, value) for field, value in NEGATIVE + ZERO + SHARES if field in known]
    assert {"lr"} < {field for field, _ in tried}
    tried += [(f.name, v) for f in core.parameters(kind) if isinstance(f.default, float) for v in (math.nan, math.inf)]
    for field, value in tried:
        with pytest.raises(Mistake, match=rf"{name}: {field}={value:g} is out of range: use .*, as in --set {field}="):
            kind(**{field: value})


@pytest.mark.parametrize(("name", "fields", "says"), [
    ("xclp", dict(init="simclr"), "init=simclr is not a known value: use supervised, contrastive, pretrained or random"),
    ("xclp", dict(neighbours=0), "neighbours=0 is out of range"),
    ("perclient-lp", dict(alpha=1.0), "alpha=1 is out of range: use 0 or more and less than 1"),
    ("protofssl", dict(preset="mine"), "preset=mine is not a known value: use default, paper or code"),
    ("fedsiam", dict(upload="all"), "upload=all is not a known value: use both or layers"),
    ("mixmatch", dict(base="scaffold"), "base=scaffold is not a known value: use fedavg or fedprox"),
])  # fmt: skip
def test_words_and_numbers_that_a_method_does_not_know_are_refused(name, fields, says):
    with pytest.raises(Mistake, match=f"^{name}: {says}"):
        methods.find(name)(**fields)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (methods.XCLP(init="pretrained"), "init=pretrained needs init_run=FOLDER"),  # it once said to leave the folder out
        (methods.XCLP(init_run="runs/a"), "init_run=runs/a is used only with init=pretrained"),
        (methods.XCLP(graph_clients=1), r"graph_clients=1 is out of range: use 0, or 2 \(--per-round\) to 2 \(all clients\)"),
        (methods.XCLP(graph_clients=50), "graph_clients=50 is out of range"),
        (methods.XCLP(hamming="plain"), "hamming='plain' is not a protocol"),
        (methods.XCLP(warmup=1.0), "with warmup=1 all of --rounds 4 are in stage 1.*: use more rounds, or --set warmup=0"),
        (methods.XCLP(init="contrastive", warmup=0.9), "all of --rounds 4 are in stage 1"),
        (methods.ProtoFSSL(), "helpers=5 is more than the 2 clients of a round: use --set helpers=1."),
        (methods.FedMatch(), "helpers=2, but a client has 1 others"),
        (methods.FedRGD(groups=3), "groups=3 is more than the 2 clients"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_run(digits, method, says):
    with pytest.raises(Mistake, match=says):
        Federation(digits, method, model="mlp")


def test_more_helpers_than_fedmatch_can_have_and_a_run_without_xclp_are_refused(digits):
    split = digits.split(clients=6, labels="clients:60", seed=1)
    with pytest.raises(Mistake, match="helpers=3, but a client has 5 others, and 2 clients train in interval=1 rounds"):
        Experiment(methods.FedMatch(helpers=3, interval=1), split, model="mlp", rounds=2, per_round=2).run()
    with pytest.raises(Mistake, match="with warmup=0.5 all of --rounds 1 are in stage 1"):
        Experiment(methods.XCLP(bits=64), split, model="mlp", rounds=1, per_round=2).run()


@pytest.mark.parametrize("method", [methods.XCLP(), methods.NetworkLabels(), methods.FedSem()], ids=lambda m: m.name)
def test_refuses_clients_of_whom_none_has_a_label(digits, method):
    with pytest.raises(Mistake, match="no client has a labelled row"):
        Federation(digits, method, labelled=(0, 0))


def test_labels_at_the_server_that_are_not_used_are_said_once(digits, caplog):
    split = digits.split(clients=2, labels="server:50,clients:60", seed=1)
    Experiment(methods.FedAvg(epochs=1), split, model="mlp", rounds=2).run()
    assert [record.message for record in caplog.records] == [
        "fedavg learns from the clients' labels alone: the server's 50 labelled rows are not used."
    ]
    caplog.clear()
    Experiment(methods.FedAvg(epochs=1), digits.split(clients=2, labels="clients:60"), model="mlp", rounds=1).run()
    Experiment(methods.FixMatch(epochs=1), split, model="mlp", rounds=1).run()  # uses them
    assert not caplog.records


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "protofssl"])
def test_rounds_that_will_choose_nobody_with_labels_are_said_once(digits, caplog, name):
    """1 of 20 clients, 1 a round: 19 rounds of 20 learn nothing, and the run ended without a word."""
    method = methods.find(name)(**(dict(helpers=1, steps_per_round=1) if name == "protofssl" else dict(epochs=1)))
    split = digits.split(clients=20, labels="clients:20/1", seed=1)
    Experiment(method, split, model="mlp", rounds=2, per_round=1).run()
    assert [record.message for record in caplog.records] == [
        f"{name}: 1 of 20 clients have labels, so about 95% of the rounds with --per-round 1 have none: choose more clients a "
        "round, or spread the labels, as in --labels clients:20."
    ]


def test_rounds_that_have_labels_are_not_said(digits, caplog):
    few = digits.split(clients=20, labels="clients:20/1", seed=1)
    both = digits.split(clients=20, labels="server:20,clients:20/1", seed=1)
    half = digits.split(clients=20, labels="clients:40/10", seed=1)
    for method, split, per_round in (
        (methods.FedAvg(epochs=1), half, 4),  # 4 % of the rounds
        (methods.FedAvg(epochs=1), few, 20),
        (methods.NetworkLabels(epochs=1), few, 1),  # chooses by labels
        (methods.Alone(epochs=1), few, 1),  # learns from its own
        (methods.FixMatch(epochs=1), both, 1),  # the server learns too
    ):
        Experiment(method, split, model="linear", rounds=1, per_round=per_round).run()
    assert not caplog.records


@pytest.mark.parametrize("name", CLIENT_METHODS)
def test_no_step_holds_more_of_a_clients_rows_than_a_batch(digits, name, monkeypatch):
    """Rows are gathered batch by batch from the one tensor that all clients share, however many a client has."""
    small = dict(xclp=dict(bits=64), protofssl=dict(helpers=1), mixmatch=dict(epochs=1), fedmatch=dict(helpers=1))
    method = methods.find(name)(**small.get(name, {}))
    split = digits.split(clients=2, labels="clients:200", seed=1, validation=0.0)
    taken, get = [], Tensor.__getitem__

    def seen(x, at):
        out = get(x, at)
        if x is split.x:
            taken.append(len(out))
        return out

    monkeypatch.setattr(Tensor, "__getitem__", seen)
    Experiment(method, split, model="mlp", rounds=2, per_round=2).run()
    monkeypatch.undo()
    rows = [len(p.labelled) + len(p.unlabelled) for p in split.parts]
    assert min(rows) > 600
    assert taken and max(taken) <= 500
    for i in range(2):
        data = split.client(i)
        for part in (data.labelled, data.unlabelled):
            assert part.x.data_ptr() == split.x.data_ptr()
