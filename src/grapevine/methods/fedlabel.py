"""FedLabel. Cho, Joshi, Dimitriadis: "Local or Global: Selective Knowledge Assimilation for Federated Learning with Limited
Labels", ICCV 2023.

For every unlabelled row a client takes the label of its own model or that of the global model, whichever is surer of the weak
view, and teaches it to the strong view. Where both models name the same class, the client's answer is also kept close to the
global one (global-local consistency), the more the nearer the less sure model is to the surer one. The server averages by numbers
of rows, as FedAvg.

Written from the paper's abstract and from the strategy `FedLabels` of microsoft/msrflute, a framework of the laboratory where two
of the authors worked; not from the paper's full text. From that program: sureness is the variance of a model's probabilities, the
surer model's largest probability must reach the threshold, and the ratio of the two variances weighs the consistency term. Two
re-implementations by others have that ratio, too, but one takes the variance of logits, one the largest probability for it.

Departures from that program: it trains two copies of the model in every round, one on labels, the other on pseudo-labels of the
first and of the model as sent, and averages both. Here one model trains on both kinds of rows, in SAGE's batches and at its rate,
and its own answers are the local ones. The consistency term is therefore KL(global ‖ local) on the weak view; there it pulls
towards the copy that learned from labels. Means are over the batch (there over the rows that they concern). λ is 1 and τ 0.95, as
in SAGE's comparison (there 0.05 and 0.3); FedLabels also has a proximal term and takes pseudo-labels from round 50 on. A batch in
which nothing is labelled and nothing is used moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grapevine.core import param
from grapevine.learn.losses import consistency_kl, cross_entropy
from grapevine.learn.pseudo import surer
from grapevine.methods.sage import LabelledByTwo


@dataclass(frozen=True)
class FedLabel(LabelledByTwo):
    """Pseudo-labels from the local or the global model, whichever is surer of the row."""

    name = "fedlabel"
    title = "FedLabel: labels from the local or the global model, whichever is surer (Cho et al. 2023)"

    consistency: float = param(1.0, "λ", "most that the divergence from the global model weighs where both agree", least=0)

    def rule(self, own: Tensor, sent: Tensor, taught: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean 1[used] H(label, p(strong)) + λ · mean 1[used and agreed] ratio · KL(p_global(weak) ‖ p(weak))."""
        p, q = own.detach().softmax(-1), sent.softmax(-1)
        labels, used, ratio = surer(p, q, self.threshold)
        apart = consistency_kl(own, q, ratio * (used & (p.argmax(-1) == q.argmax(-1))))
        return cross_entropy(taught, labels, used) + self.consistency * apart, labels, used
