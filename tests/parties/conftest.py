"""A registry behind a gate on loopback, for what needs no processes."""

import pytest
from net import Desk


@pytest.fixture
def host(tmp_path):
    made = Desk(tmp_path / "host")
    yield made
    made.gate.stop()
