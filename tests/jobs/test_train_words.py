"""What a training run's end says of its numbers."""

import pytest

from grapevine.jobs.train_words import clients_of, few_chose, kept_for, rests_on

RESULT = dict(accuracy=0.9, confusion=[[9, 1], [0, 0]], data=dict(classes=["nv", "mel"]))


def test_an_accuracy_says_on_how_few_rows_it_rests():
    """91.3% on 23 rows stood there as if it were as sure as 91.3% on 10,000."""
    found = rests_on(RESULT)
    assert found is not None and found.n == 10 and found.between == "59.6% to 98.2%"
    common = rests_on(dict(RESULT, test_rows=5))  # two clients' own models on the same five rows
    assert common is not None and common.n == 5
    assert rests_on(dict(RESULT, accuracy=None)) is None and rests_on(dict(RESULT, confusion=[])) is None


def test_without_validation_rows_the_last_round_was_not_the_best_on_them():
    assert kept_for(RESULT, [dict(round=1, accuracy=0.5)]) == "last"
    history = [dict(round=1), dict(round=2, validation_accuracy=0.0)]
    assert kept_for(RESULT, history) == "best on validation"
    assert kept_for(dict(RESULT, validation_rows=1), history) == "best on 1 validation row"


@pytest.mark.parametrize(("n", "warns"), [(None, False), (0, False), (2, True), (19, True), (20, False)])
def test_a_round_that_few_rows_chose_is_warned_of(n, warns):
    """Two validation rows chose an untrained model, and nothing said that they were two."""
    assert [f"Only {n} validation rows chose" in told for told in few_chose(n)] == [True] * warns


@pytest.mark.parametrize(
    "mix, says", [([0.6, 0.4], "nv is 60.0% of the clients' rows but 100.0% of the test rows"), ([0.99, 0.01], "")]
)
def test_clients_below_the_total_are_explained(mix, says):
    """Every client was far below the accuracy of all, because the test rows had another balance of classes than theirs."""
    told = clients_of(dict(RESULT, own_test_rows=False, class_mix=mix))
    assert says in told and ("another balance" in told) == bool(says)
    assert clients_of(dict(RESULT, own_test_rows=True)) == "On each client's own test rows."
