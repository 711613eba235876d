"""What the end of a training run says of its numbers, in the terminal and on its page alike: on how few rows its accuracy rests,
why its round was kept and whether by chance, what the clients' accuracies are of, and which labels came from a label job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grapevine.core.words import count, many, percent
from grapevine.jobs.expected import wilson

FEW = 20  # validation or test rows: with fewer, chance chooses the round, or makes the accuracy
APART = 0.02  # of a class's share: from here on, the test rows have another balance than the clients'


@dataclass(frozen=True)
class Basis:
    """On how many rows an accuracy was measured, and its 95 % interval."""

    n: int
    low: float
    high: float

    @property
    def between(self) -> str:
        return f"{percent(self.low)} to {percent(self.high)}"


def rests_on(result: Mapping[str, Any]) -> Basis | None:
    """Of a finished run; None where nothing could be measured. Older results have only their confusion matrix."""
    n = result.get("test_rows") or sum(map(sum, result.get("confusion") or []))
    right = result["accuracy"]
    return Basis(n, *(min(max(end, 0.0), 1.0) for end in wilson(right * n, n))) if n and right is not None else None


def kept_for(result: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> str:
    """Why the round that was kept was kept."""
    if all(line.get("validation_accuracy") is None for line in history):
        return "last"
    n = result.get("validation_rows")  # older results do not have it
    return f"best on {many(n, 'validation row')}" if n else "best on validation"


def few_tested(rests: Basis | None) -> list[str]:
    """A warning where so few test rows measured the accuracy."""
    if rests is None or rests.n >= FEW:
        return []
    return [f"Only {many(rests.n, 'test row')} measured the accuracy, so it says little: label more rows, or mark more of them "
            "as test rows in a column called split."]  # fmt: skip


def few_chose(n: int | None) -> list[str]:
    """A warning where so few validation rows chose the round, if any did."""
    if not n or n >= FEW:
        return []
    return [f"Only {many(n, 'validation row')} chose the round that was kept, so it may be the best by chance: look at the last "
            "round, too, and label more rows if you can."]  # fmt: skip


def clients_of(result: Mapping[str, Any]) -> str:
    """What the clients' accuracies are of."""
    own = result.get("own_test_rows")
    if own is None:  # a result of before this was written down
        return "On the client's own test rows, or on the common ones weighed by its mix of classes."
    if own:
        return "On each client's own test rows."
    return f"On the common test rows, weighed by each client's mix of classes.{_balance(result)}"


def _balance(result: Mapping[str, Any]) -> str:
    """Which class is most over- or underrepresented in the test rows, if that matters."""
    mix, rows = result.get("class_mix"), [sum(row) for row in result["confusion"]]
    if not mix or not sum(rows):
        return ""
    shares = [n / sum(rows) for n in rows]
    c = max(range(len(mix)), key=lambda c: abs(shares[c] - mix[c]))
    if abs(shares[c] - mix[c]) < APART:
        return ""
    name = result["data"]["classes"][c]
    return (f" The test rows as they are have another balance: {name} is {percent(mix[c])} of the clients' rows but "
            f"{percent(shares[c])} of the test rows.")  # fmt: skip


def job_labels(data: Mapping[str, Any]) -> list[str]:
    """How many labels came from a label job, and whether it knew labels of rows that the run is judged by."""
    made = data.get("job_labels")
    if not made:
        return []
    least = str(data["labels_from"]).partition(", ")[2]
    said = [f"{count(made['new'])} of the clients' {many(made['of'], 'label')} came from the label job ({least})."]
    if made["held_out"]:
        said.append(f"The label job had the labels of {many(made['held_out'], 'row')} that this run holds out for testing or "
                    "validation, so the accuracy may be too high.")  # fmt: skip
    return said
