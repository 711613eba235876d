"""How good labels are expected to be, from known labels that were hidden: accuracy, calibration, and recall by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grapevine.core.words import percent


def wilson(right: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: honest also for few labels and for shares near 0 or 1."""
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(middle - half), float(middle + half)


def expected_accuracy(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The estimate over all groups of parties, each with the counts that its method summed."""
    known = [group["expected"] for group in groups if group.get("expected")]
    n = sum(e["n"] for e in known)
    if not n:
        return None
    total = {name: np.sum([e[name] for e in known], axis=0) for name in ("right", "alone", "rows", "hits")}
    rows = total["rows"]
    hits = np.clip(total["hits"], 0, rows)  # randomised labels are counted back, and may overshoot
    table = [dict({"from": i / len(rows), "to": (i + 1) / len(rows)}, n=int(round(rows[i])), right=float(hits[i]))
             for i in range(len(rows))]  # fmt: skip
    low, high = wilson(float(total["right"]), n)
    out = dict(
        accuracy=float(total["right"] / n), low=low, high=high, alone=float(total["alone"] / n), n=int(n), calibration=table
    )
    if all("sure" in e for e in known):
        sure = np.sum([e["sure"] for e in known], axis=0)
        there = rows > 0
        out["calibration_error"] = float(np.abs(hits - sure)[there].sum() / rows.sum())
        for row, s in zip(table, sure):
            row["sure"] = float(s)
    return out


def by_class(groups: Sequence[Mapping[str, Any]], classes: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """For each class, by name: hidden labels, those found again, times that it was guessed of hidden ones, rows that get it."""
    out: dict[str, dict[str, float]] = {}
    for group, names in zip(groups, classes):
        e = group.get("expected") or {}
        for i, name in enumerate(names if "of" in e else ()):
            line = out.setdefault(name, dict(n=0.0, found=0.0, guessed=0.0, given=0.0))
            for key, source in (("n", "of"), ("found", "found"), ("guessed", "guessed"), ("given", "given")):
                line[key] += float(e[source][i])
    for line in out.values():
        line["found"] = min(max(line["found"], 0.0), line["n"])  # randomised labels are counted back, and may overshoot
        line["recall"] = line["found"] / line["n"] if line["n"] else None  # type: ignore[assignment]
    return out


def sensitivity(classes: Mapping[str, Mapping[str, float]]) -> dict[str, Any] | None:
    """Of two classes, the second in their order being the positive one: sensitivity and specificity with their intervals."""
    if len(classes) != 2:
        return None
    (negative, no), (positive, yes) = classes.items()
    if not (yes["n"] and no["n"]):
        return None
    return dict(positive=positive, sensitivity=yes["found"] / yes["n"], sensitivity_interval=wilson(yes["found"], yes["n"]),
                specificity=no["found"] / no["n"], specificity_interval=wilson(no["found"], no["n"]))  # fmt: skip


def verdict_words(name: str, v: Mapping[str, Any] | None) -> str:
    """Whether a party does better together than with its own model, in a sentence; by its own hidden labels alone."""
    if v is None or not v["n"]:
        return f"{name} has no labels of its own, so its labels cannot be checked there: rely on the accuracy over all parties."
    together = f"{v['right']} of {v['n']} hidden labels found ({percent(v['right'] / v['n'])})"
    if not v["has_own"]:
        return f"{name}: {together}; its labels are all of one class, so it has no model of its own to compare with."
    both = f"{name}: {together} together, {v['own']} by its own model"
    if v["own_kept"]:
        return f"{both}: its own model is clearly better, so {name} keeps the labels of its own model."
    more = v["right"] - v["own"]
    if more >= 3 and more > 2 * v["apart"] ** 0.5:
        return f"{both}: together is better."
    if v["n"] < 10:
        return f"{both}: too few labels to say which is better."
    return f"{both}: not different beyond chance."
