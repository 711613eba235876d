"""Who holds which rows: the partitions of --partition, and the integer tables (clients × classes) they are made of.

Every partition is an array `owner`: the client's number for each row, or −1 for a row that is nobody's. Randomness comes
from numpy generators keyed by name (`stream`), so one setting can change without disturbing what another one drew.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from grapevine.core.errors import Mistake

GRAMMAR = "iid, dirichlet:0.1, dirichlet:0.1:free (sizes free too), shards:2, fedmatch or natural"

# Class mix of FedMatch's client of type 0 (Jeong et al. 2021); type t is the same row turned t places.
CIRCULANT = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])

TRIES = 100  # draws with free sizes that are tried until no client is empty


@dataclass(frozen=True)
class Partition:
    """`kind` is iid, dirichlet, shards, fedmatch or natural; the rest are its numbers."""

    kind: str
    alpha: float = 0.0  # Dirichlet concentration
    free: bool = False  # Dirichlet with free sizes
    shards: int = 0  # per client


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one aspect of a split: the same for the same seed and name, unrelated to any other."""
    key = hashlib.sha256(f"grapevine/split/{seed}/{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key, "big")))


def parse_partition(text: str) -> Partition:
    """The words of --partition, or a Mistake that says the grammar."""
    if text in ("iid", "fedmatch", "natural"):
        return Partition(text)
    number = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    if found := re.fullmatch(rf"dirichlet:{number}(:free)?", text):
        alpha = float(found[1])
        if not 0 < alpha < float("inf"):
            raise Mistake(f"Partition {text!r}: the Dirichlet concentration must be above 0, as in dirichlet:0.1.")
        return Partition("dirichlet", alpha=alpha, free=found[2] is not None)
    if found := re.fullmatch(r"shards:(-?\d+)", text):
        if int(found[1]) < 1:
            raise Mistake(f"Partition {text!r}: a client needs at least 1 shard, as in shards:2.")
        return Partition("shards", shards=int(found[1]))
    raise Mistake(f"Partition {text!r} is not known; write {GRAMMAR}.")


# Integer tables ------------------------------------------------------------------------------------------------------


def even(n: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """n in `parts` numbers that differ by one at most; which are the larger is random."""
    counts = np.full(parts, n // parts)
    counts[rng.permutation(parts)[: n % parts]] += 1
    return counts


def cells(rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random 0/1 table with these row and column sums.

    Each row in turn takes the columns that still need most (ties at random), which finds a table whenever there is one
    (Ryser 1957).
    """
    table = np.zeros((len(rows), len(columns)), dtype=np.int64)
    need = np.array(columns, dtype=np.int64)
    for i in rng.permutation(len(rows)):
        if rows[i]:
            chosen = np.lexsort((rng.random(len(need)), -need))[: rows[i]]
            table[i, chosen] = 1
            need[chosen] -= 1
    if need.any():
        raise ValueError("no 0/1 table has these sums")
    return table


def rounded(table: np.ndarray, rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Integers at most one from `table`, with its sums, which are the integers `rows` and `columns`."""
    floor = np.floor(table + 1e-6).astype(np.int64)
    return floor + cells(rows - floor.sum(1), columns - floor.sum(0), rng)


def proportional(rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The integer table with these sums in which every row has the same mix, as nearly as integers can."""
    return rounded(np.outer(rows, columns) / max(1, columns.sum()), rows, columns, rng)


def circulant(rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """FedMatch's mixes with these sums: row i is CIRCULANT turned i mod 10 places.

    With balanced classes and a multiple of ten clients the mixes are exact. Otherwise no table has both these mixes and these
    sums, and this is the one with these sums nearest to them (iterative proportional fitting), so that no row is wasted.
    """
    table = np.stack([np.roll(CIRCULANT, i % len(CIRCULANT)) for i in range(len(rows))]) * rows[:, None]
    for _ in range(10_000):
        table *= (columns / np.maximum(table.sum(0), 1e-300))[None, :]
        table *= (rows / np.maximum(table.sum(1), 1e-300))[:, None]
        if np.abs(table.sum(0) - columns).max() < 1e-7:
            break
    return rounded(table, rows, columns, rng)


def dirichlet_balanced(rows: np.ndarray, columns: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Clients of given sizes, each with a class mix of its own ~ Dir(α·C·share of each class) (Hsu et al. 2019; FedAnchor).

    With balanced classes that is Dir(α, …, α). A client draws its rows without replacement; a class that has run out is left
    out and the rest of the client's mix scaled up.
    """
    present = columns > 0
    mixes = np.zeros((len(rows), len(columns)))
    mixes[:, present] = rng.dirichlet(alpha * present.sum() * columns[present] / columns.sum(), size=len(rows))
    left, table = columns.copy(), np.zeros((len(rows), len(columns)), dtype=np.int64)
    for i in rng.permutation(len(rows)):
        need = rows[i]
        while need:
            mix = np.where(left > 0, mixes[i], 0.0)
            mix = mix if mix.sum() > 1e-12 else left.astype(float)
            drawn = np.minimum(rng.multinomial(need, mix / mix.sum()), left)
            table[i] += drawn
            left -= drawn
            need -= drawn.sum()
    return table


def dirichlet_free(clients: int, columns: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Every class divided over the clients by its own Dir(α, …, α) (Yurochkin et al. 2019); drawn again while one is empty."""
    for _ in range(TRIES):
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha), size=len(columns)), axis=1)
        cuts = np.rint(cuts * columns[:, None]).astype(np.int64)
        cuts[:, -1] = columns
        table = np.diff(cuts, axis=1, prepend=0).T
        if table.sum(1).all():
            return table
    raise Mistake(
        f"Partition dirichlet:{alpha:g}:free left one of the {clients} clients without rows; use fewer clients, or drop :free."
    )


# From tables to rows -------------------------------------------------------------------------------------------------


def deal_rows(y: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owner per row: client i gets table[i, c] random rows of class c. Rows left over are nobody's (−1)."""
    owner = np.full(len(y), -1)
    for c in range(table.shape[1]):
        rows = rng.permutation(np.flatnonzero(y == c))
        holders = np.repeat(np.arange(len(table)), table[:, c])
        owner[rows[: len(holders)]] = holders
    return owner


def cut_shards(y: np.ndarray, clients: int, shards: int, rng: np.random.Generator) -> np.ndarray:
    """Rows sorted by class, cut into clients × shards equal pieces, `shards` random pieces a client (McMahan et al. 2017)."""
    if clients * shards > len(y):
        raise Mistake(f"Partition shards:{shards} needs {clients * shards} rows but there are only {len(y)}; use fewer clients.")
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    piece = np.arange(len(y)) * (clients * shards) // len(y)
    owner = np.empty(len(y), dtype=np.int64)
    owner[order] = rng.permutation(np.repeat(np.arange(clients), shards))[piece]
    return owner


def spread(n: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Owner per row for rows of unknown class: equally many per client, at random."""
    return rng.permutation(np.repeat(np.arange(clients), even(n, clients, rng)))


def owners(
    partition: Partition, y: np.ndarray, classes: int, clients: int, rng: np.random.Generator, sizes: np.ndarray | None = None
) -> np.ndarray:
    """Owner per row for every partition but natural. `sizes`: how many of these rows each client gets (default: equally many)."""
    owner = np.full(len(y), -1)
    known = np.flatnonzero(y >= 0)
    columns = np.bincount(y[known], minlength=classes)
    rows = even(len(known), clients, rng) if sizes is None else sizes
    if partition.kind == "shards":
        owner[known] = cut_shards(y[known], clients, partition.shards, rng)
    else:
        if partition.kind == "iid":
            table = proportional(rows, columns, rng)
        elif partition.kind == "fedmatch":
            if classes != len(CIRCULANT):
                raise Mistake(f"Partition fedmatch needs 10 classes and this data set has {classes}; use dirichlet:0.1.")
            table = circulant(rows, columns, rng)
        elif partition.free:
            table = dirichlet_free(clients, columns, partition.alpha, rng)
        else:
            table = dirichlet_balanced(rows, columns, partition.alpha, rng)
        owner[known] = deal_rows(y[known], table, rng)
    owner[y < 0] = spread(int((y < 0).sum()), clients, rng)
    return owner
