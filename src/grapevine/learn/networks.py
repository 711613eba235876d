"""Networks, each split into `features` (ends in a flat vector) and `head`, and what static batch normalisation needs.

    net = build("cnn", (1, 28, 28), classes=10)

Initial weights are a function of the arguments alone. Nothing here draws from, or seeds, torch's global generator:
clients run in parallel threads, and whatever is random has its own `torch.Generator`.

| name                | what                                                                            | own norm |
|---------------------|---------------------------------------------------------------------------------|----------|
| `linear`            | softmax regression                                                              | none     |
| `mlp`               | two hidden layers, 128 and 64 units                                             | none     |
| `cnn`               | 3×3 convolutions of 16 and 32 channels, each halved by max pooling, one linear layer | none |
| `cnn13`             | the 13-layer CNN of XCLP, after Tarvainen & Valpola 2017                        | bn       |
| `resnet8`, `resnet9`| ProtoFSSL's Table 6; `resnet8` has no last layer                                | none     |
| `resnet17`, `resnet18` | He et al. 2016 for small images (3×3 stem); `resnet17` has no last layer     | bn       |
| `resnet18-imagenet` | He et al. 2016 with its 7×7/2 stem, features of length 1 (XCLP on Mini-ImageNet) | bn      |
| `wrn28x2`           | Zagoruyko & Komodakis 2016, as in MixMatch, SemiFL and FedAnchor                | bn       |

Norms: `none`; `bn`, batch; `gn`, group (32 groups, fewer where there are under 64 channels); `sbn`, static batch
(see `StaticBatchNorm2d`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grapevine.core.errors import Mistake
from grapevine.core.network import Network, check_same

NORMS = ("none", "bn", "gn", "sbn")


# ---------------------------------------------------------------- layers


class Dropout(nn.Module):
    """Dropout whose mask comes from the generator that `Network.use_rng` set; `whole=True` drops whole channels."""

    def __init__(self, p: float = 0.5, whole: bool = False):
        super().__init__()
        self.p = p
        self.whole = whole
        self.generator: torch.Generator | None = None

    def use_rng(self, generator: torch.Generator) -> None:
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.generator is None:
            raise Mistake("dropout has no generator: call network.use_rng(generator) before training, or network.eval().")
        like = x[(...,) + (slice(0, 1),) * (x.dim() - 2)] if self.whole else x
        keep = torch.empty_like(like, device=self.generator.device).bernoulli_(1 - self.p, generator=self.generator)
        # p = 1 keeps nothing: 0 / 0 must be 0.
        return x * (keep / max(1 - self.p, torch.finfo(x.dtype).tiny)).to(x.device)

    def __getstate__(self) -> dict:
        # A copy of a network is somebody else's: it must be given a generator of its own.
        return {**super().__getstate__(), "generator": None}

    def extra_repr(self) -> str:
        return f"p={self.p}" + (", whole" if self.whole else "")


class Normalise(nn.Module):
    """Feature vectors of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


class GlobalMean(nn.Module):
    """Mean over the map. (Not AdaptiveAvgPool2d: its gradient does not repeat bit for bit on CUDA.)"""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class GlobalMax(nn.Module):
    """Maximum over the map: ProtoFSSL's MaxPool4 for maps of any size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, x.shape[2:]).flatten(1)


class PoolReLU(nn.Module):
    """2×2 maximum, then ReLU: the same values in this order from a quarter of the work; on the CPU in one pass (`pooling`)."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() != 4:
            return F.relu(F.max_pool2d(x, 2))
        from grapevine.learn.pooling import PoolReLUFunction

        return PoolReLUFunction.apply(x)


class WeightNormConv2d(nn.Conv2d):
    """Salimans & Kingma 2016: the weight is `length` · `weight` / ‖`weight`‖, per output channel."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.length = nn.Parameter(torch.empty(self.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, _with_length(self.weight, self.length), self.bias)


class WeightNormLinear(nn.Linear):
    """`WeightNormConv2d`'s linear sister."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.length = nn.Parameter(torch.empty(self.out_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _with_length(self.weight, self.length), self.bias)


def _with_length(weight: Tensor, length: Tensor) -> Tensor:
    ratio = length / weight.flatten(1).norm(dim=1)
    return weight * ratio.view(-1, *[1] * (weight.dim() - 1))


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that survives a batch of one value per channel: running statistics normalise it then."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_running_statistics(self, x) if self.training and x.numel() == self.num_features else super().forward(x)


class BatchNorm1d(nn.BatchNorm1d):
    """As `BatchNorm2d`, for vectors."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_running_statistics(self, x) if self.training and x.numel() == self.num_features else super().forward(x)


def _by_running_statistics(layer: BatchNorm1d | BatchNorm2d, x: Tensor) -> Tensor:
    return F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, False, 0.0, layer.eps)


class StaticBatchNorm2d(nn.Module):
    """Static batch normalisation (HeteroFL, Diao et al. 2021; SemiFL, Diao et al. 2022).

    Training normalises by the batch and tracks nothing, so that no running statistics of private data are averaged from round to
    round: `Network.state` holds `weight` and `bias` only. Evaluation normalises by `mean` and `var`, computed apart:
    `batch_statistics` on each client, over its un-augmented data, `combine_statistics` on the server, `load_statistics` wherever
    the network predicts. Evaluation *without* them normalises by the batch at hand: predictions then depend on which rows are
    predicted together.

    ProtoFSSL calls another thing sBN: its code sets Keras' momentum to 0, which is ordinary batch normalisation whose running
    statistics are those of the last training batch, averaged over clients with the weights (`bn` with torch's momentum at 1).
    """

    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(num_features))
        self.bias = nn.Parameter(torch.empty(num_features))
        self.register_buffer("mean", None, persistent=False)
        self.register_buffer("var", None, persistent=False)

    def forget_statistics(self) -> None:
        self.mean = self.var = None

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.mean is not None:
            return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, False, 0.0, self.eps)
        if x.numel() == self.num_features:  # one value per channel has no variance: scale and shift only
            return x * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def _norm(norm: str, channels: int) -> nn.Module:
    if norm == "bn":
        return BatchNorm2d(channels)
    if norm == "sbn":
        return StaticBatchNorm2d(channels)
    if norm == "gn":
        # At least two channels a group: with one, a 1×1 map would be normalised to zero.
        return nn.GroupNorm(math.gcd(32, max(1, channels // 2)), channels)
    return nn.Identity()


# ---------------------------------------------------------------- the models


def _linear(shape, classes, norm):
    return Network(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape, classes, norm):
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((math.prod(shape), 128), (128, 64)):
        layers += [nn.Linear(before, after), *([BatchNorm1d(after)] if norm == "bn" else []), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(64, classes))


def _cnn(shape, classes, norm):
    channels, *sides = shape
    layers: list[nn.Module] = []
    for before, after in ((channels, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), _norm(norm, after), PoolReLU()]
    sides = [s // 4 for s in sides]
    pool = [max(1, s // 8) for s in sides]  # large images: at most 15×15 cells reach the last layer
    if max(pool) > 1:
        layers.append(nn.AvgPool2d(tuple(pool)))
    d = 32 * math.prod(s // p for s, p in zip(sides, pool))
    return Network(nn.Sequential(*layers, nn.Flatten()), nn.Linear(d, classes))


def _cnn13(shape, classes, norm):
    def block(before, after, size=3, padding=1):
        return [WeightNormConv2d(before, after, size, padding=padding), _norm(norm, after), nn.LeakyReLU(0.1, inplace=True)]

    features = nn.Sequential(
        *block(shape[0], 128), *block(128, 128), *block(128, 128), nn.MaxPool2d(2), Dropout(0.5),
        *block(128, 256), *block(256, 256), *block(256, 256), nn.MaxPool2d(2), Dropout(0.5),
        *block(256, 512, padding=0), *block(512, 256, 1, 0), *block(256, 128, 1, 0), GlobalMean(), Normalise(),
    )  # fmt: skip
    return Network(features, WeightNormLinear(128, classes))


class _Skip(nn.Module):
    """x + branch(x)."""

    def __init__(self, *branch: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def _resnet9(shape, classes, norm):
    def block(before, after):
        # No bias even without norm: Table 6 counts weights alone.
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), _norm(norm, after), nn.ReLU(inplace=True)]

    features = nn.Sequential(
        *block(shape[0], 64),
        *block(64, 128), nn.MaxPool2d(2), _Skip(*block(128, 128), *block(128, 128)),
        *block(128, 256), nn.MaxPool2d(2),
        *block(256, 512), nn.MaxPool2d(2), _Skip(*block(512, 512), *block(512, 512)), GlobalMax(),
    )  # fmt: skip
    return Network(features, nn.Linear(512, classes, bias=False))


def _resnet8(shape, classes, norm):
    return Network(_resnet9(shape, classes, norm).features, nn.Identity(), 512)


class _Basic(nn.Module):
    """He et al. 2016, two 3×3 convolutions and a shortcut; the norm's shift stands in for a bias."""

    def __init__(self, before: int, after: int, stride: int, norm: str):
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=bias)
        self.norm1 = _norm(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=bias)
        self.norm2 = _norm(norm, after)
        same = stride == 1 and before == after
        narrow = [] if same else [nn.Conv2d(before, after, 1, stride, bias=bias), _norm(norm, after)]
        self.shortcut = nn.Sequential(*narrow)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + y)


def _resnet18(shape, classes, norm):
    stem = [nn.Conv2d(shape[0], 64, 3, padding=1, bias=norm == "none"), _norm(norm, 64), nn.ReLU(inplace=True)]
    return Network(nn.Sequential(*stem, *_resnet18_body(norm), GlobalMean()), nn.Linear(512, classes))


def _resnet18_body(norm):
    widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    return [
        block
        for before, after, stride in widths
        for block in (_Basic(before, after, stride, norm), _Basic(after, after, 1, norm))
    ]


def _resnet17(shape, classes, norm):
    return Network(_resnet18(shape, classes, norm).features, nn.Identity(), 512)


def _resnet18_imagenet(shape, classes, norm):
    stem = [nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=norm == "none"), _norm(norm, 64), nn.ReLU(inplace=True)]
    stem.append(nn.MaxPool2d(3, 2, padding=1))
    return Network(nn.Sequential(*stem, *_resnet18_body(norm), GlobalMean(), Normalise()), nn.Linear(512, classes))


class _Wide(nn.Module):
    """Zagoruyko & Komodakis 2016: norm and activation first; where the width changes, the shortcut sees them too."""

    def __init__(self, before: int, after: int, stride: int, norm: str):
        super().__init__()
        bias = norm == "none"
        self.norm1 = _norm(norm, before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=bias)
        self.norm2 = _norm(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=bias)
        self.shortcut = None if before == after else nn.Conv2d(before, after, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.norm1(x), 0.1)
        y = self.conv2(F.leaky_relu(self.norm2(self.conv1(a)), 0.1))
        return y + (x if self.shortcut is None else self.shortcut(a))


def _wrn28x2(shape, classes, norm):
    blocks = []
    for before, after, stride in ((16, 32, 1), (32, 64, 2), (64, 128, 2)):
        blocks += [_Wide(before, after, stride, norm), *(_Wide(after, after, 1, norm) for _ in range(3))]
    stem = nn.Conv2d(shape[0], 16, 3, padding=1, bias=norm == "none")
    features = nn.Sequential(stem, *blocks, _norm(norm, 128), nn.LeakyReLU(0.1), GlobalMean())
    return Network(features, nn.Linear(128, classes))


# name: (function, own norm, norms it takes, smallest side of an image or None where any row will do)
_MODELS = {
    "linear": (_linear, "none", ("none",), None),
    "mlp": (_mlp, "none", ("none", "bn"), None),
    "cnn": (_cnn, "none", NORMS, 4),
    "cnn13": (_cnn13, "bn", NORMS, 12),
    "resnet8": (_resnet8, "none", NORMS, 8),
    "resnet9": (_resnet9, "none", NORMS, 8),
    "resnet17": (_resnet17, "bn", NORMS, 8),
    "resnet18": (_resnet18, "bn", NORMS, 8),
    "resnet18-imagenet": (_resnet18_imagenet, "bn", NORMS, 32),
    "wrn28x2": (_wrn28x2, "bn", NORMS, 4),
}


def names() -> list[str]:
    """The models `build` knows."""
    return list(_MODELS)


def parameter_count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def build(name: str, shape: tuple[int, ...], classes: int, norm: str | None = None, seed: int = 0) -> Network:
    """A network for rows of this shape, (features,) or (channels, height, width); `norm=None` is the model's own.

    Weights depend on the arguments alone. Networks with convolutions come channels-last.
    """
    if name not in _MODELS:
        raise Mistake(f"no model is called {name!r}: choose one of {', '.join(_MODELS)}.")
    make, own_norm, norms, smallest = _MODELS[name]
    norm = own_norm if norm is None else norm
    if norm not in norms:
        raise Mistake(f"model {name} takes norm {', '.join(norms)}, not {norm!r}.")
    _check_shape(name, tuple(shape), smallest)
    with torch.device("meta"):  # layers initialise themselves from the global generator; here they cannot
        net = make(tuple(shape), classes, norm)
    _allocate(net)
    _initialise(net, torch.Generator().manual_seed(seed), norm)
    return _channels_last(net)


def _check_shape(name: str, shape: tuple[int, ...], smallest: int | None) -> None:
    if smallest is None:
        return
    if len(shape) != 3:
        raise Mistake(f"model {name} needs images (channels, height, width), not rows of shape {shape}: use linear or mlp.")
    if min(shape[1:]) < smallest:
        small = [n for n, (*_, least) in _MODELS.items() if least is None or least <= min(shape[1:])]
        sizes = f"of at least {smallest}×{smallest}, not {shape[1]}×{shape[2]}"
        raise Mistake(f"model {name} needs images {sizes}: use one of {', '.join(small)}.")


def _allocate(net: Network) -> None:
    """Memory on the CPU for a network without any. (Module.to_empty does it too, but imports half a second of sympy.)"""
    for m in net.modules():
        for name, p in m.named_parameters(recurse=False):
            setattr(m, name, nn.Parameter(torch.empty(p.shape)))
        for name, b in m.named_buffers(recurse=False):
            setattr(m, name, torch.empty(b.shape, dtype=b.dtype))


@torch.no_grad()
def _initialise(net: Network, rng: torch.Generator, norm: str) -> None:
    """He et al. 2015 for the residual networks' convolutions, torch's own bounds (±1/√fan-in) for all else."""
    residual = any(isinstance(m, (_Skip, _Basic, _Wide)) for m in net.modules())
    for m in net.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            if residual and isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu", generator=rng)
            else:
                nn.init.kaiming_uniform_(m.weight, a=math.sqrt(5), generator=rng)
            if m.bias is not None:
                bound = m.weight[0].numel() ** -0.5
                m.bias.uniform_(-bound, bound, generator=rng)
            if isinstance(m, (WeightNormConv2d, WeightNormLinear)):
                m.length.copy_(m.weight.flatten(1).norm(dim=1))
        elif hasattr(m, "reset_parameters"):
            m.reset_parameters()
    if norm == "none":
        # Without a norm each block would double the variance; blocks that start as the identity do not (Zhang et al. 2019).
        for m in net.modules():
            if isinstance(m, (_Basic, _Wide)):
                nn.init.zeros_(m.conv2.weight)
                nn.init.zeros_(m.conv2.bias)


def wrap(module: nn.Module) -> Network:
    """A copy of any module that has modules `features` and `head`, as a network: `head(features(x))`, whatever its own `forward`.

    Dropout layers are replaced by ours, which draw from the generator that `Network.use_rng` sets.
    """
    for part in ("features", "head"):
        if not isinstance(getattr(module, part, None), nn.Module):
            raise Mistake(f"{type(module).__name__} has no module called {part!r}: give it `features` and `head`.")
    module = copy.deepcopy(module)
    net = Network(module.features, module.head, getattr(module, "features_dim", None))
    own = set(net.state_dict())
    for name, t in module.state_dict().items():
        if name not in own:
            raise Mistake(f"{name!r} of {type(module).__name__} is neither in its `features` nor in its `head`: move it there.")
        if t.is_floating_point() and t.dtype != torch.float32:
            raise Mistake(f"{name!r} of {type(module).__name__} is {t.dtype}: call .float() on the module first.")
    _replace_dropout(net)
    return _channels_last(net)


def _replace_dropout(parent: nn.Module) -> None:
    for name, m in parent.named_children():
        if type(m) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
            setattr(parent, name, Dropout(m.p, whole=type(m) is not nn.Dropout).train(m.training))
        elif _draws_inside(m):
            raise Mistake(f"layer {name!r} ({type(m).__name__}) draws from torch's global generator: use Dropout or none.")
        else:
            _replace_dropout(m)


def _draws_inside(m: nn.Module) -> bool:
    if isinstance(m, (nn.RNNBase, nn.MultiheadAttention)):
        return m.dropout > 0
    return isinstance(m, (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU))


def _channels_last(net: Network) -> Network:
    if any(isinstance(m, nn.Conv2d) for m in net.modules()):
        net.to(memory_format=torch.channels_last)
    return net


# ---------------------------------------------------------------- statistics for static batch normalisation


@torch.no_grad()
def batch_statistics(net: Network, batches: Iterable[Tensor | tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """Per static batch norm layer `L`: `L.count`, `L.sum` and `L.square` (sum of squares) of what comes in, per channel.

    One pass over un-augmented batches (inputs, or tuples that begin with them); dropout is off, and every layer normalises by
    the batch, as in training, so that deeper layers see what they saw there. These are sums: they can be added up under masks.
    HeteroFL's code instead passes all data through BatchNorm2d(momentum=None), the plain mean of the batches' means and
    variances. With batches of one size the means agree; our variance is that of all activations together, so it does not
    depend on how the data is cut into batches and clients.
    """
    layers = _static_layers(net)
    sums = {name: torch.zeros(3, layer.num_features, dtype=torch.float64) for name, layer in layers.items()}

    def watch(name):
        def hook(layer, inputs):
            (x,) = inputs
            n = x.numel() / layer.num_features
            var, mean = (t.double().cpu() for t in torch.var_mean(x, (0, 2, 3), correction=0))
            sums[name] += torch.stack([torch.full_like(mean, n), n * mean, n * (var + mean**2)])

        return hook

    modes = [(m, m.training) for m in net.modules()]
    kept = [(layer, layer.mean, layer.var) for layer in layers.values()]
    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        net.eval()
        for layer in layers.values():
            layer.mean = layer.var = None  # so that it normalises by the batch
        for batch in batches:
            net(batch if isinstance(batch, Tensor) else batch[0])
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mean, var in kept:
            layer.mean, layer.var = mean, var
        for m, mode in modes:
            m.training = mode
    return {f"{name}.{part}": row for name, three in sums.items() for part, row in zip(("count", "sum", "square"), three)}


def combine_statistics(clients: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean and variance (unbiased) of all clients' activations, `L.mean` and `L.var`, from their `batch_statistics`."""
    totals: dict[str, Tensor] = {}
    for client in clients:
        for name, value in client.items():
            totals[name] = totals[name] + value if name in totals else value
    statistics = {}
    for layer in [name.removesuffix(".count") for name in totals if name.endswith(".count")]:
        count, total, square = (totals[f"{layer}.{part}"] for part in ("count", "sum", "square"))
        if not count.min() > 0:
            raise Mistake(f"no client has data for the statistics of layer {layer!r}: ask clients that hold at least one row.")
        mean = total / count
        # Rounding can take a constant channel's variance just below 0.
        var = (square - count * mean**2).clamp(min=0) / (count - 1).clamp(min=1)
        statistics |= {f"{layer}.mean": mean.float(), f"{layer}.var": var.float()}
    return statistics


def load_statistics(net: Network, statistics: dict[str, Tensor]) -> Network:
    """Give every static batch norm layer its mean and variance for evaluation."""
    layers = _static_layers(net)
    wanted = {f"{name}.{part}": layer.weight for name, layer in layers.items() for part in ("mean", "var")}
    for name in [*wanted, *statistics]:
        check_same(name, wanted.get(name), statistics.get(name), "statistics")
    for name, layer in layers.items():
        layer.mean, layer.var = (statistics[f"{name}.{part}"].to(layer.weight.device, copy=True) for part in ("mean", "var"))
    return net


def _static_layers(net: nn.Module) -> dict[str, StaticBatchNorm2d]:
    return {name: m for name, m in net.named_modules() if isinstance(m, StaticBatchNorm2d)}
