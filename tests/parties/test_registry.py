"""Enrolment over TLS on loopback, the gate in front of the SuperLink, and clocks. No processes."""

from __future__ import annotations

import http.client
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from net import Desk
from trials import label_agreement

from grapevine.core.errors import Mistake
from grapevine.crypto.agreement import Identity, fingerprint
from grapevine.parties import files, keys, registry
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import load_host
from grapevine.parties.join import look
from grapevine.parties.registry import HostLink, Registry


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
    link.hear("refused", sentence="因" * 5000)  # a long reason is cut, not lost
    assert host.registry.here["north"].sentence == "因" * registry.SENTENCE


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


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize(("offset", "good"), [(0, True), (4, True), (8, False), (-200, True), (-400, False)])
def test_a_clock_that_flower_would_refuse_is_named(offset, good):
    if good:
        assert keys.check_clock(1000.0, 1000.0 + offset, 1000.0 + offset) == pytest.approx(offset)
    else:
        with pytest.raises(Mistake, match=f"{abs(offset)} s {'ahead of' if offset > 0 else 'behind'}"):
            keys.check_clock(1000.0, 1000.0 + offset, 1000.0 + offset)


def test_the_gate_holds_two_hundred_parties(tmp_path):
    """Each with a connection that it keeps, as its node has, and signs of life over another one, all at the same time."""
    names = tuple(f"p{i:03}" for i in range(200))
    desk = Desk(tmp_path / "host", agreed=label_agreement(parties=names, quorum=150))
    try:
        passes = {name: keys.new_secret() for name in names}
        books = {name: {"pass": keys.secret_hash(secret), "expires": int(time.time()) + 1000} for name, secret in passes.items()}
        files.write_toml(desk.folder / "invitations.toml", books)
        roster = {name: dict(identity=bytes(32).hex(), node_key="none", fingerprint=name) for name in names}
        files.write_toml(desk.folder / "roster.toml", roster)
        token = keys.Token("127.0.0.1", desk.port, "trial", names[0], keys.ca_fingerprint(desk.gate.ca), passes[names[0]])
        links = {name: HostLink(replace(token, name=name, secret=passes[name]), desk.gate.ca) for name in names}
        links[names[0]].hear("here")  # from then on this address is known
        context = ssl.create_default_context(cadata=desk.gate.ca.decode())
        kept = [http.client.HTTPSConnection("127.0.0.1", desk.port, timeout=60, context=context) for _ in names]

        def take_part(name: str, connection: http.client.HTTPSConnection) -> list[int]:
            connection.request("GET", "/v1/grapevine/ca")
            connection.getresponse().read()
            return [len(links[name].hear("at work", "x" * 64)["here"]) for _ in range(3)]

        with ThreadPoolExecutor(40) as pool:
            seen = list(pool.map(take_part, names, kept))
        assert desk.registry.present() == sorted(names) and max(map(max, seen)) == 200
        assert sum(desk.gate._open.values()) >= 200
        for connection in kept:
            connection.request("GET", "/v1/grapevine/ca")  # none was closed
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        desk.gate.stop()
