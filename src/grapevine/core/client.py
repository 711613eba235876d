"""The client: what a step sees of its party, and how a step is run by name."""

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
    """What a step sees of the party it runs at.

    `identity` is the party's long-term key, and `pinned` has everybody's public keys. `common_seed` is True if all clients have
    this seed, as in a simulation; real parties draw their own unless they agreed on one. `ledger` records every sum that the
    party's rows go into, before they do.
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
        """A new network with these weights, or with the initial ones."""
        if self._models is None:
            raise TypeError("this job trains no network")
        return self._models.new(weights, self.meter)

    def rng(self, *names: int | str) -> torch.Generator:
        return rng(self.seed, "client", self.id, *names)

    def seed_of(self, *names: int | str) -> int:
        """The seed of the same stream, for numpy's generators."""
        return seed_of(self.seed, "client", self.id, *names)

    def test(self, predict: Predict) -> dict:
        """The reply of an `evaluate` step: confusion matrices (true class × prediction) on the held-out rows, for reporting
        and, if the client has such rows, for choosing the best state."""
        held = dict(confusion=self.data.test, validation=self.data.validation)
        counts = len(self.data.classes)
        return {name: confusion(guesses(predict, rows), rows.y, counts) for name, rows in held.items() if rows is not None}

    def judge(
        self, labels: Tensor | Callable[[], Tensor], used: Tensor | None = None, head: str = "", confidence: Tensor | None = None
    ) -> None:
        """Record which labels a method gives the unlabelled rows (−1 for none), which of them it uses, and how sure it is.

        In a simulation, where the truth is known, the history then shows how many are right. Elsewhere this does nothing. `head`
        names labels that the method only compares with its own. Given as a function, they are computed only where they can be
        judged, and their operations are not counted.
        """
        if not self._judge:
            return
        if callable(labels):
            flops = self.meter.flops
            labels = labels()
            self.meter.flops = flops
        self._judge(labels, labels >= 0 if used is None else used, head, confidence)


def run_step(method: Method, name: str, client: Client, payload: dict) -> dict:
    """Run one step by name, as every transport does."""
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
