"""FedAvg+XCLP. Scott, Yeo, Lampert: "Cross-client Label Propagation for Transductive and Semi-Supervised Federated Learning",
TMLR 2023, Algorithm 2: in every round XCLP labels the rows of the chosen clients, which then train on them.

Exchanges of a round after set-up: `embed` (weights down, hashes and sealed labels up) and `train`; with mlwe or paillier two
more, with ot four more. Hyperplanes come from the run's seed (a simulation must
repeat); masks and keys come from the operating system.

Line 1 is a field: `init=supervised` is a first stage on labelled rows alone, as in the authors' runs (appendix A.2);
`init=contrastive` a first stage of SimCLR (Chen et al. 2020) on unlabelled rows, averaged as FedAvg does; `init=pretrained` takes
the weights of the run in `init_run`; `init=random` takes the network as it is built. The last two have no first stage.

The graph: P is any set in the paper. Clients that do not train in a round may be guests in its graph (`graph_clients`), with
their labelled rows or with all of them (`guests`). How well XCLP does depends on how many labels the graph holds, so by default
as many clients are guests as are affordable: the graph has at most four times the clients that train (which bounds the bytes sent
down) and at most twice their rows (which bounds the pairs of rows at four times theirs). `graph_clients` = --per-round is the
authors' way: those that train, nobody else.

Departures: the driver keeps the best state on validation, so the first stage competes (the authors choose among the rounds of
the second). Schedules are relative to the stage. `lr` is one number (the authors take 0.05 for fewer than 20 labels a batch, 0.1
for fewer than 50 and 0.3 for 50 on CIFAR-10, 0.5 on CIFAR-100, 1.0 on Mini-ImageNet). A client without labels takes batches of
2·batch, and the last batch of a pass may be smaller. `mlp` and `cnn` do not divide features by their length before the last
layer, as the authors' networks do; hashes see directions alone, so the graph does not change. A round with fewer than two
clients changes nothing.
`preset=paper` is the paper's propagation: α = 0.99, and all labels weigh the same. The default has α = 0.9, which was best on
validation on all four data sets of benchmarks/xclp_default.py, and divides labels by how many their class has, as the authors'
code does; that changes nothing where classes have equally many labels, and did not lose where they have not. `preset=code` has
α = 0.99, that division and the rest of the released code: augmented rows in the graph (if `augment`), similarities cubed, weights
divided by their maximum over a client's rows, labelled ones too (the authors' over all rows of the sampled clients, which nobody
here sees; a client without labels divides by 1, the most there can be), class weights in the loss. Counts are of all clients'
true labels, summed once; the authors take those of the sampled clients, with pseudo-labels for the class weights, in every
round, which would show every client's by subtraction.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from grapevine import graph
from grapevine.core import Client, Id, Method, Mistake, Server, counted, param, party_name, step
from grapevine.core.reply import Form, form_of
from grapevine.crypto import session, together
from grapevine.crypto.hamming import Group, Psm, SecureHamming, protocol
from grapevine.crypto.session import TooFew
from grapevine.crypto.spread import Columns, Sealed
from grapevine.crypto.spread import protocol as spread_protocol
from grapevine.crypto.together import Together
from grapevine.data.augment import Views
from grapevine.learn import average, bases, initial, passes, streams, train
from grapevine.learn.schedules import T_MAX, cosine, first_stage, stage_of
from grapevine.learn.streams import nothing, sample_by_labels
from grapevine.learn.training import descent, outputs
from grapevine.methods.one_shot import LABELS, MOST_ROWS, ROWS
from grapevine.methods.xclp import REVEALS, CrossClientPropagation

INITS = ("supervised", "contrastive", "pretrained", "random")
KEYS: dict[str, Form] = dict(offer=session.OFFER_FORM, rows=range(MOST_ROWS), labels=range(MOST_ROWS))
GUESTS = ("labels", "all")
PRESETS = ("default", "paper", "code")
MOST_CLIENTS, MOST_ROWS_TIMES = 4, 2  # of a graph, times those that train
COUNTS = "to the server nothing: padded; the clients open how many labels each class has, where labels are balanced"


@dataclass(frozen=True)
class XCLP(Method):
    """FedAvg on true labels and on labels that XCLP propagates among the clients of each round."""

    name = "xclp"
    title = "FedAvg+XCLP: labels propagated across clients (Scott et al. 2023, Algorithm 2)"
    extra = "cosine rate in each of two stages, pseudo-labels in the second"
    seeks_labels = True
    agrees = True

    alpha: float = param(0.0, "α", "how far labels spread; 0: 0.9, or 0.99 with preset=paper and code", least=0, below=1)
    neighbours: int = param(10, "k", "neighbours of a row in the graph", least=1)
    bits: int = param(4096, "L", "bits of a hash", least=1, most=2**15 - 1)
    hamming: SecureHamming = param(Psm(), "", "secure Hamming protocol: psm, mlwe, paillier, ot or plain", named=protocol)
    spread: Sealed | Columns = param(
        Sealed(), "", "how labels reach their rows: private, or paper (leaks)", named=spread_protocol
    )
    preset: str = param(
        "default", "", "default: a class's labels weigh 1 / their number; paper: 1; code: all that the released code does",
        choices=PRESETS,
    )  # fmt: skip
    graph_clients: int = param(0, "|P|", "clients in the graph; 0: as many as are affordable", least=0)
    guests: str = param(
        "labels", "", "rows in the graph of clients that do not train: labels (labelled ones), or all", choices=GUESTS
    )
    init: str = param("supervised", "", "first weights: supervised, contrastive, pretrained or random", choices=INITS)
    init_run: str = param("", "", "with init=pretrained: the folder of a finished run with the same model")
    warmup: float = param(0.5, "", "with init=supervised or contrastive: share of the rounds in stage 1", least=0, most=1)
    temperature: float = param(0.5, "τ", "of the contrastive loss, with init=contrastive", above=0)
    base: str = param("fedavg", "", "fedavg, fedprox or scaffold", choices=bases.BASES)
    mu: float = param(0.01, "μ", "proximal term, for base=fedprox", least=0)
    lr: float = param(0.1, "η", "first learning rate of each stage, cosine afterwards", above=0)
    epochs: int = param(5, "E", "passes per round", least=1)
    batch: int = param(50, "|B_L|", "most labelled rows in a batch; as many pseudo-labelled ones join them", least=1)
    weight_decay: float = param(2e-4, "", "L2 penalty", least=0)
    augment: bool = param(True, "", "weak views (translation, flip) in training")
    sums: Together = Together()

    @cached_property
    def xclp(self) -> CrossClientPropagation:
        """Algorithm 1, whose settings are fields of this method."""
        alpha = self.alpha or (0.9 if self.preset == "default" else 0.99)
        preset = "code" if self.preset == "code" else "paper"
        return CrossClientPropagation(self.hamming, self.bits, self.neighbours, alpha, preset, True, self.spread)

    @property
    def balanced(self) -> bool:
        """Whether labels are divided by the number that their class has."""
        return self.preset != "paper"

    def first_stage(self, rounds: int) -> int:
        """The rounds before the first XCLP: none if the first weights need no training."""
        return first_stage(rounds, self.warmup) if self.init in ("supervised", "contrastive") else 0

    def candidates(self, rounds: int) -> tuple[int, ...]:
        """The stage-1 model competes on validation."""
        return (self.first_stage(rounds),)

    def check(self, server: Server) -> None:
        if not isinstance(self.hamming, SecureHamming):
            raise Mistake(
                f"xclp: hamming={self.hamming!r} is not a protocol: from grapevine.crypto.hamming import protocol, and use "
                "hamming=protocol('psm')."
            )
        if self.init == "pretrained" and not self.init_run:
            raise Mistake("xclp: init=pretrained needs init_run=FOLDER, the folder of a finished run with the same model.")
        if self.init_run and self.init != "pretrained":
            raise Mistake(f"xclp: init_run={self.init_run} is used only with init=pretrained: set both or neither.")
        bases.check_features_dim(self, server)
        self.first_weights(server)
        bases.note_unused_labels(self, server)
        if self.graph_clients and not server.per_round <= self.graph_clients <= len(server.clients):
            allowed = f"0, or {server.per_round} (--per-round) to {len(server.clients)} (all clients)"
            raise Mistake(f"xclp: graph_clients={self.graph_clients} is out of range: use {allowed}.")
        if (self.graph_clients or len(server.clients)) < 2:
            raise Mistake("xclp: labels spread between clients, so use --per-round 2 or more.")
        if self.first_stage(server.rounds) >= server.rounds:
            raise Mistake(
                f"xclp: with warmup={self.warmup:g} all of --rounds {server.rounds} are in stage 1, which propagates no labels: "
                "use more rounds, or --set warmup=0."
            )

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return streams.most_steps(self, labelled, unlabelled)

    # ------------------------------------------------------------ client

    @step(reveals=dict(offer=session.OFFER, rows=ROWS, labels=LABELS), like=KEYS)
    def keys(self, client: Client, session_id: str) -> dict:
        """Algorithm 1, line 1, once for the whole run."""
        labels, others = len(client.data.labelled), len(client.data.unlabelled)
        return dict(offer=session.offer(client, session_id), rows=labels + others, labels=labels)

    @step(reveals=dict(letters=session.LETTERS))
    def meet(self, client: Client, offers: dict) -> dict:
        return dict(letters=session.meet(client, offers))

    @step(reveals=dict(together.REVEALS, share=COUNTS), like=together.FORM)
    def learn_seed(self, client: Client, letters: dict, parties: dict) -> dict:
        """The seed; for balanced labels this client's part of the label counts, which the clients open themselves. They are
        summed this once, over all clients: sums over each round's would give away every client's by subtraction."""
        session.learn_seed(client, letters)
        counts = torch.bincount(client.data.labelled.y, minlength=len(client.data.classes)).numpy()
        return together.share(client, 0, 0, parties, counts) if self.balanced else {}

    @step
    def count(self, client: Client, total: np.ndarray, tag: bytes, number: int, attempt: int, parties: dict) -> dict:
        client.memory["label_counts"] = np.rint(together.opened(client, number, attempt, parties, total, tag))
        return {}

    @step(
        reveals=dict(weights=bases.MODEL, projector=bases.MODEL, n="1, or 0 if this party has too few rows to train on"),
        like=dict(projector="projector", n=range(2)), averaged=dict(weights="n", projector="n"),
    )  # fmt: skip
    def contrast(self, client: Client, weights: dict, projector: dict, lr: float, round: int) -> dict:
        """Stage 1 with init=contrastive: the features and SimCLR's projector, on the unlabelled rows."""
        model, rows = client.model(weights), client.data.unlabelled
        head = initial.projector(model.features_dim or 0, client.rng("projector"))
        head.load_state_dict(projector)
        counted(head, client.meter).to(rows.device)
        rng, trained = client.rng("contrast", round), [*model.features.parameters(), *head.parameters()]
        optimiser = descent(trained, lr, 0.9, weight_decay=self.weight_decay)
        loss = initial.simclr(model, head, rows, rng, self.temperature)
        steps = train(model, passes(len(rows), 2 * self.batch, self.epochs, rng), loss, optimiser, rng)
        features = {name: w for name, w in model.state().items() if name.startswith("features.")}
        return dict(weights=features, projector={name: w.cpu() for name, w in head.state_dict().items()}, n=int(steps > 0))

    @step(**streams.UPDATE)
    def pretrain(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        """Stage 1 with init=supervised: ClientUpdate on the labelled rows alone."""
        told = dict(weights=weights, control=control, lr=lr, round=round)
        return self.update(client, told, *nothing(len(client.data.unlabelled)))

    @step(reveals=dict(prelude=lambda method: method.hamming.preludes))
    def prelude(self, client: Client, round: int) -> dict:
        """Only for protocols that need fresh base transfers for every H (ot)."""
        return dict(prelude=self.hamming.prelude(client, round))

    @step(reveals=dict(prelude=lambda method: method.hamming.preludes))
    def answer_prelude(self, client: Client, preludes: dict, round: int) -> dict:
        return dict(prelude=self.hamming.answer_prelude(client, preludes, round))

    @step(reveals=REVEALS)
    def embed(
        self, client: Client, weights: dict, round: int, counts: dict, roster: dict, preludes: dict, labels_alone: bool
    ) -> dict:
        """Line 6: V ← f_φ(X), and the first part of line 7, XCLP: hashes, and labels sealed. A guest may bring labels alone."""
        group = Group({}, counts, self.bits, round, tuple(roster))
        Y = graph.label_matrix(client.data.labelled.y.numpy(), len(client.data.classes))
        V = self.features(client, weights, round, labels_alone)
        return self.xclp.share(client, V, np.arange(len(V)) < len(Y), Y, group, preludes)

    @step(**streams.UPDATE)
    def train(self, client: Client, weights: dict, control: dict, lr: float, round: int, rows: Any, parties: dict,
              attempt: int) -> dict:  # fmt: skip
        """Line 7's outcome, and line 8: θ^(j) ← ClientUpdate(X, ŷ, ω; θ)."""
        self._receive(client, rows, parties, round, attempt)
        found = client.memory["pseudo"]
        labels, confidence = found["labels"], found["confidence"]
        client.judge(labels, (labels >= 0) & (confidence > 0), confidence=confidence)
        told = dict(weights=weights, control=control, lr=lr, round=round)
        return self.update(client, told, labels, confidence, self.class_weight(client))

    def update(self, client: Client, told: dict, *labels: Any) -> dict:
        """ClientUpdate in two streams: labels, confidences, and perhaps weights of the classes."""
        return streams.update(self, client, told, *labels)

    def class_weight(self, client: Client) -> torch.Tensor | None:
        """preset=code: (N/C) / count_c of all clients' true labels."""
        if self.preset != "code":
            return None
        counts = torch.from_numpy(client.memory["label_counts"]).float()
        return counts.sum() / len(counts) / counts.clamp(min=1)

    def _receive(self, client: Client, rows: Any, parties: dict, round: int, attempt: int) -> None:
        """Algorithm 1, lines 14–16. Labelled rows keep their labels; the others get ŷ and ω."""
        counts, own = client.memory["label_counts"] if self.balanced else None, len(client.data.labelled)
        Z = self.xclp.receive(client, rows, parties, round, attempt, counts)
        labels, confidence = self.xclp.labels(Z, len(parties))
        if self.preset == "code" and own and confidence.max() > 0:
            confidence = confidence / confidence.max()
        labels, confidence = labels[own:], confidence[own:]
        client.memory["pseudo"] = dict(labels=torch.from_numpy(labels), confidence=torch.from_numpy(confidence))

    def features(self, client: Client, weights: dict, round: int, labels_alone: bool = False) -> np.ndarray:
        """Features in evaluation mode: with preset=code of the views that training sees, as in the authors' code, otherwise of
        the rows."""
        model, draw = client.model(weights).eval(), client.rng("embed", round)
        both = [Views(rows) for rows in (client.data.labelled, client.data.unlabelled)[: 1 if labels_alone else 2]]
        views = [partial(v.weak, rng=draw) if self.preset == "code" and self.augment else v.plain for v in both]
        found = [outputs(model.features, v.rows, model.features_dim or 0, view) for v, view in zip(both, views)]
        return torch.cat(found).double().numpy()

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        """Line 1, and the clients' keys and seed: the server relays them and learns neither."""
        said = server.ask(self.keys, session_id=f"seed {server.seed}")
        offers = {name: reply["offer"] for name, reply in session.named(said, "propagation").items()}
        met = server.ask(self.meet, to=said, offers=offers, form=lambda id: dict(letters=session.letters_form(offers, id)))
        ids = {party_name(id): id for id in met}
        letters = session.relayed(session.named(met, "propagation"), ids)
        ready = server.ask(self.learn_seed, each=letters, parties=session.numbered(sorted(ids)))
        if self.balanced:
            told = self.sums.once(server, ids, session.named(ready, "propagation"), ids, 0)
            ready = server.ask(self.count, to=[ids[name] for name in told["parties"]], **told)
        labels = {id: said[id]["labels"] for id in ready}
        bases.check_labelled(self, labels)
        first = dict(bases.first_state(server, self.base), weights=self.first_weights(server), projector={})
        if self.init == "contrastive":
            first["projector"] = initial.projector(server.model().features_dim or 0, server.rng("projector")).state_dict()
        return dict(first, round=0, rows={id: said[id]["rows"] for id in ready}, labels=labels)

    def first_weights(self, server: Server) -> dict:
        """InitializeModelParameters, as far as it needs no client."""
        weights = server.model().state()
        return initial.pretrained(weights, self.init_run, server.classes) if self.init == "pretrained" else weights

    def round(self, server: Server, state: dict) -> dict:
        stage, t, T = stage_of(server.rounds, self.first_stage(server.rounds), state["round"])
        lr = cosine(self.lr, t, T_MAX * T)
        if stage == 1 and self.init == "contrastive":
            return self.contrast_round(server, state, lr)
        labelled = {id for id, n in state["labels"].items() if n}
        among = labelled if stage == 1 else state["rows"]
        if stage == 1:
            each = bases.control(state, self.base, server.sample(state["round"], labelled))
            replies = server.ask(self.pretrain, each=each, weights=state["weights"], lr=lr, round=state["round"])
        else:
            try:
                replies = self.propagate_and_train(server, state, labelled, lr)
            except TooFew as few:  # the next round may have more
                logging.getLogger("grapevine").warning(f"xclp: round {state['round'] + 1} changes nothing, since {few}")
                return dict(state, round=state["round"] + 1)
        new = bases.server_update(server, self.base, state, replies, by=None, among=among)  # line 10
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(state, **new, round=state["round"] + 1)

    def contrast_round(self, server: Server, state: dict, lr: float) -> dict:
        """FedAvg on SimCLR's loss; the projector is averaged with the features and plays no part afterwards."""
        told = dict(weights=state["weights"], projector=state["projector"], lr=lr, round=state["round"])
        form = dict(weights=form_of({name: w for name, w in state["weights"].items() if name.startswith("features.")}))
        replies = server.ask(self.contrast, to=server.sample(state["round"], state["rows"]), form=lambda id: form, **told)
        features = average(replies, otherwise={})
        projector = average(replies, "projector", otherwise=state["projector"])
        bases.note_diversity(server, bases.moves(replies, {name: state["weights"][name] for name in features}))
        return dict(state, weights=state["weights"] | features, projector=projector, round=state["round"] + 1)

    def propagate_and_train(self, server: Server, state: dict, labelled: set[Id], lr: float) -> dict[Id, dict]:
        """Lines 3–9 of a round of stage 2."""
        round = state["round"]
        P = sample_by_labels(server, round, state["rows"], labelled)  # line 3
        there = self.present(server, state, P)
        G = sorted(there)
        ids = {party_name(id): id for id in G}
        counts = {name: there[id] for name, id in ids.items()}
        group = Group(ids, counts, self.bits, round, tuple(sorted(party_name(id) for id in state["rows"])))
        told = dict(weights=state["weights"], round=round, preludes=self._preludes(server, G, round))
        everybody: dict[Id, dict] = {id: dict(labels_alone=self.guests == "labels" and id not in P) for id in G}
        spread = self.xclp.run(server, group, self.embed, everybody, len(server.classes), **told).spread  # lines 4–7
        rows = {ids[name]: dict(rows=spread.rows[name]) for name in spread.parties if ids[name] in P}
        control = bases.control(state, self.base, rows)
        each = {id: rows[id] | control[id] for id in rows}
        return server.ask(self.train, each=each, weights=state["weights"], lr=lr, **spread.told)

    def present(self, server: Server, state: dict, P: list[Id]) -> dict[Id, int]:
        """Who is in a round's graph with how many rows: those that train, and guests."""
        there = {id: state["rows"][id] for id in P}
        size = {id: state["labels" if self.guests == "labels" else "rows"][id] for id in state["rows"] if id not in P}
        size = {id: n for id, n in size.items() if n}
        if self.graph_clients:
            most = self.graph_clients - len(P)
        else:  # so many that even the largest of them would be affordable
            room = (MOST_ROWS_TIMES - 1) * sum(there.values())
            fit = sum(total <= room for total in accumulate(sorted(size.values(), reverse=True)))
            most = min((MOST_CLIENTS - 1) * len(P), fit)
        guests = server.sample(state["round"], size, min(most, len(size)), "graph") if most and size else []
        return there | {id: size[id] for id in guests}

    def _preludes(self, server: Server, G: list[Id], round: int) -> dict[str, dict]:
        if not self.hamming.has_prelude:
            return {}
        offers = {party_name(id): reply["prelude"] for id, reply in server.ask(self.prelude, to=G, round=round).items()}
        answers = server.ask(self.answer_prelude, to=G, preludes=offers, round=round)
        return {party_name(id): reply["prelude"] for id, reply in answers.items()}
