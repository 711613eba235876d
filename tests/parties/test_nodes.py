"""Four real nodes that go wrong: one is killed, one sends garbage or nothing in time, a host sends code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from net import Net, bits, end_tree
from trials import LABEL, digits, digits_agreement

from grapevine.parties import processes

pytestmark = [pytest.mark.parties, pytest.mark.timeout(1800)]
NAMES = ["party-01", "party-02", "party-03", "party-04"]
LABEL_JOB = digits_agreement(job="label", method="", quorum=3, settings=dict(LABEL, bits=256))


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    parties = [digits(name, 80 * i, 80) for i, name in enumerate(NAMES)]
    with Net(tmp_path_factory.mktemp("net"), parties, LABEL_JOB) as net:
        yield net


def test_a_killed_node_comes_back_and_its_request_is_answered(net):
    net.agree(digits_agreement(settings=dict(digits_agreement().settings, rounds=6, per_round=4)))
    net.start_job()
    net.until(lambda: net.exchanges(), "the first exchange")
    net.crash("party-02")
    net.start_node("party-02")
    result = net.result()
    assert result.get("rounds") == 6, f"{result}\n{net.logs()}"
    assert all(line["missing"] == [] for line in net.exchanges())
    assert bits(net.host / "results") == bits(net.strict()[0])


def test_killed_workers_are_replaced_and_nothing_is_lost(net):
    net.agree(digits_agreement(settings=dict(digits_agreement().settings, rounds=6, per_round=4)))
    net.start_job()
    for _ in range(4):
        seen = len(net.exchanges())
        net.until(lambda seen=seen: len(net.exchanges()) > seen, "another exchange")
        for name in net.names:
            end_tree(max(processes.children(net.nodes[name].pid)))  # the worker is the last to have been started
    result = net.result()
    assert result.get("rounds") == 6, f"{result}\n{net.logs()}"
    assert all(line["missing"] == [] for line in net.exchanges())
    assert bits(net.host / "results") == bits(net.strict()[0])


MISCHIEF = """
import os, sys, time
if "grapevine.parties.line" in " ".join(sys.orig_argv):
    from grapevine.parties import node

    honest = node.pack

    def pack(data):
        if os.environ["MISCHIEF"] == "garbage":
            return node.RecordDict({"x": node.ArrayRecord({})})
        if os.environ["MISCHIEF"] == "late":
            time.sleep(3600)
        if os.environ["MISCHIEF"] == "exit":
            os._exit(3)
        return honest(data)

    node.pack = pack
"""


@pytest.mark.parametrize("what", ["garbage", "late", "exit"])
def test_a_party_that_sends_garbage_or_nothing_in_time_does_not_stop_the_others(net, tmp_path, what):
    """A party owns its machine: here its own Python has been changed. An exchange ends with its timeout, here two minutes."""
    (tmp_path / "sitecustomize.py").write_text(MISCHIEF)
    net.agree(LABEL_JOB, step=120)
    net.start_node("party-03", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), MISCHIEF=what)
    result = net.run()
    assert result.get("labelled") == ["party-01", "party-02", "party-04"] and result["lost"] == ["party-03"], (
        f"{result}\n{net.logs()}"
    )
    net.start_node("party-03")


def test_a_host_that_sends_code_finds_that_no_party_runs_it(net, tmp_path, monkeypatch):
    net.agree(digits_agreement(), step=60)
    ran, write_app = tmp_path / "ran", processes.write_app

    def planted(folder: Path) -> Path:
        app = write_app(folder)
        about = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(about.replace("grapevine.parties.flower:client_app", "planted:client_app"))
        code = f"open({str(ran)!r}, 'w').close()\nfrom grapevine.parties import flower\nclient_app = flower.client_app\n"
        (app / "planted.py").write_text(code)
        return app

    monkeypatch.setattr(processes, "write_app", planted)
    result = net.run()
    (net.host / "flower" / "app" / "planted.py").unlink()
    assert "0 of 4 parties still answer" in result.get("sentence", ""), f"{result}\n{net.logs()}"
    assert not ran.exists()
    assert (
        "the host sent code ('planted.py'), which is not run here" in (net.folder / "party-01" / "log" / "line.txt").read_text()
    )
