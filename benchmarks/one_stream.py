"""FedAvg+XCLP with the batches that the paper does not take: labelled and pseudo-labelled rows shuffled into one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grapevine.core import Client, Network
from grapevine.learn import bases, train
from grapevine.learn.streams import NONE, TwoStreams
from grapevine.learn.training import Adjust
from grapevine.methods import XCLP


@dataclass(frozen=True)
class OneStream(XCLP):
    """Batches of the same size, in which a client's few labels are as rare as among its rows."""

    name = "xclp-one-stream"
    title = "FedAvg+XCLP with one stream of batches (ablation)"

    def update(
        self, client: Client, told: Mapping[str, Any], labels: Tensor, weight: Tensor, class_weight: Tensor | None = None
    ) -> dict:
        own, others, rng = client.data.labelled, client.data.unlabelled, client.rng("train", told["round"])
        rows = replace(others, index=torch.cat([own.index, others.index]), y=torch.full((len(own) + len(others),), -1))
        y, w = torch.cat([own.y, labels]), torch.cat([torch.ones(len(own), dtype=weight.dtype), weight])
        size = min(self.batch, len(own)) or self.batch  # two streams would take twice this, half of them labelled

        def descend(model: Network, adjust: Adjust | None) -> int:
            loss = TwoStreams(model, own.take(NONE), rows, y, w, rng, class_weight, self.augment)
            optimiser = torch.optim.SGD(model.parameters(), told["lr"], weight_decay=self.weight_decay)
            return train(model, loss.batches(size, self.epochs), loss, optimiser, rng, adjust)

        return bases.client_update(client, self, told, descend, int(((y >= 0) & (w > 0)).sum()))
