"""`grapevine host`, `join` and `doctor`: the commands for real parties. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click

from grapevine.cli.flags import json_flag
from grapevine.core.errors import Mistake
from grapevine.core.version import __version__

PORT = 8443


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


# ---------------------------------------------------------------- host


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--invite", "invited", multiple=True, metavar="NAME", help="Print a single-use invitation for a party, and do no more."
)
@click.option("--again", is_flag=True, help="With --invite: forget the keys that the party has lost.")
@click.option("--name", metavar="NAME", help="Name of the federation [the folder's].")
@click.option("--parties", metavar="NAME,...", help="The parties expected.")
@click.option("--quorum", type=int, metavar="N", help="So many parties are enough [two thirds, at least 2].")
@click.option("--address", metavar="HOST", help="Name or number under which the parties reach this machine [its own name].")
@click.option("--port", type=int, help=f"The one port to open in the firewall [{PORT}].")
@click.option("--bind", metavar="ADDRESS", help="Which of this machine's addresses to listen on [0.0.0.0, all].")
@click.option("--job", type=click.Choice(["label", "train"]), help="What to do [label].")
@click.option("--features", metavar="COL,...", help="The feature columns, by name.")
@click.option("--schema", metavar="FILE", help="A table with the parties' columns; all but --label and --id are features.")
@click.option("--label", metavar="COL", help="With --schema: its label column.")
@click.option("--id", "id_column", metavar="COL", help="With --schema: its id column.")
@click.option("--classes", metavar="NAME,...", help="The classes; needed for train.")
@click.option("--secure", metavar="PROTOCOL", help="label: mlwe, psm, paillier, ot or plain [mlwe].")
@click.option("--bits", type=int, help="label: bits of a hash [4096].")
@click.option("--neighbours", metavar="K|auto", help="label: neighbours of a row [10].")
@click.option("--alpha", type=float, help="label: how far labels spread, below 1 [0.99].")
@click.option("--impute", is_flag=True, default=None, help="label: missing features become the secure mean.")
@click.option("--groups", type=int, metavar="N", help="label: so many separate groups of parties [1].")
@click.option("--preset", type=click.Choice(["paper", "code"]), help="label: the paper's text, or its authors' code [code].")
@click.option("--scale", metavar="HOW", help="label: standard or none [standard]; train: own or none [own].")
@click.option("--method", metavar="NAME", help="train: the method [fedavg].")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="train: a field of the method.")
@click.option("--model", metavar="NAME", help="train: linear or mlp [mlp].")
@click.option("--norm", type=click.Choice(["none", "bn", "gn", "sbn"]), help="train: normalisation [the model's own].")
@click.option("--rounds", type=int, help="train: rounds in all [10].")
@click.option("--per-round", type=int, help="train: parties chosen in a round [all].")
@click.option("--wait", type=float, metavar="SECONDS", help="For the parties to come [3600].")
@click.option("--step-timeout", type=float, metavar="SECONDS", help="For one exchange; who is later is left out [600].")
@click.option("--seed", type=int, help="Only with --reproducible.")
@click.option("--reproducible", is_flag=True, default=None, help="Repeats exactly; hyperplanes are then not secret.")
def host(folder: str, invited: tuple[str, ...], again: bool, **flags: Any) -> None:
    """Host a federation in DIR: open a port, wait for the parties, run the job, write results/, stop.

    With settings, DIR is made first; without, an existing one is run, or gone on with where it was broken off.

    \b
    grapevine host trial --parties north,south,east --address host.example.org --schema example.csv --label diagnosis
    grapevine host trial --invite south
    grapevine host trial
    """
    from grapevine.parties.federation import load_host, make_federation
    from grapevine.parties.keys import make_certificates
    from grapevine.parties.registry import Registry

    where = Path(folder)
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if given:
        setup = make_federation(where, new_table(where, given))
        click.echo(f"Made {where / 'federation.toml'} (settings {setup.hash[:12]}).")
        if setup.table.get("reproducible"):
            click.echo("Hyperplanes are reproducible, not secret.")
    elif not (where / "federation.toml").exists():
        raise Mistake(f"{folder} holds no federation: say --parties, --address and --features or --schema to make one.")
    else:
        setup = load_host(where)
    make_certificates(where, setup.table["name"], [setup.table["address"]])
    if invited:
        for name in invited:
            token = Registry(where).invite(name, again)
            click.echo(f"For {name} alone, once:\ngrapevine join {token.text()} --data FILE --label COL")
        return
    run_host(where)


def new_table(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """federation.toml from the flags. Everything is written out, so that all parties agree to the same."""
    from grapevine.jobs.settings import LabelSettings, read_fields

    job, parties = given.get("job", "label"), _names(given.get("parties"))
    label_only = [name for name in ("secure", "bits", "neighbours", "alpha", "impute", "groups", "preset") if name in given]
    train_only = [name for name in ("method", "settings", "model", "norm", "rounds", "per_round") if name in given]
    for wrong in train_only if job == "label" else label_only:
        raise Mistake(f"--{wrong.replace('_', '-').replace('settings', 'set')} is not for --job {job}: leave it out.")
    scale = given.get("scale", "standard" if job == "label" else "own")
    if scale not in (("standard", "none") if job == "label" else ("own", "none")):
        raise Mistake(f"--scale {scale} is not for --job {job}: take {'standard' if job == 'label' else 'own'} or none.")
    if job == "label":
        settings = LabelSettings.from_dict({name: given[name] for name in label_only} | {"scale": scale}).agreed()
    else:
        settings = read_fields(given.get("settings", ()))
    quorum = given.get("quorum", max(2, -(-2 * len(parties) // 3)))
    training = {}  # what a label job does not have is not written, and nobody agrees to it
    if job == "train":
        training = dict(scale=scale, rounds=given.get("rounds", 10), per_round=given.get("per_round", max(2, len(parties))),
                        model=given.get("model", "mlp"), norm=given.get("norm"))  # fmt: skip
    return dict(
        name=given.get("name", folder.resolve().name), version=__version__, job=job,
        method="label" if job == "label" else given.get("method", "fedavg"), settings=settings,
        classes=_names(given.get("classes")), features=_features(given), parties=parties, quorum=quorum,
        **training, reproducible=bool(given.get("reproducible")), seed=given.get("seed"),
        address=given.get("address", socket.getfqdn()), port=given.get("port", PORT), bind=given.get("bind", "0.0.0.0"),
        timeouts=dict(join=given.get("wait", 3600.0), confirm=given.get("wait", 3600.0), online=120.0,
                      step=given.get("step_timeout", 600.0)),
    )  # fmt: skip


def _features(given: dict[str, Any]) -> list[str]:
    if not given.get("schema"):
        return _names(given.get("features"))
    from grapevine.data.tables import Columns, choose_columns, column_names, existing_file

    path = existing_file(given["schema"])
    if path.suffix.lower() == ".npz":
        raise Mistake(f"{path} does not name its columns: give a .csv or .parquet, or --features.")
    named = _names(given.get("features")) or None
    return choose_columns(path, column_names(path), Columns(given.get("label"), given.get("id_column"), named))[1]


def run_host(folder: Path) -> None:
    from grapevine.core.words import percent
    from grapevine.parties.host import host as run

    with HostTable() as table:
        try:
            result = run(folder, table.show, table.say)
        except KeyboardInterrupt:
            table.say(f"Stopped. Go on with: grapevine host {folder}")
            sys.exit(130)
    if result["job"] == "label":
        expected = result["expected"]
        told = (
            f"{percent(expected['accuracy'])} (from {expected['n']} hidden labels)" if expected else "not known, too few labels"
        )
        click.echo(f"{len(result['labelled'])} parties have labels. Expected accuracy: {told}.")
        if result["lost"]:
            click.echo(f"Lost on the way: {', '.join(result['lost'])}.")
    else:
        click.echo(f"Accuracy on the parties' held-out labels after {result['rounds']} rounds: {percent(result['accuracy'])}.")
    click.echo(f"Results are in {folder / 'results'}.")


class HostTable:
    """Who is here: a live table in a terminal, a line for every change elsewhere."""

    def __init__(self) -> None:
        self._live: Any = None
        self._told: dict[str, str] = {}
        self._line = ""

    def __enter__(self) -> HostTable:
        if sys.stdout.isatty():
            from rich.live import Live

            from grapevine.cli.bars import console

            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live:
            self._live.stop()

    def say(self, sentence: str) -> None:
        if self._live:
            self._live.console.print(sentence, soft_wrap=True, markup=False)
        else:
            print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)

    def show(self, registry: Any, line: str) -> None:
        rows = party_rows(registry)
        if self._live:
            self._live.update(_table(rows, registry.phase, line), refresh=True)
            return
        for name, state, _ in rows:
            if self._told.get(name) != state:
                self._told[name] = state
                self.say(f"{name}: {state}")
        if line != self._line and registry.phase != "running":  # what goes on in the job is said step by step
            self._line = line
            self.say(line[0].upper() + line[1:])


def party_rows(registry: Any) -> list[tuple[str, str, str]]:
    """Name, state and fingerprint of every party."""
    from grapevine.parties.registry import HERE_SECONDS

    roster, invitations, rows = registry.roster(), registry.invitations(), []
    for name in sorted(registry.table["parties"]):
        presence = registry.here.get(name)
        if name not in roster:
            state = "invited" if name in invitations else f"not invited: grapevine host {registry.folder.name} --invite {name}"
        elif presence is None or time.time() - presence.seen > HERE_SECONDS:
            state = "joined, not here now"
        else:
            state = presence.state
        rows.append((name, state, roster[name]["fingerprint"] if name in roster else ""))
    return rows


def _table(rows: list[tuple[str, str, str]], phase: str, line: str) -> Any:
    from rich.table import Table

    table = Table(title=f"{phase}: {line}", title_justify="left")
    for name in ("party", "state", "fingerprint"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)  # names are letters and digits, states are ours: no markup of others
    return table


# ---------------------------------------------------------------- join


@click.command()
@click.argument("token", required=False)
@click.option("--data", metavar="FILE", help="This party's table: CSV, Parquet or NPZ.")
@click.option("--label", metavar="COL", help="Its label column; an empty cell, NaN or -1 is an unlabelled row.")
@click.option("--id", "id_column", metavar="COL", help="The column that names a row [row numbers].")
@click.option("--home", metavar="DIR", help="Where this party's keys and memory are [~/.grapevine/FEDERATION/NAME].")
@click.option("--out", metavar="DIR", help="A new folder for the results [out in the home].")
@click.option("--abstain", default=0.0, metavar="CONFIDENCE", help="Below this confidence a row gets no label.")
@click.option("--pin", metavar="FILE", help="Fingerprints confirmed before: the pinned.toml of an earlier job.")
@click.option("--yes", is_flag=True, help="Agree to what will leave the machine, and to the others' fingerprints, unseen.")
def join(token: str | None, data: str | None, label: str | None, id_column: str | None, home: str | None, out: str | None,
         abstain: float, pin: str | None, yes: bool) -> None:  # fmt: skip
    """Join a federation with the TOKEN that its host gave you, work to the end of the job, and write the results.

    Private keys and rows stay here. What will leave is shown first, and you are asked. Without TOKEN, --home goes on where a
    break was.

    \b
    grapevine join grapevine-WyJo... --data patients.parquet --label diagnosis --id patient
    grapevine join --home ~/.grapevine/trial/north
    """
    from grapevine.parties.join import Talk
    from grapevine.parties.join import join as run

    def ask(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise Mistake(f"nobody is here to answer '{question}': say --yes to agree beforehand.")
        return click.confirm(question)

    last = [""]

    def line(text: str) -> None:
        if text != last[0]:
            last[0] = text
            click.echo(f"{time.strftime('%H:%M:%S')} {text[0].upper()}{text[1:].rstrip('.')}.")

    if pin and not Path(pin).exists():
        raise Mistake(f"there is no file {pin}: --pin takes the pinned.toml of an earlier job.")
    talk = Talk(lambda sentence: click.echo(sentence), ask, show_agreement, line)
    try:
        folder = run(token, data, label, id_column, Path(home) if home else None, Path(out) if out else None, talk,
                     Path(pin) if pin else None, abstain)  # fmt: skip
    except KeyboardInterrupt:
        click.echo("\nStopped. Go on with: grapevine join --home DIR, with the same folder as before.", err=True)
        sys.exit(130)
    click.echo(f"Done: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}.")


def show_agreement(table: dict[str, Any], rows: Any, method: Any) -> None:
    """What the party is asked to agree to, and what will leave its machine."""
    known = sum(label is not None for label in rows.labels)
    others = [name for name in table["parties"] if name != rows.name]
    click.echo(f"Federation {table['name']}: job {table['job']}, with {', '.join(others)}; at least {table['quorum']} must stay.")
    click.echo(f"Your table: {len(rows.ids)} rows, {known} labelled, {rows.x.shape[1]} features.")
    if table.get("reproducible"):
        click.echo("Note: this run is reproducible, so its hyperplanes are not secret.")
    if table["job"] == "label":
        _show_label_plan(rows, others, method)
    else:
        _show_train_plan(table, rows, method)


def _show_label_plan(rows: Any, others: list[str], method: Any) -> None:
    from dataclasses import replace

    from grapevine.cli.terminal import show_plan
    from grapevine.jobs.disclosure import plan

    # The others' sizes are not known here: as if they were of this party's.
    made = plan([rows, *(replace(rows, name=name) for name in others)], method)
    note = "bytes and minutes are as if the other parties had as many rows as you."
    show_plan(dict(made, parties={rows.name: made["parties"][rows.name]}, warnings=[note]))


def _show_train_plan(table: dict[str, Any], rows: Any, method: Any) -> None:
    from grapevine.cli.terminal import show_table
    from grapevine.core import Meter
    from grapevine.core.words import size
    from grapevine.learn.networks import parameter_count
    from grapevine.parties.federation import client_data, model_source

    weights = 4 * parameter_count(model_source(table, method, 0).new(None, Meter()))
    data = client_data(rows, table)
    lines = []
    for name, step in sorted(method.steps().items()):
        text = " ".join((step.__doc__ or "").split())
        lines.append(dict(step=name, what=f"{text} (reads this party's rows; its reply goes to the host as it is)"))
    show_table(f"What will leave {rows.name}: the replies of {method.name}'s steps, over {table['rounds']} rounds", lines)
    click.echo(f"A model is {size(weights)}. The host sees each party's replies one by one: encrypted on the way, not from it.")
    held, rest = len(data.test), len(data.unlabelled)
    click.echo(f"{len(data.labelled)} labelled rows train, {held} are held out for measuring, {rest} have no label.")


# ---------------------------------------------------------------- doctor


@click.command()
@click.argument("token", required=False)
@click.option("--data", metavar="FILE", help="Look at this table too, and with TOKEN whether it fits the federation.")
@click.option("--label", metavar="COL", help="Its label column.")
@click.option("--id", "id_column", metavar="COL", help="Its id column.")
@click.option("--home", metavar="DIR", help="Where the party's folder would be.")
@json_flag
def doctor(
    token: str | None, data: str | None, label: str | None, id_column: str | None, home: str | None, as_json: bool
) -> None:
    """Can this machine take part? A line for each thing that matters, with the way out. Exits 2 if something is wrong.

    \b
    grapevine doctor
    grapevine doctor grapevine-WyJo... --data patients.parquet --label diagnosis
    """
    from grapevine.parties.doctor import examine

    wrong, told = 0, []
    for finding in examine(token, data, label, id_column, Path(home) if home else None):
        told.append(dict(what=finding.what, good=finding.good, sentence=finding.sentence))
        mark = {True: "ok", False: "NO", None: "--"}[finding.good]
        if not as_json:
            click.echo(f"{mark:3}{finding.what + ':':12} {finding.sentence}")
        wrong += finding.good is False
    if as_json:
        click.echo(json.dumps(told, indent=1))
    if wrong:
        click.echo(f"{wrong} thing{'s' if wrong > 1 else ''} to put right.", err=True)
        sys.exit(2)
