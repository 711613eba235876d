"""2×2 maximum and ReLU in one pass over the memory: the small CNN's layers beside its convolutions.

On the CPU torch makes the maxima, their 64-bit places, the ReLU and its mask in four passes forward and backward. Here the kernel
notes in one byte which of the four it took (4: none was above zero), and the way back reads that byte. Values and gradients equal
torch's (but for the sign of a zero): of equal maxima the first wins, and NaN stays NaN.
A module of its own, because numba takes half a second to load: only `PoolReLU` on the CPU loads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

NONE = 4  # no place: the maximum was not above zero, so the ReLU lets no gradient through


@njit(nogil=True, cache=True)
def pool(x, out, place):
    """Arrays are (n, height, width, channels). NaN, the one that is not itself, wins."""
    for n in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                for c in range(out.shape[3]):
                    best, at = x[n, 2 * i, 2 * j, c], np.uint8(0)
                    v = x[n, 2 * i, 2 * j + 1, c]
                    if v > best or v != v:
                        best, at = v, np.uint8(1)
                    v = x[n, 2 * i + 1, 2 * j, c]
                    if v > best or v != v:
                        best, at = v, np.uint8(2)
                    v = x[n, 2 * i + 1, 2 * j + 1, c]
                    if v > best or v != v:
                        best, at = v, np.uint8(3)
                    if best <= 0:
                        best, at = np.float32(0), np.uint8(NONE)
                    out[n, i, j, c] = best
                    place[n, i, j, c] = at


@njit(nogil=True, cache=True)
def unpool(gradient, place, out):
    """Each gradient to the place its maximum came from. One place at a time: the inner loop becomes vector instructions."""
    for n in range(gradient.shape[0]):
        for i in range(gradient.shape[1]):
            for j in range(gradient.shape[2]):
                g, at = gradient[n, i, j], place[n, i, j]
                for k in range(4):
                    to = out[n, 2 * i + k // 2, 2 * j + k % 2]
                    for c in range(g.shape[0]):
                        to[c] = g[c] if at[c] == k else np.float32(0)


class PoolReLUFunction(torch.autograd.Function):
    """relu(max_pool2d(x, 2)) of channels-last float32 maps on the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        out = _empty(x, (n, c, h // 2, w // 2))
        place = torch.empty((n, h // 2, w // 2, c), dtype=torch.uint8, device=x.device)
        pool(_by_channel(x), _by_channel(out), place.numpy())
        ctx.save_for_backward(place)
        ctx.size = x.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        out = _empty(gradient, ctx.size)
        if ctx.size[2] % 2 or ctx.size[3] % 2:
            out.zero_()  # an odd side's last line is in no window and gets no gradient
        unpool(_by_channel(gradient), place.numpy(), _by_channel(out))
        return out


def _empty(like: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _by_channel(x: Tensor) -> np.ndarray:
    """The memory as (n, height, width, channels), copied only if it lies otherwise."""
    return x.detach().permute(0, 2, 3, 1).contiguous().numpy()
