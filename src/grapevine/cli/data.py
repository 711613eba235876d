"""`grapevine data` and `methods`: what there is. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
from typing import Any

import click

from grapevine.cli.flags import flags, json_flag
from grapevine.jobs.settings import DataSettings


@click.command()
@click.argument("name", required=False)
@json_flag
def methods(name: str | None, as_json: bool) -> None:
    """List the methods, or show the fields of one with the paper's symbols.

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


def about_method(method: Any) -> dict[str, Any]:
    from grapevine.core import parameters

    fields = [
        dict(name=f.name, symbol=f.metadata["symbol"], default=getattr(f.default, "name", f.default), text=f.metadata["text"])
        for f in parameters(method)
    ]
    return dict(name=method.name, title=method.title, labels=sorted(method.takes), text=" ".join((method.__doc__ or "").split()),
                fields=fields)  # fmt: skip


@click.group()
def data() -> None:
    """List data sets, show a split, or download a data set."""


@data.command("list")
@click.option("--data-dir", metavar="DIR", help="The folder of data files.")
@json_flag
def data_list(data_dir: str | None, as_json: bool) -> None:
    """List the data sets, and which of them are on this machine.

    \b
    grapevine data list
    """
    from grapevine.cli.terminal import show_table
    from grapevine.data import catalogue

    rows = catalogue.names(data_dir)
    brief = [{name: row[name] for name in ("name", "rows", "classes", "kind", "where")} for row in rows]
    click.echo(json.dumps(rows, indent=1)) if as_json else show_table("Data sets (--json: sources and licences)", brief)


@data.command("show")
@flags(DataSettings)
@click.option("--seed", type=int, default=0, help="The split's seed.")
@click.option("--picture", metavar="FILE", help="Draw the split to a .png or .svg file.")
@json_flag
def data_show(seed: int, picture: str | None, as_json: bool, **settings: Any) -> None:
    """Show what each client would hold, as a table and as a picture.

    \b
    grapevine data show --data digits --clients 10 --partition dirichlet:0.3 --labels clients:100 --picture split.png
    """
    from grapevine.cli.terminal import show_split
    from grapevine.jobs.splits import make_split

    if picture:
        from grapevine.report.picture import draw, require_place

        require_place(picture)
    split = make_split(DataSettings.from_dict(settings), seed)
    if picture:
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
    from grapevine.cli.bars import download_bar
    from grapevine.data import download

    if name == "digits":
        click.echo(f"There is nothing to download: {name} comes with scikit-learn.")
        return
    with download_bar(name) as progress:
        paths = download.get(name, data_dir, progress)
    for path in paths:
        click.echo(f"{path} is ready.")
