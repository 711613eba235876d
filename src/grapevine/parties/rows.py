"""Rows of a party, or of the host: read once, checked against the agreement, kept in its folder, and as steps see them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.core.models import model_file
from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.core.tensors import torch
from grapevine.data.cells import CellMistake
from grapevine.data.columns import Layout
from grapevine.data.datasets import embedding_scale, hold_out, image_scale, table_scale
from grapevine.data.embed import DIMENSIONS
from grapevine.jobs import label, reading
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import CleanSettings
from grapevine.parties.agreement import Agreement
from grapevine.parties.processes import fork
from grapevine.parties.settings import Source

HELD_OUT = 0.2  # of a party's labelled rows in a training job: half to choose the best round by, half to report


# ---------------------------------------------------------------- reading


def read_rows(source: Source, agreed: Agreement, name: str) -> Party:
    """A file or folder, checked against the agreement: columns by name and in the agreed order, classes by name."""
    if source.data is None:
        raise Mistake("where are the rows? Use --data FILE and --label COL, or --data FOLDER for images.")
    if agreed.features and Path(source.data).expanduser().is_dir():
        raise Mistake(f"{source.data} is a folder, but the federation agreed on a table with the columns "
                      f"{', '.join(agreed.features[:5])}: give a table.")  # fmt: skip
    told = CleanSettings(label=source.label, id=source.id, embed=_embedding(source, agreed), missing=source.missing,
                         decimal=source.decimal, impute=bool(agreed.settings.get("impute")))  # fmt: skip
    try:
        ((read,), _) = reading.read(told, [source.data], layout=agreed.row_layout if agreed.features else None)
    except CellMistake as wrong:
        way = "fill it in, or ask the host for a federation with --impute" if "--impute" in wrong.way else wrong.settled
        raise CellMistake(wrong.column, wrong.what, way) from None
    if len(agreed.shape) == 3 and agreed.shape[0] == 3 and read.x.shape[1] == 1:
        read = replace(read, x=np.repeat(read.x, 3, 1))  # grey images, where colours were agreed on
    if read.x.shape[1:] != agreed.shape:
        here, there = ("×".join(map(str, shape)) for shape in (read.x.shape[1:], agreed.shape))
        raise Mistake(
            f"{source.data} has rows of shape {here}, but the federation agreed on {there}: convert them to that shape."
        )
    strange = [label for label in read.classes if label not in agreed.classes]
    if strange and agreed.classes and agreed.job != "clean":  # what the host does not know is what cleaning finds
        known = ", ".join(agreed.classes)
        raise Mistake(f"{source.data} has class {strange[0]!r}, but the federation knows {known}: rename it, or ask the host.")
    named = replace(read, name=name)
    if agreed.job == "label":
        label.check_classes(named)
    return named


def read_apart(source: Source, agreed: Agreement, name: str) -> Party:
    """`read_rows`, of a table in a process of its own: what reads tables takes memory that nobody needs afterwards."""
    if not agreed.features or agreed.embed:
        return read_rows(source, agreed, name)
    child = fork(partial(_send, source, agreed, name))
    try:
        told = wire.decode(child.pipe.recv_bytes())
    except EOFError:
        raise Mistake(f"{source.data} was not read, because the process that reads it ended: {child.stop()}.") from None
    finally:
        child.stop()
    if "mistake" in told:
        raise Mistake(told["mistake"])
    return _party(told["x"], told["about"])


def _send(source: Source, agreed: Agreement, name: str, pipe: Connection) -> None:
    """In that process."""
    try:
        rows = read_rows(source, agreed, name)
        pipe.send_bytes(wire.encode(dict(x=rows.x, about=_about(rows))))
    except Mistake as mistake:
        pipe.send_bytes(wire.encode(dict(mistake=str(mistake))))


def _embedding(source: Source, agreed: Agreement) -> str | None:
    """What embeds the rows: a pretrained network, or this party's own copy of the finished run that was agreed on."""
    if not agreed.embed or agreed.embed in DIMENSIONS:
        return agreed.embed or None
    if source.embed is None:
        raise Mistake(
            f"the features come from a finished run (model {agreed.embed[:12]}): name your copy of it with --embed RUN."
        )
    if model_hash(source.embed) != agreed.embed:
        raise Mistake(f"the model of {source.embed} is not the agreed one ({agreed.embed[:12]}): ask the host for it.")
    return source.embed


def model_hash(folder: str) -> str:
    return hashlib.sha256(model_file(folder).read_bytes()).hexdigest()


# ---------------------------------------------------------------- in a folder


def save_rows(folder: Path, rows: Party) -> None:
    """The rows as they were read once, in a form that a process reads in milliseconds."""
    np.save(folder / "rows.npy", rows.x)
    (folder / "rows.json").write_text(_about(rows))
    for file in ("rows.npy", "rows.json"):
        os.chmod(folder / file, 0o600)


def load_rows(folder: Path) -> Party:
    return _party(np.load(folder / "rows.npy", allow_pickle=False), (folder / "rows.json").read_text())


def _about(rows: Party) -> str:
    """Everything of the rows but their numbers, as JSON."""
    return json.dumps(dict(name=rows.name, labels=rows.labels, ids=rows.ids, **Layout(rows.columns).to_dict()))


def _party(x: np.ndarray, text: str) -> Party:
    about = json.loads(text)
    pictures = torch.from_numpy(x) if x.ndim == 4 else None
    return Party(about["name"], x, about["labels"], about["ids"], columns=Layout.from_dict(about).columns, pictures=pictures)


def forget_rows(folder: Path) -> None:
    for name in ("rows.npy", "rows.json"):
        (folder / name).unlink(missing_ok=True)


# ---------------------------------------------------------------- as steps see them


def client_data(rows: Party, agreed: Agreement) -> ClientData:
    """In a training job a fifth of the labelled rows is held out for `evaluate`. A method that takes no labels from the clients
    gets the other labelled rows without their labels."""
    if agreed.job != "train":
        return rows.data() if agreed.job == "label" else rows.data().tensors()
    y = _numbers(rows, agreed)
    known, rest = np.flatnonzero(y >= 0), np.flatnonzero(y < 0)
    out = hold_out(y[known], HELD_OUT)
    held, used = known[out], known[~out]
    held = held[np.argsort(y[held], kind="stable")]  # class by class, so that both halves have of each
    if not {"clients", "both"} & agreed.made.takes:
        used, rest = used[:0], np.sort(np.concatenate([rest, used]))
    view = _view(rows, agreed)
    unlabelled = replace(view(rest, y), y=torch.full((len(rest),), -1))
    return ClientData(view(used, y), unlabelled, view(held[0::2], y), agreed.classes, view(held[1::2], y))


def server_rows(rows: Party, agreed: Agreement) -> Rows:
    """The host's own labelled rows."""
    y = _numbers(rows, agreed)
    return _view(rows, agreed)(np.flatnonzero(y >= 0), y)


def _numbers(rows: Party, agreed: Agreement) -> np.ndarray:
    number = {name: i for i, name in enumerate(agreed.classes)}
    return np.array([-1 if name is None else number[name] for name in rows.labels], np.int64)


def _view(rows: Party, agreed: Agreement) -> Callable[[np.ndarray, np.ndarray], Rows]:
    x, scale = torch.from_numpy(np.ascontiguousarray(rows.x)), None if agreed.job == "clean" else own_scale(rows.x, agreed)
    return lambda index, y: Rows(x, torch.from_numpy(index), torch.from_numpy(y[index]), scale)


def own_scale(x: np.ndarray, agreed: Agreement) -> Scale:
    """A training job's scaling: by own means and deviations, or none."""
    if agreed.scale == "none":
        return plain_scale(agreed)
    own = torch.from_numpy(np.ascontiguousarray(x))
    return image_scale(own) if x.ndim == 4 else embedding_scale(own) if agreed.embed else table_scale(own)


def plain_scale(agreed: Agreement) -> Scale:
    """None: features as they are, pixels from 0 to 1."""
    image = len(agreed.shape) == 3
    shape = (agreed.shape[0], 1, 1) if image else agreed.shape
    return Scale(1 / 255 if image else 1.0, torch.zeros(shape), torch.ones(shape))
