"""What benchmarks/label.py measures, by worked numbers."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def label(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield import_module("label")
    for name in ("label", "machine"):
        sys.modules.pop(name, None)


def test_calibration_error(label):
    sure, right = np.array([0.95, 0.92, 1.0, 0.55]), np.array([True, True, False, False])
    # Two bins: three rows at 2.87 of which 2 are right, one at 0.55 that is not.
    assert label.calibration_error(sure, right) == pytest.approx((0.87 + 0.55) / 4)


def test_worse_than_alone_is_beyond_two_deviations(label):
    alone = np.array([True] * 10 + [False] * 2)
    for lost, worse in ((6, False), (10, True)):  # 6 − 2 ≤ 2√8, 10 − 2 > 2√12
        right = np.array([False] * lost + [True] * (10 - lost) + [True] * 2)
        assert label.worse_than_alone(right, alone) is worse


def test_a_row_without_a_label_is_wrong_and_given_ones_do_not_count(label):
    d = label.Deal([np.zeros((4, 1))], [np.array([0, 1, 1, 1])], [np.array([True, False, False, False])])
    assert label.measured(d, [np.array([1, 1, -1, 0])]) == dict(accuracy=0.3333, balanced=0.3333)


def test_labels_are_drawn_from_all_rows_and_every_row_has_one_party(label):
    d = label.deal("wine", 5, 0.1, 60)
    assert sum(map(len, d.X)) == 178 and sum(k.sum() for k in d.known) == 18
    assert [sorted(set(y[~k].tolist())) for (_, y), k in zip(d.parties, d.known)] == [[-1]] * 5
