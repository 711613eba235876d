"""The account of messages: what each was, added up per round, step, direction and field. Every runtime keeps the same one."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from grapevine.core.tensors import is_tensor
from grapevine.core.wire import CRC_BYTES, MAGIC, size


def fields(payload: dict) -> Iterator[tuple[str, str, list[int], int]]:
    """Top-level fields of a message as (name, type, shape, bytes); a dict of tensors counts as one field."""
    for name, value in payload.items():
        if is_tensor(value) or isinstance(value, np.ndarray):
            kind, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
        elif isinstance(value, (bytes, bytearray)):
            kind, shape = "bytes", [len(value)]
        else:
            kind, shape = type(value).__name__, [len(value)] if isinstance(value, dict) else []
        yield str(name), kind, shape, size(name) + size(value)


class Account:
    """Every message, added up per round, step, direction and field. `down` is server to client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[tuple, dict] = {}
        self.totals: dict[str, int] = defaultdict(int)

    def add(self, round: int, step: str, direction: str, party: Any, payload: dict) -> None:
        overhead = len(MAGIC) + CRC_BYTES + 5
        entries = list(fields(payload))
        total = overhead + sum(e[3] for e in entries)
        with self._lock:
            kind = self._kinds.setdefault((round, step, direction), dict(messages=0, bytes=0, parties=set(), fields={}))
            kind["messages"] += 1
            kind["bytes"] += total
            kind["parties"].add(party)
            for name, dtype, shape, count in entries:
                field = kind["fields"].setdefault(name, dict(type=dtype, shape=shape, bytes=0))
                if field["shape"] != shape:
                    field["shape"] = ["varies"]
                field["bytes"] += count
            self.totals[direction] += total

    def parts(self) -> list[dict]:
        """All of it since the last drain, as a value of JSON, for `merge`."""
        with self._lock:
            return [dict(of=list(of), **{**kind, "parties": sorted(kind["parties"])}) for of, kind in self._kinds.items()]

    def merge(self, parts: list[dict]) -> None:
        """Add another account's messages to this one."""
        with self._lock:
            for part in parts:
                kind = self._kinds.setdefault(tuple(part["of"]), dict(messages=0, bytes=0, parties=set(), fields={}))
                kind["messages"] += part["messages"]
                kind["bytes"] += part["bytes"]
                kind["parties"].update(part["parties"])
                self.totals[part["of"][2]] += part["bytes"]
                for name, found in part["fields"].items():
                    field = kind["fields"].setdefault(name, dict(found, bytes=0))
                    if field["shape"] != found["shape"]:
                        field["shape"] = ["varies"]
                    field["bytes"] += found["bytes"]

    def clear(self) -> None:
        with self._lock:
            self._kinds, self.totals = {}, defaultdict(int)

    def drain(self) -> list[dict]:
        """The lines of messages.jsonl since the last drain, in order of round, step and direction of first use."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
        return [
            dict(round=round, step=step, direction=direction, messages=k["messages"], parties=len(k["parties"]),
                 bytes=k["bytes"], fields={name: k["fields"][name] for name in sorted(k["fields"])})
            for (round, step, direction), k in sorted(kinds.items())
        ]  # fmt: skip
