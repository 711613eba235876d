"""Tuor and RDS: thresholds against scipy, rewards by hand; clients that missed a decision."""

import json
import math

import numpy as np
import pytest
import torch
from federation import labels_at_server, memory
from scipy.stats import ks_2samp
from torch.nn import functional as F

from grapevine import methods
from grapevine.core.errors import Mistake
from grapevine.methods import relevance
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault


@pytest.mark.parametrize("method", [methods.MPSSFL(server_lr=1e12), methods.Tuor(server_lr=1e12)], ids=lambda m: m.name)
def test_a_classifier_of_the_server_that_diverged_is_noticed(digits, method):
    with pytest.raises(Mistake, match="the server's model diverged"):
        method.setup(labels_at_server(digits, method, "server:40,clients:60")[0])


@pytest.mark.parametrize(
    ("method", "name"), [(methods.MPSSFL(), "decide"), (methods.Tuor(), "measure"), (methods.Tuor(), "select")]
)
def test_a_client_that_missed_the_decision_makes_it_when_it_is_chosen(digits, method, name, tmp_path):
    split = digits.split(clients=3, labels="server:100,clients:90", seed=2)
    lost = (Fault(1, name, round=0),)
    Experiment(method, split, model="linear", rounds=2, per_round=3, seed=1, faults=lost, out=tmp_path / "r").run()
    lines = [json.loads(line) for line in (tmp_path / "r" / "messages.jsonl").read_text().splitlines()]
    answers = {(line["step"], line["round"]): line["messages"] for line in lines if line["direction"] == "up"}
    assert answers[name, 0] == 2 and answers[name, 1] == 1
    assert answers["train", 0] == 2 and answers["train", 1] == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_is_where_the_ks_distance_is_least(seed):
    draw = np.random.default_rng(seed)
    V = draw.exponential(1.0, 40).round(2)  # rounded: ties
    P = np.concatenate([draw.exponential(1.0, 60), draw.normal(8, 1, 40)]).round(2)
    distance = {value: ks_2samp(V, P[P <= value]).statistic for value in np.unique(P)}
    found = relevance.loss_threshold(V, P)
    assert distance[found] == pytest.approx(min(distance.values()), abs=1e-12)
    assert relevance.loss_threshold(V, P, candidates=5) in distance


def test_the_threshold_parts_near_losses_from_far_ones():
    """Letting in a share f of the far losses costs about f/(1 + f) of distance: no more than the two samples' own noise."""
    draw = np.random.default_rng(0)
    near, far = draw.exponential(1.0, 3000), draw.normal(20, 1, 3000)
    threshold = relevance.loss_threshold(draw.exponential(1.0, 2000), np.concatenate([near, far]))
    noise = 2 * 1.36 * math.sqrt(1 / 2000 + 1 / 3000)  # twice the 5 % point of the KS distance
    assert (near <= threshold).mean() > 1 - noise and (far <= threshold).mean() < noise


def test_tuor_reveals_losses_and_keeps_rows_up_to_the_threshold(digits):
    method = methods.Tuor(server_epochs=3)
    server, data = labels_at_server(digits, method, "server:40,clients:60")
    benchmark = server.model().state()
    reply = server.ask(method.measure, to=[0], benchmark=benchmark)[0]["losses"]
    rows = data[0].labelled
    with torch.no_grad():
        own = F.cross_entropy(server.model(benchmark).eval()(rows.inputs()), rows.y, reduction="none")
    torch.testing.assert_close(reply, own.sort().values)
    middle = reply.median().item()
    server.ask(method.select, to=[0], threshold=middle)
    assert memory(server, 0)["relevant"].tolist() == [loss <= middle for loss in memory(server, 0)["losses"].tolist()]
    assert server.ask(method.train, to=[0], weights=benchmark, round=0)[0]["n"] == (len(rows) + 1) // 2
    assert "loss" in method.title


def test_tuor_refuses_a_server_too_small_to_divide(digits):
    method = methods.Tuor(benchmark=0.99)
    with pytest.raises(Mistake, match="40 rows cannot be divided"):
        method.check(labels_at_server(digits, method, "server:40,clients:60")[0])


def test_a_reward_moves_the_selector_along_the_score(digits):
    method = methods.RDS(selector_lr=0.2, epochs=1)
    server, data = labels_at_server(digits, method, "server:40,clients:60")
    n = server.ask(method.train, to=[0], weights=server.model().state(), round=0)[0]["n"]
    N = len(data[0].labelled)
    before = memory(server, 0)["selector"]
    assert 0 < n < N and (memory(server, 0)["relevant"]).all()  # relevance begins at one half
    server.ask(method.reward, each={0: dict(advantage=-1.5)})
    after = memory(server, 0)["selector"]
    # ∂ log π / ∂ bias = Σ (picked − g) = n − N/2; the first layer has no gradient while the second is zero.
    assert after["2.bias"].item() == pytest.approx(0.2 * -1.5 * (n - N / 2), rel=1e-5)
    assert torch.equal(before["0.weight"], after["0.weight"]) and not torch.equal(before["2.weight"], after["2.weight"])


def test_rewards_are_falls_of_the_servers_loss_less_their_moving_average(digits):
    method = methods.RDS(epochs=1, window=4)
    server, data = labels_at_server(digits, method, "server:40,clients:60")
    state = method.setup(server)
    replies = server.ask(method.train, weights=state["weights"], round=0)
    X, y = server.data.inputs(), server.data.y

    def loss(weights):
        with torch.no_grad():
            return F.cross_entropy(server.model(weights).eval()(X), y).item()

    rewards = [loss(state["weights"]) - loss(reply["weights"]) for reply in replies.values()]
    server.transport.manifests.clear()  # the same draw again, from the beginning
    new = method.round(server, state)
    assert server.notes["reward"] == pytest.approx(sum(rewards) / 2, rel=1e-4)
    assert new["baseline"] == pytest.approx(sum(rewards) / 2 / 4, rel=1e-4)
    for i, reward in enumerate(rewards):  # the first baseline is 0
        moved = method.selector_lr * reward * (replies[i]["n"] - len(data[i].labelled) / 2)
        assert memory(server, i)["selector"]["2.bias"].item() == pytest.approx(moved, rel=1e-3)
