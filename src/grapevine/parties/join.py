"""`grapevine join`: from an invitation to labels. Look at what is asked, agree, make keys, wait for the others, confirm who they
are, work, take the results, leave. Private keys never leave the party's folder, and nothing leaves it before the party agrees.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grapevine.core import Client
from grapevine.core.errors import Later, Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.models import HEADS
from grapevine.core.places import writing_name
from grapevine.core.store import FileStore, Memory, write_atomically
from grapevine.core.words import printable
from grapevine.crypto.agreement import Identity, fingerprint
from grapevine.jobs import label, label_result
from grapevine.jobs.folder import require_new, write_lines
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import LabelSettings
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import ledger_folder
from grapevine.parties.files import check_name, read_if_there, read_toml, whole_lines, write_toml
from grapevine.parties.host import roster_digest
from grapevine.parties.keys import Token, check_clock, make_node_key, read_token, secret_hash
from grapevine.parties.line import KINDS, Line
from grapevine.parties.memory import Kept, Manifest, clean_up, forget_memory
from grapevine.parties.policy import policy_file, willing
from grapevine.parties.registry import HERE_SECONDS, TWIN, HostLink, Refused, Unreachable
from grapevine.parties.rows import client_data, load_rows, read_apart, save_rows
from grapevine.parties.settings import JoinSettings
from grapevine.parties.talk import Talk
from grapevine.run.folder import lock

TICK = 1.0
PATIENCE_SECONDS = 60  # for a host that is not there yet
AWAY_SECONDS = 900  # a host that is away for so long is given up
DONE_SECONDS = 60  # or away for so long, if this party has its results
STARTS = 20  # starts of the host in one training job, until a person is asked: each may repeat a round
BEGINNINGS = 3  # how often one label job may begin
RESULT = dict(label="result", clean="decided")  # what a step leaves in memory when a job is done for its party


def default_home(token: Token) -> Path:
    return Path.home() / ".grapevine" / check_name(token.federation, "federation") / check_name(token.name)


def home_of(token: str | None, s: JoinSettings) -> Path:
    """The folder of a party."""
    if s.home:
        return Path(s.home).expanduser().resolve()
    if not token:
        raise Mistake("give an invitation, or with --home the folder of a party that has already joined.")
    return default_home(read_token(token))


def join(token: str | None, s: JoinSettings, talk: Talk) -> Path:
    """Take part in a job to its end; the folder with the results."""
    invitation, folder = read_token(token) if token else None, home_of(token, s)
    if s.pin and not Path(s.pin).exists():
        raise Mistake(f"there is no file {s.pin}: give --pin the pinned.toml of an earlier job.")
    if s.out:
        require_new(s.out)
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    with lock(folder / "lock", HERE_SECONDS):  # which the forks of a process that was killed still hold for seconds
        if (folder / "party.toml").exists():
            done = read_toml(folder / "party.toml").get("finished")
            if done and invitation is None:  # as when a machine is started again, with all its services
                talk.say(f"The job in {folder} is finished; use a new --home for a new job.")
                return Path(done)
            party = _again(folder, invitation, s, talk)
        elif invitation is None:
            raise Mistake(f"{folder} holds no party: give an invitation.")
        else:
            party = _enrol(folder, invitation, s, talk)
        return _Stay(folder, party, s, talk).run()


# ---------------------------------------------------------------- agreeing


def look(token: Token) -> tuple[HostLink, Agreement]:
    """What the host asks for, before anything is made or promised: certificate checked, clock compared, settings read."""
    link = HostLink(token).check_ca()
    before = time.time()
    told = link.call("settings")
    try:
        check_clock(float(told["time"]), before, time.time())
        agreed = Agreement.from_dict(told["agreed"])
        agreed.check()
        same = agreed.hash == told["hash"]
    except Mistake:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Mistake(f"{link.place} sent incomplete settings: check that it runs the same version of Grapevine.") from None
    if not same:
        raise Mistake(
            f"{link.place} sent settings that do not match their hash: check that it runs the same version of Grapevine."
        )
    return link, agreed


def _patiently(call: Callable[[], Any], talk: Talk) -> Any:
    """The host may be started a little later than the parties."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except Unreachable as problem:
            if time.monotonic() > until:
                raise
            talk.line(f"waiting for the host ({str(problem).split(': ')[0]})")
            time.sleep(TICK)


def _enrol(folder: Path, token: Token, s: JoinSettings, talk: Talk) -> dict[str, Any]:
    link, agreed = _patiently(lambda: look(token), talk)
    rows = read_apart(s, agreed, token.name)
    talk.show(agreed, rows)
    if not willing(policy_file(s.policy), agreed, link.place, token.name, talk):
        raise Mistake("nothing was sent, because you did not agree.")
    if not (folder / "identity.pem").exists():
        Identity.generate().save(folder / "identity.pem")
    identity, node_key = Identity.load(folder / "identity.pem"), make_node_key(folder)
    save_rows(folder, rows)
    write_atomically(folder / "ca.crt", link.ca)
    link = link.enrol(node_key, identity.public.hex())
    party = dict(name=token.name, federation=agreed.name, host=link.place, token=link.token.text(), hash=agreed.hash,
                 used=secret_hash(token.secret),
                 seed=secrets.randbits(62) if agreed.seed is None else agreed.seed, ledger=str(ledger_folder(s.ledger)),
                 agreed=agreed.to_dict())  # fmt: skip
    write_toml(folder / "party.toml", party, secret=True)
    talk.say(f"Joined as {token.name}. Your fingerprint, for the others to compare: {identity.fingerprint}")
    return party


def _again(folder: Path, token: Token | None, s: JoinSettings, talk: Talk) -> dict[str, Any]:
    """A party that has joined before, with the keys of that time; and its rows, which it reads again if it had left."""
    party = read_toml(folder / "party.toml")
    if "finished" in party:
        raise Mistake(
            f"the job in {folder} is finished and its results are in {party['finished']}: use a new --home for a new job."
        )
    if token and (token.name, token.federation) != (party["name"], party["federation"]):
        raise Mistake(f"{folder} belongs to {party['name']} in {party['federation']}: choose another --home.")
    identity = Identity.load(folder / "identity.pem")
    if token and secret_hash(token.secret) != party["used"]:  # the host has invited this party again, which keeps its keys
        link, agreed = _patiently(lambda: look(token), talk)
        if agreed.hash != party["hash"]:
            raise Mistake(
                f"federation {party['federation']} now has other settings than those you agreed to: join with another --home."
            )
        if not willing(policy_file(s.policy), agreed, link.place, token.name, talk):  # the address may be another now
            raise Mistake("nothing was sent, because you did not agree.")
        link = link.enrol(make_node_key(folder), identity.public.hex())
        write_atomically(folder / "ca.crt", link.ca)
        party = dict(party, token=link.token.text(), host=link.place, used=secret_hash(token.secret))
        write_toml(folder / "party.toml", party, secret=True)
    if not (folder / "rows.json").exists():
        save_rows(folder, read_apart(s, Agreement.from_dict(party["agreed"]), party["name"]))
    talk.say(f"Back as {party['name']}. Your fingerprint: {identity.fingerprint}")
    return party


# ---------------------------------------------------------------- taking part


class _Stay:
    def __init__(self, folder: Path, party: dict[str, Any], s: JoinSettings, talk: Talk):
        self.folder, self.party, self.talk, self.abstain, self.target = folder, party, talk, s.abstain, s.target
        self.out, self.pin = Path(s.out) if s.out else folder / "out", Path(s.pin) if s.pin else None
        self.agreed = Agreement.from_dict(party["agreed"])
        self.link = HostLink(read_token(party["token"]), (folder / "ca.crt").read_bytes())
        self.node = Line(folder, party["host"], talk.say)
        self.confirmed, self.news, self.audit = "", -1, ""
        path = folder / "epoch.txt"  # which start of the host this party last worked for
        self.epoch = path.read_text() if path.exists() else ""
        self.seen = whole_lines(folder / "disclosure.jsonl")
        self.step, self.fields = "", set[str]()  # what was said last of what was sent

    def run(self) -> Path:
        state, sentence = "left", ""
        try:
            return self._until_the_end()
        except Mistake as mistake:
            state, sentence = "refused" if not self.confirmed else "left", str(mistake)
            raise
        finally:
            self.node.stop()
            self._clean_up()
            try:
                self.link.hear(state, self.confirmed, sentence)
            except Mistake:
                pass  # the host has gone: there is nobody to tell

    def _until_the_end(self) -> Path:
        away = time.monotonic()
        while True:
            try:
                told = self._hear()
                away = time.monotonic()
            except Unreachable as problem:
                if time.monotonic() - away > DONE_SECONDS and self._has_result():
                    self.talk.say("The host has gone, and the results are here already.")
                    return self._take_results()
                if time.monotonic() - away > AWAY_SECONDS:
                    raise
                self.talk.line(f"the host is away ({str(problem).split(': ')[0]})")
                time.sleep(TICK)
                continue
            except Refused as refused:
                if refused.status != TWIN or time.monotonic() - away > 2 * HERE_SECONDS:
                    raise
                self.talk.line(f"waiting {HERE_SECONDS} s until the host no longer counts on the process that ran here before")
                time.sleep(TICK)
                continue
            if told["hash"] != self.party["hash"]:
                raise Mistake(
                    f"the host's settings differ from those {self.party['name']} agreed to: ask it for a new invitation."
                )
            if told["phase"] == "failed":
                raise (Later if told.get("later") else Mistake)(f"the host stopped: {printable(told['sentence'])}")
            if told["phase"] == "done":
                return self._take_results()
            if told["phase"] == "gathering":
                self.talk.line(f"waiting for {', '.join(sorted(set(told['parties']) - set(told['here']))) or 'the host'}")
            else:
                if told["epoch"] != self.epoch and self._has_result():
                    self.talk.say("The host was started again, and the results are here already.")
                    return self._take_results()
                self._confirm(told["roster"])
                self._keep_node_running(told["epoch"])
                self._tell_progress()
            time.sleep(min(told["every"], HERE_SECONDS / 2))

    def _hear(self) -> dict[str, Any]:
        """Tell the host that this party is here, and what is wrong if something is; show what the host says."""
        kind, before = self.node.trouble[0], time.time()
        state = "in trouble" if kind else "at work" if self.node.running else "here"
        told = self.link.hear(state, f"{self.confirmed} {self.epoch}" if self.confirmed else "", KINDS.get(kind, ""))
        self.audit = printable(str(told["audit"]))
        for number, sentence in told["news"]:
            if number > self.news:
                self.news = number
                self.talk.say(f"Host: {printable(sentence)}")
        try:
            check_clock(float(told["time"]), before, time.time())
        except Mistake as wrong:
            self.talk.line(str(wrong))
        return told

    def _confirm(self, roster: dict[str, str]) -> None:
        digest = roster_digest(roster)
        if self.confirmed == digest:
            return
        name = self.party["name"]
        strange = sorted(set(roster) - set(self.agreed.parties))
        if strange or len(roster) < self.agreed.quorum:
            wrong = f"{printable(strange[0])} in it" if strange else f"{len(roster)} parties"
            raise Mistake(f"the host's roster has {wrong}, which is not what {name} agreed to: ask the host why.")
        if roster.get(name) != Identity.load(self.folder / "identity.pem").public.hex():
            raise Mistake(f"the host's roster does not contain the key of {name} that is in {self.folder}: ask the host why.")
        pinned = check_pins(roster, self.folder / "pinned.toml", self.pin)
        strange = sorted(set(roster) - set(pinned) - {name})
        if strange:
            self.talk.say("Compare these fingerprints with the others, by telephone or in person:")
            for other in sorted(roster):
                self.talk.say(f"  {other:20} {fingerprint(bytes.fromhex(roster[other]))}{'  (you)' if other == name else ''}")
            if not self.talk.ask("Are they the same as what the others see?"):
                raise Mistake("the fingerprints were not confirmed, so nothing was computed.")
        entries = {
            other: dict(identity=key, fingerprint=fingerprint(bytes.fromhex(key))) for other, key in sorted(roster.items())
        }
        self._check_ledger(roster)
        write_toml(self.folder / "pinned.toml", entries)
        self.confirmed = digest

    def _check_ledger(self, roster: Iterable[str]) -> None:
        """Before anything is computed: may these rows be summed with these parties? Only a person may say so."""
        if not any(name.endswith("keys") for name in self.agreed.made.steps()):  # nothing is summed
            return
        groups, names = self.agreed.settings.get("groups", 1), sorted(roster)
        own = next(group for group in (names[i::groups] for i in range(groups)) if self.party["name"] in group)
        ledger = Ledger(self.party["ledger"])
        rows = ledger.rows(client_data(load_rows(self.folder), self.agreed))
        problem = ledger.problem(rows, own)
        if problem is None:
            return
        self.talk.say(f"{problem[0].upper()}{problem[1:]}")
        if not self.talk.insist(f"Sum these rows with {', '.join(own)} anyway?"):
            raise Mistake(f"nothing was computed: {problem}")
        ledger.allow(rows=rows, parties=own)

    def _keep_node_running(self, epoch: str) -> None:
        """A node for this SuperLink: a new one when the host was started again, or when the node ended by itself."""
        if epoch != self.epoch:
            if self.epoch:
                self.talk.say("The host was restarted: connecting again.")
                self._count_starts()
            self.node.stop()
            self._begin_again()
            write_atomically(self.folder / "epoch.txt", epoch.encode())
        if self.node.pid is None:
            self.node.start()
        self.node.keep()
        self.epoch = epoch

    def _count_starts(self) -> None:
        starts = self.party.get("starts", 0) + 1
        if starts % STARTS == 0 and not self.talk.insist(f"The host was restarted {starts} times. Continue this job?"):
            raise Mistake(f"the host was restarted {starts} times: ask it why.")
        self._note(starts=starts)

    def _note(self, **changes: Any) -> None:
        self.party = dict(self.party, **changes)
        write_toml(self.folder / "party.toml", self.party, secret=True)

    def _begun(self) -> bool:
        """Whether this party has answered a step of the job, now or before it left."""
        return self.party.get("begun", False) or (self.folder / "memory.json").exists()

    def _begin_again(self) -> None:
        """A job of one round that was interrupted can only start again, and a label job then shows the host more distances
        between the same rows, and draws its noise anew. The party decides how often: a host that wants more could break off on
        purpose. Only a person decides to spend a privacy budget again."""
        if self.agreed.rounds > 1 or not self._begun():
            return
        count = self.party.get("beginnings", 1)
        if count >= BEGINNINGS:
            raise Mistake(f"the host has started this job {count} times without finishing it: ask it why, and start a new job.")
        spent = sum(self.agreed.settings.get(name) or 0.0 for name in ("dp_labels", "dp"))
        price = f" Another ε = {spent:g} would be spent on the same rows, ε = {spent * (count + 1):g} in all." if spent else ""
        question = f"The job was interrupted. Start it again? The host will then see such distances a second time.{price}"
        if not (self.talk.insist if spent else self.talk.ask)(question):
            raise Mistake("the job was not started again, because you did not agree.")
        self._note(beginnings=count + 1)
        forget_memory(self.folder)

    def _tell_progress(self) -> None:
        lines = whole_lines(self.folder / "disclosure.jsonl")
        for line in lines[len(self.seen) :]:
            if line["step"] != self.step:
                self.step, self.fields = line["step"], set()
            if line["field"] in self.fields:
                continue  # a step that is asked many times in a row is told once; all of it is in disclosure.jsonl
            self.fields.add(line["field"])
            self.talk.say(f"Sent: step {line['step']}, {line['field']}, {line['bytes']} bytes ({line['reveals']}).")
        self.seen = lines
        self.talk.line(self.node.words() if self.node.running else "connecting to the host")

    # ------------------------------------------------------------ the end

    def _take_results(self) -> Path:
        self._tell_progress()
        self.node.stop()
        beside = writing_name(self.out)
        shutil.rmtree(beside, ignore_errors=True)
        try:
            dict(label=self._write_labels, clean=self._write_cleaned, train=self._write_model)[self.agreed.job](beside)
            os.chmod(beside, 0o700)  # wherever it will be
            if self.out.exists():
                self.out.rmdir()  # it is empty, or it was refused at the beginning
            self.out.parent.mkdir(parents=True, exist_ok=True)
            os.replace(beside, self.out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        # The keys that prove this party to the host go with its job. Its identity, by which others know it, opens nothing of it.
        for name in ("node.key", "node.pub"):
            (self.folder / name).unlink(missing_ok=True)
        left = {name: value for name, value in self.party.items() if name not in ("token", "seed")}
        self.party = dict(left, finished=str(self.out.resolve()), audit=self.audit)  # the host's log then ended with this
        write_toml(self.folder / "party.toml", self.party, secret=True)
        return self.out

    def _clean_up(self) -> None:
        """Keys, seeds, rows and memory of the job do not outlive it, however it ends."""
        if self._begun() and "finished" not in self.party:
            self._note(begun=True)
        clean_up(self.folder)

    def _memory(self) -> Manifest:
        """The names of what the steps keep here, with their hashes."""
        kept = Kept.read(self.folder)
        return kept.now if kept else {}

    def _has_result(self) -> bool:
        return RESULT.get(self.agreed.job) in self._memory()

    def _client(self) -> tuple[Party, Client]:
        """This party's rows and memory at the end, with the result of the job in it."""
        manifest = self._memory()
        if not self._has_result():
            raise Mistake(f"the job ended without {self.party['name']}, which lost its connection: see {self.node.log}.")
        rows = load_rows(self.folder)
        return rows, Client(rows.name, rows.data(), Memory(FileStore(self.folder / "memory"), manifest), None, self.party["seed"])

    def _write_labels(self, out: Path) -> None:
        said = {**self.agreed.settings, "seed": self.agreed.seed, "abstain": self.abstain, "target": self.target}
        result = label.at_party(*self._client(), LabelSettings.from_dict(said), self.seen)
        label_result.write_party(out, result[0])
        write_atomically(out / "result.json", json.dumps(label_result.summary_json(result), indent=1).encode(), 0o600)
        if result.heads is not None:
            result.heads.save(out / HEADS)

    def _write_cleaned(self, out: Path) -> None:
        from grapevine.parties import networks

        networks.write_cleaned(out, self.agreed, *self._client(), self.seen)

    def _write_model(self, out: Path) -> None:
        """The host's model with this party's own scaling, for `grapevine predict`."""
        out.mkdir(parents=True)
        write_lines(out / "disclosure.jsonl", self.seen)
        try:
            data = self.link.fetch_model()
        except Refused:
            return  # a method whose models stay at the parties
        (out / "model.safetensors").write_bytes(data)
        from grapevine.parties import networks

        networks.adopt_model(out / "model.safetensors", self.agreed, load_rows(self.folder))


def check_pins(roster: dict[str, str], *files: Path | None) -> dict[str, str]:
    """The identities that were confirmed before, by name. One that has changed stops everything."""
    pinned: dict[str, str] = {}
    for path in files:
        for name, entry in (read_if_there(path) if path else {}).items():
            before, now = entry["identity"], roster.get(name)
            if now is not None and now != before:
                raise Mistake(
                    f"the key of {name} has changed from {fingerprint(bytes.fromhex(before))} to "
                    f"{fingerprint(bytes.fromhex(now))}: ask {name} in person; if the new one is theirs, remove [{name}] "
                    f"from {path} and join again."
                )
            pinned[name] = before
    return pinned
