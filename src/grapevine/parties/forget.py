"""`grapevine forget`: delete what a job left at a party, and show what remains."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.parties.files import read_toml, write_toml
from grapevine.parties.keys import read_token
from grapevine.parties.memory import clean_up
from grapevine.run.folder import lock

GONE = ("identity.pem", "node.key", "node.pub", "ca.crt", "log.txt")  # besides memory and rows
SECRETS = ("token", "seed", "used")  # lines of party.toml


@dataclass(frozen=True)
class Remains:
    """A file that is left: its path in the folder, its size, and its SHA-256."""

    path: str
    bytes: int
    sha256: str


def forget(folder: Path) -> list[Remains]:
    """Delete keys, seeds, rows, memory and logs of a party's folder; what remains, after looking for the secrets in it.

    Results, what was agreed, whom it was agreed with and the list of what left the machine stay. The ledger is elsewhere, and
    stays: it is what the next job is held to.
    """
    if not (folder / "party.toml").exists():
        raise Mistake(f"{folder} is not the folder of a party: give the one that `grapevine join` created (--home).")
    with lock(folder / "lock"):
        secrets = _secrets(folder)
        clean_up(folder)
        for name in GONE:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "log", ignore_errors=True)
        about = read_toml(folder / "party.toml")
        write_toml(folder / "party.toml", {name: value for name, value in about.items() if name not in SECRETS}, secret=True)
        left = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}
    for path, data in left.items():
        if any(secret in data for secret in secrets):
            raise Mistake(f"{path} still holds a secret of the job: delete it by hand.")
    return [Remains(str(path.relative_to(folder)), len(data), hashlib.sha256(data).hexdigest()) for path, data in left.items()]


def _secrets(folder: Path) -> list[bytes]:
    """Bytes that nothing may hold afterwards."""
    about, found = read_toml(folder / "party.toml"), []
    if "token" in about:
        found += [about["token"].encode(), read_token(about["token"]).secret]
    for name in ("identity.pem", "node.key"):
        if (folder / name).exists():
            found.append((folder / name).read_bytes().splitlines()[1])
    return found
