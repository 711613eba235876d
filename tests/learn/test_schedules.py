"""Stages, learning rates and moving averages, by hand."""

import math

import pytest
import torch
from torch import nn

from grapevine.learn import schedules


def test_stages_and_cosine():
    assert schedules.first_stage(7, 0.5) == 4 and schedules.first_stage(7, 0.0) == 0
    assert [schedules.stage_of(7, 4, t) for t in (0, 3, 4, 6)] == [(1, 0, 4), (1, 3, 4), (2, 0, 3), (2, 2, 3)]
    T_max = schedules.T_MAX * 1500
    assert schedules.cosine(0.3, 0, T_max) == 0.3
    assert schedules.cosine(0.3, 1000, T_max) == pytest.approx(0.15)  # half way to T_max = 2000
    assert schedules.cosine(0.3, 1500, T_max) == pytest.approx(0.3 * (1 + math.cos(0.75 * math.pi)) / 2)


def small_network(value):
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for t in net.state_dict().values():
            t.fill_(value)
    return net


def test_ema_of_modules_averages_parameters_and_copies_buffers():
    target, source = small_network(1.0), small_network(3.0)
    schedules.ema_(target, source, 0.75)
    for name, t in target.state_dict().items():
        assert (t == (3.0 if "running" in name or "num" in name else 1.5)).all(), name
    assert all((p == 3).all() for p in source.parameters())


def test_repeated_ema_is_the_geometric_sum():
    target, source = small_network(0.0).double(), small_network(1.0).double()
    for _ in range(50):
        schedules.ema_(target, source, 0.9)
    for p in target.parameters():
        torch.testing.assert_close(p.detach(), torch.full_like(p, 1 - 0.9**50))


def test_sigmoid_rampup():
    values = [schedules.sigmoid_rampup(step, 10) for step in (-1, 0, 5, 10, 99)]
    assert values == pytest.approx([math.exp(-5), math.exp(-5), math.exp(-1.25), 1, 1])
    assert schedules.sigmoid_rampup(0, 0) == 1


def test_plateau_by_hand():
    rate = dict(lr=0.9, lowest=math.inf, left=2)
    found = []
    for loss in (1.0, 0.5, 0.5, 0.6, 0.4, 0.4, 0.4, 0.4):
        rate = schedules.plateau(rate, loss, 2)
        found.append(round(rate["lr"], 6))
    assert found == [0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.1, 0.1]
    for _ in range(9):
        rate = schedules.plateau(rate, 1.0, 0)
    assert rate["lr"] == pytest.approx(0.1)
