"""How good labels are expected to be, from known labels that were hidden: accuracy, calibration, and recall by class; where the
truth is known, how good they are beside baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grapevine.core.words import listed, many, percent, some


def wilson(right: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, which also holds for few labels and for shares near 0 or 1."""
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def paired(only: int, other: int) -> float:
    """How often chance alone makes two labellers differ so much that are equally good: McNemar's exact test, two-sided. `only`
    rows are labelled right by the one alone, `other` rows by the other alone."""
    n, few = only + other, min(only, other)
    tail = sum(math.exp(_ways(n, i) - n * math.log(2)) for i in range(few + 1))
    return min(2 * tail, 1.0)


def unpaired(right: int, other: int, n: int) -> float:
    """The same where only two counts are known, both of the same n rows: Fisher's exact test, two-sided. Two labellers that find
    mostly the same rows differ by chance less than it allows for, so it is rather too careful."""
    both, low = right + other, max(0, right + other - n)
    chances = [math.exp(_ways(n, i) + _ways(n, both - i) - _ways(2 * n, both)) for i in range(low, min(n, both) + 1)]
    return min(sum(chance for chance in chances if chance <= chances[right - low] * (1 + 1e-7)), 1.0)


def _ways(n: int, k: int) -> float:
    """The logarithm of n over k."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def expected_accuracy(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The estimate over all groups of parties, each with the counts that its method summed. Where there is one class, nothing
    could have been wrong, and there is none."""
    known = [group["expected"] for group in groups if group.get("expected") and _several(group)]
    n = sum(e["n"] for e in known)
    if not n:
        return None
    total = {name: np.sum([e[name] for e in known], axis=0) for name in ("right", "alone", "rows", "hits")}
    rows = total["rows"]
    hits = np.clip(total["hits"], 0, rows)  # randomised labels are counted back, and may overshoot
    table = [dict({"from": i / len(rows), "to": (i + 1) / len(rows)}, n=int(round(rows[i])), right=float(hits[i]))
             for i in range(len(rows))]  # fmt: skip
    low, high = wilson(float(total["right"]), n)
    noise = 1.96 * float(np.sqrt(sum(e.get("noise", 0.0) ** 2 for e in known))) / n
    low, high = max(low - noise, 0.0), min(high + noise, 1.0)
    out = dict(
        accuracy=float(total["right"] / n), low=low, high=high, alone=float(total["alone"] / n), n=int(n), calibration=table
    )
    if noise:
        out["noise"] = noise
    if all("sure" in e for e in known):
        sure = np.sum([e["sure"] for e in known], axis=0)
        there = rows > 0
        out["calibration_error"] = float(np.abs(hits - sure)[there].sum() / rows.sum())
        for row, s in zip(table, sure):
            row["sure"] = float(s)
    return out


def of_given(expected: dict[str, Any] | None, parties: Sequence[Any]) -> dict[str, Any] | None:
    """The estimate, with that of the labels that were `given` where rows abstain: hidden labels by bin of probability, as often
    as new labels lie there. New labels of a bin without hidden ones count with the next bin below that has some."""
    new = np.concatenate([p.confidence[~p.known & ~p.abstained] for p in parties]) if parties else np.empty(0)
    table = expected["calibration"] if expected else []
    there = np.flatnonzero([line["n"] for line in table])
    if expected is None or not len(there) or not len(new) or not any(p.abstained.any() for p in parties):
        return expected
    bins = np.minimum((new * len(table)).astype(int), len(table) - 1)
    place = np.maximum(np.searchsorted(there, bins, "right") - 1, 0)
    weight = np.bincount(place, minlength=len(there)) / len(new)
    n, right = (np.array([table[i][key] for i in there], float) for key in ("n", "right"))
    accuracy, worth = float(weight @ (right / n)), float(1 / (weight**2 / n).sum())
    low, high = wilson(accuracy * worth, worth)
    return dict(expected, given=dict(accuracy=accuracy, low=low, high=high, n=int(n[weight > 0].sum()), worth=worth))


def counted(given: Mapping[str, Any]) -> str:
    """By how many hidden labels the labels given are judged. Their interval is wider than that of so many labels if few of them
    are as sure as most new labels are."""
    n, worth = given["n"], round(given.get("worth", given["n"]))
    told = f"by {many(n, 'hidden label')} about as sure"
    return told if worth >= n else f"{told}, which count as {worth} because few of them are as sure as most new labels"


def _several(group: Mapping[str, Any]) -> bool:
    """Whether a group has two classes or more: their number, or their names by number."""
    return (group["classes"] if isinstance(group["classes"], int) else len(group["classes"])) > 1


def why_unknown(classes: Sequence[Any]) -> str:
    """Why there is no estimate."""
    return "because too few labels could be hidden" if len(classes) > 1 else "because all labels are of one class"


def by_class(groups: Sequence[Mapping[str, Any]], classes: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """For each class by name: hidden labels, how many were recovered, how often it was guessed for hidden ones, and how many
    unlabelled rows get it."""
    out: dict[str, dict[str, float]] = {}
    for group, names in zip(groups, classes):
        e = group.get("expected") or {} if _several(group) else {}
        for i, name in enumerate(names if "of" in e else ()):
            line = out.setdefault(name, dict(n=0.0, found=0.0, guessed=0.0, given=0.0))
            for key, source in (("n", "of"), ("found", "found"), ("guessed", "guessed"), ("given", "given")):
                line[key] += float(e[source][i])
    for line in out.values():
        line["found"] = min(max(line["found"], 0.0), line["n"])  # randomised labels are counted back, and may overshoot
        line["recall"] = line["found"] / line["n"] if line["n"] else None  # type: ignore[assignment]
    return out


def sensitivity(classes: Mapping[str, Mapping[str, float]]) -> dict[str, Any] | None:
    """Sensitivity and specificity with their intervals, if there are two classes; the second in order is the positive one."""
    if len(classes) != 2:
        return None
    (negative, no), (positive, yes) = classes.items()
    if not (yes["n"] and no["n"]):
        return None
    return dict(positive=positive, sensitivity=yes["found"] / yes["n"], sensitivity_interval=wilson(yes["found"], yes["n"]),
                specificity=no["found"] / no["n"], specificity_interval=wilson(no["found"], no["n"]))  # fmt: skip


def verdict(v: Mapping[str, Any] | None) -> str:
    """What a party's hidden labels say of the labels it got, beside its own model: better, worse, not different, or why not."""
    if v is None or not v["n"]:
        return "no labels of its own"
    if not v["has_own"]:
        return "no model of its own"
    more = v["right"] - v["own"]
    if v["own_kept"]:
        return "worse"
    if more > 0 and paired((v["apart"] + more) // 2, (v["apart"] - more) // 2) < CHANCE:
        return "better"
    return "not different" if v["n"] >= ENOUGH else "too few labels"


CHANCE = 0.05  # what chance makes more rarely is told as a difference
ENOUGH = 10  # hidden labels from which no clear difference says that there is hardly one
SAID = {
    "no labels of its own": "cannot be checked at the party, which has no labels of its own: rely on the accuracy over all",
    "no model of its own": "cannot be compared: the party's labels are all of one class, so it has no model of its own",
    "worse": "worse than the party's own model, so the party keeps the labels of its own model",
    "better": "better than the party's own model",
    "not different": "not different from the party's own model beyond chance",
    "too few labels": "too few known labels to say whether they are better than the party's own model",
}
FEW = 3  # parties of which each has a sentence; of more, those with the same verdict share one


def verdict_words(name: str, v: Mapping[str, Any] | None) -> str:
    """The verdict in a sentence or two, with the counts behind it."""
    said = f"{name}: {SAID[verdict(v)]}."
    if v is None or not v["n"]:
        return said
    low, high = wilson(v["right"], v["n"])
    counts = f"Of {v['n']} labels that were hidden, {v['right']} were recovered ({percent(v['right'] / v['n'])}; "
    counts += f"{percent(low)} to {percent(high)})"
    return f"{said} {counts}" + (f", {v['own']} by its own model." if v["has_own"] else ".")


def verdict_lines(parties: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[str]:
    """The verdicts of all parties, by name: party by party, or where there are many, each verdict with its parties."""
    if len(parties) <= FEW:
        return [verdict_words(*party) for party in parties]
    named = {kind: [name for name, v in parties if verdict(v) == kind] for kind in SAID}
    return [
        f"{len(names)} of {len(parties)} parties: {SAID[kind]} ({some(names, 10)})." for kind, names in named.items() if names
    ]


def verdict_of_all(e: Mapping[str, Any] | None) -> list[str]:
    """One verdict over all parties, where a method (xclp) opens no more than how many hidden labels were recovered by them
    together and by each alone. Noise in these counts (`--dp`) is taken from their difference first."""
    if not e:
        return []
    n, together, alone = e["n"], round(e["accuracy"] * e["n"]), round(e["alone"] * e["n"])
    noise = math.ceil(2**0.5 * e.get("noise", 0.0) * n)
    more = max(abs(together - alone) - noise, 0)
    best = max(together, alone)
    if more and unpaired(best, best - more, n) < CHANCE:
        said = f"together {'better' if together > alone else 'worse'} than each party alone"
    elif n < ENOUGH:
        said = "too few known labels were hidden to say whether together is better than each party alone"
    else:
        said = "together not different beyond chance from each party alone"
    return [f"All parties: {said}. Of {many(n, 'label that was', 'labels that were')} hidden, {together} "
            f"{'was' if together == 1 else 'were'} recovered together ({percent(e['accuracy'])}) and {alone} by each party alone "
            f"({percent(e['alone'])})."]  # fmt: skip


BY = dict(alone="each party alone", nearest="nearest own labelled row", model="the model itself")  # heads: names of methods


def beside(rights: Mapping[str, float | None], parties: Sequence[Mapping[str, float | None]]) -> list[tuple[str, list]]:
    """Of a job with baselines and a truth: by whom rows were labelled, and the share that is right over all parties, at the worst
    one and at the best. `rights` and each party's have it by "together" and by baseline."""
    if rights["together"] is None or not set(rights) - {"together", "alone", "model"}:
        return []
    lines = []
    for name, right in rights.items():
        each = [share for share in (party.get(name) for party in parties) if share is not None]
        lines.append((BY.get(name, name), [right, min(each, default=None), max(each, default=None)]))
    return lines


def beaten_by(rights: Mapping[str, float | None], differ: Mapping[str, Sequence[int]]) -> list[str]:
    """A sentence on the baselines that labelled more rows right than the job, and one on those that may have done so by chance.
    `differ` counts by baseline the rows that only the job and that only the baseline labelled right."""
    lines = []
    for told, beyond in (("by more than chance explains", True), ("which may be chance", False)):
        names = [name for name, (job, other) in differ.items() if other > job and (paired(job, other) < CHANCE) == beyond]
        names.sort(key=lambda name: -(rights[name] or 0.0))
        if names:
            who = listed([f"{BY.get(name, name)} ({percent(rights[name])})" for name in names])
            labels = "labels" if len(names) == 1 else "label"
            lines.append(f"{who} {labels} more of these rows right than the job ({percent(rights['together'])}), {told}.")
    return [line[0].upper() + line[1:] if line.startswith(tuple(BY.values())) else line for line in lines]
