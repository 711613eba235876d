"""report.html of the label job: one self-contained page, from the job's result alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine.cli.terminal import OTHERS
from grapevine.core.words import percent, size
from grapevine.report import charts, page
from grapevine.report.charts import count
from grapevine.report.page import text
from grapevine.report.train import MOST_BARS, MOST_CLASSES, MOST_ROWS, duration, histogram, many, save, tile_list

COLUMNS = dict(nearest="nearest own row", gaussian="Gaussian heads", model="the model")  # heads of a narrow table


def write(folder: Path, summary: dict[str, Any]) -> Path:
    """Make report.html of a label job."""
    return save(Path(folder), label_page(summary))


def label_page(summary: dict[str, Any]) -> str:
    """The page of a label job.

    `summary` has `parties`, each with name, rows, labelled (rows that came with a label), abstained, classes {name: rows that
    have this label now}, confidence_histogram (20 counts), accuracy and alone_accuracy (share of new labels that are right, or
    None), and other_accuracy {baseline: share} if there are any; `classes`; `expected` with accuracy, alone, n, calibration
    [{from, to, n, right}] (or None); `settings`, `seconds`, `protocol`, `seed_note`, `warnings`, `version`, `command`;
    `bytes_by_step` [{step, direction, bytes, messages, reveals}]; `graph` with x, y, cls, party (or None): a sample laid out in
    the plane, classes and parties by name or number, −1 for none.
    """
    sections = [
        ("Parties", _parties(summary)),
        ("Together and alone", _together(summary)),
        ("Confidence", _confidence(summary)),
        ("Class balance", _balance(summary)),
        ("Graph", _graph(summary)),
        ("What left each party", _left(summary)),
        ("Settings", _label_settings(summary)),
    ]
    names = many(len(summary["parties"]), "party").replace("partys", "parties")
    foot = f"Made by Grapevine {text(summary['version'])}. {text(summary['seed_note'])}"
    return page.page(f"Labels for {names}", _label_head(summary, names), sections, foot)


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
    tiles |= {"sent in all": size(sent), "time": duration(summary["seconds"])}
    notices = "".join(f'<p class="notice">{text(warning)}</p>' for warning in summary["warnings"])
    return f"{kind}<h1>{text(sentence)}.</h1><p>{text(what)}</p>{notices}{tile_list(tiles)}"


def _overall(parties: list[dict], key: str) -> float | None:
    """The mean over parties where it is known, weighed by their new labels."""
    known = [(party[key], _new(party)) for party in parties if party[key] is not None]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def _new(party: dict) -> int:
    return party["rows"] - party["labelled"] - party["abstained"]


def _parties(summary: dict) -> str:
    others = _baselines(summary["parties"])
    heads = ["party", "rows", "came labelled", "new labels", "left without", "right", "right alone"]
    heads += [f"right, {COLUMNS.get(name, name)}" for name in others]
    rows = []
    for p in summary["parties"]:
        right = [p["accuracy"], p["alone_accuracy"], *(p["other_accuracy"].get(name) for name in others)]
        told = [None if value is None else percent(value) for value in right]
        rows.append([p["name"], p["rows"], p["labelled"], _new(p), p["abstained"], *told])
    note = ""
    if summary["expected"] and all(p["accuracy"] is None for p in summary["parties"]):
        told = f"No truth was given: {percent(summary['expected']['accuracy'])} is the expected accuracy over all parties."
        note = f'<p class="aside">{text(told)}</p>'
    return f'<div class="card">{charts.table(heads, rows)}{note}</div>'


def _baselines(parties: list[dict]) -> list[str]:
    """What else was tried, beside each party alone, and could be measured."""
    known = {name: value for p in parties for name, value in p.get("other_accuracy", {}).items() if value is not None}
    return [name for name in known if name != "alone"]


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
        for name in _baselines(parties):
            values[OTHERS.get(name, name)] = [p["other_accuracy"].get(name) for p in known]
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
    drawn = histogram("Confidence of all new labels", total, "confidence", "rows", wide=True)
    if not 1 < len(parties) <= 12:
        return drawn
    small = "".join(
        histogram(f"Confidence: {p['name']}", p["confidence_histogram"], "confidence", "rows", height=110) for p in parties
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
