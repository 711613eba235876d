"""CBAFed: labels, warm-up and residual weights."""

import torch
from federation import Federation, close, double, gradient, hot, stream

from grapevine import methods
from grapevine.data.augment import Views
from grapevine.methods.cbafed import between

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


def test_residual_weights_at_client_and_server(digits):
    older, newer = dict(a=torch.tensor([1.0]), n=torch.tensor(3)), dict(a=torch.tensor([6.0]), n=torch.tensor(9))
    assert between(older, newer, 0.8)["a"].item() == 2.0 and between(older, newer, 0.8)["n"] == 9
    quick = dict(warmup=1.0, epochs=1, batch=100)
    plain, mixed = (Federation(digits, methods.CBAFed(residual=r, **quick)) for r in (0, 2))
    seen = [(plain.round()["weights"], mixed.round()["weights"]) for _ in range(2)]
    close(seen[1][0], seen[1][1])  # the rounds 0 and 1 are the same
    third = plain.round()["weights"]
    close(mixed.round()["weights"], {name: 0.5 * seen[0][0][name] + 0.5 * third[name] for name in third})
    plain, mixed = (Federation(digits, methods.CBAFed(residual=r, warmup=1.0, epochs=2, batch=100)) for r in (0, 1))
    first = Federation(digits, methods.CBAFed(residual=0, **quick))
    one, two, kept = (
        f.server.ask(f.method.train, weights=f.state["weights"], counts=f.state["counts"], warm=True, round=0)
        for f in (first, plain, mixed)
    )
    for i in (0, 1):
        close(kept[i]["weights"], {name: 0.8 * w + 0.2 * two[i]["weights"][name] for name, w in one[i]["weights"].items()})
