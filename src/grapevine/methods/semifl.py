"""SemiFL. Diao, Ding, Tarokh: "SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training",
NeurIPS 2022, Algorithm 1. Clients without labels train on what the global model is sure of; the server trains on its labels in
turn.

A round: the server sends the model with the statistics of its static batch normalisation; a client labels one weak view of
every row once, in evaluation mode; rows from the threshold on are its fix set, and as many drawn from all its rows (for each
batch again) its mix set; it trains on both; the server averages uniformly, with momentum, and then trains on its own labels.

Departures: statistics are those of the round's clients and of the server, taken after the server has trained (the authors'
code takes all clients'); they are sums of activations per channel, sent in the clear. A client with an empty fix set is left
out. `sbn=true` replaces the model's batch normalisation of images; one of vectors (mlp) keeps running statistics, averaged.
The momentum of SGD is forgotten between rounds; `keep_momentum=true` keeps each client's and the server's, as the authors' code
does. Strong views are FixMatch's; `views=semifl` are the authors' RandAugment (`data.augment.semifl`). `pretrain` and
`server_mixup` are FedAnchor's comparison, not this paper's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grapevine.core import Client, Network, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.data.augment import Views
from grapevine.learn import Weights, alternate, average, bases
from grapevine.learn.alternate import Alternating, FixMix
from grapevine.learn.labels import likeliest
from grapevine.learn.normalisation import with_static_norm
from grapevine.learn.schedules import cosine
from grapevine.learn.training import outputs


@dataclass(frozen=True)
class SemiFL(Alternating):
    """Confident pseudo-labels of the global model at the clients, labels at the server, in turns."""

    name = "semifl"
    title = "SemiFL: clients on the global model's confident labels, the server on its own, in turns (Diao et al. 2022)"
    extra = "cosine rate, strong views, mixup"

    threshold: float = param(0.95, "τ", "least probability of a pseudo-label in the fix set", least=0, most=1)
    client_mixup: bool = param(True, "", "the mix loss at the clients")
    server_mixup: bool = param(False, "", "the mix loss at the server")
    mix: float = param(1.0, "λ", "weight of the mix loss", least=0)
    beta: float = param(0.75, "a", "mixup's λ_mix is drawn from Beta(a, a)", above=0)
    global_momentum: float = param(0.5, "β_g", "momentum of the server's averaged step", least=0, most=1)
    sbn: bool = param(True, "", "static batch normalisation in place of the model's")
    lr: float = param(0.03, "η", "first learning rate everywhere, half a cosine over all rounds", above=0)
    momentum: float = param(0.9, "β_l", "Nesterov momentum of SGD", least=0, most=1)
    keep_momentum: bool = param(False, "", "momentum stays between rounds, in each client's memory and at the server")
    views: str = param("fixmatch", "", "strong views: fixmatch, or semifl (the authors' RandAugment)", choices=alternate.VIEWS)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    clip: float = param(1.0, "", "longest gradient", above=0)
    epochs: int = param(5, "E", "passes over the fix set per round", least=1)
    batch: int = param(10, "B_m", "batch size of the clients", least=1)
    server_epochs: int = param(5, "E", "passes over the server's rows per round", least=0)
    server_batch: int = param(0, "B_s", "batch size at the server; 0: 10, or 250 above 1000 rows", least=0)
    pretrain: int = param(0, "", "passes over the server's rows before the first round", least=0)

    def network(self, base: Network) -> Network:
        return with_static_norm(base) if self.sbn else base

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(weights=bases.MODEL, n="1, or 0 if this party was sure of no pseudo-label", qualified=alternate.QUALIFIED),
        like=dict(weights="weights", n=range(2), qualified=COUNT), averaged=dict(weights="n", qualified="all"),
    )  # fmt: skip
    def train(self, client: Client, weights: dict, statistics: dict, lr: float, round: int) -> dict:
        """ClientUpdate: pseudo-labels, fix and mix sets, E epochs."""
        rows, draw = client.data.unlabelled, client.rng("train", round)
        model = alternate.loaded(client.model(weights), statistics)
        views = Views(rows)
        logits = outputs(model, rows, len(client.data.classes), lambda at: views.weak(at, draw))
        labels, sure, confidence = likeliest(logits, self.threshold)
        client.judge(labels, sure, confidence=confidence)
        fix = torch.nonzero(sure).flatten()
        if not len(fix):
            return dict(n=0, qualified=0)
        loss = FixMix(model, rows, labels, draw, self.mix if self.client_mixup else 0.0, self.beta, views=self.views)
        momentum = client.memory.get("momentum", {}) if self.keep_momentum else None
        alternate.descend(self, model, loss.batches(fix, self.batch, self.epochs), loss, lr, draw, momentum)
        if momentum is not None:
            client.memory["momentum"] = momentum
        return dict(weights=model.state(), n=1, qualified=len(fix))

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(weights=server.model().state(), velocity={}, momentum={}, statistics={}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, statistics, momentum = state["round"], state["weights"], state["statistics"], dict(state["momentum"])
        lr = cosine(self.lr, t, server.rounds)
        chosen = server.sample(t)
        if t == 0:
            weights = self._at_server(server, weights, self.lr, self.pretrain, "pretrain", momentum)
            statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        replies = server.ask(self.train, to=chosen, weights=weights, statistics=statistics, lr=lr, round=t)
        alternate.note_qualified(server, replies)
        bases.note_diversity(server, bases.moves(replies, weights))
        used = bases.trained(replies)
        velocity = state["velocity"]
        if used:
            mean = average(used, by=None)
            weights, velocity = alternate.with_momentum(server, weights, velocity, mean, self.global_momentum)
        weights = self._at_server(server, weights, lr, self.server_epochs, "train", momentum, t)
        statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        return dict(weights=weights, velocity=velocity, momentum=momentum, statistics=statistics, round=t + 1)

    def _at_server(
        self, server: Server, weights: Weights, lr: float, epochs: int, name: str, momentum: dict, t: int = 0
    ) -> Weights:
        """ServerUpdate. `momentum` is continued, and changed, if it is kept."""
        model, rows, mix = server.model(weights), bases.own_rows(server), self.mix if self.server_mixup else 0.0
        loss = FixMix(model, rows, rows.y, server.rng(name, t), mix, self.beta, strong=False)
        batch = alternate.server_batch(self.server_batch, len(rows))
        alternate.descend(self, model, loss.batches(torch.arange(len(rows)), batch, epochs), loss, lr, loss.rng,
                          momentum if self.keep_momentum else None)  # fmt: skip
        return model.state()
