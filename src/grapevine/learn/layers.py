"""Layers that torch lacks, or has with randomness of its own, and the blocks of the residual networks.

Nothing here draws from torch's global generator: clients run in parallel threads, and whatever is random is given a generator.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grapevine.core.errors import Mistake
from grapevine.learn.normalisation import norm_layer


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
    """As `WeightNormConv2d`, for a linear layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.length = nn.Parameter(torch.empty(self.out_features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _with_length(self.weight, self.length), self.bias)


def _with_length(weight: Tensor, length: Tensor) -> Tensor:
    ratio = length / weight.flatten(1).norm(dim=1)
    return weight * ratio.view(-1, *[1] * (weight.dim() - 1))


def linear(inputs: int, outputs: int, rng: torch.Generator, bias: bool = True) -> nn.Linear:
    """A linear layer with torch's own bounds (±1/√inputs) drawn from this generator."""
    with torch.device("meta"):  # a layer initialises itself from the global generator; here it cannot
        layer = nn.Linear(inputs, outputs, bias)
    bound = inputs**-0.5
    for name, t in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(torch.empty(t.shape).uniform_(-bound, bound, generator=rng)))
    return layer


# ---------------------------------------------------------------- blocks


class Skip(nn.Module):
    """x + branch(x)."""

    def __init__(self, *branch: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Basic(nn.Module):
    """He et al. 2016, two 3×3 convolutions and a shortcut; the norm's shift stands in for a bias."""

    def __init__(self, before: int, after: int, stride: int, norm: str):
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=bias)
        self.norm1 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=bias)
        self.norm2 = norm_layer(norm, after)
        same = stride == 1 and before == after
        narrow = [] if same else [nn.Conv2d(before, after, 1, stride, bias=bias), norm_layer(norm, after)]
        self.shortcut = nn.Sequential(*narrow)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + y)


class Wide(nn.Module):
    """Zagoruyko & Komodakis 2016: norm and activation first; where the width changes, the shortcut sees them too."""

    def __init__(self, before: int, after: int, stride: int, norm: str):
        super().__init__()
        bias = norm == "none"
        self.norm1 = norm_layer(norm, before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=bias)
        self.norm2 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=bias)
        self.shortcut = None if before == after else nn.Conv2d(before, after, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.norm1(x), 0.1)
        y = self.conv2(F.leaky_relu(self.norm2(self.conv1(a)), 0.1))
        return y + (x if self.shortcut is None else self.shortcut(a))
