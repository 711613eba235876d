"""What the end of a training run says of its numbers, in the terminal and on its page alike: on how few rows its accuracy rests,
why its round was kept, what the clients' accuracies are of, and which labels came from a label job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grapevine.core.words import count, percent
from grapevine.jobs.expected import wilson

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


def kept_for(history: Iterable[Mapping[str, Any]]) -> str:
    """Why the round that was kept was kept."""
    return "best on validation" if any(line.get("validation_accuracy") is not None for line in history) else "last"


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
    said = [f"{count(made['new'])} of the clients' {count(made['of'])} labels came from the label job ({least})."]
    if made["held_out"]:
        said.append(f"The label job had the labels of {count(made['held_out'])} rows that this run holds out for testing or "
                    "validation, so the accuracy may be too high.")  # fmt: skip
    return said
