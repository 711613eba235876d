"""What a folder's ledgers say: every release of each party, (ε, δ) so far for each unit, and what no ε covers.

A folder is that of a run or of a label or clean job, with a ledger of its own or one in each party's folder, or a party's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.words import many
from grapevine.crypto import accountant
from grapevine.run.folder import read_json

LEDGER, KEY = "privacy.jsonl", "privacy.key"
DELTA = 1e-6
NAMELESS = "this party"
UNITS = {
    "row": "one row of this party, there or blank",
    "label": "the label of one row of this party, this or another",
}
OUTSIDE = {
    "row": "how many rows the party has, the scaling of its features, rows that it holds out to score models, and whatever a row "
    "does to other rows before noise is added (neighbours in a graph, labels that others take from it)",
    "label": "which rows have a label, the features of all rows, and what the features say about a label",
}
PLAIN_TRAIN = "every client's update was sent without noise, so no ε covers it. `grapevine train --dp EPS` trains with noise."


@dataclass(frozen=True)
class Line:
    """Releases of one kind in one job: what, with whom, how, and how often."""

    day: str
    job: str
    what: str
    parties: tuple[str, ...]
    how: str
    times: int = 1


@dataclass(frozen=True)
class PartyPrivacy:
    """A party's ledger, summed up. `spent`: unit → (ε, δ); `outside`: sentences."""

    name: str
    releases: list[Line]
    spent: dict[str, tuple[float, float]]
    outside: list[str]

    def to_dict(self) -> dict[str, Any]:
        spent = {unit: dict(epsilon=e, delta=d, hides=UNITS[unit]) for unit, (e, d) in self.spent.items()}
        return dict(name=self.name, releases=[vars(line) for line in self.releases], spent=spent, outside=self.outside)


def read(folder: str | Path, delta: float | None = None) -> list[PartyPrivacy]:
    """All ledgers of a folder. Without `delta`, that of the run or of the job, or 1e-6."""
    place = Path(folder)
    if not place.is_dir():
        raise Mistake(f"{folder} is not a folder: give the folder of a run, of a label or clean job, or of a party.")
    settings = read_json(place / "settings.json") or {}
    job = (read_json(place / "result.json") or {}).get("settings") or {}
    delta = delta or settings.get("delta") or job.get("delta") or DELTA
    accountant.check_budget(1.0, delta)
    found: list[PartyPrivacy] = []
    for where in [place, *sorted(path for path in place.iterdir() if path.is_dir())]:
        if (where / LEDGER).is_file():
            found += _parties(where, NAMELESS if where == place else where.name, delta)
    if not found and settings.get("job") == "train":
        return [PartyPrivacy("every client", [], {}, [PLAIN_TRAIN])]
    if not found:
        raise Mistake(
            f"there is no {LEDGER} in {folder}, or in the folders inside it: nothing has been released from there so far."
        )
    return found


def _parties(where: Path, name: str, delta: float) -> list[PartyPrivacy]:
    """One ledger is one party's, or that of several on one machine: whose rows were released tells them apart."""
    if not (where / KEY).is_file():
        raise Mistake(f"{where / KEY} is missing, and the ledger cannot be read without it: restore it from a copy.")
    ledger = Ledger(where)
    lines = [line for line in ledger.lines() if line["kind"] == "release"]
    tables = _same_rows(ledger, list(dict.fromkeys(line["rows"] for line in lines)))
    if len(tables) == 1:
        who = _alone(lines)
        return [_summed(who[0] if len(who) == 1 and name == NAMELESS else name, lines, delta)]
    found = []
    for digests in tables:
        own = [line for line in lines if line["rows"] in digests]
        found.append(_summed(", ".join(_alone(own)) or f"rows {digests[0][:8]}", own, delta))
    return found


def _alone(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Parties that released something of their own, without others."""
    return sorted({line["parties"][0] for line in lines if len(line["parties"]) == 1})


def _same_rows(ledger: Ledger, digests: Sequence[str]) -> list[list[str]]:
    """Digests of the same rows, but for a few, together: what was spent on a table counts when rows are added to it."""
    tables: list[list[str]] = []
    for digest in digests:
        near = [table for table in tables if any(ledger.same(digest, other) for other in table)]
        tables = [table for table in tables if table not in near] + [[*(d for table in near for d in table), digest]]
    return tables


def _summed(name: str, lines: Sequence[Mapping[str, Any]], delta: float) -> PartyPrivacy:
    covered = [line["mechanism"] for line in lines if (line["mechanism"] or {}).get("unit") in UNITS]
    spent = accountant.spent([accountant.from_table(table) for table in covered], delta)
    exact = [line for line in lines if line["mechanism"] is None]
    told = f"{_times(name, len(exact))} {_together(exact)}: whoever sees a sum learns it, and no ε covers it."
    outside = [told] if exact else []
    outside += [f"ε for {unit}s does not cover {OUTSIDE[unit]}." for unit in spent]
    if not spent:
        outside.append("nothing was released with noise, so no ε is guaranteed.")
    once = [
        Line(line["time"][:10], line["job"][:12], line["what"], tuple(line["parties"]), how(line["mechanism"])) for line in lines
    ]
    return PartyPrivacy(name, [replace(line, times=times) for line, times in Counter(once).items()], spent, outside)


def how(mechanism: Mapping[str, Any] | None) -> str:
    """A mechanism in words."""
    if mechanism is None:
        return "summed exactly under masks, and opened"
    kind = mechanism.get("kind")
    if kind == "gaussian":
        sampled = "" if mechanism["rate"] == 1 else f", each of {100 * mechanism['rate']:.3g} % of the rows"
        sums = "a sum" if mechanism["count"] == 1 else f"{mechanism['count']} sums"
        return f"{sums} with noise of {mechanism['multiplier']:.3g} times what a row can add{sampled}"
    if kind == "response":
        return f"labels randomised with ε = {mechanism['epsilon']:g}"
    known = {"empty": "no numbers in it", "sealed": "sealed: nobody learns a sum", "covered": "summed with the noise it has",
             "counts": "numbers of rows and labels, exactly: no ε hides them"}  # fmt: skip
    return known.get(str(kind), f"mechanism {kind}")


def _times(name: str, n: int) -> str:
    return f"rows of {name} were in {many(n, 'exact sum')} over"


def _together(lines: Sequence[Mapping[str, Any]]) -> str:
    sets = sorted({", ".join(line["parties"]) for line in lines})
    some = "; ".join([*sets[:3], *(["…"] if len(sets) > 3 else [])])
    return some if len(sets) == 1 else f"{len(sets)} different sets of parties ({some})"


# ---------------------------------------------------------------- for people


def shown(line: Line) -> dict[str, Any]:
    """A line of the table."""
    return dict(day=line.day, what=line.what, parties=", ".join(line.parties), how=line.how, times=line.times)


def cost(party: PartyPrivacy, unit: str) -> str:
    """ε in a table; an empty cell where nothing of the kind was released."""
    return f"{party.spent[unit][0]:.3g}" if unit in party.spent else ""


def sentences(party: PartyPrivacy) -> list[str]:
    """What is promised so far, and for what."""
    spent = party.spent.items()
    return [f"{party.name}: ε = {epsilon:.3g} at δ = {delta:g} so far for {UNITS[unit]}." for unit, (epsilon, delta) in spent]


def outside(found: Sequence[PartyPrivacy]) -> list[str]:
    """What no party's ε covers, each sentence once."""
    return [f"Outside: {sentence}" for sentence in dict.fromkeys(sentence for party in found for sentence in party.outside)]


def as_json(found: Sequence[PartyPrivacy]) -> str:
    return json.dumps([party.to_dict() for party in found], indent=1, ensure_ascii=False)
