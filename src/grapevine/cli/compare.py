"""The commands `compare` and `leaderboard`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from grapevine.cli.flags import experiment_flags, json_flag, out_flag, read_settings


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@experiment_flags
@click.option("--seeds", default=3, help="How many: 0, 1, … The split of a seed is the same for all methods.")
@click.option("--set", "settings", multiple=True, metavar="[METHOD.]FIELD=VALUE", help="A field of all that have it, or of one.")
@click.option("--vary", multiple=True, metavar="FLAG=A,B,C", help="A cell for each value: labels, partition, clients, flip, …")
@click.option("--target", type=float, metavar="SHARE", help="Rounds and bytes to reach it [that of labelled rows only].")
@click.option("--latex", is_flag=True, help="Write table.tex as well.")
@click.option("--resume", is_flag=True, help="Go on with DIR: only what is missing is run.")
@json_flag
@out_flag
def compare(methods: tuple[str, ...], seeds: int, settings: tuple[str, ...], vary: tuple[str, ...], target: float | None,
            latex: bool, resume: bool, as_json: bool, out: str, **flags: Any) -> None:  # fmt: skip
    """Several methods on the same splits: a table with means over seeds, curves, costs, one page.

    A METHOD may have fields: xclp:hamming=plain,alpha=0.9. The bounds (alone, labelled rows only, all true labels) are added
    where they apply. --workers is the number of runs side by side. Exits 1 if a run failed: the others are kept, and --resume
    repeats those that failed.

    \b
    grapevine compare xclp protofssl fedsem --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/compared
    grapevine compare xclp xclp:preset=code --data digits --vary labels=clients:50,clients:100,clients:200 --out runs/grid
    """
    from grapevine.cli.compare_terminal import CompareBar, show_comparison
    from grapevine.jobs import compare as job

    command = job.command_line()
    flags["split"] = flags.pop("split_file")
    with CompareBar(quiet=as_json) as bar:
        try:
            made = job.compare(
                methods, out=out, seeds=seeds, set=read_settings(settings), vary=job.varied(vary), target=target, latex=latex,
                resume=resume, progress=bar, command=command, **flags,
            )  # fmt: skip
        except KeyboardInterrupt:
            bar.stop()
            click.echo(f"\nStopped. Go on with: {command}{'' if resume else ' --resume'}", err=True)
            sys.exit(130)
    click.echo(json.dumps(made.table, indent=1)) if as_json else show_comparison(made)
    if made.failed:
        how = f"{command}{'' if resume else ' --resume'}"
        click.echo(f"{len(made.failed)} of {len(made.runs)} runs failed; repeat them with: {how}", err=True)
        sys.exit(1)


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", default="leaderboard.html", metavar="FILE.html", help="The page.")
@json_flag
def leaderboard(folders: tuple[str, ...], out: str, as_json: bool) -> None:
    """One page over several comparisons: who is best where, and on average.

    \b
    grapevine leaderboard runs/digits runs/fashion --out leaderboard.html
    """
    from grapevine.jobs.compare import load
    from grapevine.report import compare as compare_page

    loaded = [load(folder) for folder in folders]
    if as_json:
        click.echo(json.dumps(compare_page.ranking(compare_page.places(loaded)), indent=1))
    click.echo(f"Wrote {compare_page.write_leaderboard(loaded, Path(out))}.", err=as_json)
