"""`grapevine clean`. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grapevine.cli.flags import SEED, workers_flag

if TYPE_CHECKING:
    from grapevine.cli.terminal import StepBar
    from grapevine.jobs.clean import CleanResult


@click.command()
@click.argument("parties", nargs=-1, required=True, metavar="PARTY...")
@click.option("--server", required=True, metavar="FILE|FOLDER", help="The server's labelled rows, of the parties' form.")
@click.option("--label", "label_column", metavar="COL", help="The label column; an empty cell, NaN or -1 is an unlabelled row.")
@click.option("--id", "id_column", metavar="COL", help="The column that names a row [row numbers].")
@click.option("--features", metavar="COL,...", help="The feature columns [all others].")
@click.option("--truth", metavar="COL", help="True labels, for measuring only; empty or unknown to the server: irrelevant.")
@click.option("--tau", default=0.95, help="Confidence from which a prediction counts, 0.5 to 1.")
@click.option("--upsilon", default=0.5, help="Loss up to which a label is acceptable, at most ln 2.")
@click.option("--model", metavar="NAME", help="The classifier: linear, mlp, cnn, … [images: cnn; --embed: linear; tables: mlp].")
@click.option("--epochs", type=int, metavar="N", help="Passes over the server's rows [30; more for few rows: 1000 steps].")
@click.option(
    "--scale",
    default="standard",
    type=click.Choice(["standard", "none"]),
    help="Features by the server's means and deviations, or as they are.",
)
@click.option("--impute", is_flag=True, help="Missing features become the server's mean.")
@click.option("--embed", metavar="efficientnet-lite0|RUN", help="Features of images, or of a finished train run.")
@click.option("--counts", is_flag=True, help="Parties tell the server how many rows they kept, mended and set aside.")
@click.option("--seed", type=SEED, default=0, help="Everything random depends on it alone.")
@workers_flag("Parties computed side by side; never changes the result.")
@click.option("--dry-run", is_flag=True, help="Only say what would travel, what it reveals, and how long it takes.")
@click.option("--json", "as_json", is_flag=True, help="Print result.json (with --dry-run: the plan) instead of tables.")
@click.option("--out", metavar="DIR", help="A new folder for the results.")
def clean(parties: tuple[str, ...], server: str, label_column: str | None, id_column: str | None, features: str | None,
          truth: str | None, impute: bool, embed: str | None, model: str | None, seed: int, workers: int, dry_run: bool,
          as_json: bool, out: str | None, **settings: Any) -> None:  # fmt: skip
    """Wrong labels mended, irrelevant rows set aside, at each party by a classifier from the server's rows (MP-SSFL).

    Each PARTY, and the server's set, is a CSV, Parquet or NPZ file, or a folder of images. The server may know fewer classes than
    the parties. No row leaves a party.

    \b
    grapevine clean north.csv south.csv --server experts.csv --label diagnosis --id patient --out cleaned
    grapevine clean north south --server experts --out cleaned
    """
    from grapevine.cli.main import command_line, stopped
    from grapevine.cli.terminal import StepBar
    from grapevine.jobs import clean as job

    if not dry_run:
        job.require_new(out)
    columns = [name.strip() for name in features.split(",")] if features else None
    own, read = job.read_files(server, parties, label_column, id_column, columns, truth, impute, embed)
    method = job.make_method(own, impute=impute, **settings)
    model = model or job.default_model(own, embed)
    if dry_run:
        plan = job.plan(own, read, method, model, seed, workers)
        click.echo(json.dumps(plan, indent=1)) if as_json else show_plan(plan)
        return
    with stopped("nothing was written"), StepBar("clean") as bar:
        result = job.run(own, read, method, model, seed, workers, None if as_json else told(bar))
        job.write(Path(out), result, command_line())
    if as_json:
        click.echo(json.dumps(job.summary_json(result, command_line()), indent=1))
    else:
        show_cleaned(result, Path(out))


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
    from grapevine.jobs.clean import AFTER, BEFORE

    table = Table(title=f"Labels cleaned by {result.model}, τ {result.method.tau:g}, Υ {result.method.upsilon:g}",
                  box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    for name in ("party", "rows", "kept", "mended", "newly labelled", "set aside"):
        table.add_column(name, justify="left" if name == "party" else "right")
    for p in result.parties[:most]:
        c = p.counts
        numbers = [len(p.ids), c["kept"], c["mended"] - c["labelled"], c["labelled"], c["set aside"]]
        table.add_row(p.name, *map(str, numbers))
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
