"""Tables of what leaves a party are the words of the steps (a failing test prints the right one); figures are measured ones."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from grapevine import methods
from grapevine.methods.chorus import Chorus
from grapevine.methods.gaussian import Gaussian
from grapevine.methods.label import Label
from grapevine.methods.mp_ssfl import Clean
from grapevine.methods.xclp import CrossClientPropagation

LABEL = Label(CrossClientPropagation(preset="code"))  # the label job's default
PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"
SENT = PAGE.with_name("disclosures.md")


def words(method) -> list[tuple[str, str, str]]:
    """Step, field and what it tells, of everything that a party may answer with."""
    return [(step, field, method.reveals(step, field)) for step, bound in method.steps().items() for field in bound.reveals]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


def label() -> str:
    order = ["keys", "meet", "pool", "moments", "sums.again", "share", "xclp.hamming.evaluate", "xclp.hamming.open",
             "xclp.spread.contribute", "xclp.spread.again", "receive",
             "gaussian.keys", "gaussian.meet", "gaussian.pool", "gaussian.sums.again", "gaussian.means"]  # fmt: skip
    baseline = [(f"gaussian.{step}", field, told) for step, field, told in words(Gaussian()) if step != "evaluate"]
    rows = [(order.index(step), f"`{step}`", f"`{field}`", told) for step, field, told in words(LABEL) + baseline]
    return table(("step", "field", "what it tells"), [row[1:] for row in sorted(rows, key=lambda row: row[0])])


def chorus() -> str:
    """Beside what it has in common with XCLP's job, which is in the table before."""
    common = {told for _, _, told in words(LABEL)}
    rows = [(f"`{step}`", f"`{field}`", told) for step, field, told in words(Chorus()) if told not in common]
    return table(("step", "field", "what it tells"), rows)


def training() -> str:
    """By field and words, the methods that send it: of the defaults, those of Algorithm 1 being in the table above."""
    sent: dict[tuple[str, str], list[str]] = {}
    above = {told for _, _, told in words(LABEL)}
    for method in [*(methods.find(name)() for name in methods.TABLE), Clean()]:
        for _, field, told in words(method):
            if told not in above and method.name not in (names := sent.setdefault((field, told), [])):
                names.append(method.name)
    every = len(methods.TABLE) + 1
    rows = [(f"`{field}`", told, "all" if len(names) == every else ", ".join(f"`{name}`" for name in names))
            for (field, told), names in sent.items()]  # fmt: skip
    return table(("field", "what it tells", "sent by"), rows)


@pytest.mark.parametrize("made", [label, chorus, training], ids=lambda made: made.__name__)
def test_the_tables_of_what_leaves_are_current(made):
    found = re.search(rf"^<!-- reveals: {made.__name__} -->\n\n((?:\|.*\n)+)", SENT.read_text(encoding="utf-8"), re.M)
    assert found and found[1] == made(), made()


# ---------------------------------------------------------------- figures


@pytest.fixture(scope="module")
def attacks():
    """The script that writes the figures, and what it found."""
    folder = PAGE.parents[1] / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        script = importlib.import_module("attacks")
    finally:
        sys.path.remove(str(folder))
    return script, json.loads((folder / "attacks.json").read_text(encoding="utf-8"))


def test_the_figures_are_those_of_the_script(attacks, tmp_path):
    """Also which methods can have masked averages: that table is made from the code."""
    script, result = attacks
    (tmp_path / "docs").mkdir()
    copy = tmp_path / "docs" / PAGE.name
    copy.write_bytes(PAGE.read_bytes())
    script.document(result, tmp_path)
    assert copy.read_bytes() == PAGE.read_bytes(), "python benchmarks/attacks.py --pages writes the tables anew"


def test_what_the_table_calls_nothing_is_near_chance_and_what_is_bold_is_a_leak(attacks):
    script, result = attacks
    for job, attacker, learned, where, test in script.TABLE:
        one = script.found(result, where)
        assert (PAGE.parents[1] / test).exists()
        if "nothing" in learned or "group" in learned:
            assert one["right"] <= one["prior"] + 0.05, (job, attacker)
        elif "**" in learned:
            assert one["right"] > one["prior"] + 0.25, (job, attacker)
        else:
            assert "a little" in learned and one["right"] <= 0.7, (job, attacker)
