"""Every loss against a slow direct version and numbers worked out by hand; what happens where there is nothing to learn from."""

import math

import pytest
import torch

from grapevine.learn import losses as semi


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, grad=False):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).requires_grad_(grad)


def softmax(row):
    e = [math.exp(v - max(row)) for v in row]
    return [v / sum(e) for v in e]


def check_gradient(loss, x):
    """Finite and as finite differences say."""
    assert torch.autograd.gradcheck(loss, (x.double().requires_grad_(),))


def slow_cross_entropy(logits, target, weight):
    total = 0.0
    for row, t, w in zip(logits.tolist(), target.tolist(), weight.tolist()):
        p = softmax(row)
        if isinstance(t, list):
            total += w * -sum(a * math.log(b) for a, b in zip(t, p))
        elif t >= 0:
            total += w * -math.log(p[t])
    return total / len(logits)


def test_cross_entropy_against_loops():
    logits, weight = randn(9, 4), torch.rand(9, generator=generator(1), dtype=torch.float64)
    hard = torch.tensor([0, 1, 2, 3, -1, 0, 1, 2, 3])
    soft = randn(9, 4, seed=2).softmax(1)
    for target in (hard, soft):
        assert semi.cross_entropy(logits, target, weight).item() == pytest.approx(slow_cross_entropy(logits, target, weight))
        ones = torch.ones(9)
        assert semi.cross_entropy(logits, target).item() == pytest.approx(slow_cross_entropy(logits, target, ones))
    mask = torch.tensor([True, False] * 4 + [True])
    assert semi.cross_entropy(logits, hard, mask).item() == pytest.approx(slow_cross_entropy(logits, hard, mask.double()))


def test_cross_entropy_by_hand():
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # probabilities 3/4, 1/4 and 1/2, 1/2
    loss = semi.cross_entropy(logits, torch.tensor([0, 1]), torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx((math.log(4 / 3) + 0.5 * math.log(2)) / 2)


@pytest.mark.parametrize("loss", [semi.consistency_kl, semi.consistency_mse])
def test_consistency_against_loops(loss):
    logits, target = randn(7, 5), randn(7, 5, seed=1).softmax(1)
    target[0] = torch.tensor([0, 1.0, 0, 0, 0])
    total = 0.0
    for row, t in zip(logits.tolist(), target.tolist()):
        p = softmax(row)
        if loss is semi.consistency_kl:
            total += sum(a * math.log(a / b) for a, b in zip(t, p) if a)
        else:
            total += sum((a - b) ** 2 for a, b in zip(t, p)) / 5
    assert loss(logits, target).item() == pytest.approx(total / 7)
    same = loss(logits, logits.softmax(1))
    assert abs(same.item()) < 1e-12
    check_gradient(lambda z: loss(z, target), logits)


def test_consistency_by_hand():
    logits = torch.zeros(1, 2, dtype=torch.float64)
    target = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert semi.consistency_kl(logits, target).item() == pytest.approx(math.log(2))
    assert semi.consistency_mse(logits, target).item() == pytest.approx(0.25)


def test_byol_by_hand():
    p = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    z = torch.tensor([[5.0, 0.0], [0.0, -1.0], [1.0, 0.0]])
    # parallel 0, opposite 4, at 45 degrees 2 − √2
    assert semi.byol_loss(p, z).item() == pytest.approx((0 + 4 + 2 - math.sqrt(2)) / 3)
    check_gradient(lambda v: semi.byol_loss(v, z.double()), randn(3, 2))


@pytest.mark.parametrize("loss", [semi.cross_entropy, semi.consistency_kl, semi.consistency_mse])
@pytest.mark.parametrize("rows", [0, 4])
def test_an_empty_batch_or_mask_gives_no_loss_and_no_gradient(loss, rows):
    logits = (randn(rows, 3).float() * 100).requires_grad_()
    target = torch.eye(3)[torch.arange(rows) % 3]
    if rows:
        value = semi.cross_entropy(logits, target, torch.zeros(rows))
    else:
        value = loss(logits, target)
    value.backward()
    assert value.item() == 0 and (logits.grad == 0).all() and logits.grad.shape == logits.shape


def test_labels_that_are_all_unknown_give_no_loss_and_no_gradient():
    logits = randn(3, 2, grad=True)
    value = semi.cross_entropy(logits, torch.full((3,), -1))
    value.backward()
    assert value.item() == 0 and (logits.grad == 0).all()


@pytest.mark.parametrize("loss", [semi.consistency_kl, semi.consistency_mse, semi.byol_loss])
def test_targets_get_no_gradient(loss):
    x, target = randn(4, 3, grad=True), randn(4, 3, seed=1).softmax(1).requires_grad_()
    loss(x, target).backward()
    assert target.grad is None and x.grad.abs().sum() > 0


def test_losses_stay_finite_for_certain_predictions():
    logits = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]], requires_grad=True)
    target = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    for loss in (semi.cross_entropy, semi.consistency_kl, semi.consistency_mse):
        logits.grad = None
        value = loss(logits, target)
        value.backward()
        assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


# ---------------------------------------------------------------- FedAnchor's contrastive loss


def slow_contrastive(z, y, temperature, per_class):
    """Equations 1 and 2 as printed, over ordered pairs i ≠ j, averaged over the classes that have a pair."""
    z = [[v / math.hypot(*row) for v in row] for row in z.tolist()]
    y = y.tolist()
    known = [i for i in range(len(y)) if y[i] >= 0]

    def e(i, j):
        return math.exp(sum(a * b for a, b in zip(z[i], z[j])) / temperature)

    pairs = [(i, j) for i in known for j in known if i != j]
    losses = []
    for c in sorted(set(y) - {-1}):
        same = [e(i, j) for i, j in pairs if y[i] == y[j] == c]
        across = [e(i, j) for i, j in pairs if y[i] != y[j] and (not per_class or c in (y[i], y[j]))]
        if same:
            losses.append(-math.log(sum(same) / sum(across)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 3.0])
def test_label_contrastive_against_loops(per_class, temperature):
    z = randn(11, 4)
    y = torch.tensor([0, 0, 2, 2, 2, 5, 7, 7, -1, 0, 2])  # class 5 has one member, classes 1, 3, 4 and 6 none
    loss = semi.label_contrastive(z, y, temperature, per_class)
    assert loss.item() == pytest.approx(slow_contrastive(z, y, temperature, per_class), rel=1e-5)


def test_label_contrastive_by_hand():
    # Two classes of two equal vectors at a right angle: same-class cosines 1, two ordered pairs each; across 0, eight pairs.
    z = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3]])
    y = torch.tensor([0, 0, 1, 1])
    for per_class in (False, True):  # with two classes, all pairs across are pairs of class c
        assert semi.label_contrastive(z, y, 0.5, per_class).item() == pytest.approx(-math.log(2 * math.e**2 / 8))


def test_label_contrastive_falls_as_classes_part():
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    z = randn(6, 3).float().requires_grad_()
    first = semi.label_contrastive(z, y, 0.5)
    first.backward()
    with torch.no_grad():
        assert semi.label_contrastive(z - 0.1 * z.grad, y, 0.5) < first


@pytest.mark.parametrize("y", [[3, 3, 3, 3], [0, 1, 2, 3], [-1, -1, -1, -1], [1, 1, -1, -1], []])
def test_label_contrastive_without_a_contrast_is_zero(y):
    z = randn(len(y), 3, grad=True)
    loss = semi.label_contrastive(z, torch.tensor(y, dtype=torch.int64), 0.1)
    loss.backward()
    assert loss.item() == 0 and (z.grad == 0).all()


@pytest.mark.parametrize("per_class", [False, True])
def test_label_contrastive_gradients(per_class):
    y = torch.tensor([0, 0, 1, 2, 2, 2])
    for temperature in (0.003, 0.1):
        z = torch.tensor([[1.0, 0], [-1, 0], [1, 0], [1, 0], [-1, 0], [0, 0]], requires_grad=True)  # opposite, equal, zero
        semi.label_contrastive(z, y, temperature, per_class).backward()
        assert torch.isfinite(z.grad).all()


# ---------------------------------------------------------------- SimCLR's loss


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
