"""The gate with real sockets: what passes, what is read before anybody has proved anything, and what floods cost."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from net import Desk, until

from grapevine.parties import (
    gate,
    keys,
)
from grapevine.parties.audit import Audit

MB = 2**20


def signed(folder: Path | None = None) -> dict[str, str]:
    """The headers of a node, by Flower itself; without a folder those of a node that nobody knows."""
    from grapevine.parties import flower  # noqa: F401

    # ruff: isort: split
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # after ours, which quiets its warnings

    key = load_ssh_private_key((folder / "node.key").read_bytes(), None) if folder else ec.generate_private_key(ec.SECP384R1())
    request = SimpleNamespace(headers={})
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(SimpleNamespace(request=request), lambda context: None)
    return dict(request.headers)


def tls(host: Desk, source: str = "127.0.0.1") -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", host.port), 60, (source, 0))
    return ssl.create_default_context(cadata=host.gate.ca.decode()).wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", b"413"),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", b"401"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\n\r\n", b"411"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n", b"411"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"411"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70000 + b"\r\n\r\n", b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /v1/grapevine/enrol HTTP/1.1\r\nconnection: close\r\n\r\n", b"404"),
    ],
)
def test_requests_that_are_too_large_or_malformed_are_refused_unread(host, request_, status):
    assert status in host.raw(request_).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 4000, b'{"name": 3}', b'{"name": "north", "secret": "xyz"}', b"\xff\xfe"]
)
def test_garbage_in_a_request_is_refused_with_a_sentence(host, body):
    head = f"POST /v1/grapevine/enrol HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    reply = host.raw(head + body)
    assert reply.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]


def test_a_slow_request_is_cut_off_and_holds_up_nobody(host, monkeypatch):
    monkeypatch.setattr(gate, "REQUEST_SECONDS", 1.0)
    context = ssl.create_default_context(cadata=host.gate.ca.decode())
    slow = context.wrap_socket(socket.create_connection(("127.0.0.1", host.port), 60), server_hostname="127.0.0.1")
    with slow, pytest.raises(OSError):  # a letter every tenth of a second would go on for 20 minutes
        for letter in b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: 10000\r\n\r\n".ljust(12000):
            host.link("north").call("settings")  # meanwhile others are served
            slow.sendall(bytes([letter]))
            time.sleep(0.1)


def test_a_connection_that_never_shakes_hands_holds_up_nobody(host):
    with socket.create_connection(("127.0.0.1", host.port), 60) as silent:
        host.link("north").call("settings")
        silent.settimeout(0.0)
        with pytest.raises(BlockingIOError):  # it is still waited for while the other is served
            silent.recv(1)


# ---------------------------------------------------------------- the gate in front of the SuperLink


class Upstream(BaseHTTPRequestHandler):
    """Stands where the SuperLink stands, and says what reached it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        told = json.dumps(dict(path=self.path, key=self.headers.get("flwr-public-key"), body=body.decode())).encode()
        self.send_response(201)
        self.send_header("content-length", str(len(told)))
        self.send_header("x-flower", "yes")
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def fleet(host):
    """The host's gate with something behind it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.folder / "server.pem", host.folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host.gate.superlink = server.server_port
    yield host
    server.shutdown()
    server.server_close()


def post(host: Desk, path: str, body: bytes = b"hello", headers: dict[str, str] | None = None) -> tuple[int, dict, bytes]:
    """A body that the gate does not want is not read, and the gate's answer may be lost with the connection: then try again."""
    context = ssl.create_default_context(cadata=host.gate.ca.decode())
    for _ in range(5):
        with closing(http.client.HTTPSConnection("127.0.0.1", host.port, timeout=60, context=context)) as connection:
            try:
                connection.request("POST", path, body, headers or {})
                response = connection.getresponse()
                return response.status, dict(response.getheaders()), response.read()
            except (ConnectionError, ssl.SSLEOFError) as error:
                lost = error
    raise lost


def test_fleet_calls_pass_with_their_headers_and_bodies(fleet, tmp_path):
    fleet.enrol("north", tmp_path / "n")
    own = signed(tmp_path / "n")
    status, headers, body = post(fleet, "/v1/fleet/pull-messages", headers=own)
    assert (status, headers["x-flower"]) == (201, "yes")
    assert json.loads(body) == dict(path="/v1/fleet/pull-messages", key=own["flwr-public-key"], body="hello")


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs",
     "/openapi.json", "/v1/fleet/../control/start-run", "/v1/fleet/pull-messages/../../control/start-run",
     "/v1/fleet/pull-messages?x", "//v1/control/start-run"],
)  # fmt: skip
def test_nothing_but_fleet_calls_passes(fleet, path):
    """Through Flower's Control API anybody could have his code run at every party."""
    status, headers, _ = post(fleet, path)
    assert status == 404 and "x-flower" not in headers


def test_without_a_superlink_behind_it_the_gate_says_so(host, tmp_path):
    host.enrol("north", tmp_path / "n")
    assert post(host, "/v1/fleet/pull-messages", headers=signed(tmp_path / "n"))[0] == 503
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        host.gate.superlink = sock.getsockname()[1]
        assert post(host, "/v1/fleet/pull-messages", headers=signed(tmp_path / "n"))[0] == 503


# ---------------------------------------------------------------- who may send more than a few kB


def test_a_head_over_the_limit_is_not_read_to_its_end(host):
    """A hundred headers of 64 kB each would be six megabytes, before anybody knows whose."""
    line = b"x: " + b"a" * 1000 + b"\r\n"
    assert host.raw(b"GET / HTTP/1.1\r\n" + line * 50).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("change", [
    {}, {"flwr-signature": ""}, {"flwr-signature": "AAAA"}, {"flwr-timestamp": "yesterday"}, {"flwr-timestamp": "2020-01-01"},
    {"flwr-public-key": "abc"}, {"flwr-public-key": None}, {"flwr-timestamp": None},
    {"flwr-timestamp": "2026-01-01T00:00:00+00:00"},
])  # fmt: skip
def test_only_a_node_that_signed_is_read(fleet, tmp_path, change):
    """Also from an address where a party has proved itself: others may sit behind the same router."""
    fleet.enrol("north", tmp_path / "n").hear("here")
    good = signed(tmp_path / "n")
    headers = {name: value for name, value in (signed() if not change else good | change).items() if value is not None}
    status, told, body = post(fleet, "/v1/fleet/push-messages", b"x" * 100_000, headers)
    assert status == 401 and "x-flower" not in told and "no party of this job signed" in json.loads(body)["error"]
    assert post(fleet, "/v1/fleet/push-messages", b"x" * 100_000, good)[0] == 201


def test_a_signature_is_good_for_as_long_as_flower_says(tmp_path, monkeypatch):
    keys.make_node_key(tmp_path)
    headers = signed(tmp_path)
    assert keys.node_signature(headers) == keys.one_form((tmp_path / "node.pub").read_bytes())
    from flwr.common import constant

    assert (keys.AHEAD, keys.BEHIND) == (constant.SYSTEM_TIME_TOLERANCE, constant.TIMESTAMP_TOLERANCE)
    for age, good in ((-4, True), (-6, False), (304, True), (306, False)):
        now = datetime.fromisoformat(headers["flwr-timestamp"]) + timedelta(seconds=age)
        monkeypatch.setattr(
            keys, "datetime", SimpleNamespace(now=lambda zone, now=now: now, fromisoformat=datetime.fromisoformat)
        )
        assert (keys.node_signature(headers) is not None) is good


def test_a_node_of_a_party_that_is_out_is_not_read(fleet, tmp_path):
    for name in ("north", "south"):
        fleet.enrol(name, tmp_path / name)
    assert post(fleet, "/v1/fleet/pull-messages", headers=signed(tmp_path / "south"))[0] == 201
    fleet.registry.close(["north"])
    assert post(fleet, "/v1/fleet/pull-messages", headers=signed(tmp_path / "south"))[0] == 401
    assert post(fleet, "/v1/fleet/pull-messages", headers=signed(tmp_path / "north"))[0] == 201


def test_a_known_node_has_a_limit_too(fleet, tmp_path):
    fleet.enrol("north", tmp_path / "n")
    head = f"POST /v1/fleet/push-messages HTTP/1.1\r\ncontent-length: {gate.FLEET_BYTES + 1}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in signed(tmp_path / "n").items())
    assert fleet.raw(head.encode() + b"\r\n").startswith(b"HTTP/1.1 413")


def test_forty_bodies_of_31_megabytes_cost_nothing(fleet, tmp_path):
    """From nobody, they made the host grow by 1.2 GB. Here even from where a party is."""
    fleet.enrol("north", tmp_path / "n").hear("here")
    piece, taken = bytes(MB), []

    def attack() -> None:
        sent = 0
        try:
            with tls(fleet) as sock:
                sock.sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (31 * MB))
                for _ in range(31):
                    sock.sendall(piece)
                    sent += len(piece)
        except OSError:
            pass
        taken.append(sent)

    before = psutil.Process().memory_info().rss
    threads = [threading.Thread(target=attack) for _ in range(40)]
    for each in threads:
        each.start()
    most = 0
    while any(each.is_alive() for each in threads):
        most = max(most, psutil.Process().memory_info().rss - before)
        time.sleep(0.01)
    assert len(taken) == 40 and max(taken) < 31 * MB  # what the sockets' own buffers take
    assert most < 150 * MB  # attackers and host together: 40 connections with TLS on both sides
    assert fleet.link("south").call("settings")["hash"]


# ---------------------------------------------------------------- floods of connections


def test_199_idle_connections_shut_nobody_out(host, tmp_path, monkeypatch):
    """They did for 85 s. One address gets twenty, each for seconds; others come in meanwhile."""
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", host.port), 60)) for _ in range(199)]
        with tls(host, "127.0.0.2") as newcomer:
            newcomer.sendall(b"GET /v1/grapevine/ca HTTP/1.1\r\nconnection: close\r\n\r\n")
            assert newcomer.recv(12) == b"HTTP/1.1 200"
        assert host.gate._open["127.0.0.1"] <= gate.STRANGERS
        turned_away = [sock for sock in idle[gate.STRANGERS :] if _ended(sock)]
        assert len(turned_away) == len(idle) - gate.STRANGERS
        until(lambda: not host.gate._open["127.0.0.1"], "the silent ones to be gone", lambda: "", 60)
    host.link("north")


def _ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_many_addresses_together_leave_room_for_known_ones(host, tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "ALL_STRANGERS", 6)
    monkeypatch.setattr(gate, "STRANGERS", 2)
    link = host.enrol("north", tmp_path / "n")
    link.hear("here")
    with ExitStack() as stack:
        for last in range(2, 6):
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", host.port), 60, (f"127.0.0.{last}", 0)))
        stranger = stack.enter_context(socket.create_connection(("127.0.0.1", host.port), 60, ("127.0.0.9", 0)))
        assert _ended(stranger)
        assert link.hear("here")["here"] == ["north"]


@pytest.mark.parametrize(("address", "one"), [
    ("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::/64"), ("2001:db8::ffff:1", "2001:db8::/64"),
    ("2001:db8:0:1::1", "2001:db8:0:1::/64"), ("fe80::1%eth0", "fe80::/64"), ("::ffff:192.0.2.1", "192.0.2.1"), ("?", "?"),
])  # fmt: skip
def test_what_counts_as_one_address(address, one):
    assert gate.place(address) == one


def test_refusals_do_not_fill_the_screen_or_the_disk(host):
    for _ in range(gate.REFUSALS + 20):
        assert b"400" in host.raw(b"POST /v1/grapevine/enrol HTTP/1.1\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx")
    lines = [line for line in Audit(host.folder).lines() if line["event"] == "refused"]
    assert len(lines) == gate.REFUSALS == len([said for said in host.said if said.startswith("Refused")])
    host.gate._minute -= 61
    host.raw(b"POST /v1/grapevine/enrol HTTP/1.1\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx")
    assert Audit(host.folder).lines()[-2]["count"] == 20 and any("20 more requests" in said for said in host.said)


def test_what_a_stranger_writes_cannot_forge_a_line_of_the_log(host):
    body = json.dumps(dict(name="x\n12:00:00 north has joined.\x1b[2J", secret="00")).encode()
    assert b"403" in host.raw(
        b"POST /v1/grapevine/settings HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert host.said and all(line.isprintable() for line in host.said)
    assert all(text.isprintable() for text in (host.folder / "audit.jsonl").read_text().splitlines())


def test_the_log_says_who_joined_came_and_left(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    link.hear("here")
    link.hear("here")
    link.hear("left", sentence="done\x1b")
    link.hear("left")
    host.registry.close(["north"])
    host.registry.turn("done")
    told = [(line["event"], line.get("party")) for line in Audit(host.folder).lines()]
    one = [("invited", "north"), ("joined", "north"), ("came", "north"), ("left", "north")]
    assert told == [("made", None), *one, ("closed", None), ("done", None)]
    assert [line["sentence"] for line in Audit(host.folder).lines() if line["event"] == "left"] == ["done?"]
