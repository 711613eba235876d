"""A federation on loopback without people: folders written directly, a SuperLink and SuperNodes with TLS and node keys."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from grapevine import __version__
from grapevine.crypto.agreement import Identity
from grapevine.parties import federation, flower, warm
from grapevine.parties import keys as credentials

START_SECONDS = 120
STOP_SECONDS = 30
AGREED = dict(
    name="test", version=__version__, job="train", method="fedavg", settings={}, classes=[], features=[], scale="none", quorum=2,
    rounds=1, per_round=10, model="mlp", reproducible=True, seed=5,
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _family(pid: int) -> list[psutil.Process]:
    mother = psutil.Process(pid)
    return [mother, *mother.children(recursive=True)]


class Net:
    """`with Net(folder, parties, job=…) as net: net.run()`. Every wait has an end, and nothing is left running."""

    def __init__(self, folder: Path, parties: list, timeout: float = 120.0, **settings):
        self.folder, self.names = folder, [party.name for party in parties]
        self.host = folder / "host"
        self.host.mkdir(parents=True)
        credentials.make_certificates(self.host, "test", ["127.0.0.1"])
        identities = {name: Identity.generate() for name in self.names}
        for party in parties:
            own = folder / party.name
            own.mkdir()
            federation.save_rows(own, party)
            federation.write_toml(own / "pinned.toml", {n: dict(identity=i.public.hex()) for n, i in identities.items()})
            identities[party.name].save(own / "identity.pem")
            credentials.make_node_key(own)
        roster = {name: dict(node_key=(folder / name / "node.pub").read_text().strip()) for name in self.names}
        federation.write_toml(self.host / "roster.toml", roster)
        self.agree(timeout, **settings)
        self.port, self.processes = free_port(), {}

    def agree(self, timeout: float = 120.0, **settings) -> None:
        """All parties agree on these settings: a new job, between the same nodes."""
        table = {**AGREED, **settings, "parties": self.names, "timeouts": dict(step=timeout, online=START_SECONDS)}
        federation.write_toml(self.host / "federation.toml", table)
        agreed = federation.agreed(table)
        for name in self.names:
            about = dict(name=name, agreed=agreed, hash=federation.settings_hash(agreed), seed=table["seed"])
            federation.write_toml(self.folder / name / "party.toml", about)
        for left in ("checkpoint", "results"):
            shutil.rmtree(self.host / left, ignore_errors=True)
        (self.host / "progress.jsonl").unlink(missing_ok=True)

    # ------------------------------------------------------------ processes

    def __enter__(self) -> Net:
        try:
            self._start_superlink()
            for name in self.names:
                self._flwr("supernode", "register", str(self.folder / name / "node.pub"), "here")
                self.start_node(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        nodes = [name for name in self.processes if name != "superlink"]
        self.kill(*nodes, how=signal.SIGTERM)  # first, so that they can take their leave
        self.kill(*self.processes, how=signal.SIGTERM)

    def _start(self, name: str, home: Path, *words: str, **environment: str) -> None:
        home.mkdir(exist_ok=True)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                warm.command(*words),
                env=flower.environment(home) | environment,
                cwd=home,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _start_superlink(self) -> None:
        host, home = self.host, self.host / "flower"
        self._start("superlink", home, "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
                    "--ssl-ca-certfile", str(host / "ca.crt"), "--ssl-certfile", str(host / "server.pem"), "--ssl-keyfile",
                    str(host / "server.key"), "--enable-supernode-auth", "--disable-runtime-dependency-installation")  # fmt: skip
        config = f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\nroot-certificates = "{host / "ca.crt"}"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n{config}')
        self.until(self._listens, START_SECONDS, "the SuperLink to listen")

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def start_node(self, name: str, **environment: str) -> None:
        folder = self.folder / name
        self._start(name, folder / "flower", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
                    str(self.host / "ca.crt"), "--auth-supernode-private-key", str(folder / "node.key"), "--host", "127.0.0.1",
                    "--port", str(free_port()), "--node-config", f"party-folder={json.dumps(str(folder))}",
                    **environment)  # fmt: skip

    def kill(self, *names: str, how: int = signal.SIGKILL) -> None:
        """Processes and all under them. Told to end, they must do so by themselves."""
        processes = [self.processes.pop(name) for name in names]
        family = [one for process in processes if process.poll() is None for one in _family(process.pid)]
        for process in processes:
            process.send_signal(how)
        left = psutil.wait_procs(family, STOP_SECONDS)[1]
        for one in left:
            one.kill()
        for process in processes:
            process.wait(STOP_SECONDS)
        assert not left, f"{names} left processes behind: {left}"

    def _flwr(self, *words: str) -> dict:
        home = self.host / "flower"
        done = subprocess.run(["flwr", *words, "--format", "json"], env=flower.environment(home), capture_output=True, text=True,
                              timeout=START_SECONDS, cwd=home)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def until(self, true, seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not true():
            if time.monotonic() > until:
                raise AssertionError(f"waited {seconds} s for {what}\n{self.logs()}")
            time.sleep(0.1)

    # ------------------------------------------------------------ the job

    def start_job(self, app: Path | None = None) -> None:
        app = app or flower.write_app(self.host / "flower" / "app")
        self._flwr("run", str(app), "here", "--run-config", f"federation-folder={json.dumps(str(self.host))}")

    def run(self, seconds: float = 280.0) -> dict:
        """The job's result, or the sentence it failed with."""
        self.start_job()
        return self.result(seconds)

    def result(self, seconds: float = 280.0) -> dict:
        results = [self.host / "results" / "result.json", self.host / "results" / "failed.json"]
        self.until(lambda: any(path.exists() for path in results), seconds, "the job")
        return json.loads(next(path for path in results if path.exists()).read_text())

    def progress(self) -> list[dict]:
        path = self.host / "progress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def logs(self) -> str:
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*/log.txt")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)
