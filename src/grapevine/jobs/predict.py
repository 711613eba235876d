"""`grapevine predict`: a trained model on the rows of a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.data.pictures import read_images
from grapevine.data.tables import NAME_THEM, CellMistake, read_table, write_csv
from grapevine.run.model import Model


def predict_file(
    run: str, file: str, out: str, id: str | None = None, features: Sequence[str] | None = None, method: str | None = None
) -> int:
    """Write id, label and probability of every row of a table, an array or a folder of images; how many there were."""
    if Path(out).exists():
        raise Mistake(f"{out} exists: take another --out.")
    if not Path(out).absolute().parent.is_dir():
        raise Mistake(f"there is no folder {Path(out).parent} for {Path(out).name}: make it, or take another --out.")
    model = Model.load(run, method)
    ids, rows = _read(model, file, id, features)
    proba = model.predict_proba(rows)
    best = proba.argmax(1)
    confidence = [f"{p:.6f}" for p in proba.max(1)]
    write_csv(out, dict(id=ids, label=[model.classes[c] for c in best], probability=confidence))
    return len(ids)


def _read(model: Model, file: str, id: str | None, features: Sequence[str] | None) -> tuple[list[str], Any]:
    if Path(file).is_dir():
        images = read_images(file, size=model.shape[-1] if len(model.shape) == 3 else None)
        return images.ids, images.x
    # Columns are taken by name, in whatever order they stand; what else the table holds (labels, parties) is left alone.
    named = features or (model.features if Path(file).suffix.lower() != ".npz" else None)
    try:
        table = read_table(file, id=id, features=named)
    except CellMistake as cell:
        if cell.way == NAME_THEM and not named:
            raise
        raise Mistake(f"{cell.what}, put a number there.") from None
    # A data set of small images may come as a table with a pixel a column.
    return table.ids, table.x.reshape(-1, *model.shape) if table.x.shape[1] == math.prod(model.shape) else table.x
