"""`grapevine train` and `predict`. Heavy imports wait until they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import grapevine as gv
from grapevine.cli.flags import config_flag, flags, out_flag, resume_flag
from grapevine.cli.shell import goes_on
from grapevine.core.words import many
from grapevine.jobs.settings import PredictSettings, TrainSettings


@click.command()
@click.argument("method")
@flags(TrainSettings)
@config_flag
@resume_flag
@out_flag
def train(method: str, resume: bool, out: str, **settings: Any) -> None:
    """Train one model on everybody's labelled and unlabelled rows.

    \b
    grapevine train fedavg --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/fedavg
    grapevine train fedprox --data fashion-mnist --partition dirichlet:0.1 --set mu=0.1 --out runs/prox
    """
    from grapevine.cli.bars import Bar
    from grapevine.cli.terminal import show_result

    data = settings.pop("data")
    if settings.get("runtime") == "spmd":
        from grapevine.run import spmd

        if not spmd.leads():  # the leader alone speaks
            gv.train(method, data, out=out, resume=resume, **settings)
            return
    with goes_on(resume), Bar(f"{method} on {Path(data).stem}") as bar:
        run = gv.train(method, data, out=out, resume=resume, progress=bar, **settings)
    show_result(run.result, run.history, Path(out))


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("file")
@flags(PredictSettings)
@click.option("--out", default="labels.csv", metavar="FILE", help="The file to write.")
def predict(run: str, file: str, out: str, **settings: Any) -> None:
    """Label new rows (a table or a folder of images) with a trained model, or with the models of a label job.

    \b
    grapevine predict runs/fedavg new_rows.npz --out labels.csv
    """
    from grapevine.jobs.predict import predict_file

    n = predict_file(run, file, out, PredictSettings.from_dict(settings))
    click.echo(f"Wrote {many(n, 'label')} to {out}.")
