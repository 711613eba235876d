"""The privacy of a training run: every client's plan before it starts, what was spent so far, and what is not covered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grapevine.core.client import Client
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.method import Id, Method, party_name
from grapevine.core.network import Meter, ModelSource
from grapevine.core.private import Private
from grapevine.core.server import Server
from grapevine.crypto import accountant
from grapevine.crypto.accountant import Gaussian
from grapevine.learn.averages import Means, Secured
from grapevine.learn.private import OUTSIDE, UNIT, check_network, plan, releases, size
from grapevine.run.settings import RunSettings


def check(method: Method, settings: RunSettings, models: ModelSource) -> None:
    """Refuse what --dp cannot cover, before anything runs."""
    if settings.dp is None:
        if (settings.delta, settings.clip) != (RunSettings.delta, RunSettings.clip):
            raise Mistake("delta and clip are for training with noise: use --dp EPS too, or leave them out.")
        return
    accountant.check_budget(settings.dp, settings.delta)
    if method.private != method.name:
        raise Mistake(
            f"--dp is for methods whose clients train on single labelled rows and send nothing else (fedavg, fedprox, scaffold, "
            f"supervised): {method.name} uses rows in other ways, which noise on the gradients would not protect."
        )
    check_network(models.new(None, Meter()))


def of_party(settings: RunSettings, job: str) -> Private | None:
    """A real party's budget. It cannot know for which rounds it will be chosen, so it plans for all of them."""
    return None if settings.dp is None else Private(job, settings.dp, settings.delta, settings.clip, settings.rounds)


@dataclass
class Privacy:
    """Budgets and plans of the clients of one run, in this process; what they spend is in `ledger`."""

    budgets: dict[Id, Private]
    plans: dict[Id, Gaussian]
    rows: dict[Id, int]
    ledger: Ledger
    chosen: list[list[Id]] = field(repr=False)  # by round

    def prepare(self, client: Client) -> None:
        """Hand a client its budget and the ledger."""
        client.private, client.ledger = self.budgets.get(client.id), self.ledger

    def note(self, done: int) -> dict[str, Any]:
        """For the history: the most that a client has spent after that many rounds. It is the one that is furthest in its
        plan."""
        if not self.plans:
            return dict(epsilon=0.0)
        times = {id: sum(id in ids for ids in self.chosen[:done]) for id in self.plans}
        id = max(times, key=lambda id: times[id] / self.budgets[id].rounds)
        steps = self.plans[id].count // self.budgets[id].rounds * times[id]
        return dict(epsilon=round(accountant.epsilon([replace(self.plans[id], count=steps)], self.budgets[id].delta), 4))

    def result(self) -> dict[str, Any]:
        """For result.json: per client what it was to spend and what the ledger says it has spent."""
        clients = [self._client(id) for id in self.plans]
        first = next(iter(self.budgets.values()), None)
        return dict(
            unit=UNIT, epsilon=max((c["epsilon"] for c in clients), default=0.0), delta=first.delta if first else None,
            budget=first.epsilon if first else None, clip=first.clip if first else None, per_client=clients,
            outside=list(OUTSIDE), exact="noise does not repeat: this run is not bit-identical to another",
        )  # fmt: skip

    def _client(self, id: Id) -> dict[str, Any]:
        own, event = self.budgets[id], self.plans[id]
        done = releases(self.ledger, own.job, party_name(id))
        return dict(id=id, rows=self.rows[id], rate=event.rate, noise=round(event.multiplier, 4), rounds=len(done),
                    steps=sum(e.count for e in done), planned_rounds=own.rounds,
                    epsilon=round(accountant.epsilon(done, own.delta), 4), delta=own.delta)  # fmt: skip


def prepare(
    method: Any, settings: RunSettings, server: Server, labelled: Mapping[Id, int], out: Path | None, job: str
) -> Privacy:
    """Plans for all clients of a simulation. Who is chosen when follows from the seed, so everybody's rounds are known."""
    seen = Means(method, server, set(server.clients)) if isinstance(method, Secured) else server  # masked: fixed groups
    chosen = [seen.sample(round) for round in range(settings.rounds)]
    values = size(server.model())
    budgets, plans = {}, {}
    for id in server.clients:
        times = sum(id in ids for ids in chosen)
        if times and labelled[id]:
            budgets[id] = Private(job, settings.dp or 0.0, settings.delta, settings.clip, times)
            plans[id] = plan(budgets[id], labelled[id], method.batch, method.epochs, values)
            accountant.require([plans[id]], budgets[id].epsilon, settings.delta, f"client {id}")
    return Privacy(budgets, plans, dict(labelled), Ledger(out), chosen)


def sentence(privacy: Privacy) -> str:
    """The plan in words, for the log."""
    if not privacy.plans:
        return "no client has a labelled row in a round that it is chosen for: nothing is spent."
    own = next(iter(privacy.budgets.values()))
    noise = [e.multiplier for e in privacy.plans.values()]
    width = f"{min(noise):.2f}" if math.isclose(min(noise), max(noise)) else f"{min(noise):.2f} to {max(noise):.2f}"
    return f"each client spends at most {promise(own, f', with noise of {width} times the clip of {own.clip:g}')}."


def promise(own: Private, more: str = "") -> str:
    """ε, δ, the unit, and what is not covered."""
    return f"ε = {own.epsilon:g} at δ = {own.delta:g} for {UNIT}{more}; outside of it: {', '.join(OUTSIDE)}"
