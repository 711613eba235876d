"""`grapevine host`, `join` and `doctor`: the commands for real parties. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import Field, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from grapevine.cli.flags import flag, flags, json_flag
from grapevine.cli.shell import ended_alike
from grapevine.core.errors import Mistake
from grapevine.core.param import Settings
from grapevine.core.words import count, many, printable
from grapevine.parties.settings import JOBS, HostSettings, JoinSettings, Source, agreed_fields

if TYPE_CHECKING:
    from grapevine.jobs.reading import Party
    from grapevine.parties.agreement import Agreement
    from grapevine.parties.federation import Host
    from grapevine.parties.registry import Registry


MOST = 10_000  # letters of an invitation, or of a sentence


def host_flags(command: Callable) -> Callable:
    """The flags of a federation and of its jobs, each once, with the jobs it applies to."""
    found: dict[str, tuple[Field, list[str]]] = {f.name: (f, []) for f in fields(HostSettings)}
    for job in JOBS:
        for f in agreed_fields(job):
            found.setdefault(f.name, (f, []))[1].append(job)
    for f, jobs in reversed(found.values()):
        text = f"{', '.join(jobs)}: {f.metadata['text']}" if jobs else f.metadata["text"]
        told: Field = field(default=f.default, metadata={**f.metadata, "text": text})
        told.name = f.name
        command = flag(told)(command)
    return command


# ---------------------------------------------------------------- host


@click.command()
@click.argument("folder", metavar="DIR")
@click.option(
    "--invite", "invited", multiple=True, metavar="NAME", help="Print a single-use invitation for this party, and stop."
)
@click.option("--again", is_flag=True, help="With --invite: forget the party's old keys, if it lost them.")
@click.option("--exclude", "excluded", multiple=True, metavar="NAME", help="Go on without this party, for the rest of the job.")
@click.option("--job", type=click.Choice(list(JOBS)), default="label", help="What to do.")
@host_flags
@click.pass_context
def host(
    context: click.Context, folder: str, invited: tuple[str, ...], again: bool, excluded: tuple[str, ...], **said: Any
) -> None:
    """Host a federation in DIR: open a port, wait for the parties, run the job, write the results and stop.

    With settings, the command creates DIR first. Without settings, it runs the federation in DIR or continues an interrupted job.

    \b
    grapevine host trial --parties north,south,east --address host.example.org --schema example.csv --label diagnosis
    grapevine host trial --invite south
    grapevine host trial
    grapevine host trial --exclude south
    """
    from grapevine.parties.federation import load_host, make_federation
    from grapevine.parties.keys import make_certificates
    from grapevine.parties.propose import propose
    from grapevine.parties.registry import Registry

    where = Path(folder)
    given = {name: value for name, value in said.items() if context.get_parameter_source(name) == ParameterSource.COMMANDLINE}
    if given:
        made, rows = propose(where, *settings_of(given))
        strange = [name for name in invited if name not in made.parties]
        if strange:
            raise Mistake(f"'{strange[0]}' is not one of the --parties ({', '.join(made.parties)}): add it there, or correct it.")
        made = make_federation(made, rows)
        click.echo(f"Created {where / 'federation.toml'} (settings {made.agreed.hash[:12]}).")
        if made.agreed.seed is not None:
            click.echo("Hyperplanes are reproducible, not secret.")
    elif not (where / "federation.toml").exists():
        raise Mistake(f"{folder} holds no federation: create one with --parties, --address and --features or --schema.")
    else:
        made = load_host(where)
    make_certificates(where, made.agreed.name, [made.address])
    if (given or invited) and is_local(made.address) and not is_local(made.bind):
        click.echo(
            f"Note: {made.address} means this machine only. For parties elsewhere, create the federation with --address.",
            err=True,
        )
    for name in excluded:
        Registry(where).exclude(name)
        click.echo(f"{name} is excluded: the job continues without it.")
    if invited:
        show_invitations(made, invited, again)
    elif excluded and at_work(where):
        click.echo("The host that is running continues.")
    else:
        run_host(where)


def show_invitations(made: Host, names: tuple[str, ...], again: bool) -> None:
    """All that a party needs: its token, and the command with the columns that the host's own table has."""
    from grapevine.parties.registry import Registry

    columns = " ".join(
        f"--{what} {shlex.quote(name) if name else 'COL'}" for what, name in (("label", made.label), ("id", made.id))
    )
    for name in names:
        token = Registry(made.folder).invite(name, again)
        click.echo(f"For {name} only, to be used once, within 14 days. Save it to a file such as {name}.token (chmod 600):")
        click.echo(f"{token.text()}\ngrapevine join --token-file {name}.token --data FILE {columns}")
    start = f"grapevine host {shlex.quote(str(made.folder))}"
    click.echo(f"Parties will reach this host at {made.address}:{made.port}. Start it with: {start}")


def is_local(address: str) -> bool:
    return address.split(".")[0] in ("localhost", "127") or address == "::1"


def at_work(folder: Path) -> bool:
    """Whether a host is running in a folder now."""
    from grapevine.run.folder import lock

    try:
        with lock(folder / "lock"):
            return False
    except Mistake:
        return True


def settings_of(given: dict[str, Any]) -> tuple[HostSettings, Settings]:
    """Split the flags into a federation's settings and its job's. A flag of another job is refused."""
    job = given.pop("job", "label")
    own, of_job = {f.name for f in fields(HostSettings)}, {f.name for f in agreed_fields(job)}
    for name in given.keys() - own - of_job:
        raise Mistake(f"--{name.replace('_', '-')} does not apply to --job {job}: leave it out.")
    parts = ({name: given[name] for name in given if name in names} for names in (own, of_job))
    return HostSettings.from_dict(next(parts)), JOBS[job].from_dict(next(parts))


def run_host(folder: Path) -> None:
    from grapevine import report
    from grapevine.core.words import percent
    from grapevine.jobs.expected import why_unknown
    from grapevine.parties.host import host as run

    with HostTable() as table, ended_alike():
        try:
            result = run(folder, table.show, table.say)
        except KeyboardInterrupt:
            table.say(f"Stopped. Continue with: grapevine host {shlex.quote(str(folder))}")
            sys.exit(130)
    if result["job"] == "train":
        measured = result["accuracy"] is not None
        told = percent(result["accuracy"]) if measured else "unknown, because no party held out labelled rows"
        click.echo(f"Accuracy on the parties' held-out labels, after round {result['best_round']} of {result['rounds']}: {told}.")
    elif result["job"] == "label":
        expected = result["expected"]
        told = f"{percent(expected['accuracy'])} (of {many(expected['n'], 'hidden label')})" if expected else \
            f"unknown, {why_unknown(result['data']['classes'])}"  # fmt: skip
        click.echo(f"{many(len(result['labelled']), 'party has', 'parties have')} labels. Expected accuracy: {told}.")
    else:
        expected = result["expected"]
        click.echo(f"{many(len(result['cleaned']), 'party has', 'parties have')} cleaned labels. The classifier was right on "
                   f"{count(expected['right'])} of {many(expected['n'], 'row')} that the host held out.")  # fmt: skip
    if result.get("lost"):
        click.echo(f"Dropped during the job: {', '.join(result['lost'])}.")
    click.echo(f"Results are in {folder / 'results'} (open {report.write(folder / 'results')}).")


class HostTable:
    """Who is connected: a live table in a terminal, and one line per change elsewhere."""

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
        sentence = printable(sentence, MOST)
        if self._live:
            self._live.console.print(sentence, soft_wrap=True, markup=False)
        else:
            print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)

    def show(self, registry: Registry, line: str) -> None:
        rows = registry.states()
        if self._live:
            self._live.update(_table(rows, registry.phase, line), refresh=True)
            return
        for name, state, _ in rows:
            if self._told.get(name) != state:
                self._told[name] = state
                self.say(f"{name}: {state}")
        if line != self._line and registry.phase != "running":  # the job itself reports step by step
            self._line = line
            self.say(line[0].upper() + line[1:])


def _table(rows: list[tuple[str, str, str]], phase: str, line: str) -> Any:
    from rich.table import Table

    table = Table(title=f"{phase}: {line}", title_justify="left")
    for name in ("party", "state", "fingerprint"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)  # names are letters and digits, states are ours: no markup of others
    return table


# ---------------------------------------------------------------- join


def invitation(argument: str | None, file: str | None) -> str | None:
    """Read the invitation from a file, from stdin (-) or from the environment. Everybody on the machine can read arguments."""
    if argument and (Path(argument).suffix or Path(argument).exists()):
        raise Mistake(f"{argument} is a file, which needs its flag: --data FILE for a table, --token-file FILE for an "
                      "invitation.")  # fmt: skip
    if argument:
        raise Mistake("everybody on this machine can read an invitation among the arguments: use --token-file FILE, or - "
                      "for stdin, or put it in $GRAPEVINE_TOKEN.")  # fmt: skip
    if file == "-":
        return sys.stdin.readline() if sys.stdin.isatty() else sys.stdin.read(MOST)
    if file is None:
        return os.environ.pop("GRAPEVINE_TOKEN", None)  # which the processes that this one starts need not know
    path = Path(file).expanduser()
    if not path.exists():
        raise Mistake(f"there is no file {file}: --token-file takes the file with the invitation.")
    try:
        if not sys.platform.startswith("win") and path.stat().st_mode & 0o077:
            click.echo(f"Note: other users can read {file}: chmod 600 {file}, and delete it once you have joined.", err=True)
        with open(path, encoding="utf-8") as opened:
            return opened.read(MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{file} cannot be read ({error}): --token-file takes the file with the invitation.") from None


token_flag = click.option("--token-file", "file", metavar="FILE", help="The invitation; - for stdin [$GRAPEVINE_TOKEN].")


@click.command()
@click.argument("token", required=False, metavar="")
@token_flag
@flags(JoinSettings)
@click.option(
    "--yes", is_flag=True, help="Accept what will leave this machine, and the others' fingerprints, without being asked."
)
def join(token: str | None, file: str | None, yes: bool, **settings: Any) -> None:
    """Join a federation with the host's invitation, take part until the job ends, and write the results.

    Private keys and rows stay on this machine. The command shows what will leave it and asks for your consent. Without an
    invitation, --home continues an interrupted job.

    \b
    grapevine join --token-file north.token --data patients.parquet --label diagnosis --id patient
    grapevine join --home ~/.grapevine/trial/north
    """
    from grapevine.parties.join import Talk, home_of
    from grapevine.parties.join import join as run

    def ask(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise Mistake(f"nobody is here to answer '{question}': use --yes to agree in advance.")
        return click.confirm(question)

    def insist(question: str) -> bool:
        if not sys.stdin.isatty():
            raise Mistake(f"nobody is here to answer '{question}', and --yes does not cover it: run this in a terminal.")
        return click.confirm(question)

    def say(text: str) -> None:
        click.echo(printable(text, MOST))

    last = [""]

    def line(text: str) -> None:
        if text != last[0]:
            last[0] = text
            say(f"{time.strftime('%H:%M:%S')} {text[0].upper()}{text[1:].rstrip('.')}.")

    text, s = invitation(token, file), JoinSettings.from_dict(settings)
    try:
        with ended_alike():
            folder = run(text, s, Talk(say, ask, insist, show_agreement, line))
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"\n{how_to_continue(home_of(text, s), s)}", err=True)
        sys.exit(130)
    if (folder / "result.json").exists():
        from grapevine import report
        from grapevine.cli.terminal import show_own_labels

        report.write(folder)
        show_own_labels(json.loads((folder / "result.json").read_text()), folder)
    elif folder.exists():  # the results of a finished job may have been moved
        click.echo(f"Done: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}.")


def how_to_continue(home: Path, s: JoinSettings) -> str:
    """What a party that was stopped can do: nobody knows of it yet, or its keys wait in its folder."""
    if not (home / "party.toml").exists():
        return "Stopped before you joined. The invitation can still be used: run the same command again."
    given = [f"--{name} {shlex.quote(value)}" for name in ("data", "label", "id", "embed") if (value := getattr(s, name))]
    where = " ".join([f"--home {shlex.quote(str(home))}", *(given or ["--data FILE", "--label COL"])])
    return f"Stopped. The job's rows and memory were deleted. Continue with: grapevine join {where}"


def show_agreement(agreed: Agreement, rows: Party) -> None:
    """What the party is asked to agree to, and what will leave its machine."""
    from grapevine.cli.terminal import show_plan, show_table
    from grapevine.jobs.disclosure import plan
    from grapevine.methods.chorus import Chorus
    from grapevine.methods.label import Label
    from grapevine.parties.rows import client_data

    known, others = sum(label is not None for label in rows.labels), [name for name in agreed.parties if name != rows.name]
    click.echo(
        f"Federation {agreed.name}: job {agreed.job}, with {', '.join(others)}; at least {agreed.quorum} parties must stay."
    )
    what = "columns" if agreed.features else "numbers"
    click.echo(f"Your data: {many(len(rows.ids), 'row')} of {'×'.join(map(str, agreed.shape))} {what}, {count(known)} labelled.")
    if agreed.server:
        click.echo(f"The host has its own labelled rows, of {many(len(agreed.classes), 'class', 'classes')}.")
    if agreed.seed is not None:
        click.echo("Note: this run is reproducible, so its hyperplanes are not secret.")
    method = agreed.made
    if isinstance(method, (Label, Chorus)):
        # The others' sizes are not known here: as if they were of this party's.
        made = plan([rows, *(replace(rows, name=name) for name in others)], method)
        note = "bytes and minutes assume that the other parties have as many rows as you."
        # The memory would be that of all parties on one machine.
        show_plan(dict(made, parties={rows.name: made["parties"][rows.name]}, warnings=[note], memory_mb=None))
        return
    lines = [dict(step=step, field=name, reveals=method.reveals(step, name))
             for step, bound in sorted(method.steps().items()) for name in getattr(bound, "reveals", ())]  # fmt: skip
    show_table(f"What will leave {rows.name}: the replies to {method.name}'s steps", lines)
    click.echo("Replies are encrypted on the way, but the host can read each party's replies.")
    if agreed.job == "train":
        from grapevine.parties.networks import budget
        from grapevine.run.privacy import promise

        spent = budget(agreed, 0)
        click.echo(
            f"Noise: this job spends at most {promise(spent)}."
            if spent
            else "No noise is added to what you send, so no ε is promised."
        )
        data = client_data(rows, agreed)
        held = len(data.test) + len(data.validation or ())
        click.echo(f"Labelled rows used for training: {count(len(data.labelled))}; held out for measuring: {count(held)}; used "
                   f"without a label: {count(len(data.unlabelled))}.")  # fmt: skip
        if held < 2:
            click.echo("You have too few labelled rows to measure the model on, so your rows will not count in its accuracy.")


# ---------------------------------------------------------------- doctor


@click.command()
@click.argument("token", required=False, metavar="")
@token_flag
@flags(Source)
@json_flag
def doctor(token: str | None, file: str | None, as_json: bool, **source: Any) -> None:
    """Check whether this machine can take part. Each problem comes with its solution; the exit code is 2 if there is one.

    \b
    grapevine doctor
    grapevine doctor --token-file north.token --data patients.parquet --label diagnosis
    """
    from grapevine.parties.doctor import examine

    wrong, told = 0, []
    for finding in examine(invitation(token, file), Source.from_dict(source)):
        told.append(dict(what=finding.what, good=finding.good, sentence=finding.sentence))
        mark = {True: "ok", False: "NO", None: "--"}[finding.good]
        if not as_json:
            click.echo(f"{mark:3}{finding.what + ':':12} {printable(finding.sentence, MOST)}")
        wrong += finding.good is False
    if as_json:
        click.echo(json.dumps(told, indent=1))
    if wrong:
        click.echo(f"{wrong} thing{'s' if wrong > 1 else ''} to fix.", err=True)
        sys.exit(2)
