"""The compare job: several methods on the same splits, over several seeds, side by side in processes of their own.

    gv.compare(["fedavg", "xclp", "protofssl"], "digits", "runs/c", labels="clients:100", seeds=3, rounds=20)

What is left in the folder: `runs/` with a folder for each run as `grapevine train` leaves it, `splits/`, `compare.json` with all
that is known, `table.csv`, `table.md`, `report.html`. A grid (`vary`) has a cell for each combination of values. Nothing here
depends on how many processes there are: a run has the bits that it would have alone.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grapevine.core.errors import Mistake
from grapevine.core.version import __version__

if TYPE_CHECKING:
    from grapevine.core import Method

WORKERS = min(2, os.cpu_count() or 1)
WRITE_SECONDS = 2.0  # between two versions of the table and the page while runs are going on
NUMBERS = dict(clients=int, rounds=int, per_round=int, flip=float, validation=float)
VARIED = ("labels", "partition", "clients", "flip", "irrelevant", "data", "model", "norm", "rounds", "per_round", "validation")
FORMS = r"(?=(?:all|clients:|fraction:|server:))"  # what a new value of --labels begins with
BOUNDS = ("alone", "server-only", "fedavg", "supervised")
FREE = ("workers", "data_dir")  # flags that may differ when a comparison is gone on with

Progress = Callable[["Standing"], None]


@dataclass(frozen=True)
class Entry:
    """A line of the table: a method with its settings. `bound` says why it is there when nobody asked for it."""

    label: str
    spec: str
    settings: dict[str, str]
    bound: str | None = None

    @property
    def folder(self) -> str:
        return slug(self.label.replace(":", "-", 1))


@dataclass(frozen=True)
class Cell:
    """One combination of varied flags; without --vary there is one, with none."""

    values: dict[str, Any]
    flags: dict[str, Any]

    @property
    def name(self) -> str:
        return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in self.values.items())

    @property
    def folder(self) -> str:
        return slug(",".join(f"{name}={value}" for name, value in self.values.items()))


@dataclass
class Job:
    """One run: how it stands."""

    cell: int
    label: str
    seed: int
    folder: str
    work: dict[str, Any] = field(repr=False)
    state: str = "waiting"  # going, finished, failed
    round: int = 0
    rounds: int = 0
    error: str = ""
    seconds: float = 0.0
    began: float = 0.0


@dataclass(frozen=True)
class Standing:
    """How far a comparison is: for a bar."""

    finished: int
    failed: int
    runs: int
    rounds: int
    rounds_in_all: int
    seconds_left: float | None
    note: str


@dataclass(frozen=True)
class Comparison:
    """What compare.json holds: `table` has a row per cell and method, `runs` one per run."""

    out: Path
    data: dict[str, Any]

    @property
    def table(self) -> list[dict[str, Any]]:
        return self.data["table"]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return self.data["runs"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [run for run in self.runs if run["state"] == "failed"]


def compare(
    methods: Sequence[str | Method], data: str | Path, out: str | Path, *, seeds: int | Sequence[int] = 3,
    vary: Mapping[str, Sequence[Any]] | None = None, set: Mapping[str, Any] | None = None, target: float | None = None,
    data_dir: str | Path | None = None, label: str | None = None, party: str | None = None, clients: int | None = None,
    partition: str | None = None, split: str | Path | None = None, labels: str = "all", flip: float = 0.0,
    irrelevant: str | None = None, validation: float = 0.1, model: str | None = None, norm: str | None = None, rounds: int = 100,
    per_round: int | None = 10, workers: int = WORKERS, device: str = "auto", mode: str = "fast", evaluate_every: int = 0,
    patience: int = 0, latex: bool = False, bounds: bool = True, resume: bool = False, progress: Progress | None = None,
    command: str = "",
) -> Comparison:  # fmt: skip
    """Run methods on the same splits, over seeds (a number: 0, 1, …), and leave a table and a page in `out`.

    Methods are names, `"xclp:hamming=plain"` for a variant, or objects. `set` is {"lr": 0.05} for all that have the field, or
    {"xclp.alpha": 0.9}. `vary` is {"labels": ["clients:100", "clients:500"]}: one cell for every combination. The bounds
    (`alone`, labelled only, all labels) are added where they apply, unless `bounds` is false. A run that fails does not stop
    the others: see `failed`.
    """
    paths = dict(data=data, data_dir=data_dir, split_file=split)
    flags = {name: None if value is None else str(value) for name, value in paths.items()}
    flags |= dict(
        label=label, party=party, clients=clients, partition=partition, labels=labels, flip=flip, irrelevant=irrelevant,
        validation=validation, model=model, norm=norm, rounds=rounds, per_round=per_round, workers=workers, device=device,
        mode=mode, evaluate_every=evaluate_every, patience=patience,
    )  # fmt: skip
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(dict.fromkeys(int(seed) for seed in seeds))
    if not chosen:
        raise Mistake("--seeds is 0, and must be 1 or more.")
    if workers < 1:
        raise Mistake(f"workers is {workers}, and must be 1 or more.")
    if target is not None and not 0 <= target <= 1:
        raise Mistake(f"--target {target:g} is no accuracy: take 0 to 1, as in --target 0.8.")
    plan = Plan(methods, flags, chosen, dict(vary or {}), dict(set or {}), target, latex, Path(out), command, bounds)
    return plan.run(resume, progress or (lambda standing: None))


def load(folder: str | Path) -> Comparison:
    """A comparison from its folder, finished or still going."""
    path = Path(folder) / "compare.json"
    if not path.is_file():
        raise Mistake(f"{folder} holds no comparison: name the folder that the --out of grapevine compare named.")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Mistake(f"{path} is not readable as JSON ({error}); go on with the comparison by --resume to mend it.") from None
    if not isinstance(held, dict) or held.get("job") != "compare":
        raise Mistake(f"{path} was not written by grapevine compare: name another folder.")
    return Comparison(Path(folder), held)


def slug(words: str) -> str:
    """Words as the name of a folder, on every system."""
    return re.sub(r"[^\w.=,~@+-]+", "-", words)


# ---------------------------------------------------------------- what is to be run


def entry(spec: str | Method) -> Entry:
    """A METHOD argument: a name, a name with fields, `path/to/file.py:Class`, or an object."""
    from grapevine.methods import find

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
    from dataclasses import fields

    from grapevine.core import SubProtocol, with_settings
    from grapevine.methods import find, names

    values = {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}
    settings = {name: value.name if isinstance(value, SubProtocol) else str(value) for name, value in values.items()}
    if method.name not in names() or with_settings(find(method.name), settings) != method:
        raise Mistake(
            f"{method!r} cannot be told to another process: name it as a text, such as 'fedavg:lr=0.05' or 'file.py:Class'."
        )
    return Entry(_label(method.name, settings), method.name, settings)


def _label(name: str, settings: Mapping[str, str]) -> str:
    return f"{name}:{','.join(f'{k}={v}' for k, v in settings.items())}" if settings else name


def varied(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`--vary flag=a,b,c` texts; a flag may be given several times. `server:…,clients:…` is one value, as in --labels."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, words = text.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not words:
            raise Mistake(f"--vary {text} is not flag=a,b,c, as in --vary labels=clients:100,clients:500.")
        if name == "labels":
            pieces = re.split(rf",{FORMS}", words)
            joined: list[str] = []
            for piece in pieces:
                if joined and re.fullmatch(r"server:[^,]*(,\d[^,]*)*", joined[-1]) and not piece.startswith("server:"):
                    joined[-1] += f",{piece}"
                else:
                    joined.append(piece)
            pieces = joined
        else:
            pieces = words.split(",")
        grid.setdefault(name, []).extend(pieces)
    return grid


def _common(a: Any, b: Any) -> Any:
    """The fields of a that b has, too: one that a version did not have is a choice that nobody had."""
    both = isinstance(a, dict) and isinstance(b, dict)
    return {name: _common(a[name], b[name]) for name in a if name in b} if both else a


def cells(flags: dict[str, Any], vary: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """All combinations of the varied flags, in their order."""
    grid = {}
    for name, values in vary.items():
        name = name.replace("-", "_")
        if name not in VARIED:
            known = ", ".join(each.replace("_", "-") for each in VARIED)
            raise Mistake(f"--vary {name.replace('_', '-')}=… is not known: {known} can be varied.")
        if flags["split_file"] and name not in ("model", "norm", "rounds", "per_round"):
            raise Mistake(f"--vary {name} needs other splits, and --split gives one: leave one of them out.")
        grid[name] = [_value(name, value) for value in values]
        if len(grid[name]) != len(dict.fromkeys(grid[name])):
            raise Mistake(f"--vary {name}={','.join(map(str, grid[name]))} names a value twice: leave one out.")
    made = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    return [Cell(values, flags | values) for values in made]


def _value(name: str, value: Any) -> Any:
    try:
        return NUMBERS.get(name, str)(value)
    except ValueError:
        raise Mistake(f"--vary {name}={value}: {value} is not a number, as --{name.replace('_', '-')} wants.") from None


@dataclass
class Plan:
    """A comparison: what is asked for, checked before anything is run."""

    methods: Sequence[str | Method]
    flags: dict[str, Any]
    seeds: list[int]
    vary: dict[str, Sequence[Any]]
    set: dict[str, Any]
    target: float | None
    latex: bool
    out: Path
    command: str
    bounds: bool = True

    def __post_init__(self) -> None:
        self.cells = cells(self.flags, self.vary)
        self.entries = [entry(spec) for spec in self.methods]
        self.data: dict[str, Any] = {}
        self.jobs: list[Job] = []

    # ------------------------------------------------------------ running

    def run(self, resume: bool, progress: Progress) -> Comparison:
        there = self.out.is_dir() and any(path.name != "lock" for path in self.out.iterdir())
        if there and not resume:
            raise Mistake(f"{self.out} exists and is not empty: take another --out, or --resume to go on with it.")
        if there and not (self.out / "compare.json").exists() and not (self.out / "splits").exists():
            raise Mistake(f"{self.out} holds no comparison: take another --out.")
        if there and (self.out / "compare.json").exists():
            self._same(load(self.out).data)
        from grapevine.core.store import make_folder
        from grapevine.run.folder import lock

        self._check_settings()
        new = not self.out.exists()
        make_folder(self.out)
        with lock(self.out / "lock"):
            try:
                splits = self._splits()
                self._plan(splits)
            except Mistake:
                if new:
                    self._leave_nothing()
                raise
            self._run(progress)
        return Comparison(self.out, self.data)

    def _leave_nothing(self) -> None:
        """After a mistake in the flags of a new comparison, the same --out can be named again."""
        import shutil

        shutil.rmtree(self.out, ignore_errors=True)

    def _same(self, before: dict[str, Any]) -> None:
        """Only what adds runs may differ from what the folder was begun with."""
        now = json.loads(json.dumps(dict(self.flags, set={name: str(value) for name, value in self.set.items()})))
        was = before["flags"]
        for name in now:
            if name not in FREE and name not in self.vary and name not in before["vary"] and was.get(name) != now[name]:
                flag = f"--{name.replace('_file', '').replace('_', '-')}"
                raise Mistake(
                    f"{self.out} was begun with {flag} {was.get(name)}, not {now[name]}: repeat its flags or take another --out."
                )

    # ------------------------------------------------------------ what is to be run

    def _check_settings(self) -> None:
        """Fields that nobody has, values that cannot be read, a method named twice: before the data is read."""
        from grapevine.core import parameters, with_settings
        from grapevine.methods import find

        for e in self.entries:
            if e.label in BOUNDS and e.spec != e.label:
                raise Mistake(f"{e.spec} calls itself {e.label}, which is the name of a bound: give it another name.")
        everybody = [*self.entries, *(Entry(name, name, {}) for name in BOUNDS)]
        has = {e.label: {f.name for f in parameters(find(e.spec))} for e in everybody}
        names = sorted({find(e.spec).name for e in everybody})
        for key in self.set:
            whose, dot, name = str(key).rpartition(".")
            if dot and whose not in names:
                raise Mistake(f"--set {key}={self.set[key]}: {whose} is not among the methods compared ({', '.join(names)}).")
            of = [e for e in everybody if not dot or find(e.spec).name == whose]
            if not any(name in has[e.label] for e in of):
                known = sorted({field_name for e in of for field_name in has[e.label]})
                who = f"{whose} has no field" if dot else "none of the methods has a field"
                raise Mistake(f"--set {key}={self.set[key]}: {who} '{name}'; there are {', '.join(known)}.")
        for e in everybody:
            with_settings(find(e.spec), self._settings(e))
        self._no_twins([e.label for e in self.entries], "METHOD")
        self._no_twins([e.folder for e in self.entries], "the folder of METHOD")

    def _no_twins(self, labels: list[str], what: str) -> None:
        twice = [label for label in dict.fromkeys(labels) if labels.count(label) > 1]
        if twice:
            raise Mistake(f"{what} {twice[0]} is there twice: name it once, or with other fields.")

    def _settings(self, e: Entry) -> dict[str, str]:
        """The entry's fields: those of --set for all, then those for its method, then its own."""
        from grapevine.core import parameters
        from grapevine.methods import find

        cls = find(e.spec)
        known = {f.name for f in parameters(cls)}
        general = {name: str(value) for name, value in self.set.items() if "." not in name and name in known}
        own = {name.rpartition(".")[2]: str(v) for name, v in self.set.items() if name.rpartition(".")[0] == cls.name}
        return general | own | e.settings

    def _splits(self) -> dict[tuple[int, int], dict[str, Any]]:
        """One split per cell and seed, made once and saved: its file, its hash, and where labels are."""
        from grapevine.cli.flags import load_data, make_split
        from grapevine.data import Split

        folder, made = self.out / "splits", {}
        folder.mkdir(exist_ok=True)
        key, loaded = None, None
        for (c, cell), seed in itertools.product(enumerate(self.cells), self.seeds):
            path = folder / f"{cell.folder}{'-' if cell.folder else ''}seed{seed}.json"
            if not path.exists():
                wanted = [cell.flags[name] for name in ("data", "data_dir", "party", "label", "irrelevant")]
                if key != wanted:
                    loaded = None  # before the next one is read
                    key, loaded = wanted, load_data(cell.flags)
                split: Split = make_split(cell.flags, seed, loaded)
                split.save(path)
            held = json.loads(path.read_text(encoding="utf-8"))
            at_server = held["server"] is not None and len(held["server"]["labelled"]) > 0
            at_clients = any(part["labelled"] for part in held["clients"])
            where = "both" if at_server and at_clients else "server" if at_server else "clients"
            labelled = sum(len(part["labelled"]) for part in held["clients"])
            made[c, seed] = dict(path=path, hash=held["hash"], where=where, clients=len(held["clients"]), labelled=labelled,
                                 unlabelled=sum(len(part["unlabelled"]) for part in held["clients"]),
                                 server=len(held["server"]["labelled"]) if held["server"] else 0,
                                 settings=held["settings"])  # fmt: skip
        return made

    def _plan(self, splits: dict[tuple[int, int], dict[str, Any]]) -> None:
        """Every run of every cell, and compare.json as it is before the first."""
        described = []
        for c, cell in enumerate(self.cells):
            first = splits[c, self.seeds[0]]
            lines = self._lines(first)
            described.append(dict(
                values=cell.values, name=cell.name, where=first["where"], labelled=first["labelled"],
                unlabelled=first["unlabelled"], server=first["server"], clients=first["clients"],
                split={str(seed): splits[c, seed]["hash"] for seed in self.seeds}, data=cell.flags["data"],
                settings=first["settings"], lines=[dict(label=e.label, method=_name(e), settings=self._settings(e), bound=e.bound,
                                                        title=_title(e)) for e in lines],
                left_out=[e.label for e in self.entries if e.label not in {line.label for line in lines}],
            ))  # fmt: skip
            for seed, e in itertools.product(self.seeds, lines):
                name = f"{e.folder}-seed{seed}"
                folder = f"runs/{cell.folder}/{name}" if cell.folder else f"runs/{name}"
                split = splits[c, seed]
                work = dict(method=e.spec, settings=self._settings(e), flags=cell.flags, seed=seed, split=str(split["path"]),
                            hash=split["hash"], out=str(self.out / folder))  # fmt: skip
                self.jobs.append(Job(c, e.label, seed, folder, work, rounds=cell.flags["rounds"]))
        for e in self.entries:
            if all(e.label in cell["left_out"] for cell in described):
                self._cannot_use(e, described[0]["where"])
        import torch

        versions = dict(python=platform.python_version(), torch=torch.__version__, grapevine=__version__)
        self.data = dict(
            job="compare", version=__version__, versions=versions, command=self.command, state="going",
            methods=[e.label for e in self.entries], seeds=self.seeds, vary=self.vary, target=self.target,
            flags=dict(self.flags, set={name: str(value) for name, value in self.set.items()}), cells=described,
        )  # fmt: skip
        made = [job for job in self.jobs if (self.out / job.folder / "result.json").exists()]
        self._as_they_would_be(made)
        for job in made:
            job.state, job.round = "finished", job.rounds

    def _as_they_would_be(self, made: list[Job]) -> None:
        """A folder names only the fields that were said: a default that another version had must not pass for today's."""
        from grapevine.core import with_settings
        from grapevine.methods import find
        from grapevine.run.folder import first_difference

        others = []
        for job in made:
            path = self.out / job.folder / "result.json"
            try:
                was = json.loads(path.read_text(encoding="utf-8"))["settings"]
            except (ValueError, KeyError, TypeError):
                raise Mistake(f"{path} is not a run's result: remove its folder, and the run is made anew.") from None
            now = json.loads(json.dumps(with_settings(find(job.work["method"]), job.work["settings"]).settings()))
            was, now = _common(was, now), _common(now, was)
            if was != now:
                others.append((job.folder, *first_difference(was, now)))
        if others:
            folder, was, now = others[0]
            more = f", as {len(others) - 1} more here" if others[1:] else ""
            raise Mistake(f"{self.out / folder} was made with {was}, and would be with {now} now{more}: remove that folder to "
                          "run it anew, or take another --out.")  # fmt: skip

    def _lines(self, split: dict[str, Any]) -> list[Entry]:
        """The lines of a cell's table: lower bounds, the methods asked for that can use its labels, the upper bound."""
        from grapevine.methods import find

        where, settings = split["where"], split["settings"]
        alike = settings["labels"] == "all"  # then plain averaging is no bound but a method
        true_labels = alike and not settings["flip"] and not settings["irrelevant"]
        lower = {"alone": "each client alone"} if where != "server" else {}
        if where != "clients":
            lower["server-only"] = "the server alone"
        if where != "server" and not alike:
            lower["fedavg"] = "labelled rows only"
        upper = {} if true_labels else {"supervised": "all true labels"}
        bounds = lower | upper
        asked = [e for e in self.entries if find(e.spec).reveal or where in find(e.spec).takes]
        asked = [Entry(e.label, e.spec, e.settings, bounds.get(e.label)) for e in asked]
        named = {e.label for e in asked}
        added = {name: Entry(name, name, {}, why) for name, why in bounds.items() if self.bounds and name not in named}
        lines = [*(added[name] for name in lower if name in added), *asked, *(added[name] for name in upper if name in added)]
        first = {label: i for i, label in enumerate(lower)}
        return sorted(lines, key=lambda e: first.get(e.label, len(first) + (e.label in upper)))

    def _cannot_use(self, e: Entry, where: str) -> None:
        from grapevine.methods import find

        there = dict(clients="at the clients", server="at the server", both="at server and clients")[where]
        takes = ", ".join(sorted(find(e.spec).takes))
        raise Mistake(f"{e.label} cannot use labels {there}: it takes them at {takes}; leave it out, or give other --labels.")

    # ------------------------------------------------------------ running

    def _run(self, progress: Progress) -> None:
        from grapevine.jobs import compare_table

        self._write(compare_table)
        progress(self._standing())
        waiting = [job for job in self.jobs if job.state != "finished"]
        try:
            with _workers(min(self.flags["workers"], len(waiting)), waiting, self.out / "log.txt") as told:
                for job, said in told:
                    self._hear(job, said)
                    if "state" in said and time.monotonic() > self._next_write:
                        self._write(compare_table)
                    progress(self._standing())
        except BaseException:
            for job in self.jobs:
                job.state = "waiting" if job.state == "going" else job.state
            self._write(compare_table, state="stopped")
            raise
        self._write(compare_table, state="finished" if all(job.state == "finished" for job in self.jobs) else "failed")

    def _hear(self, job: Job, said: dict[str, Any]) -> None:
        if job.state == "waiting":
            job.state, job.began = "going", time.monotonic()
        job.seconds = time.monotonic() - job.began
        job.round = said.get("round", job.round)
        if "state" in said:
            job.state, job.error = said["state"], said.get("error", "")
            job.round = job.rounds if job.state == "finished" else job.round

    def _standing(self) -> Standing:
        going = [job for job in self.jobs if job.state == "going"]
        note = ", ".join(f"{job.label} seed {job.seed}" for job in going[:3])
        states = [job.state for job in self.jobs]
        return Standing(states.count("finished"), states.count("failed"), len(states), sum(job.round for job in self.jobs),
                        sum(job.rounds for job in self.jobs), self._seconds_left(), note)  # fmt: skip

    def _seconds_left(self) -> float | None:
        """What is left to do at the pace of the same method, or where it has not been seen yet, of all of them."""
        seen = [job for job in self.jobs if job.seconds and job.round]
        if not any(job.state == "finished" for job in seen):  # the first seconds of a process go into imports
            return None
        paces: dict[str, list[float]] = {}
        for job in seen:
            paces.setdefault(job.label, []).append(job.seconds / job.round)
        mean = {label: sum(each) / len(each) for label, each in paces.items()}
        over = sum(mean.values()) / len(mean)
        left = [job for job in self.jobs if job.state in ("waiting", "going")]
        work = sum(mean.get(job.label, over) * (job.rounds - job.round) for job in left)
        return work / max(min(self.flags["workers"], len(left)), 1)

    def _write(self, compare_table: Any, state: str = "going") -> None:
        """compare.json, the tables and the page, as things stand."""
        began = time.monotonic()
        from grapevine.core.store import write_atomically
        from grapevine.report import compare as compare_page

        self.data["state"] = state
        self.data["runs"] = [compare_table.run_line(self.out, job, self.data["cells"][job.cell]) for job in self.jobs]
        compare_table.fill(self.out, self.data)
        write_atomically(self.out / "compare.json", json.dumps(self.data, indent=1).encode())
        compare_table.write(self.out, self.data, self.latex)
        compare_page.write(self.out)
        # A comparison of hundreds of runs has files that take a while: never more than a twentieth of the time.
        self._next_write = time.monotonic() + max(WRITE_SECONDS, 20 * (time.monotonic() - began))


def _name(e: Entry) -> str:
    from grapevine.methods import find

    return find(e.spec).name


def _title(e: Entry) -> str:
    from grapevine.methods import find

    return find(e.spec).title


# ---------------------------------------------------------------- processes


@contextmanager
def _workers(count: int, jobs: list[Job], log: Path) -> Iterator[Iterator[tuple[Job, dict[str, Any]]]]:
    """Processes that work the jobs off; what they tell, as it comes. Leaving ends them, wherever they are."""
    told: queue.SimpleQueue = queue.SimpleQueue()
    todo = _Todo(jobs)
    with open(log, "ab") as file:
        hands = [_Hand(todo, told, file) for _ in range(count)]
        try:
            yield _until_all_ended(told, len(hands))
        finally:
            todo.stop()
            for hand in hands:
                hand.end()


def _until_all_ended(told: queue.SimpleQueue, hands: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    while hands:
        try:
            item = told.get(timeout=0.5)  # with a timeout Ctrl-C is heard on every system
        except queue.Empty:
            continue
        if item is None:
            hands -= 1
        else:
            yield item


class _Todo:
    """Runs in the order of cells and seeds; among those of a seed, what took longest before begins first."""

    def __init__(self, jobs: list[Job]):
        self._jobs, self._lock, self._took = list(jobs), threading.Lock(), {}

    def next(self) -> Job | None:
        with self._lock:
            if not self._jobs:
                return None
            first = (self._jobs[0].cell, self._jobs[0].seed)
            these = [job for job in self._jobs if (job.cell, job.seed) == first]
            job = max(these, key=lambda job: self._took.get(job.label, float("inf")))
            self._jobs.remove(job)
            return job

    def took(self, label: str, seconds: float) -> None:
        with self._lock:
            self._took[label] = seconds

    def stop(self) -> None:
        with self._lock:
            self._jobs.clear()


class _Hand:
    """A thread that gives a process one run after the other. A process that dies costs its run only."""

    def __init__(self, todo: _Todo, told: queue.SimpleQueue, log: Any):
        self._todo, self._told, self._log = todo, told, log
        self._process: subprocess.Popen | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while (job := self._todo.next()) is not None:
                began = time.monotonic()
                self._told.put((job, dict(round=0)))
                self._told.put((job, self._give(job)))
                self._todo.took(job.label, time.monotonic() - began)
        finally:
            self._told.put(None)

    def _give(self, job: Job) -> dict[str, Any]:
        """One run; what its process said last."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        if self._ending:  # which may have been said while it was being started
            process.kill()
        try:
            process.stdin.write(json.dumps(job.work) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if "state" in said:
                    return said
                self._told.put((job, said))
        except (OSError, ValueError):
            pass
        self._process, code = None, _bury(process)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return dict(state="failed", error=f"its process {how} in the middle of the run; log.txt may say more.")

    def _start(self) -> subprocess.Popen:
        one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        return subprocess.Popen(
            [sys.executable, "-m", "grapevine.jobs.compare_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, encoding="utf-8", env=os.environ | one,
        )  # fmt: skip

    def end(self) -> None:
        self._ending, process = True, self._process
        if process is not None:
            process.kill()  # a process without a run is idle; one in the middle of a run has its checkpoint
        self._thread.join()
        if self._process is not None:
            _bury(self._process)


def _bury(process: subprocess.Popen) -> int:
    process.stdout.close()
    try:
        process.stdin.close()
    except OSError:  # what was not sent yet has nowhere to go
        pass
    return process.wait()


def command_line() -> str:
    """The command that was typed, or nothing when this is not the command."""
    return shlex.join(["grapevine", *sys.argv[1:]]) if "grapevine" in Path(sys.argv[0]).name else ""
