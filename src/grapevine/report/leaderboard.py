"""The leaderboard: methods over the settings of several comparisons, as a page and as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine.core.places import require_file
from grapevine.core.version import __version__
from grapevine.core.words import listed, many
from grapevine.jobs.compare import Comparison
from grapevine.jobs.compare_table import data_names, spread
from grapevine.jobs.ranking import Place, leaders, places, ranking
from grapevine.report.page import Page, files_of
from grapevine.report.parts import Card, Cell, Table


def named(row: dict[str, Any]) -> Cell:
    return Cell(row["method"], f"bound: {row['bound']}" if row["bound"] else "")


def board(where: Sequence[Place]) -> Card:
    """The ranking as a table: methods down, settings across."""
    ranked, rows = ranking(where), []
    first = [one["method"] for one in leaders(ranked)]
    for one in ranked:
        rank = ["—", "—"] if one["mean_rank"] is None else [f"{one['mean_rank']:.2f}", one["wins"]]
        rows.append([named(one), *rank, *(spread(*one["accuracy"].get(place, (None, None))) for place, _ in where)])
    note = (
        "Test accuracy, mean ± sample standard deviation. Rank 1 is the best mean among the methods of a setting; bounds have no "
        "rank, and nobody has one where only one method was run or where a lower bound is at least as good as every method. "
        "Compare mean ranks only where the same methods were run."
    )
    looks = ["bound" if one["bound"] else "best" if one["method"] in first else "" for one in ranked]
    heads = ["method", "mean rank", "wins", *(place for place, _ in where)]
    return Card("", [Table(heads, rows, sortable=True, looks=looks), note])


def write(loaded: Sequence[Comparison], out: Path) -> Path:
    """One page over several comparisons. Links to their own pages are relative to it."""
    require_file(out)
    with files_of("a folder", "grapevine compare"):
        where = places(loaded)
        rows = []
        for made in loaded:
            address = Path(os.path.relpath(made.out / "report.html", out.parent)).as_posix()
            link, data = Cell("", links=[(made.out.resolve().name, address)]), made.data
            rows.append([link, ", ".join(data["methods"]), data_names(data), len(data["seeds"]), data["state"]])
        listed = Card("", [Table(["comparison", "methods", "data", "seeds", "state"], rows)])
        sections = [("Table", [board(where)]), ("Comparisons", [listed])]
        kind = f"Leaderboard · {many(len(loaded), 'comparison')}"
        return Page("Leaderboard", kind, _heading(where), sections, f"Made by Grapevine {__version__}.").write(out)


def _heading(where: Sequence[Place]) -> str:
    ranked = ranking(where)
    first = leaders(ranked)
    if not first:
        none = "No setting has two methods, one of them better than every lower bound."
        return none if any(not one["bound"] for one in ranked) else "No method has a result yet."
    names = listed(one["method"] for one in first)
    over = " and ".join(dict.fromkeys(str(one["ranked"]) for one in first))
    mean = f"{'has' if len(first) == 1 else 'have'} the best mean rank, {first[0]['mean_rank']:.2f}"
    return f"{names} {mean}, over {over} of {len(where)} settings."
