"""Rows as features: of a network that was trained on ImageNet, or of a finished training run (`--embed`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grapevine.core.errors import Mistake
from grapevine.data.columns import Layout
from grapevine.data.embed import PIXELS, PRETRAINED, embed_images
from grapevine.run.model import Model


@dataclass(frozen=True)
class FeatureMaker:
    """What makes features of rows: the network trained on ImageNet, or a run's `model`."""

    model: Model | None

    @classmethod
    def named(cls, embed: str) -> FeatureMaker:
        return cls(None if embed == PRETRAINED else Model.load(embed))

    @property
    def pixels(self) -> int | None:
        """The side that images must have; None where they may have any."""
        if self.model is None:
            return PIXELS
        return self.model.shape[-1] if len(self.model.shape) == 3 else None

    @property
    def layout(self) -> Layout | None:
        """The columns that a table must have, if the run was trained on a table."""
        return self.model.layout if self.model and self.model.layout.columns else None

    def __call__(self, x: np.ndarray, where: str) -> tuple[np.ndarray, list[str] | None]:
        """The features of rows, and what a run says of them itself."""
        if self.model:
            return model_features(self.model, x, where)
        if x.ndim != 4:
            raise Mistake(
                f"{PRETRAINED} takes images, but {where} is a table: leave --embed out, or name a run trained on tables."
            )
        return embed_images(torch.as_tensor(x), PRETRAINED, PIXELS).numpy().astype(np.float64), None


def model_features(model: Model, x: np.ndarray | Tensor, where: str, batch: int = 1000) -> tuple[np.ndarray, list[str]]:
    """Rows as the features of a finished train run (XCLP, section 4.1: "finetuned"), and what that run says of them itself."""
    x = torch.as_tensor(x)
    if math.prod(x.shape[1:]) == math.prod(model.shape) and x.dim() == 2:
        x = x.reshape(-1, *model.shape)  # images as a table, a pixel a column
    if tuple(x.shape[1:]) != model.shape:
        raise Mistake(f"{where} has rows of shape {tuple(x.shape[1:])}, but the run of --embed was trained on {model.shape}.")
    if x.isnan().any():
        raise Mistake(f"{where} has missing values, but the run of --embed was trained without any: fill them in first.")
    said = model.predict(x)  # its predictor loads the weights, with what belongs to them
    with torch.no_grad():
        pieces = [model.network.features(model.scale(piece)).flatten(1) for piece in x.split(batch)]
    return torch.cat(pieces).numpy().astype(np.float64), said
