"""What a client sends, receives and computes in a round, for every method: ResNet-9, CIFAR-10's shape, 50 labelled and 490
unlabelled rows. ProtoFSSL's tables 1 and 2 come out of it.

    python benchmarks/cost_account.py [--quick]

Bytes are those of the messages, by field; operations are 2 x multiply-adds of the layers that really ran, forward and backward
apart, and of what a client computes outside of networks (hashes, distances to prototypes, propagation). Both are counted, not
timed, so rows of noise do as well as photographs, and one client's round is enough: two clients beside it hold a few rows, to be
its helpers. One local epoch, as in the paper's example.

A count of operations depends on shapes alone, so convolutions are replaced by a cheap stand-in of the same shapes, which takes
seconds instead of an hour. FedMatch keeps the real ones: which entries changed, and so its bytes, depends on values. That both
count alike is checked at the start. Results: cost_account.json beside this file.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import ROOT, about, fill, table, write
from torch import Tensor, nn

from grapevine import methods
from grapevine.core import Client, Meter, Method, ModelSource, Server, Transport, account, wire
from grapevine.core.rows import ClientData, Rows, Scale
from grapevine.learn import networks as models
from grapevine.run.simulate import Simulation

SHAPE, CLASSES, LABELLED, UNLABELLED = (3, 32, 32), 10, 50, 490
HELPERS, AUGMENTATIONS, INTERVAL = 2, 2, 10  # |H_r|, A and R_H of the paper's example
PAPER = dict(
    mixmatch=(782.0, 52.6), fixmatch=(782.0, 52.6), fedrgd=(782.0, 52.6), fedmatch=(1526.0, 115.6), protofssl=(447.9, 52.6)
)

# One epoch over all rows. Where the paper's formula has a row seen once, so do these: see NOTES for the rest.
SETTINGS: dict[str, dict[str, Any]] = {
    "protofssl": dict(steps_per_round=1, support=1, query=4, unlabelled=UNLABELLED, helpers=HELPERS),
    "fixmatch": dict(epochs=1, batch=10, ratio=10),
    "mixmatch": dict(epochs=1, batch=50, views=AUGMENTATIONS),
    "fedmatch": dict(epochs=1, helpers=HELPERS, interval=INTERVAL, threshold=0.0),
    "fedrgd": dict(period=8, groups=1),
    "fedsiam": dict(epochs=1), "fedavg": dict(epochs=1), "fedprox": dict(epochs=1), "scaffold": dict(epochs=1),
    "supervised": dict(epochs=1), "alone": dict(epochs=1), "server-only": dict(epochs=1),
    "xclp": dict(epochs=1, warmup=0.0), "network": dict(epochs=1, warmup=0.0), "perclient-lp": dict(epochs=1, warmup=0.0),
    "fedsem": dict(epochs=1, warmup=0.0), "fedanchor": dict(epochs=1, pretrain=0, threshold=-1.0),
    "semifl": dict(epochs=1, pretrain=0, server_epochs=1, threshold=0.0), "fedcon": dict(epochs=1, server_epochs=1),
    "mp-ssfl": dict(epochs=1, server_epochs=1, tau=0.5), "rds": dict(epochs=1), "tuor": dict(epochs=1, server_epochs=1),
    "sage": dict(epochs=1), "fedlabel": dict(epochs=1), "proxyfl": dict(epochs=1),
    "feddb": dict(epochs=1, threshold=0.0), "cbafed": dict(epochs=1, warmup=0.0, base=0.0, most=0.0),
    "fl2": dict(epochs=1, server_epochs=1, pretrain=0, fix=0.0),
}  # fmt: skip

NOTES = {
    "all": """The paper counts forward passes only (F is one pass of one row: 2 x multiply-adds), E = 1, and each row as
often as its method must look at it: `forward` is to be compared with it, `backward` comes on top. F is 0.7592 GFLOP there
and 0.7586 here: we count convolutions and linear layers, and leave out pooling, activations and the residual sums.""",
    "mixmatch": """The formula has A passes of every unlabelled row. MixMatch has A passes to guess its label, and then A
more to learn from its mixed views; and a labelled row comes as often as an unlabelled one, since batches hold as many of
both.""",
    "fedrgd": "Batches hold 64 rows of each kind, so that the 50 labelled rows come again with each of the 8 steps of an epoch.",
    "fedmatch": """As in the formula: one pass of each unlabelled row as it is, one of its strong view, one of each helper;
and one image of noise. Only rows whose probability reaches the threshold have the last two: the threshold is 0 here, the
dearest case. Bytes: the formula sends sigma and psi whole in both directions, and of a helper both. Here only entries that
changed are sent, of a helper only psi, as differences. A client's first round gets all of both.""",
    "protofssl": """As in the formula: an episode over all rows, and a pass over the labelled ones for the shared
prototypes. The network lacks the last layer. Distances to prototypes are in `outside`.""",
    "xclp": """Outside: products with the 4096 hyperplanes, and the labelled columns times the labels. Masks and distances
of hashes are integers and not counted. Bytes are of the protocol psm among three clients, of whom two hold few rows.""",
    "semifl, fedanchor, feddb, cbafed, fl2": "Thresholds are such that every row is learned from, the dearest case.",
    "mp-ssfl": "Which rows are learned from depends on the classifier, and on noise none may be: this is its least cost.",
}


class StandIn(nn.Conv2d):
    """Outputs of a convolution's shape (stride 1, same size) that depend on its inputs and weights, and cost next to nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True) * self.weight.mean((1, 2, 3)).view(1, -1, 1, 1)


def build(method: Method, name: str, real: bool, seed: int = 0) -> models.Network:
    net = method.network(models.build(name, SHAPE, CLASSES, seed=seed))
    for layer in net.modules():
        if type(layer) is nn.Conv2d and not real:
            layer.__class__ = StandIn
    return net


@dataclass
class Counted:
    """One client's account: bytes by direction, step and field, and operations."""

    up: int = 0
    down: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    flops: int = 0
    backward: int = 0
    outside: int = 0


class Meters(Transport):
    """Hands requests on to a simulation, one client after another, and keeps each one's account."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self.of: dict[int, Counted] = {}
        self.running = Meter()  # of the client that was made last
        simulation.prepare = self._watch

    def _watch(self, client: Client) -> None:
        self.running = client.meter

    def exchange(self, step: str, requests: dict, round: int) -> dict:
        replies = {}
        for id, payload in requests.items():
            mine = self.of.setdefault(id, Counted())
            before = self.simulation.flops
            replies |= self.simulation.exchange(step, {id: payload}, round)
            mine.flops += self.simulation.flops - before
            mine.backward, mine.outside = mine.backward + self.running.backward, mine.outside + self.running.outside
            for direction, message in (("down", payload), ("up", replies.get(id, {}))):
                setattr(mine, direction, getattr(mine, direction) + wire.size(message))
                for name, _, _, size in account.fields(message):
                    key = f"{direction} {step}.{name}"
                    mine.fields[key] = mine.fields.get(key, 0) + size
        return replies


def rows(n: int, known: int, seed: int) -> tuple[Rows, Rows]:
    """Noise, in classes that come in turn: the first `known` rows with their label and the others without, all of one array."""
    x = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    half = torch.full((SHAPE[0], 1, 1), 0.5)
    scale, at = Scale(1 / 255, half, half), torch.arange(n)
    return Rows(x, at[:known], at[:known] % CLASSES, scale), Rows(x, at[known:], torch.full((n - known,), -1), scale)


def holdings(method: Method, labelled: int, unlabelled: int, seed: int) -> ClientData:
    """What a client holds where this method takes labels; for the upper bound and for cleaning, all rows are labelled."""
    names, n = tuple(f"class {c}" for c in range(CLASSES)), labelled + unlabelled
    if method.reveal or method.name in ("mp-ssfl", "rds", "tuor"):
        labelled = n
    elif "clients" not in method.takes:
        labelled = 0
    return ClientData(*rows(n, labelled, seed), rows(1, 1, 0)[0], names)


def measure(name: str, model: str, size: tuple[int, int], real: bool, seed: int = 0) -> dict[str, Any]:
    """One client's round, the second of the run: the first, on few rows, is there for helpers and for copies of the model."""
    method = methods.find(name)(**SETTINGS.get(name, {}))
    net = "resnet8" if not method.logits and model == "resnet9" else model
    source = ModelSource(lambda: build(method, net, real, seed), torch.zeros(1, *SHAPE))
    few = {i: holdings(method, 20, 10, 10 * i + 100 * seed) for i in range(3)}
    full = {0: holdings(method, *size, 99 + 100 * seed)}
    early = name in ("protofssl", "fedmatch")  # of the others every round is alike
    simulation = Simulation(method, few if early else few | full, source, seed)
    meters = Meters(simulation)
    at_server = None if "clients" in method.takes and not method.reveal else rows(size[0], size[0], 77)[0]
    server = Server(method, range(3), meters, source, full[0].classes, seed, per_round=3, rounds=2, data=at_server)
    method.check(server)
    state = method.setup(server)
    first = None
    if early:
        state = method.round(server, state)
        first = meters.of.pop(0)
        simulation.data = few | full
    meters.of.clear()
    server.meter.flops = 0
    method.round(server, state)
    mine = meters.of.get(0, Counted())
    weights = sum(p.numel() for p in source.new(None, server.meter).parameters())
    return dict(
        method=name, settings=SETTINGS.get(name, {}), model=net, parameters=weights, real_convolutions=real,
        forward_gflop=giga(mine.flops - mine.backward - mine.outside), backward_gflop=giga(mine.backward),
        outside_gflop=giga(mine.outside), server_gflop=giga(server.meter.flops), up_mb=mega(mine.up), down_mb=mega(mine.down),
        fields_mb={key: mega(n) for key, n in sorted(mine.fields.items()) if n >= 1000},
        **(dict(first_round_up_mb=mega(first.up), first_round_down_mb=mega(first.down)) if first else {}),
    )  # fmt: skip


def giga(n: float) -> float:
    return round(n / 1e9, 3)


def mega(n: float) -> float:
    return round(n / 1e6, 3)


def formulas(model: str, size: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Table 1 of the paper, with our F (GFLOP of a forward pass), Theta (MB of the weights) and C (of a prototype)."""
    from grapevine.core import counted

    meter, net = Meter(), models.build(model, SHAPE, CLASSES).eval()
    theta = 4e-6 * models.parameter_count(net)
    with torch.no_grad():
        counted(net, meter)(torch.zeros(1, *SHAPE))
    F, d, (L, U) = meter.flops / 1e9, net.features_dim, size
    distances = d * HELPERS * CLASSES * U / 1e9
    C = 4e-6 * d
    return dict(
        mixmatch=(F * (L + AUGMENTATIONS * U), 2 * theta), fixmatch=(F * (L + 2 * U), 2 * theta),
        fedrgd=(F * (L + 2 * U), 2 * theta),
        fedmatch=(F * (L + (2 + HELPERS) * U), (4 + 2 * HELPERS / INTERVAL) * theta),
        protofssl=(F * (L + U) + distances + F * L, 2 * theta + C * (1 + HELPERS) * CLASSES),
    )  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    head = ("method", "forward GFLOP", "backward GFLOP", "GFLOP at the server", "MB up", "MB down", "the paper: forward GFLOP",
            "the paper: MB, up and down")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for each in result["measured"]:
        counted = [f"{each[f'{what}_gflop']:.1f}" for what in ("forward", "backward", "server")]
        sent = [f"{each[f'{way}_mb']:.3f}" for way in ("up", "down")]
        theirs = [f"{value:.1f}" for value in result["paper"].get(each["method"], ())] or ["", ""]
        lines.append(f"| `{each['method']}` | {' | '.join(counted + sent + theirs)} |")
    return "\n".join(lines)


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    fill(root / "docs" / "costs.md", "cost_account.py", markdown(result))


def show(result: dict[str, Any]) -> None:
    found = {run["method"]: run for run in result["measured"]}
    lines = []
    for name, (gflop, mb) in result["formulas"].items():
        run = found[name]
        paper = PAPER[name]
        lines.append(
            (name, paper[0], gflop, run["forward_gflop"], run["backward_gflop"], paper[1], mb, run["up_mb"] + run["down_mb"])
        )
    head = ("ProtoFSSL's table 2", "paper GFLOP", "formula", "forward", "+ backward", "paper MB", "formula", "measured")
    print(table(head, lines))
    print()
    lines = []
    for run in sorted(result["measured"], key=lambda run: run["forward_gflop"] + run["backward_gflop"]):
        lines.append(
            (run["method"], run["forward_gflop"], run["backward_gflop"], run["outside_gflop"], run["up_mb"], run["down_mb"])
        )
    print(table(("a client's round", "forward GFLOP", "backward", "outside", "MB up", "MB down"), lines))
    print()
    for name, text in NOTES.items():
        print(f"{name}: {' '.join(text.split())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a small network and few rows, to see that it runs; nothing is written"
    )
    quick = parser.parse_args().quick
    model, size = ("cnn", (20, 30)) if quick else ("resnet9", (LABELLED, UNLABELLED))
    result = dict(machine=about(), shape=SHAPE, classes=CLASSES, labelled=size[0], unlabelled=size[1], local_epochs=1)
    result["paper"] = PAPER
    result["formulas"] = {name: (round(g, 1), round(mb, 1)) for name, (g, mb) in formulas(model, size).items()}
    names = ["fedavg", "network", "xclp", *PAPER] if quick else list(methods.TABLE)
    for name in ("fixmatch", "protofssl"):
        real, cheap = (measure(name, model, (20, 30), real) for real in (True, False))
        assert {**real, "real_convolutions": False} == cheap, name
    result["measured"] = [measure(name, model, size, real=name == "fedmatch") for name in names]
    result["differences"] = {name: " ".join(text.split()) for name, text in NOTES.items()}
    show(result)
    if not quick:
        write(__file__, result)
        document(result)


if __name__ == "__main__":
    main()
