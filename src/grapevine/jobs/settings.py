"""The settings of the jobs, each with its default, its range and its words: flags, keywords, tables and help are made from here.

A setting that is `local` is each party's own business; the parties of a federation agree on all others. The seed is apart: a
federation has one only if it is told to be reproducible. Nothing heavy is imported here, so that a command can say what it takes
before torch is there.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from grapevine.core.errors import Mistake
from grapevine.core.param import Settings, param, same
from grapevine.run.settings import RunSettings

F = TypeVar("F", bound=Callable)
LABELS = "all, clients:1000, clients:1000/50, clients:1000~5, fraction:0.1, server:500, server:500,clients:all, server:500@0-7."

NO_DP_LABELS = (
    "clean needs no --dp-labels: the classifier comes to the party and decides there, and nothing about labels leaves it (but "
    "three totals with --counts); randomised labels would only have to be mended again, so leave it out."
)


def read_fields(given: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    """Fields of a method as texts: from a table, or from `--set field=value`."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise Mistake(f"--set {text} is not field=value, as in --set lr=0.05.")
        pairs[name] = value
    return pairs


def read_budget(given: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    """Fields of a budget: a table, or `epochs=5,batch=50`."""
    return read_fields(given if isinstance(given, Mapping) else [each for text in given for each in text.split(",")])


def number_or_words(given: Any) -> Any:
    """A number where it can be read as one, else the words."""
    try:
        return float(given)
    except (TypeError, ValueError):
        return given


def read_vary(given: Mapping[str, Sequence[Any]] | Sequence[str]) -> dict[str, list[Any]]:
    """Values of settings: from a table, or from `--vary flag=a,b,c`; `server:…,clients:…` is one value, as in --labels."""
    if isinstance(given, Mapping):
        return {name.replace("-", "_"): list(values) for name, values in given.items()}
    grid: dict[str, list[Any]] = {}
    for text in given:
        name, equals, words = text.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not words:
            raise Mistake(f"--vary {text} is not flag=a,b,c, as in --vary labels=clients:100,clients:500.")
        grid.setdefault(name, []).extend(_labels(words) if name == "labels" else words.split(","))
    return grid


def _labels(words: str) -> list[str]:
    joined: list[str] = []
    for piece in re.split(r",(?=(?:all|clients:|fraction:|server:))", words):
        if joined and re.fullmatch(r"server:[^,]*(,\d[^,]*)*", joined[-1]) and not piece.startswith("server:"):
            joined[-1] += f",{piece}"
        else:
            joined.append(piece)
    return joined


def own(default: Any, text: str, **more: Any) -> Any:
    """A setting that a federation does not agree on."""
    return param(default, "", text, local=True, **more)


@dataclass(frozen=True)
class LabelSettings(Settings):
    """`grapevine label`, `gv.label` and a federation's label job."""

    job: ClassVar[str] = "label"

    label: str | None = own(None, "The label column; an empty cell, NA, ? or -1 is an unlabelled row.", metavar="COL")
    id: str | None = own(None, "The column that names a row [row numbers].", metavar="COL")
    features: tuple[str, ...] | None = own(None, "The feature columns [all others].", kind=tuple, metavar="COL,...")
    categories: tuple[str, ...] = own(
        (), "Columns that are categories though they hold numbers; text always is.", kind=tuple, metavar="COL,..."
    )
    missing: tuple[str, ...] = own(
        (), "Further words for a missing value, besides NA, N/A, null, None, ? and -.", kind=tuple, metavar="WORD,..."
    )
    decimal: str = own("auto", "Decimal mark of the files: point, comma or auto.", choices=("auto", "point", "comma"))
    truth: Any = own(None, "True labels, for measuring only.", metavar="COL", objects=True)
    method: str = param("chorus", "", "chorus, or xclp: the paper's job.", choices=("chorus", "xclp"))
    scale: str = param("auto", "", "Each feature by its own deviation (standard), all by one (one), not centred (none), or auto.",
                       choices=("auto", "standard", "one", "none"))  # fmt: skip
    impute: bool = param(False, "", "Missing numbers become the secure mean, with a column that says where.")
    embed: str | None = param(None, "", "Features of images, or of a finished train run.", metavar="efficientnet-lite0|RUN")
    secure: str = param("mlwe", "", "mlwe, psm, paillier, ot or plain (no protection).", metavar="PROTOCOL",
                        choices=("mlwe", "psm", "paillier", "ot", "plain"))  # fmt: skip
    landmarks: int | str | None = param(None, "", "Nodes of a party in the graph beside its labelled rows: all rows, so many "
                                        "centres of them, or its share of 5,000 [auto; xclp: all].", least=1,
                                        words=("auto", "all"), metavar="auto|all|N", kind=int)  # fmt: skip
    bits: int | None = param(None, "L", "Bits of a hash [1024; xclp: 4096].", least=1, most=2**15 - 1, kind=int)
    neighbours: int | str | None = param(None, "k", "Neighbours of a row; auto tries several [auto; xclp: 10].", least=1,
                                         words=("auto",), metavar="K|auto", kind=int)  # fmt: skip
    alpha: float | str | None = param(None, "α", "How far labels spread, below 1; auto tries several [auto; xclp: 0.99].",
                                      above=0, below=1, words=("auto",), metavar="ALPHA|auto", kind=float)  # fmt: skip
    smooth: bool = param(False, "", "Chorus: one more voice, a row's neighbours in the graph.")
    spread: str = param("private", "", "How labels reach rows: private, or paper (parties can read each other's labels).",
                        choices=("private", "paper"))  # fmt: skip
    abstain: float = own(0.0, "Below this probability (xclp: confidence) a row gets no label.", least=0, most=1, metavar="P")
    target: float | None = own(None, "Abstain so that labels given are expected to be right this often.", above=0, below=1,
                               metavar="SHARE", kind=float)  # fmt: skip
    dp_labels: float | None = param(None, "ε", "Labels leave a party by randomised response with this ε.", above=0,
                                    metavar="EPSILON", kind=float)  # fmt: skip
    groups: int = param(1, "", "Label in N separate groups of parties: cheaper, less exact.", least=1, metavar="N")
    preset: str = param("code", "", "xclp: as the authors' code, or as the paper.", choices=("code", "paper"))
    baselines: bool = own(False, "Also label by Gaussian heads and by the nearest own labelled row, to compare.")
    seed: int | None = same(RunSettings, "seed", default=None, kind=int, text="Repeats exactly; hyperplanes are then not secret.")
    workers: int = same(RunSettings, "workers", text="Parties computed side by side; never changes the result.")


@dataclass(frozen=True)
class CleanSettings(Settings):
    """`grapevine clean`, `gv.clean` and a federation's clean job."""

    job: ClassVar[str] = "clean"

    label: str | None = same(LabelSettings, "label")
    id: str | None = same(LabelSettings, "id")
    features: tuple[str, ...] | None = same(LabelSettings, "features")
    categories: tuple[str, ...] = same(LabelSettings, "categories")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    truth: Any = same(LabelSettings, "truth", text="True labels, for measuring only; empty or unknown to the server: irrelevant.")
    tau: float = param(0.95, "τ", "Confidence from which a prediction counts, 0.5 to 1.", least=0.5, most=1)
    upsilon: float = param(0.5, "Υ", "Loss up to which a label is acceptable, at most ln 2.", above=0, most=math.log(2))
    model: str | None = param(
        None, "", "The classifier: linear, mlp, cnn, … [images: cnn; --embed: linear; tables: mlp].", metavar="NAME"
    )
    epochs: int | None = param(
        None, "", "Passes over the server's rows [30; more for few rows: 1000 steps].", kind=int, least=1, metavar="N"
    )
    scale: str = param("standard", "", "Features by the server's means and deviations, or as they are.",
                       choices=("standard", "none"))  # fmt: skip
    impute: bool = same(LabelSettings, "impute", text="Missing numbers become the server's mean, with a column that says where.")
    embed: str | None = same(LabelSettings, "embed")
    counts: bool = param(False, "", "Parties tell the server how many rows they kept, mended and set aside.")
    dp_labels: float | None = param(
        None, "", "Refused: nothing about labels leaves a party here.", kind=float, local=True, metavar="EPS"
    )
    seed: int = same(RunSettings, "seed")
    workers: int = same(LabelSettings, "workers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dp_labels is not None:
            raise Mistake(NO_DP_LABELS)


@dataclass(frozen=True)
class DataSettings(Settings):
    """A data set, and who holds what of it."""

    job: ClassVar[str] = "data"

    data: Any = own(None, "By name (`grapevine data list`), or a file.", metavar="NAME|FILE|FOLDER", needed=True, varies=True,
                    objects=True)  # fmt: skip
    data_dir: str | None = own(None, "Where data files are [else $GRAPEVINE_DATA, else the user's cache].", metavar="DIR")
    label: str | None = own(None, "The label column of a table.", metavar="COL")
    party: str | None = own(None, "The column of a table that says whose row it is.", metavar="COL")
    id: str | None = same(LabelSettings, "id", text="The column that names a row; it is no feature.")
    features: tuple[str, ...] | None = same(LabelSettings, "features")
    categories: tuple[str, ...] = same(LabelSettings, "categories")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    impute: bool = own(False, "Missing numbers become the mean of the training rows, with a column that says where.")
    clients: int | None = own(None, "Number of clients [100, or all parties of a natural partition].", kind=int, varies=True)
    partition: str | None = own(None, "iid, dirichlet:0.1, shards:2, fedmatch, natural [iid].", metavar="HOW", varies=True)
    split: str | None = own(None, "Use the split.json of another run.", metavar="FILE")
    labels: str = own("all", LABELS, metavar="WHERE", varies=True)
    labels_from: str | None = own(
        None, "Also the labels that a finished label job left, parties by name and rows by id.", metavar="LABELS"
    )
    min_confidence: float = own(0.0, "Of these labels, those of this confidence or more.", least=0, most=1, metavar="CONFIDENCE")
    flip: float | str = own(0.0, "Share of the clients' labels made wrong; with :pair each class becomes the next one.",
                            read=number_or_words, metavar="SHARE[:pair]", varies=True)  # fmt: skip
    irrelevant: str | None = own(None, "Foreign rows per own row, as mnist:0.5.", metavar="NAME:SHARE", varies=True)
    validation: float = own(0.1, "Share of rows kept for choosing the best round.", metavar="SHARE", varies=True)


@dataclass(frozen=True)
class TrainSettings(RunSettings, DataSettings):
    """`grapevine train`, `gv.train` and a federation's train job; the method's own fields are in `set`."""

    job: ClassVar[str] = "train"

    set: dict[str, Any] = param(
        None, "", "A field of the method (`grapevine methods NAME`).", kind=dict, read=read_fields, metavar="FIELD=VALUE"
    )
    runtime: str = own(
        "local", "spmd: on workers of torchrun or srun; flower-sim: on Ray's, by Flower.", choices=("local", "spmd", "flower-sim")
    )

    def run(self) -> dict[str, Any]:
        """Those of `run.settings`, as keywords."""
        return {name: getattr(self, name) for name in RunSettings.names()}


@dataclass(frozen=True)
class CompareSettings(DataSettings):
    """`grapevine compare` and `gv.compare`."""

    job: ClassVar[str] = "compare"

    model: str | None = same(RunSettings, "model", objects=False)
    norm: str | None = same(RunSettings, "norm")
    rounds: int = same(RunSettings, "rounds")
    per_round: int | None = same(RunSettings, "per_round")
    workers: int = same(RunSettings, "workers", text="Runs side by side; never changes the result.")
    device: str = same(RunSettings, "device")
    mode: str = same(RunSettings, "mode")
    evaluate_every: int = same(RunSettings, "evaluate_every")
    patience: int = same(RunSettings, "patience")
    seeds: Any = param(3, "", "How many: 0, 1, … The split of a seed is the same for all methods.", least=1, objects=True)
    set: dict[str, Any] = same(
        TrainSettings, "set", text="A field of all that have it, or of one.", metavar="[METHOD.]FIELD=VALUE"
    )
    vary: dict[str, Any] = param(
        None, "", "A cell for each value: labels, partition, clients, flip, …", kind=dict, read=read_vary, metavar="FLAG=A,B,C"
    )
    target: float | None = param(
        None, "", "Rounds and bytes to reach it [that of labelled rows only].", kind=float, least=0, most=1, metavar="SHARE"
    )
    budget: dict[str, Any] = param(
        None, "", "For all methods and bounds alike: epochs, batch, server_epochs, pretrain, weight_decay, schedule, augment, ….",
        kind=dict, read=read_budget, metavar="FIELD=VALUE,..."
    )  # fmt: skip
    latex: bool = param(False, "", "Write table.tex as well.")
    bounds: bool = param(True, "", "Add the bounds (each client alone, labelled rows only, all true labels).", flag=False)

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(dict.fromkeys(int(seed) for seed in self.seeds))

    def train(self, seed: int, fields_of_method: dict[str, Any]) -> TrainSettings:
        """One run of the comparison. It has one worker: the runs are side by side."""
        own = {name: getattr(self, name) for name in TrainSettings.names() if hasattr(self, name)}
        return TrainSettings(**own | dict(seed=seed, set=fields_of_method, workers=1))


@dataclass(frozen=True)
class PredictSettings(Settings):
    """`grapevine predict`. Columns are what they were in training, by name."""

    job: ClassVar[str] = "predict"

    id: str | None = same(LabelSettings, "id")
    features: tuple[str, ...] | None = same(
        LabelSettings, "features", text="The feature columns, in the order of training [those of training, by name]."
    )
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    impute: bool = own(False, "Missing numbers become the mean of the training rows.")
    method: str | None = own(None, "The method's own file, if the run's method is in no table.", metavar="FILE.py:CLASS")


JOBS: dict[str, type[Settings]] = {
    "label": LabelSettings,
    "train": TrainSettings,
    "clean": CleanSettings,
    "compare": CompareSettings,
}


def keywords(settings: type[Settings]) -> Callable[[F], F]:
    """A function that takes a job's settings as keywords shows them in its signature, with their defaults."""

    def show(function: F) -> F:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
        taken = {p.name for p in kept}
        more = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
                for f in fields(settings) if f.name not in taken]  # fmt: skip
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return function

    return show
