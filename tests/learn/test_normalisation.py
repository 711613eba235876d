"""Static batch normalisation by hand, and against torch's running statistics."""

import pytest
import torch
from torch import nn

from grapevine.core.errors import Mistake
from grapevine.learn.networks import build
from grapevine.learn.normalisation import StaticBatchNorm2d, batch_statistics, combine_statistics, load_statistics


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n, shape, seed=0):
    return torch.randn(n, *shape, generator=generator(seed)).contiguous(memory_format=torch.channels_last)


def test_sbn_trains_like_bn_and_tracks_nothing():
    shape = (3, 16, 16)
    static, tracked = (build("wrn28x2", shape, 4, norm).train() for norm in ("sbn", "bn"))
    x = images(6, shape)
    assert torch.equal(static(x), tracked(x))  # same seed, same weights, same batch
    extra = set(tracked.state()) - set(static.state())
    assert {n.rsplit(".", 1)[1] for n in extra} == {"running_mean", "running_var", "num_batches_tracked"}


def cumulative(shape, batches):
    """HeteroFL's way: everything through BatchNorm2d(momentum=None) in training mode."""
    net = build("cnn", shape, 4, "bn").train()
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for m in layers.values():
        m.momentum = None
    for x in batches:
        net(x)
    return {n: (m.running_mean, m.running_var) for n, m in layers.items()}


def test_statistics_of_one_batch_are_torchs_in_every_layer():
    shape = (3, 8, 8)
    x = images(10, shape)
    net = build("cnn", shape, 4, "sbn")
    ours = combine_statistics([batch_statistics(net, [x])])
    theirs = cumulative(shape, [x])
    assert {n.rsplit(".", 1)[0] for n in ours} == set(theirs)
    for name, (mean, var) in theirs.items():
        torch.testing.assert_close(ours[f"{name}.mean"], mean)
        torch.testing.assert_close(ours[f"{name}.var"], var)


def test_statistics_of_clients_add_up():
    shape, net = (3, 8, 8), build("cnn", (3, 8, 8), 4, "sbn")
    batches = [images(5, shape, seed) * (seed + 1) + seed for seed in range(4)]
    split = [batch_statistics(net, part) for part in (batches[:1], [], batches[1:])]
    ours = combine_statistics(split)
    together = combine_statistics([batch_statistics(net, batches)])
    assert list(ours) == list(together)
    for name in ours:
        torch.testing.assert_close(ours[name], together[name])
    # Batches of one size: HeteroFL's mean of means is ours, in every layer.
    for name, (mean, _) in cumulative(shape, batches).items():
        torch.testing.assert_close(ours[f"{name}.mean"], mean)
    # The first layer sees all rows of all clients: the plain mean and variance of its inputs.
    seen = net.features[0](torch.cat(batches)).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(ours["features.1.mean"].double(), seen.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours["features.1.var"].double(), seen.var(1), rtol=1e-4, atol=1e-4)
    # What leaves a client is three numbers per channel, however many rows it has.
    assert {t.shape for n, t in split[2].items() if n.startswith("features.1.")} == {(16,)}


def test_evaluation_uses_the_statistics_whatever_the_batch():
    shape = (3, 8, 8)
    net, x = build("cnn", shape, 4, "sbn").eval(), images(10, shape)
    alone_before, together_before = net(x[:1]), net(x)[:1]
    assert not torch.allclose(alone_before, together_before)  # without statistics, the batch decides
    statistics = combine_statistics([batch_statistics(net, [images(20, shape, 1)])])
    assert load_statistics(net, statistics) is net
    torch.testing.assert_close(net(x[:1]), net(x)[:1])
    layer = net.features[1]
    assert isinstance(layer, StaticBatchNorm2d)
    y = images(2, (16, 3, 3))
    mean, var = (statistics[f"features.1.{part}"].view(1, -1, 1, 1) for part in ("mean", "var"))
    torch.testing.assert_close(layer(y), (y - mean) / (var + 1e-5).sqrt())
    assert not any("mean" in n or "var" in n for n in net.state())
    net.load(net.state())
    assert torch.equal(net(x[:1]), alone_before)  # new weights, old statistics gone


def test_computing_statistics_leaves_the_network_as_it_was():
    net = build("cnn", (3, 8, 8), 4, "sbn").train()
    net.head.eval()
    load_statistics(net, combine_statistics([batch_statistics(net, [images(9, (3, 8, 8))])]))
    mean, before = net.features[1].mean, net.state()
    batch_statistics(net, [images(9, (3, 8, 8), 1)])
    assert net.training and not net.head.training and net.features[1].mean is mean
    assert all(torch.equal(before[n], t) for n, t in net.state().items())
    assert not net.features[1]._forward_pre_hooks


def test_a_constant_channel_has_variance_zero():
    """Sums of squares cancel: the variance must not come out negative (its root would be NaN)."""
    net = build("cnn", (1, 8, 8), 4, "sbn").eval()
    x = torch.full((7, 1, 8, 8), 123.456)
    statistics = combine_statistics([batch_statistics(net, [x[:3], x[3:]])])
    assert all(t.min() >= 0 for n, t in statistics.items() if n.endswith(".var"))
    assert load_statistics(net, statistics)(x).isfinite().all()


def test_statistics_that_are_missing_or_do_not_fit():
    net = build("cnn", (1, 8, 8), 4, "sbn")
    with pytest.raises(Mistake, match="no client has data for the statistics of layer 'features.1'"):
        combine_statistics([batch_statistics(net, [])])
    good = combine_statistics([batch_statistics(net, [images(3, (1, 8, 8))])])
    with pytest.raises(Mistake, match="statistics do not fit: 'features.1.var' is in the network but not in the statistics"):
        load_statistics(net, {n: t for n, t in good.items() if n != "features.1.var"})
    assert combine_statistics([batch_statistics(build("mlp", (4,), 2), [torch.zeros(3, 4)])]) == {}
