"""Real processes on loopback: `grapevine host` and `grapevine join` as people start them, with TLS and node keys, and faults.

A label run and a training run are part of `make test`, the others of `make test-parties`. Waits are for conditions and have
generous ends. What else may go wrong is in test_faults.py.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
from machines import (
    CHORUS,
    FOUR,
    LABEL,
    NAMES,
    RUN,
    SECONDS,
    SHORT,
    SHORT_SECONDS,
    STEP_SECONDS,
    TRAIN,
    Hold,
    Machines,
    right,
    with_path,
)
from net import bits, until
from trials import STEPS, digits, write_patients, write_table

import grapevine as gv
from grapevine.core.store import Memory
from grapevine.crypto.agreement import Identity
from grapevine.parties import files, keys, processes
from grapevine.parties.federation import load_host

pytestmark = pytest.mark.timeout(3600)


# ---------------------------------------------------------------- in `make test`


def test_three_parties_label_their_rows_by_chorus(tmp_path):
    """As in one process, to the last digit that is written; and every party has heads for later rows."""
    with Machines(tmp_path, *CHORUS) as machines:
        machines.start_all()
        machines.all_ended()
        result, (_, simulation) = machines.result(), machines.strict()
        assert result["labelled"] == NAMES and result["lost"] == [] and result["expected"]["n"] == 102
        asked = [line["step"] for line in machines.exchanges()]
        assert asked.count("hear") == 2 and asked.count("go_on") > 40
        for name in NAMES:
            rows, party = machines.table(name), machines.parties[name]
            here = Memory(simulation.store, simulation.manifests[name])
            known = [label is not None for label in party.labels]
            back = np.argsort(np.argsort(np.logical_not(known), kind="stable"))  # results have labelled rows first
            found = [here["classes"][c] for c in here["result"]["label"][back]]
            assert [row["label"] for row in rows] == [given or label for given, label in zip(party.labels, found)]
            sure = np.where(known, 1.0, here["result"]["confidence"][back])
            np.testing.assert_allclose([float(row["confidence"]) for row in rows], sure, atol=1e-6)
            assert right(machines, name) > 0.7
            heads = gv.load(tmp_path / name / "out")
            assert np.mean(heads.predict(party.x) == np.array(party.truth)) > 0.7
            assert_left(machines, name, ["keys", "meet", "names", "begin", "go_on", "share", "receive", "hear"])
            verdict = json.loads((tmp_path / name / "out" / "result.json").read_text())["per_client"][0]["words"]
            assert verdict in machines.said(name) and "own model" in verdict
            assert verdict.split(":")[0] in (tmp_path / name / "out" / "report.html").read_text()
        machines.grapevine("report", str(machines.host / "results"))
        assert "class 10" in (machines.host / "results" / "report.html").read_text()


def assert_left(machines: Machines, name: str, steps: list[str]) -> None:
    """What is left at a party when all is over, and of it at the host."""
    rows, party, home = machines.table(name), machines.parties[name], machines.folder / name
    assert [row["id"] for row in rows] == party.ids
    assert [row["given"] or None for row in rows] == party.labels
    left = {path.name for path in home.iterdir()}
    assert not left & {"memory", "memory.json", "rows.npy", "rows.json", "node.key", "flower", "epoch.txt"}
    assert "token" not in files.read_toml(home / "party.toml")
    told = [json.loads(line)["step"] for line in (home / "out" / "disclosure.jsonl").read_text().splitlines()]
    assert [step for step in dict.fromkeys(told) if "." not in step] == steps
    assert "What would leave" in machines.said(name) and "Compare these fingerprints" in machines.said(name)
    known = {p.relative_to(machines.host).as_posix(): p.read_bytes() for p in machines.host.rglob("*") if p.is_file()}
    assert not [path for path, data in known.items() if b"row1" in data]  # the host has no row of anybody


@pytest.mark.parties
def test_tables_as_people_have_them_get_the_labels_of_one_process_and_heads_for_the_same_files(tmp_path):
    """The host has seen one made-up line. Text, dates and missing values are agreed on between the parties."""
    example = write_patients(tmp_path / "example.csv", replace(digits("example", 900, 2), labels=["0", None]), "digit")
    words = [*CHORUS, "--impute", "--schema", str(example)]
    with Machines(tmp_path, *words, write=write_patients) as machines:
        machines.start_all()
        machines.all_ended()
        paths = [str(tmp_path / f"{name}.csv") for name in NAMES]
        here = gv.label(paths, label="digit", id="id", secure="psm", bits=1024, neighbours=5, smooth=True, impute=True, seed=3)
        for place, name in enumerate(NAMES):
            rows, home = machines.table(name), tmp_path / name
            assert [row["label"] for row in rows] == here[place].labels
            np.testing.assert_allclose([float(row["confidence"]) for row in rows], here[place].confidence, atol=1e-6)
            new = home / "new.csv"
            machines.grapevine("predict", str(home / "out"), paths[place], "--id", "id", "--impute", "--out", str(new))
            found = [row["label"] for row in csv.DictReader(new.read_text().splitlines())]
            assert np.mean(np.array(found) == machines.parties[name].truth) > 0.7


@pytest.mark.parties
def test_three_parties_label_their_rows_by_xclp(tmp_path):
    with Machines(tmp_path, *LABEL) as machines:
        machines.start_all()
        machines.all_ended()
        result = machines.result()
        assert result["labelled"] == NAMES and result["lost"] == []
        for name in NAMES:
            assert right(machines, name) > 0.5
            assert_left(machines, name, STEPS)


def test_three_parties_train_a_model(tmp_path):
    with Machines(tmp_path, *TRAIN, "--rounds", "2") as machines:
        machines.start_all()
        machines.all_ended()
        result = machines.result()
        assert result["rounds"] == 2 and f"after round {result['best_round']} of 2" in machines.said("host")
        assert bits(machines.host / "results") == bits(machines.strict()[0])
        for name in NAMES:
            model = gv.load(tmp_path / name / "out")
            assert len(model.predict(machines.parties[name].x.astype(np.float32))) == 100
            assert "held out for measuring" in machines.said(name)


@pytest.mark.parties
def test_three_parties_clean_their_labels_by_the_hosts_rows(tmp_path):
    own = write_table(tmp_path / "own.csv", digits("own", 400, 300, known=1), label="digit")
    words = ["--job", "clean", "--server", str(own), "--tau", "0.6", "--step-timeout", str(STEP_SECONDS)]
    with Machines(tmp_path, *words) as machines:
        machines.start_all()
        machines.all_ended()
        assert machines.result()["cleaned"] == NAMES
        right = []
        for name in NAMES:
            rows, party = machines.table(name, "cleaned.csv"), machines.parties[name]
            assert [row["id"] for row in rows] == party.ids
            new = [i for i, row in enumerate(rows) if party.labels[i] is None and row["label"]]
            assert len(new) > 20
            right += [rows[i]["label"] == party.truth[i] for i in new]
        assert np.mean(right) > 0.7


def test_what_a_killed_process_started_ends_too(tmp_path):
    """Also what put itself into a session of its own, as Flower's helpers do."""
    grandchild = "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], "
    grandchild += "start_new_session=True); print(c.pid, flush=True); time.sleep(300)"
    starter = "import os, sys, time; from pathlib import Path; from grapevine.parties import processes; "
    starter += (
        f"print(processes.start([sys.executable, '-c', {grandchild!r}], dict(os.environ), Path(sys.argv[1])).pid, flush=True); "
    )
    starter += "time.sleep(300)"
    log = tmp_path / "log.txt"
    started = subprocess.Popen([sys.executable, "-c", starter, str(log)], stdout=subprocess.PIPE, text=True)
    watcher = int(started.stdout.readline())
    until(lambda: log.exists() and log.read_text().strip(), "the grandchild", lambda: "")
    family = [psutil.Process(pid) for pid in (watcher, *processes.children(watcher))]
    assert int(log.read_text()) in [process.pid for process in family] and len(family) == 3
    started.kill()
    started.wait(timeout=60)
    started.stdout.close()
    assert not psutil.wait_procs(family, timeout=300)[1]


def test_a_process_that_ends_by_itself_gives_its_own_exit_code(tmp_path):
    """The watcher once aborted instead, since a thread of it still read the pipe."""
    started = processes.start([sys.executable, "-c", "raise SystemExit(7)"], dict(os.environ), tmp_path / "log.txt")
    assert started.wait(timeout=300) == 7
    started.stdin.close()


# ---------------------------------------------------------------- the fault matrix


@pytest.mark.parties
@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_party_that_crashes_in_the_label_job_is_left_out(tmp_path, step, when):
    with Machines(tmp_path, *SHORT, names=FOUR) as machines:
        machines.start_all()
        place = STEPS.index(step)
        if when == "during":
            # The step before it is answered, or the nodes have begun: from here on south stops at its rows.
            if place:
                machines.until_step(STEPS[place - 1], "answered")
            else:
                machines.until(lambda: (tmp_path / "south" / "pinned.toml").exists(), "south to confirm")
            held = Hold(machines, "south")
            machines.until(held.reached, f"south to be in step {step}")
            machines.crash("south")
            held.end()
        else:
            machines.until_step(step, "asked" if when == "before" else "answered")
            machines.crash("south")
        machines.ended("host")
        for name in ("east", "north", "west"):
            machines.ended(name)
            assert right(machines, name) > 0.5
        lost = [] if (step, when) == ("receive", "after") else ["south"]
        result = machines.result()
        # "before" is a race that south may win: then its answer counts, and it is lost in the step after, or not at all.
        assert result["lost"] == lost or (when == "before" and result["lost"] in ([], ["south"]))


@pytest.mark.parties
def test_a_party_that_crashes_in_a_training_round_rejoins(tmp_path):
    short = [SHORT_SECONDS if word == str(STEP_SECONDS) else word for word in TRAIN]
    with Machines(tmp_path, *map(str, short), "--rounds", "8", "--quorum", "2") as machines:
        machines.start_all()
        machines.until_step("train", "answered", 0)
        held = Hold(machines, "south")
        machines.until(held.reached, "south to be in a step")
        machines.crash("south")
        held.end()
        machines.until(lambda: any("south" in line["missing"] for line in machines.exchanges()), "the host to miss south")
        machines.rejoin("south")
        machines.all_ended()
        answered = machines.exchanges()
        missed = [i for i, line in enumerate(answered) if "south" in line["missing"]]
        assert missed and answered[-1]["answered"] == NAMES, "south is back at the end"
        assert machines.result()["rounds"] == 8


@pytest.mark.parties
@pytest.mark.parametrize("how", ["crash", "terminate"])
def test_a_host_that_is_killed_and_started_again_ends_with_the_same_result(tmp_path, how):
    with Machines(tmp_path, *TRAIN, "--rounds", "4") as machines:
        machines.start_all()
        machines.until_step("train", "asked", 2)
        if how == "crash":
            machines.crash("host")
        else:
            host = machines.started.pop("host")
            host.stdin.close()
            host.wait(timeout=300)
        machines.start_host()
        machines.all_ended()
        assert "Continuing with east, north, south" in machines.said("host")
        assert "The host was restarted" in machines.said("north")
        assert machines.result()["rounds"] == 4 and bits(machines.host / "results") == bits(machines.strict()[0])


@pytest.mark.parties
def test_a_label_job_whose_host_is_killed_begins_again(tmp_path):
    with Machines(tmp_path, *LABEL, "--seed", "3", "--reproducible") as machines:
        machines.start_all()
        machines.until_step("share", "asked")
        machines.crash("host")
        machines.start_host()
        machines.all_ended()
        assert machines.result()["labelled"] == NAMES
        assert all(right(machines, name) > 0.5 for name in NAMES)


# A party that does not keep to the rules: what its processes import is changed from outside.
EVIL = """\
import sys
if sys.orig_argv[1] == "-c" and "join" in sys.orig_argv:
    import time
    import grapevine.parties.node as node
    honest = node.pack
    def garbage(data):
        return honest(b"GV1\\n" + bytes(range(256)) * 40)
    def late(data):
        time.sleep(%(late)d)
        return honest(data)
    def much(data):
        return honest(b"GV1\\n" + bytes(200_000_000))
    node.pack = %(kind)s
"""


@pytest.mark.parties
@pytest.mark.parametrize("kind", ["garbage", "late", "much"])
def test_a_party_that_sends_garbage_too_much_or_too_late_is_left_out(tmp_path, kind):
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "sitecustomize.py").write_text(EVIL % dict(kind=kind, late=3600))
    with Machines(tmp_path, *SHORT, names=FOUR) as machines:
        machines.start_host()
        for name in ("east", "north", "west"):
            machines.join(name)
        machines.join("south", env=dict(PYTHONPATH=with_path(tmp_path / "evil")))
        machines.ended("host")
        for name in ("east", "north", "west"):
            machines.ended(name)
            assert right(machines, name) > 0.5
        assert machines.result()["lost"] == ["south"]
        assert "the job ended without south" in machines.ended("south", code=2)


@pytest.mark.parties
def test_a_clock_that_is_off_is_refused_at_the_party_and_the_host_goes_on_without_it(tmp_path):
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 900\n")
    with Machines(tmp_path, *LABEL, names=["east", "north", "south"]) as machines:
        machines.start_all("east", "north")
        machines.join("south", env=dict(PYTHONPATH=with_path(tmp_path / "clock")))
        said = machines.ended("south", code=2)
        assert "s ahead of the host's" in said
        machines.join("south")  # the clock has been set
        machines.all_ended()


@pytest.mark.parties
def test_a_changed_key_stops_the_run_with_a_sentence_on_both_sides(tmp_path):
    files.write_toml(tmp_path / "pins.toml", {"south": dict(identity=Identity.generate().public.hex())})
    with Machines(tmp_path, *LABEL) as machines:
        machines.start_host()
        machines.join("east")
        machines.join("south")
        machines.join("north", "--pin", str(tmp_path / "pins.toml"))
        assert "the key of south has changed" in machines.ended("north", code=2)
        assert "north did not confirm the roster" in machines.ended("host", code=2)
        for name in ("east", "south"):
            assert "north did not confirm the roster" in machines.ended(name, code=2)
        assert machines.progress() == []


@pytest.mark.parties
def test_strangers_get_nothing_through_the_hosts_port(tmp_path):
    """A node with a key that nobody registered, and Flower's own commands against the open port."""
    with Machines(tmp_path, *LABEL) as machines:
        machines.start_all("east", "north")
        machines.until(lambda: {"east", "north"} <= set(load_host(machines.host).roster()), "two to join")
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        keys.make_node_key(stranger)
        env = processes.environment(stranger)
        words = ["--superlink", f"127.0.0.1:{machines.port}", "--root-certificates", str(machines.host / "ca.crt"),
                 "--auth-supernode-private-key", str(stranger / "node.key"), "--port", str(processes.free_port())]  # fmt: skip
        node = processes.start(["flower-supernode", *words], env, stranger / "log.txt")
        machines.until(lambda: node.poll() is not None, "the stranger's node to be sent away")
        processes.stop(node)
        machines.until_said("host", "no party of this job signed the request")
        ca = json.dumps(str(machines.host / "ca.crt"))
        config = f'[superlink.there]\naddress = "127.0.0.1:{machines.port}"\nroot-certificates = {ca}\n'
        (stranger / "config.toml").write_text(f'[superlink]\ndefault = "there"\n{config}')
        app = processes.write_app(stranger / "app")
        key = str(stranger / "node.pub")
        for words in (["run", str(app), "there"], ["supernode", "register", key, "there"], ["supernode", "list", "there"]):
            done = subprocess.run(["flwr", *words, "--format", "json"], env=env, capture_output=True, text=True, timeout=600)
            assert done.returncode != 0 or json.loads(done.stdout).get("success") is not True, done.stdout
        machines.join("south")
        machines.all_ended()
        assert machines.result()["labelled"] == NAMES


@pytest.mark.parties
def test_the_host_begins_without_a_party_that_does_not_come(tmp_path):
    with Machines(tmp_path, *LABEL, names=FOUR) as machines:
        table = files.read_toml(machines.host / "federation.toml")
        files.write_toml(machines.host / "federation.toml", dict(table, timeouts=dict(table["timeouts"], join=180.0)))
        machines.start_all("east", "north", "west")
        said = machines.ended("host")
        assert "Starting without south" in said
        assert machines.result()["labelled"] == ["east", "north", "west"]


@pytest.mark.parties
def test_the_demo_ends_by_itself(tmp_path):
    said = subprocess.run([*RUN, "demo", "--parties", "3", "--out", str(tmp_path / "demo")], capture_output=True, text=True,
                          timeout=SECONDS)  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("party-0") >= 3 and "Labels, with one process per party" in said.stdout
    assert not [p for p in psutil.process_iter(["cmdline"]) if any(str(tmp_path) in w for w in p.info["cmdline"] or ())]
