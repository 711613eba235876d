"""A process of `grapevine compare`: it reads runs from standard input, one JSON line each, and reports their progress on standard
output.

It is a program of its own and not a fork, because torch's threads do not survive a fork and Windows has none. It keeps one data
set, that of the current run. When its starter ends, its input closes and it ends at once; `--resume` then continues from the
run's checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

import torch

from grapevine import methods
from grapevine.core import StepError, with_settings
from grapevine.core.errors import Mistake
from grapevine.data import Split
from grapevine.jobs.settings import TrainSettings
from grapevine.jobs.splits import Loaded, load_data, sources
from grapevine.run.experiment import Experiment


def main() -> None:
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a method prints is not an answer: it goes to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, who then closes the input
    jobs: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    torch.set_num_threads(1)
    loaded: dict[tuple, Loaded] = {}
    while True:
        said = _run(jobs.get(), told, loaded)
        told.write(json.dumps(said) + "\n")


def _listen(jobs: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


def _run(job: dict[str, Any], told: IO[str], loaded: dict[tuple, Loaded]) -> dict[str, Any]:
    """One run to its end; how it ended."""

    def progress(done: int, rounds: int, line: dict | None) -> None:
        told.write(json.dumps(dict(round=done, accuracy=line.get("accuracy") if line else None)) + "\n")

    out = Path(job["out"])
    try:
        _forget_peak()
        if out.exists() and not (out / "settings.json").exists():  # its process was killed before anything was settled
            shutil.rmtree(out)
        s = TrainSettings.from_dict(job["settings"])
        method = with_settings(methods.find(job["method"]), s.set)
        Experiment(method, _split(job, s, loaded), out=out, **s.run()).run(True, progress)
    except (Mistake, StepError) as error:
        return dict(state="failed", error=str(error))
    except Exception as error:
        print(f"--- {out.name}", file=sys.stderr)
        traceback.print_exc()
        return dict(state="failed", error=f"{type(error).__name__}: {error}")
    return dict(state="finished")


def _split(job: dict[str, Any], s: TrainSettings, loaded: dict[tuple, Loaded]) -> Split:
    """The split that the starter made, which must be the one that was saved."""
    if sources(s) not in loaded:
        loaded.clear()  # before the next one is read: one data set in memory at a time
        loaded[sources(s)] = load_data(s)
    split = Split.load(job["split"], *loaded[sources(s)])
    if split.hash != job["hash"]:
        raise Mistake(f"{job['split']} differs from the split with which the comparison started: choose another --out.")
    return split


def _forget_peak() -> None:
    """Reset the peak of memory, so that a run does not report the peak of the previous one. Only Linux can do this."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


if __name__ == "__main__":
    main()
