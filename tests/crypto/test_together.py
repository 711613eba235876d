"""Sums that the parties open themselves: right, hidden from the server, and not to be changed by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory, RamStore
from grapevine.crypto import accountant, fixed, names, session, together
from grapevine.crypto.agreement import AgreementError, Identity

WHO = ("a", "b", "c")
NONE = Rows(torch.zeros(0, 1), torch.arange(0), torch.arange(0))
EMPTY = ClientData(NONE, NONE, NONE, ())


def parties(who=WHO) -> dict[str, Client]:
    """Clients that have agreed on keys and on a seed."""
    identities = {name: Identity.generate() for name in who}
    pinned = {name: identity.public for name, identity in identities.items()}
    nothing = ClientData(None, None, None, ())  # type: ignore[arg-type]
    clients = {
        name: Client(name, nothing, Memory(RamStore()), None, 0, identities[name], pinned, common_seed=False) for name in who
    }
    offers = {name: session.offer(client, "s") for name, client in clients.items()}
    letters = {name: session.meet(client, offers) for name, client in clients.items()}
    for name, client in clients.items():
        session.learn_seed(client, {other: letters[other][name] for other in who if other != name})
    return clients


def shared(clients, values, number=0, attempt=0, wide=False):
    return {name: together.share(client, number, attempt, clients, values[name], wide) for name, client in clients.items()}


@pytest.mark.parametrize("wide", [False, True])
def test_every_party_opens_the_sum(wide):
    clients = parties()
    draw = np.random.default_rng(0)
    values = {name: draw.normal(size=7) * (1e30 if wide else 1e3) for name in clients}
    told = together.added(shared(clients, values, wide=wide), 0, 0)
    for client in clients.values():
        np.testing.assert_allclose(together.opened(client, 0, 0, WHO, **told), sum(values.values()), rtol=1e-9, atol=1e-9)
        assert "pending" not in client.memory


def test_the_inner_product_of_a_tag_is_that_of_whole_numbers():
    """Against Python's own integers, at the ends of both rings and over more than one block."""
    draw = np.random.default_rng(1)
    ends = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    keys = np.concatenate([np.repeat(ends, 5), draw.integers(0, 2**64, 2**20 + 7, np.uint64)])
    ring = np.concatenate([np.tile(ends, 5), draw.integers(0, 2**64, 2**20 + 7, np.uint64)])
    for n in (0, 1, 25, len(keys)):
        signed = ring[:n].view(np.int64).tolist()
        assert together.inner(keys[:n], ring[:n]) == sum(r * v for r, v in zip(keys[:n].tolist(), signed))
    same = np.full(2**20, 2**64 - 1, np.uint64)
    assert together.inner(same, np.full(2**20, 2**63, np.uint64)) == -(2**20) * (2**64 - 1) * 2**63


def test_the_server_sees_neither_parts_nor_the_sum():
    """Shares, their sum and the tags of the same values differ from sum to sum, in every bit about half of the time."""
    clients = parties()
    values = {name: np.ones(500) for name in clients}
    seen = []
    for number in range(2):
        replies = shared(clients, values, number)
        told = together.added(replies, number, 0)
        seen.append([*(reply["share"] for reply in replies.values()), told["total"]])
        assert not np.isclose(fixed.decode(told["total"]), 3.0).any()
        for client in clients.values():
            together.opened(client, number, 0, WHO, **told)
    for one, two in zip(*seen):
        bits = np.unpackbits((one ^ two).view(np.uint8)).mean()
        assert abs(bits - 0.5) < 0.02  # 32,000 coins: 0.5 ± 0.003


def change_total(told):
    return dict(told, total=told["total"] + np.array([1, 0, 0], np.uint64))


def change_tag(told):
    return dict(told, tag=(int.from_bytes(told["tag"], "big") ^ 1).to_bytes(together.TAG, "big"))


def shift_by_the_modulus(told):
    """2^64 is 0 in the ring; a shift by a multiple of a smaller modulus would pass a tag that is taken by it."""
    return dict(told, total=told["total"] + np.array([0, (1 << 61) - 1, 0], np.uint64))


@pytest.mark.parametrize("change", [change_total, change_tag, shift_by_the_modulus])
def test_a_changed_sum_is_refused(change):
    clients = parties()
    told = together.added(shared(clients, {name: np.arange(3.0) for name in clients}), 0, 0)
    with pytest.raises(AgreementError, match="is not the one that the parties formed"):
        together.opened(clients["a"], 0, 0, WHO, **change(told))


def test_a_sum_without_a_party_or_of_another_number_does_not_open():
    clients = parties()
    first = shared(clients, {name: np.ones(3) for name in clients})
    two = together.added({name: first[name] for name in "ab"}, 0, 0)
    with pytest.raises(AgreementError, match="is not the one that the parties formed"):
        together.opened(clients["a"], 0, 0, WHO, **two)
    told = together.added(first, 0, 0)
    with pytest.raises(AgreementError, match="takes part in sum 0, and the server opens 1"):
        together.opened(clients["b"], 1, 0, WHO, **told)
    with pytest.raises(AgreementError, match="shape"):
        together.opened(clients["b"], 0, 0, WHO, told["total"][:2], told["tag"])
    np.testing.assert_allclose(together.opened(clients["c"], 0, 0, WHO, **told), 3.0)
    with pytest.raises((AgreementError, KeyError)):
        together.opened(clients["c"], 0, 0, WHO, **told)


def test_after_a_loss_the_same_part_is_masked_anew():
    clients = parties()
    values = {name: np.full(4, 2.0) for name in clients}
    first = shared(clients, values)
    left = ("a", "b")
    again = {name: together.Together().again(clients[name], 0, 1, dict.fromkeys(left, 0)) for name in left}
    assert (again["b"]["share"] != first["b"]["share"]).all()
    told = together.added(again, 0, 1)
    for name in left:
        np.testing.assert_allclose(together.opened(clients[name], 0, 1, left, **told), 4.0)


def test_a_sum_of_fewer_than_ten_rows_is_refused_at_every_attempt():
    clients = parties()
    rows = dict(a=3, b=3, c=3)
    with pytest.raises(Mistake, match="all parties have 9 rows together, and sums are opened only over 10 or more"):
        together.share(clients["a"], 0, 0, WHO, np.ones(2), rows=rows)
    assert together.share(clients["b"], 0, 0, WHO, np.ones(2), rows=dict(rows, c=4))["share"].shape == (2,)
    with pytest.raises(Mistake, match="all parties have 7 rows together"):  # without a, who was lost
        together.Together().again(clients["b"], 0, 1, session.numbered("bc"))


def test_noise_stays_with_a_part_and_is_written_down_once():
    """A second attempt has the same values; its line says that they have their noise. Too few parties have too little."""
    clients, added = parties(), accountant.Noise(accountant.Gaussian(2.0), 3.0, 3)
    for client in clients.values():
        client.ledger = Ledger()
        client.data = EMPTY
    told = {name: together.share(client, 0, 0, WHO, np.full(4000, 5.0), added=added) for name, client in clients.items()}
    parts = {name: client.memory["pending"]["values"] for name, client in clients.items()}
    for values in parts.values():
        assert abs(values.mean() - 5) < 0.3 and 2.8 < values.std() < 3.2
    assert np.abs(np.corrcoef(np.stack(list(parts.values()))) - np.eye(3)).max() < 0.1
    again = {name: together.Together().again(client, 0, 1, dict.fromkeys(WHO, 0)) for name, client in clients.items()}
    assert (again["a"]["share"] != told["a"]["share"]).all()
    found = together.opened(clients["a"], 0, 1, WHO, **together.added(again, 0, 1))
    np.testing.assert_allclose(found, sum(parts.values()), atol=1e-8)
    lines = [line["mechanism"] for line in clients["a"].ledger.lines() if line["kind"] == "release"]
    assert lines == [accountant.to_table(added.event), session.COVERED]
    with pytest.raises(AgreementError, match="whose noise is too little"):
        together.Together().again(clients["b"], 0, 2, dict.fromkeys("ab", 0))


def test_a_sum_that_could_wrap_is_refused_before_it_is_sent():
    clients = parties()
    with pytest.raises(ValueError, match="a sum over the parties could come to"):
        together.share(clients["a"], 0, 0, WHO, np.array([fixed.MOST / 2]))


# ---------------------------------------------------------------- programs


def counting(log):
    def program():
        log.append("begun")
        one = yield np.array([1.0])
        two = yield one + 1
        return one, two

    return program


@pytest.mark.parametrize("lost", [False, True])
def test_a_program_goes_on_where_it_was_or_hears_the_same_sums_again(lost):
    client, log = parties()["a"], []
    assert together.advance(client, "p", counting(log))[1] == 1.0
    if lost:
        client.running = None
    going, asked = together.advance(client, "p", counting(log), np.array([5.0]))
    assert going and asked == 6.0
    if lost:
        client.running = None
    going, found = together.advance(client, "p", counting(log), np.array([7.0]))
    assert not going and found[0] == 5.0 and found[1] == 7.0
    assert log == ["begun"] * (3 if lost else 1)
    assert not [name for name in client.memory if name.startswith("p ") and name != "p heard"]


def test_a_program_that_ran_ahead_of_a_lost_step_is_repeated():
    """The step fails after the program went on: memory is as before, and the program in flight must not be trusted."""
    client, log = parties()["a"], []
    together.advance(client, "p", counting(log))
    before = dict(client.memory.manifest)
    together.advance(client, "p", counting(log), np.array([5.0]))
    client.memory.manifest = before
    going, asked = together.advance(client, "p", counting(log), np.array([9.0]))
    assert going and asked == 10.0


# ---------------------------------------------------------------- names


def test_names_are_agreed_on_and_hidden_from_the_server():
    clients = parties()
    own = dict(a=["healthy", "sick"], b=["sick"], c=["naïve ☂", "x" * 300])
    sent = {name: names.sealed(client, "classes", own[name]) for name, client in clients.items()}
    assert set(sent["b"]) < set(sent["a"]) and not set(sent["c"]) & set(sent["a"])
    everything = b"".join(key.encode() + value for reply in sent.values() for key, value in reply.items())
    assert b"sick" not in everything and b"healthy" not in everything
    assert len({len(value) for value in sent["a"].values()}) == 1  # lengths are padded
    told = names.united(sent.values())
    for client in clients.values():
        assert names.opened(client, "classes", told) == sorted({name for some in own.values() for name in some})


def test_names_of_another_kind_or_made_up_are_refused():
    clients = parties()
    told = names.sealed(clients["a"], "classes", ["x"])
    with pytest.raises(AgreementError, match="comes from no party"):
        names.opened(clients["b"], "columns", told)
    (key,) = told
    with pytest.raises(AgreementError, match="comes from no party"):
        names.opened(clients["b"], "classes", {key[::-1]: told[key]})
    with pytest.raises(AgreementError, match="comes from no party"):
        names.opened(clients["b"], "classes", {key: told[key][:-1] + bytes([told[key][-1] ^ 1])})


def test_too_many_names_are_refused():
    with pytest.raises(ValueError, match="10001 different classes: at most 10000"):
        names.sealed(parties()["a"], "classes", map(str, range(10001)))
