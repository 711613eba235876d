"""What a label job leaves for later rows: the heads of chorus, with the columns and the scale that they need.

`grapevine predict LABELS new.csv` and `gv.load("labels").predict_proba(X)` label later rows without a new job and without the
graph. All parties of a job have the same heads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from scipy.special import softmax

from grapevine.core import Client
from grapevine.core.errors import Mistake
from grapevine.core.models import read_tensors
from grapevine.core.words import some
from grapevine.data.columns import CATEGORY, Column, Layout
from grapevine.data.sheets import is_frame
from grapevine.data.tables import Columns, read
from grapevine.methods.tune import Scale


@dataclass(frozen=True)
class Heads:
    """Linear heads on scaled rows, each with its weight in the mixture."""

    classes: tuple[str, ...]
    layout: Layout  # the columns of a table that rows are made from
    scale: Scale
    heads: dict[str, tuple[np.ndarray, np.ndarray, float]]  # name → W, b, weight

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.scale.mean),)

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | row) for a frame with the columns of the job's tables, for an array like the job's own, or for one of the
        features that they became; NaN where a value is missing."""
        columns = self.layout.columns
        if is_frame(X):
            table = read(X, Columns(features=self.layout.sources, kinds=self.layout.kinds, impute=True))
            X = self.layout.encode(table.x, table.columns)
        X = np.asarray(X, np.float64)
        X = X.reshape(len(X), -1)
        if X.shape[1] == len(columns) and not any(column.kind == CATEGORY for column in columns):
            X = self.layout.encode(np.where(np.isfinite(X), X, np.nan), columns)
        if X.shape[1] != len(self.scale.mean):
            told = f" ({some(self.layout.names)})" if self.layout.columns else ""
            raise Mistake(f"X has {X.shape[1]} features, but the labels were made from {len(self.scale.mean)}{told}: give the "
                          "same columns.")  # fmt: skip
        V = self.scale(X)
        return softmax(sum(weight * _log_p(V @ W + b) for W, b, weight in self.heads.values()), axis=1)

    def predict(self, X: Any) -> np.ndarray:
        return np.array(self.classes)[self.predict_proba(X).argmax(1)]

    def save(self, path: Path) -> None:
        arrays = {f"{name}.{part}": np.ascontiguousarray(value) for name, (W, b, _) in self.heads.items()
                  for part, value in (("W", W), ("b", b))}  # fmt: skip
        about = dict(classes=self.classes, layout=self.layout.to_dict(), clip=self.scale.clip,
                     weights={name: weight for name, (_, _, weight) in self.heads.items()})  # fmt: skip
        save_file(dict(arrays, mean=self.scale.mean, std=self.scale.std), path, {"grapevine": json.dumps(about)})

    @classmethod
    def load(cls, path: Path) -> Heads:
        about, arrays = read_tensors(path, "np")
        try:
            scale = Scale(arrays["mean"], arrays["std"], float(about["clip"]))
            heads = {name: (arrays[f"{name}.W"], arrays[f"{name}.b"], float(w)) for name, w in about["weights"].items()}
            return cls(tuple(about["classes"]), Layout.from_dict(about["layout"]), scale, heads)
        except (KeyError, TypeError, ValueError):
            raise Mistake(f"{path} was not written by a label job: give the folder of a finished one.") from None


def _log_p(scores: np.ndarray) -> np.ndarray:
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def heads_of(client: Client) -> Heads | None:
    """What is in a party's memory at the end of a job by chorus."""
    result, tuned = client.memory["result"], client.memory["tuned"] if "tuned" in client.memory else None
    if tuned is None:
        return None
    named = client.memory["named"]  # a name whose party was lost before it told it stays unknown
    agreed = {name: tuple(named.get(value, value) for value in values.values()) for name, values in tuned["agreed"].items()}
    columns = tuple(Column(c.name, c.kind, agreed.get(c.name, ()), c.of) for c in client.data.columns)
    layout = Layout(columns, tuple(client.memory["gaps"].values()))
    heads = {name: (head["W"], head["b"], head["weight"]) for name, head in result["heads"].items()}
    return Heads(tuple(client.memory["classes"].values()), layout, Scale(tuned["mean"], tuned["std"], tuned["clip"]), heads)
