"""Fix and mix sets against the equations."""

import pytest
import torch
from federation import same

from grapevine import methods
from grapevine.data.augment import Views
from grapevine.learn import alternate
from grapevine.learn import networks as models
from grapevine.learn.mixing import draw_beta
from grapevine.learn.schedules import cosine


@pytest.mark.parametrize("strong", [True, False])
def test_fix_mix_loss_is_equations_7_to_10(digits, strong):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    model = models.build("mlp", (1, 8, 8), 10, seed=2)
    labels = torch.arange(len(rows)) % 10
    fix, other = torch.tensor([3, 1, 4]), torch.tensor([9, 9, 2])
    views, draw = Views(rows), torch.Generator().manual_seed(7)
    loss = alternate.FixMix(model, rows, labels, draw, 0.5, 0.75, strong)((fix, other))

    draw = torch.Generator().manual_seed(7)
    x = (views.strong if strong else views.weak)(fix, draw)
    b, a = views.weak(other, draw), views.weak(fix, draw)
    share = draw_beta(0.75, 0.75, draw)
    expected = 0.0
    for i in range(3):
        log_p = lambda row: model(row[None])[0].double().log_softmax(0)  # noqa: E731
        expected -= log_p(x[i])[labels[fix[i]]] / 3
        mixed = log_p(share * a[i] + (1 - share) * b[i])
        expected -= 0.5 * (share * mixed[labels[fix[i]]] + (1 - share) * mixed[labels[other[i]]]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_fix_mix_takes_a_step_per_batch_of_the_fix_set(digits):
    rows = digits.split(clients=2, labels="server:40", seed=1).client(0).unlabelled
    model, method = models.build("mlp", (1, 8, 8), 10), methods.SemiFL()
    labels, fix, draw = torch.zeros(len(rows), dtype=torch.int64), torch.arange(23), torch.Generator().manual_seed(0)
    loss = alternate.FixMix(model, rows, labels, draw)
    pairs = list(loss.batches(fix, 10, 2))
    assert [(len(a), len(b)) for a, b in pairs] == 2 * [(10, 10), (10, 10), (3, 3)]
    assert sorted(torch.cat([a for a, _ in pairs[:3]]).tolist()) == list(range(23))
    assert alternate.descend(method, model, pairs, loss, 0.1, draw) == 6
    before = model.state()
    assert alternate.descend(method, model, loss.batches(fix[:0], 10, 2), loss, 0.1, draw) == 0
    assert same(before, model.state())


def test_schedule_and_batch_size_at_the_server():
    assert [cosine(0.3, t, 4) for t in (0, 2, 4)] == pytest.approx([0.3, 0.15, 0.0])
    assert [alternate.server_batch(*it) for it in ((0, 1000), (0, 1001), (7, 5000))] == [10, 250, 7]
