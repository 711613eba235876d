"""An experiment on Flower's Ray simulation: the driver in one process, clients' steps in as many as there are cores or machines.

`grapevine train … --runtime flower-sim`. Driver and workers each build method and split from the job, which is the flags of the
command. Clients' memory lies in the run's folder, which all of them must see. The bits are those of `--runtime local`.

    command ── flwr run ── driver: Experiment with `Workers` for its simulation ── Flower, Ray ── worker: `work`
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from grapevine import methods
from grapevine.core import Id, StepError, Transport, party_name, wire, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.server import Inbox
from grapevine.core.store import FileStore, write_atomically
from grapevine.crypto.agreement import Identity
from grapevine.crypto.stream import fresh_secret
from grapevine.jobs.settings import TrainSettings
from grapevine.jobs.splits import make_split
from grapevine.parties import processes
from grapevine.parties.files import whole_lines
from grapevine.run.driver import Progress
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

START_SECONDS = 300  # until the driver runs: Ray takes its time


# ---------------------------------------------------------------- the command's side


def job(method: str, settings: TrainSettings, out: str | Path, resume: bool) -> dict[str, Any]:
    """What driver and workers build the experiment from."""
    return dict(method=method, settings=settings.to_dict(), out=str(Path(out).resolve()), resume=resume, folder=os.getcwd())


def run(job: dict[str, Any], clients: int, progress: Progress) -> None:
    """Run the job to its end; its results are then in its folder. Ctrl-C stops all processes."""
    if importlib.util.find_spec("ray") is None:
        raise Mistake("--runtime flower-sim needs Ray: pip install 'flwr[simulation]==1.41.0', or use --runtime local.")
    home = Path(tempfile.mkdtemp(prefix="gv-"))  # short: Ray's sockets lie in it
    (home / "job.json").write_text(json.dumps(job))
    port, env = processes.free_port(), dict(processes.environment(home / "flower"), RAY_TMPDIR=str(home))
    link = processes.start(
        ["flower-superlink", "--simulation", "--insecure", "--host", "127.0.0.1", "--port", str(port),
         "--disable-runtime-dependency-installation"], env, home / "log.txt",
    )  # fmt: skip
    try:
        _submit(home, port, env, clients, job["settings"])
        _follow(home, link, job, progress)
    finally:
        processes.stop(link)
        shutil.rmtree(home, ignore_errors=True)


def _submit(home: Path, port: int, env: dict[str, str], clients: int, flags: dict[str, Any]) -> None:
    app = processes.write_app(home / "flower" / "app")
    (home / "flower" / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    config = f"num-supernodes={clients} client-resources-num-cpus=1"
    if "RAY_ADDRESS" not in os.environ:  # else the cluster that is there says how many cores it has
        config += f" init-args-num-cpus={flags['workers']}"
    if str(flags["device"]).startswith("cuda"):
        config += " client-resources-num-gpus=1.0"
    words = ["flwr", "run", str(app), "here", "--federation-config", config, "--run-config",
             f"experiment-folder={json.dumps(str(home))}", "--format", "json"]  # fmt: skip
    until, told = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < until:  # the SuperLink may not listen yet
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=START_SECONDS, stdin=subprocess.DEVNULL)
        told = (done.stdout + done.stderr).strip()
        if '"success": true' in told:  # the exit code is 0 also when it failed
            return
        time.sleep(1)
    raise Mistake(f"Flower's simulation did not start within {START_SECONDS} s ({told[-200:]}): use --runtime local.")


def _follow(home: Path, link: Any, job: dict[str, Any], progress: Progress) -> None:
    """Tell how far it is until it has ended, well or not."""
    began, ended, told, until = home / "began", home / "ended.json", 0, time.monotonic() + START_SECONDS
    while True:
        over = ended.exists()
        gone = not processes.alive(int(began.read_text())) if began.exists() else time.monotonic() > until
        if not over and (gone or link.poll() is not None) and not ended.exists():
            raise Mistake("Flower's simulation stopped by itself: continue with --resume, or with --runtime local.")
        lines = whole_lines(Path(job["out"]) / "history.jsonl") if began.exists() else []
        for line in lines[told:]:
            progress(line["round"], job["settings"]["rounds"], line)
        told = len(lines)
        if over:
            break
        time.sleep(0.2)
    how = json.loads(ended.read_text())
    if how["kind"]:
        raise (StepError if how["kind"] == "StepError" else Mistake)(how["sentence"])


# ---------------------------------------------------------------- driver and workers


def experiment(job: dict[str, Any], simulation: Callable[..., Simulation] = Simulation) -> Experiment:
    os.chdir(job["folder"])  # a data file may have been named from there
    s = TrainSettings.from_dict(job["settings"])
    method = with_settings(methods.find(job["method"]), s.set)
    return Experiment(method, make_split(s, s.seed), out=job["out"], simulation=simulation, **s.run())


def drive(home: Path, connect: Callable[[int], Transport]) -> None:
    """The driver's process: run the experiment, and say how it ended."""
    job = json.loads((home / "job.json").read_text())
    ended = dict(kind="", sentence="")
    try:
        made = experiment(job, partial(Workers, home, connect))
        write_atomically(home / "began", str(os.getpid()).encode())
        made.run(job["resume"])
    except (Mistake, StepError) as error:
        ended = dict(kind=type(error).__name__, sentence=str(error))
    except Exception as error:
        ended = dict(kind=type(error).__name__, sentence=f"the driver failed with {type(error).__name__}: {error}")
        raise
    finally:
        write_atomically(home / "ended.json", json.dumps(ended).encode())


class Workers(Simulation):
    """`simulate.Simulation` for the driver, with its exchanges carried to the workers."""

    def __init__(self, home: Path, connect: Callable[[int], Transport], *args: Any):
        super().__init__(*args)
        self.carrier = connect(len(self.data))
        # Clients' identities as the workers will have them. They guard nothing: all of this is one user's simulation.
        secrets = {id: fresh_secret() for id in self.data}
        self.identities = {id: Identity(secret) for id, secret in secrets.items()}
        write_atomically(home / "identities", wire.encode(secrets))

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        asked = {id: dict(client=id, memory=self.manifests.get(id, {}), payload=payload) for id, payload in requests.items()}
        answers = self.carrier.exchange(step, asked, round)
        for id in requests:
            if id not in answers or "failed" in answers[id]:
                raise StepError(answers[id]["failed"] if id in answers else f"client {id}, step {step}, round {round}: no answer")
            self.manifests[id] = answers[id]["memory"]
            self.flops += answers[id]["flops"]
            self.add_judged(answers[id]["judged"])
        return {id: answers[id]["reply"] for id in requests}

    def gather(self, step: str, requests: dict[Id, dict], round: int, into: Inbox) -> None:
        Transport.gather(self, step, requests, round, into)


_worker: dict[Path, Simulation] = {}  # a worker lives on: it builds the experiment once


def work(home: Path, request: dict) -> dict:
    """A worker's process: one step of one client. An error is reported in full; the driver then stops the run."""
    asked = request["payload"]
    id, step, round = asked["client"], request["step"], request["round"]
    try:
        simulation = _worker.get(home) or _worker.setdefault(home, _build(home))
        simulation.manifests[id] = asked["memory"]
        before = simulation.flops
        reply = simulation.exchange(step, {id: asked["payload"]}, round)[id]
    except StepError as error:
        return dict(failed=str(error))
    except Exception as error:
        return dict(failed=f"client {id}, step {step}, round {round}: {type(error).__name__}: {error}")
    return dict(reply=reply, memory=simulation.manifests[id], flops=simulation.flops - before, judged=simulation.take_judged())


def _build(home: Path) -> Simulation:
    job = json.loads((home / "job.json").read_text())
    e = experiment(job)
    data: dict[Id, Any] = {i: e.split.client(i, e.settings.device) for i in range(len(e.split.parts))}
    store = FileStore(Path(job["out"]) / "checkpoint" / "objects")
    made = Simulation(e.method, data, e.models(), e.settings.seed, store=store, truth=lambda i: e.split.client_truth(int(i))[1])
    made.identities = {id: Identity(secret) for id, secret in wire.decode((home / "identities").read_bytes()).items()}
    made.pinned = {party_name(id): identity.public for id, identity in made.identities.items()}
    return made
