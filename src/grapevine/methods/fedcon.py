"""FedCon. Long, Wang, Wang, Xiao, Ma: "FedCon: A Contrastive Framework for Federated Semi-Supervised Learning", 2021. The
server trains a classifier on its labels with a consistency loss; clients train its backbone without labels, in the manner of
BYOL (Grill et al. 2020); backbones are averaged, the classifier never leaves the server.

Server: ½ Σ_i CE(f(v_i), y) + w(t) · ½ Σ_i KL(f(v_j) ‖ f(v_i)) over two strong views of a row, w a sigmoid ramp over the first
rounds. Client: ½ Σ_i ‖h(b(v_i))/‖·‖ − b'(v_j)/‖·‖‖² with the backbone b, a projector h and a target b', the moving average of
b. Projector and target stay at the client from round to round.

Departures: the consistency target is the server's own prediction without gradient, as the released code runs it (its moving
average is computed and not read); models are averaged once per round (the code averages those of all local epochs), uniformly;
each client gets back its own projector and target (the code mixes them up); the projector is as wide as `hidden`. The server
trains before the first round as well, so that clients start from a trained backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Method, Network, Predict, Server, param, step
from grapevine.data.augment import Views
from grapevine.learn import Weights, alternate, average, bases, descent, passes, train
from grapevine.learn.heads import Projected
from grapevine.learn.losses import byol_loss, consistency_kl, cross_entropy
from grapevine.learn.schedules import ema_, sigmoid_rampup
from grapevine.learn.training import steps_of


@dataclass(frozen=True)
class FedCon(Method):
    """Contrast without labels at the clients, labels and consistency at the server."""

    name = "fedcon"
    title = "FedCon: BYOL at the clients, labels and consistency at the server (Long et al. 2021)"
    extra = "strong views, consistency loss, a first training at the server"
    takes = frozenset({"server"})

    ema: float = param(0.999, "τ", "decay of the clients' target", least=0, most=1)
    hidden: int = param(512, "", "units of the projector's hidden layer", least=1)
    lr: float = param(0.03, "η", "learning rate of the clients", above=0)
    momentum: float = param(0.9, "", "momentum of the clients' SGD, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty of the clients' SGD", least=0)
    epochs: int = param(5, "E", "passes over a client's rows per round", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)
    server_lr: float = param(0.01, "", "learning rate of the server", above=0)
    server_momentum: float = param(0.5, "", "momentum of the server's SGD, forgotten between rounds", least=0, most=1)
    server_epochs: int = param(5, "", "passes over the server's rows per round", least=1)
    server_batch: int = param(10, "", "batch size of the server", least=1)
    ramp: int = param(100, "", "rounds until the consistency loss has its full weight", least=0)

    def network(self, base: Network) -> Network:
        return Projected(base, self.hidden)

    def check(self, server: Server) -> None:
        alternate.check_labels_at_server(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(unlabelled, self.batch, self.epochs)

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n="1, or 0 if this party has no rows"), like=dict(weights="backbone", n=range(2)),
          averaged=dict(weights="n"))  # fmt: skip
    def train(self, client: Client, backbone: dict, round: int) -> dict:
        """LocalUpdate: trains the backbone, and the client's own projector and target."""
        rows, draw = client.data.unlabelled, client.rng("train", round)
        if not len(rows):
            return dict(n=0)
        model, target = client.model(), client.model()
        first = model.state()
        kept = client.memory.get("byol", dict(projector={}, target=backbone))
        model.load({**first, **backbone, **kept["projector"]})
        target.load({**first, **kept["target"]}).train()  # it normalises by its batches too
        target.use_rng(draw)
        views = Views(rows)
        train(
            model, passes(len(rows), self.batch, self.epochs, draw),
            lambda at: contrast(model, target, views.strong(at, draw), views.strong(at, draw)),
            descent(model.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay), draw,
            after=lambda: ema_(target.features, model.features, self.ema),
        )  # fmt: skip
        trained = model.state()
        client.memory["byol"] = dict(projector=part(trained, "projector."), target=part(target.state(), "features."))
        return dict(weights=part(trained, "features."), n=1)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        weights = server.model().state()
        return dict(weights={**part(weights, "features."), **part(weights, "head.")}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights = state["round"], state["weights"]
        if t == 0:
            weights = self._at_server(server, weights, t, "first")
        replies = server.ask(self.train, to=server.sample(t), backbone=part(weights, "features."), round=t)
        weights = {**weights, **average(replies, otherwise={})}
        return dict(weights=self._at_server(server, weights, t, "train"), round=t + 1)

    def _at_server(self, server: Server, weights: Weights, t: int, name: str) -> Weights:
        model, rows, draw = server.model(), bases.own_rows(server), server.rng(name, t)
        model.load({**model.state(), **weights})
        views, weight = Views(rows), sigmoid_rampup(t, self.ramp)

        def loss(at: Tensor) -> Tensor:
            y = rows.y[at].to(rows.device)
            return consistent(model, views.strong(at, draw), views.strong(at, draw), y, weight)

        optimiser = descent(model.parameters(), self.server_lr, self.server_momentum)
        train(model, passes(len(rows), self.server_batch, self.server_epochs, draw), loss, optimiser, draw)
        trained = model.state()
        return {name: trained[name] for name in weights}

    def predictor(self, model: Network, shared: dict) -> Predict:
        return super().predictor(model, dict(weights={**model.state(), **shared["weights"]}))


def contrast(model: Any, target: Network, a: Tensor, b: Tensor) -> Tensor:
    """The client's loss: each view's projection predicts the target's features of the other."""
    with torch.no_grad():
        za, zb = target.features(a), target.features(b)
    pa, pb = (model.projector(model.features(x)) for x in (a, b))
    return (byol_loss(pa, zb) + byol_loss(pb, za)) / 2


def consistent(model: Network, a: Tensor, b: Tensor, y: Tensor, weight: float) -> Tensor:
    """The server's loss: cross-entropy of both views, and each near the other's prediction."""
    za, zb = model(a), model(b)
    classes = (cross_entropy(za, y) + cross_entropy(zb, y)) / 2
    apart = (consistency_kl(za, zb.detach().softmax(1)) + consistency_kl(zb, za.detach().softmax(1))) / 2
    return classes + weight * apart


def part(weights: Weights, prefix: str) -> Weights:
    return {name: w for name, w in weights.items() if name.startswith(prefix)}
