"""The runtime on Flower without processes, on a grid in memory: bits, bad replies, parties' memory."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from net import Net, bits
from trials import LABEL, NAMES, STEPS, blobs, digits, digits_agreement, label_agreement

from grapevine import methods
from grapevine.core import step, wire
from grapevine.core.errors import Mistake
from grapevine.crypto import accountant
from grapevine.jobs import privacy
from grapevine.jobs.settings import LabelSettings
from grapevine.methods import noisy
from grapevine.methods.label import Label
from grapevine.parties import flower, job, node
from grapevine.parties.agreement import Agreement
from grapevine.parties.federation import in_process, load_host, load_party
from grapevine.parties.worker import Worker

# ruff: isort: split
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict  # after grapevine's, which quiets its warnings
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

LABEL_JOB = digits_agreement(job="label", method="", quorum=3, settings=dict(LABEL, bits=256))


@pytest.fixture
def net(tmp_path) -> Net:
    return Net(tmp_path, [digits(f"party-0{i + 1}", 80 * i, 80) for i in range(3)], digits_agreement())


# ---------------------------------------------------------------- a grid in memory


class MemoryGrid(Grid):
    """Flower's grid with a new worker called directly for every message, as after a node's restart.

    `trouble` may change what happens to a reply: it gets the party and the reply, and gives the replies that arrive.
    """

    def __init__(self, net: Net, run_id: int = 1, trouble=lambda name, reply: [reply]):
        self.net, self.run_id, self.trouble = net, run_id, trouble
        self.ids = {name: i + 10 for i, name in enumerate(net.names)}
        self.online = set(self.ids.values())
        self.replies: list[Message] = []
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1  # which Flower sets in its processes

    def set_run(self, run):
        raise NotImplementedError

    run = property(lambda self: None)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return self.online

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id  # as the SuperLink does
            (name,) = [n for n, i in self.ids.items() if i == message.metadata.dst_node_id]
            self.replies += self.trouble(name, self.answer(name, message))
            yield message.object_id

    def answer(self, name: str, message: Message) -> Message:
        data = Worker(self.net.folder / name).answer(self.run_id, node.unpack(message.content))["reply"]
        return Message(node.pack(data), reply_to=message)

    def pull_messages(self, message_ids):
        found = [m for m in self.replies if m.metadata.reply_to_message_id in message_ids]
        self.replies = [m for m in self.replies if m not in found]
        return found


def transport(grid: MemoryGrid, told: list[dict] | None = None, **more) -> flower.GridTransport:
    told = [] if told is None else told
    there = lambda: {name: id for name, id in grid.ids.items() if id in grid.online}  # noqa: E731
    return flower.GridTransport(grid, there, load_host(grid.net.host).agreed.hash, told.append, parties=grid.ids, **more)


def said(told: list[dict]) -> list[str]:
    return [line["sentence"] for line in told if "sentence" in line]


def test_training_gives_the_bits_of_strict(net):
    job.run(load_host(net.host), net.names, transport(MemoryGrid(net)))
    assert bits(net.host / "results") == bits(net.strict()[0])


def test_labelling_gives_the_bits_of_strict_in_five_exchanges(net):
    net.agree(LABEL_JOB)
    told: list[dict] = []
    job.run(load_host(net.host), net.names, transport(MemoryGrid(net), told))
    assert net.memories() == net.strict_memories()
    assert [line["step"] for line in told if "answered" in line] == STEPS
    assert all(line["answered"] == net.names and line["missing"] == [] for line in told if "answered" in line)


@pytest.mark.parametrize("method", ["xclp", "chorus"])
def test_noise_that_was_agreed_on_is_in_every_partys_ledger_and_adds_up_over_jobs(tmp_path, method):
    pytest.importorskip("dp_accounting")
    settings = LabelSettings(method=method, secure="psm", bits=64, neighbours=3, dp=4.0, delta=1e-5).agreed()
    net = Net(tmp_path, [blobs(name, i) for i, name in enumerate(NAMES)], label_agreement(settings=settings))
    for times in (1, 2):
        made = load_host(net.host)
        assert job.run(made, net.names, transport(MemoryGrid(net, times)))["labelled"] == net.names
        for name in net.names:
            lines = [line for line in load_party(net.folder / name).ledger.lines() if line["kind"] == "release"]
            assert all(line["mechanism"] and line["parties"] == net.names for line in lines)  # nothing is summed exactly
            events = [line["mechanism"] for line in lines if line["mechanism"]["kind"] == "gaussian"]
            assert len(events) == times * len(noisy_sums(made.method))
            (found,) = privacy.read(net.folder / name / "ledger", 1e-5)
            spent = accountant.epsilon([accountant.from_table(event) for event in events], 1e-5)
            assert found.spent == {"row": (spent, 1e-5)} and (3.96 < spent <= 4.0 if times == 1 else 5.5 < spent < 8)
        net.agree(made.agreed)  # the same job again, among the same parties


def noisy_sums(method) -> dict:
    return method.noise(3) if isinstance(method, Label) else noisy.SUMS


def test_a_reply_that_was_broken_off_keeps_nobody_waiting(net):
    """Flower waits for minutes for the rest of a reply whose sender crashed in the middle of sending it."""
    released, told = threading.Event(), []

    class Broken(MemoryGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if any(m.metadata.src_node_id == self.ids["party-02"] for m in found):
                released.wait(600)
            return found

    replies = transport(Broken(net), told, timeout=20.0).exchange("train", asked(net), 0)
    released.set()
    assert sorted(replies) == ["party-01", "party-03"]
    assert any("party-02 did not answer step train within 20 s" in sentence for sentence in said(told))


def test_a_request_that_the_superlink_gave_up_is_sent_again(net):
    """The host's machine stood still in the middle of sending one, and the time for sending it is over."""

    class Slow(MemoryGrid):
        pushed = 0

        def push_messages(self, messages):
            self.pushed += 1
            if self.pushed == 1:
                raise flower.ObjectPushError("an object", self.run_id, "a session")
            yield from super().push_messages(messages)

    grid = Slow(net)
    assert sorted(transport(grid, timeout=60.0).exchange("train", asked(net), 0)) == net.names
    assert grid.pushed == 2


def test_large_requests_are_sent_a_few_at_a_time_and_refused_ones_not_again_at_once(net, monkeypatch):
    class Large(MemoryGrid):
        sent: list[int] = []

        def push_messages(self, messages):
            self.sent.append(len(messages))
            return []  # as Flower's grid does with requests over its limit

    monkeypatch.setattr(flower, "AT_ONCE", 1)
    assert transport(Large(net), timeout=1.5).exchange("train", asked(net), 0) == {}
    assert Large.sent[:3] == [1, 1, 1] and sum(Large.sent) == 3


def test_a_party_writes_down_what_leaves_it(net):
    replies = transport(MemoryGrid(net)).exchange("train", {"party-01": train_request(net)}, 0)
    lines = [json.loads(line) for line in (net.folder / "party-01" / "disclosure.jsonl").read_text().splitlines()]
    assert [line["field"] for line in lines] == ["weights", "n"]
    assert lines[0]["hash"] == wire.digest(wire.encode({"weights": replies["party-01"]["weights"]}))
    assert all(line["reveals"] for line in lines)
    assert not (net.folder / "party-02" / "disclosure.jsonl").exists()


def train_request(net: Net, round: int = 0) -> dict:
    host = load_host(net.host)
    return dict(weights=job.make_server(host, net.names, in_process(net.members())).model().state(), round=round)


def asked(net: Net, round: int = 0) -> dict[str, dict]:
    return {name: train_request(net, round) for name in net.names}


# ---------------------------------------------------------------- what goes wrong


def garbage(content: RecordDict, reply: Message) -> Message:
    reply.content.clear()
    reply.content.update(content)
    return reply


def big(reply: Message) -> Message:
    return garbage(flower.pack(dict(step="train", round=0, reply=dict(weights={}, n=1, more=b"." * 10**6))), reply)


def as_bytes(data: bytes) -> RecordDict:
    return RecordDict({"grapevine": ArrayRecord({"message": Array("uint8", (len(data),), "grapevine.core.wire", data)})})


TROUBLES = {
    "nothing comes": (lambda reply: [], "did not answer"),
    "flower's error": (lambda reply: [Message(Error(5, "secret"), reply_to=as_request(reply))], "did not answer"),
    "not our records": (lambda reply: [garbage(RecordDict(), reply)], "invalid message"),
    "not our bytes": (lambda reply: [garbage(as_bytes(b"GV1\nrubbish"), reply)], "invalid message"),
    "too many bytes": (lambda reply: [big(reply)], "over the limit"),
    "another step's reply": (
        lambda reply: [garbage(flower.pack(dict(step="evaluate", round=0, reply={})), reply)],
        "failed at",
    ),
    "another round's reply": (lambda reply: [garbage(flower.pack(dict(step="train", round=7, reply={})), reply)], "failed at"),
    "no dict": (lambda reply: [garbage(flower.pack(dict(step="train", round=0, reply=3)), reply)], "failed at"),
    "an escape in the kind": (lambda reply: [garbage(flower.pack(dict(error="\x1b[2J")), reply)], "(no reply in it)"),
}


def as_request(reply: Message) -> Message:
    """A message with the id that `reply` answers, to answer it once more."""
    request = Message(RecordDict(), 10, "query.step", ttl=60)
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return request


@pytest.mark.parametrize("kind", TROUBLES)
def test_a_bad_reply_is_an_absent_key_and_a_sentence(net, kind):
    make, sentence = TROUBLES[kind]
    grid, told = MemoryGrid(net, trouble=lambda name, reply: make(reply) if name == "party-02" else [reply]), []
    replies = transport(grid, told, timeout=20.0, limit_bytes=500_000).exchange("train", asked(net), 0)
    assert list(replies) == ["party-01", "party-03"] and told[-1]["missing"] == ["party-02"]
    assert any(sentence in line and "party-02" in line for line in said(told))
    assert not any("secret" in line or "\x1b" in line for line in said(told))


@pytest.mark.parametrize("wrong", ["signature", "another's", "nothing"])
def test_a_key_that_its_sender_did_not_sign_is_left_out_by_name(net, wrong):
    """Relayed, it stopped all the others, and an honest party was named."""
    net.agree(LABEL_JOB)
    pinned, sent = load_party(net.folder / "party-01").pinned, []

    def forge(name, reply):
        answer = flower.unpack(reply.content, 10**6)
        sent.append(answer["reply"]["offer"])
        if name != "party-02":
            return [reply]
        offer = dict(signature=dict(sent[-1], signature=bytes(64)), nothing={}).get(wrong, sent[0])
        return [garbage(flower.pack(dict(answer, reply=dict(answer["reply"], offer=offer))), reply)]

    told: list[dict] = []
    carrier = transport(MemoryGrid(net, trouble=forge), told, timeout=20.0, identities=pinned)
    replies = carrier.exchange("keys", {name: dict(session_id="s") for name in net.names}, 0)
    assert list(replies) == ["party-01", "party-03"] and told[-1]["missing"] == ["party-02"]
    assert said(told) == ["party-02 answered step keys with a key that it did not sign, so it is dropped."]


def test_the_second_of_two_replies_is_ignored(net):
    def twice(name, reply):
        other = Message(flower.pack(dict(step="train", round=0, reply=dict(n=-1))), reply_to=as_request(reply))
        return [reply, other]

    replies = transport(MemoryGrid(net, trouble=twice)).exchange("train", asked(net), 0)
    assert all(reply["n"] > 0 for reply in replies.values()) and len(replies) == 3


def test_a_reply_that_comes_later_is_not_taken_for_the_next_step(net):
    held: list[Message] = []

    def late(name, reply):
        if name == "party-02" and not held:
            held.append(reply)
            return []
        return [*held, reply] if name == "party-03" and reply.metadata.group_id == "1" else [reply]

    carrier = transport(MemoryGrid(net, trouble=late), timeout=20.0)
    assert list(carrier.exchange("train", asked(net), 0)) == ["party-01", "party-03"]
    replies = carrier.exchange("train", asked(net, 1), 1)
    fresh = in_process([load_party(net.folder / "party-02")]).exchange("train", {"party-02": train_request(net, 1)}, 1)
    assert wire.encode(replies["party-02"]) == wire.encode(fresh["party-02"])


def test_a_party_that_is_offline_is_waited_for_until_the_steps_time_is_over(net):
    grid, told = MemoryGrid(net), []
    grid.online.discard(grid.ids["party-03"])
    replies = transport(grid, told, timeout=5.0).exchange("train", asked(net), 0)
    assert list(replies) == ["party-01", "party-02"]
    assert "party-03 is not online" in said(told)[0] and "party-03 did not answer" in said(told)[1]


def test_nobody_waits_for_a_party_that_has_gone_for_good(net):
    grid, told = MemoryGrid(net), []
    grid.online.discard(grid.ids["party-03"])
    carrier = transport(grid, told, timeout=3600, gone=lambda: {"party-03": "left"})  # longer than a test may take
    assert list(carrier.exchange("train", asked(net), 0)) == ["party-01", "party-02"]
    assert said(told) == ["party-03 left, so step train continues without it."]


def test_a_party_is_asked_again_and_gives_the_same_reply(net, monkeypatch):
    """Its replies are lost three times. Masks are drawn anew whenever a step runs, so the bytes tell."""
    monkeypatch.setattr(flower, "AGAIN", 0.5)
    net.agree(LABEL_JOB)
    seen: list[bytes] = []

    def lost(name, reply):
        if name == "party-02":
            seen.append(node.unpack(reply.content))
        return [] if name == "party-02" and len(seen) < 4 else [reply]

    replies = transport(MemoryGrid(net, trouble=lost)).exchange("keys", {name: dict(session_id="s") for name in net.names}, 0)
    assert len(replies) == 3 and len(seen) == 4 and len(set(seen)) == 1
    written = (net.folder / "party-02" / "disclosure.jsonl").read_text().splitlines()
    assert len(written) == len((net.folder / "party-01" / "disclosure.jsonl").read_text().splitlines())


def test_below_the_quorum_the_job_waits_and_a_party_that_comes_back_is_asked(net):
    grid, told = MemoryGrid(net), []
    grid.online.discard(grid.ids["party-03"])
    threading.Timer(6.0, grid.online.add, [grid.ids["party-03"]]).start()
    carrier = transport(grid, told, timeout=3.0, quorum=3, patience=600.0)
    assert list(carrier.exchange("train", asked(net), 0)) == net.names
    assert "3 parties are needed, so the job waits 600 s for party-03" in said(told)[1]
    grid.online.discard(grid.ids["party-03"])
    carrier.patience = 0.0
    assert list(carrier.exchange("train", asked(net, 1), 1)) == net.names[:2]


def test_an_error_at_a_party_reaches_the_server_as_its_kind_alone(net):
    sent, told = [], []
    grid = MemoryGrid(net, trouble=lambda name, reply: sent.append(reply) or [reply])
    assert transport(grid, told).exchange("train", {"party-01": dict(weights={"w": 1.0}, round=0)}, 0) == {}
    answer = flower.unpack(sent[0].content, 10**6)
    assert set(answer) == {"step", "round", "error"} and answer["error"].isidentifier()
    assert said(told) == [f"party-01 failed at step train ({answer['error']}): see its own log."]
    log = (net.folder / "party-01" / "log.txt").read_text()
    assert "Traceback" in log and "weights do not fit" in log


def test_a_party_refuses_other_settings_unknown_steps_and_unknown_fields(net):
    carrier, log = transport(MemoryGrid(net)), net.folder / "party-01" / "log.txt"
    assert carrier.exchange("round", {"party-01": {}}, 0) == {}
    assert "is not a step of fedavg" in log.read_text()
    assert carrier.exchange("train", {"party-01": dict(train_request(net), epochs=9)}, 0) == {}
    assert "cannot take this message" in log.read_text()
    assert carrier.exchange("train", {"party-01": dict(train_request(net), lr=9.0)}, 0) == {}
    assert "a learning rate of 9.0 does not follow from the settings" in log.read_text()
    carrier.hash = "0" * 64
    assert carrier.exchange("train", {"party-01": train_request(net)}, 0) == {}
    assert "settings differ from those party-01 agreed to" in log.read_text()
    assert not (net.folder / "party-01" / "disclosure.jsonl").exists()


# ---------------------------------------------------------------- memory


@dataclass(frozen=True)
class Counting(methods.FedAvg):
    """Counts in memory how often it was asked; `keys` keeps something that must never be used twice."""

    name = "counting"

    @step
    def count(self, client):
        client.memory["count"] = client.memory.get("count", 0) + 1
        return dict(count=client.memory["count"])

    @step
    def keys(self, client):
        client.memory["agreement"] = dict(secret=b"once")
        return {}

    @step
    def fail(self, client):
        client.memory["count"] = 99
        raise ValueError("after writing")


@pytest.fixture
def counting(net, monkeypatch):
    net.agree(digits_agreement(settings=dict(digits_agreement().settings, rounds=4)))
    monkeypatch.setattr(Agreement, "made", Counting())

    def ask(name: str, round: int, run: int = 1) -> int | None:
        (net.folder / "party-01" / "epoch.txt").write_text(f"start {run}")
        return transport(MemoryGrid(net, run)).exchange(name, {"party-01": {}}, round).get("party-01", {}).get("count")

    return ask


def test_memory_lasts_over_processes_and_a_step_that_fails_changes_nothing(counting):
    assert [counting("count", 0), counting("count", 0), counting("count", 1)] == [1, 2, 3]
    assert counting("fail", 2) is None
    assert counting("count", 2) == 4


def test_a_host_that_starts_again_finds_memory_as_it_was_before_the_round(counting):
    for round in (0, 1, 2):
        counting("count", round)
    assert counting("count", 2, run=2) == 3  # round 2 was broken off and is done again
    assert counting("count", 3, run=3) == 4  # round 2 was finished: nothing goes back
    assert counting("count", 2, run=4) == 3  # its checkpoint was not written
    assert counting("count", 3, run=4) == 4


def test_keys_never_go_back(counting):
    counting("keys", 0)
    counting("count", 1)
    assert counting("count", 1, run=2) == 2


def test_nodes_are_known_by_their_keys_and_too_few_is_a_sentence(net):
    keys = load_host(net.host).keys
    pem = {name: load_ssh_public_key(key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
           for name, key in keys.items()}  # fmt: skip
    grid = MemoryGrid(net)
    grid.get_nodes = lambda: [SimpleNamespace(node_id=7, public_key=pem["party-03"]), SimpleNamespace(node_id=8, public_key=b"?")]
    assert flower.find_nodes(grid, keys, 1, wait=0) == {"party-03": 7}
    with pytest.raises(Mistake, match="1 of 3 parties are online after 0 s, but 2 are needed: party-01, party-02 must join"):
        flower.find_nodes(grid, keys, 2, wait=0)
