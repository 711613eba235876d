"""The lower bounds: every client alone with its own labels, and the server alone with its own.

Neither is federated learning: no weights are sent. `alone` sends one number per client and round.
"""

from __future__ import annotations

from dataclasses import dataclass

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.method import HELD_OUT
from grapevine.core.reply import COUNT
from grapevine.learn import bases, fit
from grapevine.learn.schedules import SCHEDULES, scheduled
from grapevine.learn.training import steps_of


@dataclass(frozen=True)
class Alone(Method):
    """Each client trains a model of its own on its own labels, as often as FedAvg would have chosen it."""

    name = "alone"
    title = "each client alone (lower bound)"
    personal = True

    lr: float = param(0.1, "η", "learning rate", above=0)
    epochs: int = param(5, "E", "passes over the labelled rows per round", least=1)
    batch: int = param(50, "B", "batch size", least=1)
    weight_decay: float = param(0.0, "", "L2 penalty", least=0)
    schedule: str = param("constant", "", "learning rate over the rounds: constant, or cosine as in xclp", choices=SCHEDULES)
    augment: bool = param(False, "", "weak views (translation, flip) in training")

    def individual(self) -> str:
        return "no model leaves a client"

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=dict(n=bases.USED), like=dict(n=COUNT))
    def train(self, client: Client, round: int, lr: float | None = None) -> dict:
        model = client.model(client.memory.get("weights"))
        fit(model, client.data.labelled, lr or self.lr, self.epochs, client.rng("train", round), self.batch,
            augment=self.augment, weight_decay=self.weight_decay)  # fmt: skip
        client.memory["weights"] = model.state()
        return dict(n=len(client.data.labelled))

    @step(reveals=HELD_OUT)
    def evaluate(self, client: Client) -> dict:
        """The client's own model on the test rows."""
        model = client.model(client.memory.get("weights"))
        return client.test(self.predictor(model, dict(weights=model.state())))

    def setup(self, server: Server) -> dict:
        return dict(round=0)

    def round(self, server: Server, state: dict) -> dict:
        told = dict(round=state["round"])
        if self.schedule != "constant":
            told["lr"] = scheduled(self.schedule, self.lr, state["round"], server.rounds)
        server.ask(self.train, to=server.sample(state["round"]), **told)
        return dict(round=state["round"] + 1)

    def shared(self, state: dict) -> dict:
        return {}


@dataclass(frozen=True)
class ServerOnly(Method):
    """The server trains on its own labelled rows and asks nobody."""

    name = "server-only"
    title = "the server alone with its own labels (lower bound)"
    takes = frozenset({"server", "both"})

    lr: float = param(0.1, "η", "learning rate", above=0)
    epochs: int = param(5, "E", "passes over the server's rows per round", least=1)
    batch: int = param(50, "B", "batch size", least=1)
    weight_decay: float = param(0.0, "", "L2 penalty", least=0)
    schedule: str = param("constant", "", "learning rate over the rounds: constant, or cosine as in xclp", choices=SCHEDULES)
    augment: bool = param(False, "", "weak views (translation, flip) in training")

    def check(self, server: Server) -> None:
        bases.own_rows(server)

    def individual(self) -> str:
        return "the server asks no client"

    def round(self, server: Server, state: dict) -> dict:
        model, lr = server.model(state["weights"]), scheduled(self.schedule, self.lr, state["round"], server.rounds)
        fit(model, bases.own_rows(server), lr, self.epochs, server.rng("train", state["round"]), self.batch,
            augment=self.augment, weight_decay=self.weight_decay)  # fmt: skip
        return dict(weights=model.state(), round=state["round"] + 1)
