"""The command as it was typed, and how it is told to end."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click


def command_line() -> str:
    """The command that was typed."""
    return shlex.join(["grapevine", *sys.argv[1:]])


def again(resume: bool) -> str:
    """The command that continues what was stopped."""
    return command_line() + ("" if resume else " --resume")


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
