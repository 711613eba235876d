"""The named data sets, where their files are looked for, and `load`: a data set by name or by path."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.words import hint
from grapevine.data import formats, objects, own
from grapevine.data.datasets import Dataset
from grapevine.data.download import places, way
from grapevine.data.sheets import no_file
from grapevine.data.tables import Columns


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
SIZED = ("mini-imagenet", "fed-isic2019")

# MNIST and Fashion-MNIST have the same file names: only the folder's name tells them apart.
IDX_FILES = tuple(f"{stem}.gz|{stem}" for stem in formats.IDX)
ISIC_FILES = (
    "ISIC_2019_Training_Input|ISIC_2019_Training_Input.zip",
    "ISIC_2019_Training_GroundTruth.csv",
    "train_test_split|train_test_split.csv",
)
LAYOUTS = {
    "fashion-mnist": (
        Layout(("fashion_mnist.npz",), formats.load_fashion_npz),
        Layout(IDX_FILES, formats.load_fashion_idx, ("fashion-mnist", "FashionMNIST/raw")),
    ),
    "mnist": (
        Layout(("mnist_writers.npz",), formats.load_mnist_npz),
        Layout(IDX_FILES, formats.load_mnist_idx, ("mnist", "MNIST/raw")),
    ),
    "cifar10": (
        Layout(("cifar-10-binary.tar.gz|cifar-10-batches-bin",), formats.load_cifar10_binary),
        Layout(("cifar10_20k5k.npz",), formats.load_cifar10_npz),
    ),
    "cifar10-lite0": (Layout(("cifar10_lite0_256.npz",), formats.load_cifar10_lite0),),
    "cifar100": (Layout(("cifar-100-binary.tar.gz|cifar-100-binary",), formats.load_cifar100),),
    "svhn": (Layout(("train_32x32.mat", "test_32x32.mat"), formats.load_svhn),),
    "stl10": (Layout(("stl10_binary.tar.gz|stl10_binary",), formats.load_stl10),),
    "femnist": (Layout(("femnist_leaf.npz",), formats.load_femnist),),
    "derma": (Layout(("dermamnist28.npz",), formats.load_derma),),
    "mini-imagenet": (Layout(("train.csv", "val.csv", "test.csv", "images"), formats.load_mini_imagenet),),
    "fed-isic2019": (Layout(ISIC_FILES, formats.load_fed_isic),),
}


def find(name: str, data_dir: str | Path | None = None) -> tuple[Path, Layout] | None:
    """The folder that holds a data set's files and how to read them; all of `data_dir` comes before the next place."""
    for place in places(data_dir):
        for layout in LAYOUTS[name]:
            folder = layout.found(place, name)
            if folder is not None:
                return folder, layout
    return None


def names(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """The known data sets: the fields of `Known`, with the folder in which the files were found."""
    found = {name: find(name, data_dir) for name in LAYOUTS}
    where = {name: dict(where=str(at[0])) for name, at in found.items() if at}
    return [asdict(known) | where.get(known.name, {}) for known in KNOWN]


def load(
    name_or_path: Any,
    data_dir: str | Path | None = None,
    party: str | None = None,
    label: str | None = None,
    size: int | None = None,
    **asked: Any,
) -> Dataset:
    """Load a data set by name, from your own file or folder, or from objects in memory.

    Objects are (X, y) with y = −1 where a row has no label, a pandas or polars frame, a Hugging Face dataset, or a list (or a
    dict with names) of one per party.

    For your own tables (CSV, Parquet, Feather, Excel, NPZ), `label` names the label column (by default label, y or target) and
    `party` the column of natural clients. `asked` are `id`, `features`, `categories`, `missing`, `decimal` and `impute`, as in
    `data.tables.Columns`. An NPZ file holds `X` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`; uint8 arrays of three or
    four dimensions are images. Your own images are in a sub-folder per class (inside `train` and `test` if these exist), or
    listed in a `labels.csv`. A column `split` with train, val and test says which rows are which. Otherwise a fifth of each class
    (of each party, if there are parties) is held out by a fixed seed. Features of tables are scaled by mean and standard
    deviation of the training rows when they reach a network.

    `size` resizes images to this many pixels (folders, mini-imagenet, fed-isic2019).
    """
    if not isinstance(name_or_path, (str, Path)):
        if size is not None:
            raise no_size("data in memory")
        return objects.load_objects(name_or_path, Columns(label=label, **asked), party)
    if name_or_path in NAMES:
        said = [word for word, value in dict(party=party, label=label, **asked).items() if value and value != "auto"]
        if said:
            raise Mistake(f"{name_or_path} has its own labels and clients: leave out {said[0]}, which is for your own files.")
        return load_known(str(name_or_path), data_dir, size)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        name, known = str(name_or_path), ", ".join(NAMES)
        if path.suffix or len(path.parts) > 1:  # what looks like a path is none of the names
            raise no_file(path)
        near = hint(name, NAMES)
        raise Mistake(f"there is no data set and no file or folder {name!r}{near}: choose one of {known}, or give a path.")
    if path.is_dir():
        return own.load_folder(path, party, size)
    if size is not None:
        raise no_size(path)
    if path.suffix.lower() == ".npz":
        return own.load_npz(path, party, label)
    return own.load_table(path, Columns(label=label, **asked), party, path.name)


def no_size(what: str | Path) -> Mistake:
    return Mistake(f"{what} does not take size, which is for folders of images: leave it out.")


def load_known(name: str, data_dir: str | Path | None, size: int | None) -> Dataset:
    if size is not None and name not in SIZED:
        raise no_size(name)
    if name == "digits":
        return formats.load_digits()
    found = find(name, data_dir)
    if found is None:
        files = " and ".join(LAYOUTS[name][-1].files).replace("|", " or ")
        looked = ", ".join(map(str, places(data_dir))) + pickled(name, data_dir)
        raise Mistake(f"no files of {name} ({files}) in {looked}: {way(name, data_dir)}, or use --data-dir.")
    folder, layout = found
    try:
        return layout.read(folder, size) if size is not None else layout.read(folder)
    except Mistake:
        raise
    except (KeyError, ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise Mistake(f"the files of {name} in {folder} are damaged or of another version ({error}): get them again.") from error


def pickled(name: str, data_dir: str | Path | None) -> str:
    """A hint if the folder holds the pickled version of CIFAR."""
    there = {"cifar10": ("10-python.tar.gz", "10-batches-py"), "cifar100": ("100-python.tar.gz", "100-python")}
    for folder in (folder for place in places(data_dir) for folder in (place, place / name)):
        for file in (f"cifar-{end}" for end in there.get(name, ())):
            if (folder / file).exists():
                return f" ({file} there holds pickles, which can run code: use the binary version)"
    return ""
