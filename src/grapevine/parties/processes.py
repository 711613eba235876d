"""Processes: the host's SuperLink, the commands given to it, and forks of a party's process. Nothing here imports flwr.

Every program is started through a watcher (this file as a program) that holds one end of a pipe. When its starter ends, however
it ends, the pipe closes and the watcher stops the process and all that it started: nothing is left behind, no port stays taken.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake

START_SECONDS = 300  # for the SuperLink to listen; it imports a lot, and the machine may be busy
COMMAND_SECONDS = 300  # for one `flwr` command
STOP_SECONDS = 8  # for a process to end by itself once it is told

APP = """\
[project]
name = "grapevine-app"
version = "1.0.0"
description = "Grapevine between real parties. The code is the Grapevine that is installed at each of them."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "grapevine"

[tool.flwr.app.components]
serverapp = "grapevine.parties.flower:server_app"
clientapp = "grapevine.parties.flower:client_app"

[tool.flwr.app.config]
federation-folder = ""
experiment-folder = ""
"""


# ---------------------------------------------------------------- processes and their children


def _table() -> dict[int, tuple[int, str]]:
    """All processes: the parent of each, and its state."""
    if not Path("/proc/self/stat").exists():
        text = subprocess.run(["ps", "-axo", "pid=,ppid=,state="], capture_output=True, text=True, timeout=60).stdout
        return {int(pid): (int(parent), state) for pid, parent, state in map(str.split, text.splitlines())}
    found = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            # "pid (command) state ppid …": the command may hold spaces and brackets, so count from its end.
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            found[int(name)] = (int(parent), state)
        except (ValueError, OSError):  # it has ended
            continue
    return found


def children(pid: int) -> list[int]:
    """All that descend from a process. Flower puts its helpers in sessions of their own, so killing a group would miss them."""
    table, found = _table(), [pid]
    for mother in found:  # which grows as it is read
        found += [child for child, (parent, _) in table.items() if parent == mother]
    return found[1:]


def alive(pid: int) -> bool:
    return _table().get(pid, (0, "Z"))[1][0] != "Z"


def stop_tree(process: subprocess.Popen, seconds: float = STOP_SECONDS) -> None:
    """End a process and everything under it: asked first, killed after `seconds`."""
    family = {process.pid, *children(process.pid)}
    _signal([process.pid], signal.SIGTERM)
    until = time.monotonic() + seconds
    while time.monotonic() < until and (process.poll() is None or any(map(alive, family - {process.pid}))):
        family.update(children(process.pid))
        time.sleep(0.1)
    _signal(filter(alive, family), signal.SIGKILL)
    process.wait()


def _signal(pids: Iterable[int], which: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)


def start(command: Sequence[str], env: dict[str, str], log: Path) -> subprocess.Popen:
    """A process under a watcher, its output in `log`. Closing its stdin stops it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        watcher = [sys.executable, "-m", "grapevine.parties.processes", *command]
        # A session of its own: Ctrl-C in the terminal is the starter's to handle.
        return subprocess.Popen(watcher, env=env, cwd=log.parent, stdin=subprocess.PIPE, stdout=out, stderr=out,
                                start_new_session=True)  # fmt: skip


def stop(process: subprocess.Popen | None) -> None:
    """Stop what `start` started, and wait for it."""
    if process is None:
        return
    if process.stdin and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(timeout=STOP_SECONDS + 10)
    except subprocess.TimeoutExpired:
        stop_tree(process)


def watch(command: Sequence[str], pipe: int) -> int:
    """Run a command until it ends, the pipe is closed, or this process is told to end."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended = threading.Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: ended.set())
    threading.Thread(target=_until_closed, args=(pipe, ended), daemon=True).start()
    while process.poll() is None and not ended.wait(0.1):
        pass
    if process.poll() is None:
        stop_tree(process)
    return process.returncode


def _until_closed(pipe: int, ended: threading.Event) -> None:
    while os.read(pipe, 1024):  # not a file object: one that a thread still reads at the end makes Python abort
        pass
    ended.set()


class Child:
    """A fork of this process, and the pipe to it. It ends when this process does, or when it is stopped."""

    def __init__(self, pid: int, pipe: Connection):
        self.pid, self.pipe = pid, pipe
        self.code: int | None = None

    @property
    def running(self) -> bool:
        if self.code is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is None

    def stop(self, seconds: float = STOP_SECONDS) -> str:
        """Close the pipe, which tells it to end; kill it after `seconds`. How it ended, in words."""
        self.pipe.close()
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            time.sleep(0.05)
        if self.running:
            _signal([self.pid], signal.SIGKILL)
            while self.running:
                time.sleep(0.01)
        assert self.code is not None
        return signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"


def fork(run: Callable[[Connection], None], *close: Connection, watched: bool = True) -> Child:
    """A child that calls `run` with its end of a pipe, and shares this process's pages of memory. This process must not have
    threads that hold locks. The child closes the pipes in `close`. With `watched` it ends when this process does."""
    ours, theirs = Pipe()
    gc.collect()
    gc.freeze()  # or a collection in the child would write to every page, and none would be shared any more
    mother, pid = os.getpid(), os.fork()
    if pid:
        theirs.close()
        return Child(pid, ours)
    code = 1
    try:
        for pipe in (ours, *close):
            pipe.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this
        if watched:
            threading.Thread(target=end_with, args=(mother,), daemon=True).start()
        run(theirs)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end_with(mother: int) -> None:
    """In a thread of a fork: it does not outlive its parent."""
    while os.getppid() == mother:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now."""
    with _socket(host) as sock:
        sock.bind((host, 0))
        return sock.getsockname()[1]


def port_is_free(host: str, port: int) -> bool:
    with _socket(host) as sock, suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        return True
    return False


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:200] if lines else "it said nothing"


# ---------------------------------------------------------------- Flower's processes


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: no telemetry, no update check, nothing installed, files in `home` alone."""
    if importlib.util.find_spec("flwr") is None or not hasattr(os, "fork"):
        raise Mistake("real parties need Linux or macOS, Python 3.11 and Flower: pip install 'grapevine-fl[flower]'.")
    home.mkdir(parents=True, exist_ok=True)
    places = [str(home.resolve() / "bin"), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    return dict(
        os.environ,
        FLWR_HOME=str(home.resolve()),
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
        FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.25",  # a second by default: how long a job waits for its process
        FLWR_LOG_LEVEL="WARNING",  # not a line for every request: nodes ask many times a second
        RAY_USAGE_STATS_ENABLED="0",
        PATH=os.pathsep.join(places),
    )


def write_app(folder: Path) -> Path:
    """The folder that `flwr run` bundles and sends: a description without code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP)
    return folder


class _Program:
    """One of Flower's programs: its folder, its log, and whether it runs."""

    def __init__(self, folder: Path, name: str):
        self.folder = Path(folder).resolve()
        self.log = self.folder / "log" / f"{name}.txt"
        self.env = environment(self.folder / "flower")
        self._process: subprocess.Popen | None = None

    def _start(self, *words: str) -> None:
        self._process = start([sys.executable, "-m", "grapevine.parties.warm", *words], self.env, self.log)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        stop(self._process)
        self._process = None


class SuperLink(_Program):
    """The host's SuperLink. It listens on loopback alone; `gate.Gate` is what parties reach."""

    def __init__(self, folder: Path):
        super().__init__(folder, "superlink")
        self.port = free_port()

    def start(self) -> SuperLink:
        where = self.folder
        self._start(
            "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--ssl-ca-certfile", str(where / "ca.crt"), "--ssl-certfile",
            str(where / "server.pem"), "--ssl-keyfile", str(where / "server.key"),
        )  # fmt: skip
        config = f'[superlink]\ndefault = "host"\n[superlink.host]\naddress = "127.0.0.1:{self.port}"\n'
        config += f"root-certificates = {json.dumps(str(where / 'ca.crt'))}\n"
        (where / "flower" / "config.toml").write_text(config)
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            if not self.running or time.monotonic() > until:
                self.stop()
                raise Mistake(f"the SuperLink did not start ({last_line(self.log)}): see {self.log}.")
            time.sleep(0.2)
        return self

    def _listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
            return True
        return False

    def register(self, name: str, node_key: str) -> None:
        """Let a node with this key in. Once per key and SuperLink."""
        path = self.folder / "flower" / f"{name}.pub"
        path.write_text(node_key + "\n")
        self._command("supernode", "register", str(path), "host", "--name", name)

    def run(self) -> str:
        """Start the job; the run's id."""
        app = write_app(self.folder / "flower" / "app")
        config = f"federation-folder={json.dumps(str(self.folder))}"
        return str(self._command("run", str(app), "host", "--run-config", config)["run-id"])

    def status(self, run: str) -> str:
        """As Flower says it: pending, running, finished:completed, finished:failed, …"""
        told = self._command("list", "host", "--run-id", run)
        return str(told["runs"][0]["status"]) if told.get("runs") else "unknown"

    def _command(self, *words: str) -> dict[str, Any]:
        try:
            done = subprocess.run(["flwr", *words, "--format", "json"], env=self.env, capture_output=True, text=True,
                                  timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL, cwd=self.log.parent)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Mistake(
                f"`flwr {words[0]}` took longer than {COMMAND_SECONDS} s: check whether the machine is overloaded."
            ) from None
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = {}
        if done.returncode or not told.get("success"):
            why = told.get("error-message") or done.stderr.strip().splitlines()[-1:] or "no reason given"
            raise Mistake(f"`flwr {' '.join(words[:2])}` failed ({why}): see {self.log}.")
        return told


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:], 0))
