"""Networks, each split into `features` (ends in a flat vector) and `head`.

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
| `wrn28x2`           | Zagoruyko & Komodakis 2016 with MixMatch's leaky ReLUs (SemiFL has plain ones)  | bn       |

`cnn13:0.25` is that network with a quarter of its channels, for machines without a GPU; likewise all below `cnn`. `mlp:8` has
1024 and 512 units.

Norms: `none`; `bn`, batch; `gn`, group (32 groups, fewer where there are under 64 channels); `sbn`, static batch
(see `normalisation.StaticBatchNorm2d`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import nn

from grapevine.core.errors import Mistake
from grapevine.core.network import Network
from grapevine.core.words import hint
from grapevine.learn import layers
from grapevine.learn.normalisation import NORMS, BatchNorm1d, norm_layer

Shape = tuple[int, ...]
Make = Callable[[Shape, int, str, float], Network]
WIDEST = 16  # times the usual channels: a slip of the keyboard must not fill the memory

# ---------------------------------------------------------------- the models


def _linear(shape: Shape, classes: int, norm: str, width: float) -> Network:
    return Network(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _mlp(shape: Shape, classes: int, norm: str, width: float) -> Network:
    parts: list[nn.Module] = [nn.Flatten()]
    first, second = _thin(width, 128, 64)
    for before, after in ((math.prod(shape), first), (first, second)):
        parts += [nn.Linear(before, after), *([BatchNorm1d(after)] if norm == "bn" else []), nn.ReLU()]
    return Network(nn.Sequential(*parts), nn.Linear(second, classes))


def _cnn(shape: Shape, classes: int, norm: str, width: float) -> Network:
    channels, height, width = shape
    parts: list[nn.Module] = []
    for before, after in ((channels, 16), (16, 32)):
        parts += [nn.Conv2d(before, after, 3, padding=1), norm_layer(norm, after), layers.PoolReLU()]
    height, width = height // 4, width // 4
    pool = max(1, height // 8), max(1, width // 8)  # large images: at most 15×15 cells reach the last layer
    if max(pool) > 1:
        parts.append(nn.AvgPool2d(pool))
    d = 32 * (height // pool[0]) * (width // pool[1])
    return Network(nn.Sequential(*parts, nn.Flatten()), nn.Linear(d, classes))


def _thin(width: float, *channels: int) -> list[int]:
    """These numbers of channels times the width."""
    found = [int(width * each) if 0 < width <= WIDEST else 0 for each in channels]
    if min(found) < 1 or any(each != width * whole for each, whole in zip(found, channels)):
        raise Mistake(f"a width of {width:g} leaves no whole number of {channels[0]} channels: use 0.125, 0.25, 0.5, 2, 4 or 8.")
    return found


def _cnn13(shape: Shape, classes: int, norm: str, width: float) -> Network:
    def block(before: int, after: int, size: int = 3, padding: int = 1) -> list[nn.Module]:
        convolution = layers.WeightNormConv2d(before, after, size, padding=padding)
        return [convolution, norm_layer(norm, after), nn.LeakyReLU(0.1, inplace=True)]

    a, b, c = _thin(width, 128, 256, 512)
    features = nn.Sequential(
        *block(shape[0], a), *block(a, a), *block(a, a), nn.MaxPool2d(2), layers.Dropout(0.5),
        *block(a, b), *block(b, b), *block(b, b), nn.MaxPool2d(2), layers.Dropout(0.5),
        *block(b, c, padding=0), *block(c, b, 1, 0), *block(b, a, 1, 0), layers.GlobalMean(), layers.Normalise(),
    )  # fmt: skip
    return Network(features, layers.WeightNormLinear(a, classes))


def _resnet9(shape: Shape, classes: int, norm: str, width: float) -> Network:
    def block(before: int, after: int) -> list[nn.Module]:
        # No bias even without norm: Table 6 counts weights alone.
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), norm_layer(norm, after), nn.ReLU(inplace=True)]

    a, b, c, d = _thin(width, 64, 128, 256, 512)
    features = nn.Sequential(
        *block(shape[0], a),
        *block(a, b), nn.MaxPool2d(2), layers.Skip(*block(b, b), *block(b, b)),
        *block(b, c), nn.MaxPool2d(2),
        *block(c, d), nn.MaxPool2d(2), layers.Skip(*block(d, d), *block(d, d)), layers.GlobalMax(),
    )  # fmt: skip
    return Network(features, nn.Linear(d, classes, bias=False))


def _resnet18(shape: Shape, classes: int, norm: str, width: float, large: bool = False) -> Network:
    """For small images, or `large` ones: a stem of 7×7/2 and a pooling, and features of length 1."""
    a, b, c, d = _thin(width, 64, 128, 256, 512)
    size, step = (7, 2) if large else (3, 1)
    stem = [nn.Conv2d(shape[0], a, size, step, size // 2, bias=norm == "none"), norm_layer(norm, a), nn.ReLU(inplace=True)]
    blocks: list[nn.Module] = []
    for before, after, stride in ((a, a, 1), (a, b, 2), (b, c, 2), (c, d, 2)):
        blocks += [layers.Basic(before, after, stride, norm), layers.Basic(after, after, 1, norm)]
    pool, unit = ([nn.MaxPool2d(3, 2, padding=1)], [layers.Normalise()]) if large else ([], [])
    return Network(nn.Sequential(*stem, *pool, *blocks, layers.GlobalMean(), *unit), nn.Linear(d, classes))


def _resnet18_imagenet(shape: Shape, classes: int, norm: str, width: float) -> Network:
    return _resnet18(shape, classes, norm, width, large=True)


def _headless(make: Make) -> Make:
    def headless(shape: Shape, classes: int, norm: str, width: float) -> Network:
        whole = make(shape, classes, norm, width)
        return Network(whole.features, nn.Identity(), whole.features_dim)

    return headless


def _wrn28x2(shape: Shape, classes: int, norm: str, width: float) -> Network:
    blocks: list[nn.Module] = []
    stem, a, b, c = _thin(width, 16, 32, 64, 128)
    for before, after, stride in ((stem, a, 1), (a, b, 2), (b, c, 2)):
        blocks += [layers.Wide(before, after, stride, norm), *(layers.Wide(after, after, 1, norm) for _ in range(3))]
    first = nn.Conv2d(shape[0], stem, 3, padding=1, bias=norm == "none")
    features = nn.Sequential(first, *blocks, norm_layer(norm, c), nn.LeakyReLU(0.1), layers.GlobalMean())
    return Network(features, nn.Linear(c, classes))


# name: (function, own norm, norms it takes, smallest side of an image or None where any row will do)
_MODELS: dict[str, tuple[Make, str, tuple[str, ...], int | None]] = {
    "linear": (_linear, "none", ("none",), None),
    "mlp": (_mlp, "none", ("none", "bn"), None),
    "cnn": (_cnn, "none", NORMS, 4),
    "cnn13": (_cnn13, "bn", NORMS, 12),
    "resnet8": (_headless(_resnet9), "none", NORMS, 8),
    "resnet9": (_resnet9, "none", NORMS, 8),
    "resnet17": (_headless(_resnet18), "bn", NORMS, 8),
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
    name, width = _name_and_width(name)
    make, own_norm, norms, smallest = _MODELS[name]
    norm = own_norm if norm is None else norm
    if norm not in norms:
        raise Mistake(f"model {name} takes norm {', '.join(norms)}, not {norm!r}.")
    _check_shape(name, tuple(shape), smallest)
    with torch.device("meta"):  # layers initialise themselves from the global generator; here they cannot
        net = make(tuple(shape), classes, norm, width)
    _allocate(net)
    _initialise(net, torch.Generator().manual_seed(seed), norm)
    return _channels_last(net)


def _name_and_width(text: str) -> tuple[str, float]:
    """`cnn13:0.25` is a quarter of `cnn13`."""
    name, _, share = text.partition(":")
    if name not in _MODELS:
        raise Mistake(f"no model is called {name!r}{hint(name, _MODELS)}: choose one of {', '.join(_MODELS)}.")
    if not share:
        return name, 1.0
    if name in ("linear", "cnn"):
        raise Mistake(f"model {name} comes in one width: write {name}, not {text}.")
    try:
        return name, float(share)
    except ValueError:
        raise Mistake(f"{share!r} in {text} is not a width: write {name}:0.25 for a quarter of the channels.") from None


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
    residual = any(isinstance(m, (layers.Skip, layers.Basic, layers.Wide)) for m in net.modules())
    for m in net.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            if residual and isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu", generator=rng)
            else:
                nn.init.kaiming_uniform_(m.weight, a=math.sqrt(5), generator=rng)
            if m.bias is not None:
                bound = m.weight[0].numel() ** -0.5
                m.bias.uniform_(-bound, bound, generator=rng)
            if isinstance(m, (layers.WeightNormConv2d, layers.WeightNormLinear)):
                m.length.copy_(m.weight.flatten(1).norm(dim=1))
        elif callable(reset := getattr(m, "reset_parameters", None)):
            reset()
    if norm == "none":
        # Without a norm each block would double the variance; blocks that start as the identity do not (Zhang et al. 2019).
        for m in net.modules():
            if isinstance(m, (layers.Basic, layers.Wide)):
                for w in m.conv2.parameters():
                    nn.init.zeros_(w)


def wrap(module: nn.Module) -> Network:
    """A copy of any module that has modules `features` and `head`, as a network: `head(features(x))`, whatever its own `forward`.

    Dropout layers are replaced by ours, which draw from the generator that `Network.use_rng` sets.
    """
    parts = dict(copy.deepcopy(module).named_children())
    for part in ("features", "head"):
        if part not in parts:
            raise Mistake(f"{type(module).__name__} has no module called {part!r}: give it `features` and `head`.")
    net = Network(parts["features"], parts["head"], getattr(module, "features_dim", None))
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
        if isinstance(m, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            setattr(parent, name, layers.Dropout(m.p, whole=not isinstance(m, nn.Dropout)).train(m.training))
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
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net
