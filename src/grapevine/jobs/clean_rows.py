"""Rows for the clean job: tables, NPZ files and folders of images, the server's and the parties', brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.data import tables
from grapevine.data.datasets import images
from grapevine.data.pictures import read_images
from grapevine.jobs import label as labelling
from grapevine.jobs.label import Party
from grapevine.jobs.reading import PIXELS, PRETRAINED, model_features, party_names, refuse_flags_of_tables
from grapevine.run.model import Model


@dataclass(frozen=True)
class Holding(Party):
    """Rows of a party, or of the server: a table (n, d), or images (n, c, h, w) as uint8. And what people can see of them."""

    columns: tuple[str, ...] = ()
    pictures: Tensor | None = None

    @property
    def image(self) -> bool:
        return self.x.ndim == 4


def read_files(server: str | Path, parties: Sequence[str | Path], label: str | None, id: str | None = None,
               features: Sequence[str] | None = None, truth: str | None = None, impute: bool = False,
               embed: str | None = None) -> tuple[Holding, list[Holding]]:  # fmt: skip
    """The server's rows and one party a file, named by its stem; columns are brought into the server's order."""
    if not parties:
        raise Mistake("no party was given: name at least one file whose labels are to be cleaned.")
    paths = [str(server), *map(str, parties)]
    names = ["server", *party_names(paths[1:])]
    folders = [Path(path).expanduser().is_dir() for path in paths]
    if any(folders) and not all(folders):
        odd = paths[folders.index(True)]
        raise Mistake(f"{odd} is a folder and others are files: give the server and all parties as tables or all as folders.")
    if all(folders):
        _check_folders(paths, label, id, features, impute)
    model = Model.load(embed) if embed not in (None, PRETRAINED) else None
    if all(folders):
        size = None if embed is None else PIXELS if model is None else model.shape[-1] if len(model.shape) == 3 else None
        read = [_read_folder(path, name, label, truth if i else None, size) for i, (path, name) in enumerate(zip(paths, names))]
    else:
        read = _read_tables(paths, names, label, id, features, truth, impute)
    if embed:
        read = [_embedded(holding, path, embed, model) for holding, path in zip(read, paths)]
    read = _alike(read)
    return read[0], read[1:]


def _check_folders(paths: Sequence[str], label: str | None, id: str | None, features: Sequence[str] | None, impute: bool) -> None:
    refuse_flags_of_tables(paths[0], id, features, impute)
    if label and not any(map(_listed, paths)):
        raise Mistake(f"--label {label} names a column of a table or of a labels.csv, and {paths[1]} has none: leave it out, the "
                      "names of the folders inside are the labels.")  # fmt: skip


def _listed(path: str) -> bool:
    return (Path(path).expanduser() / "labels.csv").exists()


def _read_folder(path: str, name: str, label: str | None, truth: str | None, size: int | None) -> Holding:
    """Images: folders of classes, or a labels.csv in which `label` and `truth` name columns."""
    other = [column for column in (label if _listed(path) else None, truth) if column and column != "label"]
    found = read_images(path, size, other)
    labels = list(found.other.get(label, found.labels))
    return Holding(name, found.x.numpy(), labels, found.ids, found.other.get(truth), pictures=found.x)


def _read_tables(paths: Sequence[str], names: Sequence[str], label: str | None, id: str | None, features: Sequence[str] | None,
                 truth: str | None, impute: bool) -> list[Holding]:  # fmt: skip
    if label is None:
        raise Mistake("which column holds the labels? Say --label COL; an empty cell is an unlabelled row.")
    pixels = [None if features else _read_pixels(path) for path in paths]
    if any(x is not None for x in pixels):
        odd = next((path for path, x in zip(paths, pixels) if x is None), None)
        if odd is not None:
            raise Mistake(f"{odd} is a table and others hold images: give the server and all parties in one form.")
        refuse_flags_of_tables(paths[0], None, None, impute)
        read = [tables.read_table(path, label, *_own(path, id, truth, i == 0)) for i, path in enumerate(paths)]
        return [Holding(name, x.numpy(), t.labels, t.ids, t.truth, pictures=x) for name, x, t in zip(names, pixels, read)]
    read = []
    for i, path in enumerate(paths):
        own_id, features_of, own_truth = _own(path, id, truth, i == 0)
        read.append(tables.read_table(path, label, own_id, features or features_of, own_truth, impute))
    same = tables.check_same_columns(read)
    return [Holding(name, t.x, t.labels, t.ids, t.truth, columns=t.columns) for name, t in zip(names, same)]


def _own(path: str, id: str | None, truth: str | None, server: bool) -> tuple[str | None, None, str | None]:
    """The id and truth columns of a file. The server needs neither, but what it has of them is no feature."""
    if not server:
        return id, None, truth
    present = tables.column_names(path)
    return id if id in present else None, None, truth if truth in present else None


def _read_pixels(path: str) -> Tensor | None:
    """The images in an NPZ file; None if it is a table."""
    if Path(path).suffix.lower() != ".npz":
        return None
    with tables.open_npz(tables.existing_file(path)) as arrays:
        return as_images(tables.take_array(Path(path), arrays, "X"))


def as_images(x: Any) -> Tensor | None:
    """uint8 (n, h, w), (n, h, w, c) or (n, c, h, w) as images; None if it is none of them."""
    x = np.asarray(x)
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or 0 in x.shape:
        return None
    if x.ndim == 4 and x.shape[3] not in (1, 3):
        if x.shape[1] not in (1, 3):
            return None
        x = x.transpose(0, 2, 3, 1)
    return images(x)


def _embedded(holding: Holding, path: str, embed: str, model: Model | None) -> Holding:
    """The features of a network in place of the rows; pictures stay, for people to look at."""
    if model:
        return replace(holding, x=model_features(model, holding.x, path)[0], columns=())
    if not holding.image:
        raise Mistake(f"{embed} takes images, and {path} is a table: leave --embed out, or name a run trained on tables.")
    from grapevine.data.embed import embed_images

    x = embed_images(torch.as_tensor(holding.x), embed, PIXELS)
    return replace(holding, x=x.numpy().astype(np.float64), columns=())


def from_arrays(server: Any, parties: Sequence[Any], names: Sequence[str] | None = None, truth: Sequence[Any] | None = None,
                impute: bool = False) -> tuple[Holding, list[Holding]]:  # fmt: skip
    """The same from (X, y) pairs."""
    own = labelling.from_arrays([server], ["server"], None, impute)
    theirs = labelling.from_arrays(parties, names, truth, impute)
    out = []
    for party, pair in zip([*own, *theirs], [server, *parties]):
        pixels = as_images(pair[0])
        x = party.x if pixels is None else pixels.numpy()
        columns = tuple(f"x{j + 1}" for j in range(x.shape[1])) if pixels is None else ()
        out.append(Holding(party.name, x, party.labels, party.ids, party.truth, columns=columns, pictures=pixels))
    out = _alike(out)
    return out[0], out[1:]


def _alike(read: list[Holding]) -> list[Holding]:
    """All as colour images if some are; a sentence if sizes or numbers of features differ."""
    colour = any(holding.image and holding.x.shape[1] == 3 for holding in read)
    read = [replace(h, x=np.repeat(h.x, 3, 1)) if colour and h.image and h.x.shape[1] == 1 else h for h in read]
    server = read[0]
    for holding in read[1:]:
        if holding.image != server.image:
            odd = ("images", "a table") if holding.image else ("a table", "images")
            raise Mistake(f"{holding.name} has {odd[0]} and the server {odd[1]}: give the server and all parties in one form.")
        if holding.x.shape[1:] != server.x.shape[1:]:
            if server.image:
                a, b = (f"{h.x.shape[3]}×{h.x.shape[2]}" for h in (holding, server))
                raise Mistake(
                    f"{holding.name} has images of {a} pixels and the server of {b}: bring all to one size, or use --embed."
                )
            a, b = holding.x.shape[1], server.x.shape[1]
            raise Mistake(f"{holding.name} has {a} features and the server has {b}: give all the same columns.")
    return read
