"""Chorus, the label job's own method: several simple labellers, mixed by how well they recover hidden labels.

XCLP's propagation is one voice. The others are linear discriminant analysis on all rows' hard labels, a head on all parties'
labels, every party's own regression, and which classes each party has more of than the others. `methods.tune` and `methods.song`
have the programs and what each voice is, `learn.voices` the arithmetic. Everything is computed at the parties from sums that they
open themselves; the server carries them, makes the graph, and decides nothing.

    exchange            what leaves a client
    1  keys             a signed public key
    2  meet             sealed seed
    3  names            names of classes and digests of values of text columns, hashed and encrypted; how many nodes it will have
    4  begin            its part of the first sum
    …  go_on            its part of the next one: moments and label counts; the scale; then names of text values that are not rare
       share            its part of SecureHamming; its own block of H; which nodes are labelled; its labels, encrypted
    +2 xclp.hamming.*   mlwe, paillier and ot only
       receive          its part of the next sum, from its own scores, which it alone can open
    …  go_on            the voices, their weights, two refits; at the end, how well hidden labels were recovered

Landmarks. A party with more rows than its share of the graph puts its labelled rows and centres of its other rows into it, and
takes its rows' scores from the nearest of its own nodes. The cost of the cryptography then does not grow with the rows.

Nodes stand in the graph in a secret order of each party's own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grapevine.core import Client, Id, Mistake, Server, param, party_name, step
from grapevine.core.reply import Form
from grapevine.crypto import accountant, noise, session, together
from grapevine.crypto import names as sealed_names
from grapevine.crypto.secure import Group
from grapevine.crypto.spread import Spread
from grapevine.crypto.together import Together
from grapevine.data import columns as table
from grapevine.graph import layout
from grapevine.learn.voices import FOLDS, Told, folds
from grapevine.methods import noisy, one_shot, song, tune
from grapevine.methods.landmarks import Nodes, centres
from grapevine.methods.landmarks import count as count_nodes
from grapevine.methods.landmarks import nodes as make_nodes
from grapevine.methods.one_shot import InGroups, features, labels
from grapevine.methods.xclp import REVEALS, CrossClientPropagation, Propagated

SOFT = 255  # soft labels are sealed as whole numbers up to this
DEFAULT = CrossClientPropagation(bits=1024, neighbours=0, alpha=0.0, preset="code")
KEYS: dict[str, Form] = dict(offer=session.OFFER_FORM, prelude=dict)
NAMES: dict[str, Form] = dict(
    classes=[bytes], values=[[bytes]], gaps=[bytes], nodes=range(1, one_shot.MOST_ROWS), columns=range(1, 2**24)
)
GO_ON: dict[str, Any] = dict(together.REVEALS, soft=lambda method: method.xclp.spread.begun, summary=(
    "how many hidden labels all parties have, how many were recovered and how sure that was; all parties know this"
))  # fmt: skip
NAMED = f"values of text columns that are features: {sealed_names.REVEALS}"


@dataclass(frozen=True)
class Chorus(InGroups):
    """Every party's rows labelled in one job. Results stay in each party's own memory, under "result"."""

    name = "chorus"
    title = "Chorus: voices of all parties, mixed by hidden labels, for every party's own rows"

    xclp: CrossClientPropagation = field(default_factory=lambda: DEFAULT)
    sums: Together = field(default_factory=Together)
    scale: str = param("auto", "", "auto; standard: each feature by its own deviation; one: all by one; none: not centred",
                       choices=("auto", "standard", "one", "none"))  # fmt: skip
    impute: bool = param(False, "", "missing features become the mean, and one more feature marks them")
    landmarks: int = param(0, "", "nodes of a party in the graph; 0: its share of 5,000; −1: all its rows", least=-1)
    smooth: bool = param(False, "", "one more voice: a row's neighbours in the graph")
    epsilon: float = param(0.0, "ε", "labels told by randomised response with this ε; 0: as they are", least=0)
    dp: float = param(0.0, "ε", "sums with noise, few of them, with this ε; 0: exact sums", least=0)
    delta: float = param(1e-6, "δ", "of sums with noise", above=0, below=0.1)
    groups: int = param(1, "", "number of separate groups in which parties are labelled", least=1)

    # ------------------------------------------------------------ client: keys and names

    @step(reveals=dict(offer=session.OFFER, prelude=lambda m: m.xclp.hamming.preludes), like=KEYS)
    def keys(self, client: Client, session_id: str) -> dict:
        if "classes" in client.memory:
            raise Mistake(f"{client.name} has already taken part in this job: start a new one.")
        return dict(offer=session.offer(client, session_id), prelude=self.xclp.hamming.prelude(client))

    @step(reveals=dict(letters=session.LETTERS, prelude=lambda m: m.xclp.hamming.preludes))
    def meet(self, client: Client, offers: dict, preludes: dict) -> dict:
        return dict(letters=session.meet(client, offers), prelude=self.xclp.hamming.answer_prelude(client, preludes))

    @step(reveals=dict(
        classes=f"names of classes: {sealed_names.REVEALS}",
        values=f"values of text columns that ten rows of all parties may have: {sealed_names.REVEALS}",
        gaps=f"names of columns with missing values: {sealed_names.REVEALS}",
        nodes="how many nodes this party has in the graph", columns="how many columns its table has",
    ), like=NAMES)  # fmt: skip
    def names(self, client: Client, letters: dict, parties: int) -> dict:
        """The seed that the parties share, and under it the names of classes and values."""
        session.learn_seed(client, {name: letter for name, letter in letters.items() if name != client.name})
        data = client.data
        rows, known = len(data.labelled) + len(data.unlabelled), len(data.labelled)
        gaps = table.missing(features(client), data.columns) if self.impute else ()
        # Columns go by their numbers. If parties have other columns, the job stops at how many there are, or at these names.
        place = {c.name: j for j, c in enumerate(data.columns)}
        values = {
            f"{place[name]}": sealed_names.sealed(
                client, f"values of {name}", table.worth_naming(found, parties, sealed_names.MOST)
            )
            for name, found in table.counts(features(client), _hidden(data.columns)).items()
        }
        # Told once, so it must stay if others are lost.
        client.memory["nodes"] = count_nodes(self.landmarks, rows, known, parties)
        return dict(classes=sealed_names.sealed(client, "classes", data.classes), values=values,
                    gaps=sealed_names.sealed(client, "columns", gaps), columns=max(len(data.columns), 1),
                    nodes=client.memory["nodes"])  # fmt: skip

    # ------------------------------------------------------------ client: sums

    @step(reveals=together.REVEALS, like=together.FORM)
    def begin(self, client: Client, classes: dict, values: dict, gaps: dict, parties: dict) -> dict:
        """All names are known: labels and folds are numbered, and the program that finds the scale begins."""
        found = sealed_names.opened(client, "classes", classes)
        if not found:
            raise Mistake("no party has a labelled row: label a few rows at any party, then run again.")
        client.memory["classes"] = dict(enumerate(found))
        text = {client.data.columns[int(j)].name: sealed for j, sealed in values.items()}
        client.memory["values"] = {
            name: dict(enumerate(sealed_names.opened(client, f"values of {name}", sealed))) for name, sealed in text.items()
        }
        client.memory["gaps"] = dict(enumerate(sealed_names.opened(client, "columns", gaps)))
        y = labels(client)
        y = y[y >= 0]
        if self.epsilon and len(y) and len(found) > 1:
            self._note(client, len(found), parties)
            y = noise.randomised_response(y, len(found), self.epsilon)
        draw = np.random.default_rng(client.seed_of("folds"))
        # With noise on the sums, which labels are hidden must not depend on what other labels are.
        client.memory["told"] = dict(y=y, fold=folds(np.zeros_like(y) if self.dp else y, draw))
        return self._advance(client, "tune", None, 0, parties)

    def _note(self, client: Client, classes: int, parties: Iterable[str]) -> None:
        """Write the labels' ε into the party's ledger before they leave."""
        if client.ledger is not None:
            told = accountant.to_table(accountant.Response(self.epsilon, classes))
            client.ledger.release(job=session.agreement(client).key_hash.hex(), what="labels by randomised response",
                                  rows=client.ledger.rows(client.data), parties=parties, mechanism=told)  # fmt: skip

    @step(reveals=dict(GO_ON, named=NAMED), like={**together.FORM, "named?": [[bytes]]})
    def go_on(self, client: Client, total: np.ndarray, tag: bytes, number: int, attempt: int, parties: dict) -> dict:
        """Open the sum that the parties formed, and continue to the next."""
        heard = together.opened(client, number, attempt, parties, total, tag)
        return self._advance(client, client.memory["program"], heard, number + 1, parties)

    def _advance(self, client: Client, program: str, heard: Any, number: int, parties: Iterable[str]) -> dict:
        client.memory["program"] = program
        going, asked = together.advance(client, program, lambda: self._program(client, program), heard)
        if not going:
            return self._tuned(client, asked) if program == "tune" else self._sung(client, asked)
        if isinstance(asked, song.Soft):
            client.memory["next"] = number
            return dict(soft=self._seal(client, asked.Q))
        if isinstance(asked, noisy.Noisy):
            told = dict(mechanism=session.COUNTS) if asked.what == "rows" else dict(added=self._noise(client)[asked.what])
            return together.share(client, number, 0, parties, asked.values, **told)
        return together.share(client, number, 0, parties, asked, wide=isinstance(asked, tune.Wide))

    def _noise(self, client: Client) -> dict[str, accountant.Noise]:
        return noisy.plan(self.dp, self.delta, len(client.memory["agreement"]["keys"]))

    def _program(self, client: Client, program: str) -> tune.Program:
        told = client.memory["told"]
        if program == "tune":
            C = len(client.memory["classes"])
            own = tune.Table(features(client), _hidden(client.data.columns), _listed(client.memory["values"]),
                             tuple(client.memory["gaps"].values()))  # fmt: skip
            return noisy.tune(own, told["y"]) if self.dp else tune.tune(own, told["y"], told["fold"], C, self.told(C), self.scale)
        if self.dp:
            return noisy.sing(self._singer(client), self._noise(client), len(client.memory["agreement"]["keys"]))
        return song.sing(self._singer(client))

    def width(self, classes: int) -> int:
        """Columns of the label matrix: six sets of labels; with randomised responses also how many labels each set has."""
        return FOLDS * (classes + bool(self.epsilon))

    def told(self, C: int) -> Told:
        return Told(*noise.response_rates(C, self.epsilon)) if self.epsilon else Told()

    def _tuned(self, client: Client, found: tune.Tuned) -> dict:
        """Rows are scaled, and their nodes in the graph chosen."""
        scale = found.scale
        agreed = {name: dict(enumerate(values)) for name, values in found.agreed.items()}
        client.memory["tuned"] = dict(mean=scale.mean, std=scale.std, clip=scale.clip, name=found.name, rows=found.rows,
                                      counts=found.counts, agreed=agreed)  # fmt: skip
        count, seed = client.memory["nodes"], client.seed_of("landmarks") % 2**32
        client.memory["centres"] = centres(self.prepared(client), len(client.data.labelled), count, seed)
        repeats = self.xclp.reproducible and client.common_seed
        shuffle = np.random.default_rng(client.seed_of("order") if repeats else secrets.randbits(256))
        client.memory["order"] = shuffle.permutation(count)
        # Digests were enough until here. Heads for later rows need names: each party tells those that it has.
        named = {f"{j}": [v for v in c.values if sealed_names.digest(c.name, v) in found.agreed[c.name]]
                 for j, c in enumerate(client.data.columns) if found.agreed.get(c.name)}  # fmt: skip
        return dict(named={j: sealed_names.sealed(client, f"names {j}", own) for j, own in named.items()}) if named else {}

    # ------------------------------------------------------------ client: the graph

    @step(reveals=REVEALS)
    def share(self, client: Client, preludes: dict, counts: dict, roster: dict, named: dict) -> dict:
        """Lines 2–5 of XCLP's Algorithm 1, for this party's nodes and for six sets of its labels: all, and without each fold."""
        told = {client.data.columns[int(j)].name: sealed_names.opened(client, f"names {j}", own) for j, own in named.items()}
        client.memory["named"] = {sealed_names.digest(name, value): value for name, found in told.items() for value in found}
        group = Group({}, counts, self.xclp.bits, 0, tuple(roster))
        nodes, order, (y, fold) = self._nodes(client), client.memory["order"], (client.memory["told"][k] for k in ("y", "fold"))
        C, m = len(client.memory["classes"]), len(y)
        heard = (fold[:, None] != np.arange(FOLDS)).astype(np.float64)
        Y = (heard[:, :, None] * np.eye(C)[y][:, None]).reshape(m, FOLDS * C)
        if self.epsilon:  # the number of labels, from which `unbiased` knows what randomised response added
            Y = np.concatenate([Y, heard], 1)
        labelled = order < m
        return self.xclp.share(client, nodes.V[order], labelled, Y[order[labelled]], group, preludes)

    @step(reveals=together.REVEALS, like=together.FORM)
    def receive(self, client: Client, rows: Any, parties: dict, round: int, attempt: int, number: int) -> dict:
        """This party's own scores, here and nowhere else; the voices begin."""
        Z = self.xclp.receive(client, rows, parties, round, attempt)[np.argsort(client.memory["order"])]
        client.memory["scores"] = Z.astype(np.float32)
        return self._advance(client, "sing", None, number, parties)

    @step(reveals=GO_ON)
    def hear(self, client: Client, rows: Any, parties: dict, turn: int, attempt: int, number: int) -> dict:
        """The answer to soft labels: one step of the graph on them. `turn` is how often labels have been sealed before, and
        `number` is that of the next sum."""
        if number != client.memory["next"]:
            raise Mistake(f"{client.name} is at sum {client.memory['next']} but the server is at {number}: start a new job.")
        Z = self.xclp.receive(client, rows, parties, turn, attempt)[np.argsort(client.memory["order"])]
        Z = Z.reshape(len(Z), FOLDS, -1).transpose(1, 0, 2)
        return self._advance(client, "sing", Z, number, parties)

    def _seal(self, client: Client, Q: np.ndarray) -> dict:
        """Soft labels of this party's nodes, encrypted as labels are."""
        nodes, order = self._nodes(client), client.memory["order"]
        whole = np.rint(SOFT * nodes.means(Q)).astype(np.int64).transpose(1, 0, 2).reshape(len(order), -1)
        round = 1 + client.memory["labels"]["round"]
        group = Group({}, {client.name: len(order)}, self.xclp.bits, round, ())
        return self.xclp.spread.begin(client, whole[order], 0.0, group, SOFT)

    def _nodes(self, client: Client) -> Nodes:
        return make_nodes(self.prepared(client), len(client.data.labelled), client.memory["centres"])

    def _singer(self, client: Client) -> song.Singer:
        nodes, told, tuned = self._nodes(client), client.memory["told"], self.tuned(client)
        C = len(client.memory["classes"])
        Z = client.memory["scores"].astype(np.float64)
        Z = Z.reshape(len(Z), len(self.xclp.grid), -1).transpose(1, 0, 2)  # candidates, nodes, columns
        labels, all = Z[..., : FOLDS * C], Z[..., FOLDS * C :]
        labels = labels.reshape(*Z.shape[:2], FOLDS, C).transpose(0, 2, 1, 3)
        if self.epsilon:
            labels = self.told(C).unbiased(labels, all.transpose(0, 2, 1)[..., None])
        # Scores are whole numbers from 0 to 65,535 on each row's own scale: one half where no label reaches.
        scores = (np.maximum(labels, 0.0) + 0.5) / np.maximum(tuned.heard, 1.0)[:, None]
        return song.Singer(
            self.prepared(client), told["y"], told["fold"], scores, nodes.mass, nodes.to_rows,
            tuned, lambda what: np.random.default_rng(client.seed_of(what)), self.told(C), self.smooth,
            lambda name, make: _kept(client, name, make), nodes.from_others,
        )  # fmt: skip

    def tuned(self, client: Client) -> tune.Tuned:
        t = client.memory["tuned"]
        return tune.Tuned(tune.Scale(t["mean"], t["std"], t["clip"]), t["name"], t["rows"], t["counts"], _listed(t["agreed"]))

    def prepared(self, client: Client) -> np.ndarray:
        """Rows as they are compared: values of text columns as features of their own, scaled."""
        tuned, x, columns = self.tuned(client), features(client), _hidden(client.data.columns)
        return tuned.scale(table.encode(x, columns, tuned.agreed, client.memory["gaps"].values()) if columns else x)

    # ------------------------------------------------------------ client: the end

    def _sung(self, client: Client, found: song.Song) -> dict:
        """Labels and probabilities of all rows, in the order labelled, unlabelled; the heads; how it was judged."""
        keep = song.verdict(found, client.memory["told"]["y"])
        P = found.P
        if keep["own_kept"] and found.own is not None:
            P = np.exp(found.own)
        heads = {name: dict(W=head.W, b=head.b, weight=found.head_weights[name]) for name, head in found.heads.items()}
        alone = np.full(len(P), -1) if found.own is None else found.own.argmax(1)
        client.memory["result"] = dict(
            label=P.argmax(1), confidence=P.max(1), proba=P, blank=np.zeros(len(P), bool), alone=alone, verdict=keep,
            expected=found.expected, weights=found.weights, heads=heads, scale=client.memory["tuned"]["name"],
            places=self._places(client),
        )  # fmt: skip
        session.forget(client)
        for name in set(client.memory) - {"classes", "gaps", "tuned", "named", "result"}:
            client.memory.pop(name)
        return dict(summary=found.expected)

    def _places(self, client: Client) -> np.ndarray:
        """Which row each node is, in the order in which nodes stand in the graph; −1 for a centre."""
        order = client.memory["order"]
        return order if not len(client.memory["centres"]) else np.where(order < len(client.memory["told"]["y"]), order, -1)

    # ------------------------------------------------------------ server

    def check(self, server: Server) -> None:
        super().check(server)
        if self.dp:
            noisy.plan(self.dp, self.delta, len(server.clients) // self.groups)
        if self.xclp.spread.name == "paper":
            raise Mistake("spread is paper, which belongs to XCLP: use it with the method xclp, or leave it out.")

    def run(self, server: Server, clients: list[Id], number: int) -> dict:
        """The job among the parties of one group."""
        ids = {party_name(id): id for id in clients}
        said = one_shot.named(server.ask(self.keys, to=clients, session_id=self.session_id(server, number)))
        met = self._met(server, ids, said)
        told = one_shot.named(server.ask(self.names, each=session.relayed(met, ids), parties=len(met)))
        parties, agreed = sorted(told), self._agreed(told)
        first = server.ask(self.begin, to=[ids[n] for n in parties], parties=session.numbered(parties), **agreed)
        tuned, number = self.sums.run(server, self.go_on, ids, one_shot.named(first), parties, 0)
        counts = {name: told[name]["nodes"] for name in sorted(tuned)}
        group = Group(ids, counts, self.xclp.bits, 0, tuple(sorted(party_name(id) for id in server.clients)))
        width = self.width(len(agreed["classes"]))
        preludes = {name: met[name]["prelude"] for name in counts}
        named = _united([reply.get("named", {}) for reply in tuned.values()])
        each: dict[Id, dict] = {ids[name]: {} for name in counts}
        found = self.xclp.run(server, group, self.share, each, width, preludes=preludes, named=named)
        done = self._sing(server, ids, found, number, group, len(agreed["classes"]))
        about: dict[str, Any] = {name: dict(enumerate(who)) for name, who in dict(
            in_graph=found.names, gave_labels=found.spread.parties, got_labels=sorted(done)).items()}  # fmt: skip
        summary = next(iter(done.values())).get("summary", {})  # all parties tell the same
        return dict(about, classes=len(agreed["classes"]), expected=summary, nodes={n: counts[n] for n in found.names},
                    layout=layout.smooth(found.graphs[max(found.graphs)]))  # fmt: skip

    def _met(self, server: Server, ids: Mapping[str, Id], said: Mapping[str, dict]) -> dict[str, dict]:
        offers = {name: reply["offer"] for name, reply in said.items()}
        preludes = {name: reply["prelude"] for name, reply in said.items()}
        return one_shot.named(server.ask(
            self.meet, to=[ids[name] for name in said], offers=offers, preludes=preludes,
            form=lambda id: dict(prelude=dict, letters=session.letters_form(said, id)),
        ))  # fmt: skip

    def _agreed(self, told: Mapping[str, dict]) -> dict[str, Any]:
        """The names of all parties, each once. Parties must have the same columns."""
        widths = {name: reply["columns"] for name, reply in told.items()}
        first = next(iter(widths))
        for name, width in widths.items():
            if width != widths[first]:
                raise Mistake(f"{name} has {width} columns but {first} has {widths[first]}: give all parties the same columns.")
        return dict(classes=sealed_names.united(reply["classes"] for reply in told.values()),
                    values=_united([reply["values"] for reply in told.values()]),
                    gaps=sealed_names.united(reply["gaps"] for reply in told.values()))  # fmt: skip

    def _sing(self, server: Server, ids: Mapping[str, Id], found: Propagated, number: int, group: Group,
              classes: int) -> dict[str, dict]:  # fmt: skip
        """From everybody's own scores to the end; with `smooth`, soft labels go through the graph on the way."""
        spread, parties = found.spread, found.spread.parties
        each = {ids[name]: dict(rows=spread.rows[name]) for name in parties}
        replies = one_shot.named(server.ask(self.receive, each=each, number=number, **spread.told))
        while True:
            replies, number = self.sums.run(server, self.go_on, ids, replies, parties, number)
            if not any("soft" in reply for reply in replies.values()):
                return replies
            group = replace(group, round=group.round + 1)  # labels are sealed once a round
            spread = self._soft(server, found, replies, group, classes)
            each = {ids[name]: dict(rows=spread.rows[name]) for name in spread.parties}
            told = dict(parties=spread.told["parties"], turn=spread.round, attempt=spread.attempt)
            replies = one_shot.named(server.ask(self.hear, each=each, number=number, **told))
            parties = spread.parties  # among whom the next sum is masked, whoever was lost since

    def _soft(self, server: Server, found: Propagated, replies: Mapping[str, dict], group: Group, classes: int) -> Spread:
        """W times everybody's soft labels, each party's own rows to itself."""
        names = [name for name in found.names if name in replies]
        W = found.graphs[sorted(found.graphs)[len(found.graphs) // 2]].toarray()
        places = np.cumsum([0, *(group.counts[name] for name in found.names)])
        S = {name: {0: W[:, a:b]} for name, a, b in zip(found.names, places, places[1:]) if name in names}
        group = Group(group.ids, {name: group.counts[name] for name in names}, group.bits, group.round, group.roster)
        begun = {name: replies[name]["soft"] for name in names}
        return self.xclp.spread.run(server, group, S, begun, FOLDS * classes, SOFT)


def _kept(client: Client, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Keep in memory what takes long to compute, because later steps repeat the program."""
    if name not in client.memory:
        client.memory[name] = make()
    return client.memory[name]


def _united(said: Sequence[Mapping[str, Mapping[str, bytes]]]) -> dict[str, dict[str, bytes]]:
    """The names of all parties, column by column."""
    return {j: sealed_names.united(names.get(j, {}) for names in said) for j in sorted({j for names in said for j in names})}


def _hidden(columns: Sequence[table.Column]) -> tuple[table.Column, ...]:
    """Columns with digests of text values in the place of the values: a rare value may identify somebody."""
    return tuple(replace(c, values=tuple(sealed_names.digest(c.name, value) for value in c.values)) for c in columns)


def _listed(values: Mapping[str, Mapping[int, str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(found.values()) for name, found in values.items()}
