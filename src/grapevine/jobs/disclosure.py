"""What leaves a party and what it reveals, in the words of the steps: of a label job beforehand (`plan`), of any as it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core import Method, wire
from grapevine.core.account import fields
from grapevine.crypto import session
from grapevine.crypto.hamming import SHARE, protocol
from grapevine.learn.moments import numbers
from grapevine.methods.gaussian import MOMENTS
from grapevine.methods.label import BINS, Label
from grapevine.methods.xclp import REVEALS

if TYPE_CHECKING:
    from grapevine.jobs.reading import Party

HOUR = 60  # minutes
WORKING = dict(mlwe=150, ot=190)  # MB that one party's computation takes beside its messages; others little


def entries(step: str, reply: dict, method: Method) -> list[dict[str, Any]]:
    """The lines of disclosure.jsonl for a reply that leaves now, in the words of its step. An empty one is a line too."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    lines = []
    for name, kind, shape, size in list(fields(reply)) or [("", "dict", [0], 0)]:
        told = (
            method.reveals(step, name) or f"not said: read step {step} of {method.name}, which computes it from this party's rows"
        )
        lines.append(dict(time=now, step=step, peer="server", field=name, type=kind, shape=shape, bytes=size,
                          hash=wire.digest(wire.encode({name: reply[name]} if name else {})),
                          reveals=told if name else "nothing: the reply is empty"))  # fmt: skip
    return lines


def logger(lines: Mapping[str, list[dict]], method: Method) -> Callable[[str, Any, dict], None]:
    """Writes down what leaves a party, as it leaves."""
    return lambda step, party, reply: lines[party].extend(entries(step, reply, method))


def learns(method: Label, parties: int, baselines: bool = False) -> list[str]:
    """Who knows what at the end, if nobody colludes."""
    server = "The server learns how many rows each party has, which of them are labelled, the names of the classes, and the "
    server += "Hamming distances between all rows: how alike any two are, whoever holds them."
    out = [server, "A party learns the names of all classes and how many rows the others have."]
    if method.xclp.spread.name == "paper":
        out.append("A PARTY CAN WORK OUT THE OTHERS' LABELS from its columns of S: spread=paper is for comparison only.")
    if method.needs_moments:
        both = "; of two parties, each thereby learns the other's" if parties == 2 else ""
        out.append(f"Everybody learns the pooled mean and variance of every feature{both}.")
    if method.xclp.preset == "code":
        out.append("Everybody learns how many labels each class has, over all parties.")
    if baselines:
        out.append("Everybody learns each class's mean and covariance over all parties, for the baseline.")
    if method.expected:
        out.append("Everybody learns how many hidden labels were found again, over all parties.")
    if method.xclp.hamming.name == "plain":
        out.append("With plain the server also learns every party's hash bits: there is no protection.")
    return out


def plan(parties: Sequence[Party], method: Label, workers: int = 2, baselines: bool = False) -> dict[str, Any]:
    """Before anything runs: what would leave each party, its bytes, what it reveals; minutes and memory for all of it."""
    per_party, minutes, memory = _estimate(parties, method, workers)
    if baselines:
        classes, d = len({name for party in parties for name in party.classes}), parties[0].x.shape[1]
        sums = dict(step="gaussian.meet", field="moments", bytes=32 * numbers(d, classes),
                    reveals=MOMENTS)  # fmt: skip
        for party in parties:
            told = "a public key, class names"
            hello = dict(step="gaussian.keys", field="offer", bytes=200 + 30 * len(party.classes), reveals=told)
            per_party[party.name] += [hello, sums]
    advice = _advice(parties, method, workers, minutes) if minutes > HOUR else None
    return dict(parties=per_party, minutes=minutes, memory_mb=memory / 2**20, advice=advice,
                learns=learns(method, len(parties), baselines), collusion=method.xclp.hamming.collusion,
                protocol=method.xclp.hamming.name)  # fmt: skip


def _estimate(parties: Sequence[Party], method: Label, workers: int) -> tuple[dict[str, list[dict]], float, float]:
    """Lines by party, minutes, bytes of memory."""
    classes = len({name for party in parties for name in party.classes})
    per_party, seconds, largest = {}, 0.0, 0.0
    for i in range(method.groups):
        lines, cost, memory = _group(sorted(parties, key=lambda p: p.name)[i :: method.groups], method, classes)
        per_party.update(lines)
        seconds, largest = seconds + cost, max(largest, memory)
    working = workers * WORKING.get(method.xclp.hamming.name, 20) * 2**20
    return {party.name: per_party[party.name] for party in parties}, seconds / workers / 60, largest + working


def _advice(parties: Sequence[Party], method: Label, workers: int, minutes: float) -> str:
    """What would bring a long job down, each with its own estimate; what would not is not proposed."""
    ways: list[tuple[str, Label, str]] = []
    most = len(parties) // 3  # a group of fewer than three has no sum worth the name
    if most > method.groups:
        groups = max(method.groups + 1, min(int(np.ceil(method.groups * minutes / 30)), most))
        ways.append((f"--groups {groups}", replace(method, groups=groups), "labels spread within groups only"))
    psm = replace(method, xclp=replace(method.xclp, hamming=protocol("psm")))
    ways.append(("--secure psm", psm, "safe as long as the server and no party collude"))
    if method.xclp.bits > 1024:
        ways.append(("--bits 1024", replace(method, xclp=replace(method.xclp, bits=1024)), "coarser distances"))
    less = [(flag, _estimate(parties, other, workers)[1], price) for flag, other, price in ways]
    told = [f"{flag}, about {round(m)} minutes ({price})" for flag, m, price in less if m < 0.7 * minutes]
    return f"that is {minutes / 60:.1f} hours; less would take {', or '.join(told) or 'fewer rows'}."


def _group(group: Sequence[Party], method: Label, classes: int) -> tuple[dict[str, list[dict]], float, float]:
    hamming, L, K = method.xclp.hamming, method.xclp.bits, len(method.xclp.candidates)
    sizes = [len(party.x) for party in group]
    n, d = sum(sizes), group[0].x.shape[1]
    solves = 2 if method.expected else 1
    pooled = 32 * (3 * d * (method.needs_moments) + classes * (method.xclp.preset == "code"))
    lines, seconds, held = {}, 2.0, 0.0
    for i, party in enumerate(group):
        others = sizes[:i] + sizes[i + 1 :]
        pair = [hamming.bytes_per_pair(sizes[i], m, L) for m in others]
        # Of a pair each side sends about half of what passes between the two; in `mlwe` and `paillier` roles are dealt evenly.
        once, between = max(p["once"] for p in pair), sum(p["pair"] for p in pair) // 2
        shares = sum(p["server"] for p in pair) // 2
        labels = sum(label is not None for label in party.labels)
        entries = [
            ("keys", "offer and counts", 250 + 30 * len(party.classes), "a public key, row counts and class names"),
            ("meet", "letters", 120 * len(others), session.LETTERS),
            ("meet", "moments", pooled, method.reveals("meet", "moments")),
            ("share", "first", once + (shares if hamming.name == "psm" else 0), hamming.first),
            ("share", "own, labelled, blank", 2 * sizes[i] * (sizes[i] + 1), f"{REVEALS['own']}; which are labelled"),
            ("hamming", "answers", between, "nothing: ciphertexts under another party's key, or masked"),
            ("hamming", "shares", 0 if hamming.name == "psm" else shares, SHARE),
            ("share", "spread", method.xclp.spread.bytes_up(labels, n - sizes[i], classes * solves, K), method.xclp.spread.sent),
            ("receive", "hits", (3 + 2 * BINS) * 8 * K if method.expected else 0, method.reveals("receive", "hits")),
        ]
        lines[party.name] = [dict(step=s, field=f, bytes=b, reveals=r) for s, f, b, r in entries if b]
        costs = [hamming.cpu_seconds(sizes[i], m, L) for m in others]
        seconds += max(c["once"] for c in costs) + sum(c["pair"] for c in costs) / 2
        held += once + between + 4.0 * sizes[i] ** 2 + 12.0 * n * labels * K + 16.0 * n * classes * solves * K
    # The columns of S by conjugate gradients, about 25 steps of each: all labelled rows, all candidates.
    labelled = sum(label is not None for party in group for label in party.labels)
    seconds += 25 * 2e-9 * n * max(method.xclp.candidates) * 2 * labelled * K
    seconds += method.xclp.spread.cpu_seconds(n, labelled, classes * solves) * K
    return lines, seconds, held + 450 * 2**20
