"""What a job has left in its folder so far, read for its page: the files may still grow, or belong to something else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.run.folder import read_json, read_lines

ALONE = "alone"  # the method that clients are compared with


@dataclass(frozen=True)
class Files:
    """The files of a training run. `result` is None until it is finished; a run between parties has no `split`."""

    folder: Path
    settings: dict[str, Any]
    result: dict[str, Any] | None
    history: list[dict]
    messages: list[dict]
    times: list[dict]
    split: dict[str, Any] | None

    @property
    def data(self) -> dict[str, Any]:
        return self.settings["data"]

    @property
    def natural(self) -> bool:
        """Whether clients have names of their own."""
        return self.split is not None and self.split.get("groups") is not None and "table" in self.split

    def name(self, client: int | str) -> str:
        """A client as people call it: a party by its name."""
        if self.split is None and isinstance(client, str):
            return client
        return str(self.split["table"][int(client)]["client"]) if self.natural and self.split else f"client {client}"


def read(folder: str | Path) -> Files:
    """The files of a training run, finished or still going."""
    folder = Path(folder)
    settings = read_json(folder / "settings.json")
    if settings is None:
        raise Mistake(f"{folder} holds no run of Grapevine: give the folder that a run wrote (its --out).")
    lines = {name: read_lines(folder / f"{name}.jsonl") for name in ("history", "messages", "times")}
    return Files(folder, settings, read_json(folder / "result.json"), split=read_json(folder / "split.json"), **lines)


def is_run(folder: Path) -> bool:
    """Whether a folder is one that a job has left or is at work in."""
    if (folder / "compare.json").is_file():
        return True
    try:
        known = read_json(folder / "result.json") or read_json(folder / "settings.json") or {}
    except Mistake:
        return (folder / "history.jsonl").is_file() or (folder / "messages.jsonl").is_file()  # damaged, but ours
    return "version" in known and "settings" in known


def job_of(folder: Path) -> str:
    """What a folder holds, by its files: train, label, clean or compare."""
    if (folder / "compare.json").is_file():
        return "compare"
    known = read_json(folder / "result.json") or read_json(folder / "settings.json") or {}
    return str(known.get("job", "train"))


def compared_with(files: Files, against: str | Path | None) -> dict[str, Any] | None:
    """The result that clients are compared with: that of the run named, or of a run of `alone` beside this one."""
    split = files.data.get("split")
    if against is not None:
        settings, result = (read_json(Path(against) / f"{name}.json") for name in ("settings", "result"))
        if settings is None or result is None:
            raise Mistake(f"{against} holds no finished training run: name one on the same split, or leave --against out.")
        if settings["data"].get("split") != split:
            raise Mistake(
                f"{against} was made on another split than {files.folder}, so its clients differ: "
                f"make it with --split {files.folder / 'split.json'}."
            )
        return result
    if files.result is None or split is None or files.settings["method"] == ALONE:
        return None
    found = []
    for beside in sorted(files.folder.resolve().parent.iterdir()):
        try:
            settings, result = (read_json(beside / f"{name}.json") for name in ("settings", "result"))
        except (Mistake, OSError):
            continue  # somebody else's
        if settings and result and settings.get("method") == ALONE and settings["data"].get("split") == split:
            found.append((sum(settings[name] == files.settings[name] for name in ("model", "rounds")), result))
    return max(found, key=lambda pair: pair[0])[1] if found else None
