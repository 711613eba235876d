"""What only training and cleaning need: networks, and with them torch. A party of a label job never imports this."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from grapevine import methods
from grapevine.core import Client, Meter, Method, ModelSource, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.private import Private
from grapevine.jobs import clean, clean_result
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import CleanSettings
from grapevine.learn.averages import secured
from grapevine.methods.mp_ssfl import Clean
from grapevine.parties.rows import own_scale
from grapevine.run import privacy
from grapevine.run.experiment import check_head
from grapevine.run.model import Model, model_source, save_model

if TYPE_CHECKING:
    from grapevine.parties.agreement import Agreement


def method(agreed: Agreement) -> Method:
    """The method of a train or clean job."""
    return _train(agreed) if agreed.job == "train" else _clean(agreed)


def _clean(agreed: Agreement) -> Method:
    s = CleanSettings.from_dict(agreed.settings)
    if s.epochs is None or s.model is None:
        raise Mistake("clean: the agreement must name the epochs and the model.")
    return Clean(s.tau, s.upsilon, s.epochs, scale=s.scale, counts=s.counts, impute=s.impute)


def _train(agreed: Agreement) -> Method:
    if ":" in agreed.method:  # a file of the party's disk, chosen by the host
        raise Mistake(f"method '{agreed.method}' is a file, but parties need a method by name: install it as an entry point.")
    texts = {name: str(value) for name, value in agreed.settings.get("set", {}).items()}
    method = with_settings(methods.find(agreed.method), texts)
    places = {"server", "both"} if agreed.server else {"clients"}
    if not places & method.takes:
        raise Mistake(f"{method.name} needs labels at the host as well: give the host labelled rows with --server FILE."
                      if not agreed.server else f"{method.name} cannot use the host's rows: leave --server out.")  # fmt: skip
    return secured(method) if agreed.settings.get("secure_average") else method


def models(agreed: Agreement, seed: int) -> ModelSource:
    """Networks for the agreed rows and classes."""
    norm = agreed.settings.get("norm")
    return model_source(agreed.made, agreed.settings["model"], agreed.shape, len(agreed.classes), norm, seed)


def check(agreed: Agreement, made: Method) -> None:
    """Refuse a network that cannot work, before anybody has joined."""
    source = models(agreed, 0)
    source.new(None, Meter())
    check_head(made, source, len(agreed.classes))
    if agreed.job == "train":
        privacy.check(made, agreed.run_settings(0), source)


def budget(agreed: Agreement, seed: int) -> Private | None:
    """What a party may spend in a training job with noise."""
    return privacy.of_party(agreed.run_settings(seed), agreed.hash)


def adopt_model(path: Path, agreed: Agreement, rows: Party) -> None:
    """Check that a model is of the agreed kind before anything is built from it, and put this party's scaling in."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["grapevine"])
        wanted = dict(method=agreed.made.name, model=agreed.settings["model"], shape=list(agreed.shape),
                      classes=list(agreed.classes))  # fmt: skip
        same = all(about.get(key) == value for key, value in wanted.items())
    except (SafetensorError, KeyError, ValueError, TypeError):
        same = False
    if not same:
        path.unlink()
        raise Mistake("the host sent something that is not the agreed model: ask it what happened.")
    model = Model.load(path.parent)
    save_model(path, replace(model, scale=own_scale(rows.x, agreed)), about["model"], about["norm"], about["seed"])


def write_cleaned(out: Path, agreed: Agreement, rows: Party, client: Client, seen: list[dict]) -> None:
    """A party's decisions, from its memory."""
    by = client.memory["moments"]
    scaled = (by["mean"].numpy(), by["std"].numpy()) if agreed.settings["scale"] == "standard" else None
    clean_result.write_party(out, clean.party_cleaned(rows, client, agreed.classes, scaled, seen))
