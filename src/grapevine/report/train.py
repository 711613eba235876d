"""report.html: one self-contained page about a run, from the files in its folder alone.

For training runs, finished or still going; the label job's page is in `label_page`. A folder may have been moved to another
machine, so nothing is looked up outside it: neither the data nor the versions installed here. Only a run of `alone` on the same
split that lies beside it is looked at, to tell which clients gain.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.store import write_atomically
from grapevine.core.words import percent, size
from grapevine.report import charts, page
from grapevine.report.charts import count
from grapevine.report.page import text

REFRESH_SECONDS = 15
LIVE_SECONDS = 30.0  # between two pages of a run that goes on
LIVE_COST = 20  # and so many times what a page took, so that a large one's costs no more than a twentieth of the run
MOST_BARS = 30  # clients named one by one; up to MOST_COLUMNS as thin columns; more as a histogram
MOST_COLUMNS = 300
MOST_ROWS = 50  # clients in the picture of the split
MOST_CLASSES = 100  # in a picture
MOST_FIELDS = 8  # told apart in the bars of the messages
ALONE = "alone"  # the method that clients are compared with
ALL, CONFIDENCE = "pseudo_labels_right_of_all", "pseudo_labels_confidence"
JUDGED, QUALIFIED = "pseudo_label_accuracy_", "qualified"  # in history.jsonl: of another head; rows a client trains on
TITLES = {
    "nothing_relevant": "Clients with nothing relevant, so far",
    QUALIFIED: "Qualified rows per client",
    "anchor_overhead": "Anchors sent, % of the model's bytes",
}


@dataclass(frozen=True)
class Files:
    """What a training run has left in its folder so far. `result` is None until it is finished."""

    folder: Path
    settings: dict
    result: dict | None
    history: list[dict]
    messages: list[dict]
    times: list[dict]
    split: dict | None

    def name(self, client: int) -> str:
        """A client as people call it: a natural party by its name."""
        own = self.split is not None and self.split.get("groups") is not None and "table" in self.split
        return str(self.split["table"][client]["client"]) if own else f"client {client}"


def read(folder: str | Path) -> Files:
    """The files of a training run, finished or still going."""
    folder = Path(folder)
    settings = _json(folder / "settings.json")
    if settings is None:
        raise Mistake(f"{folder} holds no run of Grapevine: name the folder that a run's --out named.")
    lines = {name: _lines(folder / f"{name}.jsonl") for name in ("history", "messages", "times")}
    return Files(folder, settings, _json(folder / "result.json"), split=_json(folder / "split.json"), **lines)


def write(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Path:
    """Make report.html from the folder of a run, a label or clean job or a comparison, and return where it is.

    `against` is a training run on the same split whose clients are compared with this one's. `full` adds what takes seconds: the
    latent space, and without `against` a run of `alone` is looked for beside this one.
    """
    folder = Path(folder)
    job = job_of(folder)
    if job != "train" and against is not None:
        raise Mistake(f"{folder} is no training run ({job}): leave --against out.")
    if job == "compare":
        from grapevine.report import compare as compare_page

        return compare_page.write(folder)
    if job == "clean":
        from grapevine.report import clean as clean_page

        return clean_page.write_clean(folder, _json(folder / "result.json"))
    if job == "label":
        from grapevine.report import label as label_page

        return label_page.write(folder, _json(folder / "result.json"))
    return save(folder, train_page(folder, against, full))


def job_of(folder: Path) -> str:
    """What a folder holds, by its files: train, label, clean or compare."""
    if (folder / "compare.json").is_file():
        return "compare"
    result = _json(folder / "result.json")
    return str(result.get("job", "train")) if result else "train"


def train_page(folder: Path, against: str | Path | None = None, full: bool = False) -> str:
    """The page of a training run."""
    files = read(folder)
    try:
        other = _other(files, against) if against or full else None
        return _train_page(files, other, _latent(files) if full else "")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Mistake(
            f"{folder} holds files that no run of Grapevine writes ({type(error).__name__}: {error}); "
            "repeat the run, or report with the version that made it."
        ) from error


class Live:
    """A run's progress, and its page written anew now and then while it goes on."""

    def __init__(self, folder: str | Path, progress: Callable[[int, int, dict | None], None]):
        self.folder, self.progress = Path(folder), progress
        self._due = time.monotonic() + LIVE_SECONDS / 3

    def __call__(self, done: int, total: int, line: dict | None) -> None:
        self.progress(done, total, line)
        if time.monotonic() < self._due or done == total:
            return
        began = time.monotonic()
        try:
            write(self.folder)
        except (Mistake, OSError):
            pass  # a page that cannot be written is no reason to stop a run; the one at its end will say why
        self._due = time.monotonic() + max(LIVE_SECONDS, LIVE_COST * (time.monotonic() - began))


def running(folder: Path) -> bool:
    """Whether a process is at work in the folder."""
    from grapevine.run.folder import lock

    if not (folder / "lock").exists():
        return False
    try:
        with lock(folder / "lock"):
            return False
    except Mistake:
        return True
    except OSError:
        return False  # a folder that may only be read


def save(folder: Path, made: str) -> Path:
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


def _train_page(files: Files, other: dict | None, latent: str) -> str:
    settings, result, history, times, split = files.settings, files.result, files.history, files.times, files.split
    alive = result is None and running(files.folder)
    sections = [
        ("Accuracy", _accuracy(history, times, result)),
        ("Pseudo-labels", _pseudo_labels(history)),
        ("Clients", _clients(files) + _gains(files, other)),
        ("Confusion", _confusion(result)),
        ("Given and true labels", _given_true(split, settings["data"]["classes"])),
        ("Latent space", latent),
        ("Costs", _costs(files.messages, times)),
        ("Split", _split(files, settings["data"]["classes"])),
        ("Settings", _settings(settings, result, split)),
    ]
    title = f"{settings['method']} on {settings['data']['name']}"
    head = _head(settings, result, history, times, split, alive) + _nothing_relevant(files)
    foot = f"Made by Grapevine {text(settings['version'])} from the files of the run {text(files.folder.resolve().name)}."
    return page.page(title, head, sections, foot, REFRESH_SECONDS if alive else 0)


def _head(settings: dict, result: dict | None, history: list, times: list, split: dict | None, alive: bool) -> str:
    data = settings["data"]
    kind = f'<p class="kind">Training run · {text(settings["method"])} · {text(data["name"])} · seed {text(settings["seed"])}</p>'
    about = _about(settings, split)
    if result is None:
        return kind + _unfinished(settings, history, times, about, alive)
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
        "time": duration(result["seconds"]),
    }
    if result["pseudo_label_accuracy"] is not None:
        tiles["pseudo-labels right"] = percent(result["pseudo_label_accuracy"])
    return f"{kind}<h1>{text(sentence)}.</h1><p>{text(about)} {text(best)}.</p>{tile_list(tiles)}"


def _unfinished(settings: dict, history: list, times: list, about: str, alive: bool) -> str:
    done = times[-1]["round"] if times else 0
    last = history[-1] if history else {}
    sentence = f"Not finished: {settings['method']} has done {count(done)} of {count(settings['rounds'])} rounds"
    tiles = {
        "test accuracy so far": percent(last.get("accuracy")),
        "validation so far": percent(last.get("validation_accuracy")),
        "rounds": f"{count(done)} / {count(settings['rounds'])}",
        "sent so far": size(last.get("bytes_up", 0) + last.get("bytes_down", 0)),
        "time so far": duration(times[-1]["seconds"]) if times else "—",
    }
    notice = (
        f"The run is going on. This page loads itself again every {REFRESH_SECONDS} seconds, and grapevine train writes it anew "
        f"about every {LIVE_SECONDS:.0f}; grapevine report does so at once."
        if alive
        else "The run was stopped before its end: the same command with --resume goes on with it."
    )
    return f'<h1>{text(sentence)}.</h1><p>{text(about)}</p><p class="notice" role="status">{text(notice)}</p>{tile_list(tiles)}'


def _nothing_relevant(files: Files) -> str:
    """Clients that MP-SSFL trained without."""
    at = next((line["nothing_relevant_at"] for line in reversed(files.history) if line.get("nothing_relevant_at")), [])
    if not at:
        return ""
    names = ", ".join(files.name(client) for client in at[:MOST_BARS])
    names += f" and {count(len(at) - MOST_BARS)} more" if len(at) > MOST_BARS else ""
    told = (
        f"Nothing relevant at {names}: every row was set aside, and the run goes on without {'it' if len(at) == 1 else 'them'}."
    )
    return f'<p class="notice">{text(told)}</p>'


def _about(settings: dict, split: dict | None) -> str:
    """The federation in a sentence."""
    data = settings["data"]
    words = f"{many(data['clients'], 'client')} (partition {data['partition']}), {many(settings['per_round'], 'client')} a round"
    if split:
        labelled = sum(len(part["labelled"]) for part in split["clients"])
        unlabelled = sum(len(part["unlabelled"]) for part in split["clients"])
        words += f", holding {many(labelled, 'labelled row')} and {count(unlabelled)} unlabelled"
        words += f"; the server holds {many(len(split['server']['labelled']), 'labelled row')}" if split["server"] else ""
    return words + f". Model {settings['model']}."


def many(n: int, what: str) -> str:
    return f"{count(n)} {what}{'' if n == 1 else 's'}"


def tile_list(tiles: dict[str, str]) -> str:
    return f'<dl class="tiles">{"".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in tiles.items())}</dl>'


def duration(seconds: float) -> str:
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
    history = _thinned(history, [best])
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
    more = "".join(_notes(history))
    return page.views("over", choices) + (f'<div class="grid2 below">{more}</div>' if more else "")


def _pseudo_labels(history: list[dict]) -> str:
    """How many pseudo-labels are right, by each head that gives any, and how many are used."""
    lines = _thinned([line for line in history if line.get("pseudo_label_accuracy") is not None])
    if not lines:
        return ""
    x = [line["round"] for line in lines]
    right = {"right, of those used": [line["pseudo_label_accuracy"] for line in lines]}
    heads = dict.fromkeys(name.removeprefix(JUDGED) for line in lines for name in line if name.startswith(JUDGED))
    for head in heads:
        right[f"the {head} head on the same rows"] = [line.get(JUDGED + head) for line in lines]
    if any(line.get(ALL) is not None for line in lines):
        right["right, of all rows"] = [line.get(ALL) for line in lines]
    if any(line.get(CONFIDENCE) is not None for line in lines):
        right["mean confidence of those used"] = [line.get(CONFIDENCE) for line in lines]
    right["used, of those guessed"] = [line["pseudo_labels_used"] / max(line["pseudo_labels_of"], 1) for line in lines]
    note = "Pseudo-labels compared with the truth, which no client sees."
    used = charts.columns(
        "Pseudo-labels used", [f"round {r}" for r in x], [line["pseudo_labels_used"] for line in lines], count, "evaluation",
        "used", [(0, f"round {x[0]}"), (len(x), f"round {x[-1]}")] if len(x) > 1 else [(0.5, f"round {x[0]}")],
        note="Since the evaluation before.",
    )  # fmt: skip
    qualified = _curve([line for line in history if QUALIFIED in line], QUALIFIED)
    drawn = charts.line("Pseudo-labels right", x, right, "round", percent, note=note, wide=bool(qualified))
    return f'<div class="grid2">{drawn}{used}{qualified}</div>'


def _thinned(lines: list[dict], keep: Sequence[int] = ()) -> list[dict]:
    """Every so many of a long history's lines, and the last, and those of the rounds to `keep`."""
    every = -(-len(lines) // MOST_COLUMNS) or 1
    return [line for i, line in enumerate(lines) if i % every == 0 or line["round"] in (*keep, lines[-1]["round"])]


def _notes(history: list[dict]) -> list[str]:
    """What else the method wrote down, each as a curve."""
    known = {"round", "accuracy", "validation_accuracy", "bytes_up", "bytes_down", "flops"}
    known |= {QUALIFIED} if any("pseudo_label_accuracy" in line for line in history) else set()
    names = dict.fromkeys(name for line in history for name in line if name not in known)
    return [_curve(history, name) for name in names if not name.startswith("pseudo_label")]


def _curve(history: list[dict], name: str) -> str:
    lines = [line for line in history if isinstance(line.get(name), (int, float)) and math.isfinite(line[name])]
    if not lines:
        return ""
    title = TITLES.get(name) or name.replace("_", " ").capitalize()
    x, values = [line["round"] for line in lines], [line[name] for line in lines]
    return charts.line(title, x, {name: values}, "round", lambda v: f"{v:.4g}")


def _clients(files: Files) -> str:
    result = files.result
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
    note += f" {many(missing, 'client')} without test rows left out." if missing else ""
    names = [files.name(row["id"]) for row in rows]
    if len(rows) <= MOST_BARS:
        numbers = charts.table(
            ["client", "rows", "accuracy"], [[name, row["n"], percent(row["accuracy"])] for name, row in zip(names, rows)]
        )
        return charts.bars("Accuracy per client", names, {"accuracy": values}, percent, "client", note, most=1.0, numbers=numbers)
    if len(rows) <= MOST_COLUMNS:
        ends = [(0, "worst"), (len(rows), "best")]
        return charts.columns("Accuracy per client", names, values, percent, "client", "accuracy", ends, note, top=1.0, wide=True)
    counts = [0] * 20
    for value in values:
        counts[min(int(value * 20), 19)] += 1
    worst = charts.table(
        ["client", "rows", "accuracy"], [[name, row["n"], percent(row["accuracy"])] for name, row in zip(names, rows[:10])]
    )
    drawn = histogram("Accuracy per client", counts, "accuracy", "clients", note, wide=True)
    return f'{drawn}<div class="card below"><h3>The ten worst clients</h3>{worst}</div>'


def _other(files: Files, against: str | Path | None) -> dict | None:
    """The result that clients are compared with: that of the run named, or of a run of `alone` beside this one."""
    split = files.settings["data"]["split"]
    if against is not None:
        settings, result = (_json(Path(against) / f"{name}.json") for name in ("settings", "result"))
        if settings is None or result is None:
            raise Mistake(f"{against} holds no finished training run: name one on the same split, or leave --against out.")
        if settings["data"]["split"] != split:
            raise Mistake(
                f"{against} was made on another split than {files.folder}, so its clients are others: "
                f"make it with --split {files.folder / 'split.json'}."
            )
        return result
    if files.result is None or files.settings["method"] == ALONE:
        return None
    found = []
    for beside in sorted(files.folder.resolve().parent.iterdir()):
        try:
            settings, result = (_json(beside / f"{name}.json") for name in ("settings", "result"))
        except (Mistake, OSError):
            continue  # somebody else's
        if settings and result and settings.get("method") == ALONE and settings["data"]["split"] == split:
            found.append((sum(settings[name] == files.settings[name] for name in ("model", "rounds")), result))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _gains(files: Files, other: dict | None) -> str:
    """Who gains and who loses against another run, as a rule against being alone."""
    if other is None or files.result is None:
        return ""
    before = {row["id"]: row["accuracy"] for row in other["per_client"] if row["accuracy"] is not None}
    rows = [(row["accuracy"] - before[row["id"]], row) for row in files.result["per_client"]
            if row["accuracy"] is not None and row["id"] in before]  # fmt: skip
    if not rows:
        return ""
    rows.sort(key=lambda pair: (pair[0], pair[1]["id"]))
    gains = [gain for gain, _ in rows]
    what = "being alone" if other["method"] == ALONE else other["method"]
    more, less = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    note = f"{count(more)} of {many(len(gains), 'client')} gain against {what}, {count(less)} lose: from {_points(gains[0])} to "
    note += f"{_points(gains[-1])} points, {_points(sum(gains) / len(gains))} on average."
    heads = ["client", "rows", files.result["method"], other["method"], "points"]
    lines = [[files.name(row["id"]), row["n"], percent(row["accuracy"]), percent(before[row["id"]]), _points(gain)]
             for gain, row in rows]  # fmt: skip
    title = f"Gain against {what}"
    numbers = charts.table(heads, lines)
    if len(rows) > MOST_COLUMNS:
        return f'<div class="below">{_gain_histogram(title, gains, note, numbers)}</div>'
    names, ends = [line[0] for line in lines], [(0, "loses most"), (len(rows), "gains most")] if len(rows) > 2 else []
    drawn = charts.columns(title, names, gains, _points, "client", "points", ends, note, wide=True, numbers=numbers)
    return f'<div class="below">{drawn}</div>'


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _gain_histogram(title: str, gains: list[float], note: str, numbers: str) -> str:
    marks = charts.ticks(min(gains), max(gains), 20)
    step = marks[1] - marks[0]
    counts = [0] * (len(marks) - 1)
    for gain in gains:
        counts[min(int((gain - marks[0]) / step), len(counts) - 1)] += 1
    names = [f"{_points(low)} to {_points(low + step)} points" for low in marks[:-1]]
    places = [(i, _points(mark)) for i, mark in enumerate(marks) if i % 4 == 0]
    return charts.columns(title, names, counts, count, "points", "clients", places, note, wide=True, numbers=numbers)


def histogram(
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


def _given_true(split: dict | None, classes: list[str]) -> str:
    """The clients' labels beside the truth, where a simulation has made some of them wrong."""
    pairs = split.get("given_true", []) if split else []
    if all(given == true for given, true, _ in pairs) or len(classes) > MOST_CLASSES:
        return ""
    names = [*classes, *(["irrelevant"] if any(true < 0 for _, true, _ in pairs) else [])]
    matrix = [[0] * len(names) for _ in classes]
    for given, true, n in pairs:
        matrix[given][true if true >= 0 else len(classes)] += n
    shares = [[n / (sum(row) or 1) for n in row] for row in matrix]
    right = sum(matrix[c][c] for c in range(len(classes))) / sum(map(sum, matrix))
    note = f"The labels that clients were given; {percent(right)} are the true ones, on the diagonal. No client sees the truth."
    return charts.heat("Given and true labels", classes, names, matrix, shares, "given", "true", note, "the given label")


def _latent(files: Files) -> str:
    """Test rows in the plane by their place in the latent space: at the end, and at the rounds kept before."""
    paths = sorted((files.folder / "latent").glob("round-*.safetensors")) + [files.folder / "latent" / "kept.safetensors"]
    kept = [_tensors(path) for path in paths if path.is_file()]
    if not kept:
        return ""
    classes, flat = files.settings["data"]["classes"], None
    drawn = []
    for number, (round, tensors) in enumerate(kept):
        if len(tensors["z"]) < 8 or not all(map(math.isfinite, tensors["z"].sum(1))):
            continue
        flat = _plane(tensors["z"], flat)
        last = number == len(kept) - 1
        true, taken = ([str(classes[i]) if i >= 0 else "unknown" for i in tensors[name]] for name in ("y", "guess"))
        note = f"{count(len(true))} test rows by t-SNE, coloured by their true class; stars are the centroids of the classes. "
        note += "Choose a class to see it alone, or what is taken for a class."
        drawn.append(charts.scatter(
            f"Latent space, round {round}{' (kept)' if last and files.result else ''}",
            [float(x) for x in flat[:, 0]], [float(y) for y in flat[:, 1]], true, taken,
            [*map(str, classes), "unknown"], note if last else "", "Taken for", centroids=True, menus=last, wide=len(kept) == 1,
        ))  # fmt: skip
    return f'<div class="grid2">{"".join(drawn)}</div>' if drawn else ""


def _tensors(path: Path) -> tuple[str, dict[str, Any]]:
    """Round and arrays of a kept latent space."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return file.metadata()["round"], {name: file.get_tensor(name) for name in ("z", "y", "guess")}
    except (SafetensorError, TypeError) as error:
        raise Mistake(f"{path} is not readable ({error}); leave the folder latent away, or repeat the run.") from None


def _plane(z: Any, before: Any) -> Any:
    """t-SNE, begun where the rows lay before, so that one picture can be compared with the next. Repeats on one machine."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = "pca" if before is None else (before / before.std(0).max() * 1e-4).astype("float32")
    with threadpool_limits(limits=1):
        return TSNE(2, perplexity=min(30.0, len(z) / 4), init=start, random_state=0).fit_transform(z)


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
    note = f"{duration(ends[-1])} in all, evaluations included; {duration(ends[-1] / len(took))} a round."
    note += f" Each column is the mean of {each} rounds." if each > 1 else ""
    seconds = lambda s: f"{s:.3g} s"  # noqa: E731
    return charts.columns("Seconds per round", names, values, seconds, "round", "seconds", places, note, height=150)


def _split(files: Files, classes: list[str]) -> str:
    """Who holds what, as far as split.json tells: given labels, and rows by their true class."""
    split = files.split
    if split is None:
        return '<p class="aside">There is no split.json in this folder.</p>'
    own = split.get("groups") is not None
    holders = [(files.name(i) if own else str(i), part) for i, part in enumerate(split["clients"])]
    truth = [line["classes"] for line in split.get("table", [])]
    few = ""
    if len(holders) > MOST_ROWS:
        few = f"{MOST_ROWS} of the {count(len(holders))} clients, evenly taken."
        taken = [i * len(holders) // MOST_ROWS for i in range(MOST_ROWS)]
        truth = [truth[i] for i in [*taken, *range(len(holders), len(truth))]] if truth else []
        holders = [holders[i] for i in taken]
    at_clients = len(holders)
    holders += [("server", split["server"])] if split["server"] else []
    first = _first_foreign(split)
    rows = {kind: [sum(row < first for row in part[kind]) for _, part in holders] for kind in ("labelled", "unlabelled")}
    if split["foreign"]:
        rows["irrelevant"] = [sum(row >= first for row in part["labelled"] + part["unlabelled"]) for _, part in holders]
    rows = {kind: counts for kind, counts in rows.items() if any(counts)}
    names = [name if own or name == "server" else f"client {name}" for name, _ in holders]
    sizes = charts.bars("Rows per client", names, rows, count, "client", few)
    if len(classes) > MOST_CLASSES:
        return sizes
    given = [[part["labels"].count(c) for c in range(len(classes))] for _, part in holders]
    who, drawn = [name for name, _ in holders], ""
    if truth and truth != given:
        note = f"{few} Labelled and unlabelled rows by their true class; what nobody knows and foreign rows are left out."
        drawn += _holdings("Rows per client and class", who, classes, truth, at_clients, note)
    if any(map(any, given[:at_clients])) or not truth:
        note = f"{few} Given labels" + ("." if truth else "; the classes of unlabelled rows are not in split.json.")
        drawn += _holdings("Labels per client and class", who, classes, given, at_clients, note)
    return f'<div class="grid2">{drawn}{sizes}</div>'


def _holdings(title: str, who: list[str], classes: list[str], counts: list[list[int]], at_clients: int, note: str) -> str:
    most = max(map(max, counts[:at_clients])) or max(map(max, counts))  # a server with many labels does not pale the clients
    if not most:
        return ""
    shares = [[min(n / most, 1.0) for n in line] for line in counts]
    return charts.heat(title, who, classes, counts, shares, "client", "class", note.strip())


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
