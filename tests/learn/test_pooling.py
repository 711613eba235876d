"""The fused 2×2 maximum and ReLU against torch's own two layers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from grapevine.learn.layers import PoolReLU
from grapevine.learn.networks import build


def both(x, gradient):
    """(value, gradient) of torch's layers and of ours."""
    results = []
    for layer in (lambda t: F.relu(F.max_pool2d(t, 2)), PoolReLU()):
        t = x.clone(memory_format=torch.preserve_format).requires_grad_()
        out = layer(t)
        out.backward(gradient)
        results.append((out.detach(), t.grad))
    return results


def same(a, b):
    return torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5)) and torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("size", [(3, 5, 8, 8), (2, 16, 7, 9), (1, 1, 2, 2), (4, 3, 5, 4), (0, 2, 4, 4)])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_as_torch(size, memory_format):
    draw = torch.Generator().manual_seed(0)
    n, c, h, w = size
    # Small whole numbers: many ties, many zeros, and as many negatives.
    x = torch.randint(-2, 3, size, generator=draw).float().contiguous(memory_format=memory_format)
    gradient = torch.randn(n, c, h // 2, w // 2, generator=draw)
    (value, grad), (our_value, our_grad) = both(x, gradient)
    assert torch.equal(value, our_value)
    assert torch.equal(grad, our_grad)


def test_nan_is_not_hidden():
    x = torch.zeros(1, 1, 4, 4)
    for at in ((0, 0), (0, 3), (3, 0), (3, 3)):  # each of the four places of a window
        x[0, 0][at] = torch.nan
    x[0, 0, 1, 1] = 5.0
    (value, grad), (our_value, our_grad) = both(x, torch.ones(1, 1, 2, 2))
    assert our_value.isnan().all() and same(value, our_value)
    assert same(grad, our_grad)


def test_gradients_that_lie_otherwise_in_memory():
    x = torch.randn(2, 3, 6, 6)
    for gradient in (torch.randn(1, 3, 1, 1).expand(2, 3, 3, 3), torch.randn(2, 3, 3, 3).transpose(2, 3)):
        (_, grad), (_, our_grad) = both(x, gradient)
        assert torch.equal(grad, our_grad)


def test_two_threads_at_once():
    rows = [torch.randn(20, 8, 14, 14, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda x: both(x, torch.ones(20, 8, 7, 7)), rows))
    assert all(torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in results)


def test_what_follows_may_work_in_place_and_a_second_derivative_is_refused():
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    PoolReLU()(x).mul_(2).sum().backward()
    assert set(x.grad.unique().tolist()) <= {0.0, 2.0}
    (first,) = torch.autograd.grad(PoolReLU()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_without_gradients_and_without_a_batch():
    x = torch.randn(2, 4, 4)
    with torch.no_grad():
        assert torch.equal(PoolReLU()(x[None])[0], PoolReLU()(x))


def test_doubles_go_torchs_way():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PoolReLU(), (x,))


def test_gradients_keep_the_memory_format():
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = PoolReLU()(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    out.sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


def test_the_small_cnn_is_its_layers():
    net = build("cnn", (1, 9, 12), classes=4)
    x = torch.randn(5, 1, 9, 12)
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    z = x
    for conv in convolutions:
        z = F.relu(F.max_pool2d(conv(z), 2))
    assert torch.equal(net(x), net.head(z.flatten(1)))
