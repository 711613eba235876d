"""XCLP. Scott, Yeo, Lampert: "Cross-client Label Propagation for Transductive and Semi-Supervised Federated Learning",
TMLR 2023, Algorithm 1, with the cryptography really run.

`XCLP` is the algorithm as a sub-protocol: client functions above, the server's program below. `Label` is the job of `grapevine
label`: keys, scaling, XCLP, and the estimate of how good the labels are.

    exchange                     Algorithm 1                          what leaves a client
    1  keys                      line 1                               a signed public key; number of rows; names of its classes
    2  meet                      line 1                               sealed seed; masked feature moments
    3  share                     lines 2–5                            its part of SecureHamming; its own block of H; which rows
                                                                      are labelled
    +2 hamming.*                 line 5                               mlwe, paillier and ot only
    4  spread                    lines 11–14 (6–10 at the server)     masked contributions to the others' rows
    5  receive                   lines 14–16                           masked hits on its hidden labels; nothing else

Departures from the paper, with their reasons in docs/methods/xclp.md: rows are sent as fixed point in Z_2^64; a bit is 1 where
⟨v, u⟩ ≥ 0; a point is not its own neighbour; negative similarities are cut off at 0; a row that no label reaches gets no label;
a row that is zero has no direction and takes no part. `preset="code"` is what the authors' released code does instead:
similarities cubed, labels weighted by 1/class count (an additional masked sum), a tight frame of hyperplanes.

A client answers each step once, in its turn, and holds the server to what it knows itself: its own row count, one round, masks
never used twice. What the server must be trusted with is the paper's: that H, S and the sums are computed as they should be.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from grapevine import graph
from grapevine.core import Client, Id, Method, Server, SubProtocol, param, party_name, step
from grapevine.core.errors import Mistake
from grapevine.crypto import fixed, session, sums
from grapevine.crypto.hamming import Group, Mlwe, SecureHamming
from grapevine.graph import layout

HIDDEN = 0.2  # of the known labels, in the second solve that estimates the accuracy
BINS = 10  # of confidence, in the calibration table
CANDIDATES = (3, 5, 10, 20)  # neighbours, for `neighbours=0` (auto)
TOLERANCE = 1e-8  # residual of the columns of S: rows far from labels have small scores, and confidences should hold to 1e-5


@lru_cache(maxsize=1)
def _public_planes(secret: bytes, bits: int, d: int, info: bytes, tight_frame: bool) -> graph.Grid:
    """Hyperplanes of a run that must repeat are no secret and the same for all: a simulation makes them once."""
    return graph.on_grid(graph.hyperplanes(secret, bits, d, info, tight_frame))


class TooFew(Mistake):
    """Fewer than two parties are left, and propagation needs two."""


@dataclass(frozen=True)
class XCLP(SubProtocol):
    """Algorithm 1 for rows V and labels y (−1: none) that each client knows."""

    name = "xclp"

    hamming: SecureHamming = Mlwe()
    bits: int = param(4096, "L", "bits of a hash")
    neighbours: int = param(10, "k", "neighbours of a row; 0 tries several and takes the best")
    alpha: float = param(0.99, "α", "how far labels spread")
    preset: str = param("paper", "", "paper, or code: what the authors' released code does")
    reproducible: bool = param(False, "", "hyperplanes from the run's seed: they repeat, and are not secret")

    @property
    def candidates(self) -> tuple[int, ...]:
        return (self.neighbours,) if self.neighbours else CANDIDATES

    def check(self) -> None:
        if not 0 <= self.alpha < 1:
            raise Mistake(f"alpha is {self.alpha:g}: take at least 0 and less than 1, as in 0.99.")
        if self.neighbours < 0:
            raise Mistake(f"neighbours is {self.neighbours}: take 1 or more, or auto.")
        if not 1 <= self.bits < 2**15:
            raise Mistake(f"bits is {self.bits}: take 1 to {2**15 - 1}, as in 4096.")
        if self.preset not in ("paper", "code"):
            raise Mistake(f"preset '{self.preset}' is not known: take paper or code.")

    # ------------------------------------------------------------ client

    def share(self, client: Client, V: np.ndarray, labelled: np.ndarray, group: Group, preludes: Mapping[str, dict]) -> dict:
        """Lines 2–5: hash the rows, and send this client's part of SecureHamming. A row of zeros has no direction: `blank`."""
        require_count(client, group.counts, len(V))
        secret, info = session.hash_secret(client, self.reproducible)
        make = _public_planes if self.reproducible and client.common_seed else graph.hyperplanes
        planes = make(secret, self.bits, V.shape[1], info, tight_frame=self.preset == "code")  # line 3
        bits = graph.hash_bits(V, planes)  # line 4
        first = self.hamming.begin(client, bits, group, preludes)  # line 5
        # Within a client there is nothing to hide from itself: it sends its own block of H.
        own = graph.hamming(bits, bits).astype(np.uint16)
        return dict(first=first, own=own, labelled=labelled, blank=~(V != 0).any(1))

    def contribute(self, client: Client, Y: np.ndarray, columns: Mapping[int, np.ndarray], counts: Mapping[str, int],
                   labels: int) -> None:  # fmt: skip
        """Lines 12–13: Z̄ = S_L Y_L for every candidate graph, kept as ring elements, cut by owner.

        Y has a block of columns for each label matrix that is propagated: all labels, or all and then those that are not hidden.
        """
        fixed.label_headroom(labels, self.alpha)
        shape = (sum(counts.values()), len(Y))
        if any(S.shape != shape for S in columns.values()):
            raise Mistake(f"the columns that came for {client.name} are not {shape[0]} × {shape[1]}: start a new session.")
        Z = np.concatenate([S.astype(np.float64) @ Y for S in columns.values()], 1)
        starts = np.cumsum([0, *counts.values()])
        ring = fixed.encode(Z)
        client.memory["spread"] = {name: ring[a:b] for name, a, b in zip(counts, starts[:-1], starts[1:])}

    def mask(self, client: Client, round: int, attempt: int, parties: Iterable[str]) -> dict:
        """Line 14, SecureRowSums: masked contributions to everybody's rows but the own ones. Fresh masks in every attempt."""
        occasion = session.begin(client, "rows", round, attempt, parties)
        own = client.memory["spread"]
        sizes = {name: len(own[name]) for name in occasion.parties}
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        width = own[client.name].shape[1]
        return dict(rows=sums.row_shares(client.name, secrets, occasion, sizes, width, lambda owner, rows: own[owner][rows]))

    def unmask(self, client: Client, total: np.ndarray, round: int, attempt: int, parties: Iterable[str]) -> np.ndarray:
        """Line 14: this client's own rows of Z."""
        occasion = session.finish(client, "rows", round, attempt, parties)
        own = client.memory["spread"]
        if total.shape != own[client.name].shape:
            raise Mistake(f"scores of {len(total)} rows came for {client.name}'s {len(own[client.name])}: start a new session.")
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        ring = sums.own_rows(client.name, secrets, occasion, total, lambda owner, rows: own[owner][rows])
        return fixed.decode(ring)

    def labels(self, Z: np.ndarray, parties: int) -> tuple[np.ndarray, np.ndarray]:
        """Lines 15–16. What fixed point cannot tell from 0 is no label."""
        return graph.labels_and_confidence(Z, floor=max(parties * fixed.STEP, 1e-9 * Z.max(initial=0.0)))

    # ------------------------------------------------------------ server

    def graphs(self, server: Server, group: Group, replies: Mapping[str, dict]) -> tuple[list[str], dict[int, object]]:
        """Lines 5–9: who is in the graph, and the normalised graph for each candidate k. H is never held as a whole."""
        present, blocks = self.hamming.finish(server, group, {name: reply["first"] for name, reply in replies.items()})
        names = sorted(present)
        rows = place(names, group.counts)
        n = sum(group.counts[name] for name in names)
        best = graph.KBest(n, max(self.candidates))
        blank = {name: checked(name, "blank rows", replies[name]["blank"], bool, (len(rows[name]),)) for name in names}
        there = {name: np.flatnonzero(~blank[name]) for name in names}

        def add(j: str, k: str, block: np.ndarray) -> None:
            best.add(rows[j][there[j]], rows[k][there[k]], block[np.ix_(there[j], there[k])])

        for name in names:
            own = checked(name, "own block", replies[name]["own"], np.uint16, (len(rows[name]),) * 2)
            if own.max(initial=0) > self.bits:
                raise Mistake(f"{name} sent a distance of {own.max()} between {self.bits} bits: it runs another version.")
            add(name, name, own)
        for j, k, block in blocks:
            add(j, k, block)
        index, H = best.result()
        A = graph.cosine(H, self.bits)  # line 6
        return names, {k: graph.graph(index[:, :k], A[:, :k], n, preset=self.preset) for k in self.candidates}  # lines 7–9

    def columns(self, graphs: Mapping[int, object], names: list[str], group: Group, labelled: Mapping[str, np.ndarray]) -> dict:
        """Lines 10 and 12: the labelled columns of S for their owner, by candidate. The inverse is never formed."""
        rows = place(names, group.counts)
        wanted = {name: rows[name][labelled[name]] for name in names}
        every = np.concatenate([wanted[name] for name in names])
        each: dict[str, dict[int, np.ndarray]] = {name: {} for name in names}
        for k, W in graphs.items():
            S = np.empty((W.shape[0], len(every)), np.float32)
            at = 0
            for ids, piece in graph.influence_columns(W, every, self.alpha, TOLERANCE):
                S[:, at : at + len(ids)] = piece
                at += len(ids)
            for name, end in zip(names, np.cumsum([len(wanted[name]) for name in names])):
                each[name][k] = S[:, end - len(wanted[name]) : end]
        return each

    def row_sums(self, server: Server, spread: object, again: object, names: list[str], group: Group, each: Mapping[str, dict],
                 **same: object) -> tuple[sums.Occasion, dict[str, np.ndarray]]:  # fmt: skip
        """Line 14 at the server. A client lost here leaves the graph as it is and its labels out: restart with fresh masks."""
        attempt, parties = 0, list(names)
        while True:
            if len(parties) < 2:
                raise TooFew(f"only {', '.join(parties) or 'nobody'} is left: propagation needs two parties.")
            ids = {group.ids[name]: name for name in parties}
            told = dict(same, round=group.round, attempt=attempt, counts={name: group.counts[name] for name in names},
                        parties={name: i for i, name in enumerate(parties)})  # fmt: skip
            if attempt == 0:
                replies = server.ask(spread, each={id: each[name] for id, name in ids.items()}, **told)
            else:
                replies = server.ask(again, to=list(ids), **{name: told[name] for name in ("round", "attempt", "parties")})
            if len(replies) == len(parties):
                occasion = sums.Occasion("", b"", b"", "rows", group.round, attempt, tuple(sorted(parties)))
                return occasion, sums.row_totals({ids[id]: reply["rows"] for id, reply in replies.items()}, occasion)
            parties, attempt = [ids[id] for id in replies], attempt + 1


def place(names: Iterable[str], counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Where each party's rows stand in the graph: one after another, in the order of names."""
    starts, at = {}, 0
    for name in names:
        starts[name] = np.arange(at, at + counts[name])
        at += counts[name]
    return starts


def checked(name: str, what: str, array: object, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """An array that a client sent."""
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        raise Mistake(f"{name} sent its {what} in a shape other than {' × '.join(map(str, shape))}: it runs another version.")
    return array


def require_count(client: Client, counts: Mapping[str, int], rows: int) -> None:
    """A client's own count is its own to know: with a wrong one, its rows would be cut up as another's."""
    if counts.get(client.name) != rows:
        raise Mistake(f"{client.name} has {rows} rows, and the server says {counts.get(client.name)}: start a new session.")


def one_shot(round: int) -> None:
    """The label job has one round: sums of a second one, with other parties, would show a lost party's part."""
    if round != 0:
        raise Mistake(f"round {round} was asked for, and the label job has round 0 alone: start a new job.")


# ---------------------------------------------------------------- the label job


@dataclass(frozen=True)
class Label(Method):
    """Every party's rows labelled in one shot. Results stay in each party's own memory, under "result"."""

    name = "label"
    title = "XCLP: one-shot labels for every party's own rows (Scott et al. 2023, Algorithm 1)"
    personal = True

    xclp: XCLP = field(default_factory=XCLP)
    scale: str = param("standard", "", "standard: features standardised by securely summed moments; none: left as they are")
    impute: bool = param(False, "", "missing features become the secure mean")
    groups: int = param(1, "", "parties are labelled in so many separate groups")
    expected: bool = param(True, "", "estimate the accuracy from hidden labels")

    def steps(self, prefix: str = "") -> dict[str, Callable]:
        """Nothing is evaluated here: no server may ask how well a party's rows are classified."""
        return {name: bound for name, bound in super().steps(prefix).items() if name != f"{prefix}evaluate"}

    # ------------------------------------------------------------ client

    @step
    def keys(self, client: Client, session_id: str) -> dict:
        """Exchange 1 (line 1)."""
        if "classes" in client.memory:
            raise Mistake(f"{client.name} has taken part in this job: start a new one.")
        data = client.data
        return dict(offer=session.offer(client, session_id), prelude=self.xclp.hamming.prelude(client),
                    rows=len(data.labelled) + len(data.unlabelled), features=int(features(client).shape[1]),
                    labels=len(data.labelled), classes=dict(enumerate(data.classes)))  # fmt: skip

    @step
    def meet(self, client: Client, offers: dict, preludes: dict, classes: dict) -> dict:
        """Exchange 2 (line 1): check the keys, seal the seed, and mask this party's moments."""
        letters = session.meet(client, offers)
        client.memory["classes"] = classes
        reply = dict(letters=letters, prelude=self.xclp.hamming.answer_prelude(client, preludes))
        return dict(reply, **self.moments(client, 0, {name: 0 for name in offers}))

    @step
    def moments(self, client: Client, attempt: int, parties: dict) -> dict:
        """Masked counts, sums and sums of squares of the features, and of the labels per class; each where it is needed."""
        occasion = session.begin(client, "moments", 0, attempt, parties)
        values = self._label_counts(client)
        if self._needs_moments:
            V = features(client)
            there = np.isfinite(V)
            V = np.where(there, V, 0.0)
            values = np.concatenate([there.sum(0), V.sum(0), (V * V).sum(0), values])
        secrets = session.agreement(client).pair_secrets(occasion.parties)
        return dict(moments=sums.sum_share(client.name, secrets, occasion, fixed.encode_wide(values), wide=True))

    @step
    def share(self, client: Client, letters: dict, moments: np.ndarray, preludes: dict, counts: dict, roster: dict) -> dict:
        """Exchange 3 (lines 2–5)."""
        session.learn_seed(client, {name: letter for name, letter in letters.items() if name != client.name})
        client.memory["moments"] = moments
        group = Group({}, counts, self.xclp.bits, 0, tuple(roster))
        return self.xclp.share(client, self.prepared(client), labels(client) >= 0, group, preludes)

    @step
    def spread(self, client: Client, columns: dict, counts: dict, parties: dict, round: int, attempt: int, total: int) -> dict:
        """Exchange 4 (lines 12–14): contribute to everybody's rows, twice if the accuracy is to be estimated."""
        one_shot(round)
        y, C = labels(client), len(client.memory["classes"])
        known = y[y >= 0]
        weights = self._class_weights(client)
        matrices = [graph.label_matrix(known, C) * weights]
        if self.expected:
            hidden = self.hide(client, known)
            client.memory["hidden"] = hidden
            matrices.append(matrices[0] * ~hidden[:, None])
        require_count(client, counts, len(y))
        self.xclp.contribute(client, np.concatenate(matrices, 1), columns, counts, total)
        return self.xclp.mask(client, round, attempt, parties)

    @step
    def spread_again(self, client: Client, parties: dict, round: int, attempt: int) -> dict:
        """Line 14 once more, after a party was lost: the same contributions under fresh masks."""
        one_shot(round)
        return self.xclp.mask(client, round, attempt, parties)

    @step
    def receive(self, client: Client, rows: np.ndarray, parties: dict, round: int, attempt: int) -> dict:
        """Exchange 5 (lines 14–16): labels and confidences, here and nowhere else. Masked hits on hidden labels go back."""
        one_shot(round)
        Z = self.xclp.unmask(client, rows, round, attempt, parties)
        C, K = len(client.memory["classes"]), len(self.xclp.candidates)
        per = Z.reshape(len(Z), K, 1 + self.expected, C)  # row, candidate, all labels or visible ones, class
        client.memory["scores"] = np.ascontiguousarray(per[:, :, 0])
        if K == 1:
            self.conclude(client, 0, len(parties))
        reply = {}
        if self.expected:
            tried = enumerate(self.xclp.candidates)
            values = np.concatenate([self.hits(client, per[:, i, 1], len(parties), k) for i, k in tried])
            occasion = session.begin(client, "hits", round, attempt, parties)
            secrets = session.agreement(client).pair_secrets(occasion.parties)
            reply = dict(hits=sums.sum_share(client.name, secrets, occasion, values.astype(np.uint64)))
        session.forget(client)
        for name in ("spread", "bits"):
            client.memory.pop(name, None)
        return reply

    @step
    def choose(self, client: Client, candidate: int, parties: int) -> dict:
        """Only for `neighbours=0`: which of the candidates it is."""
        self.conclude(client, candidate, parties)
        return {}

    def conclude(self, client: Client, candidate: int, parties: int) -> None:
        """Labels and confidences of all rows, in the order labelled, unlabelled."""
        Z = client.memory["scores"][:, candidate]
        found, confidence = self.xclp.labels(Z, parties)
        proba = graph.distributions(Z) * (found >= 0)[:, None]
        blank = ~(self.prepared(client) != 0).any(1)
        client.memory["result"] = dict(label=found, confidence=confidence, proba=proba, blank=blank,
                                       neighbours=self.xclp.candidates[candidate])  # fmt: skip

    def hits(self, client: Client, Z: np.ndarray, parties: int, neighbours: int) -> np.ndarray:
        """Counts to be summed: hidden labels, hits together, hits alone, and per bin of confidence rows and hits."""
        y = labels(client)
        hidden = np.flatnonzero(y >= 0)[client.memory["hidden"]]
        found, confidence = self.xclp.labels(Z, parties)
        right = found[hidden] == y[hidden]
        alone, _ = self.alone(client, neighbours, hidden)
        bins = np.minimum((confidence[hidden] * BINS).astype(int), BINS - 1)
        tables = [np.bincount(bins, minlength=BINS), np.bincount(bins[right], minlength=BINS)]
        return np.concatenate([[len(hidden), right.sum(), (alone[hidden] == y[hidden]).sum()], *tables])

    def alone(self, client: Client, neighbours: int, hidden: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The lower bound: the same propagation among this party's own rows, with exact cosines and its own labels."""
        V, y = self.prepared(client), labels(client)
        if hidden is not None:
            y[hidden] = -1
        C = len(client.memory["classes"])
        if len(V) < 2 or not (y >= 0).any():
            return np.full(len(V), -1), np.zeros(len(V))
        W = graph.graph(*graph.nearest_cosine(V, min(neighbours, len(V) - 1)), len(V), preset=self.xclp.preset)
        return graph.labels_and_confidence(graph.solve(W, graph.label_matrix(y, C, self.xclp.preset), self.xclp.alpha).Z)

    def hide(self, client: Client, known: np.ndarray) -> np.ndarray:
        """Which labelled rows the second solve does not know: a fifth of each class, of a class with one label by chance."""
        draw = np.random.default_rng(client.rng("hide").initial_seed())
        hidden = np.zeros(len(known), bool)
        for c in np.unique(known):
            rows = draw.permutation(np.flatnonzero(known == c))
            whole, rest = divmod(len(rows) * HIDDEN, 1)
            hidden[rows[: int(whole) + (draw.random() < rest)]] = True
        return hidden

    @property
    def _needs_moments(self) -> bool:
        """What is not needed is not summed: nobody then learns the pooled moments."""
        return self.scale == "standard" or self.impute

    def prepared(self, client: Client) -> np.ndarray:
        """The rows as XCLP sees them: imputed and standardised by the pooled moments."""
        V = features(client)
        if not self._needs_moments:
            return V
        mean, std = scaling(client.memory["moments"], V.shape[1])
        if self.impute:
            V = np.where(np.isfinite(V), V, mean)
        return (V - mean) / std if self.scale == "standard" else V

    def _label_counts(self, client: Client) -> np.ndarray:
        if self.xclp.preset != "code":
            return np.empty(0)
        y = labels(client)
        return np.bincount(y[y >= 0], minlength=len(client.memory["classes"])).astype(float)

    def _class_weights(self, client: Client) -> np.ndarray | float:
        """The code preset divides the columns of Y by the classes' label counts."""
        if self.xclp.preset != "code":
            return 1.0
        counts = client.memory["moments"][-len(client.memory["classes"]) :]
        return 1.0 / np.maximum(counts, 1.0)

    # ------------------------------------------------------------ server

    def check(self, server: Server) -> None:
        self.xclp.check()
        if self.scale not in ("standard", "none"):
            raise Mistake(f"scale '{self.scale}' is not known: take standard or none.")
        if not self.xclp.neighbours and not self.expected:
            raise Mistake("neighbours is auto, which goes by the expected accuracy: leave expected on, or name the neighbours.")
        if len(server.clients) < 2:
            raise Mistake(f"only {', '.join(map(party_name, server.clients)) or 'nobody'} is there: propagation needs two.")
        if not 1 <= self.groups <= len(server.clients) // 2:
            raise Mistake(f"groups is {self.groups}, and {len(server.clients)} parties make 1 to {len(server.clients) // 2}.")

    def setup(self, server: Server) -> dict:
        return dict(round=0)

    def shared(self, state: dict) -> dict:
        return {}

    def round(self, server: Server, state: dict) -> dict:
        """One shot. The state says what the server may know: who was there, and the estimate."""
        groups = {i: server.clients[i :: self.groups] for i in range(self.groups)}
        return dict(round=1, groups={i: self.run(server, ids, i) for i, ids in groups.items()})

    def run(self, server: Server, clients: list[Id], number: int) -> dict:
        session_id = f"seed {server.seed} group {number}" if self.xclp.reproducible else secrets.token_hex(16)
        ids = {party_name(id): id for id in clients}
        hello = named(server.ask(self.keys, to=clients, session_id=session_id))
        self._compare(hello)
        classes = sorted({name for reply in hello.values() for name in reply["classes"].values()})
        met = named(server.ask(
            self.meet, to=[ids[name] for name in hello], offers={name: reply["offer"] for name, reply in hello.items()},
            preludes={name: reply["prelude"] for name, reply in hello.items()}, classes=dict(enumerate(classes)),
        ))  # fmt: skip
        moments = pooled_moments(server, self.moments, ids, sorted(hello), met)
        counts = {name: hello[name]["rows"] for name in sorted(met)}
        group = Group(ids, counts, self.xclp.bits, 0, tuple(sorted(party_name(id) for id in server.clients)))
        shared = named(server.ask(
            self.share, to=[ids[name] for name in met],
            each={ids[name]: dict(letters={k: met[k]["letters"][name] for k in met if k != name}) for name in met},
            moments=moments, preludes={name: reply["prelude"] for name, reply in met.items()}, counts=counts,
            roster={name: 0 for name in group.roster},
        ))  # fmt: skip
        names, graphs = self.xclp.graphs(server, group, shared)
        labelled = {name: checked(name, "labelled rows", shared[name]["labelled"], bool, (counts[name],)) for name in names}
        total = int(sum(mask.sum() for mask in labelled.values()))
        if not total:
            raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")
        each = {name: dict(columns=columns) for name, columns in self.xclp.columns(graphs, names, group, labelled).items()}
        occasion, totals = self.xclp.row_sums(server, self.spread, self.spread_again, names, group, each, total=total)
        parties = {name: i for i, name in enumerate(occasion.parties)}
        replies = server.ask(
            self.receive, each={ids[name]: dict(rows=totals[name]) for name in parties}, parties=parties, round=0,
            attempt=occasion.attempt,
        )  # fmt: skip
        done = {party_name(id): reply for id, reply in replies.items()}  # even one: a loss here touches nobody else's labels
        about = self._conclude(server, ids, done, occasion, names, classes)
        return dict(about, layout=layout.smooth(graphs[about["neighbours"]]), rows={name: counts[name] for name in names})

    def _compare(self, hello: Mapping[str, dict]) -> None:
        widths = {name: reply["features"] for name, reply in hello.items()}
        first = next(iter(widths))
        for name, width in widths.items():
            if width != widths[first]:
                raise Mistake(f"{name} has {width} features and {first} has {widths[first]}: give all parties the same columns.")
        if not any(reply["labels"] for reply in hello.values()):
            raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")

    def _conclude(self, server: Server, ids: Mapping[str, Id], done: Mapping[str, dict], occasion: sums.Occasion,
                  names: list[str], classes: list[str]) -> dict:  # fmt: skip
        """The estimate from the summed hits, and with several candidates the choice between them."""
        about = dict(classes=dict(enumerate(classes)), in_graph=dict(enumerate(names)),
                     gave_labels=dict(enumerate(occasion.parties)), got_labels=dict(enumerate(sorted(done))))  # fmt: skip
        estimates, best = [], 0
        if self.expected and set(done) == set(occasion.parties):
            occasion = replace(occasion, step="hits")
            counts = sums.sum_open({name: reply["hits"] for name, reply in done.items()}, occasion).astype(np.int64)
            estimates = [estimate(row) for row in counts.reshape(len(self.xclp.candidates), -1)]
            best = max(range(len(estimates)), key=lambda i: estimates[i]["right"])
        if len(self.xclp.candidates) > 1:
            if not estimates:
                best = self.xclp.candidates.index(10)
            server.ask(self.choose, to=[ids[name] for name in done], candidate=best, parties=len(occasion.parties))
        if estimates:
            about["expected"] = estimates[best]
        return dict(about, neighbours=self.xclp.candidates[best])


def named(replies: Mapping[Id, dict], what: str = "propagation") -> dict[str, dict]:
    """Replies by the names that the protocols use."""
    found = {party_name(id): reply for id, reply in replies.items()}
    if len(found) < 2:
        raise Mistake(f"only {', '.join(found) or 'nobody'} answered: {what} needs two parties.")
    return found


def pooled_moments(server: Server, again: object, ids: Mapping[str, Id], asked: list[str], met: Mapping[str, dict],
                   what: str = "propagation") -> np.ndarray:  # fmt: skip
    """The sum of everybody's masked moments. If a party was lost after it offered its key, the sum begins again without it.

    `met` are the first replies; `again` is the step that is asked for the same moments under fresh masks.
    """
    attempt, parties, replies = 0, asked, met
    while set(replies) != set(parties):
        attempt, parties = attempt + 1, sorted(replies)
        told = {name: i for i, name in enumerate(parties)}
        replies = named(server.ask(again, to=[ids[name] for name in parties], attempt=attempt, parties=told), what)
    occasion = sums.Occasion("", b"", b"", "moments", 0, attempt, tuple(sorted(parties)))
    return fixed.decode_wide(sums.sum_open({name: reply["moments"] for name, reply in replies.items()}, occasion, wide=True))


def features(client: Client) -> np.ndarray:
    """A party's rows, labelled first, as float64; a missing value is NaN."""
    both = (client.data.labelled, client.data.unlabelled)
    return np.concatenate([rows.x[rows.index].flatten(1).numpy().astype(np.float64) for rows in both])


def labels(client: Client) -> np.ndarray:
    """A party's labels in the numbering that all share, −1 where there is none."""
    number = {name: i for i, name in client.memory["classes"].items()}
    own = np.array([number[name] for name in client.data.classes], np.int64)
    known = own[client.data.labelled.y.numpy()] if len(client.data.labelled) else np.empty(0, np.int64)
    return np.concatenate([known, np.full(len(client.data.unlabelled), -1)])


def scaling(moments: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature from the pooled counts, sums and sums of squares.

    A feature that does not vary is given an infinite deviation: it becomes 0 and plays no part. What float64 cannot tell from
    rounding (a deviation under 1e-7 of the mean) counts as not varying.
    """
    n, total, squares = (moments[i * d : (i + 1) * d] for i in range(3))
    n = np.maximum(n, 1.0)
    mean = total / n
    variance = np.maximum(squares / n - mean**2, 0.0)
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-7 * np.abs(mean), std, np.inf)


def estimate(counts: np.ndarray) -> dict:
    """The summed hits as shares: see `Label.hits` for their order."""
    n, right, alone = (int(x) for x in counts[:3])
    rows, hits = counts[3 : 3 + BINS], counts[3 + BINS :]
    return dict(n=n, right=right, alone=alone, rows=rows, hits=hits)
