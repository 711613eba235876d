"""The page of a training run, finished or still going, in a simulation or between parties.

A folder may have been moved to another machine, so nothing is looked up outside it: neither the data nor the versions installed
here. Only a run of `alone` on the same split that lies beside it is looked at, to tell which clients gain.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.words import count, duration, many, percent, points, size, some
from grapevine.data.foreign import IRRELEVANT
from grapevine.jobs.settings import TrainSettings
from grapevine.jobs.train_words import clients_of, few_chose, few_tested, job_labels, kept_for, rests_on
from grapevine.report import latent, picture, privacy, sent
from grapevine.report.charts.kinds import Axis, bars, columns, curves, gained, heat, lines
from grapevine.report.files import ALONE, Files, compared_with, read
from grapevine.report.page import REFRESH_SECONDS, Page, files_of
from grapevine.report.parts import MOST_CLASSES, Card, Chart, Command, Part, Settings, Table, Views
from grapevine.run.folder import running

LIVE_SECONDS = 30.0  # between two pages of a run that continues
LIVE_COST = 20  # and at least so many times what a page took, so that pages take at most a twentieth of the run
MOST_BARS = 30  # clients named one by one; up to MOST_COLUMNS as thin columns; more as a histogram
MOST_COLUMNS = 300
ALL, CONFIDENCE = "pseudo_labels_right_of_all", "pseudo_labels_confidence"
JUDGED, QUALIFIED = "pseudo_label_accuracy_", "qualified"  # in history.jsonl: of another head; rows a client trains on
EXPLAINED = dict(
    gradient_diversity="How far the clients' updates differ: 1/n if all n are the same, 1 if they are at right angles to one "
    "another, and more if they cancel out."
)
TITLES = {
    "pseudo_labels_used": "Pseudo-labels used since the evaluation before",
    "nothing_relevant": "Clients with nothing relevant, so far",
    QUALIFIED: "Qualified rows per client",
    "epsilon": "ε spent by the client that spent the most",
    "anchor_overhead": "Anchors sent, % of the model's bytes",
}


def write(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Path:
    """Make report.html of a training run's folder, and return where it is."""
    return make(folder, against, full).write(Path(folder) / "report.html")


class Live:
    """A run's progress, and its page written again now and then while it continues."""

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


def make(folder: str | Path, against: str | Path | None = None, full: bool = False) -> Page:
    """The page of a training run: `against` another run, and `full` with what takes seconds."""
    files = read(folder)
    with files_of(folder, "a run of Grapevine"):
        other = compared_with(files, against) if against or full else None
        alive = files.result is None and running(files.folder)
        sections: list[tuple[str, Sequence[Part]]] = [
            ("Accuracy", _accuracy(files)),
            ("Pseudo-labels", _pseudo_labels(files.history)),
            ("Clients", [*_clients(files), *_gains(files, other)]),
            ("Confusion", _confusion(files.result)),
            ("Given and true labels", _given_true(files)),
            ("Differential privacy", privacy.parts(files)),
            ("Latent space", [latent.charts(files)] if full else []),
            ("Costs", [[*sent.chart(files.messages), *_time(files.times)]]),
            ("Split", _split(files)),
            ("Settings", _settings(files)),
        ]
        settings, name = files.settings, _data_name(files)
        seed = [] if settings.get("seed") is None else [f"seed {settings['seed']}"]
        head = _unfinished(files, alive) if files.result is None else _finished(files, files.result)
        return Page(
            f"{settings['method']} on {name}", " · ".join(["Training run", settings["method"], name, *seed]), sections=sections,
            foot=f"Made by Grapevine {settings['version']} from the files of the run {files.folder.resolve().name}.",
            refresh=REFRESH_SECONDS if alive else 0, **head,
        )  # fmt: skip


# ---------------------------------------------------------------- head


def _data_name(files: Files) -> str:
    return str(files.data.get("name") or "the parties' rows")


def _finished(files: Files, result: dict) -> dict[str, Any]:
    whose, rests = "test {}" if files.split or "split" in files.data else "{} that the parties held out", rests_on(result)
    rows, verb = whose.format("rows"), "is" if rests and rests.n == 1 else "are"
    rows = many(rests.n, whose.format("row"), rows) if rests else rows
    about = f"{_about(files)} "
    if result.get("best_round") is not None:
        kept = f"round {count(result['best_round'])} was kept, the {kept_for(result, files.history)}"
        about += f"Of {many(result['rounds'], 'round')}, {kept}."
    own = [row["accuracy"] for row in result["per_client"] if row["accuracy"] is not None]
    tiles = {
        f"test accuracy ({rests.low:.0%} to {rests.high:.0%}, n = {count(rests.n)})" if rests else "test accuracy": percent(
            result["accuracy"]
        ),
        "in the last round": percent(result["accuracy_last"]),
        "balanced accuracy": percent(result["balanced_accuracy"]),
        "worst client": percent(min(own)) if own else "—",
        "sent in all": size(result["bytes_up"] + result["bytes_down"]),
        "time": duration(result["seconds"]),
    }
    if result.get("pseudo_label_accuracy") is not None:
        tiles["pseudo-labels right"] = percent(result["pseudo_label_accuracy"])
    heading = f"{percent(result['accuracy'])} of the {rows} {verb} classified right by {result['method']} on {_data_name(files)}"
    heading += f" (95 % interval: {rests.between})." if rests else "."
    return dict(
        heading=heading,
        about=about,
        tiles=tiles,
        notices=[*few_tested(rests), *few_chose(result.get("validation_rows")), *_without(files)],
    )


def _unfinished(files: Files, alive: bool) -> dict[str, Any]:
    settings, times = files.settings, files.times
    last, rounds = files.history[-1] if files.history else {}, count(settings["rounds"])
    done = count(times[-1]["round"] if times else last.get("round", 0))
    tiles = {
        "test accuracy so far": percent(last.get("accuracy")),
        "validation so far": percent(last.get("validation_accuracy")),
        "rounds": f"{done} / {rounds}",
        "sent so far": size(last.get("bytes_up", 0) + last.get("bytes_down", 0)),
        "time so far": duration(times[-1]["seconds"]) if times else "—",
    }
    notice = (
        f"The run is in progress. This page reloads itself every {REFRESH_SECONDS} seconds, and grapevine train rewrites it "
        f"about every {LIVE_SECONDS:.0f}; grapevine report does so at once."
        if alive
        else "The run was stopped before its end: the same command with --resume continues it."
    )
    heading = f"Not finished: {settings['method']} has done {done} of {many(settings['rounds'], 'round')}."
    return dict(heading=heading, about=_about(files), tiles=tiles, notices=[notice, *_without(files)])


def _about(files: Files) -> str:
    """The federation in a sentence."""
    data, split, per_round = files.data, files.split, files.settings.get("per_round")
    clients = data.get("clients") or len((files.result or {}).get("per_client", []))
    words = [many(clients, "client") + (f" (partition {data['partition']})" if data.get("partition") else "")] if clients else []
    words += [f"{many(min(per_round, clients), 'client')} a round"] if per_round and clients else []
    if split:
        labelled, unlabelled = (sum(len(part[kind]) for part in split["clients"]) for kind in ("labelled", "unlabelled"))
        words.append(f"holding {many(labelled, 'labelled row')} and {count(unlabelled)} unlabelled")
    server = f"; the server holds {many(len(split['server']['labelled']), 'labelled row')}" if split and split["server"] else ""
    return " ".join([f"{', '.join(words)}{server}.", *job_labels(data), f"Model {files.settings['model']}."])


def _without(files: Files) -> list[str]:
    """Clients whose replies could not be used, and those that MP-SSFL trained without."""
    left = [f"{files.name(name)} ({why})" for name, why in (files.result or {}).get("left_out", {}).items()]
    told = [f"Left out for bad replies: {'; '.join(left)}."] if left else []
    at: list = next((line["nothing_relevant_at"] for line in reversed(files.history) if line.get("nothing_relevant_at")), [])
    names = some([files.name(client) for client in at], MOST_BARS)
    them = "it" if len(at) == 1 else "them"
    return told + ([f"Nothing relevant at {names}: every row was excluded, and the run continues without {them}."] if at else [])


# ---------------------------------------------------------------- curves


def _accuracy(files: Files) -> list[Part]:
    history, result = files.history, files.result
    if not history:
        return ["Nothing has been evaluated yet."]
    kept = {"validation": "validation_accuracy", "test": "accuracy"}
    kept = {name: key for name, key in kept.items() if any(line.get(key) is not None for line in history)}
    if not kept:
        return ["No accuracy could be measured: there are no test rows."]
    best = result.get("best_round") if result else None
    every = -(-len(history) // MOST_COLUMNS)
    history = _thinned(history, [best])
    series = {name: [line.get(key) for line in history] for name, key in kept.items()}
    rounds = [line["round"] for line in history]
    so_far = [line["bytes_up"] + line["bytes_down"] for line in history]
    clock = {0: 0.0, **{line["round"]: line["seconds"] for line in files.times}}
    note = f"Every {every}th evaluation is drawn; all are in history.jsonl." if every > 1 else ""

    def curve(x: Sequence[float], axis: Axis) -> list[Part]:
        mark = (x[rounds.index(best)], f"kept: round {best}") if best in rounds else None
        title = f"Accuracy by {axis.name}"
        return [lines(title, curves(x, series), axis, Axis("accuracy", percent), mark=mark, note=note, wide=True)]

    choices = {"rounds": curve(rounds, Axis("round"))}
    if so_far[-1]:
        choices["bytes sent"] = curve(so_far, Axis("bytes sent", size))
    if all(r in clock for r in rounds) and len(rounds) > 1:
        choices["seconds"] = curve([clock[r] for r in rounds], Axis("seconds", lambda s: f"{s:.4g} s"))
    return [Views("over", choices), _notes(history)]


def _pseudo_labels(history: list[dict]) -> list[Part]:
    """How many pseudo-labels are right, by each head that gives any, and how many are used."""
    used = _thinned([line for line in history if line.get("pseudo_label_accuracy") is not None])
    if not used:
        return []
    x = [line["round"] for line in used]
    right = {"right, of those used": [line["pseudo_label_accuracy"] for line in used]}
    heads = dict.fromkeys(name.removeprefix(JUDGED) for line in used for name in line if name.startswith(JUDGED))
    more = {JUDGED + head: f"the {head} head on the same rows" for head in heads}
    more |= {ALL: "right, of all rows", CONFIDENCE: "mean confidence of those used"}
    for key, name in more.items():
        if any(line.get(key) is not None for line in used):
            right[name] = [line.get(key) for line in used]
    right["used, of those guessed"] = [line["pseudo_labels_used"] / max(line["pseudo_labels_of"], 1) for line in used]
    note = "Pseudo-labels compared with the truth, which no client sees."
    drawn = lines("Pseudo-labels right", curves(x, right), Axis("round"), Axis("share", percent), note=note, wide=True)
    return [[drawn, *_curve(used, "pseudo_labels_used"), *_curve([line for line in history if QUALIFIED in line], QUALIFIED)]]


def _thinned(history: list[dict], keep: Sequence[int | None] = ()) -> list[dict]:
    """Lines of a long history at even intervals, the last one, and those of the rounds to `keep`."""
    every = -(-len(history) // MOST_COLUMNS) or 1
    return [line for i, line in enumerate(history) if i % every == 0 or line["round"] in (*keep, history[-1]["round"])]


def _notes(history: list[dict]) -> list[Chart]:
    """What else the method wrote down, each as a curve."""
    known = {"round", "accuracy", "validation_accuracy", "validation_rows", "bytes_up", "bytes_down", "flops"}
    known |= {QUALIFIED} if any("pseudo_label_accuracy" in line for line in history) else set()
    names = dict.fromkeys(name for line in history for name in line if name not in known)
    return [chart for name in names if not name.startswith("pseudo_label") for chart in _curve(history, name)]


def _curve(history: list[dict], name: str) -> list[Chart]:
    there = [line for line in history if isinstance(line.get(name), (int, float)) and math.isfinite(line[name])]
    if not there:
        return []
    title = TITLES.get(name) or name.replace("_", " ").capitalize()
    series = curves([line["round"] for line in there], {name: [line[name] for line in there]})
    return [lines(title, series, Axis("round"), Axis(name, lambda v: f"{v:.4g}"), note=EXPLAINED.get(name, ""))]


# ---------------------------------------------------------------- clients


def _clients(files: Files) -> list[Part]:
    known = (files.result or {}).get("per_client", [])
    rows = sorted((row for row in known if row["accuracy"] is not None), key=lambda row: row["accuracy"])
    if not rows:
        return []
    values = [row["accuracy"] for row in rows]
    note = f"From worst to best: {percent(values[0])} to {percent(values[-1])}, half of the clients have "
    note += f"{percent(values[len(values) // 2])} or more. {clients_of(files.result or {})}"
    note += f" {many(len(known) - len(rows), 'client')} without test rows left out." if len(rows) < len(known) else ""
    told = [[files.name(row["id"]), row["n"], percent(row["accuracy"])] for row in rows]
    numbers, title = [Table(["client", "rows", "accuracy"], told, "result.json")], "Accuracy per client"
    if len(rows) > MOST_BARS:
        return [_sorted(title, told, values, Axis("accuracy", percent), ("worst", "best"), note=note, numbers=numbers, top=1.0)]
    names = [line[0] for line in told]
    return [bars(title, names, {"accuracy": values}, "client", percent, most=1.0, note=note, numbers=numbers)]


def _sorted(title: str, told: list[list], values: list[float], axis: Axis, ends: tuple[str, str], **about: Any) -> Chart:
    """A column for each client, from the least to the most; of very many, for some at even intervals."""
    kept = [i * len(values) // MOST_COLUMNS for i in range(MOST_COLUMNS)] if len(values) > MOST_COLUMNS else range(len(values))
    about["note"] += f" {MOST_COLUMNS} of the clients are drawn, at even intervals." if len(kept) < len(values) else ""
    labels = [(0.0, ends[0]), (float(len(kept)), ends[1])] if len(kept) > 2 else []
    return columns(title, [told[i][0] for i in kept], [values[i] for i in kept], "client", axis, labels, wide=True, **about)


def _gains(files: Files, other: dict | None) -> list[Part]:
    """Who gains and who loses against another run, as a rule against being alone."""
    if other is None or files.result is None:
        return []
    before = {row["id"]: row["accuracy"] for row in other["per_client"] if row["accuracy"] is not None}
    both = [row for row in files.result["per_client"] if row["accuracy"] is not None and row["id"] in before]
    rows = sorted(both, key=lambda row: row["accuracy"] - before[row["id"]])
    if not rows:
        return []
    gains = [row["accuracy"] - before[row["id"]] for row in rows]
    what = "being alone" if other["method"] == ALONE else other["method"]
    more, less = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    note = f"{count(more)} of {many(len(gains), 'client')} gain against {what}, {count(less)} lose: from {points(gains[0])} to "
    note += f"{points(gains[-1])} points, {points(sum(gains) / len(gains))} on average."
    told = [[files.name(row["id"]), row["n"], percent(row["accuracy"]), percent(before[row["id"]]), points(gain)]
            for row, gain in zip(rows, gains)]  # fmt: skip
    numbers = [Table(["client", "rows", files.result["method"], other["method"], "points"], told)]
    title = f"Gain against {what}"
    if len(rows) <= MOST_BARS:
        return [gained(title, [line[0] for line in told], gains, points, note=note, numbers=numbers)]
    ends, axis = ("loses most", "gains most"), Axis("points", points)
    return [_sorted(title, told, gains, axis, ends, note=note, numbers=numbers)]


# ---------------------------------------------------------------- classes


def _confusion(result: dict | None) -> list[Part]:
    if result is None or not result.get("confusion"):
        return []
    matrix, classes = result["confusion"], result["data"]["classes"]
    worst = sorted(((n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n), reverse=True)
    told = [f"{classes[i]} taken for {classes[j]} ({count(n)} of {count(sum(matrix[i]))})" for n, i, j in worst[:3]]
    note = f"Most often: {'; '.join(told)}." if told else "No test row is taken for another class."
    rows = [[classes[i], classes[j], n, percent(n / sum(matrix[i]))] for n, i, j in worst[:10]]
    listed = [Card("Most confused", [Table(["true class", "taken for", "rows", "of the class"], rows)])] if rows else []
    if len(classes) > MOST_CLASSES:
        return [listed]
    sides = ("true", classes), ("predicted", classes)
    return [[heat("Confusion matrix", *sides, matrix, "the true class", note=note), *listed]]


def _given_true(files: Files) -> list[Part]:
    """The clients' labels beside the truth, where a simulation has made some of them wrong."""
    classes, pairs = files.data["classes"], files.split.get("given_true", []) if files.split else []
    known = [(given, true, n) for given, true, n in pairs if true >= 0 or true == IRRELEVANT]
    if all(given == true for given, true, _ in known) or len(classes) > MOST_CLASSES:
        return []
    names = [*classes, *(["irrelevant"] if any(true == IRRELEVANT for _, true, _ in known) else [])]
    matrix = [[0] * len(names) for _ in classes]
    for given, true, n in known:
        matrix[given][len(classes) if true == IRRELEVANT else true] += n
    right = sum(matrix[c][c] for c in range(len(classes))) / sum(map(sum, matrix))
    note = f"The labels that clients were given; {percent(right)} are the true ones, on the diagonal. No client sees the truth."
    unknown = sum(n for *_, n in pairs) - sum(map(sum, matrix))
    note += f" Left out: {many(unknown, 'label')} of rows whose true class is unknown." if unknown else ""
    sides = ("given", classes), ("true", names)
    return [heat("Given and true labels", *sides, matrix, "the given label", note=note)]


# ---------------------------------------------------------------- costs


def _time(times: list[dict]) -> list[Chart]:
    if not times:
        return []
    total, each = times[-1]["seconds"], -(-len(times) // MOST_COLUMNS)
    ends = [dict(round=0, seconds=0.0), *times[each - 1 :: each]]  # of a long run, means of some rounds at a time
    took = [(b["seconds"] - a["seconds"]) / (b["round"] - a["round"]) for a, b in zip(ends, ends[1:])]
    note = f"{duration(total)} in all, evaluations included; {duration(total / len(times))} a round."
    series, seconds = curves([line["round"] for line in ends[1:]], {"seconds": took}), Axis("seconds", lambda s: f"{s:.3g} s")
    return [lines("Seconds per round", series, Axis("round"), seconds, note=note, height=150)]


# ---------------------------------------------------------------- split and settings


def _split(files: Files) -> list[Part]:
    if files.split is None:
        return ["There is no split.json in this folder."] if "split" in files.data else []
    sizes, *drawn = picture.charts(files.split, files.data["classes"], files.name)
    return [[*drawn, sizes]]


def _settings(files: Files) -> list[Part]:
    settings, result = files.settings, files.result
    again = [Command(settings["command"])] if settings.get("command") else []
    if not again and "split" in files.data:
        again = [Command(_command(files), "This run was started from Python; this is the same as a command.")]
    run = {name: value for name, value in settings.items() if name not in ("command", "settings", "data", "job")}
    groups = {"Run": run, f"Fields of {settings['method']}": settings["settings"], "Data": files.data}
    if result:
        known = {*settings, "confusion", "per_client", "privacy"} - {"rounds"}
        groups["Result"] = {name: value for name, value in result.items() if name not in known}
    return [*again, Settings(groups)]


def _command(files: Files) -> str:
    """The command that makes the same run. A split of another seed, or with the labels of a job, is handed over as its
    file."""
    settings, split = files.settings, files.split
    values = dict(settings, data=files.data["name"], norm=settings["norm"].replace("default", ""), workers=None)
    made = ("clients", "partition", "labels", "flip", "irrelevant", "validation")
    same = split is None or split["seed"] == settings["seed"] and not files.data.get("labels_from")
    values |= {name: files.data[name] for name in made} if same else dict(split="split.json")
    words = ["grapevine", "train", settings["method"]]
    for name in TrainSettings.names():
        words += [f"--{name.replace('_', '-')}", str(values[name])] if values.get(name) or name == "seed" else []
    for name, value in settings["settings"].items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, "--out", "again"])
