"""A simulation's own store: what clients hold stays, what they have replaced goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from grapevine.core import Client, Method, step
from grapevine.core.rows import ClientData
from grapevine.core.store import Memory, RamStore
from grapevine.run.simulate import FORGET, Simulation

CLIENTS, EXCHANGES = ("a", "b", "c"), 100


@dataclass(frozen=True)
class Replaces(Method):
    """Every step replaces what a client holds."""

    name = "replaces"

    @step(reveals={})
    def put(self, client: Client, number: int) -> dict:
        client.memory["held"] = np.full(100, number)
        client.memory.setdefault("first", number)
        return {}


@pytest.mark.parametrize("own", [True, False])
def test_what_no_client_holds_is_forgotten_in_a_store_of_its_own(own):
    nothing = ClientData(None, None, None, ())  # type: ignore[arg-type]
    simulation = Simulation(Replaces(), dict.fromkeys(CLIENTS, nothing), None, store=None if own else RamStore())
    sizes = []
    for number in range(EXCHANGES):
        simulation.exchange("put", {id: dict(number=number) for id in CLIENTS}, 0)
        sizes.append(len(simulation.store._objects))
    if own:
        assert max(sizes) <= FORGET + 2  # all clients hold the same bytes: an object an exchange, and the first one
    else:
        assert sizes[-1] == EXCHANGES + 1
    for manifest in simulation.manifests.values():
        held = Memory(simulation.store, manifest)
        assert held["first"] == 0 and (held["held"] == EXCHANGES - 1).all()
