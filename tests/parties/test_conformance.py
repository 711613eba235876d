"""Every method and every job between three real SuperNodes: the bits of `strict` in one process, on the same parties.

FedAvg, FedAnchor and MP-SSFL are part of `make test`, all others of `make test-parties`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from net import Net, bits
from trials import LABEL, STEPS, digits, digits_agreement

from grapevine import methods
from grapevine.jobs.settings import CleanSettings
from grapevine.learn.averages import MASKED

pytestmark = pytest.mark.timeout(1800)
QUICK = ("fedavg", "fedanchor", "mp-ssfl")
METHODS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.parties) for name in methods.TABLE]

# What keeps a method short, and changes nothing in how it works.
SMALL: dict[str, dict] = {
    "protofssl": dict(helpers=2), "xclp": dict(bits=256, epochs=2), "fixmatch": dict(epochs=2), "mixmatch": dict(epochs=2),
    "fedmatch": dict(interval=1), "fedsiam": dict(epochs=2), "fedrgd": dict(period=8),
    "fedanchor": dict(epochs=1, batch=50, pretrain=1), "semifl": dict(server_epochs=2), "tuor": dict(server_epochs=10),
    "fedcon": dict(epochs=1, hidden=32, server_epochs=2), "mp-ssfl": dict(server_epochs=5),
}  # fmt: skip
PARTIES = [digits("east", 0, 60), digits("north", 60, 90), digits("south", 150, 75)]
OWN = digits("server", 300, 120, known=1)


def train(name: str):
    """The agreement on a method, and the rows that the host then has."""
    server = "clients" not in methods.find(name).takes
    settings = dict(model="mlp" if name == "protofssl" else "linear", rounds=2, per_round=2,
                    set={field: str(value) for field, value in SMALL.get(name, {}).items()})  # fmt: skip
    return digits_agreement(method=name, settings=settings, server=server), OWN if server else None


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    with Net(tmp_path_factory.mktemp("net"), PARTIES, *train("fedavg")) as made:
        yield made


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_bits_of_strict(net, name):
    net.agree(*train(name))
    result = net.run()
    assert "accuracy" in result, f"{result}\n{net.logs()}"
    assert all(not line["missing"] for line in net.exchanges())
    assert bits(net.host / "results") == bits(net.strict()[0])


@pytest.mark.parametrize("name", ["fedavg", pytest.param("xclp", marks=pytest.mark.parties)])
def test_masked_averages_give_the_bits_of_strict(net, name):
    agreed, rows = train(name)
    net.agree(replace(agreed, settings=dict(agreed.settings, per_round=3, secure_average=True)), rows)
    log = net.folder / net.names[0] / "disclosure.jsonl"
    log.unlink(missing_ok=True)
    result = net.run()
    assert "accuracy" in result, f"{result}\n{net.logs()}"
    assert all(not line["missing"] for line in net.exchanges())
    assert bits(net.host / "results") == bits(net.strict()[0])
    left = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["reveals"] for line in left if line["step"] == "train"} == {MASKED}


@pytest.mark.parties
@pytest.mark.parametrize("method", ["xclp", "chorus"])
def test_the_label_job_gives_the_bits_of_strict(net, method):
    net.agree(digits_agreement(job="label", method="", quorum=3, settings=dict(LABEL, bits=256, method=method)))
    result = net.run()
    assert result.get("labelled") == net.names, f"{result}\n{net.logs()}"
    steps = [line["step"] for line in net.exchanges()]
    assert steps == STEPS if method == "xclp" else {"begin", "go_on", "receive"} <= set(steps)
    assert net.memories() == net.strict_memories()
    assert bits(net.host / "results") == bits(net.folder / "strict" / "results")


@pytest.mark.parties
def test_the_clean_job_gives_the_bits_of_strict(net):
    settings = CleanSettings(model="linear", epochs=10, tau=0.6, counts=True).agreed()
    net.agree(digits_agreement(job="clean", method="", settings=settings, server=True), OWN)
    result = net.run()
    assert result.get("cleaned") == net.names, f"{result}\n{net.logs()}"
    assert net.memories() == net.strict_memories()
    assert bits(net.host / "results") == bits(net.folder / "strict" / "results")
