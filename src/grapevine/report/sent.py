"""What was sent: bytes by step and direction, from the lines of messages.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grapevine.core.words import size
from grapevine.report.charts.kinds import bars
from grapevine.report.parts import Chart, Table


def chart(messages: Sequence[dict[str, Any]], whom: str = "client") -> list[Chart]:
    """A bar for each step and direction, added up over the rounds; the fields are in the numbers behind it."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for line in messages:
        one = sums.setdefault((line["step"], line["direction"]), dict(bytes=0, messages=0, fields={}))
        one["bytes"] += line["bytes"]
        one["messages"] += line["messages"]
        for name, field in line.get("fields", {}).items():
            known = one["fields"].setdefault(name, dict(type=field["type"], shape=field["shape"], bytes=0))
            known["bytes"] += field["bytes"]
            known["shape"] = field["shape"] if known["shape"] == field["shape"] else ["varies"]
    steps = [[*key, one["messages"], one["bytes"], size(one["bytes"] / one["messages"])] for key, one in sums.items()]
    fields = [[*key, name, field["type"], "×".join(map(str, field["shape"])) or "one", field["bytes"]]
              for key, one in sums.items() for name, field in one["fields"].items()]  # fmt: skip
    numbers = [Table(["step", "direction", "messages", "bytes", "a message"], steps)]
    numbers += [Table(["step", "direction", "field", "type", "shape", "bytes"], fields)] if fields else []
    up, down = (sum(one["bytes"] for key, one in sums.items() if key[1] == way) for way in ("up", "down"))
    note = f"{size(up)} up (↑ {whom} to server), {size(down)} down (↓ server to {whom}), all of them together."
    names = [f"{dict(up='↑', down='↓').get(direction, direction)} {step}" for step, direction in sums]
    values = {"bytes": [one["bytes"] for one in sums.values()]}
    return [bars("Bytes by step and direction", names, values, "step", size, note=note, numbers=numbers)] if sums else []
