"""SAGE and FedLabel: rounds against softmax regression by loops."""

from itertools import islice

import pytest
import torch
from federation import Federation, Momentum, close, double, gradient, hot, plus, proba, stream

from grapevine import methods
from grapevine.data.augment import Views
from grapevine.learn import streams
from grapevine.learn.pseudo import without_labels

SETTINGS = dict(lr=0.1, epochs=2, batch=3, ratio=2, threshold=0.13)


def sage_targets(p, q, m):
    """Row by row: the target, its weight, and no consistency."""
    for own, sent in zip(p, q):
        share = 2 ** (-abs(own.max() - sent.max()).clamp(1e-6, 1) / m.half)
        label, other = own.argmax(), sent.argmax()
        soft = share * hot(label) + (1 - share) * hot(other) if own.max() >= m.threshold else hot(other)
        yield soft, float(max(own.max(), sent.max()) >= m.threshold) * m.weight, 0.0


def fedlabel_targets(p, q, m):
    for own, sent in zip(p, q):
        v, w = (sum((x - 0.1) ** 2 for x in each) / 9 for each in (own, sent))
        expert = own if v > w else sent
        used = float(expert.max() >= m.threshold)
        agreed = used * m.consistency * float(own.argmax() == sent.argmax()) * float(min(v, w) / max(v, w))
        yield hot(expert.argmax()), used, agreed


def slow(w, data, id, t, m, targets):
    start, draw, optimiser, rows = (
        w,
        stream(id, "train", t),
        Momentum(m.lr, m.momentum, m.weight_decay, False),
        without_labels(data),
    )
    L, U, moved = len(data.labelled), len(rows), False
    for a, b in islice(streams.streams(L, U, m.batch, m.ratio, draw), m.epochs * -(-U // (m.batch * m.ratio))):
        x = Views(data.labelled).weak(a, draw)
        weak, strong = Views(rows).weak(b, draw), Views(rows).strong(b, draw)
        p, q = proba(w, weak), proba(start, weak)
        target, used, agreed = zip(*targets(p, q, m))
        used, agreed = torch.tensor(used).double(), torch.tensor(agreed).double()
        g = [gradient(w, strong, torch.stack(target), used / len(b)), gradient(w, weak, q, agreed / len(b))]
        if L:
            g.append(gradient(w, x, hot(data.labelled.y[a]), torch.full((len(a),), 1 / len(a)).double()))
        elif not used.any():
            continue
        w, moved = optimiser.step(w, plus(*g)), True
    return w if moved else None


@pytest.mark.parametrize(
    "m, targets",
    [(methods.SAGE(weight=0.8, half=0.02, **SETTINGS), sage_targets),
     (methods.FedLabel(consistency=0.7, **SETTINGS), fedlabel_targets)],
    ids=["sage", "fedlabel"],
)  # fmt: skip
def test_rounds_against_loops(digits, m, targets):
    f = Federation(digits, m)
    w = double(f.state["weights"])
    for t in range(2):
        each = [slow(w, f.data[i], i, t, m, targets) for i in (0, 1)]
        w = {name: (14 * each[0][name] + 13 * each[1][name]) / 27 for name in w}
        close(f.round()["weights"], w)


def test_corrected_labels_are_not_fixmatchs(digits):
    """With half → ∞ the local label stands wherever the local model is sure: the correction is what makes the difference."""
    results = [Federation(digits, methods.SAGE(half=half, **SETTINGS)).round()["weights"] for half in (0.001, 1e9)]
    assert any(not torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.parametrize("cls", [methods.SAGE, methods.FedLabel])
def test_a_client_with_nothing_to_learn_from_is_left_out(digits, cls):
    m = cls(threshold=1.0, epochs=1)
    f = Federation(digits, m, labelled=(6, 0), unlabelled=(8, 9))
    replies = f.server.ask(m.train, weights=f.state["weights"], round=0)
    assert replies[1] == dict(n=0) and replies[0]["n"] == 14
