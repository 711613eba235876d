"""The result of the label job: every party's labels, their measured accuracy, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core.ledger import Ledger
from grapevine.core.models import HEADS
from grapevine.core.version import __version__
from grapevine.core.words import percent, short_table
from grapevine.data.tables import write_csv
from grapevine.graph import layout
from grapevine.jobs.expected import sensitivity, verdict_words
from grapevine.jobs.folder import Page, Parties, cells, no_label, write_folder, write_lines
from grapevine.jobs.heads import Heads
from grapevine.jobs.settings import LabelSettings
from grapevine.run.folder import peak_memory_mb

REVIEW = 50  # rows in review.csv
HISTOGRAM = 20  # bins of the report's confidence histogram


@dataclass(frozen=True, repr=False)
class PartyLabels:
    """The result of one party, which only it sees: one entry per row, in the order of its rows.

    Labels are names, or None where there is none. If all labels came as integers, they are int64 arrays with −1 for none.
    """

    name: str
    ids: list[str]
    labels: Any  # given or propagated
    confidence: np.ndarray  # 1 for a given label
    proba: np.ndarray  # a column for each class of the result, in its order
    given: Any
    proposed: Any  # what propagation says, also where a label was given and where the row abstains
    abstained: np.ndarray
    blank: int = 0
    accuracy: float | None = None  # of the new labels whose truth is known
    measured: int = 0  # how many rows these are
    others: dict[str, Any] = field(default_factory=dict)  # labels by baseline: alone, nearest, fedncm, …, model
    other_accuracy: dict[str, float | None] = field(default_factory=dict)
    recalled: dict[str, tuple[int, int]] = field(default_factory=dict)  # by true class: rows measured, labelled right
    differ: dict[str, tuple[int, int]] = field(default_factory=dict)  # by baseline: rows that only the job, only it has right
    disclosure: list[dict] = field(default_factory=list)
    least: float = 0.0  # the probability below which a row abstains
    verdict: dict[str, Any] | None = None  # of chorus: its own hidden labels, found together and by its own model
    ledger: Ledger | None = None  # what its rows went into

    @property
    def known(self) -> np.ndarray:
        """Which rows came with a label."""
        return np.array([not no_label(label) for label in self.given], bool)

    @property
    def alone_accuracy(self) -> float | None:
        """The same rows, labelled by this party alone."""
        return self.other_accuracy.get("alone")

    @property
    def counts(self) -> dict[str, int]:
        given, abstained = int(self.known.sum()), int(self.abstained.sum())
        return dict(rows=len(self.ids), given=given, new=len(self.ids) - given - abstained, abstained=abstained)

    def __repr__(self) -> str:
        return f"{self.name}: {', '.join(f'{name} {n}' for name, n in self.counts.items())}"


@dataclass(frozen=True, repr=False)
class LabelResult(Parties[PartyLabels]):
    """All parties' results."""

    parties: list[PartyLabels]
    classes: tuple
    expected: dict[str, Any] | None
    lost: list[str]
    warnings: list[str]
    seconds: float
    bytes_up: int
    bytes_down: int | None  # None: a party of a hosted job does not count it
    messages: list[dict]
    settings: LabelSettings
    about: dict[str, Any] = field(default_factory=dict)  # what was chosen by hidden labels
    recall: dict[str, dict[str, float]] = field(default_factory=dict)  # of chorus: hidden labels by class
    heads: Heads | None = None  # of chorus: what labels later rows
    graph: dict[str, np.ndarray] | None = None
    remarks: list[str] = field(default_factory=list)  # what is no warning: how many labels a target leaves

    @property
    def accuracy(self) -> float | None:
        """Of the new labels whose truth is known, over all parties."""
        return _mean([(p.accuracy, p.measured) for p in self.parties])

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over the true classes of the share labelled right, over all parties."""
        rows: dict[str, list[int]] = {}
        for name, (n, right) in ((name, counts) for p in self.parties for name, counts in p.recalled.items()):
            known = rows.setdefault(name, [0, 0])
            known[0], known[1] = known[0] + n, known[1] + right
        return sum(right / n for n, right in rows.values()) / len(rows) if rows else None

    @property
    def alone_accuracy(self) -> float | None:
        return self.other_accuracy.get("alone")

    @property
    def other_accuracy(self) -> dict[str, float | None]:
        """Of each baseline, on the same rows. A party that cannot train alone labels none of its rows right."""
        names = dict.fromkeys(name for p in self.parties for name in p.other_accuracy)
        rows = {name: [(p.other_accuracy.get(name), p.measured) for p in self.parties] for name in names}
        return {name: _mean([(0.0 if right is None and n else right, n) for right, n in each]) for name, each in rows.items()}

    @property
    def differ(self) -> dict[str, tuple[int, int]]:
        """For each baseline the rows that only the job and that only the baseline labelled right."""
        each = [(name, counts) for p in self.parties for name, counts in p.differ.items()]
        names = dict.fromkeys(name for name, _ in each)
        return {name: tuple(map(sum, zip(*(counts for other, counts in each if other == name)))) for name in names}  # type: ignore[misc]

    def __repr__(self) -> str:
        measured = {} if self.accuracy is None else dict(right="")
        rows = [dict(party=p.name, **p.counts, **{name: percent(p.accuracy) for name in measured}) for p in self.parties]
        e = self.expected
        told = f"expected accuracy {percent(e['accuracy'])}, from {e['n']} hidden labels" if e else "expected accuracy not known"
        return short_table(f"labels of {len(self)} parties, {len(self.classes)} classes; {told}", rows)


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, n) for value, n in values if value is not None]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None


# ---------------------------------------------------------------- the folder


def write(folder: str | Path, result: LabelResult, command: str = "", page: Page | None = None) -> None:
    """Write a folder per party with labels.csv, review.csv and disclosure.jsonl, and next to them result.json, messages.jsonl
    and the page."""
    write_folder(folder, summary_json(result, command), result, write_party, page)
    if result.heads is not None:
        result.heads.save(Path(folder) / HEADS)


def write_party(folder: Path, party: PartyLabels) -> None:
    folder.mkdir(parents=True)
    table: dict[str, Sequence] = dict(
        id=party.ids, label=cells(party.labels), confidence=[f"{c:.6f}" for c in party.confidence],
        abstained=[int(a) for a in party.abstained], given=cells(party.given), proposed=cells(party.proposed),
    )  # fmt: skip
    write_csv(folder / "labels.csv", table)
    known = party.known
    doubtful = [i for i in np.argsort(party.confidence, kind="stable") if not known[i]][:REVIEW]
    write_csv(folder / "review.csv", {name: [column[i] for i in doubtful] for name, column in table.items()})
    if set(party.others) - {"alone"}:
        columns = {name: cells(values) for name, values in party.others.items()}
        write_csv(folder / "baselines.csv", dict(id=party.ids, together=table["proposed"], **columns))
    write_lines(folder / "disclosure.jsonl", party.disclosure)
    if party.ledger is not None:
        party.ledger.save(folder)


def summary_json(result: LabelResult, command: str = "") -> dict[str, Any]:
    """result.json: the numbers, and what the report draws."""
    s, classes = result.settings, [str(name) for name in result.classes]
    secret = "secret and differ from run to run" if s.seed is None else "reproducible, not secret"
    per_client = [_numbers(p) for p in result]
    return dict(
        job="label", method=s.method, settings=s.agreed(), chosen=result.about, data=dict(classes=classes), classes=classes,
        seed=s.seed, rounds=1, accuracy=result.accuracy, balanced_accuracy=result.balanced_accuracy,
        alone_accuracy=result.alone_accuracy, other_accuracy=result.other_accuracy, differ=result.differ,
        expected=result.expected, remarks=result.remarks,
        recall=result.recall, two=sensitivity(result.recall), per_client=per_client,
        parties=[dict(line, name=p.name, rows=len(p.ids), **_drawn(p, classes)) for p, line in zip(result, per_client)],
        lost=result.lost, warnings=result.warnings, bytes_up=result.bytes_up, bytes_down=result.bytes_down,
        bytes_by_step=_steps(result), protocol=s.secure, seed_note=f"Hyperplanes are {secret}.", graph=_picture(result),
        seconds=round(result.seconds, 3), peak_memory_mb=peak_memory_mb(), version=__version__, command=command,
    )  # fmt: skip


def _numbers(p: PartyLabels) -> dict[str, Any]:
    c = p.counts
    return dict(id=p.name, n=c["rows"], labelled=c["given"], abstained=c["abstained"], blank=p.blank, accuracy=p.accuracy,
                alone_accuracy=p.alone_accuracy, other_accuracy=p.other_accuracy, least=p.least, verdict=p.verdict,
                words=verdict_words(p.name, p.verdict) if p.verdict is not None else "")  # fmt: skip


def _drawn(p: PartyLabels, classes: Sequence[str]) -> dict[str, Any]:
    """What the report draws of a party."""
    names, new = [str(label) for label in cells(p.labels)], p.confidence[~p.known & ~p.abstained]
    return dict(classes={name: names.count(name) for name in classes},
                confidence_histogram=np.histogram(new, HISTOGRAM, (0, 1))[0].tolist())  # fmt: skip


def _steps(result: LabelResult) -> list[dict[str, Any]]:
    """What each step sent in all, and what its replies reveal, in the words of the parties' logs."""
    told: dict[str, set[str]] = {}
    for line in (line for p in result for line in p.disclosure):
        told.setdefault(line["step"], set()).add(line["reveals"])
    return [dict(step=m["step"].removeprefix("xclp."), direction=m["direction"], bytes=m["bytes"], messages=m["messages"],
                 reveals="; ".join(sorted(told.get(m["step"], ()))) if m["direction"] == "up" else "")
            for m in result.messages]  # fmt: skip


def _picture(result: LabelResult) -> dict[str, list] | None:
    """The graph's sample in the plane, coloured by the label a row has now."""
    if result.graph is None:
        return None
    x, y = (np.round(column.astype(float), 3).tolist() for column in layout.plane(result.graph["coordinates"]).T)
    at = list(zip(result.graph["party"].tolist(), result.graph["row"].tolist()))
    labels = [result[i].labels[row] for i, row in at]
    return dict(
        x=x, y=y, cls=[None if no_label(label) else str(label) for label in labels], party=[result[i].name for i, _ in at]
    )
