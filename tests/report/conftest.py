"""What several tests of pages look at: a comparison over a grid."""

from __future__ import annotations

import pytest
from comparisons import made_up, noisy, tabled

GRID = {"labels": ["clients:20", "clients:40", "clients:80"], "partition": ["iid", "shards:2"]}


@pytest.fixture
def grid(tmp_path):
    def accuracy(label, values, seed):
        return noisy(label, values, seed) - (0.2 if label == "fedsem" and values["partition"] == "iid" else 0)

    return tabled(
        made_up(tmp_path / "grid", ["fedprox", "fedsem"], accuracy, GRID, leave_out={("alone", 0), ("alone", 1), ("alone", 2)})
    )
