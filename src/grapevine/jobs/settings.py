"""The settings of the jobs, each with its default, its range and its description. Flags, keywords, tables and help are made from
them.

A `local` setting is each party's own choice; the parties of a federation agree on all others. A federation has a seed only if it
is reproducible. Nothing heavy is imported here, so that a command can answer before torch is loaded.
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
LABELS = (
    "Who has labels: all, clients:1000, clients:1000/50, clients:1000~5, fraction:0.1, server:500, server:500,clients:all, "
    "server:500@0-7."
)

NO_DP = (
    "clean has no --{name}: the classifier comes to the party and decides there, so no label leaves it and no sum is opened "
    "(with --counts, three totals of each party leave). Leave the setting out."
)


def read_fields(given: Mapping[str, Any] | Sequence[str], example: str = "--set lr=0.05") -> dict[str, str]:
    """Fields of a method as texts: from a table, or from `--set field=value`."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Mistake(f"{example.split()[0]} {text or repr(text)} is not field=value, as in {example}.")
        pairs[name.strip()] = value.strip()
    return pairs


def read_budget(given: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    """Fields of a budget: a table, or `epochs=5,batch=50`."""
    pieces = given if isinstance(given, Mapping) else [piece.strip() for text in given for piece in text.split(",")]
    return read_fields(pieces, "--budget epochs=5,batch=50")


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
        name, equals, words = re.sub(r"\s*([=,])\s*", r"\1", text.strip()).partition("=")
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

    label: str | None = own(
        None, "The column with the labels. A row is unlabelled where it is empty, NA, ? or -1.", metavar="COL"
    )
    id: str | None = own(None, "The column with the rows' ids [row numbers].", metavar="COL")
    features: tuple[str, ...] | None = own(None, "The feature columns [all others].", kind=tuple, metavar="COL,...")
    categories: tuple[str, ...] = own(
        (), "Columns of numbers to treat as categories. Text columns always are.", kind=tuple, metavar="COL,..."
    )
    missing: tuple[str, ...] = own(
        (), "More words for a missing value, besides NA, N/A, null, None, ? and -.", kind=tuple, metavar="WORD,..."
    )
    decimal: str = own("auto", "Decimal mark of the files: point, comma or auto.", choices=("auto", "point", "comma"))
    truth: Any = own(None, "The column with the true labels, used only to measure the result.", metavar="COL", objects=True)
    method: str = param("chorus", "", "chorus, or xclp for the paper's method.", choices=("chorus", "xclp"))
    scale: str = param("auto", "", "How to scale features: each by its own deviation (standard), all by one (one), not at all "
                       "(none), or auto.",
                       choices=("auto", "standard", "one", "none"))  # fmt: skip
    impute: bool = param(False, "", "Replace missing numbers by the mean over all parties, and add a column that marks them.")
    embed: str | None = param(
        None, "", "Compute features from images, or with the model of a finished training run.", metavar="efficientnet-lite0|RUN"
    )
    secure: str = param("mlwe", "", "The protocol for distances: mlwe, psm, paillier, ot or plain (no protection).",
                        metavar="PROTOCOL", choices=("mlwe", "psm", "paillier", "ot", "plain"))  # fmt: skip
    landmarks: int | str | None = param(None, "", "Graph nodes per party besides its labelled rows: all its rows, N cluster "
                                        "centres, or its share of 5,000 [auto; xclp: all].", least=1,
                                        words=("auto", "all"), metavar="auto|all|N", kind=int)  # fmt: skip
    bits: int | None = param(None, "L", "Bits per hash [1024; xclp: 4096].", least=1, most=2**15 - 1, kind=int)
    neighbours: int | str | None = param(None, "k", "Neighbours per row; auto tries several values [auto; xclp: 10].", least=1,
                                         words=("auto",), metavar="K|auto", kind=int)  # fmt: skip
    alpha: float | str | None = param(None, "α", "How far labels spread, below 1; auto tries several values [auto; xclp: 0.99].",
                                      above=0, below=1, words=("auto",), metavar="ALPHA|auto", kind=float)  # fmt: skip
    smooth: bool = param(False, "", "chorus: add a voice that averages over each row's neighbours.")
    spread: str = param("private", "", "How labels spread: private, or paper (which lets parties read each other's labels).",
                        choices=("private", "paper"))  # fmt: skip
    abstain: float = own(
        0.0, "Give no label to a row whose probability (xclp: confidence) is below this.", least=0, most=1, metavar="P"
    )
    target: float | None = own(None, "Abstain on enough rows that the given labels are expected to be right this often.",
                               above=0, below=1, metavar="SHARE", kind=float)  # fmt: skip
    dp_labels: float | None = param(None, "ε", "Randomise labels before they leave a party, with this ε of differential privacy.",
                                    above=0, metavar="EPSILON", kind=float)  # fmt: skip
    dp: float | None = param(None, "ε", "Noise in the sums that are opened, with this ε of differential privacy.", above=0,
                             metavar="EPSILON", kind=float)  # fmt: skip
    delta: float = same(RunSettings, "delta")
    groups: int = param(1, "", "Label in N separate groups of parties, which is cheaper but less accurate.", least=1, metavar="N")
    preset: str = param("code", "", "xclp: follow the authors' code or the paper.", choices=("code", "paper"))
    baselines: bool = own(
        False, "For comparison, also label by the nearest own labelled row and by fedncm, fed3r, fedcgs, fedcof and gh-ofl."
    )
    seed: int | None = same(
        RunSettings, "seed", default=None, kind=int, text="Make the run repeatable. The hyperplanes are then not secret."
    )
    workers: int = same(RunSettings, "workers", text="Parties computed in parallel. It never changes the result.")


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
    truth: Any = same(
        LabelSettings,
        "truth",
        text="The column with the true labels, used only to measure. Empty or unknown to the server means irrelevant.",
    )
    tau: float = param(0.95, "τ", "The confidence from which a prediction counts, 0.5 to 1.", least=0.5, most=1)
    upsilon: float = param(0.5, "Υ", "The loss up to which a label is accepted, at most ln 2.", above=0, most=math.log(2))
    model: str | None = param(
        None, "", "The classifier: linear, mlp, cnn, … [images: cnn; --embed: linear; tables: mlp].", metavar="NAME"
    )
    epochs: int | None = param(
        None, "", "Passes over the server's rows [30, or more to make at least 1000 steps].", kind=int, least=1, metavar="N"
    )
    scale: str = param("standard", "", "Scale features by the server's means and deviations (standard), or not (none).",
                       choices=("standard", "none"))  # fmt: skip
    impute: bool = same(
        LabelSettings, "impute", text="Replace missing numbers by the server's mean, and add a column that marks them."
    )
    embed: str | None = same(LabelSettings, "embed")
    counts: bool = param(False, "", "Let parties tell the server how many rows they kept, corrected and excluded.")
    dp_labels: float | None = own(None, "Refused: nothing about labels leaves a party in this job.", kind=float, hidden=True)
    dp: float | None = own(None, "Refused: this job opens no sum.", kind=float, hidden=True)
    seed: int = same(RunSettings, "seed")
    workers: int = same(LabelSettings, "workers")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dp_labels", "dp"):
            if getattr(self, name) is not None:
                raise Mistake(NO_DP.format(name=name.replace("_", "-")))


@dataclass(frozen=True)
class DataSettings(Settings):
    """A data set, and who holds what of it."""

    job: ClassVar[str] = "data"

    data: Any = own(None, "The name of a data set (`grapevine data list`), or your own file or folder.",
                    metavar="NAME|FILE|FOLDER", needed="digits", varies=True, objects=True)  # fmt: skip
    data_dir: str | None = own(None, "The folder of data files [$GRAPEVINE_DATA, or the user's cache].", metavar="DIR")
    label: str | None = own(None, "The column of the table with the labels.", metavar="COL")
    party: str | None = own(None, "The column of the table that says which party owns each row.", metavar="COL")
    id: str | None = same(LabelSettings, "id", text="The column with the rows' ids, which is not used as a feature.")
    features: tuple[str, ...] | None = same(LabelSettings, "features")
    categories: tuple[str, ...] = same(LabelSettings, "categories")
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    impute: bool = own(False, "Replace missing numbers by the mean of the training rows, and add a column that marks them.")
    size: int | None = own(
        None, "Resize images in a folder to this many pixels on each side.", kind=int, least=1, metavar="PIXELS"
    )
    clients: int | None = own(None, "Number of clients [100, or all parties of a natural partition].", kind=int, varies=True)
    partition: str | None = own(
        None, "How rows are dealt to clients: iid, dirichlet:0.1, shards:2, fedmatch, natural [iid].", metavar="HOW", varies=True
    )
    split: str | None = own(None, "Reuse the split.json of another run.", metavar="FILE")
    labels: str = own("all", LABELS, metavar="WHERE", varies=True)
    labels_from: str | None = own(
        None, "Also train on the labels of a finished label job, matched by party name and row id.", metavar="LABELS"
    )
    min_confidence: float = own(
        0.0, "With --labels-from, use only labels of at least this confidence.", least=0, most=1, metavar="CONFIDENCE"
    )
    flip: float | str = own(0.0, "Make this share of the clients' labels wrong; with :pair each class becomes the next one.",
                            read=number_or_words, metavar="SHARE[:pair]", varies=True)  # fmt: skip
    irrelevant: str | None = own(
        None, "Add rows of another data set: mnist:0.5 adds one per two of your own.", metavar="NAME:SHARE", varies=True
    )
    validation: float = own(0.1, "Share of rows held out to choose the best round.", metavar="SHARE", varies=True)


@dataclass(frozen=True)
class TrainSettings(RunSettings, DataSettings):
    """`grapevine train`, `gv.train` and a federation's train job; the method's own fields are in `set`."""

    job: ClassVar[str] = "train"

    set: dict[str, Any] = param(
        None, "", "Set a field of the method (see `grapevine methods NAME`).", kind=dict, read=read_fields, metavar="FIELD=VALUE"
    )
    runtime: str = own(
        "local",
        "spmd runs on workers started by torchrun or srun; flower-sim runs in Flower's simulation on Ray.",
        choices=("local", "spmd", "flower-sim"),
    )

    def run(self) -> dict[str, Any]:
        """The settings of `run.settings`, as keywords."""
        return {name: getattr(self, name) for name in RunSettings.names()}


@dataclass(frozen=True)
class CompareSettings(DataSettings):
    """`grapevine compare` and `gv.compare`."""

    job: ClassVar[str] = "compare"

    model: str | None = same(RunSettings, "model", objects=False)
    norm: str | None = same(RunSettings, "norm")
    rounds: int = same(RunSettings, "rounds")
    per_round: int | None = same(RunSettings, "per_round")
    workers: int = same(RunSettings, "workers", text="Runs in parallel. It never changes the result.")
    device: str = same(RunSettings, "device")
    mode: str = same(RunSettings, "mode")
    evaluate_every: int = same(RunSettings, "evaluate_every")
    patience: int = same(RunSettings, "patience")
    seeds: Any = param(3, "", "How many seeds to run: 0, 1, … All methods share the split of a seed.", least=1, objects=True)
    set: dict[str, Any] = same(
        TrainSettings, "set", text="Set a field of every method that has it, or of one method.", metavar="[METHOD.]FIELD=VALUE"
    )
    vary: dict[str, Any] = param(
        None,
        "",
        "Repeat the comparison for each value of labels, partition, clients, flip, …",
        kind=dict,
        read=read_vary,
        metavar="FLAG=A,B,C",
    )
    target: float | None = param(
        None,
        "",
        "Report the rounds and bytes needed to reach this accuracy [that of training on labelled rows only].",
        kind=float,
        least=0,
        most=1,
        metavar="SHARE",
    )
    budget: dict[str, Any] = param(
        None, "", "Give all methods and bounds the same epochs, batch, server_epochs, pretrain, weight_decay, schedule, …",
        kind=dict, read=read_budget, metavar="FIELD=VALUE,..."
    )  # fmt: skip
    latex: bool = param(False, "", "Also write table.tex.")
    bounds: bool = param(True, "", "Add the bounds (each client alone, labelled rows only, all true labels).", flag=False)

    @property
    def all_seeds(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(dict.fromkeys(int(seed) for seed in self.seeds))

    def train(self, seed: int, fields_of_method: dict[str, Any]) -> TrainSettings:
        """The settings of one run. It has one worker, because runs are parallel."""
        own = {name: getattr(self, name) for name in TrainSettings.names() if hasattr(self, name)}
        return TrainSettings(**own | dict(seed=seed, set=fields_of_method, workers=1))


@dataclass(frozen=True)
class PredictSettings(Settings):
    """`grapevine predict`. Columns are matched by name with those of training."""

    job: ClassVar[str] = "predict"

    id: str | None = same(LabelSettings, "id")
    features: tuple[str, ...] | None = same(
        LabelSettings, "features", text="The feature columns, in the order of training [the columns of training, by name]."
    )
    missing: tuple[str, ...] = same(LabelSettings, "missing")
    decimal: str = same(LabelSettings, "decimal")
    impute: bool = own(False, "Replace missing numbers by the mean of the training rows.")
    method: str | None = own(None, "The file of the method, if the run used one of your own.", metavar="FILE.py:CLASS")


JOBS: dict[str, type[Settings]] = {
    "label": LabelSettings,
    "train": TrainSettings,
    "clean": CleanSettings,
    "compare": CompareSettings,
}


def keywords(settings: type[Settings]) -> Callable[[F], F]:
    """Show a job's settings in the signature of a function that takes them as keywords."""

    def show(function: F) -> F:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
        taken = {p.name for p in kept}
        more = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
                for f in fields(settings) if f.name not in taken]  # fmt: skip
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return function

    return show
