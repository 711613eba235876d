"""The host's Flower processes, started warm.

A SuperLink, the program that starts its ServerApp, the ServerApp and every `flwr` command would each import Flower, torch and
this package again, which takes seconds. Here one process imports them once and then forks:

    python -m grapevine.parties.warm flower-superlink ARGS...       runs flower-superlink, and the processes it starts, as forks

Flower finds the programs it starts by their names on PATH, where a folder comes first with two-line programs that ask this
process for a fork.
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
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from grapevine.parties.processes import end_with

STARTS = ("flower-superexec", "flwr-serverapp", "flwr")  # programs that start as forks
IMPORTS = ("grapevine.parties.flower", "grapevine.parties.federation", "grapevine.jobs.label", "grapevine.graph.kernels")
MOST_LETTERS = 90  # in the path of a socket's folder: systems allow 104 to 108 with the socket's name

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
        _write_stand_ins(bin, str(room / "ask"))
        entry = _load(program)
        path = os.pathsep.join([str(bin), os.environ["PATH"]])
        first = _fork(partial(_become, program, args, entry, dict(os.environ, PATH=path)), listening)
        # Told to end, tell the program, which says goodbye to the other side; this process ends when it has.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
        for name in STARTS:
            _load(name)
        for name in IMPORTS:
            importlib.import_module(name)
        return _serve(listening, first)
    finally:
        shutil.rmtree(room, ignore_errors=True)
        shutil.rmtree(bin, ignore_errors=True)


def _write_stand_ins(bin: Path, address: str) -> None:
    (bin / "ask.py").write_text(ASK.format(address=address))
    for program in STARTS:
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
        threading.Thread(target=end_with, args=(mother,), daemon=True).start()
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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


def _serve(listening: socket.socket, first: int) -> int:
    """Answer stand-ins until the first program ends; its exit code."""
    listening.settimeout(0.2)
    while True:
        try:
            ask, _ = listening.accept()
        except TimeoutError:
            code = _reap(first)
            if code is not None:
                return code
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
    code = _become(what["program"], what["args"], _load(what["program"]), what["environment"])
    ask.sendall(bytes([code & 0xFF]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
