"""A comparison in the terminal: its table where there is little room, and its bar."""

from __future__ import annotations

import io

from comparisons import made_up, noisy, tabled
from rich.console import Console

from grapevine.cli import compare_terminal, terminal
from grapevine.cli.bars import CompareBar
from grapevine.jobs import compare as comparison


def test_a_narrow_terminal_says_which_columns_it_leaves_out(tmp_path, monkeypatch):
    long = "fedsem:epochs=3,lr=0.05,batch=25,weight_decay=0.0005"
    made = tabled(made_up(tmp_path / "c", ["fedprox", long], lambda label, values, seed: 0.5 + seed / 100))
    words = io.StringIO()
    narrow = Console(width=80, file=words, highlight=False, markup=False)
    for module in (compare_terminal, terminal):
        monkeypatch.setattr(module, "console", narrow)
    compare_terminal.show_comparison(made)
    before, told = words.getvalue().split("There is no room here for ")
    table = before.split("The bounds ")[0]  # the first of the notes
    assert max(map(len, table.splitlines())) <= 80 and "…" not in table and "batch=25" in table.replace("\n", "")
    heads = " ".join(table.split("─")[0].split())
    assert heads.endswith("seconds") and all(line.rstrip().endswith(" s") for line in table.splitlines() if "(bound)" in line)
    assert all(name in told.splitlines()[0] for name in ("balanced", "95 % interval", "budget", "see table.md"))


def test_all_tables_of_a_grid_have_the_same_columns(tmp_path, monkeypatch):
    """Where pseudo-labels were known in one cell alone, the other had another column in their place."""
    made = tabled(made_up(tmp_path / "c", ["fedsem"], noisy, vary=dict(labels=["clients:20", "clients:80"])))
    for row in made.table:
        if row["cell"].endswith("80"):
            row["pseudo_label_accuracy"] = 0.5
    words = io.StringIO()
    for module in (compare_terminal, terminal):
        monkeypatch.setattr(module, "console", Console(width=90, file=words, highlight=False, markup=False))
    compare_terminal.show_comparison(made)
    heads = [line.split() for line in words.getvalue().splitlines() if line.lstrip().startswith("method")]
    assert len(heads) == 2 and heads[0] == heads[1] and words.getvalue().count("There is no room") == 1


def test_the_bar_never_says_that_no_time_is_left(capsys):
    for seconds, said in ((0.0, "3 of 4 runs; fedavg"), (0.4, "3 of 4 runs; fedavg"), (61.2, "about 61.2 s left")):
        CompareBar("compare")(comparison.Standing(3, 0, 4, 9, 10, seconds, "fedavg"))
        told = capsys.readouterr().out
        assert said in told and "about 0" not in told
