"""The leaderboard: methods over the settings of several comparisons, as a page and as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine.core.places import require_file
from grapevine.core.version import __version__
from grapevine.core.words import many
from grapevine.jobs.compare import Comparison
from grapevine.jobs.compare_table import Place, data_names, places, ranking, spread
from grapevine.report.page import Page, files_of
from grapevine.report.parts import Card, Cell, Table


def named(row: dict[str, Any]) -> Cell:
    return Cell(row["method"], f"bound: {row['bound']}" if row["bound"] else "")


def board(where: Sequence[Place]) -> Card:
    """The ranking as a table: methods down, settings across."""
    ranked, rows = ranking(where), []
    for one in ranked:
        rank = ["—", "—"] if one["mean_rank"] is None else [f"{one['mean_rank']:.2f}", one["wins"]]
        rows.append([named(one), *rank, *(spread(*one["accuracy"].get(place, (None, None))) for place, _ in where)])
    note = (
        "Test accuracy, mean ± sample standard deviation. Rank 1 is the best mean among the methods of a setting; bounds have no "
        "rank. A mean rank is over the settings in which the method was run: compare ranks only where the same methods were run."
    )
    looks = ["bound" if one["bound"] else "best" if one is ranked[0] else "" for one in ranked]
    heads = ["method", "mean rank", "wins", *(place for place, _ in where)]
    return Card("", [Table(heads, rows, sortable=True, looks=looks), note])


def write(loaded: Sequence[Comparison], out: Path) -> Path:
    """One page over several comparisons. Links to their own pages are relative to it."""
    require_file(out)
    with files_of("a folder", "grapevine compare"):
        where = places(loaded)
        first = next((one for one in ranking(where) if one["mean_rank"] is not None), None)
        heading = "No method has a result yet."
        if first:
            over = f"over {first['settings']} of {len(where)} settings"
            heading = f"{first['method']} has the best mean rank, {first['mean_rank']:.2f}, {over}."
        rows = []
        for made in loaded:
            address = Path(os.path.relpath(made.out / "report.html", out.parent)).as_posix()
            link, data = Cell("", links=[(made.out.resolve().name, address)]), made.data
            rows.append([link, ", ".join(data["methods"]), data_names(data), len(data["seeds"]), data["state"]])
        listed = Card("", [Table(["comparison", "methods", "data", "seeds", "state"], rows)])
        sections = [("Table", [board(where)]), ("Comparisons", [listed])]
        kind = f"Leaderboard · {many(len(loaded), 'comparison')}"
        return Page("Leaderboard", kind, heading, sections, f"Made by Grapevine {__version__}.").write(out)
