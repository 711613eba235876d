"""All parameters of a network as one vector, or as the sum of two, θ = σ + ψ. Only entries that changed are sent, with their
positions as numbers or as bits, whichever is shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from grapevine.core import Network
from grapevine.core.errors import Mistake


class Decomposed:
    """A network whose parameters are σ + ψ, both kept as one vector on the CPU."""

    def __init__(self, model: Network, sigma: Tensor | None = None, psi: Tensor | None = None, buffers: dict | None = None):
        self.model = model
        for name, value in model.named_buffers():
            if buffers:
                value.copy_(buffers[name])
        if sigma is None:
            sigma = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
        self.sigma = sigma
        self.psi = torch.zeros_like(sigma) if psi is None else psi
        self.load()

    @torch.no_grad()
    def load(self) -> None:
        """σ + ψ into the network."""
        theta, at = self.sigma + self.psi, 0
        for p in self.model.parameters():
            p.copy_(theta[at : at + p.numel()].view(p.shape))
            at += p.numel()

    def gradient(self) -> Tensor:
        """∂loss/∂θ after a backward pass, which is ∂loss/∂σ and ∂loss/∂ψ."""
        grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters())
        return torch.cat([g.flatten().cpu() for g in grads])

    def buffers(self) -> dict[str, Tensor]:
        kept = dict(self.model.named_buffers())
        return {name: value for name, value in self.model.state().items() if name in kept}


# ---------------------------------------------------------------- changes


def stamp(which: Tensor, t: int, stamps: Tensor) -> Tensor:
    """Round t for these entries."""
    return torch.where(which, torch.tensor(t, dtype=torch.int32), stamps)


def differences(change: Tensor, cut: float = 0.0) -> dict:
    """What is to be added; changes up to `cut` in size are left out. NaN is kept, so that the receiver sees that training
    diverged."""
    return _pack(~(change.abs() <= cut), change, add=True)


def since(vector: Tensor, changed: Tensor, known: int | None) -> dict:
    """The entries that have changed (`changed`: in which round) after round `known`; all entries for a client that knows
    nothing."""
    return dict(all=vector) if known is None else _pack(changed > known, vector, add=False)


def _pack(there: Tensor, values: Tensor, add: bool) -> dict:
    positions = torch.nonzero(there).flatten()
    found = dict(values=values[positions], add=add)
    if 32 * len(positions) < len(there):
        return dict(found, index=positions.int())
    return dict(found, bits=torch.from_numpy(np.packbits(there.numpy())))


def is_whole(packed: dict) -> bool:
    """Whether it can be unpacked without knowing what was before."""
    return "all" in packed


def fits(packed: Any, length: int) -> bool:
    """Whether these are `differences` of vectors of this length."""
    if not isinstance(packed, dict) or packed.get("add") is not True or set(packed) - {"values", "add", "index", "bits"}:
        return False
    values, at = packed.get("values"), packed.get("index", packed.get("bits"))
    if not (isinstance(values, Tensor) and isinstance(at, Tensor) and values.dim() == at.dim() == 1):
        return False
    if values.dtype != torch.float32:
        return False
    if "index" in packed:
        inside = not len(at) or bool(0 <= at.min() and at.max() < length)
        return at.dtype == torch.int32 and len(at) == len(values) and inside and "bits" not in packed
    there = at.dtype == torch.uint8 and len(at) == -(-length // 8)
    return there and int(np.unpackbits(at.numpy(), count=length).sum()) == len(values)


def unpack(packed: dict, before: Tensor | None) -> Tensor:
    """`before` with the changes applied."""
    if is_whole(packed):
        return packed["all"]
    if before is None:
        raise Mistake("only changes were sent, but there are no weights to change.")
    if "index" in packed:
        positions = packed["index"].long()
    else:
        positions = torch.nonzero(torch.from_numpy(np.unpackbits(packed["bits"].numpy(), count=len(before)))).flatten()
    out = before.clone()
    out[positions] = out[positions] + packed["values"] if packed["add"] else packed["values"]
    return out
