"""CBAFed. Li, Li, Wang: "Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning", CVPR 2023.

Some clients have labels, the others have none. After a warm-up on labels alone, every client labels its rows once a round with
the global model, so that labels do not drift while it trains (fixed pseudo-labels).

    thresholds    τ_c = q_c + 0.84 − std(q), at most 0.95; q: each class's share of all labels and pseudo-labels of the last round
                  a row is used if its likeliest class c has p_c > τ_c
    rare classes  q_c < 0.03: a row that is not used gets its second-best class, if that is a rare one
    residual      θ ← a · θ of the last time + (1 − a) · θ
                  at a client with labels, within a round: kept after epoch 1, averaged after epochs 6, 11, …
                  at the server: kept at the end of the warm-up, averaged after rounds 6, 11, … of the rest

A round of five epochs or fewer therefore has no average at the clients: 11 are the default, as in the authors' code.

Departures: in the paper a client has labels for all its rows or for none; one that has both trains on both streams together
(`learn.streams`), and then averages its weights as one with labels does. The warm-up is a share of the rounds, and clients count
their epochs anew in each; the authors train their one client with labels for 501 epochs on end. Counts of labels and
pseudo-labels per class are sent in the clear. Momentum is forgotten between rounds, all clients take the same number of epochs
(theirs: 11 with labels, 1 without), and views are weak ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array
from grapevine.learn import Weights, average, bases, clip, train
from grapevine.learn.pseudo import class_thresholds, second_choices, shares
from grapevine.learn.schedules import first_stage, stage_of
from grapevine.learn.streams import TwoStreams, most_steps, nothing
from grapevine.learn.training import descent, outputs

COUNTS = "how many labels and pseudo-labels this party has of each class"


@dataclass(frozen=True)
class CBAFed(Method):
    """Thresholds that rise with a class's share of the labels, second choices for rare classes, averages with older weights."""

    name = "cbafed"
    title = "CBAFed: class-balanced thresholds and residual weights (Li et al. 2023)"
    extra = "pseudo-labels after a warm-up, averages with older weights"

    base: float = param(0.84, "t", "threshold of a class whose share is std(q)", least=0, most=1)
    most: float = param(0.95, "", "highest threshold", least=0, most=1)
    rare: float = param(0.03, "", "share under which a class takes second choices; 0: none does", least=0, most=1)
    warmup: float = param(0.5, "", "share of the rounds on labels alone", least=0, most=1)
    residual: int = param(
        5,
        "",
        "average with older weights every so many epochs (clients) or rounds after the warm-up (server); 0: never",
        least=0,
    )
    kept: float = param(0.8, "", "weight of the older weights at a client with labels", least=0, most=1)
    kept_at_server: float = param(0.5, "", "weight of the older weights at the server", least=0, most=1)
    lr: float = param(0.03, "η", "learning rate", above=0)
    momentum: float = param(0.9, "", "momentum of SGD", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    clip: float = param(5.0, "", "longest gradient", above=0)
    epochs: int = param(11, "E", "passes over the pseudo-labelled rows per round, or over the labels", least=1)
    batch: int = param(64, "B", "labelled rows in a batch, and pseudo-labelled ones", least=1)

    def individual(self) -> str:
        return "class counts are summed over each round's clients, and would give away each client's by subtraction"

    def check(self, server: Server) -> None:
        if self.most < self.base:  # all classes with a fair share would have the same threshold, and the first round another
            raise Mistake(f"cbafed: most={self.most:g} is below base={self.base:g}, which is the threshold of an average class: "
                          f"use most={self.base:g} or more, or a lower base.")  # fmt: skip
        bases.note_unused_labels(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return most_steps(self, labelled, unlabelled)

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n=bases.USED, counts=COUNTS), like=dict(weights="weights", n=COUNT))
    def train(self, client: Client, weights: dict, counts: Tensor, warm: bool, round: int) -> dict:
        data, rng, C = client.data, client.rng("train", round), len(client.data.classes)
        labels, weight = nothing(len(data.unlabelled))
        if not warm:
            logits = outputs(client.model(weights).eval(), data.unlabelled, C)
            labels = self.pseudo_labels(logits.softmax(-1), counts)
            weight = (labels >= 0).float()
            client.judge(labels)
        own = torch.bincount(torch.cat([data.labelled.y, labels[labels >= 0]]), minlength=C)
        n = int(own.sum())
        if not n:
            return dict(n=0, counts=own)
        return dict(weights=self._fit(client, weights, labels, weight, rng), n=n, counts=own)

    def pseudo_labels(self, p: Tensor, counts: Tensor) -> Tensor:
        """A class for every row, −1 for one that is not used."""
        if not len(p):
            return torch.empty(0, dtype=torch.int64)
        confidence, labels = p.max(-1)
        used = confidence > class_thresholds(counts, self.base, self.most)[labels]
        scarce = (shares(counts) < self.rare) & bool(counts.sum())
        return torch.where(used, labels, second_choices(p, used, scarce))

    def _fit(self, client: Client, weights: Weights, labels: Tensor, weight: Tensor, rng: torch.Generator) -> Weights:
        data, model = client.data, client.model(weights)
        loss = TwoStreams(model, data.labelled, data.unlabelled, labels, weight, rng)
        optimiser = descent(model.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay)
        older: Weights = {}
        for epoch in range(self.epochs):
            train(model, loss.batches(self.batch, 1), loss, optimiser, rng, clip(self.clip))
            if not len(data.labelled) or not self.residual or epoch % self.residual:
                continue
            if epoch:
                model.load(between(older, model.state(), self.kept))
            older = model.state()
        return model.state()

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        weights = server.model().state()
        return dict(weights=weights, older=weights, counts=torch.zeros(len(server.classes), dtype=torch.int64), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, older = state["round"], state["weights"], state["older"]
        stage, since, _ = stage_of(server.rounds, first_stage(server.rounds, self.warmup), t)
        form = dict(counts=Array("int64", (len(server.classes),), 2**40))
        replies = server.ask(self.train, to=server.sample(t), form=lambda id: form, weights=weights, counts=state["counts"],
                             warm=stage == 1, round=t)  # fmt: skip
        bases.note_diversity(server, bases.moves(replies, weights))
        weights = average(replies, otherwise=weights)
        if stage == 1 or t == 0:  # never the random first weights, without a warm-up either
            older = weights
        elif self.residual and since and since % self.residual == 0:
            weights = older = between(older, weights, self.kept_at_server)
        counts = sum((reply["counts"] for reply in replies.values()), torch.zeros_like(state["counts"]))
        return dict(weights=weights, older=older, counts=counts, round=t + 1)


def between(older: Weights, newer: Weights, kept: float) -> Weights:
    """kept · older + (1 − kept) · newer; whole numbers are the newer ones."""
    return {name: kept * older[name] + (1 - kept) * w if w.is_floating_point() else w for name, w in newer.items()}
