"""A population as offsets into one array: each client's rows and no others, and nothing made before it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from grapevine import methods
from grapevine.core import ModelSource, Server
from grapevine.core.errors import Mistake
from grapevine.data.population import Population
from grapevine.learn.networks import build
from grapevine.run.simulate import Each, Simulation

OFFSETS = np.array([0, 3, 3, 7, 9])


@pytest.fixture
def files(tmp_path):
    values = dict(x=np.arange(36, dtype=np.float32).reshape(9, 4), y=np.array([0, 1, -1, 1, 0, -1, -1, 1, 0]), offsets=OFFSETS)
    for name, value in values.items():
        np.save(tmp_path / f"{name}.npy", value)
    return [tmp_path / f"{name}.npy" for name in values]


def test_each_client_has_its_rows(files):
    population = Population.load(*files, classes=("a", "b"))
    assert list(population.ids) == [0, 1, 2, 3]
    data = population.client(2)
    assert data.labelled.index.tolist() == [3, 4] and data.labelled.y.tolist() == [1, 0]
    assert data.unlabelled.index.tolist() == [5, 6] and data.unlabelled.y.tolist() == [-1, -1]
    assert data.labelled.inputs().tolist() == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert len(population.client(1).labelled) == 0 and len(data.test) == 0


@pytest.mark.parametrize("offsets", [[], [0, 4], [1, 9], [0, 5, 4, 9]])
def test_offsets_that_do_not_fit(files, offsets):
    np.save(files[2], np.array(offsets))
    with pytest.raises(Mistake, match="offsets must rise from 0 to the number of rows of x .9."):
        Population.load(*files, classes=("a", "b"))


def test_only_clients_that_are_asked_are_made(files):
    population, made = Population.load(*files, classes=("a", "b")), []

    def make(i):
        made.append(i)
        return population.client(i)

    method = methods.FedAvg(epochs=1)
    source = ModelSource(lambda: build("linear", (4,), 2), population.x[:1])
    simulation = Simulation(method, Each(population.ids, make), source)
    server = Server(method, population.ids, simulation, source, population.classes, per_round=2)
    state = method.round(server, method.setup(server))
    assert sorted(made) == server.sample(0) and state["round"] == 1
    assert sorted(simulation.identities._made) == server.sample(0)  # nor a key for anybody else
    assert len(simulation.pinned) == 4 and len(set(simulation.pinned.values())) == 4
