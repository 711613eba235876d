"""report.html: one self-contained page about a run, from the files in its folder alone.

`write` is for training runs, finished or still going; `write_label` for the label job. A folder may have been moved to another
machine, so nothing is looked up outside it: neither the data nor the versions installed here.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine import charts, page
from grapevine.charts import count
from grapevine.errors import Mistake
from grapevine.page import text
from grapevine.store import write_atomically
from grapevine.terminal import percent, size

REFRESH_SECONDS = 15
MOST_BARS = 30  # clients named one by one; up to MOST_COLUMNS as thin columns; more as a histogram
MOST_COLUMNS = 300
MOST_ROWS = 50  # clients in the picture of the split
MOST_CLASSES = 100  # in a picture
MOST_FIELDS = 8  # told apart in the bars of the messages


def write(folder: Path) -> Path:
    """Make report.html from a run's folder, and return where it is."""
    folder = Path(folder)
    result = _json(folder / "result.json")
    if result and result.get("job") == "label":
        return write_label(folder, result)
    settings = _json(folder / "settings.json")
    if settings is None:
        raise Mistake(f"{folder} holds no run of Grapevine: name the folder that a run's --out named.")
    history, messages, times = (_lines(folder / f"{name}.jsonl") for name in ("history", "messages", "times"))
    split = _json(folder / "split.json")
    try:
        made = _train_page(folder, settings, result, history, messages, times, split)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Mistake(
            f"{folder} holds files that no run of Grapevine writes ({type(error).__name__}: {error}); "
            "repeat the run, or report with the version that made it."
        ) from error
    return _save(folder, made)


def _save(folder: Path, made: str) -> Path:
    path = folder / "report.html"
    write_atomically(path, made.encode())
    return path


def _json(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Mistake(f"{path} is not readable as JSON ({error}); repeat the run, or take the file from a copy.") from None
    if not isinstance(value, dict):
        raise Mistake(
            f"{path} holds no settings or results but a {type(value).__name__}; repeat the run, or take it from a copy."
        )
    return value


def _lines(path: Path) -> list[dict]:
    """The lines of a file that may be growing: a last line without its end is left for the next time."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise Mistake(f"{path} has a line that is not JSON ({error}); repeat the run, or take the file from a copy.") from None


# A training run ------------------------------------------------------------------------------------------------------


def _train_page(
    folder: Path, settings: dict, result: dict | None, history: list, messages: list, times: list, split: dict | None
) -> str:
    sections = [
        ("Accuracy", _accuracy(history, times, result)),
        ("Clients", _clients(result, split)),
        ("Confusion", _confusion(result)),
        ("Costs", _costs(messages, times)),
        ("Split", _split(split, settings["data"]["classes"])),
        ("Settings", _settings(settings, result, split)),
    ]
    title = f"{settings['method']} on {settings['data']['name']}"
    head = _head(settings, result, history, times, split)
    foot = f"Made by Grapevine {text(settings['version'])} from the files of the run {text(folder.resolve().name)}."
    return page.page(title, head, sections, foot, 0 if result else REFRESH_SECONDS)


def _head(settings: dict, result: dict | None, history: list, times: list, split: dict | None) -> str:
    data = settings["data"]
    kind = f'<p class="kind">Training run · {text(settings["method"])} · {text(data["name"])} · seed {text(settings["seed"])}</p>'
    about = _about(settings, split)
    if result is None:
        return kind + _unfinished(settings, history, times, about)
    sentence = f"{percent(result['accuracy'])} of the test rows are classified right by {result['method']} on {data['name']}"
    best = f"Of {count(result['rounds'])} rounds, round {count(result['best_round'])} was kept"
    best += ", the best on validation" if any(line.get("validation_accuracy") is not None for line in history) else ", the last"
    sent = result["bytes_up"] + result["bytes_down"]
    own = [row["accuracy"] for row in result["per_client"] if row["accuracy"] is not None]
    tiles = {
        "test accuracy": percent(result["accuracy"]),
        "in the last round": percent(result["accuracy_last"]),
        "balanced accuracy": percent(result["balanced_accuracy"]),
        "worst client": percent(min(own)) if own else "—",
        "sent in all": size(sent),
        "time": _duration(result["seconds"]),
    }
    if result["pseudo_label_accuracy"] is not None:
        tiles["pseudo-labels right"] = percent(result["pseudo_label_accuracy"])
    return f"{kind}<h1>{text(sentence)}.</h1><p>{text(about)} {text(best)}.</p>{_tiles(tiles)}"


def _unfinished(settings: dict, history: list, times: list, about: str) -> str:
    done = times[-1]["round"] if times else 0
    last = history[-1] if history else {}
    sentence = f"Not finished: {settings['method']} has done {count(done)} of {count(settings['rounds'])} rounds"
    tiles = {
        "test accuracy so far": percent(last.get("accuracy")),
        "validation so far": percent(last.get("validation_accuracy")),
        "rounds": f"{count(done)} / {count(settings['rounds'])}",
        "sent so far": size(last.get("bytes_up", 0) + last.get("bytes_down", 0)),
        "time so far": _duration(times[-1]["seconds"]) if times else "—",
    }
    notice = (
        "There is no result yet: the run is going on, or was stopped and --resume goes on with it. "
        f"This page loads itself again every {REFRESH_SECONDS} seconds; run grapevine report again to bring it up to date."
    )
    return f'<h1>{text(sentence)}.</h1><p>{text(about)}</p><p class="notice" role="status">{text(notice)}</p>{_tiles(tiles)}'


def _about(settings: dict, split: dict | None) -> str:
    """The federation in a sentence."""
    data = settings["data"]
    words = (
        f"{_many(data['clients'], 'client')} (partition {data['partition']}), {_many(settings['per_round'], 'client')} a round"
    )
    if split:
        labelled = sum(len(part["labelled"]) for part in split["clients"])
        unlabelled = sum(len(part["unlabelled"]) for part in split["clients"])
        words += f", holding {_many(labelled, 'labelled row')} and {count(unlabelled)} unlabelled"
        words += f"; the server holds {_many(len(split['server']['labelled']), 'labelled row')}" if split["server"] else ""
    return words + f". Model {settings['model']}."


def _many(n: int, what: str) -> str:
    return f"{count(n)} {what}{'' if n == 1 else 's'}"


def _tiles(tiles: dict[str, str]) -> str:
    return f'<dl class="tiles">{"".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in tiles.items())}</dl>'


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 120 else f"{hours:.1f} h"


def _accuracy(history: list[dict], times: list[dict], result: dict | None) -> str:
    if not history:
        return '<p class="aside">Nothing has been evaluated yet.</p>'
    kept = {"validation": "validation_accuracy", "test": "accuracy"}
    series = {name: [line.get(key) for line in history] for name, key in kept.items()}
    series = {name: values for name, values in series.items() if any(v is not None for v in values)}
    if not series:
        return '<p class="aside">No accuracy could be measured: there are no test rows.</p>'
    best = result["best_round"] if result else None
    every = -(-len(history) // MOST_COLUMNS)
    history = [line for i, line in enumerate(history) if i % every == 0 or line["round"] in (best, history[-1]["round"])]
    series = {name: [line.get(kept[name]) for line in history] for name in series}
    rounds = [line["round"] for line in history]
    sent = [line["bytes_up"] + line["bytes_down"] for line in history]
    clock = {0: 0.0, **{line["round"]: line["seconds"] for line in times}}
    note = f"Every {every}th evaluation is drawn; all are in history.jsonl." if every > 1 else ""

    def curve(x: Sequence[float], x_name: str, x_format: Any) -> str:
        mark = (x[rounds.index(best)], f"kept: round {best}") if best in rounds else None
        return charts.line(f"Accuracy by {x_name}", x, series, x_name, percent, x_format, note, mark, wide=True)

    choices = {"rounds": curve(rounds, "round", count)}
    if sent[-1]:
        choices["bytes sent"] = curve(sent, "bytes sent", size)
    if all(r in clock for r in rounds) and len(rounds) > 1:
        choices["seconds"] = curve([clock[r] for r in rounds], "seconds", lambda s: f"{s:.4g} s")
    more = _pseudo_labels(history) + "".join(_notes(history))
    return page.views("over", choices) + (f'<div class="grid2 below">{more}</div>' if more else "")


def _pseudo_labels(history: list[dict]) -> str:
    lines = [line for line in history if line.get("pseudo_label_accuracy") is not None]
    if not lines:
        return ""
    x = [line["round"] for line in lines]
    right = {
        "right, of those used": [line["pseudo_label_accuracy"] for line in lines],
        "used, of those guessed": [line["pseudo_labels_used"] / max(line["pseudo_labels_of"], 1) for line in lines],
    }
    note = "Pseudo-labels compared with the truth, which no client sees."
    used = charts.columns(
        "Pseudo-labels used", [f"round {r}" for r in x], [line["pseudo_labels_used"] for line in lines], count, "evaluation",
        "used", [(0, f"round {x[0]}"), (len(x), f"round {x[-1]}")], note="Since the evaluation before.",
    )  # fmt: skip
    return charts.line("Pseudo-labels right", x, right, "round", percent, note=note) + used


def _notes(history: list[dict]) -> list[str]:
    """What else the method wrote down, each as a curve."""
    known = {"round", "accuracy", "validation_accuracy", "pseudo_label_accuracy", "pseudo_labels_used", "pseudo_labels_of",
             "bytes_up", "bytes_down"}  # fmt: skip
    out = []
    for name in dict.fromkeys(name for line in history for name in line if name not in known):
        lines = [line for line in history if isinstance(line.get(name), (int, float)) and math.isfinite(line[name])]
        if lines:
            x, values = [line["round"] for line in lines], [line[name] for line in lines]
            out.append(charts.line(name.replace("_", " ").capitalize(), x, {name: values}, "round", lambda v: f"{v:.4g}"))
    return out


def _clients(result: dict | None, split: dict | None) -> str:
    if result is None:
        return ""
    rows = sorted(
        (row for row in result["per_client"] if row["accuracy"] is not None), key=lambda row: (row["accuracy"], row["id"])
    )
    missing = len(result["per_client"]) - len(rows)
    if not rows:
        return '<p class="aside">No client has test rows to be measured on.</p>'
    values = [row["accuracy"] for row in rows]
    middle = values[len(values) // 2]
    note = (
        f"From worst to best: {percent(values[0])} to {percent(values[-1])}, half of the clients have {percent(middle)} or more."
    )
    note += " On the client's own test rows, or on the common ones weighed by its mix of classes."
    note += f" {_many(missing, 'client')} without test rows left out." if missing else ""
    names = [f"client {row['id']}" for row in rows]
    if len(rows) <= MOST_BARS:
        numbers = charts.table(
            ["client", "rows", "accuracy"], [[str(row["id"]), row["n"], percent(row["accuracy"])] for row in rows]
        )
        return charts.bars("Accuracy per client", names, {"accuracy": values}, percent, "client", note, most=1.0, numbers=numbers)
    if len(rows) <= MOST_COLUMNS:
        ends = [(0, "worst"), (len(rows), "best")]
        return charts.columns("Accuracy per client", names, values, percent, "client", "accuracy", ends, note, top=1.0, wide=True)
    counts = [0] * 20
    for value in values:
        counts[min(int(value * 20), 19)] += 1
    worst = charts.table(
        ["client", "rows", "accuracy"], [[str(row["id"]), row["n"], percent(row["accuracy"])] for row in rows[:10]]
    )
    drawn = _histogram("Accuracy per client", counts, "accuracy", "clients", note, wide=True)
    return f'{drawn}<div class="card below"><h3>The ten worst clients</h3>{worst}</div>'


def _histogram(
    title: str, counts: Sequence[int], x_name: str, y_name: str, note: str = "", wide: bool = False, height: int = 200
) -> str:
    """Counts of equal bins from 0 to 1."""
    n = len(counts)
    names = [f"{i / n:.0%} to {(i + 1) / n:.0%}" for i in range(n)]
    places = [(n * share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)]
    return charts.columns(title, names, counts, count, x_name, y_name, places, note, wide=wide, height=height)


def _confusion(result: dict | None) -> str:
    if result is None or not result.get("confusion"):
        return ""
    matrix, classes = result["confusion"], result["data"]["classes"]
    worst = sorted(((n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n), reverse=True)
    told = [f"{classes[i]} taken for {classes[j]} ({count(n)} of {count(sum(matrix[i]))})" for n, i, j in worst[:3]]
    note = f"Most often: {'; '.join(told)}." if told else "No test row is taken for another class."
    lines = [[classes[i], classes[j], n, percent(n / sum(matrix[i]))] for n, i, j in worst[:10]]
    heads = ["true class", "taken for", "rows", "of the class"]
    listed = f'<div class="card"><h3>Most confused</h3>{charts.table(heads, lines)}</div>' if lines else ""
    if len(classes) > MOST_CLASSES:
        return listed
    shares = [[n / (sum(row) or 1) for n in row] for row in matrix]
    drawn = charts.heat("Confusion matrix", classes, classes, matrix, shares, "true", "predicted", note, "the true class")
    return f'<div class="grid2">{drawn}{listed}</div>'


def _costs(messages: list[dict], times: list[dict]) -> str:
    drawn = _messages(messages) + _time(times)
    return f'<div class="grid2">{drawn}</div>' if drawn else ""


def _messages(messages: list[dict]) -> str:
    """What was sent, added up over the rounds by step and direction; the large fields are told apart."""
    if not messages:
        return ""
    sums = _added_up(messages)
    totals: dict[str, int] = {}
    for one in sums.values():
        for name, field in one["fields"].items():
            totals[name] = totals.get(name, 0) + field["bytes"]
    sent = sum(one["bytes"] for one in sums.values())
    large = [name for name in sorted(totals, key=lambda name: (-totals[name], name))[:MOST_FIELDS] if totals[name] >= sent / 100]
    parts = {name: [one["fields"].get(name, {}).get("bytes", 0) for one in sums.values()] for name in large}
    parts["the rest"] = [one["bytes"] - sum(values[i] for values in parts.values()) for i, one in enumerate(sums.values())]
    names = [f"{'↑' if direction == 'up' else '↓'} {step}" for step, direction in sums]
    steps = [[*key, one["messages"], one["bytes"], size(one["bytes"] / one["messages"])] for key, one in sums.items()]
    fields = [
        [*key, name, field["type"], "×".join(map(str, field["shape"])) or "one", field["bytes"]]
        for key, one in sums.items()
        for name, field in one["fields"].items()
    ]
    numbers = charts.table(["step", "direction", "messages", "bytes", "a message"], steps)
    numbers += charts.table(["step", "direction", "field", "type", "shape", "bytes"], fields)
    up, down = (sum(one["bytes"] for key, one in sums.items() if key[1] == way) for way in ("up", "down"))
    note = f"{size(up)} up (↑ client to server), {size(down)} down (↓ server to client), over all rounds and clients."
    return charts.bars("Bytes by step and direction", names, parts, size, "step", note, numbers=numbers)


def _added_up(messages: list[dict]) -> dict[tuple[str, str], dict]:
    """Lines of messages.jsonl by (step, direction): bytes, messages and fields."""
    sums: dict[tuple[str, str], dict] = {}
    for line in messages:
        one = sums.setdefault((line["step"], line["direction"]), dict(bytes=0, messages=0, fields={}))
        one["bytes"] += line["bytes"]
        one["messages"] += line["messages"]
        for name, field in line["fields"].items():
            known = one["fields"].setdefault(name, dict(type=field["type"], shape=field["shape"], bytes=0))
            known["bytes"] += field["bytes"]
            known["shape"] = field["shape"] if known["shape"] == field["shape"] else ["varies"]
    return sums


def _time(times: list[dict]) -> str:
    if not times:
        return ""
    ends = [0.0] + [line["seconds"] for line in times]
    took = [b - a for a, b in zip(ends, ends[1:])]
    rounds = [line["round"] for line in times]
    each = -(-len(took) // MOST_COLUMNS)  # long runs: the mean of some rounds at a time
    groups = [range(i, min(i + each, len(took))) for i in range(0, len(took), each)]
    names = [f"round {rounds[g[0]]}" if len(g) == 1 else f"rounds {rounds[g[0]]} to {rounds[g[-1]]}" for g in groups]
    values = [sum(took[i] for i in g) / len(g) for g in groups]
    places = (
        [(0, f"round {rounds[0]}"), (len(groups), f"round {rounds[-1]}")] if len(groups) > 1 else [(0.5, f"round {rounds[0]}")]
    )
    note = f"{_duration(ends[-1])} in all, evaluations included; {_duration(ends[-1] / len(took))} a round."
    note += f" Each column is the mean of {each} rounds." if each > 1 else ""
    seconds = lambda s: f"{s:.3g} s"  # noqa: E731
    return charts.columns("Seconds per round", names, values, seconds, "round", "seconds", places, note, height=150)


def _split(split: dict | None, classes: list[str]) -> str:
    """Who holds what, as far as split.json tells: it has the given labels, and of the unlabelled rows only their number."""
    if split is None:
        return '<p class="aside">There is no split.json in this folder.</p>'
    holders = [(str(i), part) for i, part in enumerate(split["clients"])]
    few = ""
    if len(holders) > MOST_ROWS:
        few = f"{MOST_ROWS} of the {count(len(holders))} clients, evenly taken."
        holders = [holders[i * len(holders) // MOST_ROWS] for i in range(MOST_ROWS)]
    at_clients = len(holders)
    holders += [("server", split["server"])] if split["server"] else []
    own = _first_foreign(split)
    rows = {kind: [sum(row < own for row in part[kind]) for _, part in holders] for kind in ("labelled", "unlabelled")}
    if split["foreign"]:
        rows["irrelevant"] = [sum(row >= own for row in part["labelled"] + part["unlabelled"]) for _, part in holders]
    rows = {kind: counts for kind, counts in rows.items() if any(counts)}
    names = [name if name == "server" else f"client {name}" for name, _ in holders]
    sizes = charts.bars("Rows per client", names, rows, count, "client", few)
    if len(classes) > MOST_CLASSES or not any(part["labels"] for _, part in holders):
        return sizes
    counts = [[part["labels"].count(c) for c in range(len(classes))] for _, part in holders]
    most = max(map(max, counts[:at_clients])) or max(map(max, counts))  # a server with many labels does not pale the clients
    shares = [[min(n / most, 1.0) for n in line] for line in counts]
    note = f"{few} Given labels; the classes of unlabelled rows are not in split.json."
    who = [name for name, _ in holders]
    heat = charts.heat("Labels per client and class", who, classes, counts, shares, "client", "class", note.strip())
    return f'<div class="grid2">{heat}{sizes}</div>'


def _first_foreign(split: dict) -> float:
    """The position from which on rows are foreign: they lie behind all others, and every one of them is somebody's."""
    if not split["foreign"]:
        return float("inf")
    return max(max(part["labelled"] + part["unlabelled"], default=0) for part in split["clients"]) + 1 - len(split["foreign"])


def _settings(settings: dict, result: dict | None, split: dict | None) -> str:
    again = settings["command"] or _command(settings, split)
    how = "" if settings["command"] else '<p class="aside">This run was started from Python; this is the same as a command.</p>'
    repeat = f'<div class="card wide"><h3>Repeat it</h3>{how}<pre tabindex="0">{text(again)}</pre></div>'
    run = {name: value for name, value in settings.items() if name not in ("command", "settings", "data", "job")}
    groups = {"Run": run, f"Fields of {settings['method']}": settings["settings"], "Data": settings["data"]}
    if result:
        known = {*settings, "confusion", "per_client"} - {"rounds"}
        groups["Result"] = {name: value for name, value in result.items() if name not in known}
    cards = "".join(
        f'<div class="card"><h3>{text(name)}</h3>{charts.settings(group)}</div>' for name, group in groups.items() if group
    )
    return f'{repeat}<div class="many">{cards}</div>'


def _command(settings: dict, split: dict | None) -> str:
    """The command that makes the same run. A split of another seed than the run's is handed over as its file."""
    data = settings["data"]
    words = ["grapevine", "train", settings["method"], "--data", data["name"]]
    if split and split["seed"] != settings["seed"]:
        words += ["--split", "split.json"]
    else:
        for name in ("clients", "partition", "labels", "flip", "irrelevant", "validation"):
            words += [f"--{name}", str(data[name])] if data[name] else []
    words += ["--model", settings["model"]]
    words += ["--norm", settings["norm"]] if settings["norm"] != "default" else []
    for name in ("rounds", "per_round", "seed", "device", "evaluate_every", "patience"):
        words += [f"--{name.replace('_', '-')}", str(settings[name])] if settings[name] or name == "seed" else []
    for name, value in settings["settings"].items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, "--out", "again"])


# The label job -------------------------------------------------------------------------------------------------------


def write_label(folder: Path, summary: dict[str, Any]) -> Path:
    """Make report.html of a label job.

    `summary` has `parties`, each with name, rows, labelled (rows that came with a label), abstained, classes {name: rows that
    have this label now}, confidence_histogram (20 counts), accuracy and alone_accuracy (share of new labels that are right, or
    None); `classes`; `expected` with accuracy, alone, n, calibration [{from, to, n, right}] (or None); `settings`, `seconds`,
    `protocol`, `seed_note`, `warnings`, `version`, `command`; `bytes_by_step` [{step, direction, bytes, messages, reveals}];
    `graph` with x, y, cls, party (or None): a sample laid out in the plane, classes and parties by name or number, −1 for none.
    """
    folder = Path(folder)
    sections = [
        ("Parties", _parties(summary)),
        ("Together and alone", _together(summary)),
        ("Confidence", _confidence(summary)),
        ("Class balance", _balance(summary)),
        ("Graph", _graph(summary)),
        ("What left each party", _left(summary)),
        ("Settings", _label_settings(summary)),
    ]
    names = _many(len(summary["parties"]), "party").replace("partys", "parties")
    foot = f"Made by Grapevine {text(summary['version'])}. {text(summary['seed_note'])}"
    return _save(folder, page.page(f"Labels for {names}", _label_head(summary, names), sections, foot))


def _label_head(summary: dict, names: str) -> str:
    parties, expected = summary["parties"], summary["expected"]
    rows, given, abstained = (sum(party[key] for party in parties) for key in ("rows", "labelled", "abstained"))
    new = sum(map(_new, parties))
    kind = f'<p class="kind">Label job · {text(names)} · protocol {text(summary["protocol"])}</p>'
    sentence = f"{count(new)} rows got a label from the {count(given)} that had one, without moving any row"
    sent = sum(line["bytes"] for line in summary["bytes_by_step"])
    together, alone = _overall(parties, "accuracy"), _overall(parties, "alone_accuracy")
    if together is not None:
        what = f"Of the new labels, {percent(together)} are right"
    elif expected:
        together, alone = expected["accuracy"], expected["alone"]
        what = f"About {percent(together)} of the new labels are expected to be right: "
        what += f"so many of {count(expected['n'])} known labels were found again when they were hidden"
    else:
        what = "How many of them are right is not known"
    what += f"; each party alone would have had {percent(alone)}." if alone is not None else "."
    what += f" {count(abstained)} rows were left without a label." if abstained else ""
    tiles = {
        "rows": count(rows),
        "came labelled": count(given),
        "new labels": count(new),
        "left without": count(abstained),
    }
    if together is not None:
        tiles["right" if not expected or _overall(parties, "accuracy") is not None else "expected right"] = percent(together)
    if alone is not None:
        tiles["right, each alone"] = percent(alone)
    tiles |= {"sent in all": size(sent), "time": _duration(summary["seconds"])}
    notices = "".join(f'<p class="notice">{text(warning)}</p>' for warning in summary["warnings"])
    return f"{kind}<h1>{text(sentence)}.</h1><p>{text(what)}</p>{notices}{_tiles(tiles)}"


def _overall(parties: list[dict], key: str) -> float | None:
    """The mean over parties where it is known, weighed by their new labels."""
    known = [(party[key], _new(party)) for party in parties if party[key] is not None]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def _new(party: dict) -> int:
    return party["rows"] - party["labelled"] - party["abstained"]


def _parties(summary: dict) -> str:
    heads = ["party", "rows", "came labelled", "new labels", "left without", "right", "right alone"]
    rows = [[p["name"], p["rows"], p["labelled"], _new(p), p["abstained"],
             None if p["accuracy"] is None else percent(p["accuracy"]),
             None if p["alone_accuracy"] is None else percent(p["alone_accuracy"])] for p in summary["parties"]]  # fmt: skip
    note = ""
    if summary["expected"] and all(p["accuracy"] is None for p in summary["parties"]):
        told = f"No truth was given: {percent(summary['expected']['accuracy'])} is the expected accuracy over all parties."
        note = f'<p class="aside">{text(told)}</p>'
    return f'<div class="card">{charts.table(heads, rows)}{note}</div>'


def _together(summary: dict) -> str:
    parties, expected = summary["parties"], summary["expected"]
    known = [p for p in parties if p["accuracy"] is not None]
    drawn = ""
    if known:
        known = sorted(known, key=lambda p: p["accuracy"])
        note = "Share of each party's new labels that are right, worst first."
        if len(known) > MOST_BARS:
            known, note = known[:MOST_BARS], f"{note} The {MOST_BARS} worst of {len(known)}."
        values = {"together": [p["accuracy"] for p in known], "alone": [p["alone_accuracy"] for p in known]}
        drawn = charts.bars(
            "Together and alone", [p["name"] for p in known], values, percent, "party", note, beside=True, most=1.0
        )
    elif expected:
        values = {"together": [expected["accuracy"]], "alone": [expected["alone"]]}
        note = f"Expected, from {count(expected['n'])} known labels that were hidden and found again."
        drawn = charts.bars("Together and alone", ["all parties"], values, percent, "party", note, beside=True, most=1.0)
    return f'<div class="grid2">{drawn}{_calibration(expected)}</div>' if drawn else ""


def _calibration(expected: dict | None) -> str:
    bins = [b for b in expected["calibration"] if b["n"]] if expected else []
    if not bins:
        return ""
    names = [f"confidence {b['from']:.0%} to {b['to']:.0%} ({count(b['n'])} rows)" for b in bins]
    places = [(0, f"{bins[0]['from']:.0%}"), (len(bins), f"{bins[-1]['to']:.0%}")]
    note = "Share of hidden labels found again, by confidence. Higher confidence should mean more of them right."
    values = [b["right"] / b["n"] for b in bins]
    return charts.columns("Calibration", names, values, percent, "confidence", "right", places, note, top=1.0)


def _confidence(summary: dict) -> str:
    parties = summary["parties"]
    total = [sum(counts) for counts in zip(*(p["confidence_histogram"] for p in parties))]
    if not sum(total):
        return ""
    drawn = _histogram("Confidence of all new labels", total, "confidence", "rows", wide=True)
    if not 1 < len(parties) <= 12:
        return drawn
    small = "".join(
        _histogram(f"Confidence: {p['name']}", p["confidence_histogram"], "confidence", "rows", height=110) for p in parties
    )
    return f'{drawn}<div class="grid3 below">{small}</div>'


def _balance(summary: dict) -> str:
    parties, classes = summary["parties"][:MOST_ROWS], [str(c) for c in summary["classes"]]
    counts = [[p["classes"].get(c, 0) for c in classes] for p in parties]
    if not classes or len(classes) > MOST_CLASSES or not any(map(any, counts)):
        return ""
    names = [p["name"] for p in parties]
    note = "Rows per class, given labels and new ones."
    note += f" The first {MOST_ROWS} of {count(len(summary['parties']))} parties." if len(summary["parties"]) > MOST_ROWS else ""
    total = [sum(column) for column in zip(*counts)]
    over = charts.bars("Rows per class", classes, {"rows": total}, count, "class", note)
    shares = [[n / (sum(line) or 1) for n in line] for line in counts]
    most = max(map(max, shares))
    shares = [[share / most for share in line] for line in shares]
    told = "Drawn by the share within a party; the numbers are rows."
    heat = charts.heat("Classes per party", names, classes, counts, shares, "party", "class", told, "the party's rows")
    return f'<div class="grid2">{over}{heat}</div>'


def _graph(summary: dict) -> str:
    graph = summary["graph"]
    if not graph or not graph["x"]:
        return ""
    names = [p["name"] for p in summary["parties"]]
    kinds = [_named(c, summary["classes"], "no label") for c in graph["cls"]]
    groups = [_named(p, names, "no party") for p in graph["party"]]
    note = (
        f"A sample of {count(len(kinds))} rows; neighbours in the graph lie together. Choose a class or a party to see it alone."
    )
    order = [*map(str, summary["classes"]), "no label"]
    return charts.scatter("Graph of the rows", graph["x"], graph["y"], kinds, groups, order, note)


def _named(value: Any, names: Sequence, none: str) -> str:
    if isinstance(value, int):
        return str(names[value]) if 0 <= value < len(names) else none
    return none if value is None else str(value)


def _left(summary: dict) -> str:
    lines = summary["bytes_by_step"]
    if not lines:
        return ""
    arrows = dict(up="↑", down="↓")
    names = [f"{arrows.get(line['direction'], line['direction'])} {line['step']}" for line in lines]
    note = "↑ party to server, ↓ server to party; all parties together. Each party's own account is its disclosure.jsonl."
    drawn = charts.bars("Bytes by step", names, {"bytes": [line["bytes"] for line in lines]}, size, "step", note, wide=True)
    rows = [[line["step"], line["direction"], line["reveals"], size(line["bytes"]), line["messages"]] for line in lines]
    told = charts.table(["step", "direction", "what it reveals", "bytes", "messages"], rows)
    return f'<div class="grid2">{drawn}<div class="card wide"><h3>What it reveals</h3>{told}</div></div>'


def _label_settings(summary: dict) -> str:
    repeat = (
        f'<div class="card wide"><h3>Repeat it</h3><pre tabindex="0">{text(summary["command"])}</pre></div>'
        if summary["command"]
        else ""
    )
    told = dict(summary["settings"], protocol=summary["protocol"], seed=summary["seed_note"], version=summary["version"])
    return f'<div class="grid2">{repeat}<div class="card"><h3>Settings</h3>{charts.settings(told)}</div></div>'
