"""What a benchmark says about itself: the machine, the versions, the date, the commit; where its data is; how it counts processor
time; how its numbers get into the pages; and the environments of the peers it runs beside."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent  # of the repository: README.md and docs/
PINS = ROOT / "constraints.txt"
PACKAGES = ("grapevine-fl", "numpy", "scipy", "scikit-learn", "numba", "torch", "cryptography", "gmpy2")

DATA = Path(os.environ.get("GRAPEVINE_DATA") or ROOT.resolve().parent / "shared" / "data").expanduser()
FILES = {  # made by prepare.py, but for the last two
    "fashion-mnist": "fashion_mnist.npz",
    "mnist": "mnist_writers.npz",
    "cifar10": "cifar10_20k5k.npz",
    "cifar10-lite0": "cifar10_lite0_256.npz",
    "femnist": "femnist_leaf.npz",
    "derma": "dermamnist28.npz",
}
CLAIMS = {  # which scripts of claims/ read a data set; A4 and P4 read none
    "fashion-mnist": "m1 m2 m3",
    "mnist": "m1 m2 m3 x5 x6",
    "cifar10-lite0": "a1 a2 a3 a5 a6 p1 p2 p3 p5 p6 p7 p8 x1 x4 x5 x6 x7 x8",
    "femnist": "x1 x2",
    "derma": "x3",
}


def need(*names: str) -> None:
    """Stops with one sentence, before any work, if the file of one of these data sets is not there."""
    missing = [FILES[name] for name in names if not (DATA / FILES[name]).is_file()]
    if missing:
        raise SystemExit(
            f"{DATA} lacks {' and '.join(missing)}: say GRAPEVINE_DATA=FOLDER if another folder has what is missing, or run"
            " `python benchmarks/prepare.py`, which makes it or says where to get it."
        )


def data_of(script: str) -> Path:
    """The folder of the data, if what this claim reads is in it. Other programs that import the claims' modules may lack it."""
    need(*[name for name, claims in CLAIMS.items() if Path(script).stem in claims.split()])
    return DATA


def about() -> dict[str, Any]:
    """For the head of a result: numbers of two runs compare as ratios within a run, not as seconds."""
    return dict(
        cpu=_cpu(),
        cores=os.cpu_count(),
        load=round(os.getloadavg()[0], 1),
        system=platform.system(),
        python=platform.python_version(),
        versions={name: found for name in PACKAGES if (found := _version(name))},
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def environment(name: str, pinned: tuple[str, ...] = (), free: tuple[str, ...] = ()) -> Path:
    """The Python of a peer's own environment, made once: packages at our pins, then those that our pins do not suit, with
    what pip is to be told before their names."""
    folder = Path(__file__).parent / ".environments" / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = folder / "ready"  # an installation that broke off is begun anew
    if not ready.exists():
        print(f"making an environment for {name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for package in pinned:
            subprocess.run([python, "-m", "pip", "install", "-q", "-c", PINS, package], check=True)
        for package in free:
            subprocess.run([python, "-m", "pip", "install", "-q", *package.split()], check=True)
        ready.touch()
    return python


def fingerprint(script: Path) -> str:
    """A script by what it does: comments and layout do not count."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def seed_counts(numbers: Any) -> set[int]:
    """How many seeds the means within have; those of nothing are left out."""
    if not isinstance(numbers, dict):
        return set()
    if "mean" in numbers:
        return {len(numbers.get("seeds", ()))} - {0}
    return set().union(*map(seed_counts, numbers.values()))


def write(script: str, result: dict) -> None:
    """The result as JSON beside the script."""
    path = Path(script).with_suffix(".json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.name}")


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A result that is made once."""
    if not path.exists():
        result = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(result))
        path.with_suffix(".new").replace(path)
    return json.loads(path.read_text())


def fill(page: Path, mark: str, text: str) -> None:
    """Puts a text between `<!-- made by benchmarks/MARK -->` and the next `<!-- end -->` of a page."""
    place = re.compile(rf"(?<=<!-- made by benchmarks/{re.escape(mark)} -->\n).*?(?=<!-- end -->)", re.S)
    new, count = place.subn(lambda _: f"\n{text}\n\n", page.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{page.name} has {count} places for {mark}, not one")
    page.write_text(new, encoding="utf-8")


def markdown(head: tuple[str, ...], rows: list[tuple]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Threads of a matrix library spin while they wait, and that counts as processor time: so one thread."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield


class Stopwatch:
    """Processor seconds of this process, all its threads, added up by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, function: Callable, *args: Any) -> Any:
        start = time.process_time()
        out = function(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
        return out


def table(head: tuple[str, ...], rows: list[tuple]) -> str:
    """Columns as wide as they need; numbers to the right."""
    texts = [head, *[tuple(text(cell) for cell in row) for row in rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))) for row in texts
    )


def text(cell: Any) -> str:
    return f"{cell:,.3g}" if isinstance(cell, float) and cell < 100 else f"{cell:,.0f}" if isinstance(cell, float) else str(cell)
