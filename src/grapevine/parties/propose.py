"""A new federation from what its host says: what a row is, the classes and the host's own rows are found out."""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.param import Settings
from grapevine.data import tables
from grapevine.data.columns import CATEGORY, NUMBER, RARE, Column, Layout, agree, numbers
from grapevine.data.embed import DIMENSIONS
from grapevine.jobs import clean, reading
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import CleanSettings, LabelSettings
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import Host, Timeouts
from grapevine.parties.rows import model_hash, read_rows
from grapevine.parties.settings import HostSettings, Source
from grapevine.run.model import Model


def propose(folder: Path, said: HostSettings, job: Settings) -> tuple[Host, Party | None]:
    """The host's settings and its own rows. Everything is written out, so that all parties agree to the same."""
    if said.seed is not None and not said.reproducible:
        raise Mistake(f"seed {said.seed} would make the hyperplanes predictable: leave --seed out, or add --reproducible.")
    if said.reproducible and said.seed is None:
        raise Mistake("--reproducible needs a seed: add --seed N.")
    address = checked_address(said.address or socket.getfqdn())
    train = job.job == "train"
    if said.method and job.job == "clean":
        raise Mistake(f"--method does not apply to --job {job.job}: leave it out.")
    if said.method and isinstance(job, LabelSettings):
        job = replace(job, method=said.method)
    if said.scale == ("standard" if train else "own"):
        raise Mistake(f"--scale {said.scale} does not apply to --job {job.job}: use {'own' if train else 'standard'} or none.")
    chorus = isinstance(job, LabelSettings) and job.method == "chorus"  # whose parties agree on values by themselves
    layout, shape, embed = _form(said, bool(getattr(job, "impute", False)), chorus)
    settings = {name: value for name, value in job.agreed().items() if name != "embed"}
    if said.scale and not train:
        settings["scale"] = said.scale
    n = len(said.parties)
    agreed = Agreement(
        said.name or folder.resolve().name, job.job, said.quorum or max(min(3, n), math.ceil(2 * n / 3)), settings, shape,
        (said.method or "fedavg") if train else "", layout.sources, said.classes, embed,
        (said.scale or "own") if train else "own", said.server is not None, said.seed, parties=said.parties,
        layout={} if layout.columns == numbers(layout.sources) and not layout.indicators else layout.to_dict(),
    )  # fmt: skip
    own = Source(said.server, said.label, said.id, said.missing, said.decimal, said.embed)
    rows = read_rows(own, agreed, "server") if said.server else None
    agreed = replace(agreed, settings=_complete(agreed, rows), classes=said.classes or _classes(agreed, rows))
    times = Timeouts(said.wait, said.wait, step=said.step_timeout)
    return Host(folder, agreed, address, said.port, said.bind, times, said.label, said.id), rows


def checked_address(text: str) -> str:
    """A name or number of a machine: parties would find out days later that it is none."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", text, re.ASCII):
            raise Mistake(f"--address {text} is not the name or IP address of a machine: write host.example.org or 192.0.2.7, "
                          "and the port with --port.") from None  # fmt: skip
    return text


def _classes(agreed: Agreement, rows: Party | None) -> tuple[str, ...]:
    return () if rows is None or agreed.job == "label" else tuple(tables.sort_names(rows.classes))


def _complete(agreed: Agreement, rows: Party | None) -> dict[str, Any]:
    """The job's settings with those filled in that depend on the rows."""
    settings = dict(agreed.settings)
    if agreed.job == "label":
        return settings
    if agreed.job == "train":
        settings.setdefault("model", "cnn" if len(agreed.shape) == 3 else "mlp")
    elif rows is not None:
        told = CleanSettings.from_dict(dict(settings, embed=agreed.embed or None))
        settings |= dict(model=clean.model_name(told, rows), epochs=clean.make_method(told, rows).epochs)
    return settings


# ---------------------------------------------------------------- what a row is


def _form(said: HostSettings, impute: bool, raw: bool) -> tuple[Layout, tuple[int, ...], str]:
    """The layout of a table, a row's shape for the method, and the name or the hash of what embeds it."""
    layout, shape = _read(said, impute, raw)
    if said.embed is None:
        return layout, shape, ""
    if said.embed in DIMENSIONS:
        if layout.columns:
            raise Mistake(f"{said.embed} takes images, but these are tables: leave --embed out, or name a run trained on tables.")
        return Layout(), (DIMENSIONS[said.embed],), said.embed
    width = Model.load(said.embed).network.features_dim
    if width is None:
        raise Mistake(f"the run {said.embed} does not record how many features it has: use another.")
    return Layout(numbers(layout.sources)), (width,), model_hash(said.embed)


def _read(said: HostSettings, impute: bool, raw: bool) -> tuple[Layout, tuple[int, ...]]:
    """Layout and shape of the rows as they are read. Unless it is raw, the values of a category are those of the host's table
    that are not rare. Of a table of a few made-up lines none would be left, so it is refused."""
    if said.shape:
        return Layout(), _numbers(said.shape)
    like = said.schema or said.server
    if like is None:
        return _named(said, raw)
    folder = Path(like).expanduser().is_dir()
    told = CleanSettings(label=said.label, id=said.id, features=said.features or None, impute=not folder,
                         categories=said.categories, missing=said.missing, decimal=said.decimal)  # fmt: skip
    ((read,), _) = reading.read(told, [like], layout=Layout(raw=True) if raw else None, encode=False)
    if not read.columns:
        return Layout(), tuple(read.x.shape[1:])
    if raw:
        return Layout(tuple(replace(column, values=()) for column in read.columns), raw=True), (len(read.columns),)
    text = [column.name for column in read.columns if column.kind == CATEGORY]
    if said.schema and text and len(read.x) < RARE:
        raise Mistake(f"{like} has {len(read.x)} lines, and column '{text[0]}' is text: its values are agreed on from here, "
                      f"so write each value that matters on {RARE} lines, or name the others with --features.")  # fmt: skip
    layout = agree([(read.x, read.columns)], impute)
    return layout, (len(layout.names),)


def _named(said: HostSettings, raw: bool) -> tuple[Layout, tuple[int, ...]]:
    """The columns that the host names, without a table."""
    words = said.categories
    if words and not raw:
        raise Mistake(f"the values of column '{words[0]}' are taken from a table: give one with --schema or --server.")
    extra = [name for name in words if name not in said.features]
    if extra:
        raise Mistake(f"--categories names '{extra[0]}', which is not among the --features: name it there too.")
    columns = tuple(Column(name, CATEGORY if name in words else NUMBER) for name in said.features)
    return Layout(columns, raw=raw), (len(columns),) if columns else ()


def _numbers(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(n) for n in text.lower().replace("×", "x").split("x"))
    except ValueError:
        shape = ()
    if len(shape) != 3 or min(shape) < 1 or shape[0] not in (1, 3):
        raise Mistake(f"--shape {text}: write channels (1 or 3), height and width, as in 3x32x32.")
    return shape
