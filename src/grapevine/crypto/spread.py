"""Lines 11–14 of XCLP's Algorithm 1: the server has S, every party the labels of its own rows, and every party gets its own rows
of Z = S_L Y_L, each up to a scale of its own.

`Sealed`, the private way, needs no exchange of its own:

    client i → server    Y_L^(i), encrypted under a key that all parties share and the server lacks; along with line 5
    server               S Y under encryption, re-randomised and flooded (`product`)
    server → client j    its own rows of Z, along with whatever comes next; j decrypts

The server learns nothing but how many labels each party has; a client learns its own rows of Z and nothing else. The server and
one client together read everybody's labels: they have the key, and S.

`Columns`, the paper's way, is for comparison:

    server → client j    S_L^(j), the columns of S at j's labelled rows                         line 12
    client j             Z̄^(j) = S_L^(j) Y_L^(j), in fixed point                                line 13
    client j → server    Z̄^(j), masked, without its own rows                                    line 14, SecureRowSums (`sums`)
    server → client j    the others' sum on j's rows, from which j takes the masks (`open`)

There a client learns from its columns which rows of others lie near its labelled ones; and as S is symmetric, they are also the
rows of S at its labelled rows, which together with its scores there are linear equations in everybody's labels. A client that
solves them finds 99 % of the others' labels (tests/attacks): nothing is really hidden from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grapevine.core import Client, Mistake, Server, SubProtocol, party_name, step
from grapevine.core.reply import Array, Form
from grapevine.core.server import Forms
from grapevine.core.threads import in_threads, thread_count
from grapevine.crypto import fixed, product, session, sums
from grapevine.crypto.agreement import AgreementError, Occasion
from grapevine.crypto.lattice import pieces
from grapevine.crypto.secure import Group
from grapevine.crypto.stream import Stream, context, fresh_secret

Influence = Mapping[str, dict[int, np.ndarray]]
"""The columns of S at each party's labelled rows, by graph."""
ROWS = "nothing: masked contributions to other parties' scores, which only the owner of the rows can open"


@dataclass(frozen=True)
class Spread:
    """What is left at the server: whose labels are in it, and each party's own rows, which only it can open."""

    parties: tuple[str, ...]
    round: int
    attempt: int
    rows: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        """What an owner must be told besides its rows to open them."""
        return dict(parties=session.numbered(self.parties), round=self.round, attempt=self.attempt)


@dataclass(frozen=True)
class Sealed(SubProtocol):
    """The private way: labels go to the server under a key that the parties share, and S stays at the server."""

    name = "private"
    begun = "nothing: this party's labels, encrypted under a key that the parties share and the server lacks"
    sent = begun

    # ------------------------------------------------------------ client

    def begin(self, client: Client, Y: np.ndarray, alpha: float, group: Group, most: int = 1) -> dict:
        """Seal the label matrix, a row of whole numbers up to `most` for each labelled row. Once a round: of two ciphertexts at
        the same place under one key, the difference would show."""
        session.begin(client, "labels", group.round, 0, group.counts, session.SEALED)
        public, s = self._keys(client, group.round)
        stream = Stream(fresh_secret(), context("seal labels"))
        blocks = {
            i: product.encrypt(public, f"{client.name} {i}", s, Y[:, some], stream, most) for i, some in _blocks(Y.shape[1])
        }
        client.memory["labels"] = dict(rows=group.counts[client.name], width=Y.shape[1], round=group.round, most=most)
        return dict(blocks=blocks, key=product.public_key(public, s, stream), public=public)

    def open(self, client: Client, rows: Any, parties: Iterable[str], round: int, attempt: int) -> np.ndarray:
        """This client's own rows of Z, a block of columns for each graph."""
        own = _labels(client, round)
        _, s = self._keys(client, round)
        blocks = [(some, part[i]) for part in rows.values() for i, some in _blocks(own["width"])]
        Z = [product.decrypt(s, part["u"], part["v"], own["rows"], some.stop - some.start, own["most"]) for some, part in blocks]
        return np.concatenate(Z, 1).astype(np.float64)

    def _keys(self, client: Client, round: int) -> tuple[bytes, np.ndarray]:
        """The public seed of the a_l, bound to everybody's keys, and the parties' secret key: new ones in every round."""
        agreed = session.agreement(client)
        info = context("spread", session=agreed.session, roster=agreed.roster, keys=agreed.key_hash, round=round)
        return hashlib.sha256(info).digest(), product.secret_key(client.memory["seed"], info)

    # ------------------------------------------------------------ server

    @staticmethod
    def bytes_up(labels: int, others: int, width: int, graphs: int) -> int:
        """How many bytes a party with this many labels sends."""
        return len(_blocks(width)) * product.sizes(labels, 1, 1)["up"]

    @staticmethod
    def cpu_seconds(rows: int, labels: int, width: int) -> float:
        """The server's seconds for one graph: products with the a_l, and an encryption of zero for every ciphertext."""
        ciphertexts = rows * width / product.RING + len(_blocks(width))
        return 5e-7 * rows * labels + 2e-3 * ciphertexts

    def form(self, width: int) -> Form:
        """The form of what `begin` makes."""
        blocks = {i: Array("uint8", (None, product.RING, product.BYTES)) for i, _ in _blocks(width)}
        return dict(blocks=blocks, key=Array("uint8", (product.RANK, product.RING, product.BYTES)), public=bytes)

    def run(self, server: Server, group: Group, S: Influence, begun: Mapping[str, dict], width: int, most: int = 1) -> Spread:
        """Everybody's rows of Z under encryption, `width` columns for each graph. Nobody is asked."""
        publics = {begun[name]["public"] for name in S}
        if len(publics) > 1:
            raise Mistake("the parties sealed their labels for different agreements: start a new session.")
        public, rows = publics.pop(), place(S, group)
        sealed = {i: product.unpacked(public, {f"{n} {i}": begun[n]["blocks"][i] for n in S}) for i, _ in _blocks(width)}
        graphs = list(next(iter(S.values())))
        out: dict[str, dict] = {name: {k: {} for k in graphs} for name in S}

        def work(_: int, task: tuple[int, str]) -> None:
            k, name = task
            own = product.scaled(np.concatenate([S[n][k][rows[name]] for n in S], 1, dtype=np.float64), most)
            stream = Stream(fresh_secret(), context("spread"))
            for i, some in _blocks(width):
                made = product.evaluate(public, sealed[i], begun[name]["key"], own, some.stop - some.start, stream, most)
                out[name][k][i] = dict(zip("uv", made))

        tasks = [(k, name) for k in graphs for name in S]
        in_threads(work, tasks, thread_count(None, len(tasks)))
        return Spread(tuple(S), group.round, 0, out)


@dataclass(frozen=True)
class Bare(SubProtocol):
    """The same numbers without protection, for `secure=plain`: the server sees all labels."""

    name = "plain"
    begun = sent = "THE LABELS of this party's rows, in the open"

    def begin(self, client: Client, Y: np.ndarray, alpha: float, group: Group, most: int = 1) -> dict:
        client.memory["labels"] = dict(rows=group.counts[client.name], width=Y.shape[1], round=group.round)
        return dict(Y=Y.astype(np.uint8))

    def open(self, client: Client, rows: Any, parties: Iterable[str], round: int, attempt: int) -> np.ndarray:
        _labels(client, round)
        return np.concatenate(list(rows.values()), 1).astype(np.float64)

    @staticmethod
    def bytes_up(labels: int, others: int, width: int, graphs: int) -> int:
        return labels * width

    @staticmethod
    def cpu_seconds(rows: int, labels: int, width: int) -> float:
        return 2e-10 * rows * labels * width

    def form(self, width: int) -> Form:
        return dict(Y=Array("uint8", (None, width)))

    def run(self, server: Server, group: Group, S: Influence, begun: Mapping[str, dict], width: int, most: int = 1) -> Spread:
        rows, Y = place(S, group), np.concatenate([begun[name]["Y"] for name in S]).astype(np.float64)
        out: dict[str, dict] = {name: {} for name in S}
        for k in next(iter(S.values())):
            every = np.concatenate([S[name][k] for name in S], 1, dtype=np.float64)
            for name in S:
                out[name][k] = (product.scaled(every[rows[name]], most) @ Y).astype(np.int64)
        return Spread(tuple(S), group.round, 0, out)


def protocol(name: str) -> Sealed | Columns | Bare:
    """A way to spread labels by its name: private, paper, or plain."""
    ways: dict[str, Sealed | Columns | Bare] = dict(private=Sealed(), paper=Columns(), plain=Bare())
    if name not in ways:
        raise Mistake(
            f"spread '{name}' is not known: use private, or paper (for comparison: parties can read each other's labels)."
        )
    return ways[name]


def _blocks(width: int) -> list[tuple[int, slice]]:
    """Columns of labels by ciphertext: at most as many as a ring element has coefficients."""
    return list(enumerate(pieces(width, product.RING)))


def place(names: Iterable[str], group: Group) -> dict[str, np.ndarray]:
    """The places of each party's rows in the graph: party after party, in the order of names."""
    starts, at = {}, 0
    for name in names:
        starts[name] = np.arange(at, at + group.counts[name])
        at += group.counts[name]
    return starts


@dataclass(frozen=True)
class Columns(SubProtocol):
    """The paper's way: labelled columns of S to their owners, and masked sums."""

    name = "paper"
    begun = "nothing: empty"
    sent = ROWS

    # ------------------------------------------------------------ client

    def begin(self, client: Client, Y: np.ndarray, alpha: float, group: Group, most: int = 1) -> dict:
        """Keep the label matrix, a row of 0 and 1 for each labelled row, until the columns come. It has a block of columns for
        each set of labels that is propagated: all of them, or all and then those that are not hidden."""
        client.memory["labels"] = dict(Y=Y, rows=group.counts[client.name], alpha=alpha, round=group.round)
        return {}

    @step(reveals=dict(rows=ROWS))
    def contribute(
        self, client: Client, columns: dict, counts: dict, total: int, parties: dict, round: int, attempt: int
    ) -> dict:
        """Lines 12–14, with the columns of every candidate graph."""
        own = _labels(client, round)
        require_count(client, counts, own["rows"])
        fixed.label_headroom(total, own["alpha"])
        Y = own["Y"]
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
        """Line 14 again, after a party was lost: the same contributions under fresh masks."""
        _labels(client, round)
        return self._mask(client, parties, round, attempt)

    def _mask(self, client: Client, parties: Iterable[str], round: int, attempt: int) -> dict:
        """Masked contributions to all rows except this client's own."""
        occasion = session.begin(client, "rows", round, attempt, parties, session.SEALED)
        own = client.memory["spread"]
        sizes = {name: len(own[name]) for name in occasion.parties}
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        width = own[client.name].shape[1]
        return dict(rows=sums.row_shares(client.name, secrets, occasion, sizes, width, lambda owner, rows: own[owner][rows]))

    def open(self, client: Client, rows: Any, parties: Iterable[str], round: int, attempt: int) -> np.ndarray:
        """Line 14: this client's own rows of Z, a block of columns for each graph."""
        _labels(client, round)
        occasion = session.finish(client, "rows", round, attempt, parties)
        own = client.memory["spread"]
        if rows.shape != own[client.name].shape:
            raise Mistake(f"scores of {len(rows)} rows came for {client.name}'s {len(own[client.name])}: start a new session.")
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        return fixed.decode(sums.own_rows(client.name, secrets, occasion, rows, lambda owner, block: own[owner][block]))

    # ------------------------------------------------------------ server

    @staticmethod
    def bytes_up(labels: int, others: int, width: int, graphs: int) -> int:
        """How many bytes a party sends: masked contributions to that many rows of others."""
        return 8 * others * width * graphs

    @staticmethod
    def cpu_seconds(rows: int, labels: int, width: int) -> float:
        return 2e-9 * rows * labels * width

    def form(self, width: int) -> Form:
        """The form of what `begin` makes."""
        return {}

    def run(self, server: Server, group: Group, S: Influence, begun: Mapping[str, dict], width: int, most: int = 1) -> Spread:
        """From the labelled columns of S, by owner and graph, to everybody's masked rows of Z: `width` columns for each graph.

        A client lost here leaves the graph as it is and its labels out: the sums begin again with fresh masks.
        """
        counts = {name: group.counts[name] for name in S}
        labels = sum(next(iter(columns.values())).shape[1] for columns in S.values())
        attempt, parties = 0, list(S)
        while True:
            session.require_two(parties)
            ids = {group.ids[name]: name for name in parties}
            told: dict[str, Any] = dict(parties=session.numbered(parties), round=group.round, attempt=attempt)
            columns = width * len(next(iter(S.values())))
            form = _forms({name: Array("uint64", (counts[name], columns)) for name in parties})
            if attempt:
                replies = server.ask(self.again, to=list(ids), form=form, **told)
            else:
                each = {id: dict(columns=S[name]) for id, name in ids.items()}
                replies = server.ask(self.contribute, each=each, form=form, counts=counts, total=labels, **told)
            if len(replies) == len(parties):
                occasion = Occasion("", b"", b"", "rows", group.round, attempt, tuple(sorted(parties)))
                rows = sums.row_totals({ids[id]: reply["rows"] for id, reply in replies.items()}, occasion)
                return Spread(occasion.parties, group.round, attempt, rows)
            parties, attempt = [ids[id] for id in replies], attempt + 1


def _forms(rows: dict[str, Array]) -> Forms:
    """Contributions to all rows except this client's own."""
    return lambda id: dict(rows={name: array for name, array in rows.items() if name != party_name(id)})


def _labels(client: Client, round: int) -> dict[str, Any]:
    """What `begin` kept. Sums for another round, with other parties, would show a lost party's part."""
    if "labels" not in client.memory:
        raise AgreementError(f"{client.name!r} has no labels to spread, or has finished with them: start a new session")
    own = client.memory["labels"]
    if round != own["round"]:
        raise Mistake(
            f"round {round} was requested, but {client.name} hashed its rows for round {own['round']}: start a new job."
        )
    return own


def require_count(client: Client, counts: Mapping[str, int], rows: int) -> None:
    """A client's own count is its own to know: with a wrong one, its rows would be cut up as another's."""
    if counts.get(client.name) != rows:
        raise Mistake(f"{client.name} has {rows} rows, but the server says {counts.get(client.name)}: start a new session.")
