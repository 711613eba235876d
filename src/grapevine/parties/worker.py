"""A party's steps: one request after the other, in a process that lives as long as its connection to the host (`node`).

What a step leaves is in the party's memory on disk (`memory`) and nowhere else. The process keeps what can be read or computed
again: the rows, and a program in flight. So it may be killed at any time, and the next one continues. A request that was answered
before is answered with the same bytes.
"""

from __future__ import annotations

import errno
import importlib
import json
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from grapevine.core import run_step, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import Memory
from grapevine.core.tensors import one_thread
from grapevine.core.words import printable
from grapevine.jobs.disclosure import entries
from grapevine.parties.federation import Member, load_party
from grapevine.parties.memory import recall, remember

LIMIT_BYTES = 2**30  # the largest message
FULL = {errno.ENOSPC, errno.EDQUOT}
READ = ("party.toml", "pinned.toml", "rows.npy", "rows.json")  # what a party is loaded from
KERNELS = "grapevine.graph.kernels"  # what labelling needs, imported while there is nothing else to do


@dataclass
class Worker:
    """Answers requests at the party of `folder`."""

    folder: Path
    _member: Member | None = None
    _read: tuple = ()
    _running: tuple[dict, Any] = field(default_factory=lambda: ({}, None))  # a program in flight, and the memory that it is of

    def warm_up(self) -> None:
        if self._load().agreed.job != "train":
            importlib.import_module(KERNELS)

    def answer(self, run: int, data: bytes) -> dict[str, Any]:
        """`reply`: the bytes to send; and if the step failed, `failed`: why, for the party's own screen. With `again`, nothing is
        to be sent: the step can be done when the person at the party has done something about it."""
        began = perf_counter()
        step, round = "", -1
        try:
            request = wire.decode(data, LIMIT_BYTES)
            step, round = str(request["step"]), request["round"]
            reply = self._run(run, request)
            self._log(f"step {step}, round {round}: {perf_counter() - began:.2f} s")
            return dict(step=step, reply=reply)
        except Exception as error:
            self._log(f"step {step}, round {round}: {traceback.format_exc()}")
            if isinstance(error, OSError) and error.errno in FULL:
                return dict(
                    step=step, again=True, failed=f"the disk of {self.folder} is full: free some space, then the step is done"
                )
            # The host learns the kind of an error and no more; the text stays here.
            reply = wire.encode(dict(step=step, round=round, error=type(error).__name__))
            why = (
                str(error).rstrip(".") if isinstance(error, Mistake) else f"{type(error).__name__}, see {self.folder / 'log.txt'}"
            )
            return dict(step=step, reply=reply, failed=why)

    def _load(self) -> Member:
        """The party as its folder has it now: what was read before is good as long as no file has changed."""
        now = tuple(
            (path.stat().st_ino, path.stat().st_mtime_ns) for path in (self.folder / name for name in READ) if path.exists()
        )
        if self._member is None or now != self._read:
            self._member, self._read = load_party(self.folder), now
        return self._member

    def _run(self, run: int, request: dict[str, Any]) -> bytes:
        party = self._load()
        if request["hash"] != party.agreed.hash:
            raise Mistake(f"the host's settings differ from those {party.name} agreed to: join again with a new invitation.")
        kept = recall(self.folder, run, request, party.agreed)
        if kept.replied(request):
            return party.store.get(kept.reply)
        memory = Memory(party.store, kept.now)
        client, method = party.client(memory), party.agreed.made
        one_thread()
        of, program = self._running
        client.running = program if of == kept.now else None
        self._running = ({}, None)
        reply = run_step(method, request["step"], client, request["payload"])
        data = wire.encode(dict(step=request["step"], round=request["round"], reply=reply))
        # What leaves this party is written down before it leaves.
        with open(self.folder / "disclosure.jsonl", "a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in entries(request["step"], reply, method)))
        remember(self.folder, kept, request, memory.manifest, party.store, data)
        self._running = (dict(memory.manifest), client.running)
        return data

    def _log(self, text: str) -> None:
        """Words of the host may be in it: they cannot look like another line."""
        told = "\n    ".join(printable(line, 5000) for line in text.splitlines())
        try:
            with open(self.folder / "log.txt", "a") as file:
                file.write(f"{datetime.now(timezone.utc).isoformat(timespec='milliseconds')} {told}\n")
        except OSError:  # a full disk: the party's screen says so
            pass


def full(folder: Path) -> str:
    return f"the disk of {folder} is full: free some space, and the job continues"


def serve(folder: Path, pipe: Connection) -> None:
    """In the worker's process: requests from the pipe until it is closed."""
    worker = Worker(folder)
    if not pipe.poll(0):
        worker.warm_up()
    while True:
        try:
            asked = wire.decode(pipe.recv_bytes(), LIMIT_BYTES + 2**20)
        except EOFError:
            return
        pipe.send_bytes(wire.encode(worker.answer(int(asked["run"]), asked["data"])))
