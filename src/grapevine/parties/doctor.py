"""`grapevine doctor`: whether this machine can take part, in a line each with the way out."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.data.pictures import read_images
from grapevine.data.tables import read_table
from grapevine.parties.agreement import Agreement
from grapevine.parties.keys import Token, read_token
from grapevine.parties.processes import free_port
from grapevine.parties.registry import HostLink, Refused, check_clock, short
from grapevine.parties.rows import Source, read_rows

FLOWER = "1.41.0"  # the version that this was written for; others move what we use
MEMORY_GB = 2.0  # a SuperNode, and a process with torch
DISK_GB = 1.0
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "numba", "cryptography", "pyarrow", "safetensors", "click", "rich")


@dataclass(frozen=True)
class Finding:
    what: str
    good: bool | None  # None: could not be looked at
    sentence: str


def examine(token: str | None = None, source: Source | None = None, home: Path | None = None) -> Iterator[Finding]:
    """All findings, one after another: some take a moment."""
    home = home or Path.home()
    yield _try("Python", _python)
    yield _try("packages", _packages)
    yield _try("Flower", _flower)
    yield _try("ports", _ports)
    yield _try("memory", _memory)
    yield _try("disk", lambda: _disk(home))
    if token is None:
        yield _try("clock", _clock)
        if source:
            yield _try("data", lambda: _table(source))
        return
    told: dict[str, Any] = {}
    steps: list[tuple[str, Callable[[Token], str]]] = [
        ("DNS", _dns), ("reachable", _reach), ("TLS", _tls), ("invitation", lambda t: _invitation(t, told)),
        ("clock", lambda t: _host_clock(told)), ("version", lambda t: _version(told)),
    ]  # fmt: skip
    if source:
        steps.append(("data", lambda t: _fits(source, told, t)))
    try:
        invitation = read_token(token)
    except Mistake as mistake:
        yield Finding("invitation", False, str(mistake))
        return
    broken = False
    for what, look in steps:
        finding = Finding(what, None, "not looked at.") if broken else _try(what, partial(look, invitation))
        yield finding
        broken = broken or (finding.good is False and what in ("DNS", "reachable", "TLS", "invitation"))


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Mistake as mistake:
        return Finding(what, False, str(mistake))


# ---------------------------------------------------------------- this machine


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))  # an older one than 3.10 does not come this far


def _packages() -> str:
    missing = [name for name in PACKAGES if _installed(name) is None]
    if missing:
        raise Mistake(f"{', '.join(missing)} missing: pip install grapevine-fl.")
    return ", ".join(f"{name} {_installed(name)}" for name in ("torch", "numpy", "cryptography"))


def _flower() -> str:
    found = _installed("flwr")
    if found != FLOWER:
        raise Mistake(f"{found or 'not installed'}, and {FLOWER} is needed: pip install 'grapevine-fl[flower]'.")
    missing = [name for name in ("flower-supernode", "flower-superlink", "flwr") if not _script(name)]
    if missing:
        raise Mistake(
            f"the command {missing[0]} is not beside {sys.executable}: install Grapevine and Flower in one environment."
        )
    return found


def _script(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ports() -> str:
    try:
        free_port()
    except OSError as error:
        raise Mistake(f"no port of 127.0.0.1 can be opened ({error.strerror}): a node needs one for its own processes.") from None
    return "a port on 127.0.0.1 can be opened; nothing needs to be reachable from outside at a party."


def _memory() -> str:
    free = free_memory_gb()
    if free is None:
        return "this system does not tell; a party needs about 2 GB."
    if free < MEMORY_GB:
        raise Mistake(f"{free:.1f} GB free, and a party needs about {MEMORY_GB:g} GB: close something.")
    return f"{free:.1f} GB free."


def free_memory_gb() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20
    except (OSError, StopIteration, ValueError):
        return None


def _disk(home: Path) -> str:
    there = next(p for p in [home, *home.absolute().parents] if p.exists())
    free = shutil.disk_usage(there).free / 2**30
    if free < DISK_GB:
        raise Mistake(f"{free:.1f} GB free in {there}, and {DISK_GB:g} GB are needed: make room, or take another --home.")
    if not os.access(there, os.W_OK):
        raise Mistake(f"{there} cannot be written to: take another --home.")
    return f"{free:.1f} GB free in {there}."


def _clock() -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}; give the invitation to compare it with the host's."


def _table(source: Source) -> str:
    if Path(source.path).expanduser().is_dir():
        found = read_images(source.path)
        rows, of, labels = len(found.ids), f"images of {'×'.join(map(str, found.x.shape[1:]))}", found.labels
    else:
        read = read_table(source.path, source.label, source.id)
        rows, of, labels = len(read), f"{len(read.columns)} features", read.labels
    known = sum(name is not None for name in labels)
    return f"{rows} rows, {of}, {known} labelled; give the invitation to compare with the federation."


# ---------------------------------------------------------------- the host


def _dns(token: Token) -> str:
    try:
        found = socket.getaddrinfo(token.address, token.port, type=socket.SOCK_STREAM)
    except OSError:
        raise Mistake(f"the name {token.address} is not known here: check the network and DNS.") from None
    return f"{token.address} is {found[0][4][0]}."


def _reach(token: Token) -> str:
    began = time.monotonic()
    try:
        socket.create_connection((token.address, token.port), timeout=10).close()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Mistake(
            f"{token.address}:{token.port} cannot be reached ({why}): is `grapevine host` running, and may this machine open "
            f"outgoing TCP connections to port {token.port}?"
        ) from None
    return f"{token.address}:{token.port} answers in {1000 * (time.monotonic() - began):.0f} ms."


def _tls(token: Token) -> str:
    link = HostLink(token).check_ca()
    try:
        link.call("settings")  # over the connection that is checked: name, chain, dates
    except Refused:
        pass
    return f"the certificate is the invitation's ({short(token.ca)})."


def _invitation(token: Token, told: dict[str, Any]) -> str:
    link = HostLink(token).check_ca()
    told["before"] = time.time()
    told.update(link.call("settings"))
    told["after"] = time.time()
    agreed = Agreement.from_dict(told["agreed"])
    return f"{token.name} in {agreed.name}: job {agreed.job}, with {', '.join(p for p in told['parties'] if p != token.name)}."


def _host_clock(told: dict[str, Any]) -> str:
    ahead = check_clock(told["time"], told["before"], told["after"])
    return f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the host's."


def _version(told: dict[str, Any]) -> str:
    Agreement.from_dict(told["agreed"]).made  # noqa: B018, which compares versions and settings
    return f"Grapevine {told['version']} at both."


def _fits(source: Source, told: dict[str, Any], token: Token) -> str:
    rows = read_rows(source, Agreement.from_dict(told["agreed"]), token.name)
    known, shape = sum(name is not None for name in rows.labels), "×".join(map(str, rows.x.shape[1:]))
    return f"{source.path} fits: {len(rows.ids)} rows of {shape}, {known} labelled, classes {', '.join(rows.classes)}."
