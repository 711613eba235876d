"""Threads for what one process computes, with a matrix library that keeps to one of them each.

A BLAS's own threads wait by spinning: on a machine with other work that takes the processor from whoever has something to do.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")


def thread_count(threads: int | None, tasks: int) -> int:
    """As many as asked for, else the cores this process may use, at most 8; never more than there are tasks."""
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = min(8, cores)
    return max(1, min(int(threads), tasks))


def in_threads(work: Callable[[int, Task], None], tasks: Sequence[Task], threads: int) -> None:
    """work(number of the thread, task) for every task; the first exception is raised here."""
    lock, queue = threading.Lock(), iter(tasks)

    def run(thread: int) -> None:
        while True:
            with lock:
                try:
                    task = next(queue)
                except StopIteration:
                    return
            work(thread, task)

    with one_blas_thread():
        if threads == 1:
            return run(0)
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(run, t) for t in range(threads)]:
                done.result()


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


class Shared:
    """A state of the whole process, for several threads: the first to enter sets it, the last to leave restores it."""

    def __init__(self, make: Callable[[], AbstractContextManager]):
        self.make, self.lock, self.users = make, threading.Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if not self.users:
                self.state = self.make()
                self.state.__enter__()
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    self.state.__exit__(None, None, None)


@contextmanager
def _ignoring() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


one_blas_thread = Shared(lambda: _blas().limit(limits=1))
"""BLAS on one thread while our own threads run. For speed: results are exact anyway."""
no_warnings = Shared(_ignoring)
"""No Python warnings: their filters belong to all threads, so that one must not put back what another has set."""
