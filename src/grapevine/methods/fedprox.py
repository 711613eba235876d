"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2.

Departures: as FedAvg's. Devices are sampled uniformly and averaged by their number of labels, as in the authors'
experiments (their Algorithm 2 samples by p_k and averages uniformly). All devices do E epochs: inexactness γ_k is not
drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.learn import average, bases, pull
from grapevine.learn.private import fit_own
from grapevine.learn.training import steps_of


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term that keeps each client near the global model."""

    name = "fedprox"
    title = "FedProx on the labelled rows (Li et al. 2020)"
    private = "fedprox"

    mu: float = param(0.01, "μ", "strength of the proximal term μ/2 · ‖w − wᵗ‖²", least=0)
    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes over the labelled rows per round", least=1)
    batch: int = param(50, "B", "batch size of the clients", least=1)

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return steps_of(labelled, self.batch, self.epochs)

    @step(reveals=dict(weights=bases.MODEL, n=bases.USED), like=dict(weights="weights", n=COUNT),
          averaged=dict(weights="n"))  # fmt: skip
    def train(self, client: Client, weights: dict, round: int) -> dict:
        """line 6: w_k ≈ argmin_w h_k(w; wᵗ) = F_k(w) + μ/2 · ‖w − wᵗ‖²."""
        model = client.model(weights)
        rows = client.data.labelled
        fit_own(client, model, self.lr, self.epochs, round, self.batch, pull(weights, self.mu))
        return dict(weights=model.state(), n=len(rows))

    def round(self, server: Server, state: dict) -> dict:
        chosen = server.sample(state["round"])  # line 3: S_t
        replies = server.ask(self.train, to=chosen, weights=state["weights"], round=state["round"])  # line 4
        weights = average(replies, otherwise=state["weights"])  # line 8
        bases.note_diversity(server, bases.moves(replies, state["weights"]))
        return dict(weights=weights, round=state["round"] + 1)
