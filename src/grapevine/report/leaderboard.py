"""The leaderboard: methods over the settings of several comparisons, as a page and as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.core.words import many
from grapevine.jobs.compare import Comparison
from grapevine.jobs.compare_table import rows_of, spread
from grapevine.report.page import Page, files_of
from grapevine.report.parts import Card, Cell, Sorted

Place = tuple[str, list[dict[str, Any]]]  # a setting's name, and the rows of its table


def data_names(data: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(str(cell["data"]) for cell in data["cells"]))


def places(loaded: Sequence[Comparison]) -> list[Place]:
    """Every cell of every comparison with a name of its own."""
    found: list[Place] = []
    for made in loaded:
        for cell in made.data["cells"]:
            settings = cell["settings"]
            name = f"{cell['data']}, {settings['partition']}, {settings['labels']}, {cell['clients']} clients"
            if name in [other for other, _ in found]:
                name += f" ({made.out.resolve().name}{', ' + cell['name'] if cell['name'] else ''})"
            found.append((name, rows_of(made.data, cell)))
    return found


def ranking(where: Sequence[Place]) -> list[dict[str, Any]]:
    """Methods over several settings: accuracy in each, and the mean rank among the methods there. Bounds have no rank."""
    table: dict[str, dict[str, Any]] = {}
    for place, rows in where:
        known = [row for row in rows if row["accuracy"] is not None]
        for row in known:
            one = table.setdefault(row["method"], dict(method=row["method"], bound=row["bound"], ranks=[], accuracy={}))
            one["accuracy"][place] = [row["accuracy"], row["accuracy_std"]]
            if not row["bound"]:
                one["ranks"].append(1 + sum(not o["bound"] and o["accuracy"] > row["accuracy"] for o in known))
    for one in table.values():
        ranks = one.pop("ranks")
        one |= dict(settings=len(one["accuracy"]), mean_rank=fmean(ranks) if ranks else None, wins=ranks.count(1))
    return sorted(table.values(), key=lambda one: (one["mean_rank"] is None, one["mean_rank"] or 0, one["method"]))


def board(where: Sequence[Place]) -> Card:
    """The ranking as a table: methods down, settings across."""
    rows = []
    for i, one in enumerate(ranking(where)):
        rank, wins = one["mean_rank"], one["wins"]
        cells = [Cell(one["method"], one["method"], f"bound: {one['bound']}" if one["bound"] else "")]
        cells += [Cell("—"), Cell("—")] if rank is None else [Cell(f"{rank:.2f}", rank), Cell(str(wins), wins)]
        for place, _ in where:
            mean, std = one["accuracy"].get(place, (None, None))
            cells.append(Cell(spread(mean, std), mean))
        rows.append(("bound" if one["bound"] else "best" if i == 0 else "", cells))
    note = (
        "Test accuracy, mean ± sample standard deviation. Rank 1 is the best mean among the methods of a setting; bounds have no "
        "rank. A mean rank is over the settings in which the method was run: compare ranks where the same methods were."
    )
    heads = ["method", "mean rank", "wins", *(place for place, _ in where)]
    return Card("", [Sorted(heads, rows, small_first=("method", "mean rank")), note])


def write(loaded: Sequence[Comparison], out: Path) -> Path:
    """One page over several comparisons. Links to their own pages are relative to it."""
    if out.is_dir():
        raise Mistake(f"--out {out} is a folder: name a file, as in --out {out / 'leaderboard.html'}.")
    if not out.parent.is_dir():
        raise Mistake(f"--out {out}: there is no folder {out.parent}; make it first.")
    with files_of("a folder", "grapevine compare"):
        where = places(loaded)
        first = next((one for one in ranking(where) if one["mean_rank"] is not None), None)
        heading = "No method has a result yet."
        if first:
            over = f"over {first['settings']} of {len(where)} settings"
            heading = f"{first['method']} has the best mean rank, {first['mean_rank']:.2f}, {over}."
        heads, rows = ["comparison", "methods", "data", "seeds", "state"], []
        for made in loaded:
            name, data = made.out.resolve().name, made.data
            address = Path(os.path.relpath(made.out / "report.html", out.parent)).as_posix()
            words = [", ".join(data["methods"]), data_names(data), len(data["seeds"]), data["state"]]
            rows.append(("", [Cell("", name, links=[(name, address)]), *(Cell(str(word), word) for word in words)]))
        listed = Card("", [Sorted(heads, rows, words=("comparison", "methods", "data", "state"))])
        sections = [("Table", [board(where)]), ("Comparisons", [listed])]
        kind = f"Leaderboard · {many(len(loaded), 'comparison')}"
        return Page("Leaderboard", kind, heading, sections, f"Made by Grapevine {__version__}.").write(out)
