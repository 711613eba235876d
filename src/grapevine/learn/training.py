"""Training on one client, averaging on the server, evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.learn.networks import Network

Weights = dict[str, Tensor]


def fit(
    model: Network, rows: Rows, lr: float, epochs: int, rng: torch.Generator, batch: int = 50, momentum: float = 0.0,
    weight_decay: float = 0.0, adjust: Callable[[Network], None] | None = None,
) -> int:  # fmt: skip
    """Epochs of SGD with cross-entropy; `adjust` may change the gradients before each step. Returns the number of steps."""
    model.train()
    model.use_rng(rng)
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    steps = 0
    for _ in range(epochs):
        for x, y in rows.batches(batch, rng):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if adjust:
                adjust(model)
            optimiser.step()
            steps += 1
    return steps


def pull(towards: Weights, strength: float) -> Callable[[Network], None]:
    """An `adjust` that adds the gradient of strength/2 · ‖w − towards‖², the proximal term of FedProx."""

    def adjust(model: Network) -> None:
        for name, p in model.named_parameters():
            p.grad.add_(p.detach() - towards[name].to(p.device), alpha=strength)

    return adjust


def push(direction: Weights) -> Callable[[Network], None]:
    """An `adjust` that adds a fixed direction to the gradient, the control variates of SCAFFOLD."""

    def adjust(model: Network) -> None:
        for name, p in model.named_parameters():
            p.grad.add_(direction[name].to(p.device))

    return adjust


def parameter_names(model: Network) -> list[str]:
    """The entries of `model.state()` that are trained (the others are buffers)."""
    return [name for name, _ in model.named_parameters()]


def average(replies: dict[Any, dict], key: str = "weights", by: str | None = "n", otherwise: Weights | None = None) -> Weights:
    """Σ n_k w_k / Σ n_k over the replies, in id order (`by=None`: each counts 1). `otherwise` if nothing weighs anything.

    The sum is in float64, so it does not depend on the size of the federation; integer buffers are rounded.
    """
    share = {id: 1.0 if by is None else float(reply[by]) for id, reply in sorted(replies.items())}
    total = sum(share.values())
    if not total:
        if otherwise is None:
            raise Mistake(f"no client sent {key} to average: nobody answered, or nobody holds labelled rows.")
        return otherwise
    used = {id: replies[id][key] for id, weight in share.items() if weight}
    first_id, first = next(iter(used.items()))
    _check(used, first_id, first)
    out = {}
    for name, like in first.items():
        mean = sum(used[id][name].double() * (share[id] / total) for id in used)
        out[name] = mean.to(like.dtype) if like.is_floating_point() else mean.round().to(like.dtype)
    return out


def _check(used: dict[Any, Weights], first_id: Any, first: Weights) -> None:
    shapes = {name: (w.shape, w.dtype) for name, w in first.items()}
    for id, weights in used.items():
        if {name: (w.shape, w.dtype) for name, w in weights.items()} != shapes:
            raise Mistake(f"client {id} sent weights of another shape than client {first_id}: do both run the same model?")
        check_finite(id, weights)


def check_finite(id: Any, sent: Weights) -> None:
    """Refuse what a client sent after its training diverged."""
    for name, w in sent.items():
        if w.is_floating_point() and not torch.isfinite(w).all():
            raise Mistake(f"client {id} sent '{name}' with values that are not finite: training diverged, try a smaller lr.")


def subtract(a: Weights, b: Weights) -> Weights:
    return {name: a[name] - b[name] for name in b}


def add(a: Weights, b: Weights, scale: float = 1.0) -> Weights:
    """a + scale · b for the entries of b; other entries of a stay."""
    return {name: (value + scale * b[name]).to(value.dtype) if name in b else value for name, value in a.items()}


def require_finite(model: Network, how: str) -> None:
    """A model of the server's that diverged would set every row aside, or none."""
    if not all(w.isfinite().all() for w in model.state().values()):
        raise Mistake(f"the server's model diverged with its {how}: take a smaller one.")
