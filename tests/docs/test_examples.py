"""The scripts and notebooks of examples/ run as they are, each in its own process, and are as short as they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = {  # and what must hold at the end
    "label": "result.accuracy > 0.85 and result.expected['n'] > 5 and len(north.labels) == len(parts[0])",
    "train": "runs['supervised'].result['accuracy'] > 0.5",
    "clean": "result.measured['wrong labels found']['recall'] > 0.8 and right(result[0], hospitals[0]) > 0.95",
    "compare": "{row['method'] for row in made.table} >= {'network', 'fedprox', 'alone', 'supervised'}",
}


def run(script: Path, folder: Path) -> str:
    """In an empty folder, without data of this machine, warnings as errors."""
    env = {name: value for name, value in os.environ.items() if name != "GRAPEVINE_DATA"} | dict(OMP_NUM_THREADS="1")
    command = [sys.executable, "-W", "error", str(script), *([str(folder / "out")] if "[FOLDER]" in script.read_text() else [])]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script, tmp_path):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 40
    said = run(script, tmp_path)
    assert "%" in said
    if script.stem == "train_and_predict":
        says, true = (line.split(maxsplit=1)[1] for line in said.splitlines()[-2:])
        assert says.count("'") == true.count("'") == 20  # ten labels each
        assert (tmp_path / "out" / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook(name, tmp_path):
    """Its code cells, one after the other; the last expression of a cell is shown in a notebook, and computed here."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 4 and all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    script = tmp_path / f"{name}_notebook.py"
    body = "\n".join(code).replace("\n", "\n    ")
    script.write_text(f"if __name__ == '__main__':\n    {body}\n    assert {NOTEBOOKS[name]}\n", encoding="utf-8")
    run(script, tmp_path)


def test_there_is_a_notebook_for_each_job():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)
