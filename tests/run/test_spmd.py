"""`--runtime spmd`: the same bits on any number of workers as in one process; a lost worker, and going on without it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.run import spmd

SETTINGS = dict(clients=7, labels="clients:150", rounds=3, per_round=5, model="mlp", workers=1)
FILES = ("model.safetensors", "history.jsonl", "messages.jsonl", "split.json")


def start(out: Path, world: int, method: str = "scaffold", **settings) -> list[subprocess.Popen]:
    """Workers by hand, on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = dict(SETTINGS, **settings)
    flags = []
    for name, value in said.items():
        flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    command = [
        sys.executable,
        "-m",
        "grapevine",
        "train",
        method,
        "--data",
        "digits",
        *flags,
        "--runtime",
        "spmd",
        "--out",
        str(out),
    ]
    group = dict(WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [subprocess.Popen(command, env={**os.environ, **group, "RANK": str(rank)}, **pipes) for rank in range(world)]


def ended(workers: list[subprocess.Popen]) -> list[str]:
    said = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers), "\n".join(said)
    return said


def same_files(a: Path, b: Path) -> None:
    for name in FILES:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def test_two_workers_give_the_bits_of_one_process(tmp_path):
    workers = start(tmp_path / "two", 2)
    gv.train("scaffold", "digits", out=tmp_path / "one", **SETTINGS)  # clients with memories, and several sums
    leader, follower = ended(workers)
    same_files(tmp_path / "one", tmp_path / "two")
    assert "scaffold" in leader and not follower.strip()  # one of them speaks


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fixmatch", "mixmatch", "network"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_workers(method, world, tmp_path):
    workers = start(tmp_path / "many", world, method)
    gv.train(method, "digits", out=tmp_path / "one", **SETTINGS)
    ended(workers)
    same_files(tmp_path / "one", tmp_path / "many")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["semifl", "fedanchor", "fedcon", "mp-ssfl"])
def test_labels_at_the_server(method, tmp_path):
    workers = start(tmp_path / "two", 2, method, labels="server:150,clients:150" if method == "mp-ssfl" else "server:150")
    gv.train(method, "digits", out=tmp_path / "one",
             **dict(SETTINGS, labels="server:150,clients:150" if method == "mp-ssfl" else "server:150"))  # fmt: skip
    ended(workers)
    same_files(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_lost_worker_stops_the_run_and_others_go_on(tmp_path):
    rounds = 60
    workers = start(tmp_path / "run", 3, rounds=rounds)
    checkpoint = tmp_path / "run" / "checkpoint" / "manifest.json"
    while not checkpoint.exists():
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.05)
    workers[2].kill()
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers[:2]] == [2, 2], said
    assert all("a worker was lost" in text and "--resume" in text for text in said[:2])
    again = start(tmp_path / "run", 2, rounds=rounds, resume=True)
    ended(again)
    gv.train("scaffold", "digits", out=tmp_path / "one", **dict(SETTINGS, rounds=rounds))
    same_files(tmp_path / "one", tmp_path / "run")


def test_who_needs_one_process():
    for method, why in ((gv.methods.FedRGD(), "groups"), (gv.methods.XCLP(), "keys"), (gv.methods.Alone(), "no model leaves")):
        with pytest.raises(Mistake, match=f"{method.name} needs --runtime local: .*{why}"):
            spmd.require_averages(method)
    spmd.require_averages(gv.methods.FedAvg())


def test_where_workers_are_told_who_they_are():
    assert spmd.place({}) == (0, 1) and spmd.place(dict(RANK="2", WORLD_SIZE="4")) == (2, 4)
    slurm = dict(SLURM_PROCID="3", SLURM_NTASKS="8", SLURM_JOB_NODELIST="gpu[03-07,9],old1", SLURM_JOB_ID="70011")
    assert spmd.place(slurm) == (3, 8) and spmd.address(slurm) == ("gpu03", spmd.PORT + 11)
    assert spmd.address(dict(slurm, SLURM_JOB_NODELIST="a1,a2")) == ("a1", spmd.PORT + 11)
    assert spmd.address(dict(MASTER_ADDR="10.0.0.1", MASTER_PORT="4000")) == ("10.0.0.1", 4000)
    with pytest.raises(Mistake, match="no MASTER_ADDR"):
        spmd.address({})


def test_shares_are_everybody_once_and_even():
    rows = {id: (id * 37) % 11 + 1 for id in range(20)}
    shares = [spmd.share(rows, rows, rank, 3) for rank in range(3)]
    assert sorted(sum(shares, [])) == list(range(20))
    loads = [sum(rows[id] for id in mine) for mine in shares]
    assert max(loads) - min(loads) <= max(rows.values())
