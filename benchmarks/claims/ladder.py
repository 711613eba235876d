"""A claim about one field of one method: its values from least to most, and what each gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import Setting, accuracies, compared, spread


def ladder(
    settings: dict[str, Setting], method: str, field: str, values: Sequence[Any], quick: bool
) -> dict[str, dict[str, list]]:
    """Accuracies by seed for every setting and value. The method's other fields are those that its trials chose."""
    from grapevine.methods import find

    usual = getattr(find(method)(), field)  # claims share the runs in which the field is as it always is
    specs = {value: method if value == usual else f"{method}:{field}={value}" for value in values}
    out = {}
    for name, setting in settings.items():
        runs = compared(setting, list(specs.values()), quick)
        out[name] = {str(value): accuracies(runs[specs[value]]) for value in values}
    return out


def spreads(found: dict[str, dict[str, list]]) -> dict[str, dict[str, Any]]:
    return {name: {value: spread(scores) for value, scores in each.items()} for name, each in found.items()}
