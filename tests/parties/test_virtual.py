"""An experiment on Flower's Ray simulation: driver and workers in this process, and with Ray itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.jobs.settings import TrainSettings
from grapevine.parties import flower, virtual

SETTINGS = dict(
    data="digits", clients=4, labels="clients:180", model="mlp", rounds=2, per_round=3, workers=2, device="cpu", seed=5
)
SIMULATE = """
import json, sys
from grapevine.parties import virtual
if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    virtual.run(job, 4, lambda done, rounds, line: print(done, rounds, flush=True))
"""


def test_the_simulation_needs_ray_and_says_so(tmp_path):
    if importlib.util.find_spec("ray"):
        pytest.skip("Ray is installed here")
    with pytest.raises(Mistake, match=r"--runtime flower-sim needs Ray: pip install 'flwr\[simulation\]==1.41.0'"):
        virtual.run(virtual.job("fedavg", TrainSettings(**SETTINGS), tmp_path / "out", False), 4, print)


class Direct:
    """A carrier that calls the worker's function in this process, through the codec."""

    def __init__(self, home):
        self.home = home

    def exchange(self, step, requests, round):
        asked = {id: wire.decode(wire.encode(dict(step=step, round=round, payload=r))) for id, r in requests.items()}
        return {id: wire.decode(wire.encode(virtual.work(self.home, request))) for id, request in asked.items()}


def simulate_here(tmp_path, name: str) -> tuple[dict, Path]:
    """Driver and worker in one process."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    (home / "job.json").write_text(json.dumps(virtual.job(name, TrainSettings(**SETTINGS), out, False)))
    virtual.drive(home, lambda count: Direct(home))
    return json.loads((home / "ended.json").read_text()), out


def run_local(tmp_path, name: str):
    made = virtual.experiment(virtual.job(name, TrainSettings(**SETTINGS), tmp_path / "local", False))
    made.run()
    return tmp_path / "local"


def same_files(a, b) -> bool:
    return all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in ("history.jsonl", "messages.jsonl", "model.safetensors")
    )


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_driver_and_workers_give_the_bits_of_a_local_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    ended, out = simulate_here(tmp_path, name)
    assert ended == dict(kind="", sentence="")
    local = run_local(tmp_path, name)
    assert same_files(out, local)
    flops = [json.loads((folder / "result.json").read_text())["flops"] for folder in (out, local)]
    assert flops[0] == flops[1] > 0


def test_an_error_in_a_worker_stops_the_run_with_its_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from dataclasses import dataclass\nfrom grapevine.core import step\nfrom grapevine.methods import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Broken(FedAvg):\n    name = 'broken'\n\n"
        "    @step\n    def train(self, client, weights, round):\n        raise ValueError('no')\n"
    )
    ended, out = simulate_here(tmp_path, f"{broken}:Broken")
    assert ended["kind"] == "StepError" and ended["sentence"].startswith("client ") and "step train, round 0" in ended["sentence"]
    assert not (out / "result.json").exists()


@pytest.fixture(scope="session")
def ray_python(tmp_path_factory) -> str:
    """A Python with Ray, on top of this one."""
    if importlib.util.find_spec("ray"):
        return sys.executable
    (needs,) = {r for r in importlib.metadata.requires("flwr") if r.startswith("ray") and "3.11" in r}
    folder = tmp_path_factory.mktemp("ray") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    own = next((folder / "lib").iterdir()) / "site-packages"
    (own / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(flower.__file__).parent.parent}\n")
    for words in ([needs.split(";")[0].strip()], ["--no-deps", "--force-reinstall", "flwr==1.41.0"]):
        done = subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *words], capture_output=True, timeout=900)
        if done.returncode:
            pytest.skip("Ray cannot be installed here")
    return str(folder / "bin" / "python")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ray_gives_the_bits_of_a_local_run(tmp_path, monkeypatch, ray_python):
    monkeypatch.chdir(tmp_path)
    job = virtual.job("scaffold", TrainSettings(**SETTINGS), tmp_path / "out", False)
    (tmp_path / "simulate.py").write_text(SIMULATE)
    done = subprocess.run(
        [ray_python, str(tmp_path / "simulate.py"), json.dumps(job)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "2 2"
    assert same_files(tmp_path / "out", run_local(tmp_path, "scaffold"))
