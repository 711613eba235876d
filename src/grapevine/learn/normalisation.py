"""Normalisation: of batches, of groups, and static batch normalisation, whose statistics are computed apart and sent as sums."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grapevine.core.errors import Mistake
from grapevine.core.network import Network, check_same

NORMS = ("none", "bn", "gn", "sbn")


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
        self.mean: Tensor | None
        self.var: Tensor | None
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


def norm_layer(norm: str, channels: int) -> nn.Module:
    """A layer by its name: none, bn, gn (at most 32 groups) or sbn."""
    if norm == "bn":
        return BatchNorm2d(channels)
    if norm == "sbn":
        return StaticBatchNorm2d(channels)
    if norm == "gn":
        # At least two channels a group: with one, a 1×1 map would be normalised to zero.
        return nn.GroupNorm(math.gcd(32, max(1, channels // 2)), channels)
    return nn.Identity()


# ---------------------------------------------------------------- one kind in place of another


def replace_norms(net: Network, kinds: tuple[type[nn.Module], ...], make: Callable[[Any], nn.Module]) -> Network:
    """The network with `make(layer)` in place of every layer of these kinds."""
    for parent in list(net.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, kinds):
                setattr(parent, name, make(layer))
    return net


def with_static_norm(net: Network) -> Network:
    """The same network with static in place of running statistics wherever it normalises images by the batch."""

    def static(layer: Any) -> nn.Module:
        made = StaticBatchNorm2d(layer.num_features, layer.eps)
        made.weight, made.bias = layer.weight, layer.bias
        return made

    return replace_norms(net, (nn.BatchNorm2d,), static)


def with_group_norm(net: Network) -> Network:
    """The same network with group normalisation wherever it normalised by the batch, by running or by static statistics."""
    by_batch = (nn.BatchNorm1d, nn.BatchNorm2d, StaticBatchNorm2d)
    return replace_norms(net, by_batch, lambda layer: norm_layer("gn", layer.num_features))


# ---------------------------------------------------------------- statistics for static batch normalisation


@torch.no_grad()
def batch_statistics(net: Network, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Per static batch norm layer `L`: `L.count`, `L.sum` and `L.square` (sum of squares) of what comes in, per channel.

    One pass over un-augmented batches; dropout is off, and every layer normalises by the batch, as in training, so that deeper
    layers see what they saw there. These are sums: they can be added up under masks.
    HeteroFL's code instead passes all data through BatchNorm2d(momentum=None), the plain mean of the batches' means and
    variances. With batches of one size the means agree; our variance is that of all activations together, so it does not
    depend on how the data is cut into batches and clients.
    """
    net = copy.deepcopy(net).eval()
    layers = _static_layers(net)
    sums = {name: torch.zeros(3, layer.num_features, dtype=torch.float64) for name, layer in layers.items()}

    def watch(total: Tensor) -> Callable:
        def hook(layer: StaticBatchNorm2d, inputs: tuple[Tensor]) -> None:
            (x,) = inputs
            n = x.numel() / layer.num_features
            var, mean = (t.double().cpu() for t in torch.var_mean(x, (0, 2, 3), correction=0))
            total.add_(torch.stack([torch.full_like(mean, n), n * mean, n * (var + mean**2)]))

        return hook

    for name, layer in layers.items():
        layer.forget_statistics()  # so that it normalises by the batch
        layer.register_forward_pre_hook(watch(sums[name]))
    for x in batches:
        net(x)
    return {f"{name}.{part}": row for name, three in sums.items() for part, row in zip(("count", "sum", "square"), three)}


def combine_statistics(clients: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean and variance (unbiased) of all clients' activations, `L.mean` and `L.var`, from their `batch_statistics`."""
    totals: dict[str, Tensor] = {}
    for client in clients:
        for name, value in client.items():
            totals[name] = totals[name] + value if name in totals else value
    statistics: dict[str, Tensor] = {}
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
