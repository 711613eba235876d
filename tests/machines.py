"""A host and parties as people start them, `grapevine host` and `grapevine join`, each a process with its own folder and log.

Every process runs under a watcher that ends with the test process, and after each test no process is left and the port is free.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from net import Net, end_tree, until
from trials import NAMES as ALL
from trials import digits, write_table

from grapevine.parties import files, keys, processes
from grapevine.parties.federation import load_host
from grapevine.run.simulate import Simulation

NAMES = list(ALL)
FOUR = [*NAMES, "west"]  # the label job goes on with three
RUN = [sys.executable, "-c", "from grapevine.cli.main import main; main()"]
SECONDS = 1500  # for a whole job on a busy machine
STEP_SECONDS = 600  # what the host is told to wait for an answer, where nobody is late on purpose
SHORT_SECONDS = 120  # where somebody is


class Machines:
    """A host and parties, each a process with its own folder and log, as on machines of their own."""

    def __init__(self, folder: Path, *words: str, names: list[str] = NAMES, write: Callable[..., object] = write_table):
        self.folder, self.names, self.port = folder, names, processes.free_port()
        self.parties = {name: digits(name, 100 * i, 100) for i, name in enumerate(names)}
        self.started: dict[str, subprocess.Popen] = {}
        self.family: dict[int, psutil.Process] = {}
        for name, party in self.parties.items():
            write(folder / f"{name}.csv", party, label="digit")
        self.host = folder / "host"
        made = self.grapevine(
            "host", str(self.host), "--parties", ",".join(names), "--address", "127.0.0.1", "--bind", "127.0.0.1", "--port",
            str(self.port), "--schema", str(folder / f"{names[0]}.csv"), "--label", "digit", "--id", "id", "--wait",
            str(SECONDS), *words, *(word for name in names for word in ("--invite", name)),
        )  # fmt: skip
        tokens = [line for line in made.splitlines() if line.startswith("grapevine-")]
        self.tokens = dict(zip(names, tokens))

    def grapevine(self, *words: str) -> str:
        done = subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # ------------------------------------------------------------ processes

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop all, and make sure that nothing is left. An error of the test itself is shown rather than one from here."""
        self._count()
        for process in self.started.values():
            process.stdin.close()  # tells its watcher
        _, left = psutil.wait_procs(list(self.family.values()), timeout=120)
        for each in left:
            each.kill()
        for process in self.started.values():
            process.wait(timeout=120)
        if error[0] is None:
            assert not left, f"left behind: {left}"
            assert processes.port_is_free("127.0.0.1", self.port)

    def _count(self) -> None:
        """Remember every process of this federation."""
        for started in self.started.values():
            for pid in [started.pid, *processes.children(started.pid)] if started.poll() is None else []:
                if pid not in self.family:
                    with suppress(psutil.NoSuchProcess):  # it may end between the two
                        self.family[pid] = psutil.Process(pid)

    def start(self, name: str, *words: str, env: dict[str, str] | None = None) -> None:
        if name in self.started:
            self.started[name].stdin.close()  # one that has ended
        self.started[name] = processes.start([*RUN, *words], {**os.environ, **(env or {})}, self.folder / f"{name}.txt")

    def start_host(self) -> None:
        self.start("host", "host", str(self.host))

    def join(self, name: str, *more: str, env: dict[str, str] | None = None) -> None:
        env = dict(env or {}, GRAPEVINE_TOKEN=self.tokens[name])
        self.start(name, "join", "--data", str(self.folder / f"{name}.csv"), "--label", "digit", "--id", "id",
                   "--home", str(self.folder / name), "--ledger", str(self.folder / "ledgers" / name), "--yes", *more,
                   env=env)  # fmt: skip

    def rejoin(self, name: str) -> None:
        self.start(name, "join", "--home", str(self.folder / name), "--yes")

    def through(self, name: str) -> Cut:
        """This party reaches the host through a proxy."""
        made = Cut(self.port)
        token = keys.read_token(self.tokens[name])
        self.tokens[name] = replace(token, port=made.port).text()
        return made

    def stop(self, name: str, which: int = signal.SIGSTOP) -> None:
        """Stop a whole tree of processes where it is, or with SIGCONT let it go on."""
        pid = self.started[name].pid
        for each in [pid, *processes.children(pid)]:
            with suppress(ProcessLookupError):  # a command that has just ended
                os.kill(each, which)

    def start_all(self, *names: str) -> None:
        self.start_host()
        for name in names or self.names:
            self.join(name)

    def crash(self, name: str) -> None:
        self._count()
        started = self.started.pop(name)
        end_tree(started.pid)
        started.stdin.close()
        started.wait(timeout=120)

    # ------------------------------------------------------------ looking

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def logs(self) -> str:
        paths = [*self.folder.glob("*.txt"), *self.folder.glob("*/log/*.txt"), *self.folder.glob("*/log.txt")]
        return "\n".join(f"== {p.relative_to(self.folder)}\n{p.read_text(errors='replace')[-2500:]}" for p in paths)

    def until(self, true: Callable[[], object], what: str) -> None:
        until(true, what, self.logs, SECONDS)

    def until_said(self, name: str, words: str) -> None:
        self._count()
        self.until(lambda: words in self.said(name), f"{name} to say {words!r}")

    def ended(self, name: str, code: int = 0) -> str:
        self._count()
        self.until(lambda: self.started[name].poll() is not None, f"{name} to end")
        assert self.started[name].returncode == code, self.logs()
        return self.said(name)

    def all_ended(self) -> None:
        for name in [*self.names, "host"]:
            self.ended(name)

    def progress(self) -> list[dict]:
        return files.whole_lines(self.host / "progress.jsonl")

    def exchanges(self) -> list[dict]:
        return [line for line in self.progress() if "answered" in line]

    def reached(self, step: str, kind: str, round: int = 0) -> bool:
        return any(line.get("step") == step and line["round"] == round and kind in line for line in self.progress())

    def until_step(self, step: str, kind: str, round: int = 0) -> None:
        self._count()
        self.until(lambda: self.reached(step, kind, round), f"step {step} of round {round} to be {kind}")

    def result(self) -> dict:
        return json.loads((self.host / "results" / "result.json").read_text())

    def table(self, name: str, file: str = "labels.csv") -> list[dict]:
        with open(self.folder / name / "out" / file) as opened:
            return list(csv.DictReader(opened))

    def strict(self) -> tuple[Path, Simulation]:
        """The results of the same job in this process, without faults, and the transport with all memories."""
        host = load_host(self.host)
        return Net(self.folder / "reference", self.parties.values(), host.agreed).strict()


def right(machines: Machines, name: str) -> float:
    party = machines.parties[name]
    rows = zip(machines.table(name), party.labels, party.truth)
    return float(np.mean([row["label"] == truth for row, given, truth in rows if given is None]))


PSM = ["--secure", "psm", "--bits", "1024", "--neighbours", "5", "--step-timeout"]
CHORUS = [*PSM, str(STEP_SECONDS), "--smooth", "--seed", "3", "--reproducible"]
LABEL = ["--method", "xclp", *PSM, str(STEP_SECONDS)]
SHORT = ["--method", "xclp", *PSM, str(SHORT_SECONDS)]
TRAIN = ["--job", "train", "--classes", ",".join(map(str, range(10))), "--model", "linear", "--set", "epochs=2", "--step-timeout",
         str(STEP_SECONDS), "--seed", "5", "--reproducible"]  # fmt: skip


class Cut:
    """A proxy on loopback in front of the host's port: `cut` and nothing passes, in either direction, until `mend`."""

    def __init__(self, port: int):
        self.to, self.whole, self.ended = port, threading.Event(), False
        self.whole.set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.ended:
            try:
                near, _ = self.listening.accept()
                self.sockets.append(near)
                self.whole.wait()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                continue
            self.sockets.append(far)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.whole.wait()
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            each.close()

    def cut(self) -> None:
        self.whole.clear()

    def mend(self) -> None:
        """Connections of before are lost."""
        old, self.sockets = self.sockets, []
        for each in old:
            each.close()
        self.whole.set()

    def end(self) -> None:
        self.ended = True
        self.listening.close()
        self.mend()


class Hold:
    """Stops a party inside its next step: the file of its rows becomes a pipe, and whoever reads it waits."""

    def __init__(self, machines: Machines, name: str):
        home = machines.folder / name
        self.machines, self.name, self.rows, self.kept = machines, name, home / "rows.npy", home / "kept.npy"
        os.rename(self.rows, self.kept)
        os.mkfifo(self.rows)
        self.open = os.open(self.rows, os.O_RDWR)  # with a writer there, a reader finds neither bytes nor an end

    def reached(self) -> bool:
        """Whether a process of the party has the pipe open, and so is in the step."""
        for pid in processes.children(self.machines.started[self.name].pid):
            try:
                if any(os.readlink(path) == str(self.rows) for path in Path(f"/proc/{pid}/fd").iterdir()):
                    return True
            except OSError:
                continue
        return False

    def end(self) -> None:
        os.close(self.open)
        os.replace(self.kept, self.rows)


def with_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
