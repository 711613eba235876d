"""The small files of a federation: TOML, lines of JSON that another process is writing, and names, which become folders."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def read_toml(path: Path) -> dict[str, Any]:
    """Files are parsed again only when they change: a host with many parties reads them all the time."""
    import tomllib  # Python 3.11 has it, and so have all that can run Flower

    try:
        about = Path(path).stat()
        return copy.deepcopy(_parse(Path(path), about.st_ino, about.st_mtime_ns, about.st_size))
    except FileNotFoundError:
        raise Mistake(f"there is no {path}: give the folder that `grapevine host` or `grapevine join` created.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not valid TOML ({error}): correct it.") from None


@lru_cache(maxsize=16)
def _parse(path: Path, *version: int) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_if_there(path: Path) -> dict[str, Any]:
    return read_toml(path) if path.exists() else {}


def write_toml(path: Path, table: Mapping[str, Any], secret: bool = False) -> None:
    """The whole file or nothing. A value of None is left out, as TOML has none."""
    try:
        import tomli_w  # comes with Flower
    except ModuleNotFoundError:
        raise Mistake("real parties need Flower: pip install 'grapevine-fl[flower]'.") from None
    text = tomli_w.dumps({name: value for name, value in table.items() if value is not None})
    write_atomically(path, text.encode(), 0o600 if secret else 0o666)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file, the last of which may be half-written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def check_name(name: str, what: str = "party") -> str:
    if not NAME.fullmatch(name):
        raise Mistake(f"'{name}' cannot be the name of a {what}: use up to 40 letters, digits, - and _, as in north-clinic.")
    return name
