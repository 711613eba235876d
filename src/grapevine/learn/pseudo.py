"""What methods with pseudo-labels share: two stages and what the first may be, the ratio of labelled clients, batches in two
streams.

FedAvg+XCLP, FedAvg+perclientLP, FedAvg+network and FedSem+ differ in where pseudo-labels come from; the rest is here. FixMatch,
MixMatch, FedSiam and FedRGD take their batches from `streams`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from grapevine.core import Id, Network, Server
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn.layers import linear
from grapevine.learn.losses import nt_xent, one_hot
from grapevine.learn.normalisation import BatchNorm1d
from grapevine.learn.training import Adjust, Weights, passes, train

T_MAX = 4 / 3  # of the stage's rounds: where the cosine would reach 0 (2000 for 1500 rounds in the authors' runs)


def first_stage(rounds: int, warmup: float) -> int:
    """The rounds of stage 1: the share `warmup` of all."""
    return math.ceil(rounds * warmup)


def stage_of(server: Server, first: int, round: int) -> tuple[int, int, int]:
    """(stage 1 or 2, round within it, its rounds), if stage 1 has the `first` rounds."""
    return (1, round, first) if round < first else (2, round - first, server.rounds - first)


def cosine(lr: float, round: int, rounds: int) -> float:
    """The learning rate of a round: a fresh cosine schedule in every stage."""
    return lr * (1 + math.cos(math.pi * round / (T_MAX * rounds))) / 2


def pretrained(own: Weights, folder: str, classes: tuple[str, ...]) -> Weights:
    """The network's first weights, replaced by those of a finished run: all of its features, and its head if that run's classes
    were the same."""
    path = Path(folder) / "model.safetensors"
    if not path.exists():
        raise Mistake(f"{folder} holds no model.safetensors: give the folder of a finished `grapevine train` run.")
    begin = "shared/weights/"
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["grapevine"])
        theirs = {name.removeprefix(begin): file.get_tensor(name) for name in file.keys() if name.startswith(begin)}
    wanted = [name for name in own if name.startswith("features.") or about["classes"] == list(classes) and name in theirs]
    for name in wanted:
        if name not in theirs or theirs[name].shape != own[name].shape:
            raise Mistake(
                f"the run in {folder} ({about['method']} with model {about['model']}) has no '{name}' that fits: take one with "
                "the same --model and --norm, on rows of the same shape."
            )
    return own | {name: theirs[name] for name in wanted}


def projector(width: int, rng: torch.Generator) -> nn.Sequential:
    """SimCLR's g: from feature vectors to 128 dimensions, through a hidden layer as wide as the features, normalised by batch."""
    return nn.Sequential(linear(width, width, rng), BatchNorm1d(width), nn.ReLU(), linear(width, 128, rng))


def contrast(
    model: Network, projector: nn.Module, rows: Rows, lr: float, epochs: int, rng: torch.Generator, batch: int,
    temperature: float, weight_decay: float = 0.0, momentum: float = 0.9,
) -> int:  # fmt: skip
    """SGD on SimCLR's loss between two strong views of every row, labels unseen; the number of steps. Rows alone are skipped."""
    views = Views(rows)

    def loss(at: Tensor) -> Tensor | None:
        if len(at) < 2:  # nothing to tell it from
            return None
        a, b = projector(model.features(torch.cat([views.strong(at, rng), views.strong(at, rng)]))).chunk(2)
        return nt_xent(a, b, temperature)

    trained = [*model.features.parameters(), *projector.parameters()]
    optimiser = torch.optim.SGD(trained, lr, momentum, weight_decay=weight_decay)
    return train(model, passes(len(rows), batch, epochs, rng), loss, optimiser, rng)


def plateau(rate: dict, loss: float, patience: int) -> dict:
    """The learning rate, a third of it after `patience` losses that were no lower than the lowest."""
    if loss < rate["lowest"]:
        return dict(rate, lowest=loss, left=patience)
    if not patience or rate["left"] > 1:
        return dict(rate, left=rate["left"] - 1)
    return dict(rate, lr=rate["lr"] / 3, left=patience)


def sample_by_labels(server: Server, round: int, clients: Iterable[Id], labelled: set[Id]) -> list[Id]:
    """Some of these clients, with and without labels in the ratio they have among all: ⌈τ·m_L⌉ with, the rest without."""
    clients = list(clients)
    count = min(server.per_round, len(clients))
    without = [id for id in clients if id not in labelled]
    n = min(math.ceil(count * len(labelled) / max(len(clients), 1)), len(labelled))
    n = max(n, count - len(without))
    chosen = server.sample(round, labelled, n, "labelled") + server.sample(round, without, count - n, "unlabelled")
    return sorted(chosen)


def two_streams(
    model: Network, labelled: Rows, unlabelled: Rows, labels: Tensor, weight: Tensor, lr: float, epochs: int,
    rng: torch.Generator, batch: int = 50, weight_decay: float = 0.0, momentum: float = 0.0, class_weight: Tensor | None = None,
    augment: bool = True, adjust: Adjust | None = None,
) -> int:  # fmt: skip
    """SGD on batches B = B_L ∪ B_U (appendix A.2): |B_L| = min(batch, labels), |B_U| = |B_L|; the number of steps.

    An epoch is one pass over the pseudo-labelled rows (−1 among `labels`: left out), or over the labelled ones if there are no
    others; a client without labels takes batches of 2·batch. The loss is the mean of cross-entropy · weight · class weight, with
    weight 1 for a true label.
    """
    used = torch.nonzero((labels >= 0) & (weight > 0)).flatten()
    own, others = Views(labelled), Views(unlabelled)
    size = min(batch, len(labelled)) or 2 * batch

    def batches() -> Iterator[tuple[Tensor | None, Tensor | None]]:
        for _ in range(epochs):
            truths = _endless(len(labelled), size, rng)
            order = used[torch.randperm(len(used), generator=rng)].split(size) if len(used) else ()
            for at in order or (None,) * -(-len(labelled) // size):
                yield next(truths), at

    def loss(batch: tuple[Tensor | None, Tensor | None]) -> Tensor:
        x, y, w = _batch(own, others, *batch, labels, weight, augment, rng)
        w = w if class_weight is None else w * class_weight.to(y.device)[y]
        return (F.cross_entropy(model(x), y, reduction="none") * w).mean()

    optimiser = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    return train(model, batches(), loss, optimiser, rng, adjust)


def _endless(n: int, size: int, rng: torch.Generator) -> Iterator[Tensor | None]:
    """Batches of positions below n, shuffled anew after each pass; None for ever if there are none."""
    while True:
        if not n:
            yield None
        else:
            yield from torch.randperm(n, generator=rng).split(size)


def streams(labelled: int, unlabelled: int, batch: int, ratio: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """For ever: positions of `batch` labelled and of `ratio` · `batch` unlabelled rows, each shuffled anew after its own pass.

    A pass's last batch may be smaller; where there are no rows of a kind, its positions are empty.
    """
    nothing = torch.empty(0, dtype=torch.int64)
    for a, b in zip(_endless(labelled, batch, rng), _endless(unlabelled, ratio * batch, rng)):
        yield nothing if a is None else a, nothing if b is None else b


def epoch_steps(labelled: int, unlabelled: int, batch: int, ratio: int) -> int:
    """Steps of an epoch in two streams: one pass over the unlabelled rows, or over the labelled ones if there are no others."""
    return -(-unlabelled // (ratio * batch)) if unlabelled else -(-labelled // batch)


def vote(own: Tensor, answers: list[Tensor], preset: str = "paper") -> Tensor:
    """The class that most name, of a model's own probabilities and its helpers'. A tie goes to the model's own class, with
    preset=code to the smallest number."""
    C = own.shape[1]
    votes = one_hot(own.argmax(1), C) * (1.0 if preset == "code" else 1.5)
    return sum((one_hot(answer.argmax(1), C) for answer in answers), votes).argmax(1)


def _batch(own: Views, others: Views, a: Tensor | None, b: Tensor | None, labels: Tensor, weight: Tensor, augment: bool,
           rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x, y, w = [], [], []
    for views, at in ((own, a), (others, b)):
        if at is None:
            continue
        x.append(views.weak(at, rng) if augment else views.plain(at))
        y.append(views.rows.y[at] if views is own else labels[at])
        w.append(torch.ones(len(at)) if views is own else weight[at].float())
    device = x[0].device
    return torch.cat(x), torch.cat(y).to(device), torch.cat(w).to(device)
