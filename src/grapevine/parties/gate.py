"""The host's one open port: enrolment, and Flower's Fleet API passed on to the SuperLink, which itself listens on loopback alone.

Flower 1.41 serves its Control API (start any code at every party) and its Runtime API on the same port as the Fleet API, without
authentication. So the SuperLink must not be reachable from outside. The gate lets the ten Fleet calls of a node through and
nothing else; Flower's node authentication (a signature per request) is checked behind it as before.

Whoever connects gets seconds for a handshake, for the first byte and for a whole request, whatever its pace. Sizes are checked
before anything is read, and more than a few kB are read only of a request whose head a party's node has signed. The number of
connections is bounded: in all, for each address, and for all addresses together where no party has proved itself of late.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.words import printable
from grapevine.parties.files import read_if_there
from grapevine.parties.keys import node_signature, one_form
from grapevine.parties.registry import SENTENCE, Refused, Registry

FLEET = frozenset(f"/v1/fleet/{name}" for name in (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
))  # fmt: skip
HEAD_BYTES = 2**13  # of a request's first line and headers
BODY_BYTES = 2**12  # of an enrolment message
FLEET_BYTES = 2**25  # of one Fleet call; Flower sends large arrays in pieces of 5 MB
HANDSHAKE_SECONDS = 5
REQUEST_SECONDS = 20  # for all of a request, from its first byte on
FLEET_SECONDS = 120
FIRST_SECONDS = 5  # for the first byte of a connection
IDLE_SECONDS = 90  # between two requests on one connection
CONNECTIONS = 1000
STRANGERS = 20  # connections at once from an address where no party has proved itself
ALL_STRANGERS = 200  # and from all such addresses together
REFUSALS = 30  # shown and logged one by one in a minute; the others are only counted
KNOWN_SECONDS = 300  # how long an address stays known after a party has proved itself from there
UPSTREAM_SECONDS = 60
HOP = {"connection", "keep-alive", "host", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "proxy-connection"}


class Gate(ThreadingHTTPServer):
    """An HTTPS server around a `Registry`. `superlink` is the port on loopback that Fleet calls are passed on to."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], registry: Registry, superlink: int | None = None,
                 say: Callable[[str], None] = lambda sentence: None):  # fmt: skip
        self.registry, self.superlink, self.say = registry, superlink, say
        self.ca = (registry.folder / "ca.crt").read_bytes()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(registry.folder / "server.pem", registry.folder / "server.key")
        self.inner = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.inner.load_verify_locations(cadata=self.ca.decode("ascii"))
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._counting = threading.Lock()
        self._open: Counter[str] = Counter()  # connections, by address
        self._proved: dict[str, float] = {}  # when a party last did, by address
        self._refused, self._minute = 0, time.monotonic()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def start(self) -> Gate:
        threading.Thread(target=self.serve_forever, name="gate", daemon=True).start()
        return self

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[ssl.SSLSocket, Any]:
        """Accept at once; the handshake is in the connection's own thread, so that a slow one holds up nobody."""
        plain, address = super().get_request()
        plain.settimeout(HANDSHAKE_SECONDS)
        return self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def prove(self, address: str) -> None:
        """A party has shown its pass from here."""
        with self._counting:
            self._proved[place(address)] = time.monotonic()

    def _knows(self, address: str) -> bool:
        return time.monotonic() - self._proved.get(address, -KNOWN_SECONDS) < KNOWN_SECONDS

    def process_request(self, request: Any, client_address: Any) -> None:
        address = place(client_address[0])
        with self._counting:
            strangers = sum(n for each, n in self._open.items() if not self._knows(each))
            many = not self._knows(address) and (self._open[address] >= STRANGERS or strangers >= ALL_STRANGERS)
            if many or not self._free.acquire(blocking=False):
                self.shutdown_request(request)
                return
            self._open[address] += 1
        super().process_request(request, client_address)

    def node(self, headers: Any) -> str:
        """The party whose node signed the head of a request."""
        key, path = node_signature(headers), self.registry.folder / "roster.toml"
        about = path.stat() if key and path.exists() else None
        name = None if about is None else _node_keys(path, about.st_ino, about.st_mtime_ns).get(key or b"")
        if name is None:
            raise Refused(401, "no party of this job signed the request: `grapevine join` does so, if its clock is right.")
        return name

    def refuse(self, address: str, status: int, sentence: str) -> None:
        """Report it on the screen and in the audit log, at most `REFUSALS` times a minute."""
        with self._counting:
            more = 0
            if time.monotonic() - self._minute > 60:
                more, self._refused, self._minute = max(0, self._refused - REFUSALS), 0, time.monotonic()
            self._refused += 1
            many = self._refused > REFUSALS
        if more:
            self.say(f"{more} more requests were refused in a minute before.")
            self.registry.audit.write("refused", count=more)
        if not many:
            self.say(f"Refused {address}: {printable(sentence)}")
            self.registry.audit.write("refused", address=address, status=status, sentence=printable(sentence))

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self._open[place(client_address[0])] -= 1
                self._open += Counter()  # addresses that have gone
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An interrupted connection needs no attention."""

    def shutdown_request(self, request: Any) -> None:
        try:
            request.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass
        self.close_request(request)


@lru_cache(maxsize=2)
def _node_keys(path: Path, *version: int) -> dict[bytes, str]:
    """Whose node has which key, of those who take part. Nodes call often, so it is read once for each `version` of the file."""
    return {one_form(entry["node_key"].encode()): name for name, entry in read_if_there(path).items() if entry.get("in", True)}


def place(address: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, which one machine has to itself."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if number.version == 4:
        return str(number)
    return str(number.ipv4_mapped or ipaddress.ip_network((number, 64), strict=False))


class _TooMuch(OSError):
    """More bytes than a head may have."""


class _Timed(io.RawIOBase):
    """Bytes of a socket: all of them before `until`, and no more than `room`, in however many pieces they come."""

    def __init__(self, sock: ssl.SSLSocket):
        self.sock, self.until = sock, time.monotonic() + FIRST_SECONDS
        self.waiting, self.first, self.room = True, True, HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(max(0.01, self.until - time.monotonic()))
        if self.room <= 0:
            raise _TooMuch
        count = self.sock.recv_into(buffer, min(len(buffer), self.room))
        self.room -= count
        if self.waiting:  # the first byte of a request: from now on the clock is the request's
            self.waiting, self.first, self.until = False, False, time.monotonic() + REQUEST_SECONDS
        return count


class _Handler(BaseHTTPRequestHandler):
    server: Gate
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "grapevine", ""
    disable_nagle_algorithm = True  # a reply's head and body are two packets: the second would wait 40 ms for the first

    def setup(self) -> None:
        self.request.do_handshake()
        super().setup()
        self._timed = _Timed(self.connection)
        self.rfile = io.BufferedReader(self._timed)
        self._upstream: http.client.HTTPSConnection | None = None

    def finish(self) -> None:
        if self._upstream:
            self._upstream.close()
        super().finish()

    def handle_one_request(self) -> None:
        seconds = FIRST_SECONDS if self._timed.first else IDLE_SECONDS
        self._timed.waiting, self._timed.until, self._timed.room = True, time.monotonic() + seconds, HEAD_BYTES
        try:
            super().handle_one_request()
        except _TooMuch:
            self.requestline, self.request_version, self.command, self.close_connection = "", "HTTP/1.1", "", True
            self._refuse(431, f"the head of a request is over the limit of {HEAD_BYTES} bytes.")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged one by one: nodes ask every few seconds."""

    # ------------------------------------------------------------ requests

    def do_GET(self) -> None:
        if self.path == "/v1/grapevine/ca":
            self._send(200, self.server.ca, "application/x-pem-file")
        else:
            self._refuse(404, "there is nothing here.")

    def do_POST(self) -> None:
        try:
            if self.path in FLEET:
                self.close_connection = True  # unless the node proves itself: what it sends then is not read
                self.server.node(self.headers)
                self.close_connection = False
                self.server.prove(self.client_address[0])
                self._timed.until = time.monotonic() + FLEET_SECONDS
                self._pass_on(self._body(FLEET_BYTES))
            elif self.path.startswith("/v1/grapevine/"):
                self._answer(self.path.removeprefix("/v1/grapevine/"), self._body(BODY_BYTES))
            else:
                self._refuse(404, "there is nothing here.")
        except Refused as refused:
            self._refuse(refused.status, str(refused))
        except Mistake as mistake:
            self._refuse(400, str(mistake))

    def _body(self, limit: int) -> bytes:
        text = self.headers.get("content-length", "")
        if not text.isdecimal() or "transfer-encoding" in self.headers:
            self.close_connection = True
            raise Refused(411, "a request must say how long it is.")
        if int(text) > limit:
            self.close_connection = True
            raise Refused(413, f"a request of {int(text)} bytes is over the limit of {limit}.")
        self._timed.room += int(text)
        data = self.rfile.read(int(text))
        if len(data) < int(text):
            self.close_connection = True
            raise Refused(400, "the request was cut off.")
        return data

    def _answer(self, what: str, body: bytes) -> None:
        registry = self.server.registry
        asked = _read(body)
        name, secret = _text(asked, "name"), _bytes(asked, "secret")
        if what == "settings":
            reply = registry.settings(name, secret)
        elif what == "enrol":
            reply = registry.enrol(name, secret, _text(asked, "node_key", 1000), _text(asked, "identity"))
            self.server.say(f"{name} has joined.")
        elif what == "here":
            reply = registry.hear(
                name, secret, *(_text(asked, key, SENTENCE) for key in ("process", "state", "confirmed", "sentence"))
            )
            self.server.prove(self.client_address[0])
        elif what == "model":
            self._send(200, registry.model(name, secret).read_bytes(), "application/octet-stream")
            return
        else:
            raise Refused(404, "there is nothing here.")
        self._send(200, json.dumps(reply).encode(), "application/json")

    def _pass_on(self, body: bytes) -> None:
        """One Fleet call to the SuperLink and its reply back, over a connection that is kept."""
        if self.server.superlink is None:
            raise Refused(503, "the host is not ready yet.")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        for fresh in (False, True):  # a kept connection may have been closed at the other end
            try:
                if self._upstream is None or fresh:
                    self._upstream = http.client.HTTPSConnection("127.0.0.1", self.server.superlink, timeout=UPSTREAM_SECONDS,
                                                                 context=self.server.inner)  # fmt: skip
                    fresh = True
                self._upstream.request("POST", self.path, body, headers)
                response = self._upstream.getresponse()
                data = response.read()
                break
            except (OSError, http.client.HTTPException):
                self._upstream = None
                if fresh:
                    raise Refused(503, "the host's SuperLink does not answer.") from None
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in HOP | {"server", "date"}]
        self.send_response(response.status)
        for name, value in kept:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, sentence: str) -> None:
        if status != 404:
            self.server.refuse(self.client_address[0], status, sentence)
        self._send(status, json.dumps(dict(error=sentence)).encode(), "application/json")


def _read(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise Refused(400, "the request is not JSON of names and values.")
    return asked


def _text(asked: dict[str, Any], key: str, most: int = 100) -> str:
    value = asked.get(key, "")
    if not isinstance(value, str) or len(value) > most:
        raise Refused(400, f"'{key}' is not a text of up to {most} letters.")
    return value


def _bytes(asked: dict[str, Any], key: str) -> bytes:
    text = _text(asked, key)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused(400, f"'{key}' is not bytes in hex.") from None
