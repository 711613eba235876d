"""Weak and strong views of a batch, every sample with choices of its own.

Images are uint8 (n, channels, height, width) with values 0 to 255, one channel or three, and stay so. `weak` translates with
reflection and mirrors. `strong` does that, then RandAugment (Cubuk et al. 2020) with FixMatch's 14 operations and ranges
(Sohn et al. 2020, Table 12), then cutout. Each operation gives the pixels that Pillow gives. They are computed on the CPU,
by the compiled loops of `pixels.py`. `semifl` is the RandAugment of SemiFL's authors instead.

Tables and embeddings are float (n, features), best already scaled: their views add noise and drop features to 0, which is a
scaled feature's mean. `weak`: noise of 0.1 standard deviations, 5 % of the features dropped; `strong`: 0.3 and 20 %.

All randomness comes from the generator that is given, so any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows, Scale

SHIFT = 4  # pixels, for images of 16 and more
GREY = 127  # cutout's colour
OPERATIONS = 2  # in a strong view
TABLE_WEAK = dict(noise=0.1, drop=0.05)  # noise in standard deviations, share of the features dropped
TABLE_STRONG = dict(noise=0.3, drop=0.2)

# Of each operation: mildest and strongest magnitude, in its own unit, and whether it has two directions. The unit: degrees,
# shares of the side, the threshold, the bits kept, or 1 for the image and 0 for its dull version (grey, black, smoothed).
RANGES = dict(
    Identity=(0, 0, False), AutoContrast=(0, 0, False), Equalize=(0, 0, False), Contrast=(0.95, 0.05, False),
    Brightness=(0.95, 0.05, False), Solarize=(256, 0, False), Posterize=(8, 4, False), Color=(0.95, 0.05, False),
    Sharpness=(0.95, 0.05, False), Rotate=(0, 30, True), ShearX=(0, 0.3, True), ShearY=(0, 0.3, True),
    TranslateX=(0, 0.3, True), TranslateY=(0, 0.3, True),
)  # fmt: skip


def weak(x: Tensor, rng: torch.Generator, flip: bool = True) -> Tensor:
    """Images: translated by up to 4 pixels with reflection (an eighth of the side if that is under 16), mirrored half the time.

    Use `flip=False` where a mirror image means something else (digits).
    """
    if x.dim() == 2:
        return _disturb(x, rng, **TABLE_WEAK)
    return _images(_weak(x, rng, flip), x)


def strong(x: Tensor, rng: torch.Generator, flip: bool = True) -> Tensor:
    """`weak`, then two operations drawn for each sample out of 14, then cutout of a square of half the side.

    An operation's magnitude is uniform over its range; its direction, where it has one, is random.
    """
    if x.dim() == 2:
        return _disturb(x, rng, **TABLE_STRONG)
    from grapevine.data import pixels  # here, because numba takes half a second to load

    out = _weak(x, rng, flip)
    code = _integers(0, len(RANGES), (OPERATIONS, len(x)), rng)
    level, sign = _uniform(code.shape, rng), _integers(0, 2, code.shape, rng) * 2 - 1
    pixels.rand_augment(out, code, _magnitudes(code, level, sign))
    _, h, w, _ = out.shape
    top, left = (_integers(0, side, len(x), rng) - side // 4 for side in (h, w))  # what lies beyond the edge is cut off
    pixels.cover(out, top, left, h // 2, w // 2, GREY)
    return _images(out, x)


# SemiFL's authors (randaugment.py of their code, at magnitude 10 of 10): their 15 operations, each with one size. Invert and
# Solarize are the same there. Cutout is a grey square of 40 pixels, Translate one of 100, which leaves nothing of a small image.
SEMIFL = (
    ("AutoContrast", 0), ("Brightness", 1.9), ("Color", 1.9), ("Contrast", 1.9), ("Cutout", 40), ("Equalize", 0), ("Solarize", 0),
    ("Posterize", 4), ("Rotate", 30), ("Sharpness", 1.9), ("ShearX", 0.3), ("ShearY", 0.3), ("Solarize", 0), ("TranslateX", 100),
    ("TranslateY", 100),
)  # fmt: skip


def semifl(x: Tensor, rng: torch.Generator, flip: bool = True) -> Tensor:
    """`weak`, then two operations drawn out of 15, each done with probability ½, at the strongest; no cutout at the end.

    As SemiFL's authors draw them; shears take the nearest pixel, while theirs interpolate. For tables this is `strong`.
    """
    if x.dim() == 2:
        return strong(x, rng, flip)
    from grapevine.data import pixels

    out = _weak(x, rng, flip)
    n, h, w, _ = out.shape
    chosen = _integers(0, len(SEMIFL), (OPERATIONS, n), rng)
    done, sign = _uniform(chosen.shape, rng) < 0.5, _integers(0, 2, chosen.shape, rng) * 2 - 1
    down, along = (_uniform(chosen.shape, rng) * side for side in (h, w))
    known = list(RANGES)
    for line in range(OPERATIONS):
        names, sizes = zip(*(SEMIFL[i] for i in chosen[line])) if n else ((), ())
        code = np.array(
            [known.index(name) if name in RANGES and on else 0 for name, on in zip(names, done[line])], dtype=np.int64
        )
        share = [size / dict(TranslateX=w, TranslateY=h).get(name, 1) for name, size in zip(names, sizes)]
        turned = np.array([RANGES[name][2] if name in RANGES else False for name in names], dtype=bool)
        pixels.rand_augment(out, code[None], np.where(turned, sign[line], 1)[None] * np.array(share, dtype=np.float64)[None])
        cut = np.array([name == "Cutout" for name in names], dtype=bool) & done[line]
        top, left = (np.maximum(0, at[line] - 20).astype(np.int64) for at in (down, along))
        pixels.cover(out, np.where(cut, top, h), left, 41, 41, GREY)  # both edges belong to Pillow's rectangle
    return _images(out, x)


def _weak(x: Tensor, rng: torch.Generator, flip: bool) -> np.ndarray:
    from grapevine.data import pixels

    p = _pixels(x)
    n, h, w, _ = p.shape
    most = (min(SHIFT if side >= 16 else max(1, side // 8), side - 1) for side in (h, w))
    down, along = (_integers(-m, m + 1, n, rng) for m in most)
    mirror = _uniform(n, rng) < (0.5 if flip else 0.0)
    out = np.empty_like(p)
    pixels.shift(p, down, along, mirror, out)
    return out


def _magnitudes(code: np.ndarray, level: np.ndarray, sign: np.ndarray) -> np.ndarray:
    mild, strongest, directed = np.array(list(RANGES.values()), dtype=float).T
    value = mild[code] + (strongest - mild)[code] * level
    return np.where(directed[code] > 0, value * sign, value)


def _disturb(x: Tensor, rng: torch.Generator, noise: float, drop: float) -> Tensor:
    shift = torch.randn(x.shape, generator=rng, device=rng.device).to(x.device)
    keep = (torch.rand(x.shape, generator=rng, device=rng.device) >= drop).to(x.device)
    return (x + noise * shift) * keep


def _pixels(x: Tensor) -> np.ndarray:
    """(n, height, width, channels), shared with `x` where that lies so in memory."""
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:]:
        what = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        raise Mistake(
            f"rows that are {what} cannot be augmented: give uint8 images with 1 or 3 channels, or a two-dimensional table."
        )
    return x.cpu().permute(0, 2, 3, 1).contiguous().numpy()


def _images(p: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(p).permute(0, 3, 1, 2).to(like.device)


def _integers(low: int, high: int, size: int | tuple[int, ...], rng: torch.Generator) -> np.ndarray:
    size = (size,) if isinstance(size, int) else size
    return torch.randint(low, high, size, generator=rng, device=rng.device).cpu().numpy()


def _uniform(size: int | tuple[int, ...], rng: torch.Generator) -> np.ndarray:
    return torch.rand(size, generator=rng, device=rng.device, dtype=torch.float64).cpu().numpy()


# ---------------------------------------------------------------- views of a client's rows


@dataclass(frozen=True)
class Views:
    """Network-ready views of the rows at some positions, as `Rows.inputs` gives them plain. Nothing but the batch is copied."""

    rows: Rows

    def plain(self, at: Tensor | slice = slice(None)) -> Tensor:
        return self.rows.inputs(at)

    def weak(self, at: Tensor | slice, rng: torch.Generator) -> Tensor:
        return self._view(at, partial(weak, rng=rng, flip=self.rows.mirror))

    def strong(self, at: Tensor | slice, rng: torch.Generator) -> Tensor:
        return self._view(at, partial(strong, rng=rng, flip=self.rows.mirror))

    def semifl(self, at: Tensor | slice, rng: torch.Generator) -> Tensor:
        return self._view(at, partial(semifl, rng=rng, flip=self.rows.mirror))

    def _view(self, at: Tensor | slice, make: Callable[[Tensor], Tensor]) -> Tensor:
        rows = self.rows
        if rows.x.dim() == 2:
            return make(rows.inputs(at))
        x, scale = rows.x[rows.index[at]], rows.scale
        top = round(1 / scale.factor) if scale else 255
        if scale and top != 255:  # digits have values up to 16, but the operations expect 255
            x = (x.float() * (255 / top)).round().clamp(max=255).to(torch.uint8)
            scale = Scale(1 / 255, scale.mean, scale.std)
        x = make(x).to(rows.device)
        x = scale(x) if scale else x.float()
        return x.contiguous(memory_format=torch.channels_last)
