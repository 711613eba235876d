"""Others' labels and rows in chorus, for who follows the protocol: a party, the server, and both together."""

from __future__ import annotations

from dataclasses import replace

import attacking_chorus as on_chorus
import numpy as np
import pytest
from attacking_chorus import LABELS, Job

MORE = 0.05  # an attack that must fail is at most 5 points above guessing the largest class


@pytest.fixture(scope="module")
def who(digits):
    return on_chorus.parties(digits)


@pytest.fixture(scope="module")
def job(who):
    return Job(who)


@pytest.mark.parametrize("attack", [on_chorus.party_by_scores, on_chorus.party_by_counts])
def test_a_party_does_not_find_the_others_labels(job, attack):
    found = attack(job)
    assert found["right"] <= found["prior"] + MORE


def test_a_party_finds_no_row_in_the_differences_of_class_sums(job):
    assert on_chorus.rows_by_differences(job) == 0


def test_it_would_if_class_sums_were_of_all_rows(who):
    assert on_chorus.rows_by_differences(on_chorus.with_subset(who, 1.0)) > 0


def test_the_same_where_labelled_rows_count_more_often(who, monkeypatch):
    monkeypatch.setattr(on_chorus.song, "TRUTH", 1.0)  # three times: a third of the rows are labelled
    assert on_chorus.rows_by_differences(Job(who)) == 0
    assert on_chorus.rows_by_differences(on_chorus.with_subset(who, 1.0)) > 0


def test_it_would_if_refits_took_the_same_rows(who, monkeypatch):
    """Each class sum has a draw of its own: one seed for all would be as good as all rows."""
    same = on_chorus.Chorus._singer

    def singer(method, client):
        made = same(method, client)
        return replace(made, draw=lambda what: np.random.default_rng(LABELS))

    monkeypatch.setattr(on_chorus.Chorus, "_singer", singer)
    assert on_chorus.rows_by_differences(Job(who)) > 0


def test_the_server_does_not_find_labels_in_what_it_carries(job):
    """The same attack on the same sum in the clear names them all."""
    found = on_chorus.server_alone(job)
    assert found["right"] <= found["prior"] + MORE
    assert on_chorus.server_alone(job, job.opened["a"][1])["right"] == 1  # after the counts of rare values


def test_server_and_party_together_read_all_labels(job):
    """By design, as in XCLP's job."""
    assert on_chorus.server_and_party(job)["right"] > 0.95
