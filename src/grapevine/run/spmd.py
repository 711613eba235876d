"""`--runtime spmd`: one run on N workers, each the same program, over torch.distributed (gloo).

Workers are started by torchrun, by srun, or by hand with WORLD_SIZE, RANK and MASTER_ADDR. Every one of them builds the split and
runs the driver. Of the clients that a step asks it runs its share; then all workers put together what came: sums of whole numbers
in one all-reduce, so that neither the number of workers nor who ran which client can change a bit, and the small rest of the
replies, which everybody gets. Worker 0 leads: it alone writes the run's folder, which all workers must see, since clients'
memories lie there.

A worker that is lost stops the others with a sentence; `--resume` continues from the last checkpoint with any number of workers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from grapevine.core import Id, Method, StepError, wire
from grapevine.core.errors import Mistake
from grapevine.core.method import SubProtocol
from grapevine.core.server import Inbox
from grapevine.core.store import RamStore
from grapevine.core.sums import Exact, Field
from grapevine.learn.averages import individual
from grapevine.run.driver import Progress, Run, begun, drive, finished
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Simulation

PATIENCE = timedelta(minutes=30)  # with a worker that computes; one that ends is noticed at once
PORT = 29500


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This worker's number and the number of workers, from torchrun, srun or the user."""
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if world in environment and rank in environment:
            return int(environment[rank]), int(environment[world])
    return 0, 1


def address(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Where worker 0 listens."""
    host = environment.get("MASTER_ADDR")
    if host is None:
        nodes = environment.get("SLURM_JOB_NODELIST")  # such as gpu[03-07,9],old1
        if not nodes:
            raise Mistake(
                "--runtime spmd has several workers but no MASTER_ADDR: set it to the address of worker 0, or start with "
                "torchrun."
            )
        host = re.sub(r"\[(\w+).*", r"\1", nodes.split(",")[0])
    return host, int(environment.get("MASTER_PORT", PORT + int(environment.get("SLURM_JOB_ID", 0)) % 10000))


def leads() -> bool:
    """Whether this worker writes the run's folder and talks to people."""
    return place()[0] == 0


@contextmanager
def together() -> Iterator[None]:
    """Connect the workers, and disconnect them at the end."""
    rank, world = place()
    if world == 1:
        yield
        return
    host, port = address()
    try:
        dist.init_process_group("gloo", f"tcp://{host}:{port}", timeout=PATIENCE, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise Mistake(
            f"worker {rank} of {world} did not find the others at {host}:{port} ({first}): start all of them."
        ) from None
    try:
        yield
    finally:
        dist.destroy_process_group()


def require_averages(method: Method) -> None:
    """Methods whose server needs more than means, or whose clients agree on secrets, run in one process."""
    why = individual(method)
    if any(isinstance(value, SubProtocol) for value in vars(method).values()) or method.agrees:
        why = "its clients agree on keys, which stay in one process"
    if why or method.personal:
        raise Mistake(f"{method.name} needs --runtime local: {why or 'every client keeps its own model'}.")


def run(experiment: Experiment, resume: bool = False, progress: Progress | None = None) -> Run:
    """This worker's part of a run: all of them return the same. Worker 0 leaves it in the folder."""
    require_averages(experiment.method)
    experiment.simulation, about = Workers, experiment.about()
    with together():
        done = finished(experiment.out, about) if resume else None
        _all_here("before the run")
        if done:
            return done
        if leads():
            with begun(experiment.out, about, resume, experiment.settings.workers):
                experiment.save_split()
                _all_here("before the run")
                return drive(experiment.task(about), progress)
        _all_here("before the run")
        return drive(replace(experiment.task(about), out=None, store=RamStore(), follows=experiment.out))


class Workers(Simulation):
    """`simulate.Simulation` on all workers: of the clients that are asked, each runs its share."""

    def gather(self, step: str, requests: dict[Id, dict], round: int, into: Inbox) -> None:
        where = f"in step {step} of round {round}"
        _all_here(where)  # the leader may have been writing a checkpoint, which throws away what it does not know
        mine = share(requests, {id: len(self.data[id].labelled) + len(self.data[id].unlabelled) for id in requests}, *place())
        before, self.judged, known = self.flops, {}, self.judged
        failed = ""
        try:
            super().gather(step, {id: requests[id] for id in mine}, round, into)
        except (StepError, Mistake) as error:
            failed = str(error)
        told = dict(
            failed=failed, replies=dict(into.replies), bad=into.bad, flops=self.flops - before, judged=self.judged,
            manifests={id: self.manifests[id] for id in mine if id in self.manifests}, account=json.dumps(into.account.parts()),
            sums=json.dumps({name: form(field) for name, field in into.replies.sums.items()}),
        )  # fmt: skip
        self.judged, self.flops = known, before
        everybody = [wire.decode(part) for part in _gathered(wire.encode(told), where)]
        for worker in everybody:
            if worker["failed"]:
                raise StepError(worker["failed"])
        self._put_together(everybody, into)
        _add_up(into, [json.loads(worker["sums"]) for worker in everybody], requests, where)

    def _put_together(self, everybody: list[dict], into: Inbox) -> None:
        into.account.clear()
        for worker in everybody:
            dict.update(into.replies, worker["replies"])
            into.bad.update(worker["bad"])
            into.account.merge(json.loads(worker["account"]))
            self.manifests.update(worker["manifests"])
            self.flops += worker["flops"]
            self.add_judged(worker["judged"])


def share(ids: Any, rows: Mapping[Id, int], rank: int, world: int) -> list[Id]:
    """The clients of this worker: the largest first, each to the worker with fewest rows so far."""
    load, mine = [0] * world, []
    for id in sorted(ids, key=lambda id: (-rows[id], id)):
        least = load.index(min(load))
        load[least] += rows[id] + 1
        if least == rank:
            mine.append(id)
    return sorted(mine)


# ---------------------------------------------------------------- sums


def form(field: Field) -> dict[str, Any]:
    """What others must know of a field's sums to add them to their own."""
    limbs = {name: sorted(exact.limbs) for name, exact in field.exacts().items()}
    return dict(layout=field.layout, n=field.n, count=field.count, limbs=limbs)


def _add_up(into: Inbox, forms: list[dict[str, dict]], requests: Mapping[Id, dict], where: str) -> None:
    """Everybody's sums in place of this worker's, in one all-reduce of whole numbers."""
    sums, pieces = into.replies.sums, list[torch.Tensor]()
    places: list[tuple[Exact, int]] = []
    for name in sorted({name for each in forms for name in each}):
        theirs = [each[name] for each in forms if name in each]
        field = sums.setdefault(name, Field())
        field.know(theirs[0]["layout"], next(iter(requests.values())).get(name))
        field.n, field.count = sum(each["n"] for each in theirs), sum(each["count"] for each in theirs)
        for kind, exact in field.exacts().items():
            for j in sorted({j for each in theirs for j in each["limbs"][kind]}):
                length = len(field.layout) if kind == "squares" else field.length
                pieces.append(exact.limbs.get(j, torch.zeros(length, dtype=torch.int64)))
                places.append((exact, j))
    if not pieces:
        return
    whole = torch.cat(pieces)
    with _lost(where):
        if dist.is_initialized():
            dist.all_reduce(whole)
    for (exact, j), piece in zip(places, whole.split([len(piece) for piece in pieces])):
        exact.limbs[j] = piece.clone()


# ---------------------------------------------------------------- messages between workers


@contextmanager
def _lost(where: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        why = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0]).split(". ")[0]
        raise Mistake(f"a worker was lost {where} ({why}): start the workers again with --resume, in any number.") from None


def _all_here(where: str) -> None:
    with _lost(where):
        if dist.is_initialized():
            dist.barrier()


def _gathered(mine: bytes, where: str) -> list[bytes]:
    """Everybody's bytes, in the order of workers."""
    if not dist.is_initialized():
        return [mine]
    world = dist.get_world_size()
    with _lost(where):
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([len(mine)]))
        longest = max(int(size) for size in sizes)
        padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0")), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(world)]
        dist.all_gather(parts, padded)
    return [part.numpy().tobytes()[: int(size)] for part, size in zip(parts, sizes)]
