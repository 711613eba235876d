"""Data sets of your own: tables, NPZ files and folders of images.

A column `split` with train, val and test, or folders of these names, say which rows are which. Where nothing says so, a fifth of
each class (of each party, if there are parties) is held out by a fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.data import columns, tables, together
from grapevine.data.columns import Column, Layout
from grapevine.data.datasets import Dataset, hold_out, image_scale, integers, table_scale
from grapevine.data.pictures import as_images, read_images
from grapevine.data.sheets import existing_file, is_frame
from grapevine.data.tables import Columns, read

PARTS = ("train", "val", "test")


def load_table(source: Any, asked: Columns, party: str | None = None, name: str = "table") -> Dataset:
    """A file or a frame with a label column. Categories become columns of zeros and ones by what the training rows hold."""
    header = tables.column_names(source)
    asked = replace(asked, label=choose_label(name if is_frame(source) else source, header, asked.label))
    others = [party] if party else []
    part = None
    if "split" in header and "split" not in (asked.label, party, *(asked.features or ())):
        said = read(source, replace(asked, other=[*others, "split"]), name).other["split"]
        part = said if {"train", "test"} <= set(said) <= set(PARTS) else None  # another column of this name is a feature
    table = read(source, replace(asked, other=[*others, *(["split"] if part else [])]), name)
    layout = columns.agree([(table.x, table.columns)], asked.impute)
    together.tell([table], layout, [Path(table.path).name], asked)
    made = with_layout(table.path, table.x, table.columns, layout, table.labels, part, table.other[party] if party else None)
    return named(made, table.ids) if asked.id or "id" in set(header) - {asked.label, party} else replace(made, ids=())


def with_layout(path: Any, x: np.ndarray, own: tuple[Column, ...], layout: Layout, labels: Sequence[str | None],
                part: Sequence[str | None] | None, party: Sequence[str | None] | None) -> Dataset:  # fmt: skip
    """A data set from a raw table: encoded, and missing numbers filled with the mean of the training rows."""
    if not layout.names:
        raise Mistake(f"{path}: no column is usable: all are text, and no value occurs in {columns.RARE} rows.")
    made = assemble(path, torch.from_numpy(layout.encode(x, own)).float(), labels, part, party)
    return replace(filled(made), layout=layout)


def named(made: Dataset, ids: Sequence[str]) -> Dataset:
    """The data set with its rows' names, from those of all rows that were read."""
    return replace(made, ids=tuple(ids[int(number) - 1] for number in made.ids))


def filled(made: Dataset) -> Dataset:
    """Missing numbers become the mean of the training rows, which scaling turns into 0."""
    if not any(x is not None and x.isnan().any() for x in (made.x, made.x_test, made.x_val)):
        return made
    mean = made.x.double().nanmean(0).nan_to_num().float()
    x, x_test, x_val = (None if x is None else torch.where(x.isnan(), mean, x) for x in (made.x, made.x_test, made.x_val))
    assert x is not None and x_test is not None
    return replace(made, x=x, x_test=x_test, x_val=x_val, scale=table_scale(x))


def choose_label(path: Any, header: Sequence[str], label: str | None) -> str:
    if label is not None:
        return label
    found = [name for name in tables.LABEL_NAMES if name in header]
    if not found:
        shown = ", ".join(header[:12])
        raise Mistake(
            f"{path} has no column named label, y or target: name the label column with --label (the columns are {shown})."
        )
    return found[0]


def load_npz(path: Path, party: str | None, label: str | None) -> Dataset:
    """`X` and `y`, or `x_train`, `y_train`, `x_test`, `y_test` (and `x_val`, `y_val`), with an array of the party's name."""
    with tables.open_npz(existing_file(path)) as arrays:
        present = [part for part in PARTS if f"x_{part}" in arrays.files] if "x_train" in arrays.files else []
        suffixes = [f"_{part}" for part in present] or [""]
        pieces = [own_arrays(path, arrays, ("x" if present else "X") + end, (label or "y") + end) for end in suffixes]
        rows = [tables.take_array(path, arrays, party + end) for end in suffixes] if party else []
    labels = np.concatenate([y for _, y in pieces])
    owners = np.concatenate(rows) if rows else None
    if owners is not None and owners.shape != labels.shape:
        raise Mistake(f"{path}: {party!r} has {len(owners)} entries for {len(labels)} rows: give one per row.")
    part = np.repeat(present, [len(y) for _, y in pieces]) if "test" in present else None
    names = [[tables.label_name(v) for v in values.tolist()] for values in (labels, owners) if values is not None]
    return replace(assemble(path, joined([x for x, _ in pieces]), names[0], part, names[1] if party else None), ids=())


def own_arrays(path: Path, arrays: Any, x: str, y: str) -> tuple[Tensor, np.ndarray]:
    """One pair of features (or images) and labels."""
    values, labels = tables.take_array(path, arrays, x), tables.take_array(path, arrays, y)
    if values.ndim < 2 or labels.shape != values.shape[:1]:
        raise Mistake(f"{path}: {x} has shape {values.shape} and {y} has {labels.shape}: give one label per row.")
    pictures = as_images(values, str(path))
    return (torch.from_numpy(finite(f"{path}, array {x!r}", values)) if pictures is None else pictures), labels


def finite(where: str, x: Any, impute: bool = False) -> np.ndarray:
    """Rows of numbers as float32, NaN for what is missing if `impute` allows it."""
    x = np.asarray(x)
    if x.dtype.kind == "O":
        x = _numeric(x)
    if x.dtype.kind not in "biuf":
        raise Mistake(f"{where} holds {x.dtype}: give numbers, or a frame with text columns.")
    if x.ndim < 2 or 0 in x.shape:
        raise Mistake(f"{where}: X has the shape {x.shape}: give at least one row and one feature.")
    x = x.reshape(len(x), -1).astype(np.float64)
    bad = ~np.isfinite(x)
    if bad.any() and not impute:
        row, column = np.argwhere(bad)[0]
        raise Mistake(f"{where}, row {row + 1}, column {column + 1}: not a finite number: correct it or use --impute.")
    together.check_size(where, x)
    return np.where(bad, np.nan, x).astype(np.float32)


def _numeric(x: np.ndarray) -> np.ndarray:
    """An array of objects as numbers, None as NaN, if all are."""
    try:
        return x.astype(np.float64)
    except (TypeError, ValueError):
        return x.astype(str)


def load_folder(folder: Path, party: str | None, size: int | None) -> Dataset:
    """A sub-folder per class, inside `train` and `test` if there are such folders, or a `labels.csv`."""
    apart = (folder / "train").is_dir() and (folder / "test").is_dir()
    present = [part for part in PARTS if apart and (folder / part).is_dir()]
    found = [read_images(folder / part, size, [party] if party else []) for part in present or [""]]
    if len({each.x.shape[1:] for each in found}) > 1:
        raise Mistake(f"the images in the parts of {folder} differ in size or colour: make them all the same.")
    labels = [name for each in found for name in each.labels]
    owners = [name for each in found for name in each.other[party]] if party else None
    part = np.repeat(present, [len(each) for each in found]) if present else None
    made = assemble(folder, joined([each.x for each in found]), labels, part, owners)
    return named(made, [name for each in found for name in each.ids])


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]  # one part is not copied


def assemble(
    path: Any,
    x: Tensor,
    labels: Sequence[str | None],
    part: Sequence[str | None] | np.ndarray | None,
    party: Sequence[str | None] | None,
) -> Dataset:
    """A data set of your own rows, split as `part` says or by holding a fifth out. Rows are named by their numbers, from 1."""
    if party and None in party:
        raise Mistake(f"{path}, row {list(party).index(None) + 1}: the party is missing: give every row one.")
    known = np.array([name is not None for name in labels])
    if not known.any():
        raise Mistake(f"no row of {path} has a label: label some rows.")
    classes = tuple(tables.sort_names({name for name in labels if name is not None}))
    number = {name: i for i, name in enumerate(classes)}
    y = np.array([-1 if name is None else number[name] for name in labels])
    group_names, group = np.unique([str(name) for name in party], return_inverse=True) if party else ((), None)
    told = [None] * len(y) if part is None else part
    test, val = (np.array([each == name for each in told]) for name in ("test", "val"))
    if part is None:
        test[known] = hold_out((y if group is None else group)[known])
    check_parts(path, known, test, val)
    train = ~(test | val)
    kind, scale = ("image", image_scale(x[train])) if x.dim() == 4 else ("table", table_scale(x[train]))
    rows = integers(y)
    more: dict[str, Any] = dict(ids=tuple(str(i + 1) for i in np.flatnonzero(train)))
    if val.any():
        more |= dict(x_val=x[val], y_val=rows[val])
    if group is not None:
        whose = integers(group)
        more |= dict(group=whose[train], group_test=whose[test], group_names=tuple(map(str, group_names)))
    return Dataset(Path(path).stem, kind, x[train], rows[train], x[test], rows[test], classes, scale, **more)


def check_parts(path: Any, known: np.ndarray, test: np.ndarray, val: np.ndarray) -> None:
    if not test.any():
        raise Mistake(f"{path} has too few labelled rows to hold some out for testing: label at least two of a class.")
    if not known[test | val].all():
        row = int(np.flatnonzero((test | val) & ~known)[0])
        raise Mistake(f"{path}: row {row + 1} is for testing but has no label: label it or move it to the training part.")
    if (test | val).all():
        raise Mistake(f"{path} has no rows to train on: mark some of them as train.")
