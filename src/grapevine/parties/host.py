"""`grapevine host`: from an open port to results. Gather the parties, close the roster, let all confirm it, run, tell, stop.

A host that was killed and is started again with the same folder continues with the roster that was closed, and the job from its
checkpoint; the parties' processes notice and connect again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grapevine.core.errors import Later, Mistake
from grapevine.core.store import write_atomically
from grapevine.core.version import __version__
from grapevine.parties.federation import Host, load_host
from grapevine.parties.files import whole_lines
from grapevine.parties.gate import Gate
from grapevine.parties.keys import make_certificates
from grapevine.parties.processes import SuperLink, alive, port_is_free
from grapevine.parties.registry import HERE_SECONDS, Registry
from grapevine.run.folder import lock

TICK = 0.5
STATUS_SECONDS = 5  # between two questions whether the run still lives
RUNS = 5  # after so many ServerApps that ended before the job did, the host gives up
LATE_SECONDS = 60  # after the job: a party that is not heard of for so long has gone without its results
LEAVE_SECONDS = 660  # for the parties to take their results and leave; a silent party is not waited for

Show = Callable[[Registry, str], None]
"""Called at every tick with the books and one line about what is going on."""


def roster_digest(roster: Mapping[str, str]) -> str:
    """What a party confirms: all names with their identities (hex)."""
    return hashlib.sha256(json.dumps(dict(sorted(roster.items())), separators=(",", ":")).encode()).hexdigest()


def host(folder: Path, show: Show, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a federation to its end; what results/result.json holds."""
    folder = Path(folder).resolve()
    setup = load_host(folder)
    bind, port = setup.bind, setup.port
    if (folder / "results" / "result.json").exists():
        say(f"The job of {folder} is finished; use a new folder for a new job.")
        return json.loads((folder / "results" / "result.json").read_text())
    with lock(folder / "lock"):
        make_certificates(folder, setup.agreed.name, [setup.address])
        if not port_is_free(bind, port):
            raise Mistake(
                f"port {port} on {bind} is in use: stop the program that listens there, or change `port` in federation.toml."
            )
        registry = Registry(folder)
        registry.audit.write("started", version=__version__)
        superlink = SuperLink(folder)
        gate = Gate((bind, port), registry, superlink.port, say).start()
        try:
            say(f"Federation {setup.agreed.name}: parties reach {setup.address}:{port}.")
            superlink.start()
            return _Job(setup, registry, superlink, show, say).run()
        except Mistake as mistake:
            registry.turn("failed", str(mistake), isinstance(mistake, Later))
            _farewell(registry, show)
            raise
        finally:
            gate.stop()
            superlink.stop()


def _farewell(registry: Registry, show: Show, seconds: float = LEAVE_SECONDS) -> None:
    """Wait until every party that is here has left, with its results or with the sentence that says why there are none."""
    until = time.monotonic() + seconds
    while registry.present(LATE_SECONDS) and time.monotonic() < until:
        show(registry, "waiting for the parties to leave")
        time.sleep(TICK)


class _Job:
    def __init__(self, setup: Host, registry: Registry, superlink: SuperLink, show: Show, say: Callable[[str], None]):
        self.setup, self.registry, self.superlink, self.show, self.say = setup, registry, superlink, show, say
        self.folder, self.times, self.quorum = setup.folder, setup.timeouts, setup.agreed.quorum
        self.registered: set[str] = set()
        self.gone: dict[str, str] | None = None
        self.quiet: set[str] = set()

    def run(self) -> dict[str, Any]:
        names = self._closed() or self._gather()
        self._register(self.registry.roster())  # before the parties are told to connect
        self.registry.close(names)
        self._confirm()
        result = self._run()
        self.registry.turn("done")
        self.say(f"Done: results are in {self.folder / 'results'}.")
        _farewell(self.registry, self.show)
        return result

    # ------------------------------------------------------------ who takes part

    def _closed(self) -> list[str]:
        """Those who take part, if the roster was closed before this host was started."""
        names = sorted(name for name, entry in self.registry.roster().items() if entry.get("in"))
        if names:
            self.say(f"Continuing with {', '.join(names)}.")
        return names

    def _gather(self) -> list[str]:
        until = time.monotonic() + self.times.join
        while True:
            wanted, here = sorted(self.registry.host.parties), self.registry.present()
            missing = [name for name in wanted if name not in here]
            if not missing:
                break
            if time.monotonic() > until:
                if len(here) >= self.quorum:
                    self.say(f"Starting without {', '.join(missing)}.")
                    break
                raise Later(
                    f"{len(here)} of {len(wanted)} parties came within {self.times.join:.0f} s, but {self.quorum} are "
                    f"needed: {', '.join(missing)} must run `grapevine join`, and then start the host again."
                )
            self._register(self.registry.roster())
            self._tick(f"waiting for {', '.join(missing)}")
        return here

    def _register(self, roster: dict[str, dict[str, Any]]) -> None:
        """Let the nodes of all who have joined in, each key once."""
        for name, entry in roster.items():
            if entry["node_key"] not in self.registered:
                self.superlink.register(name, entry["node_key"])
                self.registered.add(entry["node_key"])

    def _confirm(self) -> None:
        roster = self.registry.confirming()
        # For this start of the host: a party that has not heard of it yet would refuse to begin the job again.
        digest, until = f"{roster_digest(roster)} {self.registry.epoch}", time.monotonic() + self.times.confirm
        while True:
            heard = {name: self.registry.here[name] for name in roster if name in self.registry.here}
            for name, presence in heard.items():
                if presence.state == "refused":
                    raise Mistake(f"{name} did not confirm the roster: {presence.sentence or 'it gave no reason'}")
            left = sorted(name for name, presence in heard.items() if presence.state == "left")
            if len(roster) - len(left) < self.quorum:
                raise Later(f"{', '.join(left)} left before the job, but {self.quorum} parties are needed: ask them why.")
            ready = [name for name, p in heard.items() if p.confirmed == digest and name not in left and _recent(p.seen)]
            missing = sorted(set(roster) - set(ready))
            if not missing:
                return
            if time.monotonic() > until:
                if len(ready) >= self.quorum:
                    self.say(f"Starting without {', '.join(missing)}, who did not confirm.")
                    return
                raise Later(
                    f"{len(ready)} of {len(roster)} parties confirmed the fingerprints within {self.times.confirm:.0f} s, "
                    f"and {self.quorum} are needed: {', '.join(missing)} must join again, then start the host again."
                )
            self._tick(f"waiting for {', '.join(missing)} to confirm the fingerprints")

    # ------------------------------------------------------------ the job

    def _run(self) -> dict[str, Any]:
        result, failed = self.folder / "results" / "result.json", self.folder / "failed.json"
        progress = _Progress(self.folder / "progress.jsonl", self.say, self.tell)
        failed.unlink(missing_ok=True)
        self._note_gone()
        self.registry.turn("running")
        run, runs, asked = self._start(), 1, time.monotonic()
        while True:
            if result.exists():
                progress.read()
                return json.loads(result.read_text())
            if failed.exists():
                progress.read()
                told = json.loads(failed.read_text())
                raise (Later if told.get("later") else Mistake)(told["sentence"])
            if time.monotonic() - asked > STATUS_SECONDS:
                if not self._lives(run) and not result.exists() and not failed.exists():
                    runs += 1
                    run = self._again(runs)
                asked = time.monotonic()
            self._note_gone()
            self._tick(progress.read())

    def _start(self) -> str:
        (self.folder / "job.pid").unlink(missing_ok=True)
        return self.superlink.run()

    def _lives(self, run: str) -> bool:
        if not self.superlink.running:
            raise Later(f"the SuperLink stopped (see {self.superlink.log}): start the host again to continue.")
        pid = self.folder / "job.pid"  # which the job writes; until then Flower is asked, which notices a death after a minute
        return alive(int(pid.read_text())) if pid.exists() else not self.superlink.status(run).startswith("finished")

    def _again(self, runs: int) -> str:
        """The job's own process has ended without a word: another one continues, as after a new start of this host."""
        if runs > RUNS:
            raise Later(f"the job's process stopped {RUNS} times: see {self.superlink.log}.")
        self.tell("The job's process stopped. It is started again, and continues from its last checkpoint or from the beginning.")
        self.registry.start_anew()
        self._confirm()
        return self._start()

    def tell(self, sentence: str) -> None:
        """Show a sentence on this screen and on those of all parties."""
        self.say(sentence)
        self.registry.tell(sentence)

    def _note_gone(self) -> None:
        """Tell the job's process who has gone for good, so that it no longer asks them, and tell people what is waited for."""
        gone = self.registry.gone()
        if gone != self.gone:
            for name in gone.keys() - (self.gone or {}).keys():
                self.tell(f"{name} {gone[name]}.")
            self.gone = gone
            write_atomically(self.folder / "gone.json", json.dumps(gone).encode())
        quiet = set(self.registry.here) - set(self.registry.present()) - set(gone)
        for name in quiet - self.quiet:
            self.tell(f"{name} has not been heard of for {HERE_SECONDS} s: it is asked again until the step's time is over.")
        for name in self.quiet - quiet - set(gone):
            self.tell(f"{name} is back.")
        self.quiet = quiet

    def _tick(self, line: str) -> None:
        self.show(self.registry, line)
        time.sleep(TICK)


def _recent(seen: float) -> bool:
    return time.time() - seen < HERE_SECONDS


class _Progress:
    """What the job writes into progress.jsonl, as sentences."""

    def __init__(self, path: Path, say: Callable[[str], None], tell: Callable[[str], None]):
        self.path, self.say, self.tell = path, say, tell  # on this screen, and on everybody's
        self.seen = len(whole_lines(path))
        self.line, self.told = "the job begins", ""  # what is shown now, and the step that was told last

    def read(self) -> str:
        lines = whole_lines(self.path)
        for told in lines[self.seen :]:
            self._tell(told)
        self.seen = len(lines)
        return self.line

    def _tell(self, told: dict[str, Any]) -> None:
        if "sentence" in told:
            self.tell(told["sentence"])
            return
        step = f"round {told['round'] + 1}, step {told['step']}"
        if "asked" in told:
            self.line = f"{step}: {len(told['asked'])} parties at work"
            return
        lost = f", no answer from {', '.join(told['missing'])}" if told["missing"] else ""
        self.line = f"{step}: {len(told['answered'])} answered{lost}"
        if self.told == step and not lost:
            return  # a step that is asked many times in a row is told once
        self.told, say = step, self.tell if lost else self.say
        say(f"{step}: {len(told['answered'])} answered in {told['seconds']:.1f} s{lost}.")
