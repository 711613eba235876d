"""What a party keeps between messages: its memory, which rounds it has answered, and what may go back when a host starts again.

    memory/         the values, as content-addressed objects
    memory.json     the manifest as it is now and as it was before each of the last rounds; which steps of the round were answered
    epoch.txt       which start of the host this party works for, written by `join` once the person at the party allows it

A request that comes again, since its reply was lost on the way, gets the same reply, which is kept until the next one. Other than
that a step is answered once in a round, rounds never go back, and none beyond the agreed ones is answered. Only a host that was
started again may repeat the rounds that its checkpoint lacks; then memory goes back to what it was before them, unless it has
held an agreement: keys and masks are used once. A job of one round (label, clean) is not repeated: it starts again when the party
says so (`forget_memory`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, write_atomically
from grapevine.parties.agreement import Agreement
from grapevine.parties.rows import forget_rows

ROUNDS_BACK = 5  # how many rounds a party's memory can go back
Manifest = dict[str, str]


@dataclass(frozen=True)
class Kept:
    """memory.json. `run` is Flower's number of the host's run; `answered` are steps of `round`, with how often each was."""

    run: int
    epoch: str
    round: int = 0
    now: Manifest = field(default_factory=dict)
    before: dict[int, Manifest] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    sealed: bool = False  # there were keys in it
    request: str = ""  # the last that was answered, by the number that the host gave it,
    reply: str = ""  # and the reply, an object of the store

    @classmethod
    def read(cls, folder: Path) -> Kept | None:
        path = folder / "memory.json"
        if not path.exists():
            return None
        table = json.loads(path.read_text())
        return cls(**dict(table, before={int(r): manifest for r, manifest in table["before"].items()}))

    def write(self, folder: Path, store: FileStore) -> None:
        write_atomically(folder / "memory.json", json.dumps(asdict(self)).encode())
        manifests = [self.now, *self.before.values()]
        store.keep_only([self.reply, *(name for manifest in manifests for name in manifest.values())])

    def replied(self, request: dict[str, Any]) -> bool:
        """Whether this very request was answered before."""
        return bool(self.request) and self.request == request.get("id")


def recall(folder: Path, run: int, request: dict[str, Any], agreed: Agreement) -> Kept:
    """The memory that a request finds; a `Mistake` for one that was not agreed on."""
    round = request["round"]
    for asked in (round, request["payload"].get("round", round)):
        if type(asked) is not int or not 0 <= asked < agreed.rounds:
            raise Mistake(f"round {asked} was requested, but only rounds 0 to {agreed.rounds - 1} were agreed.")
    path = folder / "epoch.txt"
    epoch = path.read_text() if path.exists() else ""
    kept = Kept.read(folder)
    if kept is None:
        kept = Kept(run, epoch, round)
    elif kept.run == run and kept.replied(request):
        return kept
    elif kept.run != run:
        kept = _started_again(kept, run, epoch, round, agreed)
    elif round < kept.round:
        raise Mistake(f"round {round} was requested after round {kept.round}: rounds cannot go back.")
    if round > kept.round:
        kept = replace(kept, round=round, answered={})
    before = {round: kept.now, **kept.before}
    kept = replace(kept, before={r: before[r] for r in sorted(before)[-ROUNDS_BACK:]})
    often = 2 if agreed.job == "train" and round == 0 else 1  # what is asked before the first round counts as part of it
    own = "." in request["step"]  # steps of a sub-protocol count themselves, as chunks of a transfer do
    if not own and kept.answered.get(_name(request), 0) >= often:
        raise Mistake(f"step {request['step']} of round {round} was answered before: each step is answered once.")
    return kept


def _name(request: dict[str, Any]) -> str:
    """Sums have numbers. One that lost a party is asked for again as another attempt; the sum itself limits how often."""
    said = [request["payload"][name] for name in ("number", "attempt") if name in request["payload"]]
    return " ".join(map(str, [request["step"], *said]))


def _started_again(kept: Kept, run: int, epoch: str, round: int, agreed: Agreement) -> Kept:
    if kept.epoch == epoch:
        raise Mistake("the host started the job again without restarting itself: this party did not agree to that.")
    if agreed.rounds == 1:
        raise Mistake("the host started the job again: this party has not agreed to that.")
    again = [r for r in kept.before if r >= round]
    now = kept.before[min(again)] if again and not kept.sealed else kept.now
    before = {r: manifest for r, manifest in kept.before.items() if r < round}
    return replace(kept, run=run, epoch=epoch, round=round, now=now, before=before, answered={}, request="", reply="")


def remember(folder: Path, kept: Kept, request: dict[str, Any], now: Manifest, store: FileStore, reply: bytes) -> None:
    """Record the reply to a request, and what the step left."""
    name = _name(request)
    answered = dict(kept.answered, **{name: kept.answered.get(name, 0) + 1})
    sealed = kept.sealed or "agreement" in now
    replace(kept, now=now, answered=answered, sealed=sealed, request=request.get("id", ""), reply=store.put(reply)).write(
        folder, store
    )


def forget_memory(folder: Path) -> None:
    """Delete the objects first: the list, useless without them, shows until the end that there was a job."""
    shutil.rmtree(folder / "memory", ignore_errors=True)
    (folder / "memory.json").unlink(missing_ok=True)


def clean_up(folder: Path) -> None:
    """What no job leaves behind, whatever its end: memory, rows, Flower's own files. Keys by which the host knows this party stay
    until its job is done (`join`)."""
    forget_memory(folder)
    forget_rows(folder)
    shutil.rmtree(folder / "flower", ignore_errors=True)
    for name in ("epoch.txt", "inbox.bin", "node.txt"):
        (folder / name).unlink(missing_ok=True)
