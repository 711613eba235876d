"""Every loss against a slow direct version and numbers worked out by hand; what happens where there is nothing to learn from."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch import nn

from grapevine.core.errors import Mistake
from grapevine.learn import bases
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


# ---------------------------------------------------------------- pseudo-labels


def test_sharpen_by_hand():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    # T = 1/2 squares: 0.36, 0.09, 0.01 of 0.46
    torch.testing.assert_close(semi.sharpen(p, 0.5), torch.tensor([[36 / 46, 9 / 46, 1 / 46]]))
    torch.testing.assert_close(semi.sharpen(p, 1.0), p)


def test_sharpen_holds_at_the_ends():
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for T in (0.001, 0.5, 2.0):
        assert torch.equal(semi.sharpen(p, T), p)
    many = torch.full((1, 1000), 0.001)
    torch.testing.assert_close(semi.sharpen(many, 0.01), many)
    with pytest.raises(Mistake, match="T=0"):
        semi.sharpen(p, 0)


def test_sharpen_has_a_gradient():
    check_gradient(lambda z: semi.sharpen(z.softmax(1), 0.5), randn(3, 4))


def test_pseudo_labels_of_logits_and_of_probabilities():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.1], [-5.0, 1.0]])
    labels, mask, confidence = semi.pseudo_labels(logits, 0.6)
    expected = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.1)), 1 / (1 + math.exp(-6))]
    assert labels.tolist() == [0, 1, 1] and mask.tolist() == [True, False, True]
    assert confidence.tolist() == pytest.approx(expected)
    again = semi.pseudo_labels(logits.softmax(1), 0.6)
    assert torch.equal(again[0], labels) and torch.equal(again[1], mask) and torch.equal(again[2], confidence)


def test_pseudo_labels_reach_the_threshold_and_can_be_told_what_they_get():
    p = torch.tensor([[0.75, 0.25]])
    assert semi.pseudo_labels(p, 0.75)[1].tolist() == [True]
    assert semi.pseudo_labels(p, 0.75, logits=True)[2].item() == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert [len(t) for t in semi.pseudo_labels(torch.empty(0, 3), 0.5)] == [0, 0, 0]
    assert not semi.pseudo_labels(torch.full((1, 3), math.nan), 0.0)[1].any()


def test_entropy_confidence_by_hand():
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [2.0, 2.0, 0, 0]])
    assert semi.entropy_confidence(p).tolist() == pytest.approx([0, 1, 0.5, 0, 0.5])
    assert semi.entropy_confidence(torch.ones(3, 1)).tolist() == [1, 1, 1]


def test_entropy_confidence_against_scipy():
    p = randn(50, 7).softmax(1)
    expected = [1 - stats.entropy(row) / math.log(7) for row in p.numpy()]
    assert semi.entropy_confidence(p).tolist() == pytest.approx(expected)


def test_one_hot_leaves_the_unknown_empty():
    assert semi.one_hot(torch.tensor([2, -1, 0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


# ---------------------------------------------------------------- moving averages, schedules


def small_network(value):
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for t in net.state_dict().values():
            t.fill_(value)
    return net


def test_ema_of_modules_averages_parameters_and_copies_buffers():
    target, source = small_network(1.0), small_network(3.0)
    semi.ema_(target, source, 0.75)
    for name, t in target.state_dict().items():
        assert (t == (3.0 if "running" in name or "num" in name else 1.5)).all(), name
    assert all((p == 3).all() for p in source.parameters())


@pytest.mark.parametrize("as_dict", ["target", "source", "both"])
def test_ema_of_state_dicts(as_dict):
    target, source = small_network(1.0), small_network(3.0)
    names = [name for name, _ in target.named_parameters()] if as_dict == "both" else None
    a = {n: t.clone() for n, t in target.state_dict().items()} if as_dict != "source" else target
    b = source.state_dict() if as_dict != "target" else source
    semi.ema_(a, b, 0.75, names)
    expected = copy.deepcopy(small_network(1.0))
    semi.ema_(expected, source, 0.75)
    for name, t in (a if isinstance(a, dict) else a.state_dict()).items():
        assert torch.equal(t, expected.state_dict()[name])


def test_ema_of_state_dicts_without_names_averages_what_is_float():
    target, source = dict(w=torch.tensor([0.0]), steps=torch.tensor(1)), dict(w=torch.tensor([1.0]), steps=torch.tensor(7))
    semi.ema_(target, source, 0.9)
    assert target["w"].item() == pytest.approx(0.1) and target["steps"] == 7
    with pytest.raises(Mistake, match="'steps'"):
        semi.ema_(target, dict(w=torch.tensor([1.0])), 0.9)


def test_repeated_ema_is_the_geometric_sum():
    target = dict(w=torch.zeros(1, dtype=torch.float64))
    for _ in range(50):
        semi.ema_(target, dict(w=torch.ones(1, dtype=torch.float64)), 0.9)
    assert target["w"].item() == pytest.approx(1 - 0.9**50)


def test_sigmoid_rampup():
    values = [semi.sigmoid_rampup(step, 10) for step in (-1, 0, 5, 10, 99)]
    assert values == pytest.approx([math.exp(-5), math.exp(-5), math.exp(-1.25), 1, 1])
    assert semi.sigmoid_rampup(0, 0) == 1


# ---------------------------------------------------------------- mixup


@pytest.mark.parametrize("a, b", [(0.75, 0.75), (0.2, 0.2), (1, 1), (2.5, 0.5), (8, 3)])
def test_beta_draws_have_betas_distribution(a, b):
    rng = generator(7)
    draws = [semi.draw_beta(a, b, rng) for _ in range(3000)]
    assert all(0 <= v <= 1 for v in draws)
    assert stats.kstest(draws, stats.beta(a, b).cdf).pvalue > 0.001
    mean, variance = stats.beta.stats(a, b)
    assert sum(draws) / 3000 == pytest.approx(mean, abs=4 * (variance / 3000) ** 0.5)
    assert torch.tensor(draws).var().item() == pytest.approx(variance, rel=0.1)


def test_beta_holds_for_tiny_parameters_and_repeats():
    draws = [semi.draw_beta(1e-4, 1e-4, generator(seed)) for seed in range(200)]
    assert all(v < 1e-6 or v > 1 - 1e-6 for v in draws) and 60 < sum(v > 0.5 for v in draws) < 140
    assert semi.draw_beta(0.75, 0.75, generator(3)) == semi.draw_beta(0.75, 0.75, generator(3))
    with pytest.raises(Mistake, match=r"Beta\(0, 1\)"):
        semi.draw_beta(0, 1, generator())


def test_mixup_mixes_rows_and_keeps_both_targets():
    x, y = randn(6, 3, 4, 4), torch.arange(6)
    state = torch.get_rng_state()
    mixed, (first, second), share = semi.mixup(x, y, generator(1), 0.75)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, y) and sorted(second.tolist()) == y.tolist() and 0 <= share <= 1
    for i in range(6):
        torch.testing.assert_close(mixed[i], share * x[i] + (1 - share) * x[second[i]])
    again = semi.mixup(x, y, generator(1), 0.75)
    assert again[2] == share and torch.equal(again[0], mixed)


def test_mixup_with_another_set_and_nearer_to_the_first():
    x, other = torch.zeros(4, 2), torch.ones(4, 2)
    shares = []
    for seed in range(30):
        mixed, (first, second), share = semi.mixup(
            x, torch.arange(4), generator(seed), 0.75, (other, torch.arange(4, 8)), nearer=True
        )
        torch.testing.assert_close(mixed, torch.full((4, 2), 1 - share))
        assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [4, 5, 6, 7]
        shares.append(share)
    assert min(shares) >= 0.5
    # The same draws without the choice of the larger.
    plain = [semi.mixup(x, torch.arange(4), generator(seed), 0.75)[2] for seed in range(30)]
    assert shares == [max(s, 1 - s) for s in plain] and min(plain) < 0.5


# ---------------------------------------------------------------- losses


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
    weight = torch.rand(7, generator=generator(2), dtype=torch.float64)
    total = 0.0
    for row, t, w in zip(logits.tolist(), target.tolist(), weight.tolist()):
        p = softmax(row)
        if loss is semi.consistency_kl:
            total += w * sum(a * math.log(a / b) for a, b in zip(t, p) if a)
        else:
            total += w * sum((a - b) ** 2 for a, b in zip(t, p)) / 5
    assert loss(logits, target, weight).item() == pytest.approx(total / 7)
    same = loss(logits, logits.softmax(1))
    assert abs(same.item()) < 1e-12
    check_gradient(lambda z: loss(z, target, weight), logits)


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
def test_an_empty_mask_gives_no_loss_and_no_gradient(loss, rows):
    logits = (randn(rows, 3).float() * 100).requires_grad_()
    target = torch.eye(3)[torch.arange(rows) % 3]
    value = loss(logits, target, torch.zeros(rows))
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
    with pytest.raises(Mistake, match="temperature=0"):
        semi.label_contrastive(z, y, 0)


# ---------------------------------------------------------------- prototypes


def test_prototypes_are_class_means():
    features = torch.tensor([[1.0, 2], [3, 4], [10, 10], [99, 99]], requires_grad=True)
    means, counts = semi.prototypes(features, torch.tensor([0, 0, 2, -1]), 4)
    assert means.tolist() == [[2, 3], [0, 0], [10, 10], [0, 0]] and counts.tolist() == [2, 0, 1, 0]
    means[0].sum().backward()
    assert features.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]]


@pytest.mark.parametrize("squared", [True, "mean"])
def test_prototype_logits_against_loops(squared):
    features, helpers = randn(5, 6), randn(3, 4, 6, seed=1)
    logits = semi.prototype_logits(features, helpers, squared)
    assert logits.shape == (3, 5, 4)
    for h in range(3):
        torch.testing.assert_close(semi.prototype_logits(features, helpers[h], squared), logits[h])
        for i in range(5):
            for k in range(4):
                square = sum((a - b) ** 2 for a, b in zip(features[i].tolist(), helpers[h, k].tolist()))
                assert logits[h, i, k].item() == pytest.approx(-square / (6 if squared == "mean" else 1))
    check_gradient(lambda f: semi.prototype_logits(f, helpers[0], squared), features)
    check_gradient(lambda c: semi.prototype_logits(features, c, squared), helpers[0].clone())


def test_prototype_logits_are_exact_far_from_zero():
    features = torch.tensor([[1000.0, 1000.5], [1001.0, 1000.0]])
    logits = semi.prototype_logits(features, torch.tensor([[1000.0, 1000.0], [1001.0, 1001.0]]))
    assert logits.tolist() == [[-0.25, -1.25], [-1.0, -1.0]]


def test_absent_prototypes_have_no_chance():
    features, c = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], requires_grad=True)
    logits = semi.prototype_logits(features, c, present=torch.tensor([True, False, True]))
    assert logits.tolist() == [[-1.0, -math.inf, -4.0]]
    semi.cross_entropy(logits, torch.tensor([0])).backward()
    assert torch.isfinite(c.grad).all() and (c.grad[1] == 0).all()
    each = torch.tensor([[True, False, True], [True, True, True]])
    assert semi.prototype_logits(features, c.detach().expand(2, 3, 2), present=each).isinf().sum() == 1
    with pytest.raises(Mistake, match="'max'"):
        semi.prototype_logits(features, c, "max")


# ---------------------------------------------------------------- gradient diversity


def test_gradient_diversity_by_hand():
    a, b = dict(w=torch.tensor([3.0, 0.0]), n=torch.tensor(5)), dict(w=torch.tensor([0.0, 4.0]), n=torch.tensor(9))
    assert bases.gradient_diversity([a, b]) == pytest.approx(1)  # at right angles
    assert bases.gradient_diversity([a, a, a]) == pytest.approx(1 / 3)  # alike
    c = dict(w=torch.tensor([-3.0, 4.0]), n=torch.tensor(0))
    assert bases.gradient_diversity([a, c]) == pytest.approx((9 + 25) / 16)
    assert bases.gradient_diversity([a, dict(w=-a["w"], n=a["n"])]) == math.inf
    assert math.isnan(bases.gradient_diversity([dict(w=torch.zeros(2))])) and math.isnan(bases.gradient_diversity([]))


def test_gradient_diversity_over_several_tensors():
    updates = [dict(v=torch.tensor([[1.0]]), w=torch.tensor([2.0])), dict(v=torch.tensor([[-1.0]]), w=torch.tensor([2.0]))]
    assert bases.gradient_diversity(updates) == pytest.approx((5 + 5) / 16)
