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
from grapevine.core import Client, Method, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.learn import bases
from grapevine.learn.labels import entropy_confidence
from grapevine.learn.schedules import T_MAX, cosine, first_stage, stage_of
from grapevine.learn.streams import UPDATE, most_steps, nothing, sample_by_labels, update
from grapevine.learn.training import outputs


@dataclass(frozen=True)
class NetworkLabels(Method):
    """FedAvg on true labels and on the labels that the model itself predicts."""

    name = "network"
    title = "FedAvg+network: the model's own pseudo-labels (Scott et al. 2023, section 4.2)"
    extra = "cosine rate in each of two stages, pseudo-labels in the second"
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

    def candidates(self, rounds: int) -> tuple[int, ...]:
        """The stage-1 model competes on validation."""
        return (first_stage(rounds, self.warmup),)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return most_steps(self, labelled, unlabelled)

    # ------------------------------------------------------------ client

    @step(reveals=dict(labels="how many rows are labelled"), like=dict(labels=COUNT))
    def hello(self, client: Client) -> dict:
        return dict(labels=len(client.data.labelled))

    @step(**UPDATE)
    def pretrain(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        """Stage 1: the labelled rows alone."""
        told = dict(weights=weights, control=control, lr=lr, round=round)
        return update(self, client, told, *nothing(len(client.data.unlabelled)))

    @step(**UPDATE)
    def train(self, client: Client, weights: dict, control: dict, lr: float, round: int) -> dict:
        """Line 7 with labels of this client's own making, and line 8."""
        labels, confidence = self.pseudo_labels(client, weights)
        client.judge(labels, (labels >= 0) & (confidence > 0), confidence=confidence)
        return update(self, client, dict(weights=weights, control=control, lr=lr, round=round), labels, confidence)

    def pseudo_labels(self, client: Client, weights: dict) -> tuple[Tensor, Tensor]:
        """Labels and confidences of the unlabelled rows: what the model says of them as they are."""
        model = client.model(weights).eval()
        p = outputs(lambda x: torch.softmax(model(x), 1), client.data.unlabelled, len(client.data.classes))
        return p.argmax(1), entropy_confidence(p)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        labels = {id: reply["labels"] for id, reply in server.ask(self.hello).items()}
        bases.check_labelled(self, labels)
        return dict(bases.first_state(server, self.base), round=0, labels=labels)

    def round(self, server: Server, state: dict) -> dict:
        stage, t, T = stage_of(server.rounds, first_stage(server.rounds, self.warmup), state["round"])
        labelled = {id for id, n in state["labels"].items() if n}
        among = labelled if stage == 1 or self.labelled_only else state["labels"]
        if among is labelled:
            chosen = server.sample(state["round"], labelled)
        else:
            chosen = sample_by_labels(server, state["round"], state["labels"], labelled)
        told = dict(weights=state["weights"], lr=cosine(self.lr, t, T_MAX * T), round=state["round"])
        replies = server.ask(self.pretrain if stage == 1 else self.train, each=bases.control(state, self.base, chosen), **told)
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
            return nothing(len(rest))
        model = client.model(weights).eval()
        V = np.concatenate([outputs(model.features, rows, 0).double().numpy() for rows in (own, rest)])
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
        found = client.memory.get("labels")
        return (found["labels"], found["confidence"]) if found else nothing(len(client.data.unlabelled))

    def round(self, server: Server, state: dict) -> dict:
        if state["round"] == first_stage(server.rounds, self.warmup):
            server.ask(self.label_once, weights=state["weights"])
        return super().round(server, state)
