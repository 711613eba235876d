"""Chorus' programs with sums in the clear: what they open, what they find, and that all parties find the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from grapevine import graph
from grapevine.core.errors import Mistake
from grapevine.data.columns import Column
from grapevine.learn.voices import FOLDS, Told, folds, triangle
from grapevine.methods import landmarks, song
from grapevine.methods import tune as tune_scale


def together(programs):
    """All programs in step, sums in the clear: what they return, and the sums."""
    asked, done, sums = [next(program) for program in programs], {}, []
    while asked:
        sums.append(np.sum([np.asarray(values) for values in asked], axis=0))
        asked = []
        for i, program in enumerate(programs):
            try:
                asked.append(program.send(sums[-1]))
            except StopIteration as end:
                done[i] = end.value
    return [done[i] for i in range(len(programs))], sums


@pytest.fixture
def one_after_another(monkeypatch):
    """Programs that run alongside each other in turn, so that a test can tell their sums apart."""

    def in_turn(*programs):
        done = []
        for program in programs:
            done.append((yield from program))
        return done

    monkeypatch.setattr(song, "alongside", in_turn)


def tune(rows, labels, C, scale="auto", told=None):
    return together([tune_scale.tune(tune_scale.Table(X), y, folds(y, np.random.default_rng(0)), C, told or Told(), scale)
                     for X, y in zip(rows, labels)])  # fmt: skip


def parties(n=60, P=3, d=5, C=3, labelled=12, seed=0, spread=0.7):
    """Rows around a centre per class, and the labels of the first of each party; and the truth."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(C, d))
    truth = [rng.integers(C, size=n) for _ in range(P)]
    rows = [centres[y] + spread * rng.normal(size=(n, d)) for y in truth]
    return rows, [y[:labelled] for y in truth], truth


def singers(rows, labels, C, seed=0, told=None):
    """What parties bring, with a graph of exact cosines and one candidate."""
    tuned, _ = tune(rows, labels, C, told=told)
    V = [t.scale(X) for t, X in zip(tuned, rows)]
    fold = [folds(y, np.random.default_rng((seed, i))) for i, y in enumerate(labels)]
    n = sum(map(len, V))
    W = graph.graph(*graph.nearest_cosine(np.concatenate(V), 8), n, preset="code")
    Y, at = np.zeros((n, FOLDS, C)), 0
    for v, y, f in zip(V, labels, fold):
        for g in range(FOLDS):
            heard = np.flatnonzero(f != g)
            Y[at + heard, g, y[heard]] = 1
        at += len(v)
    Z = graph.solve(W, Y.reshape(n, -1), 0.9).Z.reshape(n, FOLDS, C).transpose(1, 0, 2)[None]
    Z = np.maximum(Z, 0) / Z.sum(-1, keepdims=True).clip(1e-30) * 65535 + 0.5
    Z = Z / np.maximum(tuned[0].heard, 1.0)[:, None]
    ends = np.cumsum([0, *map(len, V)])
    return [song.Singer(v, y, f, Z[:, :, a:b], np.ones(len(v)), None, tuned[0],
                        lambda what, i=i: np.random.default_rng((seed, i, *what.encode())), told or Told())
            for i, (v, y, f, a, b) in enumerate(zip(V, labels, fold, ends, ends[1:]))]  # fmt: skip


# ---------------------------------------------------------------- the scale


def test_moments_are_those_of_all_rows_and_missing_values_become_the_mean():
    rows, labels, _ = parties()
    rows[0][3, 2] = np.nan
    found, _ = tune(rows, labels, 3, "standard")
    X = np.concatenate(rows)
    np.testing.assert_allclose(found[0].scale.mean, np.nanmean(X, 0))
    np.testing.assert_allclose(found[0].scale.std, np.nanstd(X, 0))
    assert found[0].scale(rows[0])[3, 2] == 0 and found[0].rows == 180
    np.testing.assert_array_equal(found[0].counts.sum(0), np.bincount(np.concatenate(labels), minlength=3))


def test_units_decide_the_scale():
    rows, labels, _ = parties(labelled=6, d=12)
    assert tune(rows, labels, 3)[0][0].name == "one"
    assert tune([X * [1e4, *[1] * 11] for X in rows], labels, 3)[0][0].name == "standard"


def test_where_labels_are_enough_they_decide_it():
    """A column of noise with a large deviation, but not so large that units speak: the class means say `standard`."""
    rng = np.random.default_rng(0)
    rows, labels, _ = parties(n=200, labelled=80, d=8)
    loud = [np.concatenate([X, 8 * rng.normal(size=(200, 3))], 1) for X in rows]
    assert tune(loud, labels, 3)[0][0].name == "standard"
    quiet = [np.concatenate([X, 0.05 * rng.normal(size=(200, 30))], 1) for X in rows]
    assert tune(quiet, labels, 3)[0][0].name == "one"


def test_a_lead_by_chance_does_not_change_the_scale():
    """On digits, 0.1 nats for √n labels once chose the scale on which four per cent fewer rows were right."""
    rows, labels, _ = parties(n=200, labelled=80, d=8)
    tuned, sums = tune(rows, labels, 3)
    standard, one = np.asarray(sums[-1]).reshape(2, -1).min(1)
    assert abs(standard - one) < tune_scale.LEAD * np.sqrt(240) and tuned[0].name == "one"


def test_a_feature_that_does_not_vary_plays_no_part():
    rows, labels, _ = parties()
    found, _ = tune([np.concatenate([X, np.full((60, 1), 7.0)], 1) for X in rows], labels, 3)
    assert (found[0].scale(np.concatenate([rows[0], np.full((60, 1), 9.0)], 1))[:, -1] == 0).all()


def test_a_column_that_few_rows_differ_in_is_left_out_of_every_sum():
    """One row lacks a value and has an indicator: its product with the other columns would be that row."""
    rows, labels, _ = parties()
    rare = [np.concatenate([X, np.zeros((60, 1)), np.full((60, 1), 4.0)], 1) for X in rows]
    rare[1][7, 5], rare[2][:9, 6] = 1.0, 5.0
    found, sums = tune(rare, labels, 3)
    np.testing.assert_array_equal(sums[0], [177] * 5 + [1, 9])
    assert (sums[1].reshape(-1)[: 3 * 7].reshape(3, 7)[:, 5:] == 0).all()  # nothing of these columns is summed
    assert (found[0].scale(rare[1])[:, 5:] == 0).all()


@pytest.mark.parametrize("X", [np.ones((40, 3)), np.eye(40)[:, :3], 1e9 + 1e-3 * np.eye(40)[:, :3]])
def test_without_a_column_that_speaks_there_is_nothing_to_compare(X):
    """Every row was the same row, and was labelled all the same."""
    with pytest.raises(Mistake, match="no column is usable: in none do 10 rows over all parties differ"):
        tune([X, X], [np.array([0, 1]), np.array([1])], 2)


def test_values_of_text_are_agreed_on_and_rare_ones_pooled():
    columns = (Column("age"), Column("town", "category", ("Rome", "Ulm")))
    other = (Column("age"), Column("town", "category", ("Paris", "Rome")))
    one = np.stack([np.arange(20.0), np.repeat([0.0, 1.0], [17, 3])], 1)
    two = np.stack([np.arange(20.0), np.repeat([0.0, 1.0], [12, 8])], 1)
    values = dict(town=("Paris", "Rome", "Ulm"))
    y = np.array([0, 1])
    programs = [tune_scale.tune(tune_scale.Table(x, c, values), y, np.array([1, 2]), 2, Told(), "standard")
                for x, c in ((one, columns), (two, other))]  # fmt: skip
    found, sums = together(programs)
    np.testing.assert_array_equal(sums[0], [12, 25, 3])
    assert found[0].agreed == found[1].agreed == dict(town=("Paris", "Rome"))
    assert len(found[0].scale.mean) == 4  # age, Paris, Rome, all others


# ---------------------------------------------------------------- voices and the mixture


def test_all_parties_know_the_same_and_label_well():
    rows, labels, truth = parties()
    songs, _ = together([song.sing(s) for s in singers(rows, labels, 3)])
    for found in songs[1:]:
        assert found.weights == songs[0].weights
        for name in ("of", "found", "rows", "hits"):
            np.testing.assert_array_equal(found.expected[name], songs[0].expected[name])
    right = np.mean([(s.P.argmax(1) == y).mean() for s, y in zip(songs, truth)])
    assert right > 0.95
    assert songs[0].expected["n"] == 36 and songs[0].expected["right"] >= 33
    assert songs[0].expected["given"].sum() == 144 and songs[0].expected["rows"].sum() == 36


def test_programs_alongside_each_other_hear_what_they_would_hear_alone():
    def adds(n, times):
        heard = []
        for i in range(times):
            heard.append((yield np.arange(n) + 10.0 * i))
        return heard

    def both():
        return (yield from song.alongside(adds(2, 3), adds(4, 1), adds(1, 0)))

    found, sums = together([both(), both()])
    assert [s.size for s in sums] == [6, 2, 2]
    for a, b, none in found:
        np.testing.assert_array_equal(a, [[0, 2], [20, 22], [40, 42]])
        np.testing.assert_array_equal(b, [[0, 2, 4, 6]])
        assert none == []


def test_hidden_labels_are_judged_by_those_who_have_not_heard_them():
    """Labels that are chance cannot be found again: an estimate that had heard them would say 100 %."""
    rows, _, truth = parties(spread=3.0, labelled=30)
    rng = np.random.default_rng(5)
    labels = [rng.integers(3, size=30) for _ in truth]
    songs, _ = together([song.sing(s) for s in singers(rows, labels, 3)])
    assert songs[0].expected["n"] == 90 and songs[0].expected["right"] < 48  # 30 ± 4.5 expected


def test_a_label_that_no_voice_can_find_judges_none():
    """With one label of a class, the fold that hides it has none: it said that every voice was bad, and the class was lost."""
    rows, _, truth = parties(spread=0.5, seed=2)
    labels = [np.array(y) for y in ([0, 1, 2], [0, 1, 0], [1, 0, 1])]
    for X, t, y in zip(rows, truth, labels):  # rows with these classes come first
        first = [int(np.flatnonzero(t == c)[(y[:i] == c).sum()]) for i, c in enumerate(y)]
        order = np.concatenate([first, np.setdiff1d(np.arange(len(t)), first)])
        X[:], t[:] = X[order], t[order]
    who = singers(rows, labels, 3)
    assert [own.judges.tolist() for own in who] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    songs, _ = together([song.sing(own) for own in who])
    found = np.concatenate([s.P[3:].argmax(1)[t[3:] == 2] for s, t in zip(songs, truth)])
    assert (found == 2).mean() > 0.8


def test_the_prior_of_the_weights_follows_strong_evidence_alone():
    """Voices that say the same leave it at its usual medians; a graph that is right where the others are wrong does not."""
    rows, labels, _ = parties()
    (own, *_), names = singers(rows, labels, 3), ["graph", "lda", "own"]
    right, wrong = np.log(np.eye(3)[own.y] * 0.9 + 0.1 / 3), np.log(np.eye(3)[(own.y + 1) % 3] * 0.9 + 0.1 / 3)

    def medians(graph, lda):
        priors = [[each[name] for name in names] for each in (song.MEDIANS, song.MEDIANS | song.GRAPH_LEADS)]
        (found,), _ = together([song._medians(own, priors, np.stack([graph, lda, lda]), own.y)])
        return dict(zip(names, found))

    assert medians(right, right)["graph"] == pytest.approx(song.MEDIANS["graph"], rel=0.05)
    assert medians(wrong, right)["graph"] == pytest.approx(song.MEDIANS["graph"], rel=0.05)
    led = medians(right, wrong)
    assert led["graph"] == pytest.approx(song.GRAPH_LEADS["graph"], rel=0.05)
    assert led["lda"] == pytest.approx(song.GRAPH_LEADS["lda"], rel=0.05)


def test_no_class_sum_is_opened_of_few_rows_and_none_twice_of_the_same(one_after_another):
    """A class that only nine rows may get: its sums are zero. And sums of two fits differ by far more than single rows."""
    rows, labels, truth = parties(C=2, d=6)
    labels[0] = np.array([2] * 3 + [0] * 9)  # class 2: three labels far from everything
    rows[0][:3] += 50.0
    songs, sums = together([song.sing(s) for s in singers(rows, labels, 3)])
    counts = [s.reshape(2, FOLDS, 3)[0] for s in sums if s.size == 2 * FOLDS * 3 and np.allclose(s, np.rint(s), atol=1e-6)]
    class_sums = [s.reshape(FOLDS, 3, 6) for s in sums if s.size == FOLDS * 3 * 6]
    assert len(class_sums) == 3
    for M in class_sums:
        N = next(n for n in counts if (n[:, 2] < song.DRAWN).all())
        assert (M[:, 2] == 0).all() and N[:, 2].max() < song.DRAWN
    apart = class_sums[1][0] - class_sums[2][0]
    nearest = min(np.abs(apart[c] - sign * row).max() for c in (0, 1) for sign in (1, -1)
                  for X in singers(rows, labels, 3) for row in X.X)  # fmt: skip
    assert nearest > 0.1


def test_sureness_is_brought_to_what_hidden_labels_show_unless_chance_explains_it():
    """A mixture that says 0.6 and is right for 90 of 100 labels, and for 6 of 10."""
    rows, labels, _ = parties(P=1, C=2, n=200, labelled=100)
    (own,) = singers(rows, labels, 2)

    def scale(own, right):
        guess = np.where(np.arange(len(own.y)) < right, own.y, 1 - own.y)
        mixture = np.broadcast_to(np.log(np.where(np.eye(2)[guess] == 1, 0.6, 0.4)), (FOLDS, len(own.y), 2))
        (found,), _ = together([song._calibration(own, mixture)])
        return found

    # Chance is 0.6·0.4/100, so of the 0.3 that are missing 0.3·(1 − 0.0024/0.09) count: log-odds of 0.892 over those of 0.6,
    # cut off at the largest scale. With 65 right, chance explains all but 0.05·(1 − 0.0024/0.0025).
    assert scale(own, 90) == pytest.approx(2.0)
    assert scale(own, 65) == pytest.approx(np.log(0.602 / 0.398) / np.log(1.5), abs=0.005)
    assert scale(own, 62) == 1.0
    few = replace(own, y=own.y[:10], fold=own.fold[:10])
    assert scale(few, 6) == 1.0


def test_no_draw_of_rows_is_used_twice():
    """The difference of two class sums over the same draw would be the rows whose label has changed."""
    rows, labels, _ = parties()
    asked: list[str] = []
    who = [replace(s, draw=lambda what, draw=s.draw: asked.append(what) or draw(what)) for s in singers(rows, labels, 3)]
    together([song.sing(own) for own in who])
    assert len(asked) == len(who) * len(set(asked)) and len(set(asked)) == 1 + song.REFITS


def test_a_head_on_few_labels_is_not_made(one_after_another):
    """Fewer than ten labels of a class, or more numbers than two thirds of what the labelled rows consist of: no such sums."""
    rows, labels, _ = parties(labelled=6)
    songs, sums = together([song.sing(s) for s in singers(rows, labels, 3)])
    assert "pooled" not in songs[0].weights
    assert not [s for s in sums if s.size == 21 + 18]
    rows, labels, _ = parties(labelled=20)
    songs, sums = together([song.sing(s) for s in singers(rows, labels, 3)])
    assert "pooled" in songs[0].weights and [s for s in sums if s.size == 21 + 18]


def test_pooled_logistic_regression_is_scikit_learns_and_so_is_its_leave_one_out():
    rows, labels, _ = parties(C=2, labelled=50, n=80, spread=2.0)
    made = singers(rows, labels, 2)
    total = sum(s.X.T @ s.X for s in made) / 240
    X, y = np.concatenate([s.X[:50] for s in made]), np.concatenate(labels)
    programs = [song._logistic(s, np.concatenate([s.X[:50], np.ones((50, 1))], 1), s.y.astype(float), total, 20) for s in made]
    found, sums = together(programs)
    theirs = LogisticRegression(tol=1e-8).fit(X, y)
    head = found[0][0]
    np.testing.assert_allclose(head.W[:, 1], theirs.coef_[0], atol=0.03)
    without = np.concatenate([scores[:, 1] for _, scores in found])
    for i in range(0, 150, 15):
        rest = np.arange(150) != i
        left_out = LogisticRegression(tol=1e-8).fit(X[rest], y[rest]).decision_function(X[i : i + 1])
        np.testing.assert_allclose(expit(without[i]), expit(left_out[0]), atol=0.03)
    assert len(sums) == 21  # 20 gradients and one matrix of curvature


def test_a_party_keeps_its_own_model_only_where_that_is_clearly_better():
    def found(mixed, own):
        return song.Song(np.empty((0, 2)), np.eye(2)[mixed], None, np.eye(2)[own], {}, {}, {}, {}, {})

    y = np.zeros(20, int)
    assert song.verdict(found([1] * 9 + [0] * 11, y), y)["own_kept"]  # 9 more, √9·2 = 6
    assert not song.verdict(found([1] * 4 + [0] * 16, y), y)["own_kept"]  # 4 more, not more than 2·√4
    assert not song.verdict(found([1] * 2 + [0] * 18, y), y)["own_kept"]
    said = song.verdict(found(y, [1] * 5 + [0] * 15), y)
    assert (said["n"], said["right"], said["own"], said["apart"]) == (20, 20, 15, 5)


def test_labels_that_were_told_by_chance_still_find_the_truth():
    """Randomised responses with ε = 2 of three classes: a fifth of the labels is wrong, and the estimate is about the truth."""
    rows, _, truth = parties(n=200, labelled=120, seed=2)
    e = np.exp(2.0)
    told = Told(e / (e + 2), 1 / (e + 2))
    rng = np.random.default_rng(1)
    labels = [np.where(rng.random(120) < told.p, y[:120], (y[:120] + rng.integers(1, 3, 120)) % 3) for y in truth]
    songs, _ = together([song.sing(s) for s in singers(rows, labels, 3, told=told)])
    right = np.mean([(s.P.argmax(1) == y).mean() for s, y in zip(songs, truth)])
    assert right > 0.9
    assert abs(songs[0].expected["right"] / songs[0].expected["n"] - right) < 0.12


def test_few_labels_count_more_often_in_class_sums_but_none_outweighs_the_others(one_after_another):
    """A few labels that count five times would be half of the sum over a class of thirty rows: the class is left out."""
    rows, labels, truth = parties(n=400, C=2, d=6, labelled=6)
    heavy, light = singers(rows, labels, 2), singers(rows, [np.resize(y, 60) for y in labels], 2)
    assert song._worth(heavy[0]) == pytest.approx(0.05 * 1200 / 18) and song._worth(light[0]) == 1.0

    def opened(own, before):
        (voice, *_), sums = together([song._lda_voice(s, b, np.eye(6), "a test") for s, b in zip(own, before)])
        return sums[0].reshape(2, FOLDS, 2), sums[1].reshape(FOLDS, 2, 6)

    sure = [np.repeat(np.eye(2)[t][None], FOLDS, 0) for t in truth]
    (N, known), M = opened(heavy, sure)
    kept = [s.draw("class sums, a test").random((FOLDS, 400)) < song.SUBSET for s in heavy]
    weight = [np.where(np.arange(400) < 6, song._worth(heavy[0]), 1.0) for _ in heavy]  # fold 0 has heard all labels
    wanted = [sum((w * k[0] * (t == c)) @ s.X for s, w, k, t in zip(heavy, weight, kept, truth)) for c in (0, 1)]
    np.testing.assert_allclose(M[0], wanted)
    assert N[0].sum() == sum(k[0].sum() for k in kept) and known[0].sum() == sum(k[0][:6].sum() for k in kept)

    few = [np.repeat(np.eye(2)[np.where(np.arange(400) < 10, 1, 0)][None], FOLDS, 0) for _ in truth]
    ones = [replace(s, y=np.ones(2, int)) for s in singers(rows, [y[:2] for y in labels], 2)]  # class 1: ten rows of each party
    (N, known), M = opened(ones, few)
    assert song._worth(ones[0]) == 5 and N[0, 1] >= song.DRAWN and known[0, 1] > 0
    assert (M[0, 1] == 0).all() and (M[0, 0] != 0).any()


# ---------------------------------------------------------------- landmarks


def test_landmarks_are_labelled_rows_and_centres_and_rows_lie_between_them():
    rows, _, _ = parties(n=300, P=1)
    V = rows[0]
    assert (
        landmarks.count(0, 300, 12, 3) == 300
        and landmarks.count(40, 300, 12, 3) == 52
        and landmarks.count(-1, 9999, 0, 3) == 9999
    )
    assert landmarks.count(0, 50_000, 100, 20) == 250 and landmarks.count(0, 50_000, 400, 20) == 420
    centres = landmarks.centres(V, 12, 52, 0)
    nodes = landmarks.nodes(V, 12, centres)
    assert nodes.V.shape == (52, 5) and nodes.to_rows.shape == (300, 52)
    np.testing.assert_allclose(nodes.to_rows.sum(1), 1)
    np.testing.assert_allclose(nodes.mass.sum(), 300)
    np.testing.assert_allclose(nodes.to_rows.toarray()[:12, :12], np.eye(12))
    assert (nodes.to_rows.toarray()[12:] > 0).sum(1).max() <= 5
    all = landmarks.nodes(V, 12, landmarks.centres(V, 12, 300, 0))
    assert all.to_rows is None and all.from_others is None and len(all.V) == 300


def test_a_hidden_label_is_judged_as_a_row_that_is_no_node():
    rows, _, _ = parties(n=300, P=1)
    V, m, C = rows[0], 12, 3
    nodes = landmarks.nodes(V, m, landmarks.centres(V, m, 52, 0))
    others = nodes.from_others.toarray()
    assert (np.diag(others[:, :m]) == 0).all() and ((others > 0).sum(1) == 5).all()
    unit = nodes.V / np.linalg.norm(nodes.V, axis=1, keepdims=True)
    cosine = unit[3] @ unit.T
    near = [j for j in np.argsort(-cosine) if j != 3][:5]
    np.testing.assert_allclose(others[3, near], cosine[near] ** 8 / (cosine[near] ** 8).sum(), rtol=1e-6)

    rng = np.random.default_rng(0)
    y, fold = rng.integers(0, C, m), 1 + np.arange(m) % (FOLDS - 1)
    Q = rng.dirichlet(np.ones(C), (FOLDS, 52))
    own = song.Singer(V, y, fold, Q[None], nodes.mass, nodes.to_rows, None, None, from_others=nodes.from_others)
    found = own.rows(Q)
    for i in range(m):
        np.testing.assert_allclose(found[fold[i], i], others[i] @ Q[fold[i]])  # not heard: from the nodes around it
        heard = fold[i] % (FOLDS - 1) + 1
        np.testing.assert_allclose(found[heard, i], Q[heard, i])  # heard: its own node
    sharp = Q**2 / (Q**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(own.hidden_at_nodes(np.log(Q), 2.0), np.log([others[i] @ sharp[fold[i]] for i in range(m)]))


def test_a_triangle_is_a_symmetric_matrix():
    M = np.arange(9.0).reshape(3, 3) + np.arange(9.0).reshape(3, 3).T
    np.testing.assert_array_equal(song.symmetric(triangle(M), 3), M)


@pytest.mark.parametrize("C", [2, 10])
def test_the_estimate_of_bytes_is_about_what_is_sent(C):
    rows, labels, _ = parties(C=C, labelled=15 * C, n=20 * C, d=7)
    _, first = tune(rows, labels, C)
    _, sums = together([song.sing(s) for s in singers(rows, labels, C)])
    sent = 32 * first[0].size + 8 * sum(s.size for s in first[1:] + sums) + 66 * len(first + sums)
    # One candidate here, and six in a job: balancing them is the first term.
    said = song.bytes_of_sums(7, np.bincount(np.concatenate(labels), minlength=C)) - 8 * 8 * 5 * FOLDS * C
    assert said == pytest.approx(sent, rel=0.3)
