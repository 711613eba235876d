"""Who holds what: the charts of a split, for the page of a run and for the picture that `grapevine data show` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.places import require_file
from grapevine.core.words import count
from grapevine.data.split import Split
from grapevine.report.charts.files import save, sheet
from grapevine.report.charts.kinds import Names, bars, heat
from grapevine.report.parts import MOST_CLASSES, MOST_CLIENTS, Chart


def charts(split: dict[str, Any], classes: Sequence[str], name: Callable[[int], str]) -> list[Chart]:
    """Rows per client, then rows by true class and by given label as far as split.json has them; `name` gives a client's name."""
    n, table = len(split["clients"]), split.get("table", [])
    taken = [i * n // MOST_CLIENTS for i in range(MOST_CLIENTS)] if n > MOST_CLIENTS else list(range(n))
    few = f"{MOST_CLIENTS} of the {count(n)} clients, at even intervals." if n > MOST_CLIENTS else ""
    holders = [split["clients"][i] for i in taken] + ([split["server"]] if split["server"] else [])
    lines = [table[i] for i in [*taken, *range(n, len(table))]] if table else [{}] * len(holders)
    names = [*map(name, taken), "server"][: len(holders)]
    first = _first_foreign(split)
    rows = {kind: [sum(row < first for row in part[kind]) for part in holders] for kind in ("labelled", "unlabelled")}
    wrong = [line.get("flipped", 0) for line in lines]
    rows = rows | {"labelled": [a - b for a, b in zip(rows["labelled"], wrong)], "wrong label": wrong}
    if split["foreign"]:
        rows["irrelevant"] = [sum(row >= first for row in part["labelled"] + part["unlabelled"]) for part in holders]
    drawn = [bars("Rows per client", names, {kind: ns for kind, ns in rows.items() if any(ns)}, "client", count, note=few)]
    if len(classes) > MOST_CLASSES:
        return drawn
    who, given = ("client", names), [[part["labels"].count(c) for c in range(len(classes))] for part in holders]
    truth = [line["classes"] for line in lines] if table else []
    if truth and truth != given:
        note = f"{few} Labelled and unlabelled rows by their true class; rows of unknown class and foreign rows are left out."
        drawn += _holdings("Rows per client and class", who, classes, truth, len(taken), note)
    if any(map(any, given[: len(taken)])) or not truth:
        note = f"{few} Given labels" + ("." if truth else "; the classes of unlabelled rows are not in split.json.")
        drawn += _holdings("Labels per client and class", who, classes, given, len(taken), note)
    return drawn


def _holdings(title: str, who: Names, classes: Sequence[str], counts: list[list[int]], clients: int, note: str) -> list[Chart]:
    most = max(map(max, counts[:clients])) or max(map(max, counts))  # a server with many labels does not pale the clients
    shares = [[min(n / most, 1.0) for n in line] for line in counts] if most else []
    return [heat(title, who, ("class", classes), counts, shares=shares, note=note.strip())] if most else []


def _first_foreign(split: dict) -> float:
    """The position from which on rows are foreign: they lie behind all others, and every one of them is somebody's."""
    if not split["foreign"]:
        return float("inf")
    return max(max(part["labelled"] + part["unlabelled"], default=0) for part in split["clients"]) + 1 - len(split["foreign"])


def require_place(path: str | Path) -> Path:
    """Where a picture can be written, as PNG, SVG or PDF."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise Mistake(f"{path} is not the name of a picture: use one that ends in .png, .svg or .pdf.")
    require_file(path, "choose another place")
    return path


def draw(split: Split, path: str | Path) -> None:
    """Write the picture of a split as PNG, SVG or PDF, by the file's ending."""
    path = require_place(path)
    told = [f"{name} {value}" for name, value in split.settings.items() if value]
    parts = [dict(labelled=p.labelled.tolist(), labels=p.labels.tolist(), unlabelled=p.unlabelled.tolist())
             for p in (*split.parts, *([split.server] if split.server else []))]  # fmt: skip
    foreign = [] if split.foreign is None else split.foreign.tolist()
    server = parts[len(split)] if split.server else None
    kept = dict(clients=parts[: len(split)], server=server, foreign=foreign, table=split.table())
    made = charts(kept, split.dataset.classes, lambda i: str(split.names[i]))
    save(sheet(made, [f"{split.dataset.name}: {', '.join(told)}", *filter(None, [made[0].note])], beside=True), path)
