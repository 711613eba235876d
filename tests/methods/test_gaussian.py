"""Gaussian heads: the same classifier as scikit-learn's on the pooled labelled rows, whoever drops out; masked messages."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from grapevine.core import Server, StepError
from grapevine.core.errors import Mistake
from grapevine.core.rows import ClientData, Rows
from grapevine.core.store import Memory
from grapevine.crypto import fixed
from grapevine.learn import moments
from grapevine.learn.moments import class_moments, whitening
from grapevine.methods.gaussian import Gaussian
from grapevine.run.simulate import Fault, Simulation

CLASSES = ("ash", "beech", "cedar")
KINDS = ("full", "diagonal")


def points(n, d, seed=0, classes=3):
    """Rows of `classes` overlapping Gaussians with correlated features of different sizes, and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * (1 + y[:, None]) + 2 * rng.normal(size=(classes, d))[y]
    return X * np.logspace(-1, 1, d) + 3, y


def party(X, y, classes=CLASSES):
    """One party's data; y = −1 is unlabelled. It numbers only the classes that it was told of."""
    x = torch.from_numpy(np.asarray(X, np.float64))
    known, rest = (torch.from_numpy(np.flatnonzero(at)) for at in (y >= 0, y < 0))
    none = torch.full((len(rest),), -1)
    own = torch.tensor([classes.index(CLASSES[c]) for c in y[y >= 0]], dtype=torch.int64)
    return ClientData(Rows(x, known, own), Rows(x, rest, none), Rows(x, rest, none), classes)


def federation(X, y, parties=4, share=0.5, seed=1):
    """Rows dealt to parties in turn; a share of them labelled. Returns data, and which rows each party's results speak of."""
    rng = np.random.default_rng(seed)
    partly = np.where(rng.random(len(y)) < share, y, -1)
    data, rows = {}, {}
    for i in range(parties):
        mine = np.arange(i, len(y), parties)
        classes = CLASSES[::-1] if i % 2 else CLASSES  # a party's own numbering is its own business
        data[i] = party(X[mine], partly[mine], classes)
        rows[i] = np.concatenate([mine[partly[mine] >= 0], mine[partly[mine] < 0]])
    return data, rows, partly


def run(method, data, mode="fast", log=None, **settings):
    """The state and every party's result."""
    simulation = Simulation(method, data, None, mode=mode, **settings)
    simulation.log = log
    server = Server(method, list(data), simulation, None, ())
    method.check(server)
    state = method.round(server, method.setup(server))
    return state, {i: Memory(simulation.store, simulation.manifests.get(i)).get("result") for i in data}


@pytest.fixture
def kind(request, monkeypatch):
    """Diagonal covariances are for many features: here for few."""
    if request.param == "diagonal":
        monkeypatch.setattr(moments, "MOST_FEATURES", 0)
    return request.param


def theirs(kind, shrinkage, X, y, V):
    """log P(class | row) of rows V: scikit-learn's, or Bayes' rule with a density of scipy's for each class."""
    if kind == "full":
        return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, y).predict_log_proba(V)
    classes = np.unique(y)
    within = np.concatenate([X[y == c] - X[y == c].mean(0) for c in classes]).var(0)
    variances = (1 - shrinkage) * within + shrinkage * within.mean()
    joint = np.stack([np.log((y == c).mean()) + multivariate_normal(X[y == c].mean(0), variances).logpdf(V) for c in classes], 1)
    return joint - logsumexp(joint, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.7])
def test_as_scikit_learn_on_the_pooled_rows(kind, shrinkage):
    X, y = points(240, 5)
    data, rows, partly = federation(X, y)
    _, results = run(Gaussian(shrinkage), data)
    known = partly >= 0
    expected = np.exp(theirs(kind, shrinkage, X[known], y[known], X))
    for i, result in results.items():
        np.testing.assert_allclose(result["proba"], expected[rows[i]], rtol=1e-7, atol=1e-10)
        assert np.array_equal(result["label"], expected[rows[i]].argmax(1))
        entropy = -np.sum(expected[rows[i]] * np.log(np.maximum(expected[rows[i]], 1e-300)), 1)
        np.testing.assert_allclose(result["confidence"], 1 - entropy / np.log(3), atol=1e-8)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_more_features_than_rows(kind):
    X, y = points(40, 60)
    data, rows, partly = federation(X, y)
    known = partly >= 0
    assert known.sum() < 60
    expected = theirs(kind, 0.2, X[known], y[known], X)
    _, results = run(Gaussian(0.2), data)
    for i, result in results.items():
        likely = expected[rows[i]] > -20
        np.testing.assert_allclose(np.log(result["proba"][likely]), expected[rows[i]][likely], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_feature_that_never_varies_changes_nothing_but_the_shrinkage(kind):
    X, y = points(120, 4)
    V = np.insert(X, 2, 7.0, axis=1)
    data, rows, partly = federation(V, y)
    known = partly >= 0
    expected = np.exp(theirs(kind, 0.3, V[known], y[known], V))
    _, results = run(Gaussian(0.3), data)
    for i, result in results.items():
        np.testing.assert_allclose(result["proba"], expected[rows[i]], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_features_far_from_zero(kind):
    """Second moments are about 0: with a mean of 10⁴ deviations, eight digits are left."""
    X, y = points(240, 5)
    near, _, _ = federation(X, y)
    far, _, _ = federation(X + 1e4 * X.std(0), y)
    for a, b in zip(run(Gaussian(), near)[1].values(), run(Gaussian(), far)[1].values()):
        np.testing.assert_allclose(a["proba"], b["proba"], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_one_row_a_class_is_the_nearest_mean(kind):
    X = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [1.0, 0.5], [3.0, 0.5], [0.5, 3.0]]) + 1000.0
    y = np.array([0, 1, 2, -1, -1, -1])
    data = {0: party(X[[0, 1, 3]], y[[0, 1, 3]]), 1: party(X[[2, 4, 5]], y[[2, 4, 5]])}
    _, results = run(Gaussian(), data)
    assert results[0]["label"].tolist() == [0, 1, 0] and results[1]["label"].tolist() == [2, 1, 2]
    # unit covariance, equal priors: the odds of (1, 0.5) for class 0 against 1 are exp((9.25 − 1.25) / 2)
    p = results[0]["proba"][2]
    assert p[0] / p[1] == pytest.approx(np.exp(4))
    assert p[0] / p[2] == pytest.approx(np.exp((1 + 3.5**2 - 1.25) / 2))


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_class_that_nobody_labels_is_never_given(kind):
    X, y = points(60, 3)
    data, rows, partly = federation(X[y != 1], y[y != 1], parties=3)
    _, results = run(Gaussian(), data)
    for result in results.values():
        assert (result["proba"][:, 1] == 0).all() and not (result["label"] == 1).any()
        np.testing.assert_allclose(result["proba"].sum(1), 1)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("rows", [1, 8])
def test_one_class_only(kind, rows):
    X, _ = points(rows + 4, 3)
    y = np.where(np.arange(rows + 4) < rows, 0, -1)
    _, results = run(Gaussian(), {0: party(X, y), 1: party(X[rows:], y[rows:])})
    assert (results[1]["label"] == 0).all() and (results[1]["confidence"] == 1).all()


def test_a_party_without_rows_or_labels():
    X, y = points(40, 3)
    data = {0: party(X, y), 1: party(X[:0], y[:0]), 2: party(X[:5], np.full(5, -1))}
    _, results = run(Gaussian(), data)
    assert results[1]["proba"].shape == (0, 3)
    np.testing.assert_allclose(results[2]["proba"], np.exp(theirs("full", 0.3, X, y, X[:5])), rtol=1e-7, atol=1e-12)


# ---------------------------------------------------------------- dropouts


@pytest.mark.parametrize(
    "lost_at, when", [("keys", "before"), ("meet", "in"), ("pool", "before"), ("pool", "in"), ("pool", "after")]
)
def test_a_party_lost_before_the_sum_is_left_out(lost_at, when):
    X, y = points(200, 4)
    data, rows, partly = federation(X, y)
    _, results = run(Gaussian(), data, faults=[Fault(2, lost_at, when=when, forever=True)])
    there = np.concatenate([rows[i] for i in (0, 1, 3)])
    known = there[partly[there] >= 0]
    expected = np.exp(theirs("full", 0.3, X[known], y[known], X))
    assert results[2] is None
    for i in (0, 1, 3):
        np.testing.assert_allclose(results[i]["proba"], expected[rows[i]], rtol=1e-7, atol=1e-10)


def test_two_parties_lost_one_after_the_other():
    X, y = points(200, 4)
    data, rows, partly = federation(X, y)
    state, results = run(Gaussian(), data, faults=[Fault(2, "pool", forever=True), Fault(0, "sums.again", forever=True)])
    known = np.concatenate([rows[i] for i in (1, 3)])
    known = known[partly[known] >= 0]
    expected = np.exp(theirs("full", 0.3, X[known], y[known], X))
    np.testing.assert_allclose(results[1]["proba"], expected[rows[1]], rtol=1e-7, atol=1e-10)
    assert set(state["got_labels"].values()) == {"000001", "000003"} and results[0] is None


def test_a_party_lost_at_the_end_changes_nothing_for_the_others():
    X, y = points(200, 4)
    data, _, _ = federation(X, y)
    _, whole = run(Gaussian(), data)
    state, results = run(Gaussian(), data, faults=[Fault(1, "predict", forever=True)])
    assert results[1] is None and len(state["got_labels"]) == 3
    for i in (0, 2, 3):
        assert np.array_equal(whole[i]["proba"], results[i]["proba"])


def test_one_party_left_is_refused():
    X, y = points(60, 3)
    data, _, _ = federation(X, y, parties=2)
    with pytest.raises(Mistake, match="only 000001 answered: a secure sum needs two parties"):
        run(Gaussian(), data, faults=[Fault(0, "pool", forever=True)])


# ---------------------------------------------------------------- what is sent


def replies(method, data, **settings):
    sent = []
    run(method, data, log=lambda step, id, reply: sent.append((step, id, reply)), **settings)
    return sent


@pytest.mark.parametrize("kind, numbers", [("full", 3 + 12 + 10), ("diagonal", 3 + 12 + 4)], indirect=["kind"])
def test_masked_moments_and_the_class_sums_of_fedcof_leave_a_party(kind, numbers):
    X, y = points(200, 4)
    data, rows, partly = federation(X, y)
    sent = replies(Gaussian(), data)
    assert [step for step, _, _ in sent] == [step for step in ("keys", "meet", "pool", "means", "predict") for _ in range(4)]
    wanted = dict(keys={"offer", "features", "classes"}, meet={"letters"}, pool={"share", "tag"}, means={"sums"}, predict=set())
    assert all(set(reply) == wanted[step] for step, _, reply in sent)
    for id, told in ((id, reply["sums"]) for step, id, reply in sent if step == "means"):  # FedCOF's: the only ones in the clear
        own = rows[id][partly[rows[id]] >= 0]
        np.testing.assert_allclose(told, moments.class_sums(X[own], y[own], 3))
    shares = {id: reply["share"] for step, id, reply in sent if step == "pool"}
    total = np.zeros((numbers, 4), np.uint64)
    for id, share in shares.items():
        own = rows[id][partly[rows[id]] >= 0]
        plain = fixed.encode_wide(class_moments(X[own], y[own], 3))
        assert share.shape == plain.shape == (numbers, 4)
        # Unmasked, the lowest words are the same and the highest are all zeros or ones; masked, no word is as it was.
        assert not (share == plain).any()
        assert len(np.unique(share)) == share.size
        total = fixed.add_wide(total, share)
    known = partly >= 0
    exact = fixed.encode_wide(class_moments(X[known], y[known], 3))
    assert not (total == exact).any()  # masks cancel, and what is left is padded: the server does not learn the sum


def test_a_sum_that_the_server_changed_is_refused():
    """It would turn the heads, and with them the labels, as it likes."""
    X, y = points(60, 3)
    data, _, _ = federation(X, y)

    class Liar(Simulation):
        def gather(self, step, requests, round, into):
            if step == "predict":
                total = fixed.add_wide(requests[0]["pooled"]["total"], fixed.encode_wide(np.eye(1, 18)[0]))
                requests = {id: dict(told, pooled=dict(told["pooled"], total=total)) for id, told in requests.items()}
            super().gather(step, requests, round, into)

    method = Gaussian()
    server = Server(method, list(data), Liar(method, data, None), None, ())
    with pytest.raises(StepError, match="is not the one that the parties formed"):
        method.round(server, method.setup(server))


def test_masked_words_are_uniform():
    X, y = points(60, 40)
    data, _, _ = federation(X, y, parties=3)
    words = np.concatenate([reply["share"].ravel() for step, _, reply in replies(Gaussian(), data) if step == "pool"])
    bits = np.unpackbits(words.view(np.uint8))
    # Every byte value equally often: chi-squared with 255 degrees of freedom, mean 255, deviation 22.6; 8 deviations.
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 8 * 22.6
    assert abs(bits.mean() - 0.5) < 8 * 0.5 / np.sqrt(bits.size)


def test_a_second_attempt_has_fresh_masks():
    X, y = points(60, 3)
    data, _, _ = federation(X, y)
    sent = replies(Gaussian(), data, faults=[Fault(3, "pool", when="after", forever=True)])
    first = {id: reply["share"] for step, id, reply in sent if step == "pool"}
    second = {id: reply["share"] for step, id, reply in sent if step == "sums.again"}
    assert set(first) == set(second) == {0, 1, 2}  # the reply of 3 never left
    for id in first:
        # Old and new differ by masks alone: their difference would be 0, or the same everywhere, if masks were used again.
        difference = fixed.subtract_wide(first[id], second[id])
        assert len(np.unique(difference)) == difference.size


def test_a_party_masks_an_attempt_once():
    X, y = points(60, 3)
    data, _, _ = federation(X, y)
    method = Gaussian()
    simulation = Simulation(method, data, None)
    server = Server(method, list(data), simulation, None, ())
    method.round(server, method.setup(server))
    with pytest.raises(StepError, match="has no part in sum 0"):
        server.ask(method.sums.again, to=[1], number=0, attempt=1, parties={"000000": 0, "000001": 1})


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_strict_and_fast_give_the_same_bits(kind):
    X, y = points(100, 4)
    data, _, _ = federation(X, y)
    (_, fast), (_, strict) = run(Gaussian(), data), run(Gaussian(), data, mode="strict")
    for i in data:
        for name in ("label", "confidence", "proba"):
            assert fast[i][name].tobytes() == strict[i][name].tobytes()


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("settings, sentence", [
    (dict(shrinkage=1.5), "shrinkage=1.5 is out of range: use 0 to 1"),
    (dict(shrinkage=float("nan")), "shrinkage=nan is out of range"),
])  # fmt: skip
def test_settings_that_cannot_work(settings, sentence):
    X, y = points(20, 2)
    with pytest.raises(Mistake, match=sentence):
        run(Gaussian(**settings), federation(X, y)[0])


def test_data_that_cannot_work():
    X, y = points(20, 2)
    with pytest.raises(Mistake, match="no party has a labelled row"):
        run(Gaussian(), federation(X, y, share=0.0)[0])
    with pytest.raises(Mistake, match="000001 has 1 features but 000000 has 2"):
        run(Gaussian(), {0: party(X, y), 1: party(X[:, :1], y)})
    X[7, 1] = np.nan
    with pytest.raises(StepError, match="client 0.*the values hold nan, but a secure sum takes finite numbers"):
        run(Gaussian(), {0: party(X, y), 1: party(X[:5], y[:5])})


# ---------------------------------------------------------------- covariances


def test_whitening_inverts_and_raises_what_vanishes():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(6, 6))
    T = whitening(A @ A.T)
    np.testing.assert_allclose(T @ T.T, np.linalg.inv(A @ A.T), rtol=1e-8)
    np.testing.assert_allclose(whitening(np.array([4.0, 0.0])), [0.5, 1 / np.sqrt(4e-9)])
