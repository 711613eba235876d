"""A bad reply is a missing one, in the label job and in FedAvg+XCLP: its sender is named, and the others go on."""

import math

import numpy as np
import pytest
import torch
from labelling import SPREAD, Wire, assert_same_results, blobs, four, job, lost, start

from grapevine.core import Server
from grapevine.core.errors import Mistake
from grapevine.methods import XCLP
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault, Simulation

BAD = [
    ("keys", "rows", -1), ("keys", "rows", 2**30), ("keys", "rows", "many"), ("keys", "labels", math.nan),
    ("keys", "features", 0), ("keys", "classes", "a, b"), ("keys", "classes", {0: 1}), ("keys", "offer", dict(public=b"key")),
    ("pool", "share", np.full((18, 4), np.nan)), ("pool", "share", np.zeros((17, 4), np.uint64)), ("meet", "letters", "none"),
    ("share", "own", np.zeros((8, 7), np.uint16)), ("share", "own", np.full((8, 8), 97, np.uint16)), ("share", "own", "near"),
    ("share", "labelled", np.full(8, np.nan)), ("share", "blank", np.zeros(9, bool)), ("share", "first", dict(u=0, a={}, b={})),
    ("share", "first", -1), (SPREAD, "rows", "masked"), (SPREAD, "rows", {}), ("receive", "hits", np.zeros(22, np.uint64)),
    ("receive", "hits", "all"),
]  # fmt: skip


@pytest.mark.parametrize("step, name, value", BAD)
def test_a_bad_reply_is_a_missing_one_and_its_sender_is_named(step, name, value, caplog):
    """The job goes on as if the party had been lost at that step."""
    parties = four()
    run = start(job("psm", scale="standard"), parties, spoil={step: ("p1", name, value)})
    gone = start(job("psm", scale="standard"), parties, faults=[lost(step, "after")])
    assert_same_results(run, gone, ("p0", "p2", "p3"))
    np.testing.assert_equal(run.about, gone.about)
    assert set(run.server.left_out) == {"p1"} and f"client p1 is left out of step {step}" in caplog.text and name in caplog.text


@pytest.mark.parametrize("step, name, value", [("share", "own", "near"), (SPREAD, "rows", "masked")])
def test_of_two_parties_a_bad_reply_leaves_one_and_that_is_said(step, name, value):
    with pytest.raises(Mistake, match="only p0 .*: propagation needs two parties"):
        start(job("psm"), blobs((13, 8)), spoil={step: ("p1", name, value)})


def test_a_field_that_the_step_does_not_have_is_refused(caplog):
    run = start(job("psm"), four(), spoil={"share": ("p1", "password", "1234")})
    assert list(run.about["in_graph"].values()) == ["p0", "p2", "p3"] and "has a field 'password'" in caplog.text


def test_a_ciphertext_that_is_none_leaves_its_sender_out(toy_lattice):
    parties = blobs((6, 4, 5, 4), classes="ab", labelled=3)
    run = start(job("mlwe", bits=32, scale="none"), parties, spoil={"share": ("p1", "first", {})})
    never = start(job("plain", bits=32, scale="none"), {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2", "p3"))


@pytest.mark.parametrize(
    "step, name", [("evaluate", "answers"), ("evaluate", "common"), ("evaluate", "shares"), ("open", "shares")]
)
@pytest.mark.parametrize("value", [{}, "distances"])
def test_bad_distances_leave_their_sender_out(step, name, value, toy_lattice):
    parties = blobs((6, 4, 5, 4), classes="ab", labelled=3)
    run = start(job("mlwe", bits=32, scale="none"), parties, spoil={f"xclp.hamming.{step}": ("p1", name, value)})
    never = start(job("plain", bits=32, scale="none"), {name: rows for name, rows in parties.items() if name != "p1"})
    assert_same_results(run, never, ("p0", "p2", "p3"))
    assert set(run.server.left_out) == {"p1"}


TRAINING = [
    ("keys", "rows", -5), ("keys", "labels", "some"), ("meet", "letters", {}), ("embed", "own", np.zeros((2, 2), np.uint16)),
    ("embed", "labelled", np.full(24, np.nan)), ("embed", "first", "bits"), ("embed", "spread", {}),
    ("meet", "counts", np.zeros(9, np.uint64)), ("train", "n", -1), ("train", "n", math.nan),
    ("train", "weights", dict(w=torch.full((2,), math.nan))),
]  # fmt: skip


@pytest.mark.parametrize("step, name, value", TRAINING)
def test_a_bad_reply_in_training_is_a_missing_one(digits, step, name, value, caplog):
    """Two rounds of FedAvg+XCLP end at the same weights as if client 1's reply had got lost on the way."""
    method = XCLP(bits=64, neighbours=3, warmup=0.0, epochs=1, preset="code")
    spoilt = train(method, digits, spoil={step: (1, name, value)})
    gone = train(method, digits, faults=[Fault(1, step, when="after")])
    assert spoilt["weights"].keys() == gone["weights"].keys()
    assert all(torch.equal(w, gone["weights"][name]) for name, w in spoilt["weights"].items())
    assert f"client 1 is left out of step {step} in round 0" in caplog.text


def train(method, digits, spoil=None, faults=()):
    split = digits.split(clients=4, labels="clients:40", seed=1)
    source = Experiment(method, split, model="linear").models()
    simulation = Simulation(method, {i: split.client(i) for i in range(4)}, source, faults=faults)
    server = Server(method, range(4), Wire(simulation, spoil=spoil or {}), source, digits.classes, rounds=2)
    method.check(server)
    state = method.setup(server)
    for _ in range(2):
        state = method.round(server, state)
    return state
