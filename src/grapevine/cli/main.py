"""The command. Nothing heavy is imported before it is needed: `grapevine --help` answers at once."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from grapevine.cli.clean import clean
from grapevine.cli.compare import compare, leaderboard
from grapevine.cli.data import data, methods
from grapevine.cli.label import demo, label
from grapevine.cli.parties import doctor, host, join
from grapevine.cli.privacy import privacy
from grapevine.cli.report import completion, report, watch
from grapevine.cli.shell import one_sentence
from grapevine.cli.traces import audit, forget
from grapevine.cli.train import predict, train
from grapevine.core.errors import Mistake
from grapevine.core.version import __version__
from grapevine.core.words import printable

MOST = 5000  # letters of a sentence
CONTEXT = dict(help_option_names=["-h", "--help"], max_content_width=120, show_default=True)


class Commands(click.Group):
    """A mistake of the user prints a sentence and exits with 2; `--debug` shows the traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of the docs, not of the alphabet

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with one_sentence():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_sentence():
            return super().invoke(ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        debug = "--debug" in sys.argv[1:]
        try:
            return super().main(*args, **extra)
        except Mistake as mistake:
            if debug:
                raise
            click.echo(f"grapevine: {printable(str(mistake), MOST)}", err=True)
            sys.exit(mistake.code)
        except Exception as error:
            from grapevine.core import StepError

            if debug or not isinstance(error, StepError):
                raise
            click.echo(f"grapevine: {error} (use --debug to see where)", err=True)
            sys.exit(2)


class Told(logging.Handler):
    """Prints what was read from tables, and what looks wrong with it, to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(("Warning: " if record.levelno >= logging.WARNING else "") + printable(record.getMessage(), MOST), err=True)


def show_reading() -> None:
    log = logging.getLogger("grapevine.reading")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, Told) for handler in log.handlers):
        log.addHandler(Told())


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="grapevine")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Federated learning when labels are scarce: label, train, clean and compare.

    \b
    Start here:      grapevine demo
    Train a method:  grapevine train fedavg --data digits --clients 10 --labels clients:100 --rounds 20 --out runs/first
    List what exists: grapevine methods, grapevine data list
    """
    show_reading()


for command in (label, train, report, watch, predict, methods, data, demo, clean, compare, leaderboard, host, join, doctor,
                forget, audit, privacy, completion):  # fmt: skip
    main.add_command(command)
