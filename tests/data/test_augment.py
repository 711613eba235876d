"""Views against Pillow, pixel for pixel, and against what their definition says."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data import augment, pixels
from grapevine.data.augment import RANGES, Views, strong, weak
from grapevine.data.datasets import embedding_scale, image_scale, table_scale
from grapevine.data.formats import load_digits


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def some_images(n=12, channels=3, height=32, width=32, seed=0):
    """Smooth and noisy pictures, dark and light, with few and with many values: what the operations treat differently."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    out = np.empty((n, height, width, channels), np.uint8)
    for i in range(n):
        for c in range(channels):
            wave = np.sin(x * rng.uniform(0.1, 0.6) + y * rng.uniform(0.1, 0.6) + rng.uniform(0, 6))
            low, high = np.sort(rng.integers(0, 256, 2))
            out[i, :, :, c] = low + (high - low) * (wave + 1) / 2
        if i % 3 == 0:
            out[i] = rng.integers(0, 256, out[i].shape)
    out[1:2] = 77  # a single colour
    out[2:3, : height // 2] = 0
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def picture(image):
    return Image.fromarray(image[0].numpy() if len(image) == 1 else np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def affine(*matrix):
    return lambda p: p.transform(p.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


# What Pillow computes for one picture and a magnitude in our unit.
PILLOW = {
    "Identity": lambda p, v: p,
    "AutoContrast": lambda p, v: ImageOps.autocontrast(p),
    "Equalize": lambda p, v: ImageOps.equalize(p),
    "Rotate": lambda p, v: p.rotate(v),
    "Solarize": lambda p, v: ImageOps.solarize(p, v),
    "Color": lambda p, v: ImageEnhance.Color(p).enhance(v),
    "Posterize": lambda p, v: ImageOps.posterize(p, int(v)),
    "Contrast": lambda p, v: ImageEnhance.Contrast(p).enhance(v),
    "Brightness": lambda p, v: ImageEnhance.Brightness(p).enhance(v),
    "Sharpness": lambda p, v: ImageEnhance.Sharpness(p).enhance(v),
    "ShearX": lambda p, v: affine(1, v, 0, 0, 1, 0)(p),
    "ShearY": lambda p, v: affine(1, 0, 0, v, 1, 0)(p),
    "TranslateX": lambda p, v: affine(1, 0, v * p.size[0], 0, 1, 0)(p),
    "TranslateY": lambda p, v: affine(1, 0, 0, 0, 1, v * p.size[1])(p),
}


def magnitudes(name, n):
    """The whole range in uneven steps, both directions; for blends also what lies beyond the image itself."""
    mild, strongest, directed = RANGES[name]
    v = np.linspace(mild, strongest, n)
    if directed:
        v[::2] *= -1
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        v[:3] = 0.0, 1.0, 1.9
    return torch.from_numpy(np.round(v) if name == "Posterize" else v)


def operation(name, x, v):
    """One operation by itself, of images and one magnitude per sample."""
    out = x.permute(0, 2, 3, 1).contiguous().numpy().copy()
    pixels.rand_augment(out, np.full((1, len(x)), list(RANGES).index(name)), v.double().numpy()[None])
    return torch.from_numpy(out).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", list(RANGES))
@pytest.mark.parametrize("channels, height, width", [(3, 32, 32), (1, 28, 28), (3, 9, 14), (1, 8, 8), (3, 70, 50)])
def test_operations_are_pillows_pixel_for_pixel(name, channels, height, width):
    x = some_images(12, channels, height, width)
    v = magnitudes(name, len(x))
    before = x.clone()
    ours = operation(name, x, v)
    assert torch.equal(x, before) and ours.dtype == torch.uint8 and ours.shape == x.shape
    for image, size, mine in zip(x, v.tolist(), ours):
        theirs = np.asarray(PILLOW[name](picture(image), size)).reshape(height, width, channels)
        np.testing.assert_array_equal(mine.permute(1, 2, 0).numpy(), theirs, err_msg=f"{name} {size}")


def test_there_are_fixmatchs_fourteen_operations():
    assert set(RANGES) == set(PILLOW) and len(RANGES) == 14


@pytest.mark.parametrize("name", [name for name in RANGES if name not in ("Identity", "Color")])
def test_every_operation_does_something_at_its_strongest(name):
    x = some_images(6, 1)[4:5]
    assert not torch.equal(operation(name, x, torch.tensor([float(RANGES[name][1])])), x)


# ---------------------------------------------------------------- weak


def all_weak_views(image, most, flip):
    """Every translation and mirror image, by numpy's own padding."""
    h, w = image.shape[1:]
    padded = np.pad(image.numpy(), ((0, 0), (most, most), (most, most)), mode="reflect")
    views = [padded[:, i : i + h, j : j + w] for i in range(2 * most + 1) for j in range(2 * most + 1)]
    return {v.tobytes() for v in views} | ({v[:, :, ::-1].tobytes() for v in views} if flip else set())


@pytest.mark.parametrize("side, most", [(8, 1), (15, 1), (16, 4), (28, 4)])
@pytest.mark.parametrize("channels, flip", [(1, True), (3, True), (3, False)])
def test_weak_views_are_the_translations_and_mirror_images(side, most, channels, flip):
    image = some_images(1, channels, side, side, seed=5)
    views = weak(image.expand(1500, -1, -1, -1), generator(), flip)
    expected = all_weak_views(image[0], most, flip)
    seen = {v.contiguous().numpy().tobytes() for v in views}
    assert seen <= expected and len(seen) > 0.9 * len(expected)


def test_half_the_weak_views_are_mirrored():
    x = torch.zeros(4000, 1, 32, 32, dtype=torch.uint8)
    x[:, :, :, 20:] = 255  # no translation takes the light part to the left
    mirrored = weak(x, generator())[:, 0, 16, 6] == 255
    assert abs(mirrored.float().mean() - 0.5) < 4 * 0.5 / 4000**0.5


def test_images_that_cannot_move():
    x = some_images(4, 3, 1, 1)
    assert torch.equal(weak(x, generator()), x)
    assert strong(x, generator()).shape == x.shape
    none = torch.empty(0, 3, 32, 32, dtype=torch.uint8)
    assert weak(none, generator()).shape == none.shape == strong(none, generator()).shape


# ---------------------------------------------------------------- SemiFL's


def authors_operation(name, p, sign, x0, y0):
    """An operation of SemiFL's RandAugment at its magnitude 10, by Pillow; shears by the nearest pixel."""
    w, h = p.size
    if name == "Cutout":
        p = p.copy()
        x0, y0 = int(max(0, x0 - 20)), int(max(0, y0 - 20))
        ImageDraw.Draw(p).rectangle((x0, y0, min(w, x0 + 40), min(h, y0 + 40)), 127 if p.mode == "L" else (127, 127, 127))
        return p
    known = {
        "AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert,
        "Solarize": lambda p: ImageOps.solarize(p, 0), "Posterize": lambda p: ImageOps.posterize(p, 4),
        "Rotate": lambda p: p.rotate(30 * sign), "ShearX": affine(1, 0.3 * sign, 0, 0, 1, 0),
        "ShearY": affine(1, 0, 0, 0.3 * sign, 1, 0), "TranslateX": affine(1, 0, 100 * sign, 0, 1, 0),
        "TranslateY": affine(1, 0, 0, 0, 1, 100 * sign),
    }  # fmt: skip
    return known[name](p) if name in known else getattr(ImageEnhance, name)(p).enhance(1.9)


@pytest.mark.parametrize("channels, side", [(1, 28), (3, 32), (3, 120)])
def test_semifls_views_are_its_authors_operations_by_pillow(channels, side):
    names = ("AutoContrast Brightness Color Contrast Cutout Equalize Invert Posterize Rotate Sharpness ShearX ShearY Solarize "
             "TranslateX TranslateY").split()  # fmt: skip
    x, rng = some_images(90, channels, side, side), generator(5)
    views = augment.semifl(x, generator(5))
    base = weak(x, rng)
    chosen = torch.randint(15, (2, 90), generator=rng)
    done = torch.rand(2, 90, generator=rng, dtype=torch.float64) < 0.5
    sign = torch.randint(2, (2, 90), generator=rng) * 2 - 1
    down, along = (torch.rand(2, 90, generator=rng, dtype=torch.float64) * side for _ in range(2))
    for i in range(90):
        p = picture(base[i])
        for line in range(2):
            if done[line, i]:
                p = authors_operation(
                    names[chosen[line, i]], p, sign[line, i].item(), along[line, i].item(), down[line, i].item()
                )
        np.testing.assert_array_equal(views[i].permute(1, 2, 0).numpy(), np.array(p).reshape(side, side, channels))
    assert len(chosen.unique()) == 15 and 0.4 < done.double().mean() < 0.6


def test_semifls_views_of_tables_and_of_nothing():
    table = torch.randn(8, 5)
    assert torch.equal(augment.semifl(table, generator(2)), strong(table, generator(2)))
    none = torch.empty(0, 3, 32, 32, dtype=torch.uint8)
    assert augment.semifl(none, generator()).shape == none.shape


# ---------------------------------------------------------------- strong


def same_strong(x, seed, n=2, flip=True):
    """`strong` again, sample by sample with Pillow, from the same draws in the same order."""
    rng = generator(seed)
    base = weak(x, rng, flip)
    count, _, h, w = x.shape
    code = torch.randint(len(RANGES), (n, count), generator=rng)
    level = torch.rand(n, count, generator=rng, dtype=torch.float64)
    sign = torch.randint(2, (n, count), generator=rng) * 2 - 1
    top = torch.randint(h, (count,), generator=rng) - h // 4
    left = torch.randint(w, (count,), generator=rng) - w // 4
    out = []
    for i in range(count):
        p = picture(base[i])
        for line in range(n):
            name = list(RANGES)[code[line, i]]
            mild, strongest, directed = RANGES[name]
            v = mild + (strongest - mild) * level[line, i].item()
            p = PILLOW[name](p, v * sign[line, i].item() if directed else round(v) if name == "Posterize" else v)
        a = np.array(p).reshape(h, w, -1)
        a[max(top[i], 0) : max(top[i] + h // 2, 0), max(left[i], 0) : max(left[i] + w // 2, 0)] = 127
        out.append(a.transpose(2, 0, 1))
    return torch.from_numpy(np.stack(out))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operations", [2, 3, 0])
@pytest.mark.parametrize("flip", [True, False])
def test_strong_is_weak_then_pillow_then_cutout(channels, operations, flip, monkeypatch):
    monkeypatch.setattr(augment, "OPERATIONS", operations)
    x = some_images(120, channels)
    views = strong(x, generator(3), flip)
    assert views.dtype == torch.uint8
    assert torch.equal(views, same_strong(x, 3, operations, flip))


def test_cutout_takes_half_the_side_and_is_cut_off_at_the_edge(monkeypatch):
    monkeypatch.setattr(augment, "OPERATIONS", 0)
    x = torch.zeros(4000, 1, 32, 32, dtype=torch.uint8)
    covered = (strong(x, generator()) == 127).float()
    area = covered.sum((1, 2, 3))
    assert area.max() == 16 * 16 and area.min() == 8 * 8  # around a corner, a quarter stays inside
    # E of min(16, overlap) along one side: the start is uniform on −8 … 23.
    along = sum(min(s + 16, 32) - max(s, 0) for s in range(-8, 24)) / 32
    assert abs(area.mean() / along**2 - 1) < 0.02


@pytest.mark.parametrize("make", [weak, strong])
@pytest.mark.parametrize("x", [some_images(40), torch.randn(40, 7)], ids=["images", "table"])
def test_views_repeat_with_their_generator_and_leave_the_global_one_alone(make, x):
    state, before = torch.get_rng_state(), x.clone()
    first, again, other = make(x, generator(1)), make(x, generator(1)), make(x, generator(2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(x, before)


def test_threads_get_the_views_they_would_get_alone():
    x = some_images(60)
    alone = [strong(x, generator(seed)) for seed in range(4)]
    together = [None] * 4

    def work(seed):
        together[seed] = strong(x, generator(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(torch.equal(a, b) for a, b in zip(alone, together))


def test_layout_in_memory_does_not_matter():
    x = some_images(20)
    assert torch.equal(strong(x, generator()), strong(x.contiguous(), generator()))


@pytest.mark.parametrize("x", [torch.zeros(2, 3, 8, 8), torch.zeros(2, 2, 8, 8, dtype=torch.uint8), torch.zeros(8)])
def test_rows_that_are_no_images_are_refused(x):
    with pytest.raises(Mistake, match="uint8 images with 1 or 3 channels"):
        weak(x, generator())


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("make, expected", [(weak, augment.TABLE_WEAK), (strong, augment.TABLE_STRONG)])
def test_tables_get_noise_and_lose_features(make, expected):
    x = torch.full((40000, 2), 100.0)
    view = make(x, generator())
    dropped = view == 0
    spread = (view - 100)[~dropped.any(1)].std(0)
    torch.testing.assert_close(spread, torch.full((2,), expected["noise"]), rtol=0.03, atol=0)
    assert abs(dropped.float().mean() - expected["drop"]) < 4 * (expected["drop"] / 80000) ** 0.5


# ---------------------------------------------------------------- Views


def rows_of(x, scale, n=None):
    n = len(x) if n is None else n
    return Rows(x, torch.arange(len(x)).flip(0)[:n], torch.zeros(n, dtype=torch.int64), scale)


def test_views_of_images_are_scaled_and_channels_last():
    x = some_images(30)
    rows = rows_of(x, image_scale(x), 20)
    views, at = Views(rows), torch.tensor([3, 0, 7])
    assert torch.equal(views.plain(at), rows.inputs(at))
    raw = x[rows.index[at]]
    for make, view in ((weak, views.weak), (strong, views.strong)):
        seen = view(at, generator(4))
        torch.testing.assert_close(seen, rows.scale(make(raw, generator(4))))
        assert seen.is_contiguous(memory_format=torch.channels_last) and seen.dtype == torch.float32
    assert torch.equal(views.weak(slice(0, 5), generator()), views.weak(torch.arange(5), generator()))
    unflipped = Views(replace(rows, mirror=False)).strong(at, generator(4))
    torch.testing.assert_close(unflipped, rows.scale(strong(raw, generator(4), flip=False)))


def test_views_of_digits_up_to_16_use_the_whole_range():
    digits = load_digits()
    rows = rows_of(digits.x[:300], digits.scale)
    views = Views(replace(rows, mirror=False))
    light, dark = (rows.scale(torch.tensor([[[[v]]]], dtype=torch.uint8)).item() for v in (16, 0))
    strongest = views.strong(slice(0, 300), generator())
    assert strongest.max().item() == pytest.approx(light) and strongest.min().item() == pytest.approx(dark)
    # A weak view only moves pixels: the same values, to the rounding of 255/16.
    values = rows.inputs(slice(0, 300)).unique()
    gap = (views.weak(slice(0, 300), generator()).unique()[:, None] - values).abs().amin(1).max()
    assert gap < 0.51 / 255 / digits.scale.std.min()


@pytest.mark.parametrize("scale", [table_scale, embedding_scale])
def test_views_of_tables_are_made_of_scaled_rows(scale):
    x = torch.randn(50, 6, generator=generator(9)) * torch.tensor([1.0, 10, 100, 1, 1, 1]) + 1000
    rows = rows_of(x, scale(x))
    views, at = Views(rows), torch.arange(10)
    assert torch.equal(views.weak(at, generator(1)), weak(rows.inputs(at), generator(1)))
    assert torch.equal(views.strong(at, generator(1)), strong(rows.inputs(at), generator(1)))
    assert torch.equal(views.plain(at), rows.inputs(at))


def test_views_do_not_touch_the_clients_data():
    x = some_images(30)
    rows, before = rows_of(x, image_scale(x)), x.clone()
    Views(rows).strong(slice(0, 30), generator())
    Views(rows).weak(slice(0, 30), generator())
    assert torch.equal(x, before)
