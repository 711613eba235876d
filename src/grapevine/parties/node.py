"""A party's line to Flower's SuperLink: a SuperNode of our own, in one process, with a `worker` under it that does the steps.

    join ── node: pulls a request, hands it to its worker, pushes the reply ── worker: `core.run_step`
              │ Flower's Fleet API over TLS, every call signed with the node's key
            gate ── SuperLink ── ServerApp

Flower's own SuperNode looks for requests every three seconds, starts a process for each, and fetches the host's code first. This
one looks often while requests come, keeps its worker warm, and runs nothing but what is installed here. The host may be away for
any time: calls are repeated. A request is written down before it is confirmed (inbox.bin) and deleted when its reply has arrived,
so that a node that is killed continues where it was.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.parties import worker
from grapevine.parties.processes import Child, fork

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Flower's own dependencies
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.fab_pb2 import GetFabRequest
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
    from flwr.proto.message_pb2 import Message as Written
    from flwr.proto.node_pb2 import Node as Number
    from flwr.proto.run_pb2 import GetRunRequest
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

HEARTBEAT = 15.0  # seconds; after twice as many the SuperLink takes a node for gone
POLL, POLL_MOST = 0.1, 3.0  # seconds between two looks for a request; a tenth of the time since the last one
TRY, TRY_MOST = 0.5, 5.0  # seconds between two tries of a call that fails
BUNDLE_BYTES = 2**20
FEW_BYTES = 2**20
DEATHS = 3  # how often a worker may die at one request

T = TypeVar("T")


def pack(data: bytes) -> RecordDict:
    """Bytes that Flower never has to understand: many as an array, which it cuts into pieces, few as they are, which takes fewer
    calls."""
    if len(data) < FEW_BYTES:
        return RecordDict({"grapevine": ConfigRecord({"message": data})})
    return RecordDict({"grapevine": ArrayRecord({"message": Array("uint8", (len(data),), "grapevine.core.wire", data)})})


def unpack(content: RecordDict) -> bytes:
    record = content.get("grapevine")
    message = record.get("message") if isinstance(record, (ArrayRecord, ConfigRecord)) else None
    data = message.data if isinstance(message, Array) else message
    if not isinstance(data, bytes):
        raise wire.WireError("not a Grapevine message")
    return data


class Ended(Exception):
    """`join` wants this process to end, or has ended itself."""


class Dropped(Exception):
    """The SuperLink no longer wants what a call was about, for example because the run is over."""


class Node:
    """The connection of the party of `folder` to the host at `place`; `up` is the pipe to `join`."""

    def __init__(self, folder: Path, place: str, up: Connection):
        self.folder, self.place, self.up, self.mother = folder, place, up, os.getppid()
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        sign = NodeAuthHttpInterceptor(key, key.public_key())
        self.public = public_key_to_bytes(key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self.fleet = FleetHttpClient.from_server_address(place, False, (folder / "ca.crt").read_bytes(), [version, sign])
        self.number, self.beat, self.inbox = Number(), 0.0, folder / "inbox.bin"
        self.worker: Child | None = None
        self.runs: dict[int, str] = {}  # runs whose bundle was looked at: why it is refused, or ""
        self.lost = ""

    def run(self) -> None:
        """Run until `join` ends it."""
        try:
            self._start_worker()
            self._activate()
            if self.inbox.exists():
                self._serve(*_read_inbox(self.inbox))
            heard = time.monotonic()
            while True:
                asked = self._pull()
                if asked:
                    self._serve(*asked)
                    heard = time.monotonic()
                self._pause(min(POLL_MOST, max(POLL, (time.monotonic() - heard) / 10)))
        except Ended:
            if self.number.node_id:
                try:
                    self.fleet.DeactivateNode(DeactivateNodeRequest(node_id=self.number.node_id))
                except (httpx.HTTPError, RuntimeError, SystemExit):
                    pass
        finally:
            if self.worker:
                self.worker.stop(0)

    def _activate(self) -> None:
        """Tell the SuperLink that this node is there. It refuses while it believes that an earlier node, which was killed, is
        alive; so that one is signed off first, by the number that it left behind."""
        path, asked = self.folder / "node.txt", ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT)
        try:
            if path.exists():
                self.fleet.DeactivateNode(DeactivateNodeRequest(node_id=int(path.read_text())))
        except (httpx.HTTPError, SystemExit):
            pass  # it was not taken for alive; a SuperLink that is new does not know the number and answers with 401
        for _ in range(int(3 * HEARTBEAT)):
            try:
                self.number = Number(node_id=self._call(self.fleet.ActivateNode, asked).node_id)
                self._until_written(partial(write_atomically, path, str(self.number.node_id).encode()))
                return
            except Dropped as refused:
                why = refused
                self._pause(1.0, beat=False)
        raise Mistake(f"the host's SuperLink does not let this party's node in ({why}): ask for a new invitation.")

    def tell(self, **what: Any) -> None:
        """One line to `join`."""
        try:
            self.up.send_bytes(json.dumps(what).encode())
        except OSError:
            raise Ended from None

    # ------------------------------------------------------------ the host

    def _call(self, call: Callable[[Any], T], request: Any) -> T:
        """A call to the SuperLink, repeated until there is an answer."""
        pause = TRY
        while True:
            try:
                reply = call(request)
                if self.lost:
                    self.lost = ""
                    self.tell(back=True)
                return reply
            except SystemExit as end:  # Flower's, of another version
                raise Mistake(f"the host runs another version of Flower ({end}): install the same one.") from None
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status == 401:
                    kind, why = (
                        "clock",
                        "it does not accept this party's signature: compare this machine's clock with the host's (NTP)",
                    )
                elif status in (502, 503, 504):
                    kind, why = "lost", f"its SuperLink does not answer (status {status})"
                else:
                    raise Dropped(f"status {status}") from None
            except httpx.TransportError:
                kind, why = "lost", f"{self.place} cannot be reached"
            if why != self.lost:
                self.lost = why
                self.tell(lost=why, kind=kind)
            self._pause(pause * random.uniform(0.8, 1.2), beat=False)
            pause = min(2 * pause, TRY_MOST)

    def _pause(self, seconds: float, beat: bool = True, *also: Connection) -> bool:
        """Wait, unless there is something in one of these pipes before. Tells the host that this node lives."""
        ready = wait([self.up, *also], seconds)
        if self.up in ready or os.getppid() != self.mother:
            raise Ended
        if beat and time.monotonic() - self.beat > HEARTBEAT / 2:
            self.beat = time.monotonic()
            try:
                self._call(self.fleet.SendNodeHeartbeat, SendNodeHeartbeatRequest(node=self.number, heartbeat_interval=HEARTBEAT))
            except Dropped:
                raise Mistake("the host does not know this party's node: it was started again.") from None
        return bool(ready)

    def _pull(self) -> tuple[Any, bytes] | None:
        """A request: its metadata, and its bytes, written down."""
        try:
            came = self._call(self.fleet.PullMessages, PullMessagesRequest(node=self.number))
            if not came.messages_list:
                return None
            about, run = came.messages_list[0], came.messages_list[0].metadata.run_id
            contents = {}
            for tree in iterate_object_tree(came.message_object_trees[0]):
                contents[tree.object_id] = self._object(PullObjectRequest(node=self.number, run_id=run, object_id=tree.object_id))
            message = inflate_object_from_contents(about.metadata.message_id, contents)
            assert isinstance(message, Message)
            data = unpack(message.content)
            self._until_written(
                partial(write_atomically, self.inbox, wire.encode(dict(about=about.SerializeToString(), data=data)))
            )
            self._call(self.fleet.ConfirmMessageReceived, ConfirmMessageReceivedRequest(
                node=self.number, run_id=run, message_object_id=about.metadata.message_id))  # fmt: skip
            return about, data
        except (Dropped, wire.WireError, KeyError, ValueError) as error:
            self.tell(failed=f"a request of the host could not be read ({type(error).__name__})", kind="step")
            return None

    def _object(self, asked: PullObjectRequest) -> bytes:
        while True:
            came = self._call(self.fleet.PullObject, asked)
            if not came.object_found:
                raise Dropped("a part of it is not there")
            if came.object_available:
                return came.object_content
            self._pause(POLL)  # the host has not sent all of it yet

    def _until_written(self, write: Callable[[], None]) -> None:
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in worker.FULL:
                    raise
                self.tell(failed=worker.full(self.folder), kind="disk")
                self._pause(TRY_MOST)

    def _serve(self, about: Any, data: bytes) -> None:
        run = about.metadata.run_id
        try:
            refused = self._refused(run)
            if refused:
                self.tell(failed=refused, kind="code")
                answer: dict = dict(reply=wire.encode(dict(step="", round=-1, error="Refused")))
            else:
                answer = self._work(run, data)
            self._push(about, answer["reply"])
            self.tell(done="failed" not in answer and not refused)
        except Dropped:
            self.tell(done=True)  # the host continues without this reply, or has it
        self.inbox.unlink(missing_ok=True)

    def _refused(self, run: int) -> str:
        """Why requests of this run are refused: its bundle brings code, which is not run here and not even unpacked."""
        if run not in self.runs:
            about = self._call(self.fleet.GetRun, GetRunRequest(node=self.number, run_id=run)).run
            bundle = self._call(
                self.fleet.GetFab, GetFabRequest(node=self.number, hash_str=about.fab_hash, run_id=run)
            ).fab.content
            try:
                names = zipfile.ZipFile(BytesIO(bundle[:BUNDLE_BYTES])).namelist()
            except zipfile.BadZipFile:
                names = ["what is no bundle"]
            strange = sorted(name for name in names if name != "pyproject.toml" and not name.startswith(".info/"))
            self.runs[run] = f"the host sent code ({strange[0][:60]!r}), which is not run here: ask it why" if strange else ""
        return self.runs[run]

    def _push(self, about: Any, data: bytes) -> None:
        run, request = about.metadata.run_id, message_from_proto(about)
        reply = Message(pack(data), reply_to=request)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        told = [message_to_proto(remove_content_from_message(reply))]
        came = self._call(self.fleet.PushMessages, PushMessagesRequest(
            node=self.number, messages_list=told, message_object_trees=[tree], clientapp_runtime_list=[0.0]))  # fmt: skip
        for name in came.objects_to_push:
            self._call(self.fleet.PushObject, PushObjectRequest(
                node=self.number, run_id=run, object_id=name, object_content=objects[name].deflate(), session_id=came.session_id,
            ))  # fmt: skip

    # ------------------------------------------------------------ the worker

    def _start_worker(self) -> None:
        self.worker = fork(partial(worker.serve, self.folder), self.up)

    def _work(self, run: int, data: bytes) -> dict[str, Any]:
        """What the worker makes of a request. One that dies is replaced, and asked again."""
        asked = wire.encode(dict(run=str(run), data=data))  # the number of a run has 64 bits without a sign
        for _ in range(DEATHS):
            assert self.worker is not None
            try:
                self.worker.pipe.send_bytes(asked)
                self.tell(doing=True)
                while not self._pause(1.0, True, self.worker.pipe):
                    pass
                answer = wire.decode(self.worker.pipe.recv_bytes(), worker.LIMIT_BYTES + 2**20)
            except (EOFError, OSError):
                how = self.worker.stop(0)
                self._start_worker()
                self.tell(failed=f"the process that does the steps ended ({how}): it is started again", kind="worker")
                continue
            if "failed" in answer:
                self.tell(failed=answer["failed"], step=answer["step"], kind="disk" if "again" in answer else "step")
            if "again" not in answer:
                return answer
            self._pause(TRY_MOST)
            return self._work(run, data)
        self.tell(failed="the process that does the steps ended every time: is there enough memory?", kind="worker")
        return dict(reply=wire.encode(dict(step="", round=-1, error="WorkerLost")))


def _read_inbox(path: Path) -> tuple[Any, bytes]:
    kept = wire.decode(path.read_bytes(), worker.LIMIT_BYTES + 2**20)
    about = Written()
    about.ParseFromString(kept["about"])
    return about, kept["data"]


def main(folder: Path, place: str, up: Connection) -> None:
    """In the node's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for `join`, which then ends this
    try:
        Node(folder, place, up).run()
    except Exception as error:
        (folder / "log").mkdir(exist_ok=True)
        with open(folder / "log" / "node.txt", "a") as file:
            file.write(f"{time.strftime('%F %T')} {traceback.format_exc()}\n")
        up.send_bytes(json.dumps(dict(ended=str(error))).encode())
        os._exit(1)
