"""FedAnchor. Qiu, Gao, Sani, Pan, Zhao, Gusmao, Alibeigi, Iacob, Lane: "FedAnchor: Enhancing Federated Semi-Supervised
Learning with Label Contrastive Loss for Unlabeled Clients", 2024, Algorithm 1. The server's labelled rows are anchors in a
latent space; clients label their rows by the anchors they are near to.

Decisions where the paper is silent: SGD, batches and schedule are SemiFL's; the two server epochs are L_s on strong views,
then L_c on weak views; each of the pre-training's epochs is such a pair, since the first broadcast would come from an
untrained head otherwise; the contrastive loss moves backbone and anchor head (`head_only=true`: the head alone); mixup mixes
weak views; a client with an empty fix set is left out; the average is by the clients' numbers of rows. The batch of L_c must
hold two rows of a class, so it has a size of its own; its temperature is not given in the paper, 0.1 is what validation chose
against 0.5 in most of claim A1's settings.
Clients do not train the anchor head, so they do not send it back. `contrastive=false` is the ablation of table 3: no L_c, no
anchor head, similarities between feature vectors.
`compact=true` sends the mean direction of each class instead of all anchors: equation 3 averages cosines, which is the
cosine's numerator with the mean of the unit vectors, so pseudo-labels are the same up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grapevine.core import Client, Network, Server, param, step, wire
from grapevine.core.reply import COUNT, form_of
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import Weights, alternate, average, bases, passes
from grapevine.learn.alternate import Alternating, FixMix
from grapevine.learn.heads import TwoHeads
from grapevine.learn.labels import one_hot
from grapevine.learn.losses import label_contrastive
from grapevine.learn.schedules import cosine
from grapevine.learn.training import outputs

ROWS = "how many unlabelled rows this party has, used or not; 0 if none of them got a pseudo-label that is used"


@dataclass(frozen=True)
class FedAnchor(Alternating):
    """Pseudo-labels by the mean cosine to the server's anchors; a label contrastive loss shapes the latent space."""

    name = "fedanchor"
    title = "FedAnchor: pseudo-labels by cosine to the server's labelled anchors (Qiu et al. 2024)"
    extra = "cosine rate, at the server as many passes of the contrastive loss"

    threshold: float = param(0.6, "t", "a row is in the fix set if its best mean cosine is above; -1: always", least=-1, most=1)
    width: int = param(128, "", "dimensions of the latent space", least=1)
    contrastive: bool = param(True, "L_c", "train the label contrastive loss; false: feature vectors are compared")
    temperature: float = param(0.1, "τ", "of the label contrastive loss", least=0.003)
    per_class: bool = param(False, "", "denominator of l(c): pairs with class c only, not all across classes")
    head_only: bool = param(False, "", "the contrastive loss moves the anchor head, not the backbone")
    ensembles: int = param(0, "", "weak views whose similarities are averaged for a pseudo-label; 0: the row itself", least=0)
    compact: bool = param(False, "", "send a mean direction per class instead of every anchor")
    client_mixup: bool = param(True, "", "the mix loss at the clients")
    server_mixup: bool = param(False, "", "the mix loss at the server: FedAnchor (mix)")
    server_strong: bool = param(True, "", "L_s on strong views, as the paper; false: on weak ones, as SemiFL's server")
    mix: float = param(1.0, "b", "weight of the mix loss", least=0)
    beta: float = param(0.75, "a", "mixup's λ_mix is drawn from Beta(a, a)", above=0)
    pretrain: int = param(5, "", "passes over the anchors before the first round, of both losses", least=0)
    pretrain_lr: float = param(0.05, "", "learning rate of the pre-training", above=0)
    lr: float = param(0.03, "η", "first learning rate everywhere, half a cosine over all rounds", above=0)
    momentum: float = param(0.9, "", "Nesterov momentum, forgotten between rounds, at the server between epochs", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    clip: float = param(1.0, "", "longest gradient", above=0)
    epochs: int = param(5, "E", "passes over the fix set per round", least=1)
    batch: int = param(10, "", "batch size of the clients", least=1)
    server_epochs: int = param(1, "", "passes over the anchors per round, of each loss", least=0)
    server_batch: int = param(0, "", "batch size at the server; 0: 10, or 250 above 1000 anchors", least=0)
    contrastive_batch: int = param(0, "", "batch size of the contrastive loss; 0: ten rows a class, at least 50", least=0)

    def network(self, base: Network) -> Network:
        return TwoHeads(base, self.width) if self.contrastive else base

    def latent(self, model: Network, x: Tensor) -> Tensor:
        """z: the anchor head's output, or in the ablation the features."""
        return model.latent(x) if isinstance(model, TwoHeads) else model.features(x)

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n=ROWS, qualified=alternate.QUALIFIED), like=dict(n=COUNT, qualified=COUNT),
          averaged=dict(weights="n", qualified="all"))  # fmt: skip
    def train(
        self, client: Client, weights: dict, statistics: dict, anchors: Tensor, labels: Tensor, lr: float, round: int
    ) -> dict:
        """Lines 7 and 8: pseudo-labels (lines 13–19), fix and mix sets, E epochs."""
        rows, draw = client.data.unlabelled, client.rng("train", round)
        model = alternate.loaded(client.model(weights), statistics)
        score, guess = self.similarities(model, rows, anchors, labels, len(client.data.classes), draw).max(1)  # line 18
        client.judge(guess, score > self.threshold, confidence=score)
        if self.contrastive:  # figure 9: what the other head would say of the same rows
            client.judge(lambda: self.classified(model, rows, len(client.data.classes)), score > self.threshold, "classification")
        fix = torch.nonzero(score > self.threshold).flatten()  # equation 5
        if not len(fix):
            return dict(n=0, qualified=0)
        loss = FixMix(model, rows, guess, draw, self.mix if self.client_mixup else 0.0, self.beta)
        alternate.descend(self, model, loss.batches(fix, self.batch, self.epochs), loss, lr, draw)
        return dict(weights=without_anchor_head(model.state()), n=len(rows), qualified=len(fix))

    def similarities(
        self, model: Network, rows: Rows, anchors: Tensor, labels: Tensor, classes: int, draw: torch.Generator
    ) -> Tensor:
        """Line 17 for every row and class, averaged over weak views if there are any."""
        views = Views(rows)
        ways = [lambda at: views.weak(at, draw)] * self.ensembles or [views.plain]
        width = anchors.shape[1]
        each = [outputs(lambda x: self.latent(model, x), rows, width, view) for view in ways]
        return sum((mean_cosines(z, anchors, labels, classes) for z in each), torch.zeros(())) / len(each)

    def classified(self, model: Network, rows: Rows, classes: int) -> Tensor:
        """The classification head's class of every row: for measuring only."""
        return outputs(model, rows, classes).argmax(1)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(weights=server.model().state(), statistics={}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, statistics = state["round"], state["weights"], state["statistics"]
        lr = cosine(self.lr, t, server.rounds)
        chosen = server.sample(t)  # line 4
        if t == 0:  # appendix C
            weights = self._at_server(server, weights, self.pretrain_lr, self.pretrain, "pretrain", t)
            statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        broadcast = self.anchors(server, weights, statistics)  # line 5
        model = wire.size(without_anchor_head(weights))
        server.note(anchor_overhead=100 * wire.size(broadcast) / model)  # table 4
        server.note(anchor_head_overhead=100 * (wire.size(weights) - model) / model)  # goes down, too; not in the paper's
        form = dict(weights=form_of(without_anchor_head(weights)))
        told = dict(weights=weights, statistics=statistics, lr=lr, round=t, **broadcast)
        replies = server.ask(self.train, to=chosen, form=lambda id: form, **told)  # lines 6–9
        alternate.note_qualified(server, replies)
        bases.note_diversity(server, bases.moves(replies, without_anchor_head(weights)))
        weights = {**weights, **average(replies, otherwise={})}  # line 10
        weights = self._at_server(server, weights, lr, self.server_epochs, "train", t)  # line 11
        statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        return dict(weights=weights, statistics=statistics, round=t + 1)

    def anchors(self, server: Server, weights: Weights, statistics: dict) -> dict[str, Tensor]:
        """What clients compare their rows with: unit vectors of the anchors and their labels, or a mean of them per class."""
        model, rows = alternate.loaded(server.model(weights), statistics), bases.own_rows(server)
        z = F.normalize(outputs(lambda x: self.latent(model, x), rows, self.width), dim=1)
        labels = rows.y.to(torch.int16)
        if self.compact:
            z, labels = class_means(z, labels, len(server.classes)), torch.arange(len(server.classes), dtype=torch.int16)
        return dict(anchors=z, labels=labels)

    def _at_server(self, server: Server, weights: Weights, lr: float, epochs: int, name: str, t: int) -> Weights:
        """ServerTraining: an epoch of L_s and one of L_c, in turns."""
        model, rows, draw = server.model(weights), bases.own_rows(server), server.rng(name, t)
        loss = FixMix(model, rows, rows.y, draw, self.mix if self.server_mixup else 0.0, self.beta, self.server_strong)
        batch = alternate.server_batch(self.server_batch, len(rows))
        for _ in range(epochs):
            alternate.descend(self, model, loss.batches(torch.arange(len(rows)), batch, 1), loss, lr, draw)
            if self.contrastive:
                self._contrast(model, rows, lr, draw, self.contrastive_batch or max(50, 10 * len(server.classes)))
        return model.state()

    def _contrast(self, model: Any, rows: Rows, lr: float, draw: torch.Generator, batch: int) -> None:
        """One epoch of equation 2."""
        views = Views(rows)

        def loss(at: Tensor) -> Tensor:
            f = model.features(views.weak(at, draw))
            z = model.anchor(f.detach() if self.head_only else f)
            return label_contrastive(z, rows.y[at].to(z.device), self.temperature, self.per_class)

        alternate.descend(self, model, passes(len(rows), batch, 1, draw), loss, lr, draw)


def class_means(anchors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean of each class's vectors, (classes, width)."""
    members = one_hot(labels, classes)
    return members.T @ anchors / members.sum(0).clamp(min=1)[:, None]


def mean_cosines(z: Tensor, anchors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Equation 3: the mean cosine of every row of z to each class's anchors, given as unit vectors; −1 for a class without."""
    s = F.normalize(z, dim=1) @ class_means(anchors, labels, classes).T
    return s.masked_fill(one_hot(labels, classes).sum(0) == 0, -1.0)


def without_anchor_head(weights: Weights) -> Weights:
    """What FedAvg would send."""
    return {name: w for name, w in weights.items() if not name.startswith("anchor.")}
