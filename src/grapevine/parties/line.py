"""A party's node as `join` sees it: started as a fork, started again when it ends, and what it says, for the party's screen."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.parties.processes import Child, environment, fork

RESTARTS = 5  # how often, in CALM_SECONDS, a node that ended by itself is started again
CALM_SECONDS = 600
IDLE_SECONDS = 30  # without a request, until the screen says that this party waits

# What the host is told about each kind of trouble; the details stay at the party.
KINDS = dict(disk="its disk is full", clock="its clock or its signature is not accepted", step="a step failed there",
             worker="a process of it ended and was started again", code="it refused code that the host sent",
             lost="its connection was lost for a while")  # fmt: skip

HERE = dict(disk="the disk is full", clock="the host does not accept this party's signature", step="the last step failed",
            worker="a process was started again", code="code from the host was refused", lost="the host is lost")  # fmt: skip


class Line:
    """`say` gets sentences for the screen."""

    def __init__(self, folder: Path, place: str, say: Callable[[str], None]):
        self.folder, self.place, self.say = folder, place, say
        self.log = folder / "log" / "node.txt"
        self._node: Child | None = None
        self._ends: list[float] = []
        self._heard = time.monotonic()  # when something last continued
        self.trouble = ("", "")  # its kind, and a sentence

    @property
    def running(self) -> bool:
        return self._node is not None and self._node.running

    @property
    def pid(self) -> int | None:
        return self._node.pid if self._node else None

    def start(self) -> None:
        self.stop()
        self._heard, self.trouble = time.monotonic(), ("", "")
        self._node = fork(self._run, watched=False)

    def stop(self) -> None:
        if self._node:
            self._read(self._node.pipe)  # why its last step failed, perhaps
            self._node.stop()
        self._node = None

    def _run(self, up: Connection) -> None:
        """In the fork."""
        os.environ.update(environment(self.folder / "flower"))
        from grapevine.parties import node  # Flower, which nobody else at a party needs

        node.main(self.folder, self.place, up)

    def keep(self) -> None:
        """Read what the node says, and start it again if it has ended."""
        assert self._node is not None
        self._read(self._node.pipe)
        if self._node.running:
            return
        how = self._node.stop()
        now = time.monotonic()
        self._ends = [when for when in self._ends if now - when < CALM_SECONDS] + [now]
        if len(self._ends) > RESTARTS:
            raise Mistake(f"the connection to the host ended {len(self._ends)} times ({how}): {self.log} says why.")
        self.say(f"The connection to the host ended ({how}): it is started again.")
        time.sleep(len(self._ends) - 1)
        self.start()
        self.trouble = ("worker", "the connection was started again")

    def _read(self, pipe: Connection) -> None:
        try:
            while pipe.poll(0):
                self._hear(json.loads(pipe.recv_bytes()))
        except (EOFError, OSError):
            pass

    def _hear(self, told: dict) -> None:
        self._heard = time.monotonic()
        if "failed" in told:
            step = f"Step {told['step']} failed" if told.get("step") else "Something failed"
            self._in_trouble(told["kind"], f"{step}: {told['failed']}")
        elif "lost" in told:
            self._in_trouble(told["kind"], f"The host is lost: {told['lost']}")
        elif "ended" in told:
            self.say(f"The connection to the host cannot continue: {told['ended']}")
        elif "back" in told:
            self.say("The host is back.")
            self.trouble = ("", "")
        elif told.get("done"):
            self.trouble = ("", "")

    def _in_trouble(self, kind: str, sentence: str) -> None:
        if self.trouble != (kind, sentence):
            self.say(f"{sentence.rstrip('.')}.")
        self.trouble = (kind, sentence)

    def words(self) -> str:
        """What the node is doing, in one line."""
        if self.trouble[0]:
            return f"not at work: {HERE[self.trouble[0]]}"
        idle = time.monotonic() - self._heard
        return "at work" if idle < IDLE_SECONDS else "waiting for the host's next request"
