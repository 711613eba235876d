"""Four words: method, step, client, server. `docs/write-a-method.md` shows how to write your own method.

A method is a frozen dataclass whose fields are the paper's hyperparameters. Functions marked `@step` run where the data is and
get a `Client`. `setup` and `round` are the server's program and get a `Server`. Nothing here knows whether the two talk inside
one process or over a network; that is up to the transport.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from grapevine.core.errors import Mistake
from grapevine.core.param import check, read
from grapevine.core.reply import Form
from grapevine.core.tensors import torch
from grapevine.core.words import hint

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.core.client import Client
    from grapevine.core.network import Network
    from grapevine.core.server import Server

Id = int | str
Predict: TypeAlias = "Callable[[Tensor], Tensor]"
Word = str | Callable[[Any], str]
"""What a field of a reply reveals: words, or a function of the method that gives them."""


def step(
    function: Callable | None = None, *, reveals: Mapping[str, Word] | None = None,
    like: Mapping[str, str | Form] | Callable[[Any], Mapping[str, str | Form]] | None = None,
    averaged: Mapping[str, str] | Callable[[Any], Mapping[str, str]] | None = None,
) -> Callable:  # fmt: skip
    """Mark a function that runs at a client. The server can only ask for marked functions.

    `reveals` says for every field of the reply what it tells the server. The party sees these words, and they are logged when the
    reply leaves. `like` says which fields of the reply have the form (names, types, shapes) of a field of the request, as trained
    weights do, and which have a form of their own; a reply of another form is dropped. `averaged` says that the server needs only
    means of these fields, and what each is weighted by: "n", "one" (each client that trained) or "all" (each client that
    answered). `learn.averages` can then mask them. `like` and `averaged` may be functions of the method.
    """

    def mark(function: Callable) -> Callable:
        function.is_step, function.reveals, function.like = True, dict(reveals or {}), like or {}  # type: ignore[attr-defined]
        function.averaged = averaged or {}  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


HELD_OUT = dict(
    confusion="how many held-out rows of each class were taken for which class",
    validation="the same, on the held-out rows that the best round is chosen by",
)


def party_name(id: Id) -> str:
    """An id as the protocols write it, so that names of numbers sort like the numbers."""
    return id if isinstance(id, str) else f"{id:06d}"


def seed_of(seed: int, *names: int | str) -> int:
    """Randomness by name: the stream depends on the seed and the names alone, never on order or threads."""
    key = json.dumps([seed, *names]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def rng(seed: int, *names: int | str) -> torch.Generator:
    """torch's generator for a stream."""
    return torch.Generator().manual_seed(seed_of(seed, *names))


# ---------------------------------------------------------------- methods and sub-protocols


@cache
def _steps_of(kind: type) -> tuple[str, ...]:
    """Looked for once: a job asks for the list with every message."""
    return tuple(n for n, member in inspect.getmembers(kind, inspect.isfunction) if getattr(member, "is_step", False))


@dataclass(frozen=True)
class Steps:
    """What a method and a sub-protocol have in common: named steps and settings."""

    name: ClassVar[str]

    def steps(self, prefix: str = "") -> dict[str, MethodType]:
        """The allow-list of steps by name; those of a sub-protocol in field `f` are called `f.step`."""
        kind: type = type(self)
        found = {prefix + name: getattr(self, name) for name in _steps_of(kind)}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, SubProtocol):
                found.update(value.steps(f"{prefix}{f.name}."))
        return found

    def __post_init__(self) -> None:
        """Every field within what its `param` allows, whoever made the object."""
        check(self, self.name)

    def reveals(self, step: str, field: str) -> str | None:
        """What a field of a step's reply tells the server; None if it is not stated."""
        bound = self.steps().get(step)
        if bound is None:
            return None
        word = getattr(bound, "reveals", {}).get(field)
        return word(bound.__self__) if callable(word) else word

    def settings(self) -> dict[str, Any]:
        """The fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: dict(kind=v.name, **v.settings()) if isinstance(v, SubProtocol) else v for name, v in values.items()}


class SubProtocol(Steps):
    """A frozen dataclass with its own steps and a `run(server, …)`. A method holds it as a field."""

    name: ClassVar[str]


class Method(Steps):
    """The base class of all methods. Subclass it as a frozen dataclass with `name`, `setup`, `round` and steps."""

    name: ClassVar[str]
    title: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset({"clients", "both"})
    """Where labels may lie: "clients", "server", "both"."""
    reveal: ClassVar[bool] = False
    """True for an upper bound: the driver gives every row its true label."""
    logits: ClassVar[bool] = True
    """True when the network must end in class scores; False for a method that predicts from features alone."""
    personal: ClassVar[bool] = False
    """True when every client ends with a model of its own: then `evaluate` is asked, and there is no `predictor`."""
    extra: ClassVar[str] = ""
    """What a method spends besides the fields that are a budget (epochs, batch, …), in words, for comparisons."""
    seeks_labels: ClassVar[bool] = False
    """True when a round chooses clients by whether they have labels."""
    private: ClassVar[str] = ""
    """The method's own name, if a client's rows reach its replies only through `learn.private.fit_own`, so that `--dp` covers
    every one of them. It then has the fields `epochs` and `batch`, and chooses clients by `server.sample(round)`. A method that
    is made from such a one has another name, so it is not covered until it says so itself."""
    agrees: ClassVar[bool] = False
    """True when its set-up leaves clients with keys that they agreed on (`crypto.session`)."""

    def spent(self, at_server: int) -> dict[str, Any]:
        """The fields with the values that act where the server has so many labelled rows, for comparisons of budgets."""
        return self.settings()

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int | None:
        """The most that a client with so many rows takes in a round, for comparisons of budgets. None: nobody knows."""
        return None

    def individual(self) -> str:
        """Why the server needs each client's own reply, if averages cannot be masked."""
        return ""

    def setup(self, server: Server) -> dict:
        """The state before round 0."""
        return dict(weights=server.model().state(), round=0)

    def round(self, server: Server, state: dict) -> dict:
        """Run one round and return the new state, which must be a value of the codec."""
        raise TypeError(f"{type(self).__name__} has no round")

    def network(self, base: Network) -> Network:
        """The model as this method needs it (with a second head or a projector), the same on both sides."""
        return base

    def shared(self, state: dict) -> dict:
        """The part of the state that `predictor` needs. It is saved as the model."""
        return dict(weights=state["weights"])

    def predictor(self, model: Network, shared: dict) -> Predict:
        """A function from x to class probabilities. It asks no client."""
        model.load(shared["weights"]).eval()
        return lambda x: model(x).softmax(1)

    def latent(self, model: Network, x: Tensor) -> Tensor:
        """The rows before the last layer, for pictures. `model` is one that `predictor` has prepared."""
        return model.features(x)

    @step(reveals=HELD_OUT)
    def evaluate(self, client: Client, shared: dict) -> dict:
        """Measure the model on the client's held-out rows."""
        return client.test(self.predictor(client.model(), shared))

    def candidates(self, rounds: int) -> tuple[int, ...]:
        """Rounds that are always measured, whatever --evaluate-every says, so that their state can be the best."""
        return ()

    def check(self, server: Server) -> None:
        """Raise a `Mistake` for settings that cannot work, before the run."""


def parameters(method: type[Steps]) -> list[Field]:
    """The fields that have words of their own: sub-protocols without a choice have none."""
    return [f for f in fields(method) if "text" in f.metadata]


def with_settings(method: type[Method], texts: Mapping[str, str]) -> Method:
    """A method from `--set field=value` texts, each read as its field's type."""
    known = {f.name: f for f in fields(method)}
    values = {}
    for name, text in texts.items():
        if name not in known:
            raise Mistake(f"{method.name} has no field '{name}'{hint(name, known)}: it has {', '.join(known) or 'none'}.")
        values[name] = _read(method, known[name], text)
    return method(**values)


def _read(method: type[Method], f: Field, text: str) -> Any:
    """A field's value; a sub-protocol is read by what its field says in `param(…, named=…)`."""
    if not isinstance(f.default, SubProtocol):
        return read(f, text, method.name)
    if text == f.default.name:
        return f.default
    if "named" not in f.metadata:
        raise Mistake(f"{method.name}: {f.name} cannot be set to '{text}'.")
    return f.metadata["named"](text)
