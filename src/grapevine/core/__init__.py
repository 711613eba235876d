"""Four words: method, step, client, server; and what they stand on: rows, networks, the codec, the account, the store.

Names are imported when they are asked for: settings and errors are read by commands that must not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.param import param

if TYPE_CHECKING:
    from grapevine.core.client import Client, run_step
    from grapevine.core.meter import Meter
    from grapevine.core.method import Id, Method, Predict, SubProtocol, parameters, party_name, rng, step, with_settings
    from grapevine.core.network import ModelSource, Network, counted
    from grapevine.core.server import Server, StepError, Transport

__all__ = [
    "Client", "Id", "Meter", "Method", "Mistake", "ModelSource", "Network", "Predict", "Server", "StepError", "SubProtocol",
    "Transport", "counted", "param", "parameters", "party_name", "rng", "run_step", "step", "with_settings",
]  # fmt: skip
_HOMES = {
    "client": ("Client", "run_step"),
    "method": ("Id", "Method", "Predict", "SubProtocol", "parameters", "party_name", "rng", "step", "with_settings"),
    "meter": ("Meter",),
    "network": ("ModelSource", "Network", "counted"),
    "server": ("Server", "StepError", "Transport"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"grapevine.core.{home}"), name)
    raise AttributeError(f"grapevine.core has no '{name}'")
