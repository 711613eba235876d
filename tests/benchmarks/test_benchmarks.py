"""Every benchmark still runs: each script of benchmarks/ with `--quick`, which takes seconds and writes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in path.read_text())
QUICK = [path for path in SCRIPTS if '"--quick"' in path.read_text()]
DEAR = (
    "against",
    "anchor_parts",
    "attacks",
    "docs_numbers",
    "label_scale",
    "parties",
    "pictures",
    "simulator",
    "xclp_parts",
)  # up to half a minute each
MARKED = [pytest.param(path, marks=[pytest.mark.slow] if path.stem in DEAR else [], id=path.stem) for path in QUICK]


def test_every_benchmark_has_a_quick_run():
    assert [path.name for path in SCRIPTS if path not in QUICK] == []


@pytest.mark.parametrize("script", MARKED)
def test_quick_run(script, tmp_path):
    result = script.with_suffix(".json")
    before = result.read_bytes() if result.exists() else None
    # In an empty folder: a benchmark may not rely on where it is started, and leaves nothing there.
    command = [sys.executable, "-W", "error", str(script), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=240)
    if "benchmarks/prepare.py" in done.stderr:
        pytest.skip(done.stderr)  # the data is not here
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 2
    assert list(tmp_path.iterdir()) == []
    assert (result.read_bytes() if result.exists() else None) == before


def environment() -> dict[str, str]:
    """One thread for each matrix library: the smoke run is not to take the machine from the other tests."""
    return dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
