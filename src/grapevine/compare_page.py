"""The page of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write(out: Path) -> Path:
    return out / "report.html"


def ranking(loaded: list[Any]) -> list[dict]:
    return []


def write_leaderboard(loaded: list[Any], out: Path) -> Path:
    return out
