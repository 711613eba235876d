"""The command as it was typed, what is wrong with it, and how it is told to end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from grapevine.core.errors import Mistake
from grapevine.core.words import hint


def command_line() -> str:
    """The command that was typed."""
    return shlex.join(["grapevine", *sys.argv[1:]])


def again(resume: bool) -> str:
    """The command that continues what was stopped."""
    return command_line() + ("" if resume else " --resume")


@contextmanager
def one_sentence() -> Iterator[None]:
    """What click cannot parse is told like every other mistake, without the usage and in one line."""
    try:
        yield
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise
        command = _command(error.ctx)
        raise Mistake(f"{_sentence(error, error.ctx, command)}: see `{' '.join(['grapevine', *command])} --help`.") from None


def _command(ctx: click.Context | None) -> list[str]:
    """The names after `grapevine`, whatever it was started as."""
    return [*_command(ctx.parent), str(ctx.info_name)] if ctx and ctx.parent else []


def _sentence(error: click.UsageError, ctx: click.Context | None, command: list[str]) -> str:
    told, who = error.format_message(), " ".join(command) or "grapevine"
    if ctx is None:
        return told[0].lower() + told[1:].rstrip(".")
    if isinstance(error, click.MissingParameter) and error.param is not None:
        p = error.param
        named = f"{p.opts[0]} {p.metavar or ''}".rstrip() if isinstance(p, click.Option) else p.human_readable_name
        return f"{who} needs {named.removesuffix('...')}"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in ctx.command.params if not getattr(p, "hidden", False) for name in p.opts if name[0] == "-"]
        near = hint(error.option_name, known, lambda name: name.lstrip("-"))
        return f"{who} has no option {error.option_name}{near}"
    found = re.match(r"No such command '(.+?)'", told)
    if found and isinstance(ctx.command, click.Group):
        return f"there is no command '{' '.join([*command, found[1]])}'{hint(found[1], ctx.command.list_commands(ctx))}"
    return told[0].lower() + told[1:].rstrip(".")


@contextmanager
def stopped(sentence: str) -> Iterator[None]:
    """Ctrl-C ends the command at once. Parties are threads and would otherwise finish their computation first."""
    try:
        yield
    except KeyboardInterrupt:
        _end(f"Stopped: {sentence}.")


def _end(sentence: str) -> NoReturn:
    """Everything is cleaned up: a second Ctrl-C meets neither Python nor torch as they take themselves apart."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    click.echo(f"\n{sentence}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@contextmanager
def ended_alike() -> Iterator[None]:
    """SIGTERM ends the command like Ctrl-C, even one that was started in the background: it cleans up, and exits with 130."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def goes_on(resume: bool) -> Iterator[None]:
    """After Ctrl-C the folder can be continued with --resume."""
    try:
        yield
    except KeyboardInterrupt:
        _end(f"Stopped. Continue with: {again(resume)}")
