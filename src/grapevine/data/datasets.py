"""Data sets by name or path, each as one `Dataset`: all rows in one tensor, images kept as uint8.

Named sets are read from their official files (or from the prepared NPZ files that developers share). Archives are read member
by member in memory, nothing is unpacked, and the pickled versions of CIFAR are refused.

- `mini-imagenet`: a folder `images` and `train.csv`, `val.csv`, `test.csv` with the columns `filename,label`. The few-shot split
  of Ravi & Larochelle has other classes in each file: its three parts are joined and a sixth of each class held out (500 and
  100 images). A split whose files share their classes is taken as it is.
- `fed-isic2019`: `ISIC_2019_Training_Input` (folder or `.zip`) and `ISIC_2019_Training_GroundTruth.csv` of the ISIC archive, with
  FLamby's file `train_test_split`, which says center and fold of each image.
"""

from __future__ import annotations

import difflib
import gzip
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.core.rows import Scale
from grapevine.data import tables

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
    mirror: bool = True  # whether a mirrored image is still of its class: not for digits and letters
    features: tuple[str, ...] = ()  # the names of a table's columns, if they have any

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


def embedding_scale(x: Tensor) -> Scale:
    """One standard deviation for all features: in an embedding their relative sizes carry meaning."""
    wide = x.double()
    mean = wide.mean(0)
    return Scale(1.0, mean.float(), (wide - mean).square().mean().sqrt().float())


def hold_out(strata: np.ndarray, share: float = 0.2) -> np.ndarray:
    """A mask of held-out rows: `share` of each stratum (class or party), rounded, chosen by a fixed seed.

    A stratum of two rows or more gives at least one and keeps at least one.
    """
    rng = np.random.default_rng(SEED)
    held = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        if len(rows) > 1:
            held[rows[: max(1, int(share * len(rows) + 0.5))]] = True
    return held


def images(x: np.ndarray) -> Tensor:
    """(n, h, w) or (n, h, w, c) as a view (n, c, h, w), uint8: the order in memory stays, networks read it fastest."""
    x = torch.from_numpy(np.ascontiguousarray(x, dtype=np.uint8))
    return x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2)


def integers(y: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(y).astype(np.int64))


# Named sets. Each reader gets the folder in which its files were found.

DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
ISIC = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ISIC_CENTERS = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")  # FLamby's order


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits of 8×8 pixels with values 0 to 16, in their order; a fifth of each class held out."""
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    held = hold_out(bunch.target)
    x, y = images(bunch.images), integers(bunch.target)
    return Dataset("digits", "image", x[~held], y[~held], x[held], y[held], DIGITS, image_scale(x[~held], 1 / 16), mirror=False)


def train_and_test(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with np.load(path, allow_pickle=False) as z:
        return images(z["x_train"]), integers(z["y_train"]), images(z["x_test"]), integers(z["y_test"])


def load_fashion_npz(folder: Path) -> Dataset:
    parts = train_and_test(folder / "fashion_mnist.npz")
    return Dataset("fashion-mnist", "image", *parts, FASHION, image_scale(parts[0]))


def load_fashion_idx(folder: Path) -> Dataset:
    parts = idx_parts(folder)
    return Dataset("fashion-mnist", "image", *parts, FASHION, image_scale(parts[0]))


def load_mnist_npz(folder: Path) -> Dataset:
    """MNIST with its writers: those of the test part are others than those of the training part."""
    path = folder / "mnist_writers.npz"
    parts = train_and_test(path)
    with np.load(path, allow_pickle=False) as z:
        return with_writers(parts, z["writer_train"], z["writer_test"])


def with_writers(parts: tuple[Tensor, ...], train: np.ndarray, test: np.ndarray) -> Dataset:
    names, code = np.unique(np.concatenate([train, test]), return_inverse=True)
    group, group_test = integers(code[: len(train)]), integers(code[len(train) :])
    names = tuple(f"writer {name}" for name in names)
    return Dataset("mnist", "image", *parts, DIGITS, image_scale(parts[0]), group, group_test, names, mirror=False)


def load_mnist_idx(folder: Path) -> Dataset:
    """The four files of MNIST; with the two label files of QMNIST beside them, the writers too."""
    parts = idx_parts(folder)
    files = [idx_file(folder, f"qmnist-{part}-labels-idx2-int") for part in ("train", "test")]
    if not all(files):
        return Dataset("mnist", "image", *parts, DIGITS, image_scale(parts[0]), mirror=False)
    writers = []
    for file, y in zip(files, (parts[1], parts[3])):
        rows = read_idx(file, 2)[: len(y)]  # QMNIST's first 10,000 test rows are MNIST's
        if rows.shape[1] < 3 or not np.array_equal(rows[:, 0], y.numpy()):
            raise Mistake(f"{file} does not belong to the images of {folder}, get both again with `grapevine data get mnist`.")
        writers.append(rows[:, 2])
    return with_writers(parts, *writers)


def idx_file(folder: Path, stem: str) -> Path | None:
    """An IDX file, packed or unpacked."""
    return next((path for path in (folder / f"{stem}.gz", folder / stem) if path.is_file()), None)


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_parts(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y, x_test, y_test = (read_idx(idx_file(folder, stem), 3 if "images" in stem else 1) for stem in IDX)
    if len(x) != len(y) or len(x_test) != len(y_test):
        raise Mistake(f"the images and labels in {folder} differ in number, get them again.")
    return images(x), integers(y), images(x_test), integers(y_test)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Yann LeCun's IDX format: two zero bytes, type, number of dimensions, sizes (big-endian), values."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error):
        raise damaged(path) from None
    kinds = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}
    if len(data) < 4 + 4 * dimensions or data[:2] != b"\0\0" or data[2] not in kinds or data[3] != dimensions:
        raise damaged(path)
    shape, kind = np.frombuffer(data, ">u4", dimensions, 4).astype(np.int64), kinds[data[2]]
    start = 4 + 4 * dimensions
    if len(data) - start != int(np.prod(shape)) * kind.itemsize:
        raise damaged(path)
    return np.frombuffer(data, kind, offset=start).reshape(shape).copy()


def damaged(path: Path | str) -> Mistake:
    return Mistake(f"{path} is damaged or not in its official format, delete it and get it again.")


def load_cifar10_npz(folder: Path) -> Dataset:
    """A stratified part of CIFAR-10: 20,000 images to train on and 5,000 to test on."""
    parts = train_and_test(folder / "cifar10_20k5k.npz")
    return Dataset("cifar10", "image", *parts, CIFAR10, image_scale(parts[0]))


def load_cifar10_binary(folder: Path) -> Dataset:
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = read_members(folder, "cifar-10-binary.tar.gz", "cifar-10-batches-bin", [*batches, "test_batch.bin"])
    x, y = cifar_records(folder, b"".join(files[name] for name in batches), 1)
    x_test, y_test = cifar_records(folder, files["test_batch.bin"], 1)
    return Dataset("cifar10", "image", x, y, x_test, y_test, CIFAR10, image_scale(x))


def load_cifar100(folder: Path) -> Dataset:
    """CIFAR-100 with its fine labels."""
    wanted = ["train.bin", "test.bin", "fine_label_names.txt"]
    files = read_members(folder, "cifar-100-binary.tar.gz", "cifar-100-binary", wanted)
    (x, y), (x_test, y_test) = (cifar_records(folder, files[name], 2) for name in wanted[:2])
    classes = tuple(files["fine_label_names.txt"].decode().split())
    if int(max(y.max(), y_test.max())) >= len(classes):
        raise damaged(folder)
    return Dataset("cifar100", "image", x, y, x_test, y_test, classes, image_scale(x))


def cifar_records(folder: Path, data: bytes, labels: int) -> tuple[Tensor, Tensor]:
    """Records of one or two label bytes (the last is the class) and 3×32×32 pixels."""
    if not data or len(data) % (labels + 3072):
        raise damaged(folder)
    records = np.frombuffer(data, np.uint8).reshape(-1, labels + 3072)
    return images(records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), integers(records[:, labels - 1])


def read_members(folder: Path, archive: str, unpacked: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """The wanted files of an archive, or of the folder it was unpacked into."""
    return {name: file.read() for name, file, _ in members(folder, archive, unpacked, wanted)}


def members(folder: Path, archive: str, unpacked: str, wanted: Sequence[str]) -> Iterator[tuple[str, BinaryIO, int]]:
    """Name, open file and size of each wanted file, by its last name alone: paths in an archive lead nowhere."""
    missing = set(wanted)
    if (folder / archive).is_file():
        with tarfile.open(folder / archive, "r|gz") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in missing and member.isfile():
                    missing.remove(name)
                    yield name, tar.extractfile(member), member.size
    else:
        for name in wanted:
            path = folder / unpacked / name
            if path.is_file():
                missing.remove(name)
                with path.open("rb") as file:
                    yield name, file, path.stat().st_size
    if missing:
        raise Mistake(f"{folder / archive} lacks {', '.join(sorted(missing))}, delete it and get it again.")


def load_cifar10_lite0(folder: Path) -> Dataset:
    """CIFAR-10 as features of EfficientNet-lite0."""
    with np.load(folder / "cifar10_lite0_256.npz", allow_pickle=False) as z:
        x, x_test = (torch.from_numpy(z[key].astype(np.float32)) for key in ("x_train", "x_test"))
        y, y_test = integers(z["y_train"]), integers(z["y_test"])
    return Dataset("cifar10-lite0", "table", x, y, x_test, y_test, CIFAR10, embedding_scale(x))


def load_femnist(folder: Path, min_rows: int = 80) -> Dataset:
    """LEAF's writers with at least `min_rows` images; a fifth of each writer's images held out."""
    path = folder / "femnist_leaf.npz"
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
    return Dataset(
        "femnist", "image", x[~held], y[~held], x[held], y[held], FEMNIST, scale, group[~held], group[held], names, mirror=False
    )


def load_derma(folder: Path) -> Dataset:
    """HAM10000 at 28×28 with four acquisition sites, split so that no lesion is in two parts."""
    with np.load(folder / "dermamnist28.npz", allow_pickle=False) as z:
        x, y, group, part = images(z["x"]), integers(z["y"]), integers(z["site"]), z["split_corrected"]
        classes, names = tuple(map(str, z["class_names"])), tuple(map(str, z["site_names"]))
    train, val, test = part == 0, part == 1, part == 2
    scale = image_scale(x[train])
    parts = (x[train], y[train], x[test], y[test])
    return Dataset("derma", "image", *parts, classes, scale, group[train], group[test], names, x[val], y[val])


def load_svhn(folder: Path) -> Dataset:
    (x, y), (x_test, y_test) = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Dataset("svhn", "image", x, y, x_test, y_test, DIGITS, image_scale(x), mirror=False)


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """MATLAB's `X` (32, 32, 3, n) and `y` (n, 1), in which 10 stands for the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(path, variable_names=["X", "y"])
        x, y = file["X"], file["y"].ravel()
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError, MatReadError, zlib.error):
        raise damaged(path) from None
    if (
        x.dtype != np.uint8
        or x.ndim != 4
        or x.shape[:3] != (32, 32, 3)
        or x.shape[3] != len(y)
        or not np.isin(y, range(1, 11)).all()
    ):
        raise damaged(path)
    return images(x.transpose(3, 0, 1, 2)), integers(y % 10)


def load_stl10(folder: Path) -> Dataset:
    """STL-10: the labelled training images, then those without a label."""
    wanted = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin", "class_names.txt"]
    chunks, texts = {}, {}
    for name, file, size in members(folder, "stl10_binary.tar.gz", "stl10_binary", wanted):
        if name.endswith("_X.bin"):
            chunks[name] = stl10_images(folder, file, size)
        else:
            texts[name] = file.read()
    classes = tuple(texts["class_names.txt"].decode().split())
    y, y_test = (integers(np.frombuffer(texts[name], np.uint8)) - 1 for name in ("train_y.bin", "test_y.bin"))
    x, x_test = join(chunks["train_X.bin"] + chunks["unlabeled_X.bin"]), join(chunks["test_X.bin"])
    if len(y) > len(x) or len(y_test) != len(x_test) or not 0 <= int(y.min()) <= int(y.max()) < len(classes):
        raise damaged(folder)
    y = torch.cat([y, torch.full((len(x) - len(y),), -1)])
    return Dataset("stl10", "image", x, y, x_test, y_test, classes, image_scale(x))


def stl10_images(folder: Path, file: BinaryIO, size: int) -> list[Tensor]:
    """Images of 3×96×96 bytes, stored column by column, in parts of a thousand laid out (n, h, w, c)."""
    image = 3 * 96 * 96
    if size % image:
        raise damaged(folder)
    parts = []
    for start in range(0, size, 1000 * image):
        data = np.frombuffer(file.read(min(1000 * image, size - start)), np.uint8)
        parts.append(torch.from_numpy(data.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1).copy()))
    return parts


def join(parts: list[Tensor]) -> Tensor:
    """Parts (n, h, w, c) as one (n, c, h, w); each is let go as it is copied, so that memory holds one whole set, not two."""
    whole = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=torch.uint8)
    parts.reverse()
    at = 0
    while parts:
        part = parts.pop()
        whole[at : at + len(part)] = part
        at += len(part)
    return whole.permute(0, 3, 1, 2)


def load_mini_imagenet(folder: Path, size: int = 84) -> Dataset:
    """100 classes of 600 images; see the head of this module for the files and the split."""
    listed = {part: tables.read_text_columns(folder / f"{part}.csv", ("filename", "label")) for part in ("train", "val", "test")}
    files = [name for part in listed.values() for name in part["filename"]]
    labels = [name for part in listed.values() for name in part["label"]]
    sources = [(name, image_path(folder / "images", name, label)) for name, label in zip(files, labels)]
    x = tables.stack_images(sources, size)
    classes = tuple(sorted(set(labels)))
    y = integers(np.searchsorted(classes, labels))
    part = np.repeat(list(listed), [len(rows["label"]) for rows in listed.values()])
    if set(listed["test"]["label"]) <= set(listed["train"]["label"]):
        train, val, test = (part == name for name in listed)
        parts = (x[train], y[train], x[test], y[test])
        return Dataset("mini-imagenet", "image", *parts, classes, image_scale(x[train]), x_val=x[val], y_val=y[val])
    held = hold_out(y.numpy(), 1 / 6)
    return Dataset("mini-imagenet", "image", x[~held], y[~held], x[held], y[held], classes, image_scale(x[~held]))


def image_path(folder: Path, name: str, label: str) -> Path:
    """An image listed in a CSV file, in the folder itself or in that of its class; never outside."""
    for path in (folder / name, folder / label / name):
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    raise Mistake(f"{folder} lacks the image {name!r} that the list names, complete the folder.")


def load_fed_isic(folder: Path, size: int = 64) -> Dataset:
    """Fed-ISIC2019: six centers, FLamby's folds. The shorter side is brought to `size` and a centred square cut out."""
    split = next(path for path in (folder / "train_test_split", folder / "train_test_split.csv") if path.is_file())
    rows = tables.read_text_columns(split, ("image", "center", "fold"))
    truth_file = folder / "ISIC_2019_Training_GroundTruth.csv"
    truth = tables.read_text_columns(truth_file, ("image", *ISIC))
    known = {name: row for row, name in enumerate(truth["image"])}
    unknown = [name for name in rows["image"] if name not in known]
    if unknown:
        raise Mistake(f"{truth_file} has no line for image {unknown[0]!r} of {split.name}, get it again from the ISIC archive.")
    onehot = np.array([[float(v) for v in truth[name]] for name in ISIC]).T
    y = integers(onehot[[known[name] for name in rows["image"]]].argmax(1))
    group = integers(np.array(rows["center"], dtype=np.int64))
    x = isic_images(folder, rows["image"], size)
    test = np.array(rows["fold"]) == "test"
    parts = (x[~test], y[~test], x[test], y[test])
    return Dataset("fed-isic2019", "image", *parts, ISIC, image_scale(x[~test]), group[~test], group[test], ISIC_CENTERS)


def isic_images(folder: Path, names: list[str], size: int) -> Tensor:
    unpacked = folder / "ISIC_2019_Training_Input"
    if unpacked.is_dir():
        return tables.stack_images([(name, image_path(unpacked, f"{name}.jpg", "")) for name in names], size)
    path = folder / "ISIC_2019_Training_Input.zip"
    with zipfile.ZipFile(path) as archive:
        inside = {PurePosixPath(member).name: member for member in archive.namelist()}
        lacking = [name for name in names if f"{name}.jpg" not in inside]
        if lacking:
            raise Mistake(f"{path} lacks the image {lacking[0]!r}, get it again from the ISIC archive.")
        return tables.stack_images(ZipImages(archive, [(name, inside[f"{name}.jpg"]) for name in names]), size)


@dataclass(frozen=True)
class ZipImages:
    """(name, open file) pairs that are opened one at a time."""

    archive: zipfile.ZipFile
    members: list[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[tuple[str, BinaryIO]]:
        for name, member in self.members:
            with self.archive.open(member) as file:
                yield name, file


@dataclass(frozen=True)
class Layout:
    """Files that together make a data set, what reads them, and the sub-folders they may lie in (else the set's name or none)."""

    files: tuple[str, ...]  # a name with | is a choice
    read: Callable[..., Dataset]
    inside: tuple[str, ...] = ()

    def found(self, place: Path, name: str) -> Path | None:
        for sub in self.inside or (name, ""):
            if all(any((place / sub / file).exists() for file in choice.split("|")) for choice in self.files):
                return place / sub
        return None


@dataclass(frozen=True)
class Known:
    """A data set with a name; a line of `grapevine data list`. `where` is empty if its files were not found."""

    name: str
    rows: str  # to train on + to test on
    classes: int
    kind: str
    source: str
    licence: str
    where: str = ""


KNOWN = (
    Known("digits", "1438 + 359", 10, "image", "scikit-learn, from UCI (8×8 pixels)", "CC BY 4.0", "embedded"),
    Known("fashion-mnist", "60000 + 10000", 10, "image", "Zalando Research", "MIT"),
    Known("mnist", "60000 + 10000", 10, "image", "LeCun, Cortes, Burges; writers from QMNIST", "CC BY-SA 3.0"),
    Known("cifar10", "50000 + 10000", 10, "image", "Krizhevsky, University of Toronto", "none stated"),
    Known("cifar10-lite0", "20000 + 5000", 10, "table", "CIFAR-10 as EfficientNet-lite0 features", "as CIFAR-10"),
    Known("cifar100", "50000 + 10000", 100, "image", "Krizhevsky, University of Toronto", "none stated"),
    Known("svhn", "73257 + 26032", 10, "image", "Netzer et al., Stanford University", "non-commercial use"),
    Known("stl10", "105000 (5000 labelled) + 8000", 10, "image", "Coates et al., Stanford University", "as ImageNet"),
    Known("femnist", "38289 + 9570 of 279 writers", 62, "image", "LEAF, from NIST's database 19", "public domain"),
    Known("derma", "8208 + 1232 of 4 sites", 7, "image", "HAM10000 (28×28 pixels)", "CC BY-NC-SA 4.0"),
    Known("mini-imagenet", "50000 + 10000", 100, "image", "Vinyals et al., from ImageNet", "ImageNet: research only"),
    Known("fed-isic2019", "18597 + 4650 of 6 centers", 8, "image", "ISIC archive, centers from FLamby", "CC BY-NC 4.0"),
)
NAMES = tuple(known.name for known in KNOWN)
OPTIONS = {"femnist": ("min_rows",), "mini-imagenet": ("size",), "fed-isic2019": ("size",)}

# MNIST and Fashion-MNIST have the same file names: only the folder's name tells them apart.
IDX_FILES = tuple(f"{stem}.gz|{stem}" for stem in IDX)
ISIC_FILES = (
    "ISIC_2019_Training_Input|ISIC_2019_Training_Input.zip",
    "ISIC_2019_Training_GroundTruth.csv",
    "train_test_split|train_test_split.csv",
)
LAYOUTS = {
    "fashion-mnist": (
        Layout(("fashion_mnist.npz",), load_fashion_npz),
        Layout(IDX_FILES, load_fashion_idx, ("fashion-mnist", "FashionMNIST/raw")),
    ),
    "mnist": (
        Layout(("mnist_writers.npz",), load_mnist_npz),
        Layout(IDX_FILES, load_mnist_idx, ("mnist", "MNIST/raw")),
    ),
    "cifar10": (
        Layout(("cifar-10-binary.tar.gz|cifar-10-batches-bin",), load_cifar10_binary),
        Layout(("cifar10_20k5k.npz",), load_cifar10_npz),
    ),
    "cifar10-lite0": (Layout(("cifar10_lite0_256.npz",), load_cifar10_lite0),),
    "cifar100": (Layout(("cifar-100-binary.tar.gz|cifar-100-binary",), load_cifar100),),
    "svhn": (Layout(("train_32x32.mat", "test_32x32.mat"), load_svhn),),
    "stl10": (Layout(("stl10_binary.tar.gz|stl10_binary",), load_stl10),),
    "femnist": (Layout(("femnist_leaf.npz",), load_femnist),),
    "derma": (Layout(("dermamnist28.npz",), load_derma),),
    "mini-imagenet": (Layout(("train.csv", "val.csv", "test.csv", "images"), load_mini_imagenet),),
    "fed-isic2019": (Layout(ISIC_FILES, load_fed_isic),),
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


def find(name: str, data_dir: str | Path | None = None) -> tuple[Path, Layout] | None:
    """The folder that holds a data set's files and how to read them; all of `data_dir` comes before the next place."""
    for place in places(data_dir):
        for layout in LAYOUTS[name]:
            folder = layout.found(place, name)
            if folder is not None:
                return folder, layout
    return None


def names(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """The data sets there are: the fields of `Known`, with the folder in which the files were found."""
    found = {name: find(name, data_dir) for name in LAYOUTS}
    return [asdict(known) | (dict(where=str(found[known.name][0])) if found.get(known.name) else {}) for known in KNOWN]


def load(
    name_or_path: str | Path,
    data_dir: str | Path | None = None,
    party: str | None = None,
    label: str | None = None,
    features: Sequence[str] | None = None,
    min_rows: int | None = None,
    size: int | None = None,
) -> Dataset:
    """A data set by name, or from a file or folder of one's own.

    Own tables (CSV, Parquet, NPZ): `label` names the label column (else one called label, y or target), `party` the column with
    natural clients. An NPZ holds `X` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`; uint8 arrays of three or four
    dimensions are images. Own images: a sub-folder per class (inside `train` and `test` if there are such folders), or a
    `labels.csv`. A column `split` with train, val and test says which rows are which. Where a file says nothing, a fifth of each
    class (of each party, if there are parties) is held out by a fixed seed. Table features are standardised by mean and standard
    deviation of the training part, when rows are handed to a network.

    `size`: bring images to this many pixels (folders, mini-imagenet, fed-isic2019). `min_rows`: femnist's writers with as many.
    """
    options = {key: value for key, value in dict(min_rows=min_rows, size=size).items() if value is not None}
    if name_or_path in NAMES:
        if party or label or features:
            raise Mistake(f"{name_or_path} has its own labels and clients: party, label and features are for files of your own.")
        return load_known(str(name_or_path), data_dir, options)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise no_such_data(str(name_or_path))
    allowed = ("size",) if path.is_dir() else ()
    check_options(str(path), options, allowed)
    if path.is_dir():
        return load_folder(path, party, size)
    if path.suffix.lower() == ".npz":
        return load_own_npz(path, party, label)
    return load_table(path, party, label, features)


def check_options(name: str, options: dict[str, Any], allowed: Sequence[str]) -> None:
    for key in options:
        if key not in allowed:
            raise Mistake(f"{name} takes no option {key}, leave it out.")


def no_such_data(name: str) -> Mistake:
    near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, 1)
    known = ", ".join(NAMES)
    return Mistake(
        f"there is no data set and no file or folder {name!r}{tables.hint(near)}, choose one of {known}, or give a path."
    )


def load_known(name: str, data_dir: str | Path | None, options: dict[str, Any]) -> Dataset:
    check_options(name, options, OPTIONS.get(name, ()))
    if name == "digits":
        return load_digits()
    found = find(name, data_dir)
    if found is None:
        from grapevine.data.download import way  # which reads this module

        files = " and ".join(LAYOUTS[name][-1].files).replace("|", " or ")
        looked = ", ".join(map(str, places(data_dir))) + pickled(name, data_dir)
        raise Mistake(f"no files of {name} ({files}) in {looked}: {way(name, data_dir)}, or say --data-dir.")
    folder, layout = found
    try:
        return layout.read(folder, **options)
    except (KeyError, ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise Mistake(f"the files of {name} in {folder} are damaged or of another version ({error}), get them again.") from error


def pickled(name: str, data_dir: str | Path | None) -> str:
    """A word on the pickled version of CIFAR, if that is what is there."""
    there = {
        "cifar10": ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        "cifar100": ("cifar-100-python.tar.gz", "cifar-100-python"),
    }
    for place in places(data_dir):
        for file in there.get(name, ()):
            if (place / file).exists() or (place / name / file).exists():
                return f" ({file} there holds pickles, which can run code: take the binary version)"
    return ""


# Own files


def assemble(
    path: Path,
    x: Tensor,
    labels: Sequence[str | None],
    part: Sequence[str | None] | None = None,
    party: Sequence[str | None] | None = None,
) -> Dataset:
    """A data set of one's own rows, split as `part` says or by holding a fifth out."""
    known = np.array([name is not None for name in labels])
    if not known.any():
        raise Mistake(f"no row of {path} has a label, give some.")
    classes = tuple(tables.sort_names({name for name in labels if name is not None}))
    number = {name: i for i, name in enumerate(classes)}
    y = np.array([-1 if name is None else number[name] for name in labels])
    group_names, group = np.unique([str(name) for name in party], return_inverse=True) if party else ((), None)
    if part is None:
        test = np.zeros(len(y), dtype=bool)
        test[known] = hold_out((y if group is None else group)[known])
        val = np.zeros_like(test)
    else:
        test, val = np.array(part) == "test", np.array(part) == "val"
    if not test.any():
        raise Mistake(f"{path} has too few labelled rows to hold some out for testing, give at least two of a class.")
    if not known[test | val].all():
        row = int(np.flatnonzero((test | val) & ~known)[0])
        raise Mistake(f"{path}: row {row + 1} is for testing but has no label, label it or move it to the training part.")
    train = ~(test | val)
    if not train.any():
        raise Mistake(f"{path} has no row to train on, mark some of them train.")
    kind = "image" if x.dim() == 4 else "table"
    scale = image_scale(x[train]) if kind == "image" else table_scale(x[train])
    y = integers(y)
    optional = dict(x_val=x[val], y_val=y[val]) if val.any() else {}
    if group is not None:
        group = integers(group)
        optional |= dict(group=group[train], group_test=group[test], group_names=tuple(map(str, group_names)))
    return Dataset(path.stem, kind, x[train], y[train], x[test], y[test], classes, scale, **optional)


def complete(path: Path, name: str, values: Sequence[str | None]) -> Sequence[str]:
    """The party of every row: an empty cell is a mistake."""
    if None in values:
        raise Mistake(f"{path}, row {list(values).index(None) + 1}, column {name!r}: the party is missing, give every row one.")
    return values


def parts_of(values: Sequence[str | None]) -> Sequence[str | None] | None:
    """A column `split`, if it says train, test and perhaps val."""
    return values if {"train", "test"} <= set(values) <= {"train", "val", "test"} else None


def load_table(path: Path, party: str | None, label: str | None, features: Sequence[str] | None) -> Dataset:
    try:
        return _load_table(path, party, label, features)
    except tables.CellMistake as cell:  # `grapevine train` takes all columns, and rows that miss none
        whose = f"take the column out, or say --party {cell.column} if it says whose row it is"
        raise Mistake(f"{cell.what}, {whose if cell.way == tables.NAME_THEM else 'put a number there'}.") from None


def _load_table(path: Path, party: str | None, label: str | None, features: Sequence[str] | None) -> Dataset:
    header = tables.column_names(path)
    label = choose_label(path, header, label)
    other = [party] if party else []
    part = None
    if "split" in header and "split" not in (label, party, *(features or ())):
        part = parts_of(tables.read_table(path, label, features=features or None, other=[*other, "split"]).other["split"])
    table = tables.read_table(path, label, features=features, other=[*other, *(["split"] if part else [])])
    rows = complete(path, party, table.other[party]) if party else None
    made = assemble(path, torch.from_numpy(table.x).float(), table.labels, part, rows)
    return replace(made, features=table.columns)


def choose_label(path: Path, header: Sequence[str], label: str | None) -> str:
    if label is not None:
        return label
    found = [name for name in tables.LABEL_NAMES if name in header]
    if not found:
        shown = ", ".join(header[:12])
        raise Mistake(f"{path} has no column label, y or target, name the label column with --label (there are: {shown}).")
    return found[0]


def load_own_npz(path: Path, party: str | None, label: str | None) -> Dataset:
    with tables.open_npz(tables.existing_file(path)) as arrays:
        if "x_train" not in arrays.files:
            x, y = own_arrays(path, arrays, "X", label or "y", "")
            rows = tables.take_array(path, arrays, party) if party else None
            part = None
        else:
            present = [part for part in ("train", "val", "test") if f"x_{part}" in arrays.files]
            pieces = [own_arrays(path, arrays, "x", label or "y", f"_{part}") for part in present]
            x, y = torch.cat([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])
            part = np.repeat(present, [len(y) for _, y in pieces]) if "test" in present else None
            rows = np.concatenate([tables.take_array(path, arrays, f"{party}_{part}") for part in present]) if party else None
    if rows is not None:
        if rows.shape != y.shape:
            raise Mistake(f"{path}: {party!r} has {len(rows)} entries for {len(y)} rows, give one for each row.")
        rows = complete(path, party, [tables.label_name(v) for v in rows.tolist()])
    return assemble(path, x, [tables.label_name(v) for v in y.tolist()], part, rows)


def own_arrays(path: Path, arrays: Any, x: str, y: str, suffix: str) -> tuple[Tensor, np.ndarray]:
    """One pair of features (or images) and labels."""
    values, labels = tables.take_array(path, arrays, x + suffix), tables.take_array(path, arrays, y + suffix)
    if values.ndim < 2 or labels.shape != values.shape[:1]:
        raise Mistake(f"{path}: {x + suffix} has shape {values.shape} and {y + suffix} {labels.shape}, give one label per row.")
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        if values.ndim == 4 and values.shape[3] not in (1, 3) and values.shape[1] in (1, 3):
            values = values.transpose(0, 2, 3, 1)
        return images(values), labels
    if values.dtype.kind not in "biuf":
        raise Mistake(f"{path}: array {x + suffix!r} holds {values.dtype}, store numbers.")
    values = values.reshape(len(values), -1).astype(np.float32)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise Mistake(f"{path}, array {x + suffix!r}, row {row + 1}, column {column + 1}: not a finite number, mend it.")
    return torch.from_numpy(values), labels


def load_folder(folder: Path, party: str | None, size: int | None) -> Dataset:
    other = [party] if party else []
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        found = tables.read_images(folder, size, other)
        rows = complete(folder, party, found.other[party]) if party else None
        return assemble(folder, found.x, found.labels, None, rows)
    present = [part for part in ("train", "val", "test") if (folder / part).is_dir()]
    found = [tables.read_images(folder / part, size, other) for part in present]
    shapes = {images.x.shape[1:] for images in found}
    if len(shapes) > 1:
        raise Mistake(f"the images in the parts of {folder} differ in size or colour, bring them to one.")
    labels = [name for images in found for name in images.labels]
    rows = complete(folder, party, [name for images in found for name in images.other[party]]) if party else None
    part = np.repeat(present, [len(images) for images in found])
    return assemble(folder, torch.cat([images.x for images in found]), labels, part, rows)
