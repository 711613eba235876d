"""`grapevine label` and `demo`. Heavy imports wait until they are needed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

import grapevine as gv
from grapevine.cli.flags import config_flag, flags, new_flag, require_place
from grapevine.cli.shell import command_line, stopped
from grapevine.jobs.settings import LabelSettings


@click.command()
@click.argument("parties", nargs=-1, required=True, metavar="PARTY...")
@flags(LabelSettings)
@config_flag
@click.option(
    "--dry-run", is_flag=True, help="Send nothing: only show what would leave each party, what it reveals and what it costs."
)
@new_flag
def label(parties: tuple[str, ...], dry_run: bool, out: str | None, **settings: Any) -> None:
    """Label every party's unlabelled rows in one job, with probabilities. No row leaves its party.

    Each PARTY is a table (CSV, Parquet, NPZ, Excel, …) or, with --embed, a folder of images. This command runs all parties on
    this machine, with the real cryptography. To run the same job between machines, use `grapevine host` and `grapevine join`.

    \b
    grapevine label north.csv south.csv east.csv --label diagnosis --id patient --out labels
    grapevine label north.csv south.csv east.csv --label diagnosis --dry-run
    """
    from grapevine.cli.bars import StepBar
    from grapevine.cli.terminal import show_labels, show_plan

    require_place(out, dry_run)
    if dry_run:
        plan: Any = gv.label(parties, dry_run=True, **settings)
        show_plan(plan)
        return
    with stopped("nothing was written"), StepBar("label") as bar:
        result = gv.label(parties, out=out, progress=bar, command=command_line(), **settings)
    if settings["seed"] is not None:
        click.echo("Hyperplanes are reproducible, not secret.")
    if settings["secure"] == "plain":
        click.echo("plain gives no protection: the server sees every party's hash bits.")
    show_labels(result, Path(str(out)))


@click.command()
@click.option("--out", metavar="DIR", help="Where to keep the results [a temporary folder].")
@click.option("--parties", type=int, metavar="N", help="Start a host and N parties as separate processes that talk over TLS.")
def demo(out: str | None, parties: int | None) -> None:
    """Show five parties label handwritten digits together, with lattice encryption, in a few seconds.

    \b
    grapevine demo
    grapevine demo --parties 3
    """
    from grapevine.cli.bars import StepBar
    from grapevine.cli.demo import CENTRES, PARTIES, digits_parties
    from grapevine.cli.terminal import show_labels
    from grapevine.jobs.folder import require_new

    if out:
        require_new(out)
    if parties is not None:
        from grapevine.cli.demo_parties import demo_parties

        return demo_parties(parties, out)
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="grapevine-demo-")) / "labels"
    read = digits_parties(PARTIES)
    rows, known = sum(len(p.ids) for p in read), sum(label is not None for p in read for label in p.labels)
    click.echo(
        f"{len(read)} parties hold {rows} handwritten digits; {known} of them are labelled. No party shows its rows to anybody."
    )
    with stopped("nothing was written"), StepBar("label") as bar:
        result = gv.label([(p.x, p.labels) for p in read], names=[p.name for p in read], truth=[p.truth for p in read],
                          landmarks=CENTRES, out=folder, progress=bar, command=command_line())  # fmt: skip
    show_labels(result, folder)
