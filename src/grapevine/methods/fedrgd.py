"""FedRGD. Zhang, Yang, Yao, Yan, Gonzalez, Ramchandran, Mahoney: "Improving Semi-supervised Federated Learning by Reducing the
Gradient Diversity of Models", IEEE Big Data 2021. Clients learn by FixMatch's unlabelled loss (the paper's consistency
regularisation), group normalisation takes the place of batch normalisation, and clients are averaged in groups.

A round: the sampled clients are divided into S groups at random; each starts from its group's model. The server trains on its
labels from its own model at the same time. A group's new model is the mean of its clients' and the server's; the server's new
model, which also predicts, is the mean of the groups'.

Departures: without labels at the server the groups hold clients only, who then have FixMatch's labelled loss (ProtoFSSL's
comparison); groups are drawn again in every round, since other clients are sampled; the learning rate is FixMatch's, not scaled
by the size of a group, and has no warm-up. A client that took no step is left out of its group. Batch normalisation of the
chosen model is replaced by group normalisation (`group_norm`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grapevine.core import Client, Id, Method, Network, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.learn import average, bases, subtract, train
from grapevine.learn.normalisation import with_group_norm
from grapevine.learn.streams import NONE
from grapevine.learn.training import nesterov
from grapevine.methods.fixmatch import FixMatchLoss, cosine


@dataclass(frozen=True)
class FedRGD(Method):
    """FixMatch at the clients, group normalisation, averages in groups with the server's model in each."""

    name = "fedrgd"
    title = "FedRGD: FixMatch, group normalisation, averages in groups (Zhang et al. 2021)"
    takes = frozenset({"clients", "server", "both"})

    groups: int = param(2, "S", "groups that clients are averaged in", least=1)
    period: int = param(16, "T", "steps between two averages", least=1)
    threshold: float = param(0.95, "τ", "least probability of a pseudo-label", least=0, most=1)
    weight: float = param(1.0, "λ_u", "weight of the unlabelled loss", least=0)
    lr: float = param(0.03, "η", "first learning rate; η cos(7πt/16T) in round t of T", above=0)
    momentum: float = param(0.9, "", "Nesterov momentum, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(1e-4, "", "L2 penalty", least=0)
    batch: int = param(64, "B", "labelled rows in a batch, and unlabelled rows", least=1)
    group_norm: bool = param(True, "", "replace the model's batch normalisation by group normalisation")

    def network(self, base: Network) -> Network:
        return with_group_norm(base) if self.group_norm else base

    def check(self, server: Server) -> None:
        if self.groups > server.per_round:
            raise Mistake(
                f"fedrgd: groups={self.groups} is more than the {server.per_round} clients of a round: use fewer groups."
            )

    def individual(self) -> str:
        return "clients are averaged in groups that change from round to round"

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.period

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n="1, or 0 if this party took no step"), like=dict(weights="weights", n=range(2)))
    def train(self, client: Client, weights: dict, lr: float, round: int) -> dict:
        model, data = client.model(weights), client.data
        loss = FixMatchLoss(model, data.labelled, data.unlabelled, client.rng("train", round), self.threshold, self.weight)
        steps = self._fit(loss, lr)
        client.judge(loss.guessed, loss.used)
        return dict(weights=model.state(), n=1) if steps else dict(n=0)

    def _fit(self, loss: FixMatchLoss, lr: float) -> int:
        steps = self.period if len(loss.labelled) or len(loss.unlabelled) else 0
        optimiser = nesterov(loss.model, lr, self.momentum, self.weight_decay)
        return train(loss.model, loss.batches(self.batch, 1, steps), loss, optimiser, loss.rng)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        weights = server.model().state()
        return dict(weights=weights, groups={g: weights for g in range(self.groups)}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, groups = state["round"], state["groups"]
        lr = cosine(self.lr, t, server.rounds)
        of = self.divide(server, t)
        each = {id: dict(weights=groups[g]) for id, g in of.items()}
        replies = {id: r for id, r in server.ask(self.train, each=each, lr=lr, round=t).items() if r["n"]}
        bases.note_diversity(server, [subtract(r["weights"], groups[of[id]]) for id, r in replies.items()])
        own = {}
        if bases.has_rows(server):
            model, rows = server.model(state["weights"]), bases.own_rows(server)
            self._fit(FixMatchLoss(model, rows, rows.take(NONE), server.rng("train", t), self.threshold, self.weight), lr)
            own = dict(weights=model.state(), n=1)
        new = {}
        for g, before in groups.items():
            members = [r for id, r in replies.items() if of[id] == g] + ([own] if own else [])
            new[g] = average(dict(enumerate(members)), by=None, otherwise=before)
        together = average({g: dict(weights=w) for g, w in new.items()}, by=None)
        return dict(weights=together, groups=new, round=t + 1)

    def divide(self, server: Server, t: int) -> dict[Id, int]:
        """The clients of a round and the group each is in; groups differ in size by one at most."""
        chosen = server.sample(t)
        order = torch.randperm(len(chosen), generator=server.rng("groups", t)).tolist()
        return {id: place % self.groups for id, place in zip(chosen, order)}
