"""Chorus under --dp: what one row can add to each sum, that noise is in all of them, and what the ledger says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from labelling import blobs

import grapevine as gv
from grapevine.core.errors import Mistake
from grapevine.crypto import accountant
from grapevine.jobs import privacy
from grapevine.learn.voices import FOLDS, folds
from grapevine.methods import chorus, noisy, tune
from grapevine.methods.song import Singer

pytest.importorskip("dp_accounting")
PARTIES, DELTA = 5, 1e-6


def table(n=40, d=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * 10.0 ** np.arange(d)


def singer(X, y, seed=0):
    """A party with rows X, labels y of the first of them, and any scores of three classes."""
    n, draw = len(X), np.random.default_rng(seed)
    scale = tune.Scale(np.full(X.shape[1], 0.1), np.ones(X.shape[1]), 0.0)
    Z = draw.random((2, FOLDS, n, 3)) + 0.1
    tuned = tune.Tuned(scale, "direction", 200.0, np.full((FOLDS - 1, 1), 4.0), {})
    return Singer(scale(X), y, 1 + np.arange(len(y)) % 5, Z, np.ones(n), None, tuned, lambda what: draw)


def without(own, i):
    """The same party without row i: its row is blank. What others are by the graph is as before."""
    keep = np.arange(len(own.X)) != i
    labels = keep[: len(own.y)]
    return dataclasses.replace(own, X=own.X[keep], y=own.y[labels], fold=own.fold[labels], Z=own.Z[:, :, keep],
                               mass=own.mass[keep])  # fmt: skip


def sums_of(program, answer):
    """Every sum a program asks for, by name, if it is told `answer(what)` of each."""
    found, asked = {}, next(program)
    while True:
        found[asked.what] = asked.values
        try:
            asked = program.send(answer(asked))
        except StopIteration:
            return found


def test_a_row_adds_at_most_its_sensitivity_to_each_sum():
    """Row by row, long and short ones: the numbers that are summed, not those that were meant; in steps of 2^-32, exactly."""
    noise, y = noisy.plan(3.0, DELTA, PARTIES), np.array([0, 1, 2, 0, 1, 2])
    X = table()
    X[7] = 0.0
    fixed = {}  # both hear the same, as if the others were adaptive

    def answer(asked):
        return fixed.setdefault(asked.what, np.abs(asked.values) * 5 + 20)

    whole = singer(X, y)
    before = sums_of(noisy.sing(whole, noise, PARTIES), answer) | sums_of(noisy.tune(tune.Table(X), y), answer)
    assert set(before) == set(noisy.SUMS) | {"rows"}
    for values in before.values():
        np.testing.assert_array_equal(np.ldexp(values, 32) % 1, 0)
    largest = dict.fromkeys(noisy.SUMS, 0.0)
    for i in range(len(X)):
        after = sums_of(noisy.sing(without(whole, i), noise, PARTIES), answer)
        after |= sums_of(noisy.tune(tune.Table(np.delete(X, i, 0)), np.delete(y, i) if i < len(y) else y), answer)
        for name, sum_ in noisy.SUMS.items():
            moved = float(np.linalg.norm(before[name] - after[name]))
            assert moved <= sum_.sensitivity, (name, i)
            largest[name] = max(largest[name], moved)
    assert all(largest[name] > 0.5 * noisy.SUMS[name].sensitivity for name in ("mean", "covariance", "sums", "counts")), largest


def test_the_plan_spends_the_budget_and_no_more():
    for epsilon in (0.5, 3.0, 8.0):
        events = [noise.event for noise in noisy.plan(epsilon, DELTA, PARTIES).values()]
        assert 0.99 * epsilon < accountant.epsilon(events, DELTA) <= epsilon * (1 + 1e-9)


def test_the_noise_of_a_majority_is_enough():
    """Three honest ones of five: the root of the sum of their variances is the event's noise."""
    for name, noise in noisy.plan(3.0, DELTA, PARTIES).items():
        assert np.sqrt(3) * noise.sigma == pytest.approx(noise.event.multiplier * noisy.SUMS[name].sensitivity)
        assert noise.least == 3


def test_fewer_than_three_parties_are_refused():
    with pytest.raises(Mistake, match="only over 3 or more"):
        noisy.plan(3.0, DELTA, 2)


@pytest.fixture(scope="module")
def job():
    rows = blobs((120, 130, 110), labelled=30, spread=0.4)
    parties = [(X, [-1 if c is None else "abc".index(c) for c in y]) for X, y in rows.values()]
    return parties, gv.label(parties, secure="plain", dp=10.0, seed=1)


def test_a_job_labels_and_its_ledgers_hold_the_promise(job, tmp_path):
    parties, result = job
    again = gv.label(parties, secure="plain", seed=1)
    agree = np.mean([a == b for one, two in zip(result, again) for a, b in zip(one.proposed, two.proposed)])
    assert agree > 0.9
    for party in result:
        lines = [line for line in party.ledger.lines() if line["kind"] == "release"]
        kinds = [(line["mechanism"] or {}).get("kind") for line in lines]
        assert kinds.count("gaussian") == len(noisy.SUMS) and None not in kinds  # nothing is summed exactly
        folder = tmp_path / party.name
        folder.mkdir()
        party.ledger.save(folder)
        (found,) = privacy.read(folder)
        epsilon, delta = found.spent["row"]
        assert 9.9 < epsilon <= 10 * (1 + 1e-9) and delta == DELTA
    assert 0 <= result.expected["low"] < result.expected["high"] <= 1


def test_noise_differs_from_run_to_run_whatever_the_seed(job):
    parties, result = job
    again = gv.label(parties, secure="plain", dp=10.0, seed=1)
    assert not np.array_equal(result.heads.scale.mean, again.heads.scale.mean)


def test_a_labels_class_does_not_decide_which_other_labels_are_hidden(job, monkeypatch):
    """Else one row would move others between folds, which the noise for one row does not cover."""
    parties, _ = job
    changed = [(X, [(c + 1) % 3 if c >= 0 and i < 5 else c for i, c in enumerate(y)]) for X, y in parties]
    dealt: list[list[np.ndarray]] = []
    for given in (parties, changed):
        found: list[np.ndarray] = []
        monkeypatch.setattr(chorus, "folds", lambda y, draw, found=found: found.append(folds(y, draw)) or found[-1])
        gv.label(given, secure="plain", dp=10.0, seed=1, workers=1)
        dealt.append(found)
    assert all(np.array_equal(a, b) for a, b in zip(*dealt, strict=True)) and len(dealt[0]) == len(parties)


def test_the_plan_states_unit_epsilon_delta_and_what_is_outside(job):
    parties, _ = job
    told = " ".join(gv.label(parties, dp=3.0, delta=1e-5, dry_run=True)["learns"])
    for words in (
        "ε = 3 at δ = 1e-05",
        "one row of a party, there or blank",
        "2 of 3 parties",
        "no row-level privacy of the job",
    ):
        assert words in told
    assert "covariance of all rows, and how well" not in told


@pytest.mark.parametrize("wrong, why", [
    (dict(dp=3.0, scale="standard"), "exact means"), (dict(dp=3.0, impute=True), "exact means"),
    (dict(dp=3.0, baselines=True), "baselines does not go with --dp,"), (dict(dp=3.0, smooth=True), "smooth does not go"),
    (dict(dp_labels=3.0, baselines=True), "baselines does not go with --dp-labels,"),  # whose true labels they sent
    (dict(delta=1e-5), "use --dp EPS too"), (dict(dp=3.0, groups=2), "only over 3 or more"),
])  # fmt: skip
def test_what_noise_would_not_cover_is_refused(job, wrong, why):
    parties = job[0] if "groups" not in wrong else [*job[0], job[0][0]]
    with pytest.raises(Mistake, match=why):
        gv.label(parties, secure="plain", **wrong)
