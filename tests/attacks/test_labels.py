"""Others' labels, in the label job and in FedAvg+XCLP, for who follows the protocol: a party, the server, and both together.

As the paper spreads labels a party succeeds; as we do it has nothing to begin with. Server and party together always succeed: by
design, and the threat model says so.
"""

from __future__ import annotations

import attacking_labels as on_labels
import numpy as np
import pytest
from attacking import over_splits
from attacking_labels import LABELS, Job, truth

MORE = 0.05  # an attack that must fail is at most 5 points above guessing the largest class


@pytest.fixture(scope="module")
def who(digits):
    return on_labels.parties(digits)


@pytest.fixture(scope="module")
def paper(who):
    return Job(who, on_labels.xclp("paper"))


@pytest.fixture(scope="module")
def private(who):
    return Job(who, on_labels.xclp("private"))


def test_the_papers_spread_shows_a_party_the_others_labels(paper):
    assert on_labels.party_with_columns(paper)["right"] > 0.9


def test_the_private_spread_shows_it_nothing(private):
    """Nothing that reaches the party has an entry for its labelled rows and the others' rows, or is anything but bytes; and the
    same attack with what it can make itself, the similarities among its own rows, guesses no better than the largest class."""
    sent = private.sent["a"]
    assert "xclp.spread.contribute" not in sent
    arrays = [part for graph in sent["receive"]["rows"].values() for block in graph.values() for part in block.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.uint8)}
    found = on_labels.party_without(private)
    assert found["right"] <= found["prior"] + MORE


def test_the_server_alone_cannot_name_the_classes(digits):
    """It has S, and may even be told how many labels each class has. What groups of rows are called then varies with the split,
    from nothing right to half: the mean over 24 of them counts."""
    found = []
    for seed in range(3, 27):
        who = on_labels.parties(digits, seed)
        found.append(on_labels.server_alone(Job(who, on_labels.xclp("private")), Job(who, on_labels.xclp("paper")).columns))
    found = over_splits(found)
    assert found["right"] <= found["prior"] + MORE


def test_server_and_party_together_read_all_labels(private, paper):
    """By design: they have S, and the scores of the party's rows. The figure stands in the threat model."""
    assert on_labels.server_and_party(private, paper.columns)["right"] > 0.95


def test_no_label_reaches_the_server(private):
    """What the parties answer holds no class: sealed labels are bytes, and the same labels never look alike twice."""
    sealed = [e.replies for e in private.seen if e.step == "share"][0]
    fields = {name: value for reply in sealed.values() for name, value in reply.items()}
    assert set(fields) == {"first", "own", "labelled", "blank", "spread"}
    words = [np.concatenate([part.ravel().view(np.uint8) for part in leaves(reply["spread"])]) for reply in sealed.values()]
    for data in words:
        counts = np.bincount(data, minlength=256)
        assert len(data) < 2560 or counts.max() < 2 * counts.mean() + 50


def leaves(value):
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    return [np.frombuffer(value, np.uint8)] if isinstance(value, bytes) else [np.asarray(value)]


def test_scores_are_known_up_to_their_scale_only(private, paper):
    """A row's sum says how near labels are, which is the server's to know: here every row that is reached sums to nearly 2^16."""
    private, paper = private.scores["a"], paper.scores["a"]
    assert private.sum(1).min() > 2**16 - LABELS * 3 - 2
    assert paper.sum(1).max() > 1.2 * paper.sum(1).min()
    p, q = private / private.sum(1, keepdims=True), paper / paper.sum(1, keepdims=True)
    assert np.abs(p - q).max() < 2e-3


def test_a_party_knows_its_own_labels_and_the_attack_counts_the_others_only(who):
    assert [len(truth(who, name)) for name in "abc"] == [LABELS] * 3 and len(on_labels.OTHERS) == 2 * LABELS


@pytest.mark.parametrize("way, low, high", [("paper", 0.7, 1.0), ("private", 0.0, 0.1 + MORE)])
def test_a_client_of_xclp_in_training(digits, way, low, high):
    found = on_labels.training_party(digits.split(clients=4, labels="clients:80", seed=0), way)
    assert found["prior"] == pytest.approx(0.1) and low <= found["right"] <= high
