"""Flower's processes, started warm.

Flower starts a new process for every message, and each of them would import Flower, torch and this package again: four or five
seconds of work, more than most steps take. Here one process imports them once and then forks:

    python -m grapevine.parties.warm flower-supernode ARGS...       runs flower-supernode, and the processes it starts, as forks

Flower finds the programs it starts by their names on PATH. For a SuperNode, PATH is one folder, with a two-line `flwr-clientapp`
and `flower-superexec` in it that ask this process for a fork; other programs Flower can start (agents, connectors) are not there.
A fork of `flwr-clientapp` imports nothing from the bundle that came from the host: the only code a party runs is installed at it.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

# What is started as a fork of a program. The host's own `flwr` calls are forks as well.
STARTS = {
    "flower-superlink": ("flower-superexec", "flwr-serverapp", "flwr"),
    "flower-supernode": ("flower-superexec", "flwr-clientapp"),
}
IMPORTS = ("grapevine.parties.flower", "grapevine.parties.federation", "grapevine.jobs.label", "grapevine.graph.kernels")
LATER = {"flower-supernode": ("torch._dynamo",)}  # which torch imports at the first optimiser: when there is nothing else to do

MOST_LETTERS = 90  # of the folder of a socket: systems allow 104 to 108 with its name

# What stands in for a Flower command: it hands over its arguments and open files, and waits for the exit code.
STAND_IN = """\
#!/bin/sh
exec {python} -IS {ask} {program} "$@"
"""
ASK = """\
import json, os, socket, struct, sys
ask = socket.socket(socket.AF_UNIX)
ask.connect({address!r})
what = dict(program=sys.argv[1], args=sys.argv[2:], folder=os.getcwd(), environment=dict(os.environ))
data = json.dumps(what).encode()
socket.send_fds(ask, [struct.pack("<I", len(data))], [0, 1, 2])
ask.sendall(data)
code = ask.recv(1)
sys.exit(code[0] if code else 1)
"""


def command(program: str, *args: str) -> list[str]:
    """The command line for a warm `flower-superlink` or `flower-supernode`."""
    return [sys.executable, "-m", "grapevine.parties.warm", program, *args]


def main(program: str, args: list[str]) -> int:
    bin = Path(os.environ["FLWR_HOME"]) / "bin"
    shutil.rmtree(bin, ignore_errors=True)
    bin.mkdir(mode=0o700, parents=True)
    # The path of a socket must be short.
    room = bin if len(str(bin)) < MOST_LETTERS else Path(tempfile.mkdtemp(prefix="grapevine-"))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(room / "ask"))
    listening.listen(64)
    try:
        _write_stand_ins(bin, STARTS[program], str(room / "ask"))
        entry = _load(program)
        path = str(bin) if program == "flower-supernode" else os.pathsep.join([str(bin), os.environ["PATH"]])
        first = _fork(partial(_become, program, args, entry, dict(os.environ, PATH=path)), listening)
        # Told to end, tell the program, which says goodbye to the other side; this process ends when it has.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
        for name in STARTS[program]:
            _load(name)
        for name in IMPORTS:
            importlib.import_module(name)
        return _serve(listening, first, list(LATER.get(program, ())))
    finally:
        shutil.rmtree(room, ignore_errors=True)
        shutil.rmtree(bin, ignore_errors=True)


def _write_stand_ins(bin: Path, programs: tuple[str, ...], address: str) -> None:
    (bin / "ask.py").write_text(ASK.format(address=address))
    for program in programs:
        path = bin / program
        path.write_text(
            STAND_IN.format(python=shlex.quote(sys.executable), ask=shlex.quote(str(bin / "ask.py")), program=program)
        )
        path.chmod(0o700)


def _load(program: str) -> Callable[[], object]:
    """The function behind a command, as the package that brings it declares it."""
    (entry,) = entry_points(group="console_scripts", name=program)
    return entry.load()


# ---------------------------------------------------------------- forks


def _fork(run: Callable[[], int], listening: socket.socket) -> int:
    """A child that calls `run` and ends with its code. It does not outlive this process."""
    mother = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: those of numpy's products, which survive a fork
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        listening.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(mother,), daemon=True).start()
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with(mother: int) -> None:
    while os.getppid() == mother:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _become(program: str, args: list[str], entry: Callable[[], object], environment: dict[str, str]) -> int:
    """Run a command as if it had been started: its arguments, its environment, its exit code."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *args]
    try:
        code = entry()
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


def _serve(listening: socket.socket, first: int, later: list[str]) -> int:
    """Answer stand-ins until the first program ends; its exit code."""
    listening.settimeout(0.2)
    while True:
        try:
            ask, _ = listening.accept()
        except TimeoutError:
            code = _reap(first)
            if code is not None:
                return code
            if later:
                importlib.import_module(later.pop())
            continue
        with ask:
            ask.settimeout(10)
            _fork(partial(_answer, ask), listening)


def _reap(first: int) -> int | None:
    """Collect children that have ended; the exit code of the first program if it is among them."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if child == first:
            return abs(os.waitstatus_to_exitcode(status))
        if child == 0:
            return None


def _answer(ask: socket.socket) -> int:
    """In the fork: take over a stand-in's arguments and files, run its program, tell it the exit code."""
    head, files, _, _ = socket.recv_fds(ask, 4, 3)
    data = b""
    while len(data) < struct.unpack("<I", head)[0]:
        data += ask.recv(1 << 16)
    what = json.loads(data)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(what["folder"])
    if what["program"] == "flwr-clientapp":
        sys.meta_path.insert(0, OwnCodeOnly(Path(what["environment"]["FLWR_HOME"])))
    code = _become(what["program"], what["args"], _load(what["program"]), what["environment"])
    ask.sendall(bytes([code & 0xFF]))
    return code


class OwnCodeOnly:
    """Refuses to import what lies under Flower's folder, where the bundle from the host is unpacked."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
        for place in places:
            if place and self.folder in Path(place).resolve().parents:
                raise ImportError(f"the host sent code ('{name}'), which is not run here")
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
