"""Methods, steps, randomness by name, and the server's way of asking."""

from dataclasses import dataclass

import pytest
import torch

from grapevine import core, methods
from grapevine.core import Method, Server, SubProtocol, param, step, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, Memory, RamStore
from grapevine.run.experiment import Experiment
from grapevine.run.simulate import Fault, Simulation


@dataclass(frozen=True)
class Greeting(SubProtocol):
    name = "greeting"
    word: str = "hello"

    @step
    def greet(self, client):
        return dict(text=f"{self.word} from {client.id}")

    def run(self, server):
        return server.ask(self.greet)


@dataclass(frozen=True)
class Toy(Method):
    name = "toy"
    title = "toy"
    greeting: Greeting = Greeting()
    lr: float = param(0.5, "η", "rate")
    often: int = param(3, "", "times")
    loud: bool = param(False, "", "shout")

    @step
    def count(self, client, times):
        client.memory["calls"] = client.memory.get("calls", 0) + times
        return dict(calls=client.memory["calls"])

    @step
    def fail(self, client):
        raise ValueError("out of luck")

    @step
    def wrong(self, client):
        return 3

    def not_a_step(self, client):
        return {}


def federation(digits, mode="fast", **settings):
    split = digits.split(clients=4, labels="clients:40")
    method = Toy()
    source = Experiment(method, split, model="linear").models()
    simulation = Simulation(method, {i: split.client(i) for i in range(4)}, source, mode=mode, **settings)
    return method, Server(method, range(4), simulation, source, digits.classes), simulation


def test_steps_are_an_allow_list_with_sub_protocols_by_field():
    assert set(Toy().steps()) == {"count", "fail", "wrong", "evaluate", "greeting.greet"}


def test_a_sub_protocols_step_is_asked_by_its_field(digits):
    method, server, _ = federation(digits)
    assert method.greeting.run(server)[2] == dict(text="hello from 2")
    assert server.account.drain()[0]["step"] == "greeting.greet"


def test_what_is_not_marked_cannot_be_asked(digits):
    method, server, _ = federation(digits)
    with pytest.raises(Mistake, match="not a step"):
        server.ask(method.not_a_step)


@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_memory_lasts_between_steps(digits, mode):
    method, server, _ = federation(digits, mode)
    server.ask(method.count, times=2)
    assert server.ask(method.count, to=[1, 3], times=5) == {1: dict(calls=7), 3: dict(calls=7)}
    assert server.ask(method.count, each={0: dict(times=1), 3: dict(times=2)}) == {0: dict(calls=3), 3: dict(calls=9)}


def test_what_a_client_is_told_itself_goes_before_what_all_are_told(digits):
    method, server, _ = federation(digits)
    assert server.ask(method.count, each={0: dict(times=1), 2: {}}, times=5) == {0: dict(calls=1), 2: dict(calls=5)}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_client_step_and_round(digits, workers):
    method, server, _ = federation(digits, workers=workers)
    server.now = 3
    with pytest.raises(core.StepError, match="^client 1, step fail, round 3: out of luck$"):
        server.ask(method.fail, to=[1])


def test_a_message_a_step_cannot_take_and_a_reply_that_is_no_dict(digits):
    method, server, _ = federation(digits)
    with pytest.raises(core.StepError, match="cannot take this message"):
        server.ask(method.count, times=1, other=2)
    with pytest.raises(core.StepError, match="returns a dict"):
        server.ask(method.wrong)


@pytest.mark.parametrize("mode", ["fast", "strict"])
@pytest.mark.parametrize("when, remembered", [("before", 0), ("in", 0), ("after", 1)])
def test_a_client_lost_before_in_and_after_a_step(digits, mode, when, remembered):
    method, server, simulation = federation(digits, mode, faults=[Fault(2, "count", when=when, round=0)])
    assert set(server.ask(method.count, times=1)) == {0, 1, 3}
    server.now = 1
    assert server.ask(method.count, times=1)[2] == dict(calls=remembered + 1)


def test_a_client_lost_for_good_and_a_step_that_needs_everybody(digits):
    method, server, _ = federation(digits, faults=[Fault(2, "count", when="after", round=0, forever=True)])
    server.ask(method.count, times=1)
    server.now = 1
    with pytest.raises(Mistake, match="needs a reply from every client, but none came from client 2 in round 1"):
        server.ask(method.count, everybody=True, times=1)


@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_a_damaged_reply_is_a_missing_one_and_a_second_one_is_ignored(digits, mode):
    faults = [
        Fault(0, "count", kind="corrupt"),
        Fault(1, "count", kind="duplicate"),
        Fault(2, "count", kind="delay", seconds=0.01),
    ]
    method, server, _ = federation(digits, mode, faults=faults)
    assert server.ask(method.count, times=1) == {i: dict(calls=1) for i in (1, 2, 3)}


def test_streams_depend_on_seed_and_names_alone():
    draw = lambda *key: torch.rand(4, generator=core.rng(*key)).tolist()  # noqa: E731
    assert draw(0, "client", 1, "train", 2) == draw(0, "client", 1, "train", 2)
    others = [
        (1, "client", 1, "train", 2),
        (0, "client", 2, "train", 2),
        (0, "client", 1, "train", 3),
        (0, "client", "1", "train", 2),
    ]
    assert len({tuple(draw(*key)) for key in [(0, "client", 1, "train", 2), *others]}) == 5


def test_sampling_is_by_seed_and_round_and_fair(digits):
    _, server, _ = federation(digits)
    server.clients, server.per_round = list(range(20)), 5
    picks = [server.sample(r) for r in range(400)]
    assert picks[7] == server.sample(7) == sorted(set(picks[7])) and len(picks[7]) == 5
    counts = torch.bincount(torch.tensor(picks).flatten(), minlength=20)
    assert ((counts - 100).abs() < 5 * (400 * 0.25 * 0.75) ** 0.5).all()  # binomial, five standard deviations
    assert server.sample(0, among=[3, 1], count=9) == [1, 3]


def test_samples_of_one_round_by_other_names_are_other_samples(digits):
    _, server, _ = federation(digits)
    server.clients = list(range(1000))
    first, again, other = (set(server.sample(3, count=30, name=name)) for name in ("graph", "graph", "helpers"))
    assert first == again and len(first & other) < 15  # about one of 30, if they are drawn apart


def test_settings_are_read_as_their_fields_types():
    assert with_settings(Toy, dict(lr="1e-3", often="7", loud="true")) == Toy(lr=1e-3, often=7, loud=True)
    for texts, hint in ((dict(lr="x"), "lr=x is not a number"), (dict(often="1.5"), "whole"), (dict(mu="1"), "no field 'mu'")):
        with pytest.raises(Mistake, match=hint):
            with_settings(Toy, texts)
    assert Toy().settings()["greeting"] == dict(kind="greeting", word="hello")


@pytest.mark.parametrize("kind", ["ram", "file"])
def test_memory_reads_are_copies_and_equal_content_is_kept_once(kind, tmp_path):
    store = RamStore() if kind == "ram" else FileStore(tmp_path)
    memory = Memory(store)
    memory["w"] = torch.zeros(3)
    memory["w"].add_(1)
    assert memory["w"].tolist() == [0, 0, 0]
    memory["v"] = torch.zeros(3)
    assert memory.manifest["v"] == memory.manifest["w"]
    del memory["v"]
    assert dict(memory).keys() == {"w"} and memory.get("v") is None


def test_a_damaged_object_is_noticed_and_others_are_cleared(tmp_path):
    store = FileStore(tmp_path)
    kept, gone = store.put(b"abc"), store.put(b"xyz")
    store.keep_only([kept])
    assert [p.name for p in tmp_path.iterdir()] == [kept] and gone != kept
    (tmp_path / kept).write_bytes(b"abd")
    with pytest.raises(ValueError, match="damaged"):
        store.get(kept)


def test_every_name_of_the_table_is_a_method_that_knows_its_name():
    for name in methods.names():
        method = methods.find(name)
        assert issubclass(method, Method) and method.name == name and method.title and method.__doc__
        for f in core.parameters(method):
            assert f.metadata.get("text"), f"{name}.{f.name} has no words"
    assert methods.FedAvg is methods.find("fedavg")
    with pytest.raises(Mistake, match="did you mean 'fedavg'"):
        methods.find("fedavgg")
