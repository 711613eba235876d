"""What belongs to a data set itself: scales and the held-out part."""

import numpy as np
import torch

from grapevine.data.datasets import embedding_scale, hold_out, image_scale, table_scale

RNG = np.random.default_rng(0)


def test_the_held_out_part_never_changes():
    """Chosen by a fixed seed: the same strata give the same rows, and other strata do not disturb earlier ones."""
    strata = RNG.integers(0, 5, 200)
    np.testing.assert_array_equal(hold_out(strata), hold_out(strata.copy()))
    held = hold_out(np.array([0] * 10 + [1, 1] + [2]))
    assert (held[:10].sum(), held[10:12].sum(), held[12]) == (2, 1, 0)


def test_image_scale_is_mean_and_deviation_of_the_pixels():
    x = RNG.integers(0, 256, (2500, 3, 4, 5)).astype(np.uint8)
    scale = image_scale(torch.from_numpy(x))
    np.testing.assert_allclose(scale.mean.flatten(), (x / 255).mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(scale.std.flatten(), (x / 255).std((0, 2, 3)), rtol=1e-5)
    blank = image_scale(torch.full((3, 1, 2, 2), 7, dtype=torch.uint8))
    assert blank(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8)).abs().max() < 1e-6


def test_table_scale_standardises_and_survives_constant_features():
    x = torch.tensor([[1.0, 5, 1e9], [3, 5, 1e9]])
    assert table_scale(x)(x).tolist() == [[-1, 0, 0], [1, 0, 0]]
    assert table_scale(x)(torch.tensor([[3.0, 9.0, 9.0]])).tolist()[0][1:] == [0, 0]  # nothing was learned of these
    wide = torch.tensor([[2.0, 0], [-2, 0], [0, 1], [0, -1]])
    np.testing.assert_allclose(embedding_scale(wide)(wide), wide / np.sqrt(10 / 8), rtol=1e-6)
