"""What the label job is compared with: Gaussian heads from secure sums, and the nearest labelled row of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from grapevine.core import Client, Id, Server
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.methods.gaussian import Gaussian
from grapevine.run.simulate import Simulation

MOST_FEATURES = 1500  # for a full covariance: above, its second moments are millions of numbers


def kind_for(d: int) -> str:
    return "lda" if d <= MOST_FEATURES else "nb"


def nearest(V: np.ndarray, y: np.ndarray, block: int = 1000) -> np.ndarray:
    """The label of the labelled row with the largest cosine; −1 for a row of zeros, and where nothing is labelled."""
    length = np.linalg.norm(V, axis=1, keepdims=True)
    U = np.divide(V, length, out=np.zeros_like(V), where=length > 0)
    known = np.flatnonzero((y >= 0) & (length[:, 0] > 0))
    if not len(known):
        return np.full(len(V), -1)
    best = np.concatenate([(U[a : a + block] @ U[known].T).argmax(1) for a in range(0, len(U), block)])
    return np.where(length[:, 0] > 0, y[known[best]], -1)


def gaussian(
    rows: Mapping[str, np.ndarray], data: Mapping[str, ClientData], seed: int, workers: int, log: Callable
) -> tuple[dict[str, list[str | None]], list[dict]]:
    """Gaussian heads on rows as XCLP sees them (labelled first): every party's labels in that order, and the messages."""
    prepared: dict[Id, ClientData] = {}
    for name, V in rows.items():
        x, n = torch.from_numpy(V), len(data[name].labelled)
        labelled, rest = torch.arange(n), torch.arange(n, len(V))
        none = torch.empty(0, dtype=torch.int64)
        prepared[name] = ClientData(Rows(x, labelled, data[name].labelled.y), Rows(x, rest, torch.full_like(rest, -1)),
                                    Rows(x, none, none), data[name].classes)  # fmt: skip
    method = Gaussian(kind_for(next(iter(rows.values())).shape[1]))
    simulation = Simulation(method, prepared, None, seed, workers=workers)
    simulation.log = log
    server = Server(method, list(prepared), simulation, None, (), seed)
    try:
        method.check(server)
        method.round(server, method.setup(server))
    finally:
        simulation.close()
    found = {}
    for name in rows:
        client = Client(name, prepared[name], Memory(simulation.store, simulation.manifests[name]), None, seed)
        classes = client.memory["classes"]
        found[name] = [None if c < 0 else classes[int(c)] for c in client.memory["result"]["label"]]
    return found, server.account.drain()
