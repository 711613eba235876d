"""SAGE. Liu, Shang, Zhang, Lu, Gong, Xue, Wang: "Mind the Gap: Confidence Discrepancy Can Guide Federated Semi-Supervised
Learning Across Pseudo-Mismatch", CVPR 2025.

The model as the server sent it and the model in training both label the weak view of a row (collaborative pseudo-labels). Where
they differ in confidence, the local label moves towards the global one (confidence-driven soft correction), and the strong view
learns the mixture. The server averages by numbers of rows, as FedAvg.

Departures: a round is `epochs` passes over a client's rows; in the authors' code it is n/128 steps of 256 rows, twice as many.
The last, smaller batch of a pass is used. The learning rate is constant, as theirs. A batch in which nothing is labelled and
nothing is used moves nothing, and a client that took no step is left out. κ is given as the difference at which λ is ½.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from grapevine.core import Client, Method, Server, param, step
from grapevine.core.reply import COUNT
from grapevine.learn import average, bases
from grapevine.learn.losses import consistency_kl
from grapevine.learn.pseudo import TwoModels, fit_labelling, softly_corrected, without_labels
from grapevine.learn.streams import epoch_steps


@dataclass(frozen=True)
class LabelledByTwo(Method):
    """FedAvg of clients that train on labels of two models, with SAGE's batches and rates. A method adds its `rule`."""

    extra = "weak and strong views of all rows, labelled by two models"

    lr: float = param(0.1, "η", "learning rate of the clients", above=0)
    epochs: int = param(5, "E", "passes over all rows per round", least=1)
    batch: int = param(128, "B", "labelled rows in a batch", least=1)
    momentum: float = param(0.9, "", "momentum of SGD, forgotten between rounds", least=0, most=1)
    weight_decay: float = param(1e-4, "", "L2 penalty", least=0)
    ratio: int = param(2, "μ", "unlabelled rows in a batch for each labelled one", least=1)
    threshold: float = param(0.95, "τ", "least probability of a pseudo-label", least=0, most=1)

    def gradient_steps(self, labelled: int, unlabelled: int, at_server: int) -> int:
        return self.epochs * epoch_steps(labelled, labelled + unlabelled, self.batch, self.ratio)

    @step(reveals=dict(weights=bases.MODEL, n=bases.HELD), like=dict(weights="weights", n=COUNT),
          averaged=dict(weights="n"))  # fmt: skip
    def train(self, client: Client, weights: dict, round: int) -> dict:
        rows, sent = without_labels(client.data), client.model(weights).eval()
        loss = TwoModels(client.model(weights), client.data.labelled, rows, client.rng("train", round), sent, self.rule)
        return dict(weights=loss.model.state(), n=len(rows)) if fit_labelling(self, client, loss) else dict(n=0)

    @abstractmethod
    def rule(self, own: Tensor, sent: Tensor, taught: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `learn.pseudo.Rule`."""

    def check(self, server: Server) -> None:
        bases.note_unused_labels(self, server)

    def round(self, server: Server, state: dict) -> dict:
        t, weights = state["round"], state["weights"]
        replies = server.ask(self.train, to=server.sample(t), weights=weights, round=t)
        bases.note_diversity(server, bases.moves(replies, weights))
        return dict(weights=average(replies, otherwise=weights), round=t + 1)


@dataclass(frozen=True)
class SAGE(LabelledByTwo):
    """FixMatch at the clients, its labels corrected by the global model where the two differ in confidence."""

    name = "sage"
    title = "SAGE: local labels corrected by the global model where their confidences differ (Liu et al. 2025)"

    half: float = param(0.05, "ln 2 / κ", "difference of confidences at which local and global label weigh the same", above=0)
    weight: float = param(1.0, "λ_u", "weight of the unlabelled loss", least=0)

    def rule(self, own: Tensor, sent: Tensor, taught: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """λ_u · mean 1[used] KL(target ‖ p(strong))."""
        target, used = softly_corrected(own.detach().softmax(-1), sent.softmax(-1), self.threshold, self.half)
        return self.weight * consistency_kl(taught, target, used), target.argmax(-1), used
