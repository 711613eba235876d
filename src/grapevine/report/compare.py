"""report.html of a comparison, and the leaderboard over several: self-contained pages from the files of their folders alone.

They may be made while runs are going on: what is missing is shown as missing, and the page loads itself again.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.version import __version__
from grapevine.core.words import percent, size
from grapevine.jobs.compare import Comparison, load
from grapevine.jobs.compare_table import COLUMNS, flops, mean_and_std, notes, rows_of, seconds, spread, used_columns
from grapevine.report import charts, compare_charts, page
from grapevine.report.charts import count
from grapevine.report.compare_charts import Point, Series
from grapevine.report.page import text
from grapevine.run.folder import read_lines

REFRESH_SECONDS = 15

STYLE = """
.line.s1{stroke-dasharray:none}
.line.bound{stroke-dasharray:7 4}
.band{fill:var(--c);opacity:.13}
.stroke{stroke:var(--c);stroke-width:2.2px}
.stroke.bound{stroke-dasharray:5 3}
.ring{fill:var(--panel);stroke:var(--c);stroke-width:2px}
circle.on{stroke:var(--ink);stroke-width:2px}
.gone{display:none!important}
.pick{display:flex;flex-wrap:wrap;gap:.3rem 1rem;border:1px solid var(--edge);border-radius:.7rem;margin:0 0 1rem;
  padding:.5rem .9rem .7rem;background:var(--panel);font-size:.9rem;min-width:0}
.pick legend{color:var(--soft);font-size:.82rem;padding:0 .3rem}
.pick label{display:inline-flex;align-items:center;gap:.4rem;cursor:pointer}
.pick i{width:1.1rem;border-top:3px solid var(--c)}
.pick i.bound{border-top-style:dashed}
.pick input{accent-color:var(--accent);margin:0}
.sorted th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:inherit}
.sorted th button::after{content:"\\2195";opacity:.45;margin-left:.25rem;font-weight:400}
.sorted th[aria-sort=ascending] button::after{content:"\\2191";opacity:1}
.sorted th[aria-sort=descending] button::after{content:"\\2193";opacity:1}
.sorted th{white-space:normal;vertical-align:bottom;line-height:1.25;min-width:3.9rem}
.sorted td{white-space:nowrap}
.sorted th,.sorted td{padding-right:.55rem;font-size:.84rem}
ul.aside{padding-left:1.2rem;margin:.8rem 0 0}
.card>ul{padding-left:1.2rem;margin:0}
.one>h3{margin:1.6rem 0 .7rem}
.sorted tr.best td{font-weight:650}
.sorted tr.bound td{color:var(--soft)}
.sorted small{display:block;font-weight:400;color:var(--soft)}
.share{display:block;height:3px;background:var(--accent);margin-top:2px;border-radius:2px}
tr.bound .share{background:var(--soft)}
.aside li{margin:.15rem 0}
"""

SCRIPT = """(() => {
  for (const button of document.querySelectorAll(".sorted th button")) button.addEventListener("click", () => {
    const head = button.closest("th"), body = button.closest("table").tBodies[0];
    const at = [...head.parentNode.children].indexOf(head);
    const was = head.getAttribute("aria-sort"), down = was ? was === "descending" : head.dataset.first === "up";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    const value = row => row.cells[at].dataset.sort ?? "";
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = head.dataset.kind === "word" ? x.localeCompare(y) : x - y;
      return down ? order : -order;
    });
    body.append(...rows);
  });
  for (const box of document.querySelectorAll("[data-pick]")) box.addEventListener("change", () => {
    for (const same of document.querySelectorAll(`[data-pick="${box.dataset.pick}"]`)) same.checked = box.checked;
    for (const mark of document.querySelectorAll(`[data-of="${box.dataset.pick}"]`)) mark.classList.toggle("gone", !box.checked);
  });
})();
"""


def write(folder: Path) -> Path:
    """Make report.html of a comparison's folder anew."""
    made = load(folder)
    try:
        whole = _page(made)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Mistake(
            f"{folder} holds files that grapevine compare did not write ({type(error).__name__}: {error}); "
            "repeat the comparison, or report with the version that made it."
        ) from error
    return _save(made.out / "report.html", whole)


def _save(path: Path, whole: str) -> Path:
    write_atomically(path, whole.encode())
    return path


def _whole(title: str, head: str, sections: Sequence[tuple[str, str]], foot: str, refresh: int = 0) -> str:
    """The report's page with the style and the script of this one, whose hash its policy then allows."""
    made = page.page(title, f"<style>{STYLE}</style>{head}", sections, foot, refresh)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    allowed = text(f"'sha256-{digest}'")
    made = made.replace("script-src ", f"script-src {allowed} ", 1)
    return made.replace("</body>", f"<script>{SCRIPT}</script></body>", 1)


def _page(made: Comparison) -> str:
    data = made.data
    numbers = _numbers(data)
    pick = _pick(data, numbers)
    if len(data["cells"]) == 1:
        (cell,) = data["cells"]
        sections = [
            ("Table", _table(made, cell)),
            ("Curves", pick + _curves(made, cell, numbers)),
            ("Cost", _cost(data, cell, numbers)),
        ]
    else:
        each = {cell["name"]: _one(made, cell, numbers) for cell in data["cells"]}
        board = _board([(cell["name"], rows_of(data, cell)) for cell in data["cells"]])
        sections = [("Grid", pick + _grid(data, numbers)), ("All settings", board), ("Each setting", page.views("cell", each))]
    sections.append(("Settings", _settings(data)))
    foot = f"Made by Grapevine {text(data['version'])} from the files of the comparison {text(made.out.resolve().name)}."
    going = data["state"] == "going"
    return _whole(
        f"{', '.join(data['methods'])} on {_data_names(data)}", _head(data), sections, foot, REFRESH_SECONDS if going else 0
    )


def _data_names(data: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(str(cell["data"]) for cell in data["cells"]))


def _numbers(data: dict[str, Any]) -> dict[str, int]:
    """A number for every method: methods first, then bounds, so that the methods have the first colours."""
    bounds = {line["label"]: bool(line["bound"]) for cell in data["cells"] for line in cell["lines"]}
    return {label: i for i, label in enumerate(sorted(bounds, key=lambda label: bounds[label]))}


def _one(made: Comparison, cell: dict[str, Any], numbers: dict[str, int]) -> str:
    """All about one cell of a grid."""
    parts = dict(Table=_table(made, cell), Curves=_curves(made, cell, numbers), Cost=_cost(made.data, cell, numbers))
    return f'<div class="one">{"".join(f"<h3>{name}</h3>{part}" for name, part in parts.items() if part)}</div>'


# ---------------------------------------------------------------- head


def _head(data: dict[str, Any]) -> str:
    n, runs = len(data["seeds"]), data["runs"]
    done = sum(run["state"] == "finished" for run in runs)
    kind = f'<p class="kind">Comparison · {text(_data_names(data))} · {n} seed{"s" if n > 1 else ""}</p>'
    notice = ""
    if data["state"] == "going":
        notice = f"{done} of {len(runs)} runs are finished. This page loads itself again every {REFRESH_SECONDS} seconds."
    elif data["state"] != "finished":
        failed = sum(run["state"] == "failed" for run in runs)
        notice = f"{done} of {len(runs)} runs are finished, {failed} failed: the same command with --resume runs what is missing."
    notice = f'<p class="notice" role="status">{text(notice)}</p>' if notice else ""
    sentence = _sentence(data)
    if data["state"] != "finished" and _best(data):
        sentence = f"So far, {sentence[0].lower()}{sentence[1:]}"
    return f"{kind}<h1>{text(sentence)}</h1><p>{text(_about(data))}</p>{notice}{_tiles(data)}"


def _best(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in data["table"] if row["best"]]


def _sentence(data: dict[str, Any]) -> str:
    best = _best(data)
    if not best:
        known = [row for row in data["table"] if row["accuracy"] is not None]
        return "No method has a result yet." if not known else f"Only bounds are known so far on {_data_names(data)}."
    if len(data["cells"]) > 1:
        wins = {label: sum(row["method"] == label for row in best) for label in dict.fromkeys(row["method"] for row in best)}
        told = ", ".join(f"{label} in {n}" for label, n in sorted(wins.items(), key=lambda item: -item[1]))
        return f"Best of {len(data['methods'])} methods on {_data_names(data)}, in {len(best)} settings: {told}."
    (row,) = best
    others = [r for r in data["table"] if not r["bound"] and r is not row and r["accuracy"] is not None]
    sentence = (
        f"{row['method']} classifies {spread(row['accuracy'], row['accuracy_std'])} of the test rows of {_data_names(data)} right"
    )
    if others:
        sentence += f", the best of {len(others) + 1} methods"
        near = [r["method"] for r in others if r["p"] is not None and r["p"] >= 0.05]
        if near:
            sentence += f"; {_and(near)} cannot be told from it with {row['seeds']} seeds" if len(near) <= 3 else (
                f"; {len(near)} of them cannot be told from it with {row['seeds']} seeds")  # fmt: skip
    return sentence + "."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _about(data: dict[str, Any]) -> str:
    cell, flags = data["cells"][0], data["flags"]
    words = f"{count(cell['clients'])} clients (partition {cell['settings']['partition']})"
    if len(data["cells"]) == 1:
        words += f", {count(cell['labelled'])} labelled rows and {count(cell['unlabelled'])} unlabelled at the clients"
        words += f", {count(cell['server'])} labelled at the server" if cell["server"] else ""
    else:
        words = "Varied: " + "; ".join(f"{name.replace('_', '-')} {', '.join(map(str, v))}" for name, v in data["vary"].items())
    rounds = f"{count(flags['rounds'])} rounds of {count(min(flags['per_round'] or cell['clients'], cell['clients']))} clients"
    return f"{words}. {rounds}. All methods of a seed have the same split."


def _tiles(data: dict[str, Any]) -> str:
    took = sum(run["seconds"] or 0 for run in data["runs"])
    done = sum(run["state"] == "finished" for run in data["runs"])
    tiles = {"runs": f"{done} / {len(data['runs'])}", "time of all runs": seconds(took)}
    if len(data["cells"]) == 1:
        rows = {row["method"]: row for row in data["table"]}
        first = {f"best: {row['method']}": spread(row["accuracy"], row["accuracy_std"]) for row in _best(data)}
        first |= {row["bound"]: percent(row["accuracy"]) for row in rows.values() if row["bound"] and row["accuracy"] is not None}
        tiles = first | tiles
    inner = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in tiles.items())
    return f'<dl class="tiles">{inner}</dl>'


# ---------------------------------------------------------------- table

SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "method": lambda row: row["method"], "bound": lambda row: row["bound"] or "", "seeds": lambda row: row["seeds"],
    "accuracy": lambda row: row["accuracy"], "balanced": lambda row: row["balanced_accuracy"],
    "against best": lambda row: 0.0 if row["best"] else row["difference"], "p": lambda row: row["p"],
    "rounds to target": lambda row: row["target_rounds"], "bytes to target": lambda row: row["target_bytes"],
    "per client and round": lambda row: row["bytes_per_client_round"],
    "bytes": lambda row: None if row["bytes_up"] is None else row["bytes_up"] + row["bytes_down"],
    "FLOPs": lambda row: row["flops"], "seconds": lambda row: row["seconds"],
    "pseudo-labels right": lambda row: row["pseudo_label_accuracy"],
}  # fmt: skip
WORDS = ("method", "bound")
SMALL_FIRST = (
    "mean rank",
    "method",
    "bound",
    "p",
    "rounds to target",
    "bytes to target",
    "per client and round",
    "bytes",
    "FLOPs",
    "seconds",
)


def _sorted_table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[str, Any]]]]) -> str:
    """A table whose heads are buttons that sort it. A row is its class and its cells, each HTML and what it is sorted by."""
    heads = "".join(
        f'<th scope="col" data-kind="{"word" if name in WORDS else "number"}"{" data-first=up" if name in SMALL_FIRST else ""}'
        f'{"" if name in WORDS else " class=n"}><button type="button">{text(name)}</button></th>'
        for name in names
    )
    body = "".join(
        f'<tr class="{kind}">'
        + "".join(
            f'<td{"" if name in WORDS else " class=n"} data-sort="{text("" if by is None else by)}">{inner}</td>'
            for name, (inner, by) in zip(names, cells)
        )
        + "</tr>"
        for kind, cells in rows
    )
    whole = f'<table class="sorted"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table; its heads sort it">{whole}</div>'


def _table(made: Comparison, cell: dict[str, Any]) -> str:
    data = made.data
    rows = rows_of(data, cell)
    names = [name for name in used_columns(rows) if name not in ("bound", "seeds")] + ["seeds"]  # their links need room
    most = max((row["accuracy"] for row in rows if row["accuracy"] is not None), default=1.0) or 1.0
    lines = []
    for row in rows:
        cells = [(_shown(made, cell, row, name, most), SORTS[name](row)) for name in names]
        lines.append(("best" if row["best"] else "bound" if row["bound"] else "", cells))
    said = "".join(f"<li>{text(note)}</li>" for note in notes(data, cell))
    return f'<div class="card">{_sorted_table(names, lines)}<ul class="aside">{said}</ul></div>'


def _shown(made: Comparison, cell: dict[str, Any], row: dict[str, Any], name: str, most: float) -> str:
    shown = text(COLUMNS[name](row))
    if name == "method" and row["bound"]:
        return f"{shown}<small>bound: {text(row['bound'])}</small>"
    if name == "seeds":
        return _links(made, cell, row)
    if name == "accuracy" and row["accuracy"] is not None:
        return f'{shown}<span class="share" style="width:{100 * row["accuracy"] / most:.0f}%"></span>'
    return shown


def _links(made: Comparison, cell: dict[str, Any], row: dict[str, Any]) -> str:
    """A seed is a link to its run's own page."""
    index = made.data["cells"].index(cell)
    runs = [run for run in made.data["runs"] if run["cell"] == index and run["method"] == row["method"]]
    out = []
    for run in runs:
        if run["state"] == "finished":
            out.append(f'<a href="{text(run["folder"])}/report.html">{run["seed"]}</a>')
        else:
            out.append(f'<span title="{text(run["error"] or run["state"])}">{run["seed"]} ({text(run["state"])})</span>')
    return " ".join(out)


# ---------------------------------------------------------------- curves, cost


def _pick(data: dict[str, Any], numbers: dict[str, int]) -> str:
    """A check box for each method, which hides it in all charts of the page."""
    bounds = {line["label"]: line["bound"] for cell in data["cells"] for line in cell["lines"]}
    boxes = "".join(
        f'<label class="s{i % page.COLOURS}"><input type="checkbox" data-pick="{i}" checked autocomplete="off">'
        f"<i{' class=bound' if bounds[label] else ''}></i>{text(label)}</label>"
        for label, i in numbers.items()
    )
    return f'<fieldset class="pick"><legend>Methods shown in all charts; bounds are dashed</legend>{boxes}</fieldset>'


def _histories(made: Comparison, cell: dict[str, Any], label: str) -> list[list[dict]]:
    """The evaluations of a method's finished runs."""
    index = made.data["cells"].index(cell)
    runs = [run for run in made.data["runs"] if run["cell"] == index and run["method"] == label]
    finished = [run for run in runs if run["state"] == "finished"]
    read = [read_lines(made.out / run["folder"] / "history.jsonl") for run in finished]
    return [[line for line in lines if line.get("accuracy") is not None] for lines in read]


def _curves(made: Comparison, cell: dict[str, Any], numbers: dict[str, int]) -> str:
    by_round, by_bytes = [], []
    for line in cell["lines"]:
        histories = [lines for lines in _histories(made, cell, line["label"]) if lines]
        seen = [{each["round"]: each for each in lines} for lines in histories]
        rounds = sorted(set.intersection(*(set(lines) for lines in seen))) if seen else []
        points, sent = [], []
        for r in rounds:
            mean, std = mean_and_std([lines[r]["accuracy"] for lines in seen])
            points.append(Point(r, mean, std))
            sent.append(Point(fmean(lines[r]["bytes_up"] + lines[r]["bytes_down"] for lines in seen), mean, std))
        by_round.append(Series(line["label"], numbers[line["label"]], bool(line["bound"]), points))
        # Methods that send next to nothing would be a line upwards at the left.
        by_bytes.append(Series(line["label"], numbers[line["label"]], bool(line["bound"]), sent))
    by_bytes = [s for s in by_bytes if s.points and s.points[-1].x > max(o.points[-1].x for o in by_bytes if o.points) / 200]
    if not any(s.points for s in by_round):
        return '<p class="aside">No run is finished yet.</p>'
    note = "Test accuracy, mean over seeds; the band is one sample standard deviation on both sides."
    mark = (cell["target"], f"target {percent(cell['target'])}") if cell["target"] is not None else None
    title = "Accuracy by round" + (f", {cell['name']}" if cell["name"] else "")
    choices = {"rounds": compare_charts.curves(title, by_round, "round", count, note, mark=mark, named=False)}
    if by_bytes:
        title = title.replace("round", "bytes sent", 1)
        choices["bytes sent"] = compare_charts.curves(title, by_bytes, "bytes sent", size, note, mark=mark, named=False)
    return page.views(f"over{made.data['cells'].index(cell)}-", choices)


def _cost(data: dict[str, Any], cell: dict[str, Any], numbers: dict[str, int]) -> str:
    rows = [row for row in rows_of(data, cell) if row["accuracy"] is not None]
    if not rows:
        return ""

    def drawn(name: str, cost: Callable[[dict[str, Any]], float], x_name: str, x_format: Callable) -> str:
        series = [Series(row["method"], numbers[row["method"]], bool(row["bound"]),
                         [Point(cost(row), row["accuracy"], row["accuracy_std"])]) for row in rows]  # fmt: skip
        note = "Up and to the left is better. Rings are bounds; whiskers are one standard deviation."
        return compare_charts.costs(name + (f", {cell['name']}" if cell["name"] else ""), series, x_name, x_format, note)

    sent = drawn("Bytes against accuracy", lambda row: row["bytes_up"] + row["bytes_down"], "bytes sent in all", size)
    work = drawn("Operations against accuracy", lambda row: row["flops"], "floating-point operations", flops)
    return f'<div class="grid2">{sent}{work}</div>'


# ---------------------------------------------------------------- grid


def number(value: Any) -> float | None:
    """The number in a value of a flag: 500 of clients:500, 0.1 of dirichlet:0.1."""
    found = re.fullmatch(r"(?:[a-z]+:)?(\d*\.?\d+)(?:[~/@].*)?", str(value))
    return float(found[1]) if found else None


def _grid(data: dict[str, Any], numbers: dict[str, int]) -> str:
    """Small multiples: the first varied flag across, a panel for each combination of the others."""
    vary = {name: values for name, values in data["vary"].items() if len(values) > 1}
    if not vary:
        return ""
    known = [row for row in data["table"] if row["accuracy"] is not None]
    if not known:
        return '<p class="aside">No run is finished yet.</p>'
    across = next((name for name in vary if _is_scale(vary[name])), next(iter(vary)))
    values = [cell["values"][across] for cell in data["cells"]]
    values = list(dict.fromkeys(values))
    panels: dict[tuple, list[dict]] = {}
    for cell in data["cells"]:
        rest = tuple((name, value) for name, value in cell["values"].items() if name != across)
        panels.setdefault(rest, []).append(cell)
    scale, x_name = _is_scale(values), _axis(across, values)
    drawn = []
    y = compare_charts.y_ticks([Series("", 0, False, [Point(0, r["accuracy"], r["accuracy_std"]) for r in known])])
    for rest, cells in panels.items():
        series = [_across(data, cells, label, i, across, values, scale) for label, i in numbers.items()]
        series = [s for s in series if s.points]
        title = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in rest) or "Accuracy"
        if not series:
            drawn.append(f'<div class="card"><h3>{text(title)}</h3><p class="aside">No run is finished yet.</p></div>')
        elif scale:
            log = min(map(number, values)) > 0 and max(map(number, values)) / min(map(number, values)) >= 4
            drawn.append(compare_charts.curves(title, series, x_name, count, "", y, log, 240, wide=len(panels) == 1, named=False))
        else:
            drawn.append(compare_charts.groups(title, values, series, x_name, "", y, wide=len(panels) == 1, named=False))
    told = "Mean test accuracy over seeds; the spread is one sample standard deviation. All panels have the same heights."
    return f'<p class="aside">{told}</p><div class="grid2">{"".join(drawn)}</div>'


def _is_scale(values: Sequence[Any]) -> bool:
    """Whether values are numbers of one kind, which have places on a line."""
    kinds = {re.sub(r"\d*\.?\d+", "#", str(value)) for value in values}
    return len(values) > 1 and len(kinds) == 1 and all(number(value) is not None for value in values)


def _axis(name: str, values: Sequence[Any]) -> str:
    kind = str(values[0]).partition(":")[0] if ":" in str(values[0]) else ""
    words = {
        "labels": {"clients": "labels at the clients", "server": "labels at the server", "fraction": "share of rows labelled"}
    }
    return words.get(name, {}).get(kind, f"{name.replace('_', '-')}{f' ({kind})' if kind and _is_scale(values) else ''}")


def _across(data: dict, cells: Sequence[dict], label: str, i: int, across: str, values: Sequence, scale: bool) -> Series:
    points, bound = [], False
    for cell in cells:
        for row in rows_of(data, cell):
            if row["method"] == label and row["accuracy"] is not None:
                value = cell["values"][across]
                points.append(Point(number(value) if scale else values.index(value), row["accuracy"], row["accuracy_std"]))
                bound = bool(row["bound"])
    return Series(label, i, bound, sorted(points, key=lambda p: p.x))


# ---------------------------------------------------------------- settings


def _settings(data: dict[str, Any]) -> str:
    repeat = ""
    if data["command"]:
        repeat = f'<div class="card wide"><h3>Repeat it</h3><pre tabindex="0">{text(data["command"])}</pre></div>'
    groups = {"Comparison": dict(methods=data["methods"], seeds=data["seeds"], vary=data["vary"], target=data["target"]),
              "Flags": data["flags"], "Versions": data["versions"]}  # fmt: skip
    for cell in data["cells"]:
        groups[f"Splits{' of ' + cell['name'] if cell['name'] else ''}"] = {f"seed {s}": h for s, h in cell["split"].items()}
    given = {line["label"]: line["settings"] for cell in data["cells"] for line in cell["lines"] if line["settings"]}
    groups |= {f"Fields of {label}": fields for label, fields in given.items()}
    cards = "".join(f'<div class="card"><h3>{text(name)}</h3>{charts.settings(group)}</div>' for name, group in groups.items())
    about = '<p class="aside">All other fields are at the defaults that grapevine methods NAME prints.</p>'
    return f'{repeat}{about}<div class="many">{cards}</div>'


# ---------------------------------------------------------------- leaderboard


Place = tuple[str, list[dict[str, Any]]]  # a setting's name, and the rows of its table


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


def _board(where: Sequence[Place]) -> str:
    """The ranking as a table: methods down, settings across."""
    rows = []
    for i, one in enumerate(ranking(where)):
        shown = text(one["method"]) + (f"<small>bound: {text(one['bound'])}</small>" if one["bound"] else "")
        rank, cells = one["mean_rank"], [(shown, one["method"])]
        cells += [("—", None), ("—", None)] if rank is None else [(f"{rank:.2f}", rank), (str(one["wins"]), one["wins"])]
        for place, _ in where:
            mean, std = one["accuracy"].get(place, (None, None))
            cells.append((text(spread(mean, std)), mean))
        rows.append(("bound" if one["bound"] else "best" if i == 0 else "", cells))
    note = (
        "Test accuracy, mean ± sample standard deviation. Rank 1 is the best mean among the methods of a setting; bounds have no "
        "rank. A mean rank is over the settings in which the method was run: compare ranks where the same methods were."
    )
    table = _sorted_table(["method", "mean rank", "wins", *(place for place, _ in where)], rows)
    return f'<div class="card">{table}<p class="aside">{note}</p></div>'


def write_leaderboard(loaded: Sequence[Comparison], out: Path) -> Path:
    """One page over several comparisons. Links to their own pages are relative to it."""
    if out.is_dir():
        raise Mistake(f"--out {out} is a folder: name a file, as in --out {out / 'leaderboard.html'}.")
    if not out.parent.is_dir():
        raise Mistake(f"--out {out}: there is no folder {out.parent}; make it first.")
    try:
        whole = _leaderboard(loaded, out)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Mistake(
            f"a folder holds a compare.json of another version ({type(error).__name__}: {error}); repeat it."
        ) from error
    return _save(out, whole)


def _leaderboard(loaded: Sequence[Comparison], out: Path) -> str:
    where = places(loaded)
    first = next((one for one in ranking(where) if one["mean_rank"] is not None), None)
    sentence = "No method has a result yet."
    if first:
        over = f"over {first['settings']} of {len(where)} settings"
        sentence = f"{first['method']} has the best mean rank, {first['mean_rank']:.2f}, {over}."
    links = "".join(
        f'<li><a href="{text(_from(out, made.out / "report.html"))}">{text(made.out.resolve().name)}</a>: '
        f"{text(', '.join(made.data['methods']))} on {text(_data_names(made.data))}, {len(made.data['seeds'])} seeds, "
        f"{text(made.data['state'])}</li>"
        for made in loaded
    )
    head = f'<p class="kind">Leaderboard · {len(loaded)} comparisons</p><h1>{text(sentence)}</h1>'
    sections = [("Table", _board(where)), ("Comparisons", f'<div class="card"><ul>{links}</ul></div>')]
    return _whole("Leaderboard", head, sections, f"Made by Grapevine {text(__version__)}.")


def _from(page_file: Path, other: Path) -> str:
    return Path(os.path.relpath(other, page_file.parent)).as_posix()
