"""Tests of data find no files but those they are given."""

import pytest


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path_factory):
    """No files are found but those a test gives."""
    monkeypatch.delenv("GRAPEVINE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path_factory.mktemp("cache")))
