"""What a comparison is to run: methods with their fields, a cell for each combination of varied settings, splits and bounds."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from grapevine.core import Method, SubProtocol, parameters, with_settings
from grapevine.core.errors import Mistake
from grapevine.core.words import many
from grapevine.jobs import compare_budget
from grapevine.jobs.compare_processes import Job
from grapevine.jobs.settings import CompareSettings, DataSettings
from grapevine.jobs.splits import load_data, make_split, sources
from grapevine.methods import find, names
from grapevine.run.experiment import unusable

BOUNDS = ("alone", "server-only", "fedavg", "supervised")


def slug(words: str) -> str:
    """Words as the name of a folder, on every system."""
    return re.sub(r"[^\w.=,~@+-]+", "-", words)


# ---------------------------------------------------------------- methods


@dataclass(frozen=True)
class Entry:
    """A line of the table: a method with its fields. `bound` says why it is there when nobody asked for it."""

    label: str
    spec: str
    settings: dict[str, str]
    bound: str | None = None

    @property
    def folder(self) -> str:
        return slug(self.label.replace(":", "-", 1))

    @property
    def method(self) -> type[Method]:
        return find(self.spec)

    def fields(self, common: Mapping[str, str]) -> dict[str, str]:
        """Those of --set for all, then those for this method, then the entry's own."""
        known = {f.name for f in parameters(self.method)}
        general = {name: value for name, value in common.items() if "." not in name and name in known}
        own = {name.rpartition(".")[2]: value for name, value in common.items() if name.rpartition(".")[0] == self.method.name}
        return general | own | self.settings


def entry(spec: str | Method) -> Entry:
    """A METHOD argument: a name, a name with fields, `path/to/file.py:Class`, or an object."""
    if not isinstance(spec, str):
        return _entry_of(spec)
    found = re.fullmatch(r"(.+?):(\w+=.*)", spec)
    name, words = (found[1], found[2]) if found else (spec, "")
    settings = {}
    for piece in re.split(r",(?=\w+=)", words) if words else ():
        field_name, _, value = piece.partition("=")
        settings[field_name] = value
    return Entry(_label(find(name).name, settings), name, settings)


def _entry_of(method: Method) -> Entry:
    """A method object as its name and the fields that are not at their defaults, which a process can be told."""
    values = {f.name: getattr(method, f.name) for f in parameters(type(method)) if getattr(method, f.name) != f.default}
    settings = {name: value.name if isinstance(value, SubProtocol) else str(value) for name, value in values.items()}
    if method.name not in names() or with_settings(find(method.name), settings) != method:
        raise Mistake(
            f"{method!r} cannot be passed to another process: name it as text, such as 'fedavg:lr=0.05' or 'file.py:Class'."
        )
    return Entry(_label(method.name, settings), method.name, settings)


def _label(name: str, settings: Mapping[str, str]) -> str:
    return f"{name}:{','.join(f'{k}={v}' for k, v in settings.items())}" if settings else name


def check_entries(entries: Sequence[Entry], common: Mapping[str, str]) -> None:
    """Fields that nobody has, values that cannot be read, a method named twice: before the data is read."""
    for e in entries:
        if e.label in BOUNDS and e.spec != e.label:
            raise Mistake(f"{e.spec} is called {e.label}, which is the name of a bound: give it another name.")
    everybody = [*entries, *(Entry(name, name, {}) for name in BOUNDS)]
    known = sorted({e.method.name for e in everybody})
    for key, value in common.items():
        whose, dot, name = key.rpartition(".")
        if dot and whose not in known:
            raise Mistake(f"--set {key}={value}: {whose} is not among the methods compared ({', '.join(known)}).")
        there = {f.name for e in everybody if not dot or e.method.name == whose for f in parameters(e.method)}
        if name not in there:
            who = f"{whose} has no field" if dot else "none of the methods has a field"
            raise Mistake(f"--set {key}={value}: {who} '{name}'; there are {', '.join(sorted(there))}.")
    for e in everybody:
        with_settings(e.method, e.fields(common))
    for what, all_of_them in (("METHOD", [e.label for e in entries]), ("the folder of METHOD", [e.folder for e in entries])):
        twice = [label for label in all_of_them if all_of_them.count(label) > 1]
        if twice:
            raise Mistake(f"{what} {twice[0]} is given twice: name it once, or with different fields.")


# ---------------------------------------------------------------- cells


@dataclass(frozen=True)
class Cell:
    """One combination of varied settings; without --vary there is one, with none."""

    values: dict[str, Any]
    settings: CompareSettings

    @property
    def name(self) -> str:
        return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in self.values.items())

    @property
    def folder(self) -> str:
        return slug(",".join(f"{name}={value}" for name, value in self.values.items()))


def cells(s: CompareSettings) -> list[Cell]:
    """All combinations of the varied settings, in their order."""
    can_vary = [f.name for f in fields(s) if f.metadata.get("varies")]
    for name, values in s.vary.items():
        flag = name.replace("_", "-")
        if name not in can_vary:
            raise Mistake(f"--vary {flag}=… cannot be varied: use one of {', '.join(can_vary).replace('_', '-')}.")
        if s.split and name in DataSettings.names():
            raise Mistake(f"--vary {flag} needs several splits, but --split gives one: leave one of them out.")
        if len(values) != len({str(value) for value in values}):
            raise Mistake(f"--vary {flag}={','.join(map(str, values))} names a value twice: remove one.")
    made = []
    for values in itertools.product(*s.vary.values()):
        settings = replace(s, vary={}, **dict(zip(s.vary, values)))
        made.append(Cell({name: getattr(settings, name) for name in s.vary}, settings))
    return made


# ---------------------------------------------------------------- splits and runs


@dataclass(frozen=True)
class Held:
    """A split that was made: its file, its hash, and what it holds."""

    path: Path
    hash: str
    settings: dict[str, Any]
    clients: int
    labelled: int
    unlabelled: int
    unknown: int  # rows of the unlabelled whose class nobody knows, as in partly labelled data of one's own
    wrong: int  # labelled rows with a wrong label, and foreign rows
    server: int
    rows: list[tuple[int, int]]  # of each client: labelled, unlabelled
    true: list[tuple[int, int]]  # the same for a method that is told every true label

    @property
    def upper(self) -> bool:
        """Whether the upper bound has labels that a method has not, or those of both places."""
        return self.unlabelled - self.unknown + self.wrong > 0 or self.where == "both"

    @property
    def where(self) -> str:
        return "both" if self.server and self.labelled else "server" if self.server else "clients"

    @classmethod
    def read(cls, path: Path) -> Held:
        held = json.loads(path.read_text(encoding="utf-8"))
        rows = [(len(part["labelled"]), len(part["unlabelled"])) for part in held["clients"]]
        labelled, unlabelled = (sum(n) for n in zip(*rows))
        server = len(held["server"]["labelled"]) if held["server"] else 0
        true = [(sum(line["classes"]), line["rows"] - sum(line["classes"]) - line["irrelevant"]) for line in held["table"]]
        unknown = sum(n for _, n in true)
        wrong = sum(line["flipped"] + line["irrelevant"] for line in held["table"])
        return cls(path, held["hash"], held["settings"], len(rows), labelled, unlabelled, unknown, wrong, server, rows,
                   true[: len(rows)])  # fmt: skip


def make_splits(folder: Path, cells: Sequence[Cell], seeds: Sequence[int]) -> dict[tuple[int, int], Held]:
    """One split per cell and seed, made once and saved."""
    folder.mkdir(exist_ok=True)
    made, read, loaded = {}, None, None
    for (c, cell), seed in itertools.product(enumerate(cells), seeds):
        path = folder / f"{cell.folder}{'-' if cell.folder else ''}seed{seed}.json"
        if not path.exists():
            if read != sources(cell.settings):
                loaded = None  # before the next one is read
                read, loaded = sources(cell.settings), load_data(cell.settings)
            make_split(cell.settings, seed, loaded).save(path)
        made[c, seed] = Held.read(path)
    return made


def lines(entries: Sequence[Entry], split: Held, bounds: bool) -> list[Entry]:
    """The lines of a cell's table: lower bounds, the methods asked for that can use its labels, the upper bound."""
    lower = {"alone": "each client alone"} if split.where != "server" else {}
    if split.where != "clients":
        lower["server-only"] = "the server alone"
    if split.where == "both" or split.where == "clients" and split.unlabelled:  # else plain averaging is a method, not a bound
        lower["fedavg"] = "labelled rows only"
    upper = {"supervised": f"all {'known' if split.unknown else 'true'} labels"} if split.upper else {}
    asked = [replace(e, bound=(lower | upper).get(e.label)) for e in entries if e.method.reveal or split.where in e.method.takes]
    named = {e.label for e in asked}
    added = [Entry(name, name, {}, why) for name, why in (lower | upper).items() if bounds and name not in named]
    first = {label: i for i, label in enumerate(lower)}
    return sorted([*added, *asked], key=lambda e: first.get(e.label, len(first) + (e.label in upper)))


def missing_bounds(split: Held, bounds: bool) -> list[str]:
    """Why a bound is not there, in words: a reader must not wonder."""
    if not bounds:
        return ["no bound was asked for"]
    told = []
    if split.where == "server":
        told.append("no client has labels, so alone and fedavg cannot be run and server-only is the lower bound")
    elif split.where == "clients" and not split.unlabelled:
        told.append("every row is labelled, so plain averaging (fedavg) is a method, not a bound")
    if split.unknown:
        can = "trains only on the rows whose class is known" if split.upper else \
            "cannot be run: it would see no more labels than fedavg"  # fmt: skip
        told.append(f"the true class of {many(split.unknown, 'row')} is unknown, so the upper bound (supervised) {can}")
    elif not split.upper:
        told.append("all labels are true, so there is no upper bound")
    return told


@dataclass(frozen=True)
class Plan:
    """A comparison: what is asked for, checked before anything is run."""

    entries: list[Entry]
    cells: list[Cell]
    settings: CompareSettings
    out: Path

    @classmethod
    def make(cls, methods: Sequence[str | Method], s: CompareSettings, out: Path) -> Plan:
        if not s.all_seeds:
            raise Mistake("no seed is given: use seeds=3, for example, or a list of numbers.")
        entries = [entry(spec) for spec in methods]
        compare_budget.check(s.budget, [*(find(name) for name in BOUNDS), *(e.method for e in entries)])
        return cls(entries, cells(s), s, out)

    def runs(self, splits: Mapping[tuple[int, int], Held]) -> tuple[list[dict[str, Any]], list[Job]]:
        """The cells as compare.json tells them, and every run of each."""
        s, jobs = self.settings, []
        described: list[dict[str, Any]] = []
        for c, cell in enumerate(self.cells):
            first = splits[c, s.all_seeds[0]]
            chosen = lines(self.entries, first, s.bounds)
            told = [self._line(e, first) for e in chosen]
            described.append(dict(
                values=cell.values, name=cell.name, where=first.where, labelled=first.labelled, unlabelled=first.unlabelled,
                server=first.server, clients=first.clients, split={str(seed): splits[c, seed].hash for seed in s.all_seeds},
                data=cell.settings.data, settings=first.settings,
                lines=told, idle=compare_budget.idle(s.budget, told), no_bounds=missing_bounds(first, s.bounds),
                left_out=[e.label for e in self.entries if e.label not in {line.label for line in chosen}],
            ))  # fmt: skip
            jobs += [self._job(c, e, seed, splits[c, seed]) for seed in s.all_seeds for e in chosen]
        for e in self.entries:
            if all(e.label in cell["left_out"] for cell in described):
                raise Mistake(f"{unusable(e.label, e.method, described[0]['where'])}; leave it out, or give these.")
        compare_budget.check_server(s.budget, [cell["server"] for cell in described])
        return described, jobs

    def _fields(self, e: Entry, split: Held) -> dict[str, Any]:
        """The entry's fields: of those for all that have them, the budget comes first and then what --set says."""
        return e.fields({**compare_budget.handed(self.settings.budget, split.server), **self.settings.set})

    def _line(self, e: Entry, split: Held) -> dict[str, Any]:
        given = self._fields(e, split)
        method = with_settings(e.method, given)
        spent = compare_budget.spent(method, split.server)
        steps = compare_budget.steps(method, split.true if e.method.reveal else split.rows, split.server)
        told = dict(spent=spent, steps=steps, budget=compare_budget.words(spent, e.method.extra))
        return dict(label=e.label, method=e.method.name, settings=given, bound=e.bound, title=e.method.title, **told)

    def _job(self, c: int, e: Entry, seed: int, split: Held) -> Job:
        cell = self.cells[c]
        folder = "/".join(["runs", *([cell.folder] if cell.folder else []), f"{e.folder}-seed{seed}"])
        settings = cell.settings.train(seed, self._fields(e, split))
        work = dict(
            method=e.spec, settings=settings.to_dict(), split=str(split.path), hash=split.hash, out=str(self.out / folder)
        )
        return Job(c, e.label, seed, folder, work, cell.settings.rounds)
