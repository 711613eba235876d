"""The page of a comparison, from the files of its folder alone.

It may be made while runs are going on: what is missing is shown as missing, and the page reloads itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grapevine.core.words import count, duration, listed, many, percent, size
from grapevine.jobs.compare import Comparison, load
from grapevine.jobs.compare_table import (
    COLUMNS,
    bound_ties,
    crowned,
    data_names,
    flops,
    indistinct,
    interval,
    lead,
    many_rows,
    mean_and_std,
    not_cleared,
    notes,
    row_counts,
    rows_of,
    spread,
    used_columns,
)
from grapevine.report import leaderboard
from grapevine.report.charts.kinds import Axis, Point, Series, bars, costs, heights, lines
from grapevine.report.page import REFRESH_SECONDS, Page, files_of
from grapevine.report.parts import Card, Cell, Command, Part, Pick, Settings, Table, Views
from grapevine.run.folder import read_lines

ACCURACY = Axis("accuracy", percent)
NOTHING = "No run is finished yet."


def write(folder: Path) -> Path:
    """Make report.html of a comparison's folder, and return where it is."""
    return make(folder).write(Path(folder) / "report.html")


def make(folder: Path) -> Page:
    """The page of a comparison."""
    made = load(folder)
    with files_of(folder, "grapevine compare"):
        data = made.data
        bounds = {line["label"]: bool(line["bound"]) for cell in data["cells"] for line in cell["lines"]}
        # Methods have the first colours, bounds are dashed.
        looks = {label: Series(label, (), i, bounds[label]) for i, label in enumerate(sorted(bounds, key=lambda b: bounds[b]))}
        pick = Pick("Methods shown in all charts; bounds are dashed", [look.key for look in looks.values()])
        cells = {cell["name"]: _cell(made, cell, looks) for cell in data["cells"]}
        board: list[Part] = [leaderboard.board([(cell["name"], rows_of(data, cell)) for cell in data["cells"]])]
        sections: list[tuple[str, list[Part]]] = [
            ("Grid", [pick, *_grid(data, looks)]),
            ("All settings", board),
            ("Each setting", [Views("cell", cells)]),
        ]
        if len(cells) == 1:
            ((table, curves, cost),) = cells.values()
            sections = [("Table", [table]), ("Curves", [pick, curves]), ("Cost", [cost])]
        name, n = data_names(data), len(data["seeds"])
        return Page(
            f"{', '.join(data['methods'])} on {name}", f"Comparison · {name} · {many(n, 'seed')}",
            sections=[*sections, ("Settings", _settings(data))],
            foot=f"Made by Grapevine {data['version']} from the files of the comparison {made.out.resolve().name}.",
            refresh=REFRESH_SECONDS if data["state"] == "going" else 0, **_head(data, name),
        )  # fmt: skip


def _cell(made: Comparison, cell: dict[str, Any], looks: dict[str, Series]) -> list[Part]:
    """All about one cell of a grid: table, curves, cost."""
    return [_table(made, cell), _curves(made, cell, looks), _cost(made.data, cell, looks)]


def _series(look: Series, points: Sequence[Point]) -> Series:
    return Series(look.name, points, look.number, look.dashed)


# ---------------------------------------------------------------- head


def _head(data: dict[str, Any], name: str) -> dict[str, Any]:
    runs, first = data["runs"], [row for cell in data["cells"] if (row := lead(rows_of(data, cell)))]
    done, failed = (sum(run["state"] == state for run in runs) for state in ("finished", "failed"))
    notices = {"going": f"{done} of {len(runs)} runs are finished. This page reloads itself every {REFRESH_SECONDS} seconds."}
    stopped = f"{done} of {len(runs)} runs are finished, {failed} failed: the same command with --resume runs what is missing."
    heading = _sentence(data, first, name)
    if data["state"] != "finished" and first:
        heading = f"So far, {heading[0].lower()}{heading[1:]}"
    tiles = {"runs": f"{done} / {len(runs)}", "time of all runs": duration(sum(run["seconds"] or 0 for run in runs))}
    if len(data["cells"]) == 1:
        most = {("best: " if row["best"] else "") + row["method"]: spread(row["accuracy"], row["accuracy_std"]) for row in first}
        known = {
            row["bound"]: spread(row["accuracy"], row["accuracy_std"])
            for row in data["table"]
            if row["bound"] and row["accuracy"] is not None
        }
        tiles = most | known | tiles
    told = [] if data["state"] == "finished" else [notices.get(data["state"], stopped)]
    about = " ".join(filter(None, (_certainty(data, first), _about(data))))
    return dict(heading=heading, about=about, tiles=tiles, notices=told)


def _sentence(data: dict[str, Any], first: list[dict], name: str) -> str:
    if not first:
        known = any(row["accuracy"] is not None for row in data["table"])
        return f"Only bounds are known so far on {name}." if known else "No method has a result yet."
    if len(data["cells"]) > 1:
        return _wins(data, name)
    (row,) = first
    others, above = _others(data, row), not_cleared(data["table"])
    rows = many_rows(row_counts(data, data["cells"][0], "test_rows"), "test")
    if others and above:
        bounds = ("bound " if len(above) == 1 else "bounds ") + listed(bound["method"] for bound in above)
        none = "Neither of 2" if len(others) == 1 else f"None of {len(others) + 1}"
        return (f"{none} methods is better than the {bounds} on {name}: {row['method']} comes nearest, with "
                f"{percent(row['accuracy'])} of the {rows} right ({interval(row)}).")  # fmt: skip
    sentence = f"{row['method']} classifies {percent(row['accuracy'])} of the {rows} of {name} right ({interval(row)})"
    sentence += f", the best of {len(others) + 1} methods" if others else ""
    ties = bound_ties(data["table"])
    return f"{sentence}; it is {ties}." if ties else f"{sentence}."


def _wins(data: dict[str, Any], name: str) -> str:
    """Which methods are best in how many cells of a grid, and in how many none is."""
    methods = {row["method"] for row in data["table"] if not row["bound"]}
    bounds = {row["method"] for row in data["table"]} - methods
    known = [rows for cell in data["cells"] if lead(rows := rows_of(data, cell))]
    wins = Counter(row["method"] for rows in known if (row := crowned(rows)))
    told = [f"best: {', '.join(f'{label} in {n}' for label, n in wins.most_common())}"] if wins else []
    beaten = sum(bool(not_cleared(rows)) for rows in known)
    single = len(known) - beaten - wins.total()
    told += [f"a lower bound is at least as good as every method in {beaten}"] if beaten else []
    told += [f"only one method has a result in {single}"] if single else []
    among = many(len(methods), "method") + (f" and {many(len(bounds), 'bound')}" if bounds else "")
    return f"{among} on {name}, in {many(len(known), 'setting')}: {'; '.join(told)}."


def _others(data: dict[str, Any], row: dict) -> list[dict]:
    return [r for r in data["table"] if not r["bound"] and r is not row and r["accuracy"] is not None]


def _certainty(data: dict[str, Any], first: list[dict]) -> str:
    """Which methods may be as good. The notes below the table say more about bounds."""
    if len(data["cells"]) > 1 or not first:
        return ""
    (row,) = first
    near = [r["method"] for r in _others(data, row) if indistinct(r)]
    who = listed(near) if len(near) <= 3 else f"{len(near)} of the other methods"
    return f"{who} cannot be distinguished from {row['method']}." if near else ""


def _per_round(data: dict[str, Any]) -> int:
    """Clients of a round: never more than there are."""
    most = max(cell["clients"] for cell in data["cells"])
    return min(data["flags"]["per_round"] or most, most)


def _about(data: dict[str, Any]) -> str:
    cell, flags = data["cells"][0], data["flags"]
    words = f"{count(cell['clients'])} clients (partition {cell['settings']['partition']})"
    words += f", {count(cell['labelled'])} labelled rows and {count(cell['unlabelled'])} unlabelled at the clients"
    words += f", {count(cell['server'])} labelled at the server" if cell["server"] else ""
    if len(data["cells"]) > 1:
        words = "Varied: " + "; ".join(f"{name.replace('_', '-')} {', '.join(map(str, v))}" for name, v in data["vary"].items())
    rounds = f"{many(flags['rounds'], 'round')} of {many(_per_round(data), 'client')}"
    return f"{words}. {rounds}. All methods of a seed have the same split."


# ---------------------------------------------------------------- one cell


COST = ("rounds to target", "bytes to target", "per client and round", "bytes", "FLOPs", "seconds", "budget")


def _table(made: Comparison, cell: dict[str, Any]) -> Card:
    """How good the methods are, then what they cost: in one table, the last columns would be out of sight."""
    rows = rows_of(made.data, cell)
    used = [name for name in used_columns(rows) if name not in ("method", "bound", "seeds")]
    most = max((row["accuracy"] for row in rows if row["accuracy"] is not None), default=1.0) or 1.0
    good, cost = [], []
    for row in rows:
        cells: dict[str, Any] = {name: COLUMNS[name](row) for name in used}
        cells["accuracy"] = Cell(cells["accuracy"], share=None if row["accuracy"] is None else row["accuracy"] / most)
        runs = [(f"{run['seed']}", f"{run['folder']}/report.html") if run["state"] == "finished" else
                (f"{run['seed']} ({run['state']})", "") for run in _runs(made.data, cell, row["method"])]  # fmt: skip
        named = leaderboard.named(row)
        good.append([named, *(cells[name] for name in used if name not in COST), Cell("", links=runs)])
        cost.append([named, *(cells[name] for name in used if name in COST)])
    about: dict[str, Any] = dict(
        sortable=True,
        looks=["best" if row["best"] else "bound" if row["bound"] else "" for row in rows],
        words=("budget", "seeds"),
    )
    first = Table(["method", *(name for name in used if name not in COST), "seeds"], good, **about)
    second = Table(["method", *(name for name in used if name in COST)], cost, **about)
    told = [first, "What it cost:", second] if len(second.heads) > 1 else [first]
    return Card(f"Table of {cell['name']}" if cell["name"] else "", [*told, *notes(made.data, cell)])


def _runs(data: dict[str, Any], cell: dict[str, Any], label: str) -> list[dict[str, Any]]:
    index = data["cells"].index(cell)
    return [run for run in data["runs"] if run["cell"] == index and run["method"] == label]


def _curves(made: Comparison, cell: dict[str, Any], looks: dict[str, Series]) -> Part:
    by_round, by_bytes = [], []
    for line in cell["lines"]:
        finished = [run for run in _runs(made.data, cell, line["label"]) if run["state"] == "finished"]
        read = [read_lines(made.out / run["folder"] / "history.jsonl") for run in finished]
        seen = [{each["round"]: each for each in lines if each.get("accuracy") is not None} for lines in read]
        seen = [lines for lines in seen if lines]
        points, sent = [], []
        for r in sorted(set.intersection(*map(set, seen))) if seen else ():
            mean, std = mean_and_std([lines[r]["accuracy"] for lines in seen])
            points.append(Point(r, mean or 0.0, std))
            sent.append(Point(fmean(lines[r]["bytes_up"] + lines[r]["bytes_down"] for lines in seen), mean or 0.0, std))
        if points:
            by_round.append(_series(looks[line["label"]], points))
            by_bytes.append(_series(looks[line["label"]], sent))
    if not by_round:
        return NOTHING
    # Methods that send next to nothing would be a vertical line at the left.
    most = max(s.points[-1].x for s in by_bytes)
    by_bytes = [s for s in by_bytes if s.points[-1].x > most / 200]
    of = f", {cell['name']}" if cell["name"] else ""
    about: dict[str, Any] = dict(
        level=(cell["target"], f"target {percent(cell['target'])}") if cell["target"] is not None else None, height=300,
        note="Test accuracy, mean over seeds; the band is one sample standard deviation on both sides.", legend="", wide=True,
    )  # fmt: skip
    choices: dict[str, list[Part]] = {"rounds": [lines(f"Accuracy by round{of}", by_round, Axis("round"), ACCURACY, **about)]}
    if by_bytes:
        choices["bytes sent"] = [lines(f"Accuracy by bytes sent{of}", by_bytes, Axis("bytes sent", size), ACCURACY, **about)]
    return Views(f"over{made.data['cells'].index(cell)}-", choices)


def _cost(data: dict[str, Any], cell: dict[str, Any], looks: dict[str, Series]) -> list[Part]:
    rows = [row for row in rows_of(data, cell) if row["accuracy"] is not None]
    of = f", {cell['name']}" if cell["name"] else ""
    note = "Up and to the left is better. Rings are bounds; whiskers are one standard deviation."
    kinds = {
        "Bytes": (lambda row: row["bytes_up"] + row["bytes_down"], Axis("bytes sent in all", size)),
        "Operations": (lambda row: row["flops"], Axis("floating-point operations", flops)),
    }
    drawn: list[Part] = []
    for name, (cost, axis) in kinds.items() if rows else ():
        points = [_series(looks[row["method"]], [Point(cost(row), row["accuracy"], row["accuracy_std"])]) for row in rows]
        drawn.append(costs(f"{name} against accuracy{of}", points, axis, ACCURACY, note=note, wide=True))
    return drawn


# ---------------------------------------------------------------- grid


def number(value: Any) -> float | None:
    """The number in a value of a flag: 500 of clients:500, 0.1 of dirichlet:0.1."""
    found = re.fullmatch(r"(?:[a-z]+:)?(\d*\.?\d+)(?:[~/@].*)?", str(value))
    return float(found[1]) if found else None


def is_scale(values: Sequence[Any]) -> bool:
    """Whether values are numbers of one kind, which have places on a line."""
    kinds = {re.sub(r"\d*\.?\d+", "#", str(value)) for value in values}
    return len(values) > 1 and len(kinds) == 1 and all(number(value) is not None for value in values)


def _grid(data: dict[str, Any], looks: dict[str, Series]) -> list[Part]:
    """Small multiples: the first varied flag across, a panel for each combination of the others."""
    vary = {name: values for name, values in data["vary"].items() if len(values) > 1}
    known = [Point(0, row["accuracy"], row["accuracy_std"]) for row in data["table"] if row["accuracy"] is not None]
    if not vary or not known:
        return [NOTHING] if vary else []
    across = next((name for name in vary if is_scale(vary[name])), next(iter(vary)))
    panels: dict[str, list[dict]] = {}
    for cell in data["cells"]:
        rest = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in cell["values"].items() if name != across)
        panels.setdefault(rest or "Accuracy", []).append(cell)
    told = "Mean test accuracy over seeds"
    told += "; the spread is one sample standard deviation." if is_scale(vary[across]) else "."
    told += " All panels have the same heights." if len(panels) > 1 else ""
    grid = heights(known, ACCURACY)
    return [told, [_panel(title, data, cells, across, looks, grid) for title, cells in panels.items()]]


def _panel(title: str, data: dict, cells: list[dict], across: str, looks: dict[str, Series], grid: list[float]) -> Part:
    values = [cell["values"][across] for cell in cells]
    rows = [{row["method"]: row for row in rows_of(data, cell) if row["accuracy"] is not None} for cell in cells]
    if not any(rows):
        return Card(title, [NOTHING])
    x_name = _axis(across, values)
    if not is_scale(values):
        parts = {label: [row[label]["accuracy"] if label in row else None for row in rows] for label in looks}
        return bars(title, list(map(str, values)), parts, x_name, percent, beside=True, most=grid[-1], legend="")
    at = [number(value) or 0.0 for value in values]
    points = {label: [Point(x, row[label]["accuracy"], row[label]["accuracy_std"]) for x, row in zip(at, rows) if label in row]
              for label in looks}  # fmt: skip
    series = [_series(looks[label], sorted(some, key=lambda p: p.x)) for label, some in points.items() if some]
    axis = Axis(x_name, count, log=min(at) > 0 and max(at) / min(at) >= 4)
    return lines(title, series, axis, ACCURACY, grid=grid, height=240, legend="")


def _axis(name: str, values: Sequence[Any]) -> str:
    kind = str(values[0]).partition(":")[0] if ":" in str(values[0]) and is_scale(values) else ""
    labels = {"clients": "labels at the clients", "server": "labels at the server", "fraction": "share of rows labelled"}
    return labels[kind] if name == "labels" and kind in labels else name.replace("_", "-") + (f" ({kind})" if kind else "")


def _settings(data: dict[str, Any]) -> list[Part]:
    again: list[Part] = [Command(data["command"])] if data["command"] else []
    groups = {"Comparison": dict(methods=data["methods"], seeds=data["seeds"], vary=data["vary"], target=data["target"]),
              "Flags": data["flags"] | dict(per_round=_per_round(data)), "Versions": data["versions"]}  # fmt: skip
    for cell in data["cells"]:
        groups[f"Splits{' of ' + cell['name'] if cell['name'] else ''}"] = {f"seed {s}": h for s, h in cell["split"].items()}
    given = {line["label"]: line["settings"] for cell in data["cells"] for line in cell["lines"] if line["settings"]}
    groups |= {f"Fields of {label}": fields for label, fields in given.items()}
    return [*again, "All other fields are at the defaults that grapevine methods NAME prints.", Settings(groups)]
