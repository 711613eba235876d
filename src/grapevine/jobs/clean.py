"""The clean job: parties' rows and a server's labelled rows in; each label kept or mended, or the row set aside.

`clean` runs it in this process on arrays or files (read by `clean_rows`); `check` refuses, `plan` says beforehand what would
travel, `run` does it and `write` leaves a folder per party. The decisions are `methods.mp_ssfl.Clean`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grapevine.core import Client, Meter, ModelSource, Server, account, wire
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.core.store import Memory
from grapevine.core.version import __version__
from grapevine.data import tables
from grapevine.jobs import label as labelling
from grapevine.jobs.clean_rows import Holding, from_arrays, read_files
from grapevine.jobs.label import check_names, check_words, require_new
from grapevine.learn import fit
from grapevine.learn import networks as models
from grapevine.methods.mp_ssfl import ACTIONS, ASIDE, KEPT, MENDED, Clean, check_epochs, check_thresholds, moments, standardised
from grapevine.run.experiment import check_head
from grapevine.run.folder import peak_memory_mb
from grapevine.run.simulate import Simulation

STEPS = 1000  # at least so many for the classifier: fewer would leave it unsure of everything
EPOCHS = 30
SHOWN = 12  # examples of each kind and party in the report
VALUES = 6  # features told of an example
FAR = 10  # deviations from the server's mean: beyond, a classifier may be sure of what it has never seen
SIDE = 96  # pixels of an example's picture, at most
BINS = 24  # of the picture of loss and confidence, each way
MOST_LOSS, LEAST_LOSS, MOST_NINES = 2.0, -4.0, 4.0  # its edges: log10 of the loss, −log10 of what is missing from 1
COUNTS = "how many rows this party kept, mended and set aside"
BEFORE, AFTER = "labels right before", "labels right after"  # equal to the truth, of the rows that have a label then
NOTHING = "nothing: an empty answer, that this party has decided"


@dataclass(frozen=True)
class PartyCleaned:
    """What one party, and only it, ends with: one entry per row, in the order of its rows.

    Labels are names, None where there is none; where all labels came as whole numbers, they are int64 arrays with −1 for none.
    """

    name: str
    ids: list[str]
    given: Any
    labels: Any  # kept or mended; none where the row is set aside
    action: np.ndarray  # "kept", "mended", "set aside"
    loss: np.ndarray  # of the given label; NaN without one, ∞ for a class that the server does not know
    confidence: np.ndarray
    proposed: Any  # what the classifier says
    proba: np.ndarray  # a column for each class of the result
    measured: dict[str, dict[str, int]] | None = None  # by what: found, right, of; where the truth is known
    truth: list[str | None] | None = field(default=None, repr=False)
    far: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # rows not set aside, though far from the server's
    examples: dict[str, list[dict]] = field(default_factory=dict, repr=False)
    disclosure: list[dict] = field(default_factory=list, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by action, and how many of the mended ones had no label before."""
        counts = {name: int((self.action == name).sum()) for name in ACTIONS}
        new = [a == ACTIONS[MENDED] and _none(g) for a, g in zip(self.action, self.given)]
        return dict(counts, labelled=int(sum(new)))

    @property
    def relevant(self) -> np.ndarray:
        """Which rows are not set aside."""
        return self.action != ACTIONS[ASIDE]


@dataclass(frozen=True)
class CleanResult:
    """All parties' results. In one process they lie side by side."""

    parties: list[PartyCleaned]
    classes: tuple
    expected: dict[str, int]  # of rows held out at the server: n, right, sure (confidence τ or more), sure_right
    counts: dict[str, dict[str, int]]  # what the server was told; empty unless counts were asked for
    warnings: list[str]
    seconds: float
    bytes_up: int
    bytes_down: int
    messages: list[dict] = field(repr=False)
    method: Clean = field(repr=False)
    model: str = ""
    seed: int = 0

    def __getitem__(self, i: int) -> PartyCleaned:
        return self.parties[i]

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[PartyCleaned]:
        return iter(self.parties)

    @property
    def measured(self) -> dict[str, dict[str, Any]] | None:
        """Over all parties whose truth is known: by what, found, right, of, precision and recall."""
        known = [p.measured for p in self.parties if p.measured is not None]
        return scores(known) if known else None


def _none(label: Any) -> bool:
    return label is None or (isinstance(label, (int, np.integer)) and label == -1)


# ---------------------------------------------------------------- running


def clean(
    parties: Sequence[Any], server: Any, label: str | None = None, id: str | None = None, features: Sequence[str] | None = None,
    truth: Any = None, scale: str = "standard", impute: bool = False, embed: str | None = None, model: str | None = None,
    epochs: int | None = None, tau: float = 0.95, upsilon: float = 0.5, counts: bool = False, seed: int = 0, workers: int = 2,
    names: Sequence[str] | None = None, out: str | Path | None = None, dry_run: bool = False, progress: Callable | None = None,
) -> CleanResult | dict[str, Any]:  # fmt: skip
    """MP-SSFL: wrong labels mended, irrelevant rows set aside, at each party by a classifier from the server's labelled rows.

    A party is (X, y) with y = −1 (or None, or NaN) where a row is not labelled, or the path of a table or of a folder of images;
    so is the server. X may be images, uint8 (n, h, w[, c]). The words are those of `grapevine clean`: `label`, `id`, `features`
    and `embed` are for files; `truth` is then a column, else one array a party; `names` are for arrays. With `out`, everything is
    also left in that folder. With `dry_run`, nothing runs, and what would travel comes back as a dict.

    >>> result = gv.clean([(X_a, y_a), (X_b, y_b)], server=(X_s, y_s))
    >>> result[0].labels, result[0].action, result[0].loss, result[0].confidence
    """
    if out is not None and not dry_run:
        require_new(out)
    files = [isinstance(party, (str, Path)) for party in (server, *parties)]
    if any(files) and not all(files):
        raise Mistake("some of the server and the parties are files and others arrays: give all of them in one way.")
    if all(files):
        check_words("files", names=names)
        own, read = read_files(server, parties, label, id, features, truth, impute, embed)
        whole = False
    else:
        own, read = from_arrays(server, parties, names, truth, impute)
        check_words("arrays", label=label, id=id, features=features, embed=embed)
        whole = all(np.asarray(y).dtype.kind in "iu" for _, y in (server, *parties))
    method = make_method(own, tau, upsilon, epochs, scale, counts, impute)
    model = model or default_model(own, embed)
    if dry_run:
        return plan(own, read, method, model, seed, workers)
    result = run(own, read, method, model, seed, workers, progress)
    result = _whole_numbers(result) if whole else result
    if out is not None:
        write(Path(out), result)
    return result


def make_method(server: Holding, tau: float = 0.95, upsilon: float = 0.5, epochs: int | None = None, scale: str = "standard",
                counts: bool = False, impute: bool = False) -> Clean:  # fmt: skip
    """The settings; without `epochs`, 30, and more for few rows: about 1000 steps at least."""
    check_thresholds("clean", tau, upsilon)
    rows = max(1, sum(label is not None for label in server.labels))
    if epochs is None:
        epochs = max(EPOCHS, math.ceil(STEPS / math.ceil(rows / Clean.batch)))
    check_epochs(epochs)
    return Clean(tau, upsilon, epochs, scale=scale, counts=counts, impute=impute)


def default_model(server: Holding, embed: str | None = None) -> str:
    """A small CNN for images; a linear layer on features of a network, which did the rest; an MLP for tables."""
    return "cnn" if server.image else "linear" if embed else "mlp"


def run(server: Holding, parties: Sequence[Holding], method: Clean, model: str, seed: int = 0, workers: int = 2,
        progress: Callable | None = None) -> CleanResult:  # fmt: skip
    """The whole job in this process: every party a client, every message accounted."""
    notes = check(server, parties, method)
    began = time.perf_counter()
    disclosure: dict[str, list[dict]] = {party.name: [] for party in parties}
    data = {party.name: party.data() for party in parties}
    rows, classes = server_rows(server)
    source = model_source(method, model, rows, len(classes), seed)
    simulation = Simulation(method, data, source, seed, workers=workers)
    simulation.log, simulation.progress = logger(disclosure), progress
    host = Server(method, list(data), simulation, source, classes, seed, data=rows)
    try:
        method.check(host)
        check_head(method, source, len(classes))
        if progress:
            progress("classifier", 0, 1)
        state = method.setup(host)
        if progress:
            progress("classifier", 1, 1)
        state = method.round(host, state)
    finally:
        simulation.close()
    memories = {name: Memory(simulation.store, simulation.manifests.get(name)) for name in data}
    scaled = (state["mean"].numpy(), state["std"].numpy()) if method.scale == "standard" else None
    out = [_party_cleaned(party, Client(party.name, data[party.name], memories[party.name], None, seed), classes, scaled,
                          disclosure[party.name]) for party in parties]  # fmt: skip
    notes += [f"{p.name} has nothing relevant: all of its {len(p.ids)} rows were set aside, no training can use it."
              for p in out if not p.relevant.any()]  # fmt: skip
    notes += far_notes(out)
    notes += doubts(state["expected"], method)
    messages = host.account.drain()
    up, down = (sum(line["bytes"] for line in messages if line["direction"] == way) for way in ("up", "down"))
    return CleanResult(out, classes, state["expected"], state["counts"], notes, time.perf_counter() - began, up, down, messages,
                       method, model, seed)  # fmt: skip


def server_rows(server: Holding) -> tuple[Rows, tuple[str, ...]]:
    """The server's labelled rows, and its classes in order."""
    classes = tuple(tables.sort_names(server.classes))
    number = {name: i for i, name in enumerate(classes)}
    known = [i for i, label in enumerate(server.labels) if label is not None]
    y = torch.tensor([number[server.labels[i]] for i in known], dtype=torch.int64)
    return Rows(torch.as_tensor(server.x), torch.tensor(known, dtype=torch.int64), y), classes


def model_source(method: Clean, model: str, rows: Rows, classes: int, seed: int) -> ModelSource:
    shape = tuple(rows.x.shape[1:])
    return ModelSource(lambda: method.network(models.build(model, shape, classes, None, seed)), torch.zeros(1, *shape))


def logger(lines: dict[str, list[dict]]) -> Callable[[str, Any, dict], None]:
    """Writes down what leaves a party, as it leaves: the counts, or that it was nothing."""

    def log(step: str, party: Any, reply: dict) -> None:
        sent = list(account.fields(reply)) or [("", "dict", [0], 0)]
        for name, kind, shape, size in sent:
            digest = wire.digest(wire.encode({name: reply[name]} if name else {}))
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            lines[party].append(dict(time=now, step=step, peer="server", field=name, type=kind, shape=shape, bytes=size,
                                     hash=digest, reveals=COUNTS if name else NOTHING))  # fmt: skip

    return log


def doubts(expected: dict[str, int], method: Clean) -> list[str]:
    """What the server's own held-out rows say against trusting its classifier."""
    n, sure = expected["n"], expected["sure"]
    if not n:
        return ["how far to trust the classifier is not known: the server has too few rows to hold some out."]
    notes = []
    if sure < n / 2:
        notes.append(f"the classifier is sure of only {sure} of {n} held-out rows of the server, so many relevant rows are set "
                     f"aside: more server rows, more --epochs or a lower --tau than {method.tau:g} help.")  # fmt: skip
    if sure and expected["sure_right"] < 0.9 * sure:
        wrong = sure - expected["sure_right"]
        notes.append(f"of {sure} held-out rows that the classifier was sure of, {wrong} were wrong: mended labels will be too; "
                     "more server rows or a higher --tau help.")  # fmt: skip
    return notes


def _party_cleaned(party: Holding, client: Client, classes: Sequence[str], scaled: tuple[np.ndarray, np.ndarray] | None,
                   disclosure: list[dict]) -> PartyCleaned:  # fmt: skip
    """A party's decisions in the order of its rows."""
    found = client.memory["decided"]
    back = torch.argsort(torch.cat([client.data.labelled.index, client.data.unlabelled.index]))
    code, loss, confidence, proba = (found[name][back].numpy() for name in ("action", "loss", "confidence", "proba"))
    proposed = [classes[c] for c in proba.argmax(1)]
    chosen = zip(code.tolist(), party.labels, proposed)
    labels = [given if a == KEPT else said if a == MENDED else None for a, given, said in chosen]
    action = np.array(ACTIONS)[code]
    measured = None if party.truth is None else measure(party.labels, labels, action, party.truth, classes)
    out = PartyCleaned(party.name, party.ids, party.labels, labels, action, loss.astype(float), confidence.astype(float),
                       proposed, proba, measured, party.truth, _far(party, code, scaled), {}, disclosure)  # fmt: skip
    return replace(out, examples=examples(party, out, scaled))


def _far(party: Holding, code: np.ndarray, scaled: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    if scaled is None or not party.columns:
        return np.empty(0, np.int64)
    z = np.nan_to_num(np.abs(party.x - scaled[0]) / scaled[1])
    return np.flatnonzero((z > FAR).any(1) & (code != ASIDE))


def far_notes(parties: Sequence[PartyCleaned]) -> list[str]:
    far = [f"{p.name} ({len(p.far)})" for p in parties if len(p.far)]
    told = (
        f"some rows are more than {FAR} deviations from a mean of the server and were not set aside: {_some(far, quote='')}; a "
    )
    return [told + "classifier can be sure of what it has never seen, so look at them."] if far else []


def _whole_numbers(result: CleanResult) -> CleanResult:
    """Labels that came as integers go back as integers."""

    def numbers(names: Sequence[str | None]) -> np.ndarray:
        return np.array([-1 if name is None else int(name) for name in names], np.int64)

    out = [replace(p, labels=numbers(p.labels), given=numbers(p.given), proposed=numbers(p.proposed)) for p in result]
    return replace(result, parties=out, classes=tuple(int(name) for name in result.classes))


# ---------------------------------------------------------------- where the truth is known


def measure(given: Sequence, labels: Sequence, action: np.ndarray, truth: Sequence, classes: Sequence[str]) -> dict[str, dict]:
    """For each action, how many rows it found, how many of these rightly, and how many there were to find.

    A row without a true class, or with one that the server does not know, is irrelevant: setting it aside is right, and
    nothing else is. Whether its label was right before is another matter: a label is right if it is the true class.
    """
    had = np.array([label is not None for label in given])
    relevant = np.array([true in set(classes) for true in truth], bool)
    same, hit = (np.array([a is not None and a == b for a, b in zip(values, truth)], bool) for values in (given, labels))
    kept, mended, aside = (action == name for name in ACTIONS)
    wrong = had & relevant & ~same
    lines = {
        "wrong labels found": (mended & had, mended & wrong, wrong),
        "wrong labels mended rightly": (mended & had, mended & wrong & hit, wrong),
        "unlabelled rows labelled rightly": (mended & ~had, mended & ~had & hit, relevant & ~had),
        "irrelevant rows set aside": (aside, aside & ~relevant, ~relevant),
        "right labels kept": (kept, kept & same & relevant, had & relevant & same),
        BEFORE: (had, had & same, had),
        AFTER: (~aside, ~aside & hit, ~aside),
    }
    return {name: dict(zip(("found", "right", "of"), (int(mask.sum()) for mask in masks))) for name, masks in lines.items()}


def scores(measured: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, Any]]:
    """Counts of several parties added up, with precision (right of found) and recall (right of what there was to find)."""
    out = {}
    for name in measured[0]:
        found, right, of = (sum(one[name][key] for one in measured) for key in ("found", "right", "of"))
        share = dict(precision=right / found if found else None, recall=right / of if of else None)
        out[name] = dict(found=found, right=right, of=of, **share)
    return out


# ---------------------------------------------------------------- beforehand


def check(server: Holding, parties: Sequence[Holding], method: Clean) -> list[str]:
    """Refuse what cannot work, before anything is computed; warn of what can but should not surprise."""
    if not parties:
        raise Mistake("no party was given: give at least one whose labels are to be cleaned.")
    check_names([party.name for party in parties])
    if not server.classes:
        raise Mistake("the server has no labelled row: its labels are what the parties' are measured by.")
    if len(server.classes) == 1:
        raise Mistake(f"every label of the server is '{server.classes[0]}': its classifier needs rows of two classes at least.")
    notes = tables.spelling_warnings(tables.sort_names({name for h in (server, *parties) for name in h.classes}))
    left = sum(label is None for label in server.labels)
    if left:
        notes.append(
            f"{left} of the server's rows {'has' if left == 1 else 'have'} no label and {'is' if left == 1 else 'are'} not used."
        )
    few = [name for name in server.classes if sum(label == name for label in server.labels) < 5]
    if few:
        notes.append(f"the server has fewer than 5 rows of {_some(few)}: the classifier will hardly know what they look like.")
    strange = tables.sort_names({name for party in parties for name in party.classes} - set(server.classes))
    if strange:
        notes.append(f"the server does not know {_some(strange)}: such a label has an infinite loss, and the row is mended if "
                     "the classifier is sure of another class, else set aside.")  # fmt: skip
    for party in parties:
        if (
            party.x.shape == server.x.shape
            and party.ids == server.ids
            and np.array_equal(party.x, server.x, equal_nan=not party.image)
        ):
            notes.append(f"{party.name} holds the server's rows: a classifier is always sure of what it was trained on, so what "
                         "it says of them means nothing.")  # fmt: skip
    if method.scale == "standard" and not server.image:
        rows, _ = server_rows(server)
        still = int(torch.isinf(moments(rows.x[rows.index], "standard")[1]).sum())
        if still:
            notes.append(f"{still} of {server.x.shape[1]} features never change in the server's rows, and are left out.")
    return notes


def _some(names: Sequence[str], most: int = 5, quote: str = "'") -> str:
    told = ", ".join(f"{quote}{name}{quote}" for name in names[:most])
    return told + (f" and {len(names) - most} more" if len(names) > most else "")


def plan(
    server: Holding, parties: Sequence[Holding], method: Clean, model: str, seed: int = 0, workers: int = 2
) -> dict[str, Any]:
    """Before anything runs: what would go to each party and come back, in bytes, what it reveals, and the minutes it takes."""
    notes = check(server, parties, method)
    rows, classes = server_rows(server)
    source = model_source(method, model, rows, len(classes), seed)
    check_head(method, source, len(classes))
    own = rows.x[rows.index]
    fill, (mean, std) = method.fill(own), moments(own, method.scale)
    network = source.new(None, Meter())
    message = dict(classifier=network.state(), classes=dict(enumerate(classes)), fill=fill, mean=mean, std=std)
    reveals = dict(classifier="what a model tells of the rows it was trained on", classes="the names of the server's classes",
                   fill="the means of the server's features, for missing values" if method.impute else "nothing: empty",
                   mean="the means of the server's features" if method.scale == "standard" else "nothing: zeros",
                   std="their deviations" if method.scale == "standard" else "nothing: ones")  # fmt: skip
    down = [dict(field=name, bytes=size, reveals=reveals[name]) for name, _, _, size in account.fields(message)]
    reply = dict(counts=dict.fromkeys(ACTIONS, 0))
    up = [dict(step="decide", field=name, bytes=size, reveals=COUNTS) for name, _, _, size in account.fields(reply)]
    up = up if method.counts else [dict(step="decide", field="", bytes=0, reveals=NOTHING)]
    seconds = _seconds(network, standardised(rows, fill, mean, std), method, sum(len(party.labels) for party in parties), workers)
    also = ", the means and the deviations of the server's features" if method.scale == "standard" else \
        ", the means of the server's features" if method.impute else ""  # fmt: skip
    learns = [f"A party learns the classifier, the class names{also}: who has a model can try to guess its training rows.",
              "The server learns " + (f"{COUNTS.replace('this', 'each')}, and nothing else." if method.counts else
                                      "nothing about any party's rows, nor how many there are."),
              "Parties learn nothing of each other."]  # fmt: skip
    return dict(server=down, parties={party.name: up for party in parties}, learns=learns, minutes=seconds / 60, model=model,
                parameters=models.parameter_count(network), epochs=method.epochs, rows=len(rows), warnings=notes)  # fmt: skip


def _seconds(network: models.Network, rows: Rows, method: Clean, theirs: int, workers: int) -> float:
    """A few steps of training and one prediction, timed on a part of the rows."""
    torch.set_num_threads(1)  # as the job itself does
    some = rows.take(torch.arange(min(len(rows), 5 * method.batch)))
    fit(network, some, 1e-6, 1, torch.Generator().manual_seed(0), method.batch)  # the first steps of a process take longer
    began = time.perf_counter()
    steps = fit(network, some, 1e-6, 2, torch.Generator().manual_seed(0), method.batch)
    a_step, began = (time.perf_counter() - began) / steps, time.perf_counter()
    with torch.no_grad():
        network.eval()(some.inputs())
    a_row = (time.perf_counter() - began) / len(some)
    trained = 1.8 * method.epochs * math.ceil(len(rows) / method.batch)  # once on all rows, once on four fifths
    return trained * a_step + theirs * a_row / workers + 2.0


# ---------------------------------------------------------------- examples for people


def examples(party: Holding, found: PartyCleaned, scaled: tuple[np.ndarray, np.ndarray] | None) -> dict[str, list[dict]]:
    """Labels most in doubt (mended, by loss); rows of which the classifier knows least (set aside, by confidence); and of tables,
    rows that are not set aside though they lie far from everything at the server."""
    had = np.array([label is not None for label in found.given], bool)
    mended = np.flatnonzero((found.action == ACTIONS[MENDED]) & had)
    doubted = mended[np.lexsort((-found.confidence[mended], -found.loss[mended]))][:SHOWN]
    aside = np.flatnonzero(~found.relevant)
    unsure = aside[np.argsort(found.confidence[aside], kind="stable")][:SHOWN]
    z = np.nan_to_num((party.x - scaled[0]) / scaled[1]) if scaled and party.columns else None
    far = [] if z is None else found.far[np.argsort(-np.abs(z[found.far]).max(1), kind="stable")][:SHOWN]

    def one(i: int) -> dict:
        loss = None if math.isnan(found.loss[i]) else round(float(found.loss[i]), 3) if math.isfinite(found.loss[i]) else "∞"
        return dict(id=found.ids[i], given=found.given[i], proposed=found.proposed[i], action=str(found.action[i]), loss=loss,
                    confidence=round(float(found.confidence[i]), 4), truth=None if found.truth is None else found.truth[i] or "",
                    picture=None if party.pictures is None else picture(party.pictures[i]),
                    values=[] if z is None else _values(party, i, z[i]))  # fmt: skip

    return {name: [one(int(i)) for i in rows] for name, rows in (("doubted", doubted), ("unsure", unsure), ("far", far))}


def _values(party: Holding, i: int, z: np.ndarray) -> list[list]:
    """The features of a row that lie farthest from the server's means: name, value, deviations."""
    most = np.argsort(-np.abs(z), kind="stable")[:VALUES]
    value = [None if np.isnan(party.x[i, j]) else float(f"{party.x[i, j]:.5g}") for j in most]
    return [[party.columns[j], v, round(float(z[j]), 2)] for j, v in zip(most, value)]


def picture(x: Tensor) -> str:
    """An image (c, h, w) as a small PNG in base64."""
    pixels = x.permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


# ---------------------------------------------------------------- the folder


def write(folder: Path, result: CleanResult, command: str = "") -> None:
    """A folder per party with cleaned.csv, suspicious.json and disclosure.jsonl; result.json, messages.jsonl, report.html beside.

    Everything is written beside and moved into place at once: there is no half-written folder.
    """
    from grapevine.report.clean import write_clean

    summary = summary_json(result, command)
    with labelling.new_folder(folder, result.messages, summary) as beside:
        for party in result:
            _write_party(beside / party.name, party)
        write_clean(beside, summary)


def _write_party(folder: Path, party: PartyCleaned) -> None:
    folder.mkdir(parents=True)
    given, labels = (["" if _none(value) else value for value in values] for values in (party.given, party.labels))
    loss = ["" if math.isnan(value) else f"{value:.6f}" for value in party.loss]  # ∞ is inf
    table = dict(id=party.ids, given=given, label=labels, action=party.action.tolist(), loss=loss,
                 confidence=[f"{c:.6f}" for c in party.confidence])  # fmt: skip
    tables.write_csv(folder / "cleaned.csv", table)
    (folder / "suspicious.json").write_text(json.dumps(party.examples, indent=1), encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in party.disclosure)
    (folder / "disclosure.jsonl").write_text(lines, encoding="utf-8")


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
    given = [None if _none(label) else str(label) for label in p.given]
    new = [None if _none(label) else str(label) for label in p.labels]
    by_class = {
        name: dict.fromkeys(ACTIONS, 0) for name in [*classes, *sorted({g for g in given if g is not None} - {*classes}), ""]
    }
    for label, action in zip(given, p.action.tolist()):
        by_class[label or ""][action] += 1
    numbers = dict(id=p.name, n=len(p.ids), **{name.replace(" ", "_"): n for name, n in p.counts.items()})
    return dict(numbers, measured=p.measured and scores([p.measured]), by_class=by_class, given_new=_pairs(given, new),
                given_true=None if p.truth is None else _pairs(given, [t if t in set(classes) else None for t in p.truth]),
                plane=plane(p.loss, p.confidence))  # fmt: skip


def _pairs(a: Sequence[str | None], b: Sequence[str | None]) -> list[list]:
    """How often each pair occurs: [a, b, n], '' for none."""
    seen: dict[tuple[str, str], int] = {}
    for pair in zip(a, b):
        key = tuple("" if name is None else name for name in pair)
        seen[key] = seen.get(key, 0) + 1
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
