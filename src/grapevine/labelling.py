"""The label job: every party's rows in, labels and confidences for its own rows out.

`label` runs it in this process on arrays, with the cryptography really run; `run` does so on parties that were read from files;
`write` leaves a folder per party. What would leave each party, and what that reveals, is `plan`'s (`--dry-run`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grapevine import __version__, wire
from grapevine.core import Client, Server
from grapevine.crypto import sums
from grapevine.crypto.hamming import protocol
from grapevine.data.rows import ClientData, Rows
from grapevine.data.tables import label_name, spelling_warnings, write_csv
from grapevine.errors import Mistake
from grapevine.methods.xclp import BINS, XCLP, Label
from grapevine.runs import peak_memory_mb
from grapevine.simulate import Simulation
from grapevine.store import Memory

REVIEW = 50  # rows in review.csv
HISTOGRAM = 20  # bins of the report's confidence histogram

SHARE = "alone nothing: uniform; with the other party's share, Hamming distances between rows of the two"
REVEALS = {
    "keys.offer": "a public key, signed by this party's identity",
    "keys.prelude": "public values of the base oblivious transfers; nothing about the rows",
    "keys.rows": "how many rows this party has",
    "keys.features": "how many features a row has",
    "keys.labels": "how many rows are labelled",
    "keys.classes": "the names of the classes this party knows",
    "meet.letters": "to the server nothing: sealed for one other party each",
    "meet.prelude": "public values of the base oblivious transfers; nothing about the rows",
    "meet.moments": "alone nothing: masked; all parties' together give the pooled counts, means and variances of the features",
    "moments.moments": "alone nothing: masked; all parties' together give the pooled counts, means and variances of the features",
    "share.own": "the Hamming distances among this party's own rows: how near its rows are to each other",
    "share.labelled": "which rows are labelled, not their labels",
    "share.blank": "which rows are zero after scaling",
    "xclp.hamming.evaluate.answers": "to the server nothing: under another party's key; to that party nothing: masked",
    "xclp.hamming.evaluate.shares": SHARE,
    "xclp.hamming.open.shares": SHARE,
    "xclp.hamming.transfer.chunks": "to the server and the receiver nothing but what they chose: masked",
    "xclp.hamming.transfer.shares": SHARE,
    "xclp.hamming.receive.requests": "nothing: masked choices",
    "xclp.hamming.receive.shares": SHARE,
    "spread.rows": "nothing: masked contributions to other parties' scores, which only the owner of the rows can open",
    "spread_again.rows": "nothing: masked contributions to other parties' scores, which only the owner of the rows can open",
    "receive.hits": "alone nothing: masked; all parties' together say how many hidden labels were found again",
}
FIRST = {
    "psm": "alone nothing: masked with a seed the server lacks; with the others', Hamming distances between rows of two parties",
    "mlwe": "nothing: lattice ciphertexts of this party's hash bits",
    "paillier": "nothing: Paillier ciphertexts of this party's hash bits",
    "ot": "nothing: masked choices",
    "plain": "EVERYTHING the hash holds: this party's bits, in the clear",
}
LEARNS = (
    "The server learns the Hamming distances between all rows (so how alike any two rows are), row counts, which rows are "
    "labelled, and the names of the classes.",
    "A party learns which rows of others lie near its own labelled rows (its columns of S), the names of all classes, and with "
    "scaling the pooled means and variances (of two parties, each thereby the other's).",
)


@dataclass(frozen=True)
class Party:
    """One party's rows as read: features (NaN: missing), class names (None: not labelled), and the truth where it is known."""

    name: str
    x: np.ndarray
    labels: list[str | None]
    ids: list[str]
    truth: list[str | None] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({label for label in self.labels if label is not None}))

    def data(self) -> ClientData:
        known = [i for i, label in enumerate(self.labels) if label is not None]
        number = {name: i for i, name in enumerate(self.classes)}
        y = torch.tensor([number[self.labels[i]] for i in known], dtype=torch.int64)
        labelled = torch.tensor(known, dtype=torch.int64)
        unlabelled = torch.tensor(sorted(set(range(len(self.labels))) - set(known)), dtype=torch.int64)
        x, none = torch.from_numpy(np.ascontiguousarray(self.x)), torch.empty(0, dtype=torch.int64)
        rest = Rows(x, unlabelled, torch.full_like(unlabelled, -1))
        return ClientData(Rows(x, labelled, y), rest, Rows(x, none, none), self.classes)


@dataclass(frozen=True)
class PartyLabels:
    """What one party, and only it, ends with: one entry per row, in the order of its rows."""

    name: str
    ids: list[str]
    labels: Any  # given or propagated; None (or −1, where labels were numbers) for an abstained row
    confidence: np.ndarray
    proba: np.ndarray
    given: list[str | None]
    proposed: list[str | None]
    abstained: np.ndarray
    blank: int = 0
    accuracy: float | None = None
    alone_accuracy: float | None = None
    disclosure: list[dict] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class LabelResult:
    """All parties' results. In one process they lie side by side; between real parties each has its own alone."""

    parties: list[PartyLabels]
    classes: tuple[str, ...]
    expected: dict[str, Any] | None
    neighbours: int
    lost: list[str]
    warnings: list[str]
    seconds: float
    bytes_up: int
    bytes_down: int
    messages: list[dict] = field(repr=False)
    method: Label = field(repr=False)
    seed: int | None = None

    def __getitem__(self, i: int) -> PartyLabels:
        return self.parties[i]

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[PartyLabels]:
        return iter(self.parties)

    @property
    def accuracy(self) -> float | None:
        """Of the propagated labels, where the truth is known, over all parties."""
        return _mean(self.parties, "accuracy")

    @property
    def alone_accuracy(self) -> float | None:
        return _mean(self.parties, "alone_accuracy")


def _mean(parties: Sequence[PartyLabels], name: str) -> float | None:
    """Weighted by the rows that were to be labelled."""
    known = [(getattr(p, name), sum(g is None for g in p.given)) for p in parties if getattr(p, name) is not None]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None


# ---------------------------------------------------------------- running


def label(
    parties: Sequence[tuple[Any, Any]], secure: str = "mlwe", bits: int = 4096, neighbours: int | str = 10, alpha: float = 0.99,
    abstain: float = 0.0, scale: str = "standard", impute: bool = False, groups: int = 1, preset: str = "paper",
    expected: bool = True, seed: int | None = None, workers: int = 2, names: Sequence[str] | None = None,
    truth: Sequence[Any] | None = None, progress: Callable | None = None,
) -> LabelResult:  # fmt: skip
    """XCLP on arrays: each party is (X, y) with y = −1 (or None) where a row is not labelled.

    >>> result = gv.label([(X_a, y_a), (X_b, y_b), (X_c, y_c)], secure="mlwe")
    >>> result[0].labels, result[0].confidence, result[0].proba
    """
    names = [f"party-{i + 1}" for i in range(len(parties))] if names is None else list(names)
    read = []
    for i, (X, y) in enumerate(parties):
        X = np.asarray(X, np.float64)
        X = X.reshape(len(X), -1)
        own = None if truth is None else [label_name(t) for t in truth[i]]
        given = [label_name(value) for value in np.asarray(y, object)]
        if len(given) != len(X):
            raise Mistake(
                f"{names[i]} has {len(X)} rows and {len(given)} labels: give one label per row, −1 where there is none."
            )
        _finite(names[i], X, impute)
        read.append(Party(names[i], X, given, [str(n + 1) for n in range(len(X))], own))
    method = make_method(secure, bits, neighbours, alpha, scale, impute, groups, preset, expected, seed)
    result = run(read, method, seed, workers, abstain, progress)
    if not all(np.issubdtype(np.asarray(y).dtype, np.integer) for _, y in parties):
        return result
    numbers = [replace(p, labels=np.array([-1 if name is None else int(name) for name in p.labels])) for p in result]
    return replace(result, parties=numbers)


def _finite(name: str, X: np.ndarray, impute: bool) -> None:
    bad = ~(np.isfinite(X) | (np.isnan(X) if impute else False))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise Mistake(
            f"{name}, row {row + 1}, column {column + 1} is {X[row, column]}: mend it, or impute=True for missing values."
        )


def make_method(secure: str, bits: int, neighbours: int | str, alpha: float, scale: str, impute: bool, groups: int, preset: str,
                expected: bool, seed: int | None) -> Label:  # fmt: skip
    """The settings that all parties agree on."""
    try:
        k = 0 if neighbours == "auto" else int(neighbours)
    except ValueError:
        raise Mistake(f"neighbours is '{neighbours}': take a whole number, or auto.") from None
    if neighbours != "auto" and k < 1:
        raise Mistake(f"neighbours is {k}: take 1 or more, or auto.")
    xclp = XCLP(protocol(secure), bits, k, alpha, preset, reproducible=seed is not None)
    return Label(xclp, scale, impute, groups, expected or k == 0)


def run(parties: Sequence[Party], method: Label, seed: int | None = None, workers: int = 2, abstain: float = 0.0,
        progress: Callable | None = None) -> LabelResult:  # fmt: skip
    """The whole job in this process: every party a client, every message accounted, every protection on."""
    notes = check(parties, method, abstain)
    began = time.perf_counter()
    disclosure: dict[str, list[dict]] = {party.name: [] for party in parties}
    data = {party.name: party.data() for party in parties}
    # What is not secret (which labels are hidden for the estimate) still needs a seed.
    simulation = Simulation(method, data, None, secrets.randbits(63) if seed is None else seed, workers=workers,
                            log=_logger(disclosure, method), progress=progress)  # fmt: skip
    server = Server(method, list(data), simulation, None, (), simulation.seed)
    try:
        method.check(server)
        state = method.round(server, method.setup(server))
    finally:
        simulation.close()
    seconds = time.perf_counter() - began
    groups = list(state["groups"].values())
    got = {name for group in groups for name in group["got_labels"].values()}
    lost = sorted(set(data) - got)
    out = []
    for party in parties:
        memory = Memory(simulation.store, simulation.manifests.get(party.name))
        client = Client(party.name, data[party.name], memory, None, simulation.seed)
        out.append(_party_labels(party, client, method, abstain, disclosure[party.name], party.name in got))
    blank = sum(p.blank for p in out)
    if blank:
        notes.append(f"{blank} rows are zero after scaling: they have no direction, so they abstain.")
    notes += [f"{name} was lost on the way and has no labels." for name in lost]
    classes = tuple(sorted({name for group in groups for name in group["classes"].values()}))
    up, down = server.account.totals["up"], server.account.totals["down"]
    return LabelResult(out, classes, _expected(groups), groups[0]["neighbours"], lost, notes, seconds, up, down,
                       server.account.drain(), method, seed)  # fmt: skip


def check(parties: Sequence[Party], method: Label, abstain: float) -> list[str]:
    """Refuse what cannot work, before anything is computed; warn of what can but should not surprise."""
    if len(parties) < 2:
        raise Mistake(f"{len(parties)} party was given: labels travel between parties, so give at least two files.")
    method.xclp.check()
    if not 0 <= abstain <= 1:
        raise Mistake(f"abstain is {abstain:g}: take a confidence between 0 and 1.")
    first = parties[0]
    for party in parties:
        if not len(party.x):
            raise Mistake(f"{party.name} has no rows: leave it out.")
        if party.x.shape[1] != first.x.shape[1]:
            here, there = party.x.shape[1], first.x.shape[1]
            raise Mistake(f"{party.name} has {here} features and {first.name} has {there}: give all parties the same columns.")
    if not any(party.classes for party in parties):
        raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")
    notes = spelling_warnings({name for party in parties for name in party.classes})
    few = sums.few(min(len(parties), len(parties) // method.groups))
    return notes + ([few] if few else [])


def _logger(disclosure: dict[str, list[dict]], method: Label) -> Callable[[str, Any, dict], None]:
    """Writes down what leaves a party, as it leaves."""

    def log(step: str, party: Any, reply: dict) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        for name, kind, shape, size in wire.fields(reply):
            digest = hashlib.sha256(wire.encode({name: reply[name]})).hexdigest()
            disclosure[party].append(dict(time=now, step=step, peer="server", field=name, type=kind, shape=shape, bytes=size,
                                          hash=digest, reveals=reveals(step, name, method)))  # fmt: skip

    return log


def reveals(step: str, name: str, method: Label) -> str:
    return FIRST[method.xclp.hamming.name] if (step, name) == ("share", "first") else REVEALS[f"{step}.{name}"]


def _party_labels(party: Party, client: Client, method: Label, abstain: float, disclosure: list[dict], got: bool) -> PartyLabels:
    """A party's result in the order of its rows. A labelled row keeps its label; the others get the propagated one or none."""
    n = len(party.labels)
    order = np.concatenate([client.data.labelled.index.numpy(), client.data.unlabelled.index.numpy()])
    if not got:
        C = len(party.classes)
        nothing = [None] * n
        return PartyLabels(party.name, party.ids, list(party.labels), np.zeros(n), np.zeros((n, C)), party.labels, nothing,
                           np.array([g is None for g in party.labels]), 0, None, None, disclosure)  # fmt: skip
    result, names = client.memory["result"], [*client.memory["classes"].values()]
    back = np.argsort(order)
    found, confidence, proba = (result[key][back] for key in ("label", "confidence", "proba"))
    proposed = [None if c < 0 else names[c] for c in found]
    given = np.array([label is not None for label in party.labels])
    abstained = ~given & ((found < 0) | (confidence < abstain))
    labels = [g if g is not None else None if a else p for g, a, p in zip(party.labels, abstained, proposed)]
    alone, _ = method.alone(client)
    own = [None if c < 0 else names[c] for c in alone[back]]
    return PartyLabels(party.name, party.ids, labels, np.where(given, 1.0, confidence), proba, party.labels, proposed, abstained,
                       int(result["blank"].sum()), _right(party, proposed), _right(party, own), disclosure)  # fmt: skip


def _right(party: Party, labels: list[str | None]) -> float | None:
    """The share of the rows that had no label, and whose truth is known, that are labelled right."""
    if party.truth is None:
        return None
    rows = [i for i, (g, t) in enumerate(zip(party.labels, party.truth)) if g is None and t is not None]
    return sum(labels[i] == party.truth[i] for i in rows) / len(rows) if rows else None


def _expected(groups: list[dict]) -> dict[str, Any] | None:
    """The estimate from hidden labels, over all groups."""
    known = [group["expected"] for group in groups if "expected" in group]
    n = sum(e["n"] for e in known)
    if not n:
        return None
    rows, hits = sum(e["rows"] for e in known), sum(e["hits"] for e in known)
    table = [dict({"from": i / BINS, "to": (i + 1) / BINS}, n=int(rows[i]), right=int(hits[i])) for i in range(BINS)]
    right, alone = sum(e["right"] for e in known), sum(e["alone"] for e in known)
    # Wilson's interval: honest also for few hidden labels and for shares near 0 or 1.
    z, p = 1.96, right / n
    middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return dict(accuracy=p, low=float(middle - half), high=float(middle + half), alone=alone / n, n=n, calibration=table)


# ---------------------------------------------------------------- what would leave


def plan(parties: Sequence[Party], method: Label, workers: int = 2) -> dict[str, Any]:
    """Before anything runs: per party what would leave it, bytes, and for all of it minutes and memory."""
    groups = [parties[i :: method.groups] for i in range(method.groups)]
    classes = len({name for party in parties for name in party.classes})
    per_party, seconds, largest = {}, 0.0, 0
    for group in groups:
        lines, cost, memory = _plan_group(group, method, classes)
        per_party.update(lines)
        seconds += cost
        largest = max(largest, memory)
    minutes = seconds / workers / 60
    advice = None
    if minutes > 60:
        advice = f"that is {minutes / 60:.1f} hours: --groups {_groups(parties, minutes)}"
        advice += (
            " or --secure psm (if the server and no party collude) take less."
            if method.xclp.hamming.name != "psm"
            else " takes less."
        )
    return dict(parties=per_party, minutes=minutes, memory_mb=largest / 2**20, advice=advice, learns=LEARNS)


def _groups(parties: Sequence[Party], minutes: float) -> int:
    """Cost falls with the number of groups: so many would bring it under half an hour, three parties to a group at least."""
    return max(2, min(int(np.ceil(minutes / 30)), len(parties) // 3))


def _plan_group(group: Sequence[Party], method: Label, classes: int) -> tuple[dict[str, list[dict]], float, int]:
    hamming, L, K = method.xclp.hamming, method.xclp.bits, len(method.xclp.candidates)
    sizes = [len(party.x) for party in group]
    n, d = sum(sizes), group[0].x.shape[1]
    solves = 2 if method.expected else 1
    lines, seconds, held = {}, 2.0, 0
    for i, party in enumerate(group):
        others = sizes[:i] + sizes[i + 1 :]
        pair = [hamming.bytes_per_pair(sizes[i], m, L) for m in others]
        first = max(p["once"] for p in pair) + sum(p["pair"] + p["server"] for p in pair) // 2
        labels = sum(label is not None for label in party.labels)
        entries = [
            ("keys", "offer", 250 + 30 * len(party.classes), "a public key, row counts and class names"),
            ("meet", "moments", 32 * 3 * d + 70 * len(others), REVEALS["meet.moments"]),
            ("share", "first", first, FIRST[hamming.name]),
            ("share", "own", 2 * sizes[i] ** 2, REVEALS["share.own"]),
            ("spread", "rows", 8 * (n - sizes[i]) * classes * solves * K, REVEALS["spread.rows"]),
            ("receive", "hits", 200, REVEALS["receive.hits"]),
        ]
        lines[party.name] = [dict(step=s, field=f, bytes=b, reveals=r) for s, f, b, r in entries]
        costs = [hamming.cpu_seconds(sizes[i], m, L) for m in others]
        seconds += max(c["once"] for c in costs) + sum(c["pair"] for c in costs) / 2
        held += first + 2 * sizes[i] ** 2 + 4 * n * labels * K
    return lines, seconds, held + 400 * 2**20


# ---------------------------------------------------------------- the folder


def write(folder: Path, result: LabelResult, command: str = "") -> None:
    """A folder per party with labels.csv, review.csv and disclosure.jsonl; result.json, messages.jsonl and report.html beside.

    Everything is written beside and moved into place at once: there is no half-written folder.
    """
    folder = Path(folder)
    beside = folder.with_name(f".writing-{os.getpid()}-{folder.name}")
    beside.mkdir(parents=True)
    try:
        for party in result:
            write_party(beside / party.name, party)
        (beside / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in result.messages))
        (beside / "result.json").write_text(json.dumps(summary_json(result), indent=1))
        from grapevine.report import write_label

        write_label(beside, report_summary(result, command))
        os.replace(beside, folder) if not folder.exists() else _fill(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _fill(beside: Path, folder: Path) -> None:
    """Into an empty folder that was there before."""
    for path in beside.iterdir():
        os.replace(path, folder / path.name)
    beside.rmdir()


def write_party(folder: Path, party: PartyLabels) -> None:
    folder.mkdir(parents=True)
    empty = lambda values: ["" if v is None or v == -1 else v for v in values]  # noqa: E731
    confidence = [f"{c:.6f}" for c in party.confidence]
    table = dict(id=party.ids, label=empty(party.labels), confidence=confidence, abstained=[int(a) for a in party.abstained],
                 given=empty(party.given), proposed=empty(party.proposed))  # fmt: skip
    write_csv(folder / "labels.csv", table)
    doubtful = [i for i in np.argsort(party.confidence, kind="stable") if party.given[i] is None][:REVIEW]
    write_csv(folder / "review.csv", {name: [column[i] for i in doubtful] for name, column in table.items()})
    (folder / "disclosure.jsonl").write_text("".join(json.dumps(line) + "\n" for line in party.disclosure))


def summary_json(result: LabelResult) -> dict[str, Any]:
    """result.json of a label job."""
    settings = result.method.settings()
    return dict(
        job="label", method="xclp", settings=settings, data=dict(classes=list(result.classes)), seed=result.seed, rounds=1,
        accuracy=result.accuracy, alone_accuracy=result.alone_accuracy, expected=result.expected, neighbours=result.neighbours,
        per_client=[dict(id=p.name, n=len(p.ids), labelled=sum(g is not None for g in p.given), abstained=int(p.abstained.sum()),
                         accuracy=p.accuracy, alone_accuracy=p.alone_accuracy) for p in result],
        lost=result.lost, warnings=result.warnings, bytes_up=result.bytes_up, bytes_down=result.bytes_down,
        seconds=round(result.seconds, 3), peak_memory_mb=peak_memory_mb(), version=__version__,
    )  # fmt: skip


def report_summary(result: LabelResult, command: str) -> dict[str, Any]:
    """What the report shows."""
    parties = []
    for p in result:
        new = [i for i, g in enumerate(p.given) if g is None]
        names = [str(label) for label in p.labels if label is not None and label != -1]
        parties.append(dict(
            name=p.name, rows=len(p.ids), labelled=len(p.ids) - len(new), abstained=int(p.abstained.sum()),
            classes={name: names.count(name) for name in result.classes},
            confidence_histogram=np.histogram(p.confidence[new], HISTOGRAM, (0, 1))[0].tolist(), accuracy=p.accuracy,
            alone_accuracy=p.alone_accuracy,
        ))  # fmt: skip
    steps = [dict(step=m["step"], direction=m["direction"], bytes=m["bytes"], messages=m["messages"],
                  reveals=_line_reveals(m, result.method)) for m in result.messages]  # fmt: skip
    xclp = result.method.xclp
    note = (
        "Hyperplanes are reproducible, not secret." if xclp.reproducible else "Hyperplanes are secret and differ from run to run."
    )
    settings = dict(
        secure=xclp.hamming.name, bits=xclp.bits, neighbours=result.neighbours, alpha=xclp.alpha, preset=xclp.preset,
        scale=result.method.scale, impute=result.method.impute, groups=result.method.groups,
    )  # fmt: skip
    return dict(parties=parties, classes=list(result.classes), expected=result.expected, settings=settings, seconds=result.seconds,
                bytes_by_step=steps, protocol=xclp.hamming.name, seed_note=note, warnings=result.warnings, graph=None,
                version=__version__, command=command)  # fmt: skip


def _line_reveals(line: dict, method: Label) -> str:
    if line["direction"] == "down":
        return ""
    return "; ".join(sorted({reveals(line["step"], name, method) for name in line["fields"]}))
