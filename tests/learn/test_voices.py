"""The arithmetic of chorus against closed forms, brute force and scikit-learn."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge

from grapevine.learn import voices
from grapevine.learn.voices import Told


def draw(seed=0):
    return np.random.default_rng(seed)


def test_shares_are_the_mean_over_priors_by_how_likely_each_makes_the_labels():
    """Against the chance of the labels one after the other: a class is drawn with (labels so far + τ/C)/(labels so far + τ)."""
    counts, C = np.array([7, 10, 1]), 3
    chances, means = [], []
    for tau in 2.0 ** np.arange(12):
        chance, seen = 1.0, np.zeros(C)
        for c in np.repeat(np.arange(C), counts):
            chance *= (seen[c] + tau / C) / (seen.sum() + tau)
            seen[c] += 1
        chances.append(chance)
        means.append((counts + tau / C) / (counts.sum() + tau))
    expected = np.average(means, axis=0, weights=chances)
    np.testing.assert_allclose(voices.class_shares(counts.astype(float)), expected, rtol=1e-9)


def test_shares_are_equal_unless_counts_say_otherwise():
    np.testing.assert_allclose(voices.class_shares(np.array([10.0, 10, 10])), 1 / 3)
    np.testing.assert_allclose(voices.class_shares(np.array([10.0, 11, 9])), 1 / 3, atol=0.01)
    np.testing.assert_allclose(voices.class_shares(np.array([7000.0, 3000])), [0.7, 0.3], atol=0.01)
    np.testing.assert_allclose(voices.class_shares(np.zeros(4)), 0.25)
    assert voices.class_shares(np.array([40.0, 0, 0])).min() > 0


def test_balance_comes_to_the_shares():
    Q, shares = softmax(draw().normal(size=(400, 3)) * 2 + [1, 0, 0], -1), np.array([0.2, 0.3, 0.5])
    for _ in range(50):
        Q = voices.balanced(Q, Q.mean(0), shares)
    np.testing.assert_allclose(Q.mean(0), shares, atol=1e-6)
    np.testing.assert_allclose(Q.sum(1), 1)


def test_folds_leave_out_a_fifth_of_every_class():
    y = np.repeat([0, 1, 2], [10, 15, 3])
    fold = voices.folds(y, draw())
    assert [np.bincount(fold[y == c], minlength=6).tolist() for c in (0, 1)] == [[0, 2, 2, 2, 2, 2], [0, 3, 3, 3, 3, 3]]
    assert len(set(fold[y == 2])) == 3 and set(fold) == {1, 2, 3, 4, 5}
    assert len({tuple(voices.folds(np.zeros(1, int), draw(s))) for s in range(40)}) == 5  # a single label is in any


def blobs(n=300, C=3, d=4, seed=1):
    rng = draw(seed)
    y = rng.integers(C, size=n)
    return rng.normal(size=(C, d))[y] * 2 + rng.normal(size=(n, d)) @ rng.normal(size=(d, d)), y


def test_lda_is_scikit_learns():
    X, y = blobs()
    Y = np.eye(3)[y]
    total = np.cov(X.T, bias=True)
    (head,) = voices.lda_heads(Y.sum(0), Y.T @ X, total, (0.0,))
    # scikit-learn divides the covariance within by n − C.
    ours = softmax(head(X), -1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(X, y).predict_proba(X)
    np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.99


def test_a_class_without_rows_has_the_centre_for_its_mean():
    X, y = blobs()
    Y = np.eye(4)[y]
    (head,) = voices.lda_heads(Y.sum(0), Y.T @ X, np.cov(X.T, bias=True), (0.2,))
    assert np.isfinite(head(X)).all() and not (head(X).argmax(1) == 3).any()


def test_ridge_is_scikit_learns_and_its_leave_one_out_is_exact():
    X, y = blobs(40)
    Y, one = np.eye(3)[y], np.ones((40, 1))
    A = np.concatenate([X, one], 1)
    ((head, leverage),) = voices.ridge_heads(A.T @ A, A.T @ Y, 40.0, (0.1,))
    theirs = Ridge(alpha=4.0, fit_intercept=False).fit(A, Y)
    np.testing.assert_allclose(head(X), theirs.predict(A), atol=1e-9)
    h = leverage(A)[:, None]
    without = (head(X) - h * Y) / (1 - h)
    for i in range(5):
        rest = np.arange(40) != i
        left_out = Ridge(alpha=4.0, fit_intercept=False).fit(A[rest], Y[rest])
        np.testing.assert_allclose(without[i], left_out.predict(A[i : i + 1])[0], atol=1e-9)


@pytest.mark.parametrize("C", [2, 3])
def test_the_own_model_is_scikit_learns_and_rules_nothing_out(C):
    X, y = blobs(60, C)
    head = voices.own_head(X, y, C + 1)
    theirs = LogisticRegression(max_iter=200).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(softmax(head(X), -1)[:, :C], theirs, atol=1e-6)
    careful = np.exp(voices.cautious(head(X), 60))
    np.testing.assert_allclose(careful.sum(1), 1)
    np.testing.assert_allclose(careful[:, C], 1 / (60 + C + 1))
    assert voices.own_head(X, np.zeros(60, int), C) is None


def test_fits_in_several_threads_leave_the_warning_filters_as_they_were():
    """They belong to the whole process: one thread put back what another had set, and later warnings were lost."""
    X, y = draw().normal(size=(60, 40)) * 1e3 ** draw(1).random(40), draw(2).integers(3, size=60)
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as threads:
        heads = list(threads.map(lambda _: voices.own_head(X, y, 3), range(8)))
    assert None not in heads and list(warnings.filters) == before


def test_home_shares_are_found_by_expectation_maximisation():
    """Labels that a perfect voice knows: shares are the counts, drawn towards all rows' by 20 rows."""
    y = np.repeat([0, 1], [90, 10])
    P = np.clip(np.eye(2)[y], 1e-9, 1)
    shares = np.array([0.5, 0.5])
    np.testing.assert_allclose(voices.home_shares(P, shares, 20.0), (100 * np.array([0.9, 0.1]) + 20 * shares) / 120, atol=1e-6)


@pytest.mark.parametrize("tau", [25.0, 100.0])
def test_parties_shares_are_drawn_together_as_far_as_they_are_alike(tau):
    rng, shares, n = draw(3), np.array([0.5, 0.3, 0.2]), 200
    counts = np.array([rng.multinomial(n, rng.dirichlet(tau * shares)) for _ in range(3000)])
    apart = n * ((counts / n - shares) ** 2).sum()
    assert voices.home_strength(apart, shares, counts.sum(), len(counts)) == pytest.approx(tau, rel=0.1)


def test_parties_that_differ_by_chance_alone_have_the_shares_of_all():
    shares, P = np.array([0.5, 0.5]), softmax(draw().normal(size=(50, 2)), -1)
    assert voices.home_strength(2.0, shares, 200.0, 4.0) == np.inf  # four parties as far apart as four throws of a coin
    np.testing.assert_array_equal(voices.home_shares(P, shares, np.inf), shares)


def loss(theta, hidden, y, told, medians):
    P = log_softmax(np.einsum("v,vmc->mc", np.exp(theta), hidden), -1)[np.arange(len(y)), y]
    return told.loss(P).sum() + ((theta - np.log(medians)) ** 2).sum() / (2 * 0.7**2)


@pytest.mark.parametrize("told", [Told(), Told(0.8, 0.1)])
def test_weights_are_the_minimum_of_loss_and_prior(told):
    rng, medians = draw(3), np.array([0.5, 0.3])
    y = rng.integers(3, size=200)
    hidden = log_softmax(rng.normal(size=(2, 200, 3)) + 2 * np.eye(3)[y] * np.array([1.0, 0.2])[:, None, None], -1)
    theta = np.log(medians)
    for _ in range(30):
        parts = [voices.newton_sums(hidden[:, some], y[some], theta, told) for some in (slice(0, 120), slice(120, 200))]
        theta = voices.newton_step(sum(parts), theta, medians)
    best = minimize(loss, np.log(medians), (hidden, y, told, medians))
    np.testing.assert_allclose(theta, best.x, atol=1e-3)


def test_a_randomised_response_is_undone_in_expectation():
    told, truth = Told(0.7, 0.1), np.eye(4)[[0, 2, 2]]
    expected = truth * told.p + (1 - truth) * told.q
    np.testing.assert_allclose(told.unbiased(expected, np.ones_like(expected)), truth)
    # The loss is least where the voice says what is so: P(told = c) = q + (p − q)·P(c).
    np.testing.assert_allclose(told.loss(np.log(0.5)), -np.log(0.1 + 0.6 * 0.5))
    step = 1e-6
    slope = (told.loss(np.log(0.5) + step) - told.loss(np.log(0.5))) / step
    np.testing.assert_allclose(told.pull(np.log(np.array(0.5))), -slope, rtol=1e-4)


def test_told_labels_are_refined_by_bayes_rule():
    """Two classes, p = 0.8, q = 0.2: a row that is of the first by 0.5 follows the label; one by 0.9 against it stands."""
    told = Told(0.8, 0.2)
    found = told.posterior(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0, 1]))
    np.testing.assert_allclose(found, [[0.8, 0.2], [0.18 / 0.26, 0.08 / 0.26]])
    np.testing.assert_allclose(Told().posterior(np.array([[0.3, 0.7]]), np.array([0])), [[1.0, 0.0]])
