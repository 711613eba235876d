"""What the label job is compared with: the party's own nearest labelled row, and the five one-shot heads on all labelled rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from grapevine.jobs.process import Ran, run_once
from grapevine.jobs.reading import Party
from grapevine.methods.chorus import Chorus
from grapevine.methods.gaussian import Gaussian
from grapevine.methods.label import Label
from grapevine.methods.one_shot import labels

HEADS = ("fedncm", "fed3r", "fedcgs", "fedcof", "gh-ofl")  # as methods are named and ordered


def compared(ran: Ran, method: Label | Chorus, workers: int) -> tuple[dict[str, dict[str, list]], list[dict]]:
    """Every party's labels by each baseline, labelled rows first, and the messages they took. What left each party is logged."""
    rows = {name: method.prepared(client) for name, client in ran.clients.items()}
    known = {name: labels(client) for name, client in ran.clients.items()}
    names = {name: client.memory["classes"] for name, client in ran.clients.items()}
    parties = [Party(name, V, _named(known[name], names[name]), []) for name, V in rows.items()]
    ran_heads = run_once(Gaussian(), parties, next(iter(ran.clients.values())).seed, workers)
    found = {}
    for name, client in ran_heads.clients.items():
        ran.disclosure[name].extend(_own(ran_heads.disclosure[name]))
        heads = client.memory["others"] | {"gh-ofl": client.memory["result"]["label"]}
        by = {head: _named(heads[head], client.memory["classes"]) for head in HEADS if head in heads}
        found[name] = dict(nearest=_named(nearest(rows[name], known[name]), names[name])) | by
    return found, _own(ran_heads.messages)


def _own(lines: Iterable[dict]) -> list[dict]:
    return [dict(line, step=f"gaussian.{line['step']}") for line in lines]


def _named(found: Iterable[int], classes: Mapping[int, str]) -> list[str | None]:
    return [None if c < 0 else classes[int(c)] for c in found]


def nearest(V: np.ndarray, y: np.ndarray, block: int = 1000) -> np.ndarray:
    """The label of the labelled row with the largest cosine; −1 for a row of zeros, and where nothing is labelled."""
    length = np.linalg.norm(V, axis=1, keepdims=True)
    U = np.divide(V, length, out=np.zeros_like(V), where=length > 0)
    known = np.flatnonzero((y >= 0) & (length[:, 0] > 0))
    if not len(known):
        return np.full(len(V), -1)
    best = np.concatenate([(U[a : a + block] @ U[known].T).argmax(1) for a in range(0, len(U), block)])
    return np.where(length[:, 0] > 0, y[known[best]], -1)
