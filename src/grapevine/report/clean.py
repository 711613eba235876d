"""The page of a clean job, from result.json and the parties' suspicious.json alone."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from grapevine.core.words import count, duration, many, percent, sentence
from grapevine.jobs.clean_result import AFTER, BEFORE, BINS, LEAST_LOSS, MOST_LOSS, MOST_NINES, findings
from grapevine.report import sent
from grapevine.report.charts.kinds import bars, heat
from grapevine.report.charts.marks import Box, Drawing, Group, Line, Mark, Words
from grapevine.report.page import Page, files_of
from grapevine.report.parts import Card, Cell, Chart, Command, Part, Settings, Table, Views
from grapevine.run.folder import read_json, read_lines

MOST_PARTIES, MOST_PLANES = 30, 12  # drawn one by one
MOST_CLASSES = 60  # in a confusion
NONE, EXCLUDED, FOREIGN = "no label", "excluded", "irrelevant"
KINDS = dict(
    doubted="Labels most in doubt: corrected, the highest loss first.",
    unsure="What the classifier is least sure of: excluded, the lowest confidence first.",
    far="Far from the server's rows, and not excluded: the farthest first.",
)


def write(folder: Path, summary: dict[str, Any]) -> Path:
    """Make report.html of a clean job, and return where it is."""
    return make(folder, summary).write(Path(folder) / "report.html")


def make(folder: Path, summary: dict[str, Any]) -> Page:
    """The page of a clean job. `summary` is its result.json; a host's knows at most how many rows each party kept."""
    with files_of(folder, "a clean job of Grapevine"):
        parties, method, classes = summary["per_client"], summary["settings"], summary["data"]["classes"]
        counts = {p["id"]: {"kept": p["kept"], "corrected": p["corrected"] - p["labelled"], "newly labelled": p["labelled"],
                            "excluded": p["excluded"]} for p in parties} or summary["told"]  # fmt: skip
        names = many(len(parties or summary["cleaned"]), "party", "parties")
        told = dict(method, seed=summary["seed"], classes=classes, version=summary["version"])
        again: list[Part] = [Command(summary["command"])] if summary["command"] else []
        sections = [
            ("Parties", _parties(counts)),
            ("Measured against the truth", _measured(summary)),
            ("Beside cleanlab", _beside(parties)),
            ("Loss and confidence", _planes(parties, method)),
            ("Most suspicious", _suspicious(Path(folder), parties)),
            ("Given and new labels", _confusions(parties, classes)),
            ("What travelled", _travelled(Path(folder), summary)),
            ("Settings", [*again, Settings({"Settings": told})]),
        ]
        shows = " It shows rows of all parties: it is for those who may see them." if parties else ""
        return Page(
            f"Labels of {names} cleaned", f"Clean job · {names} · MP-SSFL · model {method['model']}", sections=sections,
            foot=f"Made by Grapevine {summary['version']}.{shows}", **_head(summary, counts),
        )  # fmt: skip


def _head(summary: dict, counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    total: Counter[str] = sum(map(Counter, counts.values()), Counter())
    n, new = count(sum(total.values())), total["newly labelled"]
    heading = (
        f"Of {n} rows {count(total['kept'])} kept their label, {many(total['corrected'], 'label was', 'labels were')} corrected"
    )
    heading += f", {many(new, 'unlabelled row')} got one" if new else ""
    heading += f" and {many(total['excluded'], 'row was', 'rows were')} excluded."
    if not counts:
        heading = f"{', '.join(summary['cleaned'])} have cleaned their labels, and only they know them."
    before, after, expected = summary["accuracy_given"], summary["accuracy"], summary["expected"]
    told = f"{percent(before)} of the given labels were the true class; " if before is not None and after is not None else ""
    told += f"{percent(after)} of the labels on rows that were not excluded are. " if after is not None else ""
    if expected["n"]:  # what the server's own held-out rows say of the classifier
        told += f"Of {many(expected['n'], 'labelled row')} of the server that the classifier did not train on, it was sure "
        told += f"(confidence {summary['settings']['tau']:g} or more) of {count(expected['sure'])}"
        right = expected["sure_right"] / expected["sure"] if expected["sure"] else None
        told += f", and right about {percent(right)} of these." if right is not None else "."
    else:
        told += "It is not known how far to trust the classifier."
    tiles = ({"rows": n} if counts else {}) | {name: count(total[name]) for name in next(iter(counts.values()), {})}
    tiles |= {"right before": percent(before), "right after": percent(after), "time": duration(summary["seconds"])}
    lost = [f"Not cleaned: {', '.join(summary['lost'])}."] if summary.get("lost") else []
    tiles = {name: value for name, value in tiles.items() if value != "—"}
    notices = [*(sentence(note, counts) for note in summary["warnings"]), *lost]
    return dict(heading=heading, about=told, tiles=tiles, notices=notices)


def _parties(counts: dict[str, dict[str, int]]) -> list[Part]:
    if not counts:
        return []
    actions = list(next(iter(counts.values())))
    rows = [[name, sum(each.values()), *each.values()] for name, each in counts.items()]
    table = Card("", [Table(["party", "rows", *actions], rows)])
    parts = {action: [each[action] for each in counts.values()] for action in actions}
    parts = {action: values for action, values in parts.items() if any(values)}
    few = 1 < len(counts) <= MOST_PARTIES
    return [[table, *([bars("Rows by action", list(counts), parts, "party", count)] if few else [])]]


def _measured(summary: dict) -> list[Part]:
    measured = summary["measured"]
    if measured is None:
        return []
    note = (
        "Precision is the share of what was found that is right, recall the share of what there was that was found. A row whose "
        "true class is empty, or unknown to the server, is irrelevant. A label is right before if it was given and is the true "
        "class, known to the server or not; right after, if it is on a row not excluded and is the true class."
    )
    heads, rows = ["what", "found", "right", "there were", "precision", "recall", "F1"], []
    lines, none = findings(measured)
    for name, m in lines.items():
        p, r = m["precision"], m["recall"]
        f1 = 2 * p * r / (p + r) if p is not None and r is not None and p + r else None
        rows.append([name, m["found"], m["right"], m["of"], percent(p), percent(r), percent(f1)])
    cards: list[Part] = [Card("All parties", [note, Table(heads, rows), *none], wide=True)]
    wanted = {"right before": (BEFORE, "precision"), "right after": (AFTER, "precision")}
    for what in (name for name in ("wrong labels found", "irrelevant rows excluded") if name in lines):
        wanted |= {f"{what}: {of}": (what, of) for of in ("precision", "recall")}
    each = [[p["id"], *(percent(p["measured"][what][of]) for what, of in wanted.values())]
            for p in summary["per_client"] if p["measured"]]  # fmt: skip
    return [cards + ([Card("Each party", [Table(["party", *wanted], each)], wide=True)] if len(each) > 1 else [])]


def _beside(parties: list[dict]) -> list[Part]:
    """What cleanlab says of the same labels, where it was installed."""
    known = [(p["id"], p["cleanlab"]) for p in parties if p.get("cleanlab")]
    if not known:
        return []
    note = (
        "cleanlab judges the same labels from each party's own rows alone, by a logistic regression that is never trained on the "
        "row it judges. It needs no server, but it finds only mistakes that the party's other labels speak against. "
        "The rows it flags are in each party's cleanlab.csv."
    )
    rows = [[name, c["labels"], c["corrected"], c["flagged"], c["both"]] for name, c in known]
    heads = ["party", "labels", "corrected by clean", "flagged by cleanlab", "by both"]
    return [Card("", [note, Table(heads, rows)])]


# ---------------------------------------------------------------- loss and confidence


def _planes(parties: list[dict], method: dict) -> list[Part]:
    if not parties:
        return []
    each = {p["id"]: Counter({(i, j): n for i, j, n in p["plane"]}) for p in parties}
    together = sum(each.values(), Counter[tuple[int, int]]())
    choices = {"all parties": together} | (each if 1 < len(parties) <= MOST_PLANES else {})
    return [Views("plane", {who: [_plane(who, counts, method)] for who, counts in choices.items()})]


def _plane(who: str, counts: Counter[tuple[int, int]], method: dict) -> Chart:
    """Rows by confidence, across, and loss, upwards, both logarithmic, with τ and Υ as lines and the actions in their regions."""
    row, top, left, wide = 13, 32, 9.0, 76.0  # words stand above and beside the cells, never on them
    low = (BINS + 2) * row + top  # the lower edge: rows without a label are the lowest line, infinite losses the highest

    def across(confidence: float) -> float:
        return left + wide * min(-math.log10(max(1 - confidence, 10**-MOST_NINES)) / MOST_NINES, 1.0)

    def down(loss: float) -> float:
        return low - row * (1 + BINS * min(max((math.log10(loss) - LEAST_LOSS) / (MOST_LOSS - LEAST_LOSS), 0.0), 1.0))

    marks: list[Mark] = [Box(left, top, wide, low - top, "none")]
    rows = [[_loss(i), _confidence(j), n] for (i, j), n in sorted(counts.items())]
    for ((i, j), n), (loss, confidence, _) in zip(sorted(counts.items()), rows):
        dark = 0.12 + 0.88 * math.log1p(n) / math.log1p(max(counts.values()))
        box = Box(left + wide * j / BINS, low - row * (i + 1), wide / BINS, row, "cell", opacity=dark)
        marks.append(Group([box], f"{loss}\n{confidence}\nrows: {count(n)}", role="cell"))
    tau, upsilon, right = across(method["tau"]), down(method["upsilon"]), left + wide
    marks += [Line(tau, top, tau, low, "cut"), Line(left, upsilon, right, upsilon, "cut")]
    marks += [Words(tau, 27, f"τ = {method['tau']:g}", "middle"), Words(right, upsilon + 4, f"Υ = {method['upsilon']:g}", dx=6)]
    marks += [Words(left, 11, "excluded", look="region"), Words(right, 11, "corrected", "end", look="region"),
              Words(right, upsilon + 22, "kept", dx=6, look="region")]  # fmt: skip
    marks += [Words(0, down(value) + 4, f"{value:g}") for value in (1e-3, 1e-2, 0.1, 1, 10)]
    marks += [Words(0, top + row - 2, "∞"), Words(0, low - 3, "none")]
    marks += [Words(across(value), low + 15, f"{value:g}", "middle") for value in (0.5, 0.9, 0.99, 0.999)]
    marks.append(Words(50, low + 32, "confidence →    (upwards: loss of the given label)", "middle", look="axis"))
    note = (
        "Each cell is a number of rows, darker for more. Below Υ the given label fits what the classifier says, right of τ the "
        "classifier is sure. The top line has labels that the server does not know, the bottom line rows without a label."
    )
    table = Table(["loss", "confidence", "rows"], rows, "result.json")
    return Chart(f"Loss and confidence: {who}", Drawing(marks, low + 40), [table], note=note, wide=True)


def _loss(i: int) -> str:
    if i in (0, BINS + 1):
        return "loss ∞" if i else "no label"
    low, high = (10 ** (LEAST_LOSS + (MOST_LOSS - LEAST_LOSS) / BINS * at) for at in (i - 1, i))
    return f"loss {low:.2g} to {high:.2g}" if i > 1 else f"loss up to {high:.2g}"


def _confidence(j: int) -> str:
    low, high = (1 - 10 ** (-MOST_NINES * at / BINS) for at in (j, j + 1))
    return f"confidence {low:.4g} to {high:.4g}" if j < BINS - 1 else f"confidence {low:.4g} and more"


# ---------------------------------------------------------------- rows, classes, messages


def _suspicious(folder: Path, parties: list[dict]) -> list[Part]:
    shown: list[Part] = []
    for p in parties[:MOST_PARTIES]:
        found = read_json(folder / p["id"] / "suspicious.json") or {}
        tables = [part for kind, told in KINDS.items() if found.get(kind) for part in (told, _examples(found[kind]))]
        shown.append(Card(p["id"], tables or ["Nothing was corrected or excluded."]))
    left = len(parties) - MOST_PARTIES
    return shown + ([f"… and {count(left)} more, in their suspicious.json."] if left > 0 else [])


def _examples(found: list[dict]) -> Table:
    """A line for each row: with its picture, or with the features that lie farthest from the server's means."""
    columns = {
        "picture": [Cell(one["id"], png=one["picture"]) if one["picture"] else None for one in found],
        "row": [one["id"] for one in found],
        "given": [NONE if one["given"] is None else one["given"] for one in found],
        "classifier": [one["proposed"] for one in found],
        "action": [one["action"] for one in found],
        "loss": [f"{one['loss']:.3f}" if isinstance(one["loss"], float) else one["loss"] for one in found],
        "confidence": [f"{one['confidence']:.3f}" for one in found],
        "truth": [None if one["truth"] is None else one["truth"] or FOREIGN for one in found],
        "farthest from the server's means (deviations)": [
            ", ".join(f"{a} {'—' if v is None else f'{v:g}'} ({z:+.1f})" for a, v, z in one["values"]) or None for one in found
        ],
    }
    there = {head: values for head, values in columns.items() if any(value is not None for value in values)}
    return Table(list(there), list(zip(*there.values())))


def _confusions(parties: list[dict], classes: list[str]) -> list[Part]:
    new, true = ([p[key] for p in parties if p[key] is not None] for key in ("given_new", "given_true"))
    return [[*_confusion("new", EXCLUDED, new, classes), *_confusion("true", FOREIGN, true, classes)]]


def _confusion(down: str, none: str, pairs: list[list[list]], classes: list[str]) -> list[Chart]:
    counts: Counter[tuple[str, str]] = Counter()
    for a, b, n in (pair for one in pairs for pair in one):
        counts[a, b] += n
    others = sorted({a for a, _ in counts} - {*classes, ""})
    rows = [*classes, *others, *([""] if any(a == "" for a, _ in counts) else [])]
    cols = [*classes, *([""] if any(b == "" for _, b in counts) else [])]
    if not counts or len(rows) > MOST_CLASSES:
        return []
    sides = ("given", [a or NONE for a in rows]), (down, [b or none for b in cols])
    note = f"Rows of all parties. On the diagonal the {down} label is the given one."
    values = [[counts[a, b] for b in cols] for a in rows]
    return [heat(f"Given and {down} labels", *sides, values, "the given label", note=note)]


def _travelled(folder: Path, summary: dict) -> list[Part]:
    told = "The classifier, its class names and the means and deviations of the server's features go to each party."
    told += " Only counts come back." if summary["told"] else " Nothing about any row comes back."
    return [told, *sent.chart(read_lines(folder / "messages.jsonl"), "party")]
