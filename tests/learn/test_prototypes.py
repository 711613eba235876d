"""Prototypes by hand and against loops."""

import math

import pytest
import torch

from grapevine.learn import prototypes
from grapevine.learn.losses import cross_entropy


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, grad=False):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).requires_grad_(grad)


def check_gradient(loss, x):
    """Finite and as finite differences say."""
    assert torch.autograd.gradcheck(loss, (x.double().requires_grad_(),))


def test_prototypes_are_class_means():
    features = torch.tensor([[1.0, 2], [3, 4], [10, 10], [99, 99]], requires_grad=True)
    means, counts = prototypes.prototypes(features, torch.tensor([0, 0, 2, -1]), 4)
    assert means.tolist() == [[2, 3], [0, 0], [10, 10], [0, 0]] and counts.tolist() == [2, 0, 1, 0]
    means[0].sum().backward()
    assert features.grad.tolist() == [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]]


@pytest.mark.parametrize("mean", [False, True])
def test_prototype_logits_against_loops(mean):
    features, helpers = randn(5, 6), randn(3, 4, 6, seed=1)
    logits = prototypes.prototype_logits(features, helpers, mean)
    assert logits.shape == (3, 5, 4)
    for h in range(3):
        torch.testing.assert_close(prototypes.prototype_logits(features, helpers[h], mean), logits[h])
        for i in range(5):
            for k in range(4):
                square = sum((a - b) ** 2 for a, b in zip(features[i].tolist(), helpers[h, k].tolist()))
                assert logits[h, i, k].item() == pytest.approx(-square / (6 if mean else 1))
    check_gradient(lambda f: prototypes.prototype_logits(f, helpers[0], mean), features)
    check_gradient(lambda c: prototypes.prototype_logits(features, c, mean), helpers[0].clone())


def test_prototype_logits_are_exact_far_from_zero():
    features = torch.tensor([[1000.0, 1000.5], [1001.0, 1000.0]])
    logits = prototypes.prototype_logits(features, torch.tensor([[1000.0, 1000.0], [1001.0, 1001.0]]))
    assert logits.tolist() == [[-0.25, -1.25], [-1.0, -1.0]]


def test_absent_prototypes_have_no_chance():
    features, c = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], requires_grad=True)
    logits = prototypes.prototype_logits(features, c, present=torch.tensor([True, False, True]))
    assert logits.tolist() == [[-1.0, -math.inf, -4.0]]
    cross_entropy(logits, torch.tensor([0])).backward()
    assert torch.isfinite(c.grad).all() and (c.grad[1] == 0).all()
    each = torch.tensor([[True, False, True], [True, True, True]])
    assert prototypes.prototype_logits(features, c.detach().expand(2, 3, 2), present=each).isinf().sum() == 1
