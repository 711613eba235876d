"""Where results go: places are checked before any work begins, and what cannot be written is a sentence."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grapevine.core.errors import Mistake


def make_folder(path: Path, way: str = "choose another --out") -> None:
    """A folder for results, if there is none yet."""
    with writing(f"{path} cannot be a folder", way):
        path.mkdir(parents=True, exist_ok=True)


def require_folder(path: Path, way: str = "choose another --out") -> None:
    """Before any work, refuse a folder for results that cannot be made or written to. Nothing stays behind."""
    missing = [place for place in (path, *path.parents) if not os.path.exists(place)]
    try:
        make_folder(path, way)
        with writing(f"{path} cannot be written to", way), tempfile.TemporaryFile(dir=path):
            pass
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def require_file(path: Path, way: str = "choose another --out") -> None:
    """Before any work, refuse a file for results that cannot be written. Nothing stays behind, and what is there stays."""
    if os.path.isdir(path):
        raise Mistake(f"{path} is a folder: name a file in it, as in {path / 'result'}, or {way}.")
    if not os.path.isdir(path.absolute().parent):
        raise Mistake(f"there is no folder {path.parent} for {path.name}: make it, or {way}.")
    there = os.path.exists(path)
    with writing(f"{path} cannot be written", way):
        open(path, "ab").close()
        if not there:
            path.unlink()


@contextmanager
def writing(what: str, way: str) -> Iterator[None]:
    """An error of the operating system becomes a sentence."""
    try:
        yield
    except OSError as error:
        raise Mistake(f"{what} ({(error.strerror or str(error)).lower()}): {way}.") from None


def writing_name(path: Path) -> Path:
    """Where a file or a folder is written before it is moved into place: beside it, under a name that is never too long."""
    return path.with_name(f".writing-{os.getpid()}-{threading.get_ident()}-{path.name[:40]}")
