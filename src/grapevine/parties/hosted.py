"""The host's program for a federation's job: the label job in one shot, a training job round by round with checkpoints.

It sees a `core.Server` and a folder, and runs the same over any transport. What it leaves is in results/: result.json,
messages.jsonl, and of a training job history.jsonl and model.safetensors; or failed.json with the sentence that says why not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grapevine.core import Transport, scores, wire
from grapevine.core.errors import Mistake
from grapevine.core.rows import Scale
from grapevine.core.store import FileStore, write_atomically
from grapevine.core.version import __version__
from grapevine.jobs.label import expected_accuracy
from grapevine.run.folder import Lines
from grapevine.run.model import Model, save_model

if TYPE_CHECKING:
    from grapevine.core import Server
    from grapevine.parties.federation import HostSetup


class Watched(Transport):
    """A transport with a quorum: when fewer parties than that still answer, the job stops with a sentence.

    A party that did not answer counts as gone until it answers again. Exchanges are told as they begin and end.
    """

    def __init__(self, inner: Transport, parties: Iterable[str], quorum: int, tell: Callable[[dict], None]):
        self._inner, self._gone, self._parties, self._quorum, self._tell = inner, set(), set(parties), quorum, tell

    def exchange(self, step: str, requests: dict, round: int) -> dict:
        began = time.monotonic()
        self._tell(dict(step=step, round=round, asked=sorted(requests)))
        replies = self._inner.exchange(step, requests, round)
        seconds = float(f"{time.monotonic() - began:.2f}")
        missing = sorted(set(requests) - set(replies))
        self._tell(dict(step=step, round=round, answered=sorted(replies), missing=missing, seconds=seconds))
        self._gone = (self._gone | set(missing)) - set(replies)
        left = len(self._parties - self._gone)
        if left < self._quorum or not replies:
            gone = ", ".join(sorted(self._gone))
            raise Mistake(
                f"{left} of {len(self._parties)} parties still answer after step {step} of round {round} ({seconds:.0f} s), and "
                f"the quorum is {self._quorum}: {gone} must `grapevine join` again, then start the host again."
            )
        return replies


def run(server: Server, setup: HostSetup, folder: Path) -> dict[str, Any]:
    """The whole job, and results/ at its end. A job that was broken off goes on from its checkpoint."""
    (folder / "results").mkdir(exist_ok=True)
    server.transport = Watched(server.transport, server.clients, setup.quorum, _teller(folder / "progress.jsonl"))
    try:
        result = (_label if setup.table["job"] == "label" else _train)(server, setup, folder)
    except Exception as error:
        sentence = str(error) if isinstance(error, Mistake) else f"{type(error).__name__} at the host: {error}"
        _write_json(folder / "results" / "failed.json", dict(sentence=sentence))
        raise
    (folder / "results" / "failed.json").unlink(missing_ok=True)
    _write_json(folder / "results" / "result.json", result)
    return result


def _teller(path: Path) -> Callable[[dict], None]:
    def tell(line: dict) -> None:
        with open(path, "a") as file:
            file.write(json.dumps(dict(time=round(time.time(), 2), **line)) + "\n")

    return tell


def _write_json(path: Path, value: dict) -> None:
    write_atomically(path, json.dumps(value, indent=1).encode())


def _label(server: Server, setup: HostSetup, folder: Path) -> dict[str, Any]:
    """One shot: whatever was broken off begins again with a new session. The result is what the host may know."""
    began, method = time.perf_counter(), setup.method
    method.check(server)
    state = method.round(server, method.setup(server))
    groups = list(state["groups"].values())
    got = sorted({name for group in groups for name in group["got_labels"].values()})
    messages = server.account.drain()
    (folder / "results" / "messages.jsonl").write_text("".join(json.dumps(line) + "\n" for line in messages))
    return dict(
        job="label", method="xclp", settings=method.settings(), agreed=setup.hash, seed=setup.table.get("seed"), rounds=1,
        data=dict(classes=sorted({name for group in groups for name in group["classes"].values()})),
        expected=expected_accuracy(groups),
        neighbours=groups[0]["neighbours"], labelled=got, lost=sorted(set(setup.parties) - set(got)),
        bytes_up=server.account.totals["up"], bytes_down=server.account.totals["down"],
        seconds=round(time.perf_counter() - began, 3), version=__version__,
    )  # fmt: skip


def _train(server: Server, setup: HostSetup, folder: Path) -> dict[str, Any]:
    """Round by round, with an evaluation and a checkpoint after each."""
    method = setup.method
    method.check(server)
    with ExitStack() as stack:
        files = {name: Lines(folder / "results" / f"{name}.jsonl") for name in ("history", "messages")}
        for file in files.values():
            stack.callback(file.close)
        state, done, seconds = _rounds(server, setup, folder, files)
        last = files["history"].last
    if not method.personal:
        _save_model(server, setup, state, folder / "results" / "model.safetensors")
    return dict(
        job="train", method=method.name, settings=method.settings(), agreed=setup.hash, seed=setup.table.get("seed"), rounds=done,
        data=dict(classes=list(setup.classes), features=len(setup.table["features"])), model=setup.table["model"],
        norm=setup.table.get("norm") or "default", accuracy=last["accuracy"], accuracy_last=last["accuracy"],
        balanced_accuracy=last["balanced_accuracy"], per_client=last["per_client"], bytes_up=server.account.totals["up"],
        bytes_down=server.account.totals["down"], seconds=round(seconds, 3), version=__version__,
    )  # fmt: skip


def _rounds(server: Server, setup: HostSetup, folder: Path, files: dict[str, Lines]) -> tuple[dict, int, float]:
    """All rounds that are left: the last state, how many there were, and the seconds they took. Files are cut back to the
    checkpoint first, so that a job that was broken off leaves the same lines as one that was not."""
    store, path = FileStore(folder / "checkpoint" / "objects"), folder / "checkpoint" / "manifest.json"
    manifest = json.loads(path.read_text()) if path.exists() else dict(done=0, lengths={}, bytes={}, seconds=0.0)
    for name, file in files.items():
        file.cut(manifest["lengths"].get(name, 0))
    server.account.totals.update(manifest["bytes"])
    state = wire.decode(store.get(manifest["state"])) if "state" in manifest else setup.method.setup(server)
    done, before, began = manifest["done"], manifest["seconds"], time.perf_counter()
    while done < setup.rounds:
        server.now = done
        state = setup.method.round(server, state)
        done += 1
        files["history"].add(_evaluate(server, setup, state, done))
        for line in server.account.drain():
            files["messages"].add(line)
        name = store.put(wire.encode(state))
        lengths = {kind: file.flush() for kind, file in files.items()}
        seconds = before + time.perf_counter() - began
        _write_json(path, dict(done=done, state=name, lengths=lengths, bytes=dict(server.account.totals), seconds=seconds))
        store.keep_only([name])
    return state, done, before + time.perf_counter() - began


def _evaluate(server: Server, setup: HostSetup, state: dict, done: int) -> dict[str, Any]:
    """A line of the history: the model on the rows that each party held out."""
    method = setup.method
    told = {} if method.personal else dict(shared=method.shared(state))
    replies = server.ask(method.evaluate, **told)
    counts = {name: reply["confusion"] for name, reply in replies.items() if _counts(reply, len(setup.classes))}
    total = sum(counts.values(), torch.zeros(len(setup.classes), len(setup.classes), dtype=torch.int64))
    per_client = [dict(id=name, n=int(c.sum()), accuracy=_number(scores.accuracy(c))) for name, c in counts.items()]
    line = dict(round=done, accuracy=_number(scores.accuracy(total)), balanced_accuracy=_number(scores.balanced_accuracy(total)),
                per_client=per_client, **server.notes)  # fmt: skip
    server.notes = {}
    return line


def _counts(reply: dict, classes: int) -> bool:
    """Whether a reply holds a confusion matrix: one that does not is left out of the accuracy."""
    counts = reply.get("confusion")
    return isinstance(counts, torch.Tensor) and counts.shape == (classes, classes) and counts.dtype == torch.int64


def _number(value: float) -> float | None:
    return None if value != value else round(value, 6)


def _save_model(server: Server, setup: HostSetup, state: dict, path: Path) -> None:
    """The model for features as the networks saw them; a party puts its own scaling in when it fetches it."""
    width = len(setup.table["features"])
    model = Model(setup.classes, Scale(1.0, torch.zeros(width), torch.ones(width)), (width,), tuple(setup.table["features"]),
                  method=setup.method, network=server.model(), shared=setup.method.shared(state))  # fmt: skip
    save_model(path, model, setup.table["model"], setup.table.get("norm"), setup.seed)
