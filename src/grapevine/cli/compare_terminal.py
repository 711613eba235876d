"""What people see of a comparison in a terminal: its tables and what they mean."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from grapevine.cli.bars import console
from grapevine.cli.terminal import say, show_place
from grapevine.jobs.compare import Comparison
from grapevine.jobs.compare_table import COLUMNS, notes, rows_of, used_columns

# In the order in which they are worth a place; what does not fit is on the page and in table.md.
WANTED = ("method", "accuracy", "p", "bytes", "seconds", "rounds to target", "pseudo-labels right", "difference",
          "bytes to target", "balanced", "per client and round", "FLOPs")  # fmt: skip
LONGEST = 32  # letters of a method's name on a line


def show_comparison(made: Comparison) -> None:
    """The tables, all with the same columns, what they mean, and where everything is."""
    every = made.data["table"]
    names = _that_fit(every, console.width)
    for cell in made.data["cells"]:
        rows = rows_of(made.data, cell)
        table = Table(title=cell["name"] or None, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for name in names:
            # A least width would not do: what is too wide in all is cut at the last column.
            table.add_column(name, width=_width(every, name), justify="left" if name == "method" else "right", overflow="fold")
        for row in rows:
            style = "dim" if row["bound"] else "bold" if row["best"] else None
            table.add_row(*(_shown(row, name) for name in names), style=style)
        console.print(table)
        say(*notes(made.data, cell))
    more = [name for name in used_columns(every) if name not in (*names, "bound", "seeds")]
    say(*([f"There is no room here for {', '.join(more)}: see table.md and the page."] if more else []))
    show_place(made.out)


def _shown(row: dict[str, Any], name: str) -> str:
    return f"{row['method']} (bound)" if name == "method" and row["bound"] else COLUMNS[name](row)


def _width(rows: list[dict[str, Any]], name: str) -> int:
    """Column heads may break between words; values may not break, except long names of methods."""
    wide = max(*(len(word) for word in name.split()), *(len(_shown(row, name)) for row in rows))
    return min(wide, LONGEST) if name == "method" else wide


def _that_fit(rows: list[dict[str, Any]], width: int) -> list[str]:
    used = used_columns(rows)
    kept: list[str] = []
    for name in WANTED:
        if name in used and (len(kept) < 2 or sum(_width(rows, other) + 3 for other in [*kept, name]) <= width):
            kept.append(name)
    return [name for name in used if name in kept]
