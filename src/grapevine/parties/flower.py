"""The same methods between real parties, on Flower. The only file that imports flwr.

    host: SuperLink ── ServerApp `server_app` ── core.Server ── GridTransport
    party: SuperNode ── ClientApp `client_app`, a new process for every message ── core.run_step

A message is our own codec (`wire`) in one array of bytes, in both directions. What Flower itself would do with an exception of a
party, send its text to the server, is prevented: the server learns the kind and the step, the text stays in the party's own log.
"""

from __future__ import annotations

import json
import os
import queue
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grapevine.core.errors import Mistake
from grapevine.core.server import Transport

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Flower's own dependencies
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from grapevine.core import Method
    from grapevine.core.store import FileStore

LIMIT_BYTES = 2**30  # of one message
TIMEOUT = 600.0  # seconds for one exchange
SIMULATED_TIMEOUT = 24 * 3600.0  # in a simulation a lost step stops the run
POLL = 0.1  # seconds between two looks for replies at first; it grows with the wait, to POLL_MOST
POLL_MOST = 1.0
THREADS = 16  # that fetch replies
ROUNDS_BACK = 2  # how many rounds a party's memory can go back
WAIT = 120.0  # seconds for the parties to come online

APP = """\
[project]
name = "grapevine-app"
version = "1.0.0"
description = "Grapevine between real parties. The code is the Grapevine that is installed at each of them."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "grapevine"

[tool.flwr.app.components]
serverapp = "grapevine.parties.flower:server_app"
clientapp = "grapevine.parties.flower:client_app"

[tool.flwr.app.config]
federation-folder = ""
experiment-folder = ""
"""


def environment(home: str | Path) -> dict[str, str]:
    """The environment of every Flower process: no telemetry, no update check, nothing installed, files in `home` alone."""
    scripts = sysconfig.get_path("scripts")
    return dict(
        os.environ,
        FLWR_HOME=str(Path(home).resolve()),
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
        FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.25",  # a second by default: how long a message waits for its process
        RAY_USAGE_STATS_ENABLED="0",
        PATH=os.pathsep.join([str(Path(home).resolve() / "bin"), scripts, os.environ.get("PATH", os.defpath)]),
    )


def write_app(folder: str | Path) -> Path:
    """The folder that `flwr run` bundles and sends: a description without code."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP)
    return folder


# ---------------------------------------------------------------- messages


def pack(value: dict) -> RecordDict:
    """A value of our codec as one array of bytes: Flower cuts it into pieces, and never has to understand it."""
    from grapevine.core import wire

    data = wire.encode(value)
    return RecordDict({"grapevine": ArrayRecord({"message": Array("uint8", (len(data),), "grapevine.core.wire", data)})})


def unpack(content: RecordDict, limit: int) -> dict:
    """The value; a `WireError` for anything that is not one."""
    from grapevine.core import wire

    try:
        data = content["grapevine"]["message"].data
    except (KeyError, TypeError, AttributeError):
        raise wire.WireError("not a Grapevine message") from None
    return wire.decode(data, limit)


# ---------------------------------------------------------------- the host's side


class GridTransport(Transport):
    """`core.Transport` over Flower's grid. A party that is offline, fails, sends garbage, too much or too late is an absent key.

    `nodes` are the parties' node ids, `hash` that of the settings they agreed on; `say` gets a sentence for the host's log.
    No exchange takes longer than `timeout` seconds.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[str, int], hash: str, timeout: float = TIMEOUT, limit_bytes: int = LIMIT_BYTES,
        say: Callable[[str], None] = print,
    ):  # fmt: skip
        self.grid, self.nodes, self.hash, self.timeout, self.limit_bytes, self.say = (
            grid,
            dict(nodes),
            hash,
            timeout,
            limit_bytes,
            say,
        )
        self.seconds: list[float] = []

    def exchange(self, step: str, requests: dict[str, dict], round: int) -> dict[str, dict]:
        began = time.monotonic()
        sent = self._push(step, requests, round, began)
        replies = self._pull(step, sent, round, began)
        self.seconds.append(time.monotonic() - began)
        self.say(f"Exchange {len(self.seconds)}, step {step}, round {round}: {len(replies)} of {len(requests)} parties answered "
                 f"in {self.seconds[-1]:.1f} s.")  # fmt: skip
        return {id: replies[id] for id in requests if id in replies}

    def _push(self, step: str, requests: dict[str, dict], round: int, began: float) -> dict[str, str]:
        """Message ids to parties. Nothing is sent to a party that is not online: it would be waited for in vain."""
        online = set(self.grid.get_node_ids())
        sent = {}
        for id, payload in requests.items():
            if self.nodes.get(id) not in online:
                self.say(f"{id} is not online: step {step} goes on without it.")
                continue
            content = pack(dict(step=step, round=round, hash=self.hash, payload=payload))
            # After `ttl` seconds the SuperLink delivers neither the request nor its reply.
            message = Message(content, self.nodes[id], "query.step", ttl=self.timeout, group_id=str(round))
            for name in self.grid.push_messages([message]):
                if name:
                    sent[name] = id
        return sent

    def _pull(self, step: str, sent: dict[str, str], round: int, began: float) -> dict[str, dict]:
        """Replies by party. Flower waits for minutes for the rest of a reply whose sender went away in the middle of sending it;
        so replies are fetched by several threads, and one that hangs keeps neither the others nor this exchange waiting."""
        found: queue.Queue = queue.Queue()
        names, until = list(sent), began + self.timeout
        for first in range(min(THREADS, len(names))):
            threading.Thread(target=self._fetch, args=(names[first::THREADS], until, found), daemon=True).start()
        waiting, replies = dict(sent), {}
        while waiting:
            try:
                message = found.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(message, Exception):
                raise message
            # A reply is known by the request it answers; whatever else it says about itself is not believed.
            id = waiting.pop(message.metadata.reply_to_message_id, None)
            reply = None if id is None else self._open(id, step, round, message)
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

    def _open(self, id: str, step: str, round: int, message: Message) -> dict | None:
        from grapevine.core.wire import WireError

        if message.has_error():
            self.say(f"{id} was lost in step {step} (Flower's code {message.error.code}).")
            return None
        try:
            answer = unpack(message.content, self.limit_bytes)
        except WireError as error:
            self.say(f"{id} answered step {step} with something that is no message: {error}.")
            return None
        if answer.get("step") != step or answer.get("round") != round or not isinstance(answer.get("reply"), dict):
            kind = str(answer.get("error", ""))
            kind = kind if kind.isidentifier() and len(kind) < 60 else "no reply in it"  # written by the party: not to be trusted
            self.say(f"{id} could not do step {step} ({kind}): its own log says why.")
            return None
        return answer["reply"]


def find_nodes(grid: Grid, keys: Mapping[str, str], quorum: int, wait: float = WAIT) -> dict[str, int]:
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
            f"{len(found)} of {len(keys)} parties are online after {wait:g} s, and {quorum} are needed: {missing} must join."
        )
    return dict(sorted(found.items()))


def _known(key: bytes) -> bytes:
    """A public key in one form, whether it came as OpenSSH or as PEM; as it is if it is neither."""
    from cryptography.hazmat.primitives import serialization as s

    try:
        public = s.load_ssh_public_key(key) if key.startswith(b"ecdsa-") else s.load_pem_public_key(key)
    except ValueError:
        return key
    return public.public_bytes(s.Encoding.DER, s.PublicFormat.SubjectPublicKeyInfo)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """The host's program, in the process that Flower starts for it."""
    import torch

    from grapevine.core import Server
    from grapevine.parties import federation, virtual

    torch.set_num_threads(1)
    if context.run_config["experiment-folder"]:
        return virtual.drive(Path(context.run_config["experiment-folder"]), partial(_virtual_nodes, grid))
    folder = Path(context.run_config["federation-folder"])
    setup = federation.load_host(folder)
    nodes = find_nodes(grid, setup.keys, setup.quorum, setup.wait)
    transport = GridTransport(grid, nodes, setup.hash, setup.timeout)
    server = Server(setup.method, nodes, transport, setup.models, setup.classes, setup.seed, setup.per_round, setup.rounds)
    federation.run_job(server, setup, folder)


def _virtual_nodes(grid: Grid, count: int) -> GridTransport:
    """Flower's simulation has a node per client, all alike: the request says which client is meant."""
    until = time.monotonic() + WAIT
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise Mistake(f"Flower's simulation has {len(nodes)} of {count} nodes after {WAIT:g} s: say --runtime local.")
        time.sleep(POLL)
    return GridTransport(grid, dict(enumerate(nodes)), "", SIMULATED_TIMEOUT, say=lambda sentence: None)


# ---------------------------------------------------------------- a party's side

client_app = ClientApp()


@client_app.query("step")
def answer(message: Message, context: Context) -> Message:
    """One step. Whatever goes wrong, the server learns no more than the kind of the error."""
    if "party-folder" not in context.node_config:  # a node of Flower's simulation, not a party
        return _simulated(message, context)
    folder = Path(context.node_config["party-folder"])
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
    from grapevine.parties import virtual

    request = unpack(message.content, LIMIT_BYTES)
    reply = virtual.work(Path(context.run_config["experiment-folder"]), request)
    return Message(pack(dict(step=request["step"], round=request["round"], reply=reply)), reply_to=message)


def _log(folder: Path, text: str) -> None:
    with open(folder / "log.txt", "a") as file:
        file.write(f"{_now()} {text}\n")


def _run(folder: Path, request: dict, context: Context) -> dict:
    import torch

    from grapevine.core import Client, run_step
    from grapevine.core.store import Memory
    from grapevine.parties import federation

    torch.set_num_threads(1)  # in every runtime, so that sums repeat bit for bit
    setup = federation.load_party(folder)
    if request["hash"] != setup.hash:
        raise Mistake(f"the host runs other settings than {setup.name} agreed to: join again with a new token.")
    kept = _recall(folder, context, request["round"])
    memory = Memory(setup.store, kept["now"])
    client = Client(setup.name, setup.data, memory, setup.models, setup.seed, setup.identity, setup.pinned,
                    common_seed=setup.common_seed)  # fmt: skip
    reply = run_step(setup.method, request["step"], client, request["payload"])
    _disclose(folder, request["step"], reply, setup.method)
    _remember(folder, context, dict(kept, now=memory.manifest), setup.store)
    return reply


def _recall(folder: Path, context: Context, round: int) -> dict:
    """The memory's manifest as it is now, and as it was before this round and the last.

    It lies in the party's folder, so that a node that was started again goes on. A host that was started again (another run)
    repeats the round it was in: then memory goes back to what it was before that round. Keys and masks are used once, so a
    memory that holds an agreement never goes back.
    """
    path, run = folder / "memory.json", context.run_id
    if path.exists():
        kept = json.loads(path.read_text())
    else:
        kept = dict(run=run, now=dict(context.state.get("memory", {})), before={})
    before = {int(r): manifest for r, manifest in kept["before"].items()}
    again = [r for r in before if r >= round]
    if kept["run"] != run and again and "agreement" not in kept["now"]:
        kept["now"] = before[min(again)]
        before = {r: manifest for r, manifest in before.items() if r < round}
    before.setdefault(round, kept["now"])
    return dict(run=run, now=kept["now"], before={r: before[r] for r in sorted(before)[-ROUNDS_BACK:]})


def _remember(folder: Path, context: Context, kept: dict, store: FileStore) -> None:
    from grapevine.core.store import write_atomically

    write_atomically(folder / "memory.json", json.dumps(kept).encode())
    context.state["memory"] = ConfigRecord(kept["now"])
    manifests = [kept["now"], *kept["before"].values()]
    store.keep_only(name for manifest in manifests for name in manifest.values())


def _disclose(folder: Path, step: str, reply: dict, method: Method) -> None:
    """What leaves this party, written down before it leaves."""
    from grapevine.jobs.disclosure import entries

    lines = entries(step, reply, method)
    with open(folder / "disclosure.jsonl", "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
