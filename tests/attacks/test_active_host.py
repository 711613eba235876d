"""An active host: it begins jobs anew, changes who takes part, and asks for rounds that nobody agreed to.

It holds what a host holds: the agreed hash, which every request carries, and the parties' nodes. Each attack worked once; here
the party's own program (`worker.Worker`, its folder, its ledger) refuses it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from net import Net, ask_party
from trials import LABEL, NAMES, TRAIN, blobs, label_agreement, train_agreement

from grapevine.core import Transport
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, Memory
from grapevine.crypto import session, together
from grapevine.parties import job
from grapevine.parties.federation import load_host
from grapevine.parties.job import make_server
from grapevine.parties.memory import Kept

FOUR = (*NAMES, "west")


class Host(Transport):
    """Asks parties' own programs what it likes, as the SuperLink would deliver it."""

    def __init__(self, net: Net, run: int = 1):
        self.net, self.run, self.hash, self.seen = net, run, load_host(net.host).agreed.hash, {}

    def exchange(self, step: str, requests: dict, round: int) -> dict:
        replies = {name: self.ask(name, step, payload, round) for name, payload in requests.items()}
        self.seen[step] = {name: reply for name, reply in replies.items() if reply is not None}
        return self.seen[step]

    def ask(self, name: str, step: str, payload: dict, round: int = 0) -> dict | None:
        return ask_party(self.net.folder / name, dict(step=step, round=round, hash=self.hash, payload=payload), self.run)

    def say(self, sentence: str) -> None:
        pass


def why(net: Net, name: str) -> str:
    return (net.folder / name / "log.txt").read_text()


def start_again(net: Net, epoch: str) -> None:
    """What the parties' `join` does when the host was started again, after it has asked the person there."""
    for name in net.names:
        (net.folder / name / "epoch.txt").write_text(epoch)


@pytest.fixture
def net(tmp_path: Path) -> Net:
    parties = [blobs(name, i) for i, name in enumerate(FOUR)]
    return Net(tmp_path, parties, replace(label_agreement(seed=3), parties=FOUR))


def label(net: Net, run: int = 1, without: tuple[str, ...] = ()) -> Host:
    """A whole label job, among some of the parties."""
    host, made = Host(net, run), load_host(net.host)
    names = [name for name in net.names if name not in without]
    made.method.round(make_server(made, names, host), {})
    return host


def moments(net: Net) -> np.ndarray:
    """What the host learns of the sum if a party helps it: the server alone learns no sum."""
    east = net.folder / "east"
    return Memory(FileStore(east / "memory"), Kept.read(east).now)["moments"]


# ---------------------------------------------------------------- one party fewer


def test_a_job_begun_anew_with_one_party_fewer_shows_nobodys_part(net):
    """H3. The host has the sum over four parties; with the sum over three it would have west's features, exactly."""
    label(net)
    assert moments(net)[0] == 4 * 30
    for name in net.names:
        assert (net.folder / name / "ledger" / "privacy.jsonl").exists()
    for another in ("a new start", "and one more"):
        start_again(net, another)
        for name in net.names:  # as `join` has it once the person agrees to begin anew
            (net.folder / name / "memory.json").unlink(missing_ok=True)
        host = Host(net, 2)
        with pytest.raises(Mistake, match="no reply|quorum|nobody|still answer"):
            made = load_host(net.host)
            made.method.round(make_server(made, list(NAMES), host), {})
        assert host.seen["pool"] == {}
        assert "the difference would show the part of west" in why(net, "east")
    for name in net.names:
        (net.folder / name / "memory.json").unlink(missing_ok=True)
    start_again(net, "all again")
    label(net, 3)
    assert moments(net)[0] == 4 * 30  # the same four are no harm


def test_the_difference_was_the_partys_part(net):
    """What the ledger is for: without it the attack gives west's sums to the last digit."""
    for name in net.names:
        party = net.folder / name
        text = (party / "party.toml").read_text()
        (party / "party.toml").write_text(text.replace(str(party / "ledger"), str(party / "first")))
    label(net)
    four = moments(net)
    for name in net.names:
        party = net.folder / name
        (party / "memory.json").unlink()
        text = (party / "party.toml").read_text()
        (party / "party.toml").write_text(text.replace(str(party / "first"), str(party / "second")))  # a ledger that is lost
    label(net, 2, without=("west",))
    three = moments(net)
    west = net.parties["west"].x
    d = west.shape[1]
    np.testing.assert_allclose((four - three)[d : 2 * d], west.sum(0), rtol=1e-9)


# ---------------------------------------------------------------- rosters


def begin(net: Net, host: Host) -> dict[str, dict]:
    """Exchanges 1 to 3 of the label job, among all."""
    said = {name: host.ask(name, "keys", dict(session_id="s")) for name in net.names}
    told = dict(offers={name: reply["offer"] for name, reply in said.items()}, classes=dict(enumerate("012")))
    preludes = {name: reply["prelude"] for name, reply in said.items()}
    met = {name: host.ask(name, "meet", dict(told, preludes=preludes)) for name in net.names}
    everybody = session.numbered(net.names)
    each = session.relayed(met, {name: name for name in net.names})
    rows = {name: reply["rows"] for name, reply in said.items()}
    return {name: host.ask(name, "pool", dict(each[name], parties=everybody, counts=rows)) for name in net.names}


def test_attempts_among_other_parties_each_time_are_refused(net):
    """M3. {a, b, c}, {a, b, d}, ... in turn: four sums of three give each party's part."""
    host = Host(net)
    begin(net, host)
    first = ("east", "north", "south")
    assert host.ask("east", "sums.again", dict(number=0, attempt=1, parties=session.numbered(first)))
    for attempt, names in enumerate([("east", "north", "west"), ("east", "south", "west"), FOUR], 2):
        assert host.ask("east", "sums.again", dict(number=0, attempt=attempt, parties=session.numbered(names))) is None
        assert "parties can leave, but not join" in why(net, "east")
    assert host.ask(
        "east", "sums.again", dict(number=0, attempt=9, parties=session.numbered(first))
    )  # fresh masks for the same three


def test_a_sum_below_the_quorum_is_refused(net):
    host = Host(net)
    begin(net, host)
    assert host.ask("east", "sums.again", dict(number=0, attempt=1, parties=session.numbered(("east", "north")))) is None
    assert "2 parties, and 3 were agreed on" in why(net, "east")


@pytest.mark.parametrize("changed", [0, -1], ids=["moments", "label counts"])
def test_false_moments_and_false_label_counts_are_refused(net, changed):
    """M2. One false vector of means and deviations turned hashes into the values of one feature. False counts of a class, which
    labels are divided by, would choose the class that everybody gets."""
    net.agree(label_agreement(seed=3, settings=dict(LABEL, preset="code")))
    host = Host(net)
    shares = begin(net, host)
    told = together.added(shares, 0, 0)
    assert len(told["total"]) == 3 * 4 + 3  # of four features, and of three classes
    false = told["total"].copy()
    false[changed, 0] += np.uint64(1)
    pooled = dict(told, total=false, number=0, attempt=0, parties=session.numbered(sorted(net.names)))
    counts = {name: len(net.parties[name].x) for name in net.names}
    payload = dict(pooled=pooled, preludes={}, counts=counts, roster=session.numbered(sorted(net.names)))
    assert host.ask("east", "share", payload) is None and "is not the one that the parties formed" in why(net, "east")
    assert host.ask("east", "share", dict(payload, pooled={})) is None  # nor without any
    assert host.ask("east", "share", dict(payload, pooled=dict(pooled, total=told["total"]))) is not None
    assert moments(net)[-3:].tolist() == [sum(party.labels.count(c) for party in net.parties.values()) for c in "012"]


def test_other_parties_than_the_agreed_ones_are_another_federation(net):
    """Who takes part is in the hash, and so is the quorum: a host cannot change either for itself."""
    agreed = load_host(net.host).agreed
    assert len({agreed.hash, replace(agreed, parties=NAMES).hash, replace(agreed, quorum=4).hash}) == 3
    host = Host(net)
    host.hash = replace(agreed, quorum=2, parties=NAMES).hash
    assert host.ask("east", "keys", dict(session_id="s")) is None and "settings differ" in why(net, "east")


# ---------------------------------------------------------------- going back


@pytest.mark.parametrize("epoch", ["the same start", "a start that the party has not agreed to"])
def test_a_finished_job_does_not_begin_anew_unasked(net, epoch):
    """M1. A new run id rolled a party's memory back: 22 more jobs ran on one enrolment."""
    label(net)
    if epoch != "the same start":
        start_again(net, epoch)
    for run in range(2, 24):
        assert Host(net, run).ask("east", "keys", dict(session_id=f"s{run}")) is None
    assert why(net, "east").count("the host started the job again") == 2 * 22  # in the traceback and below it


def test_the_same_session_is_not_agreed_on_twice_after_it_is_forgotten(net):
    host = label(net)
    assert host.ask("east", "keys", dict(session_id="another")) is None


# ---------------------------------------------------------------- rounds


@pytest.fixture
def training(tmp_path: Path) -> Net:
    agreed = train_agreement(seed=3, settings=dict(TRAIN, rounds=3))
    return Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], agreed)


def weights(net: Net) -> dict:
    made = load_host(net.host)
    return dict(weights=make_server(made, net.names, Transport()).model().state())


def test_rounds_beyond_the_agreed_or_repeated_are_refused(training):
    """M5. Every answer is another look at the rows under weights of the host's choice: three were agreed on."""
    host, told = Host(training), weights(training)
    for round in range(3):
        assert host.ask("east", "train", dict(told, round=round), round)["n"] > 0
    for round in (999, 3, -1, True, 2**70, "2"):
        ask = dict(told, round=round if isinstance(round, int) and round < 2**63 else 0)
        assert host.ask("east", "train", ask, round if round != 2**70 else -(2**60)) is None
    assert host.ask("east", "train", dict(told, round=999), 2) is None
    assert "round 999 was requested, but only rounds 0 to 2 were agreed" in why(training, "east")
    assert host.ask("east", "train", dict(told, round=2), 2) is None
    assert "step train of round 2 was answered before" in why(training, "east")
    assert host.ask("east", "train", dict(told, round=1), 1) is None
    assert "round 1 was requested after round 2" in why(training, "east")
    again = Host(training, 2)
    assert again.ask("east", "train", dict(told, round=2), 2) is None  # another run, with no start that the party knows of
    assert "without restarting itself" in why(training, "east")


def test_a_host_that_was_started_again_repeats_what_it_lost_once_a_start(training):
    told = weights(training)
    first = Host(training).ask("east", "train", dict(told, round=0), 0)
    Host(training).ask("east", "train", dict(told, round=1), 1)
    start_again(training, "second")
    again = Host(training, 2)
    assert again.ask("east", "train", dict(told, round=1), 1)
    assert (
        again.ask("east", "train", dict(told, round=1), 1) is None and again.ask("east", "train", dict(told, round=0), 0) is None
    )
    start_again(training, "third")
    same = Host(training, 3).ask("east", "train", dict(told, round=0), 0)
    assert all(np.array_equal(same["weights"][name], w) for name, w in first["weights"].items())


def test_a_whole_training_job_is_answered(training):
    result = job.run(load_host(training.host), training.names, Host(training))
    assert result["rounds"] == 3
