"""Flower's processes: they phone nobody and install nothing, two files alone import it, and its bundle holds no code."""

from __future__ import annotations

import re
from pathlib import Path

from grapevine.parties import flower
from grapevine.parties.processes import environment, write_app


def test_flower_processes_phone_nobody_and_install_nothing(tmp_path):
    made = environment(tmp_path / "home")
    assert made["FLWR_TELEMETRY_ENABLED"] == "0" and made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1" and made["RAY_USAGE_STATS_ENABLED"] == "0"
    assert made["FLWR_HOME"] == str(tmp_path / "home")


def test_two_files_alone_import_flower():
    files = sorted(Path(flower.__file__).parent.parent.rglob("*.py"))
    assert [f.name for f in files if re.search(r"^\s*(from|import) flwr", f.read_text(), re.MULTILINE)] == [
        "flower.py",
        "node.py",
    ]


def test_the_bundle_holds_no_code(tmp_path):
    folder = write_app(tmp_path / "app")
    assert [path.name for path in folder.iterdir()] == ["pyproject.toml"]
