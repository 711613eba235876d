"""(FL)². Lee, Le, Shin, Lee: "(FL)²: Overcoming Few Labels in Federated Semi-Supervised Learning", NeurIPS 2024. Labels at the
server, none at the clients; made for very few of them.

    server   trains on its labels; sends θ with the statistics of static batch normalisation
    client   labels one weak view of every row once, in evaluation mode
             kept:  max p ≥ g · t_c / max t, g the mean confidence, t the mean answer      client-specific adaptive threshold
             fix:   max p ≥ 0.95
             each batch of kept rows:  ε ← ascent of H(fix labels, p(strong)), scaled by the weights (ASAM)
                                       step down H(kept labels, p_θ(strong)) + KL(p_θ(strong) ‖ p_{θ+ε}(strong)) on the fix rows
    server   averages with weights 1 − g_m: who is less sure counts more; momentum β_g      learning-status-aware aggregation

`target=weak` takes p_θ(weak) in the divergence: the text speaks of consistency between views, and the authors' settings compare
the strong view with itself.

Departures: as SemiFL's, on which it stands: statistics are those of the round's clients and of the server; momentum of SGD is
forgotten between rounds; a client that keeps no row is left out. `pretrain` counts passes over the server's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grapevine.core import Client, Network, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import Weights, add, alternate, average, bases, clip, passes, train
from grapevine.learn.alternate import Alternating, FixMix
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.normalisation import with_static_norm
from grapevine.learn.pseudo import adaptive
from grapevine.learn.schedules import cosine
from grapevine.learn.training import nesterov, outputs

CONFIDENCE = "how sure the model is of this party's rows, on average"
TINY = 1e-16  # keeps a gradient of zeros from being divided by 0


@dataclass(frozen=True)
class FL2(Alternating):
    """Adaptive thresholds, sharpness-aware consistency and weights by confidence, for few labels at the server."""

    name = "fl2"
    title = "(FL)²: adaptive thresholds and sharpness-aware consistency for few labels at the server (Lee et al. 2024)"
    extra = "cosine rate, strong views, up to four forward and three backward passes a step"

    fix: float = param(0.95, "τ", "least probability of a row that is regularised", least=0, most=1)
    rho: float = param(0.1, "ρ", "length of the ascent, in scaled weights; 0: no regularisation", least=0)
    eta: float = param(0.01, "η_A", "added to the sizes of weights that scale the ascent", least=0)
    target: str = param("strong", "", "the view that the perturbed model is compared with", choices=("strong", "weak"))
    global_momentum: float = param(0.5, "β_g", "momentum of the server's averaged step", least=0, most=1)
    sbn: bool = param(True, "", "static batch normalisation in place of the model's")
    lr: float = param(0.03, "η", "first learning rate everywhere, half a cosine over all rounds", above=0)
    momentum: float = param(0.9, "β_l", "Nesterov momentum of SGD", least=0, most=1)
    weight_decay: float = param(5e-4, "", "L2 penalty", least=0)
    clip: float = param(1.0, "", "longest gradient", above=0)
    epochs: int = param(5, "E", "passes over the kept rows per round", least=1)
    batch: int = param(32, "B_m", "batch size of the clients", least=1)
    server_epochs: int = param(5, "E", "passes over the server's rows per round", least=0)
    server_batch: int = param(10, "B_s", "batch size at the server", least=1)
    pretrain: int = param(50, "", "passes over the server's rows before the first round", least=0)

    def individual(self) -> str:
        return "the server weighs each client by how sure it is"

    def network(self, base: Network) -> Network:
        return with_static_norm(base) if self.sbn else base

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(weights=bases.MODEL, n="1, or 0 if this party kept no row", confidence=CONFIDENCE,
                     qualified=alternate.QUALIFIED),
        like=dict(weights="weights", n=range(2), confidence=float, qualified=COUNT),
    )  # fmt: skip
    def train(self, client: Client, weights: dict, statistics: dict, lr: float, round: int) -> dict:
        rows, draw = client.data.unlabelled, client.rng("train", round)
        model, views = alternate.loaded(client.model(weights), statistics), Views(rows)
        p = outputs(model, rows, len(client.data.classes), lambda at: views.weak(at, draw)).softmax(-1)
        kept, g = adaptive(p)
        confidence, labels = p.max(-1)
        client.judge(labels, kept, confidence=confidence)
        if not kept.any():
            return dict(n=0, qualified=0)
        loss = SharpnessLoss(model, rows, labels, confidence >= self.fix, self, draw)
        batches = loss.batches(torch.nonzero(kept).flatten(), self.batch, self.epochs)
        train(model, batches, loss, nesterov(model, lr, self.momentum, self.weight_decay), draw, loss.adjust)
        return dict(weights=model.state(), n=1, confidence=g, qualified=int(kept.sum()))

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        return dict(weights=server.model().state(), velocity={}, statistics={}, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, statistics, velocity = state["round"], state["weights"], state["statistics"], state["velocity"]
        lr, chosen = cosine(self.lr, t, server.rounds), server.sample(t)
        if t == 0:
            weights = self._at_server(server, weights, self.lr, self.pretrain, "pretrain", t)
            statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        replies = server.ask(self.train, to=chosen, weights=weights, statistics=statistics, lr=lr, round=t)
        alternate.note_qualified(server, replies)
        bases.note_diversity(server, bases.moves(replies, weights))
        used = {id: dict(weights=reply["weights"], doubt=max(1 - reply["confidence"], 0.0))
                for id, reply in replies.items() if reply["n"]}  # fmt: skip
        if any(reply["doubt"] for reply in used.values()):
            mean = average(used, by="doubt")
            weights, velocity = alternate.with_momentum(server, weights, velocity, mean, self.global_momentum)
        weights = self._at_server(server, weights, lr, self.server_epochs, "train", t)
        statistics = alternate.ask_statistics(server, self.statistics, weights, chosen)
        return dict(weights=weights, velocity=velocity, statistics=statistics, round=t + 1)

    def _at_server(self, server: Server, weights: Weights, lr: float, epochs: int, name: str, t: int) -> Weights:
        model, rows = server.model(weights), bases.own_rows(server)
        loss = FixMix(model, rows, rows.y, server.rng(name, t), mix=0.0, strong=False)
        alternate.descend(self, model, loss.batches(torch.arange(len(rows)), self.server_batch, epochs), loss, lr, loss.rng)
        return model.state()


# ---------------------------------------------------------------- the client's loss


@dataclass
class SharpnessLoss:
    """H(label, p_θ(strong)) of a batch, and by `adjust` the gradient at θ + ε of KL(p_θ ‖ p_{θ+ε}(strong)) on its fix rows."""

    model: Network
    rows: Rows
    labels: Tensor
    fix: Tensor
    method: FL2
    rng: torch.Generator
    extra: Weights = field(default_factory=dict)

    def batches(self, kept: Tensor, batch: int, epochs: int) -> Iterator[Tensor]:
        for at in passes(len(kept), batch, epochs, self.rng):
            yield kept[at]

    def __call__(self, at: Tensor) -> Tensor:
        views, device = Views(self.rows), self.rows.device
        strong = views.strong(at, self.rng)
        compared = views.weak(at, self.rng) if self.method.target == "weak" else strong
        return self.of(strong, compared, self.labels[at].to(device), self.fix[at].to(device))

    def of(self, strong: Tensor, compared: Tensor, labels: Tensor, fix: Tensor) -> Tensor:
        self.extra = self._regularisation(strong, compared, labels, fix) if self.method.rho and fix.any() else {}
        return cross_entropy(self.model(strong), labels)

    def _regularisation(self, strong: Tensor, compared: Tensor, labels: Tensor, fix: Tensor) -> Weights:
        # θ answers the strong views up to three times: for the target, for the ascent and in `of`. These passes cannot share an
        # answer: dropout draws anew in each, running statistics move with each, and autograd refuses a graph made before `_put`.
        parameters: Weights = dict(self.model.named_parameters())
        before = {name: p.detach().clone() for name, p in parameters.items()}
        with torch.no_grad():
            target = self.model(compared).softmax(-1)
        ascent = torch.autograd.grad(cross_entropy(self.model(strong)[fix], labels[fix]), list(parameters.values()))
        epsilon = perturbation(before, dict(zip(parameters, ascent)), self.method.rho, self.method.eta)
        _put(parameters, add(before, epsilon))
        loss = consistency_kl(self.model(strong), target, fix)
        gradient = torch.autograd.grad(loss, list(parameters.values()))
        _put(parameters, before)
        return dict(zip(parameters, gradient))

    def adjust(self, model: torch.nn.Module) -> None:
        for name, p in model.named_parameters():
            if p.grad is not None and name in self.extra:
                p.grad.add_(self.extra[name])
        clip(self.method.clip)(model)


@torch.no_grad()
def _put(parameters: Weights, values: Weights) -> None:
    for name, p in parameters.items():
        p.copy_(values[name])


def perturbation(weights: Weights, ascent: Weights, rho: float, eta: float) -> dict[str, Tensor]:
    """ε = ρ T²g / ‖T g‖, T = |w| + η for weights and 1 for biases (Kwon et al. 2021, ASAM)."""
    T = {name: w.abs() + eta if "weight" in name else torch.ones_like(w) for name, w in weights.items()}
    length = torch.stack([(T[name] * g).norm() for name, g in ascent.items()]).norm() + TINY
    return {name: rho * T[name] ** 2 * g / length for name, g in ascent.items()}
