"""The fault matrix, with real processes: outages, bad replies, killed processes, full disks, wrong clocks.

The two outages and the bad reply are one job of `make test`; the others are `make test-parties`.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time

import psutil
import pytest
from machines import CHORUS, FOUR, NAMES, SHORT, TRAIN, Machines, right, with_path
from net import bits, end_tree

import grapevine as gv
from grapevine.parties import processes

pytestmark = pytest.mark.timeout(3600)

# What a party's own Python is changed to, from outside. It is read when `join` starts.
CHANGED = """\
import os, sys
if sys.orig_argv[1] == "-c" and "join" in sys.orig_argv:
%s
"""
NOT_A_NUMBER = """
    import grapevine.parties.worker as worker
    honest = worker.run_step
    def run_step(method, name, client, payload):
        reply = honest(method, name, client, payload)
        if name == "train" and payload["round"] == 2:
            reply = dict(reply, weights={key: value * float("nan") for key, value in reply["weights"].items()})
        return reply
    worker.run_step = run_step
"""
FULL = """
    import errno
    import grapevine.parties.memory as memory
    honest = memory.write_atomically
    def write_atomically(path, data, *more):
        if os.path.exists(%r):
            raise OSError(errno.ENOSPC, "no space left on device")
        honest(path, data, *more)
    memory.write_atomically = write_atomically
"""
CLOCK = """
    import time
    real = time.time
    time.time = lambda: real() + 900 * os.path.exists(%r)
"""


def changed(folder, code: str) -> dict[str, str]:
    (folder / "changed").mkdir()
    (folder / "changed" / "sitecustomize.py").write_text(CHANGED % code)
    return dict(PYTHONPATH=with_path(folder / "changed"))


def test_outages_and_a_bad_reply_do_not_stop_a_job(tmp_path):
    """South is cut off for 40 s, the host stands still for 45 s, and west sends weights that are not numbers."""
    with Machines(tmp_path, *TRAIN, "--rounds", "8", "--quorum", "3", names=FOUR) as machines:
        line = machines.through("south")
        machines.start_host()
        for name in NAMES:
            machines.join(name)
        machines.join("west", env=changed(tmp_path, NOT_A_NUMBER))
        machines.until_step("train", "answered", 0)
        line.cut()
        time.sleep(40)
        line.mend()
        machines.until_said("south", "The host is lost")
        machines.until_step("train", "answered", 4)
        machines.stop("host")
        time.sleep(45)
        machines.stop("host", signal.SIGCONT)
        machines.all_ended()
        line.end()
        assert machines.result()["rounds"] == 8 and math.isfinite(machines.result()["accuracy"])
        assert [line["missing"] for line in machines.exchanges() if line["missing"]] == []  # west answered, and badly
        for name in ("host", *FOUR):
            assert "west" in machines.said(name) and "not finite" in machines.said(name)
        assert len(gv.load(machines.host / "results").predict(machines.parties["east"].x.astype("float32"))) == 100


SHAPE = """
    import grapevine.parties.worker as worker
    honest = worker.run_step
    def run_step(method, name, client, payload):
        reply = honest(method, name, client, payload)
        if name == "train" and payload["round"] == 1:
            reply = dict(reply, weights={key: value[..., :1] for key, value in reply["weights"].items()})
        return reply
    worker.run_step = run_step
"""
SIGNATURE = """
    import grapevine.parties.worker as worker
    honest = worker.run_step
    def run_step(method, name, client, payload):
        reply = honest(method, name, client, payload)
        return dict(reply, offer=dict(reply["offer"], signature=bytes(64))) if name == "keys" else reply
    worker.run_step = run_step
"""


@pytest.mark.parties
@pytest.mark.parametrize(("code", "words", "why"), [
    (SHAPE, [*TRAIN, "--rounds", "3", "--quorum", "3"], "differs in form"), (SIGNATURE, SHORT, "did not sign"),
], ids=["shape", "signature"])  # fmt: skip
def test_a_bad_reply_leaves_its_sender_out_by_name_on_every_screen_and_in_the_audit_log(tmp_path, code, words, why):
    """What is not a number is above, garbage and too much in test_parties.py."""
    with Machines(tmp_path, *words, names=FOUR) as machines:
        machines.start_host()
        for name in NAMES:
            machines.join(name)
        machines.join("west", env=changed(tmp_path, code))
        machines.ended("host")
        for name in NAMES:
            machines.ended(name)
            assert any("west" in line and why in line for line in machines.said(name).splitlines()), machines.said(name)
        for name in ("host", "west"):
            assert any("west" in line and why in line for line in machines.said(name).splitlines()), machines.said(name)
        told = json.loads(machines.grapevine("audit", str(machines.host), "--json"))
        assert any("west" in line.get("sentence", "") and why in line["sentence"] for line in told)
        assert not any(name in line.get("sentence", "") and why in line["sentence"] for line in told for name in NAMES)


@pytest.mark.parties
def test_a_bad_reply_below_the_quorum_leaves_the_last_good_checkpoint(tmp_path):
    """All three are needed, so the job stops, with 75. Once south is honest it continues, to the bits of a job without faults."""
    bad = tmp_path / "bad"
    bad.touch()
    code = NOT_A_NUMBER.replace('payload["round"] == 2', f"payload['round'] >= 2 and os.path.exists({str(bad)!r})")
    with Machines(tmp_path, *TRAIN, "--rounds", "6", "--quorum", "3") as machines:
        environment = changed(tmp_path, code)
        machines.start_all("east", "north")
        machines.join("south", env=environment)
        assert "south must `grapevine join` again" in machines.ended("host", code=75)
        for name in NAMES:
            assert "not finite" in machines.ended(name, code=75)
        bad.unlink()
        machines.start_all("east", "north")
        machines.join("south", env=environment)
        machines.all_ended()
        assert machines.result()["rounds"] == 6 and bits(machines.host / "results") == bits(machines.strict()[0])


@pytest.mark.parties
@pytest.mark.parametrize("step", ["keys", "go_on"])
def test_a_party_that_is_killed_in_a_label_job_is_named_and_the_job_waits_for_it(tmp_path, step):
    """Three parties, and three are needed: the one that was killed comes back, and all have the labels they would have had."""
    short = [("30" if word == "600" else word) for word in CHORUS]
    with Machines(tmp_path, *short) as machines:
        machines.start_all()
        machines.until_step(step, "asked")
        machines.crash("south")
        for name in ("host", "east", "north"):
            machines.until_said(name, "south has not been heard of")
            machines.until_said(name, "3 parties are needed, so the job waits")
        machines.rejoin("south")
        machines.all_ended()
        assert machines.result()["labelled"] == NAMES
        assert all(right(machines, name) > 0.7 for name in NAMES)
        for name in ("host", "east", "north"):
            assert "south is back" in machines.said(name)


@pytest.mark.parties
def test_when_a_party_leaves_and_too_few_remain_everybody_ends_with_75(tmp_path):
    """It took its leave, so nobody waits for it: try again later."""
    with Machines(tmp_path, *SHORT, "--quorum", "3") as machines:
        machines.start_all()
        machines.until_step("meet", "asked")
        south = machines.started.pop("south")
        south.stdin.close()
        south.wait(timeout=600)
        said = machines.ended("host", code=75)
        assert "2 of 3 parties still answer" in said and "south left" in said
        for name in ("east", "north"):
            assert "the host stopped: 2 of 3 parties still answer" in machines.ended(name, code=75)


@pytest.mark.parties
def test_a_killed_connection_is_started_again_and_said(tmp_path):
    with Machines(tmp_path, *TRAIN, "--rounds", "6") as machines:
        machines.start_all()
        machines.until_step("train", "answered", 0)
        join = psutil.Process(machines.started["south"].pid).children()[0]
        (node,) = join.children()
        began = time.monotonic()
        node.kill()
        machines.until_said("south", "The connection to the host ended (SIGKILL): it is started again")
        machines.until(lambda: [child for child in join.children() if child.pid != node.pid], "another connection")
        assert time.monotonic() - began < 10 or psutil.getloadavg()[0] > 3  # on a busy machine it may take longer
        machines.all_ended()
        assert "south: in trouble: a process of it ended and was started again" in machines.said("host")
        assert all(line["missing"] == [] for line in machines.exchanges())
        assert bits(machines.host / "results") == bits(machines.strict()[0])


@pytest.mark.parties
def test_a_killed_server_app_is_started_again_and_the_result_is_the_same(tmp_path):
    with Machines(tmp_path, *TRAIN, "--rounds", "6") as machines:
        machines.start_all()
        machines.until_step("train", "answered", 1)
        end_tree(int((machines.host / "job.pid").read_text()))
        machines.all_ended()
        for name in ("host", *NAMES):
            assert "The job's process stopped. It is started again" in machines.said(name)
        assert machines.result()["rounds"] == 6 and bits(machines.host / "results") == bits(machines.strict()[0])


@pytest.mark.parties
def test_a_full_disk_is_said_and_the_step_is_done_when_there_is_room(tmp_path):
    full = tmp_path / "full"
    with Machines(tmp_path, *TRAIN, "--rounds", "4") as machines:
        machines.start_host()
        machines.join("east")
        machines.join("north")
        machines.join("south", env=changed(tmp_path, FULL % str(full)))
        machines.until_step("train", "answered", 0)
        full.touch()
        machines.until_said("south", "is full: free some space")
        machines.until_said("host", "south: in trouble: its disk is full")
        full.unlink()
        machines.all_ended()
        assert all(line["missing"] == [] for line in machines.exchanges())
        assert bits(machines.host / "results") == bits(machines.strict()[0])


@pytest.mark.parties
def test_a_clock_that_goes_wrong_during_the_job_is_said_at_the_party(tmp_path):
    wrong = tmp_path / "wrong"
    with Machines(tmp_path, *TRAIN, "--rounds", "8") as machines:
        machines.start_host()
        machines.join("east")
        machines.join("north")
        machines.join("south", env=changed(tmp_path, CLOCK % str(wrong)))
        machines.until_step("train", "answered", 0)
        wrong.touch()
        machines.until_said("south", "This machine's clock is")
        wrong.unlink()
        machines.all_ended()


@pytest.mark.parties
def test_a_party_that_is_excluded_ends_and_the_others_go_on(tmp_path):
    with Machines(tmp_path, *SHORT, names=FOUR) as machines:
        machines.start_all()
        machines.until_step("meet", "asked")
        assert "excluded" in machines.grapevine("host", str(machines.host), "--exclude", "west")
        assert "excluded" in machines.ended("west", code=2)
        machines.ended("host")
        for name in NAMES:
            machines.ended(name)
            assert right(machines, name) > 0.5 and "west was excluded" in machines.said(name)


@pytest.mark.parties
def test_processes_that_spin_on_every_core_change_nothing(tmp_path):
    """Waits are for conditions, not for clocks."""
    spinning = [processes.start(["python", "-c", "while True: pass"], dict(os.environ), tmp_path / "spin.txt") for _ in range(4)]
    try:
        with Machines(tmp_path, *TRAIN, "--rounds", "3") as machines:
            machines.start_all()
            machines.all_ended()
            assert bits(machines.host / "results") == bits(machines.strict()[0])
    finally:
        for each in spinning:
            processes.stop(each)


KILLS = ["job"] * 3 + ["host"] * 3 + ["party"] * 2 + ["join"] * 2 + ["node"] * 4 + ["worker"] * 6


@pytest.mark.parties
def test_twenty_kills_change_no_bit(tmp_path):
    """Each of the processes in turn, in the middle of the job, without a word."""
    with Machines(tmp_path, *TRAIN, "--rounds", "120") as machines:
        machines.start_all()
        for i, what in enumerate(random.Random(1).sample(KILLS, len(KILLS))):
            seen, name = len(machines.exchanges()), NAMES[i % 3]
            machines.until(lambda seen=seen: len(machines.exchanges()) > seen, f"an exchange before kill {i + 1}")
            assert not (machines.host / "results" / "result.json").exists(), "the job ended before all kills"
            kill(machines, what, name)
        machines.all_ended()
        assert machines.result()["rounds"] == 120 and all(line["missing"] == [] for line in machines.exchanges())
        assert bits(machines.host / "results") == bits(machines.strict()[0])


def kill(machines: Machines, what: str, name: str) -> None:
    """SIGKILL to the host or a party with all that it started, or to one of their processes."""
    if what == "job":
        end_tree(int((machines.host / "job.pid").read_text()))
    elif what == "host":
        machines.crash("host")
        machines.start_host()
    elif what == "party":
        machines.crash(name)
        machines.rejoin(name)
    elif what == "join":
        os.kill(processes.children(machines.started[name].pid)[0], signal.SIGKILL)
        machines.started[name].wait(timeout=600)
        machines.rejoin(name)
    else:
        machines.until(lambda: len(processes.children(machines.started[name].pid)) == 3, f"join, node and worker of {name}")
        _, node, worker = processes.children(machines.started[name].pid)  # each the child of the one before
        os.kill(node if what == "node" else worker, signal.SIGKILL)
