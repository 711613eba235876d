"""What several tests need: small federations on digits, and the real data sets where they are to be had."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from chromium import Browser
from hypothesis import settings

from grapevine import data
from grapevine.crypto import mlwe

# On CI the same examples every time, so that what fails there can be repeated; by hand new ones are tried at every run.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

ROOT = Path(__file__).parent.parent

# What a shell without job control starts in the background is deaf to Ctrl-C, and so is what it starts: not the tests' commands.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def digits():
    return data.load("digits")


@pytest.fixture(scope="session")
def data_dir() -> str:
    folder = Path(os.environ.get("GRAPEVINE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not in {folder}")
    return str(folder)


@pytest.fixture
def toy_lattice(monkeypatch):
    """mlwe over a ring too small to be secure: for tests of the flow. The real one is in tests marked slow."""
    monkeypatch.setattr(mlwe.Params, "for_bits", classmethod(lambda cls, bits: cls(bits, ring=16, rank=2)))


@pytest.fixture(autouse=True)
def one_torch_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    chromium = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()
