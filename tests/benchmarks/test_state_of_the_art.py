"""Which runs of the table of all methods count, and what is said of where label-then-train stands."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module("state_of_the_art")
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_run_counts_until_its_method_does_something_else(script, tmp_path, monkeypatch):
    """Lines of two methods stayed on the page after their rules had changed."""
    held = json.loads(script.BEHAVIOUR.read_text())
    monkeypatch.setattr(script, "BEHAVIOUR", tmp_path / "fingerprints.json")
    script.BEHAVIOUR.write_text(json.dumps(held))
    lines = ("sage", "fedavg", script.LABELLED)
    runs = {line: [dict(does=script.behaviour(line))] for line in lines}
    assert len({runs[line][0]["does"] for line in lines}) == 3
    script.BEHAVIOUR.write_text(json.dumps(held | {"fedavg": dict(held["fedavg"], history="other")}))
    assert [len(script.current(line, runs[line])) for line in lines] == [1, 0, 0]
    (label,) = [key for key in held if key.startswith("label") and "plain" in key]
    script.BEHAVIOUR.write_text(json.dumps(held | {label: dict(held[label], labels="other")}))
    assert [len(script.current(line, runs[line])) for line in lines] == [1, 1, 0]


def test_where_label_then_train_stands_counts_seeds_that_both_have(script):
    """b is above in both of its seeds, c level; d has one seed, and what knows the true labels is no rival."""
    scores = {
        script.LABELLED: (0.5, 0.5, 0.6),
        "b": (0.7, 0.71),
        "c": (0.5, 0.52, 0.57),
        "d": (0.9,),
        "supervised": (0.9, 0.9, 0.9),
    }
    place = next(iter(script.PLACES))
    cells = {line: {place: [dict(accuracy=each) for each in runs]} for line, runs in scores.items()}
    told = script.standing(dict(spaces=dict(features=cells)))
    assert f"| features; {place} | 53.3 | `b` 70.5 | `c` 53.0 | 0 of 2 |" in told
