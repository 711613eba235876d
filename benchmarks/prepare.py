"""What the benchmarks and the claims read, made once from the official files.

    python benchmarks/prepare.py [--quick]

Files go into $GRAPEVINE_DATA, else into shared/data beside the checkout. One that is there is left as it is; a new one is put in
place when it is whole. Official files are read where `grapevine data get` puts them, and fetched if they are not there (210 MB).

    fashion_mnist.npz        the whole set
    mnist_writers.npz        the whole set, with QMNIST's numbers of the writers
    cifar10_20k5k.npz        2000 training and 500 test images of each class; idx_train and idx_test: which of all
    cifar10_lite0_256.npz    the same images as features of EfficientNet-lite0 (some ten minutes of one core)
    femnist_leaf.npz         not to be fetched: a sentence says how to come by it (femnist_graph.py and claim X1 read it)
    dermamnist28.npz         the same (docs_numbers.py and claim X3)

`--quick` embeds noise, says which files are there, fetches nothing and keeps nothing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import DATA, FILES
from rich.progress import track
from torch import Tensor, nn

from grapevine.cli.bars import download_bar
from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.data import catalogue, download, formats
from grapevine.data.datasets import Dataset
from grapevine.data.embed import BATCH, CENTRE, SPREAD, pretrained
from grapevine.data.pictures import images

Arrays = dict[str, np.ndarray]
READERS = {"fashion-mnist": formats.load_fashion_idx, "mnist": formats.load_mnist_idx, "cifar10": formats.load_cifar10_binary}
EACH = {"train": 2000, "test": 500}  # images of a class
PIXELS, PADDED_FOR, COMPONENTS = 112, 224, 256
AXES_FROM = 8000  # training rows


def official(name: str) -> Dataset:
    """Read from the official files, wherever they are."""
    layout = next(each for each in catalogue.LAYOUTS[name] if each.read is READERS[name])
    folders = (layout.found(place, name) for place in download.places(DATA))
    folder = next(filter(None, folders), None)
    return READERS[name](folder) if folder else fetched(name)


def fetched(name: str) -> Dataset:
    """Into the user's cache: beside the prepared part of CIFAR-10, the whole would be read in its place."""
    print(f"fetching {name} …", flush=True)
    with download_bar(name) as progress:
        return READERS[name](download.get(name, download.cache_dir(), progress)[0].parent)


def whole(data: Dataset) -> Arrays:
    parts = dict(x_train=data.x[:, 0], y_train=data.y, x_test=data.x_test[:, 0], y_test=data.y_test)
    return {key: part.numpy().astype(np.uint8) for key, part in parts.items()}


def mnist() -> Arrays:
    data = official("mnist")
    data = fetched("mnist") if data.group is None else data  # only QMNIST's label files know the writers
    writers = np.array([int(name.removeprefix("writer ")) for name in data.group_names], np.int16)
    return whole(data) | dict(writer_train=writers[data.group], writer_test=writers[data.group_test])


def cifar10() -> Arrays:
    """Equally many images of each class, in the official order."""
    data = official("cifar10")
    draw = np.random.RandomState(0)  # numpy promises that its stream stays as it is
    out = {}
    for part, x, y in (("train", data.x, data.y), ("test", data.x_test, data.y_test)):
        y = y.numpy()
        chosen = [draw.permutation(np.flatnonzero(y == c))[: EACH[part]] for c in range(len(data.classes))]
        rows = np.sort(np.concatenate(chosen))
        images = x[rows].permute(0, 2, 3, 1).numpy()
        out |= {f"x_{part}": images, f"y_{part}": y[rows].astype(np.uint8), f"idx_{part}": rows.astype(np.int32)}
    return out


def cifar10_lite0(part: Arrays) -> Arrays:
    """The leading principal components of the images' features. Their axes are those of the first training rows, as in the
    file that the results here were measured on; numpy's SVD also gives them its signs."""
    network = pretrained("efficientnet-lite0", PADDED_FOR)
    train, test = (embed(network, images(part[f"x_{name}"]), f"features, {name}") for name in EACH)
    mean = train.mean(0)
    axes = np.linalg.svd(train[:AXES_FROM] - mean, full_matrices=False)[2][:COMPONENTS].T
    return part | {f"x_{name}": ((rows - mean) @ axes).astype(np.float16) for name, rows in zip(EACH, (train, test))}


@torch.no_grad()
def embed(network: nn.Module, x: Tensor, title: str) -> np.ndarray:
    """Mean-pooled features (n, 1280). Not `embed_images`, which resizes otherwise and pads for the size it resizes to: the
    results here were measured on bicubic images in a network padded for 224 pixels."""
    rows = []
    for batch in track(x.split(BATCH), title):
        batch = F.interpolate(batch.float(), size=(PIXELS, PIXELS), mode="bicubic").clamp(0, 255)
        features = network.extract_features(((batch - CENTRE) / SPREAD).contiguous(memory_format=torch.channels_last))
        rows.append(features.mean((2, 3)))
    return torch.cat(rows).numpy()


def from_part() -> Arrays:
    with np.load(DATA / FILES["cifar10"], allow_pickle=False) as z:
        return cifar10_lite0(dict(z))


MAKE = {"fashion-mnist": lambda: whole(official("fashion-mnist")), "mnist": mnist, "cifar10": cifar10, "cifar10-lite0": from_part}


def keep(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def prepare() -> None:
    for name, file in FILES.items():
        path = DATA / file
        if path.exists():
            print(f"{path} is here.")
        elif name in MAKE:
            keep(path, MAKE[name]())
            print(f"{path} is made.", flush=True)
        else:
            print(f"{file} cannot be made for you: {download.BY_HAND[name].format(folder=DATA)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test on noise; fetches and writes nothing")
    if parser.parse_args().quick:
        noise = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), np.uint8)
        made = cifar10_lite0(dict(x_train=noise[:20], x_test=noise[20:]))
        print(*(f"{key}: {rows.shape}, {rows.dtype}" for key, rows in made.items()), sep="\n")
        print(*(f"{file} is {'here' if (DATA / file).exists() else 'missing'}" for file in FILES.values()), sep="\n")
        return
    try:
        prepare()
    except Mistake as mistake:
        raise SystemExit(str(mistake)) from None


if __name__ == "__main__":
    main()
