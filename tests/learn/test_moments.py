"""Heads from pooled moments, against scikit-learn, scipy and numpy on the pooled rows."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import NearestCentroid

from grapevine.learn import moments

C, D = 3, 4


@pytest.fixture(scope="module")
def rows():
    """Rows of overlapping Gaussians with correlated features, their classes, and to which of five parties each belongs."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, C, 150)
    X = rng.normal(size=(150, D)) @ rng.normal(size=(D, D)) * (1 + 0.3 * y[:, None]) + 2 * rng.normal(size=(C, D))[y] + 1
    return X, y, rng.integers(0, 5, 150)


def pooled(make, X, y, party, *more):
    """The sum of what parties add one by one."""
    return sum(make(X[party == k], y[party == k], C, *more) for k in range(5))


def test_fedncm_is_the_nearest_centroid(rows):
    X, y, party = rows
    sums = pooled(moments.class_sums, *rows)
    found = moments.probabilities(X, moments.nearest_mean(sums, C, D, cosine=False)).argmax(1)
    assert (found == NearestCentroid().fit(X, y).predict(X)).all()
    means = np.stack([X[y == c].mean(0) for c in range(C)])
    cosines = X @ means.T / np.linalg.norm(means, axis=1)
    np.testing.assert_allclose(moments.scores(X, moments.nearest_mean(sums, C, D, cosine=True)), cosines, atol=1e-12)


@pytest.mark.parametrize("strength", [0.01, 10.0])
def test_fed3r_is_ridge_regression_on_one_hot_labels_with_a_column_of_ones(rows, strength):
    """As in the authors' code the penalty is also on the intercept, which scikit-learn's `fit_intercept` would spare."""
    X, y, party = rows
    W = Ridge(alpha=strength, fit_intercept=False, tol=1e-12).fit(np.column_stack([X, np.ones(len(X))]), np.eye(C)[y]).coef_
    W = W / np.linalg.norm(W[:, :D], axis=1, keepdims=True)
    head = moments.ridge(pooled(moments.class_moments, *rows), C, D, strength)
    np.testing.assert_allclose(np.column_stack([head["weight"], head["bias"]]), W, rtol=1e-8)


def test_fed3r_by_hand():
    """Rows 0 of class 0, 2 and 4 of class 1, λ = 1: A = (21 6; 6 4), its determinant is 48, its inverse (4 −6; −6 21) / 48.

    Class 0: A⁻¹ (0; 1) = (−6; 21) / 48. Class 1: A⁻¹ (6; 2) = (12; 6) / 48. Divided by the weights' lengths, 6/48 and 12/48.
    """
    X, y = np.array([[0.0], [2.0], [4.0]]), np.array([0, 1, 1])
    head = moments.ridge(moments.class_moments(X, y, 3), 3, 1, 1.0)
    np.testing.assert_allclose(head["weight"], [[-1.0], [1.0], [0.0]], atol=1e-14)
    np.testing.assert_allclose(head["bias"], [3.5, 0.5, -np.inf])
    assert moments.scores(np.array([[1.4], [1.6]]), head).argmax(1).tolist() == [0, 1]  # −x + 3.5 = x + 0.5 at 1.5


@pytest.mark.parametrize("added", [0.0, 0.5])
def test_fedcgs_is_bayes_rule_with_the_covariance_of_all_rows(rows, added):
    X, y, party = rows
    S = np.cov(X.T) + added * np.eye(D)
    joint = np.stack([np.log(np.mean(y == c)) + multivariate_normal(X[y == c].mean(0), S).logpdf(X) for c in range(C)], axis=1)
    expected = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    head = moments.total_gaussian(pooled(moments.class_moments, *rows), C, D, added)
    np.testing.assert_allclose(moments.probabilities(X, head), expected, rtol=1e-8, atol=1e-12)


def test_fedcof_with_one_row_a_client_has_the_true_covariances(rows):
    """Then a client's mean is its row, and what spreads the means is what spreads the rows."""
    X, y, party = rows
    each = np.stack([moments.class_sums(X[[i]], y[[i]], C) for i in range(len(X))])
    own = [X[y == c] for c in range(C)]
    G = sum((len(r) - 1) * (np.cov(r.T) + 0.5 * np.eye(D)) for r in own) + len(X) * np.outer(X.mean(0), X.mean(0))
    W = np.linalg.solve(G, np.stack([r.sum(0) for r in own]).T).T
    head = moments.between_clients(each, C, D, 0.5)
    np.testing.assert_allclose(head["weight"], W / np.linalg.norm(W, axis=1, keepdims=True), rtol=1e-8)


def test_fedcof_by_loops(rows):
    X, y, party = rows
    each = np.stack([moments.class_sums(X[party == k], y[party == k], C) for k in range(5)])
    G, B = len(X) * np.outer(X.mean(0), X.mean(0)), np.zeros((C, D))
    for c in range(C):
        mean, S = X[y == c].mean(0), np.zeros((D, D))
        for k in range(5):
            own = X[(y == c) & (party == k)]
            S += len(own) * np.outer(own.mean(0) - mean, own.mean(0) - mean) / 4
        G, B[c] = G + (np.sum(y == c) - 1) * (S + np.eye(D)), X[y == c].sum(0)
    W = np.linalg.solve(G, B.T).T
    np.testing.assert_allclose(
        moments.between_clients(each, C, D, 1.0)["weight"], W / np.linalg.norm(W, axis=1)[:, None], rtol=1e-8
    )


def test_gh_ofl_naive_bayes_is_scikit_learns(rows):
    X, y, party = rows
    head = moments.own_gaussians(pooled(moments.own_moments, *rows, True), C, D, True, 0.0)
    expected = GaussianNB(var_smoothing=0).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(moments.probabilities(X, head), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [0.0, 0.4])
def test_gh_ofl_quadratic_discriminant_by_densities(rows, shrinkage):
    X, y, party = rows
    joint = []
    for c in range(C):
        S = np.cov(X[y == c].T, bias=True)
        S = (1 - shrinkage) * S + shrinkage * np.trace(S) / D * np.eye(D)
        joint.append(np.log(np.sum(y == c)) + multivariate_normal(X[y == c].mean(0), S).logpdf(X))
    expected = np.stack(joint, 1)
    head = moments.own_gaussians(pooled(moments.own_moments, *rows, False), C, D, False, shrinkage)
    np.testing.assert_allclose(
        moments.probabilities(X, head), np.exp(expected - logsumexp(expected, 1, keepdims=True)), rtol=1e-7, atol=1e-12
    )


MAKERS = {
    "ncm": lambda X, y: moments.nearest_mean(moments.class_sums(X, y, C), C, D, True),
    "ridge": lambda X, y: moments.ridge(moments.class_moments(X, y, C), C, D, 0.01),
    "cgs": lambda X, y: moments.total_gaussian(moments.class_moments(X, y, C), C, D, 0.0),
    "cof": lambda X, y: moments.between_clients(moments.class_sums(X, y, C)[None], C, D, 1.0),
    "lda": lambda X, y: moments.within_gaussian(moments.class_moments(X, y, C), C, D, 0.3),
    "qda": lambda X, y: moments.own_gaussians(moments.own_moments(X, y, C, False), C, D, False, 0.3),
    "nb": lambda X, y: moments.own_gaussians(moments.own_moments(X, y, C, True), C, D, True, 0.3),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_few_labels_and_a_missing_class(rows, make):
    """Two rows of class 0, one of class 2, four features: finite, and class 1 is never given."""
    X, y, party = rows
    at = np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y == 2)[:1]])
    p = moments.probabilities(X, make(X[at], y[at]))
    assert np.isfinite(p).all() and (p[:, 1] == 0).all() and not (p[:, 0] == p[:, 2]).all()
    np.testing.assert_allclose(p.sum(1), 1)
