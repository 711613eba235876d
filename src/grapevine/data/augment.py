"""Weak and strong views of a batch: a choice per sample, in a few tensor operations for the whole batch.

Images are uint8 (n, channels, height, width) with values 0 to 255, one channel or three, and stay so. `weak` translates with
reflection and flips. `strong` does that, then RandAugment (Cubuk et al. 2020) with FixMatch's 14 operations and ranges
(Sohn et al. 2020, Table 12), then cutout. Each operation computes what Pillow does for a single image (see `OPS`).

Tables and embeddings are float (n, features), best already scaled: their views add noise and drop features to 0, which is a
scaled feature's mean. `weak`: noise of 0.1 standard deviations, 5 % of the features dropped; `strong`: 0.3 and 20 %.

All randomness comes from the generator that is given, so any thread may call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grapevine.data.rows import Rows, Scale
from grapevine.errors import Mistake

SHIFT = 4  # pixels, for images of 16 and more
TABLE_WEAK = (0.1, 0.05)  # noise in standard deviations, share of features dropped
TABLE_STRONG = (0.3, 0.2)
GREY = 127  # cutout's colour


def weak(x: Tensor, rng: torch.Generator, flip: bool = True, std: Tensor | float = 1.0) -> Tensor:
    """Images: translated by up to 4 pixels with reflection (an eighth of the side if that is under 16), flipped half the time.

    `flip=False` for what changes its meaning in a mirror (digits). `std` is for tables: the features' standard deviations.
    """
    if x.dim() == 2:
        return _noise(x, rng, std, *TABLE_WEAK)
    _check(x)
    n, _, h, w = x.shape
    down = _source(h, _shifts(n, h, rng))
    along = _source(w, _shifts(n, w, rng))
    if flip:
        mirrored = torch.rand(n, 1, generator=rng, device=rng.device) < 0.5
        along = torch.where(mirrored, along.flip(1), along)
    return _pick(x, (down[:, :, None] * w + along[:, None, :]).to(x.device))


def strong(
    x: Tensor, rng: torch.Generator, n: int = 2, m: float = 10, flip: bool = True, fixed: bool = False, std: Tensor | float = 1.0
) -> Tensor:
    """`weak`, then `n` operations drawn for each sample out of 14, then cutout of a square of half the side.

    Each operation's magnitude is uniform up to `m` of 10 as in FixMatch, or `m` itself if `fixed` (as in RandAugment); its
    direction, where it has one, is a coin's.
    """
    if not 0 <= m <= 10:
        raise Mistake(f"m={m} is no magnitude of RandAugment: choose 0 to 10.")
    if x.dim() == 2:
        return _noise(x, rng, std, *TABLE_STRONG)
    x = weak(x, rng, flip)
    names = list(OPS)
    for _ in range(n):
        choice = torch.randint(len(names), (len(x),), generator=rng, device=rng.device)
        level = torch.rand(len(x), generator=rng, device=rng.device, dtype=torch.float64)
        level = (torch.ones_like(level) if fixed else level) * (m / 10)
        sign = torch.randint(2, (len(x),), generator=rng, device=rng.device) * 2 - 1
        x = _apply(x, choice, level, sign)
    return cutout(x, rng)


def _check(x: Tensor) -> None:
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1] not in (1, 3):
        what = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        raise Mistake(f"no view of rows that are {what}: give uint8 images with 1 or 3 channels, or a table of two dimensions.")


def _shifts(n: int, side: int, rng: torch.Generator) -> Tensor:
    most = min(SHIFT if side >= 16 else max(1, side // 8), side - 1)
    return torch.randint(-most, most + 1, (n, 1), generator=rng, device=rng.device)


def _source(side: int, shift: Tensor) -> Tensor:
    """Where each pixel of a shifted line comes from, with reflection at both ends (the end itself is not repeated)."""
    at = (torch.arange(side, device=shift.device) + shift).abs()
    return (side - 1) - (side - 1 - at).abs()


def _pick(x: Tensor, at: Tensor) -> Tensor:
    """Per sample, the pixels at flat positions `at` (n, h, w). One plane after the other: several times faster than by pixel."""
    n, c, h, w = x.shape
    at = at.reshape(n, 1, h * w).expand(-1, c, -1)
    return x.reshape(n, c, h * w).gather(2, at).reshape(n, c, h, w)


def _noise(x: Tensor, rng: torch.Generator, std: Tensor | float, noise: float, drop: float) -> Tensor:
    draw = torch.randn(x.shape, generator=rng, device=rng.device).to(x.device)
    keep = (torch.rand(x.shape, generator=rng, device=rng.device) >= drop).to(x.device)
    return (x + noise * std * draw) * keep


# ---------------------------------------------------------------- RandAugment's operations


def cutout(x: Tensor, rng: torch.Generator) -> Tensor:
    """A grey square of half the image's side around a point anywhere in it; what hangs over the edge is cut off."""
    n, _, h, w = x.shape
    rows = _band(n, h, rng)[:, None, :, None]
    columns = _band(n, w, rng)[:, None, None, :]
    return x.masked_fill((rows & columns).to(x.device), GREY)


def _band(n: int, side: int, rng: torch.Generator) -> Tensor:
    size = side // 2
    start = torch.randint(side, (n, 1), generator=rng, device=rng.device) - size // 2
    at = torch.arange(side, device=rng.device)
    return (at >= start) & (at < start + size)


def identity(x: Tensor, magnitude: Tensor) -> Tensor:
    return x


def auto_contrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Per channel, the darkest value to 0 and the lightest to 255."""
    return _look_up(x, _auto_contrast_table(x))


def equalize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Per channel, values spread so that each is about as frequent (nothing, with under 255 pixels)."""
    return _look_up(x, _equalize_table(x))


def solarize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Values from the threshold on inverted."""
    return _look_up(x, _solarize_table(magnitude.to(x.device)))


def posterize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Only this many bits kept."""
    return _look_up(x, _posterize_table(magnitude.to(x.device)))


def contrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Towards the image's mean grey: 0 is that grey, 1 the image."""
    return _look_up(x, _contrast_table(x, magnitude.to(x.device)))


def brightness(x: Tensor, magnitude: Tensor) -> Tensor:
    """Towards black: 0 is black, 1 the image."""
    return _look_up(x, _brightness_table(magnitude.to(x.device)))


def color(x: Tensor, magnitude: Tensor) -> Tensor:
    """Towards grey: 0 is the grey image, 1 the image. A grey image stays."""
    return x if x.shape[1] == 1 else _blend(_grey(x), x, magnitude)


def sharpness(x: Tensor, magnitude: Tensor) -> Tensor:
    """Towards the smoothed image: 0 is smooth, 1 the image. The outermost pixels stay."""
    n, c, h, w = x.shape
    if min(h, w) < 3:
        return x
    whole = x.to(torch.int16)
    lines = whole[:, :, :-2] + whole[:, :, 1:-1] + whole[:, :, 2:]
    total = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:] + 4 * whole[:, :, 1:-1, 1:-1]
    smooth = x.clone(memory_format=torch.contiguous_format)
    smooth[:, :, 1:-1, 1:-1] = ((2 * total + 13).float() / 26).to(torch.uint8)  # total / 13, rounded
    return _blend(smooth, x, magnitude)


def rotate(x: Tensor, magnitude: Tensor) -> Tensor:
    """Degrees, counter-clockwise, about the centre."""
    return _affine(x, _rotation(*x.shape[2:], magnitude.to(x.device)))


def shear_x(x: Tensor, magnitude: Tensor) -> Tensor:
    """Row y moves left by magnitude · y pixels."""
    return _affine(x, _matrix(magnitude.to(x.device), a01=1))


def shear_y(x: Tensor, magnitude: Tensor) -> Tensor:
    """Column x moves up by magnitude · x pixels."""
    return _affine(x, _matrix(magnitude.to(x.device), a10=1))


def translate_x(x: Tensor, magnitude: Tensor) -> Tensor:
    """Left by this share of the width."""
    return _affine(x, _matrix(magnitude.to(x.device), a02=x.shape[3]))


def translate_y(x: Tensor, magnitude: Tensor) -> Tensor:
    """Up by this share of the height."""
    return _affine(x, _matrix(magnitude.to(x.device), a12=x.shape[2]))


# Name: images and one magnitude per sample, in the operation's own unit. All give Pillow's pixels exactly.
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = dict(
    Identity=identity, AutoContrast=auto_contrast, Equalize=equalize, Rotate=rotate, Solarize=solarize, Color=color,
    Posterize=posterize, Contrast=contrast, Brightness=brightness, Sharpness=sharpness,
    ShearX=shear_x, ShearY=shear_y, TranslateX=translate_x, TranslateY=translate_y,
)  # fmt: skip


def magnitude(name: str, level: Tensor, sign: Tensor) -> Tensor:
    """FixMatch's range of an operation (Table 12): from mild at level 0 to strongest at level 1."""
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return 0.95 - 0.9 * level
    if name == "Rotate":
        return 30 * level * sign
    if name == "Solarize":
        return 256 * (1 - level)
    if name == "Posterize":
        return (8 - 4 * level).round()
    return 0.3 * level * sign


def _apply(x: Tensor, choice: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """To each sample the operation chosen for it."""
    out = x.clone()
    for i, (name, op) in enumerate(OPS.items()):
        at = (choice == i).nonzero().squeeze(1)
        if len(at) and name != "Identity":
            strength = magnitude(name, level[at], sign[at])
            at = at.to(x.device)
            out[at] = op(x[at], strength)
    return out


# Operations on single values: a table of 256 per sample, and per channel where it differs.


def _look_up(x: Tensor, table: Tensor) -> Tensor:
    """`table` is uint8 (n, 256) or (n, channels, 256)."""
    n, c, h, w = x.shape
    if table.dim() == 2:
        table = table[:, None].expand(-1, c, -1)
    return table.gather(2, x.reshape(n, c, h * w).long()).reshape(n, c, h, w)


def _values(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device)


def _auto_contrast_table(x: Tensor) -> Tensor:
    low, high = (t.double()[..., None] for t in torch.aminmax(x.flatten(2), dim=2))
    scale = 255 / (high - low).clamp(min=1)
    stretched = (_values(x) * scale - low * scale).clamp(0, 255)
    return torch.where(high > low, stretched, _values(x).double()).to(torch.uint8)


def _equalize_table(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    start = torch.arange(n * c, device=x.device)[:, None] * 256
    counts = torch.bincount((x.reshape(n * c, h * w) + start).flatten(), minlength=n * c * 256).reshape(n, c, 256)
    last = x.flatten(2).amax(2, keepdim=True).long()  # the lightest value's pixels do not count
    step = (h * w - counts.gather(2, last)) // 255
    before = counts.cumsum(2) - counts
    spread = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _values(x)).to(torch.uint8)


def _solarize_table(threshold: Tensor) -> Tensor:
    value = _values(threshold)
    return torch.where(value < threshold[:, None], value, 255 - value).to(torch.uint8)


def _posterize_table(bits: Tensor) -> Tensor:
    dropped = 2 ** (8 - bits.long())[:, None]
    return (_values(bits) // dropped * dropped).to(torch.uint8)


def _brightness_table(factor: Tensor) -> Tensor:
    value = _values(factor).to(torch.uint8).expand(len(factor), -1)
    return _blend(torch.zeros_like(value), value, factor)


def _contrast_table(x: Tensor, factor: Tensor) -> Tensor:
    mean = (_grey(x).flatten(1).double().mean(1) + 0.5).to(torch.uint8)
    value = _values(x).to(torch.uint8).expand(len(x), -1)
    return _blend(mean[:, None].expand_as(value), value, factor)


def _grey(x: Tensor) -> Tensor:
    """Luma of ITU-R 601-2 in 16-bit fixed point, rounded; one channel."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]


def _blend(first: Tensor, second: Tensor, factor: Tensor) -> Tensor:
    """first + factor · (second − first) in float32, cut to whole numbers."""
    factor = factor.to(first.device, torch.float32).view(-1, *[1] * (first.dim() - 1))
    return (first + factor * (second.float() - first)).clamp(0, 255).to(torch.uint8)


# Operations on positions: where output pixel (x, y) comes from, as the 2 × 3 matrix of Pillow's Image.transform.


def _matrix(magnitude: Tensor, a01: float = 0, a10: float = 0, a02: float = 0, a12: float = 0) -> Tensor:
    """The identity, plus the magnitude times one entry."""
    eye = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=torch.float64, device=magnitude.device)
    entry = torch.tensor([[0, a01, a02], [a10, 0, a12]], dtype=torch.float64, device=magnitude.device)
    return eye + magnitude.double()[:, None, None] * entry


def _rotation(h: int, w: int, degrees: Tensor) -> Tensor:
    angle = degrees.double() * (-math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    left = w / 2 - cos * (w / 2) - sin * (h / 2)
    top = h / 2 + sin * (w / 2) - cos * (h / 2)
    return torch.stack([cos, sin, left, -sin, cos, top], 1).reshape(-1, 2, 3)


def _affine(x: Tensor, matrix: Tensor) -> Tensor:
    """The nearest pixel, found in 16.16 fixed point as Pillow does; black where there is none."""
    n, c, h, w = x.shape
    middle = torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64, device=x.device)  # a pixel is looked up at its centre
    start = matrix @ middle
    fixed = (torch.cat([matrix[..., :2], start[..., None]], 2) * 65536 + 0.5).floor().int()[..., None, None]
    across = torch.arange(w, dtype=torch.int32, device=x.device)
    down = torch.arange(h, dtype=torch.int32, device=x.device)[:, None]
    column, row = ((fixed[:, i, 0] * across + fixed[:, i, 1] * down + fixed[:, i, 2]) >> 16 for i in (0, 1))
    outside = (column < 0) | (column >= w) | (row < 0) | (row >= h)
    at = (row * w + column).masked_fill(outside, 0).long()
    return _pick(x, at).masked_fill(outside[:, None], 0)


# ---------------------------------------------------------------- views of a client's rows


@dataclass(frozen=True)
class Views:
    """Network-ready views of the rows at some positions, as `Rows.inputs` gives them plain. Nothing but the batch is copied."""

    rows: Rows
    flip: bool = True

    def plain(self, at: Tensor | slice = slice(None)) -> Tensor:
        return self.rows.inputs(at)

    def weak(self, at: Tensor | slice, rng: torch.Generator) -> Tensor:
        return self._view(at, lambda x: weak(x, rng, self.flip))

    def strong(self, at: Tensor | slice, rng: torch.Generator, n: int = 2, m: float = 10, fixed: bool = False) -> Tensor:
        return self._view(at, lambda x: strong(x, rng, n, m, self.flip, fixed))

    def _view(self, at: Tensor | slice, make: Callable[[Tensor], Tensor]) -> Tensor:
        rows = self.rows
        if rows.x.dim() == 2:
            return make(rows.inputs(at))
        x, scale = rows.x[rows.index[at]], rows.scale
        top = round(1 / scale.factor) if scale else 255
        if top != 255:  # digits have values up to 16, the operations mean 255
            x = (x.float() * (255 / top)).round().to(torch.uint8)
            scale = Scale(1 / 255, scale.mean, scale.std)
        x = make(x.to(rows.device))
        x = scale(x) if scale else x.float()
        return x.contiguous(memory_format=torch.channels_last)
