"""The one driver: rounds, evaluation, the best state, checkpoints and results, over any transport.

A `Task` says what is run and how it is scored. The transport decides whether clients are in this process, on Flower or on workers
of torch.distributed.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grapevine.core import scores, wire
from grapevine.core.errors import Mistake
from grapevine.core.method import Method, rng
from grapevine.core.network import Meter, ModelSource
from grapevine.core.server import Server
from grapevine.core.store import FileStore, RamStore, Store, write_atomically
from grapevine.core.version import __version__
from grapevine.core.words import many, percent, short_table, size
from grapevine.graph.layout import leading
from grapevine.run.evaluate import Evaluator, number
from grapevine.run.folder import Lines, claim, peak_memory_mb, read_lines, require_same
from grapevine.run.model import Inputs, Model, save_model, save_tensors
from grapevine.run.privacy import Privacy
from grapevine.run.settings import RunSettings

CHECKPOINT_SECONDS = 2.0  # no more often than this, so that short rounds are not slowed by the disk
EVALUATIONS = 50  # of a long run, when nothing else is said
PERSONAL_EVALUATIONS = 5  # a model per client makes an evaluation expensive
LATENT_ROWS, LATENT_WIDTH = 500, 50  # test rows of which the latent space is kept, and in how many dimensions
RESULT = ("job", "method", "settings", "data", "model", "norm", "seed", "agreed")  # of a task's `about`, in result.json

Progress = Callable[[int, int, dict | None], None]
"""Called with (rounds done, rounds, newest line of the history or None)."""


@dataclass
class Task:
    """One run: a method's program on a server, how its states are scored, and where it writes its results (None: nowhere).
    `about` is everything that the bits of the result depend on; settings.json keeps it, and `--resume` compares it."""

    method: Method
    server: Server
    evaluator: Evaluator
    settings: RunSettings
    about: dict[str, Any]
    models: ModelSource
    inputs: Inputs
    out: Path | None = None
    store: Store = field(default_factory=RamStore)
    privacy: Privacy | None = None
    follows: Path | None = None
    """The folder that another process leaves results in while this one does the same and keeps nothing: `run.spmd`."""


@dataclass(repr=False)
class Run:
    """A finished run. `model` predicts; `result` and `history` are the contents of result.json and history.jsonl."""

    result: dict[str, Any]
    history: list[dict]
    out: Path | None = None
    shared: dict | None = None
    own_model: Model | None = None

    def __repr__(self) -> str:
        r = self.result
        row = {name: percent(r[name]) for name in ("accuracy", "accuracy_last", "balanced_accuracy")}
        title = f"{r['method']}, {many(r['rounds'], 'round')}, seed {r['seed']}" + (f", in {self.out}" if self.out else "")
        return short_table(title, [dict(row, up=size(r["bytes_up"]), down=size(r["bytes_down"]))])

    @property
    def model(self) -> Model:
        if self.own_model is None:
            if self.out is None:
                raise Mistake("every client of this run has its own model, and none of them is kept.")
            self.own_model = Model.load(self.out)
        return self.own_model

    def predict(self, X: Any) -> list[str]:
        """Predict class names for new rows."""
        return self.model.predict(X)


def finished(out: Path | None, about: dict[str, Any]) -> Run | None:
    """The run that these settings left in a folder, if it is finished."""
    if out is None or not (out / "result.json").exists():
        return None
    require_same(out, about)
    return Run(json.loads((out / "result.json").read_text()), read_lines(out / "history.jsonl"), out)


@contextmanager
def begun(out: Path | None, about: dict[str, Any], resume: bool, workers: int = 1) -> Iterator[None]:
    """Hold the folder while the run continues. A run that is refused before it learned anything leaves no folder."""
    if out is None:
        yield
        return
    new = not out.exists()
    try:
        with claim(out, about, resume, workers):
            yield
    except Mistake:
        if new and not (out / "checkpoint" / "manifest.json").exists():
            shutil.rmtree(out, ignore_errors=True)
        raise


def drive(task: Task, progress: Progress | None = None) -> Run:
    """Run a task to its end, or continue it from its last checkpoint."""
    driver = _Driver(task, progress or (lambda done, rounds, line: None))
    try:
        return driver.run()
    finally:
        task.server.transport.close()
        for file in driver.files.values():
            file.close()


class _Driver:
    """One run in progress: the loop and its state."""

    def __init__(self, task: Task, progress: Progress):
        self.task, self.progress = task, progress
        self.method, self.server, self.settings, self.out, self.store = (
            task.method, task.server, task.settings, task.out, task.store,
        )  # fmt: skip
        self.transport = task.server.transport
        self.files = {name: Lines(self.out / f"{name}.jsonl" if self.out else None) for name in ("history", "messages", "times")}
        self.done, self.seconds = 0, 0.0
        self.state: dict = {}
        self.best: dict[str, Any] = dict(accuracy=-1.0, round=0, shared="")
        self.last_shared = ""
        self.since_best = 0

    # ------------------------------------------------------------ the loop

    def run(self) -> Run:
        began, rounds = time.perf_counter(), self.settings.rounds
        if not self._resume():
            self.state = self.method.setup(self.server)
            self._evaluate()
        before, checkpointed = self.seconds, -math.inf
        while self.done < rounds and not self._stopped_early():
            self.server.now = self.done
            self.state = self.method.round(self.server, self.state)
            self.done += 1
            if self.done in self._latent_rounds():
                self._keep_latent(self.method.shared(self.state), self.done, f"round-{self.done:06d}")
            if self.done % self._every() == 0 or self.done in (*self.method.candidates(rounds), rounds):
                self._evaluate()
            self._record_messages()
            self.seconds = before + time.perf_counter() - began
            self.files["times"].add(dict(round=self.done, seconds=round(self.seconds, 3)))
            # What was sent with noise is spent: a round that is repeated costs its clients another one.
            if self.task.privacy or time.perf_counter() - checkpointed > CHECKPOINT_SECONDS:
                self._checkpoint()
                checkpointed = time.perf_counter()
            self.progress(self.done, rounds, self.files["history"].last)
        self.seconds = before + time.perf_counter() - began
        return self._finish()

    def _every(self) -> int:
        if self.settings.evaluate_every:
            return self.settings.evaluate_every
        return math.ceil(self.settings.rounds / (PERSONAL_EVALUATIONS if self.method.personal else EVALUATIONS))

    def _stopped_early(self) -> bool:
        return bool(self.settings.patience) and self.since_best >= self.settings.patience

    def _record_messages(self) -> None:
        for line in self.server.account.drain():
            self.files["messages"].add(line)

    # ------------------------------------------------------------ evaluation

    def _evaluate(self) -> None:
        """A line of the history; keeps the state that is best on validation: the first of equals, but not that of round 0."""
        shared = self.method.shared(self.state)
        line: dict[str, Any] = dict(round=self.done, **self.task.evaluator.score(shared, self.done))
        for head, judged in sorted(self.transport.take_judged().items()):
            if judged["n"]:
                line |= _pseudo_labels(judged, f"_{head}" if head else "")
        line.update(self.server.notes)
        if self.task.privacy:
            line.update(self.task.privacy.note(self.done))
        self.server.notes = {}
        line["bytes_up"], line["bytes_down"] = self.server.account.totals["up"], self.server.account.totals["down"]
        line["flops"] = self._flops()
        self.files["history"].add(line)
        self.last_shared = self.store.put(wire.encode(shared))
        # Without validation rows, and for personal models, nothing is selected: the newest state is kept.
        score = line.get("validation_accuracy")
        round_0 = self.done > 0 and self.best["round"] == 0
        if score is None or score > self.best["accuracy"] or (round_0 and score == self.best["accuracy"]):
            self.best = dict(accuracy=score if score is not None else -1.0, round=self.done, shared=self.last_shared)
            self.since_best = 0
        else:
            self.since_best += 1

    def _latent_rounds(self) -> set[int]:
        """Rounds whose latent space is kept beside the final one: the first, and evenly from there."""
        n, rounds = self.settings.latent, self.settings.rounds
        return {max(1, rounds * i // n) for i in range(n - 1)} - {rounds}

    def _keep_latent(self, shared: dict, round: int, name: str) -> None:
        """The latent space of some test rows, always the same ones, in its leading dimensions: a few hundred kB a time."""
        rows = self.task.evaluator.some_rows()
        if not self.out or not self.settings.latent or rows is None or not len(rows):
            return
        model = self.task.models.new(None, Meter())
        rows = rows.take(torch.randperm(len(rows), generator=rng(0, "latent"))[:LATENT_ROWS].sort().values)
        predict = self.method.predictor(model, shared)
        with torch.no_grad():
            pieces = [self.method.latent(model, x).flatten(1).cpu() for x, _ in rows.batches(100)]
        kept = dict(z=leading(torch.cat(pieces), LATENT_WIDTH), y=rows.y.cpu(), guess=scores.guesses(predict, rows, 100))
        (self.out / "latent").mkdir(exist_ok=True)
        save_tensors(self.out / "latent" / f"{name}.safetensors", kept, dict(round=str(round)))

    # ------------------------------------------------------------ checkpoints

    def _checkpoint(self) -> None:
        if not self.out:
            return
        state, (carried, held) = self.store.put(wire.encode(self.state)), self.transport.state()
        manifest = dict(
            done=self.done, state=state, best=self.best, last_shared=self.last_shared, since_best=self.since_best,
            transport=carried, lengths={name: file.flush() for name, file in self.files.items()},
            bytes=dict(self.server.account.totals), notes=self.server.notes, left_out=_texts(self.server.left_out),
            flops=self._flops(), seconds=self.seconds,
        )  # fmt: skip
        write_atomically(self.out / "checkpoint" / "manifest.json", json.dumps(manifest, indent=1).encode())
        self.store.keep_only([state, self.best["shared"], self.last_shared, *held])

    def _resume(self) -> bool:
        folder = self.out or self.task.follows
        path = folder / "checkpoint" / "manifest.json" if folder else None
        if path is None or not path.exists():
            for file in self.files.values():
                file.cut(0)
            return False
        manifest = json.loads(path.read_text())
        self.done, self.best, self.seconds = manifest["done"], manifest["best"], manifest["seconds"]
        self.last_shared, self.since_best = manifest["last_shared"], manifest["since_best"]
        if self.task.follows:  # its own store is not the folder's, which the other process tidies up
            kept = FileStore(self.task.follows / "checkpoint" / "objects")
            for name in {manifest["state"], self.best["shared"], self.last_shared}:
                self.store.put(kept.get(name))
        self.state = wire.decode(self.store.get(manifest["state"]))
        self.transport.restore(manifest["transport"])
        self.server.notes, self.server.meter.flops = manifest["notes"], manifest["flops"] - self.transport.flops
        self.server.left_out = {i: manifest["left_out"][str(i)] for i in self.server.clients if str(i) in manifest["left_out"]}
        self.server.account.totals.update(manifest["bytes"])
        for name, file in self.files.items():
            file.cut(manifest["lengths"][name])
            if self.task.follows:
                file.copy(self.task.follows / f"{name}.jsonl", manifest["lengths"][name])
        return True

    def _flops(self) -> int:
        return self.transport.flops + self.server.meter.flops

    # ------------------------------------------------------------ the end

    def _finish(self) -> Run:
        shared = wire.decode(self.store.get(self.best["shared"]))
        history = self.files["history"].all()
        best = next(line for line in history if line["round"] == self.best["round"])
        numbers = self.task.evaluator.final(shared, best, history[-1])
        judged = [line["pseudo_label_accuracy"] for line in history if "pseudo_label_accuracy" in line]
        result = dict(
            {name: self.task.about[name] for name in RESULT if name in self.task.about}, rounds=self.done,
            best_round=self.best["round"], **numbers, pseudo_label_accuracy=judged[-1] if judged else None,
            bytes_up=self.server.account.totals["up"], bytes_down=self.server.account.totals["down"], flops=self._flops(),
            seconds=round(self.seconds, 3), peak_memory_mb=peak_memory_mb(), version=__version__,
        )  # fmt: skip
        if self.task.privacy:
            result["privacy"] = self.task.privacy.result()
        if self.server.left_out:
            result["left_out"] = _texts(self.server.left_out)
        model = None
        if not self.method.personal:
            network = self.task.models.new(None, Meter())
            model = Model(**vars(self.task.inputs), method=self.method, network=network, shared=shared)
        if self.out:
            if model and isinstance(self.settings.model, str):
                save_model(self.out / "model.safetensors", model, self.settings.model, self.settings.norm, self.settings.seed)
            self._keep_latent(shared, self.best["round"], "kept")
            self._checkpoint()
            write_atomically(self.out / "result.json", json.dumps(result, indent=1).encode())
        return Run(result, history, self.out, shared, model)


def _texts(left_out: dict) -> dict[str, str]:
    return {str(id): why for id, why in left_out.items()}


def _pseudo_labels(judged: dict[str, int], tail: str) -> dict[str, float | None]:
    """For the history: the pseudo-labels since the evaluation before. If none was used, there is no share."""
    used = judged["used"]
    line = {
        f"pseudo_label_accuracy{tail}": number(judged["right"] / used) if used else None,
        f"pseudo_labels_used{tail}": used,
        f"pseudo_labels_of{tail}": judged["n"],
        f"pseudo_labels_right_of_all{tail}": number(judged["right_of_all"] / judged["n"]),
    }
    if "confidence" in judged:
        line[f"pseudo_labels_confidence{tail}"] = number(judged["confidence"] / 1e6 / used) if used else None
    return line
