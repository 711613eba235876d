"""Mixup by hand, and beta draws against scipy's distribution."""

import pytest
import torch
from scipy import stats

from grapevine.learn import mixing


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, grad=False):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).requires_grad_(grad)


@pytest.mark.parametrize("a, b", [(0.75, 0.75), (0.2, 0.2), (1, 1), (2.5, 0.5), (8, 3)])
def test_beta_draws_have_betas_distribution(a, b):
    rng = generator(7)
    draws = [mixing.draw_beta(a, b, rng) for _ in range(3000)]
    assert all(0 <= v <= 1 for v in draws)
    assert stats.kstest(draws, stats.beta(a, b).cdf).pvalue > 0.001
    mean, variance = stats.beta.stats(a, b)
    assert sum(draws) / 3000 == pytest.approx(mean, abs=4 * (variance / 3000) ** 0.5)
    assert torch.tensor(draws).var().item() == pytest.approx(variance, rel=0.1)


def test_beta_holds_for_tiny_parameters_and_repeats():
    draws = [mixing.draw_beta(1e-4, 1e-4, generator(seed)) for seed in range(200)]
    assert all(v < 1e-6 or v > 1 - 1e-6 for v in draws) and 60 < sum(v > 0.5 for v in draws) < 140
    assert mixing.draw_beta(0.75, 0.75, generator(3)) == mixing.draw_beta(0.75, 0.75, generator(3))


def test_mixup_mixes_rows_and_keeps_both_targets():
    x, y = randn(6, 3, 4, 4), torch.arange(6)
    state = torch.get_rng_state()
    mixed, (first, second), share = mixing.mixup(x, y, generator(1), 0.75)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, y) and sorted(second.tolist()) == y.tolist() and 0 <= share <= 1
    for i in range(6):
        torch.testing.assert_close(mixed[i], share * x[i] + (1 - share) * x[second[i]])
    again = mixing.mixup(x, y, generator(1), 0.75)
    assert again[2] == share and torch.equal(again[0], mixed)


def test_mixup_with_another_set_and_nearer_to_the_first():
    x, other = torch.zeros(4, 2), torch.ones(4, 2)
    shares = []
    for seed in range(30):
        mixed, (first, second), share = mixing.mixup(
            x, torch.arange(4), generator(seed), 0.75, (other, torch.arange(4, 8)), nearer=True
        )
        torch.testing.assert_close(mixed, torch.full((4, 2), 1 - share))
        assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [4, 5, 6, 7]
        shares.append(share)
    assert min(shares) >= 0.5
    # The same draws without the choice of the larger.
    plain = [mixing.mixup(x, torch.arange(4), generator(seed), 0.75)[2] for seed in range(30)]
    assert shares == [max(s, 1 - s) for s in plain] and min(plain) < 0.5
