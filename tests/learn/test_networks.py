"""Networks: sizes of the papers, weights as a function of the arguments, and static batch normalisation by hand."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from grapevine.core.errors import Mistake
from grapevine.learn.layers import Dropout, WeightNormConv2d
from grapevine.learn.networks import Network, build, names, parameter_count, wrap
from grapevine.learn.normalisation import NORMS

SMALLEST = {
    "linear": (1, 2, 2), "mlp": (1, 2, 2), "cnn": (1, 4, 4), "cnn13": (3, 12, 12), "resnet8": (1, 8, 8), "resnet9": (3, 8, 8),
    "resnet17": (1, 8, 8), "resnet18": (3, 8, 8), "resnet18-imagenet": (3, 32, 32), "wrn28x2": (3, 4, 4),
}  # fmt: skip
WITH_HEAD = [name for name in names() if name not in ("resnet8", "resnet17")]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n, shape, seed=0):
    return torch.randn(n, *shape, generator=generator(seed)).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "name, shape, classes, count",
    [
        ("linear", (64,), 10, 64 * 10 + 10),
        ("mlp", (64,), 10, 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10),
        ("mlp:8", (64,), 10, 64 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 10 + 10),
        ("cnn", (1, 28, 28), 10, 9 * 16 + 16 + 9 * 16 * 32 + 32 + 32 * 7 * 7 * 10 + 10),
        ("cnn13", (3, 32, 32), 10, 3_125_908),  # XCLP's code
        ("resnet8", (3, 32, 32), 10, 6_563_520),  # ProtoFSSL, Table 6
        ("resnet9", (3, 32, 32), 10, 6_563_520 + 5_120),
        ("resnet18", (3, 32, 32), 10, 11_173_962),  # FedAnchor: 11.17 M
        ("resnet17", (3, 32, 32), 10, 11_173_962 - 5_130),
        ("resnet18-imagenet", (3, 84, 84), 100, 11_227_812),  # XCLP's code
        ("wrn28x2", (3, 32, 32), 10, 1_467_610),  # SemiFL's code
        # An eighth of 128, 256 and 512 channels: 9·in·out weights (the last two 1·in·out), then bias, length, and BN's two.
        ("cnn13:0.125", (3, 32, 32), 10, 496 + 2 * 2_368 + 4_736 + 2 * 9_344 + 18_688 + 2_176 + 576 + 180),
        ("resnet9:0.25", (3, 32, 32), 10, 432 + 4_608 + 2 * 9_216 + 18_432 + 73_728 + 2 * 147_456 + 1_280),  # weights alone
        ("resnet8:0.25", (3, 32, 32), 10, 432 + 4_608 + 2 * 9_216 + 18_432 + 73_728 + 2 * 147_456),
        # 4, then 8, 16 and 32 channels: the stem; a block that widens and three that do not, three times; BN; the last layer.
        ("wrn28x2:0.25", (3, 32, 32), 10, 108 + (920 + 3 * 1_184) + (3_632 + 3 * 4_672) + (14_432 + 3 * 18_560) + 64 + 330),
    ],
)
def test_parameter_counts(name, shape, classes, count):
    assert parameter_count(build(name, shape, classes)) == count


def test_every_model_is_counted_and_has_a_smallest_size():
    assert names() == list(SMALLEST)


@pytest.mark.parametrize("name", WITH_HEAD)
@pytest.mark.parametrize("norm", NORMS)
def test_forward_and_backward_on_the_smallest_images(name, norm):
    if (name == "linear" and norm != "none") or (name == "mlp" and norm not in ("none", "bn")):
        with pytest.raises(Mistake, match=f"{name} takes norm .*not '{norm}'"):
            build(name, SMALLEST[name], 3, norm)
        return
    net = build(name, SMALLEST[name], 3, norm).train()
    net.use_rng(generator())
    x = images(4, SMALLEST[name])
    features = net.features(x)
    assert features.shape == (4, net.features_dim)
    out = net(x)
    assert out.shape == (4, 3) and out.dtype == torch.float32 and out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert sum(p.grad.abs().sum() for p in net.parameters()) > 0


@pytest.mark.parametrize("name, whole", [("resnet8", "resnet9"), ("resnet17", "resnet18")])
def test_without_the_last_layer(name, whole):
    shape = (1, 8, 8)
    net, x = build(name, shape, 3).eval(), images(2, shape)
    assert net.features_dim == 512
    assert torch.equal(net(x), build(whole, shape, 3).eval().features(x))


@pytest.mark.parametrize("name, norm", [("resnet9", "bn"), ("resnet9", "sbn"), ("mlp", "bn")])
def test_a_batch_of_one_value_per_channel_trains(name, norm):
    """torch raises for it; a client with one row of a small image must not stop the run."""
    net = build(name, SMALLEST[name], 3, norm).train()
    before = net.state()
    assert net(images(1, SMALLEST[name])).isfinite().all()
    # Such a batch has no variance, so it leaves no trace in the running statistics of the layers that saw one value.
    last = [n for n in before if n.endswith("running_var")][-1:]
    assert all(torch.equal(before[n], net.state()[n]) for n in last)


def test_digits_and_large_images_fit_the_small_cnn():
    assert build("cnn", (1, 8, 8), 10).features_dim == 32 * 2 * 2
    large = build("cnn", (3, 224, 130), 2)
    assert large.features(images(1, (3, 224, 130))).shape == (1, large.features_dim)
    assert large.features_dim == 32 * 8 * 8  # 56 / 7 by 32 / 4


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: build("cnn14", (3, 32, 32), 10),
            "no model is called 'cnn14' .did you mean 'cnn13'.*: choose one of linear",
        ),
        (lambda: build("cnn:0.5", (3, 32, 32), 10), "model cnn comes in one width: write cnn, not cnn:0.5"),
        (lambda: build("cnn13:half", (3, 32, 32), 10), "'half' in cnn13:half is not a width: write cnn13:0.25"),
        (lambda: build("wrn28x2:0.1", (3, 32, 32), 10), "a width of 0.1 leaves no whole number of 16 channels: use 0.125"),
        (lambda: build("resnet9:nan", (3, 32, 32), 10), "a width of nan leaves no whole number of 64 channels"),
        (lambda: build("cnn", (64,), 10), r"cnn needs images .* not rows of shape \(64,\): use linear or mlp"),
        (
            lambda: build("cnn13", (1, 8, 8), 10),
            "cnn13 needs images of at least 12×12, not 8×8: use one of linear, mlp, cnn, resnet8",
        ),
        (lambda: build("cnn", (1, 8, 8), 10, "layer"), "takes norm none, bn, gn, sbn, not 'layer'"),
    ],
)
def test_mistakes_are_one_sentence(call, words):
    with pytest.raises(Mistake, match=words):
        call()


# ---------------------------------------------------------------- initial weights


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "cnn13", "wrn28x2"])
def test_weights_are_a_function_of_the_arguments(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, (3, 16, 16), 5, seed=7).state()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again = build(name, (3, 16, 16), 5, seed=7).state()
    other = build(name, (3, 16, 16), 5, seed=8).state()
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_threads_do_not_disturb_each_other():
    alone = [build("cnn", (1, 8, 8), 10, seed=s).state() for s in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda s: build("cnn", (1, 8, 8), 10, seed=s).state(), range(8)))
    for a, b in zip(alone, together):
        assert all(torch.equal(a[n], b[n]) for n in a)


def test_initial_scale():
    """He et al. 2015: variance 2 / fan-in; elsewhere uniform in ±1/√fan-in, variance 1 / (3 fan-in)."""
    net = build("resnet9", (3, 32, 32), 10)
    conv = [m for m in net.modules() if isinstance(m, nn.Conv2d)][-1]
    assert conv.weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.01)
    dense = build("linear", (5000,), 10)
    assert dense.head.weight.var().item() == pytest.approx(1 / (3 * 5000), rel=0.03)
    assert dense.head.weight.abs().max() <= 5000**-0.5 and dense.head.bias.abs().max() <= 5000**-0.5


@pytest.mark.parametrize("name", ["resnet18", "wrn28x2"])
def test_deep_nets_without_norm_start_small(name):
    features = build(name, (3, 16, 16), 10, "none").eval().features(images(8, (3, 16, 16)))
    assert 0.01 < features.std() < 10


# ---------------------------------------------------------------- state and load


def test_state_is_a_contiguous_copy_in_order():
    net = build("cnn", (3, 8, 8), 10, "bn")
    state = net.state()
    assert list(state) == list(net.state_dict())
    assert "features.1.num_batches_tracked" in state and state["features.1.num_batches_tracked"].dtype == torch.int64
    assert all(t.is_contiguous() and t.device.type == "cpu" and not t.requires_grad for t in state.values())
    state["head.weight"].zero_()
    assert net.head.weight.abs().sum() > 0


@pytest.mark.parametrize("name, norm", [("cnn", "none"), ("cnn13", "bn"), ("wrn28x2", "gn"), ("resnet9", "sbn")])
def test_load_gives_the_same_outputs_and_keeps_channels_last(name, norm):
    shape = (3, 16, 16)
    source, target = (build(name, shape, 4, norm, seed=s).eval() for s in (1, 2))
    memory = {n: p.data_ptr() for n, p in target.named_parameters()}
    x = images(3, shape)
    assert not torch.equal(source(x), target(x))
    assert target.load(source.state()) is target
    assert torch.equal(source(x), target(x))
    assert memory == {n: p.data_ptr() for n, p in target.named_parameters()}
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in target.parameters() if p.dim() == 4)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda w: w.pop("features.0.bias"), "'features.0.bias' is in the network but not in the weights"),
        (lambda w: w.update(more=torch.zeros(1)), "'more' is in the weights but not in the network"),
        (
            lambda w: w.update({"head.bias": torch.zeros(3)}),
            r"'head.bias' is float32 \(3,\) in the weights and float32 \(10,\) in the net",
        ),
        (lambda w: w.update({"head.bias": torch.zeros(10).double()}), r"'head.bias' is float64 \(10,\)"),
    ],
)
def test_load_names_the_first_tensor_that_differs(change, words):
    net = build("cnn", (1, 8, 8), 10)
    before, weights = net.state(), {n: w + 1 for n, w in net.state().items()}
    change(weights)
    with pytest.raises(Mistake, match=words):
        net.load(weights)
    assert all(torch.equal(before[n], w) for n, w in net.state().items())  # nothing was half loaded


def test_deepcopy_is_independent():
    net = build("cnn13", (3, 12, 12), 3).train()
    net.use_rng(generator())
    twin = copy.deepcopy(net)
    x = images(2, (3, 12, 12))
    assert torch.equal(net.eval()(x), twin.eval()(x))
    with torch.no_grad():
        twin.head.length.zero_()
    assert not torch.equal(net(x), twin(x))
    with pytest.raises(Mistake, match="use_rng"):  # the copy is somebody else's: it gets a generator of its own
        twin.train()(x)


# ---------------------------------------------------------------- layers


def test_dropout_draws_from_its_own_generator_only():
    drop, x = Dropout(0.3).train(), torch.ones(200, 500)
    before = torch.get_rng_state()
    with pytest.raises(Mistake, match="no generator"):
        drop(x)
    drop.generator = generator(5)
    first = drop(x)
    drop.generator = generator(5)
    assert torch.equal(first, drop(x)) and not torch.equal(first, drop(x))
    assert torch.equal(before, torch.get_rng_state())
    assert sorted(first.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    # 100,000 coins: four standard deviations of the mean.
    assert first.mean().item() == pytest.approx(1, abs=4 * math.sqrt(0.3 / 0.7 / x.numel()))
    assert torch.equal(drop.eval()(x), x)


def test_dropout_of_everything_and_of_whole_channels():
    drop = Dropout(1.0).train()
    drop.generator = generator()
    assert torch.equal(drop(torch.ones(5, 5)), torch.zeros(5, 5))
    drop = Dropout(0.5, whole=True).train()
    drop.generator = generator()
    y = drop(torch.ones(8, 16, 3, 3))
    assert torch.equal(y, y[..., :1, :1].expand_as(y)) and 0 < y.count_nonzero() < y.numel()


def test_weight_norm_sets_the_length_of_every_filter():
    conv, x = WeightNormConv2d(3, 5, 3, padding=1, bias=False), images(2, (3, 6, 6))
    with torch.no_grad():
        conv.length.copy_(torch.arange(1.0, 6.0))
    filters = [length * v / v.square().sum().sqrt() for length, v in zip(conv.length, conv.weight)]
    torch.testing.assert_close(conv(x), F.conv2d(x, torch.stack(filters), padding=1))
    before = conv(x)
    conv.weight.data.mul_(7)
    torch.testing.assert_close(conv(x), before)  # direction only


def test_cnn13_and_mini_imagenet_features_have_length_one():
    for name, shape in (("cnn13", (3, 12, 12)), ("resnet18-imagenet", (3, 32, 32))):
        length = build(name, shape, 10).eval().features(images(3, shape)).norm(dim=1)
        torch.testing.assert_close(length, torch.ones(3))


def test_resnet9_is_table_6_written_out():
    net = build("resnet9", (3, 32, 32), 10)
    w = [m.weight for m in net.modules() if isinstance(m, nn.Conv2d)]

    def conv(x, i):
        return F.relu(F.conv2d(x, w[i - 1], padding=1))

    x = images(2, (3, 32, 32))
    y = F.max_pool2d(conv(conv(x, 1), 2), 2)
    y = y + conv(conv(y, 3), 4)  # from the beginning of Conv3 to the end of Conv4
    y = F.max_pool2d(conv(y, 5), 2)
    y = F.max_pool2d(conv(y, 6), 2)
    y = y + conv(conv(y, 7), 8)
    y = F.max_pool2d(y, 4).flatten(1) @ net.head.weight.T
    torch.testing.assert_close(net(x), y)


def test_group_norm_has_32_groups_or_pairs_of_channels():
    def groups(name):
        return {m.num_channels: m.num_groups for m in build(name, (3, 16, 16), 10, "gn").modules() if isinstance(m, nn.GroupNorm)}

    assert groups("resnet9") == {64: 32, 128: 32, 256: 32, 512: 32}
    assert groups("wrn28x2") == {16: 8, 32: 16, 64: 32, 128: 32}


# ---------------------------------------------------------------- any module


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Sequential(nn.Dropout(0.1)))
        self.head = nn.Linear(4 * 6 * 6, 3)


def test_wrap_copies_and_replaces_dropout():
    own = Own()
    net = wrap(own)
    assert isinstance(net, Network) and net.features_dim == 144
    assert isinstance(own.features[1], nn.Dropout2d)
    kinds = [(m.p, m.whole) for m in net.modules() if isinstance(m, Dropout)]
    assert kinds == [(0.5, True), (0.1, False)]
    before = torch.get_rng_state()
    net.use_rng(generator())
    net.train()(images(2, (1, 8, 8)))
    assert torch.equal(before, torch.get_rng_state())
    x = images(2, (1, 8, 8))
    torch.testing.assert_close(net.eval()(x), own.head(own.eval().features(x)))
    with torch.no_grad():
        net.head.bias.add_(1)
    assert not torch.equal(net.head.bias, own.head.bias)


def test_wrap_refuses_what_it_would_lose_or_cannot_repeat():
    with pytest.raises(Mistake, match="Linear has no module called 'features'"):
        wrap(nn.Linear(2, 2))
    own = Own()
    own.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(Mistake, match="'scale' of Own is neither"):
        wrap(own)
    with pytest.raises(Mistake, match="float64: call .float()"):
        wrap(Own().double())
    for layer in (nn.AlphaDropout(), nn.RReLU(), nn.MultiheadAttention(4, 1, dropout=0.1)):
        own = Own()
        own.features.append(layer)
        with pytest.raises(Mistake, match=f"'4' \\({type(layer).__name__}\\) draws from torch's global generator"):
            wrap(own)
