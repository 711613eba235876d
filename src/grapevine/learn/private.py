"""DP-SGD at a client. Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: "Deep Learning with Differential Privacy", CCS
2016, Algorithm 1.

Every step takes a Poisson sample of the labelled rows, each with the same chance, cuts every row's gradient at length C, adds
them up, adds noise and divides by the expected size of a sample. The sum is one of whole numbers (steps of 2^-32), so that a row
adds at most C to it exactly, and the noise is an exact discrete Gaussian from the operating system; so is the choice of rows.
Sampling, noise and number of steps are those that the accountant counts.

Gradients of single rows are Opacus' (Yousefpour et al. 2021), in its functorch mode: its faster one for convolutions reads memory
as if it were contiguous, and gives other gradients for networks in channels-last order. Noise, clipping and sampling are ours.

Steps have the learning rate, momentum and `adjust` of the method: what is done to a noisy gradient, to weights and to what the
server sent costs nothing more. Noise does not repeat, so such runs are not bit-identical.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grapevine.core.client import Client
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.network import Network, Statistics
from grapevine.core.private import Private
from grapevine.crypto import accountant, fixed, noise
from grapevine.crypto.stream import Stream
from grapevine.data.augment import Views
from grapevine.learn.training import Adjust, chosen, fit, train

WHAT = "a model trained on its labelled rows"  # in the ledger
Batches = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs and labels of rows at these positions."""
AT_ONCE = 1 << 24  # values of single rows' gradients in memory at once
UNIT = "one labelled row of a client, there or blank"
OUTSIDE = (
    "how many labelled rows a client has",
    "the means and deviations that features are scaled by",
    "held-out rows, where clients score the model on their own",
    "rows of the server",
)


def fit_own(client: Client, model: Network, lr: float, epochs: int, round: int, batch: int, adjust: Adjust | None = None,
            augment: bool = False, **how: Any) -> int:  # fmt: skip
    """Epochs with cross-entropy on a client's labelled rows; with noise where the client has a budget for it.

    Returns the number of steps: none once the budget is spent, and the model stays as the server sent it.
    """
    rows, rng = client.data.labelled, client.rng("train", round)
    if client.private is None:
        return fit(model, rows, lr, epochs, rng, batch, adjust, augment, **how)
    if not len(rows):
        return 0
    check_network(model)
    event = plan(client.private, len(rows), batch, epochs, size(model))
    if not _spend(client, client.private, event):
        return 0
    optimiser, drawn, clip = chosen(model, lr, **how), noise.noise_stream(), client.private.clip
    samples = (_poisson(drawn, len(rows), batch) for _ in range(event.count // client.private.rounds))
    views = Views(rows)
    of = (lambda at: (views.weak(at, rng), rows.y[at].to(rows.device))) if augment else rows.batch  # each view of one row
    with _Gradients(model) as gradients:
        loss = partial(_noisy, gradients, of, clip, event.multiplier * clip, min(batch, len(rows)), drawn)
        return train(model, samples, loss, optimiser, rng, adjust)


# ---------------------------------------------------------------- the budget


def plan(budget: Private, rows: int, batch: int, epochs: int, values: int) -> accountant.Gaussian:
    """The plan of all rounds of a client with this many labelled rows, with the least noise that keeps its budget."""
    count = epochs * math.ceil(rows / batch) * budget.rounds
    slack = accountant.slack(accountant.LEAST_MULTIPLIER * budget.clip, values, count)
    event = accountant.Gaussian(1.0, count, min(1.0, batch / rows), slack)
    z = accountant.calibrate(budget.epsilon, budget.delta, [event])
    return accountant.Gaussian(z, count, event.rate, slack)


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def releases(ledger: Ledger, job: str, name: str) -> list[accountant.Gaussian]:
    """What a client has sent so far in a job."""
    lines = [line for line in ledger.lines() if line.get("job") == job and line.get("what") == WHAT and line["parties"] == [name]]
    events = [accountant.from_table(line["mechanism"]) for line in lines]
    return [event for event in events if isinstance(event, accountant.Gaussian)]


def _spend(client: Client, budget: Private, event: accountant.Gaussian) -> bool:
    """Write a round into the ledger before anything is computed, unless all rounds of the budget are there already."""
    if client.ledger is None:
        raise Mistake(f"client {client.id} has a privacy budget but no ledger to record it in.")
    before = len(releases(client.ledger, budget.job, client.name))
    if before >= budget.rounds:
        spent = f"client {client.id} has spent its budget of ε = {budget.epsilon:g} in {before} rounds"
        logging.getLogger("grapevine").warning(f"{spent}: it sends the model back as it came.")
        return False
    once = replace(event, count=event.count // budget.rounds, slack=event.slack / math.sqrt(budget.rounds))  # as √count
    digest = client.ledger.rows(client.data)
    client.ledger.release(job=budget.job, what=WHAT, rows=digest, parties=[client.name], mechanism=accountant.to_table(once))
    return True


# ---------------------------------------------------------------- a step


def _poisson(drawn: Stream, rows: int, batch: int) -> Tensor:
    """Positions of a Poisson sample: every row by itself, with probability batch / rows exactly."""
    if batch >= rows:
        return torch.arange(rows)
    return torch.from_numpy(np.flatnonzero(noise.below(drawn, rows, rows) < batch))


def _noisy(gradients: _Gradients, of: Batches, clip: float, sigma: float, expected: int, drawn: Stream, at: Tensor) -> Tensor:
    """A function of the weights whose gradient is the noisy mean: Σ w · g. An empty sample has noise too."""
    total = np.zeros(size(gradients.model), np.int64)
    for some in at.split(max(1, AT_ONCE // total.size)) if len(at) else ():
        total += noise.clipped(gradients.of(*of(some)), clip).sum(0)
    noisy = fixed.decode(noise.add_noise(total.view(np.uint64), sigma, drawn)) / expected
    found = torch.from_numpy(noisy).float()
    pieces = found.split([p.numel() for p in gradients.model.parameters()])
    terms = [(p * g.view(p.shape).to(p.device)).sum() for p, g in zip(gradients.model.parameters(), pieces)]
    return torch.stack(terms).sum()


class _Gradients:
    """Gradients of single rows of a network, while it is entered."""

    def __init__(self, model: Network):
        self.model = model

    def __enter__(self) -> _Gradients:
        grad_sample = _library()
        for layer in self.model.modules():
            if getattr(layer, "inplace", False):
                setattr(layer, "inplace", False)  # noqa: B010  # hooks see what a layer gave, so nothing may be written over it
        self._hooked = grad_sample.GradSampleModule(self.model, loss_reduction="sum", force_functorch=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooked.remove_hooks()
        for p in self.model.parameters():
            vars(p).pop("grad_sample", None)

    def of(self, x: Tensor, y: Tensor) -> np.ndarray:
        """(rows, values): each row's gradient of its cross-entropy, in float64."""
        F.cross_entropy(self._hooked(x.requires_grad_()), y, reduction="sum").backward()
        found = torch.cat([vars(p)["grad_sample"].flatten(1) for p in self.model.parameters()], 1)
        for p in self.model.parameters():
            vars(p)["grad_sample"] = None  # otherwise the next rows' gradients are put beside them
        if not found.isfinite().all():
            raise Mistake("training with noise diverged: use a smaller learning rate, as in --set lr=0.05.")
        return found.double().cpu().numpy()


def _library() -> Any:
    try:
        from opacus import grad_sample
    except ImportError:
        raise Mistake("training with noise needs the `dp` extra: pip install 'grapevine-fl[dp]'.") from None
    return grad_sample


def check_network(model: Network) -> None:
    """Refuse layers in which rows meet: what one row adds could then not be bounded."""
    for layer in model.modules():
        if isinstance(layer, (nn.modules.batchnorm._BatchNorm, Statistics)):
            raise Mistake("batch normalisation mixes rows, so --dp cannot bound what one row adds: use --norm gn or --norm none.")
        if list(layer.buffers(recurse=False)):
            raise Mistake(
                f"layer {type(layer).__name__} keeps values besides its weights, which --dp would not protect: leave it out."
            )
