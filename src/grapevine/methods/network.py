"""Three baselines of XCLP's section 4.2: FedAvg+network, FedAvg+perclientLP and FedSem+. They differ in one function.

Scott, Yeo, Lampert, TMLR 2023, section 4.2 and appendix A.2; FedSem: Albaseer, Ciftler, Abdallah, Al-Fuqaha: "Exploiting
Unlabeled Data in Smart Cities using Federated Edge Learning", IWCMC 2020, with the confidence weights that the former added
("FedSem+").

All follow Algorithm 2 of the XCLP paper with another line 7: the model's own predictions, propagation within one client, or the
predictions of the stage-1 model, made once. Confidence is 1 − entropy/log C of the softmax (for FedSem+ the public code takes it
of raw logits, which is no distribution; we do not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from grapevine import graph
from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.data.augment import Views
from grapevine.learn import bases, pseudo
from grapevine.learn.losses import entropy_confidence
from grapevine.learn.training import Adjust

UPDATE = dict(bases.UPDATE, n=bases.USED)


@dataclass(frozen=True)
class NetworkLabels(Method):
    """FedAvg on true labels and on the labels that the model itself predicts."""

    name = "network"
    title = "FedAvg+network: the model's own pseudo-labels (Scott et al. 2023, section 4.2)"
    seeks_labels = True
    labelled_only: ClassVar[bool] = False
    """True when only clients with labels are chosen in stage 2."""

    warmup: float = param(0.5, "", "share of the rounds in stage 1, on labelled rows alone", least=0, most=1)
    base: str = param("fedavg", "", "fedavg, fedprox or scaffold", choices=bases.BASES)
    mu: float = param(0.01, "μ", "proximal term, for base=fedprox", least=0)
    lr: float = param(0.1, "η", "first learning rate of each stage, cosine afterwards", above=0)
    epochs: int = param(5, "E", "passes per round", least=1)
    batch: int = param(50, "|B_L|", "most labelled rows in a batch; as many pseudo-labelled ones join them", least=1)
    weight_decay: float = param(2e-4, "", "L2 penalty", least=0)
    augment: bool = param(True, "", "weak views (translation, flip) in training")

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def first_stage(self, rounds: int) -> int:
        return pseudo.first_stage(rounds, self.warmup)

    def candidates(self, rounds: int) -> tuple[int, ...]:
        """The stage-1 model competes on validation."""
        return (self.first_stage(rounds),)

    # ------------------------------------------------------------ client

    @step(reveals=dict(labels="how many rows are labelled"), like=dict(labels=COUNT))
    def hello(self, client: Client) -> dict:
        return dict(labels=len(client.data.labelled))

    @step(reveals=UPDATE, like=bases.like)
    def pretrain(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        """Stage 1: the labelled rows alone."""
        nothing = torch.full((len(client.data.unlabelled),), -1)
        return self._update(client, weights, control, lr, round, nothing, torch.zeros(len(nothing)))

    @step(reveals=UPDATE, like=bases.like)
    def train(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        """Line 7 with labels of this client's own making, and line 8."""
        labels, confidence = self.pseudo_labels(client, weights)
        client.judge(labels, (labels >= 0) & (confidence > 0), confidence=confidence)
        return self._update(client, weights, control, lr, round, labels, confidence)

    def pseudo_labels(self, client: Client, weights: dict) -> tuple[Tensor, Tensor]:
        """Labels and confidences of the unlabelled rows: what the model says of them as they are."""
        model = client.model(weights).eval()
        views, pieces = Views(client.data.unlabelled), [torch.empty(0, len(client.data.classes))]
        with torch.no_grad():
            for at in torch.arange(len(client.data.unlabelled)).split(500) if len(client.data.unlabelled) else ():
                pieces.append(torch.softmax(model(views.plain(at)), 1).cpu())
        p = torch.cat(pieces)
        return p.argmax(1), entropy_confidence(p)

    def _update(self, client: Client, weights: dict, control: dict, lr: float, round: int, labels: Tensor,
                confidence: Tensor) -> dict:  # fmt: skip
        data = client.data

        def descend(model: Network, adjust: Adjust | None) -> int:
            return pseudo.two_streams(model, data.labelled, data.unlabelled, labels, confidence, lr, self.epochs,
                                      client.rng("train", round), self.batch, self.weight_decay, augment=self.augment,
                                      adjust=adjust)  # fmt: skip

        n = len(data.labelled) + int(((labels >= 0) & (confidence > 0)).sum())
        return bases.client_update(client, self.base, weights, control, round, lr, self.mu, descend, n)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        hello = server.ask(self.hello)
        bases.check_labelled(self, {id: reply["labels"] for id, reply in hello.items()})
        return dict(bases.first_state(server, self.base), round=0, labels={id: reply["labels"] for id, reply in hello.items()})

    def round(self, server: Server, state: dict) -> dict:
        stage, t, T = pseudo.stage_of(server, self.first_stage(server.rounds), state["round"])
        labelled = {id for id, n in state["labels"].items() if n}
        if stage == 1 or self.labelled_only:
            chosen = server.sample(state["round"], labelled)
        else:
            chosen = pseudo.sample_by_labels(server, state["round"], state["labels"], labelled)
        told = dict(weights=state["weights"], lr=pseudo.cosine(self.lr, t, T), round=state["round"])
        each = bases.control(state, self.base, chosen)
        replies = server.ask(self.pretrain if stage == 1 else self.train, each=each, **told)
        among = labelled if stage == 1 or self.labelled_only else state["labels"]
        new = bases.server_update(server, self.base, state, replies, by=None, among=among)
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(state, **new, round=state["round"] + 1)


@dataclass(frozen=True)
class PerClientLP(NetworkLabels):
    """FedAvg on true labels and on labels that each client propagates among its own rows, by exact cosines."""

    name = "perclient-lp"
    title = "FedAvg+perclientLP: labels propagated within each client (Scott et al. 2023, section 4.2)"
    labelled_only = True

    alpha: float = param(0.99, "α", "how far labels spread", least=0, below=1)
    neighbours: int = param(10, "k", "neighbours of a row in the graph", least=1)

    def pseudo_labels(self, client: Client, weights: dict) -> tuple[Tensor, Tensor]:
        own, rest = client.data.labelled, client.data.unlabelled
        if not len(own) or not len(rest):
            return torch.full((len(rest),), -1), torch.zeros(len(rest))
        model = client.model(weights).eval()
        with torch.no_grad():
            pieces = [model.features(x).cpu().double().numpy() for rows in (own, rest) for x, _ in rows.batches(500)]
        V = np.concatenate(pieces)
        y = np.concatenate([own.y.numpy(), np.full(len(rest), -1)])
        index, similarity = graph.nearest_cosine(V, self.neighbours, threads=1)
        W = graph.graph(index, similarity, len(V))
        solution = graph.solve(W, graph.label_matrix(y, len(client.data.classes)), self.alpha, threads=1)
        # All cosines; and of every iteration of conjugate gradients a product with W and five with vectors, for every class.
        client.meter.add(2 * len(V) * V.size + solution.iterations * solution.Z.shape[1] * 2 * (W.nnz + 5 * len(V)))
        labels, confidence = graph.labels_and_confidence(solution.Z[len(own) :])
        return torch.from_numpy(labels), torch.from_numpy(confidence)


@dataclass(frozen=True)
class FedSem(NetworkLabels):
    """FedSem+: the stage-1 model labels every row once; stage 2 trains on these labels, weighted by confidence."""

    name = "fedsem"
    title = "FedSem+: labelled once by the stage-1 model (Albaseer et al. 2020; Scott et al. 2023)"

    @step
    def label_once(self, client: Client, weights: dict) -> dict:
        labels, confidence = super().pseudo_labels(client, weights)
        client.memory["labels"] = dict(labels=labels, confidence=confidence)
        return {}

    def pseudo_labels(self, client: Client, weights: dict) -> tuple[Tensor, Tensor]:
        """What `label_once` found; a client that missed it has no pseudo-labels."""
        n = len(client.data.unlabelled)
        found = client.memory.get("labels", dict(labels=torch.full((n,), -1), confidence=torch.zeros(n)))
        return found["labels"], found["confidence"]

    def round(self, server: Server, state: dict) -> dict:
        stage, t, _ = pseudo.stage_of(server, self.first_stage(server.rounds), state["round"])
        if stage == 2 and t == 0:
            server.ask(self.label_once, weights=state["weights"])
        return super().round(server, state)
