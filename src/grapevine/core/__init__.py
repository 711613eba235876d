"""Four words: method, step, client, server; and what they stand on: rows, networks, the codec, the account, the store."""

from grapevine.core.client import Client, run_step
from grapevine.core.errors import Mistake
from grapevine.core.method import Id, Method, Predict, SubProtocol, parameters, party_name, rng, step, with_settings
from grapevine.core.network import Meter, ModelSource, Network, counted
from grapevine.core.param import param
from grapevine.core.server import Server, StepError, Transport

__all__ = [
    "Client", "Id", "Meter", "Method", "Mistake", "ModelSource", "Network", "Predict", "Server", "StepError", "SubProtocol",
    "Transport", "counted", "param", "parameters", "party_name", "rng", "run_step", "step", "with_settings",
]  # fmt: skip
