"""`grapevine doctor`: whether this machine can take part. Each check is a line with the way out."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.jobs import reading
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import CleanSettings
from grapevine.parties.agreement import Agreement
from grapevine.parties.keys import Token, check_clock, read_token
from grapevine.parties.policy import policy_file, read_policy
from grapevine.parties.registry import HostLink, short
from grapevine.parties.rows import read_rows
from grapevine.parties.settings import Source

FLOWER = "1.41.0"  # the version that this was written for; others move what we use
MEMORY_GB = 1.0  # a label job takes a third of it; training takes torch
DISK_GB = 1.0


@dataclass(frozen=True)
class Finding:
    what: str
    good: bool | None  # None: could not be looked at
    sentence: str


def examine(token: str | None, source: Source) -> Iterator[Finding]:
    """All findings, one after another: some take a moment."""
    home = Path(source.home or Path.home()).expanduser()
    looks: dict[str, Callable[[], str]] = dict(Python=_python, Flower=_flower, memory=_memory)
    looks["disk"] = lambda: _disk(home)
    host = _Host(token or "")
    if token:
        looks |= dict(invitation=host.read, host=host.reach, settings=host.settings, clock=host.clock, version=host.version)
    else:
        looks["clock"] = _clock
    path = policy_file(source.policy)
    if path:
        looks["policy"] = lambda: host.allowed(path) if token else _policy(path)
    if source.data:
        looks["data"] = lambda: host.fits(source) if token else _table(source)
    broken = False
    for what, look in looks.items():
        finding = Finding(what, None, "not looked at.") if broken else _try(what, look)
        yield finding
        broken = broken or (finding.good is False and what in ("invitation", "host", "settings"))
    if path is None:
        yield Finding("policy", None, "there is none, so you are asked about every job, and --yes agrees to all of them.")


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Mistake as mistake:
        return Finding(what, False, str(mistake))


# ---------------------------------------------------------------- this machine


def _python() -> str:
    versions = [f"{name} {_installed(name)}" for name in ("torch", "numpy", "cryptography")]
    return ", ".join([".".join(map(str, sys.version_info[:3])), *versions])


def _flower() -> str:
    found = _installed("flwr")
    if found != FLOWER:
        raise Mistake(f"{found or 'not installed'}, but {FLOWER} is needed: pip install 'grapevine-fl[flower]'.")
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


def _memory() -> str:
    free = free_memory_gb()
    if free is None:
        return "this system does not tell; a party needs about 2 GB."
    if free < MEMORY_GB:
        raise Mistake(f"{free:.1f} GB free, but a party needs about {MEMORY_GB:g} GB: close other programs.")
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
        raise Mistake(f"{free:.1f} GB free in {there}, but {DISK_GB:g} GB are needed: free some space, or choose another --home.")
    if not os.access(there, os.W_OK):
        raise Mistake(f"{there} cannot be written to: choose another --home.")
    return f"{free:.1f} GB free in {there}."


def _clock() -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}; give the invitation to compare it with the host's."


def _policy(path: Path) -> str:
    rest = read_policy(path).otherwise
    return f"{path} can be read; what it does not allow is {'asked of a person' if rest == 'ask' else 'refused'}."


def _table(source: Source) -> str:
    ((rows,), _) = reading.read(CleanSettings(label=source.label, id=source.id), [source.data])
    return f"{_told(rows)}; give the invitation to compare it with the federation."


def _told(rows: Party) -> str:
    n, shape = len(rows.ids), rows.x.shape[1:]
    table = f"{many(n, 'row')} with {many(shape[0], 'feature')}"
    told = f"{many(n, 'image')} of {shape[2]}×{shape[1]} pixels" if rows.image else table
    told += f", {sum(name is not None for name in rows.labels)} labelled"
    if len(rows.classes) == 1:
        return f"{told}, all of them {rows.classes[0]!r}: check that other parties have another class"
    return f"{told}, classes {', '.join(rows.classes)}" if rows.classes else told


# ---------------------------------------------------------------- the host


class _Host:
    """The host of an invitation, from its name to its settings: each step needs those before it."""

    def __init__(self, text: str):
        self.text = text
        self.token: Token
        self.agreed: Agreement
        self.told: dict[str, Any] = {}

    def read(self) -> str:
        self.token = read_token(self.text)
        return f"of {self.token.name} to {self.token.federation} at {self.token.address}:{self.token.port}."

    def reach(self) -> str:
        """The name, the port, and whether the certificate authority is the invitation's."""
        began = time.monotonic()
        self.link = HostLink(self.token).check_ca()
        took = 1000 * (time.monotonic() - began)
        return f"{self.link.place} answers in {took:.0f} ms, and its certificate is the invitation's ({short(self.token.ca)})."

    def settings(self) -> str:
        before = time.time()
        self.told = dict(self.link.call("settings"), before=before, after=time.time())
        self.agreed = Agreement.from_dict(self.told["agreed"])
        others = ", ".join(name for name in self.agreed.parties if name != self.token.name)
        return f"{self.agreed.name}: job {self.agreed.job}, with {others}."

    def clock(self) -> str:
        ahead = check_clock(self.told["time"], self.told["before"], self.told["after"])
        return f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the host's."

    def version(self) -> str:
        return f"Grapevine {self.told['version']} at both, method {self.agreed.made.name}."

    def allowed(self, path: Path) -> str:
        reasons = read_policy(path).outside(self.agreed, self.link.place)
        if reasons:
            rest = "a person is asked" if read_policy(path).otherwise == "ask" else "`join` refuses"
            raise Mistake(f"this federation has {reasons[0]} ({path}), so {rest}.")
        return f"{path} allows this federation without asking."

    def fits(self, source: Source) -> str:
        return f"{source.data} fits: {_told(read_rows(source, self.agreed, self.token.name))}."
