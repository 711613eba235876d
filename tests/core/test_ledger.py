"""The ledger of releases: what it refuses, that it outlives the process, and what a stolen or changed one tells."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from grapevine.core.errors import Mistake
from grapevine.core.ledger import Ledger
from grapevine.core.rows import ClientData, Rows
from grapevine.data.columns import CATEGORY, Column


def data(x: np.ndarray, labelled: int = 2) -> ClientData:
    x = torch.as_tensor(x)
    at = torch.arange(len(x))
    view = [Rows(x, index, torch.full((len(index),), -1)) for index in (at[:labelled], at[labelled:], at[:0])]
    return ClientData(*view, ("0", "1"))


def table(n: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 3))


@pytest.fixture(params=["in memory", "on disk"])
def ledger(request, tmp_path):
    return Ledger(tmp_path / "ledger" if request.param == "on disk" else None)


def release(ledger: Ledger, job: str, parties: str, x: np.ndarray | None = None, what: str = "moments", **more) -> None:
    rows = ledger.rows(data(table() if x is None else x))
    ledger.release(job=job, what=what, rows=rows, parties=parties, **more)


# ---------------------------------------------------------------- what is refused


def test_the_same_rows_with_one_party_fewer_are_refused(ledger):
    release(ledger, "1", "abc")
    with pytest.raises(Mistake, match="summed with a, b, c on .*now a sum with a, b is asked for.*the part of c"):
        release(ledger, "2", "ab")
    with pytest.raises(Mistake, match="the part of c, d"):
        release(ledger, "2", "abd", what="another sum")
    release(ledger, "2", "cab")  # the same parties, once more
    assert [line["parties"] for line in ledger.lines() if line["kind"] == "release"] == [list("abc")] * 2


def test_within_a_job_a_set_shrinks_and_never_grows(ledger):
    release(ledger, "1", "abcd")
    release(ledger, "1", "abc")
    release(ledger, "1", "abc", what="hits")
    for parties in ("abcd", "abd", "abce"):
        with pytest.raises(Mistake, match="only a person"):
            release(ledger, "1", parties)
    release(ledger, "2", "abc")  # the job's last set is the one that other jobs are held to
    with pytest.raises(Mistake, match="the part of d"):
        release(ledger, "3", "abcd")


def test_rows_count_as_the_same_whatever_their_order_and_labels_and_a_few_new_ones(ledger):
    x = table()
    release(ledger, "1", "abc", x)
    assert ledger.rows(data(x)) == ledger.rows(data(x[::-1].copy(), labelled=7))
    for other in (x[::-1].copy(), np.concatenate([x, table(200, 1)]), x[:4]):
        with pytest.raises(Mistake, match="only a person"):
            release(ledger, "2", "ab", other)
    release(ledger, "2", "ab", table(30, 2))  # other rows
    mixed = np.concatenate([x, table(30, 2)])  # of both: no set of parties will do
    for parties in ("ab", "abc"):
        with pytest.raises(Mistake, match="only a person"):
            release(ledger, "3", parties, mixed)


def test_rows_with_text_are_the_same_when_a_new_value_stands_before_theirs(ledger):
    before, after = (Column("ward", CATEGORY, values) for values in (("b", "c"), ("a", "b", "c")))
    x = table()
    old, new = x.copy(), np.concatenate([x, table(3, 4)])
    old[:, 1], new[:, 1] = np.arange(30) % 2, np.append(1 + np.arange(30) % 2, [0, 0, np.nan])
    rows = [ledger.rows(replace(data(x), columns=(Column("u"), column))) for x, column in ((old, before), (new, after))]
    assert rows[0] != rows[1] and ledger.same(*rows)
    other = new.copy()
    other[:30, 1] = 3 - other[:30, 1]  # b and c change places, and so the rows are others
    assert not ledger.same(rows[0], ledger.rows(replace(data(other), columns=(Column("u"), after))))


def test_what_is_no_exact_sum_is_written_down_and_not_refused(ledger):
    release(ledger, "1", "abc")
    release(ledger, "2", "ab", mechanism=dict(kind="gaussian", sigma=3.0))
    release(ledger, "3", "abc")  # nor does it count later
    assert [line["mechanism"] for line in ledger.lines() if line["kind"] == "release"] == [
        None, dict(kind="gaussian", sigma=3.0), None
    ]  # fmt: skip


def test_a_person_may_allow_one_set_of_parties(ledger):
    release(ledger, "1", "abc")
    rows = ledger.rows(data(table()))
    assert "the part of c" in ledger.problem(rows, "ab")
    ledger.allow(rows=rows, parties="ab")
    assert ledger.problem(rows, "ab") is None and "the part of b" in ledger.problem(rows, "ac")
    release(ledger, "2", "ab")
    with pytest.raises(Mistake, match="only a person"):
        release(ledger, "3", "abc")  # it was allowed to go to {a, b}, not back


def test_nobody_is_held_up_by_having_no_rows(ledger):
    none = np.empty((0, 3))
    release(ledger, "1", "abc", none)
    release(ledger, "2", "ab", none)


# ---------------------------------------------------------------- on disk


def test_it_outlives_the_process_and_is_its_owners_alone(tmp_path):
    release(Ledger(tmp_path), "1", "abc")
    with pytest.raises(Mistake, match="the part of c"):
        release(Ledger(tmp_path), "2", "ab")
    for name in ("privacy.jsonl", "privacy.key"):
        assert os.stat(tmp_path / name).st_mode & 0o777 == 0o600


def test_a_torn_last_line_is_cut_off_and_the_rest_counts(tmp_path):
    release(Ledger(tmp_path), "1", "abc")
    path = tmp_path / "privacy.jsonl"
    whole = path.read_bytes()
    for torn in (b"{", b'{"time": "2026', whole.splitlines()[-1][:-1]):
        path.write_bytes(whole + torn)
        again = Ledger(tmp_path)
        with pytest.raises(Mistake, match="the part of c"):
            release(again, "2", "ab")
        release(again, "2", "abc")
        assert len(Ledger(tmp_path).lines()) == 3
        path.write_bytes(whole)


def test_a_changed_line_or_one_taken_out_of_the_middle_shows(tmp_path):
    for job in "123":
        release(Ledger(tmp_path), job, "abc")
    path = tmp_path / "privacy.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    for number, wrong in [(3, [*lines[:2], lines[2].replace(b'"b"', b'"d"'), lines[3]]), (2, [lines[0], *lines[2:]]),
                          (2, [lines[0], lines[2], lines[1], lines[3]]), (1, [b"{}\n", *lines])]:  # fmt: skip
        path.write_bytes(b"".join(wrong))
        with pytest.raises(Mistake, match=f"line {number} of .* was changed"):
            Ledger(tmp_path).lines()


def test_lines_cannot_be_made_without_the_key(tmp_path):
    """Nor is it any use: whoever takes the file alone can test no guess of a row."""
    release(Ledger(tmp_path / "a"), "1", "abc")
    release(Ledger(tmp_path / "b"), "1", "abc")
    one, other = ([json.loads(line) for line in (tmp_path / who / "privacy.jsonl").read_text().splitlines()] for who in "ab")
    assert one[0]["table"] != other[0]["table"] and one[0]["rows"] != other[0]["rows"]
    (tmp_path / "a" / "privacy.key").write_bytes((tmp_path / "b" / "privacy.key").read_bytes())
    with pytest.raises(Mistake, match="line 1 .* was changed"):
        Ledger(tmp_path / "a").lines()


def test_several_at_once_leave_one_chain(tmp_path):
    def work(job: int) -> None:
        for i in range(5):
            release(Ledger(tmp_path), f"{job} {i}", "abc")

    threads = [threading.Thread(target=work, args=(job,)) for job in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = Ledger(tmp_path).lines()
    assert sorted(line["job"] for line in lines if line["kind"] == "release") == sorted(
        f"{j} {i}" for j in range(4) for i in range(5)
    )
    assert len([line for line in lines if line["kind"] == "rows"]) == 1
