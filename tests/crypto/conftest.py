"""Tests of mlwe run on one thread."""

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="module")
def one_thread():
    """The matrices of mlwe's tests are small: a second thread only waits."""
    with threadpool_limits(1):
        yield
