"""The clean job: from parties' rows and a server's labelled rows, each label is kept or corrected, or the row is excluded.

`clean` runs it in this process: `check` refuses bad input, `plan` says what would be sent, and `run` does the work.
`methods.mp_ssfl.Clean` makes the decisions, and `clean_result` holds the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grapevine.core import Client, Meter, account
from grapevine.core.errors import Mistake
from grapevine.core.rows import Rows
from grapevine.core.words import count, some
from grapevine.data import tables
from grapevine.jobs import clean_result
from grapevine.jobs.clean_result import CleanResult, PartyCleaned, examples, measure
from grapevine.jobs.folder import Page, check_names, require_new, sent, whole_numbers
from grapevine.jobs.label_party import order
from grapevine.jobs.process import Host, Progress, run_once
from grapevine.jobs.reading import Party, read
from grapevine.jobs.second_opinion import flagged
from grapevine.jobs.settings import CleanSettings
from grapevine.learn import fit
from grapevine.learn.networks import Network, parameter_count
from grapevine.methods.mp_ssfl import ACTIONS, CORRECTED, EXCLUDED, KEPT, Clean, moments, standardised
from grapevine.run.experiment import check_head
from grapevine.run.model import model_source

STEPS = 1000  # at least so many for the classifier: fewer would leave it unsure of everything
EPOCHS = 30
FAR = 10  # deviations from the server's mean: beyond, a classifier may be sure of what it has never seen
COUNTS = "how many rows this party kept, corrected and excluded"
NOTHING = "nothing: an empty answer, that this party has decided"


def clean(parties: Sequence[Any], server: Any, s: CleanSettings, names: Sequence[str] | None = None,
          out: str | Path | None = None, dry_run: bool = False, progress: Progress | None = None, command: str = "",
          page: Page | None = None) -> CleanResult | dict[str, Any]:  # fmt: skip
    """Read, check, run and write; with `dry_run`, only say what would be sent. See `gv.clean`."""
    if out is not None and not dry_run:
        require_new(out)
    (own, *rows), whole = read(s, parties, names, server)
    if dry_run:
        return plan(own, rows, s)
    result = run(own, rows, s, progress)
    result = whole_numbers(result, "labels", "given", "proposed") if whole else result
    if out is not None:
        clean_result.write(out, result, command, page)
    return result


def make_method(s: CleanSettings, server: Party) -> Clean:
    """Without `epochs`, 30 epochs, or more for few rows to make about 1000 steps."""
    rows = max(1, sum(label is not None for label in server.labels))
    epochs = s.epochs or max(EPOCHS, math.ceil(STEPS / math.ceil(rows / Clean.batch)))
    return Clean(s.tau, s.upsilon, epochs, scale=s.scale, counts=s.counts, impute=s.impute)


def model_name(s: CleanSettings, server: Party) -> str:
    """A small CNN for images; a linear layer on features of a network, which did the rest; an MLP for tables."""
    return s.model or ("cnn" if server.image else "linear" if s.embed else "mlp")


def make_host(s: CleanSettings, server: Party, method: Clean) -> Host:
    """The server's labelled rows, its classes in order, and its networks."""
    classes = tuple(tables.sort_names(server.classes))
    rows = server.labelled(classes).tensors()
    source = model_source(method, model_name(s, server), tuple(rows.x.shape[1:]), len(classes), seed=s.seed)
    check_head(method, source, len(classes))
    return Host(rows, classes, source)


# ---------------------------------------------------------------- running


def run(server: Party, parties: Sequence[Party], s: CleanSettings, progress: Progress | None = None) -> CleanResult:
    """The job on parties that were read."""
    method = make_method(s, server)
    notes = check(server, parties, method)
    host = make_host(s, server, method)
    ran = run_once(method, parties, s.seed, s.workers, progress, host)
    state = ran.state
    scaled = (state["mean"].numpy(), state["std"].numpy()) if method.scale == "standard" else None
    found = [party_cleaned(party, ran.clients[party.name], host.classes, scaled, ran.disclosure[party.name]) for party in parties]
    notes += [f"{p.name} has nothing relevant: all of its {count(len(p.ids))} rows were excluded, so training cannot use it."
              for p in found if not p.relevant.any()]  # fmt: skip
    notes += _far_notes(found) + _doubts(state["expected"], method)
    return CleanResult(
        found, host.classes, state["expected"], state["counts"], notes, ran.seconds, messages=ran.messages, method=method,
        model=model_name(s, server), seed=s.seed, **sent(ran.messages),
    )  # fmt: skip


def party_cleaned(party: Party, client: Client, classes: Sequence[str], scaled: tuple[np.ndarray, np.ndarray] | None,
                   disclosure: list[dict]) -> PartyCleaned:  # fmt: skip
    """A party's decisions in the order of its rows."""
    found = client.memory["decided"]
    back = torch.from_numpy(np.argsort(order(client)))
    code, loss, confidence, proba = (found[name][back].numpy() for name in ("action", "loss", "confidence", "proba"))
    proposed = [classes[c] for c in proba.argmax(1)]
    chosen = zip(code.tolist(), party.labels, proposed)
    labels = [given if a == KEPT else said if a == CORRECTED else None for a, given, said in chosen]
    action = np.array(ACTIONS)[code]
    second = flagged(party)
    measured = None if party.truth is None else measure(party.labels, labels, action, party.truth, classes, second)
    z = np.nan_to_num((party.x - scaled[0]) / scaled[1]) if scaled and party.columns else None
    far = np.empty(0, np.int64) if z is None else np.flatnonzero((np.abs(z) > FAR).any(1) & (code != EXCLUDED))
    out = PartyCleaned(party.name, party.ids, party.labels, labels, action, loss.astype(float), confidence.astype(float),
                       proposed, proba, measured, party.truth, far, {}, disclosure, second)  # fmt: skip
    return replace(out, examples=examples(party, out, z))


def _doubts(expected: dict[str, int], method: Clean) -> list[str]:
    """Warnings about the classifier, from the server's held-out rows."""
    n, sure = expected["n"], expected["sure"]
    if not n:
        return ["the classifier could not be checked, since the server has too few rows to hold some out."]
    notes = []
    if sure < n / 2:
        notes.append(f"the classifier is sure of only {sure} of {n} held-out rows of the server, so many relevant rows are "
                     f"excluded: more server rows, more --epochs or a lower --tau than {method.tau:g} help.")  # fmt: skip
    if sure and expected["sure_right"] < 0.9 * sure:
        wrong = sure - expected["sure_right"]
        notes.append(f"of {sure} held-out rows the classifier was sure of, {wrong} were wrong, so some corrected labels will be "
                     "too; more server rows or a higher --tau will help.")  # fmt: skip
    return notes


def _far_notes(parties: Sequence[PartyCleaned]) -> list[str]:
    far = [f"{p.name} ({len(p.far)})" for p in parties if len(p.far)]
    told = f"some rows are more than {FAR} deviations from a mean of the server and were not excluded: {some(far)}; a "
    return [told + "classifier can be sure of what it has never seen, so look at them."] if far else []


# ---------------------------------------------------------------- beforehand


def check(server: Party, parties: Sequence[Party], method: Clean) -> list[str]:
    """Refuse what cannot work before anything is computed, and warn about the rest."""
    if not parties:
        raise Mistake("no party was given: name at least one whose labels should be cleaned.")
    check_names([party.name for party in parties])
    if not server.classes:
        raise Mistake("the server has no labelled row: give it some, since the parties' labels are checked against them.")
    if len(server.classes) == 1:
        raise Mistake(f"every label of the server is '{server.classes[0]}': its classifier needs rows of at least two classes.")
    theirs = {name for party in parties for name in party.classes}
    notes = tables.spelling_warnings(tables.sort_names(theirs | set(server.classes)))
    left = sum(label is None for label in server.labels)
    if left:
        notes.append(
            f"{left} of the server's rows {'has' if left == 1 else 'have'} no label and {'is' if left == 1 else 'are'} not used."
        )
    few = [f"'{name}'" for name in server.classes if server.labels.count(name) < 5]
    if few:
        notes.append(f"the server has fewer than 5 rows of {some(few)}: the classifier will hardly recognise them.")
    strange = [f"'{name}'" for name in tables.sort_names(theirs - set(server.classes))]
    if strange:
        notes.append(f"the server does not know {some(strange)}: such a label has an infinite loss, and the row is corrected if "
                     "the classifier is sure of another class, else excluded.")  # fmt: skip
    return notes + _odd_rows(server, parties, method)


def _odd_rows(server: Party, parties: Sequence[Party], method: Clean) -> list[str]:
    notes = [f"{party.name} holds the server's rows: a classifier is always sure of what it was trained on, so what it says of "
             "them means nothing." for party in parties if party.ids == server.ids and party.x.shape == server.x.shape
             and np.array_equal(party.x, server.x, equal_nan=not party.image)]  # fmt: skip
    if method.scale == "standard" and not server.image:
        rows = server.labelled(server.classes).tensors()
        still = int(torch.isinf(moments(rows.x[rows.index], "standard")[1]).sum())
        if still:
            notes.append(f"{still} of {server.x.shape[1]} features never change in the server's rows, so they are left out.")
    return notes


def plan(server: Party, parties: Sequence[Party], s: CleanSettings) -> dict[str, Any]:
    """Before anything runs: what would go to each party and come back, in bytes, what it reveals, and how long it takes."""
    method = make_method(s, server)
    notes = check(server, parties, method)
    host = make_host(s, server, method)
    assert host.rows is not None and host.models is not None
    own = host.rows.x[host.rows.index]
    fill, (mean, std) = method.fill(own), moments(own, method.scale)
    network = host.models.new(None, Meter())
    message = dict(classifier=network.state(), classes=dict(enumerate(host.classes)), fill=fill, mean=mean, std=std)
    told = _reveals(method)
    down = [dict(field=name, bytes=size, reveals=told[name]) for name, _, _, size in account.fields(message)]
    reply = dict(counts=dict.fromkeys(ACTIONS, 0))
    up = [dict(step="decide", field=name, bytes=size, reveals=COUNTS) for name, _, _, size in account.fields(reply)]
    up = up if method.counts else [dict(step="decide", field="", bytes=0, reveals=NOTHING)]
    rows = sum(len(party.labels) for party in parties)
    seconds = _seconds(network, standardised(host.rows, fill, mean, std), method, rows, s.workers)
    return dict(server=down, parties={party.name: up for party in parties}, learns=_learns(method), minutes=seconds / 60,
                model=model_name(s, server), parameters=parameter_count(network), epochs=method.epochs,
                rows=len(host.rows), warnings=notes)  # fmt: skip


def _reveals(method: Clean) -> dict[str, str]:
    """What the server's message tells a party of the server's rows."""
    scaled = method.scale == "standard"
    return dict(
        classifier="what a model tells of the rows it was trained on", classes="the names of the server's classes",
        fill="the means of the server's features, for missing values" if method.impute else "nothing: empty",
        mean="the means of the server's features" if scaled else "nothing: zeros",
        std="their deviations" if scaled else "nothing: ones",
    )  # fmt: skip


def _learns(method: Clean) -> list[str]:
    """What each side knows at the end."""
    also = ", the means and the deviations of the server's features" if method.scale == "standard" else \
        ", the means of the server's features" if method.impute else ""  # fmt: skip
    return [
        f"A party learns the classifier, the class names{also}: whoever has a model can try to guess its training rows.",
        f"The server learns {COUNTS.replace('this', 'each')}, and nothing else."
        if method.counts
        else "The server learns nothing about any party's rows, nor how many there are.",
        "Parties learn nothing of each other.",
    ]


def _seconds(network: Network, rows: Rows, method: Clean, theirs: int, workers: int) -> float:
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
