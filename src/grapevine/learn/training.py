"""Training: one loop over batches of any kind, functions that change gradients, and averages of the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grapevine.core.errors import Mistake
from grapevine.core.network import Network
from grapevine.core.reply import MOST
from grapevine.core.rows import Rows
from grapevine.core.sums import Replies
from grapevine.data.augment import Views

Weights = dict[str, Tensor]
Adjust = Callable[[nn.Module], None]
"""Changes a network's gradients before a step."""
Batch = TypeVar("Batch")
OPTIMISERS = ("sgd", "rmsprop")


# ---------------------------------------------------------------- the loop


def train(
    model: Network, batches: Iterable[Batch], loss: Callable[[Batch], Tensor | None], optimiser: Any, rng: torch.Generator,
    adjust: Adjust | None = None, after: Callable[[], None] | None = None,
) -> int:  # fmt: skip
    """Take a gradient step for every batch's loss, and return the number of steps.

    A loss of None means nothing to learn from, and no step. The optimiser is torch's, or anything with `zero_grad` and `step`.
    `adjust` may change the gradients before a step, and `after` runs after it. Batches are requested one at a time, so that their
    draws from `rng` come after those of the previous step.
    """
    model.train()
    model.use_rng(rng)
    steps = 0
    for batch in batches:
        value = loss(batch)
        if value is None:
            continue
        optimiser.zero_grad()
        value.backward()
        if adjust:
            adjust(model)
        optimiser.step()
        if after:
            after()
        steps += 1
    return steps


def steps_of(rows: int, batch: int, epochs: int) -> int:
    """How many batches `passes` makes."""
    return epochs * -(-rows // batch)


def passes(rows: int, batch: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Positions of the rows in batches, shuffled again for each pass."""
    for _ in range(epochs if rows else 0):
        yield from torch.randperm(rows, generator=rng).split(batch)


def fit(
    model: Network, rows: Rows, lr: float, epochs: int, rng: torch.Generator, batch: int = 50, adjust: Adjust | None = None,
    augment: bool = False, **how: Any,
) -> int:  # fmt: skip
    """Train for some epochs with cross-entropy, on weak views with `augment`; return the number of steps. `how` is an optimiser
    (SGD if none is named), its momentum and weight_decay."""
    optimiser, views = chosen(model, lr, **how), Views(rows)
    positions = passes(len(rows), batch, epochs, rng)
    if augment:
        batches = ((views.weak(at, rng), rows.y[at].to(rows.device)) for at in positions)
    else:
        batches = (rows.batch(at) for at in positions)
    return train(model, batches, lambda xy: F.cross_entropy(model(xy[0]), xy[1]), optimiser, rng, adjust)


def fit_finite(model: Network, rows: Rows, lr: float, epochs: int, rng: torch.Generator, batch: int) -> None:
    """`fit` for a model that the server sends out unchanged: one that diverged would exclude every row, or none."""
    fit(model, rows, lr, epochs, rng, batch)
    if not all(w.isfinite().all() for w in model.state().values()):
        raise Mistake(f"the server's model diverged with a learning rate of {lr:g}: use a smaller one.")


class SGD:
    """torch.optim.SGD on a processor, to the bit. To make one of torch's optimisers loads torch._dynamo, which nobody else at a
    party needs: some 70 MB."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, nesterov: bool):
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.weight_decay, self.nesterov = weight_decay, nesterov
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for p in self.parameters:
            if p.grad is None:
                continue
            grad = p.grad.add(p, alpha=self.weight_decay) if self.weight_decay else p.grad
            if self.momentum:
                held = self.state.setdefault(p, {})
                if "momentum_buffer" in held:
                    held["momentum_buffer"].mul_(self.momentum).add_(grad)
                else:
                    held["momentum_buffer"] = grad.clone()
                grad = grad.add(held["momentum_buffer"], alpha=self.momentum) if self.nesterov else held["momentum_buffer"]
            p.add_(grad, alpha=-self.lr)


def descent(parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.0, weight_decay: float = 0.0,
            nesterov: bool = False) -> SGD | torch.optim.SGD:  # fmt: skip
    """Stochastic gradient descent: on a graphics card torch's own, which changes all tensors in one call."""
    own = list(parameters)
    make = SGD if all(p.device.type == "cpu" for p in own) else torch.optim.SGD
    return make(own, lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)


def rmsprop(model: Network, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> torch.optim.RMSprop:
    """With the constants of Keras."""
    return torch.optim.RMSprop(model.parameters(), lr, alpha=0.9, eps=1e-7, momentum=momentum, weight_decay=weight_decay)


def chosen(model: Network, lr: float, optimiser: str = "sgd", **how: Any) -> Any:
    """One of `OPTIMISERS` by its name."""
    return rmsprop(model, lr, **how) if optimiser == "rmsprop" else descent(model.parameters(), lr, **how)


def nesterov(model: Network, lr: float, momentum: float, weight_decay: float) -> SGD | torch.optim.SGD:
    """SGD with Nesterov momentum, or plain without any."""
    return descent(model.parameters(), lr, momentum, weight_decay, momentum > 0)


def kept(optimiser: Any, model: nn.Module) -> dict[str, Weights]:
    """What an optimiser remembers about every parameter, by name, for `client.memory`: momentum, mean squares, steps."""
    names: dict[Any, str] = {p: name for name, p in model.named_parameters()}
    return {names[p]: {key: torch.as_tensor(value).cpu() for key, value in held.items() if value is not None}
            for p, held in optimiser.state.items()}  # fmt: skip


def resume(optimiser: Any, model: nn.Module, held: dict[str, Weights]) -> None:
    """Let an optimiser continue with what `kept` returned for a network with the same parameters; with nothing, it starts
    fresh."""
    for name, p in model.named_parameters():
        if name in held:
            optimiser.state[p] = {key: value.clone().to(p.device if value.dim() else "cpu") for key, value in held[name].items()}


def pull(towards: Weights, strength: float) -> Adjust:
    """Adds the gradient of strength/2 · ‖w − towards‖², the proximal term of FedProx."""

    def adjust(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            if p.grad is not None:
                p.grad.add_(p.detach() - towards[name].to(p.device), alpha=strength)

    return adjust


def push(direction: Weights) -> Adjust:
    """Adds a fixed direction to the gradient, the control variates of SCAFFOLD."""

    def adjust(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            if p.grad is not None:
                p.grad.add_(direction[name].to(p.device))

    return adjust


def clip(longest: float) -> Adjust:
    """Shorten gradients that are longer than this."""

    def adjust(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), longest)

    return adjust


@torch.no_grad()
def outputs(of: Callable[[Tensor], Tensor], rows: Rows, width: int, view: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """A function's results for every row, or for a view of it, in order; (0, width) for no rows."""
    if not len(rows):
        return torch.empty(0, width)
    return torch.cat([of((view or rows.inputs)(at)).cpu() for at in torch.arange(len(rows)).split(500)])


# ---------------------------------------------------------------- weights


def parameter_names(model: Network) -> list[str]:
    """The entries of `model.state()` that are trained (the others are buffers)."""
    return [name for name, _ in model.named_parameters()]


def subtract(a: Weights, b: Weights) -> Weights:
    return {name: a[name] - b[name] for name in b}


def add(a: Weights, b: Weights, scale: float = 1.0) -> Weights:
    """a + scale · b for the entries of b; other entries of a stay."""
    return {name: (value + scale * b[name]).to(value.dtype) if name in b else value for name, value in a.items()}


def average(replies: dict[Any, dict], key: str = "weights", by: str | None = "n", otherwise: Weights | None = None) -> Weights:
    """Σ n_k w_k / Σ n_k over the replies, in id order (`by=None`: each counts 1), or `otherwise` if all weights are 0.

    The sum is in float64, and integer buffers are rounded. Replies that were added up as they arrived already have their exact
    sum (`core.sums`).
    """
    if isinstance(replies, Replies) and (key in replies.sums or not any(key in reply for reply in replies.values())):
        return _summed(replies, key, by, otherwise)
    share = {id: 1.0 if by is None else float(reply[by]) for id, reply in sorted(replies.items())}
    for id, weight in share.items():
        if not (math.isfinite(weight) and 0 <= weight <= MOST):
            raise Mistake(f"client {id} has a weight of {weight:g} in an average: {by} must be 0 to {MOST}.")
    total = sum(share.values())
    if not total:
        if otherwise is None:
            raise Mistake(f"no client sent {key} to average: nobody answered, or nobody holds labelled rows.")
        return otherwise
    used = {id: replies[id][key] for id, weight in share.items() if weight}
    first = next(iter(used))
    for id, weights in used.items():
        _check(id, weights, first, used[first])
    out = {}
    for name, like in used[first].items():
        mean = sum(used[id][name].double() * (share[id] / total) for id in used)
        out[name] = mean.to(like.dtype) if like.is_floating_point() else mean.round().to(like.dtype)
    return out


def _summed(replies: Replies, key: str, by: str | None, otherwise: Weights | None) -> Weights:
    if key in replies.sums:
        return replies.sums[key].mean(by)
    if otherwise is None:
        raise Mistake(f"no client sent {key} to average: nobody answered, or nobody holds labelled rows.")
    return otherwise


def _check(id: Any, weights: Weights, first_id: Any, first: Weights) -> None:
    """Refuse weights that do not fit. Replies from `Server.ask` were checked already; others could spoil the average."""
    if {name: (w.shape, w.dtype) for name, w in weights.items()} != {name: (w.shape, w.dtype) for name, w in first.items()}:
        raise Mistake(
            f"client {id} sent weights of a different shape from client {first_id}'s: check that both run the same model."
        )
    for name, w in weights.items():
        if w.is_floating_point() and not torch.isfinite(w).all():
            raise Mistake(f"client {id} sent '{name}' with values that are not finite: training diverged, so try a smaller lr.")
