"""What clients' updates tell, by hand."""

import math

import pytest
import torch

from grapevine.learn import bases


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
