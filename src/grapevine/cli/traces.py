"""What a job leaves: `grapevine audit` shows the host's log, `grapevine forget` deletes what is left at a party."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from grapevine.cli.flags import json_flag
from grapevine.core.errors import Mistake
from grapevine.core.words import many


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--anonymous", is_flag=True, help="For others: numbers for parties; no addresses, keys or sentences.")
@click.option("--holds", metavar="HASH", help="Exit 2 unless the log has the line with this hash, which a party was told.")
@json_flag
def audit(folder: str, anonymous: bool, holds: str | None, as_json: bool) -> None:
    """Show the audit log of a host's DIR: who was invited, joined, was refused or left, every exchange and every bad reply.

    Its chain of hashes is checked first. A line that was changed, taken out or put in exits 2.

    \b
    grapevine audit trial
    grapevine audit trial --anonymous --json > for-the-board.json
    """
    from grapevine.cli.terminal import show_table
    from grapevine.parties import audit as log

    lines = log.Audit(Path(folder).expanduser()).lines()
    if holds is not None and not log.holds(lines, holds):
        raise Mistake(f"no line of {folder} has the hash {holds}: lines were cut off, or the log was created again.")
    shown = log.without_names(lines) if anonymous else lines
    if as_json:
        click.echo(json.dumps(shown, indent=1))
        return
    apart = ("n", "time", "event", "salt", "before", "hash")
    show_table(f"The host's log: {many(len(lines), 'line')}, and their chain of hashes is whole", [
        dict(n=line["n"], time=line["time"][:19].replace("T", " "), event=line["event"],
             what="; ".join(f"{name} {_plain(value)}" for name, value in line.items() if name not in apart and _plain(value)))
        for line in shown
    ])  # fmt: skip
    if holds is not None:
        click.echo(f"The line with the hash {holds} is in it.")
    click.echo(f"The last line's hash is {lines[-1]['hash']}. Whoever keeps it can check this log later.")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is False else str(value)


@click.command()
@click.argument("folder", metavar="FOLDER")
@json_flag
def forget(folder: str, as_json: bool) -> None:
    """Delete the keys, seeds, rows, memory and logs that a job left in a party's FOLDER, and list what remains.

    It keeps the results, the agreed settings, the list of what left the machine, and the ledger (which is in another folder).

    \b
    grapevine forget ~/.grapevine/trial/north
    """
    from dataclasses import asdict

    from grapevine.cli.terminal import show_table
    from grapevine.parties.forget import forget as run

    left = [asdict(file) for file in run(Path(folder).expanduser())]
    if as_json:
        click.echo(json.dumps(left, indent=1))
    elif not left:
        click.echo(f"Nothing remains in {folder}.")
    else:
        show_table(f"What remains in {folder}: it was searched, and no secret of the job is in it", left)
