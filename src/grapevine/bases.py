"""ClientUpdate and ServerUpdate of FedAvg, FedProx and SCAFFOLD, for methods that stand on any of them (`--set base=fedprox`).

A method trains by a function of its own; what differs between the three is what is added to its gradients, what a client sends
back, and how the server adds it up. Buffers (normalisation statistics) are averaged and carry no control variate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from grapevine.core import Client, Server
from grapevine.errors import Mistake
from grapevine.learn import Weights, add, average, parameter_names, pull, push, subtract
from grapevine.models import Network

BASES = ("fedavg", "fedprox", "scaffold")
Train = Callable[[Network, Callable[[Network], None] | None], int]
"""Trains the network with this `adjust` of its gradients; returns the number of steps."""


def check(name: str, base: str) -> None:
    if base not in BASES:
        raise Mistake(f"{name}: base={base} is not known: take {', '.join(BASES)}.")


def first_state(server: Server, base: str) -> dict:
    """What the server keeps besides its method's own: the weights, and for SCAFFOLD the control variate c."""
    model = server.model()
    weights = model.state()
    zeros = {name: torch.zeros_like(weights[name]) for name in parameter_names(model)} if base == "scaffold" else {}
    return dict(weights=weights, c=zeros)


def client_update(client: Client, base: str, weights: Weights, c: Weights, lr: float, mu: float, train: Train, n: int) -> dict:
    """Train from `weights`; the reply that `server_update` takes. `n` is how much the client counts in an average by size."""
    model = client.model(weights)
    if base != "scaffold":
        train(model, pull(weights, mu) if base == "fedprox" else None)
        return dict(weights=model.state(), n=n)
    c_i = client.memory.get("c", {name: torch.zeros_like(value) for name, value in c.items()})
    K = train(model, push(subtract(c, c_i)))
    if not K:
        return dict(n=0)
    y = model.state()
    moved = subtract(weights, {name: y[name] for name in c})
    c_new = add(subtract(c_i, c), moved, 1 / (K * lr))
    client.memory["c"] = c_new
    return dict(dy=subtract(y, weights), dc=subtract(c_new, c_i), n=n)


def server_update(server: Server, base: str, state: dict, replies: dict, by: str | None = "n") -> dict:
    """The new weights (and c) from the replies of those who trained on something."""
    used = {id: reply for id, reply in replies.items() if reply["n"]}
    weights, c = state["weights"], state["c"]
    if not used:
        return dict(weights=weights, c=c)
    if base != "scaffold":
        return dict(weights=average(used, by=by), c=c)
    c = add(c, average(used, "dc", by=None), len(used) / len(server.clients))
    return dict(weights=add(weights, average(used, "dy", by=by)), c=c)
