"""The account of costs: operations against closed forms and against torch's own counter, bytes against the size of a model."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from grapevine import core, methods
from grapevine.core import Server, account
from grapevine.core.store import Memory
from grapevine.crypto import spread
from grapevine.learn import heads, layers
from grapevine.learn import networks as models
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation


def count(module, x, backward=True, inputs=False):
    """(all operations, those of the backward pass) of one pass over x."""
    meter = core.Meter()
    out = core.counted(module, meter)(x.requires_grad_(inputs))
    if backward:
        out.sum().backward()
    return meter.flops, meter.backward


def test_linear_layer_by_hand():
    layer, x = nn.Linear(7, 3), torch.zeros(5, 7)
    forward = 2 * 5 * 7 * 3  # a multiply and an add for each row and weight
    assert count(layer, x, backward=False) == (forward, 0)
    layer = nn.Linear(7, 3)
    assert count(layer, x) == (2 * forward, forward)  # ∂/∂W = gᵀx; nobody wants ∂/∂x
    layer = nn.Linear(7, 3)
    assert count(layer, x, inputs=True) == (3 * forward, 2 * forward)
    layer = nn.Linear(7, 3).requires_grad_(False)
    assert count(layer, torch.zeros(5, 7), inputs=True) == (2 * forward, forward)


@pytest.mark.parametrize("stride, groups, kind", [(1, 1, nn.Conv2d), (2, 1, nn.Conv2d), (1, 2, nn.Conv2d), (1, 1, None)])
def test_convolution_by_hand(stride, groups, kind):
    kind = kind or layers.WeightNormConv2d
    layer = kind(4, 6, 3, stride=stride, padding=1, groups=groups)
    if kind is layers.WeightNormConv2d:
        nn.init.ones_(layer.length)
    side = 8 // stride
    forward = 2 * 5 * (side * side * 6) * (4 // groups * 3 * 3)  # outputs × weights of a filter
    assert count(layer, torch.zeros(5, 4, 8, 8)) == (2 * forward, forward)


def test_layers_without_gradient_and_passes_without_backward_count_once():
    meter = core.Meter()
    net = core.counted(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), meter)
    first, second = 2 * 3 * 4 * 8, 2 * 3 * 8 * 2
    with torch.no_grad():
        net(torch.zeros(3, 4))
    assert (meter.flops, meter.backward) == (first + second, 0)
    loss = net(torch.zeros(3, 4)).sum()
    assert (meter.flops, meter.backward) == (2 * (first + second), 0)
    loss.backward()  # both layers' weights, and the second's inputs
    assert (meter.flops, meter.backward) == (3 * first + 4 * second, first + 2 * second)


@pytest.mark.parametrize(
    "name, shape", [("linear", (64,)), ("mlp", (64,)), ("cnn", (1, 28, 28)), ("cnn13", (3, 32, 32)), ("resnet9", (3, 32, 32)),
                    ("resnet18", (3, 32, 32)), ("wrn28x2", (3, 32, 32))]
)  # fmt: skip
def test_networks_agree_with_torchs_own_counter(name, shape):
    net, x = models.build(name, shape, 10).train(), torch.randn(2, *shape)
    net.use_rng(torch.Generator())
    with FlopCounterMode(display=False) as theirs:
        net(x)
        forward = theirs.get_total_flops()
    with FlopCounterMode(display=False) as theirs:
        net(x).sum().backward()
    flops, backward = count(net, x)
    assert flops - backward == forward
    assert flops == theirs.get_total_flops()


def test_extra_heads_are_counted():
    base = models.build("mlp", (64,), 10)
    source = core.ModelSource(lambda: heads.Projected(base, 32), torch.zeros(1, 64))
    meter = core.Meter()
    net = source.new(None, meter)
    d = base.features_dim
    with torch.no_grad():
        f = net.features(torch.zeros(3, 64))
        before = meter.flops
        net.projector(f)
    assert meter.flops - before == 2 * 3 * (d * 32 + 32 * d)


# ---------------------------------------------------------------- a round of a method


class Costs:
    """One round of two clients on digits with an mlp: operations of all clients, bytes by direction."""

    def __init__(self, digits, method, labelled=6, unlabelled=8):
        split = digits.split(clients=2, labels="clients:60", seed=1)
        parts = [
            replace(p, labelled=p.labelled[:labelled], labels=p.labels[:labelled], unlabelled=p.unlabelled[:unlabelled])
            for p in split.parts
        ]
        split = replace(split, parts=tuple(parts))
        source = Experiment(method, split, model="mlp").models()
        self.simulation, self.clients = Simulation(method, {i: split.client(i) for i in range(2)}, source), []
        self.simulation.prepare = self.clients.append
        self.server = Server(method, range(2), self.simulation, source, digits.classes, rounds=4)
        self.method, self.state = method, method.setup(self.server)
        self.round()

    def round(self):
        self.simulation.flops, self.server.account = 0, account.Account()
        self.state = self.method.round(self.server, self.state)
        self.flops, self.bytes = self.simulation.flops, dict(self.server.account.totals)
        self.outside = sum(client.meter.outside for client in self.clients)


LAYERS = ((64, 128), (128, 64), (64, 10))  # of the mlp on digits
FORWARD = 2 * sum(a * b for a, b in LAYERS)
FEATURES = FORWARD - 2 * 64 * 10
STEP = 3 * FORWARD - 2 * 64 * 128  # nobody wants the gradient of a row
WEIGHTS = 4 * sum(a * b + b for a, b in LAYERS)


def test_rounds_cost_what_their_passes_cost(digits):
    assert Costs(digits, methods.FedAvg(epochs=3)).flops == 2 * 3 * 6 * STEP
    network = Costs(digits, methods.NetworkLabels(warmup=0.0, epochs=1))
    # Labels of the 8 unlabelled rows; then two batches of 6 + 6 and 6 + 2 rows.
    assert network.flops == 2 * (8 * FORWARD + 20 * STEP)
    # Teacher and student see two views of 6 + 8 rows.
    assert Costs(digits, methods.FedSiam(epochs=1, batch=6, ratio=2)).flops == 2 * 14 * (FORWARD + STEP)
    # Two guesses of each unlabelled row, then labelled rows and both views, mixed.
    assert Costs(digits, methods.MixMatch(epochs=1, views=2)).flops == 2 * (16 * FORWARD + (6 + 16) * STEP)
    # One batch of weak labelled, weak and strong unlabelled rows: the weak ones are in the same pass.
    assert Costs(digits, methods.FixMatch(epochs=1, batch=6, ratio=2)).flops == 2 * (6 + 16) * STEP


def test_xclp_counts_hashes_and_propagation(digits):
    costs = Costs(digits, methods.XCLP(init="random", bits=100, neighbours=3, epochs=1, spread=spread.protocol("paper")))
    rows, d = 14, 64
    assert costs.outside == 2 * (2 * rows * d * 100 + 2 * (2 * rows) * 6 * 10)
    memories = [Memory(costs.simulation.store, manifest) for manifest in costs.simulation.manifests.values()]
    labelled = sum(int((memory["pseudo"]["labels"] >= 0).sum()) for memory in memories)
    assert labelled == 16  # so that two batches of 6 + 6 and 6 + 2 rows are learned from
    assert costs.flops == costs.outside + 2 * (rows * FEATURES + 20 * STEP)


def test_protofssl_counts_distances_to_prototypes(digits):
    method = methods.ProtoFSSL(helpers=2, steps_per_round=1, support=1, query=1, unlabelled=8)
    costs = Costs(digits, method, labelled=20)
    first = costs.outside
    data = [costs.simulation.data[i].labelled.y for i in range(2)]
    queries = sum(int((torch.bincount(y) >= 2).sum()) for y in data)
    support = sum(len(y.unique()) for y in data)
    assert first == 2 * 10 * 64 * 3 * queries  # no helper yet, so no unlabelled rows
    costs.round()
    assert costs.outside - first == 2 * 10 * 64 * (3 * (queries + 16) + 2 * 16)
    step = 3 * FEATURES - 2 * 64 * 128
    assert costs.flops == costs.outside - first + (support + queries + 16) * step + 40 * FEATURES


def test_bytes_are_those_of_the_weights_and_little_more(digits):
    few = 2 * 600  # names, shapes, numbers
    fedavg = Costs(digits, methods.FedAvg(epochs=1)).bytes
    for direction in ("up", "down"):
        assert 2 * WEIGHTS < fedavg[direction] < 2 * WEIGHTS + few
    scaffold = Costs(digits, methods.Scaffold(epochs=1)).bytes
    for direction in ("up", "down"):  # the control variates come on top
        assert 4 * WEIGHTS < scaffold[direction] < 4 * WEIGHTS + 2 * few
    siam = Costs(digits, methods.FedSiam(epochs=1)).bytes
    assert 4 * WEIGHTS < siam["up"] < 4 * WEIGHTS + 2 * few
    prototypes = Costs(digits, methods.ProtoFSSL(helpers=2, steps_per_round=1)).bytes
    features, sent = WEIGHTS - 4 * (64 * 10 + 10), 4 * 10 * 64  # no last layer; ten prototypes
    assert 2 * (features + sent) < prototypes["up"] < 2 * (features + sent) + few
