"""What simulator.py runs beside us: the peers' programs, each in an environment of its own.

BlazeFL asks for Python 3.12 and recommends one without a lock; its code runs on ours, so that all have the same Python and torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
from functools import partial
from pathlib import Path

from machine import DATA, FILES, environment

ROWS, PER_ROUND, EPOCHS, BATCH, LR = 500, 10, 5, 50, 0.1
CORES = 2
WHOLE_ROUNDS = 20  # of a whole process, from its start to its end

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

BLAZEFL_APP = """
import json, logging, time
from enum import StrEnum
import torch
from torch.utils.data import DataLoader, TensorDataset
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from blazefl.core import PartitionedDataset
from task import client_rows, network

class Names(StrEnum):
    CNN = "cnn"

class Selector:
    def select_model(self, model_name):
        return network()

class Rows(PartitionedDataset):
    def get_dataset(self, type_, cid):
        x, y = client_rows(cid, %(rows)d)
        x = ((x.float() / 255 - 0.286) / 0.353)[:, None].contiguous(memory_format=%(memory_format)s)
        return TensorDataset(x, y)
    def set_dataset(self, type_, cid, dataset):
        pass
    def get_dataloader(self, type_, cid, batch_size=None, generator=None):
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=True, generator=generator)

common = dict(model_selector=Selector(), model_name=Names.CNN, dataset=Rows(), device="cpu", num_clients=%(clients)d,
              batch_size=%(batch)d, seed=0)
server = FedAvgBaseServerHandler(**common, global_round=%(rounds)d, sample_ratio=%(share)r)
clients = FedAvgThreadPoolClientTrainer(**common, epochs=%(epochs)d, lr=%(lr)r, num_parallels=%(cores)d)
stamps = []
while not server.if_stop():
    chosen = server.sample_clients()
    clients.local_process(server.downlink_package(), chosen)
    for package in clients.uplink_package():
        server.load(package)
    stamps.append(time.perf_counter())
print("RESULT " + json.dumps((stamps[-1] - stamps[0]) / (len(stamps) - 1)))
"""


def write_app(python: Path, app: str, tuned: bool, threads: int, clients: int, rows: int) -> Path:
    """A peer's program and what its clients do, beside its environment; `tuned`: our batches and memory format."""
    folder = python.parent.parent / "app"
    folder.mkdir(exist_ok=True)
    values = dict(
        file=str(DATA.resolve() / FILES["fashion-mnist"]), clients=clients, rows=rows, per_round=PER_ROUND,
        share=PER_ROUND / clients, rounds=WHOLE_ROUNDS, lr=LR, epochs=EPOCHS, batch=BATCH, tuned=tuned, threads=threads,
        cores=CORES,        memory_format="torch.channels_last" if tuned else "torch.contiguous_format",
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


def blazefl(clients: int, rows: int) -> dict[str, float]:
    """BlazeFL, whose threads share the memory: a thread a core. It cannot send weights that are channels last."""
    python = environment("blazefl", ("torch", "numpy", "tqdm"), ("--ignore-requires-python --no-deps blazefl==2.0.3",))
    folder = write_app(python, BLAZEFL_APP, False, 1, clients, rows)
    return run_app("BlazeFL", [python, folder / "app.py"], folder, 1)


PEERS = {
    "flower, as its quickstart": partial(flower, tuned=False, threads=2),
    "flower, a client a core": partial(flower, tuned=False),
    "flower, a client a core, our batches": partial(flower, tuned=True),
    "pfl": partial(pfl, tuned=False),
    "pfl, a process a core": partial(pfl, tuned=True),
    "blazefl, a thread a core": blazefl,
}
