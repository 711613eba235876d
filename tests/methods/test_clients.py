"""Methods with labels at the clients, each against a slow version of its own: softmax regression by formula, loops, dense graphs.

Where a method draws views or orders, the slow version draws the same from the same named stream, and does the rest by hand.
"""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from grapevine import core, graph, methods
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.core.store import Memory
from grapevine.crypto.hamming import Plain
from grapevine.crypto.stream import context, hkdf
from grapevine.data.augment import Views
from grapevine.learn import bases, pseudo, vectors
from grapevine.learn import losses as semi
from grapevine.learn.networks import build
from grapevine.learn.normalisation import StaticBatchNorm2d
from grapevine.methods import fedmatch, fedrgd, fedsiam, fixmatch, protofssl
from grapevine.run import driver as experiment
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault, Simulation

W, B = "head.weight", "head.bias"


class Federation:
    """Clients with a few rows each and a server, on digits."""

    def __init__(
        self, digits, method, labelled=(6, 4), unlabelled=(8, 9), model="linear", at_server=0, rounds=4, norm=None, tap=None
    ):
        labels = f"server:{at_server},clients:60" if at_server else "clients:60"
        split = digits.split(clients=len(labelled), labels=labels, seed=1)
        parts = [
            replace(p, labelled=p.labelled[:n], labels=p.labels[:n], unlabelled=p.unlabelled[:m])
            for p, n, m in zip(split.parts, labelled, unlabelled)
        ]
        split = replace(split, parts=tuple(parts))
        self.method = method
        self.source = Experiment(method, split, model=model, norm=norm).models()
        self.data = {i: split.client(i) for i in range(len(labelled))}
        self.simulation = Simulation(method, self.data, self.source, mode="strict" if tap else "fast", tap=tap)
        self.server = Server(
            method, self.data, self.simulation, self.source, digits.classes, rounds=rounds, data=split.server_rows("cpu")
        )
        method.check(self.server)
        self.state = method.setup(self.server)

    def round(self):
        self.state = self.method.round(self.server, self.state)
        return self.state

    def memory(self, id):
        return Memory(self.simulation.store, self.simulation.manifests[id])

    def client(self, id):
        return self.simulation._client(id, Memory(self.simulation.store, self.simulation.manifests.get(id)))


def stream(id, *names):
    return core.rng(0, "client", id, *names)


def close(a, b, **how):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name].double(), b[name].double(), **dict(dict(rtol=1e-4, atol=1e-6), **how))


def double(weights):
    return {name: w.double() for name, w in weights.items()}


def scores(w, x):
    return x.flatten(1).double() @ w[W].T + w[B]


def proba(w, x):
    return torch.softmax(scores(w, x), 1)


def hot(y):
    return torch.nn.functional.one_hot(y, 10).double()


def gradient(w, x, target, weight):
    """Of Σ_i weight_i · cross-entropy(target_i, softmax(W x_i + b)): Xᵀ diag(weight) (p − t)."""
    delta = (proba(w, x) - target) * weight[:, None]
    return {W: delta.T @ x.flatten(1).double(), B: delta.sum(0)}


def plus(*gradients):
    return {name: sum(g[name] for g in gradients) for name in gradients[0]}


class Momentum:
    """SGD by hand: weight decay, momentum, Nesterov."""

    def __init__(self, lr, momentum, decay, nesterov=True):
        self.lr, self.momentum, self.decay, self.nesterov, self.v = lr, momentum, decay, nesterov, None

    def step(self, w, g):
        g = {name: g[name] + self.decay * w[name] for name in w}
        self.v = g if self.v is None else {name: self.momentum * self.v[name] + g[name] for name in g}
        move = {name: g[name] + self.momentum * self.v[name] for name in g} if self.nesterov else self.v
        return {name: w[name] - self.lr * move[name] for name in w}


# ---------------------------------------------------------------- what they share


def test_stages_and_cosine(digits):
    server = Federation(digits, methods.NetworkLabels(), rounds=7).server
    assert pseudo.first_stage(7, 0.5) == 4 and pseudo.first_stage(7, 0.0) == 0
    assert [pseudo.stage_of(server, 4, t) for t in (0, 3, 4, 6)] == [(1, 0, 4), (1, 3, 4), (2, 0, 3), (2, 2, 3)]
    assert pseudo.cosine(0.3, 0, 1500) == 0.3
    assert pseudo.cosine(0.3, 1000, 1500) == pytest.approx(0.15)  # half way to T_max = 2000
    assert pseudo.cosine(0.3, 1500, 1500) == pytest.approx(0.3 * (1 + math.cos(0.75 * math.pi)) / 2)


@pytest.mark.parametrize(
    ("clients", "labelled", "count", "expected"), [(100, 50, 5, 3), (100, 1, 5, 1), (10, 10, 4, 4), (6, 2, 6, 2)]
)
def test_the_ratio_of_labelled_clients_is_kept_rounded_up(digits, clients, labelled, count, expected):
    server = Federation(digits, methods.NetworkLabels()).server
    server.per_round = count
    known = set(range(0, labelled))
    for t in range(5):
        chosen = pseudo.sample_by_labels(server, t, range(clients), known)
        assert len(set(chosen)) == count and sum(i in known for i in chosen) == expected


def test_two_streams_is_weighted_descent(digits):
    data = Federation(digits, methods.NetworkLabels()).data[0]
    labels, weight = torch.tensor([1, -1, 3, 0, 5, 9, 2, 7]), torch.tensor([0.5, 0.9, 0.0, 1.0, 0.3, 0.7, 0.2, 0.1])
    class_weight = torch.linspace(0.5, 1.5, 10)
    model = build("linear", (1, 8, 8), 10)
    w = double(model.state())
    steps = pseudo.two_streams(
        model, data.labelled, data.unlabelled, labels, weight, 0.2, 3, stream(0), batch=50, weight_decay=0.01,
        class_weight=class_weight, augment=False,
    )  # fmt: skip
    used = torch.tensor([0, 3, 4, 5, 6, 7])  # six labels: all labelled and all used rows are one batch
    x = torch.cat([data.labelled.inputs(), data.unlabelled.inputs(used)])
    y = torch.cat([data.labelled.y, labels[used]])
    each = torch.cat([torch.ones(6), weight[used]]).double() * class_weight.double()[y] / 12
    for _ in range(3):
        w = Momentum(0.2, 0.0, 0.01).step(w, gradient(w, x, hot(y), each))
    assert steps == 3
    close(model.state(), w)


def test_two_streams_takes_batches_of_both_kinds(digits):
    data = Federation(digits, methods.NetworkLabels(), (4, 0), (10, 9)).data
    seen = []
    model = build("linear", (1, 8, 8), 10)
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))

    def fit(id, labels, batch):
        weight = torch.ones(len(labels))
        return pseudo.two_streams(model, data[id].labelled, data[id].unlabelled, labels, weight, 0.1, 2, stream(id), batch)

    assert fit(0, torch.zeros(10, dtype=torch.int64), 50) == 6 and seen == [8, 8, 6] * 2  # four labels, and as many of the others
    seen.clear()
    assert fit(0, torch.full((10,), -1), 3) == 4 and seen == [3, 1] * 2  # no pseudo-labels: passes over the labelled rows
    seen.clear()
    assert fit(1, torch.zeros(9, dtype=torch.int64), 2) == 6 and seen == [4, 4, 1] * 2  # no labels: twice the batch


def test_streams_pass_over_both_kinds():
    pairs = list(islice(pseudo.streams(5, 7, 2, 2, stream(0)), 6))
    assert [(len(a), len(b)) for a, b in pairs] == [(2, 4), (2, 3), (1, 4), (2, 3), (2, 4), (1, 3)]
    for kind, n in ((0, 5), (1, 7)):
        rows = torch.cat([pair[kind] for pair in pairs])
        assert sorted(rows[:n].tolist()) == sorted(rows[n : 2 * n].tolist()) == list(range(n))
    assert [len(b) for _, b in islice(pseudo.streams(3, 0, 2, 7, stream(0)), 3)] == [0, 0, 0]
    assert [pseudo.epoch_steps(*n) for n in ((5, 7, 2, 2), (5, 0, 2, 2), (0, 8, 2, 2), (0, 0, 2, 2))] == [2, 3, 2, 0]


def test_plateau_by_hand():
    rate = dict(lr=0.9, lowest=math.inf, left=2)
    found = []
    for loss in (1.0, 0.5, 0.5, 0.6, 0.4, 0.4, 0.4, 0.4):
        rate = pseudo.plateau(rate, loss, 2)
        found.append(round(rate["lr"], 6))
    assert found == [0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.1, 0.1]
    for _ in range(9):
        rate = pseudo.plateau(rate, 1.0, 0)
    assert rate["lr"] == pytest.approx(0.1)


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
    replies = f.server.ask(method.train, each=each, weights=f.state["weights"], round=0)
    start = flat(f.state["weights"])
    g = [(flat(replies[i]["dy"]) if "dy" in replies[i] else flat(replies[i]["weights"]) - start).double() for i in (0, 2)]
    f.round()
    assert f.server.notes["gradient_diversity"] == pytest.approx(sum((v @ v).item() for v in g) / (sum(g) @ sum(g)).item())


def test_gradient_diversity_of_the_contrastive_stage(digits):
    method = methods.XCLP(init="contrastive", bits=64, hamming=Plain(), epochs=1)
    split = digits.split(clients=3, labels="clients:90", seed=1)
    history = Experiment(method, split, model="mlp", rounds=2, per_round=3).run().history
    assert all(line["gradient_diversity"] > 1 / 3 - 1e-9 for line in history[1:])


def test_vote_by_hand():
    rows = {name: semi.one_hot(torch.tensor(c), 3) for name, c in dict(own=[2, 2, 0, 1], a=[1, 1, 1, 1], b=[0, 1, 0, 2]).items()}
    assert pseudo.vote(rows["own"], [rows["a"], rows["b"]]).tolist() == [2, 1, 0, 1]  # three opinions: the own one
    assert pseudo.vote(rows["own"], [rows["a"], rows["b"]], "code").tolist() == [0, 1, 0, 1]
    assert pseudo.vote(rows["own"], []).tolist() == [2, 2, 0, 1]


def test_changes_of_a_vector():
    before = torch.arange(100.0)
    few, many = torch.zeros(100), torch.zeros(100)
    few[[3, 77]] = torch.tensor([0.5, -2.0])
    many[::2] = 1.0
    for change, form in ((few, "index"), (many, "bits")):
        packed = vectors.differences(change, 0.4)
        assert form in packed and torch.equal(vectors.unpack(packed, before), before + change)
    assert wire.size(vectors.differences(few, 0.4)["index"]) == 11 + 2 * 4
    assert wire.size(vectors.differences(many, 0.4)["bits"]) == 11 + 13
    assert torch.equal(vectors.unpack(vectors.differences(few, 1.0), before), before + few * (few.abs() > 1))  # 0.5 is cut
    changed = torch.zeros(100, dtype=torch.int32)
    changed = vectors.stamp(few != 0, 5, changed)
    packed = vectors.since(before + few, changed, 4)
    assert len(packed["values"]) == 2 and torch.equal(vectors.unpack(packed, before), before + few)
    assert not len(vectors.since(before + few, changed, 5)["values"])
    assert vectors.is_whole(vectors.since(before, changed, None)) and not vectors.is_whole(packed)


# ---------------------------------------------------------------- FixMatch


def test_fixmatch_loss_against_loops():
    model = build("mlp", (5,), 3)
    x, weak, strong = (torch.randn(n, 5, generator=core.rng(7, name)) for n, name in ((4, "x"), (6, "weak"), (6, "strong")))
    y = torch.tensor([0, 2, 1, 1])
    q = torch.softmax(model(weak), 1)
    threshold = q.amax(1).sort().values[2].item()
    nobody = Rows(x, torch.arange(0), torch.arange(0))
    loss, labels, sure = fixmatch.FixMatchLoss(model, nobody, nobody, threshold, 0.7, stream(0)).of(x, y, weak, strong)
    p, s = torch.log_softmax(model(x), 1), torch.log_softmax(model(strong), 1)
    expected = -sum(p[i, y[i]] for i in range(4)) / 4
    for i in range(6):
        if q[i].max() >= threshold:
            expected = expected - 0.7 * s[i, q[i].argmax()] / 6
    assert sure.sum() == 4 and labels.tolist() == q.argmax(1).tolist()
    torch.testing.assert_close(loss, expected)
    teacher = build("mlp", (5,), 3, seed=1)
    _, labels, _ = fixmatch.FixMatchLoss(model, nobody, nobody, 0.0, 0.7, stream(0), teacher).of(x, y, weak, strong)
    assert labels.tolist() == teacher(weak).argmax(1).tolist() != q.argmax(1).tolist()


def slow_fixmatch(w, data, id, t, m, lr, teacher=None, mu=0.0, steps=None):
    """FixMatch of softmax regression, with the views that the client draws."""
    start, draw, optimiser = w, stream(id, "train", t), Momentum(lr, m.momentum, m.weight_decay)
    L, U = len(data.labelled), len(data.unlabelled)
    ratio = getattr(m, "ratio", 1)
    steps = m.epochs * -(-U // (m.batch * ratio)) if steps is None else steps
    for a, b in islice(pseudo.streams(L, U, m.batch, ratio, draw), steps):
        x = Views(data.labelled).weak(a, draw)
        weak, strong = Views(data.unlabelled).weak(b, draw), Views(data.unlabelled).strong(b, draw)
        q = proba(teacher or w, weak)
        mask = (q.amax(1) >= m.threshold).double()
        g = [gradient(w, strong, hot(q.argmax(1)), m.weight * mask / len(b))]
        g.append({name: mu * (w[name] - start[name]) for name in w})
        if len(a):
            g.append(gradient(w, x, hot(data.labelled.y[a]), torch.full((len(a),), 1 / len(a)).double()))
        elif not mask.any():
            continue
        w = optimiser.step(w, plus(*g))
    return w


@pytest.mark.parametrize("settings", [dict(), dict(pseudo_labels="global"), dict(base="fedprox", mu=0.5)])
def test_fixmatch_round(digits, settings):
    m = methods.FixMatch(threshold=0.11, weight=0.8, lr=0.1, epochs=2, batch=2, ratio=2, **settings)
    f = Federation(digits, m)
    w = double(f.state["weights"])
    for t in range(2):
        lr = 0.1 * math.cos(7 * math.pi * t / 64)
        teacher = w if m.pseudo_labels == "global" else None
        each = [slow_fixmatch(w, f.data[i], i, t, m, lr, teacher, m.mu if m.base == "fedprox" else 0.0) for i in (0, 1)]
        w = {name: (14 * each[0][name] + 13 * each[1][name]) / 27 for name in w}
        close(f.round()["weights"], w)


def test_fixmatch_with_labels_at_the_server_trains_there_after_the_average(digits):
    m = methods.FixMatch(threshold=0.11, lr=0.1, epochs=1, batch=5, ratio=1, server_epochs=2)
    f = Federation(digits, m, labelled=(0, 0), unlabelled=(8, 9), at_server=20)
    w = double(f.state["weights"])
    each = [slow_fixmatch(w, f.data[i], i, 0, m, 0.1) for i in (0, 1)]
    w = {name: (8 * each[0][name] + 9 * each[1][name]) / 17 for name in w}
    draw, optimiser, rows = core.rng(0, "server", "train", 0), Momentum(0.1, 0.9, 5e-4), f.server.data
    for a, _ in islice(pseudo.streams(20, 0, 5, 1, draw), 8):
        x = Views(rows).weak(a, draw)
        w = optimiser.step(w, gradient(w, x, hot(rows.y[a]), torch.full((5,), 0.2).double()))
    close(f.round()["weights"], w)


def test_fixmatch_leaves_out_who_took_no_step(digits):
    m = methods.FixMatch(threshold=1.0, lr=0.1, epochs=1)
    f = Federation(digits, m, labelled=(6, 0), unlabelled=(8, 9))
    replies = f.server.ask(m.train, weights=f.state["weights"], control={}, lr=0.1, round=0)
    assert replies[1] == dict(n=0)  # nothing labelled, nothing confident
    after = f.round()["weights"]
    assert all(torch.equal(after[name], value) for name, value in replies[0]["weights"].items())


@pytest.mark.parametrize(
    ("settings", "says"),
    [(dict(pseudo_labels="both"), "local or global"), (dict(base="fedsgd"), "fedavg"), (dict(base="scaffold"), "momentum=0"),
     (dict(ratio=0), "ratio=0 cannot work: take 1 or more")],
)  # fmt: skip
def test_fixmatch_refuses(digits, settings, says):
    with pytest.raises(Mistake, match=says):
        Federation(digits, methods.FixMatch(**settings))


# ---------------------------------------------------------------- MixMatch


def test_mixmatch_loss_against_loops():
    m = methods.MixMatch(temperature=0.4, alpha=5.0)
    model = build("mlp", (5,), 3)
    x, u1, u2 = (torch.randn(n, 5, generator=core.rng(7, name)) for n, name in ((4, "x"), (6, "a"), (6, "b")))
    y = semi.one_hot(torch.tensor([0, 2, 1, 1]), 3)
    loss, q = m.loss(model, x, y, [u1, u2], 3.0, stream(0, "mix"))
    draw = stream(0, "mix")
    share = semi.draw_beta(5.0, 5.0, draw)
    share = max(share, 1 - share)
    order = torch.randperm(16, generator=draw).tolist()
    guess = ((torch.softmax(model(u1), 1) + torch.softmax(model(u2), 1)) / 2) ** (1 / 0.4)
    guess = guess / guess.sum(1, keepdim=True)
    torch.testing.assert_close(q, guess)
    rows, targets = [*x, *u1, *u2], [*y, *guess, *guess]
    labelled = unlabelled = 0.0
    for i in range(16):
        j = order[i]
        p = torch.softmax(model((share * rows[i] + (1 - share) * rows[j])[None])[0], 0)
        t = share * targets[i] + (1 - share) * targets[j]
        if i < 4:
            labelled = labelled - (t * p.log()).sum() / 4
        else:
            unlabelled = unlabelled + (t - p).square().sum() / 3 / 12
    torch.testing.assert_close(loss, labelled + 3.0 * unlabelled)


def test_mixmatch_weight_rises_and_a_client_with_one_kind_of_rows_learns(digits):
    m = methods.MixMatch(weight=75.0, ramp=0.5)
    assert [m.ramped(t, 8) for t in (0, 1, 3, 4, 7)] == [0.0, 18.75, 56.25, 75.0, 75.0]
    assert methods.MixMatch(ramp=0.0).ramped(0, 8) == 75.0
    f = Federation(digits, methods.MixMatch(epochs=1, ramp=0.0), labelled=(6, 0), unlabelled=(0, 9))
    replies = f.server.ask(f.method.train, weights=f.state["weights"], weight=1.0, round=0)
    assert [replies[i]["n"] for i in (0, 1)] == [6, 9]
    assert all((replies[i]["weights"][W] != f.state["weights"][W]).any() for i in (0, 1))


@pytest.mark.parametrize(
    "settings", [dict(temperature=0.0), dict(alpha=0.0), dict(ramp=2.0), dict(base="scaffold"), dict(views=0)]
)
def test_mixmatch_refuses(digits, settings):
    with pytest.raises(Mistake, match=f"mixmatch.*{next(iter(settings))}"):
        Federation(digits, methods.MixMatch(**settings))


# ---------------------------------------------------------------- FedMatch


def flat(w):
    return torch.cat([w[W].flatten(), w[B]])


def apart(v):
    return {W: v[:640].view(10, 64).double(), B: v[640:].double()}


def slow_fedmatch(m, sigma, psi, data, helpers, told, id, t):
    """One client of Algorithm 1 on softmax regression: σ and ψ by formula."""
    draw = stream(id, "train", t)
    L, U = len(data.labelled), len(data.unlabelled)
    steps = -(-(L or U) // told["batch"])
    each_l, each_u = (torch.randperm(n, generator=draw).tensor_split(steps) for n in (L, U))
    for a, b in zip(each_l, each_u):
        if len(a):
            x, y = data.labelled.batch(a)
            g = gradient(apart(sigma + psi), x, hot(y), torch.full((len(a),), m.supervised / len(a)).double())
            sigma = sigma - m.lr * flat(g)
        w, views = apart(sigma + psi), Views(data.unlabelled)
        p = proba(w, views.plain(b))
        sure = p.amax(1) >= m.threshold
        g = 2 * m.l2 * (psi - sigma) + told["l1"] * psi.sign()
        if sure.any():
            x, share = views.plain(b[sure]), torch.full((int(sure.sum()),), 1 / int(sure.sum())).double()
            answers = [proba(apart(sigma0 + h), x) for sigma0, h in helpers]
            y = pseudo.vote(p[sure], answers)
            g = g + flat(gradient(w, views.strong(b[sure], draw), hot(y), m.agreement * share))
            for q in answers:  # the gradient of KL(q ‖ p) is that of the cross-entropy: q's entropy is constant
                g = g + flat(gradient(w, x, q, m.consistency / len(answers) * share))
        psi = psi - m.lr * g
    return sigma, psi


def test_fedmatch_follows_algorithm_1_for_three_rounds(digits, monkeypatch):
    monkeypatch.setitem(fedmatch.AT_CLIENTS, "zero", 0.004)  # so that some of ψ's entries are below it
    m = methods.FedMatch(
        helpers=2, interval=2, threshold=0.13, supervised=2.0, consistency=0.7, agreement=0.4, l2=0.3, l1=0.01, cut=0.0, lr=0.05,
        batch=4, patience=0,
    )  # fmt: skip
    f = Federation(digits, m, labelled=(6, 4, 7), unlabelled=(8, 9, 5))
    told = m.setting(False)
    sigma, psi = f.state["sigma"].double(), f.state["psi"].double()
    torch.testing.assert_close(psi, 0.2 * sigma)
    pool, helpers, vector = {}, {i: [] for i in range(3)}, {}
    for t in range(3):
        if t in (1, 2):  # the first time that others are known, and the next block of two rounds
            for i in range(3):
                near = sorted((j for j in range(3) if j != i), key=lambda j: torch.dist(vector[i], vector[j]))
                helpers[i] = [pool[j] for j in near]
        each = [slow_fedmatch(m, sigma, psi, f.data[i], [(sigma, h) for h in helpers[i]], told, i, t) for i in range(3)]
        noise = fedmatch.noise(f.data[0].unlabelled, core.rng(0, "fedmatch noise"))
        vector = {i: proba(apart(s + p), noise)[0] for i, (s, p) in enumerate(each)}
        each = [(s, torch.where(p.abs() > told["zero"], p, 0.0)) for s, p in each]
        pool = {i: p for i, (_, p) in enumerate(each)}
        state = f.round()
        sigma, psi = (sum(pair[k] for pair in each) / 3 for k in (0, 1))
        for i in range(3):
            torch.testing.assert_close(state["vectors"][i].double(), vector[i], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(state["sigma"].double(), sigma, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(state["psi"].double(), psi, rtol=1e-4, atol=1e-6)
    large = f.state["psi"].abs() > 0.004
    assert 0 < large.sum() < len(large)
    w = {name: part.float() for name, part in apart(f.state["sigma"] + f.state["psi"] * large).items()}
    model = build("linear", (1, 8, 8), 10).load(w)
    predict = m.predictor(f.source.new(None, core.Meter()), m.shared(f.state))
    x = f.data[0].labelled.inputs()
    torch.testing.assert_close(predict(x), torch.softmax(model(x), 1), rtol=1e-4, atol=1e-5)


def test_fedmatch_with_labels_at_the_server(digits):
    m = methods.FedMatch(helpers=1, threshold=0.13, lr=0.01, supervised=3.0, batch=10)
    f = Federation(digits, m, labelled=(0, 0), unlabelled=(8, 9), at_server=20)
    told = m.setting(True)
    assert (told["l1"], told["cut"], told["patience"]) == (1e-5, 1e-5, 20)
    sigma, psi, rows = f.state["sigma"].double(), f.state["psi"].double(), f.server.data
    order = torch.randperm(20, generator=core.rng(0, "server", "train", 0))
    for at in order.split(10):
        x, y = rows.batch(at)
        sigma = sigma - 0.01 * flat(gradient(apart(sigma + psi), x, hot(y), torch.full((10,), 0.3).double()))
    each = [slow_fedmatch(m, sigma, psi, f.data[i], [], told, i, 0)[1] for i in (0, 1)]
    cut = [torch.where((p - psi).abs() > told["cut"], p, psi) for p in each]
    state = f.round()
    torch.testing.assert_close(state["sigma"].double(), sigma, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["psi"].double(), (cut[0] + cut[1]) / 2, rtol=1e-4, atol=2e-5)
    up = next(line for line in f.server.account.drain() if line["direction"] == "up")
    assert "sigma" not in up["fields"]  # clients without labels have none to send


def test_fedmatch_sends_what_changed_and_clients_then_know_all(digits):
    m = methods.FedMatch(helpers=1, interval=2, lr=0.02, cut=2e-3)
    f = Federation(digits, m, labelled=(6, 4, 7), unlabelled=(8, 9, 5))
    f.server.per_round = 1
    whole = f.state["sigma"].numel() * 4
    for t in range(6):
        before = f.state
        f.round()
        chosen = f.server.sample(t)
        for i in chosen:
            for part in ("sigma", "psi"):
                assert torch.equal(f.memory(i)["copy"][part], before[part])
        down = next(line for line in f.server.account.drain() if line["direction"] == "down")
        for part in ("sigma", "psi"):
            sent = sum(
                whole if i not in before["known"] else 4 * int((before["changed"][part] > before["known"][i]).sum())
                for i in chosen
            )
            overhead = 200 + whole // 32  # names, and a bit for each entry
            assert sent <= down["fields"][part]["bytes"] <= sent + max(sent, overhead)
        moved = (f.state["sigma"] != before["sigma"]).sum()
        assert 0 < moved < len(before["sigma"])  # small changes stayed at home
        assert all(kept["round"] > t - 2 for kept in f.state["pool"].values())  # what the server stores is bounded
        assert torch.equal(f.state["changed"]["sigma"] == t + 1, f.state["sigma"] != before["sigma"])


def test_fedmatch_client_that_lost_its_copy_gets_all_of_it_next(digits):
    m = methods.FedMatch(lr=0.02)
    f = Federation(digits, m, labelled=(6, 4, 7), unlabelled=(8, 9, 5))
    f.round()
    del f.simulation.manifests[1]
    assert 1 not in f.round()["known"] and f.state["known"][0] == 1
    assert f.round()["known"][1] == 2 and torch.isfinite(f.state["sigma"]).all()


@pytest.mark.parametrize("at_server", [0, 20])
def test_fedmatch_says_that_training_diverged(digits, at_server):
    """NaN is not above the least change that is sent, so a run with lr=1000 ended well, at chance."""
    m = methods.FedMatch(helpers=1, lr=1000.0)
    f = Federation(digits, m, labelled=(20, 20), unlabelled=(60, 60), model="mlp", at_server=at_server)
    with pytest.raises(Mistake, match="no reply to step train .* not finite: training diverged, try a smaller lr"):
        for _ in range(4):
            f.round()


def test_a_change_that_is_no_number_is_sent():
    sent = vectors.differences(torch.tensor([0.0, math.nan, -math.inf, 2.0]), 1.0)["values"]
    assert sent[0].isnan() and sent[1:].tolist() == [-math.inf, 2.0]


def test_fedmatch_nearest_by_hand(digits):
    m = methods.FedMatch(interval=3)
    state = dict(
        round=4, helped={0: 1}, pool={i: {} for i in (0, 1, 2, 3)},
        vectors={i: torch.tensor(v) for i, v in enumerate([[0.0, 1.0], [0.5, 0.5], [0.1, 0.9], [0.2, 0.8], [1.0, 0.0]])},
    )  # fmt: skip
    assert m.nearest(state, 1) == [3, 2] and m.nearest(state, 4) == [1, 3]
    assert m.nearest(state, 0) == []  # has those of this block
    assert m.nearest(state, 5) == []  # nobody knows what it is like
    code = replace(m, preset="code")
    assert code.nearest(state, 1) == [] and code.nearest(dict(state, round=5), 0) == [2, 3]
    with pytest.raises(Mistake, match="helpers=2, and a client has 1 others"):
        Federation(digits, m)


def test_noise_is_a_truncated_normal_of_pixels():
    rows = Rows(torch.zeros(1, 1, 100, 100, dtype=torch.uint8), torch.tensor([0]), torch.tensor([0]))
    x = fedmatch.noise(rows, stream(0)).double()
    assert x.shape == (1, 1, 100, 100) and 0 <= x.min() < 1 and 254 < x.max() <= 255
    a, b = -1.0, 130 / 125
    density = [math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b)]
    mass = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    assert x.mean().item() == pytest.approx(125 + 125 * (density[0] - density[1]) / mass, abs=3)


# ---------------------------------------------------------------- FedSiam


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_fedsiam_round_is_a_mean_teacher_at_every_client(digits, preset):
    m = methods.FedSiam(ema=0.6, ramp=3, lr=0.1, epochs=2, batch=3, ratio=2, preset=preset)
    f, code = Federation(digits, m), preset == "code"
    n0, n1 = (1, 1) if code else (14, 13)
    student = teacher = double(f.state["student"])
    for t in range(2):
        each = []
        for i in (0, 1):
            w, mean, draw, optimiser = student, teacher, stream(i, "train", t), Momentum(0.1, 0.9, 1e-4, nesterov=False)
            L, U = len(f.data[i].labelled), len(f.data[i].unlabelled)
            own, others = Views(f.data[i].labelled), Views(f.data[i].unlabelled)
            batches = pseudo.streams(L, U, 3, 2, draw)
            for e in range(2):
                done = 2 * (t + code) + e + 1
                # By participations; the code by epochs, of which it takes two for done when it begins.
                rise = math.exp(-5 * (1 - min(done if code else t + 1, 3) / 3) ** 2)
                decay = min(1 - 1 / (done + 1), 0.6)
                for a, b in islice(batches, 2):
                    q = proba(mean, torch.cat([own.weak(a, draw), others.weak(b, draw)]))
                    x = torch.cat([own.weak(a, draw), others.weak(b, draw)])
                    n = len(x)
                    each_row = torch.full((len(a),), 1 / (n if code else len(a))).double()
                    g = gradient(w, x[: len(a)], hot(f.data[i].labelled.y[a]), each_row)
                    w = optimiser.step(w, plus(g, gradient(w, x, q, torch.full((n,), rise / n).double())))
                    mean = {name: decay * mean[name] + (1 - decay) * w[name] for name in w}
            each.append((w, mean))
        student, teacher = (
            {name: (n0 * each[0][k][name] + n1 * each[1][k][name]) / (n0 + n1) for name in student} for k in (0, 1)
        )
        state = f.round()
        close(state["student"], student)
        close(state["teacher"], teacher)
        assert f.memory(0)["times"] == t + 1
    assert m.shared(state)["weights"] is state["student"]
    assert replace(m, predict_with="teacher").shared(state)["weights"] is state["teacher"]


def test_divergence_of_layers_by_hand():
    student = {"a.weight": torch.tensor([3.0, 4.0]), "a.bias": torch.tensor([0.0]), "b.weight": torch.tensor([1.0]),
               "b.count": torch.tensor(7)}  # fmt: skip
    teacher = {"a.weight": torch.tensor([3.0, 0.0]), "a.bias": torch.tensor([3.0]), "b.weight": torch.tensor([1.5]),
               "b.count": torch.tensor(7)}  # fmt: skip
    assert fedsiam.divergences(student, teacher) == {"a": 1.0, "b": 0.5}
    apart = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=torch.float64)
    assert [methods.FedSiam(students=s).threshold(apart) for s in (0.25, 0.5, 1.0, 0.0)] == [0.4, 0.3, 0.1, math.inf]
    assert methods.FedSiam().threshold(apart[:0]) == 0.0


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_fedsiam_d_sends_each_layer_of_student_or_teacher(digits, preset):
    m = methods.FedSiam(upload="layers", settle=1, epochs=1, preset=preset)
    f = Federation(digits, m, model="mlp")
    f.round()
    assert not len(f.state["apart"])  # the teacher followed the student
    f.round()
    assert len(f.state["apart"]) == 2 * 3
    start = f.state
    told = dict(student=start["student"], teacher=start["teacher"] if preset == "code" else {}, follow=False, round=2)
    saved = dict(f.simulation.manifests)
    both = replace(m, upload="both")
    f.simulation.method = both
    server = Server(both, f.data, f.simulation, f.source, f.server.classes)
    full = server.ask(both.train, threshold=0.0, **dict(told, teacher=told["teacher"] or start["student"]))
    f.simulation.method, f.simulation.manifests = m, saved
    limit = sorted(fedsiam.divergences(full[0]["student"], full[0]["teacher"]).values())[1]
    sent = f.server.ask(m.train, threshold=limit, **told)
    for i in (0, 1):
        far = fedsiam.divergences(full[i]["student"], full[i]["teacher"])
        for key, value in sent[i]["student"].items():
            whose = "student" if far[fedsiam.layer(key)] >= limit else "teacher"
            assert torch.equal(value, full[i][whose][key])
        assert sent[i]["apart"].tolist() == list(far.values())
        assert ("teacher" in sent[i]) == (preset == "code")
    assert 0 < sum(d >= limit for d in fedsiam.divergences(full[0]["student"], full[0]["teacher"]).values()) < 3


# ---------------------------------------------------------------- FedRGD


@pytest.mark.parametrize("at_server", [0, 20])
def test_fedrgd_averages_in_groups(digits, at_server):
    m = methods.FedRGD(groups=2, period=3, batch=5, threshold=0.11, lr=0.1)
    f = Federation(digits, m, labelled=(6, 4, 7), unlabelled=(8, 9, 5), at_server=at_server)
    groups, w = {g: double(f.state["weights"]) for g in (0, 1)}, double(f.state["weights"])
    for t in range(2):
        of = m.divide(f.server, t)
        assert sorted(of) == [0, 1, 2] and sorted(list(of.values()).count(g) for g in (0, 1)) == [1, 2]
        lr = 0.1 * math.cos(7 * math.pi * t / 64)
        members = {g: [slow_fixmatch(groups[g], f.data[i], i, t, m, lr, steps=3) for i in of if of[i] == g] for g in (0, 1)}
        if at_server:
            draw, optimiser, rows, own = core.rng(0, "server", "train", t), Momentum(lr, 0.9, 1e-4), f.server.data, w
            for a, _ in islice(pseudo.streams(20, 0, 5, 1, draw), 3):
                x = Views(rows).weak(a, draw)
                own = optimiser.step(own, gradient(own, x, hot(rows.y[a]), torch.full((5,), 0.2).double()))
            members = {g: [*each, own] for g, each in members.items()}
        groups = {g: {name: sum(c[name] for c in each) / len(each) for name in w} for g, each in members.items()}
        w = {name: (groups[0][name] + groups[1][name]) / 2 for name in w}
        state = f.round()
        close(state["weights"], w)
        for g in (0, 1):
            close(state["groups"][g], groups[g])


def test_fedrgd_normalises_by_groups(digits):
    for norm in ("bn", "sbn", "gn"):
        f = Federation(digits, methods.FedRGD(), model="cnn", norm=norm)
        kinds = [type(layer).__name__ for layer in f.server.model().modules()]
        assert kinds.count("GroupNorm") == 2 and not any("BatchNorm" in kind for kind in kinds)
    kept = fedrgd.FedRGD(group_norm=False).network(build("cnn", (1, 8, 8), 10, "bn"))
    assert any("BatchNorm" in type(layer).__name__ for layer in kept.modules())
    with pytest.raises(Mistake, match="groups=3 are more than the 2 clients"):
        Federation(digits, methods.FedRGD(groups=3))


# ---------------------------------------------------------------- ProtoFSSL


def helper(seed, present):
    means = torch.randn(10, 64, generator=core.rng(seed, "helper"))
    there = torch.tensor([k in present for k in range(10)])
    return dict(means=means * there[:, None], present=there)


def slow_episode(m, f, S, yS, Q, yQ, U, helpers, through=False):
    """Equations 2 and 5 to 8, one number at a time, in float64; `through`: with the gradient of the pseudo-labels."""
    every = range(10)
    common = {}
    for k in every:
        have = [h["means"][k].double() for h in helpers if h["present"][k]]
        if have:
            common[k] = sum(have) / len(have)
    own = {k: sum(f[i] for i in S[yS == k]) / int((yS == k).sum()) for k in every if (yS == k).any()}
    own = {**common, **own}

    def probabilities(v, centres):
        d = {k: ((v - c) ** 2).sum() for k, c in centres.items()}
        d = {k: value / len(v) if m.preset == "code" else value for k, value in d.items()}
        total = torch.logsumexp(-torch.stack(list(d.values())), 0)
        return {k: torch.exp(-value - total) for k, value in d.items()}

    labelled = [-probabilities(f[i], own)[int(y)].log() for i, y in zip(Q, yQ)]
    loss = sum(labelled) / len(labelled)
    guesses = []
    for i in U:
        p = dict.fromkeys(common, 0.0)
        seen = f[i] if through else f[i].detach()
        for h in helpers:
            centres = {k: h["means"][k].double() if h["present"][k] else common[k] for k in common}
            for k, value in probabilities(seen, centres).items():
                p[k] = p[k] + value / len(helpers)
        sharp = {k: value ** (1 / m.temperature) for k, value in p.items()}
        sharp = {k: value / sum(sharp.values()) for k, value in sharp.items()}
        guesses.append(max(sharp, key=lambda k: sharp[k]))
        mine = probabilities(f[i], own)
        loss = loss - m.weight / len(U) * sum(sharp[k] * mine[k].clamp(min=1e-300).log() for k in sharp)
    return loss, guesses


@pytest.mark.parametrize("preset", ["paper", "code"])
@pytest.mark.parametrize("alternative", [False, True])
def test_protofssl_episode_against_the_equations(digits, preset, alternative):
    m = methods.ProtoFSSL(helpers=2, unlabelled=5, temperature=0.7, preset=preset, alternative=alternative)
    f = Federation(digits, m, labelled=(20, 4), unlabelled=(8, 9), model="mlp")
    data = f.data[0]
    helpers = [helper(1, {0, 1, 2, 3, 4, 5, 6, 7, 9}), helper(2, set(range(1, 10)))]
    theirs = protofssl.stack(dict(enumerate(helpers)), "cpu")
    client, model = f.client(0), f.server.model()
    small = 0.05 if preset == "paper" else 1.0  # distances that leave more than one class likely

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return x.flatten(1) * small

    model.features = Scaled()
    model.weight = torch.nn.Parameter(torch.zeros(()))
    hooked = model.features.forward
    model.features.forward = lambda x: hooked(x) + model.weight  # so that there is a gradient to take
    loss, at, labels = m.episode(client, model, theirs, stream(0, "episode"))
    draw = stream(0, "episode")
    S, Q = protofssl.support_and_query(data.labelled.y, 10, 0 if alternative else 1, 2, draw)
    U = torch.randperm(8, generator=draw)[:5]
    assert torch.equal(at, U)
    rows = torch.cat([data.labelled.inputs(), data.unlabelled.inputs()]).flatten(1).double() * small
    expected, guesses = slow_episode(m, rows, S, data.labelled.y[S], Q, data.labelled.y[Q], 20 + U, helpers)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert labels.tolist() == guesses


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_protofssl_gradient_goes_through_pseudo_labels_with_preset_code_alone(digits, preset):
    m = methods.ProtoFSSL(helpers=2, unlabelled=5, temperature=0.7, weight=1.0, preset=preset)
    f = Federation(digits, m, labelled=(20, 4), unlabelled=(8, 9), model="mlp")
    data, helpers = f.data[0], [helper(1, set(range(10))), helper(2, set(range(1, 10)))]
    small, shrink = (0.2, 0.3) if preset == "paper" else (1.0, 1.0)  # distances that leave more than one class likely
    helpers = [dict(h, means=h["means"] * shrink) for h in helpers]

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.s = torch.nn.Parameter(torch.tensor(small))

        def forward(self, x):
            return x.flatten(1) * self.s

    model = f.server.model()
    model.features = Scaled()
    loss, *_ = m.episode(f.client(0), model, protofssl.stack(dict(enumerate(helpers)), "cpu"), stream(0, "episode"))
    loss.backward()
    draw = stream(0, "episode")
    S, Q = protofssl.support_and_query(data.labelled.y, 10, 1, 2, draw)
    U = 20 + torch.randperm(8, generator=draw)[:5]
    rows = torch.cat([data.labelled.inputs(), data.unlabelled.inputs()]).flatten(1).double()
    slopes = {}
    for how in ("paper", "code"):  # the same distances and the other one's gradient
        s = torch.tensor(small, dtype=torch.float64, requires_grad=True)
        y = data.labelled.y
        expected, _ = slow_episode(m, rows * s, S, y[S], Q, y[Q], U, helpers, through=how == "code")
        expected.backward()
        slopes[how] = s.grad.item()
    assert model.features.s.grad.item() == pytest.approx(slopes[preset], rel=1e-3)
    assert abs(slopes["paper"] - slopes["code"]) > 0.01 * abs(slopes[preset])


def test_protofssl_mu_is_the_pull_of_fedprox(digits):
    m = methods.ProtoFSSL(helpers=2, steps_per_round=3, mu=5.0, weight_decay=0.01, lr=1e-3)
    f = Federation(digits, m, labelled=(20, 20), unlabelled=(8, 9), model="mlp")
    start, found = f.state["weights"], f.server.ask(m.train, weights=f.state["weights"], helpers={}, round=0)[0]["weights"]

    def slow(mu):
        model, draw = f.server.model(start).train(), stream(0, "train", 0)
        v = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
        for _ in range(3):
            loss, *_ = m.episode(f.client(0), model, None, draw)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for (name, w), g in zip(model.named_parameters(), grads):
                    g = g + mu * (w - start[name]) + 0.01 * w
                    v[name] = 0.9 * v[name] + 0.1 * g * g
                    w -= 1e-3 * g / (v[name].sqrt() + 1e-7)
        return torch.cat([(found[name] - w).abs().flatten() for name, w in model.state().items()])

    # A gradient near 0 is divided by its own size, so a few entries hang on rounding.
    assert (slow(5.0) > 1e-5).float().mean() < 0.01 and (slow(0.0) > 1e-5).float().mean() > 0.5


def test_protofssl_renews_helpers_at_its_interval(digits):
    m = methods.ProtoFSSL(helpers=2, steps_per_round=1, interval=3)
    f = Federation(digits, m, labelled=(20, 9, 12), unlabelled=(8, 9, 5), model="mlp")
    states = [f.state, *(f.round() for _ in range(5))]
    same = lambda a, b: wire.encode(a) == wire.encode(b)  # noqa: E731
    sets = [{i: state["sets"][i] for i in used["helpers"]} for state, used in zip(states, states[1:])]
    used = [state["helpers"] for state in states[1:]]
    assert [len(helpers) for helpers in used] == [0, 2, 2, 2, 2]  # before the first round nobody has a prototype
    assert same(used[1], sets[1]) and same(used[2], used[1]) and not same(used[2], sets[2])
    assert same(used[3], sets[3]) and same(used[4], used[3]) and not same(used[4], sets[4])


@pytest.mark.parametrize("own_helper", [True, False])
def test_protofssl_may_leave_out_a_clients_own_prototypes(digits, own_helper):
    sent = []
    tap = lambda direction, step, id, data: sent.append((direction, step, id, wire.decode(data)))  # noqa: E731
    m = methods.ProtoFSSL(helpers=3, steps_per_round=1, own_helper=own_helper)
    f = Federation(digits, m, labelled=(20, 9, 12), unlabelled=(8, 9, 5), model="mlp", tap=tap)
    f.round()
    sent.clear()
    f.round()
    told = {id: set(payload["helpers"]) for direction, step, id, payload in sent if (direction, step) == ("down", "train")}
    assert told == {i: {0, 1, 2} if own_helper else {0, 1, 2} - {i} for i in range(3)}


def test_support_comes_first_and_a_single_label_has_no_query():
    y = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    S, Q = protofssl.support_and_query(y, 4, 1, 2, stream(0))
    assert y[S].tolist() == [0, 1, 2] and y[Q].tolist() == [0, 0, 2] and not set(S.tolist()) & set(Q.tolist())


def test_of_two_labels_or_more_one_is_left_for_the_query():
    """support=2 with two labels a class took both, and nothing was learned from labels."""
    y = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    S, Q = protofssl.support_and_query(y, 4, 3, 2, stream(0))
    assert y[S].tolist() == [0, 0, 0, 1, 2] and y[Q].tolist() == [0, 2] and not set(S.tolist()) & set(Q.tolist())
    S, Q = protofssl.support_and_query(y, 4, 0, 2, stream(0))  # of Algorithm 2: every label is a query
    assert not len(S) and y[Q].tolist() == [0, 0, 1, 2, 2]


def few_labels(digits, **settings):
    """Two clients with two labels of each of four classes."""
    split = digits.split(clients=2, labels="clients:60", seed=1)
    parts = []
    for p in split.parts:
        kept = torch.cat([torch.nonzero(p.labels == k).flatten()[:2] for k in range(4)])
        parts.append(replace(p, labelled=p.labelled[kept], labels=p.labels[kept]))
    method = methods.ProtoFSSL(helpers=1, steps_per_round=2, unlabelled=10, **settings)
    return Experiment(method, replace(split, parts=tuple(parts)), model="mlp", rounds=2, per_round=2)


def test_protofssl_learns_from_labels_with_a_support_of_all_of_them(digits, caplog):
    many = few_labels(digits, support=2, weight=0.0).run()
    assert [record.message for record in caplog.records] == [
        "protofssl: support=2, and no client has more than 2 labels of a class: one of them is kept for the query, as with --set "
        "support=1."
    ]
    assert wire.encode(many.shared) == wire.encode(few_labels(digits, support=1, weight=0.0).run().shared)
    start = few_labels(digits).run().history[0]["accuracy"]
    assert many.history[-1]["accuracy"] > start + 0.05


def test_protofssl_refuses_to_keep_every_prototype_back(digits):
    """It then answered class 0 for every row."""
    with pytest.raises(Mistake, match="least=50 keeps every prototype back, since no client has more than 2 .*--set least=2"):
        few_labels(digits, least=50).run()
    few_labels(digits, least=2).run()


def test_protofssl_without_prototypes_finds_all_classes_alike(digits):
    f = Federation(digits, methods.ProtoFSSL(helpers=2), labelled=(20, 4), model="mlp")
    predict = f.method.predictor(f.source.new(None, core.Meter()), f.method.shared(f.state))
    torch.testing.assert_close(predict(f.data[0].unlabelled.inputs()), torch.full((8, 10), 0.1))


def test_protofssl_round(digits):
    m = methods.ProtoFSSL(helpers=2, steps_per_round=2, least=2, lr=1e-3)
    f = Federation(digits, m, labelled=(20, 0, 9), unlabelled=(8, 9, 5), model="mlp")
    assert "head.weight" not in f.state["weights"]
    replies = f.server.ask(m.train, weights=f.state["weights"], helpers={}, round=0)
    assert [replies[i]["n"] for i in range(3)] == [28, 0, 14]  # without labels and helpers there is nothing to learn from
    state = f.round()
    mean = {k: (28 * replies[0]["weights"][k].double() + 14 * replies[2]["weights"][k].double()) / 42 for k in state["weights"]}
    close(state["weights"], mean)
    assert sorted(state["sets"]) == [0, 2] and not state["helpers"]
    y = f.data[2].labelled.y
    features = f.server.model(replies[2]["weights"]).eval().features(f.data[2].labelled.inputs())
    for k in range(10):
        assert state["sets"][2]["present"][k] == ((y == k).sum() >= 2)  # a prototype of one row is not shared
        if (y == k).sum() >= 2:
            torch.testing.assert_close(state["sets"][2]["means"][k], features[y == k].mean(0))
        else:
            assert not state["sets"][2]["means"][k].any()
    state = f.round()
    assert sorted(state["helpers"]) == [0, 2]  # of M_{r−1}
    x = f.data[0].unlabelled.inputs()
    predict = m.predictor(f.source.new(None, core.Meter()), m.shared(state))
    model = f.server.model(state["weights"]).eval()
    means, known = protofssl.fill(protofssl.stack(state["sets"], "cpu"))
    expected = torch.zeros(len(x), 10)
    for centres in means:
        d = (model.features(x)[:, None] - centres).square().sum(-1).masked_fill(~known[0], math.inf)
        expected += torch.softmax(-d, 1) / len(means)
    torch.testing.assert_close(predict(x), expected, rtol=1e-3, atol=1e-4)


def test_protofssl_noise_has_its_deviation_and_is_new_each_time(digits):
    f = Federation(digits, methods.ProtoFSSL(helpers=2, noise=5.0), labelled=(40, 20), model="mlp")
    quiet = replace(f.method, noise=0.0)
    client, model = f.client(0), f.server.model()
    exact = quiet.share(client, model)
    shares = [f.method.share(client, model) for _ in range(2)]
    added = [(s["means"] - exact["means"])[exact["present"]] for s in shares]
    assert not torch.equal(added[0], added[1])
    for noise in added:
        assert noise.std().item() == pytest.approx(5.0, rel=0.15) and abs(noise.mean().item()) < 0.7
    assert not shares[0]["means"][~exact["present"]].any()


def test_protofssl_refuses_where_no_client_has_two_labels_of_a_class(digits):
    with pytest.raises(Mistake, match="two labels of one class"):
        Federation(digits, methods.ProtoFSSL(helpers=2), labelled=(1, 0), model="mlp")
    with pytest.raises(Mistake, match="none to learn"):
        Federation(digits, methods.ProtoFSSL(helpers=2), model="linear")


# ---------------------------------------------------------------- network, per-client LP, FedSem+


def test_network_labels_are_the_models_own(digits):
    f = Federation(digits, methods.NetworkLabels(warmup=0.0, augment=False, epochs=1))
    w, x = f.state["weights"], f.data[0].unlabelled.inputs()
    labels, confidence = f.method.pseudo_labels(f.client(0), w)
    p = proba(double(w), x)
    assert labels.tolist() == p.argmax(1).tolist()
    expected = [1 - sum(-v * math.log(v) for v in row) / math.log(10) for row in p.tolist()]
    assert confidence.tolist() == pytest.approx(expected, abs=1e-5)


def dense(V, y, k, alpha, preset="paper", similarity=None):
    """Propagation by the inverse of a dense matrix. Rows without neighbours' similarity above 0 have no edges."""
    n = len(V)
    A = (
        similarity
        if similarity is not None
        else (V / np.linalg.norm(V, axis=1, keepdims=True)) @ (V / np.linalg.norm(V, axis=1, keepdims=True)).T
    )
    B = np.zeros((n, n))
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: (-A[i, j], j))[:k]
        B[i, near] = np.maximum(A[i, near] ** (3 if preset == "code" else 1), 0)
    B = B + B.T
    d = B.sum(1)
    S = B / np.sqrt(np.outer(np.where(d > 0, d, 1), np.where(d > 0, d, 1)))
    Y = np.zeros((n, 10))
    for i in np.flatnonzero(y >= 0):
        Y[i, y[i]] = 1 / (np.sum(y == y[i]) if preset == "code" else 1)
    Z = np.maximum(np.linalg.inv(np.eye(n) - alpha * S) @ Y, 0)
    P = Z / Z.sum(1, keepdims=True)
    H = -(P * np.log(np.where(P > 0, P, 1))).sum(1) / math.log(10)
    return P.argmax(1), 1 - H


def test_per_client_propagation_is_the_dense_version(digits):
    f = Federation(digits, methods.PerClientLP(neighbours=4, alpha=0.9), labelled=(8, 0), unlabelled=(14, 9))
    data = f.data[0]
    labels, confidence = f.method.pseudo_labels(f.client(0), f.state["weights"])
    V = torch.cat([data.labelled.inputs(), data.unlabelled.inputs()]).flatten(1).double().numpy()
    expected, sure = dense(V, np.concatenate([data.labelled.y.numpy(), np.full(14, -1)]), 4, 0.9)
    assert labels.tolist() == expected[8:].tolist()
    np.testing.assert_allclose(confidence, sure[8:], atol=1e-6)
    labels, confidence = f.method.pseudo_labels(f.client(1), f.state["weights"])  # nothing to spread
    assert set(labels.tolist()) == {-1} and not confidence.any()
    f.round()
    assert f.state["round"] == 1


def test_fedsem_labels_once(digits):
    m = methods.FedSem(warmup=0.5, epochs=1, augment=False)
    f = Federation(digits, m, rounds=4)
    for _ in range(2):
        f.round()
    stage_1 = f.state["weights"]
    for _ in range(2):
        f.round()
        for i in (0, 1):
            kept = f.memory(i)["labels"]
            assert kept["labels"].tolist() == proba(double(stage_1), f.data[i].unlabelled.inputs()).argmax(1).tolist()
    steps = [line["step"] for line in f.server.account.drain()]
    assert steps.count("label_once") == 2  # down and up, once


def test_stage_1_is_for_labelled_clients_and_averages_are_uniform(digits):
    m = methods.NetworkLabels(warmup=0.5, epochs=2, batch=50, augment=False, weight_decay=0.0, lr=0.2)
    f = Federation(digits, m, labelled=(6, 4, 0), unlabelled=(8, 9, 5), rounds=4)
    w, each = double(f.state["weights"]), []
    for i in (0, 1):
        mine, rows = w, f.data[i].labelled
        for _ in range(2):
            g = gradient(mine, rows.inputs(), hot(rows.y), torch.full((len(rows),), 1 / len(rows)).double())
            mine = Momentum(0.2, 0.0, 0.0).step(mine, g)
        each.append(mine)
    close(f.round()["weights"], {name: (each[0][name] + each[1][name]) / 2 for name in w})


STAGED = ["xclp", "network", "perclient-lp", "fedsem"]


@pytest.mark.parametrize("name", STAGED)
def test_the_last_model_of_stage_1_is_always_evaluated(digits, name):
    """Six rounds, of which every second was evaluated: stage 1 ends after the third, whose model could not be the best."""
    method = methods.find(name)(epochs=1, **(dict(bits=64, hamming=Plain()) if name == "xclp" else {}))
    split = digits.split(clients=3, labels="clients:60", seed=1)
    history = Experiment(method, split, model="linear", rounds=6, per_round=3, evaluate_every=2).run().history
    assert [line["round"] for line in history] == [0, 2, 3, 4, 6]


def test_without_a_stage_1_no_round_is_added():
    assert methods.XCLP(init="random").candidates(6) == (0,) and methods.FedAvg().candidates(6) == ()


# ---------------------------------------------------------------- FedAvg+XCLP


@pytest.mark.parametrize("base", [methods.FedAvg, methods.FedProx, methods.Scaffold], ids=lambda m: m.name)
def test_xclp_stage_1_is_its_base_bit_for_bit(digits, base, monkeypatch):
    monkeypatch.setattr(pseudo, "cosine", lambda lr, t, T: lr)  # the bases have no schedule
    how = dict(lr=0.2, epochs=2, batch=4) | (dict(mu=0.5) if base is methods.FedProx else {})
    m = methods.XCLP(base=base.name, warmup=0.75, augment=False, weight_decay=0.0, bits=64, hamming=Plain(), **how)
    rows = dict(labelled=(6, 6, 6), unlabelled=(8, 9, 5), model="mlp")  # as many labels each: XCLP averages uniformly
    ours, theirs = Federation(digits, m, **rows), Federation(digits, base(**how), **rows)
    for _ in range(3):
        a, b = ours.round(), theirs.round()
        assert wire.encode(a["weights"]) == wire.encode(b["weights"])
        if base is methods.Scaffold:
            assert wire.encode(a["c"]) == wire.encode(b["c"]) and any(w.any() for w in a["c"].values())


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_xclp_labels_and_class_weights_are_those_of_the_dense_version(digits, preset):
    bits, sent = 512, []
    m = methods.XCLP(bits=bits, neighbours=4, alpha=0.9, warmup=0.0, epochs=1, preset=preset, hamming=Plain())
    tap = lambda direction, step, id, data: sent.append((direction, step, id, wire.decode(data)))  # noqa: E731
    f = Federation(digits, m, labelled=(6, 0, 5), unlabelled=(8, 9, 5), tap=tap)
    weights, C = f.state["weights"], 10
    V = np.concatenate([m.features(f.client(i), weights, 0) for i in range(3)])
    info = context("hyperplanes", session="seed 0")
    planes = graph.hyperplanes(hkdf((0).to_bytes(16, "big", signed=True), info), bits, 64, info, tight_frame=preset == "code")
    b = V @ planes.astype(np.float64).T >= 0
    A = np.cos(np.pi * (b[:, None] != b[None]).sum(2) / bits)
    y = np.concatenate([np.concatenate([d.labelled.y.numpy(), np.full(len(d.unlabelled), -1)]) for d in f.data.values()])
    labels, confidence = dense(V, y, 4, 0.9, preset, A)
    f.round()
    at, count = 0, np.zeros(C)
    for i, d in f.data.items():
        rows = slice(at + len(d.labelled), at + len(d.labelled) + len(d.unlabelled))
        at = rows.stop
        sure = confidence[rows] / (confidence[rows].max() if preset == "code" else 1)
        found = f.memory(i)["pseudo"]
        assert found["labels"].tolist() == labels[rows].tolist()
        np.testing.assert_allclose(found["confidence"], sure, atol=1e-4)
        count += np.bincount(labels[rows], minlength=C) + np.bincount(d.labelled.y.numpy(), minlength=C)
    told = [payload for direction, step, _, payload in sent if (direction, step) == ("down", "train")]
    assert len(told) == 3
    for payload in told:
        if preset == "paper":
            assert not len(payload["class_weight"])
        else:
            np.testing.assert_allclose(payload["class_weight"], count.sum() / C / np.maximum(count, 1), rtol=1e-6)


def test_xclp_averages_uniformly_what_two_streams_learn(digits):
    m = methods.XCLP(
        bits=256, neighbours=4, alpha=0.9, warmup=0.0, epochs=2, hamming=Plain(), augment=False, lr=0.2, weight_decay=0.0
    )
    f = Federation(digits, m, labelled=(6, 0, 5), unlabelled=(8, 9, 5))
    start = f.state["weights"]
    after = f.round()["weights"]
    each = []
    for i, d in f.data.items():
        model, found = f.server.model(start), f.memory(i)["pseudo"]
        pseudo.two_streams(
            model, d.labelled, d.unlabelled, found["labels"], found["confidence"], 0.2, 2, stream(i, "train", 0), augment=False
        )
        each.append(double(model.state()))
    close(after, {name: sum(w[name] for w in each) / 3 for name in after})


@pytest.mark.parametrize("lost", [[Fault(1, "embed", round=1)], [Fault(1, "keys", forever=True), Fault(2, "keys", forever=True)]])
def test_xclp_goes_on_after_a_round_with_too_few_clients(digits, lost):
    split = digits.split(clients=4, labels="clients:80", seed=1)
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain())
    history = Experiment(m, split, model="linear", rounds=4, per_round=2, seed=0, faults=lost).run().history
    assert history[-1]["round"] == 4 and history[-1]["accuracy"] > history[0]["accuracy"] + 0.1


def test_a_round_of_xclp_with_one_client_changes_nothing(digits, caplog):
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain())
    f = Federation(digits, m)
    f.simulation._faults = (Fault(1, "embed", round=f.server.now),)
    before = f.state
    assert f.round() == dict(before, round=1) and "round 1 changes nothing, since only 000000" in caplog.text


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_one_client_trains_on_a_graph_of_three(digits, preset):
    m = methods.XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, hamming=Plain(), graph_clients=3, preset=preset)
    split = digits.split(clients=4, labels="clients:80", seed=1)
    history = Experiment(m, split, model="linear", rounds=4, per_round=1, seed=0).run().history
    assert history[-1]["accuracy"] > history[0]["accuracy"] + 0.1


# ---------------------------------------------------------------- InitializeModelParameters


def test_nt_xent_against_loops():
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    z = [row / row.norm() for row in torch.cat([a, b])]
    total = 0.0
    for i in range(8):
        others = sum(math.exp(z[i] @ z[k] / 0.3) for k in range(8) if k != i)
        total -= math.log(math.exp(z[i] @ z[(i + 4) % 8] / 0.3) / others)
    assert semi.nt_xent(a, b, 0.3).item() == pytest.approx(total / 8)
    # By hand: views that agree, at right angles to the other row: −log(e^(1/τ) / (e^(1/τ) + 2)).
    eye = torch.eye(2)
    assert semi.nt_xent(eye, eye, 1.0).item() == pytest.approx(math.log(1 + 2 / math.e))
    assert semi.nt_xent(eye[:1], eye[:1], 1.0).item() == 0  # nothing to tell it from
    assert semi.nt_xent(eye[:0], eye[:0], 1.0).item() == 0
    with pytest.raises(Mistake, match="temperature=0"):
        semi.nt_xent(eye, eye, 0.0)


XCLP_SMALL = dict(bits=128, neighbours=4, alpha=0.9, epochs=1, hamming=Plain())


def test_contrastive_first_stage_averages_features_and_leaves_head_and_labels_alone(digits):
    m = methods.XCLP(init="contrastive", warmup=0.5, lr=0.05, batch=2, **XCLP_SMALL)
    f = Federation(digits, m, labelled=(6, 4), unlabelled=(8, 9), model="mlp")
    start, projector = f.state["weights"], f.state["projector"]
    state = f.round()
    lr, each, heads = pseudo.cosine(0.05, 0, 2), [], []
    for i, d in f.data.items():
        model, head = f.server.model(start), pseudo.projector(64, torch.Generator())
        head.load_state_dict(projector)
        pseudo.contrast(model, head, d.unlabelled, lr, 1, stream(i, "contrast", 0), 4, 0.5, m.weight_decay)
        each.append(double(model.state()))
        heads.append(double(head.state_dict()))
    for name, value in state["weights"].items():
        if name.startswith("head."):
            assert torch.equal(value, start[name])
        else:
            assert not torch.equal(value, start[name])
            torch.testing.assert_close(value.double(), (each[0][name] + each[1][name]) / 2)
    close(state["projector"], {name: (heads[0][name] + heads[1][name]) / 2 for name in heads[0]})
    f.round()
    f.server.account.drain()
    f.round()
    steps = {line["step"] for line in f.server.account.drain()}
    assert steps == {"embed", "spread.contribute", "train"}  # the first stage is over


def test_contrast_brings_views_together(digits):
    rows = digits.split(clients=2, labels="clients:60", seed=1).client(0).unlabelled.take(torch.arange(300))
    model = build("cnn", tuple(rows.inputs(slice(0, 1)).shape[1:]), 10)
    head = pseudo.projector(model.features_dim, torch.Generator())
    views = [Views(rows).strong(torch.arange(100), torch.Generator().manual_seed(i)) for i in (1, 2)]
    loss = lambda: semi.nt_xent(*(head(model.features(x)) for x in views), 0.5).item()  # noqa: E731
    before = loss()
    assert pseudo.contrast(model, head, rows, 0.05, 20, torch.Generator(), 100, 0.5) == 60
    assert loss() < before - 0.05
    few = rows.take(torch.arange(11))
    assert pseudo.contrast(model, head, few, 0.05, 3, torch.Generator(), 5, 0.5) == 6  # of 5 + 5 + 1 the last has no other


def test_random_init_is_no_first_stage(digits):
    split = digits.split(clients=3, labels="clients:60", seed=1)
    runs = [
        Experiment(methods.XCLP(**XCLP_SMALL, **how), split, model="mlp", rounds=2, per_round=3).run()
        for how in (dict(init="random"), dict(warmup=0.0))
    ]
    assert wire.encode(runs[0].shared) == wire.encode(runs[1].shared)


def test_pretrained_init_takes_the_weights_of_a_run(digits, tmp_path):
    split = digits.split(clients=3, labels="clients:60", seed=1)
    first = Experiment(methods.FedAvg(epochs=1), split, model="mlp", rounds=1, out=tmp_path / "a").run()
    m = methods.XCLP(init="pretrained", init_run=str(tmp_path / "a"), **XCLP_SMALL)
    source = Experiment(m, split, model="mlp").models()
    server = Server(m, range(3), None, source, digits.classes)
    assert all(torch.equal(w, first.shared["weights"][name]) for name, w in m.first_weights(server).items())
    own = source.new(None, core.Meter()).state()
    server = Server(m, range(3), None, source, tuple("abcdefghij"))  # other classes: their head says nothing here
    taken = m.first_weights(server)
    for name in own:
        assert torch.equal(taken[name], own[name] if name.startswith("head.") else first.shared["weights"][name])
    with pytest.raises(Mistake, match="fedavg with model mlp"):
        Experiment(m, split, model="cnn", rounds=1).run()
    with pytest.raises(Mistake, match="no model.safetensors"):
        Experiment(replace(m, init_run=str(tmp_path)), split, model="mlp", rounds=1).run()


@pytest.mark.parametrize("init", ["contrastive", "pretrained"])
def test_init_repeats_in_strict_mode_and_after_a_break(digits, tmp_path, monkeypatch, init):
    monkeypatch.setattr(experiment, "CHECKPOINT_SECONDS", -1.0)
    split = digits.split(clients=3, labels="clients:60", seed=1)
    how = dict(init=init)
    if init == "pretrained":
        Experiment(methods.FedAvg(epochs=1), split, model="mlp", rounds=1, out=tmp_path / "a").run()
        how["init_run"] = str(tmp_path / "a")
    m = methods.XCLP(**XCLP_SMALL, **how)
    settings = dict(model="mlp", rounds=3, per_round=3)
    whole = Experiment(m, split, **settings).run()
    assert wire.encode(Experiment(m, split, mode="strict", **settings).run().shared) == wire.encode(whole.shared)

    def stop(done, rounds, line):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Experiment(m, split, out=tmp_path / "cut", **settings).run(progress=stop)
    after = Experiment(m, split, out=tmp_path / "cut", **settings).run(resume=True)
    assert wire.encode(after.shared) == wire.encode(whole.shared) and after.history == whole.history


# ---------------------------------------------------------------- SCAFFOLD when replies are lost


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


# ---------------------------------------------------------------- bad input


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
        with pytest.raises(Mistake, match=rf"{name}: {field}={value:g} cannot work: take .*, as in --set {field}="):
            kind(**{field: value})


@pytest.mark.parametrize(("name", "fields", "says"), [
    ("xclp", dict(init="simclr"), "init=simclr is not known: take supervised, contrastive, pretrained or random"),
    ("xclp", dict(neighbours=0), "neighbours=0 cannot work"),
    ("perclient-lp", dict(alpha=1.0), "alpha=1 cannot work: take 0 or more and less than 1"),
    ("protofssl", dict(preset="mine"), "preset=mine is not known: take paper or code"),
    ("fedsiam", dict(upload="all"), "upload=all is not known: take both or layers"),
    ("mixmatch", dict(base="scaffold"), "base=scaffold is not known: take fedavg or fedprox"),
])  # fmt: skip
def test_words_and_numbers_that_a_method_does_not_know_are_refused(name, fields, says):
    with pytest.raises(Mistake, match=f"^{name}: {says}"):
        methods.find(name)(**fields)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (methods.XCLP(init="pretrained"), "a folder goes with init=pretrained"),
        (methods.XCLP(init_run="runs/a"), "a folder goes with init=pretrained"),
        (methods.XCLP(graph_clients=1), r"graph_clients=1 cannot work: take 0, or 2 \(--per-round\) to 2 \(all clients\)"),
        (methods.XCLP(graph_clients=50), "graph_clients=50 cannot work"),
        (methods.XCLP(hamming="plain"), "hamming='plain' is no protocol"),
        (methods.XCLP(warmup=1.0), "with warmup=1 all of --rounds 4 are in stage 1.*: take more rounds, or --set warmup=0"),
        (methods.XCLP(init="contrastive", warmup=0.9), "all of --rounds 4 are in stage 1"),
        (methods.ProtoFSSL(), "helpers=5 are more than --per-round 2"),
        (methods.FedMatch(), "helpers=2, and a client has 1 others"),
        (methods.FedRGD(groups=3), "groups=3 are more than the 2 clients"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_run(digits, method, says):
    with pytest.raises(Mistake, match=says):
        Federation(digits, method, model="mlp")


def test_more_helpers_than_fedmatch_can_have_and_a_run_without_xclp_are_refused(digits):
    split = digits.split(clients=6, labels="clients:60", seed=1)
    with pytest.raises(Mistake, match="helpers=3, and --per-round 2 in interval=1 rounds leaves 2 to choose from: take fewer"):
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


def test_a_class_with_one_label_is_said_once(digits, caplog):
    f = Federation(digits, methods.ProtoFSSL(helpers=2, query=4), labelled=(6, 14), model="mlp")
    counts = [torch.bincount(d.labelled.y, minlength=10) for d in f.data.values()]
    singles = sum(int((c == 1).sum()) for c in counts)
    assert singles and any((c >= 2).any() for c in counts)
    f.round()
    f.round()
    assert [record.message for record in caplog.records] == [
        f"protofssl: {singles} times a client has one label of a class: it gives a prototype, and nothing to classify."
    ]


def test_protofssl_static_normalisation_keeps_the_last_batch(digits):
    split = digits.split(clients=2, labels="clients:60", seed=1)
    net = Experiment(methods.ProtoFSSL(), split, model="cnn", norm="sbn").models().new(None, core.Meter())
    layers = [m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(layers) == 2 and not any(isinstance(m, StaticBatchNorm2d) for m in net.modules())
    x = split.client(0).unlabelled.inputs(slice(0, 20))
    for part in (x[:10], x[10:]):
        net.train()(part)
        seen = net.features[0](part)
        torch.testing.assert_close(layers[0].running_mean, seen.mean((0, 2, 3)))


# ---------------------------------------------------------------- a client's rows are not copied


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
