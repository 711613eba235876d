"""The built wheel, outside the checkout: it imports without any extra, trains, and its command answers at once.

Nothing is downloaded: the wheel is built with the setuptools that is installed, and other packages come from this environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from grapevine import __version__

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
# What the extras of pyproject.toml bring: a base install has none of it.
EXTRAS = (
    "flwr",
    "gmpy2",
    "dp_accounting",
    "opacus",
    "efficientnet_lite_pytorch",
    "mkdocs",
    "mkdocstrings",
    "pytest",
    "hypothesis",
    "psutil",
    "build",
    "tensorboard",
    "mlflow",
    "matplotlib",
    "openpyxl",
    "datasets",
    "faiss",
    "cleanlab",
)


def run(command: list[str], folder: Path, seconds: float = 120, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: a build leaves files beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(source)], folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], folder)
    return folder


def test_wheel_holds_every_module_the_licence_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    inside = {name for name in names if name.endswith(".py")}
    assert inside == modules
    report = ROOT / "src" / "grapevine" / "report"
    pages = {path.relative_to(ROOT / "src").as_posix() for name in ("templates", "assets") for path in (report / name).iterdir()}
    assert pages and {name for name in names if name.startswith("grapevine/") and not name.endswith(".py")} == pages
    info = f"grapevine_fl-{__version__}.dist-info/"
    assert {name.split("/")[0] for name in names} == {"grapevine", info.rstrip("/")}
    assert f"{info}licenses/LICENSE" in names


BASE_INSTALL = """
import importlib, json, pkgutil, sys
for extra in {extras}:
    sys.modules[extra] = None  # importing it now fails, as it would where it is not installed
import grapevine as gv
for module in pkgutil.walk_packages(gv.__path__, "grapevine."):
    if module.name not in ("grapevine.parties.flower", "grapevine.parties.node"):  # the two modules of an extra
        importlib.import_module(module.name)
split = gv.data.load("digits").split(clients=3, labels="clients:60")
run = gv.train(gv.methods.FedAvg(), split, model="mlp", rounds=2, out="run")
model = gv.load("run")
print(json.dumps(dict(file=gv.__file__, accuracy=run.result["accuracy"], labels=model.predict(split.dataset.x_test[:2]))))
"""


def test_base_install_imports_and_trains_without_extras(site, tmp_path):
    code = BASE_INSTALL.format(extras=EXTRAS)
    said = json.loads(run([sys.executable, "-W", "error", "-c", code], tmp_path, PYTHONPATH=str(site)).stdout)
    assert Path(said["file"]).is_relative_to(site)
    assert said["accuracy"] > 0.2
    assert set(said["labels"]) <= set("0123456789")


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment_runs_the_demo(wheel, tmp_path):
    """The one test that downloads: the base dependencies, in the versions of constraints.txt, and nothing else."""
    run([sys.executable, "-m", "venv", str(tmp_path / "env")], tmp_path)
    pip = [str(tmp_path / "env" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel)], tmp_path, seconds=900)
    said = run([str(tmp_path / "env" / "bin" / "grapevine"), "demo", "--out", "demo"], tmp_path, seconds=600).stdout
    assert "Expected accuracy" in said and (tmp_path / "demo" / "report.html").exists()
    installed = {line.split("==")[0].lower() for line in run([*pip, "list", "--format", "freeze"], tmp_path).stdout.split()}
    assert "torch" in installed and not installed & {"flwr", "gmpy2", "pandas", "polars", "datasets", "cleanlab", "opacus"}


def test_command_of_the_wheel_answers(site, tmp_path):
    command = next((site / "bin").glob("grapevine*"))
    assert "Usage: grapevine" in run([str(command), "--help"], tmp_path, PYTHONPATH=str(site)).stdout
    version = run([str(command), "--version"], tmp_path, PYTHONPATH=str(site)).stdout
    assert version.strip().endswith(__version__)


HELP = """
import json, sys, time
from grapevine.cli.main import main
main(["--help"], standalone_mode=False)
heavy = [name for name in ("torch", "numba", "numpy", "scipy", "sklearn") if name in sys.modules]
print(json.dumps(dict(seconds=time.process_time(), heavy=heavy)), file=sys.stderr)
"""


def test_help_is_quick_and_loads_nothing_heavy(site, tmp_path):
    """Processor time of the whole process, its start included; the best of three, since others use the machine too."""
    runs = [run([sys.executable, "-c", HELP], tmp_path, PYTHONPATH=str(site)).stderr for _ in range(3)]
    said = [json.loads(text.splitlines()[-1]) for text in runs]
    assert said[0]["heavy"] == []
    assert min(each["seconds"] for each in said) < 0.5
