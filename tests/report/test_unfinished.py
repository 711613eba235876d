"""Pages of runs that are not whole: in progress, stopped, with missing or damaged files."""

from __future__ import annotations

import pytest
from pages import check_structure, read

import grapevine as gv
from grapevine import report
from grapevine.core.errors import Mistake
from grapevine.report import train as train_page
from grapevine.report.page import REFRESH_SECONDS
from grapevine.run.folder import lock


def test_train_keeps_its_page_up_to_date(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 0.0)
    monkeypatch.setattr(train_page, "LIVE_COST", 0)
    pages = []

    def progress(done: int, total: int, line: dict | None) -> None:
        pages.append((tmp_path / "run" / "report.html").read_text() if done > 1 else "")

    split = digits.split(clients=2, labels="clients:40", seed=1)
    words = dict(rounds=3, per_round=1, model="linear", seed=1, device="cpu", latent=0)
    gv.train(gv.methods.FedAvg(epochs=1), split, out=tmp_path / "run", progress=progress, **words)
    assert [f"has done {n} of 3 rounds" in page for n, page in enumerate(pages)] == [False, True, True]
    assert all("The run is in progress." in page and 'http-equiv="refresh"' in page for page in pages[1:])
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 1000.0)
    slow, there = tmp_path / "slow" / "report.html", []
    gv.train(gv.methods.FedAvg(epochs=1), split, out=slow.parent, progress=lambda *_: there.append(slow.exists()), **words)
    assert there == [False] * 3 and slow.exists()  # only at the end


def test_a_page_that_cannot_be_written_does_not_stop_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(train_page, "LIVE_SECONDS", 0.0)
    told = []
    live = train_page.Live(tmp_path / "nowhere", lambda *words: told.append(words))
    live(1, 3, None)
    live(2, 3, None)
    assert told == [(1, 3, None), (2, 3, None)]


def test_a_running_run_says_so_and_loads_again(run):
    (run / "result.json").unlink()
    for name, keep in (("history", 2), ("messages", 2), ("times", 1)):
        lines = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (run / f"{name}.jsonl").write_text("".join(lines[:keep]) + lines[keep][:9])  # the writer is in the middle of a line
    with lock(run / "lock"):
        seen = read(run)
    check_structure(seen)
    assert "Not finished: fedavg has done 1 of 3 rounds." in seen.words and "The run is in progress." in seen.words
    assert len(seen.tables["Accuracy by round"][0]) == 3
    assert [a["content"] for _, a in seen.tags if a.get("http-equiv") == "refresh"] == [str(REFRESH_SECONDS)]
    stopped = read(run)
    assert "The run was stopped before its end" in stopped.words
    assert not any(a.get("http-equiv") == "refresh" for _, a in stopped.tags)
    assert "Confusion matrix" not in seen.tables and "Result" not in seen.tables


@pytest.mark.parametrize("names", ["history.jsonl", "messages.jsonl", "times.jsonl", "split.json",
                                   "result.json history.jsonl messages.jsonl times.jsonl split.json"])  # fmt: skip
def test_missing_files_leave_their_part_out(run, names):
    for name in names.split():
        (run / name).unlink()
    seen = read(run)
    assert "fedavg" in seen.words and seen.settings("Run")["rounds"] == "3"
    if "split.json" in names:
        assert "There is no split.json in this folder." in seen.words


def test_mistakes_are_sentences(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, tmp_path / "nowhere"):
        with pytest.raises(Mistake, match=r"holds no run of Grapevine: give the folder .*\.$"):
            report.write(folder)
    (run / "report.html").unlink()
    (run / "history.jsonl").write_text("{nonsense\n")
    with pytest.raises(Mistake, match=r"history.jsonl has a line that is not JSON"):
        report.write(run)
    (run / "history.jsonl").write_text('{"accuracy": 0.5}\n')
    with pytest.raises(Mistake, match=r"files that a run of Grapevine does not write \(KeyError: 'round'\)"):
        report.write(run)
    for text, told in (("{", "is not valid JSON"), ("[1]", "should hold settings or results but holds a list")):
        (run / "result.json").write_text(text)
        with pytest.raises(Mistake, match=told):
            report.write(run)
    assert not (run / "report.html").exists()
