"""FedSiam against a slow mean teacher."""

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from federation import Federation, Momentum, close, double, each_reply, gradient, hot, plus, proba, stream

from grapevine import methods
from grapevine.core import Server
from grapevine.data.augment import Views
from grapevine.learn import streams
from grapevine.methods import fedsiam


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
            batches = streams.streams(L, U, 3, 2, draw)
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
    full = each_reply(server, both.train, threshold=0.0, **dict(told, teacher=told["teacher"] or start["student"]))
    f.simulation.method, f.simulation.manifests = m, saved
    limit = sorted(fedsiam.divergences(full[0]["student"], full[0]["teacher"]).values())[1]
    sent = each_reply(f.server, m.train, threshold=limit, **told)
    for i in (0, 1):
        far = fedsiam.divergences(full[i]["student"], full[i]["teacher"])
        for key, value in sent[i]["student"].items():
            whose = "student" if far[fedsiam.layer(key)] >= limit else "teacher"
            assert torch.equal(value, full[i][whose][key])
        assert sent[i]["apart"].tolist() == list(far.values())
        assert ("teacher" in sent[i]) == (preset == "code")
    assert 0 < sum(d >= limit for d in fedsiam.divergences(full[0]["student"], full[0]["teacher"]).values()) < 3
