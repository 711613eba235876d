"""Processes that work off the runs of a comparison: programs of their own, each with one run at a time."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass
class Job:
    """One run: how it stands."""

    cell: int
    label: str
    seed: int
    folder: str
    work: dict[str, Any] = field(repr=False)
    rounds: int
    state: str = "waiting"  # going, finished, failed
    round: int = 0
    error: str = ""


Told = tuple[Job, dict[str, Any]]


@contextmanager
def workers(count: int, jobs: list[Job], log: Path) -> Iterator[Iterator[Told]]:
    """Processes that work the jobs off in their order; what they tell, as it arrives. Leaving ends them, wherever they are."""
    todo, told = list(jobs), queue.SimpleQueue[Told | None]()
    with open(log, "ab") as file:
        hands = [_Hand(todo, told, file) for _ in range(count)]
        try:
            yield _until_all_ended(told, count)
        finally:
            todo.clear()
            for hand in hands:
                hand.end()


def _until_all_ended(told: queue.SimpleQueue[Told | None], hands: int) -> Iterator[Told]:
    while hands:
        try:
            item = told.get(timeout=0.5)  # with a timeout Ctrl-C is heard on every system
        except queue.Empty:
            continue
        if item is None:
            hands -= 1
        else:
            yield item


class _Hand:
    """A thread that gives a process one run after the other. A process that dies costs its run only."""

    def __init__(self, todo: list[Job], told: queue.SimpleQueue[Told | None], log: IO[bytes]):
        self._todo, self._told, self._log = todo, told, log
        self._process: subprocess.Popen[str] | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with suppress(IndexError):  # nothing is left to do
            while True:
                job = self._todo.pop(0)
                self._told.put((job, dict(round=0)))
                self._told.put((job, self._give(job)))
        self._told.put(None)

    def _give(self, job: Job) -> dict[str, Any]:
        """One run; what its process said last."""
        process = self._process = self._process or self._start()
        if self._ending:  # which may have been said while it was being started
            process.kill()
        assert process.stdin and process.stdout
        with suppress(OSError, ValueError):
            process.stdin.write(json.dumps(job.work) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if "state" in said:
                    return said
                self._told.put((job, said))
        code = self._bury()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return dict(state="failed", error=f"its process {how} during the run; see log.txt.")

    def _start(self) -> subprocess.Popen[str]:
        one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        return subprocess.Popen(
            [sys.executable, "-m", "grapevine.jobs.compare_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, encoding="utf-8", env=os.environ | one,
        )  # fmt: skip

    def _bury(self) -> int:
        process, self._process = self._process, None
        assert process and process.stdin and process.stdout
        process.stdout.close()
        with suppress(OSError):  # what was not sent yet has nowhere to go
            process.stdin.close()
        return process.wait()

    def end(self) -> None:
        self._ending, process = True, self._process
        if process is not None:
            process.kill()  # a process without a run is idle; one in the middle of a run has its checkpoint
        self._thread.join()
        if self._process is not None:
            self._bury()
