"""Pseudo-labels: against scipy, and numbers worked out by hand."""

import math

import pytest
import torch
from scipy import stats

from grapevine.learn import labels


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, grad=False):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).requires_grad_(grad)


def check_gradient(loss, x):
    """Finite and as finite differences say."""
    assert torch.autograd.gradcheck(loss, (x.double().requires_grad_(),))


def test_sharpen_by_hand():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    # T = 1/2 squares: 0.36, 0.09, 0.01 of 0.46
    torch.testing.assert_close(labels.sharpen(p, 0.5), torch.tensor([[36 / 46, 9 / 46, 1 / 46]]))
    torch.testing.assert_close(labels.sharpen(p, 1.0), p)


def test_sharpen_holds_at_the_ends():
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for T in (0.001, 0.5, 2.0):
        assert torch.equal(labels.sharpen(p, T), p)
    many = torch.full((1, 1000), 0.001)
    torch.testing.assert_close(labels.sharpen(many, 0.01), many)


def test_sharpen_has_a_gradient():
    check_gradient(lambda z: labels.sharpen(z.softmax(1), 0.5), randn(3, 4))


def test_the_likeliest_class_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.1], [-5.0, 1.0]])
    found, mask, confidence = labels.likeliest(logits, 0.6)
    expected = [1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.1)), 1 / (1 + math.exp(-6))]
    assert found.tolist() == [0, 1, 1] and mask.tolist() == [True, False, True]
    assert confidence.tolist() == pytest.approx(expected)


def test_the_threshold_may_be_reached_exactly_and_nan_reaches_none():
    assert labels.likeliest(torch.zeros(1, 2), 0.5)[1].tolist() == [True]
    assert [len(t) for t in labels.likeliest(torch.empty(0, 3), 0.5)] == [0, 0, 0]
    assert not labels.likeliest(torch.full((1, 3), math.nan), 0.0)[1].any()


def test_entropy_confidence_by_hand():
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [2.0, 2.0, 0, 0]])
    assert labels.entropy_confidence(p).tolist() == pytest.approx([0, 1, 0.5, 0, 0.5])
    assert labels.entropy_confidence(torch.ones(3, 1)).tolist() == [1, 1, 1]


def test_entropy_confidence_against_scipy():
    p = randn(50, 7).softmax(1)
    expected = [1 - stats.entropy(row) / math.log(7) for row in p.numpy()]
    assert labels.entropy_confidence(p).tolist() == pytest.approx(expected)


def test_one_hot_leaves_the_unknown_empty():
    assert labels.one_hot(torch.tensor([2, -1, 0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_vote_by_hand():
    rows = {
        name: labels.one_hot(torch.tensor(c), 3) for name, c in dict(own=[2, 2, 0, 1], a=[1, 1, 1, 1], b=[0, 1, 0, 2]).items()
    }
    assert labels.vote(rows["own"], [rows["a"], rows["b"]]).tolist() == [2, 1, 0, 1]  # three opinions: the own one
    assert labels.vote(rows["own"], [rows["a"], rows["b"]], "code").tolist() == [0, 1, 0, 1]
    assert labels.vote(rows["own"], []).tolist() == [2, 2, 0, 1]
