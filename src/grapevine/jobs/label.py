"""The label job: every party's rows in, labels and confidences for its own rows out.

`label` is the whole of it in this process, with the cryptography really run; `run` does it on parties that were read. What would
leave each party, and what that reveals, is in `disclosure`; what is left at the end in `label_result`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.crypto import spread, sums
from grapevine.crypto.hamming import protocol
from grapevine.data.tables import sort_names, spelling_warnings
from grapevine.jobs import baselines, label_result
from grapevine.jobs.disclosure import plan
from grapevine.jobs.folder import Page, check_names, require_new, sent, whole_numbers
from grapevine.jobs.label_result import LabelResult, PartyLabels
from grapevine.jobs.process import Progress, run_once
from grapevine.jobs.reading import Party, read
from grapevine.jobs.settings import LabelSettings
from grapevine.methods.label import BINS, Label
from grapevine.methods.xclp import CrossClientPropagation


def label(parties: Sequence[Any], s: LabelSettings, names: Sequence[str] | None = None, out: str | Path | None = None,
          dry_run: bool = False, progress: Progress | None = None, command: str = "",
          page: Page | None = None) -> LabelResult | dict[str, Any]:  # fmt: skip
    """Read, check, run and write; with `dry_run` only say what would leave each party. See `gv.label`."""
    if out is not None and not dry_run:
        require_new(out)
    rows, whole = read(s, parties, names)
    if dry_run:
        method = make_method(s)
        notes = check(rows, method)
        return dict(plan(rows, method, s.workers, s.baselines), warnings=notes)
    result = run(rows, s, progress)
    result = whole_numbers(result, "labels", "given", "proposed", "others") if whole else result
    if out is not None:
        label_result.write(out, result, command, page)
    return result


def make_method(s: LabelSettings) -> Label:
    """What all parties agree on, as a method. 0 neighbours: several are tried."""
    k = 0 if s.neighbours == "auto" else int(s.neighbours)
    xclp = CrossClientPropagation(protocol(s.secure), s.bits, k, s.alpha, s.preset, s.seed is not None, spread.protocol(s.spread))
    return Label(xclp, s.scale, s.impute, s.groups)


def check(parties: Sequence[Party], method: Label) -> list[str]:
    """Refuse what cannot work, before anything is computed; warn of what can but should not surprise."""
    if len(parties) < 2:
        many = f"{len(parties)} {'party was' if len(parties) == 1 else 'parties were'} given"
        raise Mistake(f"{many}: labels travel between parties, so give at least two.")
    if method.groups > len(parties) // 2:
        most = len(parties) // 2
        raise Mistake(f"groups is {method.groups}, and {len(parties)} parties make 1 to {most}: a group has at least two.")
    check_names([party.name for party in parties])
    for party in parties:
        if not len(party.x):
            raise Mistake(f"{party.name} has no rows: leave it out.")
    classes = sort_names({name for party in parties for name in party.classes})
    if not classes:
        raise Mistake("no party has a labelled row: label a few rows somewhere, then run again.")
    notes = spelling_warnings(classes)
    if len(classes) == 1:
        notes.append(f"every label is '{classes[0]}', so every row will get it: label rows of other classes too.")
    few = sums.few(len(parties) // method.groups)
    if few:
        notes.append(few + ".")
    n, most = sum(len(party.x) for party in parties) // method.groups, max(method.xclp.candidates)
    if method.xclp.spread.name == "paper":
        notes.append("spread=paper is for comparison: any party can work out most of the others' labels from what it is sent.")
    if most >= n:
        notes.append(f"a row has {n - 1} others and {most} neighbours were asked for: all are neighbours.")
    return notes


# ---------------------------------------------------------------- running


def run(parties: Sequence[Party], s: LabelSettings, progress: Progress | None = None) -> LabelResult:
    """The job on parties that were read."""
    method = make_method(s)
    notes = check(parties, method)
    # What is not secret (which labels are hidden for the estimate) still needs a seed.
    ran = run_once(method, parties, secrets.randbits(63) if s.seed is None else s.seed, s.workers, progress)
    groups = list(ran.state["groups"].values())
    got = {name for group in groups for name in group["got_labels"].values()}
    lost = sorted(set(ran.clients) - got)
    others, more = baselines.compared(ran, method, s.workers) if s.baselines and not lost else ({}, [])
    messages = ran.messages + more
    seconds = ran.seconds
    classes = sort_names({name for group in groups for name in group["classes"].values()})
    found = [
        party_labels(
            party, ran.clients[party.name], method, s.abstain, ran.disclosure[party.name], classes, others.get(party.name)
        )
        if party.name in got
        else without_labels(party, classes, ran.disclosure[party.name])
        for party in parties
    ]
    return LabelResult(
        found, tuple(classes), expected_accuracy(groups), groups[0]["neighbours"], lost, notes + _unreached(found, lost), seconds,
        messages=_in_order(messages, ran.disclosure), settings=s, graph=_graph(groups[0], ran.clients, parties),
        **sent(messages),
    )  # fmt: skip


def _unreached(found: Sequence[PartyLabels], lost: Sequence[str]) -> list[str]:
    """Notes on rows and parties without labels."""
    notes, blank = [], sum(p.blank for p in found)
    if blank:
        notes.append(f"{_rows(blank)} zero after scaling: without a direction there are no neighbours, so no label.")
    far = sum(int(np.sum(p.abstained & ~p.proba.any(1))) for p in found if p.name not in lost) - blank
    if far > 0:
        notes.append(f"{_rows(far)} reached by no label: no path of neighbours leads there, more --neighbours may.")
    return notes + [f"{name} was lost on the way and has no labels." for name in lost]


def _rows(n: int) -> str:
    return "1 row is" if n == 1 else f"{n} rows are"


def _in_order(messages: list[dict], disclosure: dict[str, list[dict]]) -> list[dict]:
    """Lines of the account in the order in which steps happened, down before up. (A step without a reply comes last.)"""
    steps = list(dict.fromkeys(line["step"] for lines in disclosure.values() for line in lines))
    place = {step: i for i, step in enumerate(steps)}
    return sorted(messages, key=lambda m: ("gaussian." in m["step"], place.get(m["step"], len(steps)), m["direction"]))


# ---------------------------------------------------------------- a party's result


def without_labels(party: Party, classes: Sequence[str], disclosure: list[dict]) -> PartyLabels:
    """A party that was lost on the way keeps what it had."""
    n, known = len(party.labels), np.array([label is not None for label in party.labels])
    return PartyLabels(party.name, party.ids, list(party.labels), known.astype(float), np.zeros((n, len(classes))), party.labels,
                       [None] * n, ~known, disclosure=disclosure)  # fmt: skip


def party_labels(party: Party, client: Client, method: Label, abstain: float, disclosure: list[dict],
                 classes: Sequence[str] | None = None, others: dict[str, list] | None = None) -> PartyLabels:  # fmt: skip
    """A party's result in the order of its rows. A labelled row keeps its label; the others get the propagated one or none.

    `classes` are the columns of `proba`, by default those that this party heard of; `others` are baselines, labelled rows first.
    """
    known = np.array([label is not None for label in party.labels])
    result, names = client.memory["result"], [*client.memory["classes"].values()]
    classes = sort_names(names) if classes is None else list(classes)
    back = np.argsort(_order(client))
    found, confidence, proba = (result[key][back] for key in ("label", "confidence", "proba"))
    proposed = [None if c < 0 else names[c] for c in found]
    abstained = ~known & ((found < 0) | (confidence < abstain))
    labels = [g if g is not None else None if a else p for g, a, p in zip(party.labels, abstained, proposed)]
    columns = np.zeros((len(labels), len(classes)))
    columns[:, [classes.index(name) for name in names]] = proba
    alone, _ = method.alone(client, result["candidate"])
    by: dict[str, list] = {"alone": [None if c < 0 else names[c] for c in alone[back]]}
    by |= {name: [values[i] for i in back] for name, values in (others or {}).items()}
    by |= {"model": party.model} if party.model else {}
    return PartyLabels(
        party.name, party.ids, labels, np.where(known, 1.0, confidence), columns, party.labels, proposed, abstained,
        int(result["blank"].sum()), others=by, disclosure=disclosure, **_measured(party, labels, by),
    )  # fmt: skip


def _order(client: Client) -> np.ndarray:
    """Which rows a client's results are of, one after the other: the labelled ones come first."""
    return np.concatenate([client.data.labelled.index.numpy(), client.data.unlabelled.index.numpy()])


def _measured(party: Party, labels: Sequence[str | None], others: dict[str, list]) -> dict[str, Any]:
    """What the truth says of rows that had no label, got one, and whose truth is known."""
    truth = party.truth or [None] * len(labels)
    rows = [i for i, (given, new, true) in enumerate(zip(party.labels, labels, truth))
            if given is None and new is not None and true is not None]  # fmt: skip

    def share(values: Sequence[str | None]) -> float | None:
        return sum(values[i] == truth[i] for i in rows) / len(rows) if rows else None

    by_class: dict[str, tuple[int, int]] = {}
    for i in rows:
        n, right = by_class.get(str(truth[i]), (0, 0))
        by_class[str(truth[i])] = n + 1, right + (labels[i] == truth[i])
    return dict(accuracy=share(labels), measured=len(rows), recalled=by_class,
                other_accuracy={name: share(values) for name, values in others.items()})  # fmt: skip


def expected_accuracy(groups: Sequence[dict]) -> dict[str, Any] | None:
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
    sample = group["layout"]["rows"]
    rows = np.concatenate([_order(clients[name]) for name in names])
    return dict(party=owner[sample], row=rows[sample], coordinates=group["layout"]["coordinates"])
