"""`grapevine clean`. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import grapevine as gv
from grapevine.cli.flags import flags, json_flag, new_flag, require_place
from grapevine.cli.shell import command_line, stopped
from grapevine.jobs.settings import CleanSettings

if TYPE_CHECKING:
    from grapevine.cli.terminal import StepBar
    from grapevine.jobs.clean_result import CleanResult


@click.command()
@click.argument("parties", nargs=-1, required=True, metavar="PARTY...")
@click.option("--server", required=True, metavar="FILE|FOLDER", help="The server's labelled rows, of the parties' form.")
@flags(CleanSettings)
@click.option("--dry-run", is_flag=True, help="Only say what would travel, what it reveals, and how long it takes.")
@json_flag
@new_flag
def clean(parties: tuple[str, ...], server: str, dry_run: bool, as_json: bool, out: str | None, **settings: Any) -> None:
    """Wrong labels mended, irrelevant rows set aside, at each party by a classifier from the server's rows (MP-SSFL).

    Each PARTY, and the server's set, is a CSV, Parquet or NPZ file, or a folder of images. The server may know fewer classes than
    the parties. No row leaves a party.

    \b
    grapevine clean north.csv south.csv --server experts.csv --label diagnosis --id patient --out cleaned
    grapevine clean north south --server experts --out cleaned
    """
    from grapevine.cli.terminal import StepBar

    require_place(out, dry_run)
    if dry_run:
        plan: Any = gv.clean(parties, server, dry_run=True, **settings)
        click.echo(json.dumps(plan, indent=1)) if as_json else show_plan(plan)
        return
    with stopped("nothing was written"), StepBar("clean") as bar:
        progress = None if as_json else told(bar)
        result: Any = gv.clean(parties, server, out=out, progress=progress, command=command_line(), **settings)
    folder = Path(str(out))
    click.echo((folder / "result.json").read_text(encoding="utf-8")) if as_json else show_cleaned(result, folder)


def told(bar: StepBar) -> Callable[[str, int, int], None]:
    """The steps on the bar; the classifier, which is no party's, in words of its own where there is no terminal."""

    def progress(step: str, done: int, total: int) -> None:
        if step != "classifier" or sys.stdout.isatty():
            bar(step, done, total)
        else:
            print("clean: the classifier is trained" if done else "clean: the classifier is being trained", flush=True)

    return progress


def show_plan(plan: dict[str, Any], most: int = 20) -> None:
    """`grapevine clean --dry-run`."""
    from grapevine.cli.terminal import console, show_table
    from grapevine.core.words import size

    down = [
        dict(to="each party", what=line["field"], bytes=size(line["bytes"]), reveals=line["reveals"]) for line in plan["server"]
    ]
    up = [dict(to="the server", what=line["field"] or "—", bytes=size(line["bytes"]), reveals=line["reveals"])
          for line in next(iter(plan["parties"].values()))]  # fmt: skip
    show_table("What would travel (nothing has been sent)", down + up)
    parties = list(plan["parties"])
    console.print(f"Parties: {', '.join(parties[:most])}{f' and {len(parties) - most} more' if len(parties) > most else ''}.")
    for sentence in plan["learns"]:
        console.print(sentence, soft_wrap=True)
    minutes = "under a minute" if plan["minutes"] < 1 else f"about {plan['minutes']:.0f} minutes"
    told = (
        f"Model {plan['model']}, {plan['parameters']:,} weights, {plan['epochs']} epochs on {plan['rows']} rows: {minutes} here."
    )
    console.print(told, soft_wrap=True)
    for note in plan["warnings"]:
        console.print(f"Note: {note}", soft_wrap=True)


def show_cleaned(result: CleanResult, folder: Path, most: int = 30) -> None:
    """The closing tables of a clean job."""
    from rich import box
    from rich.table import Table

    from grapevine.cli.terminal import console
    from grapevine.core.words import percent, size
    from grapevine.jobs.clean_result import AFTER, BEFORE

    table = Table(title=f"Labels cleaned by {result.model}, τ {result.method.tau:g}, Υ {result.method.upsilon:g}",
                  box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    for name in ("party", *result[0].table):
        table.add_column(name, justify="left" if name == "party" else "right")
    for p in result.parties[:most]:
        table.add_row(p.name, *map(str, p.table.values()))
    console.print(table)
    if len(result) > most:
        console.print(f"… and {len(result) - most} more parties.")
    for note in result.warnings:
        console.print(f"Note: {note}", soft_wrap=True)
    if result.measured:
        table = Table(title="Measured against the truth", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("what", "found", "right", "there were", "precision", "recall"):
            table.add_column(name, justify="left" if name == "what" else "right")
        for name, m in result.measured.items():
            if (m["found"] or m["of"]) and name not in (BEFORE, AFTER):
                table.add_row(name, *map(str, (m["found"], m["right"], m["of"])), percent(m["precision"]), percent(m["recall"]))
        console.print(table)
        before, after = (percent(result.measured[name]["precision"]) for name in (BEFORE, AFTER))
        told = f"Labels that are the true class: {before} of those given, {after} of those on rows not set aside."
        console.print(told, soft_wrap=True)
    e = result.expected
    if e["n"]:
        right = f", and right about {percent(e['sure_right'] / e['sure'])} of these" if e["sure"] else ""
        console.print(f"Of {e['n']} held-out rows of the server the classifier was sure of {e['sure']}{right}.", soft_wrap=True)
    console.print(f"{result.seconds:.1f} s, {size(result.bytes_up)} up, {size(result.bytes_down)} down.")
    console.print(f"Everything is in {folder} (open {folder / 'report.html'}).", soft_wrap=True)
