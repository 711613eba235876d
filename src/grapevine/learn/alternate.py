"""What methods share whose labels are at the server: fix and mix sets, training in turns, statistics of static normalisation.

SemiFL and FedAnchor differ in where pseudo-labels come from and in what the server adds; the rest is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from grapevine.core import Client, Id, Method, Server
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn import Weights
from grapevine.learn.losses import cross_entropy, mixup
from grapevine.learn.networks import Network
from grapevine.learn.normalisation import batch_statistics, combine_statistics, load_statistics

MANY = 1000  # labels at the server from which its batches are large
SMALL_BATCH, LARGE_BATCH = 10, 250


# ---------------------------------------------------------------- checks


def check_labels_at_server(method: Method, server: Server) -> None:
    """Refuse a server without labels, with labels of one class, or without labels of a class that clients may have."""
    if server.data is None or not len(server.data):
        raise Mistake(f"{method.name} needs labels at the server: say --labels server:500.")
    present = server.data.y.unique().tolist()
    if len(present) < 2:
        one = server.classes[present[0]]
        raise Mistake(
            f"{method.name}: the server's labelled rows are all of class '{one}': say --labels server:500 for all classes."
        )
    lacking = [name for k, name in enumerate(server.classes) if k not in present]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise Mistake(f"{method.name}: the server has no labelled row of class '{lacking[0]}'{more}, which clients may have: "
                      "give it one of every class, or take mp-ssfl.")  # fmt: skip


# ---------------------------------------------------------------- training


def annealed(lr: float, t: int, rounds: int) -> float:
    """The learning rate of round t: half a cosine over all rounds."""
    return lr * (1 + math.cos(math.pi * t / rounds)) / 2


def server_batch(asked: int, rows: int) -> int:
    """The batch size at the server: as asked, or for 0 what SemiFL takes for so many rows."""
    return asked or (LARGE_BATCH if rows > MANY else SMALL_BATCH)


def sgd(model: Network, lr: float, momentum: float, weight_decay: float) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=momentum > 0)


def descend(model: Network, optimiser: torch.optim.SGD, loss: Tensor, clip: float) -> None:
    """A step down the gradient, no longer than `clip`."""
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()


def fit_fix_mix(
    model: Network, rows: Rows, labels: Tensor, fix: Tensor, lr: float, epochs: int, rng: torch.Generator, batch: int = 10,
    momentum: float = 0.9, weight_decay: float = 5e-4, clip: float = 1.0, mix: float = 1.0, beta: float = 0.75,
    strong: bool = True,
) -> int:  # fmt: skip
    """Epochs over the fix set, the rows at positions `fix`, each with a mix batch drawn from all rows; the number of steps.

    `labels` has a class for every row. `mix` is the weight of the mix loss, 0 for none.
    """
    model.train()
    model.use_rng(rng)
    views, labels = Views(rows), labels.to(rows.device)
    optimiser = sgd(model, lr, momentum, weight_decay)
    steps = 0
    for _ in range(epochs):
        for at in fix[torch.randperm(len(fix), generator=rng)].split(batch) if len(fix) else ():
            other = torch.randint(len(rows), (len(at),), generator=rng)  # with replacement
            loss = fix_mix_loss(model, views, labels, at, other, rng, mix, beta, strong)
            descend(model, optimiser, loss, clip)
            steps += 1
    return steps


def fix_mix_loss(
    model: Network, views: Views, labels: Tensor, fix: Tensor, other: Tensor, rng: torch.Generator, mix: float, beta: float,
    strong: bool,
) -> Tensor:  # fmt: skip
    """l(f(A(x_fix)), ŷ_fix) + mix · [λ l(f(x_mix), ŷ_fix) + (1 − λ) l(f(x_mix), ŷ_mix)], x_mix = λ α(x_fix) + (1 − λ) α(x_mix).

    A is the strong view (or the weak one), α the weak one, λ ~ Beta(beta, beta) one for the batch.
    """
    x = views.strong(fix, rng) if strong else views.weak(fix, rng)
    loss = cross_entropy(model(x), labels[fix])
    if not mix:
        return loss
    theirs = views.weak(other, rng), labels[other]
    mixed, (y, y_other), share = mixup(views.weak(fix, rng), labels[fix], rng, beta, theirs)
    logits = model(mixed)
    return loss + mix * (share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y_other))


@torch.no_grad()
def outputs(
    function: Callable[[Tensor], Tensor], rows: Rows, view: Callable[[Tensor], Tensor], width: int, batch: int = 500
) -> Tensor:
    """`function` of a view of every row, in order, (rows, width)."""
    pieces = [function(view(at)).cpu() for at in torch.arange(len(rows)).split(batch)] if len(rows) else []
    return torch.cat([torch.empty(0, width), *pieces])


# ---------------------------------------------------------------- static batch normalisation


def own_statistics(model: Network, rows: Rows) -> dict[str, Tensor]:
    """Sums over these rows, per channel, for `combine_statistics`; empty for a model without static normalisation."""
    return batch_statistics(model, (x for x, _ in rows.batches(LARGE_BATCH)))


def statistics_reply(client: Client, weights: Weights) -> dict:
    """What a client's `statistics` step answers: sums of activations over its rows, and of their squares."""
    return dict(statistics=own_statistics(client.model(weights), client.data.unlabelled))


def ask_statistics(server: Server, step: Callable, weights: Weights, to: Iterable[Id]) -> dict[str, Tensor]:
    """Mean and variance of every static layer over the server's rows and these clients'; nobody is asked if there is no layer."""
    own = own_statistics(server.model(weights), server.data)
    if not own:
        return {}
    replies = server.ask(step, to=to, weights=weights)
    return combine_statistics([own, *(reply["statistics"] for reply in replies.values())])


def shared(state: dict) -> dict:
    """What `predictor` needs: the weights, and the statistics if there are any."""
    return {name: state[name] for name in ("weights", "statistics") if state[name]}


def loaded(model: Network, statistics: dict[str, Tensor]) -> Network:
    """The model ready to predict, with its statistics if there are any."""
    return (load_statistics(model, statistics) if statistics else model).eval()
