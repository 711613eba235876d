"""ProxyFL. Chen, Wang: "ProxyFL: A Proxy-Guided Framework for Federated Semi-Supervised Learning", CVPR 2026, Algorithm 1.

The rows ω_c of the classifier's weights, one for each class, are its proxies. At a client, rows whose label is unsure learn from
the proxies of all classes that they may belong to. The server pulls the averaged proxies to where most clients have theirs.

    client   q: the model as sent, of the weak view;  sure: max q ≥ τ
             ξ = {argmax q} if sure, else {c : q_c > prior_c}                                indecisive categories, equation 4
             ω⁺ = ω of argmax q if sure, else Σ_{c∈ξ} q_c ω_c                                equation 6
             L_ICPL = mean of −log e^{z·ω⁺} / (e^{z·ω⁺} + Σ e^{z·z_j} over rows j with ξ_j ∩ ξ = ∅)    equations 7 and 8
             descends H(y, p(x)) + α · mean 1[sure] H(argmax q, p(strong)) + β · L_ICPL
    server   averages; then descends H(c, softmax(−‖ω_m,c − Ω‖)) over every client m and class c    proxy tuning, equation 2
             prior ← decay · prior + (1 − decay) · mean of the clients' shares of labels and sure pseudo-labels    equation 5

The released code differs from the paper's text in several points, and made its tables. `preset=code` follows it: z and ω pass a
linear layer each and have length 1; z is that of both views; a row is sure if either model is; ξ of a labelled row is what the
model as sent says of it; only similar rows are kept apart; and the server adds a margin to the distance from the right proxy.
`preset=paper` follows the text: ξ = {y} of a labelled row, weights by the model in training in equation 6, the means of
equations 8 and 9 over sure and unsure rows apart, no margin. Both have the linear layers, without which z·z has no bound. They
keep the number of features, as the code's do, up to `width`: for the small CNN's 2048 they would be 300 times as large as the
network.

Departures: clients send shares of classes, as the paper has it; the code sends counts. Every labelled row counts once in them. A
round is `epochs` passes over a client's rows; in the code it is twice as many. Momentum is forgotten between rounds, and the
average is by numbers of rows (the code's counts a labelled row 2000 times).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array
from grapevine.learn import average, bases, descent, passes
from grapevine.learn.heads import Proxied
from grapevine.learn.labels import one_hot
from grapevine.learn.losses import cross_entropy
from grapevine.learn.pseudo import Labelling, fit_labelling, without_labels
from grapevine.learn.streams import epoch_steps

SHARES = "the share of each class among this party's labels and sure pseudo-labels"
CLASSIFIER = "head.weight"
FARTHEST = 100.0  # the largest margin (the code's gpt_threshold)


@dataclass(frozen=True)
class ProxyFL(Method):
    """Unsure rows learn from all classes they may belong to, and the server pulls the classifier away from outliers."""

    name = "proxyfl"
    title = "ProxyFL: class proxies for unsure rows and for the average (Chen and Wang 2026)"
    extra = "weak and strong views of all rows, labelled by two models; a contrastive loss; the classifier tuned at the server"

    preset: str = param("code", "", "the released code, or the paper's text", choices=("code", "paper"))
    threshold: float = param(0.95, "τ", "least probability of a pseudo-label", least=0, most=1)
    weight: float = param(1.0, "α", "weight of the unlabelled loss", least=0)
    contrast: float = param(1.0, "β", "weight of the indecisive-categories loss", least=0)
    width: int = param(256, "", "features and proxies are compared in at most so many dimensions", least=1)
    decay: float = param(0.99, "", "how much of the prior stays from round to round", least=0, most=1)
    tuning_epochs: int = param(100, "Q", "passes over the clients' proxies at the server; 0: no tuning", least=0)
    tuning_lr: float = param(0.005, "η_G", "learning rate of the tuning", above=0)
    tuning_batch: int = param(4, "", "proxies in a batch of the tuning", least=1)
    lr: float = param(0.1, "η_l", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes over all rows per round", least=1)
    batch: int = param(128, "B", "labelled rows in a batch", least=1)
    momentum: float = param(0.9, "", "momentum of SGD, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(1e-4, "", "L2 penalty", least=0)
    ratio: int = param(2, "μ", "unlabelled rows in a batch for each labelled one", least=1)

    def individual(self) -> str:
        return "the server tunes the classifier towards each client's own"

    def network(self, base: Network) -> Network:
        return Proxied(base, self.width)

    def check(self, server: Server) -> None:
        if not isinstance(server.model().head, nn.Linear):
            raise Mistake("proxyfl needs a network whose head is one linear layer: its weights are the proxies.")
        bases.note_unused_labels(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.epochs * epoch_steps(labelled, labelled + unlabelled, self.batch, self.ratio)

    # ------------------------------------------------------------ client

    @step(reveals=dict(weights=bases.MODEL, n=bases.HELD, shares=SHARES), like=dict(weights="weights", n=COUNT))
    def train(self, client: Client, weights: dict, prior: Tensor, round: int) -> dict:
        rows, sent = without_labels(client.data), client.model(weights).eval()
        model = cast(Proxied, client.model(weights))
        loss = ProxyLoss(model, client.data.labelled, rows, client.rng("train", round), sent, self, prior)
        if not fit_labelling(self, client, loss):
            return dict(n=0)
        return dict(weights=loss.model.state(), n=len(rows), shares=loss.shares())

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        C = len(server.classes)
        return dict(weights=server.model().state(), prior=torch.full((C,), 1 / C), round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, prior = state["round"], state["weights"], state["prior"]
        form = dict(shares=Array("float32", (len(server.classes),), 1))
        replies = server.ask(self.train, to=server.sample(t), form=lambda id: form, weights=weights, prior=prior, round=t)
        bases.note_diversity(server, bases.moves(replies, weights))
        used = bases.trained(replies)
        if used:
            weights = average(used)
            proxies = torch.stack([reply["weights"][CLASSIFIER] for reply in used.values()])
            weights = {**weights, CLASSIFIER: self.tuned(weights[CLASSIFIER], proxies, server.rng("tune", t))}
            newest = torch.stack([reply["shares"] for reply in used.values()]).mean(0)
            prior = self.decay * prior + (1 - self.decay) * newest
        return dict(weights=weights, prior=prior, round=t + 1)

    def tuned(self, mean: Tensor, proxies: Tensor, rng: torch.Generator) -> Tensor:
        """Ω (C, d) by equation 2, from the mean of the clients' proxies (M, C, d)."""
        M, C, _ = proxies.shape
        omega, own, y = nn.Parameter(mean.clone()), proxies.flatten(0, 1), torch.arange(C).repeat(M)
        optimiser, further = descent([omega], self.tuning_lr), margin(mean) if self.preset == "code" else 0.0
        for at in passes(M * C, self.tuning_batch, self.tuning_epochs, rng):
            distance = torch.cdist(own[at], omega, compute_mode="donot_use_mm_for_euclid_dist")
            loss = F.cross_entropy(-distance - further * one_hot(y[at], C), y[at])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return omega.detach()


def margin(proxies: Tensor) -> float:
    """How far the loneliest proxy (C, d) is from its nearest neighbour, at most 100."""
    apart = torch.cdist(proxies, proxies).fill_diagonal_(math.inf)
    return min(apart.amin(1).max().item(), FARTHEST)


@dataclass
class ProxyLoss(Labelling):
    """The loss of a client's batch, by the model in training and the one that was `sent`."""

    model: Proxied
    sent: Network
    method: ProxyFL
    prior: Tensor

    def of(self, x: Tensor, y: Tensor, weak: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, sizes, code = self.method, [len(x), len(weak), len(strong)], self.method.preset == "code"
        features = self.model.features(torch.cat([x, weak, strong]))
        logits, own, taught = self.model.head(features).split(sizes)
        with torch.no_grad():
            of_x, q = self.sent(torch.cat([x, weak])).softmax(-1).split(sizes[:2])
        p, C = own.detach().softmax(-1), q.shape[1]
        certain, labels = q.max(-1)
        sure = (certain >= m.threshold) | (p.amax(-1) >= m.threshold) if code else certain > m.threshold
        sets, mix = categories(q, q if code else p, sure, self.prior)
        of_labelled = categories(of_x, of_x, of_x.amax(-1) >= m.threshold, self.prior)[0] if code else one_hot(y, C) > 0
        if code:  # both views of a row, with one set
            sets, mix, kinds = sets.repeat(2, 1), mix.repeat(2, 1), sure.repeat(2)
        else:
            features, kinds = features[: len(x) + len(weak)], sure
        z, proxies = F.normalize(self.model.project(features), dim=1), F.normalize(self.model.proxies(), dim=1)
        each = indecisive(z, proxies, torch.cat([of_labelled, sets]), mix, similar=code)
        loss = m.contrast * (each.sum() / max(len(each), 1) if code else mean_of(each, kinds) + mean_of(each, ~kinds))
        taught_by = cross_entropy(taught, labels, sure)
        share = 1.0 if code else len(sure) / max(int(sure.sum()), 1)  # of equation 9's mean, which is over the sure rows
        return cross_entropy(logits, y) + m.weight * share * taught_by + loss, labels, sure

    def shares(self) -> Tensor:
        """Of each class among the labels and the last pass's sure pseudo-labels."""
        counts = torch.bincount(torch.cat([self.labelled.y, self.guessed[self.used]]), minlength=len(self.prior))
        return counts / counts.sum().clamp(min=1)


def categories(q: Tensor, weights: Tensor, sure: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """ξ (n, C), the classes that each row may belong to, and how its positive proxy is mixed from theirs (n, C)."""
    top, open_ = one_hot(q.argmax(-1), q.shape[1]) > 0, q > prior.to(q.device)
    return torch.where(sure[:, None], top, open_), torch.where(sure[:, None], top.to(weights.dtype), weights * open_)


def indecisive(z: Tensor, proxies: Tensor, sets: Tensor, mix: Tensor, similar: bool) -> Tensor:
    """Equation 8's loss of each of the last len(mix) rows z (n, d), which are the unlabelled ones.

    Rows that share no class with a row are its negatives; with `similar`, those among them that point the same way.
    """
    alike, members = z @ z.T, sets.to(z.dtype)
    apart = members @ members.T == 0
    if similar:
        apart = apart & (alike >= 1e-6)
    positive, negative = (z[len(z) - len(mix) :] * (mix @ proxies)).sum(1), alike.masked_fill(~apart, -math.inf)
    logits = torch.cat([positive[:, None], negative[len(z) - len(mix) :]], 1)
    return -logits.log_softmax(1)[:, 0]


def mean_of(values: Tensor, where: Tensor) -> Tensor:
    return (values * where).sum() / where.sum().clamp(min=1)
