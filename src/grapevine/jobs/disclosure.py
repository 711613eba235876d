"""What leaves a party and what it reveals, in the words of the steps: before a label job (`plan`), and for any job as it
leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from grapevine.core import Method, wire
from grapevine.core.account import fields
from grapevine.crypto import names as sealed_names
from grapevine.crypto import session, together
from grapevine.crypto.hamming import SHARE, protocol
from grapevine.data.columns import agree, counts, worth_naming
from grapevine.learn.moments import SUMS_TELL, numbers
from grapevine.methods import landmarks, noisy, song
from grapevine.methods.chorus import Chorus
from grapevine.methods.gaussian import MOMENTS
from grapevine.methods.label import BINS, Label
from grapevine.methods.xclp import REVEALS

if TYPE_CHECKING:
    from grapevine.jobs.reading import Party

HOUR = 60  # minutes
WORKING = dict(mlwe=150, ot=190)  # MB that one party's computation takes beside its messages; others little
KEPT = 350_000  # bytes that stay of a party until the job ends, beside its rows: what it sent and released, its labels and heads
LETTER, TAGGED = 110, 130  # bytes of a sealed seed for another party, and of a sum beside its numbers


def entries(step: str, reply: dict, method: Method) -> list[dict[str, Any]]:
    """The lines of disclosure.jsonl for a reply that leaves now. An empty reply has a line too."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    lines = []
    for name, kind, shape, size in list(fields(reply)) or [("", "dict", [0], 0)]:
        told = (
            method.reveals(step, name)
            or f"not stated: read step {step} of {method.name}, which computes it from this party's rows"
        )
        lines.append(dict(time=now, step=step, peer="server", field=name, type=kind, shape=shape, bytes=size,
                          hash=wire.digest(wire.encode({name: reply[name]} if name else {})),
                          reveals=told if name else "nothing: the reply is empty"))  # fmt: skip
    return lines


def logger(lines: Mapping[str, list[dict]], method: Method) -> Callable[[str, Any, dict], None]:
    """Record what leaves a party, as it leaves."""
    return lambda step, party, reply: lines[party].extend(entries(step, reply, method))


def learns(method: Label | Chorus, parties: int, baselines: bool = False) -> list[str]:
    """What each side knows at the end, if nobody colludes."""
    out = _learns_chorus(method, parties) if isinstance(method, Chorus) else _learns_xclp(method, parties)
    if baselines:
        out.append("For the baselines, all parties learn each class's mean and covariance over all of them; and, for fedcof, the "
                   "server learns each party's label counts and class sums after all. The sum of a class with one labelled row "
                   "is that row.")  # fmt: skip
    if method.xclp.hamming.name == "plain":
        out.append("With plain the server also learns every party's hash bits and labels: there is no protection.")
    return out


def _learns_chorus(method: Chorus, parties: int) -> list[str]:
    out = ["The server learns how many nodes each party has in the graph, which of them are labelled, how many classes there "
           "are, and the Hamming distances between all nodes: how alike any two are, whoever holds them. It learns no sum.",
           "A party learns the names of all classes and of all values of text columns, and how many nodes the others have."
           if method.dp else
           "A party learns the names of all classes and of values of text columns that ten rows or more have (of rarer values "
           "enough to test a guess), and how many nodes the others have.",
           "All parties learn, over all of them, with noise: mean and covariance of all rows, class sums, and how many hidden "
           "labels were found." if method.dp else
           "All parties learn, over all of them: mean and variance of every feature, label counts, class sums and the covariance "
           "of all rows, and how well hidden labels were recovered; no class sum of fewer than 15 rows."]  # fmt: skip
    if parties == 2:
        out.append("With two parties, each learns the other's part of all that: the sum less its own. Ask for three or more.")
    if method.dp:
        out.append(noisy.promise(method.dp, method.delta, parties // method.groups))
    if method.epsilon:
        out.append(f"Labels leave a party by randomised response: each is differentially private with ε = {method.epsilon:g}, "
                   "δ = 0, whoever colludes; which rows are labelled, and the rows, are outside it.")  # fmt: skip
    return out


def _learns_xclp(method: Label, parties: int) -> list[str]:
    server = "The server learns how many rows each party has, which of them are labelled, the names of the classes, and the "
    server += "Hamming distances between all rows: how alike any two are, whoever holds them."
    out = [server, "A party learns the names of all classes and how many rows the others have."]
    if method.xclp.spread.name == "paper":
        out.append("A PARTY CAN WORK OUT THE OTHERS' LABELS from its columns of S: spread=paper is for comparison only.")
    if method.needs_moments:
        both = "; of two parties, each thereby learns the other's" if parties == 2 else ""
        out.append(f"Everybody learns the pooled mean and variance of every feature{both}.")
    noise = ", with noise" if method.dp else ""
    if method.xclp.preset == "code":
        out.append(f"Everybody learns how many labels each class has, over all parties{noise}.")
    if method.dp:
        out.append(noisy.promise(method.dp, method.delta, parties // method.groups, "label counts and hits on hidden labels"))
    if method.expected:
        out.append(f"Everybody learns how many hidden labels were recovered, over all parties{noise}.")
    return out


def plan(parties: Sequence[Party], method: Label | Chorus, workers: int = 2, baselines: bool = False) -> dict[str, Any]:
    """Before anything runs: what would leave each party, in bytes, what it reveals, and the minutes and memory of the whole
    job."""
    per_party, minutes, memory = _estimate(parties, method, workers)
    if baselines:
        classes, d = len({name for party in parties for name in party.classes}), parties[0].x.shape[1]
        sums = dict(step="gaussian.pool", field="share", bytes=TAGGED + 32 * numbers(d, classes), reveals=MOMENTS)
        letters = dict(step="gaussian.meet", field="letters", bytes=LETTER * (len(parties) - 1), reveals=session.LETTERS)
        means = dict(step="gaussian.means", field="sums", bytes=8 * classes * (1 + d), reveals=SUMS_TELL)
        for party in parties:
            told = "a public key, class names"
            hello = dict(step="gaussian.keys", field="offer", bytes=200 + 30 * len(party.classes), reveals=told)
            per_party[party.name] += [hello, letters, sums, means]
    advice = _advice(parties, method, workers, minutes) if minutes > HOUR else None
    return dict(parties=per_party, minutes=minutes, memory_mb=memory / 2**20, advice=advice,
                learns=learns(method, len(parties), baselines), collusion=_collusion(method),
                protocol=method.xclp.hamming.name)  # fmt: skip


def _collusion(method: Label | Chorus) -> str:
    """What the server and one party learn together: the labels, since that party has the key, and what the protocol leaves."""
    if method.xclp.hamming.name == "plain":
        return method.xclp.hamming.collusion
    labels = "all labels, randomised" if isinstance(method, Chorus) and method.epsilon else "all labels"
    return f"{labels}, and {method.xclp.hamming.collusion}"


def _estimate(parties: Sequence[Party], method: Label | Chorus, workers: int) -> tuple[dict[str, list[dict]], float, float]:
    """Lines by party, minutes, bytes of memory."""
    classes = len({name for party in parties for name in party.classes})
    per_party, seconds, largest = {}, 2.0, 0.0
    for i in range(method.groups):
        lines, cost, memory = _group(sorted(parties, key=lambda p: p.name)[i :: method.groups], method, classes)
        per_party.update(lines)
        seconds, largest = seconds + cost, max(largest, memory)
    working = workers * WORKING.get(method.xclp.hamming.name, 20) * 2**20
    kept = sum(KEPT + party.x.nbytes for party in parties)
    return {party.name: per_party[party.name] for party in parties}, seconds / workers / 60, largest + working + kept


def _advice(parties: Sequence[Party], method: Label | Chorus, workers: int, minutes: float) -> str:
    """What would make a long job shorter, each with its own estimate."""
    ways: list[tuple[str, Label | Chorus, str]] = []
    most = len(parties) // 3  # a group of fewer than three has no sum worth the name
    if most > method.groups:
        groups = max(method.groups + 1, min(int(np.ceil(method.groups * minutes / 30)), most))
        ways.append((f"--groups {groups}", replace(method, groups=groups), "labels spread within groups only"))
    psm = replace(method, xclp=replace(method.xclp, hamming=protocol("psm")))
    ways.append(("--secure psm", psm, "safe as long as the server colludes with no party"))
    if method.xclp.bits > 1024:
        ways.append(("--bits 1024", replace(method, xclp=replace(method.xclp, bits=1024)), "coarser distances"))
    less = [(flag, _estimate(parties, other, workers)[1], price) for flag, other, price in ways]
    told = [f"{flag}, about {round(m)} minutes ({price})" for flag, m, price in less if m < 0.7 * minutes]
    return f"that is {minutes / 60:.1f} hours. Cheaper: {'; or '.join(told) or 'fewer rows'}."


def _group(group: Sequence[Party], method: Label | Chorus, classes: int) -> tuple[dict[str, list[dict]], float, float]:
    hamming, L, grid = method.xclp.hamming, method.xclp.bits, method.xclp.grid
    sizes, labels = [len(party.x) for party in group], [sum(label is not None for label in p.labels) for p in group]
    if isinstance(method, Chorus):
        sizes = [landmarks.count(method.landmarks, n, known, len(group)) for n, known in zip(sizes, labels)]
    n, K = sum(sizes), len(grid)
    width = method.width(classes)
    lines, seconds, held = {}, 0.0, 0.0
    for i, party in enumerate(group):
        others = sizes[:i] + sizes[i + 1 :]
        pair = [hamming.bytes_per_pair(sizes[i], m, L) for m in others]
        # Of a pair each side sends about half of what passes between the two; in `mlwe` and `paillier` roles are dealt evenly.
        once, between = max(p["once"] for p in pair), sum(p["pair"] for p in pair) // 2
        shares = sum(p["server"] for p in pair) // 2
        entries = [
            *_sums(group, party, method, classes),
            ("share", "first", once + (shares if hamming.name == "psm" else 0), hamming.first),
            ("share", "own, labelled, blank", 2 * sizes[i] * (sizes[i] + 1), f"{REVEALS['own']}; which are labelled"),
            ("hamming", "answers", between, "nothing: ciphertexts under another party's key, or masked"),
            ("hamming", "shares", 0 if hamming.name == "psm" else shares, SHARE),
            ("share", "spread", method.xclp.spread.bytes_up(labels[i], n - sizes[i], width, K), method.xclp.spread.sent),
        ]
        lines[party.name] = [dict(step=s, field=f, bytes=b, reveals=r) for s, f, b, r in entries if b]
        costs = [hamming.cpu_seconds(sizes[i], m, L) for m in others]
        seconds += max(c["once"] for c in costs) + sum(c["pair"] for c in costs) / 2
        held += once + between + 4.0 * sizes[i] ** 2 + 12.0 * n * labels[i] * K + 16.0 * n * width * K
        if isinstance(method, Chorus):
            rows, d = party.x.shape
            held += rows * 40.0 * width
            # At home: the exchanges and the own model, the voices of every row, and the clustering.
            seconds += 0.3 + rows * (4.5e-6 * classes + 3.4e-7 * d) + 3e-5 * d * (sizes[i] - labels[i]) * (sizes[i] < rows)
    # The columns of S by conjugate gradients: all labelled rows, all candidates.
    seconds += 4e-7 * n * sum(labels) * K
    seconds += method.xclp.spread.cpu_seconds(n, sum(labels), width) * K
    return lines, seconds, held + 450 * 2**20


Entry = tuple[str, str, int, str]


def _sums(group: Sequence[Party], party: Party, method: Label | Chorus, classes: int) -> list[Entry]:
    if isinstance(method, Chorus):
        return _sums_of_chorus(group, party, method, classes)
    return _sums_of_xclp(group, party, method, classes)


def _sums_of_xclp(group: Sequence[Party], party: Party, method: Label, classes: int) -> list[Entry]:
    """What goes into sums, and what goes before."""
    d = party.x.shape[1]
    values = 3 * d * method.needs_moments + classes * (method.xclp.preset == "code")
    pooled = TAGGED + (8 if method.dp else 32) * values if values else 0
    first, then = (TAGGED + 8 * d, pooled) if method.counts_first else (pooled, 0)
    return [
        ("keys", "offer and counts", 250 + 30 * len(party.classes), "a public key, row counts and class names"),
        ("meet", "letters", LETTER * (len(group) - 1), session.LETTERS),
        ("pool", "share", first, str(method.reveals("pool", "share"))),
        ("moments", "share", then, str(method.reveals("moments", "share"))),
        ("receive", "hits", (3 + 2 * BINS * (not method.dp)) * 8 * len(method.xclp.grid) if method.expected else 0,
         str(method.reveals("receive", "hits"))),
    ]  # fmt: skip


def _sums_of_chorus(group: Sequence[Party], party: Party, method: Chorus, classes: int) -> list[Entry]:
    d = len(agree([(p.x, p.columns) for p in group], method.impute).names) if party.columns else party.x.shape[1]
    labels = np.zeros(classes)
    names = sorted({name for p in group for name in p.classes})
    for label in (label for p in group for label in p.labels if label is not None):
        labels[names.index(label)] += 1
    found = counts(party.x, party.columns).values()
    values = sum(len(worth_naming(each, len(group), sealed_names.MOST)) for each in found)
    return [
        ("keys", "offer", 250, session.OFFER),
        ("meet", "letters", LETTER * (len(group) - 1), session.LETTERS),
        ("names", "classes and values", 130 * (len(party.classes) + values), f"names: {sealed_names.REVEALS}"),
        ("go_on", "shares", song.bytes_of_sums(d, labels), together.SHARE),
    ]
