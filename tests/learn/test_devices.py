"""Networks, batches and training where the device is not the CPU. No machine with CUDA or MPS runs these tests: `meta` stands in
for it, which refuses to mix its tensors with the CPU's as a GPU does, but computes nothing."""

from __future__ import annotations

import pytest
import torch

from grapevine.core.errors import Mistake
from grapevine.core.meter import Meter
from grapevine.learn import fit, losses
from grapevine.methods import find
from grapevine.run.experiment import pick_device
from grapevine.run.model import model_source


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("augment", [False, True])
def test_a_client_trains_on_its_device(digits, device, model, augment):
    split = digits.split(clients=2, labels="clients:40")
    rows = split.client(0, device).labelled
    source = model_source(find("fedavg")(), model, tuple(split.x.shape[1:]), 10, seed=0, device=device)
    network = source.new(None, Meter())
    x, y = rows.batch(slice(0, 4))
    assert {x.device.type, y.device.type, network(x).device.type} == {device}
    assert fit(network, rows, 0.1, 1, torch.Generator().manual_seed(0), batch=10, augment=augment) == 2
    assert {p.device.type for p in network.parameters()} == {device}
    if device == "cpu":
        assert all(t.isfinite().all() for t in network.state().values())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_contrastive_loss_stays_on_its_device(device):
    a, b = (torch.rand(6, 4, device=device) for _ in range(2))
    assert losses.nt_xent(a, b, 0.5).device.type == device


@pytest.mark.parametrize(("cuda", "mps", "picked"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_takes_the_gpu_where_there_is_one(monkeypatch, cuda, mps, picked):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto") == picked and pick_device("cpu") == "cpu"
    if not cuda:
        with pytest.raises(Mistake, match="has no CUDA device"):
            pick_device("cuda:1")
    if not mps:
        with pytest.raises(Mistake, match="has no MPS device"):
            pick_device("mps")
