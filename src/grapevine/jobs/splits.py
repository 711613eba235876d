"""The data and the split that settings ask for."""

from __future__ import annotations

import logging
from typing import Any

from grapevine import data
from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.data import Dataset, Split, catalogue
from grapevine.jobs.labels_from import with_labels
from grapevine.jobs.settings import DataSettings

ASKED = ("id", "features", "categories", "missing", "decimal", "impute", "size")  # how files are read
CLIENTS = 100  # among whom rows are dealt if nobody says how many
Loaded = tuple[Dataset, Dataset | None]


def load_data(s: DataSettings) -> Loaded:
    """The data set, and the one of irrelevant rows."""
    asked = {name: getattr(s, name) for name in ASKED}
    dataset = data.load(s.data, data_dir=s.data_dir, party=s.party, label=s.label, **asked)
    foreign = data.load(s.irrelevant.rsplit(":", 1)[0], data_dir=s.data_dir) if s.irrelevant else None
    return dataset, foreign


def sources(s: DataSettings) -> tuple[Any, ...]:
    """What `load_data` reads: where it is the same, so is the data."""
    return s.data, s.data_dir, s.party, s.label, s.irrelevant, *(getattr(s, name) for name in ASKED)


def make_split(s: DataSettings, seed: int, loaded: Loaded | None = None) -> Split:
    """The split, of data that is loaded already or is loaded now."""
    if s.min_confidence and not s.labels_from:
        raise Mistake(f"--min-confidence {s.min_confidence:g} selects labels from --labels-from: name that folder too.")
    made = _split(s, seed, loaded or load_data(s))
    if not loaded:  # a comparison, which loads once for many splits, says how many clients there are
        _note_clients(s, made)
    return with_labels(made, s.labels_from, s.min_confidence) if s.labels_from else made


def _note_clients(s: DataSettings, made: Split) -> None:
    """Say that rows of one's own were dealt to very many clients, if nobody chose their number."""
    known = isinstance(s.data, str) and s.data in catalogue.NAMES
    if not known and s.clients is None and not s.split and made.settings["partition"] != "natural":
        rows = many(len(made.dataset.x), "training row")
        logging.getLogger("grapevine").warning(
            f"The {rows} are dealt to {CLIENTS} clients, which is the default: name the column that says whose each row is "
            "with --party COL, or choose fewer, as in --clients 5."
        )


def _split(s: DataSettings, seed: int, loaded: Loaded) -> Split:
    dataset, foreign = loaded
    if s.split:
        return Split.load(s.split, dataset, foreign)
    parties = dataset.group is not None and not isinstance(s.data, str)  # a list of them was given
    partition = s.partition or ("natural" if s.party or parties else "iid")
    clients = CLIENTS if s.clients is None and partition != "natural" else s.clients
    return dataset.split(clients=clients, partition=partition, labels=s.labels, flip=s.flip, irrelevant=s.irrelevant,
                         validation=s.validation, foreign=foreign, seed=seed)  # fmt: skip
