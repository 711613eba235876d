"""XCLP under --dp: noise in label counts and in hits on hidden labels, from the command to the ledger."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from labelling import blobs, job, start
from scipy.optimize import brentq
from scipy.stats import norm
from trials import NAMES, write_table
from trials import blobs as rows_of

from grapevine.cli.main import main
from grapevine.core import StepError
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.crypto import accountant, fixed, session
from grapevine.methods import label
from grapevine.run.simulate import Fault

pytest.importorskip("dp_accounting")
EPSILON, DELTA = 4.0, 1e-5
PARTIES = blobs((24, 20, 22), labelled=10)


def epsilon(multipliers, delta):
    """Of sums with Gaussian noise: Balle and Wang 2018, Theorem 8, solved here."""
    s = np.sum(np.asarray(multipliers) ** -2.0) ** -0.5
    return brentq(lambda e: norm.cdf(0.5 / s - e * s) - np.exp(e) * norm.cdf(-0.5 / s - e * s) - delta, 0, 100)


def ask(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture
def tables(tmp_path):
    return [write_table(tmp_path / f"{name}.csv", rows_of(name, i)) for i, name in enumerate(NAMES)]


def flags(tables, **more):
    said = dict(label="kind", id="id", method="xclp", secure="psm", bits=64, neighbours=3, delta=DELTA) | more
    return ["label", *tables, *(word for name, value in said.items() for word in (f"--{name}", value))]


@pytest.mark.parametrize("preset, released", [("paper", ["hits"]), ("code", ["sum", "hits"])])
def test_a_job_ends_and_its_ledgers_hold_what_was_promised(tables, tmp_path, preset, released):
    out = tmp_path / "labels"
    ask(*flags(tables, preset=preset, dp=EPSILON, out=out))
    expected = json.loads((out / "result.json").read_text())["expected"]
    assert expected["n"] == 3 * 4 and 0 <= expected["low"] <= expected["high"] <= 1  # a fifth of 20 labels at each party
    told = ask("privacy", out)
    for name in NAMES:
        lines = [line for line in Ledger(out / name).lines() if line["kind"] == "release"]
        noisy = [line for line in lines if line["mechanism"] and line["mechanism"]["kind"] == "gaussian"]
        assert [line["what"] for line in noisy] == released and all(line["parties"] == list(NAMES) for line in lines)
        assert {line["mechanism"]["kind"] for line in lines} == {"gaussian", "sealed"}  # nothing is summed exactly
        found = epsilon([line["mechanism"]["multiplier"] for line in noisy], DELTA)
        assert 0.99 * EPSILON < found <= EPSILON
        assert f"{name}: ε = 4 at δ = 1e-05 so far for one row of this party" in told


def test_the_plan_states_unit_epsilon_delta_and_what_is_outside(tables):
    told = ask(*flags(tables, dp=EPSILON), "--dry-run")
    for words in ("label counts and hits on hidden labels: ε = 4 at δ = 1e-05 for one row of a party, there or blank",
                  "if 2 of 3 parties are honest and stay", "does to the labels of other rows through the graph"):  # fmt: skip
        assert words in told


def test_what_cannot_keep_the_promise_is_refused_before_anything_leaves(tables, tmp_path, monkeypatch):
    out = tmp_path / "labels"
    assert "opened only over 3 or more" in ask(*flags(tables[:2], dp=EPSILON, out=out), code=2)
    enough = accountant.calibrate
    monkeypatch.setattr(accountant, "calibrate", lambda *plan: 0.9 * enough(*plan))
    for more in (dict(out=out), {}):
        told = ask(*flags(tables, dp=EPSILON, **more), *([] if more else ["--dry-run"]), code=2)
        assert "would spend ε = 4." in told and "but its budget is ε = 4" in told and not out.exists()


def test_fewer_parties_than_the_noise_needs_open_nothing():
    """One of three is lost: with the noise of two, ε would be larger than promised."""
    for lost_at, preset in (("pool", "code"), ("share", "paper")):
        method = job(preset=preset, scale="none", dp=EPSILON, way="private", protocol="psm")
        with pytest.raises((StepError, Mistake), match="noise is too little"):
            start(method, PARTIES, faults=[Fault("p1", lost_at, forever=True)])


def test_noise_is_in_both_kinds_of_hits_and_as_wide_and_fine_as_the_accountant_was_told(monkeypatch):
    """In steps of 2^-32, which its `slack` is for: in whole steps the same width would promise less."""
    sent = []
    monkeypatch.setattr(session, "masked", lambda *place, mechanism: sent.append((fixed.decode(place[5]), mechanism)))
    client = SimpleNamespace(memory=dict(agreement=dict(keys=dict.fromkeys(NAMES))))
    method = label.Label(dp=EPSILON, delta=DELTA)
    added, values = method.noise(3)["hits"], np.arange(23.0)[None]
    for _ in range(400):
        method._masked_hits(client, values, 0, 0, session.numbered(NAMES))
    drawn = np.stack([hits for hits, _ in sent]) - np.arange(3)
    assert drawn.shape == (400, 3) and (drawn[:, 0] == 0).all()  # how many are hidden is no secret
    assert (drawn[:, 1:] % 1 != 0).all()
    assert np.abs(drawn[:, 1:].mean(0)).max() < 5 * added.sigma / 20
    assert np.abs(drawn[:, 1:].std(0) / added.sigma - 1).max() < 5 / np.sqrt(2 * 400)
    assert added.sigma * np.sqrt(2) == pytest.approx(added.event.multiplier * np.sqrt(2))  # two honest ones; a row adds (1, 1)
    assert sent[0][1] == accountant.to_table(added.event)


def test_noise_is_in_the_label_counts_that_the_parties_open():
    """The same at all parties, never whole numbers, and of the width that the plan has."""
    method = job(preset="code", scale="none", dp=EPSILON, way="private", protocol="psm")
    exact = np.array([sum(y.count(c) for _, y in PARTIES.values()) for c in "abc"])
    found = []
    for _ in range(12):
        run = start(method, PARTIES)
        opened = [run.memory(name)["moments"] for name in PARTIES]
        assert all(np.array_equal(opened[0], other) for other in opened)
        found.append(opened[0] - exact)
    width = method.noise(3)["counts"].sigma * np.sqrt(3)
    assert (np.array(found) % 1 != 0).all() and 0.5 < np.std(found) / width < 1.6  # 36 draws: more than four deviations


def test_who_is_hidden_says_nothing_about_classes():
    client = SimpleNamespace(seed_of=lambda what: 3)
    one, other = np.arange(20) % 3, np.zeros(20, int)
    with_noise, exact = label.Label(dp=EPSILON), label.Label()
    np.testing.assert_array_equal(with_noise.hide(client, one), with_noise.hide(client, other))
    assert with_noise.hide(client, one).sum() == 4
    assert not np.array_equal(exact.hide(client, one), exact.hide(client, other))
