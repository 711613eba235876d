"""FedDB. Zhu, Liu, Wu, Tang, Tang, Niu, Su: "Estimating before Debiasing: A Bayesian Approach to Detaching Prior Bias in
Federated Semi-Supervised Learning", IJCAI 2024.

A client's mean answer over all its rows (APP-U) estimates the prior that the model has learned from skewed data. Every answer is
divided by it before it becomes a pseudo-label, and the server weighs the clients so that the mean of their APP-U comes near to
the uniform distribution.

    client   p̄ = mean p(weak view);  p ∝ p / p̄;  rows with max p ≥ τ are the fix set
             E epochs of H(y, p(weak)) + H(label, p(strong));  p̄ ← ½ p̄ + ½ mean p(weak) of each batch
    server   w = weights(p̄_1 … p̄_M);  θ ← θ − v,  v ← β_g v + θ − Σ w_m θ_m

The weights: `aggregate=code` takes the authors' 100 steps of gradient descent, each followed by a softmax, which never gets far
from equal weights; `exact` is the minimum of ‖Σ w_m p̄_m − uniform‖² over all weights.

Departures: a class that the model gives to no row at all divides by the smallest positive number. Momentum of SGD is forgotten
between rounds. Normalisation is the model's own. A client without a label and without a sure row is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.reply import Array
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import alternate, average, bases
from grapevine.learn.losses import cross_entropy
from grapevine.learn.pseudo import debiased, without_labels
from grapevine.learn.schedules import cosine
from grapevine.learn.streams import endless
from grapevine.learn.training import outputs, passes, steps_of

PRIOR = "the model's mean answer over this party's rows: an estimate of its shares of classes"
STEPS, DECAY = 100, 0.9  # of the authors' weights: gradient steps, and their weight decay
STRIDE = 1.9  # Nesterov's first step with momentum 0.9: every step of theirs begins a new optimiser


@dataclass(frozen=True)
class FedDB(Method):
    """Pseudo-labels divided by the model's mean answer, and clients weighed until those answers are balanced."""

    name = "feddb"
    title = "FedDB: the learned prior taken out of pseudo-labels and of the average (Zhu et al. 2024)"
    extra = "cosine rate, strong views of sure rows"

    threshold: float = param(0.95, "τ", "least debiased probability of a pseudo-label", least=0, most=1)
    aggregate: str = param("code", "", "weights of the clients", choices=("code", "exact", "uniform"))
    global_momentum: float = param(0.5, "β_g", "momentum of the server's averaged step", least=0, most=1)
    lr: float = param(0.03, "η", "first learning rate, half a cosine over all rounds", above=0)
    momentum: float = param(0.9, "β_l", "Nesterov momentum of SGD", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    clip: float = param(1.0, "", "longest gradient", above=0)
    epochs: int = param(5, "E", "passes over the fix set per round, or over the labels if it is empty", least=1)
    batch: int = param(0, "B", "labelled rows in a batch, and sure rows; 0: all of them", least=0)

    def individual(self) -> str:
        return "the server weighs each client by its own class shares"

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def spent(self, at_server: int) -> dict[str, Any]:
        return super().spent(at_server) | dict(batch=self.batch or "of all rows")

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        n = labelled + unlabelled
        return steps_of(n, self.batch or max(n, 1), self.epochs)

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(weights=bases.MODEL, prior=PRIOR, n="1, or 0 if this party has no label and is sure of nothing",
                     qualified=alternate.QUALIFIED),
        like=dict(weights="weights", n=range(2)),
    )  # fmt: skip
    def train(self, client: Client, weights: dict, lr: float, round: int) -> dict:
        data, rows, draw = client.data, without_labels(client.data), client.rng("train", round)
        model, views = client.model(weights).eval(), Views(rows)
        p = outputs(model, rows, len(data.classes), lambda at: views.weak(at, draw)).softmax(-1)
        prior = p.mean(0) if len(p) else torch.zeros(len(data.classes))
        confidence, labels = debiased(p, prior).max(-1)
        sure, U = confidence >= self.threshold, len(data.unlabelled)
        client.judge(labels[:U], sure[:U], confidence=confidence[:U])
        fix = torch.nonzero(sure).flatten()
        if not len(fix) and not len(data.labelled):
            return dict(n=0, qualified=0)
        loss = DebiasedLoss(model, data.labelled, rows, labels, prior, draw)
        alternate.descend(self, model, loss.batches(fix, self.batch, self.epochs), loss, lr, draw)
        return dict(weights=model.state(), prior=loss.prior, n=1, qualified=len(fix))

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(weights=server.model().state(), velocity={}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, velocity = state["round"], state["weights"], state["velocity"]
        form = dict(prior=Array("float32", (len(server.classes),)))
        replies = server.ask(self.train, to=server.sample(t), form=lambda id: form,
                             weights=weights, lr=cosine(self.lr, t, server.rounds), round=t)  # fmt: skip
        alternate.note_qualified(server, replies)
        bases.note_diversity(server, bases.moves(replies, weights))
        used = {id: reply for id, reply in replies.items() if reply["n"]}
        if used:
            share = client_weights(torch.stack([reply["prior"] for reply in used.values()]), self.aggregate)
            weighed = {id: dict(weights=reply["weights"], share=w) for (id, reply), w in zip(used.items(), share.tolist())}
            mean = average(weighed, by="share")
            weights, velocity = alternate.with_momentum(server, weights, velocity, mean, self.global_momentum)
        return dict(weights=weights, velocity=velocity, round=t + 1)


@dataclass
class DebiasedLoss:
    """H(y, p(weak)) of labelled rows + H(label, p(strong)) of the fix set; keeps p̄ as it moves with each batch."""

    model: Network
    labelled: Rows
    rows: Rows
    labels: Tensor
    prior: Tensor
    rng: torch.Generator

    def batches(self, fix: Tensor, batch: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        truths = endless(len(self.labelled), batch or max(len(self.labelled), 1), self.rng)
        n = len(fix) or len(self.labelled)
        for at in passes(n, batch or n, epochs, self.rng):
            yield next(truths), fix[at] if len(fix) else fix

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        (a, b), own, views, labels = batch, Views(self.labelled), Views(self.rows), self.labels.to(self.rows.device)
        loss = torch.zeros((), device=self.rows.device)
        if len(a):
            loss = loss + cross_entropy(self.model(own.weak(a, self.rng)), self.labelled.y[a].to(self.labelled.device))
        if len(b):
            with torch.no_grad():
                self.prior = (self.prior + self.model(views.weak(b, self.rng)).softmax(-1).mean(0).cpu()) / 2
            loss = loss + cross_entropy(self.model(views.strong(b, self.rng)), labels[b])
        return loss


def client_weights(priors: Tensor, aggregate: str) -> Tensor:
    """Weights of the clients (M) from their priors (M, C): those that bring Σ w_m p̄_m near to the uniform distribution."""
    M, C = priors.shape
    P = priors.double()
    w = torch.full((M,), 1 / M, dtype=torch.float64)
    if aggregate == "exact":
        # The sum of the weights is one more equation, weighted so heavily that it nearly holds; then it is made exact.
        from scipy.optimize import nnls  # here, because it takes 30 MB, and all parties import the methods

        w = torch.from_numpy(nnls(np.vstack([P.T.numpy(), np.full(M, 1e4)]), np.append(np.full(C, 1 / C), 1e4))[0])
        return w / w.sum()
    for _ in range(STEPS if aggregate == "code" else 0):
        gradient = 2 / C * P @ (P.T @ w - 1 / C)
        w = torch.softmax(w - STRIDE * (gradient + DECAY * w), 0)
    return w
