"""Chorus as a protocol: the same labels whatever protects them, in every mode, after losses; and what the server does not see."""

from __future__ import annotations

import numpy as np
import pytest
from labelling import blobs, start, without_labels

from grapevine.core import wire
from grapevine.core.errors import Mistake
from grapevine.core.server import StepError
from grapevine.crypto import hamming, spread
from grapevine.methods import landmarks
from grapevine.methods.chorus import Chorus
from grapevine.methods.xclp import CrossClientPropagation
from grapevine.run.simulate import Fault


def chorus(protocol="psm", way="private", reproducible=True, bits=128, neighbours=5, alpha=0.9, **settings):
    way = "plain" if protocol == "plain" else way
    xclp = CrossClientPropagation(hamming.protocol(protocol), bits, neighbours, alpha, "code", reproducible, spread.protocol(way))
    return Chorus(xclp, **settings)


PARTIES = blobs((20, 24, 18), labelled=9, spread=0.5)


def found(run, name):
    return run.result(name)["proba"]


@pytest.fixture(scope="module")
def plain():
    return start(chorus("plain"), PARTIES)


@pytest.mark.parametrize("protocol", ["psm", "mlwe"])
def test_protection_changes_nothing(protocol, plain, toy_lattice):
    run = start(chorus(protocol), PARTIES)
    for name in PARTIES:
        np.testing.assert_allclose(found(run, name), found(plain, name), atol=1e-6)


def test_modes_and_workers_change_nothing(plain):
    for how in (dict(mode="fast"), dict(mode="fast", workers=2)):
        run = start(chorus("plain"), PARTIES, **how)
        for name in PARTIES:
            np.testing.assert_array_equal(found(run, name), found(plain, name))


def test_the_server_sees_no_name_no_label_and_no_sum():
    """Everything that reaches the server, byte for byte, and all that it knows at the end."""
    named = {id: (X, [None if c is None else f"diagnosis-{c}" for c in y]) for id, (X, y) in PARTIES.items()}
    run = start(chorus("psm"), named)
    up = b"".join(wire.encode(message) for direction, _, _, message in run.sent if direction == "up")
    assert b"diagnosis" not in up and b"diagnosis" not in repr(run.about).encode()
    assert run.memory("p0")["classes"][0] == "diagnosis-a"
    turned = {id: (X, [{"a": "b", "b": "c", "c": "a"}.get(c) for c in y]) for id, (X, y) in PARTIES.items()}
    other = start(chorus("psm"), turned)
    for step, fields in (("names", ("nodes", "columns")), ("share", ("labelled", "blank"))):
        for name in fields:
            np.testing.assert_array_equal(run.up(step, "p1")[0][name], other.up(step, "p1")[0][name])
    # What is summed are whole numbers of labels, among others: no total that the server can form shows one.
    totals = [message["total"] for direction, step, id, message in run.sent if (direction, step, id) == ("down", "go_on", "p0")]
    assert len(totals) > 40 and all((np.abs(total.view(np.int64)) > 2**40).mean() > 0.9 for total in totals if total.size > 20)


def test_keys_and_scores_are_gone_at_the_end(plain):
    for name in PARTIES:
        assert set(plain.memory(name)) == {"classes", "gaps", "tuned", "named", "result"}


@pytest.mark.parametrize("step", ["names", "begin", "go_on", "share", "receive", "hear"])
def test_a_party_that_is_lost_takes_nobody_along(step):
    parties = blobs((20, 24, 18, 22), labelled=9, spread=0.5)
    run = start(chorus("psm", smooth=step == "hear"), parties, faults=[Fault("p2", step, "drop", when="before", forever=True)])
    got = set(run.about["got_labels"].values())
    assert got == {"p0", "p1", "p3"}
    for name in got:
        np.testing.assert_allclose(found(run, name).sum(1), 1)


@pytest.mark.parametrize("step", ["meet", "names"])
def test_what_a_party_said_of_its_nodes_holds_when_another_is_lost(step, monkeypatch):
    """The share of each of those who agreed on keys was another than that of those who were left: the job stopped."""
    monkeypatch.setattr(landmarks, "SHARE_OF", 120)
    parties = blobs((20, 24, 18, 60), labelled=9, spread=0.5)
    run = start(chorus("plain"), parties, faults=[Fault("p1", step, "drop", when="before", forever=True)])
    assert set(run.about["got_labels"].values()) == {"p0", "p2", "p3"}
    assert run.about["nodes"]["p3"] < 60


def test_a_changed_sum_stops_the_job():
    def change(requests):
        for request in requests.values():
            total = request["total"].copy()
            total.flat[0] += np.uint64(1 << 33)
            request["total"] = total
        return requests

    with pytest.raises(StepError, match="is not the one that the parties formed"):
        start(chorus("plain"), PARTIES, change={"go_on": change})


def test_a_part_of_another_form_is_a_missing_part():
    run = start(
        chorus("plain"), blobs((20, 24, 18, 22), labelled=9), spoil={"begin": ("p1", "share", np.ones((3, 4), np.uint64))}
    )
    assert "p1" not in run.about["got_labels"].values() and "p1" in run.server.left_out


# ---------------------------------------------------------------- parties of every kind


def right(run, truth, parties):
    hits = n = 0
    for name, (_, y) in parties.items():
        classes = list(run.memory(name)["classes"].values())
        order = [i for i, c in enumerate(y) if c is not None] + [i for i, c in enumerate(y) if c is None]
        labels = [classes[c] for c in run.result(name)["label"]]
        unknown = [k for k, i in enumerate(order) if y[i] is None]
        hits += sum(labels[k] == truth[name][order[k]] for k in unknown)
        n += len(unknown)
    return hits / n


def world(sizes=(30, 30, 30), labelled=9, seed=0):
    """Parties with every row's class known, and those of which the first rows keep it."""
    every = blobs(sizes, labelled=max(sizes), seed=seed, spread=0.5)
    truth = {name: y for name, (_, y) in every.items()}
    return {name: (X, [c if i < labelled else None for i, c in enumerate(y)]) for name, (X, y) in every.items()}, truth


def test_parties_without_labels_with_one_class_or_with_five_rows_are_labelled_too():
    parties, truth = world((30, 30, 30, 5))
    parties = without_labels(parties, "p1")
    X, y = parties["p2"]
    parties["p2"] = (X, [c if c == "a" else None for c in y])  # positive labels only
    run = start(chorus("plain"), parties)
    assert right(run, truth, parties) > 0.9
    assert run.result("p1")["verdict"]["n"] == 0 and not run.result("p2")["verdict"]["has_own"]


def test_a_class_that_only_one_party_knows_reaches_the_others():
    parties, truth = world((40, 40, 40), labelled=12)
    for name in ("p1", "p2"):
        X, y = parties[name]
        parties[name] = (X, [None if c == "c" else c for c in y])
    run = start(chorus("plain"), parties)
    assert right(run, truth, parties) > 0.9
    assert {"a", "b", "c"} == set(run.memory("p1")["classes"].values())


def test_many_classes():
    """Thirty classes, two labels of each at every party: every class is given, and most rows get theirs."""
    rng = np.random.default_rng(1)
    centres, truth = 4.0 * rng.normal(size=(30, 12)), {f"p{i}": np.tile(np.arange(30), 5) for i in range(3)}
    rows = {name: centres[y] + rng.normal(size=(150, 12)) for name, y in truth.items()}
    parties = {name: (X, [str(c) if i < 60 else None for i, c in enumerate(truth[name])]) for name, X in rows.items()}
    run = start(chorus("plain"), parties)
    assert right(run, {name: [str(c) for c in y] for name, y in truth.items()}, parties) > 0.9
    assert (run.about["expected"]["given"] > 0).all()


def test_wrong_labels_do_little_harm():
    parties, truth = world((60, 60, 60), labelled=30)
    rng = np.random.default_rng(0)
    for name, (X, y) in parties.items():
        parties[name] = (X, [c if c is None or rng.random() > 0.1 else "abc"[rng.integers(3)] for c in y])
    assert right(start(chorus("plain"), parties), truth, parties) > 0.93


def test_landmarks_label_nearly_as_well():
    parties, truth = world((80, 80, 80), labelled=9)
    run = start(chorus("plain", landmarks=10), parties)
    assert run.about["nodes"] == dict(p0=19, p1=19, p2=19)
    assert right(run, truth, parties) > 0.9


def test_parties_agree_where_some_have_centres_and_others_have_all_rows_in_the_graph():
    """Their weights once had different priors, so that some ended their Newton steps before others, and were left out."""
    parties, _ = world((80, 25, 14), labelled=9)
    run = start(chorus("plain", landmarks=10), parties)
    assert run.about["nodes"] == dict(p0=19, p1=19, p2=14)
    results = [run.result(name) for name in parties]
    assert results[0]["weights"] == results[1]["weights"] == results[2]["weights"]
    for name, head in results[0]["heads"].items():
        np.testing.assert_array_equal(head["W"], results[2]["heads"][name]["W"])


def test_smooth_is_one_more_voice():
    one, other = start(chorus("plain", smooth=True), PARTIES), start(chorus("psm", smooth=True), PARTIES)
    assert "smooth" in one.result("p0")["weights"]
    for name in PARTIES:
        np.testing.assert_allclose(found(one, name), found(other, name), atol=1e-6)


def test_labels_by_randomised_response():
    parties, truth = world((150, 150, 150), labelled=100)
    run = start(chorus("plain", epsilon=3.0), parties)
    assert right(run, truth, parties) > 0.9
    told = [run.up("share", name)[0]["spread"]["Y"] for name in parties]
    y = np.concatenate([np.array(["abc".index(c) for c in labels if c is not None]) for _, labels in parties.values()])
    assert sum(map(len, told)) == len(y) == 300  # who is labelled is public; what is told of it is not always so


def test_a_single_label_is_everybodys():
    """The fold that has not heard it has heard nothing, and its class shares were 0/0."""
    X, y = PARTIES["p0"]
    one = dict(without_labels(without_labels(PARTIES, "p1"), "p2"), p0=(X, [y[0], *[None] * (len(y) - 1)]))
    run = start(chorus("plain"), one)
    assert all((found(run, name) == 1).all() for name in PARTIES)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(groups=2), "groups is 2, but 3 parties can form 1 to 1"),
        (dict(way="paper"), "spread is paper, which belongs to XCLP"),
    ],
)
def test_settings_that_cannot_work_are_said(settings, sentence):
    with pytest.raises(Mistake, match=sentence):
        start(chorus(**settings), PARTIES)


def test_without_any_label_there_is_nothing_to_do():
    parties = {name: (X, [None] * len(y)) for name, (X, y) in PARTIES.items()}
    with pytest.raises((Mistake, StepError), match="no party has a labelled row"):
        start(chorus("plain"), parties)
