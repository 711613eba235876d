"""The same methods between real parties, on Flower. The only file that imports flwr.

    host: SuperLink ── ServerApp `server_app` ── core.Server ── GridTransport
    party: SuperNode ── ClientApp `client_app`, a new process for every message ── core.run_step

A message is our own codec (`wire`) in one array of bytes, in both directions. What Flower itself would do with an exception of a
party, send its text to the server, is prevented: the server learns the kind and the step, the text stays in the party's own log.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key, load_ssh_public_key

from grapevine.core import Id, Method, Transport, party_name, run_step, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import Memory
from grapevine.crypto.agreement import AgreementError, roster_hash, verify_offers
from grapevine.jobs.disclosure import entries
from grapevine.parties import federation, job, virtual
from grapevine.parties.memory import recall, remember

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Flower's own dependencies
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

Tell = Callable[[dict], None]
"""Gets what happens: step, round and who was asked; then who answered, who did not, and after how many seconds; or a sentence."""

LIMIT_BYTES = 2**30  # of one message
TIMEOUT = 600.0  # seconds for one exchange
SIMULATED_TIMEOUT = 24 * 3600.0  # in a simulation a lost step stops the run
POLL = 0.1  # seconds between two looks for replies at first; it grows with the wait, to POLL_MOST
POLL_MOST = 1.0
THREADS = 16  # that fetch replies
WAIT = 300.0  # seconds for the nodes to come online


# ---------------------------------------------------------------- messages


def pack(value: dict) -> RecordDict:
    """A value of our codec as one array of bytes: Flower cuts it into pieces, and never has to understand it."""
    data = wire.encode(value)
    return RecordDict({"grapevine": ArrayRecord({"message": Array("uint8", (len(data),), "grapevine.core.wire", data)})})


def unpack(content: RecordDict, limit: int) -> dict:
    """The value; a `WireError` for anything that is not one."""
    record = content.array_records.get("grapevine")
    message = record.get("message") if record else None
    if message is None:
        raise wire.WireError("not a Grapevine message")
    return wire.decode(message.data, limit)


# ---------------------------------------------------------------- the host's side


class GridTransport(Transport):
    """Over Flower's grid. A party that is offline, fails, sends garbage, too much or too late is an absent key.

    `nodes` are the parties' node ids, `hash` that of what they agreed on. No exchange takes longer than `timeout` seconds.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[Id, int], hash: str, tell: Tell, timeout: float = TIMEOUT,
        limit_bytes: int = LIMIT_BYTES, identities: Mapping[str, bytes] | None = None,
    ):  # fmt: skip
        self.grid, self.nodes, self.hash, self.tell = grid, dict(nodes), hash, tell
        self.timeout, self.limit_bytes, self.identities = timeout, limit_bytes, dict(identities or {})

    def say(self, sentence: str) -> None:
        self.tell(dict(sentence=sentence))

    def exchange(self, step: str, requests: dict[Id, dict], round: int) -> dict[Id, dict]:
        began = time.monotonic()
        self.tell(dict(step=step, round=round, asked=sorted(requests)))
        sent = self._push(step, requests, round)
        came = self._pull(step, sent, round, began)
        replies = {id: came[id] for id in requests if id in came and self._signed(id, step, requests[id], came[id])}
        self.tell(dict(step=step, round=round, answered=sorted(replies), missing=sorted(set(requests) - set(replies)),
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

    def _push(self, step: str, requests: dict[Id, dict], round: int) -> dict[str, Id]:
        """Message ids to parties. Nothing is sent to a party that is not online: it would be waited for in vain."""
        online = set(self.grid.get_node_ids())
        sent = {}
        for id, payload in requests.items():
            if self.nodes.get(id) not in online:
                self.say(f"{id} is not online, so step {step} continues without it.")
                continue
            content = pack(dict(step=step, round=round, hash=self.hash, payload=payload))
            # After `ttl` seconds the SuperLink delivers neither the request nor its reply.
            message = Message(content, self.nodes[id], "query.step", ttl=self.timeout, group_id=str(round))
            for name in self.grid.push_messages([message]):
                if name:
                    sent[name] = id
        return sent

    def _pull(self, step: str, sent: dict[str, Id], round: int, began: float) -> dict[Id, dict]:
        """Replies by party. Flower waits for minutes for the rest of a reply whose sender went away in the middle of sending it;
        so replies are fetched by several threads, and one that hangs keeps neither the others nor this exchange waiting."""
        found: queue.Queue = queue.Queue()
        names, until = list(sent), began + self.timeout
        for first in range(min(THREADS, len(names))):
            threading.Thread(target=self._fetch, args=(names[first::THREADS], until, found), daemon=True).start()
        waiting, replies = dict(sent), dict[Id, dict]()
        while waiting:
            try:
                message = found.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(message, Exception):
                raise message
            # A reply is known by the request it answers; whatever else it says about itself is not believed.
            answers = message.metadata.reply_to_message_id
            if answers in waiting:
                id = waiting.pop(answers)
                reply = self._open(id, step, round, message)
                if reply is not None:
                    replies[id] = reply
        for id in waiting.values():
            self.say(f"{id} did not answer step {step} within {self.timeout:g} s.")
        return replies

    def _fetch(self, names: list[str], until: float, found: queue.Queue) -> None:
        """In a thread: what answers these requests, as it comes."""
        waiting, began = set(names), time.monotonic()
        try:
            while waiting and time.monotonic() < until:
                for message in self.grid.pull_messages(sorted(waiting)):
                    waiting.discard(message.metadata.reply_to_message_id)
                    found.put(message)
                if waiting:
                    time.sleep(min(POLL_MOST, POLL + (time.monotonic() - began) / 20))
        except Exception as error:
            found.put(error)

    def _open(self, id: Id, step: str, round: int, message: Message) -> dict | None:
        if message.has_error():
            self.say(f"{id} was lost in step {step} (Flower's code {message.error.code}).")
            return None
        try:
            answer = unpack(message.content, self.limit_bytes)
        except wire.WireError as error:
            self.say(f"{id} answered step {step} with an invalid message: {error}.")
            return None
        if answer.get("step") != step or answer.get("round") != round or not isinstance(answer.get("reply"), dict):
            kind = str(answer.get("error", ""))
            kind = kind if kind.isidentifier() and len(kind) < 60 else "no reply in it"  # written by the party: not to be trusted
            self.say(f"{id} failed at step {step} ({kind}): see its own log.")
            return None
        return answer["reply"]


def find_nodes(grid: Grid, keys: Mapping[str, str], quorum: int, wait: float = WAIT) -> dict[Id, int]:
    """Names to node ids, by the key each node proved to hold. Waits for all, and after `wait` s is content with `quorum`."""
    wanted = {_known(text.encode()): name for name, text in keys.items()}
    until = time.monotonic() + wait
    while True:
        online = {_known(node.public_key): node.node_id for node in grid.get_nodes()}
        found = {name: online[key] for key, name in wanted.items() if key in online}
        if len(found) == len(keys) or time.monotonic() > until:
            break
        time.sleep(POLL_MOST)
    if len(found) < quorum:
        missing = ", ".join(sorted(set(keys) - set(found)))
        raise Mistake(
            f"{len(found)} of {len(keys)} parties are online after {wait:g} s, but {quorum} are needed: {missing} must join."
        )
    return {name: found[name] for name in sorted(found)}


def _known(key: bytes) -> bytes:
    """A public key in one form, whether it came as OpenSSH or as PEM; as it is if it is neither."""
    try:
        public = load_ssh_public_key(key) if key.startswith(b"ecdsa-") else load_pem_public_key(key)
    except ValueError:
        return key
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """The host's program, in the process that Flower starts for it."""
    torch.set_num_threads(1)
    if context.run_config["experiment-folder"]:
        return virtual.drive(Path(str(context.run_config["experiment-folder"])), partial(_virtual_nodes, grid))
    host = federation.load_host(str(context.run_config["federation-folder"]))
    with job.saying_why(host.folder):
        nodes = find_nodes(grid, host.keys, host.agreed.quorum, host.timeouts.online)
    transport = GridTransport(grid, nodes, host.agreed.hash, _teller(host.folder / "progress.jsonl"), host.timeouts.step,
                              identities=host.identities)  # fmt: skip
    job.run(host, nodes, transport)


def _teller(path: Path) -> Tell:
    def tell(line: dict) -> None:
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
    return GridTransport(grid, dict(enumerate(nodes)), "", lambda line: None, SIMULATED_TIMEOUT)


# ---------------------------------------------------------------- a party's side

client_app = ClientApp()


@client_app.query("step")
def answer(message: Message, context: Context) -> Message:
    """One step. Whatever goes wrong, the server learns no more than the kind of the error."""
    if "party-folder" not in context.node_config:  # a node of Flower's simulation, not a party
        return _simulated(message, context)
    folder = Path(str(context.node_config["party-folder"]))
    began = time.perf_counter()
    step, round = "", -1
    try:
        request = unpack(message.content, LIMIT_BYTES)
        step, round = request["step"], request["round"]
        reply = pack(dict(step=step, round=round, reply=_run(folder, request, context)))
        _log(folder, f"step {step}, round {round}: {time.perf_counter() - began:.2f} s")
    except Exception as error:
        _log(folder, f"step {step}, round {round}: {traceback.format_exc()}")
        reply = pack(dict(step=step, round=round, error=type(error).__name__))
    return Message(reply, reply_to=message)


def _simulated(message: Message, context: Context) -> Message:
    request = unpack(message.content, LIMIT_BYTES)
    reply = virtual.work(Path(str(context.run_config["experiment-folder"])), request)
    return Message(pack(dict(step=request["step"], round=request["round"], reply=reply)), reply_to=message)


def _log(folder: Path, text: str) -> None:
    with open(folder / "log.txt", "a") as file:
        file.write(f"{_now()} {text}\n")


def _run(folder: Path, request: dict, context: Context) -> dict:
    torch.set_num_threads(1)  # in every runtime, so that sums repeat bit for bit
    party = federation.load_party(folder)
    if request["hash"] != party.agreed.hash:
        raise Mistake(f"the host's settings differ from those {party.name} agreed to: join again with a new invitation.")
    kept = recall(folder, context.run_id, request, party.agreed)
    memory = Memory(party.store, kept.now)
    method = party.agreed.made
    reply = run_step(method, request["step"], party.client(memory), request["payload"])
    _disclose(folder, request["step"], reply, method)
    remember(folder, kept, request, memory.manifest, party.store)
    return reply


def _disclose(folder: Path, step: str, reply: dict, method: Method) -> None:
    """What leaves this party, written down before it leaves."""
    lines = entries(step, reply, method)
    with open(folder / "disclosure.jsonl", "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
