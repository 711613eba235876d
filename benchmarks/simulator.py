"""The simulator against what one would use instead: seconds a round of FedAvg, all in one interleaved run.

Fashion-MNIST, 100 clients × 500 rows, 10 a round, 5 epochs, batch 50, the small CNN. Measured side by side, a few rounds of each
in turn, so that a noisy machine disturbs all alike: Grapevine with one and with two workers, a bare PyTorch loop on one thread
in the same memory format, and three peers, each in an environment of its own, which this script makes (`peers`). How much faster
two bare loops at once are, each with half of the clients and nothing between them, says what a second core is worth here.

Flower's simulation (Ray), in three ways: as in its quickstart, with a DataLoader, torch's usual memory format and its default of
two cores for a client; the same with a client a core; and with our batches and memory format too. Apple's pfl: as in its
introduction, one process with torch's threads on both cores; and as its chapter on fast simulations has it, a process a core, in
our memory format. (pfl cuts a client's rows into batches once and does not shuffle them, so an epoch costs it a little less; and
it always evaluates the clients of the first round, which counts in its whole process alone.) BlazeFL: a thread a core, torch's
usual memory format, its own loop over a DataLoader. The peers' small CNN is torch's layers, ours has `PoolReLU`, and so has the
bare loop, which runs in our process and with its allocator; so what is left between "our batches" and us is not the engine
alone. "Whole process" is a run of 20 rounds from start to end, imports and start-up included, for the peers and for us. And the
memory of 100 and of 1000 clients, each in a child process. Fashion-MNIST must be there as fashion_mnist.npz. `--peers` takes
only those whose names begin so, comma between them.

    python benchmarks/simulator.py [--rounds 3] [--repeats 4] [--peers pfl,blazefl | --peers none] [--where] [--quick]

Writes simulator.json beside itself.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from machine import DATA, about, need
from peers import BATCH, CORES, EPOCHS, LR, PEERS, PER_ROUND, ROWS, WHOLE_ROUNDS

import grapevine as gv
from grapevine.core import Server
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

HERE = Path(__file__).parent


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


KINDS = {
    "convolutions backward": ("convolution_backward",), "convolutions forward": ("mkldnn_convolution",),
    "pooling and ReLU": ("PoolReLU",), "linear layer and loss": ("addmm", "aten::mm", "nll_loss", "log_softmax", "aten::sum"),
    "optimiser": ("Optimizer", "aten::add_", "_foreach"), "batches": ("aten::index", "aten::copy_", "aten::div", "randperm"),
}  # fmt: skip


def where(split) -> dict[str, float]:
    """Of a round on one worker, the share of each kind of work, by torch's profiler, which does not see
    Python. The rest is torch's own handling."""
    from torch.profiler import ProfilerActivity, profile

    ours = Grapevine(split, 1)
    ours.run(1)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        ours.run(1)
    shares, whole = dict.fromkeys(KINDS, 0.0), sum(each.self_cpu_time_total for each in seen.key_averages())
    for each in seen.key_averages():
        kind = next((kind for kind, words in KINDS.items() if any(word in each.key for word in words)), None)
        if kind:
            shares[kind] += each.self_cpu_time_total / whole
    shares = {kind: round(share, 3) for kind, share in shares.items()}
    return dict(shares, rest=round(1 - sum(shares.values()), 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each at a turn")
    parser.add_argument("--repeats", type=int, default=4, help="turns")
    parser.add_argument("--peers", default="", help="those whose names begin so (default: all)")
    parser.add_argument("--where", action="store_true", help="only where the time of a round goes; the rest of the file stays")
    parser.add_argument("--quick", action="store_true", help="a smoke test on digits; writes nothing")
    flags = parser.parse_args()
    if not flags.quick:
        need("fashion-mnist")
    machine = about()
    clients, rows = (10, 50) if flags.quick else (100, ROWS)
    rounds, repeats = (1, 1) if flags.quick else (flags.rounds, flags.repeats)
    split = make_split(clients, rows, flags.quick)
    spent = where(split)
    print(spent)
    if flags.where:
        kept = json.loads((HERE / "simulator.json").read_text())
        (HERE / "simulator.json").write_text(json.dumps(dict(kept, where_time_goes=spent), indent=1) + "\n")
        return
    loops = TwoLoops(clients, rows, flags.quick)
    peers = {"bare loop, 1 thread": BareLoop(split), "grapevine, 1 worker": Grapevine(split, 1),
             "grapevine, 2 workers": Grapevine(split, 2), "two bare loops at once": loops}  # fmt: skip
    for peer in peers.values():
        peer.run(1)
    chosen = {} if flags.quick else {n: run for n, run in PEERS.items() if n.startswith(tuple(flags.peers.split(",")))}
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(repeats):
        for name, peer in peers.items():
            seconds[name].append(timed(peer, rounds))
        if chosen:
            seconds.setdefault("grapevine, 2 workers, whole process", []).append(whole_run(WHOLE_ROUNDS, clients, rows))
            for kind, measure in chosen.items():
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
        where_time_goes=spent,
        machine=machine,
    )  # fmt: skip
    few, many = (10, 20) if flags.quick else (100, 1000)
    shape = split.dataset.x.shape
    sizes = (few,) if flags.quick else (few, many)
    result["memory_mb"] = {str(n): memory(n, rows if n == few else rows // 10, flags.quick) for n in sizes}
    result["data_mb"] = split.dataset.x.numel() * split.dataset.x.element_size() / 2**20
    if chosen:
        ours = best["grapevine, 2 workers, whole process"]
        result["against_two_workers"] = {
            kind: dict(
                steady=best[kind] / two,
                whole_process=best[f"{kind}, whole process"] / ours,
            )
            for kind in chosen
        }
    print(json.dumps({k: v for k, v in result.items() if k != "seconds_per_round"}, indent=1))
    for name, value in best.items():
        print(f"{name:40s} {value:7.3f} s a round")
    if not flags.quick:
        (HERE / "simulator.json").write_text(json.dumps(dict(result, shape=list(shape)), indent=1) + "\n")


if __name__ == "__main__":
    main()
