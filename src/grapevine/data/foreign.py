"""Foreign rows: those of another data set, mixed in among a client's own (--irrelevant)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from grapevine.core.errors import Mistake
from grapevine.core.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

    from grapevine.data.datasets import Dataset

IRRELEVANT = -2  # the truth of a foreign row


def parse_irrelevant(text: str) -> tuple[str, float]:
    """The data set and the share of --irrelevant NAME:0.5."""
    name, _, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not name or not 0 < share < math.inf:
        raise Mistake(f"--irrelevant {text!r} is not valid; write NAME:0.5 for one foreign row per two of your own.")
    return name, share


def check_foreign(irrelevant: str, foreign: Dataset | None) -> tuple[Dataset, float]:
    """The foreign data set, which must be there, and the share."""
    name, share = parse_irrelevant(irrelevant)
    if foreign is None:
        raise Mistake(f"--irrelevant {irrelevant}: load the data set {name} and pass it as `foreign`.")
    return foreign, share


def with_foreign(dataset: Dataset, foreign: Dataset, extra: Tensor) -> tuple[Tensor, Tensor]:
    """x and truth of a split with these foreign rows behind the data set's own."""
    x = torch.cat([dataset.x, fitted(foreign.x[extra], foreign, dataset)])
    return x, torch.cat([dataset.y, torch.full((len(extra),), IRRELEVANT)])


def fitted(x: Tensor, foreign: Dataset, dataset: Dataset) -> Tensor:
    """Foreign rows `x` in the data set's shape and range: images become grey or colour and are resized; tables must fit."""
    shape, kind = dataset.x.shape[1:], dataset.x.dtype
    if x.dim() != dataset.x.dim() or (x.dim() == 2 and x.shape[1:] != shape):
        theirs, ours = shape_of(x), shape_of(dataset.x)
        raise Mistake(
            f"Rows of {foreign.name} ({theirs}) do not fit {dataset.name} ({ours}); mix in a data set of the same kind."
        )
    if x.dim() == 2 or (x.shape[1:] == shape and foreign.scale.factor == dataset.scale.factor):
        return x.to(kind)
    x = x.float() * (foreign.scale.factor / dataset.scale.factor)
    if shape[0] == 1 and x.shape[1] == 3:
        x = (x * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)  # ITU-R 601 luma
    elif x.shape[1] != shape[0]:
        x = x.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if x.shape[2:] != shape[1:]:
        x = torch.nn.functional.interpolate(x, size=tuple(shape[1:]), mode="bilinear", antialias=True)
    return x.round().clamp(0, 255).to(kind)


def shape_of(x: Tensor) -> str:
    return f"{x.shape[1]} columns" if x.dim() == 2 else "images " + "×".join(map(str, x.shape[1:]))
