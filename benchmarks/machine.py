"""What a benchmark says about itself: the machine, the versions, the date, the commit; how it counts processor time; how its
numbers get into the pages; and the environments of the peers it runs beside."""

from __future__ import annotations

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
    """The Python of a peer's own environment, made once: packages at our pinned versions, then those our pins do not suit."""
    folder = Path(__file__).parent / ".environments" / name
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    ready = folder / "ready"  # an installation that broke off is begun anew
    if not ready.exists():
        print(f"making an environment for {name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for package in pinned:
            subprocess.run([python, "-m", "pip", "install", "-q", "-c", PINS, package], check=True)
        for package in free:
            subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
        ready.touch()
    return python


def write(script: str, result: dict) -> None:
    """The result as JSON beside the script."""
    path = Path(script).with_suffix(".json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.name}")


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
    texts = [head, *[tuple(_text(cell) for cell in row) for row in rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))) for row in texts
    )


def _text(cell: Any) -> str:
    return f"{cell:,.3g}" if isinstance(cell, float) and cell < 100 else f"{cell:,.0f}" if isinstance(cell, float) else str(cell)
