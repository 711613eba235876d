"""The host's one open port: enrolment, and Flower's Fleet API passed on to the SuperLink, which itself listens on loopback alone.

Flower 1.41 serves its Control API (start any code at every party) and its Runtime API on the same port as the Fleet API, and asks
nobody who he is there. So the SuperLink must not be reachable from outside. The gate lets the ten Fleet calls of a node through
and nothing else; Flower's node authentication (a signature per request) is checked behind it as before.

Whoever connects gets a handshake, then seconds for a whole request, whatever its pace; sizes are checked before they are read;
the number of connections is bounded, in all and for each address. More than a few kB of a request are read only from an address
from which a party has proved itself within the last minutes: `join` does so every second, from the machine of its node.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.parties.registry import Refused, Registry, printable

FLEET = frozenset(f"/v1/fleet/{name}" for name in (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
))  # fmt: skip
BODY_BYTES = 2**14  # of an enrolment message
FLEET_BYTES = 2**25  # of one Fleet call; Flower sends large arrays in pieces of 5 MB
HANDSHAKE_SECONDS = 10
REQUEST_SECONDS = 20  # for all of a request, from its first byte on
FLEET_SECONDS = 120
FIRST_SECONDS = 10  # for the first byte of a connection
IDLE_SECONDS = 90  # between two requests on one connection
CONNECTIONS = 200
STRANGERS = 20  # connections at once from an address where no party has proved itself
KNOWN_SECONDS = 300  # so long an address is known after a party has proved itself from there
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
        """Accept at once; the handshake is the connection's own thread's, so that a slow one holds up nobody."""
        plain, address = super().get_request()
        plain.settimeout(HANDSHAKE_SECONDS)
        return self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def prove(self, address: str) -> None:
        """A party has shown its pass from here."""
        with self._counting:
            self._proved[address] = time.monotonic()

    def knows(self, address: str) -> bool:
        with self._counting:
            return time.monotonic() - self._proved.get(address, -KNOWN_SECONDS) < KNOWN_SECONDS

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        many = self._open[address] >= STRANGERS and not self.knows(address)
        if many or not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._counting:
            self._open[address] += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self._open[client_address[0]] -= 1
                self._open += Counter()  # addresses that have gone
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is its own business."""

    def shutdown_request(self, request: Any) -> None:
        try:
            request.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass
        self.close_request(request)


class _Timed(io.RawIOBase):
    """Bytes of a socket, all of them before `until`: many small pieces do not add up to more time."""

    def __init__(self, sock: ssl.SSLSocket):
        self.sock, self.until = sock, time.monotonic() + FIRST_SECONDS
        self.waiting, self.first = True, True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(max(0.01, self.until - time.monotonic()))
        count = self.sock.recv_into(buffer)
        if self.waiting:  # the first byte of a request: from now on the clock is the request's
            self.waiting, self.first, self.until = False, False, time.monotonic() + REQUEST_SECONDS
        return count


class _Handler(BaseHTTPRequestHandler):
    server: Gate
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "grapevine", ""

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
        self._timed.waiting, self._timed.until = True, time.monotonic() + seconds
        super().handle_one_request()

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
                known = self.server.knows(self.client_address[0])
                self._timed.until = time.monotonic() + (FLEET_SECONDS if known else REQUEST_SECONDS)
                self._pass_on(self._body(FLEET_BYTES if known else BODY_BYTES))
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
            raise Refused(411, "a request says how long it is.")
        if int(text) > limit:
            self.close_connection = True
            raise Refused(413, f"a request of {int(text)} bytes is over the limit of {limit}.")
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
                name, secret, *(_text(asked, key, 300) for key in ("process", "state", "confirmed", "sentence"))
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
            self.server.say(f"Refused {self.client_address[0]}: {printable(sentence)}")
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
