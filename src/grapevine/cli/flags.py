"""Flags made from a job's settings, and flags that several commands share. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from grapevine.core.errors import Mistake
from grapevine.core.param import Settings, kind


class Words(click.Choice):
    """Words that the shell completes. The settings refuse unknown ones, with their own sentence."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


class Unread(click.ParamType):
    """Numbers, and names with commas between them: the settings read them, and refuse others with their own sentence."""

    def __init__(self, name: str):
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


class Needed(click.Option):
    """An option that must be given, with an example of it in the sentence that says so."""

    def __init__(self, *words: Any, example: str, **more: Any):
        super().__init__(*words, required=True, **more)
        self.example = example

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            made = super().process_value(ctx, value)
        except click.MissingParameter:
            made = None
        if made is None or made == "":
            raise Mistake(f"which {self.name}? Name the {self.name} with {self.opts[0]}, as in {self.opts[0]} {self.example}.")
        return made


def flag_name(f: Field) -> str:
    return f"--{f.name.replace('_', '-')}"


def flag(f: Field) -> Callable:
    """The command-line option of a setting: its name, type, default, metavar, help and choices come from the field."""
    about, wanted = f.metadata, kind(f)
    words: dict[str, Any] = dict(help=about["text"], metavar=about.get("metavar"), hidden=about.get("hidden", False))
    if about.get("needed"):
        words |= dict(cls=Needed, example=about["needed"])
    if wanted is bool:
        return click.option(flag_name(f), f.name, is_flag=True, help=about["text"])
    if wanted is dict:
        return click.option(flag_name(f), f.name, multiple=True, **words)
    if about["choices"]:
        words["type"] = Words(about["choices"])
    else:
        text = about.get("words") or about.get("read") or wanted is str
        words["type"] = str if text else Unread({tuple: "names", int: "integer"}.get(wanted, "float"))
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
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
resume_flag = click.option("--resume", is_flag=True, help="Continue in DIR; only what is missing is run.")


def _from_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Use the file's values as defaults, so that flags on the command line take precedence."""
    if path is None:
        return
    from grapevine.jobs.config import read_config

    by_name = {p.name or "": p for p in ctx.command.params if p.name not in ("config", "out", "resume", "dry_run", "as_json")}
    said = read_config(path, str(ctx.info_name), by_name)
    for name, value in said.items():
        if getattr(by_name[name], "multiple", False):  # a table, as --set and --vary take it
            pairs = value.items() if isinstance(value, dict) else ()
            said[name] = [f"{key}={','.join(map(str, each)) if isinstance(each, list) else each}" for key, each in pairs]
        elif isinstance(value, list) and by_name[name].nargs == 1:
            said[name] = ",".join(map(str, value))
    ctx.default_map = said


config_flag = click.option(
    "--config", metavar="FILE.toml", is_eager=True, expose_value=False, callback=_from_config,
    help="Read settings from a file such as the config.toml that every run writes. Flags take precedence.",
)  # fmt: skip


def require_place(out: str | None, dry_run: bool) -> None:
    """Require --out unless it is a dry run, which click cannot express."""
    if not out and not dry_run:
        raise Mistake("where should the results go? Name a new folder with --out DIR.")
