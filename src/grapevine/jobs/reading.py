"""Parties from files: tables and folders of images as the label job's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from grapevine.core.errors import Mistake
from grapevine.data import tables
from grapevine.data.pictures import read_images
from grapevine.jobs.label import Party
from grapevine.run.model import Model

PRETRAINED = "efficientnet-lite0"
PIXELS = 112  # a side, of images for it


def read_parties(
    paths: Sequence[str], label: str | None, id: str | None = None, features: Sequence[str] | None = None,
    truth: str | None = None, impute: bool = False, embed: str | None = None, cache: Path | None = None,
    progress: Callable | None = None,
) -> list[Party]:  # fmt: skip
    """One party a file, named by its stem; the columns of all are brought into the first one's order."""
    if len(paths) < 2:
        many = "1 party was" if paths else "no party was"
        raise Mistake(f"{many} given: labels travel between parties, so give at least two files.")
    names = party_names(paths)
    folders = [Path(path).expanduser().is_dir() for path in paths]
    if any(folders) and not all(folders):
        odd = paths[folders.index(True)]
        raise Mistake(f"{odd} is a folder and others are files: give all parties as tables or all as folders of images.")
    if all(folders) and embed is None:
        raise Mistake(f"{paths[0]} is a folder of images: say --embed {PRETRAINED}, or --embed RUN with a train run's folder.")
    if all(folders):
        refuse_flags_of_tables(paths[0], id, features, impute)
    model = Model.load(embed) if embed not in (None, PRETRAINED) else None
    if all(folders):
        read = [_read_images(path, label, truth, model) for path in paths]
    else:
        read = _read_tables(paths, label, id, features, truth, impute)
        if embed == PRETRAINED:
            raise Mistake(f"{embed} takes images, and {paths[0]} is a table: leave --embed out, or name a run trained on tables.")
    out = []
    for name, path, (x, labels, ids, true) in zip(names, paths, read):
        said = None
        if embed == PRETRAINED:
            from grapevine.data.embed import embed_images

            x = embed_images(x, embed, PIXELS, cache, progress).numpy().astype(np.float64)
        elif model:
            x, said = model_features(model, x, path)
        out.append(Party(name, x, labels, ids, true, said))
    return out


def refuse_flags_of_tables(images: str, id: str | None, features: Sequence[str] | None, impute: bool) -> None:
    """Images have neither columns nor missing values."""
    given = [flag for flag, value in (("--id", id), ("--features", features), ("--impute", impute)) if value]
    if given:
        raise Mistake(f"{images} holds images, and {' and '.join(given)} {'is' if len(given) == 1 else 'are'} for tables: "
                      f"leave {'it' if len(given) == 1 else 'them'} out.")  # fmt: skip


def party_names(paths: Sequence[str]) -> list[str]:
    """The files' stems; equal ones get their parent folder in front."""
    real = [Path(path).expanduser().resolve() for path in paths]
    for path, other in zip(paths, real):
        if real.count(other) > 1:
            raise Mistake(f"{path} is given twice: a party takes part once.")
    stems = [path.name if path.is_dir() else path.stem for path in real]
    names = [f"{path.parent.name}-{stem}" if stems.count(stem) > 1 else stem for stem, path in zip(stems, real)]
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"two parties would be called '{name}': rename one of the files.")
    return names


def _read_tables(
    paths: Sequence[str], label: str | None, id: str | None, features: Sequence[str] | None, truth: str | None, impute: bool
) -> list[tuple]:
    if label is None:
        raise Mistake("which column holds the labels? Say --label COL; an empty cell is an unlabelled row.")
    read = tables.check_same_columns([tables.read_table(path, label, id, features, truth, impute) for path in paths])
    return [(table.x, table.labels, table.ids, table.truth) for table in read]


def _read_images(path: str, label: str | None, truth: str | None, model: Model | None) -> tuple:
    """Images and their labels: folders of classes, or a labels.csv in which `label` and `truth` may name columns."""
    size = PIXELS if model is None else model.shape[-1] if len(model.shape) == 3 else None
    other = [column for column in (label, truth) if column and column != "label"]
    images = read_images(path, size, other)
    return images.x, list(images.other.get(label, images.labels)), images.ids, images.other.get(truth)


def model_features(model: Model, x: np.ndarray | torch.Tensor, where: str, batch: int = 1000) -> tuple[np.ndarray, list[str]]:
    """Rows as the features of a finished train run (XCLP, section 4.1: "finetuned"), and what that run says of them itself."""
    x = torch.as_tensor(x)
    if math.prod(x.shape[1:]) == math.prod(model.shape) and x.dim() == 2:
        x = x.reshape(-1, *model.shape)  # images as a table, a pixel a column
    if tuple(x.shape[1:]) != model.shape:
        raise Mistake(f"{where} has rows of shape {tuple(x.shape[1:])}, and the run of --embed was trained on {model.shape}.")
    if x.isnan().any():
        raise Mistake(f"{where} has missing values, and the run of --embed was trained without: fill them in before.")
    said = model.predict(x)  # its predictor loads the weights, with what belongs to them
    with torch.no_grad():
        pieces = [model.network.features(model.scale(piece)).flatten(1) for piece in x.split(batch)]
    return torch.cat(pieces).numpy().astype(np.float64), said
