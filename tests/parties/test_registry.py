"""Enrolment over TLS on loopback, the gate in front of the SuperLink, and clocks. No processes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from net import Desk, until
from trials import label_agreement

from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import Identity, fingerprint
from grapevine.parties import gate, keys, registry
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import load_host
from grapevine.parties.join import look
from grapevine.parties.registry import HostLink, Registry, check_clock


def test_neither_a_token_nor_the_books_show_the_secret(host):
    token = host.registry.invite("north")
    assert token.secret.hex() not in repr(token)
    assert all(token.secret.hex() not in path.read_text(errors="replace") for path in host.folder.iterdir() if path.is_file())


def test_a_party_enrols_and_the_host_knows_its_public_keys_alone(host, tmp_path):
    link = host.link("north")
    told = link.call("settings")
    assert told["hash"] == label_agreement().hash == Agreement.from_dict(told["agreed"]).hash
    assert told["agreed"]["parties"] == ["east", "north", "south"]
    host.enrol("north", tmp_path / "n", link)
    entry = host.registry.roster()["north"]
    public = Identity.load(tmp_path / "n" / "identity.pem").public
    assert entry == dict(
        node_key=(tmp_path / "n" / "node.pub").read_text().strip(), identity=public.hex(), fingerprint=fingerprint(public)
    )


def test_looking_does_not_use_the_invitation_up(host, tmp_path):
    token = host.registry.invite("north")
    for _ in range(3):
        look(token)
    host.enrol("north", tmp_path / "n", host.link("north", token))


def test_a_used_invitation_is_refused_and_the_first_party_stays(host, tmp_path):
    token = host.registry.invite("north")
    host.enrol("north", tmp_path / "first", host.link("north", token))
    before = host.registry.roster()
    with pytest.raises(Mistake, match="used before.*fingerprint"):
        host.enrol("north", tmp_path / "second", host.link("north", token))
    assert host.registry.roster() == before
    assert any("used before" in sentence for sentence in host.said)


def test_the_same_keys_again_are_no_harm_for_a_reply_may_be_lost(host, tmp_path):
    token = host.registry.invite("north")
    for _ in range(2):
        host.enrol("north", tmp_path / "n", host.link("north", token))
    assert list(host.registry.roster()) == ["north"]


def test_a_wrong_secret_is_refused(host, tmp_path):
    token = replace(host.registry.invite("north"), secret=bytes(16))
    for what in ("settings", "here", "model"):
        with pytest.raises(Mistake, match="not a valid invitation for 'north'"):
            host.link("north", token).call(what)
    with pytest.raises(Mistake, match="not a valid invitation for 'north'"):
        host.enrol("north", tmp_path / "n", host.link("north", token))


def test_another_partys_invitation_is_refused(host):
    token = replace(host.registry.invite("north"), name="south")
    host.registry.invite("south")
    with pytest.raises(Mistake, match="not a valid invitation for 'south'"):
        host.link("south", token).call("settings")


def test_a_newer_invitation_takes_the_place_of_an_older(host):
    old, new = host.registry.invite("north"), host.registry.invite("north")
    host.link("north", new).call("settings")
    with pytest.raises(Mistake, match="not a valid invitation"):
        host.link("north", old).call("settings")


def test_an_old_invitation_is_refused(host, monkeypatch):
    monkeypatch.setattr(registry, "TOKEN_SECONDS", -1)
    with pytest.raises(Mistake, match="days old"):
        host.link("north").call("settings")


def test_another_certificate_authority_is_noticed_before_anything_is_sent(host, tmp_path):
    keys.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    other = keys.ca_fingerprint((tmp_path / "ca.crt").read_bytes())
    token = replace(host.registry.invite("north"), ca=other)
    with pytest.raises(Mistake, match="somebody may be intercepting"):
        HostLink(token).check_ca()


def test_a_man_in_between_who_shows_the_right_authority_cannot_go_on(host, tmp_path):
    """The authority's certificate is public: whoever shows it must still have a server certificate that it signed."""
    token = host.registry.invite("north")
    fake = Desk(tmp_path / "fake")
    try:
        fake.gate.ca = host.gate.ca
        link = HostLink(replace(token, port=fake.port)).check_ca()
        with pytest.raises(Mistake, match="could not prove its identity"):
            link.call("settings")
    finally:
        fake.gate.stop()


def test_a_certificate_for_another_address_is_refused(host):
    link = host.link("north")
    elsewhere = HostLink(replace(link.token, address="127.0.0.2"), link.ca)
    with pytest.raises(Mistake, match="could not prove its identity|cannot be reached"):
        elsewhere.call("settings")


def test_a_key_that_another_party_has_is_refused(host, tmp_path):
    host.enrol("north", tmp_path / "n")
    with pytest.raises(Mistake, match="'north' already has this key"):
        host.enrol("south", tmp_path / "n")
    assert list(host.registry.roster()) == ["north"]


def test_what_is_no_key_is_refused(host, tmp_path):
    good = keys.make_node_key(tmp_path)
    link = host.link("north")
    for node_key, identity in ((good, "00"), (good, "zz" * 32), ("ssh-rsa AAAA", "00" * 32), (7, "00" * 32), (good, "00" * 4000)):
        with pytest.raises(Mistake):
            link.call("enrol", node_key=node_key, identity=identity)
    assert host.registry.roster() == {}


def test_what_a_party_says_cannot_write_to_the_hosts_terminal(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    with pytest.raises(Mistake, match="'state' must be one of"):
        link.hear("[red]here")
    link.hear("refused", sentence="a\x1b[2Jb\nc")
    assert host.registry.here["north"].sentence == "a?[2Jb?c"


@pytest.mark.parametrize("drop", ["job", "settings", "quorum", "shape"])
def test_settings_that_are_not_whole_are_refused(host, monkeypatch, drop):
    token = host.registry.invite("north")
    whole = host.registry.settings("north", token.secret)
    parts = {name: value for name, value in whole["agreed"].items() if name != drop}
    monkeypatch.setattr(Registry, "settings", lambda self, name, secret: dict(whole, agreed=parts))
    with pytest.raises(Mistake, match="sent incomplete settings"):
        look(token)


def test_nobody_is_here_before_he_has_joined(host):
    with pytest.raises(Mistake, match="not a valid invitation for 'north'"):
        host.link("north").hear("here")


def test_an_invitation_is_good_for_one_enrolment_and_for_nothing_afterwards(host, tmp_path):
    """It fetched the model after it was used, for whoever had read it in a list of processes."""
    token = host.registry.invite("north")
    first = host.link("north", token)
    link = host.enrol("north", tmp_path / "n", first)
    link = host.enrol("north", tmp_path / "n", first)  # the reply was lost: the same keys get another pass
    with pytest.raises(Mistake, match="not a valid invitation"):
        first.hear("here")
    assert link.hear("here")["here"] == ["north"]
    for call in (lambda: first.call("settings"), lambda: host.enrol("north", tmp_path / "n", first), first.fetch_model):
        with pytest.raises(Mistake, match="not a valid invitation"):
            call()
    text = (host.folder / "invitations.toml").read_text()
    assert link.token.secret.hex() not in text and token.secret.hex() not in text


def test_two_processes_of_one_name_are_not_both_here(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    link.hear("here")
    twin = replace(link, process="another")
    with pytest.raises(Mistake, match="already connected from another process"):
        twin.hear("here")
    link.hear("left")
    assert twin.hear("here")["here"] == ["north"]


def test_the_roster_is_shown_once_it_is_closed_and_nobody_joins_after(host, tmp_path):
    links = {name: host.enrol(name, tmp_path / name) for name in ("north", "south")}
    assert "roster" not in links["north"].hear("here")
    host.registry.close(["north", "south"])
    told = links["north"].hear("here")
    assert told["phase"] == "confirming" and sorted(told["roster"]) == ["north", "south"]
    public = Identity.load(tmp_path / "south" / "identity.pem").public
    assert told["roster"]["south"] == public.hex()
    with pytest.raises(Mistake, match="has started without 'east'"):
        host.enrol("east", tmp_path / "east")
    assert load_host(host.folder).keys.keys() == {"north", "south"}


def test_only_parties_that_were_agreed_on_are_invited(host):
    """Who takes part is in the hash: a host that adds a party has another federation."""
    with pytest.raises(Mistake, match="'west' is not one of the agreed parties .east, north, south."):
        host.registry.invite("west")


def test_a_party_that_lost_its_keys_is_invited_again_only_on_purpose(host, tmp_path):
    host.enrol("north", tmp_path / "n")
    with pytest.raises(Mistake, match="--again"):
        host.registry.invite("north")
    before = host.registry.roster()["north"]["identity"]
    token = host.registry.invite("north", again=True)
    host.enrol("north", tmp_path / "new", host.link("north", token))
    assert host.registry.roster()["north"]["identity"] != before


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", b"413"),
        (b"POST /v1/fleet/push-object HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\n\r\n", b"411"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n", b"411"),
        (b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"411"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70000 + b"\r\n\r\n", b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /v1/grapevine/enrol HTTP/1.1\r\nconnection: close\r\n\r\n", b"404"),
    ],
)
def test_requests_that_are_too_large_or_malformed_are_refused_unread(host, request_, status):
    assert status in host.raw(request_).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 5000, b'{"name": 3}', b'{"name": "north", "secret": "xyz"}', b"\xff\xfe"]
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


def post(host: Desk, path: str, body: bytes = b"hello") -> tuple[int, dict, bytes]:
    context = ssl.create_default_context(cadata=host.gate.ca.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", host.port, timeout=60, context=context)
    connection.request("POST", path, body, {"flwr-public-key": "abc"})
    response = connection.getresponse()
    out = response.status, dict(response.getheaders()), response.read()
    connection.close()
    return out


def test_fleet_calls_pass_with_their_headers_and_bodies(fleet):
    status, headers, body = post(fleet, "/v1/fleet/pull-messages")
    assert (status, headers["x-flower"]) == (201, "yes")
    assert json.loads(body) == dict(path="/v1/fleet/pull-messages", key="abc", body="hello")


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


def test_without_a_superlink_behind_it_the_gate_says_so(host):
    assert post(host, "/v1/fleet/pull-messages")[0] == 503
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        host.gate.superlink = sock.getsockname()[1]
        assert post(host, "/v1/fleet/pull-messages")[0] == 503


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize(("offset", "good"), [(0, True), (4, True), (8, False), (-200, True), (-400, False)])
def test_a_clock_that_flower_would_refuse_is_named(offset, good):
    if good:
        assert check_clock(1000.0, 1000.0 + offset, 1000.0 + offset) == pytest.approx(offset)
    else:
        with pytest.raises(Mistake, match=f"{abs(offset)} s {'ahead of' if offset > 0 else 'behind'}"):
            check_clock(1000.0, 1000.0 + offset, 1000.0 + offset)


def test_little_is_read_from_a_stranger_and_more_from_where_a_party_is(fleet, tmp_path):
    """Forty bodies of 31 MB, from nobody, made the host grow by 1.2 GB."""
    much = b"x" * (gate.BODY_BYTES + 1)
    assert fleet.raw(b"POST /v1/fleet/push-messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(much)).startswith(
        b"HTTP/1.1 413"
    )
    fleet.enrol("north", tmp_path / "n").hear("here")
    status, _, body = post(fleet, "/v1/fleet/push-messages", much)
    assert status == 201 and len(json.loads(body)["body"]) == len(much)
    head = b"POST /v1/fleet/push-messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (gate.FLEET_BYTES + 1)
    assert fleet.raw(head).startswith(b"HTTP/1.1 413")


def test_one_address_cannot_take_all_connections(host, monkeypatch):
    """199 idle connections shut newcomers out for 85 s."""
    monkeypatch.setattr(gate, "STRANGERS", 3)
    monkeypatch.setattr(gate, "FIRST_SECONDS", 1)
    idle = [socket.create_connection(("127.0.0.1", host.port), 60) for _ in range(3)]
    extra = socket.create_connection(("127.0.0.1", host.port), 60)
    assert extra.recv(1) == b""  # turned away at once
    extra.close()
    for each in idle:
        each.close()
    until(lambda: not host.gate._open, "the idle ones to be gone", lambda: "", 60)
    host.link("north")  # a newcomer


def test_what_a_stranger_writes_cannot_forge_a_line_of_the_log(host):
    body = json.dumps(dict(name="x\n12:00:00 north has joined.\x1b[2J", secret="00")).encode()
    assert b"403" in host.raw(
        b"POST /v1/grapevine/settings HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert host.said and all(line.isprintable() for line in host.said)
