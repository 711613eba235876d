"""`grapevine forget`: delete what a job left at a party, and show what remains."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grapevine.core.errors import Mistake
from grapevine.parties.files import read_if_there, write_toml
from grapevine.parties.keys import read_token
from grapevine.parties.memory import clean_up
from grapevine.run.folder import lock

GONE = ("identity.pem", "node.key", "node.pub", "ca.crt", "log.txt", "log")
CLEANED = ("memory", "memory.json", "rows.npy", "rows.json", "flower", "epoch.txt", "inbox.bin", "node.txt")  # by `clean_up`
SIGNS = ("party.toml", "identity.pem", "rows.json")  # a party's folder has one of them, even if `join` was killed early
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
    stays, because the next job is checked against it.
    """
    if not any((folder / name).exists() for name in SIGNS) or (folder / "federation.toml").exists():
        raise Mistake(f"{folder} is not the folder of a party: give the one that `grapevine join` created (--home).")
    with lock(folder / "lock"):
        secrets = _secrets(folder)
        clean_up(folder)
        for path in (*(folder / name for name in GONE), *folder.rglob(".writing-*")):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        stays = next((path for path in (folder / name for name in (*GONE, *CLEANED)) if path.exists() or path.is_symlink()), None)
        if stays:
            raise Mistake(f"{stays} could not be deleted: check its owner and permissions, delete it by hand, and repeat this.")
        about = read_if_there(folder / "party.toml")
        if about:
            write_toml(folder / "party.toml", {name: value for name, value in about.items() if name not in SECRETS}, secret=True)
        left = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}
    for path, data in left.items():
        if any(secret in data for secret in secrets):
            raise Mistake(f"{path} still holds a secret of the job: delete it by hand.")
    return [Remains(str(path.relative_to(folder)), len(data), hashlib.sha256(data).hexdigest()) for path, data in left.items()]


def _secrets(folder: Path) -> list[bytes]:
    """Bytes that nothing may hold afterwards."""
    about, found = read_if_there(folder / "party.toml"), []
    if "token" in about:
        found.append(about["token"].encode())
        with suppress(Mistake):  # a damaged one is no reason not to forget
            secret = read_token(about["token"]).secret
            found += [secret, secret.hex().encode()]
    if "seed" in about and about["agreed"].get("seed") is None:  # one that was agreed on is no secret
        found.append(str(about["seed"]).encode())
    for name in ("identity.pem", "node.key"):
        if (folder / name).exists():
            found += (folder / name).read_bytes().splitlines()[1:2]
    return [secret for secret in found if len(secret) > 8]
