"""A label job on tables computes with numpy alone: torch would take most of a party's memory, and is not loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

NO_TORCH = """
import json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch is not loaded here")

sys.meta_path.insert(0, NoTorch())
"""
JOB = """
from grapevine.cli.main import main
code = main(sys.argv[1:], standalone_mode=False)
print(json.dumps(dict(code=code, heavy=[name for name in ("flwr", "datasets", "polars") if name in sys.modules])))
"""


def run(code: str, *args: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", NO_TORCH + code, *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize("method", ["chorus", "xclp"])
def test_label_on_tables_never_loads_torch(method, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        kind = rng.integers(0, 2, 60)
        x = rng.normal(size=(60, 3)) + 3 * kind[:, None]
        lines = [f"{a:.3f},{b:.3f},{c:.3f},{'sick' if k else 'well'}" for (a, b, c), k in zip(x, kind)]
        lines = [line if i < 30 else line.rsplit(",", 1)[0] + "," for i, line in enumerate(lines)]
        (tmp_path / f"{name}.csv").write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
    command = ["label", "north.csv", "south.csv", "--label", "label", "--method", method, "--secure", "mlwe", "--out", "labels"]
    command += ["--bits", "256", "--baselines"]
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH + JOB, *command], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["heavy"] == []
    assert (tmp_path / "labels" / "report.html").exists()
    assert len((tmp_path / "labels" / "north" / "labels.csv").read_text().splitlines()) == 61


PARTY = """
import grapevine.parties.join, grapevine.parties.worker
from grapevine.jobs.settings import LabelSettings
from grapevine.parties.agreement import Agreement
agreed = Agreement("abc", "label", 3, LabelSettings().agreed(), (2,), features=("a", "b"), parties=("x", "y", "z"))
agreed.check()
print(agreed.made.name, agreed.models(0))
"""


def test_a_party_of_a_label_job_never_loads_torch(tmp_path):
    done = run(PARTY, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "chorus None\n"), done.stderr
