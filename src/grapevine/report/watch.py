"""`grapevine watch`: the page of a running job, or the index of a folder, made again whenever its files change.

A web server on this machine alone. Other users of the machine can reach its port too, so an address without the secret word that
was printed at the start gets nothing. Neither does a request under a name other than this machine's own, so that no other web
page can reach it through the browser. It only reads.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.core.words import duration, many
from grapevine.report import make
from grapevine.report.files import is_run
from grapevine.report.index import found
from grapevine.report.page import Page
from grapevine.report.parts import Card, Part, Table
from grapevine.run.folder import read_json, read_lines

WATCHED = ("result.json", "settings.json", "compare.json", "history.jsonl", "messages.jsonl", "times.jsonl", "progress.jsonl",
           "failed.json", "lock")  # fmt: skip
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
           "X-Frame-Options": "DENY"}  # fmt: skip
MOST_STEPS = 40  # of a host's progress that are shown


class Watch(ThreadingHTTPServer):
    """The server. `address` is what to open; `serve_forever` until `shutdown`."""

    daemon_threads = True

    def __init__(self, folder: str | Path, port: int = 0):
        self.folder, self.word = Path(folder).resolve(), secrets.token_urlsafe(24)
        self._pages: dict[Path, tuple[str, bytes]] = {}  # by folder: the version of its files, and the page made of them
        self._making = threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise Mistake(
                f"port {port} cannot be used ({getattr(error, 'strerror', None) or error}): choose another --port."
            ) from None
        self.names = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.word}/"

    def page(self, folder: Path) -> tuple[str, bytes]:
        """The version of a folder's files, and its page. One is made at a time, and only when something has changed."""
        with self._making:
            now = version(folder)
            if folder not in self._pages or self._pages[folder][0] != now:
                self._pages[folder] = now, replace(_page(folder), refresh=0, live=now).html().encode()
            return self._pages[folder]


class Handler(BaseHTTPRequestHandler):
    """GET /WORD/ is the page of the folder, /WORD/a/b/report.html that of a run below it, and …/version what it was made of."""

    server: Watch
    server_version, sys_version = "Grapevine", ""
    timeout = 30

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")][1:]
        if self.headers.get("Host", "").lower() not in self.server.names:
            return self._answer(HTTPStatus.FORBIDDEN, b"")
        if not secrets.compare_digest(parts[0].encode(), self.server.word.encode()):
            return self._answer(HTTPStatus.FORBIDDEN, b"")
        *inner, last = parts[1:] or [""]
        folder = self.server.folder.joinpath(*inner)
        if last not in ("", "index.html", "report.html", "version") or not self._mine(folder):
            return self._answer(HTTPStatus.NOT_FOUND, b"")
        if last == "version":
            return self._answer(HTTPStatus.OK, version(folder).encode(), "text/plain")
        self._answer(HTTPStatus.OK, self.server.page(folder)[1], "text/html")

    def _mine(self, folder: Path) -> bool:
        """Whether a folder is the watched one or a run below it; symbolic links are not followed."""
        top, real = self.server.folder, folder.resolve()
        return real == top or (real == folder and real.is_relative_to(top) and is_run(real))

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        about = HEADERS | {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: addresses have the secret word in them."""


def version(folder: Path) -> str:
    """Changes whenever a file does that the page is made of."""
    seen = hashlib.sha256()
    for path in _watched(folder):
        try:
            about = path.stat()
        except OSError:
            continue
        seen.update(f"{path} {about.st_mtime_ns} {about.st_size}\n".encode())
    return seen.hexdigest()[:16]


def _watched(folder: Path) -> Iterator[Path]:
    runs = [folder] if is_run(folder) else [folder, folder / "results", *found(folder)]
    for run in runs:
        yield from (run / name for name in WATCHED)


def _page(folder: Path) -> Page:
    """The page of a run, of a host at work, or the index of a folder; before there is any of them, a page that waits."""
    try:
        if is_run(folder / "results") and (folder / "results" / "result.json").is_file():
            return make(folder / "results")
        if (folder / "progress.jsonl").is_file():
            return _hosted(folder)
        return make(folder)
    except Mistake as mistake:
        waiting = f"Nothing to show in {folder.name} yet. This page changes as soon as there is."
        return Page(folder.name, "Watching", waiting, [("", [str(mistake)])], f"Grapevine {__version__}.")


def _hosted(folder: Path) -> Page:
    """A federation as its host sees it: who was asked for what, who answered, who did not."""
    lines = read_lines(folder / "progress.jsonl")
    asked = next((line for line in reversed(lines) if "asked" in line or "answered" in line), None)
    done = many(sum("answered" in line for line in lines), "exchange")
    heading = "The parties are not here yet."
    if asked is not None and "asked" in asked:
        who = many(len(asked["asked"]), "party", "parties")
        heading = f"Round {asked['round'] + 1}, step {asked['step']}: {who} asked, after {done}."
    elif asked is not None:
        heading = f"Round {asked['round'] + 1}, step {asked['step']}: {len(asked['answered'])} answered, after {done}."
    failed = read_json(folder / "failed.json") or {}
    rows = [[_clock(line), line["step"], line["round"] + 1, ", ".join(map(str, line["answered"])),
             ", ".join(map(str, line["missing"])) or "—", duration(line["seconds"])]
            for line in lines[::-1] if "answered" in line][:MOST_STEPS]  # fmt: skip
    said = [f"{_clock(line)} {line['sentence']}" for line in lines if "sentence" in line][-MOST_STEPS:]
    table = [Card("", [Table(["time", "step", "round", "answered", "missing", "took"], rows)])] if rows else []
    sections: list[tuple[str, list[Part]]] = [("Exchanges, newest first", [*table]), ("Left out", [*said])]
    notices = [str(failed["sentence"])] if failed.get("sentence") else []
    return Page(f"Host of {folder.name}", f"Host · {folder.name}", heading, sections, f"Made by Grapevine {__version__}.",
                notices=notices)  # fmt: skip


def _clock(line: dict) -> str:
    return datetime.fromtimestamp(line["time"]).strftime("%H:%M:%S")
