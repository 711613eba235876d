"""Notes on the result of a label job: rows and classes that got no label, and what a target leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grapevine.core.words import many, percent, some
from grapevine.crypto.together import CELL
from grapevine.data import columns
from grapevine.jobs.heads import Heads
from grapevine.jobs.label_result import PartyLabels
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import LabelSettings

FEW_OF_CLASS = 15  # labels of a class: with fewer, they are why no row gets it
FEW_UNFOUND = 5  # hidden labels of a class: that none of fewer is recovered says little
ENOUGH = 200  # hidden labels: fewer say little of a high target, unless even their interval is above it


def unreached(found: Sequence[PartyLabels], lost: Sequence[str] = ()) -> list[str]:
    """Notes on rows and parties without labels."""
    notes, blank = [], sum(p.blank for p in found)
    if blank:
        notes.append(f"{_rows(blank)} zero after scaling: a row without a direction has no neighbours and gets no label.")
    far = sum(int(np.sum(p.abstained & ~p.proba.any(1))) for p in found if p.name not in lost) - blank
    if far > 0:
        notes.append(f"{_rows(far)} reached by no label: no path of neighbours leads there; more --neighbours may help.")
    return notes + [f"the connection to {name} was lost, so it has no labels." for name in lost]


def unmeasured(parties: Sequence[Party], found: Sequence[PartyLabels], baselines: bool) -> list[str]:
    """Where the baselines' labels are if nobody knows how many of them are right."""
    if not baselines or any(party.measured for party in found):
        return []
    if not any(party.truth for party in parties):
        return ["no truth was given, so how good the baselines are is not known; their labels are in baselines.csv."]
    return ["no new label has a known truth, so the baselines cannot be compared; their labels are in baselines.csv."]


def strangers(found: Sequence[PartyLabels], classes: Sequence[str]) -> list[str]:
    """True labels that no label of the job can match."""
    odd: Counter[str] = Counter()
    for party in found:
        odd.update({name: n for name, (n, _) in party.recalled.items() if name not in classes})
    if not odd:
        return []
    named = some([f"'{name}' ({many(n, 'row')})" for name, n in odd.most_common()])
    what = "is not a class" if len(odd) == 1 else "are not classes"
    return [f"true labels that {what} of this job count as wrong: {named}."]


def unfound(recall: Mapping[str, Mapping[str, float]], found: Sequence[PartyLabels], s: LabelSettings) -> list[str]:
    """Classes of which no hidden label was recovered. Where rows get labels but none gets the class, `never` has said so; and
    randomised labels are counted back too roughly."""
    new, kept = (sum(p.counts[name] for p in found) for name in ("new", "abstained"))
    if s.dp_labels or not new + kept:
        return []
    lost = {name: round(line["n"]) for name, line in recall.items()
            if line["n"] >= FEW_UNFOUND and not round(line["found"]) and (round(line["given"]) or not new)}  # fmt: skip
    if len(lost) == 1:
        ((name, n),) = lost.items()
        return [f"none of the {n} hidden labels of the class '{name}' was recovered, so its rows are taken for other classes."]
    named = some([f"'{name}' (0 of {n})" for name, n in lost.items()])
    return [f"no hidden label of {len(lost)} classes was recovered, so their rows are taken for others: {named}."] if lost else []


def silent(heads: Heads | None) -> list[str]:
    """Columns that chorus left out whole: sums over them would show the few rows that differ."""
    if heads is None:
        return []
    layout, made = heads.layout, dict[str, list[str]]()
    quiet = {name for name, std in zip(layout.names, heads.scale.std) if np.isinf(std)}
    for column in layout.columns:
        made.setdefault(column.source, []).extend(columns.names((column,), layout.agreed))
    left = [source for source, features in made.items() if features and quiet.issuperset(features)]
    why = f"played no part: fewer than {CELL} rows differ there from the most common value."
    return [f"{many(len(left), 'column')} ({some(left)}) {why}"] if left else []


def _rows(n: int) -> str:
    return "1 row is" if n == 1 else f"{n} rows are"


def never(recall: Mapping[str, Mapping[str, float]], found: Sequence[PartyLabels], s: LabelSettings) -> list[str]:
    """Whether there was anything to label; if so, classes that no row gets, and why."""
    new, kept = (sum(p.counts[name] for p in found) for name in ("new", "abstained"))
    if not new + kept:
        return ["every row is labelled already, so there are no new labels."] if found else []
    asked = _asked(s)
    held = Counter(label for p in found for label, out in zip(p.proposed, p.abstained) if out and label is not None)
    if not new:
        return [f"no row gets a label: none of {many(sum(held.values()), 'row')} is as sure as {asked} asks."] if held else []
    absent: dict[str, list[str]] = {}
    for name, line in recall.items():
        if not round(line["given"]):
            why = "held" if name in held else "few" if line["n"] < FEW_OF_CLASS else "unlike"
            absent.setdefault(why, []).append(name)
    return [_why_never(why, names, recall, asked) for why, names in absent.items()]


def _asked(s: LabelSettings) -> str:
    asked = [f"--abstain {s.abstain}"] if s.abstain else []
    return " and ".join([*asked, *([f"--target {s.target}"] if s.target is not None else [])])


def _why_never(why: str, names: Sequence[str], recall: Mapping[str, Mapping[str, float]], asked: str) -> str:
    """One sentence on all classes that no row gets for the same reason."""
    most = max(round(recall[name]["n"]) for name in names)
    if len(names) == 1:
        told = dict(held=f"no row that would get it is as sure as {asked} asks", few=f"it has too few labels ({most})",
                    unlike="no row without a label is most like it")  # fmt: skip
        return f"no row gets the class '{names[0]}': {told[why]}."
    told = dict(held=f"no row that would get one of them is as sure as {asked} asks",
                few=f"they have too few labels (at most {most} each)",
                unlike="no row without a label is most like one of them")  # fmt: skip
    quoted = [f"'{name}'" for name in names]
    return f"no row gets {len(names)} of {len(recall)} classes ({some(quoted)}): {told[why]}."


def judged(found: Sequence[PartyLabels], recall: Mapping[str, Mapping[str, float]], expected: Mapping[str, Any] | None,
           s: LabelSettings) -> tuple[list[str], list[str]]:  # fmt: skip
    """What hidden labels say of the labels given: remarks, which warn of nothing, and notes."""
    aim = aimed(found, s.target, expected)
    return aim[:1], never(recall, found, s) + unfound(recall, found, s) + aim[1:]


def aimed(found: Sequence[PartyLabels], target: float | None, expected: Mapping[str, Any] | None) -> list[str]:
    """What a target leaves, and how far hidden labels speak for it."""
    new, kept = (sum(p.counts[name] for p in found) for name in ("new", "abstained"))
    if target is None or not new:
        return []
    goal, share = f"{100 * target:g}%", percent(new / (new + kept))
    note = f"to be right {goal} of the time, {new} of {new + kept} rows get a label ({share})"
    notes = [note + ("; the others abstain." if kept else ".")]
    of = (expected or {}).get("given") if kept else expected
    if not of:
        return [*notes, f"no hidden label says whether {goal} of them are right: check a sample."]
    if of["high"] < target:
        between = f"{percent(of['accuracy'])} ({percent(of['low'])} to {percent(of['high'])})"
        notes.append(f"of hidden labels about as sure as these, {between} were right: {goal} is not reached.")
    if of["n"] < ENOUGH and of["low"] < target:
        few = many(of["n"], "hidden label was", "hidden labels were")
        notes.append(f"only {few} about as sure as these, too few to be certain of {goal}: check a sample.")
    return notes
