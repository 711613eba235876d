"""The command. Nothing heavy is imported before it is needed: `grapevine --help` answers at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from grapevine.cli import clean as cli_clean
from grapevine.cli import compare as cli_compare
from grapevine.cli import parties as cli_parties
from grapevine.cli import report as cli_report
from grapevine.cli.flags import SEED, experiment_flags, json_flag, make_split, out_flag, read_settings, workers_flag
from grapevine.core.errors import Mistake
from grapevine.core.version import __version__

CONTEXT = dict(help_option_names=["-h", "--help"], max_content_width=120, show_default=True)


class Commands(click.Group):
    """A mistake of the user is a sentence and exit code 2; `--debug` shows where it came from."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the docs, not of the alphabet

    def main(self, *args: Any, **extra: Any) -> Any:
        debug = "--debug" in sys.argv[1:]
        try:
            return super().main(*args, **extra)
        except Mistake as mistake:
            if debug:
                raise
            click.echo(f"grapevine: {mistake}", err=True)
            sys.exit(2)
        except Exception as error:
            from grapevine.core import StepError  # torch is loaded by now, or this was not a step

            if debug or not isinstance(error, StepError):
                raise
            click.echo(f"grapevine: {error} (--debug shows where)", err=True)
            sys.exit(2)


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="grapevine")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Federated learning when labels are scarce: label, train, clean, compare.

    \b
    Start here:   grapevine demo
    A method:     grapevine train fedavg --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/first
    What there is: grapevine methods, grapevine data list
    """


# ---------------------------------------------------------------- label


@main.command()
@click.argument("parties", nargs=-1, required=True, metavar="PARTY...")
@click.option("--label", "label_column", metavar="COL", help="The label column; an empty cell, NaN or -1 is an unlabelled row.")
@click.option("--id", "id_column", metavar="COL", help="The column that names a row [row numbers].")
@click.option("--features", metavar="COL,...", help="The feature columns [all others].")
@click.option("--truth", metavar="COL", help="True labels, for measuring only.")
@click.option(
    "--scale",
    default="standard",
    type=click.Choice(["standard", "none"]),
    help="Features by securely summed moments, or as they are.",
)
@click.option("--impute", is_flag=True, help="Missing features become the secure mean.")
@click.option("--embed", metavar="efficientnet-lite0|RUN", help="Features of images, or of a finished train run.")
@click.option("--secure", default="mlwe", metavar="PROTOCOL", help="mlwe, psm, paillier, ot or plain (no protection).")
@click.option("--bits", default=4096, help="Bits of a hash.")
@click.option("--neighbours", default="10", metavar="K|auto", help="Neighbours of a row; auto tries several.")
@click.option("--alpha", default=0.99, help="How far labels spread, below 1.")
@click.option("--abstain", default=0.0, metavar="CONFIDENCE", help="Below this confidence a row gets no label.")
@click.option("--groups", default=1, metavar="N", help="Label in N separate groups of parties: cheaper, less exact.")
@click.option("--preset", default="code", type=click.Choice(["code", "paper"]), help="As the authors' code, or as the paper.")
@click.option("--baselines", is_flag=True, help="Also label by Gaussian heads and by the nearest own labelled row, to compare.")
@click.option("--seed", type=SEED, help="Repeats exactly; hyperplanes are then not secret.")
@workers_flag("Parties computed side by side; never changes the result.")
@click.option("--dry-run", is_flag=True, help="Only say what would leave each party, what it reveals, and what it costs.")
@click.option("--out", metavar="DIR", help="A new folder for the results.")
def label(parties: tuple[str, ...], label_column: str | None, id_column: str | None, features: str | None, truth: str | None,
          embed: str | None, impute: bool, abstain: float, baselines: bool, workers: int, dry_run: bool, out: str | None,
          seed: int | None, **settings: Any) -> None:  # fmt: skip
    """Labels for every party's own rows, in one shot, nobody's rows moved (XCLP).

    Each PARTY is a CSV, Parquet or NPZ file, or with --embed a folder of images. Here all parties are on this machine, and the
    cryptography is really run; between machines it is the same job: `grapevine host` and `grapevine join`.

    \b
    grapevine label north.csv south.csv east.csv --label diagnosis --id patient --out labels
    grapevine label north.csv south.csv east.csv --label diagnosis --dry-run
    """
    from grapevine.cli.terminal import StepBar, show_labels, show_plan
    from grapevine.jobs import label as job
    from grapevine.jobs.reading import read_parties

    if not dry_run:
        job.require_new(out)
    columns = [name.strip() for name in features.split(",")] if features else None
    read = read_parties(parties, label_column, id_column, columns, truth, impute, embed)
    method = job.make_method(impute=impute, expected=True, seed=seed, **settings)
    notes = job.check(read, method, abstain)
    if dry_run:
        show_plan(job.plan(read, method, workers, baselines), notes)
        return
    if seed is not None:
        click.echo("Hyperplanes are reproducible, not secret.")
    if method.xclp.hamming.name == "plain":
        click.echo("plain: no protection, the server sees every party's hash bits.")
    with stopped("nothing was written"), StepBar("label") as bar:
        result = job.run(read, method, seed, workers, abstain, bar, baselines)
        job.write(Path(out), result, command_line())
    show_labels(result, Path(out))


@contextmanager
def stopped(sentence: str) -> Iterator[None]:
    """Ctrl-C ends the command at once. Parties that are in the middle of a computation are threads, and would finish it first."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nStopped: {sentence}.", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)


def command_line() -> str:
    import shlex

    return shlex.join(["grapevine", *sys.argv[1:]])


# ---------------------------------------------------------------- train


@main.command()
@click.argument("method")
@experiment_flags
@click.option("--seed", type=SEED, default=0, help="Everything random depends on it alone.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="A field of the method (`grapevine methods NAME`).")
@click.option(
    "--runtime",
    default="local",
    type=click.Choice(["local", "flower-sim"]),
    help="flower-sim: clients on Ray's workers, by Flower.",
)
@click.option(
    "--latent", default=1, metavar="N", help="Pictures of the latent space: of the end, and of N - 1 rounds before; 0: none."
)
@click.option("--resume", is_flag=True, help="Go on with DIR.")
@out_flag
def train(method: str, seed: int, settings: tuple[str, ...], runtime: str, resume: bool, out: str, **flags: Any) -> None:
    """One model from everybody's labelled and unlabelled rows.

    \b
    grapevine train fedavg --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/fedavg
    grapevine train fedprox --data fashion-mnist --partition dirichlet:0.1 --set mu=0.1 --out runs/prox
    """
    from grapevine import methods
    from grapevine.cli.terminal import Bar, show_result
    from grapevine.core import with_settings
    from grapevine.parties import virtual
    from grapevine.report import train as report
    from grapevine.run.experiment import Experiment

    chosen = with_settings(methods.find(method), read_settings(settings))
    if not resume and Path(out).is_dir() and any(Path(out).iterdir()):  # before the data is read
        raise Mistake(f"{out} exists and is not empty: take another --out, or --resume to go on with it.")
    split = make_split(flags, seed)
    names = ("model", "norm", "rounds", "per_round", "workers", "device", "mode", "evaluate_every", "patience", "latent")
    experiment = Experiment(chosen, split, seed=seed, out=out, **{name: flags[name] for name in names})
    with Bar(f"{method} on {split.dataset.name}") as bar:
        progress = report.Live(out, bar)
        try:
            if runtime == "flower-sim":
                virtual.run(virtual.job(method, read_settings(settings), flags, seed, out, resume), len(split.parts), progress)
                resume = True  # what is finished is only read
            run = experiment.run(resume, progress)
        except KeyboardInterrupt:
            click.echo(f"\nStopped. Go on with: {again(resume)}", err=True)
            sys.exit(130)
    report.write(out, full=True)
    show_result(run.result, Path(out))


def again(resume: bool) -> str:
    return command_line() + ("" if resume else " --resume")


main.add_command(cli_report.report)


@main.command()
@click.argument("run", metavar="RUN")
@click.argument("file")
@click.option("--id", "id_column", metavar="COL", help="The column that names a row [row numbers].")
@click.option("--features", metavar="COL,...", help="The feature columns, in the order of training [those of training, by name].")
@click.option("--method", metavar="FILE.py:CLASS", help="The method's own file, if the run's method is in no table.")
@click.option("--out", default="labels.csv", metavar="FILE", help="Where the labels go.")
def predict(run: str, file: str, id_column: str | None, features: str | None, method: str | None, out: str) -> None:
    """Labels for new rows (a table, an .npz, a folder of images) from a trained model.

    \b
    grapevine predict runs/fedavg new_rows.npz --out labels.csv
    """
    from grapevine.jobs.predict import predict_file

    columns = [name.strip() for name in features.split(",")] if features else None
    click.echo(f"Wrote {predict_file(run, file, out, id_column, columns, method)} labels to {out}.")


# ---------------------------------------------------------------- methods


@main.command()
@click.argument("name", required=False)
@json_flag
def methods(name: str | None, as_json: bool) -> None:
    """What methods there are; with NAME, its fields and the paper's symbols.

    \b
    grapevine methods
    grapevine methods fedprox
    """
    from grapevine import methods as table
    from grapevine.cli.terminal import show_method, show_methods

    if name is None:
        rows = [about_method(table.find(each)) for each in table.names()]
        click.echo(json.dumps(rows, indent=1)) if as_json else show_methods(rows)
    else:
        row = about_method(table.find(name))
        click.echo(json.dumps(row, indent=1)) if as_json else show_method(row)


def about_method(method: type) -> dict[str, Any]:
    from grapevine.core import parameters

    fields = [
        dict(name=f.name, symbol=f.metadata["symbol"], default=getattr(f.default, "name", f.default), text=f.metadata["text"])
        for f in parameters(method)
    ]
    return dict(name=method.name, title=method.title, labels=sorted(method.takes), text=" ".join((method.__doc__ or "").split()),
                fields=fields)  # fmt: skip


# ---------------------------------------------------------------- data


@main.group()
def data() -> None:
    """Data sets: list them, look at a split, download one."""


@data.command("list")
@click.option("--data-dir", metavar="DIR", help="Where data files are.")
@json_flag
def data_list(data_dir: str | None, as_json: bool) -> None:
    """Data sets by name, and which of them are here.

    \b
    grapevine data list
    """
    from grapevine.cli.terminal import show_table
    from grapevine.data import catalogue

    rows = catalogue.names(data_dir)
    brief = [{name: row[name] for name in ("name", "rows", "classes", "kind", "where")} for row in rows]
    click.echo(json.dumps(rows, indent=1)) if as_json else show_table("Data sets (--json: sources and licences)", brief)


@data.command("show")
@experiment_flags
@click.option("--seed", type=SEED, default=0, help="The split's seed.")
@click.option("--picture", metavar="FILE", help="Draw the split: a .png or .svg.")
@json_flag
def data_show(seed: int, picture: str | None, as_json: bool, **flags: Any) -> None:
    """Who would hold what: the split as a table, and as a picture.

    \b
    grapevine data show --data digits --clients 10 --partition dirichlet:0.3 --labels clients:100 --picture split.png
    """
    from grapevine.cli.terminal import show_split

    split = make_split(flags, seed)
    if picture:
        from grapevine.report.picture import draw

        draw(split, picture)
    if as_json:
        click.echo(json.dumps(dict(hash=split.hash, settings=split.settings, clients=split.table()), indent=1))
    else:
        show_split(split)
        if picture:
            click.echo(f"Drew {picture}.")


@data.command("get")
@click.argument("name")
@click.option("--data-dir", metavar="DIR", help="Where to put it [$GRAPEVINE_DATA, else the user's cache].")
def data_get(name: str, data_dir: str | None) -> None:
    """Download a data set from its official source, check it, and put it in place.

    \b
    grapevine data get cifar10
    """
    from grapevine.cli.terminal import download_bar
    from grapevine.data import download

    with download_bar(name) as progress:
        paths = download.get(name, data_dir, progress)
    for path in paths:
        click.echo(f"{path} is here.")


# ---------------------------------------------------------------- demo


@main.command()
@click.option("--out", metavar="DIR", help="Keep the results [a temporary folder].")
@click.option("--parties", type=int, metavar="N", help="A host and N parties as processes of their own, over TLS.")
def demo(out: str | None, parties: int | None) -> None:
    """Ten parties label their handwritten digits together, with lattice encryption, in under a minute.

    \b
    grapevine demo
    grapevine demo --parties 3
    """
    import tempfile

    from grapevine.cli.demo import digits_parties
    from grapevine.cli.terminal import StepBar, show_labels
    from grapevine.jobs import label as job

    if out:
        job.require_new(out)
    if parties is not None:
        from grapevine.cli.demo_parties import demo_parties

        return demo_parties(parties, out)
    folder = Path(out) if out else Path(tempfile.mkdtemp(prefix="grapevine-demo-")) / "labels"
    read = digits_parties(10)
    rows, known = sum(len(p.ids) for p in read), sum(label is not None for p in read for label in p.labels)
    click.echo(f"{len(read)} parties hold {rows} handwritten digits; {known} of them are labelled. Nobody shows anybody a row.")
    method = job.make_method("mlwe", 1024, "auto", 0.99, "standard", False, 1, "code", True, None)
    with stopped("nothing was written"), StepBar("label") as bar:
        result = job.run(read, method, None, min(2, os.cpu_count() or 1), 0.0, bar, baselines=True)
        job.write(folder, result, command_line())
    show_labels(result, folder)


# ---------------------------------------------------------------- compare, real parties

for command in (
    cli_clean.clean,
    cli_compare.compare,
    cli_compare.leaderboard,
    cli_parties.host,
    cli_parties.join,
    cli_parties.doctor,
    cli_report.completion,
):
    main.add_command(command)
