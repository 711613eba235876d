"""H in tests: a method of nothing but SecureHamming, run in one process, and H by definition."""

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
import torch

from grapevine.core import Method, Server, Transport, step, wire
from grapevine.core.rows import ClientData, Rows
from grapevine.crypto import hamming, session
from grapevine.crypto.secure import Group, SecureHamming
from grapevine.run.simulate import Simulation

MLWE, PSM, PLAIN = hamming.Mlwe(), hamming.Psm(), hamming.Plain()
PAILLIER, OT = hamming.Paillier(key_bits=2048), hamming.Ot()

slow = pytest.mark.slow


@dataclass(frozen=True)
class Distances(Method):
    """Agreement, then H: what every method that uses SecureHamming does."""

    name = "distances"
    title = "H alone"
    hamming: SecureHamming = field(default_factory=hamming.Plain)
    length: int = 8
    turn: int = 0  # of H
    asked_for: tuple = (0, 0)  # the rounds of the two preludes

    @step
    def keys(self, client):
        return dict(offer=session.offer(client, "s"), prelude=self.hamming.prelude(client, self.asked_for[0]))

    @step
    def meet(self, client, offers, preludes):
        answer = session.meet(client, offers), self.hamming.answer_prelude(client, preludes, self.asked_for[1])
        return dict(letters=answer[0], prelude=answer[1])

    @step
    def share(self, client, letters, preludes, counts):
        session.learn_seed(client, letters)
        bits = np.packbits(client.data.labelled.x.numpy(), axis=1)
        group = Group({}, counts, self.length, self.turn, tuple(sorted(client.pinned)))
        return dict(first=self.hamming.begin(client, bits, group, preludes))

    def round(self, server, state):
        ids = {id: id for id in server.clients}
        hello = server.ask(self.keys)
        told = dict(offers={n: r["offer"] for n, r in hello.items()}, preludes={n: r["prelude"] for n, r in hello.items()})
        met = server.ask(self.meet, to=list(hello), **told)
        counts = {name: state["counts"][name] for name in met}
        letters = {n: dict(letters={k: met[k]["letters"][n] for k in met if k != n}) for n in met}
        preludes = {n: r["prelude"] for n, r in met.items()}
        shared = server.ask(self.share, each=letters, preludes=preludes, counts=counts)
        group = Group(ids, counts, self.length, self.turn, tuple(server.clients))
        present, blocks = self.hamming.finish(server, group, {n: r["first"] for n, r in shared.items()})
        return dict(present=present, blocks={(j, k): block for j, k, block in blocks})


class Counting(Transport):
    """The simulation's transport, with the steps it was asked for."""

    def __init__(self, simulation, change):
        self.simulation, self.change, self.asked = simulation, change, []

    def exchange(self, step, requests, round):
        self.asked.append(step)
        return self.simulation.exchange(step, self.change.get(step, lambda same: same)(requests), round)


def run(protocol, bits, mode="strict", faults=(), change=None, sent=None, keep=None, round=0, asked_for=(0, 0)):
    """(who was there, blocks of H as (j, k) with j < k, steps asked). `sent` collects messages of strict mode, `keep` the run."""
    length = next(iter(bits.values())).shape[1]
    none = torch.empty(0, dtype=torch.int64)

    def data(B):
        x = torch.from_numpy(B)
        return ClientData(Rows(x, torch.arange(len(x)), torch.zeros(len(x))), Rows(x, none, none), Rows(x, none, none), ())

    def tap(direction, step, id, message):
        if sent is not None:
            sent.append((direction, step, id, wire.decode(message)))

    method = Distances(protocol, length, round, asked_for)
    simulation = Simulation(method, {n: data(B) for n, B in bits.items()}, None, mode=mode, faults=faults, tap=tap)
    transport = Counting(simulation, change or {})
    if keep is not None:
        keep.append(simulation)
    server = Server(method, list(bits), transport, None, ())
    state = method.round(server, dict(counts={n: len(B) for n, B in bits.items()}))
    blocks = {}
    for (j, k), block in state["blocks"].items():
        assert block.dtype == np.uint16
        assert tuple(sorted((j, k))) not in blocks, "a pair came twice"
        blocks[min(j, k), max(j, k)] = block if j < k else block.T
    return state["present"], blocks, transport.asked


def xor(bits):
    """H by definition."""
    return {(j, k): (bits[j][:, None] ^ bits[k][None]).sum(-1) for j, k in combinations(sorted(bits), 2)}


def random_bits(sizes, length, seed=0):
    rng = np.random.default_rng(seed)
    return {f"p{i}": rng.integers(0, 2, (n, length), np.uint8) for i, n in enumerate(sizes)}


def assert_distances(blocks, bits):
    expected = xor(bits)
    assert set(blocks) == set(expected)
    for pair in expected:
        np.testing.assert_array_equal(blocks[pair], expected[pair])
