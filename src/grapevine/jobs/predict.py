"""`grapevine predict`: a trained model on the rows of a file."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.places import require_file
from grapevine.data import together
from grapevine.data.columns import Layout
from grapevine.data.pictures import read_images
from grapevine.data.sheets import ending
from grapevine.data.tables import Columns, read, write_csv
from grapevine.jobs.heads import HEADS, Heads
from grapevine.jobs.settings import PredictSettings
from grapevine.run.model import Model


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
    # Columns are taken by name, in whatever order they stand; what else the table holds (labels, parties) is left alone.
    layout, asked = model.layout, Columns(id=s.id, impute=s.impute, missing=s.missing, decimal=s.decimal)
    if s.features or not layout.columns or ending(Path(file)) == ".npz":
        table = read(file, replace(asked, features=s.features))
        x = table.x
    else:
        table = read(file, replace(asked, features=layout.sources, kinds=layout.kinds))
        x = layout.encode(table.x, table.columns)
    together.tell([table], layout if layout.columns else Layout(table.columns), [Path(file).name], asked, judge=False)
    if x.shape[1] == math.prod(model.shape):
        x = x.reshape(-1, *model.shape)  # a data set of small images may come as a table with a pixel a column
    if not s.impute or isinstance(model, Heads):  # heads put missing values at the mean themselves
        return table.ids, x
    return table.ids, np.where(np.isnan(x), model.scale.mean.numpy() / model.scale.factor, x)
