"""Who knows which labels: the grammar of --labels, how n labels are spread over clients and classes, and flips."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.data.partition import even

GRAMMAR = (
    "all, clients:1000 (in all), clients:1000/50 (on 50 clients), clients:1000~5 (of 5 classes a client), fraction:0.1, "
    "server:500, server:500@0-7 (of these classes), or a server and a clients part with a comma between them"
)
TRADES = 10  # per client, when class sets are shuffled


@dataclass(frozen=True)
class LabelSetting:
    """What --labels says. Labels at the clients: `everything`, a number `n`, a `fraction`, or none of the three."""

    everything: bool = False
    n: int = 0
    on: int | None = None  # on this many of the clients
    of_classes: int | None = None  # each of these clients has labels of that many classes only
    fraction: float = 0.0
    server: int = 0
    server_classes: tuple[int, ...] | None = None

    @property
    def at_clients(self) -> bool:
        return self.everything or self.n > 0 or self.fraction > 0

    @property
    def at_server(self) -> bool:
        return self.server > 0


def parse_labels(text: str) -> LabelSetting:
    """The words of --labels, or a Mistake that says the grammar."""
    found = re.fullmatch(r"server:(-?\d+)(?:@([-+,\d]*\d))?(?:,([a-z].*))?", text)
    if found is None:
        return LabelSetting(**_parse_clients(text, text))
    server = int(found[1])
    if server < 1:
        raise Mistake(f"Labels {text!r}: the server needs at least 1 label.")
    known = None if found[2] is None else _parse_classes(found[2], text)
    at_clients = _parse_clients(found[3], text) if found[3] else {}
    return LabelSetting(server=server, server_classes=known, **at_clients)


def _parse_clients(words: str, text: str) -> dict:
    if words in ("all", "clients:all"):
        return dict(everything=True)
    if found := re.fullmatch(r"fraction:(-?\d*\.?\d+(?:[eE]-?\d+)?)", words):
        if not 0 < float(found[1]) <= 1:
            raise Mistake(f"Labels {text!r}: the fraction must be above 0 and at most 1, as in fraction:0.1.")
        return dict(fraction=float(found[1]))
    if found := re.fullmatch(r"clients:(-?\d+)(?:/(-?\d+))?(?:~(-?\d+))?", words):
        n, on, of_classes = (None if number is None else int(number) for number in found.groups())
        if any(number is not None and number < 1 for number in (n, on, of_classes)):
            raise Mistake(f"Labels {text!r}: every number must be at least 1.")
        if n is not None and on is not None and on > n:
            raise Mistake(
                f"Labels {text!r}: {many(n, 'label')} cannot be spread over {many(on, 'client')}; give more labels or name fewer "
                "clients."
            )
        return dict(n=n, on=on, of_classes=of_classes)
    raise Mistake(f"Labels {text!r} is not valid; write {GRAMMAR}.")


def _parse_classes(words: str, text: str) -> tuple[int, ...]:
    """0-7, 0+2+5 or 0,2,5 (or a mixture)."""
    known: set[int] = set()
    for piece in re.split(r"[+,]", words):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise Mistake(f"Labels {text!r}: the classes {words!r} are not valid; write @0-7 or @0+2+5.")
        known.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(known))


# Counts --------------------------------------------------------------------------------------------------------------


def fill(n: int, room: np.ndarray, rng: np.random.Generator, has: np.ndarray | None = None) -> np.ndarray:
    """n things in boxes with this room, as equally as it allows; the last few where `has` is smallest, ties at random."""
    if n > room.sum():
        raise ValueError(f"{n} do not fit into {room.sum()}")
    ladder = np.sort(room)
    above = len(room) - np.arange(len(room))  # boxes that hold at least ladder[j]
    reached = np.cumsum(ladder) + ladder * (above - 1)  # Σ min(room, ladder[j])
    j = int(np.searchsorted(reached, n, side="right"))
    if j == len(room):
        return room.astype(np.int64)
    level = ladder[j] + (n - reached[j]) // above[j]
    counts = np.minimum(room, level).astype(np.int64)
    open_ = np.flatnonzero(room > level)
    order = np.lexsort((rng.random(len(open_)), np.zeros(len(open_)) if has is None else has[open_]))
    counts[open_[order[: n - counts.sum()]]] += 1
    return counts


def choose_classes(holds: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """For every client (row of the 0/1 table `holds`) k of the classes it holds, every class on equally many clients.

    Taking the classes chosen least so far balances them; trades between pairs of clients then shuffle the sets without
    changing how many each class or client has (Strona et al. 2014).
    """
    mask, chosen = np.zeros(holds.shape, dtype=bool), np.zeros(holds.shape[1], dtype=np.int64)
    for i in rng.permutation(len(holds)):
        mine = np.flatnonzero(holds[i])
        mask[i, mine[np.lexsort((rng.random(len(mine)), chosen[mine]))[:k]]] = True
        chosen += mask[i]
    for _ in range(TRADES):
        order = rng.permutation(len(holds))
        for i, j in zip(order[::2], order[1::2]):
            pool = rng.permutation(np.flatnonzero((mask[i] ^ mask[j]) & holds[i] & holds[j]))
            n = int(mask[i, pool].sum())
            mask[i, pool], mask[j, pool] = False, False
            mask[i, pool[:n]], mask[j, pool[n:]] = True, True
    return mask


def label_counts(n: int, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """n labels over a table (clients × classes) with this room: equally over clients, then over each client's classes.

    What does not divide goes to the classes that have fewest labels so far, ties at random.
    """
    quota = fill(n, room.sum(1), rng)
    counts, has = np.zeros(room.shape, dtype=np.int64), np.zeros(room.shape[1], dtype=np.int64)
    for i in rng.permutation(len(room)):
        counts[i] = fill(int(quota[i]), room[i], rng, has)
        has += counts[i]
    return counts


def divided(columns: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The room table in which every class's rows are divided equally over the clients that may have its labels."""
    room = np.zeros(mask.shape, dtype=np.int64)
    for c in np.flatnonzero(mask.any(0)):
        may = np.flatnonzero(mask[:, c])
        room[may, c] = even(int(columns[c]), len(may), rng)
    return room


# Draws ---------------------------------------------------------------------------------------------------------------


def systematic(n: int, outer: np.ndarray, inner: np.ndarray | None = None, *, rng: np.random.Generator) -> np.ndarray:
    """A mask of exactly n random rows, in proportion to the strata `outer` and, within each of them, to `inner`.

    Systematic sampling: random order within strata, then every (rows/n)-th row from a random start. The inner strata come in
    an order of their own in every outer one, so that no two strata move in step.
    """
    rows = len(outer)
    inner = np.zeros(rows, dtype=np.int64) if inner is None else inner
    cell = np.unique(outer * (inner.max(initial=0) + 1) + inner, return_inverse=True)[1]
    order = np.lexsort((rng.random(rows), rng.random(rows)[cell], outer))
    steps = (np.arange(rows + 1) * n + rng.integers(max(1, rows))) // max(1, rows)
    mask = np.zeros(rows, dtype=bool)
    mask[order] = np.diff(steps) > 0
    return mask


def draw(counts: np.ndarray, owner: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask of counts[i, c] random rows of class c among those that client i owns."""
    clients, classes = counts.shape
    mine = np.flatnonzero((owner >= 0) & (y >= 0))
    cell = owner[mine] * classes + y[mine]
    order = np.lexsort((rng.random(len(mine)), cell))
    cell = cell[order]
    place = np.arange(len(cell)) - np.searchsorted(cell, cell)  # the row's place in its cell
    mask = np.zeros(len(y), dtype=bool)
    mask[mine[order[place < counts.ravel()[cell]]]] = True
    return mask


@dataclass(frozen=True)
class Flip:
    """What --flip says: the share of the labels that are wrong, and whether every class becomes one certain other."""

    share: float
    pair: bool = False

    @property
    def said(self) -> float | str:
        return f"{self.share:g}:pair" if self.pair else self.share


def parse_flip(given: float | str) -> Flip:
    """A share, or `0.5:pair`."""
    number, colon, how = str(given).partition(":")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if math.isnan(share) and isinstance(given, str) or colon and how != "pair":
        raise Mistake(f"--flip {given} is not valid; write 0.5, or 0.5:pair to turn each class into the next one.")
    if not 0 <= share <= 1:
        raise Mistake(f"--flip {given} is a share of the clients' labels and must lie between 0 and 1.")
    return Flip(share, bool(colon))


def flip(labels: np.ndarray, owner: np.ndarray, classes: int, how: Flip, rng: np.random.Generator) -> np.ndarray:
    """Exactly round(share·n) of the labels changed, the same share at every client: to a different class, each with equal
    chance, or as an attacker does it, each class to the next one (the last to the first)."""
    flipped = systematic(round(how.share * len(labels)), owner, rng=rng)
    labels, n = labels.copy(), int(flipped.sum())
    labels[flipped] = (labels[flipped] + (1 if how.pair else rng.integers(1, classes, size=n))) % classes
    return labels
