"""What each method of a comparison may spend: passes, batches, the server's training, regularisation.

Methods compare only where they spend alike, so the table shows it, `--budget` sets it for all, and a difference is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from statistics import fmean
from typing import Any

from grapevine.core import Method, parameters, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.param import refusal
from grapevine.core.words import count, hint, many

FIELDS: dict[str, Callable[[Any], str]] = {  # of methods: how a value reads
    "epochs": lambda n: many(n, "epoch"),
    "steps_per_round": lambda n: many(n, "step"),
    "period": lambda n: many(n, "step"),
    "batch": lambda n: f"batch {n}",
    "pretrain": lambda n: f"{many(n, 'epoch')} at the server before",
    "server_epochs": lambda n: f"{n} at the server",
    "server_batch": lambda n: f"its batch {n}",
    "momentum": lambda share: f"momentum {share:g}",
    "weight_decay": lambda penalty: f"decay {penalty:g}",
    "schedule": lambda kind: f"{kind} rate",
    "augment": lambda on: "weak views",
}
AT_SERVER = ("pretrain", "server_epochs", "server_batch")  # act only where the server has labelled rows
STEPS = ("steps_per_round", "period")  # the length of a round in gradient steps, which others count in passes
Line = Mapping[str, Any]  # of a table


def check(budget: Mapping[str, Any], methods: Sequence[type[Method]]) -> None:
    """Fields that are no budget or that nobody has, and values that a method cannot have."""
    known = {method: {f.name for f in parameters(method)} for method in methods}
    there = [name for name in FIELDS if any(name in names for names in known.values())]
    for name, value in budget.items():
        if name not in FIELDS:
            raise Mistake(
                f"--budget {name}={value}{hint(name, FIELDS)}: a budget can set {', '.join(FIELDS)}; for other fields use --set."
            )
        if name not in there:
            raise Mistake(f"--budget {name}={value}: none of the methods has a field '{name}'; there are {', '.join(there)}.")
        _check_value(name, value, [f for method in methods for f in parameters(method) if f.name == name])
    for method, names in known.items():
        with_settings(method, {name: value for name, value in budget.items() if name in names})


def _check_value(name: str, value: Any, whose: Sequence[Field]) -> None:
    """A value that one of the fields cannot have."""
    for f in whose:
        if wrong := refusal(f, str(value)):
            raise Mistake(f"--budget {name}={value} {wrong.rstrip('.')}.")


def check_server(budget: Mapping[str, Any], at_server: Sequence[int]) -> None:
    """Fields of a server that has no labelled rows in any cell."""
    for name in budget:
        if name in AT_SERVER and not any(at_server):
            raise Mistake(f"--budget {name}={budget[name]}: the server has no labels here, so nothing is trained there; leave "
                          f"{name} out, or give the server labels, as in --labels server:500.")  # fmt: skip


def handed(budget: Mapping[str, Any], at_server: int) -> dict[str, Any]:
    """The part of a budget that can act where the server has so many labelled rows."""
    return {name: value for name, value in budget.items() if at_server or name not in AT_SERVER}


def spent(method: Method, at_server: int) -> dict[str, Any]:
    """The fields of a method that are its budget and act, where the server has so many labelled rows."""
    acting = handed(method.spent(at_server), at_server)
    if not acting.get("pretrain") and not acting.get("server_epochs"):
        acting.pop("server_batch", None)
    return {name: acting[name] for name in FIELDS if name in acting}


def steps(method: Method, rows: Sequence[tuple[int, int]], at_server: int) -> float | None:
    """The most gradient steps of a client in a round, as the mean over clients with so many labelled and unlabelled rows."""
    each = [method.gradient_steps(labelled, unlabelled, at_server) for labelled, unlabelled in rows]
    known = [n for n in each if n is not None]
    return fmean(known) if known else None


def idle(budget: Mapping[str, Any], lines: Sequence[Line]) -> list[str]:
    """The fields of a budget that act on no line."""
    return [name for name in budget if not any(name in line["spent"] for line in lines)]


# ---------------------------------------------------------------- in words


def words(spent: Mapping[str, Any], extra: str) -> str:
    """A budget in a line: what is 0 or off is left out, and what the method does besides is named."""
    told = ", ".join(FIELDS[name](value) for name, value in spent.items() if value or name == "batch")
    return f"{told}; also {extra}" if told and extra else told or extra


def notes(lines: Sequence[Line], idle: Sequence[str], common: Mapping[str, Any]) -> list[str]:
    """What a reader of a table must know of its budgets, in sentences. `common` are fields that were set for all methods."""
    unused = f"No method here uses the budget's {', '.join(idle)}." if idle else ""
    return [note for note in (_differences(lines, common), _lengths(lines), unused) if note]


def _differences(lines: Sequence[Line], common: Mapping[str, Any]) -> str:
    """Which parts of the budget differ between those that have them."""
    told = {}
    for name in FIELDS:
        of = _by_value({line["label"]: line["spent"][name] for line in lines if name in line["spent"]})
        if len(of) > 1:
            told[name] = f"{name} " + ", ".join(f"{value} ({who})" for value, who in of.items())
    if not told:
        return ""
    way_out = [f" --budget {name}=… sets it for every method that has it." for name in told if name not in common]
    return f"Budgets differ: {'; '.join(told.values())}.{''.join(way_out[:1])}"


def _lengths(lines: Sequence[Line]) -> str:
    """How many gradient steps a round is, where some methods count them and others count passes."""
    counting = [line["label"] for line in lines if any(name in line["spent"] for name in STEPS)]
    if not counting or not any("epochs" in line["spent"] for line in lines):
        return ""
    known = {line["label"]: line["steps"] for line in lines if line.get("steps") is not None}
    numbers = _by_value(dict(sorted(known.items(), key=lambda one: one[1])))
    each = ", ".join(f"{count(n)} ({who})" for n, who in numbers.items())
    count_steps = "counts gradient steps" if len(counting) == 1 else "count gradient steps"
    return (
        f"{' and '.join(counting)} {count_steps}, other methods passes over their rows: the most steps that a client takes in a "
        f"round are, on average over the clients, {each}."
    )


def _by_value(values: Mapping[str, Any]) -> dict[Any, str]:
    """Each value, and the labels that have it."""
    of: dict[Any, list[str]] = {}
    for label, value in values.items():
        of.setdefault(value, []).append(label)
    return {value: ", ".join(who) for value, who in of.items()}
