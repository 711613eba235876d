"""Chorus as a party runs it: a straight-line program in which `yield` is a sum over all parties.

    total = yield values        every party gives `values` and gets the sum; the server learns neither (`crypto.together`)

All parties run the same program on the same sums, so they decide alike, and the server decides nothing. A first program finds
the scale that rows are compared on (`methods.tune`); then the graph is made (`methods.chorus`); `sing` turns every party's own
scores into voices, weighs them by how well they find hidden labels, and mixes them.

What is opened, to the parties alone: class counts, class sums and the total covariance of all rows; losses and their derivatives,
each one number summed over all hidden labels; how far apart the parties' class shares are; the share of rows that are no nodes.
No class sum is opened of fewer than `DRAWN` rows, or of more that weigh so unequally that they tell as much: such classes are
left out. The difference of two sums of almost the same rows would show a row, so every class sum is over a new random three
fifths of a party's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, log_softmax, softmax

from grapevine.learn.voices import (
    FOLDS,
    LEAST,
    TEMPERATURES,
    Head,
    balanced,
    cautious,
    class_shares,
    home_shares,
    home_strength,
    lda_heads,
    newton_step,
    newton_sums,
    own_head,
    ridge_heads,
    symmetric,
    tempered,
    triangle,
)
from grapevine.methods.singer import Singer, Soft, Song
from grapevine.methods.tune import CELL, Program

SUBSET = 0.6  # the share of a party's rows in each class sum
DRAWN = 15  # rows in a class sum: with fewer, two draws could differ by a single row (docs/methods/chorus.md)
TRUTH, MOST_WORTH = 0.05, 5.0  # where labels are a smaller share of all rows, each counts more often, but at most so often
POWERS = np.array([1, 1.4, 2, 2.8, 4, 5.6, 8])
BALANCE = 8  # steps at the most
NEAR = 0.01  # a relative change at which balancing and Newton's steps end
TRUST = 1.0  # how much a hidden label's loss counts where candidates are averaged
SHRINKAGES = (0.05, 0.2, 0.5)
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
WIDEST = 1500  # the most features of a ridge regression
STEPS = 20  # of a logistic regression
OPENED = 2 / 3  # the largest share that may be opened of the numbers that labelled rows consist of
NEWTON = 6  # steps at the most
REFITS = 2
BINS = 20
SCALES = 2.0 ** (np.arange(-8, 9) / 8)  # ½ … 2
DOUBT = np.maximum(np.log(TEMPERATURES), 0.0) ** 2 / 2  # few labels are no reason to make a voice surer than it says
MEDIANS = dict(lda=1.0, graph=0.15, pooled=0.6, own=0.03, home=0.3, smooth=0.3)
GRAPH_LEADS = dict(lda=0.25, graph=0.8, pooled=0.2)  # the same where classes are no clouds around a mean, but chains in the graph
FROM_CENTRES = 1 / 3  # of the graph's median, where all rows take its scores from centres
UNUSUAL = 5.0  # by how much more the hidden labels must speak for GRAPH_LEADS: log-odds


# ---------------------------------------------------------------- voices


def sing(own: Singer) -> Program:
    """Voices, weights and the mixture; then twice more with what the mixture says."""
    C = own.Z.shape[-1]
    no_nodes = len(own.X) if own.to_rows is not None else 0
    *square, no_nodes = (yield np.append(triangle(own.X.T @ own.X), no_nodes)) / own.tuned.rows
    mean_square = symmetric(np.array(square), own.X.shape[1])
    priors = [dict(each, graph=each["graph"] * FROM_CENTRES**no_nodes) for each in (MEDIANS, MEDIANS | GRAPH_LEADS)]
    alone, Y = own_voice(own), np.eye(C)[own.y]
    by_own = np.broadcast_to(np.float32(-np.log(C)), (FOLDS, len(own.X), C)) if alone is None else alone
    (graph, lda, shares), pooled, by_own = yield from alongside(
        _first_voices(own, mean_square),
        _pooled_voice(own, mean_square, own.told.unbiased(Y, np.ones_like(Y))),
        _at_best(own, by_own),
    )
    voices: dict[str, np.ndarray] = dict(graph=graph, lda=lda[0], own=by_own)
    heads: dict[str, list[Head]] = dict(lda=lda[1])
    if pooled:
        voices["pooled"], heads["pooled"] = pooled
    weights: dict[str, float] = {}
    head_weights: dict[str, float] = {}
    for refit in range(REFITS + 1):
        weights, head_weights = yield from _weights(own, voices, priors, weights, head_weights)
        mixture = np.zeros_like(graph)
        for name, voice in voices.items():
            mixture += weights[name] * voice
        if refit == REFITS:
            break
        Q, _ = yield from _balance(softmax(mixture, -1), np.ones(len(own.X)), own.tuned.rows, shares)
        (voices["lda"], heads["lda"]), voices["home"] = yield from alongside(
            _lda_voice(own, Q, mean_square, f"refit {refit}"), _home_voice(own, softmax(mixture, -1))
        )
        if own.told.q and "pooled" in voices:
            refined = own.told.posterior(softmax(own.hidden(mixture), -1), own.y)
            voices["pooled"], heads["pooled"] = yield from _pooled_voice(own, mean_square, refined)
        if own.smooth:
            voices["smooth"] = yield from _smooth_voice(own, Q)
    scale = yield from _calibration(own, mixture)
    P, hidden = softmax(scale * mixture[0].astype(np.float64), -1), softmax(scale * own.hidden(mixture).astype(np.float64), -1)
    own_hidden = None if alone is None else own.hidden(alone)
    expected = yield from _judged(own, P, hidden, own_hidden)
    return Song(P, hidden, None if alone is None else alone[0], own_hidden, weights,
                {name: kept[0] for name, kept in heads.items()}, head_weights, expected,
                {name: voice[0] for name, voice in voices.items()})  # fmt: skip


def alongside(*programs: Program) -> Program:
    """Run programs in step, so that their sums travel together: what each of them returns."""
    done: list[Any] = [None] * len(programs)
    heard: dict[int, Any] = dict.fromkeys(range(len(programs)))
    while True:
        asked = {}
        for i, total in heard.items():
            try:
                asked[i] = programs[i].send(total)
            except StopIteration as end:
                done[i] = end.value
        if not asked:
            return done
        total = yield np.concatenate(list(asked.values()))
        heard = dict(zip(asked, np.split(total, np.cumsum([len(values) for values in asked.values()])[:-1])))


def _judged(own: Singer, P: np.ndarray, hidden: np.ndarray, alone: np.ndarray | None) -> Program:
    """Over all parties: hidden labels (`n`), those recovered together (`right`) and by each party alone (`alone`); by class
    how many there are (`of`), are right (`found`) and were guessed (`guessed`); unlabelled rows that get the class
    (`given`); and by bin of probability how many (`rows`), how many right (`hits`) and how sure (`sure`)."""
    C, at = hidden.shape[1], np.arange(len(own.y))
    guess, sure = hidden.argmax(1), hidden.max(1)
    right = own.told.unbiased((guess == own.y).astype(float), np.ones(len(at)))
    by_own = np.zeros(len(at)) if alone is None else own.told.unbiased((alone.argmax(1) == own.y).astype(float), np.ones(len(at)))
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)

    def count(where: np.ndarray, size: int, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(where, weights, size).astype(np.float64)

    parts = dict(
        n=np.array([len(at), right.sum(), by_own.sum()]),
        of=count(own.y, C), found=count(own.y, C, right), guessed=count(guess, C), given=count(P[len(at) :].argmax(1), C),
        rows=count(bins, BINS), hits=count(bins, BINS, right), sure=count(bins, BINS, sure),
    )  # fmt: skip
    ends = np.cumsum([0, *map(len, parts.values())])
    total = yield np.concatenate(list(parts.values()))
    found = {name: total[a:b] for name, a, b in zip(parts, ends, ends[1:])}
    n, right, alone = found.pop("n").tolist()
    return dict(found, n=round(n), right=float(np.clip(right, 0, n)), alone=float(np.clip(alone, 0, n)))


def _calibration(own: Singer, mixture: np.ndarray) -> Program:
    """What the mixture is multiplied by, so that hidden labels are as often right as it is sure of them. The loss alone leaves
    it too cautious where classes are many. Few labels are no reason: by how much the two differ is drawn towards 0 as far as
    chance may explain it."""
    hidden = own.hidden(mixture).astype(np.float64)
    right = own.told.unbiased((hidden.argmax(1) == own.y).astype(float), np.ones(len(own.y)))
    sure = [softmax(scale * hidden, -1).max(1).sum() for scale in SCALES]
    n, right, *sure = yield np.array([len(own.y), right.sum(), *sure])
    if n < 1:
        return 1.0
    right, sure = right / n, np.array(sure) / n
    now = sure[len(SCALES) // 2]
    chance = now * (1 - now) / n / (own.told.p - own.told.q) ** 2
    target = now + (right - now) * max(0.0, 1 - chance / max((right - now) ** 2, LEAST))
    return float(np.interp(target, sure, SCALES))


def verdict(found: Song, y: np.ndarray) -> dict[str, float | bool]:
    """A party's own hidden labels: how many it has, how many the mixture and its own model find, how many only one of them finds.
    A party whose own model is clearly better (by more than two standard deviations of chance, and by three labels) keeps that
    model's labels."""
    mixed = found.hidden.argmax(1) == y
    own = np.zeros(len(y), bool) if found.own_hidden is None else found.own_hidden.argmax(1) == y
    more = int(own.sum()) - int(mixed.sum())
    apart = int((own != mixed).sum())
    return dict(n=len(y), right=int(mixed.sum()), own=int(own.sum()), apart=apart, has_own=found.own_hidden is not None,
                own_kept=bool(found.own_hidden is not None and more >= 3 and more > 2 * np.sqrt(apart)))  # fmt: skip


def _at_best(own: Singer, voice: np.ndarray) -> Program:
    """The voice at the temperature at which it finds hidden labels best: log-probabilities."""
    losses = (yield own.losses(voice)) + DOUBT
    return log_softmax(np.float32(TEMPERATURES[losses.argmin()]) * voice, -1)


def _balance(Q: np.ndarray, mass: np.ndarray, rows: float, shares: np.ndarray) -> Program:
    """Class shares of all rows brought to `shares`, whatever axes stand before (rows, classes); and what they were before."""
    found = None
    for _ in range(BALANCE):
        sums = yield np.einsum("...nc,n->...c", Q, mass).ravel()
        mean = sums.reshape(*Q.shape[:-2], 1, Q.shape[-1]) / rows
        found = mean if found is None else found
        Q = balanced(Q, mean, shares)
        if np.abs(np.log(np.maximum(mean, LEAST) / np.maximum(shares, LEAST))).max() < NEAR:
            break
    return Q, found


def _first_voices(own: Singer, mean_square: np.ndarray) -> Program:
    """Propagation, and linear discriminant analysis on what it says."""
    graph, shares = yield from _graph_voice(own)
    lda, graph = yield from alongside(_lda_voice(own, graph, mean_square, "first"), _at_best(own, graph))
    return graph, lda, shares


def _graph_voice(own: Singer) -> Program:
    """Propagation: every candidate sharpened, as it is and balanced to π, all averaged by how well they find hidden labels. With
    it come the classes' shares: the mean of π and of what propagation found, by the same weights."""
    J, _, nodes, C = own.Z.shape
    at, losses = own.judges, np.empty((J, len(POWERS)))
    log_Q = np.log(own.Z) - np.log(own.Z.sum(-1, keepdims=True))
    for j in range(J):
        losses[j] = [own.told.loss(own.hidden_at_nodes(log_Q[j], t)[at, own.y[at]]).sum() for t in POWERS]
    losses = yield losses.ravel()
    power = POWERS[losses.reshape(J, -1).argmin(1)]
    Q = softmax(power[:, None, None, None] * log_Q, -1)
    usable = own.heard | ~own.heard.any(1, keepdims=True)  # a fold gives no class that it has not heard, if it heard any
    prior = np.where(usable, class_shares(own.tuned.counts.sum(0)), 0.0)[:, None]
    prior /= prior.sum(-1, keepdims=True)
    even, found = yield from _balance(Q, own.mass, own.tuned.rows, prior)
    log_Q = np.log(np.maximum(np.concatenate([Q, even]), LEAST))
    losses = yield np.array([own.told.loss(own.hidden_at_nodes(log_Q[j])[at, own.y[at]]).sum() for j in range(2 * J)])
    weight = softmax(-TRUST * losses)
    mixed = np.einsum("j,jfnc->fnc", weight, log_Q)
    shares = weight[J:].sum() * prior + np.einsum("j,jfnc->fnc", weight[:J], found)
    return np.log(np.maximum(own.rows(softmax(mixed, -1)), LEAST)).astype(np.float32), shares


def _lda_voice(own: Singer, before: np.ndarray, mean_square: np.ndarray, when: str) -> Program:
    """Linear discriminant analysis on all rows' hard labels, a party's own labels pinned where the fold has heard them: the
    voice, and its heads by fold. `when` names the draw of the rows: if one draw were used twice, the difference of two sums
    would be a row whose label has changed.

    All labels were heard by fold 0, so its class sums are those of all six draws together; that opens nothing more.
    """
    C, d, m = before.shape[-1], own.X.shape[1], len(own.y)
    hard, pinned = before.argmax(-1), np.zeros((FOLDS, len(own.X)), bool)
    if own.told.q == 0:
        pinned[:, :m] = own.fold != np.arange(FOLDS)[:, None]
        hard[:, :m] = np.where(pinned[:, :m], own.y, hard[:, :m])
    kept, worth = own.draw(f"class sums, {when}").random(pinned.shape) < SUBSET, _worth(own)
    Y = [sparse.csr_array((k * np.where(p, worth, 1.0), (h, np.arange(len(own.X)))), (C, len(own.X)))
         for k, p, h in zip(kept, pinned, hard)]  # fmt: skip
    found = [[np.bincount(h[k], minlength=C) for h, k in zip(hard, each)] for each in (kept, kept & pinned)]
    rows, known = np.rint((yield np.ravel(found).astype(float)).reshape(2, FOLDS, C))
    N = rows + (worth - 1) * known
    N = np.where(N**2 >= DRAWN * (rows + (worth**2 - 1) * known), N, 0.0)  # as many as DRAWN rows of equal weight
    sums = yield np.stack([(y @ own.X) * (N[f] > 0)[:, None] for f, y in enumerate(Y)]).ravel()
    M = sums.reshape(FOLDS, C, d)
    N, M = np.concatenate([N.sum(0)[None], N[1:]]), np.concatenate([M.sum(0)[None], M[1:]])
    heads = [lda_heads(N[f], M[f], _covariance(mean_square, N[f], M[f]), SHRINKAGES) for f in range(FOLDS)]
    hidden = [np.stack([head[g](own.X[:m]) for head in heads]) for g in range(len(SHRINKAGES))]
    losses = yield np.concatenate([own.losses(h) for h in hidden])
    g, t = divmod(int((losses + np.tile(DOUBT, len(SHRINKAGES))).argmin()), len(TEMPERATURES))
    chosen = [Head(TEMPERATURES[t] * head[g].W, TEMPERATURES[t] * head[g].b) for head in heads]
    voice = np.stack([log_softmax(head(own.X), -1).astype(np.float32) for head in chosen])
    return voice, chosen


def _worth(own: Singer) -> float:
    """How often a labelled row counts in class sums: where labels are few, so often that they are `TRUTH` of all rows."""
    return float(np.clip(TRUTH * own.tuned.rows / max(own.tuned.counts.sum(), 1.0), 1.0, MOST_WORTH))


def _covariance(mean_square: np.ndarray, N: np.ndarray, M: np.ndarray) -> np.ndarray:
    """The covariance of all rows, about the centre of those whose class sums were opened."""
    centre = M.sum(0) / max(N.sum(), 1.0)
    return mean_square - np.outer(centre, centre)


def _pooled_voice(own: Singer, mean_square: np.ndarray, Y: np.ndarray) -> Program:
    """A head on all parties' labels Y: logistic regression between two classes, else ridge regression. Labels that are
    randomised responses are refined by what the mixture says of their rows, and the head is made again.

    Sums of few labelled rows would give the rows away. So there is no such voice where a class has fewer than CELL labels, or
    where more numbers would be opened than `OPENED` of what the labelled rows consist of.
    """
    counts = own.tuned.counts.sum(0)
    d, C = own.X.shape[1] + 1, len(counts)
    times = 1 + REFITS if own.told.q else 1  # how often the head is made
    room, matrix = OPENED * counts.sum() * (d - 1) / times, d * (d + 1) // 2
    steps = min(STEPS, int((room - matrix) // d))
    X = np.concatenate([own.X[: len(own.y)], np.ones((len(own.y), 1))], 1)
    if C < 2 or counts.min() < CELL:
        return None
    if C == 2 and steps >= STEPS // 2:
        head, without = yield from _logistic(own, X, Y[:, 1], mean_square, steps)
    elif matrix + d * C <= room and d <= WIDEST:
        head, without = yield from _ridge(own, X, Y)
    else:
        return None
    voice = np.repeat(head(own.X).astype(np.float32)[None], FOLDS, 0)
    voice[own.fold, np.arange(len(own.y))] = without
    losses = yield own.losses(voice)
    t = TEMPERATURES[losses.argmin()]
    return log_softmax(np.float32(t) * voice, -1), [Head(t * head.W, t * head.b)]


def _ridge(own: Singer, X: np.ndarray, Y: np.ndarray) -> Program:
    """Ridge regression, and each labelled row's scores by the regression without it, which is exact for ridge: with the row's
    leverage h they are (ŷ − h·y)/(1 − h)."""
    d = X.shape[1]
    sums = yield np.concatenate([triangle(X.T @ X), (X.T @ Y).ravel()])
    gram, B = symmetric(sums[: d * (d + 1) // 2], d), sums[d * (d + 1) // 2 :].reshape(d, -1)
    heads = ridge_heads(gram, B, float(own.tuned.counts.sum()), PENALTIES)
    losses, without = [], []
    for head, leverage in heads:
        h = leverage(X)[:, None]
        without.append((head(X[:, :-1]) - h * Y) / (1 - h))
        losses.append(tempered(without[-1][None], own.y, np.zeros(len(X), int), own.told, TEMPERATURES))
    best = int((yield np.concatenate(losses)).argmin()) // len(TEMPERATURES)
    return heads[best][0], without[best]


def _logistic(own: Singer, X: np.ndarray, y: np.ndarray, mean_square: np.ndarray, steps: int) -> Program:
    """Logistic regression with scikit-learn's default penalty, between two classes (y: 1 for the second), by accelerated gradient
    steps; and each labelled row's score without it, by one Newton step from there (approximate leave-one-out).

    The covariance of all rows stands in for that of the labelled ones in the steps' sizes, so that no more is opened.
    """
    penalty = np.append(np.ones(X.shape[1] - 1), 1e-6)  # none on the intercept
    n = own.tuned.counts.sum()
    bound = np.diag(np.append(np.zeros(X.shape[1] - 1), n / 3) + penalty)
    bound[:-1, :-1] += n * mean_square / 3  # a logistic curve bends by at most ¼; a third leaves room
    inverse = np.linalg.inv(bound)
    w = before = np.zeros(X.shape[1])
    for i in range(steps):
        ahead = w + i / (i + 3) * (w - before)
        gradient = yield X.T @ (expit(X @ ahead) - y)
        w, before = ahead - inverse @ (gradient + penalty * ahead), w
    P = expit(X @ w)
    curved = X * np.sqrt(P * (1 - P))[:, None]
    H = symmetric((yield triangle(curved.T @ curved)), X.shape[1]) + np.diag(penalty)
    h = np.einsum("md,de,me->m", X, np.linalg.inv(H), X)
    score = X @ w + h * (P - y) / np.maximum(1 - P * (1 - P) * h, 0.1)
    W, b = np.zeros((len(w) - 1, 2)), np.zeros(2)
    W[:, 1], b[1] = w[:-1], w[-1]
    return Head(W, b), np.stack([np.zeros_like(score), score], 1)


def own_voice(own: Singer) -> np.ndarray | None:
    """The party's own regression, where it has labels of two classes. Nothing is sent."""
    return own.keep("own voice", lambda: _own_voice(own)) if len(np.unique(own.y)) > 1 else None


def _own_voice(own: Singer) -> np.ndarray:
    C, m = own.Z.shape[-1], len(own.y)
    out = np.full((FOLDS, len(own.X), C), -np.log(C), np.float32)
    for f in range(FOLDS):
        heard = own.fold != f
        head = own_head(own.X[:m][heard], own.y[heard], C)
        if head is not None:
            out[f] = cautious(head(own.X), int(heard.sum()))
    return out


def _home_voice(own: Singer, P: np.ndarray) -> Program:
    """How much more of each class lies here than elsewhere, by the mixture: the same for all rows of a party."""
    here = P.mean(1, dtype=np.float64)
    shares = np.maximum((yield (len(own.X) * here).ravel()).reshape(here.shape) / own.tuned.rows, LEAST)
    sums = yield np.append(len(own.X) * ((here - shares) ** 2).sum(1), 1.0)
    alike = [home_strength(apart, s, own.tuned.rows, sums[-1]) for apart, s in zip(sums, shares)]
    home = np.stack([np.log(home_shares(p, s, tau) / s) for p, s, tau in zip(P, shares, alike)])
    return np.broadcast_to(home.astype(np.float32)[:, None], P.shape)


def _smooth_voice(own: Singer, Q: np.ndarray) -> Program:
    """What a row's neighbours in the graph are, by the balanced mixture."""
    nodes = yield Soft(Q)
    nodes = (nodes + LEAST) / (nodes + LEAST).sum(-1, keepdims=True)
    return (yield from _at_best(own, np.log(np.maximum(own.rows(nodes), LEAST))))


def _weights(own: Singer, voices: dict[str, np.ndarray], priors: list[dict[str, float]], *before: dict[str, float]) -> Program:
    """Weights of all voices, and of those that label later rows of anybody (the heads), from the hidden labels and the medians of
    their `priors`; found in steps from those `before`. All parties find the same."""
    sets, at = [list(voices), [name for name in voices if name in ("lda", "pooled")]], own.judges
    hidden = [np.stack([own.hidden(voices[name])[at] for name in names]).astype(np.float64) for names in sets]
    mixed = yield from _medians(own, [[prior[name] for name in sets[0]] for prior in priors], hidden[0], own.y[at])
    medians = [mixed, np.array([MEDIANS[name] for name in sets[1]])]
    theta = [np.log([known.get(name, m) for name, m in zip(names, each)]) for names, known, each in zip(sets, before, medians)]
    for _ in range(NEWTON):
        parts = [newton_sums(h, own.y[at], t, own.told) for h, t in zip(hidden, theta)]
        sums = yield np.concatenate(parts)
        ends, last = np.cumsum([0, *map(len, parts)]), theta
        theta = [newton_step(sums[a:b], t, median) for a, b, t, median in zip(ends, ends[1:], theta, medians)]
        if max(np.abs(t - u).max() for t, u in zip(theta, last)) < NEAR:
            break
    weights = [dict(zip(names, np.exp(t).tolist())) for names, t in zip(sets, theta)]
    return weights[0], weights[1]


def _medians(own: Singer, priors: list[list[float]], hidden: np.ndarray, y: np.ndarray) -> Program:
    """The medians of the weights' prior: the usual and the unusual ones, averaged by how well each finds the hidden labels."""
    logs, at = np.log(priors), np.arange(len(y))
    mixtures = [np.tensordot(np.exp(weights), hidden, 1) for weights in logs]
    losses = yield np.array([own.told.loss(log_softmax(mixture, -1)[at, y]).sum() for mixture in mixtures])
    return np.exp(softmax([0.0, losses[0] - losses[1] - UNUSUAL]) @ logs)


def bytes_of_sums(d: int, labels: np.ndarray) -> int:
    """About how many bytes a party's shares have, for d features and this many labels of each class."""
    C, J = len(labels), 6
    pooled = len(labels) > 1 and labels.min() >= CELL
    numbers = 8 * J * FOLDS * C + REFITS * (BALANCE + 1) * FOLDS * C  # balancing
    numbers += d * (d + 1) // 2 * (1 + pooled) + d * (STEPS if C == 2 else C) * pooled + (1 + REFITS) * FOLDS * C * (d + 1)
    return 32 * (3 * d + 5 * C) + 8 * numbers + 90 * 66
