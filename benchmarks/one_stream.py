"""FedAvg+XCLP with the batches that the paper does not take: labelled and pseudo-labelled rows shuffled into one stream."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from grapevine.core import Client
from grapevine.learn import bases, pseudo
from grapevine.methods import XCLP


@dataclass(frozen=True)
class OneStream(XCLP):
    """Batches of the same size, in which a client's few labels are as rare as among its rows."""

    name = "xclp-one-stream"
    title = "FedAvg+XCLP with one stream of batches (ablation)"

    def _update(self, client: Client, weights: dict, control: dict, lr: float, round: int, labels: torch.Tensor,
                confidence: torch.Tensor, class_weight: torch.Tensor | None, n: int) -> dict:  # fmt: skip
        own, others = client.data.labelled, client.data.unlabelled
        rows = replace(others, index=torch.cat([own.index, others.index]), y=torch.full((len(own) + len(others),), -1))
        y = torch.cat([own.y, labels])
        w = torch.cat([torch.ones(len(own), dtype=confidence.dtype), confidence])
        size = min(self.batch, len(own)) or self.batch  # two streams would take twice this, half of them labelled

        def train(model, adjust):
            return pseudo.two_streams(model, own.take(torch.arange(0)), rows, y, w, lr, self.epochs, client.rng("train", round),
                                      size, self.weight_decay, class_weight=class_weight, augment=self.augment,
                                      adjust=adjust)  # fmt: skip

        return bases.client_update(client, self.base, weights, control, round, lr, self.mu, train, n)
