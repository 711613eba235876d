"""The settings of the jobs, each with its default, its range and its words: flags, keywords, tables and help are made from here.

A setting that is `local` is each party's own business; the parties of a federation agree on all others. The seed is apart: a
federation has one only if it is told to be reproducible. Nothing heavy is imported here, so that a command can say what it takes
before torch is there.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from grapevine.core.param import Settings, param, same

CORES = min(2, os.cpu_count() or 1)
LABELS = "all, clients:1000, clients:1000/50, clients:1000~5, fraction:0.1, server:500, server:500,clients:all, server:500@0-7."
MODELS = "linear, mlp, cnn, cnn13, resnet9, resnet18, wrn28x2 [cnn; tables: mlp]."
SEEDS: dict[str, Any] = dict(kind=int, least=-(2**63), most=2**63 - 1, local=True)


@dataclass(frozen=True)
class LabelSettings(Settings):
    """`grapevine label`, `gv.label` and a federation's label job."""

    job: ClassVar[str] = "label"

    label: str | None = param(
        None, "", "The label column; an empty cell, NaN or -1 is an unlabelled row.", metavar="COL", local=True
    )
    id: str | None = param(None, "", "The column that names a row [row numbers].", metavar="COL", local=True)
    features: tuple[str, ...] | None = param(
        None, "", "The feature columns [all others].", kind=tuple, metavar="COL,...", local=True
    )
    truth: Any = param(None, "", "True labels, for measuring only.", metavar="COL", objects=True, local=True)
    scale: str = param("standard", "", "Features by securely summed moments, or as they are.", choices=("standard", "none"))
    impute: bool = param(False, "", "Missing features become the secure mean.")
    embed: str | None = param(None, "", "Features of images, or of a finished train run.", metavar="efficientnet-lite0|RUN")
    secure: str = param("mlwe", "", "mlwe, psm, paillier, ot or plain (no protection).", metavar="PROTOCOL",
                        choices=("mlwe", "psm", "paillier", "ot", "plain"))  # fmt: skip
    bits: int = param(4096, "L", "Bits of a hash.", least=1, most=2**15 - 1)
    neighbours: int | str = param(10, "k", "Neighbours of a row; auto tries several.", least=1, words=("auto",), metavar="K|auto")
    alpha: float = param(0.99, "α", "How far labels spread, below 1.", least=0, below=1)
    abstain: float = param(
        0.0, "", "Below this confidence a row gets no label.", least=0, most=1, metavar="CONFIDENCE", local=True
    )
    groups: int = param(1, "", "Label in N separate groups of parties: cheaper, less exact.", least=1, metavar="N")
    preset: str = param("code", "", "As the authors' code, or as the paper.", choices=("code", "paper"))
    baselines: bool = param(
        False, "", "Also label by Gaussian heads and by the nearest own labelled row, to compare.", local=True
    )
    seed: int | None = param(None, "", "Repeats exactly; hyperplanes are then not secret.", **SEEDS)
    workers: int = param(CORES, "", "Parties computed side by side; never changes the result.", least=1, local=True)


@dataclass(frozen=True)
class CleanSettings(Settings):
    """`grapevine clean`, `gv.clean` and a federation's clean job."""

    job: ClassVar[str] = "clean"

    label: str | None = same(LabelSettings, "label")
    id: str | None = same(LabelSettings, "id")
    features: tuple[str, ...] | None = same(LabelSettings, "features")
    truth: Any = same(LabelSettings, "truth", text="True labels, for measuring only; empty or unknown to the server: irrelevant.")
    tau: float = param(0.95, "τ", "Confidence from which a prediction counts, 0.5 to 1.", least=0.5, most=1)
    upsilon: float = param(0.5, "Υ", "Loss up to which a label is acceptable, at most ln 2.", above=0, most=math.log(2))
    model: str | None = param(
        None, "", "The classifier: linear, mlp, cnn, … [images: cnn; --embed: linear; tables: mlp].", metavar="NAME"
    )
    epochs: int | None = param(
        None, "", "Passes over the server's rows [30; more for few rows: 1000 steps].", kind=int, least=1, metavar="N"
    )
    scale: str = same(LabelSettings, "scale", text="Features by the server's means and deviations, or as they are.")
    impute: bool = same(LabelSettings, "impute", text="Missing features become the server's mean.")
    embed: str | None = same(LabelSettings, "embed")
    counts: bool = param(False, "", "Parties tell the server how many rows they kept, mended and set aside.")
    seed: int = param(0, "", "Everything random depends on it alone.", **SEEDS)
    workers: int = same(LabelSettings, "workers")


@dataclass(frozen=True)
class DataSettings(Settings):
    """A data set, and who holds what of it."""

    job: ClassVar[str] = "data"

    data: str = param(
        None, "", "By name (`grapevine data list`), or a file.", metavar="NAME|FILE|FOLDER", required=True, local=True
    )
    data_dir: str | None = param(
        None, "", "Where data files are [else $GRAPEVINE_DATA, else the user's cache].", metavar="DIR", local=True
    )
    label: str | None = param(None, "", "The label column of a table.", metavar="COL", local=True)
    party: str | None = param(None, "", "The column of a table that says whose row it is.", metavar="COL", local=True)
    clients: int | None = param(None, "", "Number of clients [100, or all parties of a natural partition].", kind=int, local=True)
    partition: str | None = param(None, "", "iid, dirichlet:0.1, shards:2, fedmatch, natural [iid].", metavar="HOW", local=True)
    split: str | None = param(None, "", "Use the split.json of another run.", metavar="FILE", local=True)
    labels: str = param("all", "", LABELS, metavar="WHERE", local=True)
    flip: float = param(0.0, "", "Share of the clients' labels made wrong.", metavar="SHARE", local=True)
    irrelevant: str | None = param(None, "", "Foreign rows per own row, as mnist:0.5.", metavar="NAME:SHARE", local=True)
    validation: float = param(0.1, "", "Share of rows kept for choosing the best round.", metavar="SHARE", local=True)


@dataclass(frozen=True)
class TrainSettings(DataSettings):
    """`grapevine train`, `gv.train` and a federation's train job; the method's own fields are in `set`."""

    job: ClassVar[str] = "train"

    model: Any = param(None, "", MODELS, metavar="NAME", objects=True)
    norm: str | None = param(None, "", "Normalisation [the model's own].", choices=("none", "bn", "gn", "sbn"))
    rounds: int = param(100, "", "Rounds in all.", least=1)
    per_round: int | None = param(10, "", "Clients chosen in a round.", least=1, empty=True)
    workers: int = param(CORES, "", "Clients side by side; never changes the result.", least=1, local=True)
    device: str = param("auto", "", "auto, cpu, cuda or mps.", local=True)
    mode: str = param("fast", "", "strict encodes all messages.", choices=("fast", "strict"), local=True)
    evaluate_every: int = param(0, "", "Rounds between evaluations [about 50 in all].", least=0, metavar="N")
    patience: int = param(0, "", "Stop after N evaluations without a better one; 0: never.", least=0, metavar="N")
    seed: int = same(CleanSettings, "seed")
    set: dict[str, Any] = param(None, "", "A field of the method (`grapevine methods NAME`).", kind=dict, metavar="FIELD=VALUE")
    runtime: str = param(
        "local", "", "flower-sim: clients on Ray's workers, by Flower.", choices=("local", "flower-sim"), local=True
    )
    latent: int = param(
        1, "", "Pictures of the latent space: of the end, and of N - 1 rounds before; 0: none.", least=0, metavar="N", local=True
    )


@dataclass(frozen=True)
class CompareSettings(DataSettings):
    """`grapevine compare` and `gv.compare`."""

    job: ClassVar[str] = "compare"

    model: str | None = same(TrainSettings, "model", objects=False)
    norm: str | None = same(TrainSettings, "norm")
    rounds: int = same(TrainSettings, "rounds")
    per_round: int | None = same(TrainSettings, "per_round")
    workers: int = same(TrainSettings, "workers", text="Runs side by side; never changes the result.")
    device: str = same(TrainSettings, "device")
    mode: str = same(TrainSettings, "mode")
    evaluate_every: int = same(TrainSettings, "evaluate_every")
    patience: int = same(TrainSettings, "patience")
    seeds: Any = param(3, "", "How many: 0, 1, … The split of a seed is the same for all methods.", least=1, objects=True)
    set: dict[str, Any] = same(
        TrainSettings, "set", text="A field of all that have it, or of one.", metavar="[METHOD.]FIELD=VALUE"
    )
    vary: dict[str, Any] = param(
        None, "", "A cell for each value: labels, partition, clients, flip, …", kind=dict, metavar="FLAG=A,B,C"
    )
    target: float | None = param(
        None, "", "Rounds and bytes to reach it [that of labelled rows only].", kind=float, least=0, most=1, metavar="SHARE"
    )
    latex: bool = param(False, "", "Write table.tex as well.")
    bounds: bool = param(True, "", "Add the bounds (each client alone, labelled rows only, all true labels).", flag=False)


JOBS: dict[str, type[Settings]] = {
    "label": LabelSettings,
    "train": TrainSettings,
    "clean": CleanSettings,
    "compare": CompareSettings,
}
