"""Differential privacy on a run's page: what is promised, for what, what is outside, and every client's numbers."""

from __future__ import annotations

from grapevine.core.words import many
from grapevine.report.files import Files
from grapevine.report.parts import Part, Table

HEADS = ["client", "labelled rows", "sampled per step", "noise", "rounds", "steps", "ε spent"]


def parts(files: Files) -> list[Part]:
    told = (files.result or {}).get("privacy")
    if not told:
        return []
    spent, clients = f"ε = {told['epsilon']:g} at δ = {told['delta']:g}", told["per_client"]
    promise = (
        f"{spent} was spent of a budget of ε = {told['budget']:g}, by the one that spent the most. The unit is {told['unit']}. "
        f"Every row's gradient was cut at {told['clip']:g}; noise is in multiples of that."
    )
    rows = [
        [files.name(c["id"]), c["rows"], f"{100 * c['rate']:.3g} %", c["noise"], f"{c['rounds']} / {c['planned_rounds']}",
         c["steps"], f"{c['epsilon']:.3g}"]
        for c in clients
    ]  # fmt: skip
    outside = f"Not covered by any ε: {'; '.join(told['outside'])}."
    ledger = f"The ledger of {many(sum(c['rounds'] for c in clients), 'release')} is privacy.jsonl."
    return [promise, outside, Table(HEADS, rows, "result.json"), f"{ledger} {told['exact'].capitalize()}."]
