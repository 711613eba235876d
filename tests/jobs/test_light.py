"""A label job on tables computes with numpy alone: torch would take most of a party's memory, and is not loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

JOB = """
import json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch is not loaded here")

sys.meta_path.insert(0, NoTorch())
from grapevine.cli.main import main
code = main(sys.argv[1:], standalone_mode=False)
print(json.dumps(dict(code=code, heavy=[name for name in ("flwr", "datasets", "polars") if name in sys.modules])))
"""


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
    command += ["--bits", "256"]
    done = subprocess.run([sys.executable, "-c", JOB, *command], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["heavy"] == []
    assert (tmp_path / "labels" / "report.html").exists()
    assert len((tmp_path / "labels" / "north" / "labels.csv").read_text().splitlines()) == 61
