"""What each method of a comparison may spend: passes, batches, the server's training, regularisation.

Methods compare only where they spend alike, so the table shows it, `--budget` sets it for all, and a difference is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grapevine.core import Method, parameters
from grapevine.core.errors import Mistake

FIELDS = {  # of methods: how a value reads
    "epochs": "{} epochs",
    "steps_per_round": "{} steps",
    "batch": "batch {}",
    "pretrain": "{} epochs at the server before",
    "server_epochs": "{} at the server",
    "server_batch": "its batch {}",
    "momentum": "momentum {:g}",
    "weight_decay": "decay {:g}",
    "schedule": "{} rate",
    "augment": "weak views",
}


def check(budget: Mapping[str, Any]) -> None:
    for name, value in budget.items():
        if name not in FIELDS:
            raise Mistake(f"--budget {name}={value}: a budget can set {', '.join(FIELDS)}; for other fields use --set.")


def spent(method: Method) -> dict[str, Any]:
    """The fields of a method that are its budget."""
    known = {f.name for f in parameters(type(method))}
    return {name: getattr(method, name) for name in FIELDS if name in known}


def words(spent: Mapping[str, Any], extra: str) -> str:
    """A budget in a line: what is 0 or off is left out, and what the method does besides is named."""
    told = [FIELDS[name].format(value) for name, value in spent.items() if value]
    return ", ".join(told) + (f"; also {extra}" if extra else "")


def differences(lines: Sequence[Mapping[str, Any]]) -> str:
    """Which parts of the budget differ between those that have them, in one sentence; empty if none does."""
    told = []
    for name in FIELDS:
        by_value: dict[str, list[str]] = {}
        for line in lines:
            if name in line["spent"]:
                by_value.setdefault(f"{line['spent'][name]}", []).append(line["label"])
        if len(by_value) > 1:
            told.append(f"{name} " + ", ".join(f"{value} ({', '.join(who)})" for value, who in by_value.items()))
    if not told:
        return ""
    return f"Budgets differ: {'; '.join(told)}. --budget {told[0].split()[0]}=… gives all methods the same."
