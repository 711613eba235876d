"""The simulator against what one would use instead: seconds a round of FedAvg, all in one interleaved run.

Fashion-MNIST, 100 clients × 500 rows, 10 a round, 5 epochs, batch 50, the small CNN. Measured side by side, a few rounds of each
in turn, so that a noisy machine disturbs all alike: Grapevine with one and with two workers, a bare PyTorch loop on one thread in
the same memory format, and two peers, each in an environment of its own, which this script makes. How much faster two bare loops
at once are, each with half of the clients and nothing between them, says what a second core is worth on this machine.

Flower's simulation (Ray), in three ways: as in its quickstart, with a DataLoader, torch's usual memory format and its default of
two cores for a client; the same with a client a core; and with our batches and memory format too. Apple's pfl: as in its
introduction, one process with torch's threads on both cores; and as its chapter on fast simulations has it, a process a core, in
our memory format. (pfl cuts a client's rows into batches once and does not shuffle them, so an epoch costs it a little less; and
it always evaluates the clients of the first round, which counts in its whole process alone.) The peers' small CNN is torch's
layers, ours has `PoolReLU`, and so has the bare loop, which runs in our process and with its allocator; so what is left between
"our batches" and us is not the engine alone. "Whole process" is a run of 4 rounds from start to end, imports and start-up
included, for the peers and for us; "with start" is a peer's whole process against a round of ours. And the memory of 100 and of
1000 clients, each in a child process. Fashion-MNIST must be there as fashion_mnist.npz.

    python benchmarks/simulator.py [--rounds 3] [--repeats 4] [--no-peers] [--quick]

Writes simulator.json beside itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from machine import DATA, FILES, about, environment, need

import grapevine as gv
from grapevine.core import Server
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

HERE = Path(__file__).parent
ROWS, PER_ROUND, EPOCHS, BATCH, LR = 500, 10, 5, 50, 0.1
CORES = 2
WHOLE_ROUNDS = 4  # of a whole process, from its start to its end


def make_split(clients: int, rows: int, quick: bool = False):
    dataset = gv.data.load("digits") if quick else gv.data.load("fashion-mnist", data_dir=DATA)
    split = dataset.split(clients=clients, labels="all", seed=0)
    parts = tuple(replace(p, labelled=p.labelled[:rows], labels=p.labels[:rows]) for p in split.parts)
    return replace(split, parts=parts)


class Grapevine:
    """Rounds of our FedAvg through the simulator, without evaluation, as in the loops it is compared with."""

    def __init__(self, split, workers: int):
        method = gv.methods.FedAvg(lr=LR, epochs=EPOCHS, batch=BATCH)
        source = Experiment(method, split, model="cnn").models()
        clients = range(len(split.parts))
        simulation = Simulation(method, {i: split.client(i) for i in clients}, source, workers=workers)
        self.method = method
        self.server = Server(method, clients, simulation, source, split.dataset.classes, per_round=PER_ROUND)
        self.state = method.setup(self.server)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.state = self.method.round(self.server, self.state)


class BareLoop:
    """What one would write by hand: the same network, batches and average, one thread, channels last."""

    def __init__(self, split, per_round: int = PER_ROUND):
        self.split, self.per_round = split, per_round
        self.model = Experiment(gv.methods.FedAvg(), split, model="cnn").models().new(None, gv.core.Meter())
        for layer in self.model.modules():  # nothing is counted in a bare loop
            layer._forward_hooks.clear()
        self.round = 0

    def run(self, rounds: int) -> None:
        torch.set_num_threads(1)
        for _ in range(rounds):
            draw = torch.Generator().manual_seed(self.round)
            chosen = torch.randperm(len(self.split.parts), generator=draw)[: self.per_round].tolist()
            start = copy.deepcopy(self.model.state_dict())
            total = {name: torch.zeros_like(w) for name, w in start.items()}
            for i in chosen:
                rows = self.split.client(i).labelled
                self.model.load_state_dict(start)
                optimiser = torch.optim.SGD(self.model.parameters(), LR)
                self.model.train()
                for _ in range(EPOCHS):
                    for at in torch.randperm(len(rows), generator=draw).split(BATCH):
                        x, y = rows.batch(at)
                        optimiser.zero_grad()
                        torch.nn.functional.cross_entropy(self.model(x), y).backward()
                        optimiser.step()
                for name, w in self.model.state_dict().items():
                    total[name] += w / len(chosen)
            self.model.load_state_dict(total)
            self.round += 1


LOOP = """
import sys; sys.path.insert(0, {here!r})
import simulator
loop = simulator.BareLoop(simulator.make_split({clients}, {rows}, {quick}), {share})
for line in sys.stdin:
    loop.run(int(line))
    print("done", flush=True)
"""


class TwoLoops:
    """Two bare loops at once, each with half of the clients, in processes that share nothing: what the two cores can give."""

    def __init__(self, clients: int, rows: int, quick: bool):
        code = LOOP.format(here=str(HERE), clients=clients, rows=rows, quick=quick, share=PER_ROUND // CORES)
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.children = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(CORES)]

    def run(self, rounds: int) -> None:
        for child in self.children:
            print(rounds, file=child.stdin, flush=True)
        for child in self.children:
            if child.stdout.readline().strip() != "done":
                raise RuntimeError("a bare loop in a process of its own ended early.")

    def close(self) -> None:
        for child in self.children:
            child.stdin.close()
            child.wait()


def timed(thing, rounds: int) -> float:
    began = time.perf_counter()
    thing.run(rounds)
    return (time.perf_counter() - began) / rounds


MEMORY = """
import sys; sys.path.insert(0, {here!r})
import simulator
split = simulator.make_split({clients}, {rows}, {quick})
simulator.Grapevine(split, 2).run(1)
from grapevine.run.folder import peak_memory_mb
print(peak_memory_mb())
"""


def memory(clients: int, rows: int, quick: bool) -> float:
    code = MEMORY.format(here=str(HERE), clients=clients, rows=rows, quick=quick)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()[-1])


# ---------------------------------------------------------------- peers, each in its own environment

PEER_TASK = """
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(%(threads)d)

def network():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
                         nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 10)).to(memory_format=%(memory_format)s)

DATA = {}
def client_rows(i, rows):
    if not DATA:
        with np.load(%(file)r) as f:
            DATA["x"], DATA["y"] = torch.from_numpy(f["x_train"]), torch.from_numpy(f["y_train"]).long()
    return DATA["x"][i * rows:(i + 1) * rows], DATA["y"][i * rows:(i + 1) * rows]

def fit(model, i, seed):
    x, y = client_rows(i, %(rows)d)
    draw = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(model.parameters(), %(lr)r)
    batches = ours(x, y, draw) if %(tuned)r else quickstart(x, y, draw)
    for b, labels in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(b), labels).backward()
        optimiser.step()
    return len(x)

def quickstart(x, y, draw):
    data = TensorDataset((x.float() / 255 - 0.286)[:, None] / 0.353, y)
    loader = DataLoader(data, batch_size=%(batch)d, shuffle=True, generator=draw)
    for _ in range(%(epochs)d):
        yield from loader

def ours(x, y, draw):
    for _ in range(%(epochs)d):
        for at in torch.randperm(len(x), generator=draw).split(%(batch)d):
            b = (x[at].float() / 255 - 0.286) / 0.353
            yield b[:, None].contiguous(memory_format=torch.channels_last), y[at]
"""

FLOWER_APP = """
import json, sys, time
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import fit, network

client = ClientApp()

@client.train()
def train(msg: Message, context: Context):
    model = network()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    n = fit(model, int(context.node_config["partition-id"]), 0)
    record = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": n})})
    return Message(content=record, reply_to=msg)

server = ServerApp()

class Timed(FedAvg):
    stamps = []
    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        Timed.stamps.append(time.perf_counter())
        return out

@server.main()
def main(grid: Grid, context: Context):
    strategy = Timed(fraction_train=%(share)r, fraction_evaluate=0.0, min_available_nodes=%(clients)d)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=%(rounds)d)

run_simulation(server_app=server, client_app=client, num_supernodes=%(clients)d,
               backend_config={"client_resources": {"num_cpus": %(threads)d, "num_gpus": 0.0}})
stamps = Timed.stamps
print("RESULT " + json.dumps((stamps[-1] - stamps[0]) / (len(stamps) - 1)))
"""


PFL_APP = """
import json, time
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from pfl.model.pytorch import PyTorchModel  # first: it tells pfl which framework this is
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from task import client_rows, network

np.random.seed(0)  # every process draws the same clients and takes its share of them
torch.manual_seed(0)

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()
    def loss(self, x, y):
        self.train()
        return F.cross_entropy(self.network(x), y)
    @torch.no_grad()
    def metrics(self, x, y):
        self.eval()
        out = self.network(x)
        right = (out.argmax(1) == y).sum().item()
        return {"loss": Weighted(F.cross_entropy(out, y, reduction="sum").item(), len(y)), "accuracy": Weighted(right, len(y))}

def user(i):
    x, y = client_rows(i, %(rows)d)
    x = ((x.float() / 255 - 0.286) / 0.353)[:, None].contiguous(memory_format=%(memory_format)s)
    return PyTorchTensorDataset((x, y), user_id=i)

class Timed(TrainingProcessCallback):
    stamps = []
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        Timed.stamps.append(time.perf_counter())
        return False, Metrics()

classifier = Classifier()
model = PyTorchModel(classifier, local_optimizer_create=torch.optim.SGD,
                     central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0))
users = list(np.random.permutation(%(clients)d))
data = FederatedDataset(user, get_user_sampler("minimize_reuse", users))
FederatedAveraging().run(
    NNAlgorithmParams(central_num_iterations=%(rounds)d, evaluation_frequency=%(rounds)d, train_cohort_size=%(per_round)d,
                      val_cohort_size=0),
    SimulatedBackend(training_data=data, val_data=data), model,
    NNTrainHyperParams(local_batch_size=%(batch)d, local_num_epochs=%(epochs)d, local_learning_rate=%(lr)r),
    NNEvalHyperParams(local_batch_size=None), [Timed()])
stamps = Timed.stamps
print("RESULT " + json.dumps((stamps[-1] - stamps[0]) / (len(stamps) - 1)))
"""


def write_app(python: Path, app: str, tuned: bool, threads: int, clients: int, rows: int) -> Path:
    """A peer's program and what its clients do, beside its environment; `tuned`: our batches and memory format."""
    folder = python.parent.parent / "app"
    folder.mkdir(exist_ok=True)
    values = dict(
        file=str(DATA.resolve() / FILES["fashion-mnist"]), clients=clients, rows=rows, per_round=PER_ROUND,
        share=PER_ROUND / clients, rounds=WHOLE_ROUNDS, lr=LR, epochs=EPOCHS, batch=BATCH, tuned=tuned, threads=threads,
        memory_format="torch.channels_last" if tuned else "torch.contiguous_format",
    )  # fmt: skip
    (folder / "task.py").write_text(textwrap.dedent(PEER_TASK) % values)
    (folder / "app.py").write_text(textwrap.dedent(app) % values)
    return folder


def run_app(name: str, command: list, folder: Path, threads: int, **settings: str) -> dict[str, float]:
    """Seconds a round, steady as the program says, and of the whole process."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": str(threads), **settings}
    began = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    whole = (time.perf_counter() - began) / WHOLE_ROUNDS
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"{name} gave no result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return dict(steady=json.loads(lines[-1].removeprefix("RESULT ")), whole=whole)


def flower(clients: int, rows: int, tuned: bool, threads: int = 1) -> dict[str, float]:
    """Flower's simulation. Both cores: a client a core, or with `threads` 2, Flower's default, all of them for each client."""
    python = environment("flower", ("torch", "numpy", "flwr[simulation]==1.41.0"))
    folder = write_app(python, FLOWER_APP, tuned, threads, clients, rows)
    return run_app("Flower's simulation", [python, folder / "app.py"], folder, threads, FLWR_TELEMETRY_ENABLED="0",
                   FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0", FLWR_HOME=str(folder.parent / "home"))  # fmt: skip


def pfl(clients: int, rows: int, tuned: bool) -> dict[str, float]:
    """Apple's pfl. Both cores: torch's threads, or when tuned a process a core."""
    python = environment("pfl", ("torch", "numpy"), ("pfl==0.6.0",))
    threads = 1 if tuned else CORES
    folder = write_app(python, PFL_APP, tuned, threads, clients, rows)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}"] if tuned else []
    return run_app("pfl", [python, *launch, folder / "app.py"], folder, threads, PFL_PYTORCH_DEVICE="cpu")


PEERS = {
    "flower, as its quickstart": partial(flower, tuned=False, threads=2),
    "flower, a client a core": partial(flower, tuned=False),
    "flower, a client a core, our batches": partial(flower, tuned=True),
    "pfl": partial(pfl, tuned=False),
    "pfl, a process a core": partial(pfl, tuned=True),
}


WHOLE = """
import sys; sys.path.insert(0, {here!r})
import simulator
simulator.Grapevine(simulator.make_split({clients}, {rows}), 2).run({rounds})
"""


def whole_run(rounds: int, clients: int, rows: int) -> float:
    """Seconds a round of a process of ours from its start to its end, as the peers' are counted."""
    began = time.perf_counter()
    code = WHOLE.format(here=str(HERE), clients=clients, rows=rows, rounds=rounds)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return (time.perf_counter() - began) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each at a turn")
    parser.add_argument("--repeats", type=int, default=4, help="turns")
    parser.add_argument("--no-peers", action="store_true", help="without Flower and pfl")
    parser.add_argument("--quick", action="store_true", help="a smoke test on digits; writes nothing")
    flags = parser.parse_args()
    if not flags.quick:
        need("fashion-mnist")
    machine = about()
    clients, rows = (10, 50) if flags.quick else (100, ROWS)
    rounds, repeats = (1, 1) if flags.quick else (flags.rounds, flags.repeats)
    split = make_split(clients, rows, flags.quick)
    loops = TwoLoops(clients, rows, flags.quick)
    peers = {"bare loop, 1 thread": BareLoop(split), "grapevine, 1 worker": Grapevine(split, 1),
             "grapevine, 2 workers": Grapevine(split, 2), "two bare loops at once": loops}  # fmt: skip
    for peer in peers.values():
        peer.run(1)
    with_peers = not flags.quick and not flags.no_peers
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(repeats):
        for name, peer in peers.items():
            seconds[name].append(timed(peer, rounds))
        if with_peers:
            seconds.setdefault("grapevine, 2 workers, whole process", []).append(whole_run(WHOLE_ROUNDS, clients, rows))
            for kind, measure in PEERS.items():
                measured = measure(clients, rows)
                seconds.setdefault(kind, []).append(measured["steady"])
                seconds.setdefault(f"{kind}, whole process", []).append(measured["whole"])
    loops.close()
    # The least of several turns: what the machine can do when nobody else disturbs it.
    best = {name: min(values) for name, values in seconds.items()}
    bare, one, two = (best[name] for name in ("bare loop, 1 thread", "grapevine, 1 worker", "grapevine, 2 workers"))
    setting = (
        f"FedAvg, {split.dataset.name}, {clients} clients × {rows}, {PER_ROUND} a round, {EPOCHS} epochs, batch {BATCH}, cnn"
    )
    result = dict(
        setting=setting,
        seconds_per_round={n: dict(best=min(v), median=statistics.median(v), all=v) for n, v in seconds.items()},
        one_worker_against_bare_loop=one / bare, two_workers_speedup=one / two,
        two_bare_loops_speedup=bare / best["two bare loops at once"],
        machine=machine,
    )  # fmt: skip
    few, many = (10, 20) if flags.quick else (100, 1000)
    shape = split.dataset.x.shape
    sizes = (few,) if flags.quick else (few, many)
    result["memory_mb"] = {str(n): memory(n, rows if n == few else rows // 10, flags.quick) for n in sizes}
    result["data_mb"] = split.dataset.x.numel() * split.dataset.x.element_size() / 2**20
    if with_peers:
        ours = best["grapevine, 2 workers, whole process"]
        result["against_two_workers"] = {
            kind: dict(
                steady=best[kind] / two,
                with_start=best[f"{kind}, whole process"] / two,
                whole_process=best[f"{kind}, whole process"] / ours,
            )
            for kind in PEERS
        }
    print(json.dumps({k: v for k, v in result.items() if k != "seconds_per_round"}, indent=1))
    for name, value in best.items():
        print(f"{name:40s} {value:7.3f} s a round")
    if not flags.quick:
        (HERE / "simulator.json").write_text(json.dumps(dict(result, shape=list(shape)), indent=1) + "\n")


if __name__ == "__main__":
    main()
