"""ProtoFSSL. Kim, Park, Sohn, Shu, Kim: "Federated Semi-Supervised Learning with Prototypical Networks", 2022, Algorithm 1.
Clients exchange class prototypes, through the server, to pseudo-label each other's unlabelled rows.

The distance: the paper says "Euclidean" and cites Snell et al., who square and sum it; the authors' code takes the *mean* of the
squares over the d dimensions. The mean is the default, because the sum saturates the softmax of a wide network before training
begins and because the paper's numbers were made with the mean. `noise` then is the paper's σ: on average it adds σ² to every mean
distance, but d·σ² to a summed one, so that with `preset=paper` a noise of σ/√d adds what σ does in the paper.
`preset=code` is the rest of the released code, too: the gradient goes through pseudo-labels, models are averaged uniformly, and
there is no L2 penalty, since theirs is built into layers and never added to the loss (nor does their FedProx pull: its weights
are numpy's; `mu` works here with every preset).

Other decisions: one "local epoch" is one gradient step on one episode, as their code runs it; a class that a helper lacks is
the mean over the helpers that have it, and so is a class that the client itself lacks (the code: a prototype infinitely far
away). A class with fewer labels than support and query take gives its support first, but of two labels or more one is kept for
the query, or nothing would be learned from labels; one label gives a prototype and no query. (The paper's classes have enough.)
Labelled and unlabelled rows are disjoint. `--norm sbn` is here what their code calls so: batch normalisation whose running
statistics are those of the last batch, averaged with the weights. RMSprop starts again in every round, so that its first step is
√10 times as long as later ones; in the authors' simulation all clients share one optimiser, which parties with data of their own
cannot. `keep_state=true` keeps each client's running mean of squared gradients in its memory instead.
`alternative=true` is Algorithm 2 of the appendix: the mean of the helpers' prototypes in place of the own support set.
Noise on shared prototypes (section 7.1) comes from the operating system and does not repeat; it is not accounted as differential
privacy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grapevine.core import Client, Method, Network, Predict, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array
from grapevine.crypto.stream import Stream, context, fresh_secret
from grapevine.learn import average, bases, pull, subtract, train
from grapevine.learn.labels import sharpen
from grapevine.learn.losses import cross_entropy
from grapevine.learn.normalisation import BatchNorm2d, StaticBatchNorm2d, replace_norms
from grapevine.learn.prototypes import Sets, mean_over, prototype_logits, prototypes, stack, votes
from grapevine.learn.training import kept, outputs, resume, rmsprop

PRESETS = ("default", "paper", "code")
MEANS = "for each class the mean of the feature vectors of its labelled rows, with noise if the method adds it"


@dataclass(frozen=True)
class ProtoFSSL(Method):
    """FedAvg or FedProx on prototypical networks; helpers' prototypes label the unlabelled rows."""

    name = "protofssl"
    title = "ProtoFSSL: pseudo-labels from other clients' prototypes (Kim et al. 2022)"
    extra = "RMSprop, an episode a step"
    logits = False

    helpers: int = param(5, "|H_r|", "prototype sets that are sent to a client", least=1)
    interval: int = param(1, "R_H", "rounds between renewals of the helpers", least=1)
    own_helper: bool = param(True, "", "a client's own old prototypes may help it")
    steps_per_round: int = param(10, "E", "local epochs: gradient steps, an episode each", least=1)
    support: int = param(1, "n_S", "labelled rows of a class that make its prototype in an episode", least=1)
    query: int = param(2, "n_Q", "labelled rows of a class that are classified in an episode", least=1)
    unlabelled: int = param(100, "n_U", "unlabelled rows in an episode", least=0)
    weight: float = param(0.3, "λ", "weight of the unlabelled loss", least=0)
    temperature: float = param(0.5, "T", "sharpening of pseudo-labels", above=0)
    lr: float = param(1e-3, "η", "learning rate of RMSprop", above=0)
    weight_decay: float = param(1e-4, "λ_L2", "L2 penalty; none acts with preset=code", least=0)
    mu: float = param(0.0, "μ", "proximal term of FedProx; 0: FedAvg", least=0)
    noise: float = param(0.0, "σ", "standard deviation of the noise on shared prototypes", least=0)
    least: int = param(1, "", "a prototype of fewer rows than this is not shared", least=0)
    alternative: bool = param(False, "", "the appendix's Algorithm 2: global prototypes as support")
    keep_state: bool = param(False, "", "RMSprop's mean of squared gradients stays in a client's memory between rounds")
    preset: str = param(
        "default", "", "default: mean distance; paper: summed; code: all that the released code does", choices=PRESETS
    )

    @property
    def mean(self) -> bool:
        """Whether the distance is a mean over the dimensions."""
        return self.preset != "paper"

    @property
    def decay(self) -> float:
        """The L2 penalty that acts: in the released code none does."""
        return 0.0 if self.preset == "code" else self.weight_decay

    def individual(self) -> str:
        return "each client's prototypes go to the other clients"

    def network(self, base: Network) -> Network:
        """Prototypes distinguish the classes, so the last layer is neither trained nor sent."""
        replace_norms(base, (StaticBatchNorm2d,), lambda layer: BatchNorm2d(layer.num_features, layer.eps, momentum=1.0))
        return Network(base.features, nn.Identity(), base.features_dim)

    def check(self, server: Server) -> None:
        if not list(server.model().parameters()):
            raise Mistake("protofssl learns features, but this model has none to learn: use --model mlp, or cnn for images.")
        bases.check_features_dim(self, server)
        bases.note_unused_labels(self, server)
        if self.helpers > server.per_round:
            others = max(1, server.per_round - 1)
            raise Mistake(f"protofssl: helpers={self.helpers} is more than the {server.per_round} clients of a round: use "
                          f"--set helpers={others}.")  # fmt: skip

    def spent(self, at_server: int) -> dict[str, Any]:
        return super().spent(at_server) | dict(weight_decay=self.decay)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.steps_per_round

    # ------------------------------------------------------------ client

    @step(
        reveals=dict(pairs="how many classes have two labelled rows or more", singles="how many classes have one labelled row",
                     most="how many labelled rows the class with most of them has"),
        like=dict(pairs=COUNT, singles=COUNT, most=COUNT),
    )  # fmt: skip
    def hello(self, client: Client) -> dict:
        """Whether a class has a label for the support and one for the query, and how many labels a class has at most."""
        counts = torch.bincount(client.data.labelled.y, minlength=1)
        return dict(pairs=int((counts >= 2).sum()), singles=int((counts == 1).sum()), most=int(counts.max()))

    @step(
        reveals=dict(weights=bases.MODEL, means=MEANS, present="which classes have rows enough for a prototype", n=bases.HELD),
        like=dict(weights="weights", n=COUNT),
    )
    def train(self, client: Client, weights: dict, helpers: dict, round: int) -> dict:
        """RunClient(θ, {c_jk})."""
        model, draw = client.model(weights), client.rng("train", round)
        theirs = stack(helpers, next(model.parameters()).device)
        guessed = torch.full((len(client.data.unlabelled),), -1)

        def loss(_: int) -> Tensor | None:
            value, at, labels = self.episode(client, model, theirs, draw)
            guessed[at] = labels
            return value

        optimiser = rmsprop(model, self.lr, weight_decay=self.decay)
        if self.keep_state:
            resume(optimiser, model, client.memory.get("optimiser", {}))
        adjust = pull(weights, self.mu) if self.mu else None
        steps = train(model, range(self.steps_per_round), loss, optimiser, draw, adjust)
        if self.keep_state:
            client.memory["optimiser"] = kept(optimiser, model)
        client.judge(guessed)
        # A client that learned nothing does not count in the average.
        n = len(client.data.labelled) + len(client.data.unlabelled) if steps else 0
        return dict(weights=model.state(), **self.share(client, model), n=n)

    def episode(
        self, client: Client, model: Network, theirs: Sets | None, draw: torch.Generator
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """One local epoch: the loss of equation 8, and the pseudo-labels it used. None if there is nothing to learn from."""
        own, rest, C = client.data.labelled, client.data.unlabelled, len(client.data.classes)
        S, Q = support_and_query(own.y, C, 0 if self.alternative and theirs else self.support, self.query, draw)
        U = torch.randperm(len(rest), generator=draw)[: self.unlabelled] if theirs else torch.empty(0, dtype=torch.int64)
        x = torch.cat([own.inputs(torch.cat([S, Q])), rest.inputs(U)]) if len(U) else own.inputs(torch.cat([S, Q]))
        if len(x) < 2:
            return None, U[:0], U[:0]
        f = model.features(x)
        fS, fQ, fU = f.split([len(S), len(Q), len(U)])
        # Distances: of queries to the own prototypes, thrice with their gradients, and of unlabelled rows to every helper's.
        client.meter.add(2 * C * f.shape[1] * (3 * (len(Q) + len(U)) + len(U) * (len(theirs[0]) if theirs else 0)))
        means, counts = prototypes(fS, own.y[S].to(f.device), C)  # MakePrototype
        present = counts > 0
        if theirs:
            average_theirs, known = mean_over(theirs)
            # A class without support at the client gets the mean of the helpers' prototypes; in Algorithm 2 all classes do.
            means = torch.where(present[:, None], means, average_theirs)
            present = present | known
        loss = f.new_zeros(())
        useful = present[own.y[Q].to(f.device)]
        if useful.any():
            logits = prototype_logits(fQ[useful], means, self.mean, present)
            loss = loss + cross_entropy(logits, own.y[Q].to(f.device)[useful])
        labels = U[:0]
        if theirs and len(U):
            target = self.pseudo_labels(fU, theirs)
            labels = target.argmax(1).cpu()
            target = target * present
            logits = prototype_logits(fU, means, self.mean, present).masked_fill(~present, -1e9)
            loss = loss + self.weight * cross_entropy(logits, target / target.sum(1, keepdim=True).clamp(min=1e-12))
        return (loss, U, labels) if loss.requires_grad else (None, U[:0], labels[:0])

    def pseudo_labels(self, features: Tensor, theirs: Sets) -> Tensor:
        """Equations 6, 7 and 5: the mean over helpers of the class probabilities, sharpened."""
        if self.preset != "code":
            features = features.detach()
        return sharpen(votes(features, theirs, self.mean), self.temperature)

    @torch.no_grad()
    def share(self, client: Client, model: Network) -> dict:
        """Line "MakePrototype(θ, D^L)": prototypes of all labelled rows, noisy and withheld as section 7.1 has it."""
        model.eval()
        own, C = client.data.labelled, len(client.data.classes)
        means, counts = prototypes(outputs(model.features, own, model.features_dim or 0), own.y, C)
        shared = counts >= max(self.least, 1)
        if self.noise:
            stream = Stream(fresh_secret(), context("prototype noise"))
            means = means + self.noise * torch.from_numpy(stream.normal(tuple(means.shape))).float()
        return dict(means=torch.where(shared[:, None], means, 0.0), present=shared)

    # ------------------------------------------------------------ server

    def setup(self, server: Server) -> dict:
        hello = server.ask(self.hello)
        if not any(reply["pairs"] for reply in hello.values()):
            raise Mistake(
                "protofssl: no client has two labels of one class (for a support and a query): give clients more labels."
            )
        most, singles = max(reply["most"] for reply in hello.values()), sum(reply["singles"] for reply in hello.values())
        few = f"no client has more than {most} labels of a class"
        if self.least > most:
            raise Mistake(f"protofssl: least={self.least} withholds every prototype, since {few}: use --set least={most}.")
        server.note(classes_with_one_label=singles)
        warn = logging.getLogger("grapevine").warning
        if singles:
            warn(f"protofssl: {singles} times a client has one label of a class: it gives a prototype, and nothing to classify.")
        if self.support >= most:
            kept = f"one of them is kept for the query, as with --set support={most - 1}"
            warn(f"protofssl: support={self.support}, and {few}: {kept}.")
        return dict(weights=server.model().state(), helpers={}, sets={}, classes=len(server.classes), round=0)

    def round(self, server: Server, state: dict) -> dict:
        round, sets = state["round"], state["sets"]
        M = server.sample(round)
        helpers = state["helpers"]
        if round % self.interval == 0 or not helpers:  # H_r ⊆ M_{r−1}
            helpers = {i: sets[i] for i in server.sample(round, sets, self.helpers, "helpers")}
        each = {i: dict(helpers={j: h for j, h in helpers.items() if self.own_helper or j != i}) for i in M}
        C, d = len(server.classes), server.model().features_dim
        form = dict(means=Array("float32", (C, d)), present=Array("bool", (C,)))
        replies = server.ask(self.train, each=each, form=lambda id: form, weights=state["weights"], round=round)
        shared = {i: r for i, r in replies.items() if "present" in r and r["present"].any()}
        fresh = {i: dict(means=r["means"], present=r["present"]) for i, r in shared.items()}
        learned = {i: r for i, r in replies.items() if r["n"]}
        bases.note_diversity(server, [subtract(r["weights"], state["weights"]) for r in learned.values()])
        weights = average(learned, by=None if self.preset == "code" else "n", otherwise=state["weights"])
        return dict(state, weights=weights, helpers=helpers, sets=fresh or sets, round=round + 1)

    # ------------------------------------------------------------ prediction

    def shared(self, state: dict) -> dict:
        return dict(weights=state["weights"], sets={str(i): s for i, s in state["sets"].items()}, classes=state["classes"])

    def predictor(self, model: Network, shared: dict) -> Predict:
        """Softmax of the distances to the latest prototypes, averaged over the clients that sent them."""
        model.load(shared["weights"]).eval()
        theirs = stack(shared.get("sets", {}), next(model.parameters()).device)  # an empty dict is not saved

        def predict(x: Tensor) -> Tensor:
            if theirs is None:  # before the first round there are no prototypes: no class is likelier than another
                return torch.full((len(x), int(shared["classes"])), 1 / int(shared["classes"]), device=x.device)
            return votes(model.features(x), theirs, self.mean)

        return predict


def support_and_query(y: Tensor, classes: int, support: int, query: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of the support and the query rows of every class, at random and disjoint; support comes first, and of two rows or
    more one is left for the query."""
    S, Q = [y.new_empty(0)], [y.new_empty(0)]
    for k in range(classes):
        rows = torch.nonzero(y == k).flatten()
        rows = rows[torch.randperm(len(rows), generator=draw)]
        n_S = min(support, max(len(rows) - 1, 1))
        S.append(rows[:n_S])
        Q.append(rows[n_S : n_S + query])
    return torch.cat(S), torch.cat(Q)
