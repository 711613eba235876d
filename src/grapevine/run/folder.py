"""What a run writes to disk: the folder that it locks while it works, files that grow, and settings that must not change.

Files that grow (`history.jsonl`, `messages.jsonl`, `times.jsonl`) are appended to. A checkpoint remembers their lengths, so that
after a kill they are cut back and continue bit for bit. Seconds are only in `times.jsonl`; everything else repeats exactly.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from grapevine.core.errors import Mistake
from grapevine.core.places import make_folder
from grapevine.core.store import write_atomically
from grapevine.core.version import __version__


@contextmanager
def lock(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Lock a folder for this process, and wait up to `seconds` for another one to end. The operating system releases the lock
    however a process and its forks end."""
    until = time.monotonic() + seconds
    with open(path, "a+") as handle:
        while not _locked(handle):
            if time.monotonic() >= until:
                raise Mistake(f"{path.parent} is in use by another process: wait for it, or choose another folder.")
            time.sleep(0.1)
        yield


def _locked(handle: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


@contextmanager
def claim(out: Path, about: dict[str, Any], resume: bool, workers: int = 1) -> Iterator[None]:
    """Take a folder: a new one or, with `resume`, one that the same settings started and nobody is using."""
    if out.is_dir() and any(path.name != "lock" for path in out.iterdir()):
        if not resume:
            raise Mistake(f"{out} exists and is not empty: choose another --out, or continue it with --resume.")
        if not (out / "settings.json").exists():
            raise Mistake(f"{out} holds no run of Grapevine: choose another --out.")
        require_same(out, about)
    make_folder(out)
    with lock(out / "lock"):
        for left in out.rglob(".writing-*"):  # of a process that was killed
            left.unlink()
        if not (out / "settings.json").exists():
            command = "" if "grapevine" not in Path(sys.argv[0]).name else shlex.join(["grapevine", *sys.argv[1:]])
            versions = dict(python=platform.python_version(), torch=version("torch"), grapevine=__version__)
            text = json.dumps(dict(about, command=command, versions=versions, workers=workers), indent=1)
            write_atomically(out / "settings.json", text.encode())
        yield


def require_same(out: Path, about: dict[str, Any]) -> None:
    """Refuse to continue in a folder that other settings started."""
    before = json.loads((out / "settings.json").read_text())
    now = json.loads(json.dumps(about))
    for name, value in now.items():
        if name != "version" and before.get(name) != value:
            was, wanted = first_difference(before.get(name), value)
            raise Mistake(f"{out} was started with {name} {was}, not {wanted}: repeat its settings or choose another --out.")


def first_difference(a: Any, b: Any) -> tuple[str, str]:
    """The first difference between two settings, in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                was, wanted = first_difference(a.get(key), b.get(key))
                return f"{key} {was}", f"{key} {wanted}"
    return str(a), str(b)


def read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Mistake(f"{path} is not valid JSON ({error}); repeat the run, or restore the file from a copy.") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise Mistake(
            f"{path} should hold settings or results but holds a {kind}; repeat the run, or restore the file from a copy."
        )
    return value


def read_lines(path: Path) -> list[dict]:
    """The lines of a file that may be growing: a last line without its end is left for the next time."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    except ValueError as error:
        raise Mistake(f"{path} has a line that is not JSON ({error}); repeat the run, or restore the file from a copy.") from None


def running(folder: Path) -> bool:
    """Whether a process is working in the folder."""
    if not (folder / "lock").exists():
        return False
    try:
        with lock(folder / "lock"):
            return False
    except Mistake:
        return True
    except OSError:
        return False  # a folder that may only be read


class Lines:
    """A .jsonl file being written, or a list when there is no file."""

    def __init__(self, path: Path | None):
        self.path = path
        self._lines: list[dict] = []
        self._file: IO[bytes] | None = None

    def cut(self, length: int) -> None:
        """Begin, keeping the first `length` bytes of what is there."""
        if self.path is None:
            return
        self._file = open(self.path, "r+b" if self.path.exists() else "w+b")
        self._file.truncate(length)
        self._file.seek(0)
        self._lines = [json.loads(line) for line in self._file]

    def copy(self, path: Path, length: int) -> None:
        """Begin with the first `length` bytes of a file that another process writes."""
        self._lines = [json.loads(line) for line in path.read_bytes()[:length].splitlines()]

    def add(self, line: dict) -> None:
        self._lines.append(line)
        if self._file:
            self._file.write((json.dumps(line) + "\n").encode())
            self._file.flush()

    def flush(self) -> int:
        """Make sure of what was written; its length."""
        if self._file is None:
            return 0
        self._file.flush()
        return self._file.tell()

    @property
    def last(self) -> dict | None:
        return self._lines[-1] if self._lines else None

    def all(self) -> list[dict]:
        return list(self._lines)

    def close(self) -> None:
        if self._file:
            self._file.close()


def peak_memory_mb() -> float | None:
    """The most memory that this process has used so far; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
