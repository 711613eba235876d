"""Data sets by name or path, each as one `Dataset`: all rows in one tensor, images kept as uint8."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from grapevine.data.rows import Scale
from grapevine.errors import Mistake

if TYPE_CHECKING:
    from grapevine.data.split import Split

SEED = 20  # of the held-out part of a data set that comes without one; fixed, so that everybody tests on the same rows


@dataclass(frozen=True)
class Dataset:
    """Training and test rows. `group` is the natural party of each row (writer, site); −1 in `y`: not labelled."""

    name: str
    kind: str  # 'image' or 'table'
    x: Tensor  # (n, channels, height, width) uint8, or (n, d) float32
    y: Tensor  # (n,) int64
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    scale: Scale
    group: Tensor | None = None
    group_test: Tensor | None = None
    group_names: tuple[str, ...] = ()
    x_val: Tensor | None = None
    y_val: Tensor | None = None

    def split(self, **flags: Any) -> Split:
        """Hand the rows out to clients; the flags are those of `grapevine.data.split.split`."""
        from grapevine.data.split import split

        return split(self, **flags)


def image_scale(x: Tensor, factor: float = 1 / 255) -> Scale:
    """Mean and standard deviation per channel of uint8 images, from their histograms: no float copy is made."""
    channels = x.shape[1]
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for part in x.split(2000):
        for c in range(channels):
            counts[c] += torch.bincount(part[:, c].reshape(-1), minlength=256)
    value = torch.arange(256, dtype=torch.float64) * factor
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ value
    std = (share @ value**2 - mean**2).clamp(min=0).sqrt()
    std[std < 1e-6] = 1.0  # a channel that never changes stays zero after the mean is taken off
    return Scale(factor, mean.float()[:, None, None], std.float()[:, None, None])


def table_scale(x: Tensor) -> Scale:
    """Mean and standard deviation per feature; a feature that never changes is only centred."""
    wide = x.double()
    mean, std = wide.mean(0), wide.std(0, correction=0)
    std[std <= 1e-12 * wide.abs().amax(0)] = 1.0
    return Scale(1.0, mean.float(), std.float())


def hold_out(strata: np.ndarray, share: float = 0.2) -> np.ndarray:
    """A mask of the held-out rows: `share` of each stratum (class or writer), rounded, chosen by a fixed seed."""
    rng = np.random.default_rng(SEED)
    held = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        held[rows[: int(share * len(rows) + 0.5)]] = True
    return held


def images(x: np.ndarray) -> Tensor:
    """(n, h, w) or (n, h, w, c) as (n, c, h, w), uint8."""
    x = torch.from_numpy(np.ascontiguousarray(x, dtype=np.uint8))
    return x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()


def integers(y: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(y).astype(np.int64))


DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits of 8×8 pixels with values 0 to 16, in their order; a fifth of each class held out."""
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    held = hold_out(bunch.target)
    x, y = images(bunch.images), integers(bunch.target)
    return Dataset("digits", "image", x[~held], y[~held], x[held], y[held], DIGITS, image_scale(x[~held], 1 / 16))


def load_fashion_npz(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as z:
        x, y, x_test, y_test = images(z["x_train"]), integers(z["y_train"]), images(z["x_test"]), integers(z["y_test"])
    return Dataset("fashion-mnist", "image", x, y, x_test, y_test, FASHION, image_scale(x))


def load_mnist_npz(path: Path) -> Dataset:
    """MNIST with its writers: those of the test part are others than those of the training part."""
    with np.load(path, allow_pickle=False) as z:
        x, y, x_test, y_test = images(z["x_train"]), integers(z["y_train"]), images(z["x_test"]), integers(z["y_test"])
        names, code = np.unique(np.concatenate([z["writer_train"], z["writer_test"]]), return_inverse=True)
    group, group_test = integers(code[: len(y)]), integers(code[len(y) :])
    names = tuple(f"writer {name}" for name in names)
    return Dataset("mnist", "image", x, y, x_test, y_test, DIGITS, image_scale(x), group, group_test, names)


def load_cifar10_npz(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as z:
        x, y, x_test, y_test = images(z["x_train"]), integers(z["y_train"]), images(z["x_test"]), integers(z["y_test"])
    return Dataset("cifar10", "image", x, y, x_test, y_test, CIFAR10, image_scale(x))


def load_cifar10_lite0(path: Path) -> Dataset:
    """CIFAR-10 as features of EfficientNet-lite0."""
    with np.load(path, allow_pickle=False) as z:
        x, x_test = (torch.from_numpy(z[key].astype(np.float32)) for key in ("x_train", "x_test"))
        y, y_test = integers(z["y_train"]), integers(z["y_test"])
    return Dataset("cifar10-lite0", "table", x, y, x_test, y_test, CIFAR10, table_scale(x))


def load_femnist(path: Path, min_rows: int = 80) -> Dataset:
    """LEAF's writers with at least `min_rows` images; a fifth of each writer's images held out."""
    with np.load(path, allow_pickle=False) as z:
        x, y, writer, names = z["x"], z["y"], z["writer"], z["writer_names"]
    kept = np.flatnonzero(np.bincount(writer, minlength=len(names)) >= min_rows)
    if not len(kept):
        raise Mistake(f"no writer of {path} has {min_rows} rows, lower min_rows.")
    rows = np.isin(writer, kept)
    x, y, group = images(x[rows]), integers(y[rows]), np.searchsorted(kept, writer[rows])
    held, group = hold_out(group), integers(group)
    names = tuple(str(names[w]) for w in kept)
    scale = image_scale(x[~held])
    return Dataset("femnist", "image", x[~held], y[~held], x[held], y[held], FEMNIST, scale, group[~held], group[held], names)


def load_derma(path: Path) -> Dataset:
    """HAM10000 at 28×28 with four acquisition sites, split so that no lesion is in two parts."""
    with np.load(path, allow_pickle=False) as z:
        x, y, group, part = images(z["x"]), integers(z["y"]), integers(z["site"]), z["split_corrected"]
        classes, names = tuple(map(str, z["class_names"])), tuple(map(str, z["site_names"]))
    train, val, test = part == 0, part == 1, part == 2
    scale = image_scale(x[train])
    parts = (x[train], y[train], x[test], y[test])
    return Dataset("derma", "image", *parts, classes, scale, group[train], group[test], names, x[val], y[val])


FILES = {
    "fashion-mnist": ("fashion_mnist.npz", load_fashion_npz),
    "mnist": ("mnist_writers.npz", load_mnist_npz),
    "cifar10": ("cifar10_20k5k.npz", load_cifar10_npz),
    "cifar10-lite0": ("cifar10_lite0_256.npz", load_cifar10_lite0),
    "femnist": ("femnist_leaf.npz", load_femnist),
    "derma": ("dermamnist28.npz", load_derma),
}


def cache_dir() -> Path:
    """Where downloads go when nobody says otherwise: the platform's cache folder of this user."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "grapevine"


def places(data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which data files are looked for, in order."""
    given = [data_dir, os.environ.get("GRAPEVINE_DATA")]
    return [Path(folder).expanduser() for folder in given if folder] + [cache_dir()]


def load(name_or_path: str, data_dir: str | Path | None = None, party: str | None = None, label: str | None = None) -> Dataset:
    if name_or_path == "digits":
        return load_digits()
    if name_or_path not in FILES:
        raise Mistake(f"there is no data set {name_or_path!r}: choose one of digits, {', '.join(FILES)}.")
    file, read = FILES[name_or_path]
    for folder in places(data_dir):
        if (folder / file).is_file():
            return read(folder / file)
    looked = ", ".join(map(str, places(data_dir)))
    raise Mistake(f"no {file} of {name_or_path} in {looked}: get it with `grapevine data get {name_or_path}` or say --data-dir.")


def names() -> list[str]:
    return ["digits", *FILES]
