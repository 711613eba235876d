"""docs/papers.md: every command of the papers' tables parses, names what exists, and runs at toy size.

A command is read as the command line reads it. Its labels, partition, model and normalisation are made or parsed at full scale;
then every method of it, with its fields, runs on the digits, for one round (two where there are two stages). Methods and fields
are those of the page; the data, the number of clients, rounds and passes are not.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch

import grapevine as gv
from grapevine.cli.main import main
from grapevine.core import Method, parameters, with_settings
from grapevine.data import catalogue
from grapevine.data.foreign import parse_irrelevant
from grapevine.data.labels import parse_labels
from grapevine.data.partition import parse_partition
from grapevine.jobs import label as labelling
from grapevine.jobs.compare_plan import Plan, check_entries
from grapevine.jobs.settings import JOBS, Settings
from grapevine.learn import networks as models

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
COMMANDS = [line[2:] for line in PAGE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines() if line.startswith("$ ")]
SHAPES = {"cifar10": 10, "cifar100": 100, "svhn": 10, "stl10": 10, "mini-imagenet": 100, "fed-isic2019": 8}  # pictures in colour
ONCE = ("epochs", "server_epochs", "steps_per_round", "pretrain", "period")  # passes and steps, for speed
TOY_LABELS = {"clients": "clients:60", "server": "server:60", "both": "server:60,clients:all"}


def parsed(command: str) -> tuple[str, dict]:
    """The name of the command and its flags, as click hands them over."""
    program, name, *words = shlex.split(command)
    assert program == "grapevine"
    context = main.commands[name].make_context(name, words)
    return name, context.params


def settings_of(name: str, flags: dict) -> Settings:
    """The job's settings, as the command makes them."""
    return JOBS[name].from_dict({word: flags[word] for word in JOBS[name].names() if word in flags})


def cells_of(name: str, flags: dict) -> list[Settings]:
    """The settings of each cell of the grid."""
    return [cell.settings for cell in plan_of(flags).cells] if name == "compare" else [settings_of(name, flags)]


def methods_of(name: str, flags: dict) -> list[Method]:
    """Each method with its fields, bounds that --set speaks of left to the comparison's own check."""
    if name == "train":
        return [with_settings(gv.methods.find(flags["method"]), settings_of(name, flags).set)]
    plan = plan_of(flags)
    return [with_settings(entry.method, entry.fields(plan.settings.set)) for entry in plan.entries]


def plan_of(flags: dict) -> Plan:
    return Plan.make(flags["methods"], settings_of("compare", flags), Path(flags["out"]))


def where(labels: str) -> str:
    setting = parse_labels(labels)
    return "both" if setting.at_server and setting.at_clients else "server" if setting.at_server else "clients"


def toy_runs() -> dict[tuple, str]:
    """Every method with fields, once for each place of labels, flips and foreign rows: and the command that it comes from."""
    found: dict[tuple, str] = {}
    for command in COMMANDS:
        name, flags = parsed(command)
        if name == "label":
            continue
        for cell in cells_of(name, flags):
            for method in methods_of(name, flags):
                found.setdefault((method, where(cell.labels), bool(cell.flip), bool(cell.irrelevant)), command)
    return found


RUNS = toy_runs()
SAMPLE = {cls: run for run in reversed(RUNS) if (cls := run[0].name)}  # the first of each method


# ---------------------------------------------------------------- the page


def test_every_table_and_figure_is_there():
    """The papers have 6, 9, 4 and 4 tables, and 0, 5, 9 and 0 figures: each is named in its paper's part of the page."""
    text = re.sub(r"(Tables?|Figures?) (\d) (to|and) (\d)", spelled, PAGE.read_text(encoding="utf-8"))
    parts = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for paper, tables, figures in (("XCLP", 6, 0), ("ProtoFSSL", 9, 5), ("FedAnchor", 4, 9), ("MP-SSFL", 4, 0)):
        said = {(kind, int(n)) for kind, n in re.findall(r"(Table|Figure)s? (\d)", parts[paper])}
        wanted = {("Table", n + 1) for n in range(tables)} | {("Figure", n + 1) for n in range(figures)}
        assert said == wanted, f"{paper}: {sorted(wanted ^ said)}"


def spelled(m: re.Match) -> str:
    """ "Figures 6 to 8" as "Figure 6, Figure 7, Figure 8"."""
    kind, first, last = m[1].rstrip("s"), int(m[2]), int(m[4])
    return ", ".join(f"{kind} {n}" for n in (range(first, last + 1) if m[3] == "to" else (first, last)))


def test_no_two_commands_write_to_the_same_folder():
    folders = Counter(parsed(command)[1]["out"] for command in COMMANDS)
    assert len(folders) > 25 and folders.most_common(1)[0][1] == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: re.search(r"--out (\S+)", c)[1])
def test_command_names_what_exists(command):
    name, flags = parsed(command)
    if name == "label":
        labelling.make_method(settings_of(name, flags))
        return
    if name == "compare":
        check_entries(plan_of(flags).entries, plan_of(flags).settings.set)
    known = {row["name"] for row in catalogue.names(None)}
    for cell in cells_of(name, flags):
        assert cell.data in known
        parse_partition(cell.partition or "iid")
        takes = [method.takes for method in methods_of(name, flags) if not method.reveal]
        assert all(where(cell.labels) in each for each in takes), f"{cell.labels} is refused"
        if cell.irrelevant:
            assert parse_irrelevant(cell.irrelevant)[0] in known
        with torch.device("meta"):
            shape, classes = ((3, 32, 32), SHAPES[cell.data]) if cell.data in SHAPES else ((1, 28, 28), 62)
            models.build(cell.model, shape, classes, cell.norm)


def test_a_flag_that_does_not_exist_is_noticed():
    with pytest.raises(click.UsageError):
        parsed("grapevine compare fedavg --data digits --rows 200 --out x")


# ---------------------------------------------------------------- toy size


@pytest.fixture(scope="module")
def toy_split():
    """The digits for four clients, by where labels are and what is wrong with them."""
    digits, made = gv.data.load("digits"), {}

    def split(place: str, flip: bool, irrelevant: bool):
        key = (place, flip, irrelevant)
        if key not in made:
            extra = dict(irrelevant="digits:0.25", foreign=digits) if irrelevant else {}
            made[key] = digits.split(clients=4, labels=TOY_LABELS[place], flip=0.25 if flip else 0.0, **extra)
        return made[key]

    return split


def run_toy(toy_split, run: tuple) -> None:
    method, place, flip, irrelevant = run
    fields = {f.name: getattr(method, f.name) for f in parameters(type(method))}
    fast = {name: 1 for name in ONCE if fields.get(name, 0) > 1 and f"{name}=" not in RUNS[run]}
    fast |= dict(helpers=2) if fields.get("helpers", 0) > 3 else {}  # FedMatch has at most three others here
    split = toy_split(place, flip, irrelevant)
    done = gv.train(replace(method, **fast), split, rounds=2 if "warmup" in fields else 1, model="mlp")
    assert done.result["accuracy"] > 0
    assert done.result["bytes_up"] > 0


@pytest.mark.parametrize("run", SAMPLE.values(), ids=list(SAMPLE))
def test_every_method_of_the_page_runs_at_toy_size(toy_split, run):
    run_toy(toy_split, run)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0].name}-{list(RUNS).index(run)}")
def test_every_variant_of_the_page_runs_at_toy_size(toy_split, run):
    run_toy(toy_split, run)
