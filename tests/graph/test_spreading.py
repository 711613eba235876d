"""LabelSpreading: scikit-learn's contract, scikit-learn run to convergence, and what it promises besides."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.semi_supervised import LabelSpreading as TheirLabelSpreading
from sklearn.utils.estimator_checks import parametrize_with_checks

from grapevine import graph as g
from grapevine.core.errors import Mistake


def points(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


@parametrize_with_checks([g.LabelSpreading(), g.LabelSpreading(affinity="hamming", bits=512, random_state=0, preset="code")])
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def test_agrees_with_scikit_learn_on_the_same_graph():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    partly = np.where(np.arange(400) % 10 == 0, y, -1)
    ours = g.LabelSpreading(7, alpha=0.9, tol=1e-11).fit(X, partly)
    # Their kernel may be any function; they normalise the matrix it gives in the same way.
    index, similarity = g.nearest_cosine(X, 7)
    B = np.zeros((400, 400))
    np.put_along_axis(B, index, similarity, axis=1)
    theirs = TheirLabelSpreading(kernel=lambda a, b: B + B.T, alpha=0.9, tol=1e-12, max_iter=10000).fit(X, partly)
    assert np.allclose(ours.label_distributions_, theirs.label_distributions_, atol=1e-7)
    assert np.array_equal(ours.transduction_, theirs.transduction_)
    given = g.LabelSpreading(alpha=0.9, affinity="precomputed", tol=1e-11).fit(sp.csr_array(B), partly)
    assert np.allclose(given.label_distributions_, ours.label_distributions_, atol=1e-9)


def test_a_component_without_labels_gets_none():
    X = np.repeat(np.eye(3), 4, axis=0) + np.tile(np.eye(4, 3) * 0.01, (3, 1))
    X[8:] = [0, 0, -1]  # opposite or orthogonal to all others
    y = np.full(12, -1)
    y[0], y[4] = 5, 7
    model = g.LabelSpreading(3).fit(X, y)
    assert model.transduction_.tolist() == [5] * 4 + [7] * 4 + [-1] * 4
    assert model.confidence_[8:].tolist() == [0] * 4 and (model.label_distributions_[8:] == 0).all()
    assert model.predict([[1, 0, 0], [0, 0, -2], [0, 0, 0], [0, 2, 0]]).tolist() == [5, -1, -1, 7]
    assert np.isfinite(model.label_distributions_).all() and np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("affinity", ["cosine", "hamming"])
def test_a_row_of_zeros_stays_alone(affinity):
    X = np.array([[1.0, 0.1], [0.0, 0.0], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]])
    model = g.LabelSpreading(2, affinity=affinity, bits=1024, random_state=0).fit(X, [0, -1, -1, 1, -1])
    assert model.transduction_.tolist() == [0, -1, 0, 1, 1]
    assert model.predict(X).tolist() == [0, -1, 0, 1, 1]
    alone = g.LabelSpreading(2, affinity=affinity, random_state=0).fit(np.zeros((2, 2)), [3, -1])
    assert alone.transduction_.tolist() == [3, -1] and alone.predict([[1.0, 0]]).tolist() == [-1]


def test_one_point():
    model = g.LabelSpreading().fit([[1.0, 2.0]], [4])
    assert (
        model.transduction_.tolist() == [4] and model.confidence_.tolist() == [1] and model.predict([[2.0, 4.0]]).tolist() == [4]
    )


@pytest.mark.parametrize(
    "y, unreached",
    [
        (np.array(["a", "", "b", "-1"]), False),
        (np.array(["a", -1, "b", -1], object), False),
        (np.array(["a", "-1", "-1", "-1"]), True),
        (np.array([True, -1, -1, -1], object), True),
    ],
)
def test_names_as_labels(y, unreached):
    X = np.array([[1.0, 0], [1, 0.1], [-0.1, 1], [0, 1]])
    model = g.LabelSpreading(1).fit(X, y)
    assert model.transduction_.tolist() == ([y[0], y[0], -1, -1] if unreached else ["a", "a", "b", "b"])


def test_no_label_at_all():
    with pytest.raises(Mistake, match="None of the 2 rows"):
        g.LabelSpreading().fit([[1.0], [2.0]], [-1, -1])


@pytest.mark.parametrize(
    "setting", [dict(affinity="rbf"), dict(preset="none"), dict(alpha=1.0), dict(n_neighbors=0), dict(tol=0)]
)
def test_bad_settings(setting):
    with pytest.raises(Mistake, match=next(iter(setting)).replace("n_neighbors", "neighbours")):
        g.LabelSpreading(**setting).fit([[1.0], [2.0]], [0, 1])


def test_digits_spread_well_and_presets_and_options_do_what_they_say():
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    labelled = rng.permutation(len(y))[:100]
    partly = np.full(len(y), -1)
    partly[labelled] = y[labelled]
    rest = partly < 0
    for settings_ in (dict(), dict(preset="code"), dict(affinity="hamming", random_state=1), dict(class_mass=True)):
        model = g.LabelSpreading(**settings_).fit(X, partly)
        assert (model.transduction_ == y)[rest].mean() > 0.9, settings_
    # Labels of every row known: new points of another draw are still recognised.
    model = clone(model).fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.9
    assert np.allclose(model.predict_proba(X[1000:]).sum(axis=1), 1)


def test_class_mass_option_uses_the_labels_shares():
    X, y = load_digits(return_X_y=True)
    partly = np.where(np.arange(len(y)) % 9 == 0, y, -1)
    plain = g.LabelSpreading(tol=1e-9).fit(X, partly)
    mass = g.LabelSpreading(tol=1e-9, class_mass=True).fit(X, partly)
    Z = g.solve(plain.graph_, g.label_matrix(partly, 10), 0.99, 1e-9).Z
    share = np.bincount(partly[partly >= 0]) / (partly >= 0).sum()
    want = Z * share / Z.sum(axis=0)
    assert np.allclose(mass.label_distributions_, want / want.sum(axis=1, keepdims=True), atol=1e-6)


def test_precomputed_takes_new_points_similarities():
    B = np.array([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]])
    model = g.LabelSpreading(affinity="precomputed").fit(B, ["a", "-1", "b"])
    assert model.transduction_.tolist() == ["a", "a", "b"]
    assert model.predict([[0, 0.1, 0.2], [0, 0, 0]]).tolist() == ["b", -1]
    assert np.allclose(model.predict_proba([[0.3, 0.3, 0.4]]), [[0.6, 0.4]])
    with pytest.raises(ValueError, match="square"):
        g.LabelSpreading(affinity="precomputed").fit(np.ones((2, 3)), [0, 1])


def test_hyperplanes_are_fresh_without_a_seed_and_repeat_with_one():
    X, y = points(60, 5), np.where(np.arange(60) < 6, np.arange(60) % 2, -1)
    seeded = [g.LabelSpreading(affinity="hamming", bits=64, random_state=3).fit(X, y).label_distributions_ for _ in range(2)]
    assert np.array_equal(*seeded)
    fresh = [g.LabelSpreading(affinity="hamming", bits=64).fit(X, y).label_distributions_ for _ in range(2)]
    assert not np.array_equal(*fresh)


def test_importing_loads_neither_numba_nor_torch():
    code = "import sys, grapevine.graph; print([m for m in ('numba', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


PEAK = """
import json, resource, sys
import numpy as np
from grapevine.graph import LabelSpreading
n, d, affinity = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
centres = rng.normal(size=(10, d))
truth = np.arange(n) % 10
model = LabelSpreading(affinity=affinity, bits=1024, random_state=0)
small = model.fit(centres, np.arange(10))  # numba is loaded and its kernels are there
X = rng.normal(size=(n, d))
X += 0.7 * centres[truth]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
model.fit(X, np.where(np.arange(n) < 1000, truth, -1))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(dict(before=before, after=after, accuracy=(model.transduction_ == truth).mean())))
"""


def peak(n: int, d: int, affinity: str) -> dict:
    done = subprocess.run([sys.executable, "-c", PEAK, str(n), str(d), affinity], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("affinity", ["cosine", "hamming"])
def test_memory_is_far_below_that_of_all_pairs(affinity):
    seen = peak(12000, 48, affinity)
    assert seen["after"] - seen["before"] < 300  # one float32 of every pair would be 550 MB
    assert seen["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_200_000_points_in_4_gb():
    seen = peak(200_000, 64, "cosine")
    print(seen)
    assert seen["after"] < 4096
    assert seen["accuracy"] > 0.9
