"""The formats of the named data sets: each reader gets the folder in which its files were found.

Sets are read from their official files, or from the prepared NPZ files that developers share. Archives are read member by
member in memory, nothing is unpacked, and the pickled versions of CIFAR are refused.

- `mini-imagenet`: a folder `images` and `train.csv`, `val.csv`, `test.csv` with the columns `filename,label`. The few-shot split
  of Ravi & Larochelle has other classes in each file: its three parts are joined and a sixth of each class held out (500 and
  100 images). A split whose files share their classes is taken as it is.
- `fed-isic2019`: `ISIC_2019_Training_Input` (folder or `.zip`) and `ISIC_2019_Training_GroundTruth.csv` of the ISIC archive, with
  FLamby's file `train_test_split`, which says center and fold of each image.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.data.datasets import Dataset, divided, embedding_scale, hold_out, image_scale, integers
from grapevine.data.pictures import image_file, images, stack_images
from grapevine.data.sheets import read_text_columns

DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
ISIC = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ISIC_CENTERS = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")  # FLamby's order


Parts = tuple[Tensor, Tensor, Tensor, Tensor]  # images and labels to train on, images and labels to test on


def image_set(name: str, parts: Parts, classes: tuple[str, ...], **more: Any) -> Dataset:
    """Images, scaled by mean and deviation of the training part."""
    return Dataset(name, "image", *parts, classes, image_scale(parts[0]), **more)


def damaged(path: Path | str) -> Mistake:
    return Mistake(f"{path} is damaged or not in its official format: delete it and get it again.")


def load_digits() -> Dataset:
    """scikit-learn's 1797 digits of 8×8 pixels with values 0 to 16, in their order; a fifth of each class held out."""
    from sklearn.datasets import load_digits as embedded  # here, because scikit-learn takes a second to load

    bunch = embedded()
    parts = divided(images(bunch.images), integers(bunch.target), hold_out(bunch.target))
    return Dataset("digits", "image", *parts, DIGITS, image_scale(parts[0], 1 / 16), mirror=False)


# MNIST and Fashion-MNIST


def npz_parts(path: Path) -> Parts:
    with np.load(path, allow_pickle=False) as z:
        return images(z["x_train"]), integers(z["y_train"]), images(z["x_test"]), integers(z["y_test"])


def load_fashion_npz(folder: Path) -> Dataset:
    return image_set("fashion-mnist", npz_parts(folder / "fashion_mnist.npz"), FASHION)


def load_fashion_idx(folder: Path) -> Dataset:
    return image_set("fashion-mnist", idx_parts(folder), FASHION)


def load_mnist_npz(folder: Path) -> Dataset:
    """MNIST with its writers: those of the test part are others than those of the training part."""
    path = folder / "mnist_writers.npz"
    with np.load(path, allow_pickle=False) as z:
        return with_writers(npz_parts(path), z["writer_train"], z["writer_test"])


def with_writers(parts: Parts, train: np.ndarray, test: np.ndarray) -> Dataset:
    found, code = np.unique(np.concatenate([train, test]), return_inverse=True)
    group, group_test = integers(code[: len(train)]), integers(code[len(train) :])
    names = tuple(f"writer {name}" for name in found)
    return image_set("mnist", parts, DIGITS, group=group, group_test=group_test, group_names=names, mirror=False)


def load_mnist_idx(folder: Path) -> Dataset:
    """The four files of MNIST; with the two label files of QMNIST beside them, the writers too."""
    parts = idx_parts(folder)
    files = [idx_file(folder, f"qmnist-{part}-labels-idx2-int") for part in ("train", "test")]
    if not all(file.is_file() for file in files):
        return image_set("mnist", parts, DIGITS, mirror=False)
    writers = []
    for file, y in zip(files, (parts[1], parts[3])):
        rows = read_idx(file, 2)[: len(y)]  # QMNIST's first 10,000 test rows are MNIST's
        if rows.shape[1] < 3 or not np.array_equal(rows[:, 0], y.numpy()):
            raise Mistake(f"{file} does not belong to the images in {folder}: get both again with `grapevine data get mnist`.")
        writers.append(rows[:, 2])
    return with_writers(parts, *writers)


def idx_file(folder: Path, stem: str) -> Path:
    """An IDX file, packed or unpacked."""
    packed = folder / f"{stem}.gz"
    return packed if packed.is_file() else folder / stem


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_parts(folder: Path) -> Parts:
    x, y, x_test, y_test = (read_idx(idx_file(folder, stem), 3 if "images" in stem else 1) for stem in IDX)
    if len(x) != len(y) or len(x_test) != len(y_test):
        raise Mistake(f"{folder} has different numbers of images and labels: get them again.")
    return images(x), integers(y), images(x_test), integers(y_test)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Yann LeCun's IDX format: two zero bytes, type, number of dimensions, sizes (big-endian), values."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error):
        raise damaged(path) from None
    kinds: dict[int, np.dtype] = {8: np.dtype("u1"), 12: np.dtype(">i4")}
    if len(data) < 4 + 4 * dimensions or data[:2] != b"\0\0" or data[2] not in kinds or data[3] != dimensions:
        raise damaged(path)
    shape, kind = np.frombuffer(data, ">u4", dimensions, 4).astype(np.int64), kinds[data[2]]
    start = 4 + 4 * dimensions
    if len(data) - start != int(np.prod(shape)) * kind.itemsize:
        raise damaged(path)
    return np.frombuffer(data, kind, offset=start).reshape(shape).copy()


# CIFAR


def load_cifar10_npz(folder: Path) -> Dataset:
    """A stratified part of CIFAR-10: 20,000 images to train on and 5,000 to test on."""
    return image_set("cifar10", npz_parts(folder / "cifar10_20k5k.npz"), CIFAR10)


def load_cifar10_lite0(folder: Path) -> Dataset:
    """CIFAR-10 as features of EfficientNet-lite0."""
    with np.load(folder / "cifar10_lite0_256.npz", allow_pickle=False) as z:
        x, x_test = (torch.from_numpy(z[key].astype(np.float32)) for key in ("x_train", "x_test"))
        y, y_test = integers(z["y_train"]), integers(z["y_test"])
    return Dataset("cifar10-lite0", "table", x, y, x_test, y_test, CIFAR10, embedding_scale(x))


def load_cifar10_binary(folder: Path) -> Dataset:
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = read_members(folder, "cifar-10-binary.tar.gz", "cifar-10-batches-bin", [*batches, "test_batch.bin"])
    train, test = b"".join(files[name] for name in batches), files["test_batch.bin"]
    return image_set("cifar10", (*cifar_records(folder, train, 1), *cifar_records(folder, test, 1)), CIFAR10)


def load_cifar100(folder: Path) -> Dataset:
    """CIFAR-100 with its fine labels."""
    wanted = ["train.bin", "test.bin", "fine_label_names.txt"]
    train, test, names = read_members(folder, "cifar-100-binary.tar.gz", "cifar-100-binary", wanted).values()
    (x, y), (x_test, y_test) = (cifar_records(folder, data, 2) for data in (train, test))
    classes = tuple(names.decode().split())
    if int(max(y.max(), y_test.max())) >= len(classes):
        raise damaged(folder)
    return image_set("cifar100", (x, y, x_test, y_test), classes)


def cifar_records(folder: Path, data: bytes, labels: int) -> tuple[Tensor, Tensor]:
    """Records of one or two label bytes (the last is the class) and 3×32×32 pixels."""
    if not data or len(data) % (labels + 3072):
        raise damaged(folder)
    records = np.frombuffer(data, np.uint8).reshape(-1, labels + 3072)
    return images(records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), integers(records[:, labels - 1])


def read_members(folder: Path, archive: str, unpacked: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """The wanted files of an archive, or of the folder it was unpacked into, in the wanted order."""
    found = {name: file.read() for name, file, _ in members(folder, archive, unpacked, wanted)}
    return {name: found[name] for name in wanted}


def members(folder: Path, archive: str, unpacked: str, wanted: Sequence[str]) -> Iterator[tuple[str, IO[bytes], int]]:
    """Name, open file and size of each wanted file, by its last name alone: paths in an archive lead nowhere."""
    missing = set(wanted)
    if (folder / archive).is_file():
        with tarfile.open(folder / archive, "r|gz") as tar:
            for member in tar:
                name, file = PurePosixPath(member.name).name, None
                if name in missing and member.isfile():
                    file = tar.extractfile(member)
                if file:
                    missing.remove(name)
                    yield name, file, member.size
    else:
        for name in wanted:
            path = folder / unpacked / name
            if path.is_file():
                missing.remove(name)
                with path.open("rb") as file:
                    yield name, file, path.stat().st_size
    if missing:
        raise Mistake(f"{folder / archive} lacks {', '.join(sorted(missing))}: delete it and get it again.")


# Others


def load_femnist(folder: Path) -> Dataset:
    """LEAF's writers with at least 80 images; a fifth of each writer's images held out."""
    with np.load(folder / "femnist_leaf.npz", allow_pickle=False) as z:
        x, y, writer, names = z["x"], z["y"], z["writer"], z["writer_names"]
    kept = np.flatnonzero(np.bincount(writer, minlength=len(names)) >= 80)
    if not len(kept):
        raise Mistake(f"no writer of {folder / 'femnist_leaf.npz'} has 80 images: use more of LEAF's files.")
    rows = np.isin(writer, kept)
    group = np.searchsorted(kept, writer[rows])
    held = hold_out(group)
    parts, whose = divided(images(x[rows]), integers(y[rows]), held), integers(group)
    own = dict(group=whose[~held], group_test=whose[held], group_names=tuple(str(names[w]) for w in kept))
    return image_set("femnist", parts, FEMNIST, mirror=False, **own)


def load_derma(folder: Path) -> Dataset:
    """HAM10000 at 28×28 with four acquisition sites, split so that no lesion is in two parts."""
    with np.load(folder / "dermamnist28.npz", allow_pickle=False) as z:
        x, y, group, part = images(z["x"]), integers(z["y"]), integers(z["site"]), z["split_corrected"]
        classes, names = tuple(map(str, z["class_names"])), tuple(map(str, z["site_names"]))
    train, val, test = part == 0, part == 1, part == 2
    own = dict(group=group[train], group_test=group[test], group_names=names, x_val=x[val], y_val=y[val])
    return image_set("derma", (x[train], y[train], x[test], y[test]), classes, **own)


def load_svhn(folder: Path) -> Dataset:
    (x, y), (x_test, y_test) = (read_svhn(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return image_set("svhn", (x, y, x_test, y_test), DIGITS, mirror=False)


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """MATLAB's `X` (32, 32, 3, n) and `y` (n, 1), in which 10 stands for the digit 0."""
    from scipy.io import loadmat  # here, because it takes a while to load
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(path, variable_names=["X", "y"])
        x, y = file["X"], file["y"].ravel()
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError, MatReadError, zlib.error):
        raise damaged(path) from None
    if x.dtype != np.uint8 or x.shape != (32, 32, 3, len(y)) or not np.isin(y, range(1, 11)).all():
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
    return image_set("stl10", (x, y, x_test, y_test), classes)


def stl10_images(folder: Path, file: IO[bytes], size: int) -> list[Tensor]:
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
    listed = {part: read_text_columns(folder / f"{part}.csv", ("filename", "label")) for part in ("train", "val", "test")}
    files = [name for rows in listed.values() for name in rows["filename"]]
    labels = [name for rows in listed.values() for name in rows["label"]]
    x = stack_images([image_file(image_path(folder / "images", name, label)) for name, label in zip(files, labels)], size)
    classes = tuple(sorted(set(labels)))
    y = integers(np.searchsorted(classes, labels))
    part = np.repeat(list(listed), [len(rows["label"]) for rows in listed.values()])
    if set(listed["test"]["label"]) <= set(listed["train"]["label"]):
        train, val, test = (part == name for name in listed)
        return image_set("mini-imagenet", (x[train], y[train], x[test], y[test]), classes, x_val=x[val], y_val=y[val])
    return image_set("mini-imagenet", divided(x, y, hold_out(y.numpy(), 1 / 6)), classes)


def image_path(folder: Path, name: str, label: str) -> Path:
    """An image listed in a CSV file, in the folder itself or in that of its class; never outside."""
    for path in (folder / name, folder / label / name):
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    raise Mistake(f"{folder} lacks the image {name!r} that the list names: complete the folder.")


def load_fed_isic(folder: Path, size: int = 64) -> Dataset:
    """Fed-ISIC2019: six centers, FLamby's folds. The shorter side is brought to `size` and a centred square cut out."""
    split = next(path for path in (folder / "train_test_split", folder / "train_test_split.csv") if path.is_file())
    rows = read_text_columns(split, ("image", "center", "fold"))
    truth_file = folder / "ISIC_2019_Training_GroundTruth.csv"
    truth = read_text_columns(truth_file, ("image", *ISIC))
    known = {name: row for row, name in enumerate(truth["image"])}
    unknown = [name for name in rows["image"] if name not in known]
    if unknown:
        raise Mistake(f"{truth_file} has no line for image {unknown[0]!r} of {split.name}: get it again from the ISIC archive.")
    onehot = np.array([[float(v) for v in truth[name]] for name in ISIC]).T
    y = integers(onehot[[known[name] for name in rows["image"]]].argmax(1))
    group = integers(np.array(rows["center"], dtype=np.int64))
    test = np.array(rows["fold"]) == "test"
    own = dict(group=group[~test], group_test=group[test], group_names=ISIC_CENTERS)
    return image_set("fed-isic2019", divided(isic_images(folder, rows["image"], size), y, test), ISIC, **own)


def isic_images(folder: Path, names: list[str], size: int) -> Tensor:
    unpacked = folder / "ISIC_2019_Training_Input"
    if unpacked.is_dir():
        return stack_images([image_file(image_path(unpacked, f"{name}.jpg", "")) for name in names], size)
    path = folder / "ISIC_2019_Training_Input.zip"
    with zipfile.ZipFile(path) as archive:
        inside = {PurePosixPath(member).name: member for member in archive.namelist()}
        lacking = [name for name in names if f"{name}.jpg" not in inside]
        if lacking:
            raise Mistake(f"{path} lacks the image {lacking[0]!r}: get it again from the ISIC archive.")
        return stack_images([(name, partial(archive.open, inside[f"{name}.jpg"])) for name in names], size)
