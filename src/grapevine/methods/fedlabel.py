"""FedLabel. Cho, Joshi, Dimitriadis: "Local or Global: Selective Knowledge Assimilation for Federated Learning with Limited
Labels", ICCV 2023.

For every unlabelled row a client takes the label of its own model or that of the global model, whichever is surer of the weak
view, and teaches it to the strong view. Where both models name the same class, the client's answer is also kept close to the
global one (global-local consistency). The server averages by numbers of rows, as FedAvg.

Written from the paper's abstract and from how later papers describe it, not from its full text, and the authors have published
no code. What these leave open is settled here: sureness is the largest probability, the consistency term is KL(global ‖ local)
on the weak view, its weight is 1 as in SAGE's comparison, and batches and learning rate are SAGE's. A batch in which nothing
is labelled and nothing is used moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grapevine.core import param
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.pseudo import likelier
from grapevine.methods.sage import LabelledByTwo


@dataclass(frozen=True)
class FedLabel(LabelledByTwo):
    """Pseudo-labels from the local or the global model, whichever is surer of the row."""

    name = "fedlabel"
    title = "FedLabel: labels from the local or the global model, whichever is surer (Cho et al. 2023)"

    consistency: float = param(1.0, "λ", "weight of the divergence from the global model where both agree", least=0)

    def rule(self, own: Tensor, sent: Tensor, taught: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean 1[used] H(label, p(strong)) + λ · mean 1[used and agreed] KL(p_global(weak) ‖ p(weak))."""
        p, q = own.detach().softmax(-1), sent.softmax(-1)
        labels, used = likelier(p, q, self.threshold)
        apart = consistency_kl(own, q, used & (p.argmax(-1) == q.argmax(-1)))
        return cross_entropy(taught, labels, used) + self.consistency * apart, labels, used
