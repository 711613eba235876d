"""`grapevine clean`. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

import grapevine as gv
from grapevine.cli.flags import config_flag, flags, json_flag, new_flag, require_place
from grapevine.cli.shell import command_line, stopped
from grapevine.jobs.settings import CleanSettings


@click.command()
@click.argument("parties", nargs=-1, required=True, metavar="PARTY...")
@click.option(
    "--server", required=True, metavar="FILE|FOLDER", help="The server's labelled rows, in the same form as the parties'."
)
@flags(CleanSettings)
@config_flag
@click.option(
    "--dry-run", is_flag=True, help="Send nothing: only show what would be sent, what it reveals and how long it takes."
)
@json_flag
@new_flag
def clean(parties: tuple[str, ...], server: str, dry_run: bool, as_json: bool, out: str | None, **settings: Any) -> None:
    """Correct wrong labels and exclude irrelevant rows at each party (MP-SSFL).

    The server trains a classifier on its own labelled rows, and each party applies it. Each PARTY and the server's set is a table
    or a folder of images. The server may know fewer classes than the parties. No row leaves a party.

    \b
    grapevine clean north.csv south.csv --server experts.csv --label diagnosis --id patient --out cleaned
    grapevine clean north south --server experts --out cleaned
    """
    from grapevine.cli.bars import StepBar
    from grapevine.cli.terminal import show_clean_plan, show_cleaned

    require_place(out, dry_run)
    if dry_run:
        plan: Any = gv.clean(parties, server, dry_run=True, **settings)
        click.echo(json.dumps(plan, indent=1)) if as_json else show_clean_plan(plan)
        return
    with stopped("nothing was written"), StepBar("clean", quiet=as_json) as bar:
        result: Any = gv.clean(parties, server, out=out, progress=bar, command=command_line(), **settings)
    folder = Path(str(out))
    click.echo((folder / "result.json").read_text(encoding="utf-8")) if as_json else show_cleaned(result, folder)
