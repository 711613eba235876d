"""ClientUpdate and ServerUpdate of FedAvg, FedProx and SCAFFOLD, for methods that stand on any of them (`--set base=fedprox`).

A method trains by a function of its own; what differs between the three is what is added to its gradients, what a client sends
back, and how the server adds it up. Buffers (normalisation statistics) are averaged and carry no control variate. Also here: how
far clients moved, for the history; what many methods check before a run; words for what replies reveal.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Id, Method, Network, Server
from grapevine.core.errors import Mistake
from grapevine.core.reply import COUNT
from grapevine.core.rows import Rows
from grapevine.core.sums import Field, Replies
from grapevine.core.words import count
from grapevine.learn.training import Adjust, Weights, add, average, parameter_names, pull, push, subtract

BASES = ("fedavg", "fedprox", "scaffold")
Train = Callable[[Network, Adjust | None], int]
"""Trains the network with this `adjust` of its gradients; returns the number of steps."""

# ---------------------------------------------------------------- what replies reveal, and their form

MODEL = "what a model tells of the rows it was trained on: memorised rows and shares of classes can be guessed from it"
MOVE, GRADIENT = f"how training moved the weights; {MODEL}", f"the mean gradient over this party's rows; {MODEL}"
UPDATE = dict(weights=MODEL, dy=MOVE, dc=GRADIENT)
"""What the fields of `client_update` reveal; what `n` counts is for each method to say."""
USED = "how many of this party's rows were used"
HELD = "how many rows this party has, labelled and not; 0 if it did not train"


def like(method: Any) -> dict[str, Any]:
    """The form of what `client_update` answers, by the method's field `base`."""
    return dict(dy="weights", dc="control.c", n=COUNT) if method.base == "scaffold" else dict(weights="weights", n=COUNT)


def averaged(by: str | Callable[[Any], str]) -> Callable[[Any], dict[str, str]]:
    """The server needs means of what `client_update` answers, by this weight; of Δc the sum, which is the mean of all times their
    number: with masked averages N counts all clients, as SCAFFOLD is printed, since nobody tells who has nothing to train on."""

    def of(method: Any) -> dict[str, str]:
        weight = by if isinstance(by, str) else by(method)
        return dict(dy=weight, dc="all") if method.base == "scaffold" else dict(weights=weight)

    return of


def answered(server: Server, asked: Iterable[Id], replies: Container[Id]) -> dict[Id, bool]:
    """Whose answer can be used and whose cannot; whoever was lost is in neither, and may be asked again."""
    return {id: id in replies for id in asked if id in replies or id in server.left_out}


# ---------------------------------------------------------------- before the run


def own_rows(server: Server) -> Rows:
    """The server's own labelled rows, for a method that needs them."""
    if server.data is None or not len(server.data):
        where = "server:500" if "server" in server.method.takes else "server:500,clients:all"
        raise Mistake(f"{server.method.name} needs labels at the server: use --labels {where}.")
    return server.data


def has_rows(server: Server) -> bool:
    return server.data is not None and len(server.data) > 0


def check_labelled(method: Method, labels: Mapping[Id, int]) -> None:
    """Refuse a federation in which no round could have a client with labels."""
    if not any(labels.values()):
        raise Mistake(f"{method.name}: no client has a labelled row: use --labels clients:1000.")


def check_features_dim(method: Method, server: Server) -> None:
    """A client without rows must know how long a feature vector would be."""
    if server.model().features_dim is None:
        raise Mistake(f"{method.name} needs the length of the network's feature vectors: give your module a `features_dim`.")


def note_unused_labels(method: Method, server: Server) -> None:
    """Say that a method of clients leaves the server's labels aside: what it learns is what the clients' labels teach."""
    if has_rows(server):
        unused = f"the server's {count(len(own_rows(server)))} labelled rows are not used"
        logging.getLogger("grapevine").warning(f"{method.name} learns from the clients' labels alone: {unused}.")


# ---------------------------------------------------------------- the three bases


def first_state(server: Server, base: str) -> dict:
    """What the server keeps besides its method's own: the weights; for SCAFFOLD the control variate c, of how many clients it is
    the mean, which have nothing to train on, and in which round it last heard of each client's."""
    model = server.model()
    weights = model.state()
    zeros = {name: torch.zeros_like(weights[name]) for name in parameter_names(model)} if base == "scaffold" else {}
    return dict(weights=weights, c=zeros, mean_over=0, idle={}, heard={})


def control(state: dict, base: str, ids: Iterable[Id]) -> dict[Id, dict]:
    """What each client is told besides the weights, under the name `control`: nothing, or SCAFFOLD's c and what was heard."""
    told = {id: dict(c=state["c"], heard=state["heard"].get(id, -1)) if base == "scaffold" else {} for id in ids}
    return {id: dict(control=value) for id, value in told.items()}


def own_control(client: Client, control: dict) -> Weights:
    """c_i, as the server knows it.

    A reply may get lost, and c is the mean of all c_i only if both sides count the same ones: a client adopts its newest c_i when
    the server says that it heard of it, and otherwise forgets it.
    """
    newest = client.memory.get("newest", dict(round=-1))
    if newest["round"] == control["heard"] >= 0:
        client.memory["c"] = newest["c"]
    return client.memory.get("c", {name: torch.zeros_like(value) for name, value in control["c"].items()})


def client_update(client: Client, method: Any, told: Mapping[str, Any], train: Train, n: int) -> dict:
    """Train from the weights that the server told, with its control, lr and round; the reply that `server_update` takes.

    The method has the fields `base` and `mu`. `n` is how much the client counts in an average by size.
    """
    weights, control = told["weights"], told["control"]
    model = client.model(weights)
    if method.base != "scaffold":
        train(model, pull(weights, method.mu) if method.base == "fedprox" else None)
        return dict(weights=model.state(), n=n)
    c, c_i = control["c"], own_control(client, control)
    K = train(model, push(subtract(c, c_i)))  # SCAFFOLD, lines 9–10: y_i ← y_i − η_l (g_i(y_i) − c_i + c)
    if not K:
        return dict(n=0)
    y = model.state()
    moved = subtract(weights, {name: y[name] for name in c})
    c_new = add(subtract(c_i, c), moved, 1 / (K * told["lr"]))  # line 12 (ii): c_i − c + (x − y_i)/(K η_l)
    client.memory["newest"] = dict(round=told["round"], c=c_new)  # line 14, once the server has heard of it
    return dict(dy=subtract(y, weights), dc=subtract(c_new, c_i), n=n)  # line 13: (Δy_i, Δc_i)


def server_update(server: Server, base: str, state: dict, replies: dict, by: str | None = "n",
                  among: Iterable[Id] | None = None, global_lr: float = 1.0) -> dict:  # fmt: skip
    """The new weights, and SCAFFOLD's c, from the replies of those who trained on something.

    `global_lr` is SCAFFOLD's η_g, for what is trained: buffers are averaged whatever it is. In c ← c + Σ Δc_i / N, N counts those
    of `among`, whom a round may choose, who have something to train on. c is the mean of their c_i, so that the corrections
    c − c_i cancel among them; when one turns out to have nothing, N shrinks.
    """
    used, x, c = trained(replies), state["weights"], state["c"]
    if base != "scaffold":
        return dict(weights=average(used, by=by, otherwise=x))
    idle = state["idle"] | {id: True for id in replies if id not in used}
    N = max(sum(id not in idle for id in (server.clients if among is None else among)), 1)
    if state["mean_over"] not in (0, N):
        c = {name: w * (state["mean_over"] / N) for name, w in c.items()}
    if used:
        dx = average(used, "dy", by=by)  # line 16
        x = add(x, {name: d * global_lr if name in c else d for name, d in dx.items()})  # line 17
        c = add(c, average(used, "dc", by=None), len(used) / N)
    return dict(weights=x, c=c, mean_over=N, idle=idle, heard=state["heard"] | {id: state["round"] for id in used})


def trained(replies: dict) -> dict:
    """The replies of those who trained on something."""
    used = {id: reply for id, reply in replies.items() if reply["n"]}
    return replies.only(used) if isinstance(replies, Replies) else used


def moves(replies: dict, weights: Weights, key: str = "weights") -> Iterable[Weights] | Field:
    """How far each client that trained has moved, one after the other; or all of them together, where they were added up."""
    if isinstance(replies, Replies) and replies.sums:
        return replies.sums["dy" if "dy" in replies.sums else key]
    return (r["dy"] if "dy" in r else subtract(r[key], weights) for r in replies.values() if r["n"])


def note_diversity(server: Server, updates: Iterable[Weights] | Field) -> None:
    """How much the clients' steps disagree, for the history; nothing if nobody moved, all steps cancel, or all are masked."""
    if server.masked:
        return
    buffers = dict(server.model().named_buffers())
    if isinstance(updates, Field):
        diversity = updates.diversity(without=buffers)
    else:
        diversity = gradient_diversity({name: g for name, g in update.items() if name not in buffers} for update in updates)
    if math.isfinite(diversity):
        server.note(gradient_diversity=diversity)


def gradient_diversity(updates: Iterable[Weights]) -> float:
    """Σ‖g_k‖² / ‖Σ g_k‖² (Yin et al. 2018): 1/m if all m agree, 1 if they are at right angles, ∞ if they cancel.

    Whole numbers are left out; statistics of batch normalisation are not: give it the parameters. One g_k is held at a time.
    """
    alone, total = 0.0, dict[str, Tensor]()
    for update in updates:
        g = {name: value.double() for name, value in update.items() if value.is_floating_point()}
        alone += sum(value.square().sum().item() for value in g.values())
        total = {name: total[name] + value for name, value in g.items()} if total else g
    together = sum(value.square().sum().item() for value in total.values())
    return alone / together if together else math.inf if alone else math.nan
