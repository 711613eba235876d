"""Split: one data set divided among clients, a server and a validation set, with the labels each of them knows.

    dataset.split(clients=100, partition="dirichlet:0.1", labels="clients:1000/50", seed=0).client(7).labelled

`dealing.split` makes one; here is what it holds, what each holder sees of it, and how it is kept on disk.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.core.store import write_atomically
from grapevine.core.tensors import torch
from grapevine.core.words import count, many
from grapevine.data.foreign import IRRELEVANT, check_foreign, with_foreign
from grapevine.data.labels import parse_labels

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.data.datasets import Dataset


@dataclass(frozen=True)
class Part:
    """One holder's rows, as positions in `Split.x`. `labels` are the given labels of `labelled`, flips included."""

    labelled: Tensor
    labels: Tensor
    unlabelled: Tensor

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def to_dict(self) -> dict[str, list[int]]:
        return {f.name: getattr(self, f.name).tolist() for f in fields(self)}

    @classmethod
    def from_dict(cls, lists: dict) -> Part:
        return cls(*(_indices(lists[f.name]) for f in fields(cls)))


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        labelled, rest = (sum(len(getattr(part, kind)) for part in self.parts) for kind in ("labelled", "unlabelled"))
        server = f", {len(self.server.labelled)} labelled at the server" if self.server else ""
        return (f"{self.dataset.name} at {many(len(self), 'client')}: {count(labelled)} labelled rows and {count(rest)} without "
                f"a label{server}")  # fmt: skip

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all rows that take part, so that a saved split is never applied to other data."""
        data = self.dataset
        held = [self.x, self.truth, data.x_test, data.y_test]
        held += [tensor for tensor in (data.x_val, data.y_val, data.group, data.group_test) if tensor is not None]
        return _sha256(json.dumps([data.name, list(data.classes)]), *held)

    @cached_property
    def hash(self) -> str:
        """The hash of the data, the settings, and every holder's rows and labels."""
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
        if self.dataset.x_val is None or self.dataset.y_val is None:
            return self._rows(self.validation, self.truth[self.validation], device)
        x, y = self.dataset.x_val, self.dataset.y_val
        return self._rows(torch.arange(len(x)), y, device, x)

    def test_rows(self, device: str = "cpu") -> Rows:
        return self._rows(torch.arange(len(self.dataset.x_test)), self.dataset.y_test, device, self.dataset.x_test)

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

    def _rows(self, index: Tensor, y: Tensor, device: str, x: Tensor | None = None) -> Rows:
        scale = self.dataset.scale
        scale = Scale(scale.factor, scale.mean.to(device), scale.std.to(device))
        return Rows(self.x if x is None else x, index, y, scale, device, self.dataset.mirror)

    # What is known of it from outside

    def class_counts(self, part: Part) -> Tensor:
        """Rows per true class. Foreign rows and rows of unknown class are not counted."""
        truth = self.truth[torch.cat([part.labelled, part.unlabelled])]
        return torch.bincount(truth[truth >= 0], minlength=len(self.dataset.classes))

    def class_mix(self, i: int) -> Tensor:
        """The share of each true class in client i's own rows."""
        counts = self.class_counts(self.parts[i]).double()
        return counts / counts.sum().clamp(min=1)

    def table(self) -> list[dict]:
        """One line per client, and one for a server that holds rows; `classes` are rows per true class, in order."""
        holders = [*zip(self.names, self.parts), *([("server", self.server)] if self.server else [])]
        return [self._line(name, part) for name, part in holders]

    def _line(self, name: str, part: Part) -> dict[str, Any]:
        labelled, unlabelled = self.truth[part.labelled], self.truth[part.unlabelled]
        return dict(
            client=name, rows=len(part), labelled=len(labelled), unlabelled=len(unlabelled),
            classes=self.class_counts(part).tolist(), flipped=int(((labelled >= 0) & (labelled != part.labels)).sum()),
            irrelevant=int((labelled == IRRELEVANT).sum() + (unlabelled == IRRELEVANT).sum()),
        )  # fmt: skip

    def given_true(self) -> list[list[int]]:
        """How often the clients' rows of a true class (IRRELEVANT: foreign rows) were given a label: [given, true, n]."""
        given = torch.cat([part.labels for part in self.parts])
        true = self.truth[torch.cat([part.labelled for part in self.parts])]
        pairs, n = torch.stack([given, true]).unique(dim=1, return_counts=True)
        return torch.cat([pairs, n[None]]).T.tolist()

    def reveal(self) -> Split:
        """The same rows with all their true labels, for the upper bound. Foreign rows are left out; unknown labels stay
        unknown."""
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
            dataset=self.dataset.name, seed=self.seed, settings=self.settings, hash=self.hash, fingerprint=self.fingerprint,
            groups=self.groups, foreign=None if self.foreign is None else self.foreign.tolist(),
            validation=self.validation.tolist(), server=None if self.server is None else self.server.to_dict(),
            table=self.table(), given_true=self.given_true(),  # for people and the report: neither the hash nor `load` reads them
        )  # fmt: skip
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
        clients = ",\n".join("    " + json.dumps(part.to_dict()) for part in self.parts)
        text = "\n".join(["{", *lines, '  "clients": [', clients, "  ]", "}", ""])
        write_atomically(Path(path), text.encode())

    @staticmethod
    def load(path: str | Path, dataset: Dataset, foreign: Dataset | None = None) -> Split:
        """A saved split, checked against its hash and against the data it was made for."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            parts = tuple(Part.from_dict(part) for part in saved["clients"])
            server = None if saved["server"] is None else Part.from_dict(saved["server"])
            extra = None if saved["foreign"] is None else _indices(saved["foreign"])
            groups = None if saved["groups"] is None else tuple(int(g) for g in saved["groups"])
            validation, settings, seed = _indices(saved["validation"]), dict(saved["settings"]), int(saved["seed"])
            name, fingerprint, digest = saved["dataset"], saved["fingerprint"], saved["hash"]
        except FileNotFoundError:
            raise Mistake(f"There is no split file {path}; check the path, or leave --split out to make a new split.") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Mistake(f"{path} is not a split file ({type(error).__name__}); give the split.json of a run.") from None
        x, truth = dataset.x, dataset.y
        if extra is not None:
            foreign, _ = check_foreign(str(settings.get("irrelevant")), foreign)
            if len(extra) and extra.max() >= len(foreign.x):
                raise Mistake(f"{path} needs more rows of {foreign.name} than there are; use the files from which it was made.")
            x, truth = with_foreign(dataset, foreign, extra)
        split = Split(dataset, parts, server, validation, settings, seed, x, truth, groups, extra)
        if split.fingerprint != fingerprint:
            raise Mistake(f"{path} was made for different data ({name}), not for this {dataset.name}; {_way(saved, dataset)}.")
        if split.hash != digest:
            raise Mistake(f"{path} was changed after it was saved; make the split again from its settings.")
        return split


def _indices(values: list) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int64) if len(values) else torch.zeros(0, dtype=torch.int64)
    if tensor.dim() != 1 or (tensor < 0).any():
        raise ValueError("positions and labels are lists of numbers from 0 on")
    return tensor


def _way(saved: dict, dataset: Dataset) -> str:
    """What is probably missing where a split does not fit the data."""
    if saved["groups"] is not None and dataset.group is None:
        names = ", ".join(str(line.get("client")) for line in saved.get("table", [])[:3])
        who = f"parties ({names})" if names else "parties"
        return f"it is between {who}, so name the column of parties with --party, and use the same files"
    return "use the same files, and read them with the same flags"


def _revealed(labels: str) -> str:
    setting = parse_labels(labels)
    return labels.split(",clients:")[0].split(",fraction:")[0] + ",clients:all" if setting.at_server else "all"


def _sha256(text: str, *tensors: Tensor) -> str:
    digest = hashlib.sha256(text.encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
