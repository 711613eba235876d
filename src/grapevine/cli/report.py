"""`grapevine report` and `completion`. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from grapevine.cli.flags import json_flag
from grapevine.core.words import many


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--against", metavar="DIR", help="A run on the same split, to show who gains and who loses [a run of `alone` next to DIR]."
)
@click.option("--plots", metavar="DIR", help="Also write every plot as PNG and SVG.")
@click.option("--tensorboard", metavar="DIR", help="Also write the curves for TensorBoard (extra tensorboard).")
@click.option("--mlflow", metavar="DIR", help="Also write the run into mlflow.db in this folder (extra mlflow).")
@json_flag
def report(
    folder: str, against: str | None, plots: str | None, tensorboard: str | None, mlflow: str | None, as_json: bool
) -> None:
    """Write report.html again for a run, a label or clean job, or a comparison, finished or still running. For a folder with
    runs in it, write index.html with a line for each.

    \b
    grapevine report runs/fedavg
    grapevine report runs
    grapevine report runs/fedavg --against runs/alone --plots figures
    """
    from grapevine.report import file_name, make, writers
    from grapevine.report.charts.files import save_all

    # Missing packages are reported before the page is made, which may take seconds.
    writing = {name: place for name, place in (("tensorboard", tensorboard), ("mlflow", mlflow)) if place}
    ready = {name: writers.find(name) for name in writing}
    page = make(folder, against, full=True)
    done: dict[str, str | list[str]] = dict(report=str(page.write(Path(folder) / file_name(Path(folder)))))
    if plots:
        done["plots"] = [str(path) for path in save_all(page.charts, plots)]
    for name, writer in ready.items():
        done[name] = str(writer(Path(folder), Path(writing[name])))
    if as_json:
        click.echo(json.dumps(done, indent=1))
        return
    for path in (done["report"], *(done[name] for name in ready)):
        click.echo(f"Wrote {path}.")
    if plots:
        click.echo(f"Wrote {many(len(done['plots']), 'picture')} to {plots}.")


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--port", type=int, default=0, metavar="N", help="Listen on this port of 127.0.0.1 [a free one].", show_default=False
)
def watch(folder: str, port: int) -> None:
    """Show a job while it runs, on a page that follows it: a training run, a comparison, a host, or a folder of runs.

    The page is served to this machine alone, at an address with a secret word in it. Ctrl-C ends it; the job continues.

    \b
    grapevine watch runs/fedavg
    """
    from grapevine.report.watch import Watch

    with Watch(folder, port) as server:
        try:
            click.echo(f"Open {server.address} (Ctrl-C ends).")
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("Stopped watching.")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes the command's words in your shell.

    \b
    grapevine completion bash > ~/.local/share/bash-completion/completions/grapevine
    grapevine completion zsh > ~/.zfunc/_grapevine      (with fpath+=~/.zfunc before compinit)
    grapevine completion fish > ~/.config/fish/completions/grapevine.fish
    """
    from click.shell_completion import get_completion_class

    made: Any = get_completion_class(shell)
    click.echo(made(ctx.find_root().command, {}, "grapevine", "_GRAPEVINE_COMPLETE").source())
