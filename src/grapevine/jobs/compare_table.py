"""The numbers of a comparison: a line per run, a row per method with means over seeds; the rows as CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grapevine.core.store import write_atomically
from grapevine.core.words import count, duration, listed, many, percent, size
from grapevine.data.sheets import csv_text
from grapevine.jobs import compare_budget
from grapevine.jobs.train_words import few_chose
from grapevine.run.folder import read_lines

FROM_RESULT = ("accuracy", "accuracy_last", "balanced_accuracy", "best_round", "bytes_up", "bytes_down", "flops", "seconds",
               "pseudo_label_accuracy", "peak_memory_mb")  # fmt: skip
ROWS = ("test_rows", "validation_rows")  # on which its accuracy was measured, and its round chosen; older results do not say
FEW_TESTED = 100  # test rows: with fewer, a row is more than a percentage point
MEANS = ("accuracy_last", "bytes_up", "bytes_down", "bytes_per_client_round", "flops", "seconds", "pseudo_label_accuracy")


def run_line(out: Path, job: Any, cell: dict[str, Any]) -> dict[str, Any]:
    """One run as compare.json tells it."""
    line = dict(cell=job.cell, method=job.label, seed=job.seed, folder=job.folder, state=job.state, error=job.error)
    line |= dict.fromkeys(("rounds", *FROM_RESULT, *ROWS))
    path = out / job.folder / "result.json"
    if job.state == "finished" and path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
        line |= {name: result[name] for name in ("rounds", *FROM_RESULT)} | {name: result.get(name) for name in ROWS}
        per_round = min(job.work["settings"]["per_round"] or cell["clients"], cell["clients"])
        line["bytes_per_client_round"] = (line["bytes_up"] + line["bytes_down"]) / max(line["rounds"] * per_round, 1)
    return line


def fill(out: Path, data: dict[str, Any]) -> None:
    """Put the table into what compare.json holds, and into each cell its target."""
    data["table"] = []
    for c, cell in enumerate(data["cells"]):
        runs = {line["label"]: [run for run in data["runs"] if run["cell"] == c and run["method"] == line["label"]]
                for line in cell["lines"]}  # fmt: skip
        cell["target"], cell["target_is"] = _target(data["target"], runs)
        rows = [_row(cell, line, runs[line["label"]]) for line in cell["lines"]]
        first, best = lead(rows), crowned(rows)
        for row in rows:
            row["best"] = row is best
            of = runs[first["method"]] if first and row is not first else []
            row["difference"], row["p"], row["pairs"] = paired(_by_seed(runs[row["method"]]), _by_seed(of))
            row |= dict(target=cell["target"], **_reached(out, runs[row["method"]], cell["target"]))
        data["table"] += rows


def lead(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The most accurate method that is not a bound: the others are compared with it."""
    known = [row for row in rows if not row["bound"] and row["accuracy"] is not None]
    return max(known, key=lambda row: row["accuracy"], default=None)


def not_cleared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lower bounds that are at least as good as every method."""
    first = lead(rows)
    lower = [row for row in rows if row["bound"] and row["method"] != "supervised" and row["accuracy"] is not None]
    return [row for row in lower if first and row["accuracy"] >= first["accuracy"]]


def crowned(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The lead, where it may be called best: there are others, and it is better than every lower bound."""
    several = sum(not row["bound"] and row["accuracy"] is not None for row in rows) > 1
    return lead(rows) if several and not not_cleared(rows) else None


def _by_seed(runs: Sequence[dict[str, Any]]) -> dict[int, float]:
    return {run["seed"]: run["accuracy"] for run in runs if run["accuracy"] is not None}


def _target(given: float | None, runs: dict[str, list[dict[str, Any]]]) -> tuple[float | None, str]:
    if given is not None:
        return given, "given"
    for label in ("fedavg", "server-only"):
        seen = _by_seed(runs.get(label, []))
        if seen:
            return fmean(seen.values()), f"the mean accuracy of {label}"
    return None, "not known"


def _row(cell: dict[str, Any], line: dict[str, Any], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    done = [run for run in runs if run["state"] == "finished"]
    row = dict(cell["values"], method=line["label"], bound=line["bound"], seeds=len(done), of=len(runs))
    row["budget"] = line.get("budget", "")
    for name in ("accuracy", "balanced_accuracy"):
        row[name], row[f"{name}_std"] = mean_and_std([run[name] for run in done])
    row["accuracy_half"] = half_width(row["accuracy_std"], len(done))
    for name in MEANS:
        row[name] = mean_and_std([run[name] for run in done])[0]
    row["errors"] = [f"seed {run['seed']}: {run['error']}" for run in runs if run["error"]]
    row["cell"] = cell["name"]
    return row


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation of what is known; neither of nothing, no deviation of one."""
    known = [value for value in values if value is not None]
    return (fmean(known) if known else None), (stdev(known) if len(known) > 1 else None)


def half_width(std: float | None, n: int) -> float | None:
    """Half of the 95 % interval of a mean, by Student's t."""
    if std is None:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, n - 1)) * std / math.sqrt(n)


def paired(these: dict[int, float], those: dict[int, float]) -> tuple[float | None, float | None, int]:
    """Mean difference of two methods over the seeds both have, and the two-sided p of the paired t-test; then how many seeds."""
    pairs = [these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())]
    if not pairs:
        return None, None, 0
    difference = fmean(pairs)
    if len(pairs) < 2:
        return difference, None, len(pairs)
    spread = stdev(pairs)
    if spread < 1e-12:  # the same difference at every seed
        return difference, 1.0 if abs(difference) < 1e-12 else 0.0, len(pairs)
    from scipy.stats import t

    p = 2 * float(t.sf(abs(difference) / (spread / math.sqrt(len(pairs))), len(pairs) - 1))
    return difference, p, len(pairs)


def _reached(out: Path, runs: Sequence[dict[str, Any]], target: float | None) -> dict[str, Any]:
    """The first evaluation at or above the target: rounds and bytes, as means over the seeds that got there."""
    hits = []
    for run in runs if target is not None else ():
        lines = read_lines(out / run["folder"] / "history.jsonl") if run["state"] == "finished" else []
        hit = next((line for line in lines if line.get("accuracy") is not None and line["accuracy"] >= target), None)
        hits += [hit] if hit else []
    return dict(
        target_reached=len(hits), target_rounds=fmean(hit["round"] for hit in hits) if hits else None,
        target_bytes=fmean(hit["bytes_up"] + hit["bytes_down"] for hit in hits) if hits else None,
    )  # fmt: skip


# ---------------------------------------------------------------- in words


def spread(mean: float | None, std: float | None) -> str:
    """81.2 ± 0.4%."""
    if mean is None:
        return "—"
    return f"{100 * mean:.1f}%" if std is None else f"{100 * mean:.1f} ± {100 * std:.1f}%"


def interval(row: dict[str, Any]) -> str:
    """78.0 to 84.4%, 3 seeds."""
    mean, half = row["accuracy"], row["accuracy_half"]
    if mean is None:
        return "—"
    n = many(row["seeds"], "seed")
    if not half:  # of equal accuracies there is no spread to make one from
        return n if half is None else f"{n}, all equal"
    return f"{100 * max(mean - half, 0):.1f} to {100 * min(mean + half, 1):.1f}%, {n}"


def p_value(row: dict[str, Any]) -> str:
    if row["best"]:
        return "best"
    if row["p"] is None:
        return "—"
    return "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}"


def difference(row: dict[str, Any]) -> str:
    return "—" if row["difference"] is None else f"{100 * row['difference']:+.1f}"


def reached(row: dict[str, Any], what: str) -> str:
    """Rounds or bytes to the target; how many seeds got there when not all did."""
    value = row[f"target_{what}"]
    if value is None:
        return "—" if not row["seeds"] or row["target"] is None else "not reached"
    shown = f"{value:.0f}" if what == "rounds" else size(value)
    return shown if row["target_reached"] == row["seeds"] else f"{shown} ({row['target_reached']} of {row['seeds']})"


def flops(value: float | None) -> str:
    if value is None:
        return "—"
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{value / 10**power:.1f} {unit}"
    return f"{value:.0f}"


def bytes_(value: float | None) -> str:
    return "—" if value is None else size(value)


COLUMNS = {
    "method": lambda row: row["method"],
    "bound": lambda row: row["bound"] or "",
    "seeds": lambda row: f"{row['seeds']}" if row["seeds"] == row["of"] else f"{row['seeds']} of {row['of']}",
    "accuracy": lambda row: spread(row["accuracy"], row["accuracy_std"]),
    "95 % interval": interval,
    "balanced": lambda row: spread(row["balanced_accuracy"], row["balanced_accuracy_std"]),
    "difference": difference,
    "p": p_value,
    "rounds to target": lambda row: reached(row, "rounds"),
    "bytes to target": lambda row: reached(row, "bytes"),
    "per client and round": lambda row: bytes_(row["bytes_per_client_round"]),
    "bytes": lambda row: bytes_(None if row["bytes_up"] is None else row["bytes_up"] + row["bytes_down"]),
    "FLOPs": lambda row: flops(row["flops"]),
    "seconds": lambda row: "—" if row["seconds"] is None else duration(row["seconds"]),
    "pseudo-labels right": lambda row: percent(row["pseudo_label_accuracy"]),
    "budget": lambda row: row["budget"],
}


def notes(data: dict[str, Any], cell: dict[str, Any]) -> list[str]:
    """What a reader of a cell's table must know, in sentences."""
    rows = rows_of(data, cell)
    first, n = lead(rows), len(data["seeds"])
    said = [warning] if (warning := against_bounds(rows)) else []
    said += rests_on(data, cell)
    said.append(f"Mean ± sample standard deviation over {n} seeds." if n > 1 else "One seed, so there is no spread and no test.")
    pairs = max((row["pairs"] for row in rows if row["p"] is not None), default=0)
    if first and any(row["pairs"] for row in rows):
        said.append(f"Difference: percentage points against {first['method']} at the same seed.")
    if first and pairs:
        said.append(
            f"p: two-sided paired t-test of the accuracies at the same seed against {first['method']}, {pairs} seeds, "
            "not corrected for several comparisons."
        )
    if cell["target"] is not None:
        said.append(f"Target: {percent(cell['target'])} test accuracy, {cell['target_is']}; counted at the evaluations.")
    said.append("Per client and round: bytes sent in all, over rounds × clients chosen in a round.")
    common = {**data["flags"].get("budget", {}), **data["flags"]["set"]}
    said += compare_budget.notes(cell["lines"], cell.get("idle", []), common)
    if cell.get("no_bounds"):
        said.append(f"Bounds: {'; '.join(cell['no_bounds'])}.")
    if cell["left_out"]:
        said.append(f"Cannot use these labels, and left out: {', '.join(cell['left_out'])}.")
    said += [f"Failed: {row['method']}, {error}" for row in rows for error in row["errors"]]
    missing = sum(row["of"] - row["seeds"] - len(row["errors"]) for row in rows)
    if missing:
        said.append(f"Not finished yet: {missing} runs, which are in no mean.")
    return said


def row_counts(data: dict[str, Any], cell: dict[str, Any], name: str) -> list[int]:
    """How many rows the runs of a cell had, from the least to the most; none where no run says it."""
    at = data["cells"].index(cell)
    return sorted({run[name] for run in data["runs"] if run["cell"] == at and run.get(name)})


def many_rows(counts: Sequence[int], kind: str) -> str:
    """5 test rows; 5 to 7 test rows where runs differ; test rows where no run says how many."""
    least = f"{count(counts[0])} to " if len(counts) > 1 else ""
    return least + many(counts[-1], f"{kind} row") if counts else f"{kind} rows"


def rests_on(data: dict[str, Any], cell: dict[str, Any]) -> list[str]:
    """On how many rows the figures of a cell rest, and a warning where very few chose the rounds."""
    test, chose = (row_counts(data, cell, name) for name in ROWS)
    if not test:
        return []
    by = f", of the round that was best on {many_rows(chose, 'validation')}" if chose else ""
    if chose and (last := _without_choice(data, cell)):
        by += f" ({' and '.join(last)}: of the last round)"
    return [f"Each accuracy is measured on {many_rows(test, 'test')}{by}.", *_few_tested(test[0]),
            *few_chose(chose[0] if chose else None)]  # fmt: skip


def _few_tested(n: int) -> list[str]:
    """A warning where so few rows measure an accuracy that a difference may be one of them."""
    if n >= FEW_TESTED:
        return []
    return [f"With {many(n, 'test row')}, one row more or less is {100 / n:.1f} percentage points: small differences are chance, "
            "whatever the seeds say."]  # fmt: skip


def _without_choice(data: dict[str, Any], cell: dict[str, Any]) -> list[str]:
    """Methods of which no round is chosen: those that leave a model at each client."""
    at = data["cells"].index(cell)
    return list(dict.fromkeys(run["method"] for run in data["runs"] if run["cell"] == at and run.get("validation_rows") == 0))


def indistinct(row: dict[str, Any]) -> bool:
    """Whether a method cannot be told from the lead by the paired test."""
    return row["p"] is not None and row["p"] >= 0.05


def bound_ties(rows: Sequence[dict[str, Any]]) -> str:
    """In a few words: which bounds the lead does not clear, or has reached. The sentences are `against_bounds`'."""
    first, above = lead(rows), not_cleared(rows)
    if first is None:
        return ""
    told = []
    for row in rows:
        if not row["bound"] or row["accuracy"] is None:
            continue
        if row in above:
            told.append(f"no better than the bound {row['method']}")
        elif row["method"] == "supervised" and row["accuracy"] <= first["accuracy"]:
            told.append(f"no worse than the bound {row['method']}")
        elif indistinct(row):
            told.append(f"not distinguishable from the bound {row['method']}")
    return listed(told)


def against_bounds(rows: Sequence[dict[str, Any]]) -> str:
    """What the bounds say of the lead, if they say that the setting tells little: one beats it, or ties with it."""
    first, above = lead(rows), not_cleared(rows)
    if first is None:
        return ""
    told, near = [], []
    for row in rows:
        if not row["bound"] or row["accuracy"] is None or row in above:
            continue
        if row["method"] == "supervised" and row["accuracy"] <= first["accuracy"]:
            told.append(
                f"{first['method']} is no worse than {_bound(row)}: nothing is left to gain here, or the test cannot show it"
            )
        elif indistinct(row):
            near.append(row)
    if near:
        names, n = "the bounds " if len(near) > 1 else "the bound ", near[0]["pairs"]
        told.append(f"{first['method']} cannot be distinguished from {names}{listed(map(_bound, near))} with {n} seeds")
    if above:
        names = listed(map(_bound, above))
        bounds = f"bound {names} is" if len(above) == 1 else f"bounds {names} are"
        told.insert(0, f"the {bounds} at least as good as every method: this setting says nothing about them")
    text = "; ".join(told)
    text = text[0].upper() + text[1:] if text.startswith("the ") else text  # a method's name stays as it is
    return text and f"{text}."


def _bound(row: dict[str, Any]) -> str:
    return f"{row['bound']} ({row['method']})"


def rows_of(data: dict[str, Any], cell: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in data["table"] if row["cell"] == cell["name"]]


def used_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The columns that say something: pseudo-labels only where some method has any, a test only where there are pairs."""
    shown = {name: [column(row) for row in rows] for name, column in COLUMNS.items()}
    return [
        name for name, cells in shown.items() if name in ("method", "accuracy") or any(c not in ("", "—", "best") for c in cells)
    ]


def data_names(data: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(str(cell["data"]) for cell in data["cells"]))


# ---------------------------------------------------------------- files


def write(out: Path, data: dict[str, Any], latex: bool) -> None:
    """table.csv, table.md and, if asked for, table.tex."""
    texts = {"table.csv": as_csv(data["table"]), "table.md": as_markdown(data)} | ({"table.tex": as_latex(data)} if latex else {})
    for name, made in texts.items():
        write_atomically(out / name, made.encode())


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Numbers as they are, shares from 0 to 1; a column per varied flag."""
    names = [name for name in rows[0] if name not in ("errors", "cell", "best")] if rows else []
    lines = ([*(row[name] for name in names), int(row["best"]), "; ".join(row["errors"])] for row in rows)
    return csv_text([*names, "best", "errors"], lines)


def as_markdown(data: dict[str, Any]) -> str:
    pieces = []
    for cell in data["cells"]:
        rows = rows_of(data, cell)
        names = used_columns(rows)
        lines = [f"| {' | '.join(names)} |", f"|{'|'.join('---' if name in ('method', 'bound') else '---:' for name in names)}|"]
        for row in rows:
            shown = [COLUMNS[name](row).replace("|", "\\|") for name in names]
            shown = [
                f"**{value}**" if row["best"] and name in ("method", "accuracy") else value for name, value in zip(names, shown)
            ]
            lines.append(f"| {' | '.join(shown)} |")
        title = [f"## {cell['name']}", ""] if cell["name"] else []
        pieces.append("\n".join([*title, *lines, "", *(f"{note}  " for note in notes(data, cell))]).rstrip())
    return "\n\n".join(pieces) + "\n"


TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
       "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "—": "--", "<": "$<$", ">": "$>$"}  # fmt: skip


def tex(words: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in words)


def as_latex(data: dict[str, Any]) -> str:
    """A tabular per cell, without packages."""
    pieces = []
    for cell in data["cells"]:
        rows = rows_of(data, cell)
        names = [name for name in used_columns(rows) if name != "bound"]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", r"\hline", " & ".join(map(tex, names)) + r" \\", r"\hline"]
        for row in rows:
            shown = [tex(COLUMNS[name](row)) for name in names]
            shown[0] = rf"\textit{{{shown[0]}}}" if row["bound"] else shown[0]
            if row["best"]:
                shown = [rf"\textbf{{{value}}}" if name in ("method", "accuracy") else value for name, value in zip(names, shown)]
            lines.append(" & ".join(shown) + r" \\")
        lines += [r"\hline", r"\end{tabular}", *(f"% {note}" for note in notes(data, cell))]
        pieces.append("\n".join([f"% {cell['name']}"] * bool(cell["name"]) + lines))
    return "\n\n".join(pieces) + "\n"
