"""How memory grows with the clients of a round and of a population: means are formed as replies come, clients made when asked.

    python benchmarks/streaming.py [--quick]

A softmax regression on rows of 784 random pixels, 4 rows a client, one pass, one worker; each case in a process of its own
that maps the rows from a file. `round`: peak memory of a process that runs one round of 100, 1,000 and 10,000 clients.
`population`: seconds from the start of the process until a round of 10 of 1,000,000 clients is over, imports included, CPU-
seconds, and peak memory.
Results: streaming.json beside this file. Seconds count other work on the machine (`load`); CPU-seconds and memory do not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import about, write

ROWS, PIXELS = 4, 784


def make_files(folder: Path, clients: int, pixels: int) -> None:
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (clients * ROWS, pixels))
    for at in range(0, len(x), 1 << 18):
        x[at : at + (1 << 18)] = rng.integers(0, 255, (min(1 << 18, len(x) - at), pixels), np.uint8)
    x.flush()
    np.save(folder / "y.npy", rng.integers(0, 10, clients * ROWS))
    np.save(folder / "offsets.npy", np.arange(clients + 1) * ROWS)


def child(folder: Path, per_round: int) -> dict:
    began = time.perf_counter()
    import torch

    from grapevine import methods
    from grapevine.core import ModelSource, Server
    from grapevine.core.rows import Scale
    from grapevine.data.population import Population
    from grapevine.learn.networks import build
    from grapevine.run.folder import peak_memory_mb
    from grapevine.run.simulate import Each, Simulation

    scale = Scale(1 / 255, torch.tensor(0.5), torch.tensor(0.3))
    names = tuple(str(i) for i in range(10))
    population = Population.load(*(folder / f"{name}.npy" for name in ("x", "y", "offsets")), classes=names, scale=scale)
    method = methods.FedAvg(epochs=1)
    source = ModelSource(lambda: build("linear", (population.x.shape[1],), 10), population.x[:1].float())
    simulation = Simulation(method, Each(population.ids, population.client, keep=False), source)
    server = Server(method, population.ids, simulation, source, names, per_round=per_round)
    state = method.round(server, method.setup(server))
    assert state["round"] == 1
    return dict(clients=len(population.ids), per_round=per_round, seconds=round(time.perf_counter() - began, 2),
                cpu_seconds=round(time.process_time(), 2), peak_mb=peak_memory_mb())  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 and 200 clients of 2000, and nothing is kept")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(child(Path(flags.child[0]), int(flags.child[1]))))
        return
    cases = {2000: (20, 200)} if flags.quick else {20_000: (100, 1000, 10_000), 1_000_000: (10,)}
    found = []
    for clients, rounds in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder), clients, PIXELS if clients < 10**6 else PIXELS // 8)
            for per_round in rounds:
                command = [sys.executable, __file__, "--child", folder, str(per_round)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.append(json.loads(done.stdout))
                print(found[-1], flush=True)
    rounds = [each for each in found if each["clients"] < 10**6]
    times = rounds[-1]["peak_mb"] / rounds[0]["peak_mb"]
    print(f"{rounds[-1]['per_round']} clients a round take {times:.2f} times the memory of {rounds[0]['per_round']}.")
    if not flags.quick:
        population = next(each for each in found if each["clients"] == 10**6)
        write(__file__, dict(machine=about(), round=rounds, times_the_memory=round(times, 3), population=population))


if __name__ == "__main__":
    main()
