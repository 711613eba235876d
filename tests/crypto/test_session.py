"""A client's side of an agreement: one seed for all, each step once, masks once, and signatures for one place only."""

import os

import numpy as np
import pytest
import torch

from grapevine.core import Client, Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory, RamStore
from grapevine.core.wire import decode, encode
from grapevine.crypto import session
from grapevine.crypto.agreement import AgreementError, Identity
from grapevine.crypto.stream import context, hkdf

NAMES = ("a", "b", "c")


def clients(seed=5, names=NAMES):
    """Clients with pinned identities, each with a memory of its own."""
    none = Rows(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    identities = {name: Identity.generate() for name in names}
    pinned = {name: identity.public for name, identity in identities.items()}
    data = ClientData(none, none, none, ())
    return {name: Client(name, data, Memory(RamStore()), None, seed, identities[name], pinned) for name in names}


def agree(parties, name="session"):
    """Exchanges 1 to 3. Returns the letters as the server saw them."""
    offers = {who: session.offer(client, name) for who, client in parties.items()}
    letters = {who: session.meet(client, offers) for who, client in parties.items()}
    for who, client in parties.items():
        session.learn_seed(client, {other: letters[other][who] for other in parties if other != who})
    return letters


@pytest.fixture
def agreed():
    parties = clients()
    agree(parties)
    return parties


def memories(parties):
    return {name: dict(client.memory) for name, client in parties.items()}


# ---------------------------------------------------------------- the seed


def test_all_learn_one_seed_that_the_letters_do_not_show():
    parties = clients()
    letters = agree(parties)
    seeds = {client.memory["seed"] for client in parties.values()}
    assert len(seeds) == 1 and len(next(iter(seeds))) == 32
    sent = b"".join(letter for own in letters.values() for letter in own.values())
    assert next(iter(seeds)) not in sent


def test_a_contribution_to_the_seed_is_drawn_and_follows_from_nothing_that_the_server_knows(monkeypatch):
    """One made from the session's name passed every test; the server knows the name, and would know the seed."""
    drawn = []

    def noted(n):
        drawn.append(real(n))
        return drawn[-1]

    real = os.urandom
    monkeypatch.setattr(os, "urandom", noted)
    contributions = []
    for _ in range(2):  # in the same session, with the same names
        parties = clients()
        offers = {who: session.offer(client, "session") for who, client in parties.items()}
        for client in parties.values():
            session.meet(client, offers)
            contributions.append(client.memory["contribution"])
    assert len(set(contributions)) == 6 and set(contributions) <= set(drawn)


def test_another_agreement_has_another_seed():
    parties = clients()
    agree(parties, "one")
    first = parties["a"].memory["seed"]
    agree(parties, "two")
    assert parties["a"].memory["seed"] != first
    assert len({client.memory["seed"] for client in parties.values()}) == 1


def test_a_party_that_drops_out_is_left_out_of_the_seed():
    parties = clients()
    offers = {who: session.offer(client, "s") for who, client in parties.items()}
    letters = {who: session.meet(parties[who], offers) for who in ("a", "b")}
    for who, other in (("a", "b"), ("b", "a")):
        session.learn_seed(parties[who], {other: letters[other][who]})
    assert parties["a"].memory["seed"] == parties["b"].memory["seed"]
    assert "seed" not in parties["c"].memory


# ---------------------------------------------------------------- once


def test_an_offer_is_met_once():
    parties = clients()
    offers = {who: session.offer(client, "s") for who, client in parties.items()}
    session.meet(parties["a"], offers)
    before = memories(parties)
    with pytest.raises(AgreementError, match="'a' has not offered a key that is still to be met"):
        session.meet(parties["a"], offers)
    assert memories(parties) == before


def test_a_seed_is_opened_once():
    parties = clients()
    letters = agree(parties)
    with pytest.raises(AgreementError, match="a step is asked once"):
        session.learn_seed(parties["a"], {other: letters[other]["a"] for other in ("b", "c")})


def test_new_keys_under_an_old_name_are_refused(agreed):
    with pytest.raises(AgreementError, match="session 'session' before"):
        session.offer(agreed["a"], "session")
    session.offer(agreed["a"], "another")


def test_nothing_is_signed_or_masked_without_an_agreement():
    client = clients()["a"]
    with pytest.raises(AgreementError, match="'a' has not agreed on keys"):
        session.begin(client, "rows", 0, 0, NAMES)
    with pytest.raises(AgreementError, match="'a' has not agreed on keys"):
        session.sign(client, "answer", {}, "b")


def test_forgotten_secrets_are_gone(agreed):
    agreed["a"].memory["result"] = 1
    session.forget(agreed["a"])
    assert dict(agreed["a"].memory) == dict(result=1)
    session.forget(agreed["a"])
    with pytest.raises(AgreementError, match="or has finished with them"):
        session.agreement(agreed["a"])


# ---------------------------------------------------------------- attempts


def test_an_attempt_is_begun_once_and_finished_once(agreed):
    client = agreed["a"]
    first = session.begin(client, "rows", 0, 0, NAMES)
    second = session.begin(client, "rows", 0, 1, ("a", "b"))
    assert first.context("mask") != second.context("mask")
    for attempt in (0, 1):
        with pytest.raises(AgreementError, match="masks are used once"):
            session.begin(client, "rows", 0, attempt, NAMES)
    with pytest.raises(AgreementError, match="is not open"):
        session.finish(client, "rows", 0, 0, NAMES)
    assert session.finish(client, "rows", 0, 1, ("a", "b")) == second
    for refused in (session.finish, session.begin):
        with pytest.raises(AgreementError):
            refused(client, "rows", 0, 1, ("a", "b"))
    with pytest.raises(AgreementError, match="finished"):
        session.begin(client, "rows", 0, 2, ("a", "b"))
    session.begin(client, "rows", 1, 0, NAMES)


def test_steps_have_attempts_of_their_own(agreed):
    session.begin(agreed["a"], "rows", 0, 3, NAMES)
    session.begin(agreed["a"], "hits", 0, 0, NAMES)


def test_attempts_live_in_the_memory_alone(agreed):
    """A fresh client over the same memory, as after every message on a network, knows what was begun."""
    old = agreed["a"]
    session.begin(old, "rows", 0, 0, NAMES)
    fresh = Client("a", old.data, Memory(old.memory._store, old.memory.manifest), None, 5, old.identity, old.pinned)
    with pytest.raises(AgreementError, match="masks are used once"):
        session.begin(fresh, "rows", 0, 0, NAMES)


def test_only_those_who_agreed_take_part(agreed):
    for parties in (("a", "x"), ("b", "c")):
        with pytest.raises(AgreementError, match="those who agreed are a, b, c"):
            session.begin(agreed["a"], "rows", 0, 0, parties)


# ---------------------------------------------------------------- the hash secret


def test_hyperplanes_come_from_the_clients_seed(agreed):
    secrets = {session.hash_secret(client, reproducible=False) for client in agreed.values()}
    assert secrets == {(agreed["a"].memory["seed"], context("hyperplanes", session="session"))}


@pytest.mark.parametrize("seed", [0, 5, -3, 2**63 - 1, -(2**63)])
def test_reproducible_hyperplanes_come_from_the_public_seed(seed):
    runs = []
    for _ in range(2):
        parties = clients(seed)
        agree(parties)
        runs.append({session.hash_secret(client, reproducible=True) for client in parties.values()})
    info = context("hyperplanes", session="session")
    assert runs[0] == runs[1] == {(hkdf(seed.to_bytes(16, "big", signed=True), info), info)}


def test_parties_with_seeds_of_their_own_take_the_secret_they_share():
    parties = clients(5)
    for i, client in enumerate(parties.values()):
        client.seed, client.common_seed = i, False
    agree(parties)
    found = {session.hash_secret(client, reproducible=True) for client in parties.values()}
    assert found == {(parties["a"].memory["seed"], context("hyperplanes", session="session"))}


# ---------------------------------------------------------------- signatures

MESSAGE = dict(values=np.arange(5, dtype=np.uint8), note="x")


def test_a_signature_holds_for_its_message(agreed):
    signature = session.sign(agreed["a"], "answer", MESSAGE, "b", 2)
    for same in (MESSAGE, decode(encode(MESSAGE)), dict(MESSAGE, values=np.arange(10, dtype=np.uint8)[::2] // 2)):
        session.require_signed(agreed["b"], "a", signature, "answer", same, "b", 2)


@pytest.mark.parametrize(
    "message", [{}, dict(a={}), dict(a=np.empty((0, 3))), dict(a=np.array(2.5), b=True, c={1: b"x"})], ids=str
)
def test_every_message_can_be_signed(agreed, message):
    signature = session.sign(agreed["a"], "answer", message)
    session.require_signed(agreed["b"], "a", signature, "answer", decode(encode(message)))
    with pytest.raises(AgreementError):
        session.require_signed(agreed["b"], "a", signature, "answer", dict(message, z=0))


@pytest.mark.parametrize(
    "place",
    [
        dict(sender="c"),
        dict(sender="x"),
        dict(kind="chunk"),
        dict(message=dict(MESSAGE, note="y")),
        dict(message=dict(MESSAGE, values=np.arange(5, dtype=np.int8))),
        dict(message=dict(MESSAGE, values=np.arange(5, dtype=np.uint8).reshape(1, 5))),
        dict(message=dict(MESSAGE, values=np.arange(6, dtype=np.uint8))),
        dict(message=dict(MESSAGE, more=1)),
        dict(message=dict(inner=MESSAGE)),
        dict(message=dict(values=MESSAGE["values"], notes="x")),
        dict(to="c"),
        dict(to=""),
        dict(round=3),
        dict(signature=bytes(64)),
        dict(signature=b""),
        dict(signature=None),
    ],
    ids=lambda place: next(iter(place)),
)
def test_a_signature_holds_in_its_place_alone(agreed, place):
    signature = session.sign(agreed["a"], "answer", MESSAGE, "b", 2)
    given = dict(sender="a", signature=signature, kind="answer", message=MESSAGE, to="b", round=2) | place
    with pytest.raises(AgreementError, match=f"the {given['kind']} in the name of '{given['sender']}' is not signed"):
        session.require_signed(agreed["b"], **given)


def test_a_signature_of_an_earlier_agreement_does_not_hold():
    """Not even in a session of the same name: reproducible runs have one name."""
    parties = clients()
    agree(parties)
    signature = session.sign(parties["a"], "answer", MESSAGE, "b")
    for client in parties.values():
        session.forget(client)
    agree(parties)
    with pytest.raises(AgreementError, match="not signed"):
        session.require_signed(parties["b"], "a", signature, "answer", MESSAGE, "b")


def test_what_is_signed_with_the_offer_can_be_checked_after_meeting():
    parties = clients()
    offers = {who: session.offer(client, "s") for who, client in parties.items()}
    signature = session.sign(parties["a"], "base offer", MESSAGE)
    session.meet(parties["b"], offers)
    session.require_signed(parties["b"], "a", signature, "base offer", MESSAGE)
    with pytest.raises(AgreementError, match="not signed"):
        session.require_signed(parties["b"], "c", signature, "base offer", MESSAGE)


# ---------------------------------------------------------------- the ledger


def with_rows(parties):
    """The same clients with two rows and a ledger each."""
    x = torch.arange(4.0).reshape(2, 2)
    for i, client in enumerate(parties.values()):
        rows = Rows(x + i, torch.arange(2), torch.zeros(2, dtype=torch.int64))
        client.data = ClientData(rows, Rows(x, rows.index[:0], rows.y[:0]), Rows(x, rows.index[:0], rows.y[:0]), ("0",))
        client.ledger = client.ledger or Ledger()
    return parties


def share(client, names=NAMES, attempt=0, **more):
    return session.masked(client, "moments", 0, attempt, names, np.arange(3), **more)


def test_every_sum_is_in_the_ledger_before_it_is_masked(agreed):
    a = with_rows(agreed)["a"]
    share(a)
    session.begin(a, "psm", 0, 0, NAMES, session.SEALED)
    session.masked(a, "counts", 0, 0, NAMES, np.empty(0))
    lines = [line for line in a.ledger.lines() if line["kind"] == "release"]
    assert [(line["what"], line["mechanism"]) for line in lines] == [
        ("moments", None), ("psm", session.SEALED), ("counts", session.EMPTY)
    ]  # fmt: skip
    assert {line["job"] for line in lines} == {session.agreement(a).key_hash.hex()} and lines[0]["parties"] == list(NAMES)


def test_a_new_agreement_with_one_party_fewer_gets_no_share(agreed):
    parties = with_rows(agreed)
    share(parties["a"])
    agree({name: parties[name] for name in "ab"}, "again")
    with pytest.raises(Mistake, match="the part of c"):
        share(parties["a"], "ab")
    agree(parties, "a third time")
    share(parties["a"])


def test_fewer_than_the_agreed_quorum_are_refused(agreed):
    a = with_rows(agreed)["a"]
    a.quorum = 3
    with pytest.raises(AgreementError, match="2 parties, and 3 were agreed on"):
        share(a, "ab")
    session.begin(a, "psm", 0, 0, "ab", session.SEALED)  # nothing is opened
    share(a)
