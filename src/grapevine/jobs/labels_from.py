"""Training on the labels that a finished label job left: a folder per party with labels.csv in it.

Parties are matched by name. Rows are matched by their ids where the data has any (a table with an id column, a folder of images),
else by their numbers, from 1, in the order in which the split holds them: labelled rows, then the others. Then both must have the
same number of rows. A label that both sides know must be the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grapevine.core.errors import Mistake
from grapevine.data.sheets import read_text_columns
from grapevine.data.split import Part, Split
from grapevine.run.folder import read_json

FILE = "labels.csv"


@dataclass(frozen=True)
class Found:
    """A row of labels.csv: its label (None: none), how sure it is, and the label that was given (None: none)."""

    label: str | None
    confidence: float
    given: str | None


def with_labels(split: Split, folder: str | Path, least: float = 0.0) -> Split:
    """The split with the job's labels where the clients have none, from this confidence on."""
    place = Path(folder)
    result = read_json(place / "result.json")
    if result is None or result.get("job", "label") != "label":
        held = f", but of a {result['job']} job" if result else ""
        raise Mistake(f"{folder} is not the folder of a finished label job{held}: give the --out of `grapevine label`.")
    digest, parts, new, held_out = hashlib.sha256(), [], 0, 0
    for name, part in zip(split.names, split.parts):
        path = _file(place, name)
        digest.update(path.read_bytes())
        found = _read(path)
        made = _labelled(split, part, name, found, path, least)
        held_out += _held_out(split, part, found)
        new += len(made.labelled) - len(part.labelled)
        parts.append(made)
    if not new:
        raise Mistake(f"{folder} has no further label with a confidence of {least:g} or more: use a smaller --min-confidence.")
    said = f"{digest.hexdigest()[:16]}, confidence {least:g} or more"
    job = dict(new=new, of=sum(len(part.labelled) for part in parts), held_out=held_out)
    return replace(split, parts=tuple(parts), settings={**split.settings, "labels_from": said, "job_labels": job})


def _held_out(split: Split, part: Part, found: dict[str, Found]) -> int:
    """Rows whose label the job was given, and which are neither this client's to train on nor the server's. Where rows have no
    ids, the job's rows are the client's, so there are none."""
    names = split.dataset.ids
    if not names:
        return 0
    trained = [part.labelled, part.unlabelled, *([split.server.labelled] if split.server else [])]
    known = {names[row] for row in torch.cat(trained).tolist() if row < len(names)}
    return sum(line.given is not None and id not in known for id, line in found.items())


def _file(place: Path, name: str) -> Path:
    path = place / name / FILE
    if not path.is_file():
        there = sorted(p.parent.name for p in place.glob(f"*/{FILE}"))
        shown = ", ".join(there[:5]) + (" …" if len(there) > 5 else "")
        raise Mistake(f"{place} has no folder with {FILE} for client '{name}', only for {shown or 'nobody'}: "
                      "use the same party names for labelling and training.")  # fmt: skip
    return path


def _read(path: Path) -> dict[str, Found]:
    columns = read_text_columns(path, ("id", "label", "confidence", "given"))
    try:
        rows = [(id, Found(label or None, float(sure), given or None)) for id, label, sure, given in zip(*columns.values())]
    except ValueError:
        raise Mistake(f"{path}: column 'confidence' holds something that is no number: label again.") from None
    found = dict(rows)
    if len(found) < len(rows):
        twice = next(id for i, (id, _) in enumerate(rows) if id in dict(rows[:i]))
        raise Mistake(f"{path} has the id '{twice}' twice, so rows cannot be matched: label with a unique --id.")
    return found


def _labelled(split: Split, part: Part, name: str, found: dict[str, Found], path: Path, least: float) -> Part:
    """The part with new labels: its own labelled rows first, then those that have one now."""
    rows = torch.cat([part.labelled, part.unlabelled]).tolist()
    ids = _ids(split, rows, name, found, path)
    number = {label: c for c, label in enumerate(split.dataset.classes)}
    new_rows, new_labels, rest = [], [], []
    for i, (row, id) in enumerate(zip(rows, ids)):
        line = found.get(id)
        own = split.dataset.classes[int(part.labels[i])] if i < len(part.labelled) else None
        if line is not None and own is not None and line.given not in (None, own):
            raise Mistake(f"{path}: row '{id}' was labelled '{line.given}' before, but the data says '{own}': "
                          "train on the rows that were labelled, and match them by --id.")  # fmt: skip
        if own is not None:
            continue
        if line is None or line.label is None or line.confidence < least:
            rest.append(row)
            continue
        if line.label not in number:
            known = ", ".join(list(number)[:8])
            raise Mistake(f"{path}: row '{id}' has the label '{line.label}', but the classes of the data are {known}.")
        new_rows.append(row)
        new_labels.append(number[line.label])
    return Part(_and(part.labelled, new_rows), _and(part.labels, new_labels), torch.tensor(rest, dtype=torch.int64))


def _and(tensor: torch.Tensor, more: list[int]) -> torch.Tensor:
    return torch.cat([tensor, torch.tensor(more, dtype=torch.int64)])


def _ids(split: Split, rows: Sequence[int], name: str, found: dict[str, Found], path: Path) -> list[str]:
    """What labels.csv calls these rows."""
    names = split.dataset.ids
    if names:
        ids = [names[row] if row < len(names) else "" for row in rows]  # foreign rows have no name
        if rows and not set(ids) & set(found):
            raise Mistake(f"no id of {path} is among those of client '{name}' (such as '{ids[0]}'): label with the same --id.")
        return ids
    if len(found) != len(rows):
        raise Mistake(f"{path} has {len(found)} rows but client '{name}' has {len(rows)} to train on: name a column of "
                      "unique ids with --id in both, so that rows can be matched.")  # fmt: skip
    return [str(i + 1) for i in range(len(rows))]
