"""Batches in two streams: sizes, passes, and weighted descent by formula."""

from itertools import islice

import pytest
import torch
from federation import Federation, Momentum, close, double, gradient, hot, stream, two_streams

from grapevine import methods
from grapevine.learn import streams
from grapevine.learn.networks import build


@pytest.mark.parametrize(
    ("clients", "labelled", "count", "expected"), [(100, 50, 5, 3), (100, 1, 5, 1), (10, 10, 4, 4), (6, 2, 6, 2)]
)
def test_the_ratio_of_labelled_clients_is_kept_rounded_up(digits, clients, labelled, count, expected):
    server = Federation(digits, methods.NetworkLabels()).server
    server.per_round = count
    known = set(range(0, labelled))
    for t in range(5):
        chosen = streams.sample_by_labels(server, t, range(clients), known)
        assert len(set(chosen)) == count and sum(i in known for i in chosen) == expected


def test_two_streams_is_weighted_descent(digits):
    data = Federation(digits, methods.NetworkLabels()).data[0]
    labels, weight = torch.tensor([1, -1, 3, 0, 5, 9, 2, 7]), torch.tensor([0.5, 0.9, 0.0, 1.0, 0.3, 0.7, 0.2, 0.1])
    class_weight = torch.linspace(0.5, 1.5, 10)
    model = build("linear", (1, 8, 8), 10)
    w = double(model.state())
    steps = two_streams(
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
        return two_streams(model, data[id].labelled, data[id].unlabelled, labels, weight, 0.1, 2, stream(id), batch)

    assert fit(0, torch.zeros(10, dtype=torch.int64), 50) == 6 and seen == [8, 8, 6] * 2  # four labels, and as many of the others
    seen.clear()
    assert fit(0, torch.full((10,), -1), 3) == 4 and seen == [3, 1] * 2  # no pseudo-labels: passes over the labelled rows
    seen.clear()
    assert fit(1, torch.zeros(9, dtype=torch.int64), 2) == 6 and seen == [4, 4, 1] * 2  # no labels: twice the batch


def test_streams_pass_over_both_kinds():
    pairs = list(islice(streams.streams(5, 7, 2, 2, stream(0)), 6))
    assert [(len(a), len(b)) for a, b in pairs] == [(2, 4), (2, 3), (1, 4), (2, 3), (2, 4), (1, 3)]
    for kind, n in ((0, 5), (1, 7)):
        rows = torch.cat([pair[kind] for pair in pairs])
        assert sorted(rows[:n].tolist()) == sorted(rows[n : 2 * n].tolist()) == list(range(n))
    assert [len(b) for _, b in islice(streams.streams(3, 0, 2, 7, stream(0)), 3)] == [0, 0, 0]
    assert [streams.epoch_steps(*n) for n in ((5, 7, 2, 2), (5, 0, 2, 2), (0, 8, 2, 2), (0, 0, 2, 2))] == [2, 3, 2, 0]
