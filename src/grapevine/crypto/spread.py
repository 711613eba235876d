"""Lines 11–14 of XCLP's Algorithm 1: the server has S, every party the labels of its own rows, and every party gets its own rows
of Z = S_L Y_L.

    server → client j    S_L^(j), the columns of S at j's labelled rows                         line 12
    client j             Z̄^(j) = S_L^(j) Y_L^(j), in fixed point                                line 13
    client j → server    Z̄^(j), masked, without its own rows                                    line 14, SecureRowSums (`sums`)
    server → client j    the others' sum on j's rows, from which j takes the masks (`open`)

The server learns nothing here. A client learns from its columns which rows of others lie near its labelled ones; and as S is
symmetric, they are also the rows of S at its labelled rows, which together with its scores there are linear equations in
everybody's labels: with few labels in all, a client that solves them finds the others'.

Another way to the same Z is another class with `begin`, `run` and `open`, and steps of its own between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grapevine.core import Client, Mistake, Server, SubProtocol, party_name, step
from grapevine.core.reply import Array
from grapevine.core.server import Forms
from grapevine.crypto import fixed, session, sums
from grapevine.crypto.agreement import AgreementError, Occasion
from grapevine.crypto.secure import Group

ROWS = "nothing: masked contributions to other parties' scores, which only the owner of the rows can open"


@dataclass(frozen=True)
class MaskedRows:
    """What the sums leave at the server: whose labels are in them, and each one's own rows, which it alone can open."""

    parties: tuple[str, ...]
    round: int
    attempt: int
    rows: dict[str, np.ndarray]

    @property
    def told(self) -> dict[str, Any]:
        """What an owner must be told besides its rows to open them."""
        return dict(parties=session.numbered(self.parties), round=self.round, attempt=self.attempt)


@dataclass(frozen=True)
class Columns(SubProtocol):
    """The paper's way: labelled columns of S to their owners, and masked sums."""

    name = "columns"

    # ------------------------------------------------------------ client

    def begin(self, client: Client, Y: np.ndarray, rows: int, alpha: float, round: int) -> None:
        """Keep the label matrix, a row for each labelled row, until the columns come. It has a block of columns for each set of
        labels that is propagated: all of them, or all and then those that are not hidden."""
        client.memory["labels"] = dict(Y=Y, rows=rows, alpha=alpha, round=round)

    @step(reveals=dict(rows=ROWS))
    def contribute(self, client: Client, columns: dict, counts: dict, classes: np.ndarray, total: int, parties: dict, round: int,
                   attempt: int) -> dict:  # fmt: skip
        """Lines 12–14, with the columns of every candidate graph. `classes`: label counts that divide the columns of Y."""
        own = _labels(client, round)
        require_count(client, counts, own["rows"])
        fixed.label_headroom(total, own["alpha"])
        Y = own["Y"] / np.maximum(classes, 1) if len(classes) else own["Y"]
        shape = (sum(counts.values()), len(Y))
        if any(S.shape != shape for S in columns.values()):
            raise Mistake(f"the columns that came for {client.name} are not {shape[0]} × {shape[1]}: start a new session.")
        client.meter.add(2 * shape[0] * Y.size * len(columns))
        ring = fixed.encode(np.concatenate([S.astype(np.float64) @ Y for S in columns.values()], 1))
        starts = np.cumsum([0, *counts.values()])
        client.memory["spread"] = {name: ring[a:b] for name, a, b in zip(counts, starts[:-1], starts[1:])}
        return self._mask(client, parties, round, attempt)

    @step(reveals=dict(rows=ROWS))
    def again(self, client: Client, parties: dict, round: int, attempt: int) -> dict:
        """Line 14 once more, after a party was lost: the same contributions under fresh masks."""
        _labels(client, round)
        return self._mask(client, parties, round, attempt)

    def _mask(self, client: Client, parties: Iterable[str], round: int, attempt: int) -> dict:
        """Masked contributions to everybody's rows but the own ones."""
        occasion = session.begin(client, "rows", round, attempt, parties)
        own = client.memory["spread"]
        sizes = {name: len(own[name]) for name in occasion.parties}
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        width = own[client.name].shape[1]
        return dict(rows=sums.row_shares(client.name, secrets, occasion, sizes, width, lambda owner, rows: own[owner][rows]))

    def open(self, client: Client, rows: np.ndarray, parties: Iterable[str], round: int, attempt: int) -> np.ndarray:
        """Line 14: this client's own rows of Z."""
        _labels(client, round)
        occasion = session.finish(client, "rows", round, attempt, parties)
        own = client.memory["spread"]
        if rows.shape != own[client.name].shape:
            raise Mistake(f"scores of {len(rows)} rows came for {client.name}'s {len(own[client.name])}: start a new session.")
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        return fixed.decode(sums.own_rows(client.name, secrets, occasion, rows, lambda owner, block: own[owner][block]))

    # ------------------------------------------------------------ server

    def run(self, server: Server, group: Group, S: Mapping[str, dict[int, np.ndarray]], classes: np.ndarray,
            width: int) -> MaskedRows:  # fmt: skip
        """From the labelled columns of S, by owner and candidate graph, to everybody's masked rows of Z, `width` columns each.

        A client lost here leaves the graph as it is and its labels out: the sums begin again with fresh masks.
        """
        counts = {name: group.counts[name] for name in S}
        labels = sum(next(iter(columns.values())).shape[1] for columns in S.values())
        attempt, parties = 0, list(S)
        while True:
            session.require_two(parties)
            ids = {group.ids[name]: name for name in parties}
            told: dict[str, Any] = dict(parties=session.numbered(parties), round=group.round, attempt=attempt)
            form = _forms({name: Array("uint64", (counts[name], width)) for name in parties})
            if attempt:
                replies = server.ask(self.again, to=list(ids), form=form, **told)
            else:
                each = {id: dict(columns=S[name]) for id, name in ids.items()}
                replies = server.ask(self.contribute, each=each, form=form, counts=counts, classes=classes, total=labels, **told)
            if len(replies) == len(parties):
                occasion = Occasion("", b"", b"", "rows", group.round, attempt, tuple(sorted(parties)))
                rows = sums.row_totals({ids[id]: reply["rows"] for id, reply in replies.items()}, occasion)
                return MaskedRows(occasion.parties, group.round, attempt, rows)
            parties, attempt = [ids[id] for id in replies], attempt + 1


def _forms(rows: dict[str, Array]) -> Forms:
    """Contributions to everybody's rows but the own ones."""
    return lambda id: dict(rows={name: array for name, array in rows.items() if name != party_name(id)})


def _labels(client: Client, round: int) -> dict[str, Any]:
    """What `begin` kept. Sums for another round, with other parties, would show a lost party's part."""
    if "labels" not in client.memory:
        raise AgreementError(f"{client.name!r} has no labels to spread, or has done with them: start a new session")
    own = client.memory["labels"]
    if round != own["round"]:
        raise Mistake(
            f"round {round} was asked for, and {client.name} hashed its rows for round {own['round']}: start a new job."
        )
    return own


def require_count(client: Client, counts: Mapping[str, int], rows: int) -> None:
    """A client's own count is its own to know: with a wrong one, its rows would be cut up as another's."""
    if counts.get(client.name) != rows:
        raise Mistake(f"{client.name} has {rows} rows, and the server says {counts.get(client.name)}: start a new session.")
