"""The page of a label job, from its result alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grapevine.core.words import count, duration, many, percent, sentence, size
from grapevine.jobs.expected import beaten_by, beside, counted, verdict, verdict_lines, verdict_of_all, wilson
from grapevine.report.charts.kinds import Axis, bars, columns, heat, histogram, scatter
from grapevine.report.page import Page, files_of
from grapevine.report.parts import MOST_CLASSES, MOST_CLIENTS, Card, Cell, Chart, Command, Part, Settings, Table
from grapevine.report.sent import chart as bytes_sent
from grapevine.run.folder import read_lines

MOST_BARS, MOST_HISTOGRAMS = 30, 12  # parties drawn one by one
MOST_TICKS = 5  # tenths that are all named below their bars: with more, names would touch on a phone


def write(folder: Path, summary: dict[str, Any]) -> Path:
    """Make report.html of a label job, and return where it is."""
    return make(folder, summary).write(Path(folder) / "report.html")


def make(folder: Path, summary: dict[str, Any]) -> Page:
    """The page of a label job. `summary` is its result.json; a host's has no `parties`, since it knows of no row."""
    with files_of(folder, "a label job of Grapevine"):
        parties = summary.get("parties", [])
        sent = summary.get("bytes_by_step") or read_lines(Path(folder) / "messages.jsonl")
        names = parties[0]["name"] if len(parties) == 1 else many(len(parties or summary.get("labelled", [])), "party", "parties")
        note, protocol = summary.get("seed_note", ""), summary.get("protocol", summary["settings"].get("secure", ""))
        told = dict(_acting(summary), version=summary["version"])
        again: list[Part] = [Command(summary["command"])] if summary.get("command") else []
        sections = [
            ("Parties", _parties(parties, summary["expected"], summary.get("method", ""))),
            ("By class", _classes(summary)),
            ("Together and alone", _together(parties, summary["expected"])),
            ("Baselines", _baselines(parties, summary)),
            ("Confidence", _confidence(parties)),
            ("Class balance", _balance(parties, [str(c) for c in summary.get("classes", [])])),
            ("Graph", _graph(parties, summary)),
            ("What left each party", _left(sent, len(parties))),
            ("Settings", [*again, Settings({"Settings": told})]),
        ]
        return Page(
            f"Labels for {names}", f"Label job · {names} · protocol {protocol}", sections=sections,
            foot=f"Made by Grapevine {summary['version']}. {note}".strip(), **_head(parties, summary, sent),
        )  # fmt: skip


def _acting(summary: dict) -> dict[str, Any]:
    """The settings that have an effect on this job."""
    settings, chorus = summary["settings"], summary.get("method", summary["settings"].get("method")) == "chorus"
    idle = {"preset"} if chorus else {"smooth", "landmarks", "dp_labels"}
    idle |= set() if settings.get("dp") else {"delta"}
    seed = dict(seed=summary["seed"]) if summary.get("seed") is not None else {}
    return {name: value for name, value in settings.items() if name not in idle} | seed


def _head(parties: list[dict], summary: dict, sent: list[dict]) -> dict[str, Any]:
    rows, given, abstained = (sum(party[key] for party in parties) for key in ("rows", "labelled", "abstained"))
    new, expected = sum(map(_new, parties)), summary["expected"]
    together, alone, word = _overall(parties, "accuracy"), _overall(parties, "alone_accuracy"), "right"
    if together is None and expected:
        of = expected.get("given", expected)
        together, alone, word = of["accuracy"], expected["alone"], f"expected right ({of['low']:.0%} to {of['high']:.0%})"
    together = None if parties and not new else together
    tiles = {"rows": count(rows), "came labelled": count(given), "new labels": count(new), "left without": count(abstained)}
    heading = f"{count(new)} rows got a label from the {count(given)} that had one, without moving any row."
    if parties and not new:
        unlabelled = many(abstained, "row stays", "rows stay")
        heading = "Every row came with a label." if given == rows else f"No row got a new label: {unlabelled} without one."
    if not parties:
        tiles, heading = {}, f"{', '.join(summary['labelled'])} have labels for their rows, and only they know them."
    tiles |= {word: percent(together)} if together is not None else {}
    tiles |= {"right, each alone": percent(alone)} if alone is not None else {}
    tiles |= {"sent in all": size(sum(line["bytes"] for line in sent)), "time": duration(summary["seconds"])}
    lost = [f"Without labels: {', '.join(summary['lost'])}."] if summary.get("lost") else []
    about = " ".join([_told(parties, expected, new, abstained), *map(sentence, summary.get("remarks", []))])
    return dict(heading=heading, about=about, tiles=tiles, notices=[*map(sentence, summary.get("warnings", [])), *lost])


def _told(parties: list[dict], expected: dict | None, new: int, abstained: int) -> str:
    """How many of the new labels are right, or expected to be."""
    together, alone = _overall(parties, "accuracy"), _overall(parties, "alone_accuracy")
    told = "How many of them are right is not known."
    if parties and not new:
        told = "There are no new labels" + (f": {_hid(expected)}." if expected else ".")
        if abstained and expected:
            told = f"If no row abstained, about {percent(expected['accuracy'])} of the labels would be right: {_hid(expected)}."
    elif together is not None:
        told = f"Of the new labels, {percent(together)} are right"
        told += f"; each party alone would reach {percent(alone)}." if alone is not None else "."
        told += f" Without the truth, about {_expected(expected)}." if expected else ""
    elif expected:
        told = f"About {_expected(expected)}"
    if together is None and expected:
        told = f"{told.removesuffix('.')}; each party alone would reach {percent(expected['alone'])}."
    return told + (f" {count(abstained)} rows were left without a label." if abstained and new else "")


def _expected(expected: dict) -> str:
    """What share of the new labels is expected to be right, and of all if no row abstained."""
    told = f"{percent(expected.get('given', expected)['accuracy'])} of the new labels are expected to be right"
    if "given" in expected:
        of = expected["given"]
        told += f" ({_interval(of)}, {counted(of)}); if no row abstained, {percent(expected['accuracy'])}"
    return f"{told}: {_hid(expected)}"


def _hid(expected: dict) -> str:
    n, right = count(expected["n"]), count(round(expected["accuracy"] * expected["n"]))
    return f"we hid {n} known labels and recovered {right} of them ({_interval(expected)})"


def _interval(of: dict) -> str:
    return f"95 % interval: {percent(of['low'])} to {percent(of['high'])}"


def _overall(parties: list[dict], key: str) -> float | None:
    """The mean over parties with a truth, weighted by their new labels. One that cannot train alone has none of them right."""
    known = [(party[key] or 0.0, _new(party)) for party in parties if party["accuracy"] is not None]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def _new(party: dict) -> int:
    return party["rows"] - party["labelled"] - party["abstained"]


def _rights(parties: list[dict]) -> dict[str, list[float | None]]:
    """What share of each party's new labels is right: together, alone, and by the model itself where there is one."""
    rights = {"together": [p["accuracy"] for p in parties], "alone": [p["alone_accuracy"] for p in parties]}
    model = [p.get("other_accuracy", {}).get("model") for p in parties]
    return rights | ({"the model": model} if any(value is not None for value in model) else {})


def _parties(parties: list[dict], expected: dict | None, method: str) -> list[Part]:
    """In words first: whether each party does better than with its own model. Then the counts, with what the truth says."""
    if not parties:
        return []
    rights = {name: values for name, values in _rights(parties).items() if any(value is not None for value in values)}
    heads = ["party", "rows", "came labelled", "new labels", "left without", *(f"right, {name}" for name in rights)]
    shares = [[percent(values[i]) for values in rights.values()] for i in range(len(parties))]
    rows: list[list] = [[p["name"], p["rows"], p["labelled"], _new(p), p["abstained"], *told] for p, told in zip(parties, shares)]
    judged = [p.get("verdict") for p in parties]
    if any(judged):
        heads += ["hidden labels recovered", "by its own model", "beside its own model"]
        rows = [[*row, *_judged(v)] for row, v in zip(rows, judged)]
    note = []
    if expected and any(map(_new, parties)):
        why = "Without the truth" if rights else "No truth was given"
        note = [f"{why}: {_sure(expected.get('given', expected))} is expected over all parties."]
    words = verdict_lines([(p["name"], p["verdict"]) for p in parties if p.get("verdict") is not None])
    verdicts = [Card("Are the labels better than each party's own model's?", words)] if words else []
    if not words and method == "xclp" and expected:
        verdicts = [Card("Are the labels better than those each party finds alone?", verdict_of_all(expected))]
    return [*verdicts, Card("", [Table(heads, rows), *note])]


def _judged(v: dict | None) -> list[Any]:
    """What was found of a party's hidden labels, together and by its own model, and the verdict."""
    if not v or not v["n"]:
        return ["—", "—", verdict(v)]
    low, high = wilson(v["right"], v["n"])
    found = Cell(f"{v['right']} of {v['n']}", f"{percent(v['right'] / v['n'])} ({percent(low)} to {percent(high)})")
    own = Cell(f"{v['own']} of {v['n']}", percent(v["own"] / v["n"])) if v["has_own"] else "—"
    return [found, own, verdict(v)]


def _sure(expected: dict) -> str:
    between = f"{percent(expected['low'])} to {percent(expected['high'])}"
    return f"{percent(expected['accuracy'])} (95 % interval {between}, from {count(expected['n'])} hidden labels)"


def _classes(summary: dict) -> list[Part]:
    """Hidden labels by class: of two classes, sensitivity and specificity; else how many of each were recovered."""
    recall, two = summary.get("recall") or {}, summary.get("two")
    if not recall:
        return []
    heads = ["class", "hidden labels", "recovered", "share recovered", "95 % interval", "new labels"]
    rows = [[name, round(line["n"]), round(line["found"]), *_share(line["found"], line["n"]), round(line["given"])]
            for name, line in recall.items()]  # fmt: skip
    one = len(summary.get("parties", [])) == 1  # of a hosted job, which has its page at every party
    said = ["Hidden labels are those of all parties; new labels are this party's."] if one else []
    if two:
        for name, of in (("sensitivity", f" for {two['positive']}"), ("specificity", "")):
            low, high = two[f"{name}_interval"]
            said.append(f"{name.capitalize()}{of}: {percent(two[name])} (95 % interval {percent(low)} to {percent(high)}).")
    return [Card("", [*said, Table(heads, rows)])]


def _share(found: float, n: float) -> tuple[str, str]:
    if not n:
        return "—", "—"
    low, high = wilson(found, n)
    return percent(found / n), f"{percent(low)} to {percent(high)}"


def _together(parties: list[dict], expected: dict | None) -> list[Part]:
    known = sorted((p for p in parties if p["accuracy"] is not None), key=lambda p: p["accuracy"])
    if not known and not expected:
        return []
    names, rights = [p["name"] for p in known[:MOST_BARS]], _rights(known[:MOST_BARS])
    note = "Share of each party's new labels that are right, worst first."
    note += f" The {MOST_BARS} worst of {len(known)}." if len(known) > MOST_BARS else ""
    if not known and expected:
        names, rights = ["all parties"], {"together": [expected["accuracy"]], "alone": [expected["alone"]]}
        note = f"Expected, from {count(expected['n'])} known labels that were hidden."
    drawn = bars("Together and alone", names, rights, "party", percent, beside=True, most=1.0, note=note)
    return [[drawn, *_calibration(expected)]]


def _baselines(parties: list[dict], summary: dict) -> list[Part]:
    """The job beside its baselines, over all parties; the numbers behind it also say how the parties differ."""
    each = [{"together": p["accuracy"], **p.get("other_accuracy", {})} for p in parties]
    lines = beside({"together": summary.get("accuracy"), **summary.get("other_accuracy", {})}, each)
    if not lines:
        return []
    table = Table(["labelled by", "right", "worst party", "best party"], [[name, *map(percent, s)] for name, s in lines])
    note = "What share of the new labels is right, and of labels that others give to the same rows. fedncm, fed3r, fedcgs, "
    note += "fedcof and gh-ofl are one-shot heads on all parties' labelled rows."
    drawn = bars("Baselines", [name for name, _ in lines], {"right": [s[0] for _, s in lines]}, "labelled by", percent, most=1.0,
                 note=note, numbers=[table])  # fmt: skip
    rights = {"together": summary.get("accuracy"), **summary.get("other_accuracy", {})}
    return [*beaten_by(rights, summary.get("differ", {})), drawn]


def _calibration(expected: dict | None) -> list[Chart]:
    """Bars of a tenth each; the numbers behind them are finer. A tenth that holds no hidden label stays empty."""
    fine = expected["calibration"] if expected else []
    known = [b for b in fine if b["n"]]
    if not expected or not known:
        return []
    word, said = ("probability", True) if "sure" in known[0] else ("confidence", False)
    note = f"Share of hidden labels recovered, by {word}. Above each bar is the number of labels it stands for; where there were "
    note += "none, there is no bar. "
    if "calibration_error" in expected:
        off = percent(expected["calibration_error"])
        note += f"A probability of 90 % should be right 9 times in 10; on average it is off by {off}. "
    note += "A dashed line is the mean probability of its bar: bars below it are too sure." if said else \
        "Higher confidence should mean more of them right."  # fmt: skip
    step = max(len(fine) // 10, 1)
    tenths = [_joined(fine[i : i + step]) for i in range(0, len(fine), step)]
    tenths = tenths[next(i for i, b in enumerate(tenths) if b["n"]) :]
    names = [f"{word} {_span(b)} ({many(b['n'], 'label') if b['n'] else 'no label'})" for b in tenths]
    marked = [(b["sure"] / b["n"] if said and b["n"] else None, count(b["n"]) if b["n"] else "") for b in tenths]
    labels = [*((float(i), f"{b['from']:.0%}") for i, b in enumerate(tenths)), (float(len(tenths)), "100%")]
    labels = labels[::-1][:: 2 if len(tenths) > MOST_TICKS else 1][::-1]  # the last one stays
    heads = [word, "hidden labels", "right", "95 % interval", *(["mean probability"] if said else [])]
    rows = [[_span(b), b["n"], *_share(b["right"], b["n"]), *([percent(b["sure"] / b["n"])] if said else [])] for b in known]
    values = [b["right"] / max(b["n"], 1) for b in tenths]
    return [columns("Calibration", names, values, word, Axis("right", percent), labels, top=1.0, marked=marked, note=note,
                    numbers=[Table(heads, rows)])]  # fmt: skip


def _joined(bins: list[dict]) -> dict[str, Any]:
    return {"from": bins[0]["from"], "to": bins[-1]["to"], **{k: sum(b.get(k, 0) for b in bins) for k in ("n", "right", "sure")}}


def _span(b: dict) -> str:
    return f"{b['from']:.0%} to {b['to']:.0%}"


def _confidence(parties: list[dict]) -> list[Part]:
    total = [sum(counts) for counts in zip(*(p["confidence_histogram"] for p in parties))]
    if not sum(total):
        return []
    every = {p["name"]: p["confidence_histogram"] for p in parties} if 1 < len(parties) <= MOST_HISTOGRAMS else {}
    small = [histogram(f"Confidence: {name}", counts, "confidence", "rows", height=110) for name, counts in every.items()]
    return [histogram("Confidence of all new labels", total, "confidence", "rows"), small]


def _balance(parties: list[dict], classes: list[str]) -> list[Part]:
    counts = [[p["classes"].get(c, 0) for c in classes] for p in parties[:MOST_CLIENTS]]
    if len(classes) > MOST_CLASSES or not any(map(any, counts)):
        return []
    note = "Rows per class, given labels and new ones."
    note += f" The first {MOST_CLIENTS} of {count(len(parties))} parties." if len(parties) > MOST_CLIENTS else ""
    over = bars("Rows per class", classes, {"rows": [sum(column) for column in zip(*counts)]}, "class", count, note=note)
    names, told = [p["name"] for p in parties[:MOST_CLIENTS]], "Colours show shares within a party; the numbers are rows."
    return [[over, heat("Classes per party", ("party", names), ("class", classes), counts, "the party's rows", note=told)]]


def _graph(parties: list[dict], summary: dict) -> list[Part]:
    graph, classes = summary.get("graph"), [*map(str, summary.get("classes", [])), "no label"]
    if not graph or not graph["x"]:
        return []
    kinds = ["no label" if c is None else classes[c] if isinstance(c, int) else str(c) for c in graph["cls"]]  # −1 is none
    groups = [parties[p]["name"] if isinstance(p, int) else str(p) for p in graph["party"]]
    points = list(zip(graph["x"], graph["y"], kinds, groups))
    note = f"A sample of {count(len(points))} rows; neighbours in the graph lie together. "
    note += "Choose a class or a party to see it alone."
    return [scatter("Graph of the rows", points, classes, note=note, quiet="no label")]


def _left(sent: list[dict], parties: int) -> list[Part]:
    heads, told = ["step", "direction", "what it reveals", "bytes", "messages"], [line for line in sent if line.get("reveals")]
    rows = [[line["step"], line["direction"], line["reveals"], size(line["bytes"]), line["messages"]] for line in told]
    note = "All parties together. Each party's own account" if parties != 1 else "This party alone. The whole account"
    note += " is in disclosure.jsonl."
    return [*bytes_sent(sent, "party"), *([Card("What it reveals", [note, Table(heads, rows)])] if rows else [])]
