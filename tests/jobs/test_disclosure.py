"""What the label job discloses: the log of every field that left, and what a dry run says beforehand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from label_job import blobs, label

from grapevine.jobs import disclosure
from grapevine.jobs import label as labelling
from grapevine.jobs.reading import Party
from grapevine.jobs.settings import LabelSettings


def test_the_disclosure_log_has_every_field_that_left(tmp_path):
    result = label(blobs(), out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "party-1" / "disclosure.jsonl").read_text().splitlines()]
    assert all(list(line) == ["time", "step", "peer", "field", "type", "shape", "bytes", "hash", "reveals"] for line in lines)
    fields = {(line["step"], line["field"]) for line in lines}
    told = {("keys", "offer"), ("share", "own"), ("share", "labelled"), ("share", "spread"), ("receive", "hits")}
    assert told <= fields
    sent = sum(line["bytes"] for party in result for line in party.disclosure)
    messages = sum(line["messages"] for line in result.messages if line["direction"] == "up")
    assert result.bytes_up == sent + 13 * messages  # frame and the dict around the fields: see docs/wire-format.md
    own = next(line for line in lines if line["field"] == "own")
    assert own["shape"] == [20, 20] and own["type"] == "uint16" and len(own["hash"]) == 64


@pytest.mark.parametrize(
    "secure", ["mlwe", "psm", "plain", *(pytest.param(p, marks=pytest.mark.slow) for p in ("ot", "paillier"))]
)
def test_everything_a_protocol_sends_has_a_word_on_what_it_reveals(secure):
    if secure == "paillier":
        pytest.importorskip("gmpy2")
    result = label(blobs((8, 9, 10), labelled=3), secure=secure, bits=16, neighbours=3)
    lines = [line for party in result for line in party.disclosure]
    assert all(line["reveals"] for line in lines)
    told = {line["field"]: line["reveals"] for line in lines if line["step"] in ("keys", "share", "meet")}
    assert told["prelude"].startswith("public values" if secure == "ot" else "nothing: empty")
    assert told["first"].startswith({"psm": "alone nothing", "plain": "EVERYTHING"}.get(secure, "nothing"))


def test_moments_reveal_what_is_summed():
    def told(**settings):
        lines = label(blobs(), **settings)[0].disclosure
        return next((line["reveals"] for line in lines if (line["step"], line["field"]) == ("pool", "share")), "")

    assert told(preset="paper").endswith("open the pooled counts, means and variances of the features")
    assert told(preset="paper", scale="none") == ""
    assert told(scale="none").endswith("open the number of labels of each class")


@pytest.mark.parametrize(("secure", "bits"), [("plain", 512), ("psm", 512), ("mlwe", 128)])
def test_a_dry_run_says_the_bytes_that_a_run_sends(secure, bits):
    parties = blobs((40, 30, 50))
    settings = dict(secure=secure, bits=bits, baselines=True)
    plan, result = label(parties, dry_run=True, **settings), label(parties, **settings)
    said = sum(line["bytes"] for lines in plan["parties"].values() for line in lines)
    assert list(plan["parties"]) == [p.name for p in result]
    assert said == pytest.approx(result.bytes_up, rel=0.05)
    assert plan["minutes"] < 1 and plan["advice"] is None and 100 < plan["memory_mb"] < 2000


def test_a_long_job_is_told_what_takes_less():
    X = np.broadcast_to(np.zeros(4), (20000, 4))
    parties = [Party(f"p{i}", X, ["a"] + [None] * 19999, []) for i in range(12)]

    def advice(secure, bits=4096, parties=parties, groups=1):
        method = labelling.make_method(LabelSettings(method="xclp", secure=secure, bits=bits, groups=groups, preset="paper"))
        return disclosure.plan(parties, method)

    long = advice("mlwe")
    groups, minutes = map(int, re.search(r"--groups (\d+), about (\d+) minutes", long["advice"]).groups())
    assert long["minutes"] > 60 and groups <= 12 // 3
    followed = advice("mlwe", groups=groups)
    assert followed["advice"] is None and round(followed["minutes"]) == minutes
    assert "--bits 1024" in long["advice"] and advice("mlwe", bits=1024)["minutes"] < 0.7 * long["minutes"]
    slow = advice("ot", parties=parties[:3])["advice"]
    assert "--secure psm" in slow and "--groups" not in slow  # three parties make one group


def test_what_is_learnt_is_said_by_the_settings():
    parties = blobs()
    said = " ".join(label(parties, dry_run=True)["learns"])
    assert "Hamming distances between all rows" in said and "pooled mean" in said
    assert "pooled mean" not in " ".join(label(parties, dry_run=True, scale="none")["learns"])
    assert "how many labels each class has" in said and "covariance" not in said
    both = " ".join(label(parties, dry_run=True, baselines=True)["learns"])
    assert "each class's mean and covariance" in both
    assert "for fedcof, the server learns each party's label counts and class sums" in both
    assert "how many labels each class has" not in " ".join(label(parties, dry_run=True, preset="paper")["learns"])
    assert "each thereby learns the other's" in " ".join(label(parties[:2], dry_run=True)["learns"])
    assert any("2 parties" in note for note in label(parties[:2], dry_run=True)["warnings"])
