"""The result of the clean job: every party's decisions, how they compare with the truth, examples for people, and the files."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from grapevine.core.store import write_atomically
from grapevine.core.version import __version__
from grapevine.core.words import count, many, short_table
from grapevine.data import tables
from grapevine.jobs.folder import Page, Parties, cells, no_label, write_folder, write_lines
from grapevine.jobs.reading import Party
from grapevine.methods.mp_ssfl import ACTIONS, CORRECTED, EXCLUDED, Clean
from grapevine.run.folder import peak_memory_mb

SHOWN = 12  # examples of each kind and party in the report
VALUES = 6  # features told of an example
SIDE = 96  # pixels of an example's picture, at most
BINS = 24  # of the picture of loss and confidence, each way
MOST_LOSS, LEAST_LOSS, MOST_NINES = 2.0, -4.0, 4.0  # its edges: log10 of the loss, −log10 of what is missing from 1
BEFORE, AFTER = "labels right before", "labels right after"  # equal to the truth, of the rows that have a label then


@dataclass(frozen=True, repr=False)
class PartyCleaned:
    """The result of one party, which only it sees: one entry per row, in the order of its rows.

    Labels are names, or None where there is none. If all labels came as integers, they are int64 arrays with −1 for none.
    """

    name: str
    ids: list[str]
    given: Any
    labels: Any  # kept or corrected; none where the row is excluded
    action: np.ndarray  # "kept", "corrected", "excluded"
    loss: np.ndarray  # of the given label; NaN without one, ∞ for a class that the server does not know
    confidence: np.ndarray
    proposed: Any  # what the classifier says
    proba: np.ndarray  # a column for each class of the result
    measured: dict[str, dict[str, int]] | None = None  # by what: found, right, of; where the truth is known
    truth: list[str | None] | None = None
    far: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows not excluded, though far from the server's
    examples: dict[str, list[dict]] = field(default_factory=dict)
    disclosure: list[dict] = field(default_factory=list)
    flagged: np.ndarray | None = None  # which labels cleanlab takes for wrong, on this party's rows alone, where it is installed

    @property
    def counts(self) -> dict[str, int]:
        """Rows by action, and how many of the corrected ones had no label before."""
        counts = {name: int((self.action == name).sum()) for name in ACTIONS}
        new = [a == ACTIONS[CORRECTED] and no_label(g) for a, g in zip(self.action, self.given)]
        return dict(counts, labelled=int(sum(new)))

    @property
    def relevant(self) -> np.ndarray:
        """Which rows are not excluded."""
        return self.action != ACTIONS[EXCLUDED]

    @property
    def table(self) -> dict[str, int]:
        """One party in a table."""
        c = self.counts
        return {"rows": len(self.ids), "kept": c["kept"], "corrected": c["corrected"] - c["labelled"],
                "newly labelled": c["labelled"], "excluded": c["excluded"]}  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.name}: {', '.join(f'{name} {n}' for name, n in self.table.items())}"


@dataclass(frozen=True, repr=False)
class CleanResult(Parties[PartyCleaned]):
    """All parties' results."""

    parties: list[PartyCleaned]
    classes: tuple
    expected: dict[str, int]  # of rows held out at the server: n, right, sure (confidence τ or more), sure_right
    counts: dict[str, dict[str, int]]  # what the server was told; empty unless counts were asked for
    warnings: list[str]
    seconds: float
    bytes_up: int
    bytes_down: int
    messages: list[dict]
    method: Clean
    model: str
    seed: int

    @property
    def measured(self) -> dict[str, dict[str, Any]] | None:
        """Over all parties whose truth is known: by what, found, right, of, precision and recall."""
        known = [p.measured for p in self.parties if p.measured is not None]
        return scores(known) if known else None

    def __repr__(self) -> str:
        rows = [dict(party=p.name, **p.table) for p in self.parties]
        classes = many(len(self.classes), "class", "classes")
        return short_table(f"labels of {many(len(self), 'party', 'parties')} cleaned by {self.model}, {classes}", rows)


# ---------------------------------------------------------------- where the truth is known


def measure(given: Sequence, labels: Sequence, action: np.ndarray, truth: Sequence, classes: Sequence[str],
            flagged: np.ndarray | None = None) -> dict[str, dict]:  # fmt: skip
    """For each action, how many rows it found, how many of these were right, and how many there were to find.

    A row without a true class, or with one that the server does not know, is irrelevant, and only excluding it is right. A label
    counts as right before the job if it is the true class.
    """
    had = np.array([label is not None for label in given])
    relevant = np.array([true in set(classes) for true in truth], bool)
    same, hit = (np.array([a is not None and a == b for a, b in zip(values, truth)], bool) for values in (given, labels))
    kept, corrected, aside = (action == name for name in ACTIONS)
    wrong = had & relevant & ~same
    lines = {
        "wrong labels found": (corrected & had, corrected & wrong, wrong),
        "wrong labels given the true class": (corrected & had, corrected & wrong & hit, wrong),
        **({} if flagged is None else {"wrong labels found by cleanlab": (flagged, flagged & wrong, wrong)}),
        "unlabelled rows given the true class": (corrected & ~had, corrected & ~had & hit, relevant & ~had),
        "irrelevant rows excluded": (aside, aside & ~relevant, ~relevant),
        "right labels kept": (kept, kept & same & relevant, had & relevant & same),
        BEFORE: (had, had & same, had),
        AFTER: (~aside, ~aside & hit, ~aside),
    }
    return {name: dict(zip(("found", "right", "of"), (int(mask.sum()) for mask in masks))) for name, masks in lines.items()}


def scores(measured: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, Any]]:
    """Counts of several parties added up, with precision (right of found) and recall (right of what there was to find)."""
    out = {}
    for name in (name for name in measured[0] if all(name in one for one in measured)):
        found, right, of = (sum(one[name][key] for one in measured) for key in ("found", "right", "of"))
        share = dict(precision=right / found if found else None, recall=right / of if of else None)
        out[name] = dict(found=found, right=right, of=of, **share)
    return out


def findings(measured: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What was found of what there was, but not the labels before and after; and sentences on what was found though there was
    none of it, which has no precision worth a line."""
    lines = {name: m for name, m in measured.items() if (m["found"] or m["of"]) and name not in (BEFORE, AFTER)}
    none = [f"{name.capitalize()}: {count(m['found'])}, all of them by mistake, because by the truth there is nothing to find."
            for name, m in lines.items() if not m["of"]]  # fmt: skip
    return {name: m for name, m in lines.items() if m["of"]}, none


# ---------------------------------------------------------------- examples for people


def examples(party: Party, found: PartyCleaned, z: np.ndarray | None) -> dict[str, list[dict]]:
    """The labels most in doubt (corrected, by loss), the rows the classifier is least sure of (excluded, by confidence) and, in
    tables, rows that were not excluded although they lie far from the server's rows. `z`: features in the server's deviations."""
    had = np.array([label is not None for label in found.given], bool)
    corrected = np.flatnonzero((found.action == ACTIONS[CORRECTED]) & had)
    doubted = corrected[np.lexsort((-found.confidence[corrected], -found.loss[corrected]))][:SHOWN]
    aside = np.flatnonzero(~found.relevant)
    unsure = aside[np.argsort(found.confidence[aside], kind="stable")][:SHOWN]
    far = found.far if z is None else found.far[np.argsort(-np.abs(z[found.far]).max(1), kind="stable")][:SHOWN]

    def one(i: int) -> dict:
        loss = None if math.isnan(found.loss[i]) else round(float(found.loss[i]), 3) if math.isfinite(found.loss[i]) else "∞"
        return dict(id=found.ids[i], given=found.given[i], proposed=found.proposed[i], action=str(found.action[i]), loss=loss,
                    confidence=round(float(found.confidence[i]), 4), truth=None if found.truth is None else found.truth[i] or "",
                    picture=None if party.pictures is None else picture(party.pictures[i]),
                    values=[] if z is None else _values(party, i, z[i]))  # fmt: skip

    return {name: [one(int(i)) for i in rows] for name, rows in (("doubted", doubted), ("unsure", unsure), ("far", far))}


def _values(party: Party, i: int, z: np.ndarray) -> list[list]:
    """The features of a row that lie farthest from the server's means: name, value, deviations."""
    most = np.argsort(-np.abs(z), kind="stable")[:VALUES]
    value = [None if np.isnan(party.x[i, j]) else float(f"{party.x[i, j]:.5g}") for j in most]
    return [[party.columns[j].name, v, round(float(z[j]), 2)] for j, v in zip(most, value)]


def picture(x: Tensor) -> str:
    """An image (c, h, w) as a small PNG in base64."""
    pixels = x.permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


# ---------------------------------------------------------------- the folder


def write(folder: str | Path, result: CleanResult, command: str = "", page: Page | None = None) -> None:
    """Write a folder per party with cleaned.csv, suspicious.json and disclosure.jsonl, and next to them result.json,
    messages.jsonl and the page."""
    write_folder(folder, summary_json(result, command), result, write_party, page)


def write_party(folder: Path, party: PartyCleaned) -> None:
    folder.mkdir(parents=True)
    loss = ["" if math.isnan(value) else f"{value:.6f}" for value in party.loss]  # ∞ is inf
    table = dict(id=party.ids, given=cells(party.given), label=cells(party.labels), action=party.action.tolist(), loss=loss,
                 confidence=[f"{c:.6f}" for c in party.confidence])  # fmt: skip
    tables.write_csv(folder / "cleaned.csv", table)
    if party.flagged is not None:
        second: dict[str, Sequence] = {
            name: [table[name][i] for i in np.flatnonzero(party.flagged)] for name in ("id", "given", "label", "action")
        }
        tables.write_csv(folder / "cleanlab.csv", second)
    write_atomically(folder / "suspicious.json", json.dumps(party.examples, indent=1).encode(), 0o600)
    write_lines(folder / "disclosure.jsonl", party.disclosure)


def summary_json(result: CleanResult, command: str = "") -> dict[str, Any]:
    """result.json of a clean job: the numbers, and what the report draws."""
    method, measured = result.method, result.measured
    classes = [str(name) for name in result.classes]
    settings = {**method.settings(), "model": result.model}
    return dict(
        job="clean", method="mp-ssfl", settings=settings, data=dict(classes=classes), seed=result.seed, rounds=1,
        accuracy=measured and measured[AFTER]["precision"],
        accuracy_given=measured and measured[BEFORE]["precision"], measured=measured, expected=result.expected,
        told=result.counts, per_client=[party_json(p, classes) for p in result], warnings=result.warnings,
        bytes_up=result.bytes_up, bytes_down=result.bytes_down, seconds=round(result.seconds, 3), peak_memory_mb=peak_memory_mb(),
        version=__version__, command=command,
    )  # fmt: skip


def party_json(p: PartyCleaned, classes: Sequence[str]) -> dict[str, Any]:
    """One party's numbers: counts, by class too, the confusions, and the picture of loss and confidence."""
    given, new = ([str(label) for label in cells(labels)] for labels in (p.given, p.labels))
    by_class = {name: dict.fromkeys(ACTIONS, 0) for name in [*classes, *sorted({*given} - {*classes, ""}), ""]}
    for label, action in zip(given, p.action.tolist()):
        by_class[label][action] += 1
    numbers = dict(id=p.name, n=len(p.ids), **{name.replace(" ", "_"): n for name, n in p.counts.items()})
    corrected = (p.action == ACTIONS[CORRECTED]) & np.array([not no_label(g) for g in p.given], bool)
    both = None if p.flagged is None else dict(labels=sum(map(bool, given)), corrected=int(corrected.sum()),
                                               flagged=int(p.flagged.sum()), both=int((p.flagged & corrected).sum()))  # fmt: skip
    return dict(numbers, measured=p.measured and scores([p.measured]), cleanlab=both, by_class=by_class,
                given_new=_pairs(given, new),
                given_true=None if p.truth is None else _pairs(given, [t if t in set(classes) else "" for t in p.truth]),
                plane=plane(p.loss, p.confidence))  # fmt: skip


def _pairs(a: Sequence[str], b: Sequence[str | None]) -> list[list]:
    """How often each pair occurs: [a, b, n], '' for none."""
    seen: dict[tuple, int] = {}
    for pair in zip(a, b):
        seen[pair] = seen.get(pair, 0) + 1
    return [[*key, n] for key, n in sorted(seen.items())]


def plane(loss: np.ndarray, confidence: np.ndarray) -> list[list[int]]:
    """Rows by loss (0: none; BINS from low to high by log10; ∞) and confidence (BINS by −log10(1 − confidence)), as [., ., n]."""
    nines = -np.log10(np.maximum(1 - confidence, 10**-MOST_NINES))
    across = np.minimum((nines / MOST_NINES * BINS).astype(int), BINS - 1)
    with np.errstate(divide="ignore"):
        tall = (np.log10(np.maximum(loss, 10.0**LEAST_LOSS)) - LEAST_LOSS) / (MOST_LOSS - LEAST_LOSS)
    down = np.where(
        np.isnan(loss), 0, np.where(np.isinf(loss), BINS + 1, 1 + np.minimum(np.nan_to_num(tall, posinf=0) * BINS, BINS - 1))
    )
    counts = np.zeros((BINS + 2, BINS), np.int64)
    np.add.at(counts, (down.astype(int), across), 1)
    return [[int(i), int(j), int(counts[i, j])] for i, j in np.argwhere(counts)]
