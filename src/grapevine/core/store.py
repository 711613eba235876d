"""Content-addressed bytes: client memory, states and checkpoints are manifests of hashes into one of these.

Writing the same bytes twice writes them once; a crash leaves an orphan at worst, never a half-written object.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from grapevine.core import wire
from grapevine.core.places import writing_name


class RamStore:
    """Objects in a dict, for runs that keep nothing."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self.kept = self.added = 0  # bytes that were held after keep_only, and that were put since

    def put(self, data: bytes) -> str:
        name = wire.digest(data)
        self._objects[name] = data
        self.added += len(data)
        return name

    def get(self, name: str) -> bytes:
        return self._objects[name]

    def keep_only(self, names: Iterable[str]) -> None:
        wanted = set(names)
        self._objects = {name: data for name, data in self._objects.items() if name in wanted}
        self.kept, self.added = sum(map(len, self._objects.values())), 0


class FileStore:
    """Objects as files of a folder, each named by its SHA-256."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def put(self, data: bytes) -> str:
        name = wire.digest(data)
        path = self.folder / name
        if not path.exists():
            write_atomically(path, data)
        return name

    def get(self, name: str) -> bytes:
        data = (self.folder / name).read_bytes()
        if wire.digest(data) != name:
            raise wire.WireError(f"{self.folder / name} is damaged: its content does not have the hash it is named by")
        return data

    def keep_only(self, names: Iterable[str]) -> None:
        wanted = set(names)
        for path in self.folder.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)


Store = RamStore | FileStore


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """The whole file or nothing, also when the machine dies: write beside, flush to disk, rename. The umask narrows `mode`."""
    temporary = writing_name(path)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Memory(MutableMapping):
    """What a client keeps between steps: names to values of the codec, kept as bytes, so a value read is always a copy."""

    def __init__(self, store: Store, manifest: dict[str, str] | None = None):
        self._store = store
        self.manifest: dict[str, str] = dict(manifest or {})

    def __getitem__(self, name: str) -> Any:
        return wire.decode(self._store.get(self.manifest[name]))["value"]

    def __setitem__(self, name: str, value: Any) -> None:
        self.manifest[name] = self._store.put(wire.encode({"value": value}))

    def __delitem__(self, name: str) -> None:
        del self.manifest[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest)

    def __len__(self) -> int:
        return len(self.manifest)
