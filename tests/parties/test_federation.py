"""Federations without processes: folders, tokens, certificates, enrolment over TLS on loopback, the gate, the host's program."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import stat
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grapevine import __version__
from grapevine.cli.main import main
from grapevine.core import Server, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore
from grapevine.crypto.agreement import Identity, fingerprint
from grapevine.data.tables import write_csv
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import LabelSettings
from grapevine.parties import federation, gate
from grapevine.parties import join as joining
from grapevine.parties import keys as credentials
from grapevine.parties import registry as enrol
from grapevine.parties.doctor import examine
from grapevine.parties.host import roster_digest
from grapevine.run.simulate import Fault, Simulation

COLUMNS = ["a", "b", "c", "d"]


def table(**changes) -> dict:
    settings = LabelSettings(secure="psm", bits=64, neighbours=3).agreed()
    made = dict(
        name="trial", version=__version__, job="label", method="label", settings=settings, classes=["0", "1", "2"],
        features=COLUMNS, scale="none", quorum=2, rounds=1, per_round=3, model="linear", reproducible=False,
        parties=["east", "north", "south"], address="127.0.0.1", port=1, bind="127.0.0.1",
        timeouts=dict(join=5.0, confirm=5.0, online=5.0, step=5.0),
    )  # fmt: skip
    return {**made, **changes}


def train_table(**changes) -> dict:
    made = dict(job="train", method="fedavg", settings=dict(lr="0.05", epochs="1"), scale="own", rounds=4)
    return table(**{**made, **changes})


def party(name: str, seed: int = 0, n: int = 30) -> Party:
    """Three blobs, two thirds labelled."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = draw.normal(size=(n, len(COLUMNS))) + 4 * np.eye(3, len(COLUMNS))[y]
    labels = [str(c) if i % 9 not in (0, 4, 8) else None for i, c in enumerate(y)]
    return Party(name, x, labels, [f"r{i}" for i in range(n)])


def write_party_csv(path: Path, who: Party, columns: list[str] = COLUMNS, label: str = "kind") -> Path:
    order = [COLUMNS.index(name) for name in columns]
    write_csv(path, {"id": who.ids, label: who.labels, **{COLUMNS[j]: who.x[:, j] for j in order}})
    return path


# ---------------------------------------------------------------- tokens


TOKEN = credentials.Token("host.example.org", 8443, "trial", "north", "ab" * 32, bytes(range(16)))


def test_a_token_says_what_was_put_in():
    assert credentials.read_token(TOKEN.text()) == TOKEN


def test_a_token_survives_line_breaks_of_a_letter():
    text = TOKEN.text()
    assert credentials.read_token(f"  {text[:40]}\n{text[40:80]} \r\n{text[80:]}\n") == TOKEN


def test_a_token_with_any_letter_changed_is_refused():
    text = TOKEN.text()
    for at in range(len(text)):
        wrong = "A" if text[at] != "A" else "B"
        with pytest.raises(Mistake, match="not a whole invitation"):
            credentials.read_token(text[:at] + wrong + text[at + 1 :])


@pytest.mark.parametrize("text", ["", "grapevine-", "grapevine-AAAA", TOKEN.text()[:-5], "x" * 5000, "grapevine-ä"])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(Mistake, match="grapevine host --invite"):
        credentials.read_token(text)


def test_neither_a_token_nor_the_books_show_the_secret(host):
    token = host.registry.invite("north")
    assert token.secret.hex() not in repr(token)
    assert all(token.secret.hex() not in path.read_text(errors="replace") for path in host.folder.iterdir() if path.is_file())


# ---------------------------------------------------------------- certificates


def test_certificates_are_good_for_the_address_and_private_keys_are_private(tmp_path):
    credentials.make_certificates(tmp_path, "trial", ["host.example.org", "10.1.2.3", "::1"])
    names = credentials.certificate_addresses((tmp_path / "server.pem").read_bytes())
    assert names == ["host.example.org", "10.1.2.3", "::1", "localhost", "127.0.0.1"]
    for key in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600


def test_the_fingerprint_is_that_of_the_certificate(tmp_path):
    credentials.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    pem = (tmp_path / "ca.crt").read_text()
    assert credentials.ca_fingerprint(pem.encode()) == hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def test_certificates_are_made_once(tmp_path):
    credentials.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    credentials.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_node_key_is_made_once_and_only_such_keys_are_taken(tmp_path):
    first = credentials.make_node_key(tmp_path)
    assert first == credentials.make_node_key(tmp_path) == credentials.check_node_key(first + " a comment\n")
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    for wrong in ("", "ssh-rsa AAAA", "ecdsa-sha2-nistp384 AAAA", first[:-8], (tmp_path / "node.key").read_text()):
        with pytest.raises(Mistake, match="EC P-384"):
            credentials.check_node_key(wrong)


# ---------------------------------------------------------------- settings


def test_the_hash_is_over_what_is_agreed_and_nothing_else():
    base = federation.settings_hash(table())
    same = table(address="elsewhere", port=9, parties=["x", "y"], timeouts=dict(step=1.0), bind="::")
    assert federation.settings_hash(same) == base
    changes = dict(
        name="other", job="train", method="fedavg", settings=dict(table()["settings"], secure="plain"), classes=["0"],
        features=COLUMNS[::-1], scale="own", quorum=3, rounds=2, per_round=2, model="mlp", reproducible=True, seed=1, version="0",
        norm="gn",
    )  # fmt: skip
    assert set(changes) == set(federation.AGREED)
    hashes = {federation.settings_hash(table(**{name: value})) for name, value in changes.items()}
    assert len(hashes) == len(changes) and base not in hashes


def test_the_hash_is_the_same_after_toml_and_json(tmp_path):
    made = table(settings=dict(table()["settings"], alpha=1.0 - 1e-3))
    federation.write_toml(tmp_path / "t.toml", dict(agreed=federation.agreed(made)))
    there = json.loads(json.dumps(federation.read_toml(tmp_path / "t.toml")["agreed"]))
    assert federation.settings_hash(there) == federation.settings_hash(made)


def test_the_method_is_built_from_what_is_agreed():
    method = federation.agreed_method(table())
    assert (method.xclp.hamming.name, method.xclp.bits, method.xclp.neighbours, method.xclp.reproducible) == ("psm", 64, 3, False)
    assert federation.agreed_method(table(seed=3, reproducible=True)).xclp.reproducible
    method = federation.agreed_method(train_table())
    assert (method.name, method.lr, method.epochs) == ("fedavg", 0.05, 1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(version="0.0.9"), "runs Grapevine 0.0.9"),
        (dict(settings=dict(secrecy="none")), "no setting 'secrecy'"),
        (dict(settings=dict(secure="rot13")), "rot13"),
        (dict(parties=["north"]), "at least two"),
        (dict(parties=["north", "north", "south"]), "two parties are called 'north'"),
        (dict(parties=["north", "../south"]), "cannot be the name"),
        (dict(name="a b"), "cannot be the name"),
        (dict(quorum=1), "quorum is 1"),
        (dict(quorum=4), "quorum is 4"),
        (dict(features=[]), "--schema FILE"),
        (dict(seed=3), "say --reproducible too"),
        (dict(reproducible=True), "say --seed N too"),
        (dict(job="guess"), "job 'guess'"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_they_are_made(tmp_path, change, sentence):
    with pytest.raises(Mistake, match=sentence):
        federation.make_federation(tmp_path / "new", table(**change))
    assert not (tmp_path / "new" / "federation.toml").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(method="evil.py:Class"), "is a file"),
        (dict(method="server-only", settings={}), "cannot use labels at the parties"),
        (dict(method="supervised", settings={}), "cannot use labels at the parties"),
        (dict(settings=dict(speed="3")), "no field 'speed'"),
        (dict(classes=[]), "--classes"),
        (dict(model="cnn"), "cnn needs images"),
        (dict(per_round=1), "per-round 1"),
    ],
)
def test_training_settings_that_cannot_work_are_refused_when_they_are_made(tmp_path, change, sentence):
    with pytest.raises(Mistake, match=sentence):
        federation.make_federation(tmp_path / "new", {**train_table(), **change})


def test_a_host_without_a_seed_draws_one_and_keeps_it(tmp_path):
    federation.make_federation(tmp_path / "a", table())
    federation.make_federation(tmp_path / "b", table())
    first = federation.load_host(tmp_path / "a").seed
    assert first == federation.load_host(tmp_path / "a").seed != federation.load_host(tmp_path / "b").seed
    assert stat.S_IMODE((tmp_path / "a" / "seed.txt").stat().st_mode) == 0o600


# ---------------------------------------------------------------- a party's rows and folder


def test_columns_are_brought_into_the_agreed_order(tmp_path):
    who = party("north")
    path = write_party_csv(tmp_path / "n.csv", who, ["d", "b", "a", "c"])
    read = federation.read_rows(path, "kind", None, table(), "north")
    np.testing.assert_array_equal(read.x, who.x)
    assert (read.labels, read.ids) == (who.labels, who.ids)


@pytest.mark.parametrize(
    ("columns", "label", "change", "sentence"),
    [
        (["a", "b", "c"], "kind", {}, "no column 'd'"),
        (COLUMNS, "sort", {}, "no column 'sort'"),
        (COLUMNS, None, {}, "--label COL"),
        (COLUMNS, "kind", dict(classes=["0", "1"]), "class '2'.*knows 0, 1"),
        (COLUMNS, "kind", dict(features=["id", "a"]), "'id'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, columns, label, change, sentence):
    path = write_party_csv(tmp_path / "n.csv", party("north"), columns)
    with pytest.raises(Mistake, match=sentence):
        federation.read_rows(path, label, "id", table(**change), "north")


def make_party(folder: Path, who: Party, agreed_table: dict, identities: dict[str, Identity]) -> None:
    folder.mkdir(parents=True)
    about = dict(name=who.name, agreed=federation.agreed(agreed_table), hash=federation.settings_hash(agreed_table), seed=7)
    federation.write_toml(folder / "party.toml", about)
    federation.write_toml(folder / "pinned.toml", {n: dict(identity=i.public.hex()) for n, i in identities.items()})
    federation.save_rows(folder, who)
    identities[who.name].save(folder / "identity.pem")


def test_a_party_is_read_back_from_its_folder(tmp_path):
    who, identities = party("north"), {name: Identity.generate() for name in ("north", "south")}
    make_party(tmp_path / "p", who, table(), identities)
    setup = federation.load_party(tmp_path / "p")
    assert (setup.name, setup.seed, setup.hash) == ("north", 7, federation.settings_hash(table()))
    assert setup.pinned == {name: identity.public for name, identity in identities.items()}
    assert setup.identity.public == identities["north"].public
    assert setup.models is None and setup.method == federation.agreed_method(table())
    assert len(setup.data.labelled) == sum(label is not None for label in who.labels)
    assert stat.S_IMODE((tmp_path / "p" / "rows.npy").stat().st_mode) == 0o600


def test_a_party_whose_agreed_settings_were_changed_does_nothing(tmp_path):
    make_party(tmp_path / "p", party("north"), table(), {"north": Identity.generate()})
    about = federation.read_toml(tmp_path / "p" / "party.toml")
    about["agreed"]["settings"]["secure"] = "plain"
    federation.write_toml(tmp_path / "p" / "party.toml", about)
    with pytest.raises(Mistake, match="changed after joining"):
        federation.load_party(tmp_path / "p")


def test_a_training_party_holds_out_a_fifth_of_each_class(tmp_path):
    n = 90
    who = replace(party("north", n=n), labels=[str(i % 3) if i < 60 else None for i in range(n)])
    data = federation.client_data(who, train_table())
    np.testing.assert_array_equal(np.bincount(data.test.y), [4, 4, 4])  # a fifth of twenty
    np.testing.assert_array_equal(np.bincount(data.labelled.y), [16, 16, 16])
    assert len(data.unlabelled) == 30
    parts = [data.test.index, data.labelled.index, data.unlabelled.index]
    assert sorted(np.concatenate(parts)) == list(range(n))
    again = federation.client_data(who, train_table())
    np.testing.assert_array_equal(again.test.index, data.test.index)
    # Standardised by this party's own moments, whichever rows they come from.
    x = np.concatenate([rows.inputs().numpy() for rows in (data.test, data.labelled, data.unlabelled)])
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-5)


# ---------------------------------------------------------------- pins


def test_a_changed_key_stops_with_both_fingerprints(tmp_path):
    before, now = Identity.generate().public, Identity.generate().public
    federation.write_toml(tmp_path / "pinned.toml", {"south": dict(identity=before.hex())})
    with pytest.raises(Mistake, match="key of south has changed") as told:
        joining.check_pins({"south": now.hex()}, None, tmp_path / "pinned.toml")
    assert fingerprint(before) in str(told.value) and fingerprint(now) in str(told.value)


def test_a_pinned_party_that_is_not_there_is_no_harm(tmp_path):
    key = Identity.generate().public.hex()
    federation.write_toml(tmp_path / "pinned.toml", {"south": dict(identity=key)})
    assert joining.check_pins({"north": "00"}, tmp_path / "pinned.toml", tmp_path / "nowhere.toml") == {"south": key}


# ---------------------------------------------------------------- enrolment over TLS


class Host:
    """A registry behind a gate on loopback."""

    def __init__(self, folder: Path, superlink: int | None = None):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        federation.make_federation(folder, table(port=port))
        credentials.make_certificates(folder, "trial", ["127.0.0.1"])
        self.folder, self.port, self.said = folder, port, []
        self.registry = enrol.Registry(folder)
        self.gate = gate.Gate(("127.0.0.1", port), self.registry, superlink, self.said.append).start()

    def link(self, name: str, token: credentials.Token | None = None) -> enrol.HostLink:
        return enrol.HostLink(token or self.registry.invite(name)).check_ca()

    def enrol(self, name: str, folder: Path, link: enrol.HostLink | None = None) -> enrol.HostLink:
        folder.mkdir(exist_ok=True)
        link = link or self.link(name)
        if not (folder / "identity.pem").exists():
            Identity.generate().save(folder / "identity.pem")
        identity = Identity.load(folder / "identity.pem").public.hex()
        link.call("enrol", node_key=credentials.make_node_key(folder), identity=identity)
        return link

    def raw(self, data: bytes, seconds: float = 10) -> bytes:
        """Bytes to the gate over TLS, and all that comes back."""
        context = ssl.create_default_context(cadata=self.gate.ca.decode())
        with (
            socket.create_connection(("127.0.0.1", self.port), seconds) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(data)
            out = b""
            while piece := sock.recv(65536):
                out += piece
            return out


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path / "host")
    yield made
    made.gate.stop()


def test_a_party_enrols_and_the_host_knows_its_public_keys_alone(host, tmp_path):
    link = host.link("north")
    told = link.call("settings")
    assert told["hash"] == federation.settings_hash(table()) == federation.settings_hash(told["agreed"])
    assert told["parties"] == ["east", "north", "south"]
    host.enrol("north", tmp_path / "n", link)
    entry = host.registry.roster()["north"]
    public = Identity.load(tmp_path / "n" / "identity.pem").public
    assert entry == dict(
        node_key=(tmp_path / "n" / "node.pub").read_text().strip(), identity=public.hex(), fingerprint=fingerprint(public)
    )


def test_looking_does_not_use_the_invitation_up(host, tmp_path):
    token = host.registry.invite("north")
    for _ in range(3):
        joining.look(token)
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
        with pytest.raises(Mistake, match="no invitation of 'north' that holds"):
            host.link("north", token).call(what)
    with pytest.raises(Mistake, match="no invitation of 'north' that holds"):
        host.enrol("north", tmp_path / "n", host.link("north", token))


def test_another_partys_invitation_is_refused(host):
    token = replace(host.registry.invite("north"), name="south")
    host.registry.invite("south")
    with pytest.raises(Mistake, match="no invitation of 'south'"):
        host.link("south", token).call("settings")


def test_a_newer_invitation_takes_the_place_of_an_older(host):
    old, new = host.registry.invite("north"), host.registry.invite("north")
    host.link("north", new).call("settings")
    with pytest.raises(Mistake, match="no invitation"):
        host.link("north", old).call("settings")


def test_an_old_invitation_is_refused(host, monkeypatch):
    monkeypatch.setattr(enrol, "TOKEN_SECONDS", -1)
    with pytest.raises(Mistake, match="older than"):
        host.link("north").call("settings")


def test_another_certificate_authority_is_noticed_before_anything_is_sent(host, tmp_path):
    credentials.make_certificates(tmp_path, "trial", ["127.0.0.1"])
    other = credentials.ca_fingerprint((tmp_path / "ca.crt").read_bytes())
    token = replace(host.registry.invite("north"), ca=other)
    with pytest.raises(Mistake, match="somebody may be in between"):
        enrol.HostLink(token).check_ca()


def test_a_man_in_between_who_shows_the_right_authority_cannot_go_on(host, tmp_path):
    """The authority's certificate is public: whoever shows it must still have a server certificate that it signed."""
    token = host.registry.invite("north")
    fake = Host(tmp_path / "fake")
    try:
        fake.gate.ca = host.gate.ca
        link = enrol.HostLink(replace(token, port=fake.port)).check_ca()
        with pytest.raises(Mistake, match="cannot prove who it is"):
            link.call("settings")
    finally:
        fake.gate.stop()


def test_a_certificate_for_another_address_is_refused(host):
    link = host.link("north")
    elsewhere = enrol.HostLink(replace(link.token, address="127.0.0.2"), link.ca)
    with pytest.raises(Mistake, match="cannot prove who it is|cannot be reached"):
        elsewhere.call("settings")


def test_a_key_that_another_party_has_is_refused(host, tmp_path):
    host.enrol("north", tmp_path / "n")
    with pytest.raises(Mistake, match="'north' has this key already"):
        host.enrol("south", tmp_path / "n")
    assert list(host.registry.roster()) == ["north"]


def test_what_is_no_key_is_refused(host, tmp_path):
    good = credentials.make_node_key(tmp_path)
    link = host.link("north")
    for node_key, identity in ((good, "00"), (good, "zz" * 32), ("ssh-rsa AAAA", "00" * 32), (7, "00" * 32), (good, "00" * 4000)):
        with pytest.raises(Mistake):
            link.call("enrol", node_key=node_key, identity=identity)
    assert host.registry.roster() == {}


def test_what_a_party_says_cannot_write_to_the_hosts_terminal(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    with pytest.raises(Mistake, match="'state' is one of"):
        link.hear("[red]here")
    link.hear("refused", sentence="a\x1b[2Jb\nc")
    assert host.registry.here["north"].sentence == "a?[2Jb?c"


def test_an_invitation_cannot_name_a_folder_elsewhere():
    for change in (dict(name="../../x"), dict(federation="..")):
        with pytest.raises(Mistake, match="cannot be the name"):
            joining.default_home(replace(TOKEN, **change))


@pytest.mark.parametrize("drop", ["job", "settings", "quorum", "features"])
def test_settings_that_are_not_whole_are_refused(host, drop):
    token = host.registry.invite("north")
    made = federation.read_toml(host.folder / "federation.toml")
    federation.write_toml(host.folder / "federation.toml", {key: value for key, value in made.items() if key != drop})
    with pytest.raises(Mistake, match="not whole"):
        joining.look(token)


def test_nobody_is_here_before_he_has_joined(host):
    with pytest.raises(Mistake, match="has not joined yet"):
        host.link("north").hear("here")


def test_two_processes_of_one_name_are_not_both_here(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    link.hear("here")
    twin = replace(link, process="another")
    with pytest.raises(Mistake, match="here already from another process"):
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
    with pytest.raises(Mistake, match="has begun without 'east'"):
        host.enrol("east", tmp_path / "east")
    assert federation.load_host(host.folder).keys.keys() == {"north", "south"}


def test_adding_a_party_changes_nobody_elses_keys_nor_the_agreed_hash(host, tmp_path):
    host.enrol("north", tmp_path / "n")
    roster, hash = host.registry.roster(), federation.settings_hash(host.registry.table)
    host.enrol("west", tmp_path / "w")
    assert host.registry.roster()["north"] == roster["north"]
    assert "west" in host.registry.table["parties"] and federation.settings_hash(host.registry.table) == hash


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
    slow = context.wrap_socket(socket.create_connection(("127.0.0.1", host.port), 10), server_hostname="127.0.0.1")
    began = time.monotonic()
    with slow, pytest.raises(OSError):
        for letter in b"POST /v1/grapevine/enrol HTTP/1.1\r\ncontent-length: 100\r\n\r\n" * 5:
            host.link("north").call("settings")  # meanwhile others are served
            slow.sendall(bytes([letter]))
            time.sleep(0.1)
    assert time.monotonic() - began < 8


def test_a_connection_that_never_shakes_hands_holds_up_nobody(host):
    with socket.create_connection(("127.0.0.1", host.port), 10):
        began = time.monotonic()
        host.link("north").call("settings")
        assert time.monotonic() - began < 5


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


def post(host: Host, path: str, body: bytes = b"hello") -> tuple[int, dict, bytes]:
    context = ssl.create_default_context(cadata=host.gate.ca.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", host.port, timeout=10, context=context)
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
        assert enrol.check_clock(1000.0, 1000.0 + offset, 1000.0 + offset) == pytest.approx(offset)
    else:
        with pytest.raises(Mistake, match=f"{abs(offset)} s {'ahead of' if offset > 0 else 'behind'}"):
            enrol.check_clock(1000.0, 1000.0 + offset, 1000.0 + offset)


# ---------------------------------------------------------------- joining as far as it goes without processes


def talk(answer: bool = True) -> tuple[joining.Talk, list[str]]:
    said: list[str] = []
    return joining.Talk(
        said.append, lambda question: said.append(question) or answer, lambda *shown: said.append("shown"), said.append
    ), said


def test_a_party_that_does_not_agree_sends_nothing(host, tmp_path):
    path = write_party_csv(tmp_path / "n.csv", party("north"))
    speak, said = talk(answer=False)
    with pytest.raises(Mistake, match="nothing was sent"):
        joining.join(host.registry.invite("north").text(), str(path), "kind", None, tmp_path / "home", None, speak)
    assert said[0] == "shown" and host.registry.roster() == {}
    assert not (tmp_path / "home" / "identity.pem").exists()


def test_a_table_that_does_not_fit_does_not_use_the_invitation_up(host, tmp_path):
    token = host.registry.invite("north")
    path = write_party_csv(tmp_path / "n.csv", party("north"), ["a", "b"])
    with pytest.raises(Mistake, match="no column 'c'"):
        joining.join(token.text(), str(path), "kind", None, tmp_path / "home", None, talk()[0])
    host.enrol("north", tmp_path / "n", host.link("north", token))


def test_a_host_that_is_not_there_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "PATIENCE_SECONDS", 0)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        token = replace(TOKEN, address="127.0.0.1", port=sock.getsockname()[1])
        with pytest.raises(Mistake, match="is `grapevine host` running there"):
            joining.join(token.text(), "x.csv", "kind", None, tmp_path / "home", None, talk()[0])
    with pytest.raises(Mistake, match="not known here"):
        joining.look(replace(TOKEN, address="no-such-host.invalid"))


def test_a_model_is_fetched_when_the_job_is_done_and_the_host_waits_for_it(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    (host.folder / "results").mkdir()
    (host.folder / "results" / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    with pytest.raises(Mistake, match="no model yet"):
        link.fetch_model()
    host.registry.turn("done")
    assert link.fetch_model() == bytes(range(256)) * 1000
    assert host.registry.present() == ["north"]
    link.hear("left")
    assert host.registry.present() == []


def test_a_party_whose_host_has_gone_takes_the_labels_that_are_there(tmp_path, monkeypatch):
    server, setup, simulation = job(tmp_path / "h", table())
    federation.run_job(server, setup, tmp_path / "h")
    home, who = tmp_path / "home", party("east")
    make_party(home, who, table(), {"east": Identity.generate()})
    credentials.make_certificates(home, "trial", ["127.0.0.1"])
    store = FileStore(home / "memory")
    manifest = {name: store.put(simulation.store.get(hash)) for name, hash in simulation.manifests["east"].items()}
    (home / "memory.json").write_text(json.dumps(dict(now=manifest)))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # nobody listens
        nobody = replace(TOKEN, address="127.0.0.1", port=sock.getsockname()[1])
        about = dict(federation.read_toml(home / "party.toml"), host="127.0.0.1:1", token=nobody.text())
        speak, said = talk()
        monkeypatch.setattr(joining, "DONE_SECONDS", 0)
        out = joining._Stay(home, about, speak, None, tmp_path / "out", 0.0).run()
    assert any("labels are here already" in sentence for sentence in said)
    lines = (out / "labels.csv").read_text().splitlines()
    assert len(lines) == 31 and [line.split(",")[0] for line in lines[1:]] == who.ids
    with pytest.raises(Mistake, match="is finished"):
        joining.join(None, None, None, None, home, None, speak)


def stay(home: Path, answer: bool) -> joining._Stay:
    """A party that has answered some steps of a label job."""
    (home / "memory").mkdir(exist_ok=True)
    (home / "memory.json").write_text(json.dumps(dict(now=dict(classes="00"))))
    about = dict(federation.read_toml(home / "party.toml"), host="127.0.0.1:1", token=TOKEN.text())
    return joining._Stay(home, about, talk(answer)[0], None, home / "out", 0.0)


def test_a_label_job_begins_anew_only_if_the_party_agrees_and_not_for_ever(tmp_path):
    make_party(tmp_path / "p", party("north"), table(), {"north": Identity.generate()})
    credentials.make_certificates(tmp_path / "p", "trial", ["127.0.0.1"])
    with pytest.raises(Mistake, match="you did not agree"):
        stay(tmp_path / "p", False)._begin_again()
    assert (tmp_path / "p" / "memory.json").exists()
    for _ in range(joining.BEGINNINGS - 1):
        stay(tmp_path / "p", True)._begin_again()
        assert not (tmp_path / "p" / "memory.json").exists() and not (tmp_path / "p" / "memory").exists()
    with pytest.raises(Mistake, match="3 times and never ended it"):
        stay(tmp_path / "p", True)._begin_again()


def test_the_roster_digest_depends_on_names_and_keys():
    one = dict(a="00", b="11")
    assert roster_digest(one) == roster_digest(dict(b="11", a="00"))
    assert len({roster_digest(x) for x in (one, dict(a="00"), dict(a="11", b="00"), dict(a="00", c="11"))}) == 4


# ---------------------------------------------------------------- the host's program, over the in-process transport


def job(
    folder: Path, made: dict, faults: tuple[Fault, ...] = (), quorum: int = 2
) -> tuple[Server, federation.HostSetup, Simulation]:
    if not (folder / "federation.toml").exists():
        federation.make_federation(folder, dict(made, quorum=quorum))
    setup = federation.load_host(folder)
    data = {name: federation.client_data(party(name, i), setup.table) for i, name in enumerate(setup.parties)}
    simulation = Simulation(setup.method, data, setup.models, setup.seed, "strict", faults=faults)
    server = Server(setup.method, list(data), simulation, setup.models, setup.classes, setup.seed, setup.per_round, setup.rounds)
    return server, setup, simulation


def test_the_label_job_leaves_what_the_host_may_know(tmp_path):
    server, setup, _ = job(tmp_path / "h", table())
    result = federation.run_job(server, setup, tmp_path / "h")
    assert result == json.loads((tmp_path / "h" / "results" / "result.json").read_text())
    assert result["labelled"] == ["east", "north", "south"] and result["lost"] == []
    assert result["expected"]["n"] > 0 and result["data"]["classes"] == ["0", "1", "2"]
    steps = [json.loads(line) for line in (tmp_path / "h" / "progress.jsonl").read_text().splitlines()]
    asked = [line["step"] for line in steps if "answered" in line]
    assert asked == ["keys", "meet", "share", "xclp.spread.contribute", "receive"]
    text = (tmp_path / "h" / "results" / "result.json").read_text()
    assert not any(name in text for name in ("r0", "r1"))  # no row of anybody


@pytest.mark.parametrize("step", ["keys", "meet", "share", "xclp.spread.contribute", "receive"])
def test_a_party_lost_in_a_step_is_left_out_if_the_quorum_holds(tmp_path, step):
    faults = (Fault("south", step, forever=True),)
    server, setup, _ = job(tmp_path / "h", table(), faults)
    result = federation.run_job(server, setup, tmp_path / "h")
    assert result["labelled"] == ["east", "north"] and result["lost"] == ["south"]


@pytest.mark.parametrize("step", ["keys", "meet", "share", "xclp.spread.contribute", "receive"])
def test_below_the_quorum_the_job_says_who_is_missing(tmp_path, step):
    server, setup, _ = job(tmp_path / "h", table(), (Fault("south", step, forever=True),), quorum=3)
    with pytest.raises(Mistake, match=f"2 of 3 parties still answer after step {step}.*quorum is 3: south must"):
        federation.run_job(server, setup, tmp_path / "h")
    told = json.loads((tmp_path / "h" / "results" / "failed.json").read_text())["sentence"]
    assert "south" in told and not (tmp_path / "h" / "results" / "result.json").exists()


def test_training_learns_and_saves_a_model_that_predicts(tmp_path):
    server, setup, _ = job(tmp_path / "h", train_table(rounds=12, settings=dict(lr="0.5", epochs="5")))
    result = federation.run_job(server, setup, tmp_path / "h")
    assert result["accuracy"] > 0.9 and result["rounds"] == 12
    assert [row["id"] for row in result["per_client"]] == ["east", "north", "south"]
    history = [json.loads(line) for line in (tmp_path / "h" / "results" / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in history] == list(range(1, 13))
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes((tmp_path / "h" / "results" / "model.safetensors").read_bytes())
    who = party("north", 1, n=90)
    joining.adopt_model(out / "model.safetensors", setup.table, who.x)
    from grapevine.run.model import Model

    right = np.mean([guess == str(i % 3) for i, guess in enumerate(Model.load(out).predict(who.x.astype(np.float32)))])
    assert right > 0.9


def test_a_model_of_another_kind_is_not_adopted(tmp_path):
    server, setup, _ = job(tmp_path / "h", train_table(rounds=1))
    federation.run_job(server, setup, tmp_path / "h")
    path = tmp_path / "h" / "results" / "model.safetensors"
    good = path.read_bytes()
    for wrong in (dict(setup.table, method="fedprox"), dict(setup.table, classes=["0", "1"]), dict(setup.table, model="mlp")):
        path.write_bytes(good)
        with pytest.raises(Mistake, match="not the agreed model"):
            joining.adopt_model(path, wrong, party("north").x)
        assert not path.exists()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(Mistake, match="not the agreed model"):
        joining.adopt_model(path, setup.table, party("north").x)


def final_state(folder: Path) -> bytes:
    manifest = json.loads((folder / "checkpoint" / "manifest.json").read_text())
    return (folder / "checkpoint" / "objects" / manifest["state"]).read_bytes()


def test_a_training_job_that_was_broken_off_ends_with_the_same_bits(tmp_path):
    made = train_table(seed=11, reproducible=True, rounds=5)
    server, setup, _ = job(tmp_path / "whole", made)
    whole = federation.run_job(server, setup, tmp_path / "whole")

    class Killed(Exception):
        pass

    server, setup, simulation = job(tmp_path / "broken", made)
    exchange, count = simulation.exchange, [0]

    def until(step, requests, round):
        count[0] += 1
        if count[0] == 6:  # in the middle of round 3
            raise Killed
        return exchange(step, requests, round)

    simulation.exchange = until
    with pytest.raises(Killed):
        federation.run_job(server, setup, tmp_path / "broken")
    server, setup, _ = job(tmp_path / "broken", made)
    resumed = federation.run_job(server, setup, tmp_path / "broken")
    differ = {key for key in whole if whole[key] != resumed[key]}
    assert differ <= {"seconds"}
    assert final_state(tmp_path / "whole") == final_state(tmp_path / "broken")
    for name in ("history.jsonl", "messages.jsonl"):
        assert (tmp_path / "whole" / "results" / name).read_bytes() == (tmp_path / "broken" / "results" / name).read_bytes()


def test_a_party_that_sends_nonsense_as_its_result_is_left_out_of_the_accuracy(tmp_path):
    server, setup, simulation = job(tmp_path / "h", train_table(rounds=1))
    exchange = simulation.exchange

    def lie(step, requests, round):
        replies = exchange(step, requests, round)
        if step == "evaluate":
            replies["south"] = dict(confusion=wire.decode(wire.encode(dict(x=np.ones((9, 9)))))["x"])
        return replies

    simulation.exchange = lie
    result = federation.run_job(server, setup, tmp_path / "h")
    assert [row["id"] for row in result["per_client"]] == ["east", "north"]


# ---------------------------------------------------------------- doctor and commands


def findings(*args, **more) -> dict:
    return {finding.what: finding for finding in examine(*args, **more)}


def test_the_doctor_finds_all_in_order(host, tmp_path):
    path = write_party_csv(tmp_path / "n.csv", party("north"))
    found = findings(host.registry.invite("north").text(), str(path), "kind", home=tmp_path)
    wrong = {what: finding.sentence for what, finding in found.items() if finding.good is not True}
    assert not wrong
    assert list(found) == ["Python", "packages", "Flower", "ports", "memory", "disk", "DNS", "reachable", "TLS", "invitation",
                           "clock", "version", "data"]  # fmt: skip
    assert "30 rows, 4 features" in found["data"].sentence
    assert host.registry.roster() == {}


def test_the_doctor_names_what_is_wrong_and_goes_on_where_it_can(host, tmp_path):
    token = host.registry.invite("north")
    path = write_party_csv(tmp_path / "n.csv", party("north"), ["a", "b"])
    assert "no column 'c'" in findings(token.text(), str(path), "kind")["data"].sentence
    found = findings(replace(token, address="no-such-host.invalid").text())
    assert found["DNS"].good is False and found["TLS"].good is None
    found = findings(replace(token, ca="00" * 32).text())
    assert found["reachable"].good and "in between" in found["TLS"].sentence
    found = findings(replace(token, secret=bytes(16)).text())
    assert found["TLS"].good and "no invitation" in found["invitation"].sentence
    assert findings("nonsense")["invitation"].good is False


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_the_doctor_command_exits_2_when_something_is_wrong(tmp_path):
    assert run("doctor", "--data", str(tmp_path / "missing.csv"), "--label", "kind").exit_code == 2
    done = run("doctor")
    assert done.exit_code == 0 and done.output.count("ok ") == 7


HOST = ["--parties", "north,south,east", "--features", "a,b,c,d", "--address", "127.0.0.1"]


def test_the_host_command_makes_a_folder_and_prints_invitations(tmp_path):
    folder = str(tmp_path / "trial")
    done = run("host", folder, *HOST, "--secure", "psm", "--port", "4711", "--invite", "north", "--invite", "east")
    assert done.exit_code == 0, done.output
    tokens = [credentials.read_token(line.split()[2]) for line in done.output.splitlines() if line.startswith("grapevine join")]
    assert [token.name for token in tokens] == ["north", "east"]
    ca = credentials.ca_fingerprint((tmp_path / "trial" / "ca.crt").read_bytes())
    assert {(t.address, t.port, t.federation, t.ca) for t in tokens} == {("127.0.0.1", 4711, "trial", ca)}
    made = federation.read_toml(tmp_path / "trial" / "federation.toml")
    assert (made["settings"]["secure"], made["quorum"], made["job"]) == ("psm", 2, "label")
    assert run("host", folder, "--invite", "south").exit_code == 0


def test_the_host_takes_its_columns_from_a_table(tmp_path):
    path = write_party_csv(tmp_path / "n.csv", party("north"))
    words = ["--parties", "north,south", "--schema", str(path), "--label", "kind", "--address", "127.0.0.1", "--invite", "north"]
    assert run("host", str(tmp_path / "t"), *words).exit_code == 0
    assert federation.read_toml(tmp_path / "t" / "federation.toml")["features"] == COLUMNS


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "holds no federation"),
        ([*HOST, "--seed", "3"], "say --reproducible too"),
        ([*HOST, "--rounds", "3"], "--rounds is not for --job label"),
        ([*HOST, "--job", "train", "--bits", "64"], "--bits is not for --job train"),
        ([*HOST, "--scale", "own"], "--scale own is not for --job label"),
        ([*HOST, "--parties", "north,north"], "two parties are called"),
        (["--parties", "north,south"], "--schema FILE"),
    ],
)
def test_the_host_refuses_what_cannot_work(tmp_path, words, sentence):
    done = run("host", str(tmp_path / "t"), *words)
    assert done.exit_code == 2 and sentence in done.output
    assert not (tmp_path / "t" / "federation.toml").exists()


def test_an_existing_federation_is_not_made_again(tmp_path):
    assert run("host", str(tmp_path / "t"), *HOST, "--invite", "north").exit_code == 0
    before = (tmp_path / "t" / "federation.toml").read_bytes()
    assert run("host", str(tmp_path / "t"), *HOST, "--bits", "64").exit_code == 2
    assert (tmp_path / "t" / "federation.toml").read_bytes() == before
