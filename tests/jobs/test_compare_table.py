"""The table of a comparison: means, intervals, paired tests, targets, and what its notes and the headline say."""

from __future__ import annotations

import csv
import json
import math

import pytest
from comparisons import LEVEL, headline, made_up, noisy, tabled
from scipy.stats import sem, ttest_rel
from scipy.stats import t as t_distribution

from grapevine.cli import compare_terminal
from grapevine.jobs import compare_table


def test_means_spread_and_paired_test(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy))
    assert [row["method"] for row in made.table] == ["alone", "fedavg", "fedprox", "fedsem", "supervised"]
    rows = {row["method"]: row for row in made.table}
    assert [row["method"] for row in made.table if row["best"]] == ["fedsem"]  # supervised is better, and a bound
    assert {name for name, row in rows.items() if row["bound"]} == {"alone", "fedavg", "supervised"}
    these, best = ([noisy(name, {}, seed) for seed in range(3)] for name in ("fedprox", "fedsem"))
    mean = sum(these) / 3
    assert rows["fedprox"]["accuracy"] == pytest.approx(mean)
    assert rows["fedprox"]["accuracy_std"] == pytest.approx(math.sqrt(sum((a - mean) ** 2 for a in these) / 2))
    assert rows["fedprox"]["p"] == pytest.approx(ttest_rel(these, best).pvalue)
    assert rows["fedprox"]["difference"] == pytest.approx(mean - sum(best) / 3)
    assert rows["fedsem"]["p"] is None
    # 1600 bytes over 4 rounds of 2 clients.
    assert rows["fedprox"]["bytes_per_client_round"] == 200


def test_the_interval_of_a_mean_is_students(tmp_path):
    rows = {row["method"]: row for row in tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy)).table}
    these = [noisy("fedsem", {}, seed) for seed in range(3)]
    low, high = t_distribution.interval(0.95, 2, sum(these) / 3, sem(these))
    assert compare_table.interval(rows["fedsem"]) == f"{100 * low:.1f} to {100 * high:.1f}%, 3 seeds"
    assert compare_table.interval(dict(accuracy=0.5, accuracy_half=None, seeds=1)) == "1 seed"
    # Two seeds with 5 of 7 test rows had an interval from 71.4 to 71.4 %.
    assert compare_table.interval(dict(accuracy=5 / 7, accuracy_half=0.0, seeds=2)) == "2 seeds, all equal"


def test_few_test_rows_are_a_warning(tmp_path):
    """The bound on 7 test rows was said to leave nothing to gain."""
    made = resting_on(tmp_path / "c", {0: (7, 40), 1: (9, 40)})
    warning = "With 7 test rows, one row more or less is 14.3 percentage points: small differences are chance"
    assert sum(told.startswith(warning) for told in compare_table.notes(made.data, made.data["cells"][0])) == 1
    enough = resting_on(tmp_path / "d", {0: (100, 40)})
    assert not any("percentage points: small" in told for told in compare_table.notes(enough.data, enough.data["cells"][0]))


def test_bounds_that_are_level_share_a_sentence(tmp_path):
    """Each had the same sentence."""
    made = tabled(made_up(tmp_path / "c", ["fedsem"], lambda label, values, seed: 0.8 + 0.01 * (seed - 1) * (label != "fedsem")))
    told = compare_table.against_bounds(made.table)
    assert told.count("cannot be distinguished") <= 1
    rows = [dict(row, accuracy=0.7 if row["bound"] and row["method"] != "supervised" else 0.8, p=0.3 if row["bound"] else None,
                 pairs=3) for row in made.table]  # fmt: skip
    rows = [dict(row, accuracy=0.9) if row["method"] == "supervised" else row for row in rows]
    assert compare_table.against_bounds(rows) == (
        "fedsem cannot be distinguished from the bounds each client alone (alone), labelled rows only (fedavg) and all true "
        "labels (supervised) with 3 seeds."
    )


def resting_on(out, rows):
    """A comparison whose runs are tested and chosen on so few rows: {seed: (test, validation)}."""
    going = made_up(out, ["fedsem"], noisy, seeds=len(rows))
    for job in going.jobs:
        path, (test, validation) = out / job.folder / "result.json", rows[job.seed]
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(test_rows=test, validation_rows=validation)))
    return tabled(going)


def test_a_comparison_says_on_how_few_rows_its_figures_rest(tmp_path, capsys):
    """100 % on 5 test rows, of a round that 2 rows chose, stood there as if it were sure."""
    made = resting_on(tmp_path / "c", {0: (5, 2), 1: (7, 3)})
    said = "Each accuracy is measured on 5 to 7 test rows, of the round that was best on 2 to 3 validation rows."
    warning = "Only 2 validation rows chose the round that was kept, so it may be the best by chance"
    compare_terminal.show_comparison(made)
    for told in (capsys.readouterr().out, (made.out / "table.md").read_text(), (made.out / "report.html").read_text()):
        assert said in told and warning in told
    assert " of the 5 to 7 test rows of digits right" in headline(made)


def test_methods_of_which_no_round_is_chosen_are_named(tmp_path):
    made = resting_on(tmp_path / "c", {0: (359, 144)})
    cell, runs = made.data["cells"][0], [dict(run) for run in made.data["runs"]]
    alone = next(run for run in runs if run["method"] == "alone")
    alone["validation_rows"] = 0
    (told,) = compare_table.rests_on(dict(made.data, runs=runs), cell)
    assert told.endswith("of the round that was best on 144 validation rows (alone: of the last round).")


def test_rounds_that_enough_rows_chose_are_not_warned_of(tmp_path):
    resting_on(tmp_path / "c", {0: (359, 144)})
    told = (tmp_path / "c" / "table.md").read_text()
    assert "Each accuracy is measured on 359 test rows, of the round that was best on 144 validation rows." in told
    assert "by chance" not in told
    older = resting_on(tmp_path / "d", {0: (None, None)})
    assert "Each accuracy" not in (tmp_path / "d" / "table.md").read_text()
    assert " of the test rows of digits right" in headline(older)


def test_a_bound_that_beats_every_method_is_said_first(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], lambda label, values, seed: dict(LEVEL, fedavg=0.85)[label]))
    warning = "The bound labelled rows only (fedavg) is at least as good as every method: this setting says nothing about them."
    assert compare_table.notes(made.data, made.data["cells"][0])[0] == warning
    none = (
        "Neither of 2 methods is better than the bound fedavg on digits: fedsem comes nearest, with 80.0% of the 359 test rows "
    )
    assert headline(made).startswith(none) and not any(row["best"] for row in made.table)
    said = (tmp_path / "c" / "table.md").read_text()
    assert warning in said and "**" not in said and " best |" not in said and "points against fedsem" in said
    assert "best: fedsem" not in (tmp_path / "c" / "report.html").read_text()


def test_a_single_method_is_not_called_best(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedsem"], noisy))
    assert not any(row["best"] for row in made.table) and "best" not in headline(made)
    assert compare_table.lead(made.table)["method"] == "fedsem"


def test_two_bounds_that_beat_every_method_share_a_sentence(tmp_path):
    """Each had the same sentence."""
    made = tabled(made_up(tmp_path / "c", ["fedsem"], lambda label, values, seed: dict(LEVEL, alone=0.9, fedavg=0.85)[label]))
    told = compare_table.notes(made.data, made.data["cells"][0])[0]
    assert told.startswith("The bounds ") and told.count("says nothing") == 1 and "(alone)" in told and "(fedavg)" in told


def test_a_tie_with_a_bound_is_in_the_headline(tmp_path):
    level = dict(LEVEL, fedsem=0.65)
    made = tabled(
        made_up(tmp_path / "c", ["fedsem"], lambda label, values, seed: level[label] + 0.1 * (-1) ** seed * (label == "fedavg"))
    )
    assert headline(made).endswith("3 seeds, all equal); it is not distinguishable from the bound fedavg.")
    clear = tabled(made_up(tmp_path / "d", ["fedsem"], lambda label, values, seed: LEVEL[label] + seed / 1000))
    assert "bound" not in headline(clear) and "3 seeds" in headline(clear)
    top = tabled(made_up(tmp_path / "e", ["fedsem"], lambda label, values, seed: dict(LEVEL, supervised=0.7)[label]))
    assert headline(top).endswith("it is no worse than the bound supervised.")


def test_a_paired_test_needs_two_seeds_and_a_difference():
    assert compare_table.paired({0: 0.5}, {0: 0.4})[1:] == (None, 1)
    assert compare_table.paired({0: 0.5}, {1: 0.4}) == (None, None, 0)
    assert compare_table.paired({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6})[1] == 1.0
    difference, p, pairs = compare_table.paired({0: 0.5, 1: 0.6, 7: 0.1}, {0: 0.25, 1: 0.35, 8: 0.2})
    assert (difference, p, pairs) == (pytest.approx(0.25), 0.0, 2)
    assert compare_table.mean_and_std([0.5, None]) == (0.5, None)
    assert compare_table.mean_and_std([]) == (None, None)


def test_rounds_and_bytes_to_the_target(tmp_path):
    plan = made_up(tmp_path / "c", ["fedprox", "fedsem"], lambda label, values, seed: LEVEL[label])
    rows = {row["method"]: row for row in tabled(plan).table}
    # Curves rise by a quarter of the last accuracy a round; fedavg's 0.6 is reached by 0.8 in round 3, by 0.7 in round 4.
    assert rows["fedsem"]["target"] == pytest.approx(0.6)
    assert (rows["fedsem"]["target_rounds"], rows["fedsem"]["target_bytes"]) == (3, 1200)
    assert (rows["fedprox"]["target_rounds"], rows["fedprox"]["target_bytes"]) == (4, 1600)
    assert rows["alone"]["target_rounds"] is None
    markdown = (tmp_path / "c" / "table.md").read_text()
    assert "not reached" in next(line for line in markdown.splitlines() if line.startswith("| alone"))
    plan.data["target"] = 0.2
    rows = {row["method"]: row for row in tabled(plan).table}
    assert (rows["alone"]["target_rounds"], rows["fedsem"]["target_rounds"]) == (2, 1)


def test_the_tables_on_disk_say_the_same(tmp_path):
    made = tabled(made_up(tmp_path / "c", ["fedprox", "fedsem"], noisy, leave_out={("fedprox", 1)}))
    with open(tmp_path / "c" / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == [row["method"] for row in made.table]
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in made.table]
    markdown = (tmp_path / "c" / "table.md").read_text()
    assert "| fedprox |  | 2 of 3 |" in markdown and "| **fedsem** |" in markdown
    assert "Not finished yet: 1 runs" in markdown
    tex = compare_table.as_latex(made.data)
    assert tex.count(r"\\") == 6 and r"$\pm$" in tex and r"\textbf{fedsem}" in tex
    assert compare_table.tex("50 % of {a_b} & c") == r"50 \% of \{a\_b\} \& c"
