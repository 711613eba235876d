"""FedMatch against a slow version with σ and ψ as vectors."""

import math
from dataclasses import replace

import pytest
import torch
from federation import Federation, apart, flat, gradient, hot, proba, stream

from grapevine import core, methods
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn.labels import vote
from grapevine.learn.networks import build
from grapevine.methods import fedmatch


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
            y = vote(p[sure], answers)
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
    with pytest.raises(Mistake, match="helpers=2, but a client has 1 others"):
        Federation(digits, m)


def test_noise_is_a_truncated_normal_of_pixels():
    rows = Rows(torch.zeros(1, 1, 100, 100, dtype=torch.uint8), torch.tensor([0]), torch.tensor([0]))
    x = fedmatch.noise(rows, stream(0)).double()
    assert x.shape == (1, 1, 100, 100) and 0 <= x.min() < 1 and 254 < x.max() <= 255
    a, b = -1.0, 130 / 125
    density = [math.exp(-z * z / 2) / math.sqrt(2 * math.pi) for z in (a, b)]
    mass = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    assert x.mean().item() == pytest.approx(125 + 125 * (density[0] - density[1]) / mass, abs=3)
