"""The page of a training run shows what the files hold: numbers, the split, rounds, and the command that repeats it."""

from __future__ import annotations

import json
import shlex

from click.testing import CliRunner
from pages import change, check_structure, read, result_of

from grapevine.cli.main import main
from grapevine.jobs.expected import wilson
from grapevine.report.parts import MOST_LINES


def test_numbers_are_those_of_the_files(run):
    seen, result = read(run), result_of(run)
    told = seen.settings("Result")
    for name in (
        "rounds",
        "best_round",
        "accuracy",
        "accuracy_last",
        "balanced_accuracy",
        "bytes_up",
        "bytes_down",
        "flops",
        "seconds",
    ):
        assert json.loads(told[name]) == result[name], name
    n = sum(map(sum, result["confusion"]))
    low, high = wilson(result["accuracy"] * n, n)
    right = f"{result['accuracy']:.1%} of the {n} test rows are classified right by fedavg on digits"
    assert f"{right} (95 % interval: {low:.1%} to {high:.1%})." in seen.words and n == result["test_rows"]
    assert f"test accuracy ({low:.0%} to {high:.0%}, n = {n})" in seen.words
    chosen = f"round {result['best_round']} was kept, the best on {result['validation_rows']} validation rows."
    assert chosen in seen.words and "by chance" not in seen.words
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    shown = seen.tables["Accuracy by round"][0]
    assert shown[0] == ["round", "validation", "test"]
    assert shown[1:] == [[str(h["round"]), f"{h['validation_accuracy']:.1%}", f"{h['accuracy']:.1%}"] for h in history]
    clients = seen.tables["Accuracy per client"][0][1:]
    worst_first = sorted(result["per_client"], key=lambda row: row["accuracy"])
    assert clients == [[f"client {row['id']}", str(row["n"]), f"{row['accuracy']:.1%}"] for row in worst_first]
    matrix = seen.tables["Confusion matrix"][0]
    assert matrix[0][1:] == [row[0] for row in matrix[1:]] == result["data"]["classes"]
    assert [[int(n) for n in row[1:]] for row in matrix[1:]] == result["confusion"]
    steps, fields = seen.tables["Bytes by step and direction"]
    for direction in ("up", "down"):
        assert sum(int(row[3].replace(",", "")) for row in steps[1:] if row[1] == direction) == result[f"bytes_{direction}"]
        assert sum(int(row[5].replace(",", "")) for row in fields[1:] if row[1] == direction) < result[f"bytes_{direction}"]
    assert {row[2] for row in fields[1:]} == {"weights", "n", "round"}
    settings = json.loads((run / "settings.json").read_text())
    assert seen.settings("Data")["split"] == settings["data"]["split"]
    assert seen.settings("Run")["seed"] == "5" and seen.settings("Run")["version"] == settings["version"]
    assert seen.settings("Fields of fedavg")["epochs"] == "1"


def test_a_page_warns_of_a_round_that_few_rows_chose(run):
    change(run / "result.json", validation_rows=2)
    assert "Only 2 validation rows chose the round that was kept, so it may be the best by chance" in read(run).words


def test_the_split_is_that_of_the_file(run):
    seen, split = read(run), json.loads((run / "split.json").read_text())
    labels = [[int(n) for n in row[1:]] for row in seen.tables["Labels per client and class"][0][1:]]
    assert labels == [[part["labels"].count(c) for c in range(10)] for part in split["clients"]]
    assert sum(map(sum, labels)) == 80
    rows = [[int(n) for n in row[1:]] for row in seen.tables["Rows per client and class"][0][1:]]
    assert rows == [line["classes"] for line in split["table"]]
    assert [sum(row) for row in rows] == [len(part["labelled"]) + len(part["unlabelled"]) for part in split["clients"]]
    assert [row[1:] for row in seen.tables["Rows per client"][0][1:]] == [
        [str(len(part["labelled"])), str(len(part["unlabelled"]))] for part in split["clients"]
    ]


def test_irrelevant_rows_and_the_server_are_told_apart(run):
    parts = [
        dict(labelled=[1, 2, 100], labels=[0, 1, 5], unlabelled=[3, 101]),
        dict(labelled=[4], labels=[9], unlabelled=[102, 103]),
    ]
    server = dict(labelled=[7, 8], labels=[2, 2], unlabelled=[])
    change(run / "split.json", clients=parts, server=server, foreign=[40, 41, 42, 43])
    rows = read(run).tables["Rows per client"][0]
    assert rows == [["client", "labelled", "unlabelled", "irrelevant"], ["client 0", "2", "1", "2"], ["client 1", "1", "0", "2"],
                    ["server", "2", "0", "0"]]  # fmt: skip


def test_given_labels_are_set_against_true_ones_where_some_are_wrong(run):
    assert "Given and true labels" not in read(run).words  # all are right
    change(run / "split.json", given_true=[[0, 0, 8], [0, 1, 2], [3, 3, 5], [9, -2, 1]])
    seen = read(run)
    check_structure(seen)
    table = seen.tables["Given and true labels"][0]
    assert table[0][-1] == "irrelevant" and table[1] == ["0", "8", "2", *["0"] * 9] and table[10][-1] == "1"
    assert "81.2% are the true ones" in seen.words  # 13 of 16


def test_labels_on_rows_of_unknown_class_are_neither_irrelevant_nor_wrong(run):
    """Bug: all labels of a label job stood in the column "irrelevant" of a table that knew no truth for them."""
    change(run / "split.json", given_true=[[0, -1, 90], [0, 0, 8], [1, -1, 64], [3, 3, 5]])
    assert "Given and true labels" not in read(run).words  # all are right, as far as anybody knows
    change(run / "split.json", given_true=[[0, -1, 90], [0, 0, 9], [1, -1, 64], [3, 4, 3]])
    seen = read(run)
    table = seen.tables["Given and true labels"][0]
    assert table[0][-1] == "9" and table[1] == ["0", "9", *["0"] * 9]
    assert "75.0% are the true ones" in seen.words  # 9 of 12
    assert "Left out: 154 labels of rows whose true class is unknown." in seen.words


def test_many_clients_stay_a_small_page(run):
    n = 2000
    change(run / "result.json", per_client=[dict(id=i, n=5, accuracy=(i % 100) / 100 if i % 10 else None) for i in range(n)])
    table = [dict(client=str(i), classes=[int(c == i % 7) for c in range(10)]) for i in range(n)]
    change(run / "split.json", clients=[dict(labelled=[i], labels=[i % 10], unlabelled=[]) for i in range(n)], table=table)
    seen = read(run)
    check_structure(seen)
    assert (run / "report.html").stat().st_size < 300_000
    assert len(seen.tables["Labels per client and class"][0]) == len(seen.tables["Rows per client and class"][0]) == 51
    assert seen.tables["Rows per client and class"][0][2] == ["client 40", *(str(int(c == 40 % 7)) for c in range(10))]
    told = seen.tables["Accuracy per client"][0][1:]
    assert len(told) == MOST_LINES and [row[2] for row in told] == sorted([row[2] for row in told], key=lambda p: float(p[:-1]))
    assert "1,300 more lines, in result.json" in seen.words and told[0][2] == "1.0%"
    assert "200 clients without test rows left out. 300 of the clients are drawn, at even intervals." in seen.words
    assert sum("accuracy: " in a.get("data-tip", "") for _, a in seen.tags) == 300


def test_long_histories_are_thinned(run):
    lines = [dict(round=i, accuracy=i / 1000, validation_accuracy=None, bytes_up=i, bytes_down=i) for i in range(1000)]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(run / "result.json", best_round=7)
    shown = [int(row[0].replace(",", "")) for row in read(run).tables["Accuracy by round"][0][1:]]
    assert len(shown) <= 302 and shown[0] == 0 and shown[-1] == 999 and 7 in shown


def test_pseudo_labels_and_what_a_method_notes_are_drawn(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines[1:], 1):
        line.update(pseudo_label_accuracy=0.5 + i / 10, pseudo_labels_used=10 * i, pseudo_labels_of=40, graph_edges=1.5 * i)
    lines[2]["graph_edges"] = float("nan")
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(run / "result.json", pseudo_label_accuracy=0.8)
    seen = read(run)
    check_structure(seen)
    assert seen.tables["Pseudo-labels right"][0][1:] == [
        ["1", "60.0%", "25.0%"],
        ["2", "70.0%", "50.0%"],
        ["3", "80.0%", "75.0%"],
    ]
    assert seen.tables["Pseudo-labels used since the evaluation before"][0][1:] == [["1", "10"], ["2", "20"], ["3", "30"]]
    assert seen.tables["Graph edges"][0][1:] == [["1", "1.5"], ["3", "4.5"]]


def test_another_heads_pseudo_labels_are_drawn_beside(run):
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines[1:], 1):
        line.update(pseudo_label_accuracy=0.5 + i / 10, pseudo_labels_used=10, pseudo_labels_of=40, qualified=2.5 * i)
        line.update({f"{name}_classification": value for name, value in
                     dict(pseudo_label_accuracy=0.3, pseudo_labels_used=10, pseudo_labels_of=40).items()})  # fmt: skip
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = read(run)
    check_structure(seen)
    heads, *rows = seen.tables["Pseudo-labels right"][0]
    assert heads[1:] == ["right, of those used", "the classification head on the same rows", "used, of those guessed"]
    assert rows == [[str(i), f"{0.5 + i / 10:.1%}", "30.0%", "25.0%"] for i in (1, 2, 3)]
    assert seen.tables["Qualified rows per client"][0][1:] == [["1", "2.5"], ["2", "5"], ["3", "7.5"]]
    assert "Pseudo label accuracy classification" not in seen.tables


# The command that repeats a run


def test_the_command_to_repeat_a_run_started_from_python_repeats_it(run, tmp_path):
    command = next(text for text in read(run).texts if text.startswith("grapevine train"))
    *words, flag, out = shlex.split(command)[1:]
    assert (flag, out) == ("--out", "again")
    told = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "again")], standalone_mode=False)
    assert told.exception is None, told.output
    for name in ("history.jsonl", "messages.jsonl", "split.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes(), name


def test_a_run_from_the_command_line_shows_its_own_words(run):
    change(run / "settings.json", command="grapevine train fedavg --data 'my digits' --out x")
    assert "grapevine train fedavg --data 'my digits' --out x" in read(run).texts
