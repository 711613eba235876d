"""FedLabel. Cho, Joshi, Dimitriadis: "Local or Global: Selective Knowledge Assimilation for Federated Learning with Limited
Labels", ICCV 2023.

For every unlabelled row a client takes the label of its own model or that of the global model, whichever is surer of the weak
view, and teaches it to the strong view. Where both models name the same class, the client's answer is also kept close to the
global one (global-local consistency). The server averages by numbers of rows, as FedAvg.

Departures: the authors have published no code, and what the text leaves open is settled here: sureness is the largest
probability, the consistency term is KL(global ‖ local) on the weak view, its weight is 1 as in SAGE's comparison, and batches
and learning rate are SAGE's. A batch in which nothing is labelled and nothing is used moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grapevine.core import Client, param, step
from grapevine.core.reply import COUNT
from grapevine.learn import bases
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.pseudo import fit_two_models, likelier
from grapevine.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedLabel(FedAvg):
    """Pseudo-labels from the local or the global model, whichever is surer of the row."""

    name = "fedlabel"
    title = "FedLabel: labels from the local or the global model, whichever is surer (Cho et al. 2023)"
    extra = "weak and strong views of all rows, labelled by two models"

    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes over all rows per round", least=1)
    batch: int = param(128, "B", "labelled rows in a batch", least=1)
    momentum: float = param(0.9, "", "momentum of SGD, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(1e-4, "", "L2 penalty", least=0)
    ratio: int = param(2, "μ", "unlabelled rows in a batch for each labelled one", least=1)
    threshold: float = param(0.95, "τ", "least probability of a pseudo-label", least=0, most=1)
    consistency: float = param(1.0, "λ", "weight of the divergence from the global model where both agree", least=0)

    @step(reveals=dict(weights=bases.MODEL, n=bases.HELD), like=dict(weights="weights", n=COUNT),
          averaged=dict(weights="n"))  # fmt: skip
    def train(self, client: Client, weights: dict, round: int) -> dict:
        return fit_two_models(self, client, weights, round, self.rule)

    def rule(self, own: Tensor, sent: Tensor, taught: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean 1[used] H(label, p(strong)) + λ · mean 1[used and agreed] KL(p_global(weak) ‖ p(weak))."""
        p, q = own.detach().softmax(-1), sent.softmax(-1)
        labels, used = likelier(p, q, self.threshold)
        apart = consistency_kl(own, q, used & (p.argmax(-1) == q.argmax(-1)))
        return cross_entropy(taught, labels, used) + self.consistency * apart, labels, used
