"""What differential privacy costs and what it stops: accuracy, and an attacker's success, against ε.

    python benchmarks/privacy.py [--quick] [--part train|labels|sums]

train    FedAvg with `--dp` on the digits: 5 clients, every training row labelled, a linear model, 10 rounds of 2 epochs, batch
         64, learning rate 0.5, gradients cut at 1, δ = 1e-6, unit one labelled row of a client. The attacker has the final model
         and guesses of a row whether it was trained on, by its loss: area under the curve, 0.5 is a coin.
labels   The label job by chorus with `--dp-labels`, on the digits (10 parties, a tenth labelled) and on features of CIFAR-10 (10
         parties of 1000 rows, 1000 labels in all), unit the label of one row, δ = 0. The attacker is everybody else together: it
         sees each label as it was told, and takes it for the true one.
sums     The same parties with `--dp`, δ = 1e-6, unit one row of a party in what is opened. The attacker has the heads, which are
         made from the sums, and guesses of a row whether it took part, by how sure they are: area under the curve.

Protocols are `plain`: the labels are those of the others. Means over splits, six for labels and three else; noise differs from
run to run. Points lost are against the same split without noise, with their standard error. Results: privacy.json beside this
file; the table of docs/privacy.md and docs/privacy.svg are made from it.
"""

from __future__ import annotations

import argparse
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import DATA, ROOT, about, fill, markdown, need, table, write
from sklearn.metrics import roc_auc_score

import grapevine as gv
from grapevine.crypto import noise
from grapevine.report.charts.files import save, sheet
from grapevine.report.charts.kinds import Axis, Point, Series, lines

OF_ROWS, OF_LABELS, DELTA = (1.0, 3.0, 8.0), (1.0, 2.0, 3.0, 4.0, 8.0), 1e-6
TRAIN = dict(rounds=10, per_round=5, model="linear", set=dict(lr=0.5, epochs=2, batch=64))
SPLITS = dict(train=3, labels=6, sums=3)
PAGE, PICTURE = Path("docs/privacy.md"), ROOT / "docs" / "privacy.svg"
Line = dict[str, Any]


# ---------------------------------------------------------------- train


def train(quick: bool) -> list[Line]:
    out = []
    for epsilon in (None, *((8.0,) if quick else OF_ROWS)):
        scores = [_train_once(epsilon, seed, quick) for seed in range(1 if quick else SPLITS["train"])]
        out.append(_line("train", "digits, FedAvg", epsilon, scores))
    return out


def _train_once(epsilon: float | None, seed: int, quick: bool) -> tuple[float, float]:
    split = gv.data.load("digits").split(clients=5, labels="all", seed=seed)
    told = TRAIN | (dict(rounds=1) if quick else {}) | ({} if epsilon is None else dict(dp=epsilon, delta=DELTA))
    run = gv.train("fedavg", split, seed=seed, **told)
    members = [split.client(i, "cpu").labelled for i in range(len(split.parts))]
    inside = np.concatenate([_losses(run.model, rows.x[rows.index], rows.y) for rows in members])
    test = split.client(0, "cpu").test
    outside = _losses(run.model, test.x[test.index], test.y)
    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    return run.result["accuracy"], float(roc_auc_score(truth, -np.r_[inside, outside]))


def _losses(model: Any, x: Any, y: Any) -> np.ndarray:
    return -np.log(np.maximum(model.predict_proba(x)[np.arange(len(y)), y.numpy()], 1e-12))


# ---------------------------------------------------------------- label


def parties_of(data: str, labels: int | float, seed: int, quick: bool) -> tuple[list, list[np.ndarray], np.ndarray, np.ndarray]:
    """(X, y with −1) of ten parties, the truth of each, the true labels that are known, and rows of nobody."""
    rng = np.random.default_rng(seed)
    if data == "digits":
        found = gv.data.load("digits")
        x, y = found.x.flatten(1).numpy().astype(float), found.y.numpy()
    else:
        file = np.load(DATA / "cifar10_lite0_256.npz")
        x, y = file["x_train"].astype(float), file["y_train"].astype(np.int64)
    at = rng.permutation(len(x))
    taken = 200 if quick else min(10_000, len(x) * 4 // 5)
    x, y, others = x[at[:taken]], y[at[:taken]], x[at[taken:]]
    known = np.zeros(len(y), bool)
    known[rng.permutation(len(y))[: int(labels if labels >= 1 else labels * len(y))]] = True
    given = np.where(known, y, -1)
    pieces = np.array_split(np.arange(len(y)), 4 if quick else 10)
    return [(x[i], given[i]) for i in pieces], [y[i] for i in pieces], y[known], others


def label(part: str, quick: bool) -> list[Line]:
    out = []
    for data, labels in (("digits", 0.1), ("CIFAR-10 features", 1000))[: 1 if quick else None]:
        name = f"{data}, {labels:.0%} labelled" if labels < 1 else f"{data}, {labels:g} labels"
        for epsilon in (None, *((8.0,) if quick else OF_LABELS if part == "labels" else OF_ROWS)):
            scores = [_label_once(part, data, labels, epsilon, seed, quick) for seed in range(1 if quick else SPLITS[part])]
            out.append(_line(part, name, epsilon, scores))
    return out


def _label_once(part: str, data: str, labels: float, epsilon: float | None, seed: int, quick: bool) -> tuple[float, float]:
    parties, truth, own, others = parties_of(data, labels, seed, quick)
    told = {} if epsilon is None else dict(dp_labels=epsilon) if part == "labels" else dict(dp=epsilon, delta=DELTA)
    result: Any = gv.label(parties, truth=truth, secure="plain", seed=seed, **told)
    if part == "labels":
        seen = own if epsilon is None else noise.randomised_response(own, 10, epsilon)
        return result.accuracy, float((seen == own).mean())
    sure = [result.heads.predict_proba(rows).max(1) for rows in (np.concatenate([x for x, _ in parties]), others)]
    return result.accuracy, float(roc_auc_score(np.repeat([1, 0], [len(s) for s in sure]), np.concatenate(sure)))


# ---------------------------------------------------------------- the page


def _line(part: str, what: str, epsilon: float | None, scores: list[tuple[float, float]]) -> Line:
    accuracy, attack = zip(*scores)
    line = dict(part=part, what=what, epsilon=epsilon, accuracy=round(float(np.mean(accuracy)), 4),
                by_split=[round(score, 4) for score in accuracy], attack=round(float(np.mean(attack)), 4))  # fmt: skip
    print(table(("", "epsilon", "accuracy", "attack"), [(what, str(epsilon), line["accuracy"], line["attack"])]), flush=True)
    return line


def draw(found: list[Line]) -> None:
    """Accuracy and the attacker's success against ε, in one picture. Not every series has every ε."""
    axis, share = Axis("ε", lambda v: f"{v:g}", log=True), Axis("share", lambda v: f"{100 * v:.0f} %")
    charts = []
    for key, title in (("accuracy", "Accuracy against ε"), ("attack", "The attacker's success against ε")):
        names = list(dict.fromkeys(f"{r['part']}: {r['what']}" for r in found))
        at = {name: [r for r in found if r["epsilon"] and f"{r['part']}: {r['what']}" == name] for name in names}
        series = [Series(name, [Point(r["epsilon"], r[key]) for r in at[name]], i, i == 1) for i, name in enumerate(names)]
        charts.append(lines(title, series, axis, share))
    save(sheet(charts), PICTURE)


def lost(exact: list[float], noisy: list[float]) -> str:
    """Points of accuracy that noise costs on the same splits, the mean and its standard error."""
    apart = 100 * (np.array(exact) - noisy)
    return f"{apart.mean():.1f} ± {apart.std(ddof=1) / len(apart) ** 0.5:.1f}"


def text(result: dict[str, Any]) -> str:
    units = {"train": ("one labelled row", f"{DELTA:g}"), "labels": ("one row's label", "0"),
             "sums": ("one row, in the sums", f"{DELTA:g}")}  # fmt: skip
    exact = {(r["part"], r["what"]): r["by_split"] for r in result["lines"] if r["epsilon"] is None}
    rows = [
        (r["what"], units[r["part"]][0], "no noise" if r["epsilon"] is None else f"{r['epsilon']:g}",
         "" if r["epsilon"] is None else units[r["part"]][1], f"{100 * r['accuracy']:.1f}",
         "" if r["epsilon"] is None else lost(exact[r["part"], r["what"]], r["by_split"]),
         f"{r['attack']:.2f}" if r["part"] != "labels" else f"{100 * r['attack']:.0f} %")
        for r in result["lines"]
    ]  # fmt: skip
    head = ("", "unit", "ε", "δ", "accuracy, %", "points lost", "attack")
    ran = f"`python benchmarks/privacy.py`, {result['machine']['date']}, commit {result['machine']['commit']}."
    return f"{markdown(head, rows)}\n\nMade by {ran}"


def document(result: dict[str, Any], root: Path = ROOT) -> None:
    fill(root / PAGE, "privacy.py", text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it runs; nothing is written")
    parser.add_argument("--part", choices=("train", "labels", "sums"), help="only this; the others' lines are kept")
    args = parser.parse_args()
    logging.getLogger("grapevine").setLevel(logging.ERROR)
    if not args.quick and args.part != "train":
        need("cifar10-lite0")
    parts = {"train": train, "labels": partial(label, "labels"), "sums": partial(label, "sums")}
    path = Path(__file__).with_suffix(".json")
    before = json.loads(path.read_text())["lines"] if path.exists() else []
    found: list[Line] = []
    for part, measure in parts.items():
        found += measure(args.quick) if args.part in (None, part) else [line for line in before if line["part"] == part]
    if args.quick:
        return
    result = dict(machine=about(), lines=found)
    write(__file__, result)
    draw(found)
    document(result)


if __name__ == "__main__":
    main()
