"""Attacks on real processes: floods from strangers, a party with names that want to be run, a host that asks for more than was
agreed. What the gate reads and from whom is in test_gate.py, what a host can make of lawful replies in tests/attacks."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace

import psutil
import pytest
from machines import CHORUS, LABEL, NAMES, TRAIN, Machines, with_path
from trials import write_table

from grapevine.parties import processes

pytestmark = [pytest.mark.parties, pytest.mark.timeout(3600)]
MB = 2**20


def test_floods_neither_fill_the_host_nor_keep_the_parties_out(tmp_path):
    """Forty bodies of 31 MB from nobody, and 199 silent connections that are there while the parties join."""
    with Machines(tmp_path, *LABEL) as machines, ExitStack() as silent:
        machines.start_host()
        machines.until_said("host", "Waiting for east, north, south")
        own = psutil.Process(machines.started["host"].pid).children()[0]  # under its watcher
        before, taken = own.memory_info().rss, []

        def attack() -> None:
            sent, context = 0, ssl.create_default_context(cafile=machines.host / "ca.crt")
            with suppress(OSError):
                plain = socket.create_connection(("127.0.0.1", machines.port), 60, ("127.0.0.3", 0))
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                    sock.sendall(b"POST /v1/fleet/push-messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (31 * MB))
                    for _ in range(31):
                        sock.sendall(bytes(MB))
                        sent += MB
            taken.append(sent)

        attackers = [threading.Thread(target=attack) for _ in range(40)]
        for each in attackers:
            each.start()
        most = 0
        while any(each.is_alive() for each in attackers):
            most = max(most, own.memory_info().rss - before)
        assert len(taken) == 40 and max(taken) < 31 * MB and most < 100 * MB
        for _ in range(199):
            silent.enter_context(socket.create_connection(("127.0.0.1", machines.port), 60, ("127.0.0.2", 0)))
        for name in NAMES:
            machines.join(name)
        machines.all_ended()


HYPERLINK, ESCAPE = '=HYPERLINK("http://example.org","seven")', "one\x1b[2J\r\n12:00:00 north has joined."


def write_hostile(path, party, label: str) -> None:
    """South calls two of its classes so that a spreadsheet or a terminal would do something."""
    names = {"7": HYPERLINK, "1": ESCAPE} if party.name == "south" else {}
    write_table(path, replace(party, labels=[names.get(name, name) for name in party.labels]), label=label)


def test_what_a_party_calls_its_classes_is_run_nowhere_and_no_token_is_among_arguments(tmp_path):
    with Machines(tmp_path, *CHORUS, write=write_hostile) as machines:
        machines.start_all()
        machines.until_step("names", "answered")
        machines._count()
        words = " ".join(" ".join(process.cmdline()) for process in machines.family.values() if process.is_running())
        assert "join" in words and not any(token in words for token in machines.tokens.values())
        machines.all_ended()
        for name in NAMES:
            out = tmp_path / name / "out"
            assert HYPERLINK in {row["label"].removeprefix("'") for row in machines.table(name)}  # others got it, as text
            for file in ("labels.csv", "review.csv"):
                cells = [cell for row in machines.table(name, file) for cell in row.values()]
                assert not any(cell.startswith(("=", "@", "+", "\t")) for cell in cells)
                assert stat.S_IMODE((out / file).stat().st_mode) == 0o600
            assert "<script" not in machines.said(name) and "\x1b" not in machines.said(name)
            assert not any(line.startswith("12:00:00 north has joined") for line in machines.said(name).splitlines())
        assert "\x1b" not in machines.said("host")


# A host that does not keep to what was agreed: what its job's process imports is changed from outside.
GREEDY = """\
import sys
if "grapevine.parties.warm" in sys.orig_argv:
    import grapevine.parties.flower as flower
    honest = flower.GridTransport.exchange
    def beyond(self, step, requests, round):
        if step == "train" and round == 1:
            return honest(self, step, {id: dict(payload, round=7) for id, payload in requests.items()}, 7)
        return honest(self, step, requests, round)
    def again(self, step, requests, round):
        replies = honest(self, step, requests, round)
        return honest(self, step, requests, round) if step == "train" and round == 1 else replies
    flower.GridTransport.exchange = %s
"""


@pytest.mark.parametrize(
    ("kind", "why"),
    [("beyond", "only rounds 0 to 2 were agreed"), ("again", "was answered before: each step is answered once")],
)
def test_a_host_that_asks_for_a_round_too_many_or_a_second_time_is_refused_at_the_party(tmp_path, kind, why):
    (tmp_path / "greedy").mkdir()
    (tmp_path / "greedy" / "sitecustomize.py").write_text(GREEDY % kind)
    with Machines(tmp_path, *TRAIN, "--rounds", "3") as machines:
        machines.start("host", "host", str(machines.host), env=dict(PYTHONPATH=with_path(tmp_path / "greedy")))
        for name in NAMES:
            machines.join(name)
        machines.ended("host", code=75)
        for name in NAMES:
            said = machines.ended(name, code=75)
            assert any("Step train failed" in line and why in line for line in said.splitlines()), said
        assert "(Mistake): see its own log" in machines.said("host")
    assert processes.port_is_free("127.0.0.1", machines.port)
