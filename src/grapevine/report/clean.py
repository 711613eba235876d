"""report.html of the clean job: one self-contained page, from result.json and the parties' suspicious.json alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grapevine.core.store import write_atomically
from grapevine.core.words import percent, size
from grapevine.jobs.clean_result import AFTER, BEFORE, BINS, LEAST_LOSS, MOST_LOSS, MOST_NINES
from grapevine.methods.mp_ssfl import ACTIONS
from grapevine.report import charts, page
from grapevine.report.charts import count
from grapevine.report.page import text

MOST_PARTIES = 30  # drawn one by one
MOST_CLASSES = 60  # in a confusion
NONE, ASIDE, FOREIGN = "no label", "set aside", "irrelevant"
KINDS = dict(
    doubted="Labels most in doubt: mended, the highest loss first.",
    unsure="What the classifier is least sure of: set aside, the lowest confidence first.",
    far="Far from the server's rows, and not set aside: the farthest first.",
)
STYLE = """<style>
.examples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,8.2rem),1fr));gap:.8rem;
  margin:.6rem 0 0;padding:0;list-style:none}
.examples li{border:1px solid var(--edge);border-radius:.5rem;padding:.6rem;font-size:.82rem;line-height:1.4;
  overflow-wrap:anywhere;min-width:0}
.examples img{display:block;width:100%;max-width:7rem;aspect-ratio:1;object-fit:contain;image-rendering:pixelated;
  margin:0 0 .4rem;background:var(--page);border-radius:.3rem}
.examples b{font-weight:650}.examples s{color:var(--soft)}
.plane rect.cell0{fill:var(--heat)}.plane .cut{stroke:var(--warn);stroke-width:1.5px;stroke-dasharray:5 3}
.plane .region{font-weight:650;fill:var(--warn)}
</style>"""


def write_clean(folder: Path, summary: dict[str, Any]) -> Path:
    """Make report.html of a clean job in its folder, and return where it is."""
    folder = Path(folder)
    parties = summary["per_client"]
    names = "1 party" if len(parties) == 1 else f"{count(len(parties))} parties"
    sections = [
        ("Parties", _parties(parties)),
        ("Measured against the truth", _measured(summary)),
        ("Loss and confidence", _planes(summary)),
        ("Most suspicious", _suspicious(folder, parties)),
        ("Classes", _classes(summary)),
        ("Given and new labels", _confusions(summary)),
        ("What travelled", _travelled(folder, summary)),
        ("Settings", _settings(summary)),
    ]
    foot = f"Made by Grapevine {text(summary['version'])}. It shows rows of all parties: it is for those who may see them."
    made = page.page(f"Labels of {names} cleaned", _head(summary, names), sections, foot)
    path = folder / "report.html"
    write_atomically(path, made.encode())
    return path


def _sum(parties: Sequence[dict], key: str) -> int:
    return sum(party[key] for party in parties)


def _head(summary: dict, names: str) -> str:
    parties, method = summary["per_client"], summary["settings"]
    n, kept, mended, labelled, aside = (_sum(parties, key) for key in ("n", "kept", "mended", "labelled", "set_aside"))
    kind = f'<p class="kind">Clean job · {text(names)} · MP-SSFL · model {text(method["model"])}</p>'
    sentence = f"Of {count(n)} rows {count(kept)} kept their label, {count(mended - labelled)} labels were mended"
    sentence += f", {count(labelled)} unlabelled rows got one" if labelled else ""
    sentence += f" and {count(aside)} rows were set aside"
    before, after = summary["accuracy_given"], summary["accuracy"]
    told = []
    if after is not None:
        was = f"{percent(before)} of the given labels were the true class; " if before is not None else ""
        told.append(f"{was}{percent(after)} of those on rows not set aside are.")
    told.append(_trust(summary["expected"], method["tau"]))
    tiles = {"rows": count(n), "kept": count(kept), "mended": count(mended - labelled), "newly labelled": count(labelled),
             "set aside": count(aside)}  # fmt: skip
    if before is not None:
        tiles["right before"] = percent(before)
    if after is not None:
        tiles["right after"] = percent(after)
    tiles["time"] = f"{summary['seconds']:.1f} s"
    notices = "".join(f'<p class="notice">{text(note)}</p>' for note in summary["warnings"])
    boxes = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in tiles.items())
    return f'{STYLE}{kind}<h1>{text(sentence)}.</h1><p>{text(" ".join(told))}</p>{notices}<dl class="tiles">{boxes}</dl>'


def _trust(expected: dict, tau: float) -> str:
    """What the server's own held-out rows say of the classifier."""
    if not expected["n"]:
        return "How far to trust the classifier is not known."
    sure = f"it was sure (confidence {tau:g} or more) of {count(expected['sure'])}"
    right = f", and right about {percent(expected['sure_right'] / expected['sure'])} of these" if expected["sure"] else ""
    return f"Of {count(expected['n'])} labelled rows of the server that were held out from the classifier, {sure}{right}."


def _parties(parties: list[dict]) -> str:
    heads = ["party", "rows", "kept", "mended", "newly labelled", "set aside"]
    rows = [[p["id"], p["n"], p["kept"], p["mended"] - p["labelled"], p["labelled"], p["set_aside"]] for p in parties]
    drawn = ""
    if 1 < len(parties) <= MOST_PARTIES:
        parts = {"kept": [r[2] for r in rows], "mended": [r[3] for r in rows], "newly labelled": [r[4] for r in rows],
                 "set aside": [r[5] for r in rows]}  # fmt: skip
        parts = {name: values for name, values in parts.items() if any(values)}
        drawn = charts.bars("Rows by action", [p["id"] for p in parties], parts, count, "party")
    return f'<div class="grid2"><div class="card">{charts.table(heads, rows)}</div>{drawn}</div>'


def _measured(summary: dict) -> str:
    measured = summary["measured"]
    if measured is None:
        return ""
    heads = ["what", "found", "right", "there were", "precision", "recall", "F1"]
    rows = [_line(name, m) for name, m in measured.items() if (m["found"] or m["of"]) and name not in (BEFORE, AFTER)]
    note = (
        "Precision is the share of what was found that is right, recall the share of what there was that was found. A row whose "
        "true class is empty, or unknown to the server, is irrelevant. A label is right before if it was given and is the true "
        "class, known to the server or not; right after, if it is on a row not set aside and is the true class."
    )
    over = f'<div class="card wide"><h3>All parties</h3><p class="aside">{text(note)}</p>{charts.table(heads, rows)}</div>'
    heads = [
        "party",
        "labels right before",
        "right after",
        "wrong labels: precision",
        "recall",
        "irrelevant: precision",
        "recall",
    ]
    lines = []
    for p in summary["per_client"]:
        if p["measured"]:
            m = p["measured"]
            before, after = (m[when]["precision"] for when in (BEFORE, AFTER))
            wrong, aside = m["wrong labels found"], m["irrelevant rows set aside"]
            pairs = [wrong["precision"], wrong["recall"], aside["precision"], aside["recall"]]
            lines.append([p["id"], *(percent(value) for value in (before, after, *pairs))])
    each = f'<div class="card wide"><h3>Each party</h3>{charts.table(heads, lines)}</div>' if len(lines) > 1 else ""
    return f'<div class="grid2">{over}{each}</div>'


def _line(name: str, m: dict) -> list:
    p, r = m["precision"], m["recall"]
    f1 = 2 * p * r / (p + r) if p is not None and r is not None and p + r else None
    return [name, m["found"], m["right"], m["of"], percent(p), percent(r), percent(f1)]


# Loss and confidence -------------------------------------------------------------------------------------------------


def _planes(summary: dict) -> str:
    parties = summary["per_client"]
    together: dict[tuple[int, int], int] = {}
    for p in parties:
        for i, j, n in p["plane"]:
            together[i, j] = together.get((i, j), 0) + n
    choices = {"all parties": together}
    if 1 < len(parties) <= 12:
        choices |= {p["id"]: {(i, j): n for i, j, n in p["plane"]} for p in parties}
    drawn = {name: _plane(name, counts, summary["settings"]) for name, counts in choices.items()}
    return page.views("plane", drawn)


def _plane(who: str, counts: dict[tuple[int, int], int], method: dict) -> str:
    """The two-dimensional histogram, with τ and Υ as lines and the actions in their regions. Both axes are logarithmic."""
    lines, row, top, left, wide = BINS + 2, 13, 16, 9.0, 89.0
    most = max(counts.values())
    low = lines * row + top  # the lower edge: rows without a label are the lowest line, infinite losses the highest

    def across(nines: float) -> float:
        return left + wide * min(nines / MOST_NINES, 1.0)

    def down(log_loss: float) -> float:
        share = min(max((log_loss - LEAST_LOSS) / (MOST_LOSS - LEAST_LOSS), 0.0), 1.0)
        return low - row * (1 + share * BINS)

    drawn = [f'<rect class="none" x="{left}%" y="{top}" width="{wide}%" height="{low - top}"/>']
    for (i, j), n in sorted(counts.items()):
        dark = 0.12 + 0.88 * math.log1p(n) / math.log1p(most)
        told = f"{_loss_bin(i)}\n{_confidence_bin(j)}\nrows: {count(n)}"
        box = f'x="{left + wide * j / BINS:.2f}%" y="{low - row * (i + 1)}" width="{wide / BINS:.3f}%" height="{row}"'
        drawn.append(f'<g data-tip="{text(told)}"><rect class="cell0" {box} fill-opacity="{dark:.2f}"/></g>')
    tau = across(-math.log10(max(1 - method["tau"], 10**-MOST_NINES)))
    upsilon = down(math.log10(method["upsilon"]))
    drawn.append(f'<line class="cut" x1="{tau:.2f}%" x2="{tau:.2f}%" y1="{top}" y2="{low}"/>')
    drawn.append(f'<line class="cut" x1="{left}%" x2="{left + wide}%" y1="{upsilon:.1f}" y2="{upsilon:.1f}"/>')
    drawn.append(_word(f"{tau:.2f}%", 11, f"τ = {method['tau']:g}", "middle"))
    drawn.append(_word(f"{left}%", upsilon - 4, f"Υ = {method['upsilon']:g}", "start", 4))
    right = f"{left + wide}%"
    drawn.append(_word(right, top + 3 * row, "mended", "end", -6, "region"))
    drawn.append(_word(right, upsilon + 16, "kept", "end", -6, "region"))
    drawn.append(_word(f"{left}%", top + 3 * row, "set aside", "start", 6, "region"))
    for value in (1e-3, 1e-2, 0.1, 1, 10):
        drawn.append(_word("0", down(math.log10(value)) + 4, f"{value:g}", "start"))
    drawn.append(_word("0", top + row - 2, "∞", "start"))
    drawn.append(_word("0", low - 3, "none", "start"))
    for value in (0.5, 0.9, 0.99, 0.999):
        drawn.append(_word(f"{across(-math.log10(1 - value)):.2f}%", low + 15, f"{value:g}", "middle"))
    drawn.append(_word("50%", low + 32, "confidence →    (upwards: loss of the given label)", "middle", 0, "axis"))
    note = (
        "Each cell is a number of rows, darker for more. Below Υ the given label fits what the classifier says, right of τ the "
        "classifier is sure. The highest line are labels that the server does not know, the lowest rows without a label."
    )
    rows = [[_loss_bin(i), _confidence_bin(j), n] for (i, j), n in sorted(counts.items())]
    numbers = charts.table(["loss", "confidence", "rows"], rows, "result.json")
    title = f"Loss and confidence: {who}"
    inner = charts.svg(title, low + 40, "".join(drawn), 'width="100%" class="plane"')
    return charts.figure(title, inner, numbers, note, wide=True)


def _word(x: str, y: float, words: str, anchor: str, dx: int = 0, kind: str = "") -> str:
    more = f' dx="{dx}"' if dx else ""
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}"{more}{f" class={kind}" if kind else ""}>{text(words)}</text>'


def _loss_bin(i: int) -> str:
    if i == 0:
        return "no label"
    if i == BINS + 1:
        return "loss ∞"
    step = (MOST_LOSS - LEAST_LOSS) / BINS
    low, high = (10 ** (LEAST_LOSS + step * at) for at in (i - 1, i))
    return f"loss {low:.2g} to {high:.2g}" if i > 1 else f"loss up to {high:.2g}"


def _confidence_bin(j: int) -> str:
    low, high = (1 - 10 ** (-MOST_NINES * at / BINS) for at in (j, j + 1))
    return f"confidence {low:.4g} to {high:.4g}" if j < BINS - 1 else f"confidence {low:.4g} and more"


# Examples ------------------------------------------------------------------------------------------------------------


def _suspicious(folder: Path, parties: list[dict]) -> str:
    shown = []
    for p in parties[:MOST_PARTIES]:
        path = folder / p["id"] / "suspicious.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        cards = "".join(_examples(told, found.get(name, [])) for name, told in KINDS.items())
        told = cards or '<p class="aside">Nothing was mended or set aside.</p>'
        shown.append(f'<div class="card{" below" if shown else ""}"><h3>{text(p["id"])}</h3>{told}</div>')
    left = len(parties) - MOST_PARTIES
    more = f'<p class="aside">… and {count(left)} more parties, in their suspicious.json.</p>' if left > 0 else ""
    return "".join(shown) + more


def _examples(told: str, found: list[dict]) -> str:
    """Cards with pictures; of tables, a line each with the features that lie farthest from the server's means."""
    if not found:
        return ""
    told = f'<p class="aside">{text(told)}</p>'
    if found[0]["picture"]:
        return f'{told}<ul class="examples">{"".join(map(_card, found))}</ul>'
    truth = found[0]["truth"] is not None
    values = any(one["values"] for one in found)
    heads = ["row", "given", "classifier", "action", "loss", "confidence", *(["truth"] if truth else [])]
    heads += ["farthest from the server's means (deviations)"] if values else []
    return told + charts.table(heads, [_cells(one, truth, values) for one in found])


def _cells(one: dict, truth: bool, values: bool) -> list:
    far = ", ".join(f"{name} {'—' if v is None else f'{v:g}'} ({z:+.1f})" for name, v, z in one["values"])
    given = NONE if one["given"] is None else one["given"]
    loss = one["loss"] if one["loss"] is None or isinstance(one["loss"], str) else f"{one['loss']:.3f}"
    cells = [one["id"], given, one["proposed"], one["action"], loss, f"{one['confidence']:.3f}"]
    return [*cells, *([one["truth"] or FOREIGN] if truth else []), *([far] if values else [])]


def _card(one: dict) -> str:
    given = NONE if one["given"] is None else str(one["given"])
    shown = f'<img alt="{text(one["id"])}" src="data:image/png;base64,{text(one["picture"])}">'
    if one["action"] == ACTIONS[1]:
        change = f"<s>{text(given)}</s> → <b>{text(one['proposed'])}</b>"
    else:
        change = f"{text(given)}<br>perhaps {text(one['proposed'])}"
    loss = "" if one["loss"] is None else f"<br>loss {text(one['loss'])}"
    truth = "" if one["truth"] is None else f"<br>truth: {text(one['truth'] or FOREIGN)}"
    return f"<li>{shown}<div>{text(one['id'])}</div>{change}<br>confidence {one['confidence']:.3f}{loss}{truth}</li>"


# Classes, confusions -------------------------------------------------------------------------------------------------


def _classes(summary: dict) -> str:
    parties = summary["per_client"]
    names = list(dict.fromkeys(name for p in parties for name in p["by_class"]))
    known = set(summary["data"]["classes"])
    total = {a: [sum(p["by_class"].get(name, {}).get(a, 0) for p in parties) for name in names] for a in ACTIONS}
    kept = [i for i, _ in enumerate(names) if any(values[i] for values in total.values())]
    kept.sort(key=lambda i: (names[i] == "", names[i] not in known))
    if not kept or len(kept) > MOST_CLASSES:
        return ""
    shown = [_named(names[i], NONE) for i in kept]
    parts = {a: [values[i] for i in kept] for a, values in total.items() if any(values)}
    drawn = charts.bars("Rows by given label", shown, parts, count, "given label")
    if not 1 < len(parties) <= MOST_PARTIES:
        return drawn
    heads = ["party", "given label", *ACTIONS]
    rows = [[p["id"], _named(names[i], NONE), *(p["by_class"].get(names[i], dict.fromkeys(ACTIONS, 0))[a] for a in ACTIONS)]
            for p in parties for i in kept if sum(p["by_class"].get(names[i], {}).values())]  # fmt: skip
    return f'<div class="grid2">{drawn}<div class="card"><h3>Each party</h3><div class="scroll" style="max-height:26rem">' \
           f"{charts.table(heads, rows, 'result.json')}</div></div></div>"  # fmt: skip


def _named(name: str, none: str) -> str:
    return name or none


def _confusions(summary: dict) -> str:
    new = _confusion("Given and new labels", "given", "new", ASIDE, [p["given_new"] for p in summary["per_client"]], summary)
    true = [p["given_true"] for p in summary["per_client"] if p["given_true"] is not None]
    drawn = new + (_confusion("Given and true labels", "given", "true", FOREIGN, true, summary) if true else "")
    return f'<div class="grid2">{drawn}</div>' if drawn else ""


def _confusion(title: str, across: str, down: str, none: str, pairs: list[list[list]], summary: dict) -> str:
    counts: dict[tuple[str, str], int] = {}
    for a, b, n in (pair for one in pairs for pair in one):
        counts[a, b] = counts.get((a, b), 0) + n
    classes = summary["data"]["classes"]
    others = sorted({a for a, _ in counts} - {*classes, ""})
    rows = [*classes, *others, *([""] if any(a == "" for a, _ in counts) else [])]
    cols = [*classes, *([""] if any(b == "" for _, b in counts) else [])]
    if len(rows) > MOST_CLASSES:
        return ""
    values = [[counts.get((a, b), 0) for b in cols] for a in rows]
    shares = [[n / (sum(line) or 1) for n in line] for line in values]
    return charts.heat(title, [a or NONE for a in rows], [b or none for b in cols], values, shares, across, down,
                       f"Rows of all parties. On the diagonal the {down} label is the given one.", "the given label")  # fmt: skip


# What travelled, settings --------------------------------------------------------------------------------------------


def _travelled(folder: Path, summary: dict) -> str:
    path = folder / "messages.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    rows = [["↓ to the parties" if line["direction"] == "down" else "↑ to the server", ", ".join(line["fields"]) or "nothing",
             line["messages"], size(line["bytes"])] for line in lines]  # fmt: skip
    told = "The classifier, its class names and the means and deviations of the server's features go to each party."
    told += " Only counts come back." if summary["told"] else " Nothing about any row comes back."
    heads = ["direction", "what", "messages", "bytes"]
    return f'<div class="card"><p class="aside">{text(told)}</p>{charts.table(heads, rows)}</div>'


def _settings(summary: dict) -> str:
    command = f'<div class="card wide"><h3>Repeat it</h3><pre tabindex="0">{text(summary["command"])}</pre></div>'
    told = dict(summary["settings"], seed=summary["seed"], classes=summary["data"]["classes"], version=summary["version"])
    table = f'<div class="card"><h3>Settings</h3>{charts.settings(told)}</div>'
    return f'<div class="grid2">{command if summary["command"] else ""}{table}</div>'
