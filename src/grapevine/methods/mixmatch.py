"""MixMatch-FedAvg. Berthelot, Carlini, Goodfellow, Papernot, Oliver, Raffel: "MixMatch: A Holistic Approach to Semi-Supervised
Learning", NeurIPS 2019, Algorithm 1, run by every client between two averages: a row of ProtoFSSL's tables 1 and 2.

Departures: a round is `epochs` passes over a client's unlabelled rows; one mixing share λ a batch, not one per row; Adam's
moments are forgotten between rounds, and there is no moving average of the weights; λ_U rises over all rounds (in the authors'
code over the first quarter of a training that is much longer; on a model that has learned little, a λ_U of 75 ends in one class
for every row). A client without labels has the unlabelled loss alone. Models are averaged by the clients' numbers of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.data.augment import Views
from grapevine.learn import bases, train
from grapevine.learn.labels import one_hot, sharpen
from grapevine.learn.losses import consistency_mse, cross_entropy
from grapevine.learn.mixing import mixup
from grapevine.learn.streams import epoch_steps, streams
from grapevine.learn.training import Adjust


@dataclass(frozen=True)
class MixMatch(Method):
    """MixMatch at the clients, FedAvg or FedProx between them."""

    name = "mixmatch"
    title = "MixMatch-FedAvg: guessed labels, sharpened, and mixed rows (Berthelot et al. 2019)"
    takes = frozenset({"clients"})

    views: int = param(2, "K", "weak views of an unlabelled row, whose predictions are averaged", least=1)
    temperature: float = param(0.5, "T", "sharpening of guessed labels", above=0)
    alpha: float = param(0.75, "α", "mixing shares come from Beta(α, α)", above=0)
    weight: float = param(75.0, "λ_U", "weight of the unlabelled loss", least=0)
    ramp: float = param(1.0, "", "share of the rounds over which λ_U rises from 0, in a straight line", least=0, most=1)
    base: str = param("fedavg", "", "fedavg or fedprox", choices=("fedavg", "fedprox"))
    mu: float = param(0.01, "", "proximal term, for base=fedprox", least=0)
    lr: float = param(0.002, "η", "learning rate of Adam", above=0)
    weight_decay: float = param(0.02, "", "share of the weights, times η, that every step takes away", least=0)
    epochs: int = param(5, "E", "passes over the unlabelled rows per round", least=1)
    batch: int = param(50, "B", "labelled rows in a batch, and unlabelled rows", least=1)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.epochs * epoch_steps(labelled, unlabelled, self.batch, 1)

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n=bases.HELD), like=bases.like, averaged=bases.averaged("n"))
    def train(self, client: Client, weights: dict, weight: float, round: int) -> dict:
        data, draw = client.data, client.rng("train", round)
        n, classes = len(data.labelled) + len(data.unlabelled), len(data.classes)

        def descend(model: Network, adjust: Adjust | None) -> int:
            own, others = Views(data.labelled), Views(data.unlabelled)
            guessed = torch.full((len(data.unlabelled),), -1)

            def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
                a, b = batch
                x, y = own.weak(a, draw), one_hot(data.labelled.y[a], classes).to(data.labelled.device)
                value, q = self.loss(model, x, y, [others.weak(b, draw) for _ in range(self.views)], weight, draw)
                guessed[b] = q.argmax(1).cpu()
                return value

            steps = self.epochs * epoch_steps(len(data.labelled), len(data.unlabelled), self.batch, 1)
            batches = islice(streams(len(data.labelled), len(data.unlabelled), self.batch, 1, draw), steps)
            optimiser = torch.optim.AdamW(model.parameters(), self.lr, weight_decay=self.weight_decay)
            train(model, batches, loss, optimiser, draw, adjust)
            client.judge(guessed)
            return steps

        told = dict(weights=weights, control={}, round=round)
        return bases.client_update(client, self, told, descend, n) if n else dict(n=0)

    def loss(
        self, model: Network, x: Tensor, y: Tensor, u: list[Tensor], weight: float, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """L_X + λ_U L_U of one batch (equations 3 to 5), and the guessed labels q."""
        q = y.new_zeros(0, y.shape[1])
        if len(u[0]):
            with torch.no_grad():
                q = sum((torch.softmax(model(view), 1) for view in u), torch.zeros(())) / len(u)  # line 7
            q = sharpen(q, self.temperature)  # line 8
        # Lines 10 to 14: W is all of X̂ and Û in another order; rows i of X̂ and of Û are mixed with W_i.
        mixed, (p, other), share = mixup(torch.cat([x, *u]), torch.cat([y, *[q] * len(u)]), draw, self.alpha, nearer=True)
        p = share * p + (1 - share) * other
        logits = model(mixed)
        n = len(x)
        return cross_entropy(logits[:n], p[:n]) + weight * consistency_mse(logits[n:], p[n:]), q

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(bases.first_state(server, self.base), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights = state["round"], state["weights"]
        rise = self.ramped(t, server.rounds)
        replies = server.ask(self.train, to=server.sample(t), weights=weights, weight=rise, round=t)
        bases.note_diversity(server, bases.moves(replies, weights))
        return dict(state, **bases.server_update(server, self.base, state, replies), round=t + 1)

    def ramped(self, t: int, rounds: int) -> float:
        length = self.ramp * rounds
        return self.weight * min(t / length, 1.0) if length else self.weight
