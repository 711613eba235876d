"""Methods over the settings of several comparisons: how accurate they are in each, and how they rank."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.jobs.compare_table import crowned, rows_of

Place = tuple[str, list[dict[str, Any]]]  # a setting's name, and the rows of its table


def places(loaded: Sequence[Any]) -> list[Place]:
    """Every cell of every comparison with a name of its own. A comparison counts once."""
    folders = [made.out.resolve() for made in loaded]
    for made, folder in zip(loaded, folders):
        if folders.count(folder) > 1:
            raise Mistake(f"{made.out} is given twice: name each comparison once.")
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
    """Methods over several settings: accuracy in each, and the mean rank among the methods there. Bounds have no rank, and a
    setting ranks nobody where no method may be called best."""
    table: dict[str, dict[str, Any]] = {}
    for place, rows in where:
        known = [row for row in rows if row["accuracy"] is not None]
        for row in known:
            one = table.setdefault(row["method"], dict(method=row["method"], bound=row["bound"], ranks=[], accuracy={}))
            one["accuracy"][place] = [row["accuracy"], row["accuracy_std"]]
            if not row["bound"] and crowned(rows):
                one["ranks"].append(1 + sum(not o["bound"] and o["accuracy"] > row["accuracy"] for o in known))
    for one in table.values():
        ranks = one.pop("ranks")
        mean = fmean(ranks) if ranks else None
        one |= dict(settings=len(one["accuracy"]), ranked=len(ranks), mean_rank=mean, wins=ranks.count(1))
    return sorted(table.values(), key=lambda one: (one["mean_rank"] is None, one["mean_rank"] or 0, one["method"]))


def leaders(ranked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with the best mean rank: several where it is the same."""
    return [one for one in ranked if one["mean_rank"] is not None and one["mean_rank"] == ranked[0]["mean_rank"]]
