"""The runtime on Flower: without processes on a grid in memory, and with three real SuperNodes under TLS."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from net import Net

from grapevine import methods
from grapevine.cli.demo import digits_parties
from grapevine.core import Server, step, wire
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, Memory
from grapevine.jobs.reading import Party
from grapevine.parties import federation, flower, hosted, virtual, warm
from grapevine.run.simulate import Simulation

# ruff: isort: split
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict  # after grapevine.flower, which quiets its warnings
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

CLASSES = [str(i) for i in range(10)]
FEATURES = [f"x{i}" for i in range(64)]
TRAIN = dict(job="train", method="fedavg", settings=dict(epochs=1), rounds=2, classes=CLASSES, features=FEATURES)
LABEL = dict(job="label", method="xclp", settings=dict(secure="psm", bits=256), features=FEATURES)


@pytest.fixture
def parties() -> list[Party]:
    few = digits_parties(3)
    return [Party(p.name, p.x[:80], p.labels[:80], p.ids[:80]) for p in few]


# ---------------------------------------------------------------- a grid in memory


class MemoryGrid(Grid):
    """Flower's grid with the ClientApp called directly: a fresh context per message, as after a node's restart.

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
        config = {"party-folder": str(self.net.folder / name)}
        context = Context(run_id=self.run_id, node_id=self.ids[name], node_config=config, state=RecordDict(), run_config={})
        return flower.client_app(message, context)

    def pull_messages(self, message_ids):
        found = [m for m in self.replies if m.metadata.reply_to_message_id in message_ids]
        self.replies = [m for m in self.replies if m not in found]
        return found


def transport(grid: MemoryGrid, said: list[str] | None = None, **more) -> flower.GridTransport:
    hash = federation.load_host(grid.net.host).hash
    say = (lambda sentence: None) if said is None else said.append
    return flower.GridTransport(grid, grid.ids, hash, say=say, **more)


def host(net: Net, carrier) -> tuple[Server, federation.HostSetup]:
    setup = federation.load_host(net.host)
    return Server(setup.method, net.names, carrier, setup.models, setup.classes, setup.seed, None, setup.rounds), setup


def strict(net: Net, method=None) -> tuple[Simulation, dict]:
    """The same job in one process, in `strict` mode: all memory, and the server's state at the end."""
    setups = [federation.load_party(net.folder / name) for name in net.names]
    first = setups[0]
    simulation = Simulation(first.method, {s.name: s.data for s in setups}, first.models, first.seed, "strict")
    server, setup = host(net, simulation)
    state = setup.method.setup(server)
    for server.now in range(setup.rounds):
        state = setup.method.round(server, state)
    return simulation, state


def memory(net: Net, name: str) -> Memory:
    kept = json.loads((net.folder / name / "memory.json").read_text())
    return Memory(FileStore(net.folder / name / "memory"), kept["now"])


def same_model(net: Net) -> bool:
    """Whether the host's last checkpoint holds the bits that `strict` gives."""
    manifest = json.loads((net.host / "checkpoint" / "manifest.json").read_text())
    return FileStore(net.host / "checkpoint" / "objects").get(manifest["state"]) == wire.encode(strict(net)[1])


def same_labels(net: Net) -> bool:
    """Whether every party's labels and confidences are the bits that `strict` gives."""
    simulation, _ = strict(net)
    alike = []
    for name in net.names:
        expected = Memory(simulation.store, simulation.manifests[name])["result"]
        alike.append(wire.encode(memory(net, name)["result"]) == wire.encode(expected))
    return all(alike)


def test_training_gives_the_bits_of_strict(tmp_path, parties):
    net = Net(tmp_path, parties, **TRAIN)
    server, setup = host(net, transport(MemoryGrid(net)))
    hosted.run(server, setup, net.host)
    assert same_model(net)


def test_labelling_gives_the_bits_of_strict_in_five_exchanges(tmp_path, parties):
    net = Net(tmp_path, parties, **LABEL)
    carrier = transport(MemoryGrid(net))
    server, setup = host(net, carrier)
    hosted.run(server, setup, net.host)
    assert same_labels(net)
    assert len(carrier.seconds) == 5


def test_a_reply_that_was_broken_off_keeps_nobody_waiting(tmp_path, parties):
    """Flower waits for minutes for the rest of a reply whose sender crashed in the middle of sending it."""
    released = threading.Event()

    class Broken(MemoryGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if any(m.metadata.src_node_id == self.ids["party-02"] for m in found):
                released.wait(60)
            return found

    net, said = Net(tmp_path, parties, **TRAIN), []
    began = time.monotonic()
    requests = {name: train_request(net) for name in net.names}
    replies = transport(Broken(net), said, timeout=8.0).exchange("train", requests, 0)
    released.set()
    assert sorted(replies) == ["party-01", "party-03"] and time.monotonic() - began < 30
    assert any("party-02 did not answer step train within 8 s" in sentence for sentence in said)


def test_a_party_writes_down_what_leaves_it(tmp_path, parties):
    net = Net(tmp_path, parties, **TRAIN)
    replies = transport(MemoryGrid(net)).exchange("train", {"party-01": train_request(net)}, 0)
    lines = [json.loads(line) for line in (tmp_path / "party-01" / "disclosure.jsonl").read_text().splitlines()]
    assert [line["field"] for line in lines] == ["weights", "n"]
    assert lines[0]["hash"] == wire.digest(wire.encode({"weights": replies["party-01"]["weights"]}))
    assert not (tmp_path / "party-02" / "disclosure.jsonl").exists()


def train_request(net: Net, round: int = 0) -> dict:
    server, _ = host(net, None)
    return dict(weights=server.model().state(), round=round)


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
    "flower's error": (lambda reply: [Message(Error(5, "secret"), reply_to=as_request(reply))], "was lost"),
    "not our records": (lambda reply: [garbage(RecordDict(), reply)], "no message"),
    "not our bytes": (lambda reply: [garbage(as_bytes(b"GV1\nrubbish"), reply)], "no message"),
    "too many bytes": (lambda reply: [big(reply)], "over the limit"),
    "another step's reply": (
        lambda reply: [garbage(flower.pack(dict(step="evaluate", round=0, reply={})), reply)],
        "could not do",
    ),
    "another round's reply": (lambda reply: [garbage(flower.pack(dict(step="train", round=7, reply={})), reply)], "could not do"),
    "no dict": (lambda reply: [garbage(flower.pack(dict(step="train", round=0, reply=3)), reply)], "could not do"),
    "an escape in the kind": (lambda reply: [garbage(flower.pack(dict(error="\x1b[2J")), reply)], "(no reply in it)"),
}


def as_request(reply: Message) -> Message:
    """A message with the id that `reply` answers, to answer it once more."""
    request = Message(RecordDict(), 10, "query.step", ttl=60)
    request.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return request


@pytest.mark.parametrize("kind", TROUBLES)
def test_a_bad_reply_is_an_absent_key_and_a_sentence(tmp_path, parties, kind):
    make, sentence = TROUBLES[kind]
    net, said = Net(tmp_path, parties, **TRAIN), []
    grid = MemoryGrid(net, trouble=lambda name, reply: make(reply) if name == "party-02" else [reply])
    carrier = transport(grid, said, timeout=1.5, limit_bytes=500_000)
    began = time.monotonic()
    replies = carrier.exchange("train", {name: train_request(net) for name in net.names}, 0)
    assert list(replies) == ["party-01", "party-03"]
    assert any(sentence in line and "party-02" in line for line in said)
    assert not any("secret" in line or "\x1b" in line for line in said)
    assert time.monotonic() - began < 5


def test_the_second_of_two_replies_is_ignored(tmp_path, parties):
    net, said = Net(tmp_path, parties, **TRAIN), []

    def twice(name, reply):
        other = Message(flower.pack(dict(step="train", round=0, reply=dict(n=-1))), reply_to=as_request(reply))
        return [reply, other]

    carrier = transport(MemoryGrid(net, trouble=twice), said)
    replies = carrier.exchange("train", {name: train_request(net) for name in net.names}, 0)
    assert all(reply["n"] > 0 for reply in replies.values()) and len(replies) == 3


def test_a_reply_that_comes_later_is_not_taken_for_the_next_step(tmp_path, parties):
    net, held = Net(tmp_path, parties, **TRAIN), []

    def late(name, reply):
        if name == "party-02" and not held:
            held.append(reply)
            return []
        return [*held, reply] if name == "party-03" and reply.metadata.group_id == "1" else [reply]

    carrier = transport(MemoryGrid(net, trouble=late), timeout=1.0)
    requests = {name: train_request(net) for name in net.names}
    assert list(carrier.exchange("train", requests, 0)) == ["party-01", "party-03"]
    replies = carrier.exchange("train", {name: train_request(net, 1) for name in net.names}, 1)
    fresh = strict_reply(net, "party-02", 1)
    assert wire.encode(replies["party-02"]) == wire.encode(fresh)


def strict_reply(net: Net, name: str, round: int) -> dict:
    setup = federation.load_party(net.folder / name)
    simulation = Simulation(setup.method, {name: setup.data}, setup.models, setup.seed, "strict")
    return simulation.exchange("train", {name: train_request(net, round)}, round)[name]


def test_nobody_waits_for_a_party_that_is_offline(tmp_path, parties):
    net, said = Net(tmp_path, parties, **TRAIN), []
    grid = MemoryGrid(net)
    grid.online.discard(grid.ids["party-03"])
    began = time.monotonic()
    replies = transport(grid, said, timeout=60).exchange("train", {name: train_request(net) for name in net.names}, 0)
    assert list(replies) == ["party-01", "party-02"] and time.monotonic() - began < 10
    assert "party-03 is not online" in said[0]


def test_an_error_at_a_party_reaches_the_server_as_its_kind_alone(tmp_path, parties):
    net, said, sent = Net(tmp_path, parties, **TRAIN), [], []
    grid = MemoryGrid(net, trouble=lambda name, reply: sent.append(reply) or [reply])
    assert transport(grid, said).exchange("train", {"party-01": dict(weights={"w": 1.0}, round=0)}, 0) == {}
    answer = flower.unpack(sent[0].content, 10**6)
    assert set(answer) == {"step", "round", "error"} and answer["error"].isidentifier()
    assert said[0] == f"party-01 could not do step train ({answer['error']}): its own log says why."
    log = (tmp_path / "party-01" / "log.txt").read_text()
    assert "Traceback" in log and "weights do not fit" in log


def test_a_party_refuses_other_settings_unknown_steps_and_unknown_fields(tmp_path, parties):
    net, said = Net(tmp_path, parties, **TRAIN), []
    carrier = transport(MemoryGrid(net), said)
    log = tmp_path / "party-01" / "log.txt"
    assert carrier.exchange("round", {"party-01": {}}, 0) == {}
    assert "is not a step of fedavg" in log.read_text()
    assert carrier.exchange("train", {"party-01": dict(train_request(net), lr=9.0)}, 0) == {}
    assert "cannot take this message" in log.read_text()
    carrier.hash = "0" * 64
    assert carrier.exchange("train", {"party-01": train_request(net)}, 0) == {}
    assert "other settings than party-01 agreed to" in log.read_text()
    assert not (tmp_path / "party-01" / "disclosure.jsonl").exists()


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
def counting(tmp_path, parties, monkeypatch):
    net = Net(tmp_path, parties, **TRAIN)
    monkeypatch.setattr(federation, "agreed_method", lambda table: Counting())

    def ask(name: str, round: int, run: int = 1) -> int | None:
        return transport(MemoryGrid(net, run)).exchange(name, {"party-01": {}}, round).get("party-01", {}).get("count")

    return ask


def test_memory_lasts_over_processes_and_a_step_that_fails_changes_nothing(counting):
    assert [counting("count", 0), counting("count", 0), counting("count", 1)] == [1, 2, 3]
    assert counting("fail", 1) is None
    assert counting("count", 1) == 4


def test_a_host_that_starts_again_finds_memory_as_it_was_before_the_round(counting):
    for round in (0, 1, 2):
        counting("count", round)
    assert counting("count", 2, run=2) == 3  # round 2 was broken off and is done again
    assert counting("count", 2, run=2) == 4
    assert counting("count", 3, run=3) == 5  # round 2 was finished: nothing goes back
    assert counting("count", 2, run=4) == 3  # its checkpoint was not written
    assert counting("count", 3, run=4) == 4


def test_keys_never_go_back(counting):
    counting("keys", 0)
    counting("count", 1)
    assert counting("count", 1, run=2) == 2


def test_nodes_are_known_by_their_keys_and_too_few_is_a_sentence(tmp_path, parties):
    net = Net(tmp_path, parties, **TRAIN)
    keys = federation.load_host(net.host).keys
    pem = {name: load_ssh_public_key(key.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
           for name, key in keys.items()}  # fmt: skip
    grid = MemoryGrid(net)
    grid.get_nodes = lambda: [SimpleNamespace(node_id=7, public_key=pem["party-03"]), SimpleNamespace(node_id=8, public_key=b"?")]
    assert flower.find_nodes(grid, keys, 1, wait=0) == {"party-03": 7}
    with pytest.raises(Mistake, match="1 of 3 parties are online after 0 s, and 2 are needed: party-01, party-02 must join"):
        flower.find_nodes(grid, keys, 2, wait=0)


# ---------------------------------------------------------------- processes


def test_flower_processes_phone_nobody_and_install_nothing(tmp_path):
    made = flower.environment(tmp_path / "home")
    assert made["FLWR_TELEMETRY_ENABLED"] == "0" and made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1" and made["RAY_USAGE_STATS_ENABLED"] == "0"
    assert made["FLWR_HOME"] == str(tmp_path / "home")


def test_one_file_alone_imports_flower():
    files = Path(flower.__file__).parent.rglob("*.py")
    assert [f.name for f in files if re.search(r"^\s*(from|import) flwr", f.read_text(), re.MULTILINE)] == ["flower.py"]


def test_the_bundle_holds_no_code(tmp_path):
    folder = flower.write_app(tmp_path / "app")
    assert [path.name for path in folder.iterdir()] == ["pyproject.toml"]


def test_code_from_the_bundle_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "planted.py").write_text("ran = True\n")
    (tmp_path / "apps" / "planted_package").mkdir()
    (tmp_path / "apps" / "planted_package" / "inside.py").write_text("ran = True\n")
    monkeypatch.syspath_prepend(tmp_path / "apps")
    guard = warm.OwnCodeOnly(tmp_path)
    for name in ("planted", "planted_package"):
        with pytest.raises(ImportError, match="the host sent code"):
            guard.find_spec(name)
    assert guard.find_spec("json") is None and guard.find_spec("no_such_module") is None


# ---------------------------------------------------------------- real SuperNodes


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    few = [Party(p.name, p.x[:80], p.labels[:80], p.ids[:80]) for p in digits_parties(3)]
    with Net(tmp_path_factory.mktemp("net"), few, **LABEL) as net:
        yield net


@pytest.mark.timeout(600)
def test_three_nodes_label_and_train_with_the_bits_of_strict(net):
    result = net.run()
    assert result.get("labelled") == net.names, net.logs()
    assert same_labels(net)
    exchanges = [line for line in net.progress() if "seconds" in line]
    assert [line["step"] for line in exchanges] == ["keys", "meet", "share", "xclp.spread.contribute", "receive"]
    net.agree(**TRAIN)
    result = net.run()
    assert result.get("rounds") == 2, net.logs()
    assert same_model(net)
    print([(line["step"], line["seconds"]) for line in net.progress() if "seconds" in line])


@pytest.mark.parties
@pytest.mark.timeout(900)
def test_a_killed_node_is_lost_and_comes_back(net):
    net.agree(**dict(TRAIN, rounds=3), timeout=100)
    net.start_job()
    net.until(lambda: any("answered" in line for line in net.progress()), 200, "the first exchange")
    net.kill("party-02")
    net.until(lambda: any("party-02" in line.get("missing", []) for line in net.progress()), 200, "the loss to be noticed")
    net.start_node("party-02")
    result = net.result()
    assert result.get("rounds") == 3, net.logs()
    lost = next(line for line in net.progress() if line.get("missing"))
    assert lost["missing"] == ["party-02"] and lost["seconds"] < 110


MISCHIEF = """
import os, time
from pathlib import Path
from grapevine.parties import flower

honest = flower.pack

def pack(value):
    what = Path(os.environ["MISCHIEF"]).read_text()
    if what == "garbage":
        return flower.RecordDict({"x": flower.ConfigRecord({"y": 1})})
    if what == "late":
        time.sleep(60)
    if what == "exit":
        os._exit(3)
    return honest(value)

flower.pack = pack
"""


@pytest.mark.parties
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what, seconds", [("garbage", 30), ("late", 50), ("exit", 50)])
def test_a_party_that_sends_garbage_or_nothing_in_time_does_not_stop_the_others(net, tmp_path, what, seconds):
    """A party owns its machine: here its own Python has been changed. No exchange takes longer than the timeout, here 40 s."""
    (tmp_path / "sitecustomize.py").write_text(MISCHIEF)
    mode = tmp_path / "mode"
    mode.write_text(what)
    net.kill("party-03", how=signal.SIGTERM)
    net.agree(timeout=40, **LABEL)
    net.start_node("party-03", PYTHONPATH=str(tmp_path), MISCHIEF=str(mode))
    result = net.run()
    assert result.get("labelled") == ["party-01", "party-02"] and result["lost"] == ["party-03"], net.logs()
    assert max(line["seconds"] for line in net.progress() if "seconds" in line) < seconds
    net.kill("party-03", how=signal.SIGTERM)
    net.start_node("party-03")


@pytest.mark.parties
@pytest.mark.timeout(900)
def test_a_host_that_sends_code_finds_that_no_party_runs_it(net, tmp_path):
    net.agree(**TRAIN)
    app, ran = flower.write_app(tmp_path / "app"), tmp_path / "ran"
    about = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(about.replace("grapevine.parties.flower:client_app", "planted:client_app"))
    planted = f"open({str(ran)!r}, 'w').close()\nfrom grapevine import flower\nclient_app = flower.client_app\n"
    (app / "planted.py").write_text(planted)
    net.start_job(app)
    assert "0 of 3 parties still answer" in net.result()["sentence"]
    assert not ran.exists()


# ---------------------------------------------------------------- Flower's Ray simulation

FLAGS = dict(
    data="digits", data_dir=None, party=None, label=None, clients=4, partition="iid", split_file=None, labels="clients:180",
    flip=0.0, irrelevant=None, validation=0.1, model="mlp", norm=None, rounds=2, per_round=3, workers=2, device="cpu",
    mode="fast", evaluate_every=0, patience=0, latent=1,
)  # fmt: skip
SIMULATE = """
import json, sys
from grapevine.parties import virtual
if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    virtual.run(job, 4, lambda done, rounds, line: print(done, rounds, flush=True))
"""


def test_the_simulation_needs_ray_and_says_so(tmp_path):
    if importlib.util.find_spec("ray"):
        pytest.skip("Ray is installed here")
    with pytest.raises(Mistake, match=r"--runtime flower-sim needs Ray: pip install 'flwr\[simulation\]==1.41.0'"):
        virtual.run(virtual.job("fedavg", {}, FLAGS, 5, tmp_path / "out", False), 4, print)


class Direct:
    """A carrier that calls the worker's function in this process, through the codec."""

    def __init__(self, home):
        self.home = home

    def exchange(self, step, requests, round):
        asked = {id: wire.decode(wire.encode(dict(step=step, round=round, payload=r))) for id, r in requests.items()}
        return {id: wire.decode(wire.encode(virtual.work(self.home, request))) for id, request in asked.items()}


def simulate_here(tmp_path, name: str, settings: dict | None = None) -> tuple[dict, bytes]:
    """Driver and worker in one process."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    (home / "job.json").write_text(json.dumps(virtual.job(name, settings or {}, FLAGS, 5, str(out), False)))
    virtual.drive(home, lambda count: Direct(home))
    return json.loads((home / "ended.json").read_text()), out


def run_local(tmp_path, name: str):
    made = virtual.experiment(virtual.job(name, {}, FLAGS, 5, str(tmp_path / "local"), False))
    made.run()
    return tmp_path / "local"


def same_files(a, b) -> bool:
    return all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in ("history.jsonl", "messages.jsonl", "model.safetensors")
    )


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_driver_and_workers_give_the_bits_of_a_local_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    ended, out = simulate_here(tmp_path, name)
    assert ended == dict(kind="", sentence="")
    local = run_local(tmp_path, name)
    assert same_files(out, local)
    flops = [json.loads((folder / "result.json").read_text())["flops"] for folder in (out, local)]
    assert flops[0] == flops[1] > 0


def test_an_error_in_a_worker_stops_the_run_with_its_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from dataclasses import dataclass\nfrom grapevine.core import step\nfrom grapevine.methods import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Broken(FedAvg):\n    name = 'broken'\n\n"
        "    @step\n    def train(self, client, weights, round):\n        raise ValueError('no')\n"
    )
    ended, out = simulate_here(tmp_path, f"{broken}:Broken", {})
    assert ended["kind"] == "StepError" and ended["sentence"].startswith("client ") and "step train, round 0" in ended["sentence"]
    assert not (out / "result.json").exists()


@pytest.fixture(scope="session")
def ray_python(tmp_path_factory) -> str:
    """A Python with Ray, on top of this one."""
    if importlib.util.find_spec("ray"):
        return sys.executable
    (needs,) = {r for r in importlib.metadata.requires("flwr") if r.startswith("ray") and "3.11" in r}
    folder = tmp_path_factory.mktemp("ray") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    own = next((folder / "lib").iterdir()) / "site-packages"
    (own / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(flower.__file__).parent.parent}\n")
    for words in ([needs.split(";")[0].strip()], ["--no-deps", "--force-reinstall", "flwr==1.41.0"]):
        done = subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *words], capture_output=True, timeout=900)
        if done.returncode:
            pytest.skip("Ray cannot be installed here")
    return str(folder / "bin" / "python")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ray_gives_the_bits_of_a_local_run(tmp_path, monkeypatch, ray_python):
    monkeypatch.chdir(tmp_path)
    job = virtual.job("scaffold", {}, FLAGS, 5, str(tmp_path / "out"), False)
    (tmp_path / "simulate.py").write_text(SIMULATE)
    done = subprocess.run(
        [ray_python, str(tmp_path / "simulate.py"), json.dumps(job)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "2 2"
    assert same_files(tmp_path / "out", run_local(tmp_path, "scaffold"))
