"""The account of costs: operations against closed forms and against torch's own counter, bytes against the size of a model."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from grapevine import core, heads, models


def count(module, x, backward=True, inputs=False):
    """(all operations, those of the backward pass) of one pass over x."""
    meter = core.Meter()
    out = core.counted(module, meter)(x.requires_grad_(inputs))
    if backward:
        out.sum().backward()
    return meter.flops, meter.backward


def test_linear_layer_by_hand():
    layer, x = nn.Linear(7, 3), torch.zeros(5, 7)
    forward = 2 * 5 * 7 * 3  # a multiply and an add for each row and weight
    assert count(layer, x, backward=False) == (forward, 0)
    layer = nn.Linear(7, 3)
    assert count(layer, x) == (2 * forward, forward)  # ∂/∂W = gᵀx; nobody wants ∂/∂x
    layer = nn.Linear(7, 3)
    assert count(layer, x, inputs=True) == (3 * forward, 2 * forward)
    layer = nn.Linear(7, 3).requires_grad_(False)
    assert count(layer, torch.zeros(5, 7), inputs=True) == (2 * forward, forward)


@pytest.mark.parametrize("stride, groups, kind", [(1, 1, nn.Conv2d), (2, 1, nn.Conv2d), (1, 2, nn.Conv2d), (1, 1, None)])
def test_convolution_by_hand(stride, groups, kind):
    kind = kind or models.WeightNormConv2d
    layer = kind(4, 6, 3, stride=stride, padding=1, groups=groups)
    if kind is models.WeightNormConv2d:
        nn.init.ones_(layer.length)
    side = 8 // stride
    forward = 2 * 5 * (side * side * 6) * (4 // groups * 3 * 3)  # outputs × weights of a filter
    assert count(layer, torch.zeros(5, 4, 8, 8)) == (2 * forward, forward)


def test_layers_without_gradient_and_passes_without_backward_count_once():
    meter = core.Meter()
    net = core.counted(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), meter)
    first, second = 2 * 3 * 4 * 8, 2 * 3 * 8 * 2
    with torch.no_grad():
        net(torch.zeros(3, 4))
    assert (meter.flops, meter.backward) == (first + second, 0)
    loss = net(torch.zeros(3, 4)).sum()
    assert (meter.flops, meter.backward) == (2 * (first + second), 0)
    loss.backward()  # both layers' weights, and the second's inputs
    assert (meter.flops, meter.backward) == (3 * first + 4 * second, first + 2 * second)


@pytest.mark.parametrize(
    "name, shape", [("linear", (64,)), ("mlp", (64,)), ("cnn", (1, 28, 28)), ("cnn13", (3, 32, 32)), ("resnet9", (3, 32, 32)),
                    ("resnet18", (3, 32, 32)), ("wrn28x2", (3, 32, 32))]
)  # fmt: skip
def test_networks_agree_with_torchs_own_counter(name, shape):
    net, x = models.build(name, shape, 10).train(), torch.randn(2, *shape)
    net.use_rng(torch.Generator())
    with FlopCounterMode(display=False) as theirs:
        net(x)
        forward = theirs.get_total_flops()
    with FlopCounterMode(display=False) as theirs:
        net(x).sum().backward()
    flops, backward = count(net, x)
    assert flops - backward == forward
    assert flops == theirs.get_total_flops()


def test_extra_heads_are_counted():
    base = models.build("mlp", (64,), 10)
    source = core.ModelSource(lambda: heads.Projected(base, 32), torch.zeros(1, 64))
    meter = core.Meter()
    net = source.new(None, meter)
    d = base.features_dim
    with torch.no_grad():
        f = net.features(torch.zeros(3, 64))
        before = meter.flops
        net.projector(f)
    assert meter.flops - before == 2 * 3 * (d * 32 + 32 * d)
