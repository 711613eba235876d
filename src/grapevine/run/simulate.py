"""The in-process transport: clients as objects, in one or several threads, `fast` or `strict`, with faults on request.

`fast` passes payloads on as they are. `strict` encodes and decodes every payload, as a network would. Both give the same bits,
which tests check. A client is built again for every step.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from threadpoolctl import ThreadpoolController

from grapevine.core import Client, Id, Method, StepError, Transport, party_name, run_step, wire
from grapevine.core.rows import ClientData
from grapevine.core.server import Inbox
from grapevine.core.store import Memory, RamStore, Store
from grapevine.core.tensors import one_thread, torch
from grapevine.crypto.agreement import Identity

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.core import ModelSource

UNKNOWN = -1  # the class of a row whose truth nobody knows
FORGET = 32 << 20  # bytes that clients put into a store in memory, before what they do not hold any more is thrown away
T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong at one client, for tests and what-if runs.

    `kind` "drop" loses the client: `when` is "before" the step, "in" it (its memory is not written) or "after" it (its memory is
    written, but the reply is not sent). "delay" answers after `seconds`, "duplicate" answers twice, and "corrupt" flips a byte.
    """

    client: Id
    step: str
    kind: str = "drop"
    when: str = "before"
    round: int | None = None
    forever: bool = False
    seconds: float = 0.1


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the rest of this process (256 MB at the end of its main heap).

    By default a training step returns its activations to the system and then faults them in again. Settings from the environment
    take precedence. Other C libraries are not affected.
    """
    told = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and not told else None
    if mallopt:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: smaller blocks come from the heap; 32 MB is the most it takes
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD


@contextmanager
def quick_turns(seconds: float = 5e-5) -> Iterator[None]:
    """Let threads hand Python over after 50 µs instead of 5 ms. A client's step is mostly arithmetic outside of Python, and a
    thread that returns from it should not wait for another."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class Each(Mapping[Id, T]):
    """A value for every client, made on first use, so that a large population costs little before its clients are asked."""

    def __init__(self, ids: Collection[Id], make: Callable[[Id], T], keep: bool = True):
        self._ids, self._make, self._keep = ids, make, keep
        self._made: dict[Id, T] = {}

    def __getitem__(self, id: Id) -> T:
        if id in self._made:
            return self._made[id]
        if id not in self._ids:
            raise KeyError(id)
        made = self._make(id)
        return self._made.setdefault(id, made) if self._keep else made

    def __iter__(self) -> Iterator[Id]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class PublicKeys(Mapping[str, bytes]):
    """Everybody's public key, by name."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation

    @cached_property
    def _ids(self) -> dict[str, Id]:
        return {party_name(id): id for id in self._simulation.data}

    def __getitem__(self, name: str) -> bytes:
        return self._simulation.identities[self._ids[name]].public

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._simulation.data)


class Simulation(Transport):
    """All clients of a federation in this process.

    `truth` gives the true classes of a client's unlabelled rows, for measuring. `tap` sees every encoded payload (strict mode).
    `log` sees every reply as it leaves its client. `progress` is called with (step, clients done, clients). `prepare` sees every
    client as it is made.
    """

    def __init__(
        self, method: Method, data: Mapping[Id, ClientData], models: ModelSource | None, seed: int = 0, mode: str = "fast",
        workers: int = 1, store: Store | None = None, faults: Iterable[Fault] = (), truth: Callable[[Id], Tensor] | None = None,
        tap: Callable[[str, str, Id, bytes], None] | None = None,
    ):  # fmt: skip
        if mode not in ("fast", "strict"):
            raise ValueError(f"mode is 'fast' or 'strict', not '{mode}'")
        self.method, self.data, self.models, self.seed, self.mode = method, data, models, seed, mode
        self._own = RamStore()
        self.store: Store = store or self._own
        self.manifests: dict[Id, dict[str, str]] = {}
        self.flops = 0
        self.judged: dict[str, dict[str, int]] = {}  # by head: rows, labels used, of these right
        # In one process identities need no check; between machines, people compare fingerprints.
        self.identities: Mapping[Id, Identity] = Each(data, lambda id: Identity.generate())
        self.pinned: Mapping[str, bytes] = PublicKeys(self)
        self.log: Callable[[str, Id, dict], None] | None = None
        self.progress: Callable[[str, int, int], None] | None = None
        self.prepare: Callable[[Client], None] | None = None
        self._faults, self._truth, self._tap = list(faults), truth, tap
        self._lost: set[Id] = set()
        self._done = 0  # clients that have answered the step under way
        self._lock = threading.Lock()
        self._running: dict[Id, Any] = {}  # programs in flight: none in strict mode, where every step repeats its program
        keep_freed_memory()
        one_thread()
        self._pool = ThreadPoolExecutor(workers, initializer=one_thread) if workers > 1 else None
        # The same for numpy's matrix products: clients side by side leave no core for a second thread.
        self._blas = ThreadpoolController().select(user_api="blas")

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def state(self) -> tuple[dict, list[str]]:
        memory = {str(id): self.manifests[id] for id in sorted(self.manifests)}
        held = [name for entries in self.manifests.values() for name in entries.values()]
        return dict(memory=memory, judged=self.judged, flops=self.flops), held

    def restore(self, state: dict) -> None:
        self.manifests = {id: state["memory"][str(id)] for id in self.data if str(id) in state["memory"]}
        self.judged, self.flops = state["judged"], state["flops"]

    def map(self, function: Callable, items: Iterable) -> list:
        """`function` over `items` on the workers, with results in order. An exception reaches the caller."""
        if not self._pool:
            return list(map(function, items))
        with quick_turns():
            return list(self._pool.map(function, items))

    # ------------------------------------------------------------ the transport

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        with self._blas.limit(limits=1):
            answers = self.map(lambda id: self._deliver(step, id, requests[id], round, len(requests)), requests)
        self._done = 0
        # A reply is known by the request it answers; a second one to the same request is thrown away.
        replies: dict[Id, dict] = {}
        for id, copies in zip(requests, answers):
            if copies:
                replies.setdefault(id, copies[0])
        self._forget()
        return replies

    def _forget(self) -> None:
        """Now and then, what clients do not hold any more. Only in a store of our own: nobody else has anything there."""
        if self._own.added > max(FORGET, self._own.kept):
            self._own.keep_only(name for entries in self.manifests.values() for name in entries.values())

    def gather(self, step: str, requests: dict[Id, dict], round: int, into: Inbox) -> None:
        """Pass a reply on where its step ran, and free it. A second reply to the same request is discarded."""

        def deliver(id: Id) -> None:
            for reply in self._deliver(step, id, requests[id], round, len(requests))[:1]:
                into.take(id, reply)

        with self._blas.limit(limits=1):
            self.map(deliver, requests)
        self._done = 0
        self._forget()

    def _deliver(self, step: str, id: Id, payload: dict, round: int, clients: int) -> list[dict]:
        replies = self._answer(step, id, payload, round)
        if self.progress:
            with self._lock:
                self._done += 1
                self.progress(step, self._done, clients)
        return replies

    def _answer(self, step: str, id: Id, payload: dict, round: int) -> list[dict]:
        """The replies that reach the server: none, one, or two."""
        if id in self._lost:
            return []
        fault = self._fault(step, id, round)
        if fault and fault.kind == "drop":
            return self._drop(step, id, payload, round, fault)
        if fault and fault.kind == "delay":
            time.sleep(fault.seconds)
        reply, manifest = self._run(step, id, payload, round)
        with self._lock:
            self.manifests[id] = manifest
        return self._reply(step, id, reply, fault)

    def _drop(self, step: str, id: Id, payload: dict, round: int, fault: Fault) -> list[dict]:
        """Lost before the step, in it (its memory is not written), or after it (its memory is, the reply is not sent)."""
        if fault.when != "before":
            _, manifest = self._run(step, id, payload, round)
            if fault.when == "after":
                with self._lock:
                    self.manifests[id] = manifest
        if fault.forever:
            self._lost.add(id)
        return []

    def _run(self, step: str, id: Id, payload: dict, round: int) -> tuple[dict, dict[str, str]]:
        """The reply and the memory's new manifest. A step that fails changes nothing."""
        memory = Memory(self.store, self.manifests.get(id))
        client = self._client(id, memory)
        with self._lock:
            client.running = self._running.pop(id, None)
        if self.mode == "strict":
            payload = self._carry("down", step, id, payload)
        else:
            wire.check(payload)
        try:
            reply = run_step(self.method, step, client, payload)
        except Exception as error:
            raise StepError(f"client {id}, step {step}, round {round}: {error}") from error
        with self._lock:
            self.flops += client.meter.flops
            client.meter.flops = 0
            if self.mode == "fast" and client.running is not None:
                self._running[id] = client.running
        return reply, memory.manifest

    def _reply(self, step: str, id: Id, reply: dict, fault: Fault | None) -> list[dict]:
        if self.log:
            self.log(step, id, reply)
        if fault and fault.kind == "corrupt":
            data = bytearray(wire.encode(reply))
            data[len(data) // 2] ^= 0xFF
            try:
                return [wire.decode(bytes(data))]
            except wire.WireError:
                return []  # a damaged reply is a missing one
        if self.mode == "strict":
            reply = self._carry("up", step, id, reply)
        else:
            wire.check(reply)
        return [reply, reply] if fault and fault.kind == "duplicate" else [reply]

    def _carry(self, direction: str, step: str, id: Id, payload: dict) -> dict:
        data = wire.encode(payload)
        if self._tap:
            self._tap(direction, step, id, data)
        return wire.decode(data)

    # ------------------------------------------------------------ clients

    def _client(self, id: Id, memory: Memory) -> Client:
        """A new one for every step: ten thousand of a round are not kept."""
        client = Client(id, self.data[id], memory, self.models, self.seed, self.identities[id], self.pinned, self._judge(id))
        if self.prepare:
            self.prepare(client)
        return client

    def _judge(self, id: Id) -> Callable[[Tensor, Tensor, str, Tensor | None], None] | None:
        truth = self._truth
        if truth is None:
            return None

        def judge(labels: Tensor, used: Tensor, head: str, confidence: Tensor | None) -> None:
            true = truth(id)
            known = true != UNKNOWN
            if not known.any():  # a table of your own: nothing can be said of its unlabelled rows
                return
            labels, used, true = labels.cpu()[known], used.cpu()[known], true[known]
            confidence = None if confidence is None else confidence.cpu()[known]
            right = (labels == true) & (labels >= 0)
            counts = dict(n=len(labels), used=int(used.sum()), right=int((right & used).sum()), right_of_all=int(right.sum()))
            if confidence is not None:  # in millionths, so that the sum does not depend on who comes first
                counts["confidence"] = round(1e6 * float(confidence[used].sum(dtype=torch.float64)))
            self.add_judged({head: counts})

        return judge

    def add_judged(self, counts: dict[str, dict[str, int]]) -> None:
        with self._lock:
            for head, numbers in counts.items():
                known = self.judged.setdefault(head, {})
                for name, number in numbers.items():
                    known[name] = known.get(name, 0) + number

    def _fault(self, step: str, id: Id, round: int) -> Fault | None:
        for fault in self._faults:
            if fault.client == id and fault.step == step and fault.round in (None, round):
                return fault
        return None

    def take_judged(self) -> dict[str, dict[str, int]]:
        """What `client.judge` was told since the last call, by head."""
        judged, self.judged = self.judged, {}
        return judged
