"""Processes that work off the runs of a comparison: programs of their own, each with one run at a time."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    seconds: float = 0.0
    began: float = 0.0


Told = tuple[Job, dict[str, Any]]
Queue = queue.SimpleQueue  # of Told; None when a hand has ended


@contextmanager
def workers(count: int, jobs: list[Job], log: Path) -> Iterator[Iterator[Told]]:
    """Processes that work the jobs off; what they tell, as it comes. Leaving ends them, wherever they are."""
    told: Queue = queue.SimpleQueue()
    todo = _Todo(jobs)
    with open(log, "ab") as file:
        hands = [_Hand(todo, told, file) for _ in range(count)]
        try:
            yield _until_all_ended(told, len(hands))
        finally:
            todo.stop()
            for hand in hands:
                hand.end()


def _until_all_ended(told: Queue, hands: int) -> Iterator[Told]:
    while hands:
        try:
            item = told.get(timeout=0.5)  # with a timeout Ctrl-C is heard on every system
        except queue.Empty:
            continue
        if item is None:
            hands -= 1
        else:
            yield item


class _Todo:
    """Runs in the order of cells and seeds; among those of a seed, what took longest before begins first."""

    def __init__(self, jobs: list[Job]):
        self._jobs, self._lock = list(jobs), threading.Lock()
        self._took: dict[str, float] = {}

    def next(self) -> Job | None:
        with self._lock:
            if not self._jobs:
                return None
            first = (self._jobs[0].cell, self._jobs[0].seed)
            these = [job for job in self._jobs if (job.cell, job.seed) == first]
            job = max(these, key=lambda job: self._took.get(job.label, float("inf")))
            self._jobs.remove(job)
            return job

    def took(self, label: str, seconds: float) -> None:
        with self._lock:
            self._took[label] = seconds

    def stop(self) -> None:
        with self._lock:
            self._jobs.clear()


class _Hand:
    """A thread that gives a process one run after the other. A process that dies costs its run only."""

    def __init__(self, todo: _Todo, told: Queue, log: IO[bytes]):
        self._todo, self._told, self._log = todo, told, log
        self._process: subprocess.Popen[str] | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while (job := self._todo.next()) is not None:
                began = time.monotonic()
                self._told.put((job, dict(round=0)))
                self._told.put((job, self._give(job)))
                self._todo.took(job.label, time.monotonic() - began)
        finally:
            self._told.put(None)

    def _give(self, job: Job) -> dict[str, Any]:
        """One run; what its process said last."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        if self._ending:  # which may have been said while it was being started
            process.kill()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(job.work) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if "state" in said:
                    return said
                self._told.put((job, said))
        except (OSError, ValueError):
            pass
        self._process, code = None, _bury(process)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return dict(state="failed", error=f"its process {how} in the middle of the run; log.txt may say more.")

    def _start(self) -> subprocess.Popen[str]:
        one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        return subprocess.Popen(
            [sys.executable, "-m", "grapevine.jobs.compare_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, encoding="utf-8", env=os.environ | one,
        )  # fmt: skip

    def end(self) -> None:
        self._ending, process = True, self._process
        if process is not None:
            process.kill()  # a process without a run is idle; one in the middle of a run has its checkpoint
        self._thread.join()
        if self._process is not None:
            _bury(self._process)


def _bury(process: subprocess.Popen[str]) -> int:
    assert process.stdin and process.stdout
    process.stdout.close()
    try:
        process.stdin.close()
    except OSError:  # what was not sent yet has nowhere to go
        pass
    return process.wait()
