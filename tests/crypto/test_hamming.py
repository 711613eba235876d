"""SecureHamming: five protocols through their real steps, each handing the server the same H, and losses on the way."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from distances import MLWE, OT, PAILLIER, PLAIN, PSM, assert_distances, random_bits, run, slow, xor
from uniformity import looks_uniform

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.core.store import Memory
from grapevine.crypto import hamming, mlwe, naor_pinkas
from grapevine.crypto.secure import roles
from grapevine.run.simulate import Fault, StepError

NAMES = {MLWE: "mlwe", PSM: "psm", PLAIN: "plain", PAILLIER: "paillier", OT: "ot"}


def extremes(length):
    """One row against rows at distance 0 and `length`, equal rows, and an opposite pair within."""
    row = np.random.default_rng(1).integers(0, 2, (1, length), np.uint8)
    return dict(
        p0=row, p1=np.concatenate([row, 1 - row, row]), p2=np.concatenate([1 - row, np.zeros_like(row), np.ones_like(row)])
    )


# ---------------------------------------------------------------- the same H


def cases(*always):
    """Protocols, those that are slow marked so."""
    return [pytest.param(p, id=NAMES[p], marks=() if p in always else slow) for p in (PLAIN, PSM, MLWE, PAILLIER, OT)]


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("protocol", cases(PLAIN, PSM))
def test_distances_at_both_ends(protocol, length):
    """n = 1, L not a multiple of 8, distance 0 and distance L."""
    bits = extremes(length)
    present, blocks, _ = run(protocol, bits)
    assert present == set(bits)
    assert_distances(blocks, bits)
    assert blocks["p0", "p1"].tolist() == [[0, length, 0]] and blocks["p0", "p2"][0, 0] == length


def test_distances_at_both_ends_by_real_ciphertexts():
    """mlwe with its real parameters, and Paillier's least key: two parties, one row each side."""
    bits = {name: rows[:2] for name, rows in extremes(13).items() if name != "p2"}
    for protocol in (MLWE, PAILLIER):
        assert_distances(run(protocol, bits)[1], bits)


@pytest.mark.parametrize("protocol", cases(PLAIN, PSM))
def test_distances_of_unequal_parties(protocol):
    bits = random_bits((5, 1, 7, 2), 37)
    present, blocks, _ = run(protocol, bits)
    assert present == set(bits)
    assert_distances(blocks, bits)


def test_distances_of_unequal_parties_over_a_small_lattice(toy_lattice):
    bits = random_bits((5, 1, 40, 2), 37)  # 40 rows are three blocks of a ring of 16
    assert_distances(run(MLWE, bits)[1], bits)


@pytest.mark.parametrize("protocol", [pytest.param(PSM, id="psm"), pytest.param(MLWE, id="mlwe", marks=slow)])
def test_more_rows_than_a_block(protocol):
    bits = random_bits((1030 if protocol is PSM else 515, 3), 24)
    assert_distances(run(protocol, bits)[1], bits)


@pytest.mark.parametrize("protocol", cases(PLAIN, PSM))
def test_a_party_without_rows(protocol):
    bits = random_bits((3, 0, 2), 9)
    present, blocks, _ = run(protocol, bits)
    assert present == set(bits)
    rest = {name: bits[name] for name in ("p0", "p2")}
    assert_distances({pair: block for pair, block in blocks.items() if "p1" not in pair}, rest)
    assert all(block.size == 0 for pair, block in blocks.items() if "p1" in pair)


def test_a_party_without_rows_over_a_small_lattice(toy_lattice):
    bits = random_bits((3, 0, 2), 9)
    present, blocks, _ = run(MLWE, bits)
    assert present == set(bits)
    np.testing.assert_array_equal(blocks["p0", "p2"], xor(bits)["p0", "p2"])


@pytest.mark.parametrize("protocol", cases(PSM))
def test_fast_and_strict_give_the_same(protocol):
    bits = random_bits((3, 2), 11)
    assert_distances(run(protocol, bits, mode="fast")[1], bits)


@slow
def test_oblivious_transfer_in_several_chunks():
    bits = random_bits((9, 6), 64)
    _, blocks, asked = run(hamming.Ot(chunk_bytes=2048), bits)
    assert_distances(blocks, bits)
    assert asked.count("hamming.transfer") == asked.count("hamming.receive") > 1


# ---------------------------------------------------------------- roles, names, exchanges


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10, 11])
def test_roles_are_dealt_evenly(n):
    roster = [f"{i:06d}" for i in range(n)]
    dealt = [roles(j, k, roster) for j, k in combinations(roster, 2)]
    assert {tuple(sorted(pair)) for pair in dealt} == set(combinations(roster, 2))
    encrypts = Counter(j for j, _ in dealt)
    assert all(abs(encrypts[name] - (n - 1) / 2) <= 1 for name in roster)


def test_roles_do_not_depend_on_order_or_on_who_is_left():
    roster = ["a", "b", "c", "d"]
    for j, k in combinations(roster, 2):
        assert roles(j, k, roster) == roles(k, j, roster)
    assert roles("a", "b", roster) == ("a", "b") and roles("a", "c", roster) == ("c", "a")


def test_protocols_have_names():
    assert set(hamming.PROTOCOLS) == {"plain", "psm", "mlwe", "paillier", "ot"}
    for name in hamming.PROTOCOLS:
        assert hamming.protocol(name).name == name
    with pytest.raises(Mistake, match="no protocol 'rsa': use mlwe, psm"):
        hamming.protocol("rsa")


@pytest.mark.parametrize("protocol", cases(PLAIN, PSM))
def test_exchanges_beyond_the_first_three(protocol):
    asked = run(protocol, random_bits((2, 2), 8))[2][3:]
    more = {PLAIN: [], PSM: [], OT: ["hamming.transfer", "hamming.receive"]}
    assert asked == more.get(protocol, ["hamming.evaluate", "hamming.open"])


def test_encrypting_takes_two_more_exchanges(toy_lattice):
    assert run(MLWE, random_bits((2, 2, 2), 8))[2][3:] == ["hamming.evaluate", "hamming.open"]


@pytest.mark.parametrize("protocol", cases(PLAIN, PSM))
def test_bytes_are_as_announced(protocol):
    """Within 2 % and a kilobyte of dict keys: what two parties send each other and the server."""
    n_j, n_k, length = 60, 40, 64
    sent = []
    run(protocol, random_bits((n_j, n_k), length), sent=sent)
    sender, receiver = roles("p0", "p1", ["p0", "p1"])
    assert (sender, receiver) == ("p0", "p1")
    said = protocol.bytes_per_pair(n_j, n_k, length)
    once = sum(protocol.bytes_per_pair(*sizes, length)["once"] for sizes in ((n_j, n_k), (n_k, n_j)))
    expected = (said["once"] if protocol in (MLWE, PAILLIER) else once) + said["pair"] + said["server"]
    up = [message for direction, _, _, message in sent if direction == "up"]
    measured = sum(
        wire.size(message.get(name, {}))
        for message in up
        for name in ("prelude", "first", "answers", "common", "shares", "chunks", "requests")
    )
    assert abs(measured - expected) <= 0.02 * expected + 1200


# ---------------------------------------------------------------- losses


STEPS = ("keys", "meet", "share")


@pytest.mark.parametrize("when", ["before", "in", "after"])
@pytest.mark.parametrize("step_name", [*STEPS, "hamming.evaluate", "hamming.open"])
def test_a_loss_takes_its_own_blocks_and_no_others(step_name, when, toy_lattice):
    bits = random_bits((3, 4, 2, 3), 10)
    present, blocks, _ = run(MLWE, bits, faults=[Fault("p1", step_name, when=when, forever=True)])
    assert present == {"p0", "p2", "p3"}
    assert_distances(blocks, {name: bits[name] for name in present})


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step_name", STEPS)
def test_a_loss_in_psm_takes_its_own_blocks_and_no_others(step_name, when):
    bits = random_bits((3, 4, 2, 3), 10)
    present, blocks, _ = run(PSM, bits, faults=[Fault("p1", step_name, when=when, forever=True)])
    assert present == {"p0", "p2", "p3"}
    assert_distances(blocks, {name: bits[name] for name in present})


@slow
@pytest.mark.parametrize("step_name", ["hamming.transfer", "hamming.receive"])
def test_a_loss_in_oblivious_transfer_takes_its_own_blocks_and_no_others(step_name):
    bits = random_bits((3, 4, 2), 10)
    present, blocks, _ = run(OT, bits, faults=[Fault("p1", step_name, forever=True)])
    assert present == {"p0", "p2"}
    assert_distances(blocks, {name: bits[name] for name in present})


def test_two_losses_at_different_steps(toy_lattice):
    bits = random_bits((3, 4, 2, 3), 10)
    faults = [Fault("p1", "hamming.evaluate", forever=True), Fault("p2", "hamming.open", forever=True)]
    present, blocks, _ = run(MLWE, bits, faults=faults)
    assert present == {"p0", "p3"}
    assert_distances(blocks, {name: bits[name] for name in present})


# ---------------------------------------------------------------- what is seen


def test_psm_messages_are_uniform_and_plain_ones_are_not():
    """Bits of all zeros: whatever is not masked would stand out. At a level of 1e-6, with masks from the operating system."""
    bits = {name: np.zeros((60, 64), np.uint8) for name in ("p0", "p1")}
    sent = []
    run(PSM, bits, sent=sent)
    firsts = {id: message["first"] for direction, s, id, message in sent if (direction, s) == ("up", "share")}
    assert looks_uniform(firsts["p0"]["u"]) and looks_uniform(firsts["p1"]["u"])
    assert looks_uniform(firsts["p0"]["a"]["p1"]) and looks_uniform(firsts["p1"]["b"]["p0"])
    assert not looks_uniform(np.zeros((60, 64), np.uint16))


def test_shares_for_the_server_are_uniform(toy_lattice):
    bits = {name: np.zeros((60, 63), np.uint8) for name in ("p0", "p1")}
    sent = []
    run(MLWE, bits, sent=sent)
    for s, id in (("hamming.open", "p0"), ("hamming.evaluate", "p1")):
        (message,) = (m for direction, st, i, m in sent if (direction, st, i) == ("up", s, id))
        (share,) = message["shares"].values()
        values = mlwe.open_share(mlwe.Params(63), share)
        assert values.max() < 512 and len(np.unique(values)) > 490 and looks_uniform(share["values"])


def test_ciphertexts_over_a_seed_of_ones_own_are_refused(toy_lattice, monkeypatch):
    """The a_l come from everybody's keys: a key holder that chose them could have chosen weak ones."""
    encrypt = mlwe.encrypt
    monkeypatch.setattr(mlwe, "encrypt", lambda params, bits, seed: encrypt(params, bits))
    with pytest.raises(StepError, match="the ciphertexts of p0 are for another agreement or round"):
        run(MLWE, random_bits((2, 2), 8))


# ---------------------------------------------------------------- what oblivious transfer leaves behind


@pytest.fixture
def toy_transfers(monkeypatch):
    """Base transfers without any group, whose keys say which one was chosen: for tests of the flow."""
    seen = []

    def choose(offer, choices, info):
        seen.append(dict(choices=choices.tobytes(), info=info))
        keys = np.zeros((128, 32), np.uint8)
        keys[:, 0], keys[:, 1] = np.arange(128), choices
        return keys, dict(pk=np.zeros((128, naor_pinkas.ELEMENT), np.uint8))

    def both_keys(r, offer, reply, info):
        keys = np.zeros((2, 128, 32), np.uint8)
        keys[:, :, 0], keys[1, :, 1] = np.arange(128), 1
        return keys

    monkeypatch.setattr(naor_pinkas, "choose", choose)
    monkeypatch.setattr(naor_pinkas, "both_keys", both_keys)
    return seen


def test_every_pair_has_a_delta_of_its_own(toy_transfers):
    """One Δ for all pairs would let two receivers together open what the sender masked for each."""
    bits = random_bits((3, 2, 2, 3), 10)
    assert_distances(run(OT, bits)[1], bits)
    assert len(toy_transfers) == len({seen["choices"] for seen in toy_transfers}) == 6
    assert len({seen["info"] for seen in toy_transfers}) == 6


def test_base_keys_are_gone_when_distances_are_there(toy_transfers):
    """Used for a second H they would repeat their pads. Whatever is left of the transfers is empty."""
    bits = random_bits((3, 2, 2), 10)
    simulations = []
    run(OT, bits, keep=simulations)
    for name in bits:
        memory = Memory(simulations[0].store, simulations[0].manifests[name])
        left = {key for key in memory if key.startswith("ot.")}
        assert left <= {"ot.keys"} and not memory["ot.keys"]["partners"]


def test_base_transfers_of_another_round_are_refused(toy_transfers):
    """What was offered, chosen or kept for round 0 serves no H of round 1; what is signed for one is not taken in another."""
    bits = random_bits((3, 2), 10)
    with pytest.raises(StepError, match="no base transfers for round 1"):
        run(OT, bits, round=1)
    with pytest.raises(StepError, match="the base offer in the name of .* is not signed"):
        run(OT, bits, round=1, asked_for=(1, 0))
    with pytest.raises(StepError, match="no base transfers for round 1"):
        run(OT, bits, round=1, asked_for=(0, 0))
    assert_distances(run(OT, bits, round=1, asked_for=(1, 1))[1], bits)
