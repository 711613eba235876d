"""A job's settings as a TOML file. Every run writes one to its folder, and `--config FILE` reads it back.

A file holds the job's name, the command's arguments (a method, parties, the server's file) and its settings, under the names of
their flags. Paths are relative to the current folder, as on the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.param import Settings
from grapevine.core.store import write_atomically
from grapevine.core.words import hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "config.toml"


def write_config(folder: str | Path, settings: Settings, **arguments: Any) -> None:
    """Write all settings that a file can hold and a flag can express. Arrays and other objects are left out."""
    silent = {f.name for f in fields(settings) if not f.metadata.get("flag", True)}
    values = dict(job=settings.job, **arguments, **{n: v for n, v in settings.to_dict().items() if n not in silent})
    plain = {name: value for name, value in values.items() if value is not None and _plain(value)}
    lines = [f"# grapevine {settings.job} --config {FILE} --out DIR"]
    lines += [f"{name} = {_toml(value)}" for name, value in plain.items() if not isinstance(value, Mapping)]
    for name, table in plain.items():
        if isinstance(table, Mapping) and table:
            lines += ["", f"[{name}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in table.items())]
    write_atomically(Path(folder) / FILE, ("\n".join(lines) + "\n").encode())


def _plain(value: Any) -> bool:
    """Whether TOML has it; all parties must be paths, or none are named."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, (str, int, float, bool, Path)) for each in value)
    return isinstance(value, (str, int, float, bool, Path))


def _toml(value: Any) -> str:
    """JSON's numbers, words and strings are TOML's, too."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_config(path: str | Path, job: str, known: Iterable[str]) -> dict[str, Any]:
    """Read a file and check that it is for this job and that every name is one of `known`."""
    try:
        table = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistake(f"there is no file {path}: use the {FILE} in a run's folder.") from None
    except IsADirectoryError:
        raise Mistake(f"{path} is a folder: name the file in it, as in {Path(path) / FILE}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not valid TOML ({error}): correct it.") from None
    of = table.pop("job", job)
    if of != job:
        raise Mistake(f"{path} is for `grapevine {of}`, not for `grapevine {job}`.")
    said = {name.replace("-", "_"): value for name, value in table.items()}
    words = list(known)
    for name in said:
        if name not in words:
            raise Mistake(f"{path}: {job} has no setting '{name}'{hint(name, words)}: it has {', '.join(words)}.")
    return said
