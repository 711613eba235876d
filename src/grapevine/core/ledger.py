"""A party's ledger of releases: which of its rows went into which sum, with whom, and how. It outlives rounds, restarts and jobs.

Two exact sums of the same rows, one over {a, b, c} and one over {a, b}, differ by what c put in. So rows that were once summed
exactly with one set of parties are not summed with another, unless a person has said so (`allow`). Within one job a set may
shrink, when a party is lost; it never grows, and never changes otherwise.

    privacy.jsonl   a line per release, appended and flushed to disk before anything is masked; every line has the hash of the one
                    before it, so a line that is changed or taken out of the middle shows
    privacy.key     the secret under which rows and lines are hashed: a stolen ledger alone says nothing about rows

A ledger without a folder keeps its lines in memory, for simulations and tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import numpy as np

from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData

ROW_BYTES = 8  # of a row's hash: two different rows of a million have the same one with probability 3e-8
SAME_ROWS = 0.1  # two tables that share this part of the smaller one count as the same rows
START = "0" * 64


class Ledger:
    """Releases of one party, or of several that share a machine. `folder`: where they are kept; None: in memory."""

    def __init__(self, folder: str | Path | None = None):
        self.path = None if folder is None else Path(folder) / "privacy.jsonl"
        self._lines: list[dict[str, Any]] = []
        self._end, self._size = START, 0  # the last line's hash, and the bytes that were read
        self._tables: dict[str, np.ndarray] = {}  # hashes of rows, by the digest of the whole
        self._last: tuple[ClientData, str] | None = None  # the rows that were digested last
        self._lock = threading.RLock()
        self._key = secrets.token_bytes(32) if self.path is None else _key(self.path.with_name("privacy.key"))

    # ------------------------------------------------------------ rows

    def rows(self, data: ClientData) -> str:
        """A digest of a party's rows, by which releases name them. Neither order nor labels matter: a row that is labelled later
        is the same row. What is written down of a row is a hash under the ledger's secret."""
        if self._last is not None and self._last[0] is data:  # a job forms many sums of the same rows
            return self._last[1]
        flat = [self._stable(rows.flat(), data.columns) for rows in (data.labelled, data.unlabelled) if len(rows)]
        hashed = [hmac.digest(self._key, row.tobytes(), "sha256")[:ROW_BYTES] for table in flat for row in table]
        table = np.unique(np.frombuffer(b"".join(hashed), np.uint64))
        digest = hmac.digest(self._key, table.tobytes(), "sha256").hex()
        with self._appending() as append:
            if digest not in self._tables:
                append(dict(kind="rows", rows=digest, table=base64.b64encode(table.tobytes()).decode()))
        self._last = data, digest
        return digest

    def _stable(self, table: np.ndarray, columns: Iterable[Any]) -> np.ndarray:
        """Rows that stay the same when others are added: a category is a number of its value, not its place in a list."""
        table = np.ascontiguousarray(table)
        for j, column in enumerate(columns):
            if column.values:
                words = [hmac.digest(self._key, value.encode(), "sha256")[:6] for value in column.values]
                known = ~np.isnan(table[:, j])
                numbers = np.array([int.from_bytes(word, "big") for word in words], np.float64)
                table[known, j] = numbers[table[known, j].astype(np.int64)]
        return table

    def same(self, a: str, b: str) -> bool:
        """Whether two digests are of the same rows, but for a few."""
        if a == b:
            return a in self._tables and len(self._tables[a]) > 0
        one, other = (self._tables.get(name, np.empty(0, np.uint64)) for name in (a, b))
        shared = len(np.intersect1d(one, other, assume_unique=True))
        return shared > 0 and shared >= SAME_ROWS * min(len(one), len(other))

    # ------------------------------------------------------------ releases

    def release(self, *, job: str, what: str, rows: str, parties: Iterable[str],
                mechanism: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        """Write a release down, before it is made. `job` is the agreement that it belongs to, `what` the sum, `rows` what `rows`
        gave, `parties` all that are in the sum; `mechanism` is None for an exact sum, else it says how: dict(kind="gaussian", …).

        An exact sum of rows that were summed exactly with other parties is refused.
        """
        names = sorted(parties)
        with self._appending() as append:
            if mechanism is None:
                problem = self._problem(job, rows, names)
                if problem:
                    raise Mistake(problem)
            append(dict(kind="release", job=job, what=what, rows=rows, parties=names, mechanism=dict(mechanism or {}) or None))

    def problem(self, rows: str, parties: Iterable[str], job: str = "") -> str | None:
        """The sentence that would refuse an exact sum of these rows over these parties; None if it may be made."""
        with self._appending():
            return self._problem(job, rows, sorted(parties))

    def allow(self, *, rows: str, parties: Iterable[str]) -> None:
        """A person has agreed that these rows are summed with these parties, whatever was summed before."""
        with self._appending() as append:
            append(dict(kind="allowed", rows=rows, parties=sorted(parties)))

    def lines(self) -> list[dict[str, Any]]:
        """All lines, in order; a `Mistake` if one of them was changed."""
        with self._appending():
            return [dict(line) for line in self._lines]

    def save(self, folder: str | Path) -> None:
        """What was kept in memory, as the files of a ledger in an empty place."""
        place = Path(folder)
        with self._lock, open(os.open(place / "privacy.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as key:
            key.write(self._key)
            text = "".join(json.dumps(line) + "\n" for line in self._lines)
            with open(
                os.open(place / "privacy.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(text)

    def _problem(self, job: str, rows: str, names: list[str]) -> str | None:
        """What counts is each job's last set, since within a job sets only shrink; and nothing from before a permission."""
        seen = set()
        for line in reversed(self._lines):
            if line["kind"] == "rows" or line.get("mechanism") or not self.same(line["rows"], rows):
                continue
            before = set(line["parties"])
            if line["kind"] == "allowed":
                if before == set(names):
                    return None
                continue
            shrunk = line["job"] == job and set(names) < before
            if line["job"] not in seen and before != set(names) and not shrunk:
                return (
                    f"these rows were summed with {_list(before)} on {line['time'][:10]}, but now a sum with {_list(names)} is "
                    f"asked for: the difference would show the part of {_list(before ^ set(names))}; only a person here can "
                    "allow it."
                )
            seen.add(line["job"])
        return None

    # ------------------------------------------------------------ the file

    @contextmanager
    def _appending(self) -> Iterator[Any]:
        """One process and one thread at a time, with all lines read; gives a function that appends a line."""
        with self._lock:
            if self.path is None:
                yield lambda entry: self._take(self._line(entry))
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
                _hold(file)
                self._read(file)
                yield lambda entry: self._write(file, entry)

    def _line(self, entry: dict[str, Any]) -> dict[str, Any]:
        line = dict(time=datetime.now(timezone.utc).isoformat(timespec="seconds"), **entry, before=self._end)
        return dict(line, hash=self._hash(line))

    def _write(self, file: IO[bytes], entry: dict[str, Any]) -> None:
        line = self._line(entry)
        data = json.dumps(line).encode() + b"\n"
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        self._size += len(data)
        self._take(line)

    def _read(self, file: IO[bytes]) -> None:
        """What was added since the last look. A torn last line was never a release: what it announces was not masked."""
        file.seek(self._size)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        for text in whole.splitlines():
            try:
                line = json.loads(text)
                good = line["before"] == self._end and hmac.compare_digest(line["hash"], self._hash(line))
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                number = len(self._lines) + 1
                raise Mistake(f"line {number} of {self.path} was changed: restore the file, or find out who changed it.")
            self._take(line)
        self._size += len(whole)
        if len(data) > len(whole):
            file.truncate(self._size)

    def _take(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        self._end = line["hash"]
        if line["kind"] == "rows":
            self._tables[line["rows"]] = np.frombuffer(base64.b64decode(line["table"]), np.uint64)

    def _hash(self, line: Mapping[str, Any]) -> str:
        text = json.dumps({name: value for name, value in line.items() if name != "hash"}, sort_keys=True)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def _key(path: Path) -> bytes:
    """The secret beside a ledger, made at the first look. Without it an old ledger cannot be read, and that is said."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # another process must never read half a key
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # somebody else was first: that key counts
            os.link(draft, path)
        draft.unlink()
    return path.read_bytes()


def _hold(file: IO[bytes]) -> None:
    """Wait for other processes to release the file; closing it releases it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: real parties run on Linux and macOS
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
