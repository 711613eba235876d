"""Flags from a job's settings, and those that several commands share. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from grapevine.core.errors import Mistake
from grapevine.core.param import Settings, kind


class Words(click.Choice):
    """Words that the shell completes. The settings themselves say which are refused, in their own sentence."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


class Names(click.ParamType):
    """Names with commas between them: the settings themselves take them apart."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


def flag_name(f: Field) -> str:
    return f"--{f.name.replace('_', '-')}"


def flag(f: Field) -> Callable:
    """The option of a setting: name, type, default, metavar, help and choices are the field's."""
    about, wanted = f.metadata, kind(f)
    words: dict[str, Any] = dict(help=about["text"], metavar=about.get("metavar"), required=about.get("needed", False))
    if wanted is bool:
        return click.option(flag_name(f), f.name, is_flag=True, help=about["text"])
    if wanted is dict:
        return click.option(flag_name(f), f.name, multiple=True, **words)
    if about["choices"]:
        words["type"] = Words(about["choices"])
    else:
        words["type"] = Names() if wanted is tuple else str if about.get("words") or about.get("read") else wanted
    return click.option(flag_name(f), f.name, default=f.default, **words)


def flags(settings: type[Settings]) -> Callable[[Callable], Callable]:
    """All flags of a job, in the order of its settings."""

    def add(command: Callable) -> Callable:
        for f in reversed(fields(settings)):
            if f.metadata.get("flag", True):
                command = flag(f)(command)
        return command

    return add


out_flag = click.option("--out", required=True, metavar="DIR", help="A new folder for the results.")
new_flag = click.option("--out", metavar="DIR", help="A new folder for the results.")
json_flag = click.option("--json", "as_json", is_flag=True, help="For machines.")
resume_flag = click.option("--resume", is_flag=True, help="Go on with DIR: only what is missing is run.")


def require_place(out: str | None, dry_run: bool) -> None:
    """Where a dry run needs no folder, click cannot say that one is required."""
    if not out and not dry_run:
        raise Mistake("where should the results go? Say --out DIR, a new folder.")
