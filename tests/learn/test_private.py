"""DP-SGD at a client: gradients of single rows, what a row adds, who is sampled, how much noise, and the ledger."""

import logging
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.network import ModelSource, Network
from grapevine.core.private import Private
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory, RamStore
from grapevine.crypto import accountant
from grapevine.crypto.stream import Stream, context
from grapevine.learn import private
from grapevine.learn.networks import build
from grapevine.learn.private import _Gradients, _noisy, _poisson, check_network, fit_own, plan, releases, size

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")
LEVEL = 1e-6


def stream(n: int = 0) -> Stream:
    return Stream(bytes(range(32)), context("test of private training", n=n))


def rows_of(shape: tuple[int, ...], n: int, classes: int = 3) -> Rows:
    draw = torch.Generator().manual_seed(n)
    return Rows(torch.randn(n, *shape, generator=draw), torch.arange(n), torch.arange(n) % classes)


def client_of(rows: Rows, budget: Private | None, ledger: Ledger | None = None) -> Client:
    source = ModelSource(lambda: build("linear", tuple(rows.x.shape[1:]), 3), rows.x[:1])
    client = Client(4, ClientData(rows, rows.take(torch.arange(0)), rows, ("a", "b", "c")), Memory(RamStore(), {}), source, 0)
    client.private, client.ledger = budget, ledger
    return client


def one_by_one(model: Network, rows: Rows) -> np.ndarray:
    """Gradients of single rows by as many backward passes."""
    found = []
    for i in range(len(rows)):
        x, y = rows.batch(torch.tensor([i]))
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    model.zero_grad()
    return torch.stack(found).double().numpy()


NETWORKS = [("linear", (6,), None), ("mlp", (6,), None), ("cnn", (1, 12, 12), None), ("cnn", (3, 12, 12), "gn"),
            ("wrn28x2", (3, 4, 4), "gn")]  # fmt: skip


@pytest.mark.parametrize("name, shape, norm", NETWORKS)
def test_gradients_of_single_rows_are_those_of_single_passes(name, shape, norm):
    """Opacus' own way for convolutions gives others in channels-last order, without a word."""
    model, rows = build(name, shape, 3, norm), rows_of(shape, 4)
    model.train()
    wanted = one_by_one(model, rows)
    with _Gradients(model) as gradients:
        got = gradients.of(*rows.batch(torch.arange(4)))
    assert np.abs(got - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert not any("grad_sample" in vars(p) for p in model.parameters())


def gradient(model: Network, rows: Rows, at: torch.Tensor, clip: float, sigma: float, expected: int, drawn: Stream) -> np.ndarray:
    with _Gradients(model) as gradients:
        value = _noisy(gradients, rows.batch, clip, sigma, expected, drawn, at)
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double().numpy()


def test_a_step_is_the_mean_of_clipped_gradients_over_the_expected_size(monkeypatch):
    monkeypatch.setattr(private, "AT_ONCE", 21 * 3)  # three rows at a time
    model, rows = build("linear", (6,), 3), rows_of((6,), 8)
    each = one_by_one(model, rows)
    norms = np.linalg.norm(each, axis=1, keepdims=True)
    clip = float(np.median(norms))  # half of them are cut
    at = torch.tensor([0, 2, 3, 5, 7])
    wanted = (each * np.minimum(1, clip / norms))[at].sum(0) / 4
    got = gradient(model, rows, at, clip, 1e-6, 4, stream())
    assert np.abs(got - wanted).max() < 1e-5 < np.abs(wanted).max()


def test_noise_has_the_width_it_was_given_and_is_there_for_an_empty_sample():
    model = build("linear", (2000,), 3)
    got = gradient(model, rows_of((2000,), 2), torch.arange(0), 1.0, 3.0, 10, stream(1))
    assert abs(got.std() - 0.3) < 5 * 0.3 / math.sqrt(2 * got.size) and abs(got.mean()) < 5 * 0.3 / math.sqrt(got.size)


def test_samples_take_every_row_by_itself_at_the_rate_of_the_accountant():
    taken = np.zeros((3000, 20))
    drawn = stream(2)
    for row in taken:
        row[_poisson(drawn, 20, 5).numpy()] = 1
    sizes = np.bincount(taken.sum(1).astype(int), minlength=21)
    expected = stats.binom.pmf(np.arange(21), 20, 0.25) * 3000
    common = expected > 10
    assert stats.chisquare(np.append(sizes[common], sizes[~common].sum()),
                           np.append(expected[common], expected[~common].sum())).pvalue > LEVEL  # fmt: skip
    assert np.abs(taken.mean(0) - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 3000)
    assert np.abs(np.corrcoef(taken.T) - np.eye(20)).max() < 5 / math.sqrt(3000)
    assert len(_poisson(drawn, 4, 5)) == 4  # a batch that is not smaller takes all


def test_a_round_is_in_the_ledger_with_what_was_really_done(monkeypatch):
    done = []
    monkeypatch.setattr(private, "_noisy", lambda *a: done.append(a) or _noisy(*a))
    ledger, rows = Ledger(), rows_of((6,), 30)
    budget = Private("job", 3.0, 1e-5, 0.5, rounds=2)
    client = client_of(rows, budget, ledger)
    for round in range(2):
        model = client.model()
        assert fit_own(client, model, 0.1, 3, round, 10) == 9
    events = releases(ledger, "job", "000004")
    assert [(e.count, e.rate) for e in events] == [(9, 10 / 30)] * 2 and len(done) == 18
    assert {(clip, sigma, expected) for _, _, clip, sigma, expected, _, _ in done} == {(0.5, 0.5 * events[0].multiplier, 10)}
    assert 2.9 < accountant.epsilon(events, 1e-5) <= 3.0
    line = ledger.lines()[-1]
    assert line["parties"] == ["000004"] and line["mechanism"]["unit"] == "row" and line["rows"] == ledger.rows(client.data)


def test_beyond_the_budget_a_client_sends_the_model_back_as_it_came(caplog):
    client = client_of(rows_of((6,), 30), Private("job", 3.0, 1e-5, 1.0, rounds=1), Ledger())
    assert fit_own(client, client.model(), 0.1, 1, 0, 10) == 3
    model = client.model()
    before = model.state()
    with caplog.at_level(logging.WARNING, "grapevine"):
        assert fit_own(client, model, 0.1, 1, 0, 10) == 0
    assert "has spent its budget of ε = 3 in 1 rounds" in caplog.text
    assert all(torch.equal(model.state()[name], before[name]) for name in before)
    assert len(releases(client.ledger, "job", "000004")) == 1


def test_two_runs_differ_since_noise_is_nobodys_seed():
    states = []
    for _ in range(2):
        client = client_of(rows_of((6,), 30), Private("job", 3.0, 1e-5, 1.0, 1), Ledger())
        model = client.model()
        fit_own(client, model, 0.1, 1, 0, 10)
        states.append(model.state()["head.weight"])
    assert not torch.equal(*states)


def test_without_a_budget_training_is_as_it_was_and_without_rows_nothing_is_spent():
    rows = rows_of((6,), 30)
    client = client_of(rows, None)
    one, other = client.model(), client.model()
    private.fit(one, rows, 0.1, 2, client.rng("train", 7), 10, momentum=0.5)
    assert fit_own(client, other, 0.1, 2, 7, 10, momentum=0.5) == 6
    assert all(torch.equal(one.state()[name], w) for name, w in other.state().items())
    empty = client_of(rows.take(torch.arange(0)), Private("job", 3.0, 1e-5, 1.0, 1), Ledger())
    assert fit_own(empty, empty.model(), 0.1, 1, 0, 10) == 0 and not releases(empty.ledger, "job", "000004")


def test_a_budget_needs_a_ledger():
    client = client_of(rows_of((6,), 30), Private("job", 3.0, 1e-5, 1.0, 1))
    with pytest.raises(Mistake, match="no ledger"):
        fit_own(client, client.model(), 0.1, 1, 0, 10)


@pytest.mark.parametrize("norm", ["bn", "sbn"])
def test_batch_normalisation_is_refused(norm):
    with pytest.raises(Mistake, match="mixes rows"):
        check_network(build("cnn", (1, 8, 8), 3, norm))
    check_network(build("cnn", (1, 8, 8), 3, "gn"))


def test_a_plan_meets_its_budget_for_every_size_of_client():
    for rows in (3, 10, 400):
        event = plan(Private("job", 2.0, 1e-6, 1.0, 5), rows, 10, 2, size(build("linear", (6,), 3)))
        assert event.count == 2 * math.ceil(rows / 10) * 5 and event.rate == min(1, 10 / rows)
        assert 1.9 < accountant.epsilon([event], 1e-6) <= 2.0
