"""What several tests of pages look at: runs that are finished, and a comparison over a grid."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from comparisons import made_up, noisy, tabled

import grapevine as gv
from grapevine.run import driver as experiment


@pytest.fixture(scope="session")
def finished(tmp_path_factory, digits) -> Path:
    """A run of three rounds."""
    out = tmp_path_factory.mktemp("report") / "run"
    split = digits.split(clients=4, partition="dirichlet:0.5", labels="clients:80", seed=5)
    words = dict(rounds=3, per_round=2, model="linear", seed=5, device="cpu", latent=0)
    gv.train(gv.methods.FedAvg(epochs=1), split, out=out, **words)
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def pictured(tmp_path_factory, digits) -> Path:
    """A run of FedAnchor whose latent space was kept twice."""
    out = tmp_path_factory.mktemp("latent") / "run"
    split = digits.split(clients=2, labels="server:60", seed=5)
    method = gv.methods.FedAnchor(epochs=1, pretrain=1, batch=200, server_batch=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "LATENT_ROWS", 120)
        gv.train(method, split, rounds=2, per_round=1, model="mlp", seed=5, device="cpu", latent=2, out=out)
    return out


GRID = {"labels": ["clients:20", "clients:40", "clients:80"], "partition": ["iid", "shards:2"]}


@pytest.fixture
def grid(tmp_path):
    def accuracy(label, values, seed):
        return noisy(label, values, seed) - (0.2 if label == "fedsem" and values["partition"] == "iid" else 0)

    return tabled(
        made_up(tmp_path / "grid", ["fedprox", "fedsem"], accuracy, GRID, leave_out={("alone", 0), ("alone", 1), ("alone", 2)})
    )
