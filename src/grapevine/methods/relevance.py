"""The two baselines of MP-SSFL that pick relevant rows by their given labels. No code of either is public: these are
reimplementations from their description.

`rds`: Nagalapatti, Mittal, Narayanam: "Is Your Data Relevant?: Dynamic Selection of Relevant Data for Federated Learning",
AAAI 2022 (FLRD). Each client learns a private relevance predictor g(x, y) ∈ [0, 1] by policy gradients (REINFORCE): it draws a
subset of its rows, trains on it, and hears from the server how much its model lowers the loss on the server's rows. Our
choices: g is an MLP on the global model's features and class probabilities of x and on y; the reward is the fall of the loss
less its moving average.

`tuor`: Tuor, Wang, Ko, Liu, Leung: "Overcoming Noisy and Irrelevant Data in Federated Learning", ICPR 2020. A benchmark model,
trained on a part of the server's rows, gives a loss to each row; the threshold λ is where the losses up to λ of all clients
are distributed most like those of the server's other rows (least Kolmogorov–Smirnov distance). **Every client reveals the loss
of each of its labelled rows to the server** (sorted, so not which row has which).

Both use labelled rows alone; unlabelled rows are excluded. Averages are by the number of rows trained on. What a client finds
relevant stays in its memory as "relevant", one truth value per labelled row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grapevine.core import Client, Method, Network, Server, param, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT, Array, Form
from grapevine.core.rows import Rows
from grapevine.learn import average, bases, fit
from grapevine.learn.labels import one_hot
from grapevine.learn.layers import linear
from grapevine.learn.training import fit_finite, outputs, steps_of

LOSSES = "THE LOSS OF EVERY LABELLED ROW under the server's model, sorted, not which row it is"
REVEALS = dict(weights=bases.MODEL, n=bases.USED)
LIKE: dict[str, str | Form] = dict(weights="weights", n=COUNT)
CANDIDATES = 1000  # most thresholds that are tried


def losses(model: Network, rows: Rows, classes: int) -> Tensor:
    """The cross-entropy of each row's given label."""
    return F.cross_entropy(outputs(model.eval(), rows, classes), rows.y, reduction="none")


# ---------------------------------------------------------------- Tuor et al.


@dataclass(frozen=True)
class Tuor(Method):
    """FedAvg on the rows whose loss under the server's benchmark model is below a threshold."""

    name = "tuor"
    title = "Tuor et al. 2020, reimplemented: a loss threshold; the server learns the loss of every labelled row"
    extra = "a benchmark model at the server first"
    takes = frozenset({"both"})

    benchmark: float = param(0.7, "", "share of the server's rows for the benchmark; the rest give losses", above=0, below=1)
    server_epochs: int = param(30, "", "passes over the server's rows for the benchmark model", least=1)
    server_batch: int = param(10, "", "batch size at the server", least=1)
    server_lr: float = param(0.05, "", "learning rate at the server", above=0)
    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes per round over the relevant rows", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)

    def check(self, server: Server) -> None:
        n = sum(self._parts(server))
        if min(self._parts(server)) < 1:
            raise Mistake(f"tuor: the server's {n} rows cannot be divided into two sets: use --labels server:500,clients:all.")

    def individual(self) -> str:
        return "the server needs the loss of every labelled row"

    def _parts(self, server: Server) -> list[int]:
        n = len(bases.own_rows(server))
        return [round(n * self.benchmark), n - round(n * self.benchmark)]

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=dict(losses=LOSSES), like=dict(losses=Array("float32", (None,))))
    def measure(self, client: Client, benchmark: dict) -> dict:
        """The loss of every labelled row under the benchmark model. This reveals them."""
        found = losses(client.model(benchmark), client.data.labelled, len(client.data.classes))
        client.memory["losses"] = found
        return dict(losses=found.sort().values)

    @step
    def select(self, client: Client, threshold: float) -> dict:
        client.memory["relevant"] = client.memory["losses"] <= threshold
        return {}

    @step(reveals=REVEALS, like=LIKE)
    def train(self, client: Client, weights: dict, round: int) -> dict:
        rows = client.data.labelled.take(torch.nonzero(client.memory["relevant"]).flatten())
        return train_on(client, self, weights, rows, round)

    def setup(self, server: Server) -> dict:
        rows = bases.own_rows(server)
        order = torch.randperm(len(rows), generator=server.rng("benchmark"))
        first, rest = (rows.take(at) for at in order.split(self._parts(server)))
        model = server.model()
        fit_finite(model, first, self.server_lr, self.server_epochs, server.rng("train benchmark"), self.server_batch)
        replies = server.ask(self.measure, benchmark=model.state())
        theirs = torch.cat([torch.empty(0), *(reply["losses"] for reply in replies.values())])
        if not len(theirs):
            raise Mistake("tuor: no client has a labelled row: use --labels server:500,clients:all.")
        threshold = loss_threshold(losses(model, rest, len(server.classes)).numpy(), theirs.numpy())
        server.note(threshold=threshold)
        done = server.ask(self.select, to=replies, threshold=threshold)
        told = dict(benchmark=model.state(), threshold=threshold, selected=bases.answered(server, server.clients, done))
        return dict(told, weights=server.model().state(), round=0)

    def round(self, server: Server, state: dict) -> dict:
        chosen, selected = server.sample(state["round"]), state["selected"]
        late = [id for id in chosen if id not in selected]  # whoever missed the selection makes it when it is chosen
        if late:
            measured = server.ask(self.measure, to=late, benchmark=state["benchmark"])
            done = server.ask(self.select, to=measured, threshold=state["threshold"])
            selected = selected | bases.answered(server, late, done)
        chosen = [id for id in chosen if selected.get(id)]
        replies = server.ask(self.train, to=chosen, weights=state["weights"], round=state["round"])
        weights = average(replies, otherwise=state["weights"])
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(state, weights=weights, selected=selected, round=state["round"] + 1)


def loss_threshold(benchmark: np.ndarray, clients: np.ndarray, candidates: int = CANDIDATES) -> float:
    """λ among the clients' losses with the least KS distance between the benchmark's losses and the clients' up to λ.

    With more losses than `candidates`, as many of them, equally spaced by rank, are tried. The largest of equals is taken.
    """
    P, V = np.sort(clients.astype(np.float64)), np.sort(benchmark.astype(np.float64))
    # F_V at each client's loss, and just below it: between two of them the clients' distribution does not move.
    at, below = (np.searchsorted(V, P, side) / len(V) for side in ("right", "left"))
    last = np.flatnonzero(np.append(P[1:] > P[:-1], True)) + 1  # how many losses are up to each distinct value
    tried = last[np.unique(np.linspace(0, len(last) - 1, min(candidates, len(last))).round().astype(int))]
    ranks = np.searchsorted(P, P, "right"), np.searchsorted(P, P, "left")
    best, threshold = np.inf, P[-1]
    for m in tried:
        distance = max(np.abs(at[:m] - ranks[0][:m] / m).max(), np.abs(below[:m] - ranks[1][:m] / m).max())
        if distance <= best:
            best, threshold = distance, P[m - 1]
    return float(threshold)


# ---------------------------------------------------------------- RDS


@dataclass(frozen=True)
class RDS(Method):
    """FedAvg on rows that each client's relevance predictor picks; the server's rewards train the predictors."""

    name = "rds"
    title = "RDS, reimplemented: relevance predictors trained by rewards (Nagalapatti et al. 2022)"
    extra = "the loss of every model on the server's rows"
    takes = frozenset({"both"})

    hidden: int = param(64, "", "hidden units of a relevance predictor", least=1)
    selector_lr: float = param(0.1, "", "learning rate of a relevance predictor", above=0)
    window: int = param(20, "T", "rewards that the moving average, subtracted from a reward, spans", least=1)
    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes per round over the picked rows", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)

    def check(self, server: Server) -> None:
        bases.own_rows(server)

    def individual(self) -> str:
        return "the server measures each client's model to reward it"

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=REVEALS, like=LIKE)
    def train(self, client: Client, weights: dict, round: int) -> dict:
        """Draw rows by their relevance, train on them, and keep ∇ log π of the draw until the reward comes."""
        rows, draw = client.data.labelled, client.rng("train", round)
        if not len(rows):
            return dict(n=0)
        inputs = self._inputs(client.model(weights), rows, len(client.data.classes))
        selector = self._selector(client, inputs.shape[1])
        logits = selector(inputs)[:, 0]
        g = torch.sigmoid(logits.detach())
        picked = torch.bernoulli(g, generator=draw)
        score = -F.binary_cross_entropy_with_logits(logits, picked, reduction="sum")  # log π(picked)
        gradient = torch.autograd.grad(score, list(selector.parameters()))
        client.memory["selector"] = selector.state_dict()
        client.memory["gradient"] = dict(zip(selector.state_dict(), gradient))
        client.memory["relevant"] = g >= 0.5
        return train_on(client, self, weights, rows.take(torch.nonzero(picked).flatten()), round)

    @step
    def reward(self, client: Client, advantage: float) -> dict:
        """φ ← φ + α · advantage · ∇ log π."""
        selector, gradient = client.memory["selector"], client.memory["gradient"]
        client.memory["selector"] = {name: w + self.selector_lr * advantage * gradient[name] for name, w in selector.items()}
        return {}

    def _loss(self, server: Server, weights: dict) -> float:
        return losses(server.model(weights), bases.own_rows(server), len(server.classes)).mean().item()

    def _inputs(self, model: Network, rows: Rows, classes: int) -> Tensor:
        """The features at length 1, class probabilities and given label of every row."""

        def of(x: Tensor) -> Tensor:
            f = model.features(x)
            return torch.cat([F.normalize(f, dim=1), model.head(f).softmax(1)], 1)

        model.eval()
        return torch.cat([outputs(of, rows, 0), one_hot(rows.y, classes)], 1)

    def _selector(self, client: Client, inputs: int) -> nn.Sequential:
        draw = client.rng("selector")
        selector = nn.Sequential(linear(inputs, self.hidden, draw), nn.ReLU(), linear(self.hidden, 1, draw))
        if "selector" in client.memory:
            selector.load_state_dict(client.memory["selector"])
        else:
            for w in selector[2].parameters():
                nn.init.zeros_(w)  # every row begins with a relevance of one half
        return selector

    def setup(self, server: Server) -> dict:
        return dict(weights=server.model().state(), baseline=0.0, round=0)

    def round(self, server: Server, state: dict) -> dict:
        t, weights, baseline = state["round"], state["weights"], state["baseline"]
        replies = server.ask(self.train, to=server.sample(t), weights=weights, round=t)
        used = {id: reply for id, reply in replies.items() if reply["n"]}
        before = self._loss(server, weights)
        rewards = {id: before - self._loss(server, reply["weights"]) for id, reply in used.items()}
        server.ask(self.reward, each={id: dict(advantage=r - baseline) for id, r in rewards.items()})
        if rewards:
            mean = sum(rewards.values()) / len(rewards)
            server.note(reward=mean)
            baseline += (mean - baseline) / self.window
        new = average(used, otherwise=weights)
        bases.note_diversity(server, bases.moves(used, weights))
        return dict(weights=new, baseline=baseline, round=t + 1)


def train_on(client: Client, method: Tuor | RDS, weights: dict, rows: Rows, round: int) -> dict:
    """FedAvg's ClientUpdate on some rows; no weights if there are none."""
    if not len(rows):
        return dict(n=0)
    model = client.model(weights)
    fit(model, rows, method.lr, method.epochs, client.rng("fit", round), method.batch)
    return dict(weights=model.state(), n=len(rows))
