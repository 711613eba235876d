"""Weak and strong views against a per-image pipeline on Pillow: images a second on one core.

    python benchmarks/augment.py [--quick]

Both start from the same uint8 images in memory and end in one uint8 array: CIFAR-10 (32 × 32, colour) and Fashion-MNIST
(28 × 28, grey). The per-image pipeline is what image transforms on Pillow do: a picture from the array, reflection padding,
crop, mirror; for the strong view also two operations of RandAugment drawn out of 14 with random magnitudes, and cutout; then an
array again. Same operations, same ranges. `network_ready` adds gathering the batch by index, scaling and channels-last.
Seconds are processor time, the best of several interleaved turns. Results: augment.json beside this file.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from machine import DATA, FILES, about, need, table, write
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from grapevine.core.rows import Rows
from grapevine.data.augment import RANGES, Views, strong, weak
from grapevine.data.datasets import image_scale
from grapevine.data.pictures import images

SETS = ("cifar10", "fashion-mnist")
BATCHES = (10, 50, 500)


def load(name: str, quick: bool) -> Tensor:
    if quick:
        shape = (100, 32, 32, 3) if name == "cifar10" else (100, 28, 28)
        return images(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    with np.load(DATA / FILES[name], allow_pickle=False) as z:
        return images(z["x_train"][:2000])


# ---------------------------------------------------------------- one image at a time, on Pillow


def affine(p: Image.Image, *matrix: float) -> Image.Image:
    return p.transform(p.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


PILLOW = dict(
    Identity=lambda p, v: p,
    AutoContrast=lambda p, v: ImageOps.autocontrast(p),
    Equalize=lambda p, v: ImageOps.equalize(p),
    Contrast=lambda p, v: ImageEnhance.Contrast(p).enhance(v),
    Brightness=lambda p, v: ImageEnhance.Brightness(p).enhance(v),
    Solarize=lambda p, v: ImageOps.solarize(p, v),
    Posterize=lambda p, v: ImageOps.posterize(p, round(v)),
    Color=lambda p, v: ImageEnhance.Color(p).enhance(v),
    Sharpness=lambda p, v: ImageEnhance.Sharpness(p).enhance(v),
    Rotate=lambda p, v: p.rotate(v),
    ShearX=lambda p, v: affine(p, 1, v, 0, 0, 1, 0),
    ShearY=lambda p, v: affine(p, 1, 0, 0, v, 1, 0),
    TranslateX=lambda p, v: affine(p, 1, 0, v * p.size[0], 0, 1, 0),
    TranslateY=lambda p, v: affine(p, 1, 0, 0, 0, 1, v * p.size[1]),
)


def pillow_weak(a: np.ndarray, rng: random.Random) -> Image.Image:
    h, w = a.shape[:2]
    padded = Image.fromarray(np.pad(a, ((4, 4), (4, 4), (0, 0))[: a.ndim], mode="reflect"))
    left, top = rng.randint(0, 8), rng.randint(0, 8)
    p = padded.crop((left, top, left + w, top + h))
    return p.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else p


def pillow_strong(a: np.ndarray, rng: random.Random) -> Image.Image:
    p = pillow_weak(a, rng)
    for name in rng.choices(list(RANGES), k=2):
        mild, strongest, directed = RANGES[name]
        v = mild + (strongest - mild) * rng.random()
        p = PILLOW[name](p, -v if directed and rng.random() < 0.5 else v)
    p = p.copy()
    w, h = p.size
    left, top = rng.randrange(w) - w // 4, rng.randrange(h) - h // 4
    grey = 127 if p.mode == "L" else (127, 127, 127)
    ImageDraw.Draw(p).rectangle((left, top, left + w // 2 - 1, top + h // 2 - 1), grey)
    return p


def per_image(view: Callable, a: np.ndarray, rng: random.Random) -> np.ndarray:
    return np.stack([np.asarray(view(image, rng)) for image in a])


# ---------------------------------------------------------------- measuring


def seconds(function: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - start) / times


def contenders(x: Tensor, batch: int, rng: torch.Generator) -> dict[str, Callable[[], object]]:
    rows = Rows(x, torch.arange(len(x)), torch.zeros(len(x), dtype=torch.int64), image_scale(x))
    views, at = Views(rows), torch.randperm(len(x), generator=rng)[:batch]
    part = x[at]
    a = part.permute(0, 2, 3, 1).squeeze(3).numpy() if x.shape[1] == 1 else part.permute(0, 2, 3, 1).numpy()
    dice = random.Random(0)
    return {
        "weak": lambda: weak(part, rng),
        "strong": lambda: strong(part, rng),
        "weak, network ready": lambda: views.weak(at, rng),
        "strong, network ready": lambda: views.strong(at, rng),
        "Pillow weak": lambda: per_image(pillow_weak, a, dice),
        "Pillow strong": lambda: per_image(pillow_strong, a, dice),
    }


def measure(x: Tensor, batch: int, turns: int, samples: int) -> dict[str, float]:
    """Images a second of each contender."""
    all = contenders(x, batch, torch.Generator().manual_seed(0))
    best = {name: float("inf") for name in all}
    for function in all.values():
        function()  # loads and compiles what there is to
    for _ in range(turns):
        for name, function in all.items():
            best[name] = min(best[name], seconds(function, max(1, samples // batch)))
    return {name: batch / s for name, s in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test on noise; writes nothing")
    quick = parser.parse_args().quick
    if not quick:
        need(*SETS)
    torch.set_num_threads(1)
    turns, samples, batches = (1, 50, BATCHES[:2]) if quick else (7, 1000, BATCHES)
    result: dict = dict(machine=about(), images_per_second={}, times_pillow={})
    lines = []
    for name in SETS:
        x = load(name, quick)
        for batch in batches:
            rates = measure(x, batch, turns, samples)
            ratio = {view: rates[view] / rates[f"Pillow {view}"] for view in ("weak", "strong")}
            result["images_per_second"][f"{name}, batch {batch}"] = {view: round(rate) for view, rate in rates.items()}
            result["times_pillow"][f"{name}, batch {batch}"] = {view: round(r, 1) for view, r in ratio.items()}
            lines.append((f"{name}, batch {batch}", *rates.values(), *ratio.values()))
    result["least_times_pillow"] = {view: min(r[view] for r in result["times_pillow"].values()) for view in ("weak", "strong")}
    head = ("images/s", "weak", "strong", "weak, ready", "strong, ready", "Pillow weak", "Pillow strong", "×weak", "×strong")
    print(table(head, lines))
    if not quick:
        write(__file__, result)


if __name__ == "__main__":
    main()
