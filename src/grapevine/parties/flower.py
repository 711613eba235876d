"""The same methods between real parties, on Flower: the host's side. This file and `node`, the parties' side, import flwr.

    host: SuperLink ── ServerApp `server_app` ── core.Server ── GridTransport
    party: node ── worker ── core.run_step

A message is our own codec (`wire`) in one array of bytes, in both directions.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from grapevine.core import Id, Transport, party_name, wire
from grapevine.core.errors import Later, Mistake
from grapevine.core.store import write_atomically
from grapevine.crypto.agreement import AgreementError, roster_hash, verify_offers
from grapevine.parties import federation, job, node, virtual
from grapevine.parties.audit import Audit
from grapevine.parties.keys import one_form
from grapevine.parties.worker import LIMIT_BYTES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Flower's own dependencies
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
    from flwr.superlink.grid import http_grid

Tell = Callable[[dict], None]
"""Gets what happens: step, round and who was asked; then who answered, who did not, and after how many seconds; or a sentence."""

TIMEOUT = 600.0  # seconds for one exchange
SIMULATED_TIMEOUT = 24 * 3600.0  # in a simulation a lost step stops the run
POLL = 0.1  # seconds between two looks for replies at first; it grows with the wait, to POLL_MOST
POLL_MOST = 1.0
THREADS = 16  # that fetch replies
AT_ONCE = 2**25  # bytes of requests that are in memory beside their contents, and sent together
AGAIN = 30.0  # seconds until a party that says nothing is asked again; twice as many each time
WAIT = 300.0  # seconds for the nodes to come online
# A reply is announced before all its parts have arrived. Flower would look for the others after a whole second.
http_grid.pull_objects = partial(http_grid.pull_objects, initial_backoff=POLL / 4)


# ---------------------------------------------------------------- messages


def pack(value: dict) -> RecordDict:
    return node.pack(wire.encode(value))


def unpack(content: RecordDict, limit: int) -> dict:
    """The value; a `WireError` for anything that is not one."""
    return wire.decode(node.unpack(content), limit)


# ---------------------------------------------------------------- the host's side


@dataclass
class GridTransport(Transport):
    """Over Flower's grid. A party that fails, sends garbage, too much or too late is an absent key.

    `online` gives the node ids of the parties that are there now, `hash` is that of what they agreed on. Nobody is waited for
    longer than `timeout` seconds; below `quorum` the job waits for `patience` seconds more. `gone` are those who left for good,
    and why.
    """

    grid: Grid
    online: Callable[[], Mapping[Id, int]]
    hash: str
    tell: Tell
    timeout: float = TIMEOUT
    limit_bytes: int = LIMIT_BYTES
    identities: Mapping[str, bytes] = field(default_factory=dict)
    parties: Collection[Id] = ()
    quorum: int = 0
    patience: float = 0.0
    gone: Callable[[], Mapping[Id, str]] = dict
    _absent: set[Id] = field(default_factory=set)  # did not answer when last asked

    def say(self, sentence: str) -> None:
        self.tell(dict(sentence=sentence))

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        began = time.monotonic()
        self.tell(dict(step=step, round=round, asked=sorted(requests)))
        came = _Asking(self, step, requests, round).run()
        replies = {id: came[id] for id in requests if id in came and self._signed(id, step, requests[id], came[id])}
        missing = sorted(set(requests) - set(replies))
        self._absent = (self._absent | set(missing)) - set(replies)
        self.tell(dict(step=step, round=round, answered=sorted(replies), missing=missing,
                       seconds=float(f"{time.monotonic() - began:.2f}")))  # fmt: skip
        return replies

    def _signed(self, id: Id, step: str, request: dict, reply: dict) -> bool:
        """A key that its sender did not sign is no reply. Relayed, it would stop all the others, and nobody would know whose it
        was."""
        if not self.identities or "offer" not in reply or "session_id" not in request:
            return True
        name, session = party_name(id), request["session_id"]
        try:
            verify_offers({name: reply["offer"]}, self.identities, session, roster_hash(self.identities, session))
        except (AgreementError, KeyError, TypeError, ValueError):
            self.say(f"{id} answered step {step} with a key that it did not sign, so it is dropped.")
            return False
        return True

    def can_spare(self, id: Id) -> bool:
        """Whether this party was missing before, and enough others answer."""
        return id in self._absent and len(self.parties) - len(self._absent) >= self.quorum

    def too_few(self, waiting: Collection[Id], answered: Collection[Id]) -> bool:
        """Whether the job could not continue without those who have not answered."""
        return bool(self.quorum) and (not answered or len(self.parties) - len(self._absent | set(waiting)) < self.quorum)


class _Asking:
    """One exchange. A party is asked again when its request or its reply may be lost, always under the same number: whoever has
    answered before sends the same reply, and one reply of each party counts."""

    def __init__(self, carrier: GridTransport, step: str, requests: dict[Id, dict], round: int):
        self.carrier, self.step, self.round = carrier, step, round
        self.contents = {id: dict(step=step, round=round, hash=carrier.hash, id=secrets.token_hex(8), payload=payload)
                         for id, payload in requests.items()}  # fmt: skip
        self.began = time.monotonic()
        self.until, self.waits = self.began + carrier.timeout, False
        self.due = dict.fromkeys(requests, self.began)  # who has not answered, and when they are asked (again)
        self.pause = dict.fromkeys(requests, AGAIN)
        self.sent: dict[str, Id] = {}  # Flower's ids of the requests
        self.told: set[tuple[Id, str]] = set()
        self.found: queue.Queue = queue.Queue()
        self.over, self.looked = threading.Event(), 0.0

    def run(self) -> dict[Id, dict]:
        replies: dict[Id, dict] = {}
        try:
            while self.due and self._time_left(replies):
                self._drop_gone()
                self._send()
                self._take(replies)
        finally:
            self.over.set()
        for id in self.due:
            self.carrier.say(f"{id} did not answer step {self.step} within {time.monotonic() - self.began:.0f} s.")
        return replies

    def _time_left(self, replies: dict[Id, dict]) -> bool:
        if time.monotonic() < self.until:
            return True
        if self.waits or not self.carrier.patience or not self.carrier.too_few(self.due, replies):
            return False
        self.waits, self.until = True, time.monotonic() + self.carrier.patience
        missing, most = ", ".join(map(str, sorted(self.due))), f"{self.carrier.patience:.0f} s"
        self.carrier.say(f"{self.carrier.quorum} parties are needed, so the job waits {most} for {missing}, who must join again "
                         "(`grapevine join --home`).")  # fmt: skip
        return True

    def _once(self, id: Id, sentence: str) -> None:
        if (id, sentence) not in self.told:
            self.told.add((id, sentence))
            self.carrier.say(sentence)

    def _drop_gone(self) -> None:
        for id, why in self.carrier.gone().items():
            if self.due.pop(id, None) is not None:
                self.carrier.say(f"{id} {why}, so step {self.step} continues without it.")

    def _send(self) -> None:
        now = time.monotonic()
        due = [id for id, when in self.due.items() if when <= now]
        if not due or now - self.looked < POLL:
            return
        self.looked, online = now, self.carrier.online()
        messages: dict[Id, Message] = {}
        size = 0
        for id in due:
            if id not in online and self.carrier.can_spare(id):
                self._once(id, f"{id} is still not online, so step {self.step} continues without it.")
                del self.due[id]
                continue
            if id not in online:
                self._once(id, f"{id} is not online, so step {self.step} waits for it.")
                self.due[id] = now + POLL_MOST
                continue
            data = wire.encode(self.contents[id])
            # After `ttl` seconds the SuperLink delivers neither the request nor its reply.
            ttl = max(1.0, self.until - now)
            messages[id] = Message(node.pack(data), online[id], "query.step", ttl=ttl, group_id=str(self.round))
            size += len(data)
            if size > AT_ONCE:
                self._push(messages, now)
                messages, size = {}, 0
        self._push(messages, now)

    def _push(self, messages: dict[Id, Message], now: float) -> None:
        """Send these requests in one call, and look for their replies."""
        try:
            pushed = list(self.carrier.grid.push_messages(list(messages.values())))
        except ObjectPushError:  # this machine stood still in the middle of sending, and the SuperLink gave it up
            self.due.update(dict.fromkeys(messages, now + POLL_MOST))
            return
        for id in messages:  # also of one that was not accepted
            self.due[id], self.pause[id] = now + self.pause[id], 2 * self.pause[id]
        self.sent.update({name: id for id, name in zip(messages, pushed) if name})
        names = [name for name in pushed if name]
        for first in range(min(THREADS, len(names))):
            threading.Thread(target=self._fetch, args=(names[first::THREADS],), daemon=True).start()

    def _take(self, replies: dict[Id, dict]) -> None:
        next_time = min([self.until, *self.due.values()])
        try:
            message = self.found.get(timeout=min(POLL_MOST, max(0.02, next_time - time.monotonic())))
        except queue.Empty:
            return
        if isinstance(message, Exception):
            raise message
        # A reply is known by the request it answers; whatever else it says about itself is not believed.
        id = self.sent.pop(message.metadata.reply_to_message_id, None)
        if id is None or id not in self.due:
            return
        if message.has_error():
            self._once(id, f"{id} was lost in step {self.step} (Flower's code {message.error.code}): it is asked again.")
            self.due[id] = time.monotonic() + POLL_MOST
            return
        del self.due[id]
        reply = self._open(id, message)
        if reply is not None:
            replies[id] = reply

    def _fetch(self, names: list[str]) -> None:
        """In a thread: what answers these requests, as it arrives. Flower waits for minutes for the rest of a reply whose sender
        went away in the middle of sending it; one thread that hangs keeps neither the others nor the exchange waiting."""
        waiting, began, least = set(names), time.monotonic(), max(POLL, 0.02 * len(self.contents))
        try:
            while waiting and not self.over.is_set() and time.monotonic() < self.until:
                for message in self.carrier.grid.pull_messages(sorted(waiting)):
                    waiting.discard(message.metadata.reply_to_message_id)
                    self.found.put(message)
                if waiting:
                    self.over.wait(min(max(POLL_MOST, least), least + (time.monotonic() - began) / 20))
        except Exception as error:
            if not self.over.is_set():
                self.found.put(error)

    def _open(self, id: Id, message: Message) -> dict | None:
        step, say = self.step, self.carrier.say
        try:
            answer = unpack(message.content, self.carrier.limit_bytes)
        except wire.WireError as error:
            say(f"{id} answered step {step} with an invalid message, so it is dropped: {error}.")
            return None
        if answer.get("step") != step or answer.get("round") != self.round or not isinstance(answer.get("reply"), dict):
            kind = str(answer.get("error", ""))
            kind = kind if kind.isidentifier() and len(kind) < 60 else "no reply in it"  # written by the party: not to be trusted
            say(f"{id} failed at step {step} ({kind}): see its own log.")
            return None
        return answer["reply"]


def online(grid: Grid, keys: Mapping[str, str]) -> dict[Id, int]:
    """Names to node ids, of those who are online, by the key that each node proved to hold."""
    there = {one_form(node.public_key): node.node_id for node in grid.get_nodes()}
    return {name: there[one_form(key.encode())] for name, key in sorted(keys.items()) if one_form(key.encode()) in there}


def find_nodes(grid: Grid, keys: Mapping[str, str], quorum: int, wait: float = WAIT) -> dict[Id, int]:
    """Those who are online. Waits for all, and after `wait` s is content with `quorum`."""
    until = time.monotonic() + wait
    while len(found := online(grid, keys)) < len(keys) and time.monotonic() <= until:
        time.sleep(POLL_MOST / 2)
    if len(found) < quorum:
        missing = ", ".join(sorted(set(keys) - set(found)))
        raise Later(
            f"{len(found)} of {len(keys)} parties are online after {wait:g} s, but {quorum} are needed: {missing} must join."
        )
    return found


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """The host's program, in the process that Flower starts for it."""
    torch.set_num_threads(1)
    if context.run_config["experiment-folder"]:
        return virtual.drive(Path(str(context.run_config["experiment-folder"])), partial(_virtual_nodes, grid))
    host = federation.load_host(str(context.run_config["federation-folder"]))
    write_atomically(host.folder / "job.pid", str(os.getpid()).encode())
    with job.saying_why(host.folder):
        nodes = find_nodes(grid, host.keys, host.agreed.quorum, host.timeouts.online)
    transport = GridTransport(
        grid, partial(online, grid, host.keys), host.agreed.hash, _teller(host.folder / "progress.jsonl"), host.timeouts.step,
        identities=host.identities, parties=set(nodes), quorum=host.agreed.quorum, patience=host.timeouts.join,
        gone=partial(job.gone, host.folder),
    )  # fmt: skip
    job.run(host, nodes, transport)


def _teller(path: Path) -> Tell:
    audit = Audit(path.parent)

    def tell(line: dict) -> None:
        audit.note(line)
        with open(path, "a") as file:
            file.write(json.dumps(dict(time=round(time.time(), 2), **line)) + "\n")

    return tell


def _virtual_nodes(grid: Grid, count: int) -> Transport:
    """Flower's simulation has a node per client, all alike: the request says which client is meant."""
    until = time.monotonic() + WAIT
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise Mistake(f"Flower's simulation has {len(nodes)} of {count} nodes after {WAIT:g} s: use --runtime local.")
        time.sleep(POLL)
    there: dict[Id, int] = dict(enumerate(nodes))
    return GridTransport(grid, lambda: there, "", lambda line: None, SIMULATED_TIMEOUT)


# ---------------------------------------------------------------- a client of Flower's simulation

client_app = ClientApp()


@client_app.query("step")
def answer(message: Message, context: Context) -> Message:
    request = unpack(message.content, LIMIT_BYTES)
    reply = virtual.work(Path(str(context.run_config["experiment-folder"])), request)
    return Message(pack(dict(step=request["step"], round=request["round"], reply=reply)), reply_to=message)
