"""`grapevine privacy`: a folder's ledgers in plain words."""

from __future__ import annotations

from pathlib import Path

import click

from grapevine.cli.flags import json_flag

SHOWN = 10  # parties in full; of more, a table


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--delta", type=float, metavar="DELTA", help="The δ at which ε is counted [that of the run, or 1e-6].")
@json_flag
def privacy(folder: str, delta: float | None, as_json: bool) -> None:
    """Show what was released from rows so far, its (ε, δ), and what no ε covers. DIR is the folder of a run, a job or a party.

    \b
    grapevine privacy runs/private
    grapevine privacy labels --delta 1e-5
    """
    from grapevine.cli.terminal import say, show_grid, show_table
    from grapevine.jobs import privacy as job

    found = job.read(_ledger(folder), delta)
    if as_json:
        click.echo(job.as_json(found))
        return
    if len(found) > SHOWN:
        rows = [[p.name, sum(line.times for line in p.releases), *(job.cost(p, unit) for unit in job.UNITS)] for p in found]
        show_grid("Privacy spent", ["party", "releases", *(f"ε per {unit}" for unit in job.UNITS)], rows, "parties")
    for party in found if len(found) <= SHOWN else ():
        if party.releases:
            show_table(f"Releases of {party.name}", [job.shown(line) for line in party.releases])
        say(*job.sentences(party))
    say(*job.outside(found))


def _ledger(folder: str) -> Path:
    """The ledger's folder: a party's folder names it, because one ledger serves all jobs of a party."""
    about = Path(folder) / "party.toml"
    if not about.is_file():
        return Path(folder)
    from grapevine.parties.federation import ledger_folder
    from grapevine.parties.files import read_toml

    return ledger_folder(read_toml(about).get("ledger"))
