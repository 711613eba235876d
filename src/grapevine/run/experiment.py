"""Training in this process: a method on a split, with all clients in one simulation."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grapevine.core.errors import Mistake
from grapevine.core.method import Id, Method
from grapevine.core.network import Meter, ModelSource
from grapevine.core.server import Server
from grapevine.core.store import FileStore, RamStore
from grapevine.core.version import __version__
from grapevine.core.words import many
from grapevine.data.split import Split
from grapevine.learn.averages import secured
from grapevine.run import privacy
from grapevine.run.driver import Progress, Run, Task, begun, drive, finished
from grapevine.run.evaluate import ServerSet
from grapevine.run.model import Inputs, model_source
from grapevine.run.settings import RunSettings
from grapevine.run.simulate import Each, Fault, Simulation

IDLE_ROUNDS = 0.1  # more than this share of the rounds without a label is worth a word


class Experiment:
    """One method on one split. `out=None` keeps everything in memory; the other settings are those of `RunSettings`. `faults`
    go wrong on purpose, `tap` sees every encoded message (mode="strict"), and `simulation` makes the transport."""

    def __init__(
        self, method: Method, split: Split, out: str | Path | None = None, faults: tuple[Fault, ...] = (),
        tap: Callable | None = None, simulation: Callable[..., Simulation] = Simulation, **settings: Any,
    ):  # fmt: skip
        chosen = RunSettings(**settings)
        self.method = secured(method) if chosen.secure_average else method
        self.split = split.reveal() if method.reveal else split
        model = chosen.model or ("cnn" if split.dataset.kind == "image" else "mlp")
        self.settings = replace(chosen, model=model, device=pick_device(chosen.device))
        self.out = None if out is None else Path(out)
        self.faults, self.tap, self.simulation = faults, tap, simulation

    def about(self) -> dict[str, Any]:
        """Everything that the bits of the result depend on."""
        dataset, s = self.split.dataset, self.settings
        return dict(
            job="train", method=self.method.name, settings=self.method.settings(),
            data=dict(name=dataset.name, kind=dataset.kind, classes=list(dataset.classes), split=self.split.hash,
                      **self.split.settings),
            model=s.model if isinstance(s.model, str) else type(s.model).__name__, norm=s.norm or "default",
            rounds=s.rounds, per_round=s.per_round or len(self.split.parts), seed=s.seed, device=s.device,
            secure_average=s.secure_average, evaluate_every=s.evaluate_every, patience=s.patience, version=__version__,
            **({} if s.dp is None else dict(dp=s.dp, delta=s.delta, clip=s.clip)),
        )  # fmt: skip

    def run(self, resume: bool = False, progress: Progress | None = None) -> Run:
        """Run to the end, or continue from the last checkpoint. A finished folder is loaded and not run again."""
        about = self.about()
        done = finished(self.out, about) if resume else None
        if done:
            return done
        with begun(self.out, about, resume, self.settings.workers):
            self.save_split()
            return drive(self.task(about), progress)

    def save_split(self) -> None:
        if self.out and not (self.out / "split.json").exists():
            self.split.save(self.out / "split.json")

    def models(self) -> ModelSource:
        dataset, s = self.split.dataset, self.settings
        return model_source(self.method, s.model, tuple(dataset.x.shape[1:]), len(dataset.classes), s.norm, s.seed, s.device)

    def task(self, about: dict[str, Any]) -> Task:
        """The run as the driver takes it, checked."""
        s, split, dataset, models = self.settings, self.split, self.split.dataset, self.models()
        clients = range(len(split.parts))
        store = FileStore(self.out / "checkpoint" / "objects") if self.out else RamStore()
        data = Each(clients, lambda i: split.client(int(i), s.device), keep=False)
        simulation = self.simulation(
            self.method, data, models, s.seed, s.mode, s.workers, store,
            self.faults, lambda i: split.client_truth(i)[1], self.tap,
        )  # fmt: skip
        server = Server(self.method, clients, simulation, models, dataset.classes, s.seed, s.per_round, s.rounds,
                        split.server_rows(s.device))  # fmt: skip
        privacy.check(self.method, s, models)
        check_labels(self.method, split)
        check_head(self.method, models, len(dataset.classes))
        self.method.check(server)
        warn_of_rounds_without_labels(self.method, split, server.per_round)
        evaluator = ServerSet(self.method, split, server, models, s.device, simulation.map)
        inputs = Inputs(dataset.classes, dataset.scale, tuple(dataset.x.shape[1:]), dataset.layout)
        return Task(self.method, server, evaluator, s, about, models, inputs, self.out, store, self._privacy(server, simulation))

    def _privacy(self, server: Server, simulation: Simulation) -> privacy.Privacy | None:
        """With --dp: every client's plan, told before the run, and its budget handed to it."""
        if self.settings.dp is None:
            return None
        labelled: dict[Id, int] = {i: len(part.labelled) for i, part in enumerate(self.split.parts)}
        job = hashlib.sha256(json.dumps(self.about(), sort_keys=True).encode()).hexdigest()
        made = privacy.prepare(self.method, self.settings, server, labelled, self.out, job)
        simulation.prepare = made.prepare
        logging.getLogger("grapevine").warning(f"{self.method.name}: {privacy.sentence(made)}")
        return made


def pick_device(device: str) -> str:
    if device != "auto":
        if device.split(":")[0] == "cuda" and not torch.cuda.is_available():
            raise Mistake("this machine has no CUDA device: use --device cpu.")
        if device == "mps" and not torch.backends.mps.is_available():
            raise Mistake("this machine has no MPS device: use --device cpu.")
        if device.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise Mistake(f"--device {device} is not a known device: use auto, cpu, cuda or mps.")
        return device
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def check_head(method: Method, source: ModelSource, classes: int) -> None:
    """A network without its last layer (resnet8, resnet17) would be trained as a classifier of as many classes as features."""
    if method.logits and isinstance(source.new(None, Meter()).head, torch.nn.Identity):
        raise Mistake(
            f"{method.name} needs a network with a last layer for {classes} classes: use resnet9 or resnet18, for example."
        )


def check_labels(method: Method, split: Split) -> None:
    """A method says where it takes labels; a split says where they are."""
    if method.reveal:
        return
    at_server = split.server is not None and len(split.server.labelled) > 0
    at_clients = any(len(part.labelled) for part in split.parts)
    where = "both" if at_server and at_clients else "server" if at_server else "clients"
    if where not in method.takes:
        raise Mistake(f"{unusable(method.name, type(method), where)}.")


def unusable(name: str, method: type[Method], where: str) -> str:
    """That a method cannot use the labels where they are, and which it takes."""
    examples = dict(clients="clients:1000", server="server:500", both="server:500,clients:all")
    takes = " or ".join(f"--labels {examples[place]}" for place in examples if place in method.takes)
    there = dict(clients="at the clients", server="at the server", both="at server and clients")[where]
    return f"{name} cannot use labels {there}: it takes {takes}"


def warn_of_rounds_without_labels(method: Method, split: Split, per_round: int) -> None:
    """Say that few clients have labels, so that many rounds choose none of them."""
    at_server = split.server is not None and len(split.server.labelled) > 0
    uses_them = "server" in method.takes or "clients" not in method.takes
    if method.seeks_labels or method.personal or at_server and uses_them:
        return
    n, labels = len(split.parts), [len(part.labelled) for part in split.parts if len(part.labelled)]
    idle = math.comb(n - len(labels), per_round) / math.comb(n, per_round)
    if idle > IDLE_ROUNDS:
        logging.getLogger("grapevine").warning(
            f"{method.name}: {len(labels)} of {many(n, 'client')} have labels, so about {idle:.0%} of the rounds with "
            f"--per-round {per_round} have none: choose more clients a round, or spread the labels, as in "
            f"--labels clients:{sum(labels)}."
        )
