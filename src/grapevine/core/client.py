"""The client: what a step sees of the party it runs at, and how a step is run by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.meter import Meter
from grapevine.core.method import Id, Method, Predict, party_name, rng, seed_of
from grapevine.core.private import Private
from grapevine.core.rows import ClientData
from grapevine.core.scores import confusion, guesses
from grapevine.core.store import Memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from grapevine.core.network import ModelSource, Network


class Signer(Protocol):
    """A party's long-term key, as protocols need it (`crypto.agreement.Identity`)."""

    @property
    def public(self) -> bytes: ...

    def sign(self, message: bytes) -> bytes: ...


class Client:
    """What a step sees of the party it runs at. `identity` is its own long-term key, `pinned` everybody's public ones.

    `common_seed`: all clients have this seed, as in a simulation. Real parties draw their own, unless they agreed on one.
    `ledger`: where the party writes down every sum that its rows go into, before they do.
    """

    def __init__(
        self, id: Id, data: ClientData, memory: Memory, models: ModelSource | None, seed: int,
        identity: Signer | None = None, pinned: Mapping[str, bytes] | None = None, judge: Callable | None = None,
        common_seed: bool = True, ledger: Ledger | None = None,
    ):  # fmt: skip
        self.id, self.data, self.memory, self.seed, self.common_seed = id, data, memory, seed, common_seed
        self.identity, self.pinned, self.ledger = identity, pinned or {}, ledger
        self.quorum = 2  # fewer are in no sum that is opened; between real parties it is agreed
        self.private: Private | None = None  # a budget for training with noise (`learn.private`)
        self.meter = Meter()
        self.running: Any = None  # a program in flight: may be gone at any step, and memory then holds what repeats it
        self.agreed: tuple[str, Any] | None = None  # what `crypto.session` read of memory in this step: its digest, and itself
        self._models, self._judge = models, judge

    @property
    def name(self) -> str:
        return party_name(self.id)

    def model(self, weights: dict | None = None) -> Network:
        """A new network, with these weights or the first ones."""
        if self._models is None:
            raise TypeError("this job trains no network")
        return self._models.new(weights, self.meter)

    def rng(self, *names: int | str) -> torch.Generator:
        return rng(self.seed, "client", self.id, *names)

    def seed_of(self, *names: int | str) -> int:
        """The seed of the same stream, for numpy's generators."""
        return seed_of(self.seed, "client", self.id, *names)

    def test(self, predict: Predict) -> dict:
        """Confusion matrices (true class × prediction) on the held-out rows, the reply of an `evaluate` step: of those that are
        reported, and of those that the best state is chosen by, where a client holds them."""
        held = dict(confusion=self.data.test, validation=self.data.validation)
        counts = len(self.data.classes)
        return {name: confusion(guesses(predict, rows), rows.y, counts) for name, rows in held.items() if rows is not None}

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
