"""Sums over clients that do not depend on their order: in whole numbers, formed as replies come.

A number is cut into limbs of 32 bits, each of which is added up in 64 bits: the sum over any clients, in any order and on any
number of machines, is the same. Fields of replies that the server needs only as means (`@step(averaged=…)`) are added and let go,
so that a round of ten thousand clients takes the memory of a few.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from grapevine.core.errors import Mistake
from grapevine.core.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

LIMB = 32  # bits
LOWEST = -3  # the last limb counts multiples of 2^-96; what is smaller is rounded, client by client
HIGHEST = 4  # numbers are below 2^159: any float32 times any number of rows
Weights: TypeAlias = "Mapping[str, Tensor]"
Layout = list[tuple[str, list[int], str]]
"""Name, shape and type of each tensor in one long vector."""


class Exact:
    """Σ of vectors. A limb is there once a number has needed it."""

    def __init__(self) -> None:
        self.limbs: dict[int, Tensor] = {}  # limb j counts multiples of 2^(32·j)

    def add(self, values: Tensor) -> None:
        """Finite numbers in float64."""
        largest = values.abs().max().item() if values.numel() else 0.0
        highest = max(0, math.frexp(largest)[1] // LIMB)
        if highest > HIGHEST:
            raise Mistake(f"a client's value of {largest:g} is too large to average: training diverged, so try a smaller lr.")
        rest = values
        for j in range(highest, LOWEST - 1, -1):
            limb = rest * 2.0 ** (-LIMB * j)  # powers of two: exact
            limb = limb.round_() if j == LOWEST else limb.floor_()  # below the first, nothing is negative
            rest = rest - limb * 2.0 ** (LIMB * j)
            whole = limb.to(torch.int64)
            self.limbs[j] = self.limbs[j].add_(whole) if j in self.limbs else whole

    def value(self) -> Tensor:
        """The sum in float64: a function of the whole number alone, however it came about."""
        limbs, carry = {}, torch.zeros((), dtype=torch.int64)
        for j in range(LOWEST, HIGHEST + 1):
            limb = self.limbs.get(j, torch.zeros((), dtype=torch.int64)) + carry
            carry = limb >> LIMB
            limbs[j] = limb if j == HIGHEST else limb & (2**LIMB - 1)
        out = torch.zeros((), dtype=torch.float64)
        for j in sorted(limbs, reverse=True):
            out = out + limbs[j].double() * 2.0 ** (LIMB * j)
        return out


class Field:
    """A field of the replies, added up over those who sent it: with weight n, plainly, and how far each has moved."""

    def __init__(self) -> None:
        self.layout: Layout = []
        self.n, self.count = 0, 0
        self.weighted, self.plain, self.squares = Exact(), Exact(), Exact()
        self._start: Weights = {}

    def exacts(self) -> dict[str, Exact]:
        return dict(weighted=self.weighted, plain=self.plain, squares=self.squares)

    @property
    def length(self) -> int:
        return sum(math.prod(shape) for _, shape, _ in self.layout)

    def know(self, layout: Layout, start: Any) -> None:
        """What the sums are of, and what the clients began with: moves are from there, or from 0 where nothing was sent."""
        layout = [(name, list(shape), kind) for name, shape, kind in layout]
        if self.layout and self.layout != layout:
            raise Mistake("one client's weights have a different shape from the others': check that all run the same model.")
        self.layout = layout
        self._start = {name: start[name] for name, _, _ in layout if name in start} if isinstance(start, dict) else {}

    def add(self, values: Weights, n: int, start: Any) -> None:
        self.know([(name, list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in values.items()], start)
        vector = _vector(values)
        begun = {name: t.double() for name, t in self._start.items()}
        moved = {name: t.double() - begun[name] if name in begun else t.double() for name, t in values.items()}
        self.weighted.add(vector * n)
        self.plain.add(vector)
        self.squares.add(torch.stack([t.square().sum() for t in moved.values()]) if moved else torch.zeros(0).double())
        self.n, self.count = self.n + n, self.count + 1

    def mean(self, by: str | None) -> dict[str, Tensor]:
        """Σ n_k w_k / Σ n_k, or with by=None Σ w_k / their number. Whole numbers are rounded."""
        total, weight = (self.plain, self.count) if by is None else (self.weighted, self.n)
        return dict(self._tensors(total.value() / weight))

    def diversity(self, without: Container[str]) -> float:
        """Σ‖g_k‖² / ‖Σ g_k‖² of the moves g_k, buffers and whole numbers left out: see `learn.bases.gradient_diversity`."""
        total = Exact()
        total.limbs = {j: limb.clone() for j, limb in self.plain.limbs.items()}
        start = {name: self._start.get(name, torch.zeros(shape)) for name, shape, _ in self.layout}
        total.add(_vector(start) * -self.count)
        squares, sizes = self.squares.value(), [math.prod(shape) for _, shape, _ in self.layout]
        alone = together = 0.0
        for (name, _, kind), square, piece in zip(self.layout, squares, total.value().split(sizes)):
            if name not in without and kind.startswith("float"):
                alone, together = alone + square.item(), together + piece.square().sum().item()
        return alone / together if together else math.inf if alone else math.nan

    def _tensors(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        at = 0
        for name, shape, kind in self.layout:
            piece = vector[at : at + math.prod(shape)].view(shape)
            dtype = getattr(torch, kind)
            yield name, piece.to(dtype) if dtype.is_floating_point else piece.round().to(dtype)
            at += math.prod(shape)


def _vector(values: Weights) -> Tensor:
    return torch.cat([t.detach().to("cpu", torch.float64).flatten() for t in values.values()] or [torch.zeros(0).double()])


class Replies(dict[Any, dict]):
    """Replies by id, without the fields that were added up: these are in `sums`, over the clients that had something to send."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, Field] = {}
        self._lock = threading.Lock()

    def take(self, id: Any, request: Mapping[str, Any], reply: dict, fields: Container[str]) -> None:
        """One reply, from any thread. A client that says n = 0 is not in any sum."""
        added = {name: value for name, value in reply.items() if name in fields and isinstance(value, dict)}
        with self._lock:
            for name, values in added.items() if reply.get("n") else ():
                self.sums.setdefault(name, Field()).add(values, reply["n"], request.get(name))
            self[id] = {name: value for name, value in reply.items() if name not in added}

    def only(self, some: Mapping[Any, dict]) -> Replies:
        """Some of them, with all sums."""
        out = Replies()
        out.sums = self.sums
        out.update(some)
        return out

    def in_order(self) -> Replies:
        """By id, whoever came first."""
        return self.only({id: self[id] for id in sorted(self)})
