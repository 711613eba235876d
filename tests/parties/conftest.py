"""A registry behind a gate on loopback, for what needs no processes."""

import pytest
from net import Desk


@pytest.fixture
def host(tmp_path, request):
    made = Desk(tmp_path / "host", agreed=getattr(request, "param", None))
    yield made
    made.gate.stop()
