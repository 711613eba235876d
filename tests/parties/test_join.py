"""Joining, as far as it goes without processes: pins, agreeing, taking the results."""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from net import TOKEN, Net, ask_party, bytes_left
from trials import LABEL, NAMES, TRAIN, blobs, clean_agreement, label_agreement, train_agreement, write_table

import grapevine as gv
from grapevine import report
from grapevine.cli.bars import console
from grapevine.cli.terminal import show_own_labels
from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.store import FileStore, Memory
from grapevine.crypto.agreement import Identity, fingerprint
from grapevine.jobs.settings import LabelSettings
from grapevine.parties import files, networks
from grapevine.parties import join as joining
from grapevine.parties.federation import load_party
from grapevine.parties.host import roster_digest
from grapevine.parties.line import Line
from grapevine.parties.memory import Kept
from grapevine.parties.processes import free_port
from grapevine.parties.registry import TWIN, Refused, Unreachable
from grapevine.parties.settings import JoinSettings
from grapevine.run.folder import lock


def test_a_changed_key_stops_with_both_fingerprints(tmp_path):
    before, now = Identity.generate().public, Identity.generate().public
    files.write_toml(tmp_path / "pinned.toml", {"south": dict(identity=before.hex())})
    with pytest.raises(Mistake, match="key of south has changed") as told:
        joining.check_pins({"south": now.hex()}, None, tmp_path / "pinned.toml")
    assert fingerprint(before) in str(told.value) and fingerprint(now) in str(told.value)


def test_a_pinned_party_that_is_not_there_is_no_harm(tmp_path):
    key = Identity.generate().public.hex()
    files.write_toml(tmp_path / "pinned.toml", {"south": dict(identity=key)})
    assert joining.check_pins({"north": "00"}, tmp_path / "pinned.toml", tmp_path / "nowhere.toml") == {"south": key}


# ---------------------------------------------------------------- joining as far as it goes without processes


def talk(answer: bool = True) -> tuple[joining.Talk, list[str]]:
    said: list[str] = []
    ask = lambda question: said.append(question) or answer  # noqa: E731
    return joining.Talk(said.append, ask, ask, lambda *shown: said.append("shown"), said.append), said


def test_a_party_that_does_not_agree_sends_nothing(host, tmp_path):
    path = write_table(tmp_path / "n.csv", blobs("north"))
    speak, said = talk(answer=False)
    with pytest.raises(Mistake, match="nothing was sent"):
        joining.join(host.registry.invite("north").text(), JoinSettings(str(path), "kind", home=str(tmp_path / "home")), speak)
    assert said[0] == "shown" and host.registry.roster() == {}
    assert not (tmp_path / "home" / "identity.pem").exists()


def test_a_table_that_does_not_fit_does_not_use_the_invitation_up(host, tmp_path):
    token = host.registry.invite("north")
    path = write_table(tmp_path / "n.csv", blobs("north"), ("a", "b"))
    with pytest.raises(Mistake, match="no column 'c'"):
        joining.join(token.text(), JoinSettings(str(path), "kind", home=str(tmp_path / "home")), talk()[0])
    host.enrol("north", tmp_path / "n", host.link("north", token))


def test_a_host_that_is_not_there_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "PATIENCE_SECONDS", 0)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        token = replace(TOKEN, address="127.0.0.1", port=sock.getsockname()[1])
        with pytest.raises(Mistake, match="is `grapevine host` running there"):
            joining.join(token.text(), JoinSettings("x.csv", "kind", home=str(tmp_path / "home")), talk()[0])
    with pytest.raises(Unreachable, match="cannot be resolved"):  # as whenever the network is cut: no reason to end a job
        joining.look(replace(TOKEN, address="no-such-host.invalid"))


def test_a_model_is_fetched_when_the_job_is_done_and_the_host_waits_for_it(host, tmp_path):
    link = host.enrol("north", tmp_path / "n")
    (host.folder / "results").mkdir()
    (host.folder / "results" / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    with pytest.raises(Mistake, match="no model yet"):
        link.fetch_model()
    host.registry.turn("done")
    assert link.fetch_model() == bytes(range(256)) * 1000
    assert host.registry.present() == ["north"]
    link.hear("left")
    assert host.registry.present() == []


def finished_party(net: Net, name: str, monkeypatch) -> tuple[dict, joining.Talk, list[str]]:
    """A party's folder after the job, its memory as it would be on Flower; the host has gone."""
    _, simulation = net.strict()
    store = FileStore(net.folder / name / "memory")
    manifest = {key: store.put(simulation.store.get(hash)) for key, hash in simulation.manifests[name].items()}
    (net.folder / name / "memory.json").write_text(json.dumps(dict(run=1, epoch="", now=manifest, before={})))
    nobody = replace(TOKEN, address="127.0.0.1", port=free_port())
    about = dict(files.read_toml(net.folder / name / "party.toml"), host="127.0.0.1:1", token=nobody.text())
    monkeypatch.setattr(joining, "DONE_SECONDS", 0)
    return about, *talk()


def test_a_party_whose_host_has_gone_takes_the_labels_that_are_there(tmp_path, monkeypatch):
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement(seed=3))
    about, speak, said = finished_party(net, "east", monkeypatch)
    out = joining._Stay(tmp_path / "east", about, JoinSettings(out=str(tmp_path / "out")), speak).run()
    assert any("results are here already" in sentence for sentence in said)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    lines = (out / "labels.csv").read_text().splitlines()
    assert len(lines) == 31 and [line.split(",")[0] for line in lines[1:]] == net.parties["east"].ids
    assert not (tmp_path / "east" / "rows.npy").exists() and not (tmp_path / "east" / "memory").exists()
    with pytest.raises(Mistake, match="is finished"):
        joining.join(TOKEN.text(), JoinSettings(home=str(tmp_path / "east")), speak)
    assert joining.join(None, JoinSettings(home=str(tmp_path / "east")), speak) == out and "is finished" in said[-1]


def test_a_party_of_a_label_job_gets_its_verdict_and_page(tmp_path, monkeypatch):
    """What the job in one process tells all parties, as far as it is this party's."""
    parties = [blobs(name, i, 60) for i, name in enumerate(NAMES)]
    words = dict(secure="plain", bits=256, neighbours=3)
    net = Net(tmp_path, parties, label_agreement(settings=dict(LabelSettings(**words).agreed()), seed=3))
    about, speak, _ = finished_party(net, "east", monkeypatch)
    out = joining._Stay(tmp_path / "east", about, JoinSettings(out=str(tmp_path / "out"), target=0.9), speak).run()
    pairs = [(party.x, party.labels) for party in parties]
    here = gv.label(pairs, names=NAMES, seed=3, target=0.9, out=tmp_path / "here", **words)
    told, other = (json.loads((folder / "result.json").read_text()) for folder in (out, tmp_path / "here"))
    for name in ("expected", "settings", "classes", "seed_note"):
        assert told[name] == other[name], name
    # Hidden labels are everybody's; how many rows get a class is this party's own business, here and on its page.
    own = {name: sum(label == name for label, known in zip(here[0].labels, here[0].known) if not known) for name in "012"}
    assert {name: line.pop("given") for name, line in told["recall"].items()} == own
    everybody = {name: line.pop("given") for name, line in other["recall"].items()}
    assert told["recall"] == other["recall"] and sum(own.values()) == here[0].counts["new"] < sum(everybody.values())
    assert told["per_client"] == other["per_client"][:1] and told["per_client"][0]["words"].startswith("east: ")
    assert told["parties"] == other["parties"][:1] and told["lost"] == []
    assert {name: told["chosen"][name] for name in ("bits", "scale", "weights")}.items() <= other["chosen"].items()
    assert stat.S_IMODE((out / "result.json").stat().st_mode) == 0o600
    with console.capture() as said:
        show_own_labels(told, out)
    assert told["per_client"][0]["words"] in said.get() and f"{here[0].counts['new']} of your 60 rows" in said.get()
    page = report.write(out).read_text()
    assert "Labels for east" in page and "own model" in page and "south" not in page
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition('<section id="by-class">')[2].partition("</section>")[0])
    assert [int(re.findall(r">([^<>]+)<", row)[-1]) for row in rows[1:]] == list(own.values())


def test_a_party_of_a_clean_job_gets_what_the_job_in_one_process_gives(tmp_path, monkeypatch):
    parties, own = [blobs(name, i) for i, name in enumerate(NAMES)], blobs("server", 9, 60, known=True)
    net = Net(tmp_path / "net", parties, clean_agreement(seed=3), own)
    about, speak, _ = finished_party(net, "south", monkeypatch)
    out = joining._Stay(net.folder / "south", about, JoinSettings(out=str(tmp_path / "out")), speak).run()
    paths = [write_table(tmp_path / f"{party.name}.csv", party) for party in parties]
    there = write_table(tmp_path / "own.csv", own)
    settings = dict(tau=0.6, epochs=20, model="linear", seed=3)
    gv.clean(list(map(str, paths)), server=str(there), label="kind", id="id", out=tmp_path / "here", **settings)
    for name in ("cleaned.csv", "suspicious.json"):
        assert (out / name).read_text() == (tmp_path / "here" / "south" / name).read_text()


def stay(home: Path, answer: bool) -> joining._Stay:
    """A party that has answered some steps of a label job."""
    (home / "memory").mkdir(exist_ok=True)
    (home / "memory.json").write_text(json.dumps(dict(run=1, epoch="", now=dict(classes="00"), before={})))
    about = dict(files.read_toml(home / "party.toml"), host="127.0.0.1:1", token=TOKEN.text())
    return joining._Stay(home, about, JoinSettings(), talk(answer)[0])


def test_a_party_that_was_killed_and_comes_back_at_once_waits_until_the_host_lets_it_in(tmp_path, monkeypatch):
    """It once ended with 2, for good, and its rows were deleted."""
    Net(tmp_path, [blobs(name) for name in ("p", "q")], label_agreement())
    monkeypatch.setattr(joining, "TICK", 0.01)
    party, answers = stay(tmp_path / "p", True), [Refused(TWIN, "already connected"), Refused(403, "excluded")]

    def hear(*told):
        raise answers.pop(0)

    monkeypatch.setattr(joining.HostLink, "hear", hear)
    with pytest.raises(Refused, match="excluded"):
        party._until_the_end()
    assert answers == [] and (tmp_path / "p" / "rows.npy").exists()
    monkeypatch.setattr(joining, "HERE_SECONDS", 0.02)
    answers += [Refused(TWIN, "already connected")] * 1000  # one that lives
    with pytest.raises(Refused, match="already connected"):
        party._until_the_end()
    assert 0 < len(answers) < 1000


def test_a_folder_that_a_killed_process_still_holds_is_waited_for(tmp_path):
    """Its forks end when they notice, and hold the lock until then."""
    held = "import fcntl, sys, time; f = open(sys.argv[1], 'a+'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); "
    words = [sys.executable, "-c", held + "time.sleep(float(sys.argv[2]))", str(tmp_path / "lock")]
    for seconds, patience in (("600", 0.3), ("1", 300)):
        with subprocess.Popen([*words, seconds], stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            if seconds == "600":
                with pytest.raises(Mistake, match="is in use by another process"), lock(tmp_path / "lock", patience):
                    pass
                other.kill()
            else:
                with lock(tmp_path / "lock", patience):
                    pass


def test_a_party_hears_why_its_last_step_failed_even_if_the_job_ends_at_once(tmp_path):
    said: list[str] = []
    line, (up, down) = Line(tmp_path, "127.0.0.1:1", said.append), Pipe()
    line._node = SimpleNamespace(pipe=up, stop=up.close)
    down.send_bytes(json.dumps(dict(failed="round 7 was requested", step="train", kind="step")).encode())
    line.stop()
    assert said == ["Step train failed: round 7 was requested."]


def test_a_label_job_begins_anew_only_if_the_party_agrees_and_not_for_ever(tmp_path):
    Net(tmp_path, [blobs(name) for name in ("p", "q")], label_agreement())
    with pytest.raises(Mistake, match="you did not agree"):
        stay(tmp_path / "p", False)._begin_again()
    assert (tmp_path / "p" / "memory.json").exists()
    for _ in range(joining.BEGINNINGS - 1):
        stay(tmp_path / "p", True)._begin_again()
        assert not (tmp_path / "p" / "memory.json").exists() and not (tmp_path / "p" / "memory").exists()
    with pytest.raises(Mistake, match="3 times without finishing it"):
        stay(tmp_path / "p", True)._begin_again()


@pytest.mark.parametrize("host", [label_agreement(settings=dict(LABEL, dp=8.0))], indirect=True)
@pytest.mark.parametrize("allowed", [3.0, 8.0])
def test_a_label_job_beyond_the_epsilon_of_a_policy_is_refused_whatever_yes_says(host, tmp_path, allowed, monkeypatch):
    pytest.importorskip("dp_accounting")
    path, home = write_table(tmp_path / "n.csv", blobs("north")), tmp_path / "home"
    (tmp_path / "policy.toml").write_text(f'epsilon = {allowed}\notherwise = "refuse"\n')
    how = JoinSettings(str(path), "kind", home=str(home), policy=str(tmp_path / "policy.toml"))
    monkeypatch.setattr(joining._Stay, "run", lambda stayed: home)  # it has joined
    if allowed < 8:
        with pytest.raises(Mistake, match="nothing was sent: this federation has ε 8, but the policy allows at most ε 3"):
            joining.join(host.registry.invite("north").text(), how, talk(True)[0])
    else:
        joining.join(host.registry.invite("north").text(), how, talk(True)[0])
    assert list(host.registry.roster()) == ([] if allowed < 8 else ["north"])


@pytest.mark.parametrize("settings", [dict(dp=3.0), dict(method="chorus", dp_labels=3.0)])
def test_a_privacy_budget_is_spent_again_only_if_a_person_says_so(tmp_path, settings):
    """A host that breaks a job off and starts it again would get the same sums with fresh noise, and `--yes` would let it."""
    Net(tmp_path, [blobs(name) for name in NAMES], label_agreement(settings=dict(LABEL, **settings)))
    party, asked = stay(tmp_path / "east", True), []
    party.talk = replace(party.talk, insist=lambda question: asked.append(question) or False)
    with pytest.raises(Mistake, match="you did not agree"):
        party._begin_again()
    assert "Another ε = 3 would be spent on the same rows, ε = 6 in all." in asked[0]
    assert (tmp_path / "east" / "memory.json").exists()


def test_an_invitation_cannot_name_a_folder_elsewhere():
    for change in (dict(name="../../x"), dict(federation="..")):
        with pytest.raises(Mistake, match="cannot be the name"):
            joining.default_home(replace(TOKEN, **change))


@pytest.mark.parametrize("change", [dict(method="fedprox"), dict(classes=("0", "1")), dict(settings=dict(TRAIN, model="mlp"))])
def test_a_model_of_another_kind_is_not_adopted(tmp_path, change):
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], train_agreement(seed=3))
    path = net.strict()[0] / "model.safetensors"
    good = path.read_bytes()
    with pytest.raises(Mistake, match="not the agreed model"):
        networks.adopt_model(path, replace(train_agreement(), **change), blobs("north"))
    assert not path.exists()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(Mistake, match="not the agreed model"):
        networks.adopt_model(path, train_agreement(), blobs("north"))


def test_an_adopted_model_has_the_partys_own_scaling(tmp_path):
    agreed = train_agreement(seed=3, settings=dict(TRAIN, rounds=12, set=dict(lr="0.5", epochs="5")))
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], agreed)
    path, who = net.strict()[0] / "model.safetensors", blobs("north", 1, n=90)
    networks.adopt_model(path, agreed, who)
    guesses = gv.load(path.parent).predict(who.x.astype(np.float32))
    assert np.mean([guess == str(i % 3) for i, guess in enumerate(guesses)]) > 0.9


def test_the_roster_digest_depends_on_names_and_keys():
    one = dict(a="00", b="11")
    assert roster_digest(one) == roster_digest(dict(b="11", a="00"))
    assert len({roster_digest(x) for x in (one, dict(a="00"), dict(a="11", b="00"), dict(a="00", c="11"))}) == 4


# ---------------------------------------------------------------- the ledger, and what is left


def summed(net: Net, name: str, parties: tuple[str, ...]) -> None:
    """An exact sum of this party's rows with others, in a job before this one."""
    ledger = Ledger(net.folder / name / "ledger")
    rows = ledger.rows(load_party(net.folder / name).data)
    ledger.release(job="before", what="moments", rows=rows, parties=parties)


def roster(net: Net) -> dict[str, str]:
    return {name: Identity.load(net.folder / name / "identity.pem").public.hex() for name in net.names}


def staying(net: Net, name: str, **answers: bool) -> tuple[joining._Stay, list[str]]:
    said: list[str] = []

    def answer(kind: str):
        return lambda question: said.append(f"{kind}: {question}") or answers.get(kind, True)

    speak = joining.Talk(said.append, answer("ask"), answer("insist"), lambda *shown: None, said.append)
    about = dict(files.read_toml(net.folder / name / "party.toml"), host="127.0.0.1:1", token=TOKEN.text())
    return joining._Stay(net.folder / name, about, JoinSettings(), speak), said


def test_rows_that_were_summed_with_others_wait_for_a_person(tmp_path):
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement())
    summed(net, "east", (*NAMES, "west"))
    party, said = staying(net, "east", insist=False)
    with pytest.raises(Mistake, match="nothing was computed: these rows were summed with .*west"):
        party._confirm(roster(net))
    assert said[-1] == "insist: Sum these rows with east, north, south anyway?"
    party, said = staying(net, "east")
    party._confirm(roster(net))
    assert party.confirmed and any("the part of west" in sentence for sentence in said)
    party, said = staying(net, "east", insist=False)  # said once, it is in the ledger
    party._confirm(roster(net))
    party, said = staying(net, "north", insist=False)
    party._confirm(roster(net))  # whose rows nobody has summed


def test_a_roster_that_was_not_agreed_to_is_refused(tmp_path):
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement())
    there = roster(net)
    party, _ = staying(net, "east")
    with pytest.raises(Mistake, match="roster has evil. in it, which is not what east agreed to"):
        party._confirm({**there, "evil\n": there["north"]})
    with pytest.raises(Mistake, match="roster has 2 parties"):
        party._confirm({name: there[name] for name in ("east", "north")})


class Ends(Exception):
    pass


@pytest.mark.parametrize("end", [Mistake("the host stopped"), KeyboardInterrupt(), Ends("anything"), None], ids=type)
def test_no_end_of_a_job_leaves_keys_seeds_rows_or_memory(tmp_path, monkeypatch, end):
    """After a failed job they lay on disk for ever."""
    net = Net(tmp_path / "net", [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement(seed=3))
    home = net.folder / "east"
    request = dict(hash=load_party(home).agreed.hash, round=0, step="keys", payload=dict(session_id="s"))
    said = {name: ask_party(net.folder / name, request) for name in NAMES}
    told = dict(offers={name: reply["offer"] for name, reply in said.items()}, classes=dict(enumerate("012")))
    assert ask_party(home, dict(request, step="meet", payload=dict(told, preludes={name: {} for name in NAMES})))
    memory = Memory(FileStore(home / "memory"), Kept.read(home).now)
    kept = [memory["agreement"]["ephemeral"]["secret"], memory["contribution"]]
    kept += [net.parties["east"].x[3].tobytes(), b'"r3"', (home / "node.key").read_bytes().splitlines()[3]]
    assert all(secret in bytes_left(home) for secret in kept)
    party, _ = staying(net, "east")
    (home / "flower").mkdir()
    (home / "flower" / "state.db").write_bytes(kept[0])
    (home / "inbox.bin").write_bytes(kept[0])

    def ended(self):
        if end is not None:
            raise end
        return self._take_results()

    monkeypatch.setattr(joining._Stay, "_until_the_end", ended)
    monkeypatch.setattr(joining._Stay, "_write_labels", lambda self, out: out.mkdir(parents=True))
    monkeypatch.setattr(joining.HostLink, "hear", lambda *told: {})
    if end is None:
        party.run()
    else:
        with pytest.raises(type(end)):
            party.run()
        kept.pop()  # by which the host knows this party, if it comes back
    left = bytes_left(home)
    assert [secret for secret in kept if secret in left] == []
    assert not {"memory", "memory.json", "rows.npy", "rows.json", "flower"} & {path.name for path in home.iterdir()}
    if end is None:
        assert not {"token", "seed"} & set(files.read_toml(home / "party.toml"))
    else:
        assert party._begun()  # coming back begins the job anew, and is asked about


def test_what_is_sent_many_times_in_a_row_is_told_once(tmp_path):
    speak, said = talk()
    stay = joining._Stay.__new__(joining._Stay)
    stay.folder, stay.talk, stay.node = tmp_path, speak, SimpleNamespace(running=False)
    stay.seen, stay.step, stay.fields = [], "", set()
    steps = ["begin", "go_on", "go_on", "share", "go_on"]
    lines = [dict(step=step, field=field, bytes=1, reveals="nothing") for step in steps for field in ("share", "tag")]
    (tmp_path / "disclosure.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stay._tell_progress()
    told = [sentence.split(", ")[:2] for sentence in said if sentence.startswith("Sent")]
    assert [step.split()[-1] for step, field in told if field == "tag"] == ["begin", "go_on", "share", "go_on"] and len(told) == 8
    assert len(stay.seen) == 10
