"""The driver: folders, resuming after a kill, choosing the best round, per-client numbers, and the saved model."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import safetensors.torch
import torch

import grapevine as gv
from grapevine.core import Method, Server, scores
from grapevine.core.errors import Mistake
from grapevine.core.store import FileStore, RamStore
from grapevine.graph.layout import leading
from grapevine.learn.networks import Network
from grapevine.run.driver import Task, drive
from grapevine.run.evaluate import AskClients
from grapevine.run.experiment import Experiment
from grapevine.run.folder import read_lines
from grapevine.run.model import Inputs, model_source
from grapevine.run.settings import RunSettings
from grapevine.run.simulate import Simulation


@pytest.fixture(scope="module")
def split(digits):
    return digits.split(clients=4, labels="clients:80")


def small(split, **settings):
    return Experiment(gv.methods.FedAvg(), split, **(dict(model="linear", rounds=3, per_round=2) | settings))


def test_a_run_leaves_what_the_interface_promises(split, tmp_path):
    run = small(split, out=tmp_path / "r").run()
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    promised = "job method settings data seed rounds accuracy accuracy_last balanced_accuracy per_client pseudo_label_accuracy "
    promised += "bytes_up bytes_down flops seconds peak_memory_mb version"
    assert set(promised.split()) <= result.keys() and result == json.loads(json.dumps(run.result))
    assert [line["round"] for line in read_lines(tmp_path / "r" / "history.jsonl")] == [0, 1, 2, 3]
    messages = read_lines(tmp_path / "r" / "messages.jsonl")
    assert sum(m["bytes"] for m in messages if m["direction"] == "up") == result["bytes_up"] > 0
    assert sum(m["bytes"] for m in messages if m["direction"] == "down") == result["bytes_down"] > 0
    again = gv.data.Split.load(tmp_path / "r" / "split.json", split.dataset)
    assert again.hash == split.hash == result["data"]["split"]


def test_the_saved_model_predicts_as_the_run_did(split, tmp_path):
    run = small(split, out=tmp_path / "r").run()
    X = split.dataset.x_test[:50]
    loaded = gv.load(tmp_path / "r")
    np.testing.assert_array_equal(loaded.predict_proba(X), run.model.predict_proba(X))
    guess = torch.tensor([split.dataset.classes.index(c) for c in gv.load(tmp_path / "r").predict(split.dataset.x_test)])
    assert float((guess == split.dataset.y_test).float().mean()) == pytest.approx(run.result["accuracy"], abs=1e-6)
    with pytest.raises(Mistake, match="do not fit this model"):
        loaded.predict(np.zeros((3, 5)))
    with pytest.raises(Mistake, match="no model.safetensors"):
        gv.load(tmp_path)


def test_a_model_with_a_field_that_its_method_no_longer_has_is_loaded(split, tmp_path):
    """A field of training was taken away, and models that had it could not be loaded."""
    run = small(split, out=tmp_path / "r").run()
    path = tmp_path / "r" / "model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["grapevine"])
    about["settings"]["gone"] = True
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, metadata=dict(grapevine=json.dumps(about)))
    X = split.dataset.x_test[:50]
    np.testing.assert_array_equal(gv.load(tmp_path / "r").predict_proba(X), run.model.predict_proba(X))


def test_a_model_shows_itself_in_a_line(split):
    """Printing one filled the screen with its tensors."""
    run = gv.train("fedavg", split, rounds=1, model="linear")
    assert repr(run.model) == "Model of fedavg, 650 weights: from 1×8×8 to 10 classes (0, 1, 2, 3, 4 and 5 more)"


def test_the_model_of_a_method_outside_the_table_is_loaded_with_its_file(split, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\nfrom grapevine.methods import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Own(FedAvg):\n    name = 'own'\n"
    )
    run = gv.train(gv.methods.find(f"{own}:Own")(), split, rounds=1, out=tmp_path / "r")
    X = split.dataset.x_test
    assert gv.load(tmp_path / "r", method=f"{own}:Own").predict(X) == run.predict(X)
    with pytest.raises(Mistake, match="'own' is not among Grapevine's methods"):
        gv.load(tmp_path / "r")
    with pytest.raises(Mistake, match="is 'fedprox', but the run was made with 'own'"):
        gv.load(tmp_path / "r", method="fedprox")


def test_per_client_accuracy_has_the_clients_mix_of_classes(digits):
    """By hand: a client with classes in shares m has accuracy Σ m_c · recall_c on the common test set."""
    split = digits.split(clients=4, partition="dirichlet:0.2", labels="all", seed=2)
    run = small(split).run()
    recall = scores.recalls(torch.tensor(run.result["confusion"]))
    for row in run.result["per_client"]:
        own = split.truth[split.parts[row["id"]].labelled]
        assert row["accuracy"] == pytest.approx(float(recall[own].mean()), abs=1e-5)
        assert row["n"] == len(own)


@dataclass(frozen=True)
class Scripted(Method):
    """A model that is best in round 2: to see which state the driver keeps."""

    name = "scripted"
    title = "scripted"

    def round(self, server, state):
        round = state["round"] + 1
        return dict(
            weights={name: w * 0 + (1 if round == 2 else -1) * TEACHER[name] for name, w in state["weights"].items()}, round=round
        )


TEACHER: dict = {}


def test_the_best_round_on_validation_is_kept_and_patience_stops(split):
    TEACHER.update(small(split, rounds=8, per_round=4).run().shared["weights"])
    run = Experiment(Scripted(), split, model="linear", rounds=6).run()
    scores = [line["validation_accuracy"] for line in run.history]
    assert run.result["best_round"] == 2 == scores.index(max(scores))
    assert run.result["accuracy"] > 0.5 > run.result["accuracy_last"]
    assert run.result["validation_rows"] == len(split.validation) > 0
    assert run.result["accuracy"] == run.history[2]["accuracy"] and run.result["accuracy_last"] == run.history[-1]["accuracy"]
    assert Experiment(Scripted(), split, model="linear", rounds=6, patience=2).run().result["rounds"] == 4


def test_existing_folders(split, tmp_path):
    out = tmp_path / "r"
    first = small(split, out=out).run(resume=True)  # a missing one starts
    with pytest.raises(Mistake, match="--resume"):
        small(split, out=out).run()
    assert small(split, out=out).run(resume=True).result == first.result  # a finished one is loaded
    with pytest.raises(Mistake, match="was started with rounds 3, not 4"):
        small(split, out=out, rounds=4).run(resume=True)
    with pytest.raises(Mistake, match="settings lr 0.1, not lr 0.2"):
        Experiment(gv.methods.FedAvg(lr=0.2), split, model="linear", rounds=3, per_round=2, out=out).run(resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(Mistake, match="no run of Grapevine"):
        small(split, out=tmp_path / "other").run(resume=True)


def test_a_folder_whose_process_lives_is_refused(split, tmp_path):
    refused = []

    def meanwhile(done, rounds, line):
        with pytest.raises(Mistake, match="another process"):
            small(split, out=tmp_path / "r").run(resume=True)
        refused.append(done)

    small(split, out=tmp_path / "r").run(progress=meanwhile)
    assert refused == [1, 2, 3]


@pytest.mark.parametrize("settings, hint", [(dict(rounds=0), "rounds is 0"), (dict(per_round=0), "per-round is 0"),
                                            (dict(workers=0), "workers is 0"), (dict(device="tpu"), "known device")])  # fmt: skip
def test_settings_that_cannot_work(split, settings, hint):
    with pytest.raises(Mistake, match=hint):
        small(split, **settings)


def test_a_method_says_which_labels_it_takes(digits):
    at_server = digits.split(clients=3, labels="server:50")
    with pytest.raises(Mistake, match="fedavg cannot use labels at the server: it takes --labels clients:1000"):
        small(at_server).run()
    at_clients = digits.split(clients=3, labels="clients:60")
    with pytest.raises(Mistake, match="server-only cannot use labels at the clients"):
        Experiment(gv.methods.ServerOnly(), at_clients, model="linear", rounds=1).run()


def test_a_network_without_a_last_layer_is_refused(digits):
    with pytest.raises(Mistake, match="needs a network with a last layer"):
        small(digits.split(clients=3, labels="all"), model="resnet8").run()


def test_no_validation_row_chooses_a_round_of_models_that_stay_at_clients(split):
    assert Experiment(gv.methods.Alone(), split, model="linear", rounds=1).run().result["validation_rows"] == 0


def test_any_module_with_features_and_head(split):
    module = torch.nn.Module()
    module.features = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    module.head = torch.nn.Linear(16, 10)
    module.forward = lambda x: module.head(module.features(x))
    runs = [small(split, model=module, workers=workers).run() for workers in (1, 2)]
    assert runs[0].history == runs[1].history and isinstance(runs[0].model.network, Network)


def test_natural_clients_are_judged_on_their_own_rows(digits):
    groups = torch.arange(len(digits.x)) % 3
    natural = replace(digits, group=groups, group_test=torch.arange(len(digits.x_test)) % 3, group_names=("a", "b", "c"))
    split = natural.split(clients=3, partition="natural", labels="all")
    run = small(split).run()
    guess = torch.tensor([digits.classes.index(c) for c in run.predict(digits.x_test)])
    for row in run.result["per_client"]:
        own = natural.group_test == split.groups[row["id"]]
        assert row["accuracy"] == pytest.approx(float((guess[own] == digits.y_test[own]).float().mean()), abs=1e-5)


SCRIPT = """
import sys, grapevine as gv
from grapevine.core import Server
from grapevine.core.store import FileStore, RamStore
from grapevine.run import driver
from grapevine.run.driver import Task, drive
from grapevine.run.evaluate import AskClients
from grapevine.run.model import Inputs, model_source
from grapevine.run.settings import RunSettings
from grapevine.run.simulate import Simulation
driver.CHECKPOINT_SECONDS = -1.0
split = gv.data.load("digits").split(clients=6, labels="clients:120")
gv.train(gv.methods.Scaffold(), split, model="mlp", rounds=15, per_round=3, out=sys.argv[1], resume=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_killed_at_any_moment_and_resumed_is_bit_identical(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([sys.executable, "-c", SCRIPT, whole], check=True, timeout=120)
    kills = 0
    for wait_for in (0, 4, 9):  # lines of the history to wait for before the kill
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, cut])
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            lines = (cut / "history.jsonl").read_bytes().count(b"\n") if (cut / "history.jsonl").exists() else -1
            if lines >= wait_for:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        process.wait(60)
    subprocess.run([sys.executable, "-c", SCRIPT, cut], check=True, timeout=120)
    assert kills >= 2
    for name in ("history.jsonl", "messages.jsonl", "model.safetensors", "split.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, cut)]
    for result in results:
        result.pop("seconds"), result.pop("peak_memory_mb")
    assert results[0] == results[1]
    assert not list(cut.rglob(".writing-*"))


# ---------------------------------------------------------------- what the report draws


def test_both_heads_are_judged_and_nothing_else_changes(digits, monkeypatch):
    """FedAnchor's history tells of the classification head; what it costs to ask it is not counted."""
    method = gv.methods.FedAnchor(epochs=1, pretrain=2, threshold=-1.0, batch=200, server_batch=30)
    split = digits.split(clients=3, labels="server:60", seed=1)
    words = dict(model="mlp", rounds=2, per_round=2, seed=1, device="cpu")
    told, strict = (gv.train(method, split, mode=mode, **words) for mode in ("fast", "strict"))
    assert told.history == strict.history and told.result["flops"] == strict.result["flops"]
    for line in told.history[1:]:
        assert line["pseudo_labels_used_classification"] == line["pseudo_labels_used"] == line["pseudo_labels_of"] > 0
        assert 0 <= line["pseudo_label_accuracy_classification"] <= 1
    monkeypatch.setattr(gv.methods.FedAnchor, "classified", lambda self, model, rows, classes: torch.full((len(rows),), 3))
    fixed = gv.train(method, split, **words)
    assert fixed.result["flops"] == told.result["flops"] and fixed.result["accuracy"] == told.result["accuracy"]
    chosen = [split.client_truth(i)[1] for i in range(3)]  # the share of class 3, in one of the pairs of clients
    pairs = [torch.cat([chosen[a], chosen[b]]) for a, b in ((0, 1), (0, 2), (1, 2))]
    shares = [round(float((pair == 3).float().mean()), 6) for pair in pairs]
    assert all(line["pseudo_label_accuracy_classification"] in shares for line in fixed.history[1:])


def test_pseudo_labels_in_the_history(digits):
    """Right of those used and of all, and how sure: of none used no share is right, rather than 0 %."""
    split, words = digits.split(clients=2, labels="server:60", seed=1), dict(model="mlp", rounds=1, seed=1, device="cpu")
    nothing, everything = (
        gv.train(gv.methods.SemiFL(epochs=1, pretrain=1, threshold=threshold), split, **words).history[-1]
        for threshold in (1.0, 0.0)
    )
    assert nothing["pseudo_labels_used"] == 0 and nothing["pseudo_label_accuracy"] is None
    assert nothing["pseudo_labels_confidence"] is None
    assert everything["pseudo_labels_used"] == everything["pseudo_labels_of"] == nothing["pseudo_labels_of"]
    assert (
        everything["pseudo_label_accuracy"] == everything["pseudo_labels_right_of_all"] == nothing["pseudo_labels_right_of_all"]
    )
    assert 0.1 <= everything["pseudo_labels_confidence"] <= 1
    assert 0 < nothing["flops"] < everything["flops"]


def test_the_latent_space_is_kept_at_the_rounds_asked_for(digits, tmp_path):
    split = digits.split(clients=3, labels="clients:60", seed=1)
    words = dict(model="mlp", rounds=8, per_round=2, seed=1, device="cpu", latent=4)
    run = gv.train(gv.methods.FedAvg(epochs=1), split, out=tmp_path / "run", **words)
    names = sorted(path.name for path in (tmp_path / "run" / "latent").iterdir())
    assert names == ["kept.safetensors", "round-000001.safetensors", "round-000002.safetensors", "round-000004.safetensors"]
    kept = safetensors.torch.load_file(tmp_path / "run" / "latent" / "kept.safetensors")
    rows = split.test_rows()
    assert kept["z"].shape == (len(rows), 50) and torch.equal(kept["y"], rows.y)  # digits has fewer than 500 test rows
    probabilities = torch.from_numpy(run.model.predict_proba(digits.x_test))
    assert torch.equal(kept["guess"], probabilities.argmax(1))
    features = run.model.method.latent(run.model.network.eval(), rows.inputs()).detach()
    near, far = torch.cdist(kept["z"], kept["z"]), torch.cdist(features, features)
    assert (near - far).abs().max() < 0.02 * far.max()  # the leading components hold nearly all of the distances
    gv.train(gv.methods.FedAvg(epochs=1), split, out=tmp_path / "none", **dict(words, latent=0))
    assert not (tmp_path / "none" / "latent").exists()
    for name in ("history.jsonl", "model.safetensors"):
        assert (tmp_path / "none" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@pytest.mark.parametrize("shape", [(40, 8), (40, 20), (20, 60)])
def test_leading_components_are_those_of_a_singular_value_decomposition(shape):
    z = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found, centred = leading(z, 10), (z - z.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    wanted = u[:, :10] * s[:10]
    torch.testing.assert_close(found.double() @ found.double().T, wanted @ wanted.T, rtol=1e-4, atol=1e-4)


def test_a_refused_run_leaves_no_folder_and_one_that_began_keeps_it(split, tmp_path):
    with pytest.raises(Mistake, match="groups=99 is more"):
        gv.train(gv.methods.FedRGD(groups=99), split, rounds=1, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(Mistake, match="not finite"):
        gv.train(gv.methods.FedAvg(lr=1e30), split, rounds=3, out=tmp_path / "r")
    gv.train(gv.methods.FedAvg(), split, rounds=1, out=tmp_path / "kept")
    with pytest.raises(Mistake, match="started with settings"):
        gv.train(gv.methods.FedAvg(lr=0.3), split, rounds=1, out=tmp_path / "kept", resume=True)
    assert (tmp_path / "kept" / "result.json").exists()


def test_the_model_of_a_method_with_a_protocol_loads(split, tmp_path):
    method = gv.core.with_settings(gv.methods.find("xclp"), dict(hamming="plain", bits="64"))
    run = gv.train(method, split, rounds=2, out=tmp_path / "r")
    assert gv.load(tmp_path / "r").predict(split.dataset.x_test) == run.predict(split.dataset.x_test)


# ---------------------------------------------------------------- clients that hold rows out


def held_out(digits, parts=3):
    """Clients with validation and test rows of their own, as real parties have them."""
    split = digits.split(clients=parts, labels="clients:90")
    clients = {}
    for i in range(parts):
        data = split.client(i)
        every = torch.arange(len(data.labelled))
        clients[f"p{i}"] = replace(data, labelled=data.labelled.take(every[:18]), test=data.labelled.take(every[18:24]),
                                   validation=data.labelled.take(every[24:]))  # fmt: skip
    return clients


def ask_clients(digits, tmp_path=None, method=None, **settings):
    method = method or gv.methods.FedAvg(epochs=1)
    settings = RunSettings(model="linear", rounds=4, seed=1, evaluate_every=1, **settings)
    models = model_source(method, "linear", (1, 8, 8), 10)
    store = FileStore(tmp_path / "checkpoint" / "objects") if tmp_path else RamStore()
    simulation = Simulation(method, held_out(digits), models, 1, store=store)
    server = Server(method, simulation.data, simulation, models, digits.classes, 1, rounds=4)
    inputs = Inputs(digits.classes, digits.scale, (1, 8, 8))
    about = dict(job="train", method=method.name, settings=method.settings(), seed=1)
    return Task(method, server, AskClients(method, server), settings, about, models, inputs, tmp_path, store)


def test_clients_that_are_asked_choose_the_round_and_report_its_accuracy(digits):
    """Accuracy is of the round that was best on validation, first of equals; neither the first round's nor the last's."""
    run = drive(ask_clients(digits))
    validation = [line["validation_accuracy"] for line in run.history]
    best = validation.index(max(validation))
    assert 0 < best and run.result["best_round"] == best
    assert run.result["accuracy"] == run.history[best]["accuracy"] != run.history[0]["accuracy"]
    assert run.result["accuracy_last"] == run.history[-1]["accuracy"]
    counts = torch.tensor(run.history[best]["confusion"])
    assert counts.sum() == 18 and run.result["accuracy"] == pytest.approx(float(counts.diagonal().sum()) / 18, abs=1e-6)
    assert [row["n"] for row in run.result["per_client"]] == [6, 6, 6] and run.result["validation_rows"] == 18


def test_an_evaluation_of_an_older_version_may_be_the_best(digits):
    """Its line does not say how many rows chose the round, and the resumed run stopped at its end."""
    evaluator = ask_clients(digits).evaluator
    last = evaluator.score({**evaluator.method.shared(evaluator.method.setup(evaluator.server))}, 0)
    best = {name: value for name, value in last.items() if name != "validation_rows"}
    assert evaluator.final({}, last, last)["validation_rows"] == 18 and evaluator.final({}, best, last)["validation_rows"] is None


class Told:
    """An evaluator that says what it is told to, round by round."""

    def __init__(self, validation):
        self.validation = validation

    def score(self, shared, round):
        return dict(validation_accuracy=self.validation[round], accuracy=self.validation[round] / 2)

    def final(self, shared, best, last):
        return dict(accuracy=best["accuracy"], accuracy_last=last["accuracy"])

    def some_rows(self):
        return None


def test_of_equally_good_rounds_the_first_is_kept(digits):
    task = replace(ask_clients(digits), evaluator=Told([0.1, 0.5, 0.5, 0.4, 0.5]))
    run = drive(task)
    assert run.result["best_round"] == 1 and run.result["accuracy"] == 0.25 and run.result["accuracy_last"] == 0.25


@pytest.mark.parametrize(("validation", "kept"), [([1.0] * 5, 1), ([0.5, 0.2, 0.5, 0.5, 0.1], 2), ([0.5, 0.4, 0.3, 0.2, 0.1], 0)])
def test_the_untrained_model_is_kept_only_if_it_is_better(digits, validation, kept):
    """Two validation rows that every round got right kept the model of round 0: 60 % where all trained rounds had 100 %."""
    run = drive(replace(ask_clients(digits), evaluator=Told(validation)))
    assert run.result["best_round"] == kept


def test_patience_counts_from_the_round_that_is_kept(digits):
    run = drive(replace(ask_clients(digits, patience=2), evaluator=Told([0.5, 0.5, 0.1, 0.5, 0.9])))
    assert run.result["best_round"] == 1 and run.result["rounds"] == 3


def test_a_wrong_confusion_matrix_is_left_out_of_the_accuracy(digits):
    task = ask_clients(digits)
    reply = dict(confusion=torch.zeros(10, 10, dtype=torch.int64))
    reply["confusion"][2, 2] = 3
    odd = [torch.zeros(9, 9, dtype=torch.int64), torch.full((10, 10), -1), torch.zeros(10, 10)]
    for wrong in odd:
        task.server.ask = lambda step, **told: dict(p0=reply, p1=dict(confusion=wrong))  # noqa: B023
        line = task.evaluator.score({}, 0)
        assert line["accuracy"] == 1 and [row["id"] for row in line["per_client"]] == ["p0"]
