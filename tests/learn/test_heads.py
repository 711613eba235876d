"""Heads beside a network's own."""

import torch

from grapevine.learn import heads
from grapevine.learn import networks as models


def test_second_heads_repeat_and_depend_on_the_seed():
    build = lambda seed: heads.TwoHeads(models.build("mlp", (1, 8, 8), 10, seed=seed), 128).anchor.weight  # noqa: E731
    assert torch.equal(build(1), build(1)) and not torch.equal(build(1), build(2))
    assert build(1).shape == (128, 64) and build(1).abs().max() <= 1 / 8
