"""The server: a method's program asks clients through it, whatever carries the messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grapevine.core.account import Account
from grapevine.core.errors import Later, Mistake
from grapevine.core.meter import Meter
from grapevine.core.method import Id, Method, rng
from grapevine.core.reply import Form, problem
from grapevine.core.rows import Rows
from grapevine.core.sums import Replies
from grapevine.core.tensors import torch
from grapevine.core.words import many

if TYPE_CHECKING:
    from grapevine.core.network import ModelSource, Network

Forms = Callable[[Id], Mapping[str, Form]]
"""Of a client's answer, what its fields must be."""


class StepError(Exception):
    """An error inside a step, prefixed with client, step and round."""


class Transport:
    """What carries requests, in one process (`run.simulate`) or between machines (`parties.flower`).

    Subclass it with `exchange`. The other methods are for transports that know more: operations at the clients, pseudo-labels
    compared with a known truth, and clients' memories for checkpoints.
    """

    flops: int = 0

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        """The replies of those who answered, by id."""
        raise TypeError(f"{type(self).__name__} has no exchange")

    def gather(self, step: str, requests: dict[Id, dict], round: int, into: Inbox) -> None:
        """Pass every reply on as it arrives, in any order and from any thread. A transport that can then frees it."""
        for id, reply in self.exchange(step, requests, round).items():
            into.take(id, reply)

    def take_judged(self) -> dict[str, dict[str, int]]:
        """What `client.judge` recorded since the last call, by head."""
        return {}

    def state(self) -> tuple[dict, list[str]]:
        """For a checkpoint: a JSON value, and the names of the stored objects that it needs."""
        return {}, []

    def restore(self, state: dict) -> None:
        """Continue from a checkpoint's state."""

    def say(self, sentence: str) -> None:
        """A message for people, such as a dropped reply."""
        logging.getLogger("grapevine").warning(sentence)

    def close(self) -> None:
        """Release threads and connections."""


class Inbox:
    """The replies to one question. Each is counted and checked as it arrives, and fields that are only averaged are added up."""

    def __init__(self, server: Server, name: str, step: Callable, requests: dict[Id, dict], form: Forms | None):
        self._server, self._name, self._step, self._requests, self._form = server, name, step, requests, form
        self._summed = summed(step)
        self.replies, self.bad, self.account = Replies(), dict[Id, str](), Account()

    def take(self, id: Id, reply: Any) -> None:
        self.account.add(self._server.now, self._name, "up", id, reply)
        wrong = problem(self._step, self._requests[id], reply, self._form(id) if self._form else None)
        if wrong is None:
            self.replies.take(id, self._requests[id], reply, self._summed)
        else:
            self.bad[id] = wrong


class Server:
    """What the server's program sees. `clients` are all ids, in order. The run stops if fewer than `quorum` clients still
    answer."""

    masked = False
    """True where replies are everybody's mean (`learn.averages`), and nothing of single clients can be measured."""

    def __init__(
        self, method: Method, clients: Iterable[Id], transport: Transport, models: ModelSource | None, classes: tuple[str, ...],
        seed: int = 0, per_round: int | None = None, rounds: int = 1, data: Rows | None = None, quorum: int = 0,
    ):  # fmt: skip
        self.method, self.clients, self.classes, self.data = method, sorted(clients), classes, data
        self.seed, self.rounds, self.quorum = seed, rounds, quorum
        self.per_round = min(per_round or len(self.clients), len(self.clients))
        self.account = Account()
        self.meter = Meter()
        self.now = 0  # the round under way, for the account and for error messages
        self.notes: dict[str, float | list[Id]] = {}
        self.left_out: dict[Id, str] = {}  # whose reply was bad, and why the last of them was
        self._gone: set[Id] = set()  # did not answer when last asked
        self.transport, self._models = transport, models
        self._names = {(id(bound.__self__), bound.__func__): name for name, bound in method.steps().items()}

    def ask(self, step: Any, to: Iterable[Id] | None = None, each: Mapping[Id, dict] | None = None, *,
            everybody: bool = False, form: Forms | None = None, **same: Any) -> dict[Id, dict]:  # fmt: skip
        """Ask clients to run a step. `same` goes to all of them, and `each[id]` to one.

        A client that does not answer, or whose answer is invalid, is an absent key in the result. `form` says what fields of the
        answer must be. With `everybody`, a missing answer stops the run. Fields that the step calls `averaged` are added up as
        they arrive, and `learn.average` returns their mean.
        """
        name = self._names.get((id(step.__self__), step.__func__))
        if name is None:
            raise Mistake(f"'{step.__name__}' is not a step of {self.method.name}: mark it with @step.")
        ids = sorted(to if to is not None else each if each is not None else self.clients)
        requests = {i: {**same, **(each[i] if each is not None else {})} for i in ids}
        for i, payload in requests.items():
            self.account.add(self.now, name, "down", i, payload)
        inbox = Inbox(self, name, step, requests, form)
        self.transport.gather(name, requests, self.now, inbox)
        self.account.merge(inbox.account.parts())
        replies = self._good(name, inbox)
        missing = [i for i in ids if i not in replies]
        if everybody and missing:
            raise Mistake(
                f"step {name} needs a reply from every client, but none came from {_list(missing)} in round {self.now}."
            )
        self._require_quorum(name, missing, replies)
        return replies

    def _good(self, name: str, inbox: Inbox) -> Replies:
        """The valid replies in the order of ids. An invalid reply counts as missing, and its sender is named."""
        for i, wrong in sorted(inbox.bad.items()):
            self.leave_out(i, f"step {name}", wrong)
        if inbox.bad and not inbox.replies:
            raise Mistake(f"no reply to step {name} in round {self.now} was usable; client {i}: {wrong}.")
        return inbox.replies.in_order()

    def leave_out(self, id: Id, what: str, why: str) -> None:
        """Treat an invalid reply as missing, and name its sender to people and in the results."""
        self.left_out[id] = f"{what} of round {self.now}: {why}"
        self.transport.say(f"client {id} is left out of {what} in round {self.now}: {why}.")

    def _require_quorum(self, name: str, missing: list[Id], replies: dict[Id, dict]) -> None:
        self._gone = (self._gone | set(missing)) - set(replies)
        left = len(self.clients) - len(self._gone)
        if self.quorum and (left < self.quorum or not replies):
            gone = ", ".join(str(i) for i in sorted(self._gone))
            raise Later(
                f"{left} of {many(len(self.clients), 'party', 'parties')} still answer after step {name} of round {self.now}, "
                f"and the quorum is {self.quorum}: {gone} must `grapevine join` again, then start the host again."
            )

    def sample(self, round: int, among: Iterable[Id] | None = None, count: int | None = None, name: str = "sample") -> list[Id]:
        """Choose `--per-round` (or `count`) clients by seed and round."""
        ids = sorted(self.clients if among is None else among)
        count = min(self.per_round if count is None else count, len(ids))
        order = torch.randperm(len(ids), generator=self.rng(name, round))
        return sorted(ids[i] for i in order[:count].tolist())

    def model(self, weights: dict | None = None) -> Network:
        if self._models is None:
            raise TypeError(f"{self.method.name} trains no network")
        return self._models.new(weights, self.meter)

    def rng(self, *names: int | str) -> torch.Generator:
        return rng(self.seed, "server", *names)

    def note(self, **notes: float | list[Id]) -> None:
        """Add numbers, or clients, to this round's line of the history."""
        self.notes.update(notes)


def summed(step: Callable) -> frozenset[str]:
    """The fields of a step's reply that are added up as they arrive: all that are averaged, if some are by who trained on what.
    (Statistics of everybody are small, and their means are the method's business.)"""
    said = getattr(step, "averaged", {})
    said = said(step.__self__) if callable(said) else said  # type: ignore[attr-defined]
    return frozenset(said) if set(said.values()) - {"all"} else frozenset()


def _list(ids: list[Id], most: int = 5) -> str:
    text = ", ".join(f"client {i}" for i in ids[:most])
    return text if len(ids) <= most else f"{text} and {len(ids) - most} more"
