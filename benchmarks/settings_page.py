"""docs/settings.md: every setting of every job, made from the dataclasses that commands and Python read.

python benchmarks/settings_page.py
"""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from pathlib import Path

from grapevine.core.param import Settings, kind, shown, values
from grapevine.jobs.settings import JOBS

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Each setting stands once, in `grapevine.jobs.settings`. The command's flags, the keywords of `gv.label`, `gv.train`, `gv.clean`
and `gv.compare`, and what the parties of a federation agree on are made from there. `evaluate_every` is `--evaluate-every` as a
flag. This page is made by `python benchmarks/settings_page.py`.
"""
NOTES = dict(
    label="Parties are the arguments: files, folders or arrays.",
    train="The method is the first argument; its own fields (`grapevine methods NAME`) go into `set`.",
    clean="Parties are the arguments; the server's rows are `server`.",
    compare="Methods are the arguments. `bounds` is for Python alone.",
)


def row(f: Field) -> list[str]:
    usual = "" if f.default is None or kind(f) is dict else f"`{shown(f.default) if kind(f) is bool else f.default}`"
    if f.name == "workers":
        usual = "`2`, or 1 on one core"
    may_be = "a whole number" if f.name == "seed" else values(f)
    return [
        f"`{f.name}`",
        f.metadata["symbol"],
        usual,
        may_be,
        f.metadata["text"].rstrip("."),
        "" if f.metadata.get("local") else "yes",
    ]


def section(job: str, settings: type[Settings]) -> str:
    told = [f for f in fields(settings) if not f.metadata.get("hidden")]
    rows = [["setting", "symbol", "default", "values", "what it is", "agreed"], ["---"] * 6, *map(row, told)]
    shown = rows if job != "compare" else [cells[:-1] for cells in rows]  # which no federation runs
    return "\n".join([f"## {job}", "", NOTES[job], "", *(f"| {' | '.join(cells)} |" for cells in shown)])


def page() -> str:
    told = 'A setting that is "agreed" is the same for all parties of a federation; the others are each party\'s own.'
    return "\n\n".join([HEAD.rstrip(), told, *(section(job, settings) for job, settings in JOBS.items())]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="print the page instead of writing it")
    if parser.parse_args().quick:
        print(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
