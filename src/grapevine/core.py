"""Four words: method, step, client, server. See `docs/write-a-method.md` for a method of your own in 40 lines.

A method is a frozen dataclass; its fields are the paper's hyperparameters. Functions marked `@step` run where the data
is and get a `Client`; `setup` and `round` are the server's program and get a `Server`. Nothing here knows whether the
two talk inside one process or over a network: that is the transport's business.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from grapevine import wire
from grapevine.data.rows import ClientData, Rows
from grapevine.errors import Mistake
from grapevine.learn import confusion, guesses
from grapevine.models import Network
from grapevine.store import Memory

if TYPE_CHECKING:
    from grapevine.crypto.agreement import Identity

Id = int | str
Predict = Callable[[Tensor], Tensor]


def step(function: Callable) -> Callable:
    """Mark a function as one that runs at a client. Only marked functions can be asked for."""
    function.is_step = True
    return function


def param(default: Any, symbol: str, text: str) -> Any:
    """A field with the paper's symbol and a few words, for `grapevine methods NAME`."""
    return field(default=default, metadata=dict(symbol=symbol, text=text))


def party_name(id: Id) -> str:
    """An id as the protocols name it: names of numbers sort as the numbers do."""
    return id if isinstance(id, str) else f"{id:06d}"


def rng(seed: int, *names: int | str) -> torch.Generator:
    """Randomness by name: the stream depends on the seed and the names alone, never on order or threads."""
    key = json.dumps([seed, *names]).encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1)


# ---------------------------------------------------------------- methods and sub-protocols


class Steps:
    """What a method and a sub-protocol share: named steps and settings."""

    def steps(self, prefix: str = "") -> dict[str, Callable]:
        """The allow-list: names to bound steps, those of a sub-protocol in field `f` as `f.step`."""
        found = {
            prefix + name: getattr(self, name)
            for name, member in inspect.getmembers(type(self), inspect.isfunction)
            if getattr(member, "is_step", False)
        }
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, SubProtocol):
                found.update(value.steps(f"{prefix}{f.name}."))
        return found

    def settings(self) -> dict[str, Any]:
        """The fields as plain values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: dict(kind=v.name, **v.settings()) if isinstance(v, SubProtocol) else v for name, v in values.items()}


class SubProtocol(Steps):
    """A frozen dataclass with steps of its own and a `run(server, …)`; a method holds it as a field."""

    name: ClassVar[str]

    def named(self, text: str) -> SubProtocol:
        """Another protocol of this kind, by its name: for `--set field=name`."""
        raise Mistake(f"{self.name} cannot be exchanged for '{text}'.")


class Method(Steps):
    """Subclass as a frozen dataclass; give `name`, `setup` and `round`, and steps."""

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
    seeks_labels: ClassVar[bool] = False
    """True when a round chooses clients by whether they have labels."""

    def setup(self, server: Server) -> dict:
        """The state before round 0."""
        return dict(weights=server.model().state(), round=0)

    def round(self, server: Server, state: dict) -> dict:
        """One round: a new state. A state is a value of the codec."""
        raise TypeError(f"{type(self).__name__} has no round")

    def network(self, base: Network) -> Network:
        """The model as this method needs it (a second head, a projector): the same on both sides."""
        return base

    def shared(self, state: dict) -> dict:
        """The part of the state that `predictor` needs: what is saved as the model."""
        return dict(weights=state["weights"])

    def predictor(self, model: Network, shared: dict) -> Predict:
        """x → class probabilities. Asks nobody."""
        model.load(shared["weights"]).eval()
        return lambda x: torch.softmax(model(x), 1)

    def latent(self, model: Network, x: Tensor) -> Tensor:
        """Where rows lie before the last layer, for pictures: `model` is one that `predictor` has made ready."""
        return model.features(x)

    @step
    def evaluate(self, client: Client, shared: dict) -> dict:
        """How well the model does on the client's held-out rows."""
        return client.test(self.predictor(client.model(), shared))

    def candidates(self, rounds: int) -> tuple[int, ...]:
        """Rounds of a run after which the state is measured whatever --evaluate-every says, so that it can be the best one."""
        return ()

    def check(self, server: Server) -> None:
        """Raise a `Mistake` for settings that cannot work, before the run."""


def parameters(method: type[Steps]) -> list[Field]:
    return list(fields(method))


def with_settings(method: type[Method], texts: Mapping[str, str]) -> Method:
    """A method from `--set field=value` texts, each read as its field's type."""
    known = {f.name: f for f in fields(method)}
    values = {}
    for name, text in texts.items():
        if name not in known:
            raise Mistake(f"{method.name} has no field '{name}': it has {', '.join(known) or 'none'}.")
        values[name] = _read(method, known[name], text)
    return method(**values)


def _read(method: type[Method], f: Field, text: str) -> Any:
    if isinstance(f.default, SubProtocol):
        return f.default.named(text)
    kind = type(f.default) if f.default is not MISSING else str
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise Mistake(f"{method.name}: {f.name}={text} is not {_A[kind]}, as in {f.name}={f.default}.") from None


_A = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


# ---------------------------------------------------------------- models, made on demand


class ModelSource:
    """Makes networks: built once, tried on one row, then copied. The operations of every pass through a copy are counted."""

    def __init__(self, build: Callable[[], Network], sample: Tensor, device: str = "cpu"):
        self._build, self._sample, self.device = build, sample, device
        self._lock = threading.Lock()
        self._template: Network | None = None

    def new(self, weights: dict | None, meter: Meter) -> Network:
        with self._lock:
            if self._template is None:
                self._template = self._build().to(self.device)
                _try(self._template, self._sample.to(self.device))
        model = counted(copy.deepcopy(self._template), meter)
        return model if weights is None else model.load(weights)


def _try(model: Network, sample: Tensor) -> None:
    """A network that cannot take the rows is known before the run."""
    with torch.no_grad():
        # Two rows: a normalisation may need more than one. A copy: batches may not move the template's statistics.
        copy.deepcopy(model).eval()(torch.cat([sample, sample]))


@dataclass
class Meter:
    """Floating-point operations: all, those of them in backward passes, and those outside of networks."""

    flops: int = 0
    backward: int = 0
    outside: int = 0

    def add(self, flops: int) -> None:
        """What a step computes outside of a network, as 2 · multiply-adds."""
        self.flops += flops
        self.outside += flops


def counted(module: torch.nn.Module, meter: Meter) -> torch.nn.Module:
    """The module, counting 2 · multiply-adds of its convolutions and linear layers; the rest is small beside them.

    An output takes as many multiply-adds as one filter has weights. A backward pass takes as many once more for the weights, and
    again for the layer's inputs where these have a gradient; it is counted when it happens.
    """
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if getattr(weight, "ndim", 0) >= 2:
            layer.register_forward_hook(_counter(meter, 2 * (weight.numel() // len(weight))))
    return module


def _counter(meter: Meter, per_output: int) -> Callable:
    def count(layer: torch.nn.Module, inputs: tuple, output: Tensor) -> None:
        cost = per_output * output.numel()
        meter.flops += cost
        if output.requires_grad:
            back = cost * (layer.weight.requires_grad + any(x.requires_grad for x in inputs))

            def count_backward(gradient: Tensor) -> None:
                meter.flops += back
                meter.backward += back

            output.register_hook(count_backward)

    return count


# ---------------------------------------------------------------- client


class Client:
    """What a step sees of the party it runs at. `identity` is its own long-term key, `pinned` everybody's public ones.

    `common_seed`: all clients have this seed, as in a simulation. Real parties draw their own, unless they agreed on one.
    """

    def __init__(
        self, id: Id, data: ClientData, memory: Memory, models: ModelSource | None, seed: int,
        identity: Identity | None = None, pinned: Mapping[str, bytes] | None = None, judge: Callable | None = None,
        common_seed: bool = True,
    ):  # fmt: skip
        self.id, self.data, self.memory, self.seed, self.common_seed = id, data, memory, seed, common_seed
        self.identity, self.pinned = identity, pinned or {}
        self.meter = Meter()
        self._models, self._judge = models, judge

    @property
    def name(self) -> str:
        return party_name(self.id)

    def model(self, weights: dict | None = None) -> Network:
        """A new network, with these weights or the first ones."""
        return self._models.new(weights, self.meter)

    def rng(self, *names: int | str) -> torch.Generator:
        return rng(self.seed, "client", self.id, *names)

    def test(self, predict: Predict) -> dict:
        """The confusion matrix (true class × prediction) on the held-out rows: the reply of an `evaluate` step."""
        rows = self.data.test
        return dict(confusion=confusion(guesses(predict, rows), rows.y, len(self.data.classes)))

    def judge(
        self, labels: Tensor | Callable[[], Tensor], used: Tensor | None = None, head: str = "", confidence: Tensor | None = None
    ) -> None:
        """Tell what labels a method gives the unlabelled rows (−1: none), which it uses, and how sure it is of each.

        In a simulation, where the truth is known, the history then shows how many are right. Elsewhere nothing happens.
        `head` names labels that the method only compares its own with; given as a function, they are computed where they can be
        judged and nowhere else, and their operations are not counted.
        """
        if not self._judge:
            return
        if callable(labels):
            flops = self.meter.flops
            labels = labels()
            self.meter.flops = flops
        self._judge(labels, labels >= 0 if used is None else used, head, confidence)


def run_step(method: Method, name: str, client: Client, payload: dict) -> dict:
    """Run one step by its name, as every transport does."""
    allowed = method.steps()
    if name not in allowed:
        raise Mistake(f"'{name}' is not a step of {method.name}.")
    try:
        inspect.signature(allowed[name]).bind(client, **payload)
    except TypeError as error:
        raise Mistake(f"step {name} cannot take this message: {error}.") from None
    reply = allowed[name](client, **payload)
    if not isinstance(reply, dict):
        raise Mistake(f"step {name} returned {type(reply).__name__}: a step returns a dict.")
    return reply


# ---------------------------------------------------------------- server


class StepError(Exception):
    """An error inside a step, with client, step and round in front."""


class Transport(Protocol):
    """What carries requests: in one process (`simulate`) or between machines (`flower`)."""

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]: ...


class Server:
    """What the server's program sees. `clients` are all ids, in order."""

    def __init__(
        self, method: Method, clients: Iterable[Id], transport: Transport, models: ModelSource, classes: tuple[str, ...],
        seed: int = 0, per_round: int | None = None, rounds: int = 1, data: Rows | None = None,
    ):  # fmt: skip
        self.method, self.clients, self.classes, self.data = method, sorted(clients), classes, data
        self.seed, self.rounds = seed, rounds
        self.per_round = min(per_round or len(self.clients), len(self.clients))
        self.account = wire.Account()
        self.meter = Meter()
        self.now = 0  # the round under way, for the account and for error messages
        self.notes: dict[str, float | list[Id]] = {}
        self._transport, self._models = transport, models
        self._names = {(id(bound.__self__), bound.__func__): name for name, bound in method.steps().items()}

    def ask(self, step: Callable, to: Iterable[Id] | None = None, each: Mapping[Id, dict] | None = None, *,
            everybody: bool = False, **same: Any) -> dict[Id, dict]:  # fmt: skip
        """Ask clients for a step: `same` to all of them, `each[id]` on top. A client that does not answer is an absent key.

        With `everybody`, a missing answer stops the run with a sentence.
        """
        name = self._names.get((id(step.__self__), step.__func__))
        if name is None:
            raise Mistake(f"'{step.__name__}' is not a step of {self.method.name}: mark it with @step.")
        ids = sorted(to if to is not None else each if each is not None else self.clients)
        requests = {i: {**same, **(each[i] if each is not None else {})} for i in ids}
        for i, payload in requests.items():
            self.account.add(self.now, name, "down", i, payload)
        replies = self._transport.exchange(name, requests, self.now)
        for i in sorted(replies):
            self.account.add(self.now, name, "up", i, replies[i])
        missing = [i for i in ids if i not in replies]
        if everybody and missing:
            raise Mistake(f"step {name} needs everybody, and no answer came from {_list(missing)} in round {self.now}.")
        return {i: replies[i] for i in ids if i in replies}

    def sample(self, round: int, among: Iterable[Id] | None = None, count: int | None = None, name: str = "sample") -> list[Id]:
        """`--per-round` (or `count`) of the clients, chosen by seed and round."""
        ids = sorted(self.clients if among is None else among)
        count = min(self.per_round if count is None else count, len(ids))
        order = torch.randperm(len(ids), generator=self.rng(name, round))
        return sorted(ids[i] for i in order[:count].tolist())

    def model(self, weights: dict | None = None) -> Network:
        return self._models.new(weights, self.meter)

    def rng(self, *names: int | str) -> torch.Generator:
        return rng(self.seed, "server", *names)

    def note(self, **notes: float | list[Id]) -> None:
        """Numbers, or clients, for this round's line of the history."""
        self.notes.update(notes)


def _list(ids: list[Id], most: int = 5) -> str:
    text = ", ".join(f"client {i}" for i in ids[:most])
    return text if len(ids) <= most else f"{text} and {len(ids) - most} more"
