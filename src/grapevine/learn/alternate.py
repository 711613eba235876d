"""What methods share whose labels are at the server: fix and mix sets, training in turns, statistics of static normalisation.

SemiFL and FedAnchor differ in where pseudo-labels come from and in what the server adds; the rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Id, Method, Network, Predict, Server, step
from grapevine.core.errors import Mistake
from grapevine.core.reply import form_of
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn.bases import own_rows
from grapevine.learn.losses import cross_entropy
from grapevine.learn.mixing import mixup
from grapevine.learn.normalisation import batch_statistics, combine_statistics, load_statistics
from grapevine.learn.training import (
    Weights,
    add,
    clip,
    kept,
    nesterov,
    parameter_names,
    passes,
    resume,
    steps_of,
    subtract,
    train,
)

QUALIFIED = "how many unlabelled rows got a pseudo-label that is used"
MANY = 1000  # labels at the server from which its batches are large
SMALL_BATCH, LARGE_BATCH = 10, 250
VIEWS = ("fixmatch", "semifl")


class Alternating(Method):
    """What these methods have in common: labels at the server alone, and models with or without static normalisation."""

    takes = frozenset({"server"})
    epochs: int
    batch: int
    server_batch: int

    def spent(self, at_server: int) -> dict[str, Any]:
        return super().spent(at_server) | dict(server_batch=server_batch(self.server_batch, at_server))

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(unlabelled, self.batch, self.epochs)

    def check(self, server: Server) -> None:
        check_labels_at_server(self, server)

    @step(
        reveals=dict(statistics="sums of activations over this party's rows and of their squares, layer by layer"),
        averaged=dict(statistics="all"),
    )
    def statistics(self, client: Client, weights: dict) -> dict:
        """For a model with static normalisation."""
        return dict(statistics=own_statistics(client.model(weights), client.data.unlabelled))

    def shared(self, state: dict) -> dict:
        return {name: state[name] for name in ("weights", "statistics") if state[name]}

    def predictor(self, model: Network, shared: dict) -> Predict:
        model = loaded(model.load(shared["weights"]), shared.get("statistics", {}))
        return lambda x: torch.softmax(model(x), 1)


# ---------------------------------------------------------------- checks


def check_labels_at_server(method: Method, server: Server) -> None:
    """Refuse a server without labels, with labels of one class, or without labels of a class that clients may have."""
    present = own_rows(server).y.unique().tolist()
    if len(present) < 2:
        one = server.classes[present[0]]
        raise Mistake(f"{method.name}: the server's rows are all of class '{one}': use --labels server:500 for all classes.")
    lacking = [name for k, name in enumerate(server.classes) if k not in present]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise Mistake(f"{method.name}: the server has no labelled row of class '{lacking[0]}'{more}, which clients may have; "
                      "give it one of every class, or use mp-ssfl.")  # fmt: skip


# ---------------------------------------------------------------- training


def server_batch(asked: int, rows: int) -> int:
    """The batch size at the server: as asked, or for 0 what SemiFL takes for this many rows."""
    return asked or (LARGE_BATCH if rows > MANY else SMALL_BATCH)


@dataclass(frozen=True)
class FixMix:
    """l(f(A(x_fix)), ŷ_fix) + mix · [λ l(f(x_mix), ŷ_fix) + (1 − λ) l(f(x_mix), ŷ_mix)], x_mix = λ α(x_fix) + (1 − λ) α(x_mix).

    A is the strong view (FixMatch's, or SemiFL's by `views`) or the weak one, α the weak one, λ ~ Beta(beta, beta) one for the
    batch. `labels` has a class for every row. `mix` is the weight of the mix loss, 0 for none.
    """

    model: Network
    rows: Rows
    labels: Tensor
    rng: torch.Generator
    mix: float = 1.0
    beta: float = 0.75
    strong: bool = True
    views: str = VIEWS[0]

    def batches(self, fix: Tensor, batch: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Passes over the fix set, the rows at positions `fix`, each batch with a mix batch drawn from all rows."""
        for at in passes(len(fix), batch, epochs, self.rng):
            yield fix[at], torch.randint(len(self.rows), (len(at),), generator=self.rng)  # with replacement

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        (fix, other), views, labels = batch, Views(self.rows), self.labels.to(self.rows.device)
        x = (views.weak if not self.strong else views.semifl if self.views == "semifl" else views.strong)(fix, self.rng)
        loss = cross_entropy(self.model(x), labels[fix])
        if not self.mix:
            return loss
        theirs = views.weak(other, self.rng), labels[other]
        mixed, (y, y_other), share = mixup(views.weak(fix, self.rng), labels[fix], self.rng, self.beta, theirs)
        logits = self.model(mixed)
        return loss + self.mix * (share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y_other))


def descend(
    method: Any, model: Network, batches: Iterable, loss: Callable[[Any], Tensor], lr: float, rng: torch.Generator,
    momentum: dict | None = None,
) -> int:  # fmt: skip
    """SemiFL's SGD: Nesterov momentum, weight decay and the longest gradient are the method's. It continues with `momentum`, if
    given, and leaves there what it ends with."""
    optimiser = nesterov(model, lr, method.momentum, method.weight_decay)
    if momentum is not None:
        resume(optimiser, model, momentum)
    steps = train(model, batches, loss, optimiser, rng, clip(method.clip))
    if momentum is not None:
        momentum.update(kept(optimiser, model))
    return steps


def with_momentum(server: Server, weights: Weights, velocity: Weights, mean: Weights, momentum: float) -> tuple[Weights, Weights]:
    """v ← β_g v + (w − mean), w ← w − v for what is trained; running statistics are the mean's. The weights, and v."""
    names = parameter_names(server.model())
    moved = subtract(weights, {name: mean[name] for name in names})
    velocity = add(moved, velocity, momentum) if velocity else moved
    return {**mean, **subtract(weights, velocity)}, velocity


def note_qualified(server: Server, replies: dict[Id, dict]) -> None:
    """The mean over the clients of how many rows got a pseudo-label that is used."""
    server.note(qualified=sum(r.get("qualified", 0) for r in replies.values()) / max(len(replies), 1))


# ---------------------------------------------------------------- static batch normalisation


def own_statistics(model: Network, rows: Rows) -> dict[str, Tensor]:
    """Sums over these rows, per channel, for `combine_statistics`; empty for a model without static normalisation."""
    return batch_statistics(model, (x for x, _ in rows.batches(LARGE_BATCH)))


def ask_statistics(server: Server, step: Callable, weights: Weights, to: Iterable[Id]) -> dict[str, Tensor]:
    """Mean and variance of every static layer over the server's rows and these clients'; nobody is asked if there is no layer."""
    own = own_statistics(server.model(weights), own_rows(server))
    if not own:
        return {}
    replies = server.ask(step, to=to, form=lambda id: dict(statistics=form_of(own)), weights=weights)
    return combine_statistics([own, *(reply["statistics"] for reply in replies.values())])


def loaded(model: Network, statistics: dict[str, Tensor]) -> Network:
    """The model ready to predict, with its statistics if there are any."""
    return (load_statistics(model, statistics) if statistics else model).eval()
