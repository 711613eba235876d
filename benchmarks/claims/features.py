"""FedAvg's network as a feature extractor for label propagation, and its own predictions on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from common import SHARE_OF_ROUNDS, TRIAL_SEED
from propagation import PRESET, bits_of, hamming_graph, spread
from torch import Tensor

import grapevine as gv
from grapevine.data.split import Split
from grapevine.run.driver import Run


def fedavg(split: Split, model: Any, rounds: int, seed: int, **fields: Any) -> Run:
    """All clients in every round; of the rounds, that with the best validation accuracy."""
    return gv.train(gv.methods.FedAvg(**fields), split, model=model, rounds=rounds, per_round=len(split), seed=seed,
                    evaluate_every=max(1, rounds // 10))  # fmt: skip


def rate(split: Split, model: Any, rounds: int, rates: Sequence[dict[str, Any]], **fields: Any) -> float:
    """The learning rate that is best on validation, in a third of the rounds with a seed that is not used again."""

    def score(lr: float) -> float:
        run = fedavg(split, model, max(1, rounds // SHARE_OF_ROUNDS), TRIAL_SEED, lr=lr, **fields)
        return max(line["validation_accuracy"] for line in run.history)

    return max((each["lr"] for each in rates), key=score)


@torch.no_grad()
def embedded(run: Run, x: Tensor) -> np.ndarray:
    """Rows before the last layer of the trained network."""
    model = run.model
    model.method.predictor(model.network, model.shared)  # loads the weights that were kept
    return np.concatenate([model.network.features(model.scale(part)).flatten(1).double().numpy() for part in x.split(1000)])


def propagated(run: Run, x: Tensor, known: np.ndarray, classes: int, seed: int, preset: str = PRESET) -> np.ndarray:
    """XCLP on the network's features: a class for every row from the known ones (−1: not known)."""
    return spread(hamming_graph(bits_of(embedded(run, x), seed=seed), preset=preset), known, classes, preset)


def predicted(run: Run, x: Tensor) -> np.ndarray:
    return run.model.predict_proba(x).argmax(1)
