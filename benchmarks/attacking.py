"""Attackers on training: each has what it lawfully holds, and wants labels or rows of others. `attacks.py` gives their figures,
`tests/attacks` runs small ones. Every attack gives the share it got right, and the prior: what it would get without the messages.

The server sees what clients answer. It has rows of the same kind (`shadow` clients, whose rows and labels it knows), runs the
very step on them from the weights that it sent, and learns from their answers how to read the others'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from types import MethodType
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor
from torch.nn import functional as F

from grapevine.core import Id, Meter, Method, Transport
from grapevine.core.reply import forms
from grapevine.crypto import fixed
from grapevine.data.split import Split
from grapevine.learn.averages import mean_of, secured
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

Found = dict[str, float]


def over_splits(found: Sequence[Found]) -> Found:
    """Means over the splits; half of Student's 95 % interval of `right`; and the least that it is above the prior, by Student's
    one-sided 95 % interval of the paired differences."""
    n, above = len(found), [one["right"] - one["prior"] for one in found]
    out = {key: mean(one[key] for one in found) for key in found[0]}
    if n > 1:
        out["half"] = float(student.ppf(0.975, n - 1)) * stdev(one["right"] for one in found) / n**0.5
        out["least"] = mean(above) - float(student.ppf(0.95, n - 1)) * stdev(above) / n**0.5
    return out


@dataclass
class Exchange:
    """One step as the server sees it."""

    round: int
    step: str
    requests: dict[Id, dict]
    replies: dict[Id, dict]


class Watched(Simulation):
    """A simulation that keeps what passes through the server."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.seen: list[Exchange] = []

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        replies = super().exchange(step, requests, round)
        self.seen.append(Exchange(round, step, requests, {id: dict(reply) for id, reply in replies.items()}))
        return replies

    def gather(self, step: str, requests: dict[Id, dict], round: int, into: Any) -> None:
        Transport.gather(self, step, requests, round, into)  # by `exchange`, all at once


# ---------------------------------------------------------------- training, as the server sees it


@dataclass
class Training:
    """Victims and shadows of one method, and what was seen of the victims."""

    method: Method
    split: Split
    victims: int
    model: str = "linear"
    rounds: int = 5
    seed: int = 0
    secure: bool = False
    per_round: int | None = None

    def __post_init__(self) -> None:
        parts = self.split.parts
        self.own, self.others = replace(self.split, parts=parts[: self.victims]), replace(self.split, parts=parts[self.victims :])
        made: list[Watched] = []

        def watched(*args: Any, **settings: Any) -> Watched:
            made.append(Watched(*args, **settings))
            return made[0]

        experiment = Experiment(self.method, self.own, simulation=watched, model=self.model, rounds=self.rounds, seed=self.seed,
                                per_round=self.per_round, workers=1, secure_average=self.secure)  # fmt: skip
        self.run = experiment.run()
        self.models = experiment.models()
        steps = {e.step for e in made[0].seen} & {"train", "pretrain"}
        name = "train" if "train" in steps and "pretrain" not in steps else "pretrain"
        self.seen = [e for e in made[0].seen if e.step == name]
        self.first = {e.step: next(iter(e.requests.values())) for e in made[0].seen if e.step == "decide"}

        self.known: dict[int, dict[Id, dict[str, Tensor]]] = {}

    def answers(self, at: int) -> dict[Id, dict[str, Tensor]]:
        """The model that each victim seems to have answered with in a round; a masked answer is read as the sum of one."""
        e = self.seen[at]
        replies = {id: self.opened(at, [reply]) if self.secure else reply for id, reply in e.replies.items()}
        return {id: read(e.requests[id], reply) for id, reply in replies.items() if reply.get("n", len(reply))}

    def mean(self, at: int) -> dict[str, Tensor]:
        """What the server opens of a masked round."""
        e = self.seen[at]
        return read(next(iter(e.requests.values())), self.opened(at, list(e.replies.values())))

    def opened(self, at: int, replies: list[dict]) -> dict[str, Any]:
        """The mean of masked replies, by the layout that clients and server agreed on."""
        e, method = self.seen[at], secured(self.method)
        step: Any = method.steps()[e.step]
        wanted = forms(MethodType(step.plain, method), next(iter(e.requests.values())))
        total = fixed.decode(np.sum([reply["masked"] for reply in replies], 0, dtype=np.uint64))
        return mean_of(step, total, {field: wanted[field] for field in sorted(step.by)}, len(replies))

    def shadows(self, at: int) -> dict[Id, dict[str, Tensor]]:
        """The answers of clients whose rows the server knows, to the same request."""
        if at not in self.known:
            told = {name: value for name, value in next(iter(self.seen[at].requests.values())).items() if name != "average"}
            data = {i: self.others.client(i) for i in range(len(self.others.parts))}
            simulation = Simulation(self.method, data, self.models, self.seed)
            for step, asked in self.first.items():  # what clients are asked once, before they train
                simulation.exchange(step, {i: asked for i in data}, 0)
            replies = simulation.exchange(self.seen[at].step, {i: told for i in data}, at)
            self.known[at] = {i: read(told, reply) for i, reply in replies.items() if reply["n"]}
        return self.known[at]

    def losses(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Of rows under a model, each in float64."""
        model = self.models.new({**before(next(iter(self.seen[0].requests.values()))), **weights}, Meter()).eval()
        with torch.no_grad():
            return F.cross_entropy(model(x).double(), y, reduction="none")


def before(request: dict) -> dict[str, Tensor]:
    return request.get("weights", request.get("student", request.get("backbone")))


def read(request: dict, reply: dict) -> dict[str, Tensor]:
    """The model in a reply."""
    if "dy" in reply:
        return {name: value + reply["dy"][name] for name, value in before(request).items()}
    return reply.get("weights", reply.get("student"))


# ---------------------------------------------------------------- which labels a client has


def label_inference(t: Training) -> dict[str, Found]:
    """Of `labels_of_round`, the mean over the rounds."""
    each = [labels_of_round(t, at) for at in range(len(t.seen))]
    return {name: {key: mean(one[name][key] for one in each) for key in each[0][name]} for name in each[0]}


def labels_of_round(t: Training, at: int) -> dict[str, Found]:
    """Shares of classes among each victim's labels, from how the last layer moved: a `Reader` of the shadows' answers.

    `right` is the share of a client's labels that the guessed histogram has in common with the true one, in the mean over
    clients; the prior is that of guessing for everybody the shares of all clients together, which the mean tells. An attacker who
    reads single answers knows these too, and guesses them for a client that did not train.
    """
    C, old, shadows = len(t.split.dataset.classes), before(next(iter(t.seen[at].requests.values()))), t.shadows(at)
    histograms = [_shares(classes_of(t.others, i), C) for i in shadows]
    reader = Reader([last_layer(model, old) for model in shadows.values()], histograms)
    counts = [torch.bincount(classes_of(t.own, i), minlength=C).numpy() for i in range(t.victims)]
    pooled = np.sum(counts, 0) / np.sum(counts)
    own = {i: c / c.sum() for i, c in enumerate(counts) if c.sum()}
    moved = {i: last_layer(model, old) for i, model in t.answers(at).items()}
    middle = {kind: np.mean([each[kind] for each in moved.values()], 0) for kind in reader.middle}
    guesses = dict(client={i: reader.guess(each, middle, pooled) for i, each in moved.items()})
    if t.secure:
        guesses["mean"] = dict.fromkeys(own, reader.guess(last_layer(t.mean(at), old), reader.middle, reader.shares))
    prior = mean(overlap(pooled, share) for share in own.values())
    return {
        name: dict(right=mean(overlap(guess.get(i, pooled), share) for i, share in own.items()), prior=prior)
        for name, guess in guesses.items()
    }


class Reader:
    """Histograms from how layers moved, by ridge regression on examples of both.

    Features and penalty are those with which each example is read best from the others (leave one out, in closed form). The
    largest penalty reads nothing: if there are no traces, the guess is the shares of all.
    """

    def __init__(self, moved: Sequence[Mapping[str, np.ndarray]], histograms: Sequence[np.ndarray]):
        Y = np.stack(histograms)
        self.shares, self.middle, self.best = Y.mean(0), dict[str, np.ndarray](), -1.0
        for kind in moved[0]:
            X = np.stack([each[kind] for each in moved])
            self.middle[kind] = X.mean(0)
            self._try(kind, X - X.mean(0), X.std(0) + 1e-12, Y)

    def _try(self, kind: str, X: np.ndarray, scale: np.ndarray, Y: np.ndarray) -> None:
        Z = X / scale
        size, U = np.linalg.eigh(Z @ Z.T)
        size = np.maximum(size, 0)
        for penalty in np.append(np.inf, max(size.mean(), 1e-9) * np.logspace(3, -3, 25)):
            hat = U * (size / (size + penalty)) @ U.T + 1 / len(X)
            left_out = Y - (Y - hat @ Y) / (1 - np.diag(hat))[:, None]
            right = mean(overlap(self._histogram(guess), own) for guess, own in zip(left_out, Y))
            if right > self.best:
                self.best, self.chosen = right, (kind, scale, Z.T @ (U / (size + penalty)) @ U.T @ (Y - self.shares))

    def _histogram(self, raw: np.ndarray) -> np.ndarray:
        raw = np.maximum(raw, 0)
        return raw / raw.sum() if raw.sum() else self.shares

    def guess(self, moved: Mapping[str, np.ndarray], middle: Mapping[str, np.ndarray], shares: np.ndarray) -> np.ndarray:
        """The histogram of one of several that moved by `middle` in the mean, and have these shares in all."""
        kind, scale, ridge = self.chosen
        return self._histogram(np.clip((moved[kind] - middle[kind]) / scale, -1e3, 1e3) @ ridge + shares)


def overlap(guess: np.ndarray, share: np.ndarray) -> float:
    return float(np.minimum(guess, share).sum())


def classes_of(split: Split, i: int) -> Tensor:
    """Of a client's labelled rows; where it has none, the true ones of its other rows."""
    own = split.client(i).labelled.y
    return own if len(own) else split.client_truth(i)[1]


def _shares(y: Tensor, classes: int) -> np.ndarray:
    counts = torch.bincount(y, minlength=classes).numpy()
    return counts / max(counts.sum(), 1)


def last_layer(model: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """How the bias of each class moved, with the sum of its weights, or with all of them. If the head is not sent, the same of
    the last layer that is."""
    last = "head" if "head.bias" in old else [name for name in old if name.endswith(".bias")][-1].removesuffix(".bias")
    bias, weight = ((model[name].double() - old[name].double()).numpy() for name in (f"{last}.bias", f"{last}.weight"))
    return dict(sums=np.concatenate([bias, weight.sum(1)]), all=np.concatenate([bias, weight.ravel()]))


def elimination(t: Training) -> Found:
    """Masked averages over another sample of clients in every round: least squares over the rounds, as if a client moved the last
    layer's bias alike in all of them; then the classes whose bias it moves up are taken to be its own."""
    C = len(t.split.dataset.classes)
    rounds = range(len(t.seen))
    who = np.array([[float(i in t.seen[at].replies) for i in range(t.victims)] for at in rounds])
    n = np.array([sum(len(t.own.client(int(i)).labelled) for i in t.seen[at].replies) for at in rounds])  # which the sum tells
    moved = np.stack([(t.mean(at)["head.bias"] - before(next(iter(t.seen[at].requests.values())))["head.bias"]).double().numpy()
                      for at in rounds])  # fmt: skip
    sizes = np.linalg.lstsq(who, n, rcond=None)[0]
    each = np.linalg.lstsq(who * sizes[None] / n[:, None], moved, rcond=None)[0]
    counts = [torch.bincount(t.own.client(i).labelled.y, minlength=C).numpy() for i in range(t.victims)]
    pooled = np.sum(counts, 0) / np.sum(counts)
    guess = np.maximum(pooled + (each - each.mean(0)) / (np.abs(each - each.mean(0)).max() + 1e-12), 0)
    guess /= guess.sum(1, keepdims=True)
    own = [c / c.sum() for c in counts]
    return dict(right=float(np.mean([np.minimum(guess[i], own[i]).sum() for i in range(t.victims)])),
                prior=float(np.mean([np.minimum(pooled, share).sum() for share in own])))  # fmt: skip


# ---------------------------------------------------------------- whose row it is


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """How often a member scores higher than another row: 0.5 is guessing."""
    rank = np.concatenate([members, others]).argsort(kind="stable").argsort(kind="stable")
    return float((rank[: len(members)].sum() - len(members) * (len(members) - 1) / 2) / (len(members) * len(others)))


def membership(t: Training, at: int, masked: bool = False) -> dict[str, Found]:
    """Was this row (with its class) among those that a client trained on? By its loss under the client's answer; by how far
    the answer lowered it; and by how unlikely its confidence is among the shadows', which never saw the row (LiRA, offline).

    `masked`: with the mean, which is all that the server has of the clients then. `right` is the area under the ROC curve.
    """
    old, shadows = before(next(iter(t.seen[at].requests.values()))), t.shadows(at)
    answers = {i: t.mean(at) for i in range(t.victims)} if masked else t.answers(at)
    test = t.split.test_rows("cpu")
    x_out, y_out = test.inputs(torch.arange(len(test))), test.y
    scores: dict[str, list[float]] = dict(loss=[], gain=[], lira=[])
    out = [_logit(t.losses(s, x_out, y_out)) for s in shadows.values()]
    for i, model in answers.items():
        rows = t.own.client(int(i)).labelled
        truth = rows.y
        if not len(rows):
            rows, truth = t.own.client(int(i)).unlabelled, t.own.client_truth(int(i))[1]
        if not len(rows):
            continue
        x, y = rows.inputs(torch.arange(len(rows))), truth
        first = {"in": t.losses(old, x, y), "out": t.losses(old, x_out, y_out)}
        last = {"in": t.losses(model, x, y), "out": t.losses(model, x_out, y_out)}
        reference = {"in": [_logit(t.losses(s, x, y)) for s in shadows.values()], "out": out}
        scores["loss"].append(auc(-last["in"].numpy(), -last["out"].numpy()))
        scores["gain"].append(auc((first["in"] - last["in"]).numpy(), (first["out"] - last["out"]).numpy()))
        z = {side: (_logit(last[side]) - np.mean(reference[side], 0)) / (np.std(reference[side], 0) + 1e-6) for side in reference}
        scores["lira"].append(auc(z["in"], z["out"]))
    return {name: dict(right=float(np.mean(values)), prior=0.5) for name, values in scores.items()}


def _logit(loss: Tensor) -> np.ndarray:
    """log p / (1 − p) of the true class."""
    p = torch.exp(-loss).clamp(1e-12, 1 - 1e-12)
    return (p.log() - (1 - p).log()).numpy()


# ---------------------------------------------------------------- what the server sends: prototypes, anchors, a classifier


def prototypes(method: Any, split: Split, victims: int, seed: int = 0) -> dict[str, Found]:
    """ProtoFSSL: each client's prototypes, which the server sees with its weights, and which go to other clients without them.

    `classes`: which classes a helper has labels of (prior: the commoner answer for every class). `rows`: of a class with one
    label, which of up to 100 rows of that class it is, to the server: the nearest to the prototype (prior: one in 100).
    """
    t = Training(method, split, victims, model="mlp", rounds=2, seed=seed)
    C, e = len(split.dataset.classes), t.seen[0]
    right, there, hits, tries = [], [], 0, 0
    test = split.test_rows("cpu")
    for i, reply in e.replies.items():
        rows = t.own.client(int(i)).labelled
        counts = torch.bincount(rows.y, minlength=C)
        right.append((reply["present"] == (counts > 0)).double().mean().item())
        there.append((counts > 0).double().mean().item())
        model = t.models.new(reply["weights"], Meter()).eval()
        for k in torch.nonzero((counts == 1) & reply["present"]).flatten().tolist():
            own = rows.inputs(torch.nonzero(rows.y == k).flatten())
            others = test.inputs(torch.nonzero(test.y == k).flatten()[:99])
            with torch.no_grad():
                far = (model.features(torch.cat([own, others])) - reply["means"][k]).square().sum(1)
            hits, tries = hits + int(far.argmin() == 0), tries + 1
    share = float(np.mean(there))
    return dict(classes=dict(right=float(np.mean(right)), prior=max(share, 1 - share)),
                rows=dict(right=hits / tries if tries else 0.0, prior=0.01, tried=float(tries)))  # fmt: skip


def anchors(method: Any, split: Split, seed: int = 0) -> Found:
    """FedAnchor: a curious party is sent the server's anchors. Is this row one of the server's? By the largest cosine
    between the row's latent vector and an anchor; `right` is the area under the ROC curve."""
    t = Training(method, split, 1, model="mlp", rounds=1, seed=seed)  # all clients are sent the same
    request = next(iter(t.seen[0].requests.values()))
    model = t.models.new(request["weights"], Meter()).eval()
    own, test = split.server_rows("cpu"), split.test_rows("cpu")
    assert own is not None

    def score(rows: Any) -> np.ndarray:
        with torch.no_grad():
            z = F.normalize(method.latent(model, rows.inputs(torch.arange(len(rows)))), dim=1)
        return (z @ F.normalize(request["anchors"], dim=1).T).amax(1).double().numpy()

    return dict(right=auc(score(own), score(test)), prior=0.5)


def classifier(method: Any, split: Split, seed: int = 0) -> Found:
    """MP-SSFL and clean: a curious party is sent the server's classifier. Is this row one of the server's? By its loss."""
    made: list[Watched] = []

    def watched(*args: Any, **settings: Any) -> Watched:
        made.append(Watched(*args, **settings))
        return made[0]

    experiment = Experiment(method, split, simulation=watched, model="mlp", rounds=1, seed=seed, per_round=None, workers=1)
    experiment.run()
    sent = next(iter(next(e for e in made[0].seen if e.step == "decide").requests.values()))["classifier"]
    model = experiment.models().new(sent, Meter()).eval()
    own, test = split.server_rows("cpu"), split.test_rows("cpu")
    assert own is not None

    def score(rows: Any) -> np.ndarray:
        with torch.no_grad():
            return -F.cross_entropy(model(rows.inputs(torch.arange(len(rows)))).double(), rows.y, reduction="none").numpy()

    return dict(right=auc(score(own), score(test)), prior=0.5)


def curious_client(t: Training) -> dict[str, Found]:
    """Any client of a training run has the models that the server sends it: were these rows another client's?"""
    return {name: found for name, found in membership(t, len(t.seen) - 1, masked=True).items() if name != "lira"}
