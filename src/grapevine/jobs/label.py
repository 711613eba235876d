"""The label job: every party's rows in, labels and confidences for its own rows out.

`label` runs it in this process on arrays or files, with the cryptography really run; `run` does so on parties that were read;
`write` leaves a folder per party. What would leave each party, and what that reveals, is in `disclosure`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grapevine.core import Client, Server
from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.core.version import __version__
from grapevine.crypto import sums
from grapevine.crypto.hamming import protocol
from grapevine.data.tables import label_name, sort_names, spelling_warnings, write_csv
from grapevine.graph import layout
from grapevine.jobs import baselines
from grapevine.jobs.disclosure import logger, plan, reveals
from grapevine.methods.label import BINS, Label
from grapevine.methods.one_shot import labels as labels_of
from grapevine.methods.xclp import CrossClientPropagation
from grapevine.run.folder import peak_memory_mb
from grapevine.run.simulate import Simulation

REVIEW = 50  # rows in review.csv
HISTOGRAM = 20  # bins of the report's confidence histogram
FILES = ("result.json", "messages.jsonl", "report.html")  # beside the parties' folders


@dataclass(frozen=True)
class Party:
    """One party's rows as read: features (NaN: missing), class names (None: not labelled), the truth where it is known, and what
    the model that made the features would say itself."""

    name: str
    x: np.ndarray
    labels: list[str | None]
    ids: list[str]
    truth: list[str | None] | None = None
    model: list[str] | None = None

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
    """What one party, and only it, ends with: one entry per row, in the order of its rows.

    Labels are names, None where there is none; where all labels came as whole numbers, they are int64 arrays with −1 for none.
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
    alone_accuracy: float | None = None  # the same rows, labelled by this party alone
    measured: int = 0  # how many rows these are
    others: dict[str, Any] = field(default_factory=dict)  # labels by baseline: alone, nearest, gaussian, model
    other_accuracy: dict[str, float | None] = field(default_factory=dict)
    recalled: dict[str, tuple[int, int]] = field(default_factory=dict)  # by true class: rows measured, labelled right
    disclosure: list[dict] = field(default_factory=list, repr=False)

    @property
    def known(self) -> np.ndarray:
        """Which rows came with a label."""
        return np.array([not _none(label) for label in self.given], bool)


@dataclass(frozen=True)
class LabelResult:
    """All parties' results. In one process they lie side by side; between real parties each has its own alone."""

    parties: list[PartyLabels]
    classes: tuple
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
    graph: dict[str, np.ndarray] | None = field(default=None, repr=False)

    def __getitem__(self, i: int) -> PartyLabels:
        return self.parties[i]

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[PartyLabels]:
        return iter(self.parties)

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
        return _mean([(p.alone_accuracy, p.measured) for p in self.parties])

    @property
    def other_accuracy(self) -> dict[str, float | None]:
        """Of each baseline, on the same rows."""
        names = dict.fromkeys(name for p in self.parties for name in p.other_accuracy)
        return {name: _mean([(p.other_accuracy.get(name), p.measured) for p in self.parties]) for name in names}


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, n) for value, n in values if value is not None]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None


def _none(label: Any) -> bool:
    return label is None or (isinstance(label, (int, np.integer)) and label == -1)


# ---------------------------------------------------------------- running


def label(
    parties: Sequence[Any], label: str | None = None, id: str | None = None, features: Sequence[str] | None = None,
    truth: Any = None, scale: str = "standard", impute: bool = False, embed: str | None = None, secure: str = "mlwe",
    bits: int = 4096, neighbours: int | str = 10, alpha: float = 0.99, abstain: float = 0.0, groups: int = 1,
    preset: str = "code", baselines: bool = False, expected: bool = True, seed: int | None = None, workers: int = 2,
    names: Sequence[str] | None = None, out: str | Path | None = None, dry_run: bool = False, progress: Callable | None = None,
) -> LabelResult | dict[str, Any]:  # fmt: skip
    """XCLP: one-shot labels for every party's own rows.

    A party is (X, y) with y = −1 (or None, or NaN) where a row is not labelled, or the path of a file. The words are those of
    `grapevine label`: `label`, `id`, `features` and `embed` are for files; `truth` is then a column, else one array a party;
    `names` are for arrays. With `out`, everything is also left in that folder, as the command does. With `dry_run`, nothing
    runs, and what would leave each party comes back as a dict.

    >>> result = gv.label([(X_a, y_a), (X_b, y_b), (X_c, y_c)], secure="mlwe")
    >>> result[0].labels, result[0].confidence, result[0].proba
    """
    if out is not None and not dry_run:
        require_new(out)
    files = [isinstance(party, (str, Path)) for party in parties]
    if any(files) and not all(files):
        raise Mistake("some parties are files and others arrays: give all of them in one way.")
    if parties and all(files):
        from grapevine.jobs.reading import read_parties

        check_words("files", names=names)
        read = read_parties([str(path) for path in parties], label, id, features, truth, impute, embed)
        whole = False
    else:
        read = from_arrays(parties, names, truth, impute)
        if read:
            check_words("arrays", label=label, id=id, features=features, embed=embed)
        whole = all(np.asarray(y).dtype.kind in "iu" for _, y in parties)
    method = make_method(secure, bits, neighbours, alpha, scale, impute, groups, preset, expected, seed)
    if dry_run:
        notes = check(read, method, abstain)
        return dict(plan(read, method, workers, baselines), warnings=notes)
    result = run(read, method, seed, workers, abstain, progress, baselines)
    result = _whole_numbers(result) if whole else result
    if out is not None:
        write(Path(out), result)
    return result


def check_words(given: str, **words: Any) -> None:
    """A word that nobody would read, as the parties are given, is refused."""
    said = [word for word, value in words.items() if value is not None]
    if said:
        meant = "arrays" if given == "files" else "files"
        raise Mistake(f"{said[0]} is for {meant}, and the parties are {given}: leave it out, or give them as {meant}.")


def from_arrays(parties: Sequence[Any], names: Sequence[str] | None, truth: Sequence[Any] | None, impute: bool) -> list[Party]:
    names = [f"party-{i + 1}" for i in range(len(parties))] if names is None else [str(name) for name in names]
    for what, given in (("names", names), ("truth", truth)):
        if given is not None and len(given) != len(parties):
            raise Mistake(f"{what} has {len(given)} entries for {len(parties)} parties: give one for each.")
    read = []
    for i, pair in enumerate(parties):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise Mistake(f"{names[i]} is a {type(pair).__name__}: give every party as (X, y), or as the path of its file.")
        X, given = _features(names[i], pair[0], impute), [label_name(value) for value in np.asarray(pair[1], object).ravel()]
        own = None if truth is None else [label_name(t) for t in truth[i]]
        for what, values in (("labels", given), ("true labels", own)):
            if values is not None and len(values) != len(X):
                raise Mistake(f"{names[i]} has {len(X)} rows and {len(values)} {what}: give one per row, −1 where there is none.")
        read.append(Party(names[i], X, given, [str(n + 1) for n in range(len(X))], own))
    return read


def _features(name: str, X: Any, impute: bool) -> np.ndarray:
    try:
        X = np.array(X, np.float64)
    except (TypeError, ValueError):
        raise Mistake(f"{name}: X is not a table of numbers: give an array with a row for each example.") from None
    if X.ndim == 0 or 0 in X.shape:
        raise Mistake(f"{name}: X has the shape {X.shape}: give at least one row and one feature.")
    X = X.reshape(len(X), -1)
    bad = ~np.isfinite(X)
    if bad.any() and not impute:
        row, column = np.argwhere(bad)[0]
        raise Mistake(
            f"{name}, row {row + 1}, column {column + 1} is {X[row, column]}: mend it, or say impute=True for missing values."
        )
    X[bad] = np.nan
    return X


def _whole_numbers(result: LabelResult) -> LabelResult:
    """Labels that came as integers go back as integers."""

    def numbers(names: Sequence[str | None]) -> np.ndarray:
        return np.array([-1 if name is None else int(name) for name in names], np.int64)

    out = [replace(p, labels=numbers(p.labels), given=numbers(p.given), proposed=numbers(p.proposed),
                   others={name: numbers(found) for name, found in p.others.items()}) for p in result]  # fmt: skip
    return replace(result, parties=out, classes=tuple(int(name) for name in result.classes))


def make_method(secure: str, bits: int, neighbours: int | str, alpha: float, scale: str, impute: bool, groups: int, preset: str,
                expected: bool, seed: int | None) -> Label:  # fmt: skip
    """The settings that all parties agree on."""
    try:
        k = 0 if neighbours == "auto" else int(neighbours)
    except ValueError:
        raise Mistake(f"neighbours is '{neighbours}': take a whole number, or auto.") from None
    if neighbours != "auto" and k < 1:
        raise Mistake(f"neighbours is {k}: take 1 or more, or auto.")
    xclp = CrossClientPropagation(protocol(secure), bits, k, alpha, preset, reproducible=seed is not None)
    return Label(xclp, scale, impute, groups, expected or k == 0)


def run(parties: Sequence[Party], method: Label, seed: int | None = None, workers: int = 2, abstain: float = 0.0,
        progress: Callable | None = None, baselines: bool = False) -> LabelResult:  # fmt: skip
    """The whole job in this process: every party a client, every message accounted, every protection on."""
    notes = check(parties, method, abstain)
    began = time.perf_counter()
    disclosure: dict[str, list[dict]] = {party.name: [] for party in parties}
    data = {party.name: party.data() for party in parties}
    # What is not secret (which labels are hidden for the estimate) still needs a seed.
    simulation = Simulation(method, data, None, secrets.randbits(63) if seed is None else seed, workers=workers)
    simulation.log, simulation.progress = logger(disclosure, method), progress
    server = Server(method, list(data), simulation, None, (), simulation.seed)
    try:
        method.check(server)
        state = method.round(server, method.setup(server))
    finally:
        simulation.close()
    clients = {name: Client(name, data[name], Memory(simulation.store, simulation.manifests.get(name)), None, simulation.seed)
               for name in data}  # fmt: skip
    groups = list(state["groups"].values())
    got = {name for group in groups for name in group["got_labels"].values()}
    messages = server.account.drain()
    others: dict[str, dict[str, list]] = {party.name: {} for party in parties}
    if baselines and got == set(data):
        messages += _baselines(clients, method, workers, disclosure, others)
    seconds = time.perf_counter() - began
    classes = sort_names({name for group in groups for name in group["classes"].values()})
    out = [_party_labels(party, clients[party.name], method, abstain, disclosure[party.name], party.name in got, classes,
                         others[party.name]) for party in parties]  # fmt: skip
    lost = sorted(set(data) - got)
    blank = sum(p.blank for p in out)
    if blank:
        notes.append(f"{_rows(blank)} zero after scaling: without a direction there are no neighbours, so no label.")
    far = sum(int(np.sum(p.abstained & ~p.proba.any(1))) for p in out if p.name in got) - blank
    if far > 0:
        notes.append(f"{_rows(far)} reached by no label: no path of neighbours leads there, more --neighbours may.")
    notes += [f"{name} was lost on the way and has no labels." for name in lost]
    up, down = (sum(line["bytes"] for line in messages if line["direction"] == way) for way in ("up", "down"))
    return LabelResult(out, tuple(classes), _expected(groups), groups[0]["neighbours"], lost, notes, seconds, up, down,
                       _in_order(messages, disclosure), method, seed, _graph(groups[0], clients, parties))  # fmt: skip


def _rows(n: int) -> str:
    return "1 row is" if n == 1 else f"{n} rows are"


def _baselines(clients: dict[str, Client], method: Label, workers: int, disclosure: dict, others: dict) -> list[dict]:
    """Labels of every party's rows (labelled first) by the methods that this one is compared with; messages they took."""
    rows = {name: method.prepared(client) for name, client in clients.items()}
    for name, client in clients.items():
        classes = client.memory["classes"]
        near = baselines.nearest(rows[name], labels_of(client))
        others[name]["nearest"] = [None if c < 0 else classes[int(c)] for c in near]
    data = {name: client.data for name, client in clients.items()}
    seed = next(iter(clients.values())).seed
    found, messages = baselines.gaussian(rows, data, seed, workers, logger(disclosure, method, "gaussian."))
    for name, labels in found.items():
        others[name]["gaussian"] = labels
    return [dict(line, step=f"gaussian.{line['step']}") for line in messages]


def _in_order(messages: list[dict], disclosure: dict[str, list[dict]]) -> list[dict]:
    """Lines of the account in the order in which steps happened, down before up. (A step without a reply comes last.)"""
    steps = list(dict.fromkeys(line["step"] for lines in disclosure.values() for line in lines))
    place = {step: i for i, step in enumerate(steps)}
    return sorted(messages, key=lambda m: ("gaussian." in m["step"], place.get(m["step"], len(steps)), m["direction"]))


def check(parties: Sequence[Party], method: Label, abstain: float) -> list[str]:
    """Refuse what cannot work, before anything is computed; warn of what can but should not surprise."""
    if len(parties) < 2:
        many = f"{len(parties)} {'party was' if len(parties) == 1 else 'parties were'} given"
        raise Mistake(f"{many}: labels travel between parties, so give at least two.")
    if method.groups > len(parties) // 2:
        most = len(parties) // 2
        raise Mistake(f"groups is {method.groups}, and {len(parties)} parties make 1 to {most}: a group has at least two.")
    if not 0 <= abstain <= 1:
        raise Mistake(f"abstain is {abstain:g}: take a confidence between 0 and 1.")
    check_names([party.name for party in parties])
    first = parties[0]
    for party in parties:
        if not len(party.x):
            raise Mistake(f"{party.name} has no rows: leave it out.")
        if party.x.shape[1] != first.x.shape[1]:
            here, there = party.x.shape[1], first.x.shape[1]
            raise Mistake(f"{party.name} has {here} features and {first.name} has {there}: give all parties the same columns.")
    if not any(party.classes for party in parties):
        raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")
    return _warnings(parties, method)


def _warnings(parties: Sequence[Party], method: Label) -> list[str]:
    classes = sort_names({name for party in parties for name in party.classes})
    notes = spelling_warnings(classes)
    if len(classes) == 1:
        notes.append(f"every label is '{classes[0]}', so every row will get it: label rows of other classes too.")
    few = sums.few(len(parties) // method.groups)
    if few:
        notes.append(few + ".")
    n = sum(len(party.x) for party in parties) // method.groups
    if max(method.xclp.candidates) >= n:
        notes.append(f"a row has {n - 1} others and {max(method.xclp.candidates)} neighbours were asked for: all are neighbours.")
    return notes


def _party_labels(party: Party, client: Client, method: Label, abstain: float, disclosure: list[dict], got: bool,
                  classes: Sequence[str] | None = None, others: dict[str, list] | None = None) -> PartyLabels:  # fmt: skip
    """A party's result in the order of its rows. A labelled row keeps its label; the others get the propagated one or none.

    `classes` are the columns of `proba`, by default those that this party heard of; `others` are baselines, labelled rows first.
    """
    n, known = len(party.labels), np.array([label is not None for label in party.labels])
    if not got:
        return PartyLabels(party.name, party.ids, list(party.labels), known.astype(float), np.zeros((n, len(classes or ()))),
                           party.labels, [None] * n, ~known, disclosure=disclosure)  # fmt: skip
    result, names = client.memory["result"], [*client.memory["classes"].values()]
    classes = sort_names(names) if classes is None else list(classes)
    back = np.argsort(np.concatenate([client.data.labelled.index.numpy(), client.data.unlabelled.index.numpy()]))
    found, confidence, proba = (result[key][back] for key in ("label", "confidence", "proba"))
    proposed = [None if c < 0 else names[c] for c in found]
    abstained = ~known & ((found < 0) | (confidence < abstain))
    labels = [g if g is not None else None if a else p for g, a, p in zip(party.labels, abstained, proposed)]
    columns = np.zeros((n, len(classes)))
    columns[:, [classes.index(name) for name in names]] = proba
    alone, _ = method.alone(client, result["neighbours"])
    by = {"alone": [None if c < 0 else names[c] for c in alone[back]]}
    by |= {name: [values[i] for i in back] for name, values in (others or {}).items()}
    by |= {"model": party.model} if party.model else {}
    measured = _measurable(party, labels)
    right = {name: _share(party, values, measured) for name, values in by.items()}
    return PartyLabels(
        party.name, party.ids, labels, np.where(known, 1.0, confidence), columns, party.labels, proposed, abstained,
        int(result["blank"].sum()), _share(party, labels, measured), right["alone"], len(measured), by, right,
        _recalled(party, labels, measured), disclosure,
    )  # fmt: skip


def _measurable(party: Party, labels: Sequence[str | None]) -> list[int]:
    """Rows that had no label, got one, and whose truth is known."""
    if party.truth is None:
        return []
    rows = zip(party.labels, labels, party.truth)
    return [i for i, (given, new, true) in enumerate(rows) if given is None and new is not None and true is not None]


def _share(party: Party, labels: Sequence[str | None], rows: Sequence[int]) -> float | None:
    return sum(labels[i] == party.truth[i] for i in rows) / len(rows) if rows else None


def _recalled(party: Party, labels: Sequence[str | None], rows: Sequence[int]) -> dict[str, tuple[int, int]]:
    """By true class: how many of these rows, and how many of them are labelled right."""
    true = [party.truth[i] for i in rows]
    right = [party.truth[i] for i in rows if labels[i] == party.truth[i]]
    return {name: (true.count(name), right.count(name)) for name in dict.fromkeys(true)}


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


def _graph(group: dict, clients: dict[str, Client], parties: Sequence[Party]) -> dict[str, np.ndarray]:
    """The server's layout of a sample of its graph, with the owners put back: number of the party, number of its row."""
    place = {party.name: i for i, party in enumerate(parties)}
    names = list(group["rows"])
    owner = np.repeat([place[name] for name in names], list(group["rows"].values()))
    orders = [np.concatenate([c.data.labelled.index.numpy(), c.data.unlabelled.index.numpy()]) for c in map(clients.get, names)]
    sample = group["layout"]["rows"]
    return dict(party=owner[sample], row=np.concatenate(orders)[sample], coordinates=group["layout"]["coordinates"])


# ---------------------------------------------------------------- the folder


def check_names(names: Sequence[str]) -> None:
    """Of the label and the clean job: every party has a folder of its name, beside the job's own files."""
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"two parties are called '{name}': give every party a name of its own.")
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise Mistake(f"a party is called '{name}', and its folder will be: take a name without slashes.")
        if name.lower() in FILES:
            raise Mistake(f"a party is called '{name}', and its folder will be, where the job writes a file of that name: "
                          "rename the party or its file.")  # fmt: skip


def require_new(out: str | Path | None) -> None:
    """Before anything is read or computed: a place for the results that is not taken and can be written."""
    if not out:
        raise Mistake("where should the results go? Say --out DIR, a new folder.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise Mistake(f"{out} is a file: take another --out, a new folder.")
    if folder.exists() and any(folder.iterdir()):
        raise Mistake(f"{out} exists and is not empty: take another --out.")
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise Mistake(f"nothing can be written to {above}: take another --out.")


def write(folder: Path, result: LabelResult, command: str = "") -> None:
    """A folder per party with labels.csv, review.csv and disclosure.jsonl; result.json, messages.jsonl and report.html beside.

    Everything is written beside and moved into place at once: there is no half-written folder.
    """
    from grapevine.report import label as label_page

    summary = summary_json(result, command)
    with new_folder(folder, result.messages, summary) as beside:
        for party in result:
            write_party(beside / party.name, party)
        label_page.write(beside, summary)


@contextmanager
def new_folder(folder: Path, messages: Sequence[dict], summary: dict[str, Any]) -> Iterator[Path]:
    """Where a job writes its folder, with messages.jsonl and result.json in it; at the end it is moved to its place at once."""
    folder = Path(folder).absolute()
    beside = folder.with_name(f".writing-{os.getpid()}-{folder.name}")
    beside.mkdir(parents=True)
    try:
        (beside / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in messages), encoding="utf-8")
        (beside / "result.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
        yield beside
        os.replace(beside, folder) if not folder.exists() else _fill(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _fill(beside: Path, folder: Path) -> None:
    """Into an empty folder that was there before."""
    for path in sorted(beside.iterdir(), key=lambda path: path.name == "result.json"):
        os.replace(path, folder / path.name)
    beside.rmdir()


def write_party(folder: Path, party: PartyLabels) -> None:
    folder.mkdir(parents=True)

    def cells(values: Sequence) -> list:
        return ["" if _none(value) else value for value in values]

    confidence = [f"{c:.6f}" for c in party.confidence]
    table = dict(id=party.ids, label=cells(party.labels), confidence=confidence, abstained=[int(a) for a in party.abstained],
                 given=cells(party.given), proposed=cells(party.proposed))  # fmt: skip
    write_csv(folder / "labels.csv", table)
    known = party.known
    doubtful = [i for i in np.argsort(party.confidence, kind="stable") if not known[i]][:REVIEW]
    write_csv(folder / "review.csv", {name: [column[i] for i in doubtful] for name, column in table.items()})
    if set(party.others) - {"alone"}:
        columns = {name: cells(values) for name, values in party.others.items()}
        write_csv(folder / "baselines.csv", dict(id=party.ids, together=table["proposed"], **columns))
    lines = "".join(json.dumps(line) + "\n" for line in party.disclosure)
    (folder / "disclosure.jsonl").write_text(lines, encoding="utf-8")


def summary_json(result: LabelResult, command: str = "") -> dict[str, Any]:
    """result.json of a label job: the numbers, and what `grapevine report` needs to draw them."""
    about = report_summary(result, command)
    numbers = dict(
        job="label", method="xclp", data=dict(classes=[str(name) for name in result.classes]), seed=result.seed, rounds=1,
        accuracy=result.accuracy, balanced_accuracy=result.balanced_accuracy, alone_accuracy=result.alone_accuracy,
        other_accuracy=result.other_accuracy, neighbours=result.neighbours,
        per_client=[dict(id=p.name, n=len(p.ids), labelled=int(p.known.sum()), abstained=int(p.abstained.sum()), blank=p.blank,
                         accuracy=p.accuracy, alone_accuracy=p.alone_accuracy, other_accuracy=p.other_accuracy) for p in result],
        lost=result.lost, bytes_up=result.bytes_up, bytes_down=result.bytes_down, peak_memory_mb=peak_memory_mb(),
    )  # fmt: skip
    return {**numbers, **about, "seconds": round(result.seconds, 3)}


def report_summary(result: LabelResult, command: str) -> dict[str, Any]:
    """What the report shows."""
    parties = []
    for p in result:
        names = [str(label) for label in p.labels if not _none(label)]
        parties.append(dict(
            name=p.name, rows=len(p.ids), labelled=int(p.known.sum()), abstained=int(p.abstained.sum()),
            classes={str(name): names.count(str(name)) for name in result.classes},
            confidence_histogram=np.histogram(p.confidence[~p.known], HISTOGRAM, (0, 1))[0].tolist(), accuracy=p.accuracy,
            alone_accuracy=p.alone_accuracy, other_accuracy=p.other_accuracy,
        ))  # fmt: skip
    steps = [dict(step=m["step"].removeprefix("xclp."), direction=m["direction"], bytes=m["bytes"], messages=m["messages"],
                  reveals=_line_reveals(m, result.method)) for m in result.messages]  # fmt: skip
    xclp = result.method.xclp
    note = (
        "Hyperplanes are reproducible, not secret." if xclp.reproducible else "Hyperplanes are secret and differ from run to run."
    )
    k = result.neighbours if xclp.neighbours else f"auto: {result.neighbours}"
    settings = dict(
        secure=xclp.hamming.name, bits=xclp.bits, neighbours=k, alpha=xclp.alpha, preset=xclp.preset, scale=result.method.scale,
        impute=result.method.impute, groups=result.method.groups,
    )  # fmt: skip
    return dict(parties=parties, classes=[str(name) for name in result.classes], expected=result.expected, settings=settings,
                seconds=result.seconds, bytes_by_step=steps, protocol=xclp.hamming.name, seed_note=note, warnings=result.warnings,
                graph=_picture(result), version=__version__, command=command)  # fmt: skip


def _picture(result: LabelResult) -> dict[str, list] | None:
    """The graph's sample in the plane, coloured by the label a row has now."""
    if result.graph is None:
        return None
    Z = layout.plane(result.graph["coordinates"])
    at = list(zip(result.graph["party"].tolist(), result.graph["row"].tolist()))
    labels = [result[i].labels[row] for i, row in at]
    x, y = ([round(float(v), 3) for v in column] for column in Z.T)
    classes = [None if _none(label) else str(label) for label in labels]
    return dict(x=x, y=y, cls=classes, party=[result[i].name for i, _ in at])


def _line_reveals(line: dict, method: Label) -> str:
    if line["direction"] == "down":
        return ""
    return "; ".join(sorted({reveals(line["step"], name, method) for name in line["fields"]}))
