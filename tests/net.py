"""A federation on loopback without people: folders written directly, a SuperLink and SuperNodes with TLS and node keys.

Every process runs under the package's own watcher, so it ends with the test however the test ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import psutil
from trials import label_agreement

from grapevine.core import wire
from grapevine.core.store import FileStore, Memory
from grapevine.crypto.agreement import Identity
from grapevine.jobs.reading import Party
from grapevine.parties import files, gate, job, keys, processes, rows
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import Host, Member, Timeouts, in_process, load_host, load_party, make_federation
from grapevine.parties.registry import HostLink, Registry
from grapevine.parties.worker import Worker
from grapevine.run.simulate import Simulation

# What `join` does with its node.
NODE = """
import sys, time
from pathlib import Path
from grapevine.parties.line import Line
from grapevine.parties import worker
line = Line(Path(sys.argv[1]), sys.argv[2], lambda sentence: print(sentence, flush=True))
line.start()
while True:
    line.keep()
    time.sleep(0.2)
"""
SECONDS = 900  # for whatever is waited for: a busy machine may take its time, and a failure ends all the same
NOT_BITS = {"seconds", "peak_memory_mb", "flops"}  # of a result and of lines of the history: clients' operations stay at them
TOKEN = keys.Token("host.example.org", 8443, "trial", "north", "ab" * 32, bytes(range(16)))


def end_tree(pid: int) -> None:
    """As when the power fails: a process and all under it end at once, and say goodbye to nobody."""
    whole = [pid, *processes.children(pid)]
    for each in whole:
        os.kill(each, signal.SIGSTOP)
    family = [psutil.Process(each) for each in {*whole, *processes.children(pid)}]
    for each in family:
        each.kill()
    psutil.wait_procs(family, 60)


def until(true: Callable[[], object], what: str, logs: Callable[[], str], seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}\n{logs()}")
        time.sleep(0.1)


class Net:
    """`with Net(folder, parties, agreed) as net: net.run()`. A host's folder and parties' folders, as after joining."""

    def __init__(
        self, folder: Path, parties: Iterable[Party], agreed: Agreement, own: Party | None = None, step: float = SECONDS
    ):
        self.folder, self.parties, self.host = folder, {party.name: party for party in parties}, folder / "host"
        self.names = list(self.parties)
        self.host.mkdir(parents=True)
        keys.make_certificates(self.host, "test", ["127.0.0.1"])
        identities = {name: Identity.generate() for name in self.names}
        for name in self.names:
            home = folder / name
            home.mkdir()
            files.write_toml(home / "pinned.toml", {n: dict(identity=i.public.hex()) for n, i in identities.items()})
            identities[name].save(home / "identity.pem")
            keys.make_node_key(home)
            shutil.copy(self.host / "ca.crt", home / "ca.crt")
        roster = {name: dict(node_key=(folder / name / "node.pub").read_text().strip()) for name in self.names}
        files.write_toml(self.host / "roster.toml", roster)
        self.agree(agreed, own, step)
        self.superlink: processes.SuperLink | None = None
        self.nodes: dict[str, subprocess.Popen] = {}

    def agree(self, agreed: Agreement, own: Party | None = None, step: float = SECONDS) -> None:
        """All parties agree on this: a new job between the same nodes. `own` are the host's rows."""
        for left in (self.host / "results", *(self.folder / name / "memory" for name in self.names)):
            shutil.rmtree(left, ignore_errors=True)
        for left in ("host/progress.jsonl", "host/failed.json", *(f"{name}/memory.json" for name in self.names)):
            (self.folder / left).unlink(missing_ok=True)
        agreed = replace(agreed, parties=tuple(sorted(self.names)), quorum=min(agreed.quorum, len(self.names)))
        agreed.check()
        times = Timeouts(SECONDS, SECONDS, SECONDS, step)
        Host(self.host, agreed, "127.0.0.1", 1, "127.0.0.1", times).save()
        if own is not None:
            rows.save_rows(self.host, own)
        for name, party in self.parties.items():
            about = dict(name=name, agreed=agreed.to_dict(), hash=agreed.hash, seed=agreed.seed if agreed.seed is not None else 7,
                         ledger=str(self.folder / name / "ledger"))  # fmt: skip
            files.write_toml(self.folder / name / "party.toml", about)
            rows.save_rows(self.folder / name, party)

    # ------------------------------------------------------------ in this process

    def members(self) -> list[Member]:
        return [load_party(self.folder / name) for name in self.names]

    def memories(self) -> dict[str, bytes]:
        """What the parties' steps have kept that lasts, by party: all but keys, which differ from run to run."""
        kept = {name: json.loads((self.folder / name / "memory.json").read_text())["now"] for name in self.names}
        return {name: _kept(Memory(FileStore(self.folder / name / "memory"), manifest)) for name, manifest in kept.items()}

    def strict_memories(self) -> dict[str, bytes]:
        simulation = self.strict()[1]
        return {name: _kept(Memory(simulation.store, simulation.manifests[name])) for name in self.names}

    def strict(self, **more: object) -> tuple[Path, Simulation]:
        """The same job in this process: its results, and the transport with all memories."""
        other = self.folder / "strict"
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        for name in ("federation.toml", "rows.npy", "rows.json", "seed.txt"):
            if (self.host / name).exists():
                shutil.copy(self.host / name, other / name)
        simulation = in_process(self.members(), **more)
        job.run(load_host(other), self.names, simulation)
        return other / "results", simulation

    # ------------------------------------------------------------ processes

    def __enter__(self) -> Net:
        try:
            self.superlink = processes.SuperLink(self.host).start()
            for name in self.names:
                self.superlink.register(name, (self.folder / name / "node.pub").read_text().strip())
                self.start_node(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes.values():  # first, so that they can take their leave
            processes.stop(node)
        if self.superlink:
            self.superlink.stop()

    def start_node(self, name: str, **environment: str) -> None:
        if name in self.nodes:
            processes.stop(self.nodes[name])
        place, home = f"127.0.0.1:{self.superlink.port}", self.folder / name
        command = [sys.executable, "-c", NODE, str(home), place]
        self.nodes[name] = processes.start(command, {**os.environ, **environment}, home / "log" / "line.txt")

    def crash(self, name: str) -> None:
        end_tree(self.nodes[name].pid)

    # ------------------------------------------------------------ the job

    def start_job(self) -> None:
        self.superlink.run()

    def run(self) -> dict:
        """The job's result, or the sentence it failed with."""
        self.start_job()
        return self.result()

    def result(self) -> dict:
        ends = [self.host / "results" / "result.json", self.host / "failed.json"]
        self.until(lambda: any(path.exists() for path in ends), "the job to end")
        return json.loads(next(path for path in ends if path.exists()).read_text())

    def until(self, true: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        until(true, what, self.logs, seconds)

    def progress(self) -> list[dict]:
        return files.whole_lines(self.host / "progress.jsonl")

    def exchanges(self) -> list[dict]:
        return [line for line in self.progress() if "answered" in line]

    def logs(self) -> str:
        paths = [*self.folder.glob("*/log/*.txt"), *self.folder.glob("*/log.txt")]
        return "\n".join(f"== {path.relative_to(self.folder)}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


def ask_party(folder: Path, request: dict, run: int = 1) -> dict | None:
    """What a party's own program answers to a request; None if it refuses."""
    return wire.decode(Worker(folder).answer(run, wire.encode(request))["reply"]).get("reply")


def bytes_left(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def _kept(memory: Memory) -> bytes:
    return wire.encode({name: memory[name] for name in sorted(set(memory) & {"result", "decided", "moments"})})


def bits(results: Path) -> dict:
    """All of a run's results that must repeat: numbers, lines of the history and of the messages, the model's file."""
    made: dict = {"result": {k: v for k, v in json.loads((results / "result.json").read_text()).items() if k not in NOT_BITS}}
    for name in ("history", "messages"):
        lines = files.whole_lines(results / f"{name}.jsonl")
        made[name] = [{key: value for key, value in line.items() if key not in NOT_BITS} for line in lines]
    model = results / "model.safetensors"
    made["model"] = model.read_bytes() if model.exists() else None
    return made


class Desk:
    """A registry behind a gate on loopback."""

    def __init__(self, folder: Path, superlink: int | None = None, agreed: Agreement | None = None):
        port = processes.free_port()
        make_federation(Host(folder, agreed or label_agreement(), "127.0.0.1", port, "127.0.0.1"))
        keys.make_certificates(folder, "trial", ["127.0.0.1"])
        self.folder, self.port, self.said = folder, port, []
        self.registry = Registry(folder)
        self.gate = gate.Gate(("127.0.0.1", port), self.registry, superlink, self.said.append).start()

    def link(self, name: str, token: keys.Token | None = None) -> HostLink:
        return HostLink(token or self.registry.invite(name)).check_ca()

    def enrol(self, name: str, folder: Path, link: HostLink | None = None) -> HostLink:
        folder.mkdir(exist_ok=True)
        link = link or self.link(name)
        if not (folder / "identity.pem").exists():
            Identity.generate().save(folder / "identity.pem")
        identity = Identity.load(folder / "identity.pem").public.hex()
        return link.enrol(keys.make_node_key(folder), identity)

    def raw(self, data: bytes, seconds: float = 60) -> bytes:
        """Bytes to the gate over TLS, and all that comes back."""
        context = ssl.create_default_context(cadata=self.gate.ca.decode())
        with (
            socket.create_connection(("127.0.0.1", self.port), seconds) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(data)
            out = b""
            while piece := sock.recv(65536):
                out += piece
            return out
