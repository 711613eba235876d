"""What a run says of very few rows, clients and rounds, and how it counts them."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.data.labels import parse_labels
from grapevine.jobs.clean_result import findings
from grapevine.jobs.train_words import rests_on
from grapevine.report import train as page


def grapevine(*words: str) -> str:
    return CliRunner().invoke(main, list(words)).output


@pytest.fixture
def table(tmp_path, monkeypatch):
    """143 rows, of which seven have a label."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{'north' if i % 2 else 'south'},{i % 7},{i % 5},{'xy'[i % 2] if i < 7 else ''}" for i in range(143)]
    (tmp_path / "t.csv").write_text("\n".join(["site,a,b,label", *lines]) + "\n")
    return ["train", "fedavg", "--data", "t.csv", "--rounds", "1", "--model", "linear", "--workers", "1"]


def test_a_table_without_parties_says_that_it_is_dealt_to_100_clients(table, caplog):
    """It was dealt to 100 clients without a word, and the model tested on one row."""
    said = " ".join(grapevine(*table, "--out", "a").split())
    (told,) = [record.getMessage() for record in caplog.records if "dealt" in record.getMessage()]
    assert "are dealt to 100 clients, which is the default" in told and "--party COL" in told and "--clients 5" in told
    found = re.search(r"Note: Only (\d+) test rows? measured the accuracy, so it says little", said)
    assert found and f"from {found[1]} test row" in said
    assert "test rows measured" in said or found[1] == "1" and "1 test rows" not in said
    assert "1 round, " in said and "1 rounds" not in said and re.search(r"\d MB of memory", said)  # "607.9 MB" was of nothing


@pytest.mark.parametrize("words", [["--party", "site"], ["--clients", "3"]])
def test_who_chose_the_clients_is_not_told_of_the_default(table, words, caplog):
    grapevine(*table, *words, "--out", "b")
    assert not [record for record in caplog.records if "dealt" in record.getMessage()]


def test_a_data_set_by_name_has_its_default_without_a_note(caplog):
    grapevine("data", "show", "--data", "digits")
    assert not caplog.records


def test_one_test_row_is_singular_on_the_page():
    """The heading said "of the 1 test rows"."""
    result = dict(accuracy=1.0, test_rows=1, rounds=1, best_round=1, per_client=[], accuracy_last=1.0, balanced_accuracy=1.0,
                  bytes_up=1, bytes_down=1, seconds=1.0, method="fedavg")  # fmt: skip
    files = type("Files", (), dict(split=None, data=dict(name="t", split="x"), history=[], result=result,
                                   settings=dict(model="mlp"), name=str))()  # fmt: skip
    head = page._finished(files, result)
    assert head["heading"].startswith("100.0% of the 1 test row is classified right") and "Of 1 round, round 1" in head["about"]
    assert any("Only 1 test row measured" in notice for notice in head["notices"]) and rests_on(result).n == 1


def test_a_mistake_counts_as_people_do():
    with pytest.raises(ValueError, match="1 label cannot be spread over 2,000 clients"):
        parse_labels("clients:1/2000")


def test_what_was_found_of_nothing_is_said_in_a_sentence():
    """It was "Irrelevant rows excluded: 36, but there were none."."""
    one = {"irrelevant rows excluded": dict(found=1036, right=0, of=0)}
    assert findings(one)[1] == [
        "Irrelevant rows excluded: 1,036, all of them by mistake, because by the truth there is nothing to find."
    ]
