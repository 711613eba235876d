"""Algorithm 1 as the label job runs it: against an independent dense version, however it is run, and its exchanges."""

import itertools

import numpy as np
import pytest
from labelling import (
    SEED,
    assert_same_as_slow,
    assert_same_results,
    blobs,
    clear_estimate,
    dense_graph,
    job,
    labels_of,
    pooled,
    slow,
    standardised,
    start,
)

from grapevine import graph
from grapevine.crypto import hamming
from grapevine.crypto.agreement import AgreementError
from grapevine.crypto.secure import Group
from grapevine.crypto.stream import context, hkdf
from grapevine.methods.xclp import CANDIDATES


@pytest.mark.parametrize("preset", ["paper", "code"])
@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_labels_are_those_of_the_dense_version(preset, alpha):
    parties = blobs((17, 9, 23), labelled=5)
    run = start(job("plain", preset=preset, alpha=alpha, bits=130, neighbours=5), parties)
    oracle = assert_same_as_slow(run, parties)
    assert len(set(oracle.of("p0")[0])) > 1  # not a test that any answer passes


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_parties_of_every_kind(preset):
    """Unequal sizes; only labelled, only unlabelled, one row; a class that one party alone knows, names in different order."""
    parties = blobs((14, 8, 11, 1, 1), labelled=4)
    X, _ = parties["p1"]
    parties["p1"] = (X, ["zebra" if i % 2 else "b" for i in range(8)])
    parties["p2"] = (parties["p2"][0], [None] * 11)
    parties["p3"] = (parties["p3"][0], [None])
    run = start(job("psm", preset=preset, bits=100), parties)
    oracle = assert_same_as_slow(run, parties)
    assert oracle.classes == ["a", "b", "c", "zebra"]
    assert run.simulation.data["p1"].classes != run.simulation.data["p0"].classes


def test_the_order_of_rows_within_a_party_is_labelled_then_unlabelled():
    parties = blobs((10, 12))
    X, y = parties["p1"]
    mixed = [None, "a", None, "c", "b", None, "a", None, None, "c", None, None]
    run = start(job("plain"), dict(parties, p1=(X, mixed)))
    assert_same_as_slow(run, dict(parties, p1=(X, mixed)))


def test_a_party_without_rows_takes_part():
    parties = dict(blobs((12, 10)), empty=(np.empty((0, 6)), []))
    run = start(job("psm"), parties)
    assert_same_results(run, start(job("psm"), blobs((12, 10))), ("p0", "p1"), exact=False)
    assert run.result("empty")["label"].shape == (0,)


def test_one_class_is_certain():
    parties = blobs((8, 9), classes="a")
    run = start(job("plain"), parties)
    result = run.result("p0")
    assert set(result["label"]) <= {0, -1}
    np.testing.assert_array_equal(result["confidence"], (result["label"] == 0).astype(float))


def test_several_groups_do_not_see_each_other():
    parties = blobs((9, 10, 11, 8), labelled=4)
    method = job("psm", groups=2)
    run = start(method, parties)
    for number, names in enumerate((("p0", "p2"), ("p1", "p3"))):
        part = {name: parties[name] for name in names}
        X, owner, y, classes = pooled(part)
        V = standardised(X)
        info = context("hyperplanes", session=f"seed {SEED} group {number}")
        planes = graph.hyperplanes(hkdf(SEED.to_bytes(16, "big"), info), 96, V.shape[1], info)
        _, W = dense_graph((V @ planes.T.astype(float) >= 0).astype(np.uint8), 4, "paper", np.zeros(len(V), bool))
        Z = np.linalg.inv(np.eye(len(W)) - 0.9 * W) @ np.array([[c == label for c in range(len(classes))] for label in y], float)
        label, confidence, _ = labels_of(Z)
        for name in names:
            np.testing.assert_array_equal(run.result(name)["label"], label[owner == name])
            np.testing.assert_allclose(run.result(name)["confidence"], confidence[owner == name], atol=1e-5)


# ---------------------------------------------------------------- the same bits, however it is run


def test_fast_strict_and_two_workers_give_the_same_bits():
    parties = blobs((20, 13, 9))
    method = job("psm", neighbours=0)
    one = start(method, parties)
    for other in (start(method, parties, mode="fast"), start(method, parties, mode="fast", workers=2), start(method, parties)):
        assert_same_results(one, other, parties)
        np.testing.assert_equal(one.about, other.about)


PROTOCOLS = dict(psm=hamming.Psm(), mlwe=hamming.Mlwe(), paillier=hamming.Paillier(key_bits=2048), ot=hamming.Ot())


@pytest.mark.parametrize(
    "protocol", ["psm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlwe", "paillier", "ot"))]
)
def test_every_protocol_gives_the_same_labels(protocol):
    parties = blobs((8, 5, 3), labelled=2)
    plain, other = start(job("plain", bits=29), parties), start(job(PROTOCOLS[protocol], bits=29), parties)
    assert_same_results(plain, other, parties)
    np.testing.assert_equal(plain.about, other.about)


def test_without_a_seed_hyperplanes_are_secret_and_new():
    """Easy data: each run finds the same labels through other bits."""
    parties = blobs((20, 20), labelled=12, spread=0.1)
    runs = [start(job("plain", bits=256, reproducible=False), parties) for _ in range(2)]
    bits = [run.up("share", "p0")[0]["first"]["bits"] for run in runs]
    assert 0.3 < np.unpackbits(bits[0] ^ bits[1]).mean() < 0.7
    for name in parties:
        np.testing.assert_array_equal(runs[0].result(name)["label"], runs[1].result(name)["label"])
        assert (runs[0].result(name)["label"] >= 0).all()
    sessions = [run.down("keys", "p0")[0]["session_id"] for run in runs]
    assert sessions[0] != sessions[1]


def test_with_a_seed_hyperplanes_repeat():
    parties = blobs((10, 10))
    one, two = (start(job("plain"), parties).up("share", "p1")[0]["first"]["bits"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    other = start(job("plain"), parties, seed=SEED + 1).up("share", "p1")[0]["first"]["bits"]
    assert (one != other).any()


# ---------------------------------------------------------------- exchanges


@pytest.mark.parametrize("protocol,count", [("plain", 6), ("psm", 6), ("mlwe", 8)])
def test_number_of_exchanges(protocol, count, toy_lattice):
    parties = blobs((5, 4, 3), labelled=2)
    run = start(job(protocol, bits=16, neighbours=2), parties, mode="fast")
    assert len(run.wire.asked) == count
    auto = start(job(protocol, bits=16, neighbours=0), parties, mode="fast")
    assert len(auto.wire.asked) == count + 1 and auto.wire.asked[-1] == "choose"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [hamming.Paillier(key_bits=2048), hamming.Ot()], ids=["paillier", "ot"])
def test_number_of_exchanges_of_slow_protocols(protocol):
    assert len(start(job(protocol, bits=16), blobs((3, 2), labelled=2), mode="fast").wire.asked) == 8


def test_auto_takes_the_candidate_with_most_hits():
    parties = blobs((16, 14, 18), labelled=10, spread=2.0)
    run = start(job("plain", neighbours=0), parties)
    right = []
    for k in CANDIDATES:
        oracle = slow(parties, run.method, k)
        right.append(clear_estimate(run, oracle)["right"])
    assert run.about["neighbours"] == CANDIDATES[int(np.argmax(right))]
    assert run.about["expected"]["right"] == max(right)
    assert_same_as_slow(run, parties, run.about["neighbours"])


def test_pairs_of_names_sort_alike_everywhere():
    """Numbers as ids: the tenth party comes after the ninth at server and clients."""
    parties = {i: rows for i, rows in enumerate(blobs([4] * 11, labelled=2).values())}
    run = start(job("psm", bits=64), parties)
    named = {f"{i:06d}": rows for i, rows in parties.items()}
    oracle = slow(named, run.method)
    for i in parties:
        np.testing.assert_array_equal(run.result(i)["label"], oracle.of(f"{i:06d}")[0])
    assert list(itertools.islice(run.about["in_graph"].values(), 3)) == ["000000", "000001", "000002"]


# ---------------------------------------------------------------- the private spread


@pytest.mark.parametrize("preset", ["paper", "code"])
@pytest.mark.parametrize("protocol", ["plain", "psm"])
def test_the_private_spread_gives_the_labels_of_the_papers(protocol, preset):
    """Scores are whole numbers out of 2^16, so shares differ by a few of these; a label only where two classes are that near."""
    parties = dict(blobs((17, 9, 23), labelled=5), unlabelled=(blobs((6,))["p0"][0], [None] * 6), empty=(np.empty((0, 6)), []))
    how = dict(preset=preset, alpha=0.99, bits=130, neighbours=5)
    private, paper = (start(job(protocol, way=way, **how), parties) for way in ("private", "paper"))
    for name in parties:
        a, b = private.result(name), paper.result(name)
        np.testing.assert_allclose(a["proba"], b["proba"], atol=3e-3)
        near = np.sort(b["proba"], 1)[:, -2:] if len(b["proba"]) else np.empty((0, 2))
        clear = near[:, 1] - near[:, 0] > 6e-3
        np.testing.assert_array_equal(a["label"][clear], b["label"][clear])
        assert clear.sum() > 0.8 * len(clear) or not len(clear)


def test_the_private_spread_asks_nobody():
    parties = blobs((5, 4, 3), labelled=2)
    asked = start(job("psm", way="private", bits=16, neighbours=2), parties, mode="fast").wire.asked
    assert asked == ["keys", "meet", "pool", "share", "receive"]


def test_labels_are_sealed_once_a_round():
    """A host that asks for the share again would get two ciphertexts under one key, and their difference."""
    run = start(job("psm", way="private"), blobs((6, 5, 4)), stop="receive")
    client = run.client("p0")
    with pytest.raises(AgreementError):
        run.method.xclp.spread.begin(client, np.zeros((1, 2)), 0.9, Group({}, dict(p0=6, p1=5, p2=4), 96, 0, ("p0", "p1", "p2")))
