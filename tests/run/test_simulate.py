"""A simulation's own store: what clients hold stays, what they have replaced goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from grapevine.core import Client, Method, step
from grapevine.core.rows import ClientData
from grapevine.core.store import Memory, RamStore
from grapevine.run import simulate
from grapevine.run.simulate import Simulation

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


class Nobody:
    """Takes replies, and keeps none."""

    def take(self, id, reply):
        pass


@pytest.mark.parametrize("way", ["exchange", "gather"])
@pytest.mark.parametrize("own", [True, False])
def test_what_no_client_holds_is_forgotten_in_a_store_of_its_own(own, way, monkeypatch):
    monkeypatch.setattr(simulate, "FORGET", 10_000)  # an object has some 900 bytes
    nothing = ClientData(None, None, None, ())  # type: ignore[arg-type]
    simulation = Simulation(Replaces(), dict.fromkeys(CLIENTS, nothing), None, store=None if own else RamStore())
    sizes = []
    for number in range(EXCHANGES):
        asked = {id: dict(number=number) for id in CLIENTS}
        simulation.exchange("put", asked, 0) if way == "exchange" else simulation.gather("put", asked, 0, Nobody())  # type: ignore[arg-type]
        sizes.append(sum(map(len, simulation.store._objects.values())))
    if own:
        assert max(sizes) < 12_000
    else:
        assert sizes[-1] > 800 * EXCHANGES
    for manifest in simulation.manifests.values():
        held = Memory(simulation.store, manifest)
        assert held["first"] == 0 and (held["held"] == EXCHANGES - 1).all()
