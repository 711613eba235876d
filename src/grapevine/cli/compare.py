"""The commands `compare` and `leaderboard`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

import grapevine as gv
from grapevine.cli.flags import config_flag, flags, json_flag, out_flag, resume_flag
from grapevine.cli.shell import again, command_line, goes_on
from grapevine.jobs.settings import CompareSettings


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@flags(CompareSettings)
@config_flag
@resume_flag
@json_flag
@out_flag
def compare(methods: tuple[str, ...], resume: bool, as_json: bool, out: str, **settings: Any) -> None:
    """Run several methods on the same splits and seeds, and write tables, curves and costs on one page.

    A METHOD may set its fields: xclp:hamming=plain,alpha=0.9. Bounds (each client alone, labelled rows only, all true labels) are
    added where they apply. --workers is the number of parallel runs. The command exits with 1 if a run failed; the other runs are
    kept, and --resume repeats those that failed.

    \b
    grapevine compare xclp protofssl fedsem --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/compared
    grapevine compare xclp xclp:preset=code --data digits --vary labels=clients:50,clients:100,clients:200 --out runs/grid
    """
    from grapevine.cli.bars import CompareBar
    from grapevine.cli.compare_terminal import show_comparison

    with goes_on(resume), CompareBar("compare", quiet=as_json) as bar:
        made = gv.compare(methods, settings.pop("data"), out, resume=resume, progress=bar, command=command_line(), **settings)
    click.echo(json.dumps(made.table, indent=1)) if as_json else show_comparison(made)
    if made.failed:
        click.echo(f"{len(made.failed)} of {len(made.runs)} runs failed; repeat them with: {again(resume)}", err=True)
        sys.exit(1)


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", default="leaderboard.html", metavar="FILE.html", help="The page to write.")
@json_flag
def leaderboard(folders: tuple[str, ...], out: str, as_json: bool) -> None:
    """Summarise several comparisons on one page: which method is best in each, and on average.

    \b
    grapevine leaderboard runs/digits runs/fashion --out leaderboard.html
    """
    from grapevine.jobs.compare import load
    from grapevine.jobs.ranking import places, ranking
    from grapevine.report.leaderboard import write

    loaded = [load(folder) for folder in folders]
    if as_json:
        click.echo(json.dumps(ranking(places(loaded)), indent=1))
    click.echo(f"Wrote {write(loaded, Path(out))}.", err=as_json)
