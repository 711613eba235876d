"""Data sets from objects in memory, alone or one per party: arrays, pandas and polars frames, Hugging Face datasets."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grapevine.core.errors import Mistake
from grapevine.data import columns, own, tables, together
from grapevine.data.arrow import pa
from grapevine.data.columns import Column
from grapevine.data.datasets import Dataset
from grapevine.data.pictures import as_images, stack_images
from grapevine.data.sheets import is_frame, no_column, open_sheet
from grapevine.data.tables import Columns, Table

PARTY, LABEL = "party-{}", "(label)"
ONE_WAY = "some of the parties are frames and others arrays: give all of them in the same form."


def load_objects(given: Any, asked: Columns, party: str | None = None) -> Dataset:
    """(X, y), a frame, or a Hugging Face dataset; or a list (or a dict with names) of them, one per party.

    y is −1, None or NaN where a row has no label. A frame has a label column; with `party`, one that says whose row it is.
    """
    parties = as_parties(given)
    if any(not is_frame(each) and is_frame(each[0]) for each in parties.values()):
        if not all(not is_frame(each) and is_frame(each[0]) for each in parties.values()):
            raise Mistake(ONE_WAY)
        parties, asked = {name: with_labels(name, *each) for name, each in parties.items()}, replace(asked, label=LABEL)
    if len(parties) == 1 and not isinstance(given, (list, Mapping)):
        (one,) = parties.values()
        if is_frame(one) and pictures_of(one) is None:
            return own.load_table(one, asked, party, "the table")
        if party and not is_frame(one):
            raise Mistake(f"party is {party!r}, but arrays have no columns: give a list with one (X, y) per party.")
        x, labels = arrays("the data", one, asked)
        owners = None if party is None else [tables.label_name(value) for value in one[party]]
        return from_rows(x, labels, owners, asked.impute)
    if party:
        raise Mistake(f"party is {party!r}, but the data is already a list of parties: leave it out.")
    if all(is_frame(each) and pictures_of(each) is None for each in parties.values()):
        return load_frames(parties, asked)
    if any(is_frame(each) and pictures_of(each) is None for each in parties.values()):
        raise Mistake(ONE_WAY)
    read = {name: arrays(name, each, asked) for name, each in parties.items()}
    first, shapes = next(iter(read)), {name: x.shape[1:] for name, (x, _) in read.items()}
    odd = next((name for name, shape in shapes.items() if shape != shapes[first]), None)
    if odd is not None:
        raise Mistake(
            f"{odd} has rows of shape {tuple(shapes[odd])} and {first} has {tuple(shapes[first])}: give all parties the same "
            "shape."
        )
    owners = [name for name, (_, labels) in read.items() for _ in labels]
    every = [label for _, labels in read.values() for label in labels]
    return from_rows(torch.cat([x for x, _ in read.values()]), every, owners, asked.impute)


def as_parties(given: Any) -> dict[str, Any]:
    """What was given, with names: a dict has them, a list gets them, and one object is one party."""
    if type(given).__name__ == "DatasetDict":  # Hugging Face's: parts of one data set, not parties
        raise Mistake(f"data is a DatasetDict with {', '.join(given)}: give one of them, as in data['{next(iter(given))}'].")
    if is_frame(given) or is_pair(given):
        return {PARTY.format(1): given}
    named = dict(given) if isinstance(given, Mapping) else {}
    if isinstance(given, Sequence) and not isinstance(given, str):
        named = {PARTY.format(i + 1): each for i, each in enumerate(given)}
    if not named or not all(is_frame(each) or is_pair(each) for each in named.values()):
        raise Mistake(
            f"data is a {type(given).__name__}: give a name, a path, a split, (X, y), a frame, or a list of one per party."
        )
    return {str(name): each for name, each in named.items()}


def is_pair(thing: Any) -> bool:
    """(X, y), not two parties."""
    whole = isinstance(thing, (tuple, list)) and len(thing) == 2 and not is_frame(thing[1])
    return whole and not any(isinstance(each, (tuple, Mapping, str, int, float)) or each is None for each in thing)


def with_labels(name: str, frame: Any, y: Any) -> pa.Table:
    """A frame of features with its labels as a column."""
    sheet = open_sheet(frame, name)
    labels = [tables.label_name(value) for value in np.asarray(y, object).ravel()]
    table = sheet.load(sheet.header)
    if len(table) != len(labels):
        raise Mistake(f"{name} has {len(table)} rows and {len(labels)} labels: give one per row, −1 where there is none.")
    return table.append_column(LABEL, pa.array(labels, pa.string()))


def arrays(name: str, thing: Any, asked: Columns) -> tuple[torch.Tensor, list[str | None]]:
    """The rows and labels of (X, y), or of a dataset with images."""
    found = pictures_of(thing) if is_frame(thing) else None
    if found is not None:
        label = own.choose_label(name, thing.column_names, asked.label)
        if label not in thing.column_names:
            raise no_column(name, label, thing.column_names)
        cells = open_sheet(thing.select_columns([label]), name).load([label]).column(label)
        return dataset_images(name, thing, found), [tables.label_name(cell, asked.missing) for cell in cells.to_pylist()]
    y = [tables.label_name(value, asked.missing) for value in np.asarray(thing[1], object).ravel()]
    x = as_images(thing[0], name)
    x = torch.from_numpy(own.finite(name, thing[0], asked.impute)) if x is None else x
    if len(x) != len(y):
        raise Mistake(f"{name} has {len(x)} rows and {len(y)} labels: give one per row, −1 where there is none.")
    return x, y


def from_rows(x: torch.Tensor, labels: list[str | None], owners: list[str | None] | list[str] | None, impute: bool) -> Dataset:
    """A data set of images, or of a table whose columns have no names."""
    if x.dim() == 4:
        return own.assemble("the data", x, labels, None, owners)
    named = columns.numbers(f"x{j + 1}" for j in range(x.shape[1]))
    raw = x.double().numpy()
    return own.with_layout("the data", raw, named, columns.agree([(raw, named)], impute), labels, None, owners)


def load_frames(parties: Mapping[str, Any], asked: Columns) -> Dataset:
    """One frame a party, each with the label column."""
    names = list(parties)
    each = [
        replace(asked, label=own.choose_label(name, tables.column_names(frame), asked.label)) for name, frame in parties.items()
    ]
    read = together.read_together(list(parties.values()), each, names)
    layout = columns.agree([(table.x, table.columns) for table in read], asked.impute)
    together.tell(read, layout, names, each[0])
    common = joined(read)
    owners = [name for name, table in zip(names, read) for _ in range(len(table))]
    labels = [label for table in read for label in table.labels]
    return own.with_layout("the data", *common, layout, labels, None, owners)


def joined(read: Sequence[Table]) -> tuple[np.ndarray, tuple[Column, ...]]:
    """Raw tables as one, with one list of values for every category."""
    made = []
    for j, column in enumerate(read[0].columns):
        values = tuple(sorted({value for table in read for value in table.columns[j].values}))
        made.append(replace(column, values=values))
    parts = []
    for table in read:
        x = table.x.copy()
        for j, column in enumerate(table.columns):
            if column.values:
                to = np.array([made[j].values.index(value) for value in column.values], np.float64)
                there = ~np.isnan(x[:, j])
                x[there, j] = to[x[there, j].astype(np.int64)]
        parts.append(x)
    return np.concatenate(parts), tuple(made)


# ---------------------------------------------------------------- Hugging Face


def pictures_of(thing: Any) -> str | None:
    """The column of a Hugging Face dataset that holds images."""
    kinds = getattr(thing, "features", None)
    if not isinstance(kinds, Mapping):
        return None
    return next((name for name, kind in kinds.items() if type(kind).__name__ == "Image"), None)


def dataset_images(name: str, thing: Any, column: str) -> torch.Tensor:
    """The images of a Hugging Face dataset, decoded here."""
    kind = type(thing.features[column])
    cells = thing.cast_column(column, kind(decode=False))[column]

    def opened(cell: dict[str, Any]) -> Any:
        return lambda: io.BytesIO(cell["bytes"]) if cell["bytes"] is not None else open(cell["path"], "rb")

    return stack_images([(f"{name}, image {i + 1}", opened(cell)) for i, cell in enumerate(cells)])
