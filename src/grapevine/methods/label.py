"""The label job's method: every party's rows labelled in one shot by XCLP, and an estimate of how good the labels are.

    exchange                     Algorithm 1                          what leaves a client
    1  keys                      line 1                               a signed public key; number of rows; names of its classes
    2  meet                      line 1                               sealed seed
    3  pool                                                           its part of the moments, which the parties open themselves
    +1 moments                                                        the same, only with `impute`: `pool` then counts values
    +1 sums.again                                                     the same under fresh masks, only after a party was lost
    4  share                     lines 2–5                            its part of SecureHamming; its own block of H; which rows
                                                                      are labelled; its labels, encrypted
    +2 xclp.hamming.*            line 5                               mlwe, paillier and ot only
    5  receive                   lines 14–16 (6–14 at the server)     masked hits on its hidden labels; nothing else

The estimate: a fifth of the known labels is hidden in a second solve of the same graph, and hits are summed securely.

With `dp` features are as they are (no moments), and noise is in what is left: label counts, and hits without their table of bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grapevine import graph
from grapevine.core import Client, Id, Mistake, Server, param, party_name, step
from grapevine.core.reply import Array, Form
from grapevine.crypto import accountant, fixed, noise, session, together
from grapevine.crypto.agreement import AgreementError
from grapevine.crypto.secure import Group
from grapevine.crypto.spread import require_count
from grapevine.crypto.together import Together
from grapevine.graph import layout
from grapevine.methods import one_shot
from grapevine.methods.one_shot import InGroups, features, labels, scaling
from grapevine.methods.xclp import REVEALS, CrossClientPropagation, Propagated

HIDDEN = 0.2  # the share of known labels that is hidden in the second solve, which estimates the accuracy
BINS = 10  # bins of confidence in the calibration table
KEYS = dict(one_shot.HELLO, prelude=dict, rows=range(one_shot.MOST_ROWS), labels=range(one_shot.MOST_ROWS))


def _moments(method: Label) -> str:
    """What the pooled moments tell, by what is summed."""
    sums = ["pooled counts, means and variances of the features"] if method.needs_moments else []
    sums += ["number of labels of each class"] if method.xclp.preset == "code" else []
    return f"to the server nothing: padded; the parties open the {' and the '.join(sums)}" if sums else "nothing: empty"


def _pooled(method: Label) -> str:
    known = "to the server nothing: padded; the parties open how many rows have a value of each feature"
    return known if method.counts_first else _moments(method)


def _prelude(method: Label) -> str:
    return method.xclp.hamming.preludes


@dataclass(frozen=True)
class Label(InGroups):
    """Every party's rows labelled in one shot. Results stay in each party's own memory, under "result"."""

    name = "label"
    title = "XCLP: one-shot labels for every party's own rows (Scott et al. 2023, Algorithm 1)"

    xclp: CrossClientPropagation = field(default_factory=CrossClientPropagation)
    scale: str = param("standard", "", "standard: features standardised by securely summed moments; none: left as they are",
                       choices=("standard", "none"))  # fmt: skip
    impute: bool = param(False, "", "missing features become the secure mean")
    sums: Together = field(default_factory=Together)
    dp: float = param(0.0, "ε", "sums with noise, with this ε; 0: exact sums", least=0)
    delta: float = param(1e-6, "δ", "of sums with noise", above=0, below=0.1)
    groups: int = param(1, "", "number of separate groups in which parties are labelled", least=1)
    expected: bool = param(True, "", "estimate the accuracy from hidden labels")

    # ------------------------------------------------------------ client

    @step(reveals=dict(one_shot.REVEALS, prelude=_prelude, rows=one_shot.ROWS, labels=one_shot.LABELS), like=KEYS)
    def keys(self, client: Client, session_id: str) -> dict:
        """Exchange 1 (line 1)."""
        if "classes" in client.memory:
            raise Mistake(f"{client.name} has already taken part in this job: start a new one.")
        data = client.data
        return dict(one_shot.hello(client, session_id), prelude=self.xclp.hamming.prelude(client),
                    rows=len(data.labelled) + len(data.unlabelled), labels=len(data.labelled))  # fmt: skip

    @step(reveals=dict(letters=session.LETTERS, prelude=_prelude))
    def meet(self, client: Client, offers: dict, preludes: dict, classes: dict) -> dict:
        """Exchange 2 (line 1): check the keys, and seal the seed."""
        letters = session.meet(client, offers)
        client.memory["classes"] = classes
        return dict(letters=letters, prelude=self.xclp.hamming.answer_prelude(client, preludes))

    @step(reveals=dict(together.REVEALS, share=_pooled), like=together.FORM)
    def pool(self, client: Client, letters: dict, parties: dict, counts: dict) -> dict:
        """Exchange 3: the moments. If values may be missing, first how many rows have one of each feature."""
        session.learn_seed(client, {name: letter for name, letter in letters.items() if name != client.name})
        require_count(client, counts, len(features(client)))
        if self.counts_first:
            return together.share(client, 0, 0, parties, np.isfinite(features(client)).sum(0))
        return self._share_of_moments(client, 0, parties, counts)

    @step(reveals=dict(together.REVEALS, share=_moments), like=together.FORM)
    def moments(self, client: Client, total: np.ndarray, tag: bytes, number: int, attempt: int, parties: dict,
                counts: dict) -> dict:  # fmt: skip
        """The moments of features of which enough rows have a value. The others are left out of everything."""
        require_count(client, counts, len(features(client)))
        client.memory["enough"] = np.rint(together.opened(client, number, attempt, parties, total, tag)) >= together.CELL
        if not client.memory["enough"].any():
            raise Mistake(f"no feature has a value in {together.CELL} rows over all parties: bring more rows.")
        return self._share_of_moments(client, number + 1, parties, counts)

    def _share_of_moments(self, client: Client, number: int, parties: dict, counts: dict) -> dict:
        """Counts, sums and sums of squares of the features, and of the labels per class; each where it is needed."""
        values = np.empty(0)
        if self.needs_moments:
            V = self._usable(client)
            there = np.isfinite(V)
            V = np.where(there, V, 0.0)
            values = np.concatenate([there.sum(0), V.sum(0), (V * V).sum(0)])
        if self.xclp.preset == "code":
            y = labels(client)
            values = np.concatenate([values, np.bincount(y[y >= 0], minlength=len(client.memory["classes"]))])
        if not len(values):
            return {}
        return together.share(client, number, 0, parties, values, wide=not self.dp, added=self._noise(client).get("counts"),
                              rows=counts if self.needs_moments else None)  # fmt: skip

    def _usable(self, client: Client) -> np.ndarray:
        """Rows without the features of which too few rows have a value."""
        V = features(client)
        return np.where(client.memory["enough"], V, 0.0) if self.counts_first else V

    def _noise(self, client: Client) -> dict[str, accountant.Noise]:
        return self.noise(len(client.memory["agreement"]["keys"])) if self.dp else {}

    def noise(self, parties: int) -> dict[str, accountant.Noise]:
        """The noise in sums among this many parties: label counts and hits, the two that are opened with `dp`."""
        sums = dict(counts=accountant.Sum(1.0), hits=accountant.Sum(1.0, np.sqrt(2 * len(self.xclp.grid))))
        needed = dict(counts=self.xclp.preset == "code", hits=self.expected)
        return accountant.plan(self.dp, self.delta, parties, {name: s for name, s in sums.items() if needed[name]})

    @step(reveals=REVEALS)
    def share(self, client: Client, pooled: dict, preludes: dict, counts: dict, roster: dict) -> dict:
        """Exchange 4 (lines 2–5). Labels are spread twice if the accuracy is to be estimated: all, and those not hidden."""
        if "moments" in client.memory or "seed" not in client.memory:  # other moments would give other bits under the same masks
            raise AgreementError(f"{client.name!r} shares its rows once, after it has pooled: start a new job")
        client.memory["moments"] = together.opened(client, **pooled) if "pending" in client.memory else np.empty(0)
        group = Group({}, counts, self.xclp.bits, 0, tuple(roster))
        y = labels(client)
        known = y[y >= 0]
        Y = graph.label_matrix(known, len(client.memory["classes"]))
        if self.expected:
            client.memory["hidden"] = self.hide(client, known)
            Y = np.concatenate([Y, Y * ~client.memory["hidden"][:, None]], 1)
        V = self.prepared(client)
        return self.xclp.share(client, V, np.arange(len(V)) < len(Y), Y, group, preludes)

    @step(reveals=dict(hits="alone nothing: masked; all parties' together say how many hidden labels were recovered"))
    def receive(self, client: Client, rows: Any, parties: dict, round: int, attempt: int) -> dict:
        """Exchange 5 (lines 14–16): labels and confidences, here and nowhere else. Masked hits on hidden labels go back."""
        Z = self.xclp.receive(client, rows, parties, round, attempt, self._label_counts(client))
        C, K = len(client.memory["classes"]), len(self.xclp.grid)
        per = Z.reshape(len(Z), K, 1 + self.expected, C)  # row, candidate, all labels or visible ones, class
        client.memory["scores"] = np.ascontiguousarray(per[:, :, 0])
        if K == 1:
            self.conclude(client, 0, len(parties))
        reply = {}
        if self.expected:
            values = np.stack([self.hits(client, per[:, i, 1], len(parties), i) for i in range(K)])
            reply = dict(hits=self._masked_hits(client, values, round, attempt, parties))
        session.forget(client)
        for name in ("labels", "spread", "bits"):
            client.memory.pop(name, None)
        return reply

    def _masked_hits(self, client: Client, values: np.ndarray, round: int, attempt: int, parties: dict) -> np.ndarray:
        """The hits as they are; or in fixed point with noise, and then three counts per candidate: hidden, found, found alone."""
        if not self.dp:
            return session.masked(client, "hits", round, attempt, parties, values.astype(np.int64).ravel())
        added = self._noise(client)["hits"]
        if len(parties) < added.least:
            raise Mistake(f"{len(parties)} parties are left, whose noise is too little: {added.least} are needed.")
        ring = fixed.encode(values[:, :3])
        ring[:, 1:] = noise.add_noise(ring[:, 1:], added.sigma)
        return session.masked(client, "hits", round, attempt, parties, ring.ravel(), mechanism=accountant.to_table(added.event))

    @step
    def choose(self, client: Client, candidate: int, parties: int) -> dict:
        """Only if several candidates were tried: which one was chosen."""
        self.conclude(client, candidate, parties)
        return {}

    def conclude(self, client: Client, candidate: int, parties: int) -> None:
        """Labels and confidences of all rows, in the order labelled, unlabelled."""
        Z = client.memory["scores"][:, candidate]
        found, confidence = self.xclp.labels(Z, parties)
        proba = graph.distributions(Z) * (found >= 0)[:, None]
        blank = ~(self.prepared(client) != 0).any(1)
        client.memory["result"] = dict(label=found, confidence=confidence, proba=proba, blank=blank,
                                       candidate=candidate)  # fmt: skip

    def hits(self, client: Client, Z: np.ndarray, parties: int, candidate: int) -> np.ndarray:
        """Counts to be summed: hidden labels, hits together, hits alone, and per bin of confidence rows and hits."""
        y = labels(client)
        hidden = np.flatnonzero(y >= 0)[client.memory["hidden"]]
        found, confidence = self.xclp.labels(Z, parties)
        right = found[hidden] == y[hidden]
        alone, _ = self.alone(client, candidate, hidden)
        bins = np.minimum((confidence[hidden] * BINS).astype(int), BINS - 1)
        tables = [np.bincount(bins, minlength=BINS), np.bincount(bins[right], minlength=BINS)]
        return np.concatenate([[len(hidden), right.sum(), (alone[hidden] == y[hidden]).sum()], *tables])

    def alone(self, client: Client, candidate: int, hidden: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The lower bound: the same propagation among this party's own rows, with exact cosines and its own labels."""
        V, y = self.prepared(client), labels(client)
        if hidden is not None:
            y[hidden] = -1
        C = len(client.memory["classes"])
        if len(V) < 2 or not (y >= 0).any():
            return np.full(len(V), -1), np.zeros(len(V))
        k, alpha = self.xclp.grid[candidate]
        W = graph.graph(*graph.nearest_cosine(V, min(k, len(V) - 1)), len(V), preset=self.xclp.preset)
        return graph.labels_and_confidence(graph.solve(W, graph.label_matrix(y, C, self.xclp.preset), alpha).Z)

    def hide(self, client: Client, known: np.ndarray) -> np.ndarray:
        """Which labelled rows the second solve does not know: a fifth of each class; the only label of a class by chance. With
        `dp` a fifth of all: which are hidden, and how many, then tells nothing about a row's class."""
        draw = np.random.default_rng(client.seed_of("hide"))
        hidden, kinds = np.zeros(len(known), bool), np.zeros_like(known) if self.dp else known
        for c in np.unique(kinds):
            rows = draw.permutation(np.flatnonzero(kinds == c))
            whole, rest = divmod(len(rows) * HIDDEN, 1)
            hidden[rows[: int(whole) + (draw.random() < rest)]] = True
        return hidden

    def width(self, classes: int) -> int:
        """Columns of the label matrix: all labels, and those that are not hidden."""
        return classes * (1 + self.expected)

    @property
    def needs_moments(self) -> bool:
        """What is not needed is not summed: nobody then learns the pooled moments."""
        return (self.scale == "standard" or self.impute) and not self.dp

    @property
    def counts_first(self) -> bool:
        """Where values may be missing, a feature may have too few of them for a sum."""
        return self.impute and self.needs_moments

    def prepared(self, client: Client) -> np.ndarray:
        """The rows as XCLP sees them: imputed and standardised by the pooled moments."""
        V = self._usable(client)
        if not self.needs_moments:
            return V
        mean, std = scaling(client.memory["moments"], V.shape[1])
        if self.impute:
            V = np.where(np.isfinite(V), V, mean)
        return (V - mean) / std if self.scale == "standard" else V

    def _label_counts(self, client: Client) -> np.ndarray | None:
        """The label count of each class over all parties, for the code preset, which weights labels by it."""
        return client.memory["moments"][-len(client.memory["classes"]) :] if self.xclp.preset == "code" else None

    # ------------------------------------------------------------ server

    def check(self, server: Server) -> None:
        super().check(server)
        if self.dp:
            self.noise(len(server.clients) // self.groups)
        if len(self.xclp.grid) > 1 and not self.expected:
            raise Mistake("neighbours or alpha is auto, which needs the expected accuracy: leave expected on, or set both.")

    def run(self, server: Server, clients: list[Id], number: int) -> dict:
        """The job among the parties of one group."""
        ids = {party_name(id): id for id in clients}
        said = named(server.ask(self.keys, to=clients, session_id=self.session_id(server, number)))
        told = one_shot.agreed(said)
        if not any(reply["labels"] for reply in said.values()):
            raise Mistake("no party has a labelled row: label a few rows at any party, then run again.")
        preludes = {name: reply["prelude"] for name, reply in said.items()}
        met = named(server.ask(self.meet, to=[ids[name] for name in said], preludes=preludes, **told,
                               form=lambda id: dict(prelude=dict, letters=session.letters_form(said, id))))  # fmt: skip
        d, C = next(iter(said.values()))["features"], len(told["classes"])
        counts = {name: said[name]["rows"] for name in sorted(met)}
        pooled = self._pool(server, ids, session.relayed(met, ids), counts, d, C)
        summed = "total" in pooled
        counts = {name: counts[name] for name in sorted(pooled["parties"])}
        group = Group(ids, counts, self.xclp.bits, 0, tuple(sorted(party_name(id) for id in server.clients)))
        preludes = {name: met[name]["prelude"] for name in counts}
        found = self.xclp.run(server, group, self.share, {ids[name]: {} for name in counts}, self.width(C),
                              pooled=pooled if summed else {}, preludes=preludes)  # fmt: skip
        about = self._conclude(server, ids, found, list(told["classes"].values()))
        return dict(about, layout=layout.smooth(found.graphs[about["neighbours"]]), rows={n: counts[n] for n in found.names})

    def _pool(self, server: Server, ids: Mapping[str, Id], each: dict[Id, dict], counts: dict[str, int], d: int,
              C: int) -> dict:  # fmt: skip
        """Exchange 3: the sum of the moments, as the parties are told it; who is left, if there is none."""
        summed = 3 * d * self.needs_moments + C * (self.xclp.preset == "code")
        form: dict[str, Form] = dict(share=Array("uint64", (summed,) if self.dp else (summed, 4)), tag=bytes) if summed else {}
        first = dict(form, share=Array("uint64", (d,))) if self.counts_first else form
        parties, number = list(counts), 0
        asked = server.ask(self.pool, each=each, parties=session.numbered(parties), counts=counts, form=lambda id: first)
        if self.counts_first:
            told = self.sums.once(server, ids, named(asked), parties, 0)
            parties, number = list(told["parties"]), 1
            asked = server.ask(self.moments, to=[ids[n] for n in parties], counts=counts, form=lambda id: form, **told)
        return self.sums.once(server, ids, named(asked), parties, number) if summed else dict(parties=named(asked))

    def _conclude(self, server: Server, ids: Mapping[str, Id], found: Propagated, classes: list[str]) -> dict:
        """Exchange 4; the estimate from the summed hits, and with several candidates the choice between them."""
        masked, K = found.spread, len(self.xclp.grid)
        hits = dict(hits=Array("uint64", (K * (3 + 2 * BINS * (not self.dp)),))) if self.expected else {}
        each = {ids[name]: dict(rows=masked.rows[name]) for name in masked.parties}
        replies = server.ask(self.receive, each=each, form=lambda id: hits, **masked.told)
        done = {party_name(id): reply for id, reply in replies.items()}  # even one: a loss here touches nobody else's labels
        about: dict[str, Any] = {name: dict(enumerate(names)) for name, names in dict(
            classes=classes, in_graph=found.names, gave_labels=masked.parties, got_labels=sorted(done)).items()}  # fmt: skip
        estimates, best = [], 0
        if self.expected and set(done) == set(masked.parties):
            shares = {name: reply["hits"] for name, reply in done.items()}
            total = session.opened("hits", masked.round, masked.attempt, masked.parties, shares)
            counts = np.rint(fixed.decode(total)).astype(np.int64) if self.dp else total.astype(np.int64)
            added = dict(noise=float(self.noise(len(ids))["hits"].sigma * np.sqrt(len(done)))) if self.dp else {}
            estimates = [dict(estimate(row), **added) for row in counts.reshape(K, -1)]
            best = max(range(len(estimates)), key=lambda i: estimates[i]["right"])
        if K > 1:
            if not estimates:
                best = K // 2
            server.ask(self.choose, to=[ids[name] for name in done], candidate=best, parties=len(masked.parties))
        if estimates:
            about["expected"] = estimates[best]
        neighbours, alpha = self.xclp.grid[best]
        return dict(about, neighbours=neighbours, alpha=alpha)


def named(replies: Mapping[Id, dict]) -> dict[str, dict]:
    return session.named(replies, "propagation")


def estimate(counts: np.ndarray) -> dict:
    """The summed hits as shares: see `Label.hits` for their order."""
    n, right, alone = (int(x) for x in np.clip(counts[:3], 0, counts[0]))
    rows, hits = counts[3 : 3 + BINS], counts[3 + BINS :]
    return dict(n=n, right=right, alone=alone, rows=rows, hits=hits)
