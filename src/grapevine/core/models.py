"""Files of models: why a folder has none, and their tensors, read with a sentence for a file that is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grapevine.core.errors import Mistake

MODEL, HEADS = "model.safetensors", "heads.safetensors"  # of a training run, and of a label job


def model_file(folder: str | Path) -> Path:
    """The model of a finished run."""
    path = Path(folder) / MODEL
    if not path.is_file():
        raise Mistake(f"{folder} holds no {MODEL}, because {_reason(Path(folder))}.")
    return path


def _reason(folder: Path) -> str:
    """Why there is no model, and what to name in its place."""
    if not folder.is_dir():
        return f"there is no {'such folder' if not folder.exists() else 'folder of that name but a file'}: check the path"
    result, settings = _read(folder / "result.json"), _read(folder / "settings.json")
    method = result.get("method", "its method")
    if (folder / "compare.json").is_file():
        made = sorted(folder.glob(f"runs/**/{MODEL}"))
        return f"it is a comparison: name one of its runs{f', as in {made[0].parent}' if made else ''}"
    if (folder / HEADS).is_file():
        return "its models only label later rows: name the folder of a training run"
    if result.get("job") == "label" and method != "xclp" and not (result.get("settings") or {}).get("groups", 1) > 1:
        return "this label job left no models for later rows: name a party's own folder, or label again"
    if result.get("job") == "label":
        how, way = ("by xclp", "by chorus") if method == "xclp" else ("in groups", "in one group")
        return f"labels {how} leave no model for later rows: label again {way}, or label these rows as a party's"
    if result.get("job") == "clean":
        return "a clean job leaves none: train on the labels that it left, and name that run"
    if result:
        return f"{method} leaves its models at the clients, or the network was an object: train another method, by names"
    if settings:
        return "the run has not finished: wait for it, or continue it with --resume"
    return "it is not the folder of a finished `grapevine train` run: name one that is"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_tensors(path: Path, kind: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """What Grapevine noted in a file of tensors, and the tensors (`kind` pt) or arrays (np) in it."""
    try:
        with safe_open(path, kind) as file:
            return json.loads(file.metadata()["grapevine"]), {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        raise Mistake(
            f"{path} is damaged or was not written by Grapevine: copy it again, or repeat the job that made it."
        ) from None
