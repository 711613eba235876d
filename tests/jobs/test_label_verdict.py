"""What hidden labels, and rows with a known truth, can tell: verdicts, intervals, and baselines that do better."""

import pytest
from scipy.stats import binomtest, fisher_exact

from grapevine.cli import terminal
from grapevine.core.words import percent
from grapevine.jobs import expected


@pytest.mark.parametrize("n, a, b", [(6, 5, 2), (40, 36, 28), (40, 27, 28), (9, 9, 0), (300, 200, 170), (5, 5, 5)])
def test_tests_are_those_of_scipy(n, a, b):
    assert expected.unpaired(a, b, n) == pytest.approx(fisher_exact([[a, n - a], [b, n - b]]).pvalue)
    assert expected.paired(a, b) == pytest.approx(binomtest(a, a + b).pvalue)
    assert expected.paired(0, 0) == 1.0


def test_a_handful_of_hidden_labels_is_no_verdict_over_all_parties():
    """xclp said "together better than each party alone" from 5 labels of 6, and 2 alone."""
    e = dict(n=6, accuracy=5 / 6, alone=2 / 6, low=0.436, high=0.97)
    (said,) = expected.verdict_of_all(e)
    assert said.startswith(
        "All parties: too few known labels were hidden to say whether together is better than each party alone."
    )
    assert said.endswith("Of 6 labels that were hidden, 5 were recovered together (83.3%) and 2 by each party alone (33.3%).")
    assert "better than" in expected.verdict_of_all(dict(e, n=60))[0]
    assert "not different" in expected.verdict_of_all(dict(e, n=60, noise=0.3))[0]  # of which --dp makes as much


def test_a_verdict_is_what_a_paired_test_can_tell():
    """Five labels found together and none alone were "better", which one in sixteen fair coins does as well."""
    five = dict(n=5, right=5, own=0, apart=5, has_own=True, own_kept=False)
    assert expected.verdict(five) == "too few labels"
    assert expected.verdict(dict(five, n=6, right=6, apart=6)) == "better"
    assert expected.verdict(dict(five, n=40, right=30, own=26, apart=10)) == "not different"


def test_an_interval_stays_between_0_and_1():
    """The lower end of 0 of 23 was −1e−17, which was printed as "-0.0%"."""
    for n in range(1, 200):
        assert 0.0 <= expected.wilson(0, n)[0] < 1e-9 and expected.wilson(n, n)[1] <= 1.0
        assert percent(expected.wilson(0, n)[0]) == "0.0%"
    assert percent(-1e-17) == "0.0%" and percent(-0.1) == "-10.0%"


def test_labels_that_count_for_fewer_say_so():
    """Terminal: 100.0% (45.9% to 100.0%) by 6 hidden labels, and in the same line 100.0% (61.0% to 100.0%) by the same 6."""
    given = dict(accuracy=1.0, low=0.459, high=1.0, n=6, worth=3.3)
    assert expected.counted(given) == (
        "by 6 hidden labels about as sure, which count as 3 because few of them are as sure as most new labels"
    )
    assert expected.counted(dict(given, worth=5.9)) == "by 6 hidden labels about as sure"


def test_what_is_expected_if_no_row_abstained_says_so():
    """All rows abstained, and "Expected accuracy: 62.9%" was of labels that nobody got."""
    e = dict(n=307, accuracy=0.629, low=0.57, high=0.68, alone=0.52)
    assert terminal._expected(e, ["a", "b"], 307, abstained=True).startswith("Expected accuracy, if no row abstained: 62.9%")
    assert terminal._expected(e, ["a", "b"], 307).startswith("Expected accuracy: 62.9%")


def test_baselines_that_did_better_are_told_in_words():
    """gh-ofl was right on 99.0 % and the job on 96.2 %, and only who read the table knew."""
    rights = {"together": 0.962, "gh-ofl": 0.99, "fed3r": 0.987, "nearest": 0.965, "fedncm": 0.9}
    differ = {"gh-ofl": (1, 10), "fed3r": (2, 12), "nearest": (4, 5), "fedncm": (20, 1)}
    assert expected.beaten_by(rights, differ) == [
        "gh-ofl (99.0%) and fed3r (98.7%) label more of these rows right than the job (96.2%), by more than chance explains.",
        "Nearest own labelled row (96.5%) labels more of these rows right than the job (96.2%), which may be chance.",
    ]
    assert expected.beaten_by(rights, dict(fedncm=(20, 1), fedcof=(3, 3))) == []
