"""The label job: labels and probabilities for every party's own rows.

`label` runs it in this process, with the real cryptography, and `run` does so for parties that were already read. `disclosure`
says what would leave each party and what that reveals; `label_result` holds the result.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.core.words import some
from grapevine.crypto import accountant, spread, sums
from grapevine.crypto import names as sealed_names
from grapevine.crypto.hamming import protocol
from grapevine.data.tables import sort_names, spelling_warnings
from grapevine.jobs import baselines, label_result
from grapevine.jobs.disclosure import plan
from grapevine.jobs.expected import by_class, expected_accuracy, of_given
from grapevine.jobs.folder import Page, check_names, require_new, sent, whole_numbers
from grapevine.jobs.heads import Heads, heads_of
from grapevine.jobs.label_notes import judged, silent, strangers, unmeasured, unreached
from grapevine.jobs.label_party import order, party_labels, without_labels
from grapevine.jobs.label_result import LabelResult, PartyLabels
from grapevine.jobs.process import Progress, run_once
from grapevine.jobs.reading import Party, read
from grapevine.jobs.settings import LabelSettings
from grapevine.methods import noisy
from grapevine.methods.chorus import DEFAULT, Chorus
from grapevine.methods.label import Label
from grapevine.methods.xclp import CrossClientPropagation

LABELLED = 20  # rows of all parties: of fewer, each may well be the only one of its class
LABELLED_HERE = 100  # the same for one party's rows, where classes may be many


def label(parties: Sequence[Any], s: LabelSettings, names: Sequence[str] | None = None, out: str | Path | None = None,
          dry_run: bool = False, progress: Progress | None = None, command: str = "",
          page: Page | None = None) -> LabelResult | dict[str, Any]:  # fmt: skip
    """Read, check, run and write; with `dry_run` only say what would leave each party. See `gv.label`."""
    if out is not None and not dry_run:
        require_new(out)
    rows, whole = read(s, parties, names, encode=s.method != "chorus")  # chorus agrees on text between the parties
    if dry_run:
        method = make_method(s)
        notes = check(rows, method)
        return dict(plan(rows, method, s.workers, s.baselines), warnings=notes)
    result = run(rows, s, progress)
    result = whole_numbers(result, "labels", "given", "proposed", "others") if whole else result
    if out is not None:
        label_result.write(out, result, command, page)
    return result


def make_method(s: LabelSettings) -> Label | Chorus:
    """The method with everything that all parties agree on. Settings that were not given have the method's defaults."""
    chorus = s.method == "chorus"
    usual = DEFAULT if chorus else CrossClientPropagation()
    k = usual.neighbours if s.neighbours is None else 0 if s.neighbours == "auto" else int(s.neighbours)
    alpha = usual.alpha if s.alpha is None else 0.0 if s.alpha == "auto" else float(s.alpha)
    way = "plain" if s.secure == "plain" and s.spread == "private" else s.spread
    xclp = CrossClientPropagation(protocol(s.secure), s.bits or usual.bits, k, alpha, "code" if chorus else s.preset,
                                  s.seed is not None, spread.protocol(way))  # fmt: skip
    if chorus and s.preset != LabelSettings().preset:
        raise Mistake(f"preset is {s.preset}, which is for the method xclp: leave it out, or use xclp.")
    _check_noise(s)
    if chorus:
        nodes = 0 if s.landmarks in (None, "auto") else -1 if s.landmarks == "all" else int(s.landmarks or 0)
        return Chorus(xclp, scale=s.scale, impute=s.impute, landmarks=nodes, smooth=s.smooth, epsilon=s.dp_labels or 0.0,
                      dp=s.dp or 0.0, delta=s.delta, groups=s.groups)  # fmt: skip
    if s.landmarks not in (None, "all") or s.smooth or s.dp_labels:
        said = "landmarks" if s.landmarks not in (None, "all") else "smooth" if s.smooth else "dp-labels"
        raise Mistake(f"{said} is for the method chorus, but the method is xclp: leave it out, or use chorus.")
    if s.scale == "one":
        raise Mistake("scale is one, which is for the method chorus: use standard or none, or the method chorus.")
    scale = "none" if s.dp else "standard" if s.scale == "auto" else s.scale
    return Label(xclp, scale, s.impute, dp=s.dp or 0.0, delta=s.delta, groups=s.groups)


def _check_noise(s: LabelSettings) -> None:
    """What does not go with --dp, or with --dp-labels, and why."""
    noisy = "dp" if s.dp is not None else "dp-labels" if s.dp_labels else ""
    if noisy and s.baselines:
        raise Mistake(f"--baselines does not go with --{noisy}, whose noise would not cover it: leave one of them out.")
    if s.dp is None:
        if s.delta != LabelSettings().delta:
            raise Mistake("delta belongs to sums with noise: use --dp EPS too, or leave it out.")
        return
    accountant.check_budget(s.dp, s.delta)
    if s.smooth:
        raise Mistake("--smooth does not go with --dp, whose noise would not cover it: leave one of them out.")
    if s.scale not in ("auto", "none") or s.impute:
        said = "impute is on" if s.impute else f"scale is {s.scale}"
        raise Mistake(f"{said}, which needs exact means of all parties: with --dp, rows are compared "
                      "by their direction, so leave it out.")  # fmt: skip


def check(parties: Sequence[Party], method: Label | Chorus) -> list[str]:
    """Refuse what cannot work before anything is computed, and warn about the rest."""
    if len(parties) < 2:
        many = f"{len(parties)} {'party was' if len(parties) == 1 else 'parties were'} given"
        raise Mistake(f"{many}: labels spread between parties, so give at least two.")
    if method.groups > len(parties) // 2:
        most = len(parties) // 2
        raise Mistake(f"groups is {method.groups}, but {len(parties)} parties can form 1 to {most}: a group has at least two.")
    if method.dp:
        of = len(parties) // method.groups
        noisy.plan(method.dp, method.delta, of) if isinstance(method, Chorus) else method.noise(of)
    check_names([party.name for party in parties])
    for party in parties:
        if not len(party.x):
            raise Mistake(f"{party.name} has no rows: leave it out.")
        check_classes(party)
    classes = sort_names({name for party in parties for name in party.classes})
    if not classes:
        raise Mistake("no party has a labelled row: label a few rows at any party, then run again.")
    _check_groups(parties, method.groups)
    check_label("the parties", [label for party in parties for label in party.labels])
    notes = spelling_warnings(classes)
    if len(classes) == 1:
        notes.append(f"every label is '{classes[0]}', so every row will get it: label rows of other classes too.")
    few = sums.few(len(parties) // method.groups)
    if few:
        notes.append(few + ".")
    n, most = sum(len(party.x) for party in parties) // method.groups, max(method.xclp.candidates)
    if method.xclp.spread.name == "paper":
        notes.append("with spread=paper, which is for comparison, any party can work out most of the others' labels.")
    if most >= n:
        notes.append(f"each row would have {most} neighbours, but there are only {n - 1} other rows: all are neighbours.")
    return notes


def _check_groups(parties: Sequence[Party], groups: int) -> None:
    """Labels do not travel between groups, so each needs its own."""
    for group in (parties[i::groups] for i in range(groups)):
        if not any(party.classes for party in group):
            names = some([party.name for party in group])
            raise Mistake(f"no party of the group {names} has a labelled row: label a few rows there, or form fewer groups.")


def check_classes(party: Party) -> None:
    """More names than can be agreed on are noticed before anything leaves the party."""
    n = len(party.classes)
    if n > sealed_names.MOST:
        raise Mistake(
            f"{party.name} has {n} different labels, but at most {sealed_names.MOST} can be agreed on: check that --label "
            "names the right column."
        )
    check_label(party.name, party.labels, LABELLED_HERE)


def check_label(who: str, labels: Sequence[str | None], least: int = LABELLED) -> None:
    """Refuse an id or a measurement as label: nearly every labelled row, or of numbers with fractions every second one, has a
    class of its own."""
    known = [label for label in labels if label is not None]
    n = len(set(known))
    if len(known) >= least and n > (0.5 if _measured(set(known)) else 0.9) * len(known):
        raise Mistake(f"{who}: {len(known)} labelled rows have {n} different labels, so nearly every row is a class of its own. "
                      "Is this the label? Name another column with --label.")  # fmt: skip


def _measured(names: set[str]) -> bool:
    """Whether names are numbers with fractions. Whole ones may be codes."""
    try:
        return any(float(name) % 1 != 0 for name in names)
    except ValueError:
        return False


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
    heard = [list(ran.clients[group["got_labels"][0]].memory["classes"].values()) for group in groups]
    classes = sort_names({name for names in heard for name in names})
    found = [
        party_labels(party, ran.clients[party.name], method, s.abstain, s.target, ran.disclosure[party.name], classes,
                     others.get(party.name), ran.ledgers[party.name]) if party.name in got
        else without_labels(party, classes, ran.disclosure[party.name])
        for party in parties
    ]  # fmt: skip
    recall = by_class(groups, heard)
    first = ran.clients[groups[0]["got_labels"][0]]
    nodes = dict(nodes=sum(groups[0]["nodes"].values())) if isinstance(method, Chorus) else {}
    _count_new(recall, found)
    reached = [party for party in found if party.name not in lost]
    expected = of_given(expected_accuracy(groups), reached)
    heads = _heads(ran.clients, groups)
    remarks, more_notes = judged(reached, recall, expected, s)
    notes += silent(heads) + unreached(found, lost) + more_notes
    notes += strangers(found, classes) + unmeasured(parties, found, s.baselines and not lost)
    return LabelResult(
        found, tuple(classes), expected, lost, notes, seconds, messages=_in_order(messages, ran.disclosure),
        settings=s, about=_about(first, method) | nodes, recall=recall, heads=heads, remarks=remarks,
        graph=_graph(groups[0], ran.clients, parties), **sent(messages),
    )  # fmt: skip


def at_party(party: Party, client: Client, s: LabelSettings, disclosure: list[dict]) -> LabelResult:
    """The result as one party of a hosted job knows it: its own labels, what left it, and what all parties opened."""
    method, names = make_method(s), [*client.memory["classes"].values()]
    found = party_labels(party, client, method, s.abstain, s.target, disclosure)
    group = dict(expected=client.memory["result"].get("expected"), classes=len(names))
    classes = sort_names(names)
    recall = by_class([group], [names])
    expected = of_given(expected_accuracy([group]), [found])
    heads = heads_of(client)
    _count_new(recall, [found])
    remarks, notes = judged([found], recall, expected, s)
    notes = silent(heads) + unreached([found]) + notes + strangers([found], classes)
    by_step = {step: [line for line in disclosure if line["step"] == step] for step in {line["step"]: 0 for line in disclosure}}
    messages = [dict(step=step, direction="up", bytes=sum(line["bytes"] for line in lines), messages=len({line["time"] for line
                     in lines})) for step, lines in by_step.items()]  # fmt: skip
    times = sorted(datetime.fromisoformat(line["time"]) for line in disclosure)
    return LabelResult(
        [found], tuple(classes), expected, [], notes, (times[-1] - times[0]).total_seconds() if times else 0.0,
        sum(line["bytes"] for line in disclosure), None, messages, s, _about(client, method), recall, heads, remarks=remarks,
    )  # fmt: skip


def _about(client: Client, method: Label | Chorus) -> dict[str, Any]:
    """What the job chose by hidden labels."""
    result = client.memory["result"]
    if isinstance(method, Label):
        k, alpha = method.xclp.grid[result["candidate"]]
        return dict(bits=method.xclp.bits, neighbours=k, alpha=alpha)
    return dict(bits=method.xclp.bits, scale=result["scale"], weights=result["weights"])


def _heads(clients: dict[str, Client], groups: Sequence[dict]) -> Heads | None:
    """What labels later rows. All parties of a job share it; groups do not, so there is none for several groups."""
    return heads_of(clients[groups[0]["got_labels"][0]]) if len(groups) == 1 else None


def _count_new(recall: dict[str, dict], found: Sequence[PartyLabels]) -> None:
    """How many rows of these parties get each class. What all parties summed knows nothing of rows that abstain or have the
    label of a party's own model, and counts everybody's rows."""
    for name, line in recall.items():
        line["given"] = sum(label == name for p in found for label in np.asarray(p.labels, object)[~p.known])


def _in_order(messages: list[dict], disclosure: dict[str, list[dict]]) -> list[dict]:
    """Lines of the account in the order in which steps happened, down before up. (A step without a reply comes last.)"""
    steps = list(dict.fromkeys(line["step"] for lines in disclosure.values() for line in lines))
    place = {step: i for i, step in enumerate(steps)}
    return sorted(messages, key=lambda m: ("gaussian." in m["step"], place.get(m["step"], len(steps)), m["direction"]))


def _graph(group: dict, clients: dict[str, Client], parties: Sequence[Party]) -> dict[str, np.ndarray]:
    """The server's layout of a sample of its graph, with the owners put back: number of the party, number of its row. Centres
    are no rows, so they are left out."""
    place = {party.name: i for i, party in enumerate(parties)}
    sizes = group["rows" if "rows" in group else "nodes"]
    owner = np.repeat([place[name] for name in sizes], list(sizes.values()))
    rows = np.concatenate([_rows_of_nodes(clients[name]) if name in clients else np.full(n, -1) for name, n in sizes.items()])
    sample = group["layout"]["rows"]
    real = rows[sample] >= 0
    return dict(party=owner[sample][real], row=rows[sample][real], coordinates=group["layout"]["coordinates"][real])


def _rows_of_nodes(client: Client) -> np.ndarray:
    own, places = order(client), client.memory["result"].get("places") if "result" in client.memory else None
    return own if places is None else np.where(places < 0, -1, own[places])
