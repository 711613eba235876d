"""CBAFed: labels, warm-up and residual weights."""

import pytest
import torch
from federation import Federation, close, double, gradient, hot, stream

from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.data.augment import Views
from grapevine.methods import cbafed

TEN = torch.tensor([40, 40, 40, 40, 40, 40, 40, 40, 40, 0])


def test_pseudo_labels_by_hand():
    """q = 1/9 for nine classes; the tenth has no label: it is rare, and its threshold is lower by 1/9."""
    m = methods.CBAFed()
    q = TEN / 360
    line = (q + 0.84 - q.std()).clamp(max=0.95)
    p = torch.zeros(4, 10)
    p[0, 2], p[0, 3] = line[2] + 1e-4, 0.01  # sure
    p[1, 2], p[1, 3] = line[2] - 1e-4, 0.01  # unsure, and its second choice is not rare
    p[2, 2], p[2, 9] = 0.6, 0.4  # unsure, and its second choice is the rare class
    p[3, 9], p[3, 0] = line[9] + 1e-4, 0.1  # the rare class itself has a lower threshold
    assert line[9] < line[2]
    assert m.pseudo_labels(p, TEN).tolist() == [2, -1, 9, 9]
    assert methods.CBAFed(rare=0.0).pseudo_labels(p, TEN).tolist() == [2, -1, -1, 9]


def test_warm_up_is_labels_alone_and_counts_go_round(digits):
    m = methods.CBAFed(epochs=1, batch=100, warmup=0.5, base=0.0, most=0.0, rare=0.0)
    f = Federation(digits, m, rounds=2)
    own = sum(torch.bincount(f.data[i].labelled.y, minlength=10) for i in (0, 1))
    assert f.round()["counts"].tolist() == own.tolist()
    assert f.round()["counts"].sum() == 6 + 4 + 8 + 9  # now every row passes


def test_a_labelled_client_takes_the_gradient_of_its_labels(digits):
    """One epoch of one batch, plain SGD: w − η · gradient."""
    m = methods.CBAFed(epochs=1, batch=100, warmup=1.0, momentum=0.0, weight_decay=0.0, lr=0.1, clip=1e9)
    f = Federation(digits, m, labelled=(6,), unlabelled=(8,))
    w, rows = double(f.state["weights"]), f.data[0].labelled
    draw = stream(0, "train", 0)
    a = torch.randperm(6, generator=draw)
    x = Views(rows).weak(a, draw)
    g = gradient(w, x, hot(rows.y[a]), torch.full((6,), 1 / 6).double())
    close(f.round()["weights"], {name: w[name] - 0.1 * g[name] for name in w})


def one_more(model, *_):
    """An epoch that adds 1 to every weight."""
    model.load({name: w + 1 for name, w in model.state().items()})


@pytest.mark.parametrize(
    "epochs, residual, end",
    [(1, 5, 1), (5, 5, 5), (6, 5, 2), (10, 5, 6), (11, 5, 3), (11, 0, 11), (3, 1, 1.4)],
    ids=str,
)
def test_residual_weights_of_a_client_by_hand(digits, monkeypatch, epochs, residual, end):
    """From 0: 1 after an epoch, which is kept; 6 after six, and 0.8 · 1 + 0.2 · 6 = 2; 7 after five more, 0.8 · 2 + 0.2 · 7 = 3.
    With five epochs in a round nothing is averaged. With residual=1: 1; 0.8 + 0.2 · 2 = 1.2; 0.8 · 1.2 + 0.2 · 2.2 = 1.4."""
    monkeypatch.setattr(cbafed, "train", one_more)
    f = Federation(digits, methods.CBAFed(epochs=epochs, residual=residual, batch=100), labelled=(6, 0), unlabelled=(8, 9))
    zero = {name: torch.zeros_like(w) for name, w in f.state["weights"].items()}
    for i, expected in ((0, end), (1, epochs)):  # a client without labels averages nothing
        labels, used = torch.zeros(len(f.data[i].unlabelled), dtype=torch.int64), torch.ones(len(f.data[i].unlabelled))
        left = f.method._fit(f.client(i), zero, labels, used, stream(i, "train", 0))
        close(left, {name: torch.full_like(w, expected) for name, w in zero.items()})


def test_a_client_averages_weights_that_it_trained(digits):
    """The default number of epochs, in the warm-up: averages are of training's own weights, and training goes on from them."""
    m = methods.CBAFed(batch=100, momentum=0.0, weight_decay=0.0, lr=0.1, clip=1e9)
    assert (m.epochs, m.residual, m.kept) == (11, 5, 0.8)
    f = Federation(digits, m)
    told = dict(counts=f.state["counts"], warm=True, round=0)
    replies = f.server.ask(m.train, weights=f.state["weights"], **told)
    for i in (0, 1):
        w, rows, draw, kept = double(f.state["weights"]), f.data[i].labelled, stream(i, "train", 0), None
        for epoch in range(11):
            a = torch.randperm(len(rows), generator=draw)
            g = gradient(w, Views(rows).weak(a, draw), hot(rows.y[a]), torch.full((len(a),), 1 / len(a)).double())
            w = {name: w[name] - 0.1 * g[name] for name in w}
            if epoch in (5, 10):
                w = {name: 0.8 * kept[name] + 0.2 * w[name] for name in w}
            kept = w if epoch in (0, 5, 10) else kept
        close(replies[i]["weights"], w)


def test_residual_weights_of_the_server_begin_after_the_warm_up(digits):
    """Eight rounds, four of them warm, averages every two: the first comes after the third round of the rest, with the weights
    from the end of the warm-up. It used to come in the warm-up."""
    how = dict(warmup=0.5, epochs=1, batch=100)  # one epoch: the clients average nothing
    plain, mixed = (Federation(digits, methods.CBAFed(residual=r, **how), rounds=8) for r in (0, 2))
    seen = [(plain.round()["weights"], mixed.round()["weights"]) for _ in range(7)]
    for a, b in seen[:6]:
        assert all(torch.equal(a[name], b[name]) for name in a)
    warm, (last, found) = seen[3][0], seen[6]
    close(found, {name: 0.5 * warm[name] + 0.5 * last[name] for name in last})
    assert all(torch.equal(mixed.state["older"][name], found[name]) for name in found)


def test_without_a_warm_up_the_first_average_is_with_weights_that_were_trained(digits):
    """It was with the random weights from before the first round, and accuracy fell."""
    f = Federation(digits, methods.CBAFed(warmup=0.0, residual=2, epochs=1, batch=100), rounds=4)
    plain = Federation(digits, methods.CBAFed(warmup=0.0, residual=0, epochs=1, batch=100), rounds=4)
    first, _, third = [(f.round()["weights"], plain.round()["weights"]) for _ in range(3)]
    close(third[0], {name: 0.5 * first[1][name] + 0.5 * w for name, w in third[1].items()})


def test_whole_numbers_are_the_newer_ones():
    older, newer = dict(a=torch.tensor([1.0]), n=torch.tensor(3)), dict(a=torch.tensor([6.0]), n=torch.tensor(9))
    assert cbafed.between(older, newer, 0.8)["a"].item() == 2.0 and cbafed.between(older, newer, 0.8)["n"] == 9


def test_the_highest_threshold_is_not_below_that_of_an_average_class(digits):
    """`most=0.1` beside `base=0.84` was accepted: nearly every class then has the same threshold."""
    for fields, says in ((dict(most=0.1), "most=0.1 is below base=0.84"), (dict(base=0.97), "most=0.95 is below base=0.97")):
        with pytest.raises(Mistake, match=says):
            Federation(digits, methods.CBAFed(**fields), model="mlp")
    Federation(digits, methods.CBAFed(base=0.5, most=0.5), model="mlp")
