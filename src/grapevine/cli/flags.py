"""The flags that several commands share, and the data and the split that they ask for. Nothing heavy is imported here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from grapevine.core.errors import Mistake

if TYPE_CHECKING:
    from grapevine.data import Dataset, Split

LABELS = "all, clients:1000, clients:1000/50, clients:1000~5, fraction:0.1, server:500, server:500,clients:all, server:500@0-7."


def workers_flag(text: str) -> Callable:
    return click.option("--workers", type=click.IntRange(1), default=min(2, os.cpu_count() or 1), help=text)


def experiment_flags(command: Callable) -> Callable:
    """The flags of `train`, in the order of its help."""
    flags = [
        click.option("--data", required=True, metavar="NAME|FILE|FOLDER", help="By name (`grapevine data list`), or a file."),
        click.option("--data-dir", metavar="DIR", help="Where data files are [else $GRAPEVINE_DATA, else the user's cache]."),
        click.option("--label", metavar="COL", help="The label column of a table."),
        click.option("--party", metavar="COL", help="The column of a table that says whose row it is."),
        click.option("--clients", type=int, help="Number of clients [100, or all parties of a natural partition]."),
        click.option("--partition", metavar="HOW", help="iid, dirichlet:0.1, shards:2, fedmatch, natural [iid]."),
        click.option("--split", "split_file", metavar="FILE", help="Use the split.json of another run."),
        click.option("--labels", default="all", metavar="WHERE", help=LABELS),
        click.option("--flip", default=0.0, metavar="SHARE", help="Share of the clients' labels made wrong."),
        click.option("--irrelevant", metavar="NAME:SHARE", help="Foreign rows per own row, as mnist:0.5."),
        click.option("--validation", default=0.1, metavar="SHARE", help="Share of rows kept for choosing the best round."),
        click.option("--model", metavar="NAME", help="linear, mlp, cnn, cnn13, resnet9, resnet18, wrn28x2 [cnn; tables: mlp]."),
        click.option("--norm", type=click.Choice(["none", "bn", "gn", "sbn"]), help="Normalisation [the model's own]."),
        click.option("--rounds", default=100, help="Rounds in all."),
        click.option("--per-round", default=10, help="Clients chosen in a round."),
        workers_flag("Clients side by side; never changes the result."),
        click.option("--device", default="auto", help="auto, cpu, cuda or mps."),
        click.option("--mode", default="fast", type=click.Choice(["fast", "strict"]), help="strict encodes all messages."),
        click.option("--evaluate-every", default=0, metavar="N", help="Rounds between evaluations [about 50 in all]."),
        click.option("--patience", default=0, metavar="N", help="Stop after N evaluations without a better one; 0: never."),
    ]  # fmt: skip
    for flag in reversed(flags):
        command = flag(command)
    return command


SEED = click.IntRange(-(2**63), 2**63 - 1)
out_flag = click.option("--out", required=True, metavar="DIR", help="A new folder for the results.")
json_flag = click.option("--json", "as_json", is_flag=True, help="For machines.")


def load_data(flags: dict[str, Any]) -> tuple[Dataset, Dataset | None]:
    """The data set that a command's flags name, and the one of irrelevant rows."""
    from grapevine import data

    dataset = data.load(flags["data"], data_dir=flags["data_dir"], party=flags["party"], label=flags["label"])
    foreign = None
    if flags["irrelevant"]:
        foreign = data.load(flags["irrelevant"].rsplit(":", 1)[0], data_dir=flags["data_dir"])
    return dataset, foreign


def make_split(flags: dict[str, Any], seed: int, loaded: tuple[Dataset, Dataset | None] | None = None) -> Split:
    """The split that a command's flags ask for, of data that is loaded already or is loaded now."""
    from grapevine import data

    dataset, foreign = loaded or load_data(flags)
    if flags["split_file"]:
        return data.Split.load(flags["split_file"], dataset, foreign)
    names = ("labels", "flip", "irrelevant", "validation")
    partition = flags["partition"] or ("natural" if flags["party"] else "iid")
    clients = 100 if flags["clients"] is None and partition != "natural" else flags["clients"]
    return dataset.split(
        clients=clients, partition=partition, **{name: flags[name] for name in names}, foreign=foreign, seed=seed
    )


def read_settings(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Mistake(f"--set {text} is not field=value, as in --set lr=0.05.")
        pairs[name] = value
    return pairs
