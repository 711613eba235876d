"""Split: one data set divided among clients, a server and a validation set, with the labels each of them knows.

    split(dataset, clients=100, partition="dirichlet:0.1", labels="clients:1000/50", seed=0).client(7).labelled

In what order rows are given away: the validation set first (in proportion to the classes), then the server's labelled rows,
then the partition, then the clients' labels within it. Two settings describe labelled and unlabelled rows apart, so there the
clients' labelled rows are drawn first and the others dealt out after them, to the same size of client: `fedmatch` (labels are
i.i.d., the unlabelled rows circulant) and `iid` with `~k` (labels are skewed, the unlabelled rows i.i.d.).
With `--labels all` there are no unlabelled rows, and `fedmatch` describes all rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.data import labels as label_setting
from grapevine.data.labels import LabelSetting, parse_labels
from grapevine.data.partition import Partition, deal, even, owners, parse_partition, proportional, stream

if TYPE_CHECKING:
    from grapevine.data.datasets import Dataset

IRRELEVANT = -2  # the truth of a foreign row
MOST_VALIDATION = 5000


@dataclass(frozen=True)
class Part:
    """One holder's rows, as positions in `Split.x`. `labels` are the given labels of `labelled`, flips included."""

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)


@dataclass(frozen=True)
class Split:
    """Who holds what. Clients see their part through `client(i)`; `truth` is for measuring, outside every client."""

    dataset: Dataset
    parts: tuple[Part, ...]
    server: Part | None
    validation: Tensor  # positions in x; empty if the data set has a validation set of its own
    settings: dict
    seed: int
    x: Tensor  # the data set's rows, then the foreign ones
    truth: Tensor  # true class of every row of x; −1 unknown, IRRELEVANT foreign
    groups: tuple[int, ...] | None = None  # natural partitions: the client's group in the data set
    foreign: Tensor | None = None  # rows of the foreign data set behind the data set's own in x

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def fingerprint(self) -> str:
        """Of all rows that take part, so that a saved split is never applied to other data."""
        data = self.dataset
        held = [self.x, self.truth, data.x_test, data.y_test]
        held += [tensor for tensor in (data.x_val, data.y_val, data.group, data.group_test) if tensor is not None]
        return _sha256(json.dumps([data.name, list(data.classes)]), *held)

    @cached_property
    def hash(self) -> str:
        """Of the data, the settings, and every holder's rows and labels."""
        tensors = [self.validation]
        for part in (*self.parts, self.server):
            tensors += [] if part is None else [part.labelled, part.labels, part.unlabelled]
        about = dict(data=self.fingerprint, settings=self.settings, groups=self.groups, server=self.server is not None)
        return _sha256(json.dumps(about, sort_keys=True), *tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names: their groups' for a natural partition, otherwise their numbers."""
        if self.groups is None:
            return tuple(str(i) for i in range(len(self)))
        return tuple(self.dataset.group_names[g] for g in self.groups)

    # What each holder sees

    def client(self, i: int, device: str = "cpu") -> ClientData:
        """Client i's own view: its labelled rows, its unlabelled rows without truth, and its test rows."""
        part = self.parts[i]
        test = self.test_rows(device)
        if self.test_group is not None:
            test = test.take(torch.nonzero(self.test_group == i).flatten())
        unlabelled = self._rows(part.unlabelled, torch.full_like(part.unlabelled, -1), device)
        return ClientData(self._rows(part.labelled, part.labels, device), unlabelled, test, self.dataset.classes)

    def client_truth(self, i: int) -> tuple[Tensor, Tensor]:
        """True classes of client i's labelled and unlabelled rows: for measuring only."""
        return self.truth[self.parts[i].labelled], self.truth[self.parts[i].unlabelled]

    def server_rows(self, device: str = "cpu") -> Rows | None:
        return None if self.server is None else self._rows(self.server.labelled, self.server.labels, device)

    def validation_rows(self, device: str = "cpu") -> Rows:
        if self.dataset.x_val is None:
            return self._rows(self.validation, self.truth[self.validation], device)
        x, y = self.dataset.x_val, self.dataset.y_val
        return Rows(x, torch.arange(len(x)), y, self._scale(device), device, self.dataset.mirror)

    def test_rows(self, device: str = "cpu") -> Rows:
        x, y = self.dataset.x_test, self.dataset.y_test
        return Rows(x, torch.arange(len(x)), y, self._scale(device), device, self.dataset.mirror)

    @cached_property
    def test_group(self) -> Tensor | None:
        """Per test row the client it belongs to (−1: none of these), or None where clients have no test rows of their own."""
        groups = self.dataset.group_test
        if self.groups is None or groups is None:
            return None
        client = torch.full((max(int(groups.max()), max(self.groups)) + 1,), -1)
        client[list(self.groups)] = torch.arange(len(self))
        own = torch.where(groups >= 0, client[groups.clamp(min=0)], -1)
        return own if (own >= 0).any() else None

    def _rows(self, index: Tensor, y: Tensor, device: str) -> Rows:
        return Rows(self.x, index, y, self._scale(device), device, self.dataset.mirror)

    def _scale(self, device: str) -> Scale:
        scale = self.dataset.scale
        return Scale(scale.factor, scale.mean.to(device), scale.std.to(device))

    # What is known of it from outside

    def counts(self, i: int) -> tuple[Tensor, Tensor]:
        """Client i's own rows per true class: labelled, unlabelled. Foreign rows and rows of unknown class are not counted."""
        classes = len(self.dataset.classes)
        return tuple(torch.bincount(truth[truth >= 0], minlength=classes) for truth in self.client_truth(i))

    def class_mix(self, i: int) -> Tensor:
        """The share of each true class in client i's own rows."""
        counts = sum(self.counts(i)).double()
        return counts / counts.sum().clamp(min=1)

    def table(self) -> list[dict]:
        """One line per client, and one for a server that holds rows; `classes` are rows per true class, in order."""
        lines = []
        for name, part in [*zip(self.names, self.parts)] + ([("server", self.server)] if self.server else []):
            labelled, unlabelled = self.truth[part.labelled], self.truth[part.unlabelled]
            truth = torch.cat([labelled, unlabelled])
            counts = torch.bincount(truth[truth >= 0], minlength=len(self.dataset.classes)).tolist()
            lines.append(
                dict(
                    client=name,
                    rows=len(part),
                    labelled=len(labelled),
                    unlabelled=len(unlabelled),
                    classes=counts,
                    flipped=int(((labelled >= 0) & (labelled != part.labels)).sum()),
                    irrelevant=int((truth == IRRELEVANT).sum()),
                )
            )
        return lines

    def given_true(self) -> list[list[int]]:
        """How often the clients' rows of a true class (IRRELEVANT: foreign rows) were given a label: [given, true, n]."""
        given = torch.cat([part.labels for part in self.parts])
        true = self.truth[torch.cat([part.labelled for part in self.parts])]
        pairs, n = torch.stack([given, true]).unique(dim=1, return_counts=True)
        return torch.cat([pairs, n[None]]).T.tolist()

    def reveal(self) -> Split:
        """The same rows with all their true labels, for the upper bound. Foreign rows are left out; what nobody knows stays."""
        parts = []
        for part in self.parts:
            rows = torch.cat([part.labelled, part.unlabelled]).sort().values
            truth = self.truth[rows]
            parts.append(Part(rows[truth >= 0], truth[truth >= 0], rows[truth == -1]))
        settings = {**self.settings, "labels": _revealed(self.settings["labels"]), "flip": 0.0, "irrelevant": None}
        n = len(self.dataset.x)
        return replace(self, parts=tuple(parts), settings=settings, x=self.dataset.x, truth=self.truth[:n], foreign=None)

    # On disk

    def save(self, path: str | Path) -> None:
        """split.json: settings, and for every holder the positions of its rows in the data set, and its labels."""
        head = dict(
            dataset=self.dataset.name,
            seed=self.seed,
            settings=self.settings,
            hash=self.hash,
            fingerprint=self.fingerprint,
            groups=self.groups,
            foreign=None if self.foreign is None else self.foreign.tolist(),
            validation=self.validation.tolist(),
            server=None if self.server is None else _listed(self.server),
            table=self.table(),  # for people and for the report, as the next: neither the hash nor `load` looks at them
            given_true=self.given_true(),
        )
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
        clients = ",\n".join("    " + json.dumps(_listed(part)) for part in self.parts)
        text = "\n".join(["{", *lines, '  "clients": [', clients, "  ]", "}", ""])
        path = Path(path)
        half = path.with_name(path.name + ".half")
        half.write_text(text, encoding="utf-8")
        os.replace(half, path)

    @staticmethod
    def load(path: str | Path, dataset: Dataset, foreign: Dataset | None = None) -> Split:
        """A saved split, checked against its hash and against the data it was made for."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            parts = tuple(_unlisted(part) for part in saved["clients"])
            server = None if saved["server"] is None else _unlisted(saved["server"])
            extra = None if saved["foreign"] is None else _indices(saved["foreign"])
            groups = None if saved["groups"] is None else tuple(int(g) for g in saved["groups"])
            validation, settings, seed = _indices(saved["validation"]), dict(saved["settings"]), int(saved["seed"])
            name, fingerprint, digest = saved["dataset"], saved["fingerprint"], saved["hash"]
        except FileNotFoundError:
            raise Mistake(f"There is no split file {path}; check the path, or leave --split out to make a new split.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Mistake(
                f"{path} is not a split file ({type(error).__name__}: {error}); take the split.json of a run."
            ) from None
        x, truth = dataset.x, dataset.y
        if extra is not None:
            foreign, _ = _foreign(str(settings.get("irrelevant")), foreign)
            if len(extra) and extra.max() >= len(foreign.x):
                raise Mistake(f"{path} needs more rows of {foreign.name} than there are; use the files it was made with.")
            x, truth = _with_foreign(dataset, foreign, extra)
        split = Split(dataset, parts, server, validation, settings, seed, x, truth, groups, extra)
        if split.fingerprint != fingerprint:
            raise Mistake(
                f"{path} was made for other data ({name}) than this {dataset.name}; use the same files, or make a new split."
            )
        if split.hash != digest:
            raise Mistake(
                f"{path} was changed after it was saved: its hash does not fit; make the split again from its settings."
            )
        return split


# Making one ----------------------------------------------------------------------------------------------------------


def split(
    dataset: Dataset,
    clients: int | None = None,
    partition: str = "iid",
    labels: str = "all",
    flip: float = 0.0,
    irrelevant: str | None = None,
    foreign: Dataset | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Split:
    """Divide a data set. `clients` is 10 if not given; with the natural partition, all parties, or so many random ones.

    `irrelevant="mnist:0.5"` adds rows of `foreign`, 0.5 for each row a client holds. `validation` is a share of the rows with a
    known class, at most 5000; a data set with a validation set of its own keeps that instead.
    """
    part, setting = parse_partition(partition), parse_labels(labels)
    _check(dataset, setting, clients, flip, validation)
    y, classes = dataset.y.numpy(), len(dataset.classes)
    groups = None
    free = np.ones(len(y), dtype=bool)  # rows not given away yet
    if part.kind == "natural":
        groups = _choose_groups(dataset, clients, stream(seed, "partition"))
        free = np.isin(dataset.group.numpy(), groups)
    clients = len(groups) if groups is not None else 10 if clients is None else clients
    settings = dict(clients=int(clients), partition=partition, labels=labels, flip=float(flip), irrelevant=irrelevant)
    settings["validation"] = float(validation)
    if clients > free.sum():
        raise Mistake(f"{clients} clients cannot share the {free.sum()} rows of {dataset.name}; take fewer clients.")
    needed = _needed_classes(setting, y[free], classes)

    held_out = _choose_validation(dataset, free, validation, stream(seed, "validation"))
    free[held_out] = False
    server = _choose_server(setting, y, free, classes, stream(seed, "server"))
    free[server] = False

    rows = np.flatnonzero(free)
    group = None if groups is None else dataset.group.numpy()[rows]
    owner, labelled = _deal(part, setting, y[rows], classes, clients, groups, group, seed)
    _check_result(dataset, owner, labelled, rows, server, needed, clients)

    given = y[rows].copy()
    if flip:
        given[labelled] = label_setting.flip(given[labelled], owner[labelled], classes, flip, stream(seed, "flip"))
    parts = _parts(rows, owner, labelled, given, clients)
    x, truth, extra = dataset.x, dataset.y, None
    if irrelevant is not None:
        foreign, share = _foreign(irrelevant, foreign)
        parts, extra = _add_irrelevant(parts, dataset, foreign, share, stream(seed, "irrelevant"))
        x, truth = _with_foreign(dataset, foreign, extra)
    at_server = Part(_tensor(server), _tensor(y[server]), _tensor([])) if setting.at_server else None
    chosen = None if groups is None else tuple(int(g) for g in groups)
    return Split(dataset, parts, at_server, _tensor(held_out), settings, int(seed), x, truth, chosen, extra)


def parse_irrelevant(text: str) -> tuple[str, float]:
    """The data set and the share of --irrelevant NAME:0.5."""
    name, _, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not name or not 0 < share < math.inf:
        raise Mistake(f"--irrelevant {text!r} is not understood; write NAME:0.5 for half a foreign row per own row.")
    return name, share


def _check(dataset: Dataset, setting: LabelSetting, clients: int | None, flip: float, validation: float) -> None:
    classes = len(dataset.classes)
    if clients is not None and clients < 1:
        raise Mistake(f"--clients {clients}: there must be at least 1 client.")
    if not 0 <= flip <= 1:
        raise Mistake(f"--flip {flip} is a share of the clients' labels and must lie between 0 and 1.")
    if flip and classes < 2:
        raise Mistake(f"--flip {flip} needs a second class to flip to, and {dataset.name} has {classes}; leave it out.")
    if flip and not setting.at_clients:
        raise Mistake(f"--flip {flip} acts on the clients' labels and --labels gives them none; add a part like clients:1000.")
    if not 0 <= validation < 1:
        raise Mistake(f"The validation share {validation} must be at least 0 and below 1.")
    if setting.of_classes and setting.of_classes > classes:
        raise Mistake(f"--labels ~{setting.of_classes} asks for more classes a client than the {classes} of {dataset.name}.")
    for c in setting.server_classes or ():
        if c >= classes:
            raise Mistake(f"--labels @{c}: {dataset.name} has classes 0 to {classes - 1}; name only these.")


def _choose_groups(dataset: Dataset, clients: int | None, rng: np.random.Generator) -> np.ndarray:
    """The natural parties that become clients, in the data set's order: all of them, or `clients` random ones."""
    if dataset.group is None:
        raise Mistake(f"{dataset.name} has no natural parties; take another partition, or name the party's column with --party.")
    group = dataset.group.numpy()
    groups = np.unique(group[group >= 0])
    if clients is None:
        return groups
    if clients > len(groups):
        raise Mistake(f"--clients {clients}: {dataset.name} has {len(groups)} natural parties; take at most that many.")
    return np.sort(rng.choice(groups, size=clients, replace=False))


def _needed_classes(setting: LabelSetting, y: np.ndarray, classes: int) -> np.ndarray:
    """Classes that somebody must have a label of: those there are, unless only a server that is told its classes has labels."""
    needed = np.bincount(y[y >= 0], minlength=classes) > 0
    if setting.server_classes is not None and not setting.at_clients:
        needed &= np.isin(np.arange(classes), setting.server_classes)
    return needed


def _choose_validation(dataset: Dataset, free: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Positions of the validation rows, in proportion to groups and classes, but never the last row of a class or a group."""
    if dataset.x_val is not None or share == 0:
        return np.array([], dtype=np.int64)
    y = dataset.y.numpy()
    rows = rng.permutation(np.flatnonzero(free & (y >= 0)))
    n = min(round(share * len(rows)), MOST_VALIDATION)
    group = np.zeros(len(y), dtype=np.int64) if dataset.group is None else dataset.group.numpy()
    kept = np.union1d(np.unique(y[rows], return_index=True)[1], np.unique(group[rows], return_index=True)[1])
    rows = np.delete(rows, kept)
    return np.sort(rows[label_setting.systematic(min(n, len(rows)), y[rows], group[rows], rng=rng)])


def _choose_server(setting: LabelSetting, y: np.ndarray, free: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    if not setting.at_server:
        return np.array([], dtype=np.int64)
    room = np.bincount(y[free & (y >= 0)], minlength=classes)
    if setting.server_classes is not None:
        room = np.where(np.isin(np.arange(classes), setting.server_classes), room, 0)
    if setting.server > room.sum():
        raise Mistake(f"--labels server:{setting.server} asks for more labels than the {room.sum()} there are; ask for fewer.")
    counts = label_setting.fill(setting.server, room, rng)
    return np.flatnonzero(label_setting.draw(counts[None], np.where(free, 0, -1), y, rng))


def _deal(
    part: Partition,
    setting: LabelSetting,
    y: np.ndarray,
    classes: int,
    clients: int,
    groups: np.ndarray | None,
    group: np.ndarray | None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Owner of every row, and whether the owner knows its label."""
    counted = setting.n > 0
    if part.kind == "fedmatch" and (counted or setting.fraction) or part.kind == "iid" and setting.of_classes:
        return _labels_first(part, setting, y, classes, clients, seed)
    if groups is not None:
        owner = np.searchsorted(groups, group)
    else:
        owner = owners(part, y, classes, clients, stream(seed, "partition"))
    rng = stream(seed, "labels")
    known = (y >= 0) & (owner >= 0)
    if setting.everything:
        return owner, known
    if setting.fraction:
        labelled = known.copy()
        labelled[known] = label_setting.systematic(round(setting.fraction * known.sum()), owner[known], y[known], rng=rng)
        return owner, labelled
    if not counted:
        return owner, np.zeros(len(y), dtype=bool)
    room = np.bincount(owner[known] * classes + y[known], minlength=clients * classes).reshape(clients, classes)
    room = _restricted(setting, room, rng)
    _check_number(setting, room)
    counts = label_setting.label_counts(setting.n, room, rng)
    return owner, label_setting.draw(counts, owner, y, rng)


def _labels_first(
    part: Partition, setting: LabelSetting, y: np.ndarray, classes: int, clients: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labelled rows by the label setting, then the others by the partition, so that all clients end with equally many rows."""
    rng, known = stream(seed, "labels"), y >= 0
    columns = np.bincount(y[known], minlength=classes)
    if setting.fraction:
        share = np.zeros(len(y), dtype=bool)
        share[known] = label_setting.systematic(round(setting.fraction * known.sum()), y[known], rng=rng)
        counts = proportional(even(int(share.sum()), clients, rng), np.bincount(y[share], minlength=classes), rng)
    else:
        mask = _restricted(setting, np.tile(columns, (clients, 1)), rng) > 0
        room = label_setting.divided(columns, mask, rng)
        _check_number(setting, room)
        counts = label_setting.label_counts(setting.n, room, rng)
    owner = deal(y, counts, rng)
    labelled = owner >= 0
    owner[~labelled] = owners(part, y[~labelled], classes, clients, stream(seed, "partition"), _sizes(counts, known.sum(), rng))
    return owner, labelled


def _sizes(counts: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """How many more rows each client gets beside its labelled ones, so that all hold equally many (to within one)."""
    has = counts.sum(1)
    sizes = np.full(len(has), rows // len(has))
    sizes[np.lexsort((rng.random(len(has)), -has))[: rows % len(has)]] += 1
    if (has > sizes).any():
        raise Mistake(
            f"--labels gives a client {has.max()} labels where each of the {len(has)} clients holds {rows // len(has)} rows; "
            "put the labels on more clients, or ask for fewer."
        )
    return sizes - has


def _restricted(setting: LabelSetting, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The room table (clients × classes) on `setting.on` random clients only, with `setting.of_classes` classes each."""
    if setting.on is not None:
        may = np.flatnonzero(room.sum(1))
        if setting.on > len(may):
            raise Mistake(f"--labels /{setting.on}: only {len(may)} clients can have labels; name at most that many.")
        chosen = np.zeros(len(room), dtype=bool)
        chosen[rng.choice(may, size=setting.on, replace=False)] = True
        room = np.where(chosen[:, None], room, 0)
    if setting.of_classes is not None:
        room = np.where(label_setting.choose_classes(room > 0, setting.of_classes, rng), room, 0)
    return room


def _check_number(setting: LabelSetting, room: np.ndarray) -> None:
    if setting.n > room.sum():
        raise Mistake(
            f"--labels asks for {setting.n} labels on the clients, where {room.sum()} rows can have one; "
            "ask for fewer, or put them on more clients or classes."
        )


def _check_result(
    dataset: Dataset,
    owner: np.ndarray,
    labelled: np.ndarray,
    rows: np.ndarray,
    server: np.ndarray,
    needed: np.ndarray,
    clients: int,
) -> None:
    empty = np.flatnonzero(np.bincount(owner, minlength=clients) == 0)
    if len(empty):
        raise Mistake(f"Client {empty[0]} would hold no row; take fewer clients, another partition or another seed.")
    y = dataset.y.numpy()
    has = np.bincount(y[np.concatenate([rows[labelled], server])], minlength=len(needed))
    if not has.any():
        raise Mistake(f"{dataset.name} has no labelled row that a client or the server could hold; label some rows first.")
    if (needed & (has == 0)).any():
        c = int(np.flatnonzero(needed & (has == 0))[0])
        raise Mistake(f"Nobody would have a label of class {dataset.classes[c]!r}; give more labels, or take another seed.")


def _parts(rows: np.ndarray, owner: np.ndarray, labelled: np.ndarray, given: np.ndarray, clients: int) -> tuple[Part, ...]:
    def by_client(mask: np.ndarray) -> list[np.ndarray]:
        """Places in `rows`, in order, for each client."""
        at = np.flatnonzero(mask)
        at = at[np.argsort(owner[at], kind="stable")]
        return np.split(at, np.searchsorted(owner[at], np.arange(1, clients)))

    pairs = zip(by_client(labelled), by_client(~labelled))
    return tuple(Part(_tensor(rows[known]), _tensor(given[known]), _tensor(rows[unknown])) for known, unknown in pairs)


# Foreign rows --------------------------------------------------------------------------------------------------------


def _foreign(irrelevant: str, foreign: Dataset | None) -> tuple[Dataset, float]:
    name, share = parse_irrelevant(irrelevant)
    if foreign is None:
        raise Mistake(f"--irrelevant {irrelevant}: load the data set {name} and hand it over as `foreign`.")
    return foreign, share


def _add_irrelevant(
    parts: tuple[Part, ...], dataset: Dataset, foreign: Dataset, share: float, rng: np.random.Generator
) -> tuple[tuple[Part, ...], Tensor]:
    """Each part with `share` foreign rows per own row; those beside labelled rows get a random label, which is always wrong."""
    known = [round(share * len(part.labelled)) for part in parts]
    total = [round(share * len(part)) for part in parts]
    if sum(total) > len(foreign.x):
        raise Mistake(
            f"--irrelevant {foreign.name}:{share:g} needs {sum(total)} foreign rows and {foreign.name} has {len(foreign.x)}; "
            "take a smaller share."
        )
    extra = rng.choice(len(foreign.x), size=sum(total), replace=False)
    places = torch.arange(len(extra)) + len(dataset.x)
    mixed = []
    for part, mine, n in zip(parts, places.split(total), known):
        wrong = _tensor(rng.integers(len(dataset.classes), size=n))
        labelled, labels = torch.cat([part.labelled, mine[:n]]), torch.cat([part.labels, wrong])
        mixed.append(Part(labelled, labels, torch.cat([part.unlabelled, mine[n:]])))
    return tuple(mixed), _tensor(extra)


def _with_foreign(dataset: Dataset, foreign: Dataset, extra: Tensor) -> tuple[Tensor, Tensor]:
    """x and truth of a split with these foreign rows behind the data set's own."""
    x = torch.cat([dataset.x, fitted(foreign.x[extra], foreign, dataset)])
    return x, torch.cat([dataset.y, torch.full((len(extra),), IRRELEVANT)])


def fitted(x: Tensor, foreign: Dataset, dataset: Dataset) -> Tensor:
    """Foreign rows `x` in the data set's shape and range: images become grey or colour and are resized; tables must fit."""
    shape, kind = dataset.x.shape[1:], dataset.x.dtype
    if x.dim() != dataset.x.dim() or (x.dim() == 2 and x.shape[1:] != shape):
        raise Mistake(
            f"Rows of {foreign.name} ({_shape(x)}) do not fit {dataset.name} ({_shape(dataset.x)}); mix in a set of its kind."
        )
    if x.dim() == 2 or (x.shape[1:] == shape and foreign.scale.factor == dataset.scale.factor):
        return x.to(kind)
    x = x.float() * (foreign.scale.factor / dataset.scale.factor)
    if shape[0] == 1 and x.shape[1] == 3:
        x = (x * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)  # ITU-R 601 luma
    elif x.shape[1] != shape[0]:
        x = x.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if x.shape[2:] != shape[1:]:
        x = torch.nn.functional.interpolate(x, size=tuple(shape[1:]), mode="bilinear", antialias=True)
    return x.round().clamp(0, 255).to(kind)


# Small things --------------------------------------------------------------------------------------------------------


def _shape(x: Tensor) -> str:
    return f"{x.shape[1]} columns" if x.dim() == 2 else "images " + "×".join(map(str, x.shape[1:]))


def _tensor(values) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64))


def _listed(part: Part) -> dict:
    return dict(labelled=part.labelled.tolist(), labels=part.labels.tolist(), unlabelled=part.unlabelled.tolist())


def _unlisted(part: dict) -> Part:
    return Part(_indices(part["labelled"]), _indices(part["labels"]), _indices(part["unlabelled"]))


def _indices(values: list) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int64) if len(values) else torch.zeros(0, dtype=torch.int64)
    if tensor.dim() != 1 or (tensor < 0).any():
        raise ValueError("positions and labels are lists of numbers from 0 on")
    return tensor


def _revealed(labels: str) -> str:
    setting = parse_labels(labels)
    return labels.split(",clients:")[0].split(",fraction:")[0] + ",clients:all" if setting.at_server else "all"


def _sha256(text: str, *tensors: Tensor) -> str:
    digest = hashlib.sha256(text.encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()
