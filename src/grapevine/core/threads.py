"""Threads for what one process computes, with a matrix library that keeps to one of them each.

A BLAS's own threads wait by spinning: on a machine with other work that takes the processor from whoever has something to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


_blas_lock = threading.Lock()
_blas_users: list[Any] = []  # the first has the limiter


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS on one thread while our own threads run, restored by the last to leave. For speed: results are exact anyway."""
    with _blas_lock:
        _blas_users.append(None if _blas_users else _blas().limit(limits=1))
    try:
        yield
    finally:
        with _blas_lock:
            limiter = _blas_users[0] if len(_blas_users) == 1 else None
            _blas_users.pop()
            if limiter:
                limiter.restore_original_limits()
