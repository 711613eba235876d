"""Dealing: who gets which rows of a data set, and which labels.

In what order rows are given away: the validation set first (in proportion to the classes), then the server's labelled rows,
then the partition, then the clients' labels within it. Two settings describe labelled and unlabelled rows apart, so there the
clients' labelled rows are drawn first and the others dealt out after them, to the same size of client: `fedmatch` (labels are
i.i.d., the unlabelled rows circulant) and `iid` with `~k` (labels are skewed, the unlabelled rows i.i.d.).
With `--labels all` there are no unlabelled rows, and `fedmatch` describes all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.tensors import torch
from grapevine.core.words import many
from grapevine.data import labels as label_setting
from grapevine.data.foreign import check_foreign, with_foreign
from grapevine.data.labels import Flip, LabelSetting, parse_flip, parse_labels
from grapevine.data.partition import Partition, deal_rows, even, owners, parse_partition, proportional, stream
from grapevine.data.split import Part, Split

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.data.datasets import Dataset

MOST_VALIDATION = 5000


def split(
    dataset: Dataset,
    clients: int | None = None,
    partition: str = "iid",
    labels: str = "all",
    flip: float | str = 0.0,
    irrelevant: str | None = None,
    foreign: Dataset | None = None,
    validation: float = 0.1,
    seed: int = 0,
) -> Split:
    """Divide a data set. `clients` is 10 if not given; with the natural partition, all parties, or that many random ones.

    `flip` is a share, or `0.5:pair`. `irrelevant="mnist:0.5"` adds rows of `foreign`, 0.5 for each row a client holds.
    `validation` is a share of the rows with a known class, at most 5000; a data set with a validation set of its own keeps
    that instead.
    """
    part, setting, wrong = parse_partition(partition), parse_labels(labels), parse_flip(flip)
    _check(dataset, setting, clients, wrong, validation)
    y, classes = dataset.y.numpy(), len(dataset.classes)
    groups, natural = _natural(dataset, clients, stream(seed, "partition")) if part.kind == "natural" else (None, None)
    clients = len(groups) if groups is not None else 10 if clients is None else clients
    settings = dict(clients=int(clients), partition=partition, labels=labels, flip=wrong.said, irrelevant=irrelevant)
    settings["validation"] = float(validation)
    free = np.ones(len(y), dtype=bool) if natural is None else natural >= 0  # rows not given away yet
    if clients > free.sum():
        raise Mistake(
            f"{many(clients, 'client')} cannot share the {many(free.sum(), 'row')} of {dataset.name}; use fewer clients."
        )
    needed = _needed_classes(setting, y[free], classes)

    held_out = _choose_validation(dataset, free, validation, stream(seed, "validation"))
    free[held_out] = False
    server = _choose_server(setting, y, free, classes, stream(seed, "server"))
    free[server] = False

    rows = np.flatnonzero(free)
    owner, labelled = _deal(Deal(part, setting, y[rows], classes, clients, seed, None if natural is None else natural[rows]))
    _check_result(dataset, np.bincount(owner, minlength=clients), np.concatenate([rows[labelled], server]), needed)

    given = y[rows].copy()
    if wrong.share:
        given[labelled] = label_setting.flip(given[labelled], owner[labelled], classes, wrong, stream(seed, "flip"))
    parts = _parts(rows, owner, labelled, given, clients)
    x, truth, extra = dataset.x, dataset.y, None
    if irrelevant is not None:
        foreign, share = check_foreign(irrelevant, foreign)
        parts, extra = _add_irrelevant(parts, dataset, foreign, share, stream(seed, "irrelevant"))
        x, truth = with_foreign(dataset, foreign, extra)
    at_server = Part(_tensor(server), _tensor(y[server]), _tensor([])) if setting.at_server else None
    chosen = None if groups is None else tuple(int(g) for g in groups)
    return Split(dataset, parts, at_server, _tensor(held_out), settings, int(seed), x, truth, chosen, extra)


def _check(dataset: Dataset, setting: LabelSetting, clients: int | None, wrong: Flip, validation: float) -> None:
    classes, flip = len(dataset.classes), wrong.share
    if classes < 2:
        raise Mistake(f"every label of {dataset.name} is {dataset.classes[0]!r}, so there is nothing to learn: label rows of "
                      "another class too, or name the right column with --label.")  # fmt: skip
    if clients is not None and clients < 1:
        raise Mistake(f"--clients {clients}: there must be at least 1 client.")
    if flip and not setting.at_clients:
        raise Mistake(f"--flip {flip} acts on the clients' labels and --labels gives them none; add a part like clients:1000.")
    if not 0 <= validation < 1:
        raise Mistake(f"The validation share {validation} must be at least 0 and below 1.")
    if setting.of_classes and setting.of_classes > classes:
        raise Mistake(
            f"--labels ~{setting.of_classes} asks for more classes per client than the {classes} of {dataset.name}; ask for "
            "fewer."
        )
    for c in setting.server_classes or ():
        if c >= classes:
            raise Mistake(f"--labels @{c}: {dataset.name} has classes 0 to {classes - 1}; name only these.")


def _natural(dataset: Dataset, clients: int | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The parties that become clients, in the data set's order (all, or `clients` random ones), and every row's client."""
    if dataset.group is None:
        raise Mistake(f"{dataset.name} has no natural parties; use another partition, or name the party column with --party.")
    group = dataset.group.numpy()
    groups = np.unique(group[group >= 0])
    if clients is not None and clients > len(groups):
        raise Mistake(f"--clients {clients}: {dataset.name} has {len(groups)} natural parties; use at most that many.")
    if clients is not None:
        groups = np.sort(rng.choice(groups, size=clients, replace=False))
    return groups, np.where(np.isin(group, groups), np.searchsorted(groups, group), -1)


def _needed_classes(setting: LabelSetting, y: np.ndarray, classes: int) -> np.ndarray:
    """Classes that somebody must have a label of: all that exist, unless only a server with listed classes has labels."""
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


@dataclass(frozen=True)
class Deal:
    """Rows of these classes, to that many clients, by a partition and a label setting."""

    part: Partition
    setting: LabelSetting
    y: np.ndarray
    classes: int
    clients: int
    seed: int
    natural: np.ndarray | None  # every row's client, in a natural partition


def _deal(deal: Deal) -> tuple[np.ndarray, np.ndarray]:
    """Owner of every row, and whether the owner knows its label."""
    part, setting, y, classes, clients = deal.part, deal.setting, deal.y, deal.classes, deal.clients
    if part.kind == "fedmatch" and (setting.n or setting.fraction) or part.kind == "iid" and setting.of_classes:
        return _labels_first(deal)
    owner = owners(part, y, classes, clients, stream(deal.seed, "partition")) if deal.natural is None else deal.natural
    rng = stream(deal.seed, "labels")
    known = (y >= 0) & (owner >= 0)
    if setting.everything:
        return owner, known
    if setting.fraction:
        labelled = known.copy()
        labelled[known] = label_setting.systematic(round(setting.fraction * known.sum()), owner[known], y[known], rng=rng)
        return owner, labelled
    if not setting.n:
        return owner, np.zeros(len(y), dtype=bool)
    room = np.bincount(owner[known] * classes + y[known], minlength=clients * classes).reshape(clients, classes)
    return owner, label_setting.draw(_counts(setting, _restricted(setting, room, rng), rng), owner, y, rng)


def _labels_first(deal: Deal) -> tuple[np.ndarray, np.ndarray]:
    """Labelled rows by the label setting, then the others by the partition, so that all clients end with equally many rows."""
    setting, y, classes, clients = deal.setting, deal.y, deal.classes, deal.clients
    rng, known = stream(deal.seed, "labels"), y >= 0
    columns = np.bincount(y[known], minlength=classes)
    if setting.fraction:
        share = np.zeros(len(y), dtype=bool)
        share[known] = label_setting.systematic(round(setting.fraction * known.sum()), y[known], rng=rng)
        counts = proportional(even(int(share.sum()), clients, rng), np.bincount(y[share], minlength=classes), rng)
    else:
        mask = _restricted(setting, np.tile(columns, (clients, 1)), rng) > 0
        counts = _counts(setting, label_setting.divided(columns, mask, rng), rng)
    owner = deal_rows(y, counts, rng)
    labelled = owner >= 0
    sizes = _sizes(counts, known.sum(), rng)
    owner[~labelled] = owners(deal.part, y[~labelled], classes, clients, stream(deal.seed, "partition"), sizes)
    return owner, labelled


def _sizes(counts: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """How many more rows each client gets beside its labelled ones, so that all hold equally many (to within one)."""
    has = counts.sum(1)
    sizes = np.full(len(has), rows // len(has))
    sizes[np.lexsort((rng.random(len(has)), -has))[: rows % len(has)]] += 1
    if (has > sizes).any():
        most = f"{many(has.max(), 'label')} where each of the {many(len(has), 'client')} holds {many(rows // len(has), 'row')}"
        raise Mistake(f"--labels gives a client {most}; put the labels on more clients, or ask for fewer.")
    return sizes - has


def _restricted(setting: LabelSetting, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The room table (clients × classes) on `setting.on` random clients only, with `setting.of_classes` classes each."""
    if setting.on is not None:
        may = np.flatnonzero(room.sum(1))
        if setting.on > len(may):
            raise Mistake(f"--labels /{setting.on}: only {many(len(may), 'client')} can have labels; name at most that many.")
        chosen = np.zeros(len(room), dtype=bool)
        chosen[rng.choice(may, size=setting.on, replace=False)] = True
        room = np.where(chosen[:, None], room, 0)
    if setting.of_classes is not None:
        room = np.where(label_setting.choose_classes(room > 0, setting.of_classes, rng), room, 0)
    return room


def _counts(setting: LabelSetting, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many labels of each class each client gets, of those that there is room for."""
    if setting.n > room.sum():
        raise Mistake(
            f"--labels asks for {many(setting.n, 'label')} on the clients, but only {many(room.sum(), 'row')} can have one; "
            "ask for fewer."
        )
    return label_setting.label_counts(setting.n, room, rng)


def _check_result(dataset: Dataset, sizes: np.ndarray, labelled: np.ndarray, needed: np.ndarray) -> None:
    """Check that everybody holds rows, and that somebody has a label of every class that is needed."""
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise Mistake(f"Client {empty[0]} would hold no rows; use fewer clients, another partition or another seed.")
    has = np.bincount(dataset.y.numpy()[labelled], minlength=len(needed))
    if not has.any():
        raise Mistake(f"{dataset.name} has no labelled row that a client or the server could hold; label some rows first.")
    if (needed & (has == 0)).any():
        c = int(np.flatnonzero(needed & (has == 0))[0])
        raise Mistake(f"Nobody would have a label of class {dataset.classes[c]!r}; give more labels, or use another seed.")


def _parts(rows: np.ndarray, owner: np.ndarray, labelled: np.ndarray, given: np.ndarray, clients: int) -> tuple[Part, ...]:
    def by_client(mask: np.ndarray) -> list[np.ndarray]:
        """Places in `rows`, in order, for each client."""
        at = np.flatnonzero(mask)
        at = at[np.argsort(owner[at], kind="stable")]
        return np.split(at, np.searchsorted(owner[at], np.arange(1, clients)))

    pairs = zip(by_client(labelled), by_client(~labelled))
    return tuple(Part(_tensor(rows[known]), _tensor(given[known]), _tensor(rows[unknown])) for known, unknown in pairs)


def _add_irrelevant(
    parts: tuple[Part, ...], dataset: Dataset, foreign: Dataset, share: float, rng: np.random.Generator
) -> tuple[tuple[Part, ...], Tensor]:
    """Each part with `share` foreign rows per own row. Those beside labelled rows keep the number of their own class, as in
    MP-SSFL's "label overlapping": a boot that is class 9 among clothes is a 9 among digits. A number that the data set does
    not have begins again at 0, and a foreign row without a class gets one at random."""
    known = [round(share * len(part.labelled)) for part in parts]
    total = [round(share * len(part)) for part in parts]
    if sum(total) > len(foreign.x):
        has = f"{sum(total)} foreign rows and {foreign.name} has {len(foreign.x)}"
        raise Mistake(f"--irrelevant {foreign.name}:{share:g} needs {has}; use a smaller share.")
    extra = rng.choice(len(foreign.x), size=sum(total), replace=False)
    places = torch.arange(len(extra)) + len(dataset.x)
    own = foreign.y.numpy()[extra]
    numbers = np.where(own >= 0, own, rng.integers(len(dataset.classes), size=len(extra))) % len(dataset.classes)
    mixed = []
    for part, mine, theirs, n in zip(parts, places.split(total), _tensor(numbers).split(total), known):
        labelled, labels = torch.cat([part.labelled, mine[:n]]), torch.cat([part.labels, theirs[:n]])
        mixed.append(Part(labelled, labels, torch.cat([part.unlabelled, mine[n:]])))
    return tuple(mixed), _tensor(extra)


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64))
