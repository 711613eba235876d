"""The host's audit log: who was invited, joined, was refused or left; every exchange; every bad reply.

audit.jsonl grows by one line for each event. A line holds the hash of the line before it and its own hash:

    {"n": 2, "time": "2026-01-31T12:00:00.000+00:00", "event": "joined", "party": "north", …, "salt": …, "before": …, "hash": …}
    hash = SHA-256("grapevine audit 1\\n" + the line without its hash, as JSON with sorted keys)

So a line that was changed, taken out or put in breaks the chain. Whoever may write the file can still make a whole new chain, or
cut off its end, but everybody who kept the last hash, as parties do, finds out (`holds`). A view without names may show hashes,
because nobody can try names until one gives the hash without knowing the random salt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from grapevine.core.errors import Mistake

FILE = "audit.jsonl"
FIRST = "0" * 64  # what stands before the first line
BLOCK = 2**16
ONE, SEVERAL = ("party",), ("parties", "asked", "answered", "missing")  # fields that name parties
SHOWN = ("n", "time", "event", "step", "round", "seconds", "status", "count", "hash")  # in a view without names


class Audit:
    """The log of a host's folder. Several processes may write: the host, its job, and `grapevine host --invite` beside them."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / FILE

    def write(self, event: str, **about: Any) -> None:
        """One more line, on the disk before this returns. What a crash left of a half-written line is cut off and reported."""
        with self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
            last, torn = self._tail(file)
            if torn:
                file.truncate(file.seek(0, os.SEEK_END) - torn)
                last = _append(file, last, "recovered", dict(count=torn))
            _append(file, last, event, about)
            file.flush()
            os.fsync(file.fileno())

    def note(self, told: Mapping[str, Any]) -> None:
        """A line of progress.jsonl: an exchange, or a sentence about one."""
        event = next((name for name in ("asked", "answered") if name in told), "said")
        self.write(event, **{name: value for name, value in told.items() if name != "time"})

    def lines(self) -> list[dict[str, Any]]:
        """All lines, checked; a `Mistake` for the first that does not fit."""
        found: list[dict[str, Any]] = []
        before = FIRST
        with self._open(os.O_RDONLY) as file:
            texts = file.read().split(b"\n")[:-1]  # the last is empty, or torn by a crash
        if not texts:
            raise Mistake(
                f"{self.path} has no lines, although the first is written when a federation is made: they were deleted."
            )
        for n, text in enumerate(texts, 1):
            line = _read(text)
            same = line is not None and json.dumps(line).encode() == text
            if line is None or not same or (line["n"], line["before"], line["hash"]) != (n, before, _hash(line)):
                raise Mistake(f"{self.path}, line {n}: this is not the line that was written, or one before it is missing. "
                              "Everything from here on may be forged: compare with a copy.")  # fmt: skip
            before = line["hash"]
            found.append(line)
        return found

    def last(self) -> str:
        """The hash of the last line: whoever keeps it can tell later whether the log still holds it."""
        with self._open(os.O_RDONLY) as file:
            return self._tail(file)[0]["hash"]

    @contextmanager
    def _open(self, how: int) -> Iterator[BinaryIO]:
        """The file for one process at a time."""
        import fcntl  # not on Windows, where nobody hosts

        try:
            opened = open(os.open(self.path, how, 0o600), "rb" if how == os.O_RDONLY else "rb+")
        except OSError as error:
            raise Mistake(
                f"{self.path} cannot be opened ({error.strerror}): give the folder that `grapevine host` made."
            ) from None
        with opened as file:
            fcntl.flock(file, fcntl.LOCK_SH if how == os.O_RDONLY else fcntl.LOCK_EX)
            yield file

    def _tail(self, file: BinaryIO) -> tuple[dict[str, Any], int]:
        """The last whole line, and how many bytes of a torn one follow it."""
        end = file.seek(0, os.SEEK_END)
        start, data = end, b""
        while start and data.rstrip(b"\n").count(b"\n") < 2:
            start = max(0, start - BLOCK)
            file.seek(start)
            data = file.read(end - start)
        whole = data[: data.rfind(b"\n") + 1]
        line = _read(whole.split(b"\n")[-2]) if whole else dict(n=0, hash=FIRST)
        if line is None:
            raise Mistake(f"{self.path} does not end with a line of an audit log: move it away and keep it for an investigation.")
        return line, len(data) - len(whole)


def _append(file: Any, last: Mapping[str, Any], event: str, about: Mapping[str, Any]) -> dict[str, Any]:
    line = dict(about, n=last["n"] + 1, time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"), event=event,
                salt=secrets.token_hex(16), before=last["hash"])  # fmt: skip
    line["hash"] = _hash(line)
    file.write(json.dumps(line).encode() + b"\n")
    return line


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(line, dict) and type(line.get("n")) is int and {"before", "hash", "time", "event", "salt"} <= line.keys()
    return line if whole else None


def _hash(line: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in line.items() if name != "hash"}, sort_keys=True)
    return hashlib.sha256(b"grapevine audit 1\n" + text.encode()).hexdigest()


def holds(lines: Iterable[Mapping[str, Any]], hash: str) -> bool:
    """Whether the log still has the line with this hash, or the beginning of it."""
    return len(hash) >= 8 and any(line["hash"].startswith(hash.lower()) for line in lines)


def without_names(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log for others: parties have numbers, in an order that only its owner knows; addresses, keys and texts are left out."""
    names = {name for line in lines for key in SEVERAL for name in line.get(key, ())}
    names |= {line[key] for line in lines for key in ONE if key in line}
    secret = lines[0]["salt"] if lines else ""
    order = sorted(names, key=lambda name: hashlib.sha256(f"{secret} {name}".encode()).digest())
    alias = {name: f"party {i}" for i, name in enumerate(order, 1)}
    shown = []
    for line in lines:
        view = {name: line[name] for name in SHOWN if name in line}
        view |= {key: alias[line[key]] for key in ONE if key in line}
        view |= {key: sorted(alias[name] for name in line[key]) for key in SEVERAL if key in line}
        about = [alias[name] for name in order if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line.get("sentence", ""))]
        shown.append(view | (dict(about=about) if about else {}))
    return shown
