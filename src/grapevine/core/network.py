"""A network as methods see it, the source that makes networks on demand, and the count of their operations."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from grapevine.core.errors import Mistake
from grapevine.core.meter import Meter


@runtime_checkable
class Statistics(Protocol):
    """A layer with statistics that belong to its weights (static batch normalisation)."""

    def forget_statistics(self) -> None: ...


@runtime_checkable
class Drawing(Protocol):
    """A layer that draws (dropout)."""

    def use_rng(self, generator: torch.Generator) -> None: ...


class Network(nn.Module):
    """`features`, then `head`. `features_dim` is the length of a feature vector, where it is known."""

    def __init__(self, features: nn.Module, head: nn.Module, features_dim: int | None = None):
        super().__init__()
        self.features = features
        self.head = head
        if features_dim is None:
            features_dim = next((m.in_features for m in head.modules() if isinstance(m, nn.Linear)), None)
        self.features_dim = features_dim

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def state(self) -> dict[str, Tensor]:
        """A contiguous copy, on the CPU, of every parameter and buffer, in the order of `state_dict`."""
        form = torch.contiguous_format
        return {name: t.detach().to("cpu", copy=True, memory_format=form) for name, t in self.state_dict().items()}

    def load(self, weights: dict[str, Tensor]) -> Network:
        """Copy these weights in, tensor by tensor and in place: device and memory format stay as they are.

        Statistics of static batch normalisation belonged to the old weights and are dropped.
        """
        own = self.state_dict()
        for name in [*own, *weights]:
            check_same(name, own.get(name), weights.get(name))
        with torch.no_grad():
            for name, t in own.items():
                t.copy_(weights[name])
        for layer in self.modules():
            if isinstance(layer, Statistics):
                layer.forget_statistics()
        return self

    def use_rng(self, generator: torch.Generator) -> None:
        """From now on every dropout in this network draws from this generator."""
        for m in self.modules():
            if isinstance(m, Drawing) and not isinstance(m, Network):
                m.use_rng(generator)


def check_same(name: str, own: Tensor | None, given: Tensor | None, what: str = "weights") -> None:
    if own is None or given is None:
        here, there = (what, "network") if own is None else ("network", what)
        raise Mistake(f"{what} do not fit: {name!r} is in the {here} but not in the {there}; build the same model and norm.")
    if own.shape != given.shape or own.dtype != given.dtype:
        of = f"{_describe(given)} in the {what} and {_describe(own)} in the network"
        raise Mistake(f"{what} do not fit: {name!r} is {of}; build the same model for the same shape and classes.")


def _describe(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"


class ModelSource:
    """Makes networks: built once, tried on one row, then copied. The operations of every pass through a copy are counted."""

    def __init__(self, build: Callable[[], Network], sample: Tensor, device: str = "cpu"):
        self._build, self._sample, self.device = build, sample, device
        self._lock = threading.Lock()
        self._template: Network | None = None

    def new(self, weights: dict | None, meter: Meter) -> Network:
        with self._lock:
            if self._template is None:
                self._template = self._build().to(self.device)
                _try(self._template, self._sample.to(self.device))
        model = counted(copy.deepcopy(self._template), meter)
        return model if weights is None else model.load(weights)


def _try(model: Network, sample: Tensor) -> None:
    """A network that cannot take the rows is known before the run."""
    with torch.no_grad():
        # Two rows: a normalisation may need more than one. A copy: batches may not move the template's statistics.
        copy.deepcopy(model).eval()(torch.cat([sample, sample]))


M = TypeVar("M", bound=nn.Module)


def counted(module: M, meter: Meter) -> M:
    """The module, counting 2 · multiply-adds of its convolutions and linear layers; the rest is small beside them.

    An output takes as many multiply-adds as one filter has weights. A backward pass takes as many again for the weights, and
    again for the layer's inputs where these have a gradient; it is counted when it happens.
    """
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim >= 2:
            layer.register_forward_hook(_counter(meter, 2 * (weight.numel() // len(weight))))
    return module


def _counter(meter: Meter, per_output: int) -> Callable:
    def count(layer: Any, inputs: tuple, output: Tensor) -> None:
        cost = per_output * output.numel()
        meter.flops += cost
        if output.requires_grad:
            back = cost * (layer.weight.requires_grad + any(x.requires_grad for x in inputs))

            def count_backward(gradient: Tensor) -> None:
                meter.flops += back
                meter.backward += back

            output.register_hook(count_backward)

    return count
