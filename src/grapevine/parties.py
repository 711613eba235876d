"""Parties from files: tables and folders of images as the label job's rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from grapevine.data import tables
from grapevine.errors import Mistake
from grapevine.labelling import Party


def read_parties(
    paths: Sequence[str], label: str | None, id: str | None = None, features: Sequence[str] | None = None,
    truth: str | None = None, impute: bool = False, embed: str | None = None, cache: Path | None = None,
    progress: Callable | None = None,
) -> list[Party]:  # fmt: skip
    """One party a file, named by its stem; the columns of all are brought into the first one's order."""
    if len(paths) < 2:
        raise Mistake(f"{len(paths)} party was given: labels travel between parties, so give at least two files.")
    names = party_names(paths)
    folders = [Path(path).is_dir() for path in paths]
    if all(folders):
        return [_images(path, name, label, truth, embed, cache, progress) for path, name in zip(paths, names)]
    if any(folders):
        odd = paths[folders.index(True)]
        raise Mistake(f"{odd} is a folder and others are files: give all parties as tables or all as folders of images.")
    if label is None:
        raise Mistake("which column holds the labels? Say --label COL; an empty cell is an unlabelled row.")
    read = [tables.read_table(path, label, id, features, truth, impute) for path in paths]
    read = tables.check_same_columns(read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two spellings of one class are warned about by the job itself
        tables.class_names(read)
    return [Party(name, _embedded(t.x, embed, name), t.labels, t.ids, t.truth) for name, t in zip(names, read)]


def party_names(paths: Sequence[str]) -> list[str]:
    """The files' stems; equal ones get their parent folder in front."""
    stems = [Path(path).stem if not Path(path).is_dir() else Path(path).name for path in paths]
    full = [f"{Path(path).resolve().parent.name}-{stem}" for path, stem in zip(paths, stems)]
    names = [long if stems.count(stem) > 1 else stem for stem, long in zip(stems, full)]
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"two parties would be called '{name}': rename one of the files.")
    return names


def _images(path: str, name: str, label: str | None, truth: str | None, embed: str | None, cache: Path | None,
            progress: Callable | None) -> Party:  # fmt: skip
    if embed is None:
        raise Mistake(
            f"{path} is a folder of images: say --embed efficientnet-lite0, or --embed RUN for a trained model's features."
        )
    images = tables.read_images(path, other=[c for c in (label, truth) if c])
    if embed == "efficientnet-lite0":
        from grapevine.data.embed import embed_images

        x = embed_images(images.x, embed, cache_dir=cache, progress=progress).numpy().astype(np.float64)
    else:
        x = model_features(embed, images.x)
    labels = images.other.get(label, images.labels) if label else images.labels
    return Party(name, x, list(labels), images.ids, images.other.get(truth) if truth else None)


def _embedded(x: np.ndarray, embed: str | None, name: str) -> np.ndarray:
    if embed is None:
        return x
    if embed == "efficientnet-lite0":
        raise Mistake(
            f"efficientnet-lite0 takes images, and {name} is a table: leave --embed out, or name a run trained on tables."
        )
    return model_features(embed, torch.from_numpy(x))


def model_features(run: str, x: torch.Tensor, batch: int = 1000) -> np.ndarray:
    """Rows as the features of a finished `grapevine train` run (XCLP, section 4.1: "finetuned")."""
    from grapevine.runs import Model

    model = Model.load(run)
    if tuple(x.shape[1:]) != model.shape:
        raise Mistake(f"rows of shape {tuple(x.shape[1:])} do not fit the model of {run}: it was trained on {model.shape}.")
    network = model.network.load(model.shared["weights"]).eval()
    with torch.no_grad():
        pieces = [network.features(model.scale(piece)) for piece in x.split(batch)]
    return torch.cat(pieces).numpy().astype(np.float64)
