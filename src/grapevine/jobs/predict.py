"""`grapevine predict`: a trained model on the rows of a file."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.models import HEADS
from grapevine.core.places import require_file
from grapevine.core.words import many, some
from grapevine.data import together
from grapevine.data.cells import CellMistake
from grapevine.data.columns import NUMBER, Layout
from grapevine.data.pictures import read_images
from grapevine.data.sheets import ending
from grapevine.data.tables import Columns, Table, choose_columns, column_names, read, write_csv
from grapevine.jobs.heads import Heads
from grapevine.jobs.settings import PredictSettings
from grapevine.run.model import Model

LOG = logging.getLogger("grapevine.reading")


def predict_file(run: str, file: str, out: str, s: PredictSettings) -> int:
    """Write id, label and probability of every row of a table, an array or a folder of images; return the number of rows."""
    if os.path.isfile(out):
        raise Mistake(f"{out} exists: choose another --out.")
    require_file(Path(out))
    model = load(run, s.method)
    ids, rows = _read(model, file, s)
    proba = model.predict_proba(rows)
    best = proba.argmax(1)
    confidence = [f"{p:.6f}" for p in proba.max(1)]
    write_csv(out, dict(id=ids, label=[model.classes[c] for c in best], probability=confidence))
    return len(ids)


def load(folder: str, method: str | None = None) -> Model | Heads:
    """Load what a finished run or a label job left for new rows."""
    return Heads.load(Path(folder) / HEADS) if (Path(folder) / HEADS).is_file() else Model.load(folder, method)


def _read(model: Model | Heads, file: str, s: PredictSettings) -> tuple[list[str], Any]:
    if Path(file).is_dir():
        images = read_images(file, size=model.shape[-1] if len(model.shape) == 3 else None)
        return images.ids, images.x
    asked = Columns(id=s.id, impute=s.impute, missing=s.missing, decimal=s.decimal)
    try:
        table, x = (_by_name if model.layout.columns and ending(Path(file)) != ".npz" else _by_place)(
            model, file, asked, s.features
        )
    except CellMistake as wrong:  # the model says what the columns are for
        raise CellMistake(wrong.column, wrong.what, wrong.settled) from None
    layout = model.layout if model.layout.columns else Layout(table.columns)
    together.tell([table], layout, [Path(file).name], asked, judge=False)
    if x.shape[1] == math.prod(model.shape):
        x = x.reshape(-1, *model.shape)  # a data set of small images may come as a table with a pixel a column
    if not s.impute or isinstance(model, Heads):  # heads put missing values at the mean themselves
        return table.ids, x
    return table.ids, np.where(np.isnan(x), model.scale.mean.numpy() / model.scale.factor, x)


def _by_name(model: Model | Heads, file: str, asked: Columns, named: Sequence[str] | None) -> tuple[Table, np.ndarray]:
    """A table with the columns of training, in whatever order they stand; what else it holds (labels, parties) is left alone.
    `named` are its names for them, in the order of training."""
    layout = model.layout
    wanted = layout.sources
    own = wanted if named is None or set(named) == set(wanted) else tuple(named)
    if len(own) != len(wanted):
        lacks = [name for name in wanted if name not in own]
        way = f"name {some(lacks)} too" if set(own) < set(wanted) else f"name the file's columns for {some(wanted)}"
        raise Mistake(f"--features names {many(len(own), 'column')}, but the model was made from {len(wanted)}: leave --features "
                      f"out, or {way}.")  # fmt: skip
    theirs = dict(zip(own, wanted))
    table = read(file, replace(asked, features=own, kinds={name: layout.kinds[theirs[name]] for name in own}))
    columns = [replace(column, name=column.name.replace(column.source, theirs[column.source], 1)) for column in table.columns]
    for line in together.unnamed(table.x, columns, layout):
        LOG.warning(line)
    return table, layout.encode(table.x, columns)


def _by_place(model: Model | Heads, file: str, asked: Columns, named: Sequence[str] | None) -> tuple[Table, np.ndarray]:
    """A table for a model whose columns have no names, or an array. Their number is checked before what they hold."""
    asked = replace(asked, features=named)
    if ending(Path(file)) != ".npz":
        _, names = choose_columns(file, column_names(file), asked)
        _check_width(model, file, len(names), names)
        asked = replace(asked, kinds=dict.fromkeys(names, NUMBER))
    table = read(file, replace(asked, impute=True))
    _check_width(model, file, table.x.shape[1], table.names)
    if np.isnan(table.x).any() and not asked.impute:
        table = read(file, asked)  # which says where a value is missing
    return table, table.x


def _check_width(model: Model | Heads, file: str, n: int, names: Sequence[str]) -> None:
    wanted = math.prod(model.shape)
    if n not in (wanted, len(model.layout.columns)):  # of raw columns, heads make features themselves
        made = f"images of {'×'.join(map(str, model.shape))}, {wanted} values" if len(model.shape) == 3 else f"{wanted} columns"
        raise Mistake(f"{file} has {many(n, 'column')} ({some(names)}), but the model was made from {made}: give rows like those "
                      "of training, or name the columns to use with --features.")  # fmt: skip
