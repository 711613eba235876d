"""XCLP. Scott, Yeo, Lampert: "Cross-client Label Propagation for Transductive and Semi-Supervised Federated Learning",
TMLR 2023, Algorithm 1, with the cryptography really run. The label job (`label`) and FedAvg+XCLP (`fedavg_xclp`) use it.

`run` is the algorithm as the server sees it. A client's lines are `share` (2–5), the steps of `spread` (11–14), `receive` (14)
and `labels` (15–16); a method calls them in steps of its own, so that they travel with what else it sends. Line 1, the keys and
the seed, comes before (`crypto.session`).

Departures from the paper, with their reasons in docs/methods/xclp.md: rows are sent as fixed point in Z_2^64; a bit is 1 where
⟨v, u⟩ ≥ 0; a point is not its own neighbour; negative similarities are cut off at 0; a row that no label reaches gets no label;
a row that is zero has no direction and takes no part. `preset="code"` is what the authors' released code does instead:
similarities cubed, labels weighted by 1/class count (an additional masked sum), a tight frame of hyperplanes.

A client answers each step once, in its turn, and holds the server to what it knows itself: its own row count, one round, masks
never used twice. What the server must be trusted with is the paper's: that H, S and the sums are computed as they should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse

from grapevine import graph
from grapevine.core import Client, Id, Server, SubProtocol, param, party_name
from grapevine.core.reply import Array
from grapevine.core.server import Forms
from grapevine.crypto import fixed, session
from grapevine.crypto.hamming import Group, Mlwe, SecureHamming
from grapevine.crypto.session import TooFew, require_two
from grapevine.crypto.spread import Bare, Columns, Sealed, Spread, place, require_count
from grapevine.crypto.spread import protocol as spread_protocol

CANDIDATES = (5, 10, 20)  # neighbours, for `neighbours=0` (auto)
ALPHAS = (0.9, 0.97)  # for `alpha=0` (auto)
TOLERANCE = 1e-8  # residual of the columns of S: rows far from labels have small scores, and confidences should hold to 1e-5
REVEALS: dict[str, Any] = dict(
    first=lambda method: method.xclp.hamming.first,
    own="the Hamming distances among this party's own rows: how near its rows are to each other",
    labelled="which rows are labelled, not their labels",
    blank="which rows are all zeros, and so have no direction",
    spread=lambda method: method.xclp.spread.begun,
)
"""What `share` tells, for the steps that send it: those of a method with Algorithm 1 as `xclp`."""


@lru_cache(maxsize=1)
def _public_planes(secret: bytes, bits: int, d: int, info: bytes, tight_frame: bool) -> graph.Grid:
    """Hyperplanes of a run that must repeat are no secret and the same for all: a simulation makes them once."""
    return graph.on_grid(graph.hyperplanes(secret, bits, d, info, tight_frame))


@dataclass(frozen=True)
class Propagated:
    """What Algorithm 1 leaves at the server: who is in the graph, the graph for each candidate k, everybody's rows, sealed."""

    names: list[str]
    graphs: dict[int, sparse.csr_array]
    spread: Spread


@dataclass(frozen=True)
class CrossClientPropagation(SubProtocol):
    """Algorithm 1 for rows V and labels Y that each client knows."""

    name = "xclp"

    hamming: SecureHamming = Mlwe()
    bits: int = param(4096, "L", "bits of a hash", least=1, most=2**15 - 1)
    neighbours: int = param(10, "k", "neighbours of a row; 0 tries several and takes the best", least=0)
    alpha: float = param(0.99, "α", "how far labels spread; 0 tries several and takes the best", least=0, below=1)
    preset: str = param("paper", "", "paper, or code: what the authors' released code does", choices=("paper", "code"))
    reproducible: bool = param(False, "", "hyperplanes from the run's seed: they repeat, and are not secret")
    spread: Sealed | Columns | Bare = param(
        Sealed(), "", "how labels reach their rows: private, or paper (leaks)", named=spread_protocol
    )

    @property
    def candidates(self) -> tuple[int, ...]:
        return (self.neighbours,) if self.neighbours else CANDIDATES

    @property
    def grid(self) -> tuple[tuple[int, float], ...]:
        """Every (k, α) that labels are spread by."""
        return tuple((k, alpha) for k in self.candidates for alpha in ((self.alpha,) if self.alpha else ALPHAS))

    # ------------------------------------------------------------ client

    def share(self, client: Client, V: np.ndarray, labelled: np.ndarray, Y: np.ndarray, group: Group,
              preludes: Mapping[str, dict]) -> dict:  # fmt: skip
        """Lines 2–5: hash the rows V and send this client's part of SecureHamming; and what the spread needs of Y, rows of 0
        and 1 for those rows that are `labelled`, in their order."""
        require_count(client, group.counts, len(V))
        secret, info = session.hash_secret(client, self.reproducible)
        make = _public_planes if self.reproducible and client.common_seed else graph.hyperplanes
        planes = make(secret, self.bits, V.shape[1], info, tight_frame=self.preset == "code")  # line 3
        bits = graph.hash_bits(V, planes)  # line 4
        client.meter.add(2 * V.size * self.bits)
        first = self.hamming.begin(client, bits, group, preludes)  # line 5
        spread = self.spread.begin(client, Y, max(alpha for _, alpha in self.grid), group)
        # Within a client there is nothing to hide from itself: it sends its own block of H.
        own = graph.hamming(bits, bits).astype(np.uint16)
        return dict(first=first, own=own, labelled=labelled, blank=~(V != 0).any(1), spread=spread)

    def receive(self, client: Client, rows: Any, parties: Iterable[str], round: int, attempt: int,
                counts: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
        """Line 14: this client's own rows of Z, a block of columns for each (k, α). With `counts`, labels of each class in
        all, a class's labels weigh 1 / their number: what the authors' code does with Y does the same to Z."""
        Z = self.spread.open(client, rows, parties, round, attempt)
        return Z if counts is None else Z / np.tile(np.maximum(counts, 1.0), Z.shape[1] // len(counts))

    def labels(self, Z: np.ndarray, parties: int) -> tuple[np.ndarray, np.ndarray]:
        """Lines 15–16. What fixed point cannot tell from 0 is no label."""
        return graph.labels_and_confidence(Z, floor=max(parties * fixed.STEP, 1e-9 * Z.max(initial=0.0)))

    # ------------------------------------------------------------ server

    def run(self, server: Server, group: Group, share: Callable, each: Mapping[Id, dict], width: int,
            **same: Any) -> Propagated:  # fmt: skip
        """Algorithm 1. The method's step `share`, told `each` and `same`, answers with what `share` above makes; Y has `width`
        columns."""
        told = dict(same, counts=group.counts, roster={name: 0 for name in group.roster})
        form = self._forms(group, width)
        shares = session.named(server.ask(share, each=each, form=form, **told), "propagation")  # lines 2–4
        firsts = {name: reply["first"] for name, reply in shares.items()}
        present, blocks = self.hamming.finish(server, group, firsts)  # line 5: H, block by block and never as a whole
        names = require_two(sorted(present))
        near, H = self._nearest(group, {name: shares[name] for name in names}, blocks)
        A = graph.cosine(H, self.bits)  # line 6, of the entries that line 7 may keep
        W = {k: graph.graph(near[:, :k], A[:, :k], len(near), preset=self.preset) for k in self.candidates}  # lines 7–9
        S = self._influence(W, group, {name: shares[name]["labelled"] for name in names})  # line 10
        begun = {name: shares[name]["spread"] for name in names}
        spread = self.spread.run(server, group, S, begun, width)  # lines 11–14
        return Propagated(names, W, spread)  # lines 14–16 are the clients': `receive`, `labels`

    def _forms(self, group: Group, width: int) -> Forms:
        """The form of a client's share."""

        def form(id: Id) -> dict:
            n = group.counts[party_name(id)]
            rows = dict(own=Array("uint16", (n, n), most=self.bits), labelled=Array("bool", (n,)), blank=Array("bool", (n,)))
            return dict(rows, first=self.hamming.form(group, party_name(id)), spread=self.spread.form(width))

        return form

    def _nearest(self, group: Group, shares: Mapping[str, dict], blocks: Iterator) -> tuple[np.ndarray, np.ndarray]:
        """Every row's nearest others and their distances, from the blocks of H. Blank rows have none and are nobody's."""
        rows = place(shares, group)
        there = {name: np.flatnonzero(~reply["blank"]) for name, reply in shares.items()}
        best = graph.KBest(sum(map(len, rows.values())), max(self.candidates))
        own = ((name, name, reply["own"]) for name, reply in shares.items())
        for j, k, block in chain(own, blocks):
            best.add(rows[j][there[j]], rows[k][there[k]], block[np.ix_(there[j], there[k])])
        return best.result()

    def _influence(self, W: Mapping[int, sparse.csr_array], group: Group,
                   labelled: Mapping[str, np.ndarray]) -> dict[str, dict[int, np.ndarray]]:  # fmt: skip
        """The columns of S = (I − αW)⁻¹ at each party's labelled rows, by place in the grid. The inverse is never formed."""
        rows = place(labelled, group)
        wanted = [rows[name][labelled[name]] for name in labelled]
        every = np.concatenate(wanted)
        if not len(every):
            raise TooFew("no party has a labelled row: label a few rows at any party, then run again.")
        S = {}
        for i, (k, alpha) in enumerate(self.grid):
            S[i] = np.empty((W[k].shape[0], len(every)), np.float32)
            at = 0
            for ids, piece in graph.influence_columns(W[k], every, alpha, TOLERANCE):
                S[i][:, at : at + len(ids)] = piece
                at += len(ids)
        ends = np.cumsum([len(columns) for columns in wanted])
        return {name: {i: S[i][:, end - len(own) : end] for i in S} for name, own, end in zip(labelled, wanted, ends)}
