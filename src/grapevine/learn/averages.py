"""Masked averages (`--secure-average`): the server learns the mean of the clients' replies, and no client's own.

A step that says `averaged` needs only means of its reply: `averaged=dict(weights="n")` is Σ n·weights / Σ n. `secured(method)`
is the same method with such steps masked; the method's own program does not change.

    before the first round   average_keys, average_meet: a signed key of every client (XCLP's own are used where there are some)
    client j → server        Z̃^(j) = encode(n_j · weights_j, …, n_j, 1[n_j > 0]) + M^(j)        (`crypto.sums`, SecureSum)
    server                   Σ_j Z̃^(j) = (Σ n_j weights_j, …, Σ n_j, number of those who trained), and from it the mean

Every client of the round then counts as having sent the mean, so that a method's average of replies is the mean of the clients'.
How much clients disagree can no longer be measured.

Numbers are in fixed point with 32 bits after the point. A mean is off by at most 2^-33, since each client's part is, and the
weights of those who trained are 1 or more. Sums in the ring are exact, so a run repeats bit for bit whatever the masks are. A
message has 8 bytes for every number where weights have 4.

If a client is lost, its part is missing and the sum cannot be opened. The clients that are left mask what they computed once
more, with fresh masks, for a new attempt without the lost one. A client takes part in attempts of ever fewer clients, never of
fewer than three, and the server opens one of them (see `crypto.sums` for what that trusts it with). A client lost in this way is
in no later sum: two sums, with it and without it, would show its part. A round in which fewer than three clients are left changes
nothing.

What the server learns: of every round the sum over its clients. Sums over different sets could be compared: if every round had
other clients, elimination would show what a client's updates have in common, such as its classes, and its exact number of rows.
`benchmarks/attacks.py` does so. Therefore clients are put into groups once, of `--per-round` or more, and a round takes a group
as a whole. A method that chooses clients by their labels must take all of them in every round. A lost client makes the set
smaller, which reveals the difference between two rounds.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import MethodType
from typing import Any

import numpy as np
import torch

from grapevine.core import Client, Id, Method, Mistake, Server, party_name, step
from grapevine.core.reply import Array, Form, forms
from grapevine.core.server import Forms
from grapevine.crypto import fixed, session

LEAST = 3
"""A sum over fewer clients says too much of each."""
ONE, ALL = "one", "all"
"""Weights of a mean besides a field of the reply: 1 for each client that trained, and 1 for each that answered."""
MASKED = "nothing: masked; the sum over all clients of the round is opened"
COUNTS = 2  # at the end of a message: n, and 1 if n is not 0


def averaged_steps(method: Method) -> dict[str, dict[str, str]]:
    """Of each step that needs only means: the fields of its reply, and what each is weighted by."""
    found = {}
    for name, bound in method.steps().items():
        said = getattr(bound, "averaged", {})
        said = said(bound.__self__) if callable(said) else said
        if said:
            found[name] = dict(said)
    return found


def individual(method: Method) -> str:
    """Why a method cannot do with means; empty if it can."""
    if method.individual():
        return method.individual()
    return "" if averaged_steps(method) else "none of its steps says that its reply is only averaged"


def secured(method: Method) -> Method:
    """The same method with masked averages."""
    why = individual(method)
    if why:
        raise Mistake(f"{method.name} cannot use --secure-average: {why}.")
    kind = type(method)
    steps = {name: _masked(name, getattr(kind, name), by) for name, by in averaged_steps(method).items()}
    made: Any = type(kind.__name__, (Secured, kind), dict(steps, __module__=kind.__module__, __doc__=kind.__doc__))
    return dataclass(frozen=True)(made)(**{f.name: getattr(method, f.name) for f in fields(method)})


# ---------------------------------------------------------------- client


def _masked(name: str, function: Callable, by: Mapping[str, str]) -> Callable:
    """The step with its reply masked: it takes what the step takes, and who is summed with whom."""

    def run(method: Method, client: Client, *, average: dict, **told: Any) -> dict:
        values = flat(function(method, client, **told), by, average["length"])
        if not np.isfinite(values).all():
            raise Mistake("the reply has values that are not finite: training diverged, so try a smaller lr.")
        fixed.require_headroom(np.abs(values).max() * len(average["parties"]), f"the sum of the replies to step {name}")
        client.memory["average"] = dict(step=name, round=average["round"], parties=average["parties"], ring=fixed.encode(values))
        return _share(client, 0)

    own = inspect.signature(function)
    more = inspect.Parameter("average", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), more])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = name, function.__doc__
    run.plain, run.by = function, by  # type: ignore[attr-defined]
    return step(reveals=dict(masked=MASKED))(run)


def _share(client: Client, attempt: int) -> dict:
    """What was computed, under the masks of this attempt."""
    kept = client.memory["average"]
    if len(kept["parties"]) < LEAST:
        raise Mistake(
            f"a masked average over {len(kept['parties'])} clients reveals too much about each: it needs {LEAST} or more."
        )
    how = session.COVERED if client.private else None
    told = (f"average {kept['step']}", kept["round"], attempt, kept["parties"], kept["ring"])
    return dict(masked=session.masked(client, *told, mechanism=how))


def flat(reply: dict, by: Mapping[str, str], length: int) -> np.ndarray:
    """A reply as one vector: every averaged field times its weight, n, and whether n is not 0."""
    n = reply.get("n", 1)
    if not n:
        return np.zeros(length)
    weight = {**reply, ONE: 1, ALL: 1}
    parts = [weight[by[name]] * part for name in sorted(by) for part in _numbers(reply[name])]
    values = np.concatenate([*parts, [n, 1]])
    if len(values) != length:
        raise Mistake(
            f"{length} numbers should be averaged, but this client has {len(values)}: check that both run the same model."
        )
    return values


def _numbers(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        return [part for name in sorted(value) for part in _numbers(value[name])]
    return [np.asarray(value, np.float64).ravel()]


class Secured(Method):
    """What `secured` puts before a method."""

    @step(reveals=dict(offer=session.OFFER), like=dict(offer=session.OFFER_FORM))
    def average_keys(self, client: Client, session_id: str) -> dict:
        return dict(offer=session.offer(client, session_id))

    @step
    def average_meet(self, client: Client, offers: dict) -> dict:
        """Everybody's keys, checked. Masks need no seed that all have in common: the letters with it are not sent."""
        session.meet(client, offers)
        del client.memory["contribution"]
        return {}

    @step(reveals=dict(masked=MASKED))
    def average_again(self, client: Client, attempt: int, parties: dict) -> dict:
        """The same again, after a client was lost: with fresh masks, among some of those who were asked before."""
        kept = client.memory["average"]
        if not set(parties) < set(kept["parties"]):
            raise Mistake("a new attempt at a masked average must be among clients of the previous attempt.")
        client.memory["average"] = dict(kept, parties=parties)
        return _share(client, attempt)

    # ------------------------------------------------------------ server

    def check(self, server: Server) -> None:
        if server.per_round < LEAST:
            raise Mistake(f"--secure-average needs {LEAST} clients in every round, but there are {server.per_round}: "
                          f"use --per-round {LEAST} or more.")  # fmt: skip
        if self.seeks_labels and server.per_round < len(server.clients):
            raise Mistake(f"{self.name} chooses different clients in every round, so the server could compare the sums: with "
                          f"--secure-average use --per-round {len(server.clients)}, which is all of them.")  # fmt: skip
        super().check(server)

    def setup(self, server: Server) -> dict:
        agreed = list(server.clients) if self.agrees else self._agree(server)
        return dict(method=super().setup(_means(self, server, agreed)), agreed=dict(enumerate(agreed)))

    def _agree(self, server: Server) -> list[Id]:
        said = server.ask(self.average_keys, session_id=f"average, seed {server.seed}")
        offers = {name: reply["offer"] for name, reply in session.named(said, "a masked average").items()}
        return list(server.ask(self.average_meet, to=said, offers=offers))

    def round(self, server: Server, state: dict) -> dict:
        means = _means(self, server, state["agreed"].values())
        method = super().round(means, state["method"])
        return dict(state, method=method, agreed=dict(enumerate(sorted(means.agreed))))

    def shared(self, state: dict) -> dict:
        return super().shared(state["method"])


# ---------------------------------------------------------------- server


def _means(method: Method, server: Server, agreed: Iterable[Id]) -> Any:
    return Means(method, server, set(agreed))


class Means:
    """The server as a method with masked averages sees it: where it asks for replies that are averaged it gets their mean, from
    everybody. All else is the server's own."""

    masked = True

    def __init__(self, method: Any, server: Server, agreed: set[Id]):
        self.method, self.server, self.agreed = method, server, agreed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def ask(self, step: Any, to: Iterable[Id] | None = None, each: Mapping[Id, dict] | None = None, *,
            everybody: bool = False, form: Forms | None = None, **same: Any) -> dict[Id, dict]:  # fmt: skip
        if not hasattr(step, "plain"):
            return self.server.ask(step, to, each, everybody=everybody, form=form, **same)
        asked = to if to is not None else each if each is not None else self.server.clients
        ids = sorted(id for id in asked if id in self.agreed)
        if len(ids) < LEAST:
            return self._too_few(step, ids)
        request = {**same, **(each[ids[0]] if each is not None else {})}
        wanted = forms(MethodType(step.plain, self.method), request, form(ids[0]) if form else None)
        layout = {field: wanted[field] for field in sorted(step.by)}
        length = sum(map(count, layout.values())) + COUNTS
        told = dict(round=self.server.now, length=length, parties=session.numbered(map(party_name, ids)))
        some = None if each is None else {id: each[id] for id in ids}
        replies = self.server.ask(step, ids, some, form=_form(length), average=told, **same)
        return self._opened(step, ids, replies, layout, length)

    def sample(self, round: int, among: Iterable[Id] | None = None, count: int | None = None, name: str = "sample") -> list[Id]:
        """The group of clients whose turn it is, in an order that changes: a set is summed whole, or not at all."""
        if among is not None or count is not None:
            return self.server.sample(round, among, count, name)
        ids = self.server.clients  # all of them, so that groups stay when a client is lost
        k = max(len(ids) // self.server.per_round, 1)
        order = torch.randperm(len(ids), generator=self.server.rng("average groups"))
        turn = torch.randperm(k, generator=self.server.rng("average turns", round // k))[round % k]
        return sorted(ids[i] for i in order[turn::k].tolist() if ids[i] in self.agreed)

    def _opened(self, step: Any, ids: list[Id], replies: dict[Id, dict], layout: dict[str, Form], length: int) -> dict[Id, dict]:
        """The mean, as everybody's reply. While a client is missing, the others mask their parts again, without it."""
        attempt, asked = 0, set(ids)
        while len(replies) < len(ids):
            attempt, ids = attempt + 1, list(replies)
            if len(ids) < LEAST:
                return self._too_few(step, ids)
            self.agreed &= set(ids) | (self.agreed - asked)  # for good: with and without it, two sums would show its part
            parties = session.numbered(map(party_name, ids))
            replies = self.server.ask(self.method.average_again, ids, form=_form(length), attempt=attempt, parties=parties)
        shares = {party_name(id): reply["masked"] for id, reply in replies.items()}
        total = fixed.decode(session.opened(f"average {step.__name__}", self.server.now, attempt, shares, shares))
        mean = mean_of(step, total, layout, len(ids))
        return {id: mean for id in ids} if mean else {}

    def _too_few(self, step: Any, ids: list[Id]) -> dict[Id, dict]:
        where = f"step {step.__name__} of round {self.server.now}"
        few = f"{len(ids)} clients are left, and a masked average is over {LEAST} or more"
        self.server.transport.say(f"{where} changes nothing: {few}.")
        return {}


def mean_of(step: Any, total: np.ndarray, layout: dict[str, Form], answered: int) -> dict[str, Any]:
    """The reply that everybody counts as having sent; nothing if nobody trained."""
    n, trained = total[-COUNTS:]
    if not trained:
        return {}
    weight: dict[str, float] = {"n": n, ONE: trained, ALL: answered}
    reply: dict[str, Any] = dict(n=n / answered) if "n" in step.plain.reveals else {}
    at = 0
    for field, form in layout.items():
        reply[field] = shaped(total[at : at + count(form)] / weight[step.by[field]], form)
        at += count(form)
    return reply


def _form(length: int) -> Forms:
    return lambda id: dict(masked=Array("uint64", (length,)))


def count(form: Form) -> int:
    """How many numbers a field of this form has."""
    if isinstance(form, dict):
        return sum(map(count, form.values()))
    return math.prod(side or 0 for side in form.shape) if isinstance(form, Array) else 1


def shaped(values: np.ndarray, form: Form) -> Any:
    """Numbers as a field of this form: whole numbers are rounded, as `average` does."""
    if isinstance(form, dict):
        names = sorted(form)
        parts = dict(zip(names, np.split(values, np.cumsum([count(form[name]) for name in names])[:-1])))
        return {name: shaped(parts[name], form[name]) for name in form}
    if not isinstance(form, Array):
        return float(values[0])
    dtype: torch.dtype = getattr(torch, form.dtype)
    found = torch.from_numpy(values.reshape([side or 0 for side in form.shape]))
    return (found if dtype.is_floating_point else found.round()).to(dtype)
