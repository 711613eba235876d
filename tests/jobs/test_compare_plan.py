"""What a comparison is to run: methods with their fields, grids, and the bounds that the labels allow."""

from __future__ import annotations

import pytest
from comparisons import FLAGS, begun, grapevine

import grapevine as gv
from grapevine.jobs import compare_plan
from grapevine.jobs.settings import read_vary


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["fedprox", "--set", "nothing=1"], "none of the methods has a field 'nothing'"),
        (["fedprox", "--set", "fedprox.nothing=1"], "fedprox has no field 'nothing'"),
        (["fedprox", "--set", "xclp.alpha=1"], "xclp is not among the methods compared"),
        (["fedprox:mu=high"], "mu=high is not a number"),
        (["fedprox:nothing=1"], "has no field 'nothing'"),
        (["fedprox", "fedprox"], "fedprox is given twice"),
        (["fedproxx"], "did you mean 'fedprox'"),
        (["semifl"], "semifl cannot use labels at the clients"),
        (["fedprox", "--seeds", "0"], "seeds is 0, which is out of range: use 1 or more"),
        (["fedprox", "--workers", "0"], "workers is 0, which is out of range: use 1 or more"),
        (["fedprox", "--vary", "seed=1,2"], "--vary seed=… cannot be varied"),
        (["fedprox", "--vary", "clients"], "is not flag=a,b,c"),
        (["fedprox", "--vary", "clients=4,many"], "clients is many, which is not a whole number"),
        (["fedprox", "--vary", "clients=4,4"], "names a value twice"),
        (["fedprox", "--vary", "labels=clients:40,clients:x"], "is not valid"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(tmp_path, words, sentence):
    done = grapevine("compare", *words, "--data", "digits", *FLAGS, "--out", tmp_path / "c")
    assert done.exit_code == 2 and sentence in done.output, done.output
    assert not (tmp_path / "c").exists()


def test_methods_with_fields_and_objects_are_read():
    assert compare_plan.entry("xclp").settings == {}
    plain = compare_plan.entry("xclp:hamming=plain,alpha=0.9")
    assert (plain.spec, plain.settings, plain.folder) == (
        "xclp",
        {"hamming": "plain", "alpha": "0.9"},
        "xclp-hamming=plain,alpha=0.9",
    )
    assert compare_plan.entry(gv.methods.FedProx(mu=0.5)) == compare_plan.entry("fedprox:mu=0.5")
    assert compare_plan.entry(gv.methods.FedAvg()) == compare_plan.entry("fedavg")


def test_commas_in_vary_belong_to_values_where_they_do():
    assert read_vary(["labels=clients:100,clients:500"]) == {"labels": ["clients:100", "clients:500"]}
    assert read_vary(["labels=server:5,clients:all"]) == {"labels": ["server:5,clients:all"]}
    assert read_vary(["labels=server:5@0,2,5,server:9,clients:7,fraction:0.1"]) == {
        "labels": ["server:5@0,2,5", "server:9,clients:7", "fraction:0.1"]
    }
    assert read_vary(["partition=iid,dirichlet:0.1", "partition=shards:2", "per-round=2,4"]) == {
        "partition": ["iid", "dirichlet:0.1", "shards:2"], "per_round": ["2", "4"],
    }  # fmt: skip


def test_a_missing_bound_is_explained(tmp_path):
    def told(labels, asked, **flags):
        going = begun(tmp_path / f"{labels[:3]}{len(flags)}", asked, labels=labels, seeds=1, **flags)
        return going.data["cells"][0]["no_bounds"]

    assert told("clients:40", ["fedsem"]) == []
    assert told("clients:40", ["fedsem"], bounds=False) == ["no bound was asked for"]
    assert told("server:50", ["semifl"])[0].startswith("no client has labels")
    assert [words.split(",")[0] for words in told("all", ["fedprox"])] == ["every row is labelled", "all labels are true"]


def test_partly_labelled_data_of_ones_own_has_the_bounds_that_can_be_run(tmp_path):
    """A table with 40 of 100 labels was called fully labelled, and fedavg and supervised were left out."""
    lines = [f"{i % 7 - 3},{'ab'[i % 7 > 3] if i < 40 else ''}" for i in range(100)]
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["height,label", *lines]))

    def cell(labels, asked="fedsem"):
        return begun(tmp_path / labels[:3], [asked], data=str(own), labels=labels, seeds=1, validation=0).data["cells"][0]

    every, some = cell("all"), cell("clients:16")
    assert every["labelled"] == 32 and every["unlabelled"] == 60 and some["labelled"] == 16
    assert {line["label"]: line["bound"] for line in every["lines"]} == dict(
        alone="each client alone", fedavg="labelled rows only", fedsem=None
    )
    assert every["no_bounds"] == ["the true class of 60 rows is unknown, so the upper bound (supervised) cannot be run: "
                                  "it would see no more labels than fedavg"]  # fmt: skip
    assert some["lines"][-1]["bound"] == "all known labels" and some["no_bounds"] == [
        "the true class of 60 rows is unknown, so the upper bound (supervised) trains only on the rows whose class is known"
    ]


def test_bounds_follow_the_labels(tmp_path):
    def methods(labels, asked, **flags):
        going = begun(tmp_path / labels[:3], asked, labels=labels, seeds=1, **flags)
        return [(line["label"], bool(line["bound"])) for line in going.data["cells"][0]["lines"]]

    assert methods("server:50", ["semifl"]) == [("server-only", True), ("semifl", False), ("supervised", True)]
    assert methods("clients:40", ["supervised", "fedsem"])[-2:] == [("fedsem", False), ("supervised", True)]
    # With all labels, plain averaging is one of the methods, and there is nothing above it.
    assert methods("all", ["fedavg", "fedprox"]) == [("alone", True), ("fedavg", False), ("fedprox", False)]
