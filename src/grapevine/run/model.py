"""Models: where networks come from, and a finished run's model saved, loaded and predicting."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from grapevine import methods
from grapevine.core import Method, ModelSource, Network, parameters, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.models import model_file, read_tensors
from grapevine.core.places import writing_name
from grapevine.core.rows import Scale
from grapevine.core.words import many, some
from grapevine.data.columns import Layout
from grapevine.data.pictures import as_images
from grapevine.data.sheets import is_frame
from grapevine.data.tables import Columns, read
from grapevine.learn import networks


def model_source(
    method: Method, model: str | nn.Module, shape: tuple[int, ...], classes: int, norm: str | None = None, seed: int = 0,
    device: str = "cpu",
) -> ModelSource:  # fmt: skip
    """Networks for rows of this shape, wrapped as the method wants them: the same at the server and at every client."""

    def build() -> Network:
        if isinstance(model, nn.Module):
            return method.network(networks.wrap(model))
        return method.network(networks.build(model, shape, classes, norm, seed))

    return ModelSource(build, torch.zeros(1, *shape), device)


@dataclass(frozen=True)
class Inputs:
    """What a model is given and what it says: class names, how stored values become inputs, a row's shape, a table's layout."""

    classes: tuple[str, ...]
    scale: Scale
    shape: tuple[int, ...]
    layout: Layout = Layout()


@dataclass(frozen=True, repr=False)
class Model(Inputs):
    """A trained model with everything it needs to predict. `network` has the trained weights."""

    method: Method = field(kw_only=True)
    network: Network = field(kw_only=True, repr=False)
    shared: dict = field(kw_only=True, repr=False)

    def __repr__(self) -> str:
        inside = sum(p.numel() for p in self.network.parameters())
        rows = "×".join(map(str, self.shape)) if len(self.shape) > 1 else many(self.shape[0], "feature")
        return (f"Model of {self.method.name}, {many(inside, 'weight')}: from {rows} to "
                f"{many(len(self.classes), 'class', 'classes')} ({some(self.classes)})")  # fmt: skip

    def __post_init__(self) -> None:
        self.method.predictor(self.network, self.shared)  # which loads the weights, with what belongs to them

    def predict_proba(self, X: Any, batch: int = 1000) -> np.ndarray:
        """Class probabilities of rows in the form of the data set: pixels 0–255 or 0–1, raw features, or a frame."""
        x = self._rows(X)
        if tuple(x.shape[1:]) != self.shape:
            raise Mistake(f"rows of shape {tuple(x.shape[1:])} do not fit this model: it was trained on {self.shape}.")
        device = next(self.network.parameters()).device
        predict = self.method.predictor(self.network, self.shared)
        with torch.no_grad():
            pieces = [predict(self.scale(piece).to(device)).cpu() for piece in x.split(batch)]
        return torch.cat(pieces).numpy() if pieces else np.empty((0, len(self.classes)), np.float32)

    def _rows(self, X: Any) -> Tensor:
        if is_frame(X):
            table = read(X, Columns(features=self.layout.sources or None, kinds=self.layout.kinds))
            return torch.from_numpy(self.layout.encode(table.x, table.columns) if self.layout.columns else table.x)
        x = X if isinstance(X, Tensor) else torch.from_numpy(np.asarray(X))
        pictures = as_images(x, "rows", round(1 / self.scale.factor)) if len(self.shape) == 3 else None
        return x if pictures is None else pictures

    def predict(self, X: Any) -> list[str]:
        return [self.classes[i] for i in self.predict_proba(X).argmax(1)]

    @classmethod
    def load(cls, folder: str | Path, method: str | None = None) -> Model:
        """The model of a finished run. `method`: path/to/file.py:Class, for a method that is in no table."""
        about, flat = read_tensors(model_file(folder))
        found = _method(about["method"], method)
        texts = {name: str(v["kind"] if isinstance(v, dict) else v) for name, v in about["settings"].items()}
        there = {f.name for f in parameters(found)}  # a field that is gone since then was for training
        made = with_settings(found, {name: text for name, text in texts.items() if name in there})
        shape, classes = tuple(about["shape"]), tuple(about["classes"])
        scale = Scale(about["factor"], flat.pop("scale/mean"), flat.pop("scale/std"))
        network = made.network(networks.build(about["model"], shape, len(classes), about["norm"], about["seed"]))
        layout = Layout.from_dict(about.get("layout", dict(columns=[])))
        shared = unflatten(flat)["shared"]
        return cls(classes, scale, shape, layout, method=made, network=network, shared=shared)


def _method(name: str, own: str | None) -> type[Method]:
    if own is None and name not in methods.names():
        raise Mistake(
            f"the run's method '{name}' is not among Grapevine's methods: name its file too, as in --method "
            "path/to/file.py:Class."
        )
    found = methods.find(own or name)
    if found.name != name:
        raise Mistake(f"{own} is '{found.name}', but the run was made with '{name}': name the file of that method.")
    return found


def save_model(path: Path, model: Model, name: str, norm: str | None, seed: int) -> None:
    about = dict(
        method=model.method.name, settings=model.method.settings(), model=name, norm=norm, seed=seed, shape=model.shape,
        classes=model.classes, factor=model.scale.factor, layout=model.layout.to_dict(),
    )  # fmt: skip
    flat = flatten(dict(shared=model.shared, scale=dict(mean=model.scale.mean, std=model.scale.std)))
    save_tensors(path, flat, dict(grapevine=json.dumps(about)))


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """A safetensors file that is never half-written."""
    temporary = writing_name(path)
    save_file(tensors, temporary, metadata=about)
    os.replace(temporary, path)


def flatten(value: dict, prefix: str = "") -> dict[str, Tensor]:
    """Nested dicts of tensors as one dict with `/` between the names."""
    out = {}
    for name, item in value.items():
        if isinstance(item, dict):
            out.update(flatten(item, f"{prefix}{name}/"))
        else:
            out[f"{prefix}{name}"] = item.contiguous() if isinstance(item, Tensor) else torch.as_tensor(item)
    return out


def unflatten(flat: dict[str, Tensor]) -> dict:
    out: dict = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        inner = out
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = value
    return out
