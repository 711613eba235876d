"""ProtoFSSL against its equations, one number at a time."""

import math
from dataclasses import replace

import pytest
import torch
from federation import Federation, close, stream

from grapevine import core, methods
from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.learn import prototypes, training
from grapevine.learn.normalisation import StaticBatchNorm2d
from grapevine.methods import protofssl
from grapevine.run.experiment import Experiment


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
        d = {k: value / len(v) if m.preset != "paper" else value for k, value in d.items()}
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


@pytest.mark.parametrize("preset", ["default", "paper", "code"])
@pytest.mark.parametrize("alternative", [False, True])
def test_protofssl_episode_against_the_equations(digits, preset, alternative):
    m = methods.ProtoFSSL(helpers=2, unlabelled=5, temperature=0.7, preset=preset, alternative=alternative)
    f = Federation(digits, m, labelled=(20, 4), unlabelled=(8, 9), model="mlp")
    data = f.data[0]
    helpers = [helper(1, {0, 1, 2, 3, 4, 5, 6, 7, 9}), helper(2, set(range(1, 10)))]
    theirs = prototypes.stack(dict(enumerate(helpers)), "cpu")
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


@pytest.mark.parametrize("preset", ["default", "paper", "code"])
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
    loss, *_ = m.episode(f.client(0), model, prototypes.stack(dict(enumerate(helpers)), "cpu"), stream(0, "episode"))
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
    mine = "code" if preset == "code" else "paper"
    assert model.features.s.grad.item() == pytest.approx(slopes[mine], rel=1e-3)
    assert abs(slopes["paper"] - slopes["code"]) > 0.01 * abs(slopes[mine])


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


def test_one_step_of_preset_code_is_the_authors(digits):
    """Loss and gradient of all weights as fed/client.py of the released code writes them, in float64 and by hand: mean distances,
    uniform average of helpers, sharpening, cross-entropy against probabilities, nothing for L2; then TensorFlow's RMSprop."""
    m = methods.ProtoFSSL(helpers=2, unlabelled=6, steps_per_round=1, preset="code", weight_decay=0.5)
    f = Federation(digits, m, labelled=(40, 40), unlabelled=(8, 9), model="mlp")
    helpers = {j: helper(j, set(range(10))) for j in (0, 1)}
    told = dict(weights=f.state["weights"], round=0, helpers=helpers)
    found = f.server.ask(m.train, **told)[0]["weights"]
    data, draw = f.data[0], stream(0, "train", 0)
    S, Q = protofssl.support_and_query(data.labelled.y, 10, 1, 2, draw)
    U = torch.randperm(8, generator=draw)[:6]
    model = f.server.model(f.state["weights"]).double().train()
    x = torch.cat([data.labelled.inputs(torch.cat([S, Q])), data.unlabelled.inputs(U)]).double()
    z = model.features(x)
    proto = torch.stack([z[: len(S)][data.labelled.y[S] == k].mean(0) for k in range(10)])
    dists = lambda q, c: (q[:, None] - c[None]).square().mean(-1)  # noqa: E731
    z_q, z_u = z[len(S) : len(S) + len(Q)], z[len(S) + len(Q) :]
    loss = -torch.log_softmax(-dists(z_q, proto), 1)[torch.arange(len(Q)), data.labelled.y[Q]].mean()
    each = [torch.softmax(-dists(z_u, helpers[j]["means"].double()), 1) for j in (0, 1)]
    sharp = ((each[0] + each[1]) / 2) ** 2
    target = sharp / sharp.sum(1, keepdim=True)
    loss = loss - 0.3 * (target * torch.log_softmax(-dists(z_u, proto), 1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for (name, w), g in zip(model.named_parameters(), gradients):
        moved = w - 1e-3 * g / (0.1 * g * g).sqrt().add(1e-7)
        sure = g.abs() > 1e-6  # a gradient near 0 is divided by its own size
        torch.testing.assert_close(found[name].double()[sure], moved.detach()[sure], rtol=0, atol=2e-6)


def test_preset_code_averages_uniformly_and_the_others_by_size(digits):
    for preset in ("default", "paper", "code"):
        m = methods.ProtoFSSL(helpers=2, steps_per_round=1, preset=preset)
        f = Federation(digits, m, labelled=(40, 20), unlabelled=(8, 9), model="mlp")
        replies = f.server.ask(m.train, weights=f.state["weights"], helpers={}, round=0)
        n = (1, 1) if preset == "code" else tuple(len(d.labelled) + len(d.unlabelled) for d in f.data.values())
        new = f.round()["weights"]
        close(new, {k: sum(a * replies[i]["weights"][k].double() for i, a in enumerate(n)) / sum(n) for k in new})


def test_a_kept_state_makes_two_rounds_of_one_step_what_one_round_of_two_is(digits):
    """RMSprop alone: the same two gradients, with and without the mean of squares in between."""
    data = digits.split(clients=1, labels="clients:60", seed=1)
    x, y = data.client(0).labelled.inputs(), data.client(0).labelled.y
    f = Federation(digits, methods.ProtoFSSL(helpers=1), labelled=(40,), unlabelled=(8,), model="mlp")

    def steps(model, optimiser, n):
        for _ in range(n):
            optimiser.zero_grad()
            model.features(x).square().sum(1)[y > 2].mean().backward()
            optimiser.step()
        return {name: w.clone() for name, w in model.state().items()}

    new = lambda model: torch.optim.RMSprop(model.parameters(), 1e-3, alpha=0.9, eps=1e-7)  # noqa: E731
    whole = f.server.model(f.state["weights"])
    both = steps(whole, new(whole), 2)
    first = f.server.model(f.state["weights"])
    optimiser = new(first)
    half = steps(first, optimiser, 1)
    held = wire.decode(wire.encode(dict(value=training.kept(optimiser, first))))["value"]
    ends = {}
    for name, before in (("kept", held), ("anew", {})):
        second = f.server.model(half)
        again = new(second)
        training.resume(again, second, before)
        ends[name] = steps(second, again, 1)
    close(ends["kept"], both, rtol=0, atol=0)
    assert not all(torch.equal(ends["anew"][k], both[k]) for k in both)


def test_keep_state_is_in_the_clients_memory_and_is_used(digits):
    ends = {}
    for keep in (False, True):
        f = Federation(digits, methods.ProtoFSSL(helpers=2, steps_per_round=1, keep_state=keep), (40, 20), (8, 9), "mlp")
        f.round()
        assert ("optimiser" in f.memory(0)) is keep
        ends[keep] = f.round()["weights"]
    moved = {keep: sum((w - f.server.model().state()[k]).square().sum() for k, w in ends[keep].items()) for keep in ends}
    assert moved[True] < moved[False]  # whoever begins anew takes a first step that is √10 times as long


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
    with pytest.raises(Mistake, match="least=50 withholds every prototype, since no client has more than 2 .*--set least=2"):
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
    sets = list(state["sets"].values())
    common = [[s["means"][k] for s in sets if s["present"][k]] for k in range(10)]
    expected = torch.zeros(len(x), 10)
    for s in sets:
        d = torch.full((len(x), 10), math.inf)
        for k in range(10):
            if common[k]:
                centre = s["means"][k] if s["present"][k] else sum(common[k]) / len(common[k])
                d[:, k] = (model.features(x) - centre).square().mean(-1)  # the default's
        expected += torch.softmax(-d, 1) / len(sets)
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
