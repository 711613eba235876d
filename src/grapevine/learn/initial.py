"""What a network may begin with besides chance: the weights of a finished run, or SimCLR's on rows without labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from grapevine.core import Network
from grapevine.core.errors import Mistake
from grapevine.core.models import model_file, read_tensors
from grapevine.core.rows import Rows
from grapevine.data.augment import Views
from grapevine.learn.layers import linear
from grapevine.learn.losses import nt_xent
from grapevine.learn.normalisation import BatchNorm1d
from grapevine.learn.training import Weights


def pretrained(own: Weights, folder: str, classes: tuple[str, ...]) -> Weights:
    """The network's first weights, replaced by those of a finished run: all of its features, and its head if that run's classes
    were the same."""
    begin = "shared/weights/"
    about, found = read_tensors(model_file(folder))
    theirs = {name.removeprefix(begin): tensor for name, tensor in found.items() if name.startswith(begin)}
    wanted = [name for name in own if name.startswith("features.") or about["classes"] == list(classes) and name in theirs]
    for name in wanted:
        if name not in theirs or theirs[name].shape != own[name].shape:
            raise Mistake(
                f"the run in {folder} ({about['method']} with model {about['model']}) has no '{name}' that fits: use one with "
                "the same --model and --norm, on rows of the same shape."
            )
    return own | {name: theirs[name] for name in wanted}


def projector(width: int, rng: torch.Generator) -> nn.Sequential:
    """SimCLR's g: from feature vectors to 128 dimensions, through a hidden layer as wide as the features, normalised by batch."""
    return nn.Sequential(linear(width, width, rng), BatchNorm1d(width), nn.ReLU(), linear(width, 128, rng))


def simclr(
    model: Network, projector: nn.Module, rows: Rows, rng: torch.Generator, temperature: float
) -> Callable[[Tensor], Tensor | None]:
    """SimCLR's loss between two strong views of the rows at some positions, labels unseen; none for a row alone."""
    views = Views(rows)

    def loss(at: Tensor) -> Tensor | None:
        if len(at) < 2:  # nothing to tell it from
            return None
        a, b = projector(model.features(torch.cat([views.strong(at, rng), views.strong(at, rng)]))).chunk(2)
        return nt_xent(a, b, temperature)

    return loss
