"""Parties lost at every step of the label job: what the others get, and that masks are never used twice."""

import numpy as np
import pytest
from labelling import AGAIN, SPREAD, assert_same_results, blobs, four, job, lost, slow, start, without_labels

from grapevine.core import run_step
from grapevine.core.errors import Mistake
from grapevine.crypto import fixed

MOMENTS = ("before", "in", "after")


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", ["keys", "meet", "share"])
def test_lost_before_distances_is_as_if_never_there(step, when):
    parties = four()
    method = job("psm", scale="none")
    run = start(method, parties, faults=[lost(step, when)])
    never = start(method, {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2", "p3"))
    np.testing.assert_equal(run.about, never.about)
    assert "result" not in (run.memory("p1") if "p1" in run.simulation.manifests else {})


@pytest.mark.parametrize("step,when", [("keys", "after"), ("meet", "before"), ("meet", "after")])
def test_moments_are_pooled_without_a_party_lost_before_them(step, when):
    parties = four()
    method = job("psm")
    run = start(method, parties, faults=[lost(step, when)])
    never = start(method, {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2", "p3"))


def test_moments_are_begun_again_as_often_as_parties_are_lost():
    parties = four()
    run = start(job("psm"), parties, faults=[lost("pool", client="p1"), lost("sums.again", client="p3")])
    never = start(job("psm"), {name: parties[name] for name in ("p0", "p2")})
    assert run.wire.asked.count("sums.again") == 2
    assert_same_results(run, never, ("p0", "p2"))


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", ["xclp.hamming.evaluate", "xclp.hamming.open"])
def test_lost_during_distances_is_as_if_never_there(step, when, toy_lattice):
    parties = blobs((6, 4, 5, 4), classes="ab", labelled=3)
    run = start(job("mlwe", bits=32, scale="none"), parties, faults=[lost(step, when)])
    never = start(job("plain", bits=32, scale="none"), {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2", "p3"))
    assert list(run.about["in_graph"].values()) == ["p0", "p2", "p3"]


@pytest.mark.slow
@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("step", ["xclp.hamming.transfer", "xclp.hamming.receive"])
def test_lost_during_oblivious_transfers_is_as_if_never_there(step, when):
    parties = blobs((4, 3, 4), classes="ab", labelled=3)
    run = start(job("ot", bits=16, scale="none"), parties, mode="fast", faults=[lost(step, when)])
    never = start(job("plain", bits=16, scale="none"), {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2"))


@pytest.mark.parametrize("when", MOMENTS)
def test_lost_after_distances_leaves_rows_in_the_graph_and_no_labels(when):
    """`before`: lost before the sums; `after`: its masked rows were on the way. Both begin again without it."""
    parties = four()
    method = job("psm", expected=False)
    run = start(method, parties, faults=[lost(SPREAD, when)])
    unlabelled = start(method, without_labels(parties, "p1"))
    assert_same_results(run, unlabelled, ("p0", "p2", "p3"), exact=False)
    assert "result" not in run.memory("p1")
    assert list(run.about["in_graph"].values()) == ["p0", "p1", "p2", "p3"]
    assert list(run.about["gave_labels"].values()) == ["p0", "p2", "p3"]
    assert run.wire.asked.count(AGAIN) == 1
    # Not a test that any graph passes: without the rows of p1, scores are others.
    never = start(method, {name: rows for name, rows in parties.items() if name != "p1"})
    assert any((never.result(name)["proba"] != run.result(name)["proba"]).any() for name in ("p0", "p2", "p3"))


@pytest.mark.parametrize("when", MOMENTS)
def test_lost_again_during_the_sums(when):
    parties = four()
    method = job("psm", expected=False)
    run = start(method, parties, faults=[lost(SPREAD, when), lost(AGAIN, when, "p3")])
    unlabelled = start(method, without_labels(without_labels(parties, "p1"), "p3"))
    assert_same_results(run, unlabelled, ("p0", "p2"), exact=False)
    assert run.wire.asked.count(AGAIN) == 2


def test_a_new_attempt_has_new_masks_and_the_same_contributions():
    run = start(job("psm"), four(), faults=[lost(SPREAD, "after")], stop="receive")
    (first,), (second,) = run.up(SPREAD, "p0"), run.up(AGAIN, "p0")
    assert set(first["rows"]) == {"p1", "p2", "p3"} and set(second["rows"]) == {"p2", "p3"}
    for owner in ("p2", "p3"):
        assert (first["rows"][owner] != second["rows"][owner]).all()
    # The totals of the second attempt open to the sum of what all three keep as their contributions.
    kept = {name: run.memory(name)["spread"]["p2"] for name in ("p0", "p2", "p3")}
    total = run.up(AGAIN, "p0")[0]["rows"]["p2"] + run.up(AGAIN, "p3")[0]["rows"]["p2"]
    opened = run.method.xclp.receive(run.client("p2"), total, ["p0", "p2", "p3"], 0, 1)
    np.testing.assert_array_equal(opened, fixed.decode(kept["p0"] + kept["p2"] + kept["p3"]))


def test_masks_of_two_attempts_among_the_same_parties_have_nothing_in_common():
    run = start(job("psm"), four(), stop="receive")
    first = run.up(SPREAD, "p0")[0]["rows"]
    again = dict(parties={name: 0 for name in run.simulation.data}, round=0, attempt=1)
    second = run_step(run.method, AGAIN, run.client("p0"), again)["rows"]
    assert set(first) == set(second) == {"p1", "p2", "p3"}
    for owner in first:
        assert (first[owner] != second[owner]).all()


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_client_does_not_mask_an_old_attempt_again(attempt):
    run = start(job("psm"), four(), faults=[lost(SPREAD, "after")], stop="receive")
    client, left = run.client("p0"), dict(p0=0, p2=1, p3=2)
    with pytest.raises(Mistake, match="masks are used once"):
        run_step(run.method, AGAIN, client, dict(parties=left, round=0, attempt=attempt))
    with pytest.raises(Mistake, match="masks are used once"):
        run_step(run.method, SPREAD, client, run.down(SPREAD, "p0")[0])


def test_a_closed_attempt_is_not_opened():
    """Results of two attempts would differ by the lost party's part."""
    run = start(job("psm"), four(), faults=[lost(SPREAD, "after")], stop="receive")
    total = run.up(SPREAD, "p2")[0]["rows"]["p0"] + run.up(SPREAD, "p3")[0]["rows"]["p0"]
    old = dict(rows=total, parties=dict(p0=0, p1=1, p2=2, p3=3), round=0, attempt=0)
    with pytest.raises(Mistake, match="is not open"):
        run_step(run.method, "receive", run.client("p0"), old)


@pytest.mark.parametrize("when", MOMENTS)
def test_lost_at_the_end_does_not_touch_the_others(when):
    parties = four()
    whole = start(job("psm"), parties)
    run = start(job("psm"), parties, faults=[lost("receive", when)])
    assert_same_results(run, whole, ("p0", "p2", "p3"))
    assert "expected" in whole.about and "expected" not in run.about
    assert list(run.about["got_labels"].values()) == ["p0", "p2", "p3"]
    assert ("result" in run.memory("p1")) == (when == "after")


def test_of_two_parties_one_lost_at_the_end_leaves_the_other_its_labels():
    parties = blobs((9, 10))
    run = start(job("psm"), parties, faults=[lost("receive")])
    assert_same_results(run, start(job("psm"), parties), ("p0",))
    assert list(run.about["got_labels"].values()) == ["p0"]


def test_auto_without_an_estimate_takes_ten_neighbours():
    parties = blobs((12, 9, 14))
    run = start(job("psm", neighbours=0), parties, faults=[lost("receive")])
    assert run.about["neighbours"] == 10
    np.testing.assert_array_equal(run.result("p0")["label"], slow(parties, run.method, k=10).of("p0")[0])


@pytest.mark.parametrize("step", ["keys", "meet", "share", SPREAD])
def test_one_party_left_is_said(step):
    with pytest.raises(Mistake, match=r"only p0 .*two parties"):
        start(job("psm"), blobs((9, 10)), faults=[lost(step)])


def test_one_party_left_during_distances_is_said(toy_lattice):
    with pytest.raises(Mistake, match=r"only .*two parties"):
        start(job("mlwe", bits=16), blobs((5, 5), labelled=2), mode="fast", faults=[lost("xclp.hamming.open", client=c)
              for c in ("p0", "p1")])  # fmt: skip


@pytest.mark.parametrize("step", ["keys", "meet", "share", SPREAD])
def test_two_parties_left_are_enough(step):
    run = start(job("psm"), blobs((9, 10, 8)), faults=[lost(step, client="p2")])
    assert (run.result("p0")["label"] >= 0).any()


def test_nobody_left_is_said():
    with pytest.raises(Mistake, match="only nobody"):
        start(job("psm"), blobs((9, 10)), faults=[lost("share", client="p0"), lost("share", client="p1")])
