"""Rules for pseudo-labels, against numbers worked out by hand."""

import pytest
import torch

from grapevine.learn import pseudo

OWN = torch.tensor([[0.96, 0.03, 0.01], [0.96, 0.03, 0.01], [0.50, 0.30, 0.20], [0.50, 0.30, 0.20]])
SENT = torch.tensor([[0.04, 0.91, 0.05], [0.96, 0.03, 0.01], [0.01, 0.01, 0.98], [0.10, 0.60, 0.30]])


def test_softly_corrected_weighs_the_labels_alike_at_the_half():
    target, used = pseudo.softly_corrected(OWN, SENT, threshold=0.95, half=0.05)
    assert used.tolist() == [True, True, True, False]
    torch.testing.assert_close(target[0], torch.tensor([0.5, 0.5, 0.0]))  # 0.96 and 0.91 are 0.05 apart
    torch.testing.assert_close(target[1], torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(target[2:], torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))  # the own model is not sure
    target, _ = pseudo.softly_corrected(OWN, SENT, threshold=0.95, half=0.025)
    torch.testing.assert_close(target[0], torch.tensor([0.25, 0.75, 0.0]))


def test_the_surer_label_by_hand():
    """A variance of three probabilities is (Σ p² − 1/3) / 2; the sums of squares are 0.9226, 0.38 and 0.8322, 0.9606, 0.46."""
    labels, used, ratio = pseudo.surer(OWN, SENT, 0.95)
    assert labels.tolist() == [0, 0, 2, 1] and used.tolist() == [True, True, True, False]
    third = 1 / 3
    expected = torch.tensor([(0.8322 - third) / (0.9226 - third), 1.0, (0.38 - third) / (0.9606 - third), 7 / 19])
    torch.testing.assert_close(ratio, expected)
    tie = torch.tensor([[0.7, 0.3]]), torch.tensor([[0.3, 0.7]])
    assert pseudo.surer(*tie, 0.5)[0].tolist() == [1]


def test_the_surer_model_need_not_have_the_largest_probability():
    """Σ p² is 0.5 against 0.37, though 0.55 is the largest: variances 0.25 / 3 and 0.12 / 3. Where nothing is known, not 0/0."""
    own, sent = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[0.55, 0.15, 0.15, 0.15]])
    labels, used, ratio = pseudo.surer(own, sent, 0.55)
    assert labels.tolist() == [0] and used.tolist() == [False] and ratio.item() == pytest.approx(12 / 25)
    flat = torch.full((1, 4), 0.25)
    assert pseudo.surer(flat, flat, 0.2)[2].tolist() == [0.0]


def test_debiased_is_bayes_rule():
    """A prior of (0.8, 0.2) turns 0.8 : 0.2 into a draw, and 0.5 : 0.5 into 1 : 4."""
    p = torch.tensor([[0.8, 0.2], [0.5, 0.5]])
    torch.testing.assert_close(pseudo.debiased(p, torch.tensor([0.8, 0.2])), torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    assert torch.isfinite(pseudo.debiased(torch.tensor([[1.0, 0.0]]), torch.tensor([1.0, 0.0]))).all()


def test_adaptive_thresholds_by_hand():
    """g = (0.9 + 0.8 + 0.5 + 0.6) / 4 = 0.7; t = (0.65, 0.35): class 0 needs 0.7, class 1 needs 0.7 · 7/13 = 0.377."""
    kept, g = pseudo.adaptive(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5], [0.4, 0.6]]))
    assert kept.tolist() == [True, True, False, True] and g == pytest.approx(0.7)
    assert pseudo.adaptive(torch.empty(0, 3))[0].tolist() == []


def test_class_thresholds_by_hand():
    """Ten classes, half of the labels in the first: q = (0.5, 0.5/9, …), std = (0.5 − 1/18) / √10 = 0.14055."""
    counts = torch.tensor([90] + [10] * 9)
    found = pseudo.class_thresholds(counts, 0.84, 0.95)
    torch.testing.assert_close(found[0], torch.tensor(0.95))
    torch.testing.assert_close(found[1:], torch.full((9,), 10 / 180 + 0.84 - (0.5 - 1 / 18) / 10**0.5))
    assert pseudo.class_thresholds(torch.zeros(3, dtype=torch.int64), 0.84, 0.95).tolist() == pytest.approx([0.84] * 3)


def test_second_choices_only_of_rare_classes_and_unused_rows():
    p = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.6, 0.3, 0.1]])
    found = pseudo.second_choices(p, torch.tensor([False, False, True]), torch.tensor([False, True, False]))
    assert found.tolist() == [1, -1, -1]


def test_rows_that_are_all_alike_are_all_kept():
    """The mean of 540 equal float32 numbers was above each of them, and no row was kept."""
    kept, g = pseudo.adaptive(torch.full((540, 10), 0.1))
    assert kept.all() and g == pytest.approx(0.1)
