"""The driver: run a method on a split, evaluate, checkpoint, resume, and leave the results in a folder.

What a run's folder holds is on the interface page of the docs. Files that grow (`history.jsonl`, `messages.jsonl`,
`times.jsonl`) are appended to; a checkpoint remembers how long they were, so that after a kill they are cut back to it
and continue bit for bit. Seconds are in `times.jsonl` alone: everything else repeats exactly.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grapevine import learn
from grapevine.core import Meter, Method, ModelSource, Server, rng, scores, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, RamStore, make_folder, write_atomically
from grapevine.core.version import __version__
from grapevine.data.split import Split
from grapevine.learn import networks as models
from grapevine.run.model import Model, lock, peak_memory_mb, save_model, save_tensors
from grapevine.run.simulate import Fault, Simulation

CHECKPOINT_SECONDS = 2.0  # no more often than this, so that short rounds are not slowed by the disk
EVALUATIONS = 50  # of a long run, when nothing else is said
LATENT_ROWS, LATENT_WIDTH = 500, 50  # test rows of which the latent space is kept, and in how many dimensions
IDLE_ROUNDS = 0.1  # more than this share of the rounds without a label is worth a word
PERSONAL_EVALUATIONS = 5  # a model per client makes an evaluation dear

Progress = Callable[[int, int, dict | None], None]
"""Called with (rounds done, rounds, newest line of the history or None)."""


@dataclass
class Experiment:
    """One method on one split. `out=None` keeps everything in memory.

    `latent` is how often the latent space is kept for the report: at the end, and at as many earlier rounds as make that number.
    """

    method: Method
    split: Split
    model: str | torch.nn.Module | None = None
    norm: str | None = None
    rounds: int = 100
    per_round: int | None = 10
    workers: int = 1
    device: str = "auto"
    seed: int = 0
    mode: str = "fast"
    evaluate_every: int = 0
    patience: int = 0
    latent: int = 1
    out: str | Path | None = None
    faults: tuple[Fault, ...] = ()
    tap: Callable | None = field(default=None, repr=False)
    simulation: Callable[..., Simulation] = field(default=Simulation, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("workers", 1), ("evaluate_every", 0), ("patience", 0), ("latent", 0)):
            if getattr(self, name) < least:
                raise Mistake(f"{name.replace('_', '-')} is {getattr(self, name)}, and must be {least} or more.")
        if self.per_round is not None and self.per_round < 1:
            raise Mistake(f"per-round is {self.per_round}, and must be 1 or more.")
        if self.method.reveal:
            self.split = self.split.reveal()
        self.device = pick_device(self.device)
        self.out = None if self.out is None else Path(self.out)
        if self.model is None:
            self.model = "cnn" if self.split.dataset.kind == "image" else "mlp"

    # ------------------------------------------------------------ what identifies a run

    def identity(self) -> dict[str, Any]:
        """Everything that the bits of the result depend on."""
        dataset = self.split.dataset
        return dict(
            job="train", method=self.method.name, settings=self.method.settings(),
            data=dict(name=dataset.name, kind=dataset.kind, classes=list(dataset.classes), split=self.split.hash,
                      **self.split.settings),
            model=self.model if isinstance(self.model, str) else type(self.model).__name__, norm=self.norm or "default",
            rounds=self.rounds, per_round=self.per_round or len(self.split.parts), seed=self.seed, device=self.device,
            evaluate_every=self.evaluate_every, patience=self.patience, version=__version__,
        )  # fmt: skip

    # ------------------------------------------------------------ running

    def run(self, resume: bool = False, progress: Progress | None = None) -> Run:
        """Run to the end, or on from the last checkpoint. A finished folder is loaded, not run again."""
        if self.out and resume and (self.out / "result.json").exists():
            self._same_run()
            return Run(json.loads((self.out / "result.json").read_text()), read_lines(self.out / "history.jsonl"), self.out)
        new = self.out is not None and not self.out.exists()
        try:
            with self._claim(resume):
                return _Driver(self, progress or (lambda done, rounds, line: None)).run()
        except Mistake:
            if new and not (self.out / "checkpoint" / "manifest.json").exists():  # refused before anything was learned
                shutil.rmtree(self.out, ignore_errors=True)
            raise

    def _claim(self, resume: bool) -> AbstractContextManager:
        """Make the folder ours: a new one, or with `resume` one that the same settings began and nobody is working in."""
        if self.out is None:
            return nullcontext()
        if self.out.is_dir() and any(self.out.iterdir()):
            if not resume:
                raise Mistake(f"{self.out} exists and is not empty: take another --out, or --resume to go on with it.")
            if not (self.out / "settings.json").exists():
                raise Mistake(f"{self.out} holds no run of Grapevine: take another --out.")
            self._same_run()
        make_folder(self.out)
        claim = lock(self.out / "lock")
        for left in self.out.rglob(".writing-*"):  # of a process that was killed
            left.unlink()
        if not (self.out / "settings.json").exists():
            self.split.save(self.out / "split.json")
            command = "" if "grapevine" not in Path(sys.argv[0]).name else shlex.join(["grapevine", *sys.argv[1:]])
            versions = dict(python=platform.python_version(), torch=torch.__version__, grapevine=__version__)
            text = json.dumps(dict(self.identity(), command=command, versions=versions, workers=self.workers), indent=1)
            write_atomically(self.out / "settings.json", text.encode())
        return claim

    def _same_run(self) -> None:
        before = json.loads((self.out / "settings.json").read_text())
        now = json.loads(json.dumps(self.identity()))
        for name, value in now.items():
            if name != "version" and before.get(name) != value:
                was, wanted = first_difference(before.get(name), value)
                raise Mistake(f"{self.out} was begun with {name} {was}, not {wanted}: repeat its settings or take another --out.")


def first_difference(a: Any, b: Any) -> tuple[str, str]:
    """Where two settings that differ do so first: what the one has and what the other, in words."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                was, wanted = first_difference(a.get(key), b.get(key))
                return f"{key} {was}", f"{key} {wanted}"
    return str(a), str(b)


def pick_device(device: str) -> str:
    if device != "auto":
        if device.split(":")[0] == "cuda" and not torch.cuda.is_available():
            raise Mistake("there is no CUDA device here: say --device cpu.")
        if device == "mps" and not torch.backends.mps.is_available():
            raise Mistake("there is no MPS device here: say --device cpu.")
        if device.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise Mistake(f"--device {device} is not known: take auto, cpu, cuda or mps.")
        return device
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


@dataclass
class Run:
    """A finished run. `model` predicts; `result` and `history` are what result.json and history.jsonl hold."""

    result: dict[str, Any]
    history: list[dict]
    out: Path | None = None
    shared: dict | None = None
    _model: Model | None = field(default=None, repr=False)

    @property
    def model(self) -> Model:
        if self._model is None:
            self._model = Model.load(self.out)
        return self._model

    def predict(self, X: Any) -> list[str]:
        """Class names for new rows."""
        return self.model.predict(X)


class _Driver:
    """One run under way: the loop, and what it must remember."""

    def __init__(self, experiment: Experiment, progress: Progress):
        e = self.e = experiment
        self.progress = progress
        self.method, self.split = e.method, e.split
        self.classes = len(self.split.dataset.classes)
        self.source = model_source(e)
        self.store = FileStore(e.out / "checkpoint" / "objects") if e.out else RamStore()
        clients = range(len(self.split.parts))
        self.simulation = e.simulation(
            self.method, {i: self.split.client(i, e.device) for i in clients}, self.source, e.seed, e.mode, e.workers, self.store,
            e.faults, lambda i: self.split.client_truth(i)[1], e.tap,
        )  # fmt: skip
        self.server = Server(
            self.method, clients, self.simulation, self.source, self.split.dataset.classes, e.seed, e.per_round, e.rounds,
            self.split.server_rows(e.device),
        )  # fmt: skip
        check_labels(self.method, self.split)
        check_head(self.method, self.source, self.classes)
        self.method.check(self.server)
        warn_of_rounds_without_labels(self.method, self.split, self.server.per_round)
        self.files = {name: Lines(e.out / f"{name}.jsonl" if e.out else None) for name in ("history", "messages", "times")}
        self.done, self.seconds = 0, 0.0
        self.state: dict = {}
        self.best: dict[str, Any] = dict(accuracy=-1.0, round=0, shared="")
        self.last_shared = ""
        self.since_best = 0
        self.evaluation_seconds = 0.0

    # ------------------------------------------------------------ the loop

    def run(self) -> Run:
        try:
            return self._run()
        finally:
            self.simulation.close()
            for file in self.files.values():
                file.close()

    def _run(self) -> Run:
        began, before = time.perf_counter(), 0.0
        if not self._resume():
            self.state = self.method.setup(self.server)
            self._evaluate()
        before = self.seconds
        checkpointed = -math.inf
        while self.done < self.e.rounds and not self._stopped_early():
            self.server.now = self.done
            self.state = self.method.round(self.server, self.state)
            self.done += 1
            self._record_messages()
            if self.done in self._latent_rounds():
                self._keep_latent(self.method.shared(self.state), self.done, f"round-{self.done:06d}")
            if self.done % self._every() == 0 or self.done in (*self.method.candidates(self.e.rounds), self.e.rounds):
                self._evaluate()
            self.seconds = before + time.perf_counter() - began
            self.files["times"].add(dict(round=self.done, seconds=round(self.seconds, 3)))
            if time.perf_counter() - checkpointed > CHECKPOINT_SECONDS:
                self._checkpoint()
                checkpointed = time.perf_counter()
            self.progress(self.done, self.e.rounds, self.files["history"].last)
        self.seconds = before + time.perf_counter() - began
        return self._finish()

    def _every(self) -> int:
        if self.e.evaluate_every:
            return self.e.evaluate_every
        return math.ceil(self.e.rounds / (PERSONAL_EVALUATIONS if self.method.personal else EVALUATIONS))

    def _stopped_early(self) -> bool:
        return bool(self.e.patience) and self.since_best >= self.e.patience

    def _record_messages(self) -> None:
        for line in self.server.account.drain():
            self.files["messages"].add(line)

    # ------------------------------------------------------------ evaluation

    def _evaluate(self) -> None:
        """A line of the history; keeps the state that is best on validation."""
        line: dict[str, Any] = dict(round=self.done)
        shared = self.method.shared(self.state)
        if self.method.personal:
            line["accuracy"] = _number(scores.accuracy(sum(self._personal_counts().values())))
        else:
            predict = self.method.predictor(self.source.new(None, Meter()), shared)
            for name, rows in (("validation_accuracy", self.split.validation_rows(self.e.device)),
                               ("accuracy", self.split.test_rows(self.e.device))):  # fmt: skip
                line[name] = _number(scores.accuracy(self._counts(predict, rows)))
        for head, judged in sorted(self.simulation.take_judged().items()):
            if judged["n"]:
                line |= _pseudo_labels(judged, f"_{head}" if head else "")
        line.update(self.server.notes)
        self.server.notes = {}
        line["bytes_up"], line["bytes_down"] = self.server.account.totals["up"], self.server.account.totals["down"]
        line["flops"] = self._flops()
        self.files["history"].add(line)
        self.last_shared = self.store.put(wire.encode(shared))
        # Without validation rows, and for personal models, nothing is selected: the newest state is kept.
        score = line.get("validation_accuracy")
        if score is None or score > self.best["accuracy"]:
            self.best = dict(accuracy=score if score is not None else -1.0, round=self.done, shared=self.last_shared)
            self.since_best = 0
        else:
            self.since_best += 1

    def _latent_rounds(self) -> set[int]:
        """Rounds whose latent space is kept beside the final one: the first, and evenly from there."""
        n = self.e.latent
        return {max(1, self.e.rounds * i // n) for i in range(n - 1)} - {self.e.rounds}

    def _keep_latent(self, shared: dict, round: int, name: str) -> None:
        """The latent space of some test rows, always the same ones, in its leading dimensions: a few hundred kB a time."""
        if not self.e.out or not self.e.latent or self.method.personal:
            return
        rows, model = self.split.test_rows(self.e.device), self.source.new(None, Meter())
        rows = rows.take(torch.randperm(len(rows), generator=rng(0, "latent"))[:LATENT_ROWS].sort().values)
        predict = self.method.predictor(model, shared)
        with torch.no_grad():
            pieces = [self.method.latent(model, x).flatten(1).cpu() for x, _ in rows.batches(100)]
        if not pieces:
            return
        kept = dict(z=learn.leading(torch.cat(pieces), LATENT_WIDTH), y=rows.y.cpu(), guess=scores.guesses(predict, rows, 100))
        (self.e.out / "latent").mkdir(exist_ok=True)
        save_tensors(self.e.out / "latent" / f"{name}.safetensors", kept, dict(round=str(round)))

    def _counts(self, predict: Callable, rows: Any) -> Tensor:
        return scores.confusion(scores.guesses(predict, rows, map=self.simulation.map), rows.y, self.classes)

    def _personal_counts(self) -> dict[int, Tensor]:
        """Every client's own model on its test rows. Not part of the method: neither bytes nor operations are counted."""
        flops = self.simulation.flops
        replies = self.simulation.exchange("evaluate", {i: {} for i in self.server.clients}, self.done)
        self.simulation.flops = flops
        return {i: reply["confusion"] for i, reply in replies.items()}

    # ------------------------------------------------------------ checkpoints

    def _checkpoint(self) -> None:
        if not self.e.out:
            return
        state = self.store.put(wire.encode(self.state))
        manifest = dict(
            done=self.done, state=state, best=self.best, last_shared=self.last_shared, since_best=self.since_best,
            memory={str(i): self.simulation.manifests[i] for i in sorted(self.simulation.manifests)},
            lengths={name: file.flush() for name, file in self.files.items()}, bytes=dict(self.server.account.totals),
            judged=self.simulation.judged, notes=self.server.notes, flops=self._flops(), seconds=self.seconds,
        )  # fmt: skip
        write_atomically(self.e.out / "checkpoint" / "manifest.json", json.dumps(manifest, indent=1).encode())
        memory = [name for entries in self.simulation.manifests.values() for name in entries.values()]
        self.store.keep_only([state, self.best["shared"], self.last_shared, *memory])

    def _resume(self) -> bool:
        path = self.e.out / "checkpoint" / "manifest.json" if self.e.out else None
        if path is None or not path.exists():
            for file in self.files.values():
                file.cut(0)
            return False
        manifest = json.loads(path.read_text())
        self.done, self.best, self.seconds = manifest["done"], manifest["best"], manifest["seconds"]
        self.last_shared, self.since_best = manifest["last_shared"], manifest["since_best"]
        self.state = wire.decode(self.store.get(manifest["state"]))
        self.simulation.manifests = {int(i): entries for i, entries in manifest["memory"].items()}
        self.simulation.judged, self.server.notes = manifest["judged"], manifest["notes"]
        self.simulation.flops = manifest["flops"]
        self.server.account.totals.update(manifest["bytes"])
        for name, file in self.files.items():
            file.cut(manifest["lengths"][name])
        return True

    def _flops(self) -> int:
        return self.simulation.flops + self.server.meter.flops

    # ------------------------------------------------------------ the end

    def _finish(self) -> Run:
        shared = wire.decode(self.store.get(self.best["shared"]))
        numbers = self._final_numbers(shared)
        history = self.files["history"].all()
        judged = [line["pseudo_label_accuracy"] for line in history if "pseudo_label_accuracy" in line]
        identity = self.e.identity()
        result = dict(
            job=identity["job"], method=self.method.name, settings=identity["settings"], data=identity["data"],
            model=identity["model"], norm=identity["norm"], seed=self.e.seed, rounds=self.done, best_round=self.best["round"],
            **numbers, pseudo_label_accuracy=judged[-1] if judged else None,
            bytes_up=self.server.account.totals["up"], bytes_down=self.server.account.totals["down"], flops=self._flops(),
            seconds=round(self.seconds, 3), peak_memory_mb=peak_memory_mb(), version=__version__,
        )  # fmt: skip
        model = None
        if not self.method.personal:
            data = self.split.dataset
            network, shape = self.source.new(None, Meter()), tuple(data.x.shape[1:])
            model = Model(self.method, network, shared, data.classes, data.scale, shape, data.features)
        if self.e.out:
            if model and isinstance(self.e.model, str):
                save_model(self.e.out / "model.safetensors", model, self.e.model, self.e.norm, self.e.seed)
            self._keep_latent(shared, self.best["round"], "kept")
            self._checkpoint()
            write_atomically(self.e.out / "result.json", json.dumps(result, indent=1).encode())
        return Run(result, history, self.e.out, shared, model)

    def _final_numbers(self, shared: dict) -> dict[str, Any]:
        """Accuracies of the best state, and of the last."""
        if self.method.personal:
            counts = self._personal_counts()
            total = sum(counts.values())
            per_client = {i: self._client_accuracy(i, counts[i], own=self.split.test_group is not None) for i in counts}
            last = scores.accuracy(total)
        else:
            predict = self.method.predictor(self.source.new(None, Meter()), shared)
            rows, groups = self.split.test_rows(self.e.device), self.split.test_group
            guess = scores.guesses(predict, rows, map=self.simulation.map)
            total = scores.confusion(guess, rows.y, self.classes)
            own = {i: total if groups is None else scores.confusion(guess[groups == i], rows.y[groups == i], self.classes)
                   for i in self.server.clients}  # fmt: skip
            per_client = {i: self._client_accuracy(i, own[i], own=groups is not None) for i in own}
            last = self.files["history"].last["accuracy"]
        return dict(
            accuracy=_number(scores.accuracy(total)), accuracy_last=_number(last),
            balanced_accuracy=_number(scores.balanced_accuracy(total)), confusion=total.tolist(),
            per_client=[dict(id=i, n=_size(self.split.parts[i]), accuracy=per_client[i]) for i in per_client],
        )  # fmt: skip

    def _client_accuracy(self, i: int, counts: Tensor, own: bool) -> float | None:
        """On the client's own test rows; or, when the test set is common, on it with the client's mix of classes."""
        if own:
            return _number(scores.accuracy(counts))
        mix, recall = self.split.class_mix(i), scores.recalls(counts)
        seen = (mix > 0) & recall.isfinite()
        return _number(float((mix[seen] * recall[seen]).sum() / mix[seen].sum()))


def _size(part: Any) -> int:
    return len(part.labelled) + len(part.unlabelled)


def _pseudo_labels(judged: dict[str, int], tail: str) -> dict[str, float | None]:
    """For the history: the pseudo-labels since the evaluation before. Of none used, no share is right."""
    used = judged["used"]
    line = {
        f"pseudo_label_accuracy{tail}": _number(judged["right"] / used) if used else None,
        f"pseudo_labels_used{tail}": used,
        f"pseudo_labels_of{tail}": judged["n"],
        f"pseudo_labels_right_of_all{tail}": _number(judged["right_of_all"] / judged["n"]),
    }
    if "confidence" in judged:
        line[f"pseudo_labels_confidence{tail}"] = _number(judged["confidence"] / 1e6 / used) if used else None
    return line


def _number(value: float) -> float | None:
    """JSON has no NaN: what could not be measured is null."""
    return None if math.isnan(value) else round(value, 6)


def model_source(e: Experiment) -> ModelSource:
    """Networks for a split, wrapped as the method wants them."""
    rows = e.split.test_rows("cpu")
    sample = rows.inputs(slice(0, 1))
    shape, classes = tuple(sample.shape[1:]), len(e.split.dataset.classes)

    def build() -> models.Network:
        if isinstance(e.model, torch.nn.Module):
            return e.method.network(models.wrap(e.model))
        return e.method.network(models.build(e.model, shape, classes, e.norm, e.seed))

    return ModelSource(build, sample, e.device)


def check_head(method: Method, source: ModelSource, classes: int) -> None:
    """A network without its last layer (resnet8, resnet17) would be trained as a classifier of as many classes as features."""
    if method.logits and isinstance(source.new(None, Meter()).head, torch.nn.Identity):
        raise Mistake(f"{method.name} needs a network with a last layer for {classes} classes: take resnet9 or resnet18, say.")


def check_labels(method: Method, split: Split) -> None:
    """A method says where it takes labels; a split says where they are."""
    if method.reveal:
        return
    at_server = split.server is not None and len(split.server.labelled) > 0
    at_clients = any(len(part.labelled) for part in split.parts)
    where = "both" if at_server and at_clients else "server" if at_server else "clients"
    if where not in method.takes:
        examples = dict(clients="clients:1000", server="server:500", both="server:500,clients:all")
        takes = " or ".join(f"--labels {examples[place]}" for place in examples if place in method.takes)
        there = dict(clients="at the clients", server="at the server", both="at server and clients")[where]
        raise Mistake(f"{method.name} cannot use labels {there}: it takes {takes}.")


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
            f"{method.name}: {len(labels)} of {n} clients have labels, so about {idle:.0%} of the rounds with --per-round "
            f"{per_round} have none: choose more clients a round, or spread the labels, as in --labels clients:{sum(labels)}."
        )


# ---------------------------------------------------------------- files that grow


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Lines:
    """A .jsonl file being written, or a list when there is no file."""

    def __init__(self, path: Path | None):
        self.path = path
        self._lines: list[dict] = []
        self._file = None

    def cut(self, length: int) -> None:
        """Begin, keeping the first `length` bytes of what is there."""
        if self.path is None:
            return
        self._file = open(self.path, "r+b" if self.path.exists() else "w+b")
        self._file.truncate(length)
        self._file.seek(0)
        self._lines = [json.loads(line) for line in self._file]

    def add(self, line: dict) -> None:
        self._lines.append(line)
        if self._file:
            self._file.write((json.dumps(line) + "\n").encode())
            self._file.flush()

    def flush(self) -> int:
        """Make sure of what was written; its length."""
        if self._file is None:
            return 0
        self._file.flush()
        return self._file.tell()

    @property
    def last(self) -> dict | None:
        return self._lines[-1] if self._lines else None

    def all(self) -> list[dict]:
        return list(self._lines)

    def close(self) -> None:
        if self._file:
            self._file.close()
