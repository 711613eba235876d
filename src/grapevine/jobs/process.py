"""One exchange of a job with all parties in this process: every party is a client, every message is counted, and every
protection is on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grapevine.core import Client, Id, Method, Mistake, Server, StepError
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.jobs.disclosure import logger
from grapevine.jobs.reading import Party
from grapevine.run.simulate import Simulation

if TYPE_CHECKING:
    from grapevine.core import ModelSource

Progress = Callable[[str, int, int], None]
"""Called with (step, parties that have answered it, parties asked)."""


@dataclass(frozen=True)
class Ran:
    """What an exchange leaves: the server's state, every party with its memory, what passed, what left each party, and
    every party's ledger of what went into sums."""

    state: dict[str, Any]
    clients: dict[str, Client]
    messages: list[dict]
    disclosure: dict[str, list[dict]]
    began: float
    ledgers: dict[str, Ledger]

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


@dataclass(frozen=True)
class Host:
    """What a server has of its own: labelled rows, their classes, and networks. In a label job it has nothing."""

    rows: Rows | None = None
    classes: tuple[str, ...] = ()
    models: ModelSource | None = None


NOBODY = Host()


def run_once(method: Method, parties: Sequence[Party], seed: int, workers: int, progress: Progress | None = None,
             host: Host = NOBODY) -> Ran:  # fmt: skip
    """The method's `setup` and one `round`."""
    began = time.perf_counter()
    data: dict[Id, ClientData] = {party.name: party.data() for party in parties}
    if host.models is not None:
        data = {name: held.tensors() for name, held in data.items()}
    disclosure: dict[str, list[dict]] = {party.name: [] for party in parties}
    simulation = Simulation(method, data, host.models, seed, workers=workers)
    simulation.log, simulation.progress = logger(disclosure, method), progress
    ledgers = {party.name: Ledger() for party in parties}
    simulation.prepare = lambda client: setattr(client, "ledger", ledgers[str(client.id)])
    server = Server(method, list(data), simulation, host.models, host.classes, seed, data=host.rows)
    tell = progress if progress and host.rows else lambda step, done, of: None
    try:
        method.check(server)
        tell("classifier", 0, 1)
        state = method.setup(server)
        tell("classifier", 1, 1)
        state = method.round(server, state)
    except StepError as error:
        if isinstance(error.__cause__, Mistake):  # of what the parties brought: which step noticed it does not matter here
            raise Mistake(str(error.__cause__)) from error
        raise
    finally:
        simulation.close()
    clients = {name: Client(name, data[name], Memory(simulation.store, simulation.manifests.get(name)), None, seed)
               for name in disclosure}  # fmt: skip
    return Ran(state, clients, server.account.drain(), disclosure, began, ledgers)
