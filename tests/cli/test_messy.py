"""Tables as people have them, through the command: what is understood is said, what is not gets a sentence and exit code 2."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grapevine.cli.main import main

PARTIES = ("north", "south", "east")
HEAD = ["case", " Age ", "height", "income", "city", "seen", "smokes", "remark", "finding"]


def german(value: float) -> str:
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


def write_party(name: str, encoding: str = "utf-8", seed: int = 0, **change) -> None:
    """60 rows with decimal commas, dates, text and several words for nothing; `change` replaces a column's cells."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(60):
        ill = i % 2 == 0
        row = dict(case=f"{name}-{i}", Age=int(rng.normal(60 if ill else 40, 5)), height=german(rng.normal(1.7, 0.1)),
                   income=german(rng.normal(900 if ill else 2500, 200)), city=["Bonn", "Köln", "NA"][i % 3],
                   seen=f"{i % 28 + 1:02d}.03.2024", smokes="yes" if ill else "no", remark=f"note {name} {i}",
                   finding=["ill" if ill else "well", "?", "", "n/a"][i // 2 % 4])  # fmt: skip
        row |= {column: value(i) for column, value in change.items() if column in row}
        rows.append([str(cell) for cell in row.values()])
    with open(f"{name}.csv", "w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=";").writerows([HEAD, *rows])


@pytest.fixture
def parties(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, (name, encoding) in enumerate(zip(PARTIES, ("utf-8", "latin-1", "utf-16"))):
        write_party(name, encoding, i)


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, [*words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


FILES = [f"{name}.csv" for name in PARTIES]
LABEL = ["label", *FILES, "--label", "finding", "--id", "case", "--secure", "plain", "--bits", "64"]


def test_labels_from_messy_tables(parties):
    code, _, said = run(*LABEL, "--out", "labels")
    assert code == 0, said
    assert "3 numbers: Age, height, income; 2 categories: city (2 values), smokes (2 values); 1 date: seen." in said
    assert "Left out: remark (text, and no value occurs in 10 rows)" in said
    assert (
        "north: 60 rows, 44 without a label (16 ?, 14 empty, 14 n/a)." in said
        and "north: missing values in city (20 NA)." in said
    )
    assert "south.csv is not UTF-8: read as Windows-1252" in said and "east.csv was read as UTF-16" in said
    for name in PARTIES:
        with open(f"labels/{name}/labels.csv", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        right = [row["label"] == ("well" if i % 2 else "ill") for i, row in enumerate(found)]
        assert len(found) == 60 and np.mean(right) > 0.95 and found[3]["id"] == f"{name}-3"


def test_training_and_predicting_read_them_alike(parties):
    write_party("north", finding=lambda i: "well" if i % 2 else "ill")
    train = ["train", "fedavg", "--data", "north.csv", "--label", "finding", "--id", "case", "--clients", "2", "--rounds", "20"]
    code, _, said = run(*train, "--model", "linear", "--set", "lr=0.5", "--out", "run")
    assert code == 0, said
    write_party("new", city=lambda i: "Rom", income=lambda i: "NA")  # a city that nobody knows
    code, _, said = run("predict", "run", "new.csv", "--id", "case", "--out", "new-labels.csv")
    assert code == 2 and "column 'income': the value is missing, put a number there or use --impute" in said
    code, _, said = run("predict", "run", "new.csv", "--id", "case", "--impute", "--out", "new-labels.csv")
    assert code == 0 and "income (60 NA, filled with the mean)" in said
    assert "column 'city' has values that were rare or absent when the model was made: 'Rom' (60 rows)" in said
    assert "column 'smokes'" not in said
    with open("new-labels.csv") as file:
        found = [row["label"] for row in csv.DictReader(file)]
    assert np.mean([label == ("well" if i % 2 else "ill") for i, label in enumerate(found)]) > 0.9


def test_cleaning_reads_them_too(parties):
    clean = ["clean", *FILES[:2], "--server", "east.csv", "--label", "finding", "--id", "case", "--epochs", "5"]
    code, _, said = run(*clean, "--out", "cleaned")
    assert code == 0 and "2 categories: city (2 values), smokes (2 values)" in said and Path("cleaned/config.toml").exists()


def test_impute_says_what_was_filled_per_column_and_party(parties):
    write_party("north", Age=lambda i: "?" if i < 4 else 40 + i % 2, height=lambda i: "" if i == 9 else "1,7")
    code, _, said = run(*LABEL, "--impute", "--out", "labels")
    assert (
        code == 0 and "north: missing values in Age (4 ?, filled with the mean), height (1 empty, filled with the mean)" in said
    )


def test_warnings_are_printed(parties):
    write_party("north", income=lambda i: german(2e6 + i), remark=lambda i: str(i + 1))
    for name in ("south", "east"):
        write_party(name, remark=lambda i: str(i + 1), smokes=lambda i: "no")
    write_party("north", income=lambda i: german(2e6 + i), remark=lambda i: str(i + 1), smokes=lambda i: "no")
    code, _, said = run(*LABEL, "--out", "labels")
    assert code == 0 and "Warning: column 'smokes' is 'no' in every row" in said
    assert "Warning: column 'remark' looks like an id in north" in said
    assert "Warning: column 'income' is about" in said and "times larger in north than in the others" in said


def spoilt(**change):
    return lambda: write_party("south", **change)


def rewrite(text: str, name: str = "south.csv", encoding: str = "utf-8"):
    return lambda: Path(name).write_text(text, encoding=encoding)


BAD = {
    "a word among numbers": (spoilt(Age=lambda i: "old" if i == 7 else 50), "line 9, column 'Age': 'old' is not a number"),
    "a point among commas": (spoilt(height=lambda i: "1.75" if i else "1,75"), "decimal comma in '1,75'"),
    "a decimal point in another column": (spoilt(Age=lambda i: 50.5), "decimal point in '50.5' (column 'Age')"),
    "an unclear thousand": (spoilt(height=lambda i: "1,234", income=lambda i: "2,345"), "use --decimal point or --decimal comma"),
    "a missing number": (spoilt(Age=lambda i: "NA" if i == 3 else 50), "line 5, column 'Age': the value is missing"),
    "a missing date": (spoilt(seen=lambda i: "" if i == 3 else "01.02.2024"), "the value is missing, put a date there or use"),
    "a number without end": (
        spoilt(Age=lambda i: "1e308" if i == 7 else 50),
        "line 9, column 'Age': '1e+308' is not a number up to",
    ),
    "random bytes": (lambda: Path("south.csv").write_bytes(random.Random(1).randbytes(300)), "south.csv is not a text file"),
    "no such day": (spoilt(seen=lambda i: "31.02.2024"), "'31.02.2024' is no day of the calendar"),
    "a word among dates": (
        spoilt(seen=lambda i: "soon" if i == 2 else "01.02.2024"),
        "line 4, column 'seen': 'soon' is not a date",
    ),
    "day or month first": (spoilt(seen=lambda i: "03/04/2024"), "day first or month first"),
    "dates here, numbers there": (spoilt(seen=lambda i: 2024), "column 'seen' holds dates in north.csv and numbers in south.csv"),
    "numbers here, text there": (spoilt(height=lambda i: "tall"), "'height' holds numbers in north.csv and text in south.csv"),
    "the same id twice": (spoilt(case=lambda i: "x"), "id 'x' is also on line 2"),
    "an empty id": (spoilt(case=lambda i: "" if i == 1 else i), "line 3, column 'case': the id is empty"),
    "a column less": (rewrite("case;Age;finding\na;1;ill\n"), "or use only those that both have: --features Age."),
    "a ragged line": (rewrite("case;Age;finding\na;1;ill\nb;2\n"), "line 3: 2 cells under a header of 3 columns"),
    "no header": (rewrite("1;2;3\n4;5;6\n"), "add a header line with column names at the top"),
    "the same name twice": (rewrite("case;Age; Age;finding\na;1;2;ill\n"), "two columns named 'Age'"),
    "only a header": (rewrite("case;Age;finding\n"), "has no rows"),
    "an empty file": (rewrite(""), "is empty"),
    "mixed encodings": (lambda: Path("south.csv").write_bytes("a;ö\n1;".encode() + b"\xf6\n"), "mixes UTF-8 and Latin-1"),
    "no label column": (rewrite("case;Age;Finding\na;1;ill\n"), "has no column 'finding' (did you mean 'Finding'?)"),
    "only free text": (lambda: [rewrite(f"case;t;finding\na;{n};ill\n", n)() for n in FILES], "no column is usable"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_understood_gets_a_sentence(parties, case):
    spoil, words = BAD[case]
    spoil()
    code, _, said = run(*LABEL, "--out", "labels")
    (last,) = [line for line in said.splitlines() if line.startswith("grapevine: ")]
    assert code == 2 and words in last and last.endswith(".") and not Path("labels").exists()


@pytest.mark.parametrize("words, sentence", [
    (["--categories", "town"], "has no column 'town'"),
    (["--categories", "finding"], "'finding' already has another purpose: remove it from --categories"),
    (["--features", "Age", "--categories", "city"], "--categories names 'city', which is not among the --features"),
    (["--decimal", "point"], "is not a number with a decimal point, use --decimal comma"),
    (["--decimal", "dot"], "decimal is dot, which is not a known value: use auto, point or comma"),
])  # fmt: skip
def test_flags_that_do_not_fit_the_table(parties, words, sentence):
    code, _, said = run(*LABEL, *words, "--out", "labels")
    assert code == 2 and sentence in said


def test_the_answers_to_what_was_asked(parties):
    """Every way out that a sentence names works."""
    for name in PARTIES:
        write_party(name, Age=lambda i: "old" if i == 7 else 50 + i, height=lambda i: "1,234", income=lambda i: "2,345",
                    seen=lambda i: "03/04/2024")  # fmt: skip
    code, _, said = run(*LABEL, "--decimal", "point", "--missing", "old", "--impute", "--categories", "seen", "--out", "labels")
    assert (
        code == 0 and "3 numbers: Age, height, income; 3 categories: city" in said and "Age (1 old, filled with the mean)" in said
    )
    assert "column 'height' is 1234 in every row" in said
