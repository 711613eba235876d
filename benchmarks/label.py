"""The label job's chorus beside what else labels the same rows, over tables, features and pixels.

    python benchmarks/label.py [--seeds N] [--only wine,digits] [--lines chorus,...] [--limit SECONDS] [--quick]

Rows are dealt to the parties at random (FEMNIST: 40 writers, derma: four sites), labels are drawn at random from all rows, and
what counts is the share of the rows without a label that is labelled right. `plain` gives the labels that the protocols give,
and every row is a node of the graph. Chorus has its defaults: what it chooses, it chooses by hidden labels. So does XCLP at its
best α; all other lines have fixed settings, and nothing is chosen by the rows that are measured.

Beside it: logistic regression (C = 1, on standardised rows; tuned: scale and C by folds of the labelled rows), random forests
(100 trees) alone and pooled; label spreading over all rows in one place (α 0.99, ten neighbours); XCLP as printed; and, from
the pooled labelled rows, the heads of Fed3R (ridge), FedCGS and GH-OFL (LDA) and FedNCM, with the defaults of these
methods here, on rows standardised over all parties. Then landmarks: ten parties of 1000 rows, 100 centres of each in the graph
against all rows; secure seconds are those with mlwe less those in the clear. Results: label.json, written after every line, and
a table of docs/methods/chorus.md. A line that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from machine import DATA, FILES, ROOT, about, fill, markdown, need, one_blas_thread
from sklearn import datasets
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold

import grapevine as gv
from grapevine.graph import LabelSpreading
from grapevine.learn import moments
from grapevine.methods.chorus import Chorus

FILE, PAGE = Path(__file__).with_suffix(".json"), Path("docs", "methods", "chorus.md")
FIRST, SEEDS, MANY = 60, 5, 20
ROWS, CLIP, BINS = 20_000, 6.0, 10
PENALTIES = (0.001, 0.01, 0.1, 1.0)
PLAIN: dict[str, Any] = dict(secure="plain", workers=1)


@dataclass(frozen=True)
class Deal:
    """One draw: each party's rows, their true classes, and which of them come with a label."""

    X: list[np.ndarray]
    truth: list[np.ndarray]
    known: list[np.ndarray]

    @property
    def parties(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(x, np.where(k, y, -1)) for x, y, k in zip(self.X, self.truth, self.known)]

    @property
    def classes(self) -> int:
        return int(max(y.max() for y in self.truth)) + 1


# ---------------------------------------------------------------- data


@lru_cache(maxsize=1)
def rows_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows, classes, and groups where the parties are not drawn."""
    if name in ("wine", "breast_cancer", "digits"):
        return (*getattr(datasets, f"load_{name}")(return_X_y=True), None)
    if name == "femnist":
        with np.load(DATA / FILES[name], allow_pickle=False) as z:
            keep = np.isin(z["writer"], np.flatnonzero(np.bincount(z["writer"]) >= 80))
            return z["x"][keep].reshape(keep.sum(), -1) / 255.0, z["y"][keep].astype(np.int64), z["writer"][keep]
    whole = gv.data.load(name, data_dir=DATA)
    X = whole.x.flatten(1).double().numpy()
    return X if name == "cifar10-lite0" else X / 255.0, whole.y.numpy(), None if whole.group is None else whole.group.numpy()


def deal(name: str, parties: int, labels: float, seed: int, rows: int = ROWS) -> Deal:
    """`labels`: how many, or below 1 which share of the rows."""
    X, y, group = rows_of(name)
    draw = np.random.default_rng(seed)
    if group is None:
        parts = np.array_split(draw.permutation(len(X))[:rows], parties)
    else:
        parts = [np.flatnonzero(group == g) for g in draw.permutation(np.unique(group))[:parties]]
    n = sum(map(len, parts))
    known = np.zeros(n, bool)
    known[draw.permutation(n)[: round(labels * n) if labels < 1 else int(labels)]] = True
    return Deal([X[p] for p in parts], [y[p] for p in parts], np.split(known, np.cumsum([len(p) for p in parts])[:-1]))


SMALL = ("wine", "breast cancer", "digits")  # vary most from draw to draw and take seconds: many seeds
SETS: dict[str, tuple[str, int, float]] = {  # data, parties, labels
    "wine, 5 parties, 10 %": ("wine", 5, 0.1),
    "breast cancer, 5 parties, 10 %": ("breast_cancer", 5, 0.1),
    "digits, 10 parties, 10 %": ("digits", 10, 0.1),
    "CIFAR-10 features, 10 parties, 1000 labels": ("cifar10-lite0", 10, 1000),
    "CIFAR-10 features, 10 parties, 200 labels": ("cifar10-lite0", 10, 200),
    "CIFAR-10 features, 10 parties, 50 labels": ("cifar10-lite0", 10, 50),
    "Fashion-MNIST pixels, 10 parties, 50 labels": ("fashion-mnist", 10, 50),
    "Fashion-MNIST pixels, 10 parties, 200 labels": ("fashion-mnist", 10, 200),
    "Fashion-MNIST pixels, 10 parties, 1000 labels": ("fashion-mnist", 10, 1000),
    "derma pixels, 4 sites, 10 %": ("derma", 4, 0.1),
    "FEMNIST pixels, 40 writers, 62 classes, 10 %": ("femnist", 40, 0.1),
}
CENTRES, CENTRED_ROWS = 100, 10_000
LANDMARKS = {f"{labels} labels, {where} in the graph, {secure}": (labels, landmarks, secure)
             for secure in ("plain", "mlwe") for labels in (100, 500)
             for where, landmarks in ((f"{CENTRES} centres a party", CENTRES), ("all rows", "all"))
             if not (landmarks == "all" and secure == "mlwe" and labels == 500)}  # fmt: skip


# ---------------------------------------------------------------- lines: labels of every party's rows


def scaled(X: np.ndarray, by: np.ndarray) -> np.ndarray:
    """By the means and deviations of other rows; a feature that does not vary there is 0."""
    std = by.std(0)
    return np.clip((X - by.mean(0)) / np.where(std > 1e-9, std, np.inf), -CLIP, CLIP)


def regression(X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(max_iter=1000).fit(X, y)


def tuned_regression(X: np.ndarray, known: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Labels of all rows by logistic regression; scale and penalty by five folds of the labelled ones."""
    centred = X - X.mean(0)
    rows = (scaled(X, X), centred / max(float(np.sqrt(centred.var(0).mean())), 1e-9))
    folds = KFold(5, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(LogisticRegression(max_iter=1000), dict(C=PENALTIES), cv=folds)
        tried = [clone(search).fit(V[known], y[known]) for V in rows]
    best = int(np.argmax([each.best_score_ for each in tried]))
    return tried[best].predict(rows[best])


def alone(fit: Callable, d: Deal) -> list[np.ndarray]:
    """Each party's own model on its own rows; its one class where it has one, no label where it has none."""
    out = []
    for X, y, known in zip(d.X, d.truth, d.known):
        found = np.unique(y[known])
        X = scaled(X, X)
        few = np.full(len(y), found[0] if len(found) else -1)
        out.append(fit(X[known], y[known]).predict(X) if len(found) > 1 else few)
    return out


def pooled(predict: Callable, d: Deal) -> list[np.ndarray]:
    """One model of all labelled rows, as if they lay in one place. `predict` has rows, labels and which are known."""
    X, y, known = (np.concatenate(part) for part in (d.X, d.truth, d.known))
    labels = predict(scaled(X, X), np.where(known, y, -1), known)
    return np.split(labels, np.cumsum([len(x) for x in d.X])[:-1])


def tuned(d: Deal) -> list[np.ndarray]:
    """Scaled in two ways, so from the rows as they are."""
    X, y, known = (np.concatenate(part) for part in (d.X, d.truth, d.known))
    return np.split(tuned_regression(X, known, y), np.cumsum([len(x) for x in d.X])[:-1])


def head(make: Callable, whole: bool, d: Deal) -> list[np.ndarray]:
    """A head made from the moments of the labelled rows; with `whole`, of their full second moments however wide they are."""
    C = d.classes

    def predict(X: np.ndarray, y: np.ndarray, known: np.ndarray) -> np.ndarray:
        V, own = X[known], y[known]
        upper = np.triu_indices(X.shape[1])
        sums = np.concatenate([moments.class_sums(V, own, C), (V.T @ V)[upper]]) if whole else moments.class_moments(V, own, C)
        return moments.scores(X, make(sums, C, X.shape[1])).argmax(1)

    return pooled(predict, d)


def job(d: Deal, seed: int, **words: Any) -> tuple[list[np.ndarray], Any]:
    names = [f"party {i + 1}" for i in range(len(d.X))]
    result = gv.label(d.parties, names=names, seed=seed, **{**PLAIN, **words})
    return [np.asarray(party.labels) for party in result], result


def others(seed: int) -> dict[str, Callable[[Deal], list[np.ndarray]]]:
    """What stands beside chorus, by its name in the table."""

    def forest(X: np.ndarray, y: np.ndarray) -> Any:
        return RandomForestClassifier(100, random_state=seed, n_jobs=1).fit(X, y)

    spread = LabelSpreading(10, alpha=0.99, random_state=seed, threads=1)
    paper = dict(method="xclp", preset="paper", alpha=0.99, neighbours=10)
    best = dict(method="xclp", preset="code", alpha="auto", neighbours="auto")
    return {
        "LR alone": lambda d: alone(regression, d),
        "LR pooled": lambda d: pooled(lambda X, y, known: regression(X[known], y[known]).predict(X), d),
        "LR pooled, tuned": tuned,
        "Fed3R": lambda d: head(lambda s, C, k: moments.ridge(s, C, k, 0.01), True, d),
        "FedCGS": lambda d: head(lambda s, C, k: moments.total_gaussian(s, C, k, 0.0), True, d),
        "GH-OFL": lambda d: head(lambda s, C, k: moments.within_gaussian(s, C, k, 0.3), False, d),
        "FedNCM": lambda d: head(lambda s, C, k: moments.nearest_mean(s, C, k, True), False, d),
        "RF alone": lambda d: alone(forest, d),
        "RF pooled": lambda d: pooled(lambda X, y, known: forest(X[known], y[known]).predict(X), d),
        "LabelSpreading pooled": lambda d: pooled(lambda X, y, known: spread.fit(X, y).transduction_, d),
        "XCLP as printed": lambda d: job(d, seed, **paper)[0],
        "XCLP, best α": lambda d: job(d, seed, **best)[0],
    }


OTHERS = tuple(others(0))
LINES = ("chorus", *OTHERS)


# ---------------------------------------------------------------- what is measured


def measured(d: Deal, labels: list[np.ndarray]) -> dict[str, float]:
    """Of the rows that came without a label; a row that has none now is wrong."""
    known, truth = np.concatenate(d.known), np.concatenate(d.truth)
    right, truth = (np.concatenate(labels) == truth)[~known], truth[~known]
    by_class = [right[truth == c].mean() for c in np.unique(truth)]
    return dict(accuracy=round(float(right.mean()), 4), balanced=round(float(np.mean(by_class)), 4))


def calibration_error(sure: np.ndarray, right: np.ndarray) -> float:
    """How far the mean probability is from the share that is right, the mean over bins of probability weighted by their rows."""
    which = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs((sure - right)[which == b].sum()) for b in range(BINS)) / len(sure))


def worse_than_alone(right: np.ndarray, by_itself: np.ndarray) -> bool:
    """Whether a party loses more rows than chance would: beyond two deviations of a fair coin on the rows that differ."""
    lost, won = int((by_itself & ~right).sum()), int((right & ~by_itself).sum())
    return lost - won > 2 * (lost + won) ** 0.5


@contextmanager
def listening() -> Iterator[dict[str, dict[str, np.ndarray]]]:
    """What each voice alone says of every party's unlabelled rows, in their order, for jobs of this process that run inside."""
    heard: dict[str, dict[str, np.ndarray]] = {}
    before = Chorus._sung

    def note(method: Chorus, client: Any, found: Any) -> dict:
        own, known = client.name, len(client.memory["told"]["y"])
        classes = np.array([int(name) for name in client.memory["classes"].values()])
        heard[own] = {name: classes[voice[known:].argmax(1)] for name, voice in found.voices.items()}
        return before(method, client, found)

    Chorus._sung = note  # type: ignore[method-assign]
    try:
        yield heard
    finally:
        Chorus._sung = before  # type: ignore[method-assign]


def chorus(d: Deal, seed: int, **words: Any) -> dict[str, Any]:
    began = time.process_time()
    with listening() as heard:
        labels, result = job(d, seed, **{**dict(method="chorus", landmarks="all"), **words})
    seconds = time.process_time() - began
    truth = np.concatenate([y[~known] for y, known in zip(d.truth, d.known)])
    voices = {name: np.concatenate([heard[party.name][name] for party in result]) for name in heard[result[0].name]}
    new = [~known for known in d.known]
    right = [(own == y)[n] for own, y, n in zip(labels, d.truth, new)]
    by_itself = [(np.asarray(party.others["alone"]) == y)[n] for party, y, n in zip(result, d.truth, new)]
    sure = np.concatenate([party.confidence[n] for party, n in zip(result, new)])
    worse = [party.name for party, a, b in zip(result, right, by_itself) if worse_than_alone(a, b)]
    hidden = (result.expected or {}).get("n", 0)
    return dict(measured(d, labels), calibration=round(calibration_error(sure, np.concatenate(right)), 4), hidden=hidden,
                worse=worse, parties=len(d.X), chosen=result.about,
                voices={name: round(float((said == truth).mean()), 4) for name, said in voices.items()},
                seconds=round(seconds, 1))  # fmt: skip


class OutOfTime(BaseException):  # not an Exception: a step would be said to have failed
    """A line took more processor seconds than it may."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stops what runs inside after so many processor seconds; 0: never."""

    def stop(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def line_of(line: str, d: Deal, seed: int, limit: float) -> dict[str, Any]:
    try:
        with one_blas_thread(), at_most(limit):
            if line == "chorus":
                return chorus(d, seed)
            began = time.process_time()
            found = measured(d, others(seed)[line](d))
            return dict(found, seconds=round(time.process_time() - began, 1))
    except OutOfTime:
        return dict(cut=limit)


# ---------------------------------------------------------------- tables


def mean_of(runs: list[dict[str, Any]], name: str, shown: str = "{:.1f}", times: float = 100) -> str:
    """The mean over seeds; "cut" where every one was stopped, nothing where none ran."""
    found = [times * one[name] for one in runs if name in one]
    return shown.format(fmean(found)) if found else "cut" if runs else ""


def of(result: dict[str, Any], name: str, line: str) -> list[dict[str, Any]]:
    return [seed[line] for seed in result["runs"].get(name, {}).values() if line in seed]


def accuracies(result: dict[str, Any]) -> str:
    rows = []
    for name in (each for each in SETS if of(result, each, "chorus")):
        rows.append((name, *(mean_of(of(result, name, line), "accuracy") for line in LINES)))
        if name.startswith("derma"):
            rows.append((f"{name}, balanced", *(mean_of(of(result, name, line), "balanced") for line in LINES)))
    return markdown(("rows labelled right, %", *LINES), rows)


def about_chorus(result: dict[str, Any]) -> str:
    rows = []
    for name, runs in ((each, of(result, each, "chorus")) for each in SETS):
        if any("accuracy" in one for one in runs):
            done = [one for one in runs if "accuracy" in one]
            worse = f"{sum(len(one['worse']) for one in done)} of {sum(one['parties'] for one in done)}"
            how = (mean_of(runs, "calibration", "{:.3f}", 1), mean_of(runs, "hidden", "{:.0f}", 1))
            everywhere = [voice for voice in done[0]["voices"] if voice != "home" and all(voice in one["voices"] for one in done)]
            best = {voice: fmean(one["voices"][voice] for one in done) for voice in everywhere}
            name_of_best = max(best, key=lambda voice: best[voice])
            rows.append((name, len(done), f"{name_of_best} {100 * best[name_of_best]:.1f}", *how, worse,
                         mean_of(runs, "seconds", "{:.0f}", 1)))  # fmt: skip
    head = ("", "seeds", "best single voice", "calibration error", "hidden labels", "parties worse than alone", "CPU s")
    return markdown(head, rows)


def landmark_table(result: dict[str, Any]) -> str:
    rows, seeds = [], list(result["landmarks"].values())
    for name in (each for each in LANDMARKS if each.endswith("plain")):
        runs = [seed[name] for seed in seeds if "accuracy" in seed.get(name, {})]
        if runs:
            secured = [seed.get(name.replace("plain", "mlwe"), {}) for seed in seeds]
            extra = [two["seconds"] - one["seconds"] for one, two in zip(runs, secured) if "seconds" in two]
            nodes = fmean(one["chosen"]["nodes"] for one in runs)
            rows.append((name.removesuffix(", plain"), len(runs), mean_of(runs, "accuracy"), f"{nodes:.0f}",
                         f"{(nodes / CENTRED_ROWS) ** 2:.4f}", f"{fmean(extra):.0f}" if extra else ""))  # fmt: skip
    head = ("CIFAR-10 features, 10 parties of 1000 rows", "seeds", "right, %", "nodes", "pairs of all", "secure CPU s")
    return markdown(head, rows)


def words(result: dict[str, Any]) -> str:
    m = result["machine"]
    return f"""Measured by `python benchmarks/label.py` on {m["cpu"]}, {m["cores"]} cores, {m["date"]}; means over seeds. A
line that took more than its limit of processor seconds is cut; an empty cell was not run. A party is worse than alone where it
loses more rows against its own regression than two deviations of chance."""


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    text = "\n\n".join([words(result), accuracies(result), about_chorus(result)])
    text += "\n\n" + landmark_table(result) if result["landmarks"] else ""
    fill(root / PAGE, "label.py", text)


# ---------------------------------------------------------------- running


def picked(text: str | None, names: tuple[str, ...]) -> list[str]:
    """The names that begin with one of the words."""
    return [name for name in names if text is None or name.startswith(tuple(text.split(",")))]


def measure(result: dict[str, Any], sets: list[str], lines: list[str], seeds: int | None, limit: float) -> Iterator[str]:
    """Every line that is not there yet; says each as it is done."""
    for name in sets:
        for seed in range(FIRST, FIRST + (seeds or (MANY if name.startswith(SMALL) else SEEDS))):
            kept = result["runs"].setdefault(name, {}).setdefault(str(seed), {})
            for line in (each for each in lines if each not in kept):
                kept[line] = line_of(line, deal(*SETS[name], seed), seed, limit)
                yield f"{name}; seed {seed}; {line}: {kept[line]}"


def measure_landmarks(result: dict[str, Any], seeds: int | None, limit: float) -> Iterator[str]:
    for seed in range(FIRST, FIRST + (seeds or SEEDS)):
        kept = result["landmarks"].setdefault(str(seed), {})
        for name, (labels, landmarks, secure) in LANDMARKS.items():
            if name not in kept:
                d = deal("cifar10-lite0", 10, labels, seed, CENTRED_ROWS)
                try:
                    with one_blas_thread(), at_most(limit):
                        kept[name] = chorus(d, seed, landmarks=landmarks, secure=secure)
                except OutOfTime:
                    kept[name] = dict(cut=limit)
                yield f"landmarks; seed {seed}; {name}: {kept[name]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="wine, one seed; nothing is written")
    parser.add_argument("--seeds", type=int, help=f"how many, from {FIRST} [{MANY} for small tables, else {SEEDS}]")
    parser.add_argument("--only", help="beginnings of names of sets, and `landmarks` [all]")
    parser.add_argument("--lines", help="beginnings of names of lines [all]")
    parser.add_argument("--limit", type=float, default=0, help="processor seconds after which a line is cut [never]")
    flags = parser.parse_args()
    quick = flags.quick
    only, seeds = ("wine", 1) if quick else (flags.only, flags.seeds)
    sets, lines = picked(only, tuple(SETS)), picked(flags.lines, LINES)
    centred = not quick and bool(picked(only, ("landmarks",)))
    need(*sorted({SETS[name][0] for name in sets} & set(FILES) | ({"cifar10-lite0"} if centred else set())))
    result = json.loads(FILE.read_text()) if FILE.exists() and not quick else dict(machine=about(), runs={}, landmarks={})
    steps = [measure(result, sets, lines, seeds, flags.limit)] + [measure_landmarks(result, seeds, flags.limit)] * centred
    for said in (said for step in steps for said in step):
        print(said, flush=True)
        if not quick:
            result["machine"] = about()
            FILE.write_text(json.dumps(result, indent=1) + "\n")
    print(accuracies(result), about_chorus(result), sep="\n\n")
    if not quick:
        document(result)


if __name__ == "__main__":
    main()
