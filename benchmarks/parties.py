"""Jobs between real parties on one machine: seconds an exchange, bytes, memory; and Flower's own quickstart beside them.

`grapevine host` and `grapevine join` as people start them, all processes on this machine, TLS and node keys as always. Rows are
`grapevine host` and `grapevine join` as people start them, all processes on this machine, TLS and node keys as always. Rows are
here and not labels. Jobs: `train` (FedAvg, mlp, 100 rows a party, 20 rounds) and `label` (chorus over psm, 500 rows a party).
Seconds are those of the host's own log: from asking to the last answer. Memory is of a party's processes: `pss`, in which pages
that several processes share are divided among them, parties on this machine included; and `alone`, the largest of a party as on
a machine of its own: private and forked pages by PSS, and files once, as the process has them that has most.

Flower's quickstart: its SuperLink, as many SuperNodes and its FedAvg strategy, on the same rows and network, without TLS.

    python benchmarks/parties.py [--parties 3,10,20] [--jobs train,label,flower] [--rounds 20]

What was measured before stays in parties.json, unless it is measured again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np
from machine import about, table, write

from grapevine.data import load
from grapevine.parties import processes
from grapevine.parties.files import whole_lines

ROWS = dict(train=100, label=500)
SECONDS = 1500  # for a whole job
RUN = [sys.executable, "-c", "from grapevine.cli.main import main; main()"]
JOBS = dict(
    train=["--job", "train", "--model", "mlp", "--classes", ",".join(map(str, range(10))), "--set", "epochs=2"],
    label=["--secure", "psm"],
)  # fmt: skip


def write_rows(path: Path, at: int, n: int) -> None:
    data = load("digits")
    x, y = data.x.flatten(1).numpy(), data.y.numpy()
    rows = np.arange(at, at + n) % len(x)
    noise = np.random.default_rng(at).normal(0, 0.01, (n, x.shape[1])) * (np.arange(at, at + n)[:, None] >= len(x))
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["id", "digit", *(f"p{j}" for j in range(x.shape[1]))])
        for i, row in enumerate(rows):
            out.writerow([f"row{at + i}", y[row] if i % 3 == 0 else "", *np.round(x[row] + noise[i], 4)])


# ---------------------------------------------------------------- memory


def tree(pid: int) -> list[int]:
    return [pid, *processes.children(pid)]


def pss(pid: int) -> float:
    """MB of a process, shared pages divided by how many share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def alone(pids: Iterable[int]) -> float:
    """MB of a party's processes as on a machine of their own: what is in files once, at its largest, and what is not by PSS."""
    anonymous, files = 0.0, 0.0
    for pid in pids:
        try:
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        except OSError:
            continue
        of = {name: int(value.split()[0]) / 1024 for name, value in lines.items()}
        anonymous += of["Pss_Anon"] + of.get("Pss_Shmem", 0.0)
        files = max(files, of["Rss"] - of["Anonymous"])
    return anonymous + files


class Memory:
    """The largest of what was seen of every party, while it waits and while it works."""

    def __init__(self, parties: dict[str, subprocess.Popen]):
        self.parties = parties
        self.most = dict(idle=dict.fromkeys(parties, 0.0), work=dict.fromkeys(parties, 0.0))
        self.all = dict(idle=0.0, work=0.0)

    def look(self, phase: str) -> None:
        whole = 0.0
        for name, process in self.parties.items():
            pids = tree(process.pid) if process.poll() is None else []
            self.most[phase][name] = max(self.most[phase][name], alone(pids))
            whole += sum(map(pss, pids))
        self.all[phase] = max(self.all[phase], whole)

    def summary(self) -> dict[str, float]:
        worst = {f"{phase}_alone_mb": round(max(of.values())) for phase, of in self.most.items()}
        return worst | {f"{phase}_pss_mb": round(whole / len(self.parties)) for phase, whole in self.all.items()}


# ---------------------------------------------------------------- a job


def job(kind: str, count: int, rounds: int) -> dict:
    folder = Path(tempfile.mkdtemp(prefix="parties-"))
    names, started = [f"p{i:02}" for i in range(count)], dict[str, subprocess.Popen]()
    try:
        for i, name in enumerate(names):
            write_rows(folder / f"{name}.csv", i * ROWS[kind], ROWS[kind])
        words = [*JOBS[kind], *(["--rounds", str(rounds), "--per-round", str(count)] if kind == "train" else [])]
        made = subprocess.run(
            [*RUN, "host", str(folder / "host"), "--parties", ",".join(names), "--address", "127.0.0.1", "--bind", "127.0.0.1",
             "--port", str(processes.free_port()), "--schema", str(folder / "p00.csv"), "--label", "digit", "--id", "id",
             *words, *(word for name in names for word in ("--invite", name))],
            capture_output=True, text=True, check=True, timeout=300,
        ).stdout  # fmt: skip
        tokens = dict(zip(names, (line for line in made.splitlines() if line.startswith("grapevine-"))))
        began = time.perf_counter()
        host = processes.start([*RUN, "host", str(folder / "host")], dict(os.environ), folder / "host.txt")
        for name in names:
            started[name] = processes.start(
                [*RUN, "join", "--data", str(folder / f"{name}.csv"), "--label", "digit", "--id", "id", "--home",
                 str(folder / name), "--ledger", str(folder / "ledgers" / name), "--yes"],
                dict(os.environ, GRAPEVINE_TOKEN=tokens[name]), folder / f"{name}.txt",
            )  # fmt: skip
        memory, progress = Memory(started), folder / "host" / "progress.jsonl"
        while host.poll() is None and time.perf_counter() - began < SECONDS:
            if (folder / "host" / "results" / "result.json").exists():
                break
            memory.look("work" if progress.exists() else "idle")
            time.sleep(1.0 + 0.1 * count)
        whole = time.perf_counter() - began
        return measured(folder, whole, memory, kind)
    finally:
        for process in [*started.values(), *([host] if "host" in locals() else [])]:
            processes.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def measured(folder: Path, whole: float, memory: Memory, kind: str) -> dict:
    path = folder / "host" / "results" / "result.json"
    if not path.exists():
        raise SystemExit(f"the job did not end:\n{(folder / 'host.txt').read_text()[-3000:]}")
    result = json.loads(path.read_text())
    lines = [line for line in whole_lines(folder / "host" / "progress.jsonl") if "answered" in line]
    each, steps = [line["seconds"] for line in lines], []
    for log in folder.glob("p*/log.txt"):
        steps += [float(line.split()[-2]) for line in log.read_text().splitlines() if line.endswith(" s") and "step" in line]
    return dict(
        exchanges=len(each), seconds_exchange=round(median(each), 2), seconds_longest=max(each), step=round(median(steps), 2),
        seconds_job=round(lines[-1]["time"] - lines[0]["time"] + each[0], 1), seconds_all=round(whole, 1),
        missing=sum(len(line["missing"]) for line in lines), rounds=result["rounds"] if kind == "train" else None,
        mb_up=round(result["bytes_up"] / 1e6, 2), mb_down=round(result["bytes_down"] / 1e6, 2), **memory.summary(),
    )  # fmt: skip


# ---------------------------------------------------------------- Flower's quickstart

APP = """
[project]
name = "quickstart"
version = "1.0.0"
license = "Apache-2.0"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "quickstart"
[tool.flwr.app.components]
serverapp = "quickstart:server"
clientapp = "quickstart:client"
[tool.flwr.app.config]
"""
QUICKSTART = """
import json, time
import numpy as np, torch
from torch import nn
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

def network():
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))

client = ClientApp()

@client.train()
def train(msg: Message, context: Context):
    torch.set_num_threads(1)
    rows = np.genfromtxt(context.node_config["file"], delimiter=",", skip_header=1)
    rows = rows[~np.isnan(rows[:, 1])]
    x, y = torch.tensor(rows[:, 2:]).float(), torch.tensor(rows[:, 1]).long()
    model = network()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for at in torch.randperm(len(x)).split(10):
            optimiser.zero_grad()
            F.cross_entropy(model(x[at]), y[at]).backward()
            optimiser.step()
    record = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})})
    return Message(content=record, reply_to=msg)

server = ServerApp()

class Timed(FedAvg):
    stamps = []
    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        Timed.stamps.append(time.time())
        return out

@server.main()
def main(grid: Grid, context: Context):
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=%(count)d, min_train_nodes=%(count)d)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=%(rounds)d)
    with open(%(out)r, "w") as file:
        json.dump(Timed.stamps, file)
"""


def flower(count: int, rounds: int) -> dict:
    """Seconds a round of its FedAvg, which is one exchange, on as many SuperNodes."""
    folder = Path(tempfile.mkdtemp(prefix="flower-"))
    out, port, app, started = folder / "out.json", processes.free_port(), folder / "app", dict[str, subprocess.Popen]()
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "quickstart.py").write_text(textwrap.dedent(QUICKSTART) % dict(count=count, rounds=rounds, out=str(out)))
    home = folder / "home"
    env = {name: value for name, value in processes.environment(home).items() if "POLL" not in name}
    (home / "config.toml").write_text(f'[superlink]\ndefault = "there"\n[superlink.there]\naddress = "127.0.0.1:{port}"\n'
                                      "insecure = true\n")  # fmt: skip
    try:
        link = processes.start(["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
                                "--disable-runtime-dependency-installation"], env, folder / "link.txt")  # fmt: skip
        while processes.port_is_free("127.0.0.1", port):
            time.sleep(0.5)
        for i in range(count):
            write_rows(folder / f"{i}.csv", i * 100, 100)
            started[str(i)] = processes.start(
                ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port",
                 str(processes.free_port()), "--node-config", f"file={json.dumps(str(folder / f'{i}.csv'))}"],
                dict(env, FLWR_HOME=str(folder / f"home{i}")), folder / f"{i}.txt",
            )  # fmt: skip
        memory, began = Memory(started), time.perf_counter()
        subprocess.run(
            ["flwr", "run", str(app), "there", "--format", "json"], env=env, capture_output=True, check=True, timeout=300
        )
        while not out.exists() and time.perf_counter() - began < SECONDS:
            memory.look("work")
            time.sleep(1.0)
        stamps = json.loads(out.read_text())
        each = np.diff(stamps).tolist()
        return dict(exchanges=len(stamps), seconds_exchange=round(median(each), 2), seconds_longest=round(max(each), 2),
                    rounds=rounds, **{k: v for k, v in memory.summary().items() if "work" in k})  # fmt: skip
    finally:
        for process in [*started.values(), link]:
            processes.stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", default="3,10,20")
    parser.add_argument("--jobs", default="train,label,flower")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two rounds of training between three parties; writes nothing")
    flags = parser.parse_args()
    if flags.quick:
        flags.parties, flags.jobs, flags.rounds = "3", "train", 2
    path = Path(__file__).with_suffix(".json")
    result = json.loads(path.read_text()) if path.exists() and not flags.quick else dict(runs={})
    for count in map(int, flags.parties.split(",")):
        for kind in flags.jobs.split(","):
            found = flower(count, flags.rounds) if kind == "flower" else job(kind, count, flags.rounds)
            result["runs"][f"{kind} {count}"] = dict(found, machine=about())
            if not flags.quick:
                write(__file__, result)
    names = ("exchanges", "seconds_exchange", "step", "seconds_job", "mb_up", "idle_alone_mb", "work_alone_mb", "work_pss_mb")
    print(table(("job, parties", *names), [(key, *(of.get(n, "") for n in names)) for key, of in result["runs"].items()]))


if __name__ == "__main__":
    main()
